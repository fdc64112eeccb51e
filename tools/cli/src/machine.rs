//! Finds out whether the machine and the sandbox around this process allow `io_uring`.

use crate::{inject, library};
use anyring_runtime::ask::{self, Answer};
use anyring_runtime::{arch, calls, process};
use anyring_trap::filter::Reach;
use anyring_trap::program::{self, Kind};
use anyring_trap::{stub, trap};
use serde::Serialize;
use std::ffi::CString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;

/// The usability of the kernel's `io_uring`.
#[derive(Debug, Serialize)]
pub struct Kernel {
    /// The kernel's release.
    pub version: String,
    /// True if a ring can be created and used.
    pub io_uring: bool,
    /// The name of the errno of the call that failed.
    pub error: Option<String>,
    /// The call that failed, if it is not `io_uring_setup`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_call: Option<&'static str>,
    /// The reason why `io_uring` is denied.
    pub why: Option<String>,
    /// The number of operations that the kernel supports.
    pub operations: Option<usize>,
    /// `kernel.io_uring_disabled`, if the kernel has it.
    pub io_uring_disabled: Option<u32>,
    /// `kernel.io_uring_group`, if the kernel has it.
    pub io_uring_group: Option<i64>,
    /// The limit on locked memory in bytes; `None` if there is no limit.
    pub memlock_limit: Option<u64>,
}

/// The state of seccomp for this process.
#[derive(Debug, Serialize)]
pub struct Seccomp {
    /// 0: nothing, 1: strict, 2: filters.
    pub mode: Option<u32>,
    /// The number of filters, if the kernel reports it.
    pub filters: Option<u32>,
    /// True if programs can no longer gain privileges.
    pub no_new_privs: bool,
}

/// Whether anyring's engine gets into dynamic programs, and catches their calls.
#[derive(Debug, Serialize)]
pub struct Trap {
    /// The path of the preload library, if it was found.
    pub library: Option<String>,
    /// True if the library loads into a program, and a call of the program trapped.
    pub works: bool,
    /// True if the library loads into a program. If calls do not trap, only calls through the C library reach the
    /// engine.
    pub loads: bool,
    /// The reason why this does not work, if it does not.
    pub why_not: Option<String>,
}

/// Whether anyring's engine gets into static programs.
#[derive(Debug, Serialize)]
pub struct Injection {
    /// True if a process of ours could be traced, and the image is available.
    pub works: bool,
    /// The reason why this does not work, if it does not.
    pub why_not: Option<String>,
    /// The remedy, if there is one.
    #[serde(skip)]
    pub remedy: Option<&'static str>,
}

/// Tries all steps of the injection before the execution of a static program.
pub fn injection() -> Injection {
    const ALLOW: &str =
        "let the filter answer with an error (systemd: SystemCallErrorNumber=EPERM), or take it away";
    let image = library::find().and_then(|library| library::image(&library)).and_then(inject::check);
    let image = || image.map_err(|why| (why, "install anyring whole"));
    let traced = || inject::possible().map_err(|error| why_not_traced(&error));
    // Each call of a static program is trapped.
    let trapped = || why_no_trap(ask::in_child(traps_here)).map_or(Ok(()), |why| Err((why, ALLOW)));
    let possible = match process::rings_kill() {
        true => Err((process::RINGS_KILL.to_owned(), ALLOW)),
        false => image().and_then(|()| traced()).and_then(|()| trapped()),
    };
    let (why_not, remedy) = possible.err().unzip();
    Injection { works: why_not.is_none(), why_not, remedy }
}

/// The reason why the kernel's `io_uring` cannot be used.
#[derive(Debug)]
enum Denial {
    /// The kernel refuses to create a ring.
    Error(io::Error),
    /// The kernel creates rings, but refuses this call for them.
    Call(&'static str, io::Error),
    /// The process that makes the call is killed.
    Killed,
}

/// Queries the kernel's `io_uring`.
pub fn kernel(seccomp: &Seccomp) -> Kernel {
    let version = fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| String::from("unknown"), |text| text.trim().to_owned());
    let disabled = number("/proc/sys/kernel/io_uring_disabled").and_then(|n| u32::try_from(n).ok());
    let (operations, error) = match probe() {
        Ok(operations) => (Some(operations), None),
        Err(error) => (None, Some(error)),
    };
    let why = error.as_ref().map(|denial| match denial {
        Denial::Error(error) => why(error, &version, disabled, seccomp),
        Denial::Call(name, error) => why_not_used(name, error, seccomp),
        Denial::Killed => {
            String::from("a seccomp filter ends the process that calls it, as systemd's does by default")
        }
    });
    Kernel {
        version,
        io_uring: error.is_none(),
        error: error.as_ref().map(|denial| match denial {
            Denial::Error(error) | Denial::Call(_, error) => error_name(error),
            Denial::Killed => String::from("SIGSYS"),
        }),
        refused_call: match &error {
            Some(Denial::Call(name, _)) => Some(name),
            _ => None,
        },
        why,
        operations,
        io_uring_disabled: disabled,
        io_uring_group: number("/proc/sys/kernel/io_uring_group"),
        memlock_limit: memlock_limit(),
    }
}

/// Returns the reason why the kernel returns `error`.
fn why(error: &io::Error, version: &str, disabled: Option<u32>, seccomp: &Seccomp) -> String {
    let filtered = seccomp.mode == Some(2);
    let text = match (error.raw_os_error(), disabled) {
        (Some(libc::EPERM), Some(2)) => "the sysctl kernel.io_uring_disabled is 2: nobody may use it",
        (Some(libc::EPERM), Some(1)) => {
            "the sysctl kernel.io_uring_disabled is 1: only CAP_SYS_ADMIN and the group \
             kernel.io_uring_group may use it"
        }
        (Some(libc::EPERM), _) if filtered => {
            "a seccomp filter denies it, as the default profiles of container engines do"
        }
        (Some(libc::ENOMEM), _) if filtered => {
            "a seccomp filter answers so, perhaps; else there is too little memory, or before Linux 5.12 the limit on locked \
             memory is too low for a ring"
        }
        (Some(libc::EMFILE | libc::ENFILE), _) if filtered => {
            "no more descriptors may be opened, or a seccomp filter answers so"
        }
        (Some(number), _) if filtered && number != libc::ENOSYS => {
            return format!("a seccomp filter answers {}, most likely", error_name(error));
        }
        (Some(libc::EPERM | libc::EACCES), _) => "a security module (SELinux, AppArmor, ...) denies it",
        (Some(libc::ENOSYS), _) if older_than_5_1(version) => "the kernel is older than 5.1 and has none",
        (Some(libc::ENOSYS), _) if filtered => "a seccomp filter hides it",
        (Some(libc::ENOSYS), _) => {
            "the kernel was built without it, or a sandbox (gVisor, ...) stands in the kernel's place"
        }
        (Some(libc::ENOMEM), _) => "the limit on locked memory is too low for a ring",
        (Some(libc::EMFILE | libc::ENFILE), _) => "no more descriptors may be opened",
        _ => {
            return format!(
                "its own answer to a small ring is {}, for which there is no usual reason",
                error_name(error)
            );
        }
    };
    text.to_owned()
}

/// Returns the reason why `call` fails with `error` although rings can be created.
fn why_not_used(call: &str, error: &io::Error, seccomp: &Seccomp) -> String {
    let who = match seccomp.mode {
        Some(2) => "most likely a seccomp filter refuses it",
        _ => "a sandbox (gVisor, ...) stands in the kernel's place, perhaps",
    };
    format!("rings can be made, but {call} answers {}: {who}", error_name(error))
}

fn older_than_5_1(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    major != 0 && (major, minor) < (5, 1)
}

/// Uses a ring and queries its operations, in a child process because a filter may kill the process for that.
fn probe() -> Result<usize, Denial> {
    let (mut reader, mut writer) = io::pipe().map_err(Denial::Error)?;
    // SAFETY: the arguments are valid for a ring of this process.
    let kernel = |number, arguments| unsafe { arch::syscall(number, arguments) };
    let tells = || {
        let told = match process::use_a_ring(kernel) {
            Ok(()) => [0, operations() as i64],
            Err(refused) => [i64::from(refused.call), -i64::from(refused.errno)],
        };
        writer.write_all(told.map(i64::to_ne_bytes).as_flattened()).is_ok()
    };
    match ask::in_child(tells) {
        Answer::Is(_) => {}
        Answer::Dies => return Err(Denial::Killed),
        Answer::Unknown => return Err(Denial::Error(io::Error::from_raw_os_error(libc::EAGAIN))),
    }
    let mut told = [[0; 8]; 2];
    reader.read_exact(told.as_flattened_mut()).map_err(Denial::Error)?;
    let [call, result] = told.map(i64::from_ne_bytes);
    let error = || io::Error::from_raw_os_error(-result as i32);
    match call {
        0 => Ok(result as usize),
        libc::SYS_io_uring_enter => Err(Denial::Call("io_uring_enter", error())),
        libc::SYS_io_uring_register => Err(Denial::Call("io_uring_register", error())),
        _ => Err(Denial::Error(error())),
    }
}

/// Creates a ring and queries its operations; returns 0 if the kernel cannot report them.
fn operations() -> usize {
    const REGISTER_PROBE: usize = 8;
    const OPERATIONS: usize = 256;
    const SUPPORTED: u16 = 1;
    let mut parameters = [0_u32; 30];
    // SAFETY: the structure is 120 bytes long.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    if fd < 0 {
        return 0;
    }
    // The probe has a header of 16 bytes and 8 bytes per operation, whose flags are the third and fourth byte.
    let mut probe = vec![0_u16; 8 + OPERATIONS * 4];
    // SAFETY: the buffer is as long as the call was told.
    let result = unsafe {
        libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_PROBE, probe.as_mut_ptr(), OPERATIONS)
    };
    // SAFETY: the ring is ours.
    unsafe { libc::close(fd as i32) };
    // Kernels before 5.6 have rings but cannot report their operations.
    let operations = probe[8..].chunks(4).filter(|operation| operation[1] & SUPPORTED != 0).count();
    if result < 0 { 0 } else { operations }
}

/// Reads the seccomp state of this process.
pub fn seccomp() -> Seccomp {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> Option<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().parse().ok()
    };
    Seccomp {
        mode: field("Seccomp"),
        filters: field("Seccomp_filters"),
        no_new_privs: field("NoNewPrivs") == Some(1),
    }
}

/// Starts a program with the library and checks whether its call was trapped.
pub fn trap() -> Trap {
    let library = match library::find() {
        Ok(library) => library,
        Err(why) => return Trap { library: None, works: false, loads: false, why_not: Some(why) },
    };
    let shown = Some(match library::is_copy(&library) {
        true => String::from("in this file"),
        false => library.display().to_string(),
    });
    let Some(program) = trial_program(None) else {
        // All programs are static here, as this command is, so injection brings the engine into them.
        let why_not = injection().why_not;
        return Trap { library: shown, works: why_not.is_none(), loads: why_not.is_none(), why_not };
    };
    let loads = loads_into(&program, &library);
    let why_not = match start_with(&library, &program, "traps") {
        Err(error) => Some(format!("cannot start a program with it: {error}")),
        Ok(output) => why_not(&output, &loads),
    };
    Trap { library: shown, works: why_not.is_none(), loads: loads.is_ok(), why_not }
}

/// Installs a trap in this process, permanently, and makes a call; returns true if the call trapped.
fn traps_here() -> bool {
    let reach = Reach { low: true, text: None };
    if stub::install().is_err() {
        return false;
    }
    match trap::install(&reach, false) {
        // If a filter kills a process for the call, the call below shows it.
        Ok(()) | Err(trap::Failure::Kills) => {}
        Err(trap::Failure::Refused(..)) => return false,
    }
    // SAFETY: the call creates nothing and reads nothing, whatever answers it.
    unsafe { arch::syscall(libc::SYS_io_uring_setup as usize, [0; 6]) };
    calls::TRAPS.load(Ordering::Relaxed) == 1
}

/// Returns the reason why the trap does not work, from the result of a child; `None` if it works.
fn why_no_trap(answer: Answer) -> Option<String> {
    match answer {
        Answer::Is(true) => None,
        Answer::Is(false) => {
            Some(String::from("anyring's seccomp filter cannot be installed, or has no effect"))
        }
        Answer::Dies => Some(String::from(KILLS)),
        Answer::Unknown => Some(String::from("no process can be started to test this")),
    }
}

/// The reason if an earlier filter kills processes.
const KILLS: &str =
    "a seccomp filter ends processes that make the calls, and takes precedence over anyring's filter";

/// Returns a dynamic program for a trial of the library, which ends before its `main`. A small program is preferred, because it
/// starts fast; the next choices are this command, which takes twice as long, another common program, and `program`.
fn trial_program(program: Option<&Path>) -> Option<PathBuf> {
    let small = ["/bin/true", "/usr/bin/true"].map(PathBuf::from);
    let usual = ["/bin/sh", "/usr/bin/env"].map(PathBuf::from);
    let candidates = small.into_iter().chain(std::env::current_exe()).chain(usual);
    let mut all = candidates.chain(program.map(Path::to_path_buf));
    all.find(|path| {
        program::kind(&CString::new(path.as_os_str().as_bytes()).unwrap_or_default()) == Ok(Kind::Dynamic)
    })
}

/// Starts a program with the library and a question in its environment. If SIGCHLD is blocked, the signal of the
/// program's end is removed, so that it is not pending in the program that this process executes.
fn start_with(library: &Path, program: &Path, question: &str) -> io::Result<Output> {
    let had_ended = child_has_ended(false);
    let output = start(library, program, question);
    if !had_ended {
        child_has_ended(true);
    }
    output
}

/// True if a SIGCHLD is pending; removes it if `take`.
fn child_has_ended(take: bool) -> bool {
    // SAFETY: the sets and the time are ours.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigpending(&mut signals);
        let pending = libc::sigismember(&signals, libc::SIGCHLD) == 1;
        if pending && take {
            libc::sigemptyset(&mut signals);
            libc::sigaddset(&mut signals, libc::SIGCHLD);
            let now = std::mem::zeroed();
            libc::sigtimedwait(&signals, std::ptr::null_mut(), &now);
        }
        pending
    }
}

fn start(library: &Path, program: &Path, question: &str) -> io::Result<Output> {
    Command::new(program)
        .env("LD_PRELOAD", library)
        .env("ANYRING_PROBE", question)
        .env("ANYRING_ENGINE", "user")
        .env("ANYRING_LOG", if question == CLOSES { "debug,fd=1" } else { "info,fd=1" })
        // A patched call would not trap.
        .env("ANYRING_PATCH", if question == CLOSES { "1" } else { "0" })
        .stdin(Stdio::null())
        .output()
}

/// The question whether all closes of a program are seen.
const CLOSES: &str = "closes";

/// The facts about the closes of a program that are known before its `main`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Closes {
    /// True if all closes are seen, as far as the search of the code found.
    pub are_seen: bool,
    /// The first file that was found to have code that may close descriptors by instructions of its own.
    pub unseen_in: Option<String>,
}

/// Loads a dynamic program and its libraries with the preload library, and finds out whether all closes are seen; `None` if the program
/// fails earlier. Its `main` is not reached, but the constructors of its libraries run.
pub fn closes(library: &Path, program: &Path) -> Option<Closes> {
    let output = start_with(library, program, CLOSES).ok()?;
    let are_seen = output.status.code() == Some(process::SEES_CLOSES);
    let text = String::from_utf8_lossy(&output.stdout);
    let of_code = |line: &str| Some(line.split_once(" may make any calls: ")?.1.to_owned());
    let unseen_in = text.lines().find_map(of_code);
    (are_seen || output.status.code() == Some(process::MISSES_CLOSES))
        .then_some(Closes { are_seen, unseen_in })
}

/// Checks that the library loads into programs, and finds everything that it needs.
///
/// # Errors Returns the reason why it does not load. If no program can be started for a trial, there is no error.
pub fn loads(library: &Path, program: &Path) -> Result<(), String> {
    // The next child begins a PID namespace; the program itself must start that child.
    if ask::next_child_begins_a_namespace() {
        return Ok(());
    }
    trial_program(Some(program)).map_or(Ok(()), |trial| loads_into(&trial, library))
}

fn loads_into(program: &Path, library: &Path) -> Result<(), String> {
    match start_with(library, program, "loads") {
        Ok(output) if output.status.code() == Some(process::LOADED) => Ok(()),
        Ok(output) => Err(complaint(&output)
            .unwrap_or_else(|| format!("the library does not load into programs here ({})", output.status))),
        Err(_) => Ok(()),
    }
}

fn why_not(output: &Output, loads: &Result<(), String>) -> Option<String> {
    if String::from_utf8_lossy(&output.stdout).contains("traps=1 ") {
        return None;
    }
    if let Err(why) = loads {
        return Some(why.clone());
    }
    let killed = output.status.signal() == Some(libc::SIGSYS);
    Some(match complaint(output) {
        _ if killed => String::from(KILLS),
        Some(line) => line,
        None => format!("the call was not trapped ({})", output.status),
    })
}

/// Returns the first line of the dynamic linker or the library, without its prefix. A program into which the library did not load
/// may print lines of its own, which are skipped.
fn complaint(output: &Output) -> Option<String> {
    let text = [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text).into_owned());
    let theirs = |line: &&str| ["ERROR: ld.so", "Error ", "anyring"].iter().any(|who| line.starts_with(who));
    let line = text.iter().flat_map(|text| text.lines()).find(theirs)?;
    Some(line.split_once(": ").map_or(line, |(_, message)| message).to_owned())
}

/// Returns the reason why a process cannot be traced, from the kernel's `error`, and the remedy.
pub fn why_not_traced(error: &io::Error) -> (String, &'static str) {
    let scope = number("/proc/sys/kernel/yama/ptrace_scope");
    let (why, remedy) = match (error.raw_os_error(), scope) {
        (Some(libc::ESRCH), _) => (
            "children of this process are in another PID namespace, as after unshare --pid",
            "let the program be the first process of that namespace (unshare --pid --fork)",
        ),
        (_, Some(3)) => {
            ("the sysctl kernel.yama.ptrace_scope is 3: nobody may trace", "use a dynamically linked build")
        }
        (_, Some(2)) => (
            "the sysctl kernel.yama.ptrace_scope is 2: only CAP_SYS_PTRACE may trace",
            "give that capability, or use a dynamically linked build",
        ),
        (Some(libc::EPERM), _) if traced() => (
            "a debugger or strace already traces this process, and only one tracer is possible",
            "let the debugger attach to the running program",
        ),
        _ => (
            "the sandbox does not allow ptrace; container engines allow it on kernels from 4.8 on",
            "allow ptrace (docker run --cap-add SYS_PTRACE), or use a dynamically linked build",
        ),
    };
    (format!("static programs need ptrace ({error}): {why}"), remedy)
}

/// True if this process is traced.
fn traced() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
}

fn number(path: &str) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the structure.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn error_name(error: &io::Error) -> String {
    const NAMES: [(i32, &str); 10] = [
        (libc::EPERM, "EPERM"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EACCES, "EACCES"),
        (libc::EBUSY, "EBUSY"),
        (libc::EINVAL, "EINVAL"),
        (libc::ENFILE, "ENFILE"),
        (libc::EMFILE, "EMFILE"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    ];
    let number = error.raw_os_error().unwrap_or(0);
    NAMES
        .iter()
        .find(|(known, _)| *known == number)
        .map_or_else(|| format!("errno {number}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(error: i32, version: &str, disabled: Option<u32>, mode: u32) -> String {
        let seccomp = Seccomp { mode: Some(mode), filters: None, no_new_privs: false };
        why(&io::Error::from_raw_os_error(error), version, disabled, &seccomp)
    }

    /// The trap can be tried even if no program can be started with the library.
    #[test]
    fn the_trap_can_be_tried_without_a_program() {
        assert_eq!(ask::in_child(traps_here), Answer::Is(true));
        assert_eq!(why_no_trap(Answer::Is(true)), None);
        assert!(why_no_trap(Answer::Dies).is_some_and(|why| why.contains("takes precedence")));
    }

    #[test]
    fn reasons() {
        assert!(explain(libc::EPERM, "6.1.0", Some(0), 2).contains("seccomp"));
        assert!(explain(libc::EPERM, "6.6.0", Some(2), 2).contains("io_uring_disabled is 2"));
        assert!(explain(libc::EPERM, "6.6.0", Some(1), 0).contains("io_uring_group"));
        assert!(explain(libc::EPERM, "6.1.0", None, 0).contains("security module"));
        assert!(explain(libc::ENOSYS, "4.19.0-26-amd64", None, 2).contains("older than 5.1"));
        assert!(explain(libc::ENOSYS, "5.15.0", None, 2).contains("seccomp"));
        assert!(explain(libc::ENOSYS, "4.4.0", None, 0).contains("older than 5.1"));
        assert!(explain(libc::ENOSYS, "6.1.0", None, 0).contains("built without"));
        for (error, name) in
            [(11, "EAGAIN"), (13, "EACCES"), (16, "EBUSY"), (22, "EINVAL"), (95, "EOPNOTSUPP")]
        {
            let said = explain(error, "6.1.0", None, 2);
            assert!(said.contains("filter") && said.contains(name), "{said}");
        }
        assert!(explain(524, "6.1.0", None, 2).contains("524"));
        assert!(explain(libc::ENOMEM, "6.1.0", None, 2).contains("filter"));
        assert!(explain(libc::EMFILE, "6.1.0", None, 2).contains("filter"));
        assert!(explain(libc::EINVAL, "6.1.0", None, 0).contains("EINVAL"));
    }
}
