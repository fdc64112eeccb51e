//! Zero-copy receive queues of which a program has a descriptor (`ZCRX_CTRL_EXPORT`): other rings of the process import a queue
//! by the descriptor.
//!
//! The program's descriptor is the reading end of a pipe. The engine keeps the writing end, which shows an error as soon as
//! no process has a reading end any more: then the engine releases the queue. The engine checks for that whenever a queue is
//! exported, imported or released by a ring.

use alloc::vec::Vec;

use linux_raw_sys::general::{EPOLLERR, O_CLOEXEC, O_NONBLOCK, POLLNVAL, STATX_INO};

use crate::abi::Errno;
use crate::feature::zero_copy_receive::Shared;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, OwnedFd};

struct Exported {
    /// The writing end of the pipe.
    end: OwnedFd,
    /// The pipe that both ends belong to.
    file: File,
    queue: Shared,
}

/// A file's device, by its two numbers, and its inode.
type File = (u32, u32, u64);

/// Returns the identity of a file, but asks no file system that may be slow to answer: rings are locked meanwhile.
fn file_of(fd: Fd) -> Result<File, Errno> {
    let status = os::known_status(fd, STATX_INO)?;
    Ok((status.stx_dev_major, status.stx_dev_minor, status.stx_ino))
}

static EXPORTED: Mutex<Vec<Exported>> = Mutex::new(Vec::new());

/// Returns the lock of the list, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &EXPORTED
}

/// Empties the list in a child after `fork`: the queues are the parent's.
///
/// # Safety
/// No other thread of this process may use the list.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { EXPORTED.reset() };
    EXPORTED.lock().clear();
}

/// Releases queues of which no process has a descriptor.
fn sweep(exported: &mut Vec<Exported>) {
    let mut place = 0;
    while let Some(one) = exported.get(place) {
        let end = one.end.fd();
        // If the poll fails, a later sweep polls the pipe again.
        let events = os::poll_now(end, 0).unwrap_or(0);
        if events & (EPOLLERR | POLLNVAL) == 0 {
            place += 1;
            continue;
        }
        let is_ours = events & POLLNVAL == 0 && file_of(end).is_ok_and(|file| file == one.file);
        let Exported { end, queue, .. } = exported.swap_remove(place);
        queue.lock().leave(None);
        if !is_ours {
            // The program has closed the number, which may belong to another file now.
            let _ = end.into_fd();
        }
    }
}

/// Releases exported queues without a descriptor. The caller has just closed a descriptor, or left a queue.
pub fn drop_unreferenced() {
    sweep(&mut EXPORTED.lock());
}

/// Makes a descriptor of a queue for the program.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn export(queue: &Shared) -> Result<Fd, Errno> {
    let mut exported = EXPORTED.lock();
    sweep(&mut exported);
    exported.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let [own, end] = os::pipe(O_CLOEXEC | O_NONBLOCK)?;
    let own = OwnedFd::new(own);
    // If no third descriptor can be made, this one keeps its low number: the kernel needs one descriptor only.
    let end = OwnedFd::new(os::duplicate(end).inspect(|_| os::close(end)).unwrap_or(end));
    let file = file_of(end.fd())?;
    queue.lock().join();
    exported.push(Exported { end, file, queue: queue.clone() });
    Ok(own.into_fd())
}

/// Returns the queue of a descriptor of the program, for one more ring.
///
/// # Errors
/// `EBADF` if the descriptor is none of a queue.
pub fn import(fd: Fd) -> Result<Shared, Errno> {
    let file = file_of(fd)?;
    let mut exported = EXPORTED.lock();
    sweep(&mut exported);
    let found = exported.iter().find(|one| one.file == file).ok_or(Errno::EBADF)?;
    found.queue.lock().join();
    Ok(found.queue.clone())
}
