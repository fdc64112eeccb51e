//! Static programs: executes one in this process, with the engine in it from its first instruction.
//!
//! A child process, started only for that, traces this process across its `exec`, maps the image ([`image`]) into it
//! and makes it begin there ([`tracer`]). Then the child ends, and the image waits for its end. So the program finds no
//! child that it did not start, and has this process's id.

mod arch;
mod channel;
mod image;
mod program;
pub mod sites;
mod tracer;

use crate::library;
use anyring_runtime::ask;
use channel::Channel;
use image::Image;
use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::io;

/// The reason why the program was not executed.
#[derive(Debug)]
pub enum Failure {
    /// The image cannot be used.
    Image(String),
    /// This process cannot be traced.
    Trace(io::Error),
    /// The kernel does not execute the program.
    Execute(io::Error),
}

/// Executes `program` in place of this process, with the environment that this process has.
///
/// # Errors The reason of the failure; nothing has changed then.
pub fn execute(
    image: Result<library::Image, String>,
    program: &CStr,
    arguments: &[CString],
) -> Result<Infallible, Failure> {
    let image = image.and_then(Image::read).map_err(Failure::Image)?;
    let tracer = Tracer::start(&image, program).map_err(Failure::Trace)?;
    let error = replace(program, arguments);
    tracer.dismiss();
    Err(Failure::Execute(error))
}

/// Checks that the image can be used.
///
/// # Errors The reason why the image cannot be used.
pub fn check(image: library::Image) -> Result<(), String> {
    Image::read(image).map(drop)
}

/// Checks that this process can be traced, as injection requires.
///
/// # Errors The error of tracing this process.
pub fn possible() -> io::Result<()> {
    let tracer = Tracer::start(&Image::default(), c"")?;
    tracer.dismiss();
    Ok(())
}

/// Executes a program without the engine. Returns the error.
pub fn replace(program: &CStr, arguments: &[CString]) -> io::Error {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let list: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).chain([std::ptr::null()]).collect();
    crate::pipes::restore();
    // The system call is made directly, because a preload library in this process would start this command again.
    // SAFETY: the lists end with null, and their strings with zero.
    unsafe { libc::syscall(libc::SYS_execve, program.as_ptr(), list.as_ptr(), environ) };
    let error = io::Error::last_os_error();
    crate::pipes::ignore();
    error
}

/// The process that traces this one.
struct Tracer(libc::pid_t);

impl Tracer {
    /// Starts the tracer; when this returns, this process is traced.
    fn start(image: &Image, program: &CStr) -> io::Result<Self> {
        // The number of this process has no meaning in another PID namespace.
        if ask::children_are_elsewhere() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let channel = Channel::new()?;
        // SAFETY: asks only.
        let own = unsafe { libc::getpid() };
        // The tracer ends without a signal, so the program's handler for SIGCHLD does not see its end. This process has one
        // thread when it forks.
        let process = anyring_runtime::sys::fork_without_signal() as libc::pid_t;
        if process < 0 {
            return Err(io::Error::from_raw_os_error(-process));
        }
        if process == 0 {
            tracer::run(own, image, program, &channel);
        }
        let tracer = Self(process);
        // Under Yama only an ancestor may trace a process, unless the process names another one. Without Yama the call
        // fails, and is not needed.
        // SAFETY: touches no memory.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, process) };
        channel.start_tracer();
        match channel.answer(|| tracer.lives()) {
            Some(0) => Ok(tracer),
            Some(errno) => {
                tracer.dismiss();
                Err(io::Error::from_raw_os_error(errno))
            }
            None => {
                tracer.wait();
                Err(io::Error::other("the tracer has ended"))
            }
        }
    }

    fn lives(&self) -> bool {
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        // SAFETY: integers.
        let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: looks at a child, which is waited for later.
        let result = unsafe { libc::waitid(libc::P_PID, self.0 as libc::id_t, &mut about, options) };
        if result == 0 {
            // SAFETY: filled in where the child has ended.
            return unsafe { about.si_pid() } == 0;
        }
        // If a sandbox refuses `waitid`, the child is waited for here.
        // SAFETY: names no memory.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) == 0 }
    }

    /// Waits for the tracer's end, unless it was seen before.
    fn wait(self) {
        // SAFETY: names no memory.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::__WALL) };
    }

    /// Ends the tracer.
    fn dismiss(self) {
        // Otherwise the tracer would wait for this process.
        // SAFETY: a child that was not waited for yet.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Refuses a call to this thread from now on.
    pub(super) fn refuse(number: libc::c_long) {
        let line = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let refusal = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        let mut filter = [
            line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number as u32),
            line(libc::BPF_RET | libc::BPF_K, 0, refusal),
            line(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: reads the filter.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
    }

    fn sleeper() -> Tracer {
        Tracer(Command::new("sleep").arg("1000").spawn().unwrap().id() as libc::pid_t)
    }

    #[test]
    fn a_tracer_is_known_to_live_where_waitid_is_refused() {
        for refused in [None, Some(libc::SYS_waitid)] {
            let (tracer, ended) = (sleeper(), sleeper());
            // SAFETY: a child of ours.
            unsafe { libc::kill(ended.0, libc::SIGKILL) };
            refused.into_iter().for_each(refuse);
            while ended.lives() {
                std::thread::yield_now();
            }
            assert!(tracer.lives());
            tracer.dismiss();
            ended.wait();
        }
    }
}
