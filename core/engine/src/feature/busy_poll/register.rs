//! Busy polling of network devices (`IORING_REGISTER_NAPI`).

use linux_raw_sys::io_uring::{
    IORING_SETUP_IOPOLL, io_uring_napi, io_uring_napi_op as Operation,
    io_uring_napi_tracking_strategy as Tracking,
};

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::feature::busy_poll::BusyPoll;
use crate::os::user;
use crate::ring::Core;

/// `IORING_REGISTER_NAPI`; overwrites the program's structure with the former settings.
///
/// # Errors
/// `EINVAL`, `EFAULT`; `EOPNOTSUPP` if the kernel's epoll cannot busy-poll.
pub fn register(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    if core.is(IORING_SETUP_IOPOLL) {
        return Err(Errno::EINVAL);
    }
    let wanted: io_uring_napi = user::read(call.argument)?;
    if wanted.pad != [0; 2] || wanted.resv != 0 {
        return Err(Errno::EINVAL);
    }
    user::write(call.argument, &core.readiness().busy_poll().describe())?;
    if wanted.opcode != Operation::IO_URING_NAPI_REGISTER_OP as u8
        || wanted.op_param != Tracking::IO_URING_NAPI_TRACKING_DYNAMIC as u32
    {
        return Err(Errno::EINVAL);
    }
    core.start_busy_poll(BusyPoll::new(wanted.busy_poll_to, wanted.prefer_busy_poll != 0)).map(|()| 0)
}

/// `IORING_UNREGISTER_NAPI`; writes the former settings to the argument, if it is not 0.
///
/// # Errors
/// `EINVAL`, `EFAULT`.
pub fn unregister(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    if call.count != 1 {
        return Err(Errno::EINVAL);
    }
    if call.argument != 0 {
        let told = io_uring_napi { op_param: 0, ..core.readiness().busy_poll().describe() };
        user::write(call.argument, &told)?;
    }
    core.stop_busy_poll();
    Ok(0)
}

impl Core {
    /// Makes the ring's epoll instance poll network devices from now on.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the kernel's epoll cannot busy-poll; others if no epoll instance can be made.
    pub(in crate::feature::busy_poll) fn start_busy_poll(&mut self, new: BusyPoll) -> Result<(), Errno> {
        new.apply(self.epoll()?)?;
        self.readiness_mut().set_busy_poll(new);
        Ok(())
    }

    /// Ends the busy polling of the ring's epoll instance.
    pub(in crate::feature::busy_poll) fn stop_busy_poll(&mut self) {
        self.readiness_mut().set_busy_poll(BusyPoll::default());
        if let Some(epoll) = self.readiness().epoll() {
            // If epoll refuses this, it never polled.
            let _ = BusyPoll::default().apply(epoll);
        }
    }
}
