//! The channel between a process and its tracer before the program begins, in shared memory. It needs no descriptors,
//! because a limit may leave the program only as many as it needs itself.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

/// The interval between checks that the other process lives.
const PATIENCE: Duration = Duration::from_millis(20);

const STARTED: u32 = 1;
const ANSWERED: u32 = 2;

#[derive(Default)]
struct Words {
    /// The progress of the exchange.
    stage: AtomicU32,
    answer: AtomicI32,
}

/// The channel: the process starts the tracer, which answers.
pub struct Channel(&'static Words);

impl Channel {
    /// Creates the channel, before the tracer is forked.
    ///
    /// # Errors
    /// Returns errors of `mmap`.
    pub fn new() -> io::Result<Self> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at an address of the kernel's choice.
        let words = unsafe { libc::mmap(ptr::null_mut(), size_of::<Words>(), access, flags, -1, 0) };
        if words == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: mapped until the process executes the program; zeros are valid words.
        Ok(Self(unsafe { &*words.cast::<Words>() }))
    }

    /// Starts the tracer.
    pub fn start_tracer(&self) {
        self.advance(STARTED);
    }

    /// Waits until the tracer is started; returns false if the process ends before.
    pub fn is_started(&self, lives: impl Fn() -> bool) -> bool {
        self.reached(STARTED, lives)
    }

    /// Sends the tracer's answer.
    pub fn send_answer(&self, answer: i32) {
        self.0.answer.store(answer, Ordering::Relaxed);
        self.advance(ANSWERED);
    }

    /// Waits for the tracer's answer; returns `None` if the tracer ends before.
    pub fn answer(&self, lives: impl Fn() -> bool) -> Option<i32> {
        self.reached(ANSWERED, lives).then(|| self.0.answer.load(Ordering::Relaxed))
    }

    fn advance(&self, stage: u32) {
        // Release pairs with the acquire in `reached`.
        self.0.stage.store(stage, Ordering::Release);
        // SAFETY: wakes a thread that waits for this word.
        unsafe { libc::syscall(libc::SYS_futex, self.0.stage.as_ptr(), libc::FUTEX_WAKE, 1) };
    }

    fn reached(&self, stage: u32, lives: impl Fn() -> bool) -> bool {
        loop {
            let seen = self.0.stage.load(Ordering::Acquire);
            if seen >= stage {
                return true;
            }
            let time =
                libc::timespec { tv_sec: 0, tv_nsec: libc::c_long::from(PATIENCE.subsec_nanos() as i32) };
            // SAFETY: sleeps while the word has the value seen, and reads the time.
            let slept = unsafe {
                libc::syscall(libc::SYS_futex, self.0.stage.as_ptr(), libc::FUTEX_WAIT, seen, &raw const time)
            };
            // The other process may have advanced just before its end.
            if slept < 0 && !lives() && self.0.stage.load(Ordering::Acquire) < stage {
                return false;
            }
        }
    }
}
