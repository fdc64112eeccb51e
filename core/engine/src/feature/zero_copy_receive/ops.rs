//! RECV_ZC: receives over TCP into registered pages of the program (`IORING_REGISTER_ZCRX_IFQ`). Each CQE but the last reports
//! one page, which the program has from then on.
//!
//! A network card would have put the data into the page. If it has not, the kernel copies the data; the engine always copies.

use linux_raw_sys::general::EPOLLIN;
use linux_raw_sys::io_uring::{IORING_RECV_MULTISHOT, IORING_RECVSEND_POLL_FIRST};

use crate::abi::{Errno, names};
use crate::feature::provided_buffers::Span;
use crate::feature::zero_copy_receive::register::wait_to_tell;
use crate::feature::zero_copy_receive::{Notice, Shared, offset};
use crate::observe::chaos;
use crate::ops::net::recv::{MOST_ROUNDS, receive_vectors};
use crate::ops::net::{calls, is_idle, polls_first};
use crate::os::user::IoVector;
use crate::os::{self, Fd, pages};
use crate::request::Flags;
use crate::request::data::OpData;
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, op};
use crate::request::shown::{self, Kind, arg};
use crate::ring::drive::readiness::SocketKind;
use crate::ring::row::{Outcome, Row};
use crate::ring::{Attempt, Lent};
use crate::work::Work;

/// `IORING_OP_RECV_ZC`.
pub const RECV_ZC: Row = Row::new(
    op!(IORING_OP_RECV_ZC),
    Caps::FILE.with(Caps::SOCKET).with(Caps::IOPRIO).with(Caps::PLACES),
    prep,
    issue,
)
.arguments(&[
    shown::SOCKET,
    arg(Field::Length, "len", Kind::Number),
    arg(Field::OpFlags, "msg_flags", Kind::Flags(names::MSG_FLAGS)),
    arg(Field::Ioprio, "ioprio", Kind::Flags(names::RECV_FLAGS)).unless_zero(),
    arg(Field::FileIndex, "zcrx_ifq_idx", Kind::Number),
])
.block(tell_of_event)
.finish(go_on_after_telling)
.unused(Unused::OFF.with(Unused::ADDR).with(Unused::ADDR3))
.limits("copies the data, as the kernel does if a packet is not in the area")
.faults(chaos::ZERO_COPY_RECEIVES)
.errors(&[
    Errno::EINVAL,
    Errno::EBADF,
    Errno::ENOTSOCK,
    Errno::EPROTONOSUPPORT,
    Errno::ENOMEM,
    Errno::ENOSPC,
    Errno::EFAULT,
    Errno::ECANCELED,
]);

/// Flags in `ioprio`.
const FLAGS: u32 = IORING_RECVSEND_POLL_FIRST | IORING_RECV_MULTISHOT;

/// The maximal number of pages of one system call.
const PAGES: usize = 16;

/// The state of a zero-copy receive between its steps.
struct Progress {
    /// The number of bytes still to be received; 0 to receive until the end of the stream.
    left: u32,
    /// The socket was checked to be one that can receive this way.
    is_known: bool,
    /// CQEs posted since other requests had their turn.
    rounds: u8,
    /// An event that must be reported first, by the ring that registered the queue.
    untold: Option<Untold>,
}

/// An event to be reported by a ring whose lock another thread holds.
struct Untold {
    queue: Shared,
    notice: Notice,
    /// The request's outcome once the event is reported.
    then: Outcome,
}

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = cx.sqe;
    cx.ring.receive_queues().get(sqe.file_index).ok_or(Errno::EINVAL)?;
    let flags = u32::from(sqe.ioprio);
    if sqe.op_flags != 0 || flags & !FLAGS != 0 || flags & IORING_RECV_MULTISHOT == 0 {
        return Err(Errno::EINVAL);
    }
    let request = cx.request_mut();
    request.flags.set(Flags::MULTISHOT);
    request.data = OpData::own(Progress { left: sqe.len, is_known: false, rounds: 0, untold: None });
    Ok(())
}

fn issue(cx: &mut Attempt<'_>) -> Outcome {
    let (fd, index) = (cx.file.fd(), cx.sqe.file_index);
    let Some(queue) = cx.ring.receive_queues().get(index).cloned() else {
        return Errno::EINVAL.into();
    };
    if polls_first(cx, fd, EPOLLIN) {
        return Outcome::Wait(EPOLLIN);
    }
    if !progress(cx).is_known {
        if !receives_plainly(cx.ring, fd) {
            return Errno::EPROTONOSUPPORT.into();
        }
        progress(cx).is_known = true;
    }
    if is_idle(cx, fd) {
        return Outcome::Wait(EPOLLIN);
    }
    loop {
        if let Some(outcome) = receive(cx, fd, &queue) {
            return outcome;
        }
    }
}

fn progress<'a>(cx: &'a mut Attempt<'_>) -> &'a mut Progress {
    cx.data.as_own_mut().expect("its preparation made it")
}

/// True if `fd` is a TCP socket whose data is not transformed on the way (as by TLS).
fn receives_plainly(ring: &mut Lent, fd: Fd) -> bool {
    let kind = ring.readiness_mut().socket_kind(fd);
    matches!(kind, SocketKind::Tcp | SocketKind::TcpLowWater | SocketKind::TcpListener)
        && !calls::carries_another_protocol(fd)
}

/// Makes one receive; returns `None` if another one should follow.
fn receive(cx: &mut Attempt<'_>, fd: Fd, queue: &Shared) -> Option<Outcome> {
    let left = progress(cx).left as usize;
    let wanted = if left == 0 { PAGES } else { left.div_ceil(pages::page_bytes()).min(PAGES) };
    let room = cx.ring.queues().room_for_big() as usize;
    let (mut pages, mut vectors) = ([0; PAGES], [IoVector::default(); PAGES]);
    let mut asked = 0;
    let taken = {
        let mut queue = queue.lock();
        let taken = queue.take(&mut pages[..wanted]);
        let usable = taken.min(room);
        queue.put_back(&pages[usable..taken]);
        for (vector, &page) in vectors.iter_mut().zip(&pages[..usable]) {
            let length =
                if left == 0 { pages::page_bytes() } else { (left - asked).min(pages::page_bytes()) };
            *vector = IoVector { base: queue.address(page), length: length as u64 };
            asked += length;
        }
        taken
    };
    if taken == 0 && queue.lock().may_refill() {
        // The entries that were read returned no page. The rest is read when other requests have had their turn.
        return Some(Outcome::Again);
    }
    if taken == 0 || room == 0 {
        let errno = if taken == 0 { Errno::ENOMEM } else { Errno::ENOSPC };
        return Some(without_room(cx, fd, queue, errno));
    }
    let pages = &pages[..taken.min(room)];
    let mut truncated = false;
    let result = receive_vectors(fd, &mut vectors[..pages.len()], 0, &mut truncated);
    let count = result.unwrap_or(0);
    let (used, unused) = pages.split_at(count.div_ceil(pages::page_bytes()));
    queue.lock().put_back(unused);
    match result {
        Ok(0) => Some(end_of_stream(cx)),
        Ok(count) => {
            let notice = post(cx, queue, used, count);
            let next = go_on(cx, count, used.len() == room);
            match notice.filter(|&notice| !cx.ring.tell_of(queue, notice)) {
                None => next,
                Some(notice) => Some(tell_first(cx, queue, notice, next.unwrap_or(Outcome::Again))),
            }
        }
        Err(Errno::EAGAIN) => Some(Outcome::Wait(EPOLLIN)),
        Err(errno) => Some(errno.into()),
    }
}

/// Posts CQEs for `count` bytes in these pages. Returns the event to report besides, if any.
fn post(cx: &mut Attempt<'_>, queue: &Shared, pages: &[u32], count: usize) -> Option<Notice> {
    let notice = queue.lock().lend(pages, count);
    for (place, &page) in pages.iter().enumerate() {
        let length = (count - place * pages::page_bytes()).min(pages::page_bytes());
        cx.post_more_big(length as i32, [offset(page), 0]);
    }
    notice
}

/// Makes the request wait until the event is reported by the other ring, whose lock another thread holds.
fn tell_first(cx: &mut Attempt<'_>, queue: &Shared, notice: Notice, then: Outcome) -> Outcome {
    progress(cx).untold = Some(Untold { queue: queue.clone(), notice, then });
    Outcome::Block
}

/// Reports the event. No lock may be held.
fn tell_of_event(work: &mut Work) -> Result<usize, Errno> {
    let progress = work.data.as_own_mut::<Progress>().ok_or(Errno::EINVAL)?;
    // Without an event, this is a file that cannot be polled: it is no socket, and nothing was received from it.
    let untold = progress.untold.as_ref().ok_or(Errno::EAGAIN)?;
    wait_to_tell(&untold.queue, untold.notice);
    Ok(0)
}

fn go_on_after_telling(cx: &mut Attempt<'_>, result: Result<usize, Errno>) -> Outcome {
    match (result, progress(cx).untold.take()) {
        (Ok(_), Some(untold)) => untold.then,
        (result, _) => result.into(),
    }
}

/// Returns the outcome after a receive of `count` bytes, which has filled the CQ if `full`; `None` to receive again. A short count does not
/// show that the socket is empty: the next page may have been unmapped, which the next attempt reports.
fn go_on(cx: &mut Attempt<'_>, count: usize, full: bool) -> Option<Outcome> {
    let progress = progress(cx);
    if progress.left != 0 {
        progress.left -= count as u32;
        if progress.left == 0 {
            return Some(Outcome::Complete(0));
        }
    }
    progress.rounds = progress.rounds.saturating_add(count.div_ceil(pages::page_bytes()) as u8);
    if !full && progress.rounds <= MOST_ROUNDS {
        return None;
    }
    progress.rounds = 0;
    Some(Outcome::Again)
}

/// Completes a request at the end of the stream. Linked requests fail, as in the kernel.
fn end_of_stream(cx: &mut Attempt<'_>) -> Outcome {
    cx.fail();
    Outcome::Complete(0)
}

/// Returns the outcome if no page is free, or the CQ has no room, which matters only if there is data or the stream's end.
fn without_room(cx: &mut Attempt<'_>, fd: Fd, queue: &Shared, errno: Errno) -> Outcome {
    match has_data(fd) {
        Ok(false) => end_of_stream(cx),
        Ok(true) => {
            let notice = if errno == Errno::ENOMEM { queue.lock().notice_of_exhaustion() } else { None };
            match notice.filter(|&notice| !cx.ring.tell_of(queue, notice)) {
                None => errno.into(),
                Some(notice) => tell_first(cx, queue, notice, errno.into()),
            }
        }
        Err(Errno::EAGAIN) => Outcome::Wait(EPOLLIN),
        Err(errno) => errno.into(),
    }
}

/// True if there is data to receive, false at the end of the stream. Does not use `MSG_PEEK`, because it
/// moves the program's peek offset (`SO_PEEK_OFF`).
///
/// # Errors
/// `EAGAIN` if there is neither; else the error of a receive.
fn has_data(fd: Fd) -> Result<bool, Errno> {
    let arrived = || os::unread(fd).is_ok_and(|count| count > 0);
    if arrived() {
        return Ok(true);
    }
    // Succeeds at the end of the stream, and if data has arrived meanwhile.
    calls::receive(fd, Span { address: 0, length: 0 }, 0)?;
    Ok(arrived())
}
