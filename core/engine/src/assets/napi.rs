//! Busy polling of network devices (`IORING_REGISTER_NAPI`): epoll has it too, for the sockets that it
//! reports, so the ring's epoll instance is told to. Lists of devices that the program keeps itself
//! (`IO_URING_NAPI_TRACKING_STATIC`) it has not: they are refused, as kernels before 6.13 do.

use linux_raw_sys::io_uring::{
    IORING_SETUP_IOPOLL, io_uring_napi, io_uring_napi_op as Operation,
    io_uring_napi_tracking_strategy as Tracking,
};

use crate::abi::Errno;
use crate::calls::register::Register;
use crate::os::{self, Fd, user};
use crate::ring::Core;

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
    /// As a program is told of it.
    fn describe(self) -> io_uring_napi {
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
            // What worked before works again.
            let _ = self.apply(epoll);
        }
    }

    /// Tells an epoll instance.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the kernel's epoll does not poll, as its rings would not.
    fn apply(self, epoll: Fd) -> Result<(), Errno> {
        // _IOW(0x8a, 1, struct epoll_params)
        const EPIOCSPARAMS: usize = 0x4000_8a01 | size_of::<EpollParams>() << 16;
        let params =
            EpollParams { time_us: self.time_us, budget: BUDGET, prefers: self.prefers.into(), pad: 0 };
        let arguments = [epoll as usize, EPIOCSPARAMS, &raw const params as usize, 0, 0, 0];
        // SAFETY: reads a structure of ours.
        unsafe { os::call(os::nr::__NR_ioctl, arguments) }.map(drop).map_err(|_| Errno::EOPNOTSUPP)
    }
}

impl Core {
    /// `IORING_REGISTER_NAPI`; what was so far is written over what is asked for.
    pub fn register_napi(&mut self, address: u64) -> Result<usize, Errno> {
        if self.is(IORING_SETUP_IOPOLL) {
            return Err(Errno::EINVAL);
        }
        let wanted: io_uring_napi = user::read(address)?;
        if wanted.pad != [0; 2] || wanted.resv != 0 {
            return Err(Errno::EINVAL);
        }
        user::write(address, &self.readiness.busy_poll.describe())?;
        if wanted.opcode != Operation::IO_URING_NAPI_REGISTER_OP as u8
            || wanted.op_param != Tracking::IO_URING_NAPI_TRACKING_DYNAMIC as u32
        {
            return Err(Errno::EINVAL);
        }
        let new = BusyPoll {
            time_us: wanted.busy_poll_to.min(MOST_US),
            prefers: wanted.prefer_busy_poll != 0,
            tracks: true,
        };
        new.apply(self.epoll()?)?;
        self.readiness.busy_poll = new;
        Ok(0)
    }

    /// `IORING_UNREGISTER_NAPI`; what was so far is written where the program wants it, if at all.
    pub fn unregister_napi(&mut self, call: &Register) -> Result<usize, Errno> {
        if call.count != 1 {
            return Err(Errno::EINVAL);
        }
        if call.argument != 0 {
            let told = io_uring_napi { op_param: 0, ..self.readiness.busy_poll.describe() };
            user::write(call.argument, &told)?;
        }
        self.readiness.busy_poll = BusyPoll::default();
        if let Some(epoll) = self.readiness.epoll {
            // Where it cannot be told, it never polled.
            let _ = self.readiness.busy_poll.apply(epoll);
        }
        Ok(0)
    }
}
