//! Cancellation of a companion's requests.

use crate::companion::Companion;
use crate::frontend;
use anyring_engine::abi::{Errno, Sqe};
use anyring_engine::os::{self, Fd, user};
use core::mem::MaybeUninit;
use linux_raw_sys::general::__NR_io_uring_register;
use linux_raw_sys::io_uring::{
    IORING_ASYNC_CANCEL_ALL, IORING_ASYNC_CANCEL_ANY, IORING_ASYNC_CANCEL_FD_FIXED, io_uring_register_op,
    io_uring_sync_cancel_reg,
};

const SYNC_CANCEL: usize = io_uring_register_op::IORING_REGISTER_SYNC_CANCEL as usize;

/// The result of a cancellation.
pub enum Canceled {
    /// No request of the companion matched: the kernel must be asked.
    Nothing,
    /// The result of the cancellation.
    Answer(i32),
}

/// Returns the arguments of a synchronous cancellation that matches like an `ASYNC_CANCEL`, without waiting.
fn what(sqe: &Sqe) -> io_uring_sync_cancel_reg {
    // SAFETY: integers only.
    let mut what: io_uring_sync_cancel_reg = unsafe { MaybeUninit::zeroed().assume_init() };
    what.addr = sqe.addr;
    what.fd = sqe.fd;
    what.flags = sqe.op_flags;
    what.opcode = sqe.len as u8;
    what
}

impl Companion {
    /// Cancels the requests that an `ASYNC_CANCEL` on the ring `kernel` matches.
    pub fn cancel(&self, kernel: Fd, sqe: &Sqe) -> Canceled {
        let what = what(sqe);
        let several = what.flags & SEVERAL != 0;
        if what.flags & IORING_ASYNC_CANCEL_FD_FIXED != 0 {
            return Canceled::Nothing;
        }
        let address = &raw const what as usize;
        // SAFETY: reads the structure.
        let own = unsafe { frontend::call(__NR_io_uring_register as usize, arguments(self.fd(), address)) };
        match own {
            0 if several => Canceled::Nothing,
            own if own == Errno::ENOENT.negated() || own == Errno::EINVAL.negated() => Canceled::Nothing,
            own if own == Errno::ETIME.negated() => Canceled::Answer(Errno::EALREADY.negated()),
            // SAFETY: as above.
            own if several && own > 0 => Canceled::Answer(own + unsafe { by_kernel(kernel, address) }),
            own => Canceled::Answer(own),
        }
    }

    /// Cancels the requests that the `io_uring_sync_cancel_reg` at `argument` matches on the ring `kernel`, with its timeout;
    /// `None` if no request of the companion matches.
    ///
    /// # Safety
    /// The address may be any.
    pub unsafe fn cancel_at(&self, kernel: Fd, argument: usize) -> Option<i32> {
        // If the structure cannot be read, the kernel reports that.
        let what = user::read::<[u64; 8]>(argument as u64).ok()?;
        // SAFETY: reads the copy.
        let own = unsafe {
            frontend::call(__NR_io_uring_register as usize, arguments(self.fd(), what.as_ptr() as usize))
        };
        if own > 0 {
            // SAFETY: as above.
            return Some(own + unsafe { by_kernel(kernel, argument) });
        }
        // The flags are in the second 32-bit word after the address.
        let several = (what[1] >> 32) as u32 & SEVERAL != 0;
        let found =
            own != Errno::ENOENT.negated() && own != Errno::EINVAL.negated() && !(several && own == 0);
        found.then_some(own)
    }
}

const SEVERAL: u32 = IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY;

/// Returns how many of the kernel's requests the structure at `address` cancelled.
///
/// # Safety
/// `address` must be that of such a structure, or any that cannot be read.
unsafe fn by_kernel(kernel: Fd, address: usize) -> i32 {
    // SAFETY: the caller's promise.
    let result = unsafe { os::call(__NR_io_uring_register, arguments(kernel, address)) };
    result.map_or(0, |count| count as i32)
}

fn arguments(fd: Fd, address: usize) -> [usize; 6] {
    [fd as usize, SYNC_CANCEL, address, 1, 0, 0]
}
