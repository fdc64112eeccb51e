//! ACCEPT.
//!
//! `O_NONBLOCK` is set on a listener without it while the engine accepts from it (`process/nonblocking.rs`): once for all
//! connections that a multishot request finds. If another thread or process does not finish its own attempt in time, a thread
//! that may block accepts.
//!
//! A failing attempt costs ten times as much as a question, for it makes a file and frees it. So once epoll has told of a TCP
//! listener, the kernel is asked how many connections wait, and so many are accepted. Epoll tells of each that came later, so nothing is
//! asked after the last one, and each CQE can say whether another follows. Other processes and threads may accept meanwhile: then an
//! attempt fails, as it would without the question.

use linux_raw_sys::general::{self as nr, EPOLLIN};
use linux_raw_sys::io_uring::{
    IORING_ACCEPT_DONTWAIT, IORING_ACCEPT_MULTISHOT, IORING_ACCEPT_POLL_FIRST, IORING_CQE_F_SOCK_NONEMPTY,
    IORING_FILE_INDEX_ALLOC,
};
use linux_raw_sys::net::SO_ACCEPTCONN;

use crate::abi::{Errno, Sqe, names};
use crate::assets::unseen;
use crate::observe::chaos;
use crate::ops::net::calls;
use crate::ops::net::socket::{SOCK_CLOEXEC, SOCK_NONBLOCK};
use crate::os::{self, Fd, host, user};
use crate::process::nonblocking::{self, Blocking};
use crate::request::Flags;
use crate::request::field::Field;
use crate::request::field::Unused;
use crate::request::op::{Caps, op};
use crate::request::shown::{self, Kind, arg};
use crate::ring::drive::readiness::SocketKind;
use crate::ring::row::{Outcome, Row};
use crate::ring::{Attempt, Lent};
use crate::work::Work;

/// `IORING_OP_ACCEPT`.
pub const ACCEPT: Row =
    Row::new(op!(IORING_OP_ACCEPT), Caps::FILE.with(Caps::SOCKET).with(Caps::IOPRIO), prep, issue)
        .arguments(&[
            shown::SOCKET,
            arg(Field::Address, "addr", Kind::SocketAddressFilled(Field::Offset)),
            arg(Field::Offset, "addrlen", Kind::LengthAt),
            arg(Field::OpFlags, "flags", Kind::Flags(names::SOCKET_FLAGS)),
            arg(Field::Ioprio, "ioprio", Kind::Flags(names::ACCEPT_FLAGS)).unless_zero(),
            shown::FILE_INDEX,
        ])
        .block(block)
        .finish(finish)
        .faults(chaos::ACCEPTS)
        .unused(Unused::LEN.with(Unused::BUF_INDEX))
        .errors(&[Errno::EINVAL, Errno::EBADF, Errno::ENOTSOCK, Errno::EAGAIN]);

/// The number of connections of a multishot request after which the engine polls for more. After that many connections,
/// a failing attempt costs less than the polls would.
const MOST_ASKED: u8 = 8;

const FLAGS: u32 = IORING_ACCEPT_MULTISHOT | IORING_ACCEPT_DONTWAIT | IORING_ACCEPT_POLL_FIRST;

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = &request.sqe;
    let (flags, mode) = (sqe.op_flags, u32::from(sqe.ioprio));
    if mode & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let multishot = mode & IORING_ACCEPT_MULTISHOT != 0;
    let in_slot = sqe.file_index != 0;
    if in_slot && flags & SOCK_CLOEXEC != 0
        || in_slot && multishot && sqe.file_index != IORING_FILE_INDEX_ALLOC as u32
        || flags & !(SOCK_CLOEXEC | SOCK_NONBLOCK) != 0
    {
        return Err(Errno::EINVAL);
    }
    if multishot {
        request.flags.set(Flags::MULTISHOT);
    }
    if mode & IORING_ACCEPT_DONTWAIT != 0 {
        request.flags.set(Flags::NOWAIT);
    }
    if mode & IORING_ACCEPT_POLL_FIRST != 0 {
        cx.ring.readiness_mut().note_polls_first();
    }
    let request = cx.request();
    user::announce(request.sqe.addr);
    user::announce(request.sqe.off);
    Ok(())
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let request = cx.request();
    let (fd, sqe, flags) = (request.file.fd(), request.sqe, request.flags);
    let polls_first = u32::from(sqe.ioprio) & IORING_ACCEPT_POLL_FIRST != 0 && !flags.has(Flags::WOKEN);
    let unknown = polls_first
        && (flags.has(Flags::NOWAIT)
            || !cx.ring.readiness().is_registered(fd)
            || !cx.ring.readiness_mut().socket_kind(fd).listens());
    if unknown
        || !flags.has(Flags::NOWAIT)
            && !cx.ring.readiness().worth_trying(fd, EPOLLIN)
            && cx.ring.readiness_mut().socket_kind(fd).listens()
    {
        return Outcome::Wait(EPOLLIN);
    }
    accept_all(cx).unwrap_or_else(Outcome::from)
}

/// Makes a round in which no accept blocks. `None` if no such round could be made in time.
///
/// # Errors
/// Errors of [`listener`].
fn attempt(cx: &mut Attempt<'_>) -> Result<Option<Round>, Errno> {
    let fd = cx.file.fd();
    if waiting_connections(cx, fd) == Some(0) && !cx.flags.has(Flags::NOWAIT) {
        return Ok(Some(Round::EMPTY));
    }
    let (fd, blocking) = listener(cx)?;
    // Whoever closes a descriptor on which the ring waits tells the ring before, which is locked.
    let stays = cx.file.plain().is_none() || unseen::are_none() && cx.ring.readiness().is_registered(fd);
    let round = nonblocking::attempt(fd, stays.then_some(fd), blocking, |held| accept_round(cx, fd, held))?;
    Ok(round.map(|(round, _)| round))
}

/// Returns the outcome if no attempt that surely does not block can be made now. No thread is used if no connection is queued.
fn block_for(cx: &Attempt<'_>, fd: Fd) -> Outcome {
    match nobody_waits(fd) {
        true if cx.flags.has(Flags::NOWAIT) => Errno::EAGAIN.into(),
        true => Outcome::Wait(EPOLLIN),
        false => Outcome::BlockForLong,
    }
}

fn block(work: &mut Work) -> Result<usize, Errno> {
    let sqe = &work.sqe;
    if u32::from(sqe.ioprio) & IORING_ACCEPT_DONTWAIT != 0 {
        let accepted = |fd| calls::accept(fd, sqe.addr, sqe.off, accept_flags(sqe));
        return nonblocking::attempt_in_thread(work.fd, accepted)?.map(|fd| fd as usize);
    }
    let arguments = [work.fd as usize, sqe.addr as usize, sqe.off as usize, accept_flags(sqe) as usize, 0, 0];
    // SAFETY: writes the peer's address to the program's memory.
    unsafe { work.call(nr::__NR_accept4, arguments) }
}

fn finish(cx: &mut Attempt<'_>, result: Result<usize, Errno>) -> Outcome {
    let fd = cx.file.fd();
    let given = result.and_then(|accepted| give(cx, fd, accepted as Fd));
    match given {
        Ok(descriptor) if !cx.flags.has(Flags::MULTISHOT) => {
            tell_of_others(cx, fd);
            Outcome::Complete(descriptor)
        }
        Ok(descriptor) if cx.post_more(descriptor, 0) => issue(cx),
        Ok(descriptor) => Outcome::Complete(descriptor),
        // Another thread's attempt has set O_NONBLOCK at that moment.
        Err(Errno::EAGAIN) if cx.flags.has(Flags::NOWAIT) => Errno::EAGAIN.into(),
        Err(Errno::EAGAIN) => Outcome::Wait(EPOLLIN),
        Err(errno) => lost(cx, fd, errno),
    }
}

/// Returns the socket that the request accepts from, and whether an attempt on it could block.
///
/// A file that is no listener fails immediately, and needs no `O_NONBLOCK`. But the program may close it meanwhile, and its number
/// may be reused for a listener, on which the attempt would block: so the request holds the file first. A request that accepts many
/// connections holds a listener in the same way, with one descriptor of the engine's own instead of one for each attempt.
fn listener(cx: &mut Attempt<'_>) -> Result<(Fd, Blocking), Errno> {
    let fd = cx.file.fd();
    let known = nonblocking::blocking(fd)?;
    if known == Blocking::Never {
        return Ok((fd, known));
    }
    let accepts = listens(cx.ring, fd)?;
    let request = cx.request_mut();
    if request.file.plain().is_none() || accepts && !request.flags.has(Flags::MULTISHOT) {
        return Ok((fd, if accepts { known } else { Blocking::Never }));
    }
    request.hold_file()?;
    let own = request.file.fd();
    // Another thread may have closed and reopened the program's descriptor.
    let known = nonblocking::blocking(own)?;
    Ok((own, if listens(cx.ring, own)? { known } else { Blocking::Never }))
}

fn listens(ring: &Lent, fd: Fd) -> Result<bool, Errno> {
    Ok(ring.readiness().is_listener(fd) || os::socket_option(fd, SO_ACCEPTCONN)? != 0)
}

/// Returns the outcome if there was no connection, or one for which there was no slot, or no room for its address.
fn lost(cx: &mut Attempt<'_>, fd: Fd, errno: Errno) -> Outcome {
    let listens = os::socket_option(fd, SO_ACCEPTCONN).is_ok_and(|listens| listens != 0);
    let sqe = &cx.sqe;
    if (sqe.file_index != 0 || sqe.off != 0) && listens {
        tell_of_others(cx, fd);
    }
    errno.into()
}

/// Returns how many connections wait for a listener that epoll has told of, as far as the kernel tells.
fn waiting_connections(cx: &mut Attempt<'_>, fd: Fd) -> Option<u32> {
    let readiness = cx.ring.readiness();
    // Without a report of epoll, the next connection might not be reported, and the attempt may fail for another reason.
    if !readiness.is_tcp_listener(fd) || !readiness.shows(fd, EPOLLIN) {
        return None;
    }
    if let Some(known) = readiness.queued(fd) {
        return Some(known);
    }
    let count = calls::waiting_connections(fd)?;
    cx.ring.readiness_mut().note_queued(fd, count);
    Some(count)
}

fn tell_of_others(cx: &mut Attempt<'_>, fd: Fd) {
    if cx.ring.readiness_mut().socket_kind(fd) != SocketKind::TcpListener {
        return;
    }
    match os::poll_now(fd, EPOLLIN) {
        // The next request need not try.
        Ok(0) => cx.ring.readiness_mut().drained(fd, EPOLLIN),
        Ok(events) if events & EPOLLIN != 0 => cx.cqe_flags |= IORING_CQE_F_SOCK_NONEMPTY,
        _ => {}
    }
}

/// Accepts one connection, or, for a multishot request, all that are queued: posts one CQE per connection, which says whether another
/// connection follows.
fn accept_all(cx: &mut Attempt<'_>) -> Result<Outcome, Errno> {
    loop {
        let round = attempt(cx)?;
        let fd = cx.file.fd();
        let Some(Round { last, ends }) = round else { return Ok(block_for(cx, fd)) };
        if ends == Some(Errno::EAGAIN) {
            // Epoll tells of the next one.
            cx.ring.readiness_mut().note_queued(fd, 0);
        }
        // The listener's flags are restored by now: a program that sees the CQE may read and change them.
        if let Some(Accepted { descriptor, flags }) = last
            && !(cx.flags.has(Flags::MULTISHOT) && cx.post_more(descriptor, flags))
        {
            cx.cqe_flags |= flags;
            return Ok(Outcome::Complete(descriptor));
        }
        match ends {
            None => {}
            Some(Errno::EAGAIN) => return Ok(Outcome::Wait(EPOLLIN)),
            Some(errno) => return Ok(lost(cx, fd, errno)),
        }
    }
}

/// A connection without a CQE yet.
struct Accepted {
    descriptor: i32,
    /// The CQE's flags.
    flags: u32,
}

/// The connection that was accepted last in one attempt, and the reason for the attempt's end.
struct Round {
    last: Option<Accepted>,
    /// The error that ended the round; `None` if the request may continue after the last CQE.
    ends: Option<Errno>,
}

impl Round {
    /// The round in which no connection waits.
    const EMPTY: Round = Round { last: None, ends: Some(Errno::EAGAIN) };
}

/// The knowledge of a round about the connections that wait.
struct Queue {
    /// How many wait, if the kernel has told.
    told: Option<u32>,
    /// How often it is asked whether any waits, if not.
    left_to_ask: u8,
}

impl Queue {
    /// Counts an accepted connection.
    fn count_accepted(&mut self, cx: &mut Attempt<'_>, fd: Fd) {
        if let Some(told) = &mut self.told {
            *told = told.saturating_sub(1);
            cx.ring.readiness_mut().note_queued(fd, *told);
        }
    }

    /// True if no connection waits on `held`, as far as it is worth asking.
    fn look_if_empty(&mut self, held: Fd) -> bool {
        let asks = self.left_to_ask > 0;
        match self.told {
            Some(told) => told == 0,
            None if asks => {
                self.left_to_ask -= 1;
                nobody_waits(held)
            }
            None => false,
        }
    }
}

/// Accepts from `held`, which is `fd` or a duplicate, and posts all CQEs but the last one.
fn accept_round(cx: &mut Attempt<'_>, fd: Fd, held: Fd) -> Round {
    let mut queue = Queue { told: cx.ring.readiness().queued(fd), left_to_ask: MOST_ASKED };
    let mut descriptor = match accept(cx, fd, held) {
        Ok(accepted) => accepted,
        Err(errno) => return Round { last: None, ends: Some(errno) },
    };
    let tells = cx.ring.readiness_mut().socket_kind(fd) == SocketKind::TcpListener;
    loop {
        queue.count_accepted(cx, fd);
        // If the CQ has room for one CQE only, or a fault may end the request, this CQE may be the last.
        let may_be_last = !cx.flags.has(Flags::MULTISHOT)
            || !cx.ring.queues().has_room_for(2)
            || cx.flags.has(Flags::CHAOS);
        if may_be_last {
            queue.left_to_ask = queue.left_to_ask.max(1);
        }
        let next = match queue.look_if_empty(held) {
            true => Some(Err(Errno::EAGAIN)),
            false if may_be_last => None,
            false => Some(accept(cx, fd, held)),
        };
        let more = tells && next != Some(Err(Errno::EAGAIN));
        let flags = if more { IORING_CQE_F_SOCK_NONEMPTY } else { 0 };
        match next {
            Some(Ok(next)) => {
                // There was room. If the program has moved the CQ's head back meanwhile, this CQE is lost.
                cx.post_more(descriptor, flags);
                descriptor = next;
            }
            ends => {
                let ends = ends.and_then(Result::err);
                return Round { last: Some(Accepted { descriptor, flags }), ends };
            }
        }
    }
}

/// Accepts one connection; returns its descriptor or slot. A connection in a slot is close-on-exec.
fn accept(cx: &mut Attempt<'_>, fd: Fd, held: Fd) -> Result<i32, Errno> {
    let sqe = cx.sqe;
    let accepted = calls::accept(held, sqe.addr, sqe.off, accept_flags(&sqe))?;
    give(cx, fd, accepted)
}

fn accept_flags(sqe: &Sqe) -> u32 {
    sqe.op_flags | if sqe.file_index != 0 { SOCK_CLOEXEC } else { 0 }
}

/// Gives the program a connection that was accepted from `fd`; returns its descriptor or slot.
fn give(cx: &mut Attempt<'_>, fd: Fd, accepted: Fd) -> Result<i32, Errno> {
    let sqe = cx.sqe;
    // Facts noted about the connection must not be taken for those of a later socket with its number.
    let lasts = sqe.file_index != 0 || host::sees_closes();
    let given = if lasts && cx.ring.readiness().is_tcp_listener(fd) {
        cx.ring.give_connection(accepted, fd, sqe.file_index)
    } else {
        cx.ring.give_descriptor(accepted, sqe.file_index)
    };
    given.map(|result| result as i32)
}

/// True if an attempt would find nothing, not even an error. A poll costs a tenth of a failing attempt, for
/// which the kernel creates a file and frees it again.
fn nobody_waits(fd: Fd) -> bool {
    os::poll_now(fd, EPOLLIN) == Ok(0)
}
