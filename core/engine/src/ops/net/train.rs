//! Sends that leave together, a *train*: successive SENDs, or SEND_ZCs that copy, of one submission on one connected
//! socket are sent by one system call. The network splits datagrams over UDP again (`UDP_SEGMENT`); over TCP they
//! are bytes of one stream, however many calls sent them.
//!
//! The first send is held if the next SQE is another send on its socket, and so are the next ones
//! ([`crate::request::order::Train`]). If they cannot be sent together, each is sent alone.
//!
//! On a stream, the call may send a part of the data. Sends that were sent whole complete; the one in which the call stopped continues as
//! if it had been sent alone. If it waits for room, so do the sends behind it, so that no send gets between its bytes.

use core::mem;

use linux_raw_sys::general::EPOLLOUT;
use linux_raw_sys::net::{IPPROTO_TCP, SO_TIMESTAMPING, TCP_MAXSEG, cmsghdr};

use crate::abi::{Errno, Sqe};
use crate::assets::kinds::{self, Kind};
use crate::feature::zero_copy_send::ops;
use crate::ops::net::calls;
use crate::ops::net::send::{go_on, transmit};
use crate::os::user::IoVector;
use crate::os::{self, Fd};
use crate::request::data::net::empty_header;
use crate::request::order::{ROOM, Train};
use crate::request::{FileHold, Flags, RequestId};
use crate::ring::row::{Depart, Outcome};
use crate::ring::{Attempt, Core, Lent};

const SOL_UDP: u32 = 17;
const UDP_CORK: u32 = 1;
const UDP_SEGMENT: u32 = 103;
/// The maximal length of a datagram, of which a train has room for two.
const LONGEST: u32 = ROOM / 2;
/// The length of a datagram that fits the path nearly everywhere. On a narrower path a longer datagram is
/// fragmented, which is impossible for a train.
const SHORT: u32 = 1200;

/// The function that sends a train of SENDs, or of SEND_ZCs that would be copied anyway: these are SENDs with notifications.
pub const DEPART: Depart = depart;

/// Notes that the socket refused a train of datagrams of this length, or any train: it is not tried again.
#[cold]
fn remember_refusal(train: &Train) {
    if train.length() > SHORT {
        kinds::add(train.fd(), Kind::SHORT_TRAINS);
    } else {
        kinds::take(train.fd(), Kind::TRAINS);
    }
}

/// True if a send of this length may be followed in a train by one of length `next`, as far as is known.
fn may_go_together(known: Kind, length: u32, next: u32) -> bool {
    if length.saturating_add(next) > ROOM {
        return false;
    }
    if !known.has(Kind::TRAINS_ASKED) || known.has(Kind::STREAM_TRAINS) {
        return true;
    }
    let short = length <= SHORT || !known.has(Kind::SHORT_TRAINS);
    known.has(Kind::TRAINS) && next <= length && length <= LONGEST && short
}

/// Finds out which trains a socket supports.
#[cold]
fn ask(fd: Fd) -> Kind {
    // Each send must have a time stamp of its own.
    if os::socket_option(fd, SO_TIMESTAMPING) != Ok(0) {
        return Kind::default();
    }
    if kinds::noted(fd).has(Kind::TCP) || is_stream(fd) {
        Kind::STREAM_TRAINS
    } else if takes_datagrams(fd) {
        Kind::TRAINS
    } else {
        Kind::default()
    }
}

/// True if a socket is a TCP connection. A raw socket may have this protocol, too, but no maximal segment size.
fn is_stream(fd: Fd) -> bool {
    os::socket_option_at(fd, IPPROTO_TCP as u32, TCP_MAXSEG).is_ok()
}

/// True if a socket supports trains of datagrams, and the program has not set a segment size.
fn takes_datagrams(fd: Fd) -> bool {
    os::socket_option_at(fd, SOL_UDP, UDP_SEGMENT) == Ok(0)
}

impl Lent {
    /// True if a request of this SQE may begin a train, as far as is known.
    #[inline]
    pub fn may_begin_train(&self, sqe: &Sqe, fd: Fd) -> bool {
        sqe.len < ROOM
            && self
                .length_of_next_like(sqe)
                .is_some_and(|next| may_go_together(kinds::noted(fd), sqe.len, next))
    }
}

impl Attempt<'_> {
    /// Holds a SEND if it joins a train, or the next SQE seems to follow it in one. Returns whether it is held.
    pub fn hold_in_train(&mut self, fd: Fd) -> bool {
        if self.ring.train().is_empty() && !self.begins_train(fd) {
            return false;
        }
        let (id, length) = (self.id(), self.length_in_train());
        length.is_some_and(|length| self.ring.train_mut().hold(id, length))
    }

    fn begins_train(&mut self, fd: Fd) -> bool {
        let Some(next) = self.ring.length_of_next_like(&self.sqe) else { return false };
        let Some(length) = self.length_in_train() else { return false };
        if !kinds::noted(fd).has(Kind::TRAINS_ASKED) {
            kinds::add(fd, Kind::TRAINS_ASKED.with(ask(fd)));
        }
        let known = kinds::noted(fd);
        self.ring.train_mut().prepare(fd, known.has(Kind::STREAM_TRAINS), length);
        may_go_together(known, length, next)
    }
}

/// Sends the held requests.
fn depart(core: &mut Core, held: &[RequestId]) {
    let alone = count_alone(core, held);
    let mut sent = Ok(0);
    let mut waits = false;
    for (place, &id) in held.iter().enumerate() {
        if place == alone && !waits {
            sent = send_together(core, &held[alone..]);
        }
        let outcome = end_of_held(&mut core.attempt(id), &mut sent, waits);
        waits = matches!(outcome, Outcome::Wait(_));
        let notifies = core[id].flags.has(Flags::NOTIFIES);
        let outcome = if notifies { ops::announce_end(&mut core.attempt(id), outcome) } else { outcome };
        core.settle(id, outcome);
    }
}

/// Returns the outcome of one held request. `sent` is the number of bytes of the train's call that are left
/// for it and those behind it; `waits` says that the request before it waits for room.
fn end_of_held(cx: &mut Attempt<'_>, sent: &mut Result<usize, Errno>, waits: bool) -> Outcome {
    let length = cx.transfer().length;
    let fd = cx.file.fd();
    match mem::replace(sent, Ok(0)) {
        Ok(count) if count >= length as usize => {
            *sent = Ok(count - length as usize);
            Outcome::Complete(length as i32)
        }
        Ok(0) if waits => Outcome::Wait(EPOLLOUT),
        Ok(0) => transmit(cx, fd),
        result => go_on(cx, fd, result),
    }
}

/// Returns how many of the first requests are sent alone.
///
/// A datagram is appended to what the socket holds back (`MSG_MORE`), and a train would be, too, as a whole. What is held back leaves with the
/// first datagram, unless the socket is corked.
fn count_alone(core: &Core, held: &[RequestId]) -> usize {
    let all = held.len();
    if all == 1 {
        return all;
    }
    let fd = core.order().train.fd();
    if !is_still_asked_one(core, held[0]) {
        kinds::take(fd, Kind::ALL_OF_TRAINS);
        return all;
    }
    if core.order().train.is_stream() {
        return 0;
    }
    if os::socket_option_at(fd, SOL_UDP, UDP_CORK) != Ok(0) {
        return all;
    }
    // Also what has left, but not this machine: whether anything is held back cannot be asked.
    let first = usize::from(os::unsent(fd) != Ok(0));
    if all - first > 1 { first } else { all }
}

/// Returns the number of bytes sent, 0 if each request must be sent alone. An error is that of the first request.
fn send_together(core: &mut Core, held: &[RequestId]) -> Result<usize, Errno> {
    let mut vectors = core.order_mut().train.take_vectors();
    let mut flags = 0;
    vectors.extend(held.iter().map(|&id| {
        let transfer = core[id].transfer();
        flags |= transfer.progress.flags;
        IoVector { base: transfer.address, length: u64::from(transfer.length) }
    }));
    let sent = send(&core.order().train, &mut vectors, flags);
    core.order_mut().train.keep_vectors(vectors);
    match sent {
        Err(errno) if is_of_first(errno) => Err(errno),
        Err(Errno::EMSGSIZE | Errno::EINVAL | Errno::EIO) if !core.order().train.is_stream() => {
            remember_refusal(&core.order().train);
            Ok(0)
        }
        sent => Ok(sent.unwrap_or(0)),
    }
}

/// True if the socket still supports the train: the program's descriptor may refer to another file by now.
fn is_still_asked_one(core: &Core, id: RequestId) -> bool {
    let fd = core.order().train.fd();
    if !core.order().train.is_stream() {
        return takes_datagrams(fd);
    }
    matches!(core[id].file, FileHold::Fixed(..)) || is_stream(fd)
}

/// Makes the train's system call.
fn send(train: &Train, vectors: &mut [IoVector], flags: u32) -> Result<usize, Errno> {
    let control = Control {
        header: cmsghdr {
            cmsg_len: size_of::<cmsghdr>() + size_of::<u16>(),
            cmsg_level: SOL_UDP as _,
            cmsg_type: UDP_SEGMENT as _,
        },
        segment: train.length() as u16,
    };
    let mut header = empty_header();
    header.msg_iov = vectors.as_mut_ptr().cast();
    header.msg_iovlen = vectors.len();
    if !train.is_stream() {
        header.msg_control = (&raw const control).cast_mut().cast();
        header.msg_controllen = size_of::<Control>();
    }
    calls::send_message(train.fd(), &header, flags)
}

/// True for errors that the first send alone would have met: those of a socket without room, or of its connection,
/// which may be reported only once. Other errors may be those of a later send, as that of invalid memory.
fn is_of_first(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EAGAIN
            | Errno::EPIPE
            | Errno::ECONNRESET
            | Errno::ECONNABORTED
            | Errno::ETIMEDOUT
            | Errno::ECONNREFUSED
            | Errno::EHOSTUNREACH
            | Errno::ENETUNREACH
    )
}

/// The control message with the length of each datagram.
#[repr(C, align(8))]
struct Control {
    header: cmsghdr,
    segment: u16,
}
