//! MSG_RING: a completion, or a registered file, for another ring of this process.
//!
//! Two rings' locks are never waited for together: the target's is tried while ours is held, and
//! where it is taken the message is sent as blocking work, without ours.

use linux_raw_sys::io_uring::{
    IORING_MSG_RING_CQE_SKIP, IORING_MSG_RING_FLAGS_PASS, IORING_SETUP_R_DISABLED,
    io_uring_msg_ring_flags as Command,
};

use crate::abi::{Errno, Sqe};
use crate::ops::{Caps, Code, Field, Op, Outcome};
use crate::os::{self, Fd, user};
use crate::queue::Cqe;
use crate::request::RequestId;
use crate::ring::{Core, registry};
use crate::work::Work;

/// `IORING_OP_MSG_RING`.
pub const MSG_RING: Op = Op::new(
    Code::IORING_OP_MSG_RING,
    "MSG_RING",
    Caps::FILE.with(Caps::IOPOLL).with(Caps::UNPOLLED),
    prep,
    issue,
)
.fields(&[
    Field::Fd,
    Field::Address,
    Field::Offset,
    Field::Length,
    Field::Address3,
    Field::FileIndex,
    Field::OpFlags,
])
.block(send)
.of_its_ring();

fn prep(core: &mut Core, id: RequestId) -> Result<(), Errno> {
    check(&core.requests[id].sqe)
}

fn check(sqe: &Sqe) -> Result<(), Errno> {
    let known = IORING_MSG_RING_CQE_SKIP | IORING_MSG_RING_FLAGS_PASS;
    let bad = sqe.buf_index != 0 || sqe.personality != 0 || sqe.op_flags & !known != 0;
    if bad { Err(Errno::EINVAL) } else { Ok(()) }
}

fn is_command(sqe: &Sqe, command: Command) -> bool {
    sqe.addr as u32 == command as u32
}

fn issue(core: &mut Core, id: RequestId) -> Outcome {
    let (sqe, fd) = (core.requests[id].sqe, core.requests[id].file.fd());
    let Some(target) = registry::get(fd) else {
        let known = os::is_open(fd);
        return if known { Errno::EBADFD.into() } else { Errno::EBADF.into() };
    };
    if is_command(&sqe, Command::IORING_MSG_SEND_FD) {
        return send_file(core, &sqe, &target);
    }
    if core::ptr::eq(target.ring(), core.ring) {
        return send_data(core, &sqe).into();
    }
    let Some(mut guard) = target.try_lock() else { return Outcome::Block };
    match guard.as_mut() {
        Some(target) => deliver(target, |target| send_data(target, &sqe)).into(),
        None => Errno::EBADFD.into(),
    }
}

/// Without a lock.
fn send(work: &mut Work) -> Result<usize, Errno> {
    send_to(work.sqe.fd, &work.sqe)
}

fn send_to(fd: Fd, sqe: &Sqe) -> Result<usize, Errno> {
    let target = registry::get(fd).ok_or(if os::is_open(fd) { Errno::EBADFD } else { Errno::EBADF })?;
    let mut guard = target.lock();
    let target = guard.as_mut().ok_or(Errno::EBADFD)?;
    deliver(target, |target| send_data(target, sqe))
}

/// Does something to the target and tells whoever waits there.
fn deliver(target: &mut Core, body: impl FnOnce(&mut Core) -> Result<usize, Errno>) -> Result<usize, Errno> {
    target.external.inline = false;
    let result = body(target);
    target.notify();
    result
}

fn send_data(target: &mut Core, sqe: &Sqe) -> Result<usize, Errno> {
    if !is_command(sqe, Command::IORING_MSG_DATA) {
        return Err(Errno::EINVAL);
    }
    let passes = sqe.op_flags & IORING_MSG_RING_FLAGS_PASS != 0;
    if sqe.addr3 as u32 != 0
        || sqe.op_flags & !IORING_MSG_RING_FLAGS_PASS != 0
        || !passes && sqe.file_index != 0
    {
        return Err(Errno::EINVAL);
    }
    if target.is(IORING_SETUP_R_DISABLED) {
        return Err(Errno::EBADFD);
    }
    let flags = if passes { sqe.file_index } else { 0 };
    target.receive(Cqe { user_data: sqe.off, res: sqe.len as i32, flags, big: [0; 2] });
    Ok(0)
}

/// Passes a registered file on. Where the target is busy, the request takes another turn.
fn send_file(core: &mut Core, sqe: &Sqe, target: &registry::InUse) -> Outcome {
    if sqe.len != 0 || core::ptr::eq(target.ring(), core.ring) {
        return Errno::EINVAL.into();
    }
    let Some(mut guard) = target.try_lock() else { return Outcome::Again };
    let Some(target) = guard.as_mut() else { return Errno::EBADFD.into() };
    if target.is(IORING_SETUP_R_DISABLED) {
        return Errno::EBADFD.into();
    }
    let Some(source) = core.files.get(sqe.addr3 as u32) else { return Errno::EBADF.into() };
    let own = match os::duplicate(source) {
        Ok(own) => own,
        Err(errno) => return errno.into(),
    };
    deliver(target, |target| {
        let slot = target.install_file(own, sqe.file_index)?;
        if sqe.op_flags & IORING_MSG_RING_CQE_SKIP == 0 {
            target.receive(Cqe { user_data: sqe.off, res: slot as i32, flags: 0, big: [0; 2] });
        }
        Ok(slot)
    })
    .into()
}

/// `IORING_REGISTER_SEND_MSG_RING`: the same without a ring of one's own.
pub fn send_without_ring(address: u64) -> Result<usize, Errno> {
    let words: [u64; 8] = user::read(address)?;
    // SAFETY: an SQE is 64 bytes of integers.
    let sqe: Sqe = unsafe { core::mem::transmute(words) };
    if sqe.flags != 0 || sqe.opcode != Code::IORING_OP_MSG_RING as u8 {
        return Err(Errno::EINVAL);
    }
    check(&sqe)?;
    if !is_command(&sqe, Command::IORING_MSG_DATA) {
        return Err(Errno::EINVAL);
    }
    send_to(sqe.fd, &sqe)
}

impl Core {
    /// A completion from outside. A ring that defers sees it when its thread comes for it.
    fn receive(&mut self, cqe: Cqe) {
        if self.defers() {
            if !self.forward(&cqe) {
                self.messages.push_back(cqe);
            }
            self.notify_deferred();
        } else {
            self.beside_batch(|core| core.post(cqe));
        }
    }

    /// Posts what came from outside.
    pub fn post_messages(&mut self) {
        while let Some(cqe) = self.messages.pop_front() {
            self.post(cqe);
        }
    }
}

const _: () = assert!(size_of::<Sqe>() == size_of::<[u64; 8]>());
