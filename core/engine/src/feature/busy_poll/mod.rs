//! Busy polling of network devices (`IORING_REGISTER_NAPI`): epoll has it too, for the sockets that it
//! reports, so the ring's epoll instance is told to. Lists of devices that the program keeps itself
//! (`IO_URING_NAPI_TRACKING_STATIC`) it has not: they are refused, as kernels before 6.13 do.

pub(crate) mod register;
pub mod ring;

use linux_raw_sys::io_uring::{io_uring_napi, io_uring_napi_tracking_strategy as Tracking};

use crate::abi::Errno;
use crate::os::{self, Fd};

/// The kernel polls no longer than that.
const MOST_US: u32 = 10_000;
/// Packets at a time, as the kernel does for its rings.
const BUDGET: u16 = 8;

/// How a ring polls.
#[derive(Clone, Copy, Default, Debug)]
pub struct BusyPoll {
    time_us: u32,
    prefers: bool,
    tracks: bool,
}

/// `struct epoll_params`.
#[repr(C)]
struct EpollParams {
    time_us: u32,
    budget: u16,
    prefers: u8,
    pad: u8,
}

impl BusyPoll {
    /// For so long at a time, but no longer than the kernel does; before it looks for interrupts, if it `prefers` so.
    pub fn new(time_us: u32, prefers: bool) -> BusyPoll {
        BusyPoll { time_us: time_us.min(MOST_US), prefers, tracks: true }
    }

    /// As a program is told of it.
    pub fn describe(self) -> io_uring_napi {
        let tracking = if self.tracks {
            Tracking::IO_URING_NAPI_TRACKING_DYNAMIC
        } else {
            Tracking::IO_URING_NAPI_TRACKING_INACTIVE
        };
        io_uring_napi {
            busy_poll_to: self.time_us,
            prefer_busy_poll: self.prefers.into(),
            opcode: 0,
            pad: [0; 2],
            op_param: tracking as u32,
            resv: 0,
        }
    }

    /// Tells an epoll instance that was made after the program asked for it, in a child after `fork`.
    pub fn carry_over(self, epoll: Fd) {
        if self.tracks {
            // Settings that worked before work again.
            let _ = self.apply(epoll);
        }
    }

    /// Tells an epoll instance.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the kernel's epoll does not poll, as its rings would not.
    pub fn apply(self, epoll: Fd) -> Result<(), Errno> {
        // _IOW(0x8a, 1, struct epoll_params)
        const EPIOCSPARAMS: usize = 0x4000_8a01 | size_of::<EpollParams>() << 16;
        let params =
            EpollParams { time_us: self.time_us, budget: BUDGET, prefers: self.prefers.into(), pad: 0 };
        let arguments = [epoll as usize, EPIOCSPARAMS, &raw const params as usize, 0, 0, 0];
        // SAFETY: reads a structure of ours.
        unsafe { os::call(os::nr::__NR_ioctl, arguments) }.map(drop).map_err(|_| Errno::EOPNOTSUPP)
    }
}
