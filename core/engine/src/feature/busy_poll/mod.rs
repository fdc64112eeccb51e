//! Busy polling of network devices (`IORING_REGISTER_NAPI`). epoll can poll the devices of the sockets that
//! it watches, so the ring's epoll instance is configured to do so. epoll has no lists of devices kept by the
//! program (`IO_URING_NAPI_TRACKING_STATIC`): they are refused, as kernels before 6.13 do.

pub(crate) mod register;

use linux_raw_sys::io_uring::{io_uring_napi, io_uring_napi_tracking_strategy as Tracking};

use crate::abi::Errno;
use crate::os::{self, Fd};

/// The kernel's limit of a poll, in microseconds.
const MOST_US: u32 = 10_000;
/// Packets per poll, as the kernel uses for its rings.
const BUDGET: u16 = 8;

/// A ring's busy polling: its duration in microseconds, whether it is preferred to interrupts, and whether it is on.
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
    /// Polls for `time_us` at a time, at most the kernel's limit; if `prefers`, polling is preferred to interrupts.
    pub fn new(time_us: u32, prefers: bool) -> BusyPoll {
        BusyPoll { time_us: time_us.min(MOST_US), prefers, tracks: true }
    }

    /// Returns the settings in the form that the program reads.
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

    /// Configures a new epoll instance that replaces the ring's former one, in a child after `fork`.
    pub fn carry_over(self, epoll: Fd) {
        if self.tracks {
            // The settings worked before, so they work again.
            let _ = self.apply(epoll);
        }
    }

    /// Configures an epoll instance.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the kernel's epoll cannot busy-poll; its io_uring cannot either then.
    pub fn apply(self, epoll: Fd) -> Result<(), Errno> {
        // _IOW(0x8a, 1, struct epoll_params)
        const EPIOCSPARAMS: usize = 0x4000_8a01 | size_of::<EpollParams>() << 16;
        let params =
            EpollParams { time_us: self.time_us, budget: BUDGET, prefers: self.prefers.into(), pad: 0 };
        let arguments = [epoll as usize, EPIOCSPARAMS, &raw const params as usize, 0, 0, 0];
        // SAFETY: reads a structure of the engine's.
        unsafe { os::call(os::nr::__NR_ioctl, arguments) }.map(drop).map_err(|_| Errno::EOPNOTSUPP)
    }
}
