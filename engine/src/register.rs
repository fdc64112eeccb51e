//! `io_uring_register(2)`.

use linux_raw_sys::io_uring::io_uring_register_op as Code;

use crate::cancel;
use crate::driver::pool;
use crate::driver::timers::Clock;
use crate::enter::no_ring;
use crate::errno::Errno;
use crate::host;
use crate::ops::msg_ring;
use crate::resources::{clone, probe, query, ring_fds};
use crate::ring::{CoreGuard, live};
use crate::sys::Fd;
use crate::{lifetime, registry, user};
use linux_raw_sys::io_uring::{IORING_SETUP_R_DISABLED, IORING_SETUP_SINGLE_ISSUER};

/// The arguments of one call.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// `IORING_REGISTER_*`.
    pub opcode: u32,
    /// What it reads or writes, by address.
    pub argument: u64,
    /// How many of it.
    pub count: u32,
}

/// Carries out one registration.
pub fn register(fd: Fd, call: &Register) -> Result<usize, Errno> {
    lifetime::notice_fork();
    let registered = Code::IORING_REGISTER_USE_REGISTERED_RING as u32;
    let fd = if call.opcode & registered != 0 { ring_fds::resolve(fd)? } else { fd };
    let call = &Register { opcode: call.opcode & !registered, ..*call };
    if fd == -1 {
        return register_without_ring(call);
    }
    let ring = registry::get(fd).ok_or_else(|| no_ring(fd))?;
    let mut guard = ring.lock();
    let core = guard.as_mut().ok_or(Errno::EBADF)?;
    let serial = core.serial;
    if core.is_anothers() {
        return Err(Errno::EEXIST);
    }
    if core.restrictions.as_ref().is_some_and(|restrictions| !restrictions.allow_register(call.opcode)) {
        return Err(Errno::EACCES);
    }
    let is = |code: Code| call.opcode == code as u32;
    if is(Code::IORING_REGISTER_RING_FDS) || is(Code::IORING_UNREGISTER_RING_FDS) {
        // These take other rings' locks.
        drop(guard);
        let registers = is(Code::IORING_REGISTER_RING_FDS);
        let change = if registers { ring_fds::register } else { ring_fds::unregister };
        return change(call.argument, call.count);
    }
    let result = dispatch(&mut guard, serial, fd, call);
    if let Some(core) = live(&mut guard, serial) {
        core.notify();
    }
    result
}

/// What needs no ring.
fn register_without_ring(call: &Register) -> Result<usize, Errno> {
    if call.opcode == Code::IORING_REGISTER_SEND_MSG_RING as u32 {
        return one(call).and_then(msg_ring::send_without_ring);
    }
    if call.opcode == query::REGISTER_QUERY {
        return query::query(call);
    }
    Err(Errno::EINVAL)
}

fn dispatch(guard: &mut CoreGuard<'_>, serial: u64, fd: Fd, call: &Register) -> Result<usize, Errno> {
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    let is = |code: Code| call.opcode == code as u32;
    if is(Code::IORING_REGISTER_PROBE) {
        return if call.argument == 0 || call.count > 256 {
            Err(Errno::EINVAL)
        } else {
            probe::probe(call.argument, call.count)
        };
    }
    if is(Code::IORING_REGISTER_SYNC_CANCEL) {
        return one(call).and_then(|argument| cancel::sync_cancel(guard, serial, argument));
    }
    if is(Code::IORING_REGISTER_EVENTFD) || is(Code::IORING_REGISTER_EVENTFD_ASYNC) {
        let async_only = is(Code::IORING_REGISTER_EVENTFD_ASYNC);
        return if call.count == 1 {
            core.register_eventfd(call.argument, async_only)
        } else {
            Err(Errno::EINVAL)
        };
    }
    if is(Code::IORING_UNREGISTER_EVENTFD) {
        return none(call).and_then(|()| core.unregister_eventfd());
    }
    if is(Code::IORING_REGISTER_IOWQ_MAX_WORKERS) {
        return limit_workers(call);
    }
    if is(Code::IORING_REGISTER_CLOCK) {
        return core.register_clock(call);
    }
    if is(Code::IORING_REGISTER_CLONE_BUFFERS) {
        return one(call).and_then(|argument| clone::clone_buffers(guard, serial, argument));
    }
    if is(Code::IORING_REGISTER_RESTRICTIONS) {
        return core.restrict(call.argument, call.count);
    }
    if call.opcode == query::REGISTER_QUERY {
        return query::query(call);
    }
    if let Some(result) = core.register_resource(call) {
        return result;
    }
    if is(Code::IORING_REGISTER_ENABLE_RINGS) {
        return core.enable(call);
    }
    if is(Code::IORING_REGISTER_PBUF_RING) {
        return one(call).and_then(|argument| core.register_buffer_ring(fd, argument));
    }
    if is(Code::IORING_UNREGISTER_PBUF_RING) {
        return one(call).and_then(|argument| core.unregister_buffer_ring(argument));
    }
    if is(Code::IORING_REGISTER_PBUF_STATUS) {
        return one(call).and_then(|argument| core.buffer_ring_status(argument));
    }
    Err(Errno::EINVAL)
}

/// Writes the limits so far over those that are set.
fn limit_workers(call: &Register) -> Result<usize, Errno> {
    if call.argument == 0 || call.count != 2 {
        return Err(Errno::EINVAL);
    }
    let limits: [u32; 2] = user::read(call.argument)?;
    if limits.iter().any(|&limit| limit > i32::MAX as u32) {
        return Err(Errno::EINVAL);
    }
    user::write(call.argument, &pool::limit_workers(limits)).map(|()| 0)
}

/// The argument of a call that takes exactly one structure.
fn one(call: &Register) -> Result<u64, Errno> {
    if call.argument == 0 || call.count != 1 { Err(Errno::EINVAL) } else { Ok(call.argument) }
}

/// A call that takes nothing.
fn none(call: &Register) -> Result<(), Errno> {
    if call.argument != 0 || call.count != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

impl crate::ring::Core {
    /// Is it another thread's to submit and to register (`IORING_SETUP_SINGLE_ISSUER`)?
    pub fn is_anothers(&self) -> bool {
        self.is(IORING_SETUP_SINGLE_ISSUER)
            && !self.is(IORING_SETUP_R_DISABLED)
            && self.submitter.is_some_and(|submitter| submitter != host::thread_identity())
    }

    /// Which clock the deadlines of waits are on.
    fn register_clock(&mut self, call: &Register) -> Result<usize, Errno> {
        if call.argument == 0 || call.count != 0 {
            return Err(Errno::EINVAL);
        }
        let [clock, reserved @ ..]: [u32; 4] = user::read(call.argument)?;
        if reserved != [0; 3] {
            return Err(Errno::EINVAL);
        }
        self.wait_clock = [Clock::Monotonic, Clock::Boottime]
            .into_iter()
            .find(|known| known.number() == clock)
            .ok_or(Errno::EINVAL)?;
        Ok(0)
    }

    fn enable(&mut self, call: &Register) -> Result<usize, Errno> {
        none(call)?;
        if !self.is(IORING_SETUP_R_DISABLED) {
            return Err(Errno::EBADFD);
        }
        if let Some(restrictions) = &mut self.restrictions {
            restrictions.in_force = true;
        }
        self.setup_flags &= !IORING_SETUP_R_DISABLED;
        if self.is(IORING_SETUP_SINGLE_ISSUER) {
            self.submitter = Some(host::thread_identity());
        }
        self.kick_driver();
        Ok(0)
    }
}
