//! `anyring run`: executes the program with the preload library.

use crate::cli::{Engine, Run};
use crate::elf::{self, Obstacle};
use crate::{OWN_FAILURE, library, machine};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Executes the program in place of this process; returns only on failure.
pub fn run(arguments: &Run) -> ExitCode {
    let (name, rest) = arguments.program.split_first().expect("clap requires the program");
    let Some(program) = search(name) else {
        return fail(NOT_FOUND, &format!("{}: not found", name.to_string_lossy()), "", "");
    };
    let library = match library::find() {
        Ok(library) => library,
        Err(why) => {
            return fail(
                OWN_FAILURE,
                "cannot find the preload library",
                &why,
                "install it there, or set ANYRING_PRELOAD to its path",
            );
        }
    };
    if library.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return fail(
            OWN_FAILURE,
            &format!("cannot preload {}", library.display()),
            "LD_PRELOAD cannot hold a path with a space or a colon",
            "move anyring to another directory",
        );
    }
    if needs_library(arguments)
        && let Some(code) = refuse(&program)
    {
        return code;
    }
    let mut command = Command::new(&program);
    command.arg0(name).args(rest).env("LD_PRELOAD", preload_list(&library));
    if let Some(engine) = arguments.engine {
        command.env("ANYRING_ENGINE", engine.word());
    }
    if let Some(log) = &arguments.log {
        command.env("ANYRING_LOG", log);
    }
    cannot_execute(&program, &command.exec())
}

/// The library in front of what is preloaded already.
fn preload_list(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        let listed = others
            .as_bytes()
            .split(|byte| matches!(byte, b' ' | b':'))
            .any(|entry| entry == library.as_os_str().as_bytes());
        if listed {
            return others;
        }
        list.push(":");
        list.push(others);
    }
    list
}

/// Finds the program as a shell does.
fn search(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Path::new(name).exists().then(|| PathBuf::from(name));
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    let candidates: Vec<PathBuf> = env::split_paths(&path)
        .map(|directory| directory.join(name))
        .filter(|candidate| candidate.is_file())
        .collect();
    candidates.iter().find(|candidate| is_executable(candidate)).or(candidates.first()).cloned()
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

/// Whether anyring's own engine will have to do the work.
fn needs_library(arguments: &Run) -> bool {
    let engine =
        arguments.engine.map(Engine::word).map(OsString::from).or_else(|| env::var_os("ANYRING_ENGINE"));
    match engine.as_deref().map(OsStr::as_bytes) {
        Some(b"kernel") => false,
        Some(b"user") => true,
        _ => !machine::kernel_works(),
    }
}

/// Refuses a program that the library would not be loaded into.
fn refuse(program: &Path) -> Option<ExitCode> {
    let shown = program.display();
    // What cannot be looked at may still be executed, and execution says best why not.
    let obstacle = elf::obstacle(program).ok()??;
    let code = match obstacle {
        Obstacle::Static => fail(
            OWN_FAILURE,
            &format!("{shown} is statically linked"),
            "no dynamic linker runs in it, so nothing can be preloaded",
            "use a dynamically linked build of the program",
        ),
        Obstacle::Privileged(privilege) => fail(
            OWN_FAILURE,
            &format!("{shown} is {privilege}"),
            "the dynamic linker ignores LD_PRELOAD for programs that gain privileges",
            "run it as the user it changes to, so that it gains none",
        ),
        Obstacle::Machine(machine) => fail(
            NOT_EXECUTABLE,
            &format!("{shown} is for another machine (ELF machine {machine}, or 32-bit)"),
            "the preload library can only be loaded into programs of its own kind",
            "use a build for this machine",
        ),
        // Shells run such files as scripts; the kernel refuses them. Leave the answer to it.
        Obstacle::Unknown => return None,
    };
    Some(code)
}

fn cannot_execute(program: &Path, error: &io::Error) -> ExitCode {
    let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    let shown = program.display();
    let hint = match error.raw_os_error() {
        Some(libc::ENOEXEC) => "a script needs a first line such as #!/bin/sh",
        Some(libc::ENOENT) => "the interpreter that it names does not exist",
        Some(libc::EACCES) => "it must be a file with execute permission, on a file system that allows it",
        _ => "",
    };
    fail(code, &format!("cannot execute {shown}: {error}"), hint, "")
}

/// Says what failed, why, and what to do.
fn fail(code: u8, what: &str, why: &str, remedy: &str) -> ExitCode {
    eprintln!("anyring: {what}");
    if !why.is_empty() {
        eprintln!("  why: {why}");
    }
    if !remedy.is_empty() {
        eprintln!("  do:  {remedy}");
    }
    ExitCode::from(code)
}
