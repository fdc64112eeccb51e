//! A line at the terminal that shows the progress of a long search.

use crate::expression::Action;
use crate::parse::Command;
use indicatif::{HumanCount, ProgressBar};
use std::io::{self, IsTerminal};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// The line, once it is shown: messages are printed above it.
static LINE: OnceLock<ProgressBar> = OnceLock::new();

/// The progress of a search.
pub struct Progress {
    seen: Arc<AtomicU64>,
    /// Dropping it ends the thread.
    going: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Shows progress if standard error is a terminal and the output is a file. With the output in a pipe, there may be a
    /// pager that uses the terminal.
    pub fn wanted(command: &Command) -> Option<Progress> {
        let asks = command.tree.any(&|action| matches!(action, Action::Run(_)));
        (!asks && io::stderr().is_terminal() && is_file(io::stdout().as_raw_fd())).then(Progress::begin)
    }

    fn begin() -> Progress {
        let seen = Arc::new(AtomicU64::new(0));
        let (going, ended) = mpsc::channel::<()>();
        let count = seen.clone();
        let thread = std::thread::spawn(move || {
            // Most searches end within a second, and show no progress.
            let mut wait = Duration::from_secs(1);
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(wait) {
                wait = Duration::from_millis(100);
                let line = LINE.get_or_init(ProgressBar::new_spinner);
                line.set_message(format!("{} looked at", HumanCount(count.load(Relaxed))));
                line.tick();
            }
        });
        Progress { seen, going: Some(going), thread: Some(thread) }
    }

    /// Counts an entry.
    pub fn saw_one(&self) {
        self.seen.fetch_add(1, Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.going = None;
        let _ = self.thread.take().map(JoinHandle::join);
        if let Some(line) = LINE.get() {
            line.finish_and_clear();
        }
    }
}

/// Writes to the terminal while the line is hidden.
pub fn aside(write: impl FnOnce()) {
    match LINE.get() {
        Some(line) => line.suspend(write),
        None => write(),
    }
}

fn is_file(fd: i32) -> bool {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a place of the right kind, read only if it was filled.
    unsafe {
        libc::fstat(fd, status.as_mut_ptr()) == 0
            && status.assume_init().st_mode & libc::S_IFMT == libc::S_IFREG
    }
}
