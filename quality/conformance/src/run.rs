//! Runs one test program in a directory of its own, within a time limit, and leaves no process behind.

use std::ffi::{CStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::io::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use anyring_deny::deny_io_uring;

/// The exit status with which liburing's tests say "skipped".
const SKIP_STATUS: i32 = 77;

/// How one run of one test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Pass,
    Skip,
    /// The test exited with another status.
    Exit(i32),
    Signal(i32),
    TimedOut,
    /// The test passed, but the engine did not log that it made a ring.
    Unproven,
}

impl Outcome {
    fn from_status(status: ExitStatus) -> Outcome {
        match (status.code(), status.signal()) {
            (Some(0), _) => Outcome::Pass,
            (Some(SKIP_STATUS), _) => Outcome::Skip,
            (Some(code), _) => Outcome::Exit(code),
            (None, signal) => Outcome::Signal(signal.unwrap_or(0)),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Outcome::Pass => "pass".to_owned(),
            Outcome::Skip => "skip".to_owned(),
            Outcome::Exit(code) => format!("exit {code}"),
            Outcome::Signal(number) => format!("signal {number}"),
            Outcome::TimedOut => "timeout".to_owned(),
            Outcome::Unproven => "unproven".to_owned(),
        };
        f.pad(&text)
    }
}

impl FromStr for Outcome {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Outcome> {
        Ok(match text.split_once(' ') {
            Some(("exit", code)) => Outcome::Exit(code.parse()?),
            Some(("signal", number)) => Outcome::Signal(number.parse()?),
            _ => match text {
                "pass" => Outcome::Pass,
                "skip" => Outcome::Skip,
                "timeout" => Outcome::TimedOut,
                "unproven" => Outcome::Unproven,
                _ => bail!("'{text}' is not the outcome of a test"),
            },
        })
    }
}

/// The command that starts a test.
#[derive(Clone)]
pub struct Anyring {
    /// The `anyring` command.
    pub command: PathBuf,
    /// The arguments before the test.
    pub arguments: Vec<OsString>,
    /// True if the engine must be the user engine.
    pub is_user: bool,
}

/// The conditions under which tests run.
pub struct Conditions {
    /// The name of the directories of these runs: `native`, `denied`, `user`, `kernel`, `chaos`.
    pub label: String,
    /// The errno of io_uring's calls, if they are denied.
    pub deny: Option<i32>,
    /// The command that starts the test, if there is one.
    pub anyring: Option<Anyring>,
    /// The directory of the `liburing.so.2` that the program loads.
    pub library: Option<PathBuf>,
    pub limit: Duration,
    /// True to keep the test's directory.
    pub keep: bool,
}

/// Directories and files under the work directory.
pub struct Places {
    /// The directory of the built test programs.
    pub programs: PathBuf,
    pub scratch: PathBuf,
    pub logs: PathBuf,
    /// The file that is locked while a test runs: the tests use fixed names in /tmp, and fixed ports if they have no
    /// network namespace, so that two must never run concurrently, not even of two suites.
    pub lock: PathBuf,
}

/// The result of one test.
pub struct Ran {
    pub outcome: Outcome,
    pub took: Duration,
}

/// Repeats a run until its result is `good`, at most `tries` times. Returns the last result, and the number of its run, from 1.
pub fn run_until<T>(
    good: impl Fn(&T) -> bool,
    tries: NonZeroU32,
    mut run: impl FnMut() -> Result<T>,
) -> Result<(T, u32)> {
    let mut runs = 1;
    loop {
        let end = run()?;
        if good(&end) || runs == tries.get() {
            return Ok((end, runs));
        }
        runs += 1;
    }
}

/// Runs the test `name` and waits until none of its processes is left.
pub fn run_test(places: &Places, conditions: &Conditions, name: &str) -> Result<Ran> {
    let scratch = places.scratch.join(format!("{}-{}", std::process::id(), conditions.label)).join(name);
    let cwd = scratch.join("cwd");
    fresh_dir(&cwd)?;
    // Two tests execute this one, by its relative name.
    fs::copy(places.programs.join("exec-target.t"), cwd.join("exec-target.t"))
        .context("cannot copy exec-target.t into the test's directory")?;
    let logs = places.logs.join(&conditions.label);
    fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let engine_log = scratch.join("anyring.log");
    let mut log = File::create(logs.join(format!("{name}.log"))).context("cannot create the test's log")?;

    let mut command = command_for(conditions, &places.programs.join(format!("{name}.t")), &engine_log);
    command.current_dir(&cwd).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    let exclusive = Exclusive::acquire(&places.lock)?;
    let (mut outcome, took) = run_to_end(&mut command, conditions.limit, &mut log)?;
    drop(exclusive);

    let ours = conditions.anyring.as_ref().is_some_and(|anyring| anyring.is_user);
    if outcome == Outcome::Pass && (ours || conditions.library.is_some() && conditions.deny.is_some()) {
        let said = fs::read_to_string(&engine_log).unwrap_or_default();
        if !engine_made_rings(&said) {
            outcome = Outcome::Unproven;
        }
    }
    let _ = writeln!(log, "[{outcome} after {:.2} s]", took.as_secs_f64());
    if let Ok(said) = fs::read_to_string(&engine_log) {
        let _ = write!(log, "{said}");
    }
    if !conditions.keep {
        let _ = fs::remove_dir_all(&scratch);
        let _ = scratch.parent().map(fs::remove_dir); // succeeds once it is empty
    }
    Ok(Ran { outcome, took })
}

fn fresh_dir(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path).with_context(|| format!("cannot empty {}", path.display()))?;
    }
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}

fn command_for(conditions: &Conditions, program: &Path, engine_log: &Path) -> Command {
    let mut words: Vec<OsString> = Vec::new();
    if let Some(Anyring { command, arguments, .. }) = &conditions.anyring {
        words.push(command.into());
        words.extend(arguments.iter().cloned());
        words.push("--".into());
    }
    words.push(program.into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let mut log = OsString::new();
    if let Some(directory) = &conditions.library {
        command.env("LD_LIBRARY_PATH", directory);
        // The library does not see the end of a process that leaves by `_exit`, but it logs each ring.
        log.push("debug,");
    }
    log.push(engine_log);
    command.env("ANYRING_LOG", log);
    let deny = conditions.deny;
    // SAFETY: the hook makes only system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            if libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            go_first();
            own_network()?;
            deny.map_or(Ok(()), deny_io_uring)
        });
    }
    command
}

/// Gives the process, and its children, priority over the other programs of the machine.
///
/// Several tests compare their own clock with the time of a wait, and tolerate 10 ms of delay of a thread
/// (`sqpoll-sleep`). A process without the privilege (`CAP_SYS_NICE`) runs without priority, with that risk.
///
/// Makes only system calls: it runs between fork and exec, after `setsid`, which began an autogroup.
fn go_first() {
    const FIRST: &CStr = c"-20";
    // SAFETY: setpriority takes no pointer; the others read strings, and close what was opened here.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        // If sessions share the processors (sched(7)), a process's own priority counts only within its session.
        let group = libc::open(c"/proc/self/autogroup".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if group >= 0 {
            libc::write(group, FIRST.as_ptr().cast(), FIRST.count_bytes());
            libc::close(group);
        }
    }
}

/// Gives the process a network namespace of its own, with its loopback device up.
///
/// Several tests bind a random or fixed port without `SO_REUSEADDR`. In the machine's own network this fails if a
/// connection that was closed in the last minute still has that port. A process that may not create a namespace (it
/// takes `CAP_SYS_ADMIN`) stays in the machine's network, with that risk.
///
/// Makes only system calls: it runs between fork and exec.
fn own_network() -> io::Result<()> {
    let result = |n: i32| if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n) };
    // SAFETY: unshare takes no pointer.
    match result(unsafe { libc::unshare(libc::CLONE_NEWNET) }) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) => return Ok(()),
        other => other?,
    };
    // SAFETY: socket takes no pointer.
    let socket = result(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: an ifreq is plain data, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which `request` is; the descriptor is this function's own.
    let up = result(unsafe { libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request) }).map(drop);
    // SAFETY: the descriptor is this function's own, and is not used afterwards.
    unsafe { libc::close(socket) };
    up
}

/// True if the log says that the user engine set up a ring.
///
/// Its lines look like `anyring[123]: engine=user rings=2 submitted=9 completed=9` at the end of a process, and like
/// `anyring[123]: io_uring_setup(8, flags 0x0) = 3` before, with a more verbose log.
fn engine_made_rings(log: &str) -> bool {
    log.lines().any(|line| {
        let field = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
        let made = field("rings=").and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n >= 1);
        let set_up = line.contains("]: io_uring_setup(") && line.contains(", flags ");
        set_up || field("engine=") == Some("user") && made
    })
}

fn run_to_end(command: &mut Command, limit: Duration, log: &mut File) -> Result<(Outcome, Duration)> {
    become_subreaper()?;
    let start = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    let session = child.id() as i32;
    let status = wait_until(&mut child, start + limit)?;
    let took = start.elapsed();
    if status.is_none() {
        describe_session(session, log);
    }
    kill_group(session);
    if status.is_none() {
        child.wait().context("cannot wait for a killed test")?;
    }
    reap_everything()?;
    Ok((status.map_or(Outcome::TimedOut, Outcome::from_status), took))
}

fn wait_until(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>> {
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a test")? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Makes this process the parent of a test's orphans, so that they can be found and killed.
fn become_subreaper() -> Result<()> {
    // SAFETY: PR_SET_CHILD_SUBREAPER takes no pointer.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error()).context("cannot become the reaper of the tests' orphans");
    }
    Ok(())
}

fn kill_group(session: i32) {
    // SAFETY: kill takes no pointer. The group is the test's own: it called setsid.
    unsafe { libc::kill(-session, libc::SIGKILL) };
}

/// Kills the remaining processes of a test, in any session, until this process has no child.
fn reap_everything() -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        // SAFETY: waitpid accepts a null status pointer.
        match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
            0 => {}
            n if n > 0 => continue,
            _ => return Ok(()), // ECHILD: none is left
        }
        if Instant::now() > deadline {
            bail!(
                "a process of a test survives SIGKILL (stuck in the kernel?): see ps --ppid {}",
                std::process::id()
            );
        }
        for stat in processes().filter(|p| p.parent == std::process::id() as i32) {
            // SAFETY: kill takes no pointer; the process is a child of ours that no other thread reaps.
            unsafe { libc::kill(stat.pid, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(1));
    }
}

struct Process {
    pid: i32,
    parent: i32,
    session: i32,
}

fn processes() -> impl Iterator<Item = Process> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // "pid (name) state ppid pgrp session ...": the name may contain anything, even parentheses.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        Some(Process { pid, parent, session })
    })
}

/// Writes the position of every thread of a hanging test into the log.
fn describe_session(session: i32, log: &mut File) {
    let _ = writeln!(log, "[the time is up; the threads stand at:]");
    for process in processes().filter(|p| p.session == session) {
        let tasks = format!("/proc/{}/task", process.pid);
        for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
            let read = |name: &str| {
                let text = fs::read_to_string(task.path().join(name)).unwrap_or_default();
                text.trim_end().replace('\n', " < ")
            };
            let tid = task.file_name();
            let (name, waits, call) = (read("comm"), read("wchan"), read("syscall"));
            let _ =
                writeln!(log, "  {}/{} {name}: {waits}; syscall {call}", process.pid, tid.to_string_lossy());
        }
    }
}

/// The lock that is held while a test runs.
struct Exclusive {
    _lock: File,
}

impl Exclusive {
    fn acquire(path: &Path) -> Result<Exclusive> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o666)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        // SAFETY: flock takes a file descriptor, which `file` keeps open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(io::Error::last_os_error())
                .with_context(|| format!("cannot lock {}", path.display()));
        }
        Ok(Exclusive { _lock: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(dir: &Path, script: &str) -> Places {
        let programs = dir.join("test");
        fs::create_dir_all(&programs).unwrap();
        for (name, text) in [("exec-target.t", "#!/bin/sh\n"), ("it.t", script)] {
            let mut options = File::options();
            let mut file = options.create(true).write(true).mode(0o755).open(programs.join(name)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }
        Places { programs, scratch: dir.join("scratch"), logs: dir.join("logs"), lock: dir.join("lock") }
    }

    fn run_script(script: &str, limit: Duration) -> (Outcome, String) {
        let dir = tempfile::tempdir().unwrap();
        let places = places(dir.path(), script);
        let conditions = Conditions {
            label: "native".into(),
            deny: None,
            anyring: None,
            library: None,
            limit,
            keep: false,
        };
        let ran = run_test(&places, &conditions, "it").unwrap();
        (ran.outcome, fs::read_to_string(places.logs.join("native/it.log")).unwrap())
    }

    /// All in one test, because each run reaps every child of the process.
    #[test]
    fn outcomes_and_stragglers() {
        let second = Duration::from_secs(1);
        let enough = 30 * second;
        assert_eq!(run_script("#!/bin/sh\nexit 0\n", enough).0, Outcome::Pass);
        assert_eq!(run_script("#!/bin/sh\nexit 77\n", enough).0, Outcome::Skip);
        assert_eq!(run_script("#!/bin/sh\nexit 3\n", enough).0, Outcome::Exit(3));
        assert_eq!(run_script("#!/bin/sh\nkill -9 $$\n", enough).0, Outcome::Signal(9));

        // A shell that is slow to start needs a longer limit.
        let sleeps = [second / 4, 4 * second, enough].into_iter().any(|limit| {
            let (outcome, log) = run_script("#!/bin/sh\nsleep 60\n", limit);
            assert_eq!(outcome, Outcome::TimedOut);
            log.contains("sleep")
        });
        assert!(sleeps, "the log names what runs when the time is up");

        let (outcome, log) = run_script("#!/bin/sh\nsetsid sleep 61 & echo $!\n", enough);
        assert_eq!(outcome, Outcome::Pass);
        let pid = log.lines().next().unwrap();
        assert!(!Path::new("/proc").join(pid).exists(), "{pid} is still there");

        // The test has priority over other programs, if that is permitted.
        let first = Command::new("nice").args(["-n", "-40", "nice"]).output().unwrap().stdout;
        let (outcome, log) = run_script("#!/bin/sh\nexec nice\n", enough);
        assert_eq!(
            (outcome, log.lines().next().unwrap()),
            (Outcome::Pass, String::from_utf8_lossy(&first).trim())
        );

        // A test does not see this listener, and its loopback device is up: else the network would be unreachable.
        // SAFETY: geteuid has no conditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: a network namespace takes root");
            return;
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = format!("#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/{port}\n");
        let (outcome, log) = run_script(&script, enough);
        assert_eq!(outcome, Outcome::Exit(1), "{log}");
        assert!(log.contains("Connection refused"), "{log}");
    }

    #[test]
    fn the_engine_must_have_made_a_ring() {
        assert!(engine_made_rings(
            "anyring[7]: engine=user rings=0\nanyring[8]: engine=user rings=2 submitted=9\n"
        ));
        assert!(!engine_made_rings("anyring[7]: engine=user rings=0 submitted=0\n"));
        assert!(!engine_made_rings("anyring[7]: engine=kernel rings=3\n"));
        assert!(engine_made_rings("anyring[7]: io_uring_setup(8, flags 0x0) = 3\n"));
        assert!(!engine_made_rings("anyring[7]: io_uring_setup(8) = -22\n"));
        assert!(!engine_made_rings(""));
    }

    #[test]
    fn outcomes_survive_the_cache() {
        for outcome in
            [Outcome::Pass, Outcome::Skip, Outcome::Exit(3), Outcome::Signal(11), Outcome::TimedOut]
        {
            assert_eq!(outcome.to_string().parse::<Outcome>().unwrap(), outcome);
        }
        assert!("flying".parse::<Outcome>().is_err());
    }
}
