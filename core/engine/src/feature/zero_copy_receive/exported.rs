//! Queues of zero-copy receives that a program has a descriptor of (`ZCRX_CTRL_EXPORT`): other rings of the process import them
//! by it.
//!
//! The descriptor is the reading end of a pipe. The engine keeps the other end, which shows an error as soon as nobody has
//! the program's any more, duplicates and other processes' included: then the queue is let go of. That is looked for whenever
//! a queue is exported, imported or let go of by a ring.

use alloc::vec::Vec;

use linux_raw_sys::general::{EPOLLERR, O_CLOEXEC, O_NONBLOCK, POLLNVAL, STATX_INO};

use crate::abi::Errno;
use crate::feature::zero_copy_receive::Shared;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, OwnedFd};

struct Exported {
    /// The writing end.
    end: OwnedFd,
    /// The pipe that both ends belong to.
    file: File,
    queue: Shared,
}

/// A file's device, by its two numbers, and its inode.
type File = (u32, u32, u64);

/// The identity of this file. Asked of no file system that may be slow to answer: rings are locked meanwhile.
fn file_of(fd: Fd) -> Result<File, Errno> {
    let status = os::known_status(fd, STATX_INO)?;
    Ok((status.stx_dev_major, status.stx_dev_minor, status.stx_ino))
}

static EXPORTED: Mutex<Vec<Exported>> = Mutex::new(Vec::new());

/// The lock of the list, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &EXPORTED
}

/// In a child after `fork`: the queues are its parent's.
///
/// # Safety
/// No other thread of this process may use the list.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { EXPORTED.reset() };
    EXPORTED.lock().clear();
}

/// Lets go of those of which nobody has a descriptor.
fn sweep(exported: &mut Vec<Exported>) {
    let mut place = 0;
    while let Some(one) = exported.get(place) {
        let end = one.end.fd();
        // A pipe that cannot be asked now is asked later.
        let events = os::poll_now(end, 0).unwrap_or(0);
        if events & (EPOLLERR | POLLNVAL) == 0 {
            place += 1;
            continue;
        }
        let is_ours = events & POLLNVAL == 0 && file_of(end).is_ok_and(|file| file == one.file);
        let Exported { end, queue, .. } = exported.swap_remove(place);
        queue.lock().leave(None);
        if !is_ours {
            // The program has closed it: the number is another file's, or nobody's.
            let _ = end.into_fd();
        }
    }
}

/// Lets go of exported queues without a descriptor, for a caller that has just closed one or left a queue.
pub fn drop_unreferenced() {
    sweep(&mut EXPORTED.lock());
}

/// A descriptor of a queue, which is the program's.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn export(queue: &Shared) -> Result<Fd, Errno> {
    let mut exported = EXPORTED.lock();
    sweep(&mut exported);
    exported.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let [own, end] = os::pipe(O_CLOEXEC | O_NONBLOCK)?;
    let own = OwnedFd::new(own);
    // Where no third descriptor is to be had it stays among the program's: the kernel needs one.
    let end = OwnedFd::new(os::duplicate(end).inspect(|_| os::close(end)).unwrap_or(end));
    let file = file_of(end.fd())?;
    queue.lock().join();
    exported.push(Exported { end, file, queue: queue.clone() });
    Ok(own.into_fd())
}

/// The queue behind a descriptor of the program's, for one more ring.
///
/// # Errors
/// `EBADF` where there is none.
pub fn import(fd: Fd) -> Result<Shared, Errno> {
    let file = file_of(fd)?;
    let mut exported = EXPORTED.lock();
    sweep(&mut exported);
    let found = exported.iter().find(|one| one.file == file).ok_or(Errno::EBADF)?;
    found.queue.lock().join();
    Ok(found.queue.clone())
}
