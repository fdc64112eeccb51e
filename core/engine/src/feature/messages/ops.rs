//! MSG_RING: posts a completion, or installs a registered file, in another ring of this process.
//!
//! [`messages`](crate::feature::messages) describes how messages are delivered, and in which order.

use alloc::sync::Arc;

use linux_raw_sys::io_uring::{
    IORING_MSG_RING_CQE_SKIP, IORING_MSG_RING_FLAGS_PASS, io_uring_msg_ring_flags as Command,
};

use crate::abi::{Errno, Sqe, names};
use crate::assets::notes;
use crate::feature::messages::{Message, Passed};
use crate::os::{self, Fd, OwnedFd, user};
use crate::request::RequestId;
use crate::request::data::OpData;
use crate::request::field::Field;
use crate::request::field::Unused;
use crate::request::op::{Caps, op};
use crate::request::shown::{self, Kind, When, arg};
use crate::ring::row::{Outcome, Row, issue_controls};
use crate::ring::{Attempt, Core, CoreGuard, Ring, registry};
use crate::work::Work;

const SENDS_FILE: u64 = Command::IORING_MSG_SEND_FD as u64;
const WITH_FILE: When = When::Is(Field::AddressLow, SENDS_FILE);
const WITHOUT_FILE: When = When::Not(Field::AddressLow, SENDS_FILE);

/// `IORING_OP_MSG_RING`.
pub const MSG_RING: Row = Row::new(
    op!(IORING_OP_MSG_RING),
    Caps::FILE.with(Caps::IOPOLL).with(Caps::UNPOLLED).with(Caps::COMMITTED),
    prep,
    issue_controls,
)
.arguments(&[
    shown::FD,
    arg(Field::AddressLow, "cmd", Kind::Choice(names::MESSAGES)),
    arg(Field::Length, "res", Kind::Signed).when(&[WITHOUT_FILE]),
    arg(Field::Length, "len", Kind::Number).when(&[WITH_FILE, When::Given]),
    arg(Field::Address3, "source_fd", Kind::RegisteredFile).when(&[WITH_FILE]),
    arg(Field::FileIndex, "target_fd", Kind::Slot).when(&[WITH_FILE]),
    arg(Field::Offset, "data", Kind::UserData),
    arg(Field::FileIndex, "cqe_flags", Kind::Flags(names::CQE_FLAGS)).when(&[WITHOUT_FILE, When::Given]),
    arg(Field::OpFlags, "flags", Kind::Flags(names::MESSAGE_FLAGS)),
])
.control(issue)
.block(send)
.of_its_ring()
.unused(Unused::BUF_INDEX.with(Unused::PERSONALITY))
.errors(&[Errno::EINVAL, Errno::EBADF, Errno::EBADFD, Errno::EOVERFLOW]);

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    check(&cx.sqe)
}

fn check(sqe: &Sqe) -> Result<(), Errno> {
    let known = IORING_MSG_RING_CQE_SKIP | IORING_MSG_RING_FLAGS_PASS;
    if sqe.op_flags & !known != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

fn is_command(sqe: &Sqe, command: Command) -> bool {
    sqe.addr as u32 == command as u32
}

/// A message that waits for the lock of its target.
struct Sent {
    target: &'static Ring,
    message: Arc<Message>,
}

impl Drop for Sent {
    /// Revokes the message, because its request has ended: the message must pass no file.
    fn drop(&mut self) {
        self.message.revoke();
    }
}

fn no_ring(fd: Fd) -> Errno {
    if os::is_open(fd) { Errno::EBADFD } else { Errno::EBADF }
}

fn issue(core: &mut Core, id: RequestId) -> Outcome {
    let (sqe, fd) = (core[id].sqe, core[id].file.fd());
    let Some(target) = registry::get(fd) else { return no_ring(fd).into() };
    let (target, serial) = (target.ring(), target.serial());
    let passes_file = is_command(&sqe, Command::IORING_MSG_SEND_FD);
    if passes_file && sqe.len != 0 {
        return Errno::EINVAL.into();
    }
    if core::ptr::eq(target, core.ring()) {
        return if passes_file { Errno::EINVAL.into() } else { core.accept_data(&sqe).into() };
    }
    let file = passes_file.then(|| file_to_pass(core, &sqe));
    if let Some(mut guard) = target.try_lock()
        // A TIMEOUT that counts this message may complete and start its linked requests, which must not happen under two locks.
        && guard.as_ref().is_none_or(|target| !target.counts_completions())
    {
        return guard.send(serial, &sqe, file).into();
    }
    let message = Arc::new(Message::new(serial, sqe, file));
    if let Err(errno) = target.leave_message(Arc::clone(&message)) {
        return errno.into();
    }
    core[id].data = OpData::own(Sent { target, message });
    Outcome::Block
}

fn file_to_pass(core: &mut Core, sqe: &Sqe) -> Passed {
    let source = core.resources_mut().files.get(sqe.addr3 as u32).ok_or(Errno::EBADF)?;
    notes::duplicate(source).map(OwnedFd::new)
}

/// Delivers the message with no ring's lock held, unless another thread has delivered it.
fn send(work: &mut Work) -> Result<usize, Errno> {
    let Some(Sent { target, message }) = work.data.as_own_mut() else { return Err(Errno::EINVAL) };
    with_target(target, |guard| guard.empty_mailbox());
    message.result()
}

/// Locks the target, with no other ring locked, and calls `sends`.
fn with_target<R>(target: &'static Ring, sends: impl FnOnce(&mut CoreGuard<'_>) -> R) -> R {
    let mut guard = target.lock();
    let counts = guard.as_ref().is_some_and(Core::counts_completions);
    let result = sends(&mut guard);
    if counts {
        guard.begin_to_drive();
        if let Some(target) = guard.as_mut() {
            target.advance();
        }
    }
    result
}

/// `IORING_REGISTER_SEND_MSG_RING`: sends a message without a ring of the sender's.
pub fn send_without_ring(address: u64) -> Result<usize, Errno> {
    let words: [u64; 8] = user::read(address)?;
    // SAFETY: an SQE is 64 bytes of integers.
    let sqe: Sqe = unsafe { core::mem::transmute(words) };
    if sqe.flags != 0 || sqe.opcode != MSG_RING.code || MSG_RING.refuses(&sqe) {
        return Err(Errno::EINVAL);
    }
    check(&sqe)?;
    if !is_command(&sqe, Command::IORING_MSG_DATA) {
        return Err(Errno::EINVAL);
    }
    let target = registry::get(sqe.fd).ok_or_else(|| no_ring(sqe.fd))?;
    let serial = target.serial();
    with_target(target.ring(), |guard| guard.send(serial, &sqe, None))
}

const _: () = assert!(size_of::<Sqe>() == size_of::<[u64; 8]>());
