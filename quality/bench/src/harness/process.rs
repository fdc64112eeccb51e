//! Child processes with a time limit.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::failure::{Doing, Failure, Result};

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A running child in a process group of its own. Dropping the value kills the group.
pub struct Process {
    child: Child,
    described: String,
    output: PathBuf,
    errors: PathBuf,
    deadline: Instant,
    ended: bool,
}

/// The results of a child that has ended.
pub struct Finished {
    /// The child's standard output.
    pub output: String,
    /// CPU time of the child and of all its descendants that were waited for.
    pub cpu: Duration,
}

impl Process {
    /// Starts `command` with its output going to files in `scratch`; it has `limit` to finish.
    pub fn start(mut command: Command, scratch: &Path, limit: Duration) -> Result<Self> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let output = scratch.join(format!("output-{number}"));
        let errors = scratch.join(format!("errors-{number}"));
        command.stdout(create(&output)?).stderr(create(&errors)?).process_group(0);
        die_with_this_process(&mut command);
        let described = describe(&command);
        let child = command.spawn().doing(|| format!("starting `{described}`"))?;
        Ok(Self { child, described, output, errors, deadline: Instant::now() + limit, ended: false })
    }

    /// Takes the child's standard input, if `command` asked for a pipe.
    pub fn input(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Waits for the first line of the output.
    pub fn first_line(&mut self) -> Result<String> {
        while Instant::now() < self.deadline {
            let text = self.read(&self.output);
            if let Some((line, _)) = text.split_once('\n') {
                return Ok(line.to_owned());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                self.ended = true;
                return Err(self.failed(&format!("ended ({status}) without a word")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(self.failed("said nothing in its time"))
    }

    /// Waits for the end. A child that fails or takes too long is an error with the last lines it wrote.
    pub fn finish(mut self) -> Result<Finished> {
        if !self.wait_for_end()? {
            return Err(self.failed("did not end in its time and was stopped"));
        }
        let (status, cpu) = self.reap()?;
        self.ended = true;
        if !status.success() {
            return Err(self.failed(&format!("failed ({status})")));
        }
        let output = self.read(&self.output);
        Ok(Finished { output, cpu })
    }

    /// Sleeps until the child has ended or its time is over; returns whether it has ended.
    fn wait_for_end(&self) -> Result<bool> {
        // SAFETY: takes a process id and no flags.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, self.child.id(), 0) };
        let descriptor = i32::try_from(descriptor).unwrap_or(-1);
        if descriptor < 0 {
            return Err(Failure::errno("pidfd_open"));
        }
        // SAFETY: the descriptor is fresh and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let milliseconds = left.as_millis().min(i32::MAX as u128) as i32;
            // SAFETY: one entry, which lives through the call.
            match unsafe { libc::poll(&mut poll, 1, milliseconds) } {
                0 => return Ok(false),
                count if count > 0 => return Ok(true),
                _ => {}
            }
        }
    }

    fn reap(&mut self) -> Result<(ExitStatus, Duration)> {
        // SAFETY: all-zero bytes are a valid `rusage`.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let mut status = 0;
        let child = self.child.id() as libc::pid_t;
        // SAFETY: both results live through the call; the child is ours and has not been waited for.
        if unsafe { libc::wait4(child, &mut status, 0, &mut usage) } != child {
            return Err(Failure::errno(format!("waiting for `{}`", self.described)));
        }
        let cpu = duration(usage.ru_utime) + duration(usage.ru_stime);
        Ok((std::os::unix::process::ExitStatusExt::from_raw(status), cpu))
    }

    fn failed(&self, how: &str) -> Failure {
        let text = format!("{}{}", self.read(&self.output), self.read(&self.errors));
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(8)..].join("\n    ");
        let failure = Failure::new(format!("`{}` {how}", self.described));
        if tail.is_empty() {
            failure.advice("It wrote nothing.")
        } else {
            failure.advice(format!("It wrote:\n    {tail}"))
        }
    }

    fn read(&self, path: &Path) -> String {
        std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            // SAFETY: the group is that of our own child, which has not been waited for.
            unsafe { libc::kill(-(self.child.id() as libc::pid_t), libc::SIGKILL) };
            let _ = self.child.wait();
        }
        let _ = std::fs::remove_file(&self.output);
        let _ = std::fs::remove_file(&self.errors);
    }
}

/// Makes the kernel kill the child when this program dies.
fn die_with_this_process(command: &mut Command) {
    let hook = || {
        // SAFETY: takes plain numbers.
        let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the hook makes one system call and allocates nothing.
    unsafe { command.pre_exec(hook) };
}

/// Returns the command as one would type it.
pub fn describe(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns a command without input.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

fn create(path: &Path) -> Result<File> {
    File::create(path).doing(|| format!("creating {}", path.display()))
}

fn duration(time: libc::timeval) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000)
}
