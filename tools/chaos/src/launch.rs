//! Runs a command with a plan, and waits for its end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{End, Harms, Outcome};

/// The maximum size of a kept output: a program that prints endlessly must not fill the memory.
const MOST_OUTPUT: usize = 16 << 20;
/// The interval at which a wait checks for interruption.
const LOOKS: Duration = Duration::from_millis(100);

/// The streams of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// The streams are this process's own.
    Inherited,
    /// The output is kept; the input is that of this process.
    Kept,
    /// The output is kept; there is no input.
    Alone,
}

/// The way in which a program is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The command that brings the engine into a program.
    pub command: PathBuf,
    /// The command's arguments; the plan's path, `--`, and the program follow them.
    pub arguments: Vec<OsString>,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// The time after which a running program counts as hanging, and is killed.
    pub timeout: Option<Duration>,
}

impl Launch {
    /// Runs the program with the plan at a path. If the output is kept, or time is limited, the program has its own
    /// process group, and processes of the group that remain after the program's end are killed.
    ///
    /// Returns `None` if the run was interrupted.
    ///
    /// # Errors
    /// Returns errors of starting the command.
    pub fn run(&self, plan: &Path, output: Output, interrupted: &AtomicBool) -> io::Result<Option<Outcome>> {
        self.run_until(plan, output, interrupted, &|| false)
    }

    /// Runs the program as [`Launch::run`] does, and kills it once `is_over` returns true.
    pub(crate) fn run_until(
        &self,
        plan: &Path,
        output: Output,
        interrupted: &AtomicBool,
        is_over: &dyn Fn() -> bool,
    ) -> io::Result<Option<Outcome>> {
        let has_group = output != Output::Inherited || self.timeout.is_some();
        let mut command = Command::new(&self.command);
        command.args(&self.arguments).arg(plan).arg("--").args(&self.program);
        if output != Output::Inherited {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if output == Output::Alone {
            command.stdin(Stdio::null());
        }
        if has_group {
            in_group(&mut command);
        }
        let child = command.spawn()?;
        Running::new(child, has_group)?.follow(self.timeout, interrupted, is_over)
    }
}

/// Gives a command a process group of its own.
pub(crate) fn in_group(command: &mut Command) -> &mut Command {
    command.process_group(0)
}

/// A pipe from the program, and its output so far.
struct Stream {
    pipe: Option<File>,
    kept: Vec<u8>,
}

impl Stream {
    fn of(pipe: Option<impl Into<OwnedFd>>) -> io::Result<Stream> {
        let pipe = pipe.map(|pipe| File::from(pipe.into()));
        if let Some(pipe) = &pipe {
            // SAFETY: sets a flag of an open file of ours.
            if unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Stream { pipe, kept: Vec::new() })
    }

    fn fd(&self) -> i32 {
        self.pipe.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Reads what is available; closes the pipe at its end, or after an error.
    fn take(&mut self) {
        let mut part = [0; 1 << 16];
        // A limited amount, so that an endless output does not delay the check of the time limit.
        for _ in 0..16 {
            let Some(pipe) = &mut self.pipe else { return };
            match pipe.read(&mut part) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    let room = MOST_OUTPUT - self.kept.len();
                    self.kept.extend_from_slice(&part[..count.min(room)]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.pipe = None,
            }
        }
    }
}

/// A program that was started. Dropping the value kills it and its group.
pub(crate) struct Running {
    child: Child,
    has_group: bool,
    process: OwnedFd,
    stdout: Stream,
    stderr: Stream,
}

impl Running {
    /// Takes a child that was started.
    pub(crate) fn new(mut child: Child, has_group: bool) -> io::Result<Running> {
        // SAFETY: gets a descriptor of a child that has not been waited for.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) };
        let process = if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd as i32) };
        let process = process.inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        // SAFETY: the descriptor is fresh, and owned by nothing else.
        let process = unsafe { OwnedFd::from_raw_fd(process) };
        let (stdout, stderr) = (Stream::of(child.stdout.take())?, Stream::of(child.stderr.take())?);
        Ok(Running { child, has_group, process, stdout, stderr })
    }

    /// Waits for the end of the program, and kills it once `is_over` returns true. Returns `None` if the run was
    /// interrupted.
    pub(crate) fn follow(
        mut self,
        timeout: Option<Duration>,
        interrupted: &AtomicBool,
        is_over: &dyn Fn() -> bool,
    ) -> io::Result<Option<Outcome>> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let end = loop {
            if interrupted.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break End::Hang;
            }
            if is_over() {
                self.kill();
            }
            if self.wait(left.unwrap_or(LOOKS).min(LOOKS)) {
                if self.has_group {
                    self.kill();
                }
                break end_of(self.child.wait()?);
            }
        };
        if end == End::Hang {
            self.kill();
            self.child.wait()?;
        }
        self.stdout.take();
        self.stderr.take();
        let (stdout, stderr) = (std::mem::take(&mut self.stdout.kept), std::mem::take(&mut self.stderr.kept));
        Ok(Some(Outcome { end, stdout, stderr, harms: Harms::default(), program: None }))
    }

    /// Reads output for a while; returns true if the program has ended.
    fn wait(&mut self, time: Duration) -> bool {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut entries = [entry(self.process.as_raw_fd()), entry(self.stdout.fd()), entry(self.stderr.fd())];
        let time_ms = time.as_millis().max(1) as i32;
        // SAFETY: the array has the given number of entries.
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, time_ms) };
        self.stdout.take();
        self.stderr.take();
        entries[0].revents != 0
    }

    /// Kills the program, or its whole group.
    fn kill(&self) {
        let process = self.child.id() as libc::pid_t;
        // SAFETY: signals a child, or its group, that has not been waited for: the number is still its own.
        unsafe { libc::kill(if self.has_group { -process } else { process }, libc::SIGKILL) };
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exit(code),
        (None, signal) => End::Signal(signal.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell as the command, which ignores the plan's path and `--`, and executes the program.
    fn run(script: &str, output: Output, timeout: Option<Duration>) -> Outcome {
        let arguments = ["-c", "shift 2; exec \"$@\"", "sh"].map(OsString::from).to_vec();
        let program = ["sh", "-c", script].map(OsString::from).to_vec();
        let launch = Launch { command: "/bin/sh".into(), arguments, program, timeout };
        launch.run(Path::new("/no/plan"), output, &AtomicBool::new(false)).unwrap().unwrap()
    }

    #[test]
    fn ends_and_outputs() {
        let outcome = run("echo out; echo err >&2; exit 7", Output::Alone, None);
        assert_eq!(
            (outcome.end, &*outcome.stdout, &*outcome.stderr),
            (End::Exit(7), &b"out\n"[..], &b"err\n"[..])
        );
        assert_eq!(run("kill -SEGV $$", Output::Kept, None).end, End::Signal(libc::SIGSEGV));
        assert_eq!(run("exit 3", Output::Inherited, None).end, End::Exit(3));
    }

    #[test]
    fn a_hang_is_killed_with_what_it_started() {
        let script = "sleep 1000 & echo $!; wait";
        // A shell that is slow to start needs a longer timeout.
        let hang = |timeout| run(script, Output::Alone, Some(Duration::from_millis(timeout)));
        let outcome = [300, 3000, 30_000].into_iter().map(hang).find(|outcome| !outcome.stdout.is_empty());
        let outcome = outcome.expect("a shell that begins within half a minute");
        assert_eq!(outcome.end, End::Hang);
        let sleeper: i32 = String::from_utf8(outcome.stdout).unwrap().trim().parse().unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        // SAFETY: no signal is sent.
        while unsafe { libc::kill(sleeper, 0) } == 0 && !is_zombie(sleeper) {
            assert!(Instant::now() < deadline, "still there");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_zombie(process: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{process}/stat"))
            .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
    }

    #[test]
    fn an_output_without_end_is_cut() {
        let outcome = run("exec yes", Output::Alone, Some(Duration::from_millis(500)));
        assert_eq!(outcome.end, End::Hang);
        assert!(outcome.stdout.len() <= MOST_OUTPUT);
    }
}
