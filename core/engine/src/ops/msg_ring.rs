//! MSG_RING: a completion, or a registered file, for another ring of this process.
//!
//! Two rings' locks are never waited for together: the target's is tried while ours is held, and
//! where it is taken the message is sent as blocking work, without ours. So two rings that send to each
//! other cannot keep each other from it: whoever waits for a ring holds none.

use linux_raw_sys::io_uring::{
    IORING_MSG_RING_CQE_SKIP, IORING_MSG_RING_FLAGS_PASS, IORING_SETUP_R_DISABLED,
    io_uring_msg_ring_flags as Command,
};

use crate::abi::{Errno, Sqe, names};
use crate::os::{self, Fd, OwnedFd, user};
use crate::queue::Cqe;
use crate::request::RequestId;
use crate::request::data::OpData;
use crate::request::op::{Caps, Code, Field, Op, Outcome};
use crate::request::shown::{self, Kind, When, arg};
use crate::request::unused::Unused;
use crate::ring::{Core, Ring, live, registry};
use crate::work::Work;

const SENDS_FILE: u64 = Command::IORING_MSG_SEND_FD as u64;
const WITH_FILE: When = When::Is(Field::AddressLow, SENDS_FILE);
const WITHOUT_FILE: When = When::Not(Field::AddressLow, SENDS_FILE);

/// `IORING_OP_MSG_RING`.
pub const MSG_RING: Op = Op::new(
    Code::IORING_OP_MSG_RING,
    "MSG_RING",
    Caps::FILE.with(Caps::IOPOLL).with(Caps::UNPOLLED),
    prep,
    issue,
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
.block(send)
.of_its_ring()
.unused(Unused::BUF_INDEX.with(Unused::PERSONALITY))
.errors(&[Errno::EINVAL, Errno::EBADF, Errno::EBADFD]);

fn prep(core: &mut Core, id: RequestId) -> Result<(), Errno> {
    check(&core[id].sqe)
}

fn check(sqe: &Sqe) -> Result<(), Errno> {
    let known = IORING_MSG_RING_CQE_SKIP | IORING_MSG_RING_FLAGS_PASS;
    if sqe.op_flags & !known != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

fn is_command(sqe: &Sqe, command: Command) -> bool {
    sqe.addr as u32 == command as u32
}

/// What a message takes along where it is sent without the lock of its own ring.
struct Message {
    target: &'static Ring,
    /// Which life of that ring.
    life: u64,
    file: Option<Passed>,
}

/// A duplicate of the registered file that a message passes on, or why there is none.
type Passed = Result<OwnedFd, Errno>;

fn no_ring(fd: Fd) -> Errno {
    if os::is_open(fd) { Errno::EBADFD } else { Errno::EBADF }
}

fn issue(core: &mut Core, id: RequestId) -> Outcome {
    let (sqe, fd) = (core[id].sqe, core[id].file.fd());
    let Some(target) = registry::get(fd) else { return no_ring(fd).into() };
    let (target, life) = (target.ring(), target.life());
    let passes_file = is_command(&sqe, Command::IORING_MSG_SEND_FD);
    if passes_file && sqe.len != 0 {
        return Errno::EINVAL.into();
    }
    if core::ptr::eq(target, core.ring()) {
        return if passes_file { Errno::EINVAL.into() } else { send_data(core, &sqe).into() };
    }
    let mut file = passes_file.then(|| file_to_pass(core, &sqe));
    if let Some(mut guard) = target.try_lock() {
        match live(&mut guard, life) {
            None => return Errno::EBADFD.into(),
            Some(target) if !target.counts_completions() => return deliver(target, &sqe, file.take()).into(),
            // What counts this message may end, and what is linked to it begin: not under two locks.
            Some(_) => {}
        }
    }
    core[id].data = OpData::own(Message { target, life, file });
    Outcome::Block
}

fn file_to_pass(core: &Core, sqe: &Sqe) -> Passed {
    let source = core.files().get(sqe.addr3 as u32).ok_or(Errno::EBADF)?;
    os::duplicate(source).map(OwnedFd::new)
}

/// Without a lock.
fn send(work: &mut Work) -> Result<usize, Errno> {
    let Some(message) = work.data.as_own_mut::<Message>() else { return Err(Errno::EINVAL) };
    send_to(message.target, message.life, &work.sqe, message.file.take())
}

/// Sends with no ring's lock held, and waits for that of the target.
fn send_to(target: &'static Ring, life: u64, sqe: &Sqe, file: Option<Passed>) -> Result<usize, Errno> {
    let mut guard = target.lock();
    let target = live(&mut guard, life).ok_or(Errno::EBADFD)?;
    let counts = target.counts_completions();
    let result = deliver(target, sqe, file);
    if counts {
        target.advance();
        target.hand_over();
        target.notify();
    }
    result
}

/// Sends, and tells whoever waits there.
fn deliver(target: &mut Core, sqe: &Sqe, file: Option<Passed>) -> Result<usize, Errno> {
    target.observers_mut().posts_later();
    let result = match file {
        Some(file) => send_file(target, sqe, file),
        None => send_data(target, sqe),
    };
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

fn send_file(target: &mut Core, sqe: &Sqe, file: Passed) -> Result<usize, Errno> {
    if target.is(IORING_SETUP_R_DISABLED) {
        return Err(Errno::EBADFD);
    }
    let slot = target.install_file(file?.into_fd(), sqe.file_index)?;
    if sqe.op_flags & IORING_MSG_RING_CQE_SKIP == 0 {
        target.receive(Cqe { user_data: sqe.off, res: slot as i32, flags: 0, big: [0; 2] });
    }
    Ok(slot)
}

/// `IORING_REGISTER_SEND_MSG_RING`: the same without a ring of one's own.
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
    send_to(target.ring(), target.life(), &sqe, None)
}

impl Core {
    /// Does a completion that is posted here at once count for a TIMEOUT?
    fn counts_completions(&self) -> bool {
        self.timeouts().counting() > 0 && !self.defers()
    }
}

const _: () = assert!(size_of::<Sqe>() == size_of::<[u64; 8]>());
