//! A worker that stays busy until it is released: it writes from a page of memory that is missing.

use std::os::fd::{AsRawFd, OwnedFd};

use super::{memory_file, owned};
use crate::failure::{Failure, Result};
use crate::workload::memory;
use crate::workload::ring::{ASYNC, LINK, Ring, Sqe, io_uring_op, sqe};

const API: u64 = 0xc018_aa3f;
const REGISTER: u64 = 0xc020_aa00;
const ZERO: u64 = 0xc020_aa04;
const VERSION: u64 = 0xaa;
const MODE_MISSING: u64 = 1;

/// Completions of the requests that hold a worker.
pub const COMPLETIONS: usize = 2;

/// A page of memory that stays missing until [`Page::give`] supplies it: readers wait for it.
pub struct Page {
    faults: OwnedFd,
    page: *mut u8,
    length: usize,
    file: OwnedFd,
}

impl Page {
    pub fn new() -> Result<Self> {
        // SAFETY: asks for a number.
        let length = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let page = memory(length)?;
        let faults = new_faults()?;
        control(&faults, API, &mut [VERSION, 0, 0])?;
        control(&faults, REGISTER, &mut [page as u64, length as u64, MODE_MISSING, 0])?;
        Ok(Self { faults, page, length, file: memory_file()? })
    }

    /// Makes a worker write the page to a file, and returns when the worker waits for the page.
    pub fn hold_worker(&self, ring: &mut Ring) -> Result<()> {
        // A request that is linked behind a worker's request is done by a worker, too.
        let fd = self.file.as_raw_fd();
        ring.push(Sqe { fd, flags: ASYNC | LINK, ..sqe(io_uring_op::IORING_OP_FSYNC, 0) })?;
        let (addr, len) = (self.page as u64, self.length as u32);
        ring.push(Sqe { fd, flags: ASYNC, addr, len, ..sqe(io_uring_op::IORING_OP_WRITE, 0) })?;
        ring.submit_and_wait(0)?;
        let mut message = [0u64; 4];
        // SAFETY: writes one message of ours.
        let read = unsafe { libc::read(self.faults.as_raw_fd(), message.as_mut_ptr().cast(), 32) };
        if read == 32 { Ok(()) } else { Err(Failure::errno("waiting for a worker")) }
    }

    /// Supplies the page, so that the worker continues.
    pub fn give(&self) -> Result<()> {
        control(&self.faults, ZERO, &mut [self.page as u64, self.length as u64, 0, 0])
    }

    /// Discards the page again.
    pub fn take(&self) -> Result<()> {
        // SAFETY: the page is ours, and its content means nothing.
        match unsafe { libc::madvise(self.page.cast(), self.length, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(Failure::errno("taking a page away")),
        }
    }
}

/// Creates the userfaultfd, which reports accesses to missing pages.
pub fn new_faults() -> Result<OwnedFd> {
    // SAFETY: takes flags.
    let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    owned(faults as i32, "userfaultfd, which takes root")
}

fn control<const WORDS: usize>(faults: &OwnedFd, request: u64, argument: &mut [u64; WORDS]) -> Result<()> {
    // SAFETY: the argument lives through the call, and has the size that the request's number names.
    match unsafe { libc::ioctl(faults.as_raw_fd(), request as _, argument.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(Failure::errno(format!("the request {request:#x} of userfaultfd"))),
    }
}
