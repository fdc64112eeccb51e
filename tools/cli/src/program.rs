//! `anyring doctor -- PROGRAM`: how a program is linked, how the engine gets into it, and whether that works here.

use crate::inject::sites::{Survey, survey};
use crate::library;
use crate::machine::{self, Closes, Injection, Trap};
use crate::run::{search, string};
use crate::status::quoted;
use anyring_trap::program::{self, Description, Kind};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The report on a program.
#[derive(Debug, Serialize)]
pub struct Program {
    /// The program's path; if there is no such program, the name that was given.
    pub path: String,
    /// The program's linkage.
    pub kind: Linkage,
    /// The linkage in words.
    pub linkage: String,
    /// The interpreters of a script, beginning with the one that the script names.
    pub interpreters: Vec<String>,
    /// The dynamic linker that the program names; for a script, that of the last interpreter.
    pub dynamic_linker: Option<String>,
    /// True if the program needs `liburing.so.2`.
    pub loads_liburing: bool,
    /// The way in which the program reaches anyring's engine here.
    pub way: Way,
    /// The calls of a static program that are patched, or trap, if the engine gets into it.
    pub calls: Option<Survey>,
    /// Whether the closes of a dynamic program are seen, if the engine gets into it.
    pub closes: Option<Closes>,
    /// True if the program has an `io_uring` that works here, anyring's or the kernel's.
    pub works: bool,
    /// The reason why it does not work.
    pub why_not: Option<String>,
    /// The remedy, if it does not work.
    pub remedy: Option<String>,
    /// The command that runs the program.
    pub command: Option<String>,
}

/// The linkage of a program, or of the interpreter that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Linkage {
    NotFound,
    NotExecutable,
    /// The program's interpreter or dynamic linker does not exist.
    NoInterpreter,
    /// Dynamically linked, with glibc.
    DynamicGlibc,
    DynamicMusl,
    /// Dynamically linked, with another dynamic linker.
    Dynamic,
    Static,
    StaticPie,
    /// The program gains privileges: set-user-ID, set-group-ID, file capabilities.
    Privileged,
    /// The program is for another machine.
    Foreign,
    /// Neither an executable nor a script.
    Unknown,
}

/// The ways in which a program reaches anyring's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// By `libanyring_preload.so`.
    Preload,
    /// By ptrace, before its first instruction.
    Inject,
    /// By anyring's `liburing.so.2`, which the program loads.
    Liburing,
    None,
}

/// The properties of the machine that decide which way works.
pub struct Place<'a> {
    /// True if `auto` chooses the kernel's `io_uring`.
    pub kernel_works: bool,
    pub trap: &'a Trap,
    pub injection: &'a Injection,
}

/// Examines a program; `words` are the program and its arguments.
pub fn examine(words: &[OsString], place: &Place<'_>) -> Option<Program> {
    let name = words.first()?;
    let mut program = Program {
        path: name.to_string_lossy().into_owned(),
        kind: Linkage::NotFound,
        linkage: String::from("not found"),
        interpreters: Vec::new(),
        dynamic_linker: None,
        loads_liburing: false,
        way: Way::None,
        calls: None,
        closes: None,
        works: false,
        why_not: None,
        remedy: None,
        command: None,
    };
    let Some(path) = search(name) else {
        program.fails(
            "there is no such file, and no such program in PATH",
            "check the spelling, or give the path",
        );
        return Some(program);
    };
    program.path = path.display().to_string();
    if !is_executable(&path) {
        program.kind = Linkage::NotExecutable;
        program.linkage = String::from("not executable");
        program.fails(
            "it must be a file with execute permission, on a file system that allows it",
            "chmod +x, or see the mount option noexec",
        );
        return Some(program);
    }
    match program::describe(&string(path.as_os_str())) {
        Ok(description) => {
            program.describe(&description);
            program.choose_way(&description, place);
        }
        Err(error) => {
            let error = std::io::Error::from_raw_os_error(-error as i32);
            program.kind = Linkage::Unknown;
            program.linkage = String::from("cannot be read");
            program
                .fails(&format!("the file may be executed, but not read: {error}"), "give read permission");
        }
    }
    if program.way == Way::Inject && program.interpreters.is_empty() {
        program.calls = survey(&path);
    }
    if program.way == Way::Preload
        && program.interpreters.is_empty()
        && let Ok(library) = library::find()
    {
        program.closes = machine::closes(&library, &path);
    }
    if program.works {
        program.command = Some(program.words_to_run(words));
    }
    Some(program)
}

/// True if this process may execute the file.
fn is_executable(path: &Path) -> bool {
    // SAFETY: reads a string.
    path.is_file() && unsafe { libc::access(string(path.as_os_str()).as_ptr(), libc::X_OK) } == 0
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_there(path: &[u8]) -> bool {
    Path::new(OsStr::from_bytes(path)).exists()
}

impl Program {
    fn fails(&mut self, why: &str, remedy: &str) {
        self.works = false;
        self.why_not = Some(why.to_owned());
        self.remedy = (!remedy.is_empty()).then(|| remedy.to_owned());
    }

    /// Sets the facts about the program's file.
    fn describe(&mut self, description: &Description) {
        self.interpreters = description.interpreters.iter().map(|name| text(name)).collect();
        self.dynamic_linker = description.linker.as_deref().map(text);
        self.loads_liburing = description.libraries.iter().any(|name| name == b"liburing.so.2");
        let linker = self.dynamic_linker.as_deref().unwrap_or_default();
        let linker = linker.rsplit('/').next().unwrap_or_default();
        let missing = description.interpreters.iter().chain(&description.linker).any(|path| !is_there(path));
        let (kind, words) = match description.kind {
            _ if missing => (Linkage::NoInterpreter, String::from("its interpreter is missing")),
            Kind::Dynamic | Kind::Sanitized if linker.starts_with("ld-musl") => {
                (Linkage::DynamicMusl, String::from("dynamic (musl)"))
            }
            Kind::Dynamic | Kind::Sanitized if linker.starts_with("ld-linux") => {
                (Linkage::DynamicGlibc, String::from("dynamic (glibc)"))
            }
            Kind::Dynamic | Kind::Sanitized => (Linkage::Dynamic, String::from("dynamic")),
            Kind::Static if description.is_pie => (Linkage::StaticPie, String::from("static-PIE")),
            Kind::Static => (Linkage::Static, String::from("static")),
            Kind::Privileged(privilege) => (Linkage::Privileged, privilege.to_owned()),
            Kind::Foreign(machine) => {
                (Linkage::Foreign, format!("for another machine ({})", machine_name(machine)))
            }
            Kind::Unknown => (Linkage::Unknown, String::from("neither an executable nor a script")),
        };
        self.kind = kind;
        self.linkage = match self.interpreters.last() {
            Some(interpreter) => format!("script, run by {interpreter}: {words}"),
            None => words,
        };
        if description.kind == Kind::Sanitized {
            self.linkage.push_str(", with the address sanitizer");
        }
    }

    /// Chooses the way in which the engine gets into the program, and sets whether it works.
    fn choose_way(&mut self, description: &Description, place: &Place<'_>) {
        let Place { kernel_works, trap, injection } = *place;
        match self.kind {
            Linkage::DynamicGlibc | Linkage::DynamicMusl | Linkage::Dynamic if trap.loads => {
                self.way = Way::Preload;
                self.works = true;
            }
            Linkage::DynamicGlibc | Linkage::DynamicMusl | Linkage::Dynamic => {
                if self.loads_liburing && installed_liburing().is_some() {
                    self.way = Way::Liburing;
                    self.works = true;
                    return;
                }
                self.fails(
                    trap.why_not.as_deref().unwrap_or("the preload library does not load"),
                    "see the lines about the trap above",
                );
            }
            Linkage::Static | Linkage::StaticPie if injection.works => {
                self.way = Way::Inject;
                self.works = true;
            }
            Linkage::Static | Linkage::StaticPie => self.fails(
                injection.why_not.as_deref().unwrap_or("static programs do not work here"),
                injection.remedy.unwrap_or_default(),
            ),
            Linkage::Privileged => self.fails(
                "a program that gains privileges loads no library that its caller names",
                "run it as the user to which it changes, so that it gains no privileges",
            ),
            Linkage::NoInterpreter => {
                let names = description.interpreters.iter().chain(&description.linker);
                let name = names
                    .into_iter()
                    .find(|path| !is_there(path))
                    .map_or_else(String::new, |path| text(path));
                return self.fails(
                    &format!("{name}, which is to run it, does not exist"),
                    "install it, or use a build for this system",
                );
            }
            Linkage::Foreign => {
                return self.fails("this machine does not execute it", "use a build for this machine");
            }
            Linkage::Unknown => {
                return self.fails(
                    "the kernel does not execute it; a shell may",
                    "give a script a first line such as #!/bin/sh",
                );
            }
            Linkage::NotFound | Linkage::NotExecutable => {}
        }
        // Every program that can be executed can use the kernel's io_uring, if that works.
        self.works |= kernel_works;
    }

    /// Returns the command that runs the program, as a shell reads it.
    fn words_to_run(&self, words: &[OsString]) -> String {
        let program = words.iter().cloned().map(quoted).collect::<Vec<_>>().join(" ");
        match (self.way, installed_liburing()) {
            (Way::Liburing, Some(directory)) => {
                format!("LD_LIBRARY_PATH={} {program}", quoted(directory.into_os_string()))
            }
            _ => format!("anyring run --log info -- {program}"),
        }
    }
}

/// Returns the directory of anyring's `liburing.so.2`, if this command was installed with it.
fn installed_liburing() -> Option<PathBuf> {
    let library = library::find().ok()?;
    let directory = library.parent()?;
    directory.join("liburing.so.2").exists().then(|| directory.to_owned())
}

/// Returns the usual name of a machine of an ELF header.
fn machine_name(machine: u16) -> String {
    let name = match machine {
        3 => "x86, 32-bit",
        8 => "MIPS",
        20 | 21 => "PowerPC",
        22 => "s390",
        40 => "Arm, 32-bit",
        62 => "x86-64",
        183 => "Arm, 64-bit",
        243 => "RISC-V",
        258 => "LoongArch",
        other => return format!("ELF machine {other}"),
    };
    name.to_owned()
}
