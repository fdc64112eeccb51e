//! `anyring run`: executes the program with the engine in it.

use crate::cli::{Exec, Run};
use crate::inject::{self, Failure};
use crate::status::{NOT_EXECUTABLE, NOT_FOUND, OWN_FAILURE, fail};
use crate::{library, machine};
use anyring_runtime::config::{self, Choice, Config, Wrong};
use anyring_runtime::{arch, beside, log, process, trace};
use anyring_trap::program::{self, Kind};
use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
    if let Some(path) = &arguments.stats_file
        && std::fs::symlink_metadata(path).is_ok_and(|file| !file.is_file())
    {
        return fail(
            OWN_FAILURE,
            &format!("cannot write the statistics to {}", path.display()),
            "it is not a regular file, and the statistics replace the file",
            "name a file in a directory that the program may write to",
        );
    }
    set_environment(arguments, &library);
    let config = settings();
    if let Some(code) = refuse_settings(&config) {
        return code;
    }
    // The program's front end makes the same choice.
    // SAFETY: creates a ring.
    let kernel = |number, arguments| unsafe { arch::syscall(number, arguments) };
    let is_traced = trace::is_wanted() || arguments.trace.is_some();
    let chosen = process::choose(config.choice, process::Asks::Itself, kernel);
    let needs_library = chosen == Choice::User || is_traced;
    let nobody_answers = config.choice == Choice::Auto && chosen == Choice::Kernel && !beside::is_offered();
    // A dynamic program reports this itself.
    if nobody_answers && kind_of(&program) == Kind::Static {
        log::write(format_args!("{}: io_uring is left as it is", process::RINGS_KILL));
    }
    let kind = if needs_library { kind_of(&program) } else { Kind::Unknown };
    if let Some(code) = refuse(&program, kind) {
        return code;
    }
    if needs_library
        && !arguments.loads
        && kind != Kind::Static
        && let Err(why) = machine::loads(&library, &program)
    {
        return fail(
            OWN_FAILURE,
            &format!("cannot bring the engine into programs by {}", library.display()),
            &why,
            "see what anyring doctor says of this place; --engine kernel leaves io_uring as it is",
        );
    }
    if kind == Kind::Sanitized {
        let options = env::var_os(program::SANITIZER_OPTIONS).unwrap_or_default();
        if let Some(options) = program::with_any_order(options.as_bytes()) {
            // SAFETY: this process has one thread.
            unsafe { env::set_var(program::SANITIZER_OPTIONS, OsStr::from_bytes(&options)) };
        }
    }
    // The variables are set only now: trial programs that check whether the library loads must not have them.
    for (name, path) in [("ANYRING_TRACE", &arguments.trace), ("ANYRING_CHAOS", &arguments.chaos_plan)] {
        if let Some(path) = path {
            // SAFETY: this process has one thread.
            unsafe { env::set_var(name, path) };
        }
    }
    let list: Vec<CString> = std::iter::once(name).chain(rest).map(|argument| string(argument)).collect();
    let path = string(program.as_os_str());
    if kind != Kind::Static {
        return cannot_execute(&program, &inject::replace(&path, &list));
    }
    let Err(failure) = inject::execute(library::image(&library), &path, &list);
    match failure {
        Failure::Execute(error) => cannot_execute(&program, &error),
        Failure::Image(why) => fail(
            OWN_FAILURE,
            &format!(
                "{} is statically linked, and the image for such programs cannot be used",
                program.display()
            ),
            &why,
            "keep anyring and the two files that were built with it in one directory",
        ),
        Failure::Trace(error) => {
            let (why, remedy) = machine::why_not_traced(&error);
            let shown = program.display();
            fail(
                OWN_FAILURE,
                &format!("cannot bring the engine into {shown}, which is statically linked"),
                &why,
                remedy,
            )
        }
    }
}

/// Executes a static program on behalf of a program under anyring; returns only on failure. If the
/// engine cannot be brought into it, the program runs without it.
pub fn exec(arguments: &Exec) -> ExitCode {
    let path = string(&arguments.program);
    let list: Vec<CString> = arguments.arguments.iter().map(|argument| string(argument)).collect();
    let why = match library::find() {
        Err(why) => why,
        Ok(library) => match inject::execute(library::image(&library), &path, &list) {
            Ok(never) => match never {},
            Err(Failure::Execute(error)) => return cannot_execute(Path::new(&arguments.program), &error),
            Err(Failure::Image(why)) => why,
            Err(Failure::Trace(error)) => machine::why_not_traced(&error).0,
        },
    };
    say(&format!("{} runs without the engine: {why}", Path::new(&arguments.program).display()));
    cannot_execute(Path::new(&arguments.program), &inject::replace(&path, &list))
}

/// Writes a line to the log that `ANYRING_LOG` configures.
fn say(what: &str) {
    settings();
    log::line(config::Level::Info, format_args!("{what}"));
}

/// Returns the settings in the environment, as the program's front end will read them.
fn settings() -> Config {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    // SAFETY: this process's own environment, which is not changed any more.
    unsafe { config::read(environ) }
}

/// Refuses invalid settings, and a log that cannot be written.
fn refuse_settings(config: &Config) -> Option<ExitCode> {
    if let Some(Wrong { name, wanted }) = config.wrong {
        let value = env::var_os(name).unwrap_or_default();
        return Some(fail(
            OWN_FAILURE,
            &format!("{name} is \"{}\"", value.to_string_lossy()),
            &format!("it is to be {wanted}"),
            "set it so, or leave it out",
        ));
    }
    let (path, error) = log::check().err()?;
    Some(fail(
        OWN_FAILURE,
        &format!("cannot write the log to {}", path.to_string_lossy()),
        &io::Error::from_raw_os_error(error).to_string(),
        "name a file, no link to one, in a directory that may be written to; or fd=N",
    ))
}

/// Converts a string of the command line or the environment, which contains no NUL.
pub fn string(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).unwrap_or_default()
}

/// Sets the variables for the program and its children.
fn set_environment(arguments: &Run, library: &Path) {
    let set = |name: &str, value: &OsStr| {
        // SAFETY: this process has one thread.
        unsafe { env::set_var(name, value) };
    };
    set("LD_PRELOAD", &preload_list(library));
    if let Ok(command) = library::command() {
        set("ANYRING_COMMAND", command.as_os_str());
    }
    if let Some(engine) = arguments.engine {
        set("ANYRING_ENGINE", OsStr::new(engine.word()));
    }
    if let Some(abi) = arguments.abi {
        set("ANYRING_ABI", OsStr::new(&abi.to_string()));
    }
    if let Some(stats) = arguments.stats {
        set("ANYRING_STATS", OsStr::new(stats.word()));
    }
    if let Some(path) = &arguments.stats_file {
        // The program may change its directory.
        set("ANYRING_STATS_FILE", std::path::absolute(path).unwrap_or_default().as_os_str());
    }
    if let Some(seconds) = arguments.stats_interval {
        set("ANYRING_STATS_INTERVAL", OsStr::new(&seconds.to_string()));
    }
    if arguments.callers {
        set("ANYRING_PATCH", OsStr::new("0"));
    }
    if let Some(log) = &arguments.log {
        set("ANYRING_LOG", &from_the_root(log));
    }
    // The program will have this process's ID.
    set("ANYRING_STARTED", OsStr::new(&std::process::id().to_string()));
}

/// Makes a relative path in `--log`, which begins with a dot, absolute, because the program may change its directory.
/// The path comes last, and may contain commas.
fn from_the_root(log: &OsStr) -> OsString {
    let bytes = log.as_bytes();
    let mut start = 0;
    while !matches!(bytes.get(start), Some(b'/' | b'.')) {
        match bytes[start..].iter().position(|&byte| byte == b',') {
            Some(comma) => start += comma + 1,
            None => return log.to_owned(),
        }
    }
    let (words, path) = bytes.split_at(start);
    let mut whole = OsStr::from_bytes(words).to_owned();
    whole.push(std::path::absolute(OsStr::from_bytes(path)).unwrap_or_default());
    whole
}

/// Returns the preload list with the library in front.
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

/// Finds the program in `PATH`, as a shell does.
pub fn search(name: &OsStr) -> Option<PathBuf> {
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

/// Returns the kind of the program. A file that cannot be read may still be executable, and the execution gives the best error.
fn kind_of(program: &Path) -> Kind {
    program::kind(&string(program.as_os_str())).unwrap_or(Kind::Unknown)
}

/// Refuses a program into which the engine cannot be brought.
fn refuse(program: &Path, kind: Kind) -> Option<ExitCode> {
    let shown = program.display();
    let code = match kind {
        Kind::Privileged(privilege) => fail(
            OWN_FAILURE,
            &format!("{shown} is {privilege}"),
            "a program that gains privileges loads no library that its caller names",
            "run it as the user to which it changes, so that it gains no privileges",
        ),
        Kind::Foreign(machine) => fail(
            NOT_EXECUTABLE,
            &format!("{shown} is for another machine (ELF machine {machine}, or 32-bit)"),
            "the engine can only be loaded into programs for the same kind of machine",
            "use a build for this machine",
        ),
        // A shell runs a file of an unknown kind as a script; the kernel refuses to execute it. The attempt decides.
        Kind::Dynamic | Kind::Sanitized | Kind::Static | Kind::Unknown => return None,
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
