//! Sends that leave together: SENDs, or SEND_ZCs that copy, of one submission, one behind the other on one connected
//! socket, go by one system call. Datagrams over UDP are taken apart again by the network (`UDP_SEGMENT`); over TCP
//! they are bytes of one stream, whatever call they came by.
//!
//! The first is held back where the next SQE is another one for its socket, and the rest with it. Whatever
//! else is to happen in the ring happens after them. Where they cannot go together, each goes alone.
//!
//! Of a stream, the call may take a part. Those that it took are done; the one in which it stopped goes on as if it had
//! been sent alone. Where that waits for room, the ones behind it do, too: none gets between its bytes.

use alloc::vec::Vec;
use core::mem;

use linux_raw_sys::general::EPOLLOUT;
use linux_raw_sys::io_uring::{IORING_RECVSEND_FIXED_BUF, IORING_SEND_ZC_REPORT_USAGE};
use linux_raw_sys::net::{IPPROTO_TCP, MSG_NOSIGNAL, MSG_WAITALL, SO_TIMESTAMPING, TCP_MAXSEG, cmsghdr};

use crate::abi::{Errno, Sqe};
use crate::assets::kinds::{self, Kind};
use crate::ops::net::message::empty_header;
use crate::ops::net::send::{go_on, transmit};
use crate::ops::net::{Data, calls, zero_copy};
use crate::ops::{Code, OpData, Outcome};
use crate::os::user::IoVector;
use crate::os::{self, Fd};
use crate::request::{FileHold, Flags, Request, RequestId};
use crate::ring::Core;

const SOL_UDP: u32 = 17;
const UDP_SEGMENT: u32 = 103;
/// As many the oldest kernels take.
const MOST: usize = 64;
/// What a SEND_ZC may ask for beside, in `ioprio`; no SEND gets here with it.
const NO_MATTER: u16 = (IORING_SEND_ZC_REPORT_USAGE | IORING_RECVSEND_FIXED_BUF) as u16;
/// What one packet may hold at most, headers of IP and its options left out. A stream that was given more at once came
/// to be slower than alone, where that just did not fit into one packet.
const ROOM: u32 = 65_000;
/// Two datagrams of it fit.
const LONGEST: u32 = ROOM / 2;
/// Fits the path nearly everywhere. Where the path is too narrow for a longer one, it goes in fragments, and
/// those of one that is many are not to be had.
const SHORT: u32 = 1200;

/// Held SENDs.
#[derive(Default)]
pub struct Train {
    held: Vec<RequestId>,
    fd: Fd,
    /// They are bytes of a stream, of any lengths. Otherwise they are datagrams, all of one length but the last, which
    /// may be shorter.
    stream: bool,
    length: u32,
    /// Bytes of all of them.
    total: u32,
    /// The last datagram was shorter.
    complete: bool,
    vectors: Vec<IoVector>,
}

impl Train {
    /// Is anything held back?
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn takes(&self, length: u32) -> bool {
        self.held.len() < MOST
            && length <= ROOM - self.total
            && (self.stream || !self.complete && length <= self.length)
    }

    /// The socket does not take datagrams of this length together, or none at all: it is not asked again.
    #[cold]
    fn remember_refusal(&self) {
        if self.length > SHORT {
            kinds::add(self.fd, Kind::SHORT_TRAINS);
        } else {
            kinds::take(self.fd, Kind::TRAINS);
        }
    }
}

/// The length of a SEND that may go together with others: nothing about it is out of the ordinary.
fn ordinary_length(request: &Request) -> Option<u32> {
    let OpData::Net(Data::Transfer(transfer)) = &request.data else { return None };
    // What is left over of a stream is each one's own affair, and a datagram leaves as a whole or not at all: they may
    // differ in `MSG_WAITALL`.
    let plain = Flags::of_sqe(request.sqe.flags & !1) == Flags::default()
        && !request.flags.has(Flags::FAILED_EARLY)
        && request.sqe.ioprio & !NO_MATTER == 0
        && request.sqe.personality == 0
        && transfer.progress.flags & !MSG_WAITALL == MSG_NOSIGNAL
        && transfer.to.is_none();
    (plain && (1..=longest(request.op.code)).contains(&transfer.length)).then_some(transfer.length)
}

/// What may go together with anything. Where SEND_ZC would copy anyway, it is a SEND with a notification behind it.
fn longest(code: u8) -> u32 {
    const SEND: u8 = Code::IORING_OP_SEND as u8;
    const SEND_ZC: u8 = Code::IORING_OP_SEND_ZC as u8;
    match code {
        SEND => ROOM,
        SEND_ZC => zero_copy::WORTH_IT as u32 - 1,
        _ => 0,
    }
}

/// May a send of this length go together with a next one of that, as far as is known?
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

/// Asks what sends a socket takes together.
#[cold]
fn ask(fd: Fd) -> Kind {
    // Of as many sends there are as many time stamps.
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

/// Is a socket a connection over TCP? A raw one has that protocol, too, but nothing that a segment is limited to.
fn is_stream(fd: Fd) -> bool {
    os::socket_option_at(fd, IPPROTO_TCP as u32, TCP_MAXSEG).is_ok()
}

/// Does a socket take datagrams together, and leave it to each send how?
fn takes_datagrams(fd: Fd) -> bool {
    os::socket_option_at(fd, SOL_UDP, UDP_SEGMENT) == Ok(0)
}

impl Core {
    /// May a request of this SQE begin a train, as far as is known?
    #[inline]
    pub fn may_begin_train(&self, sqe: &Sqe, fd: Fd) -> bool {
        sqe.len < ROOM
            && self
                .length_of_next_like(sqe)
                .is_some_and(|next| may_go_together(kinds::noted(fd), sqe.len, next))
    }

    /// Before a request starts that does not join those held back, they go.
    #[inline]
    pub fn let_train_go_before(&mut self, id: RequestId) {
        if !self.train.is_empty() && !self.joins_train(id) {
            self.let_train_go();
        }
    }

    fn joins_train(&self, id: RequestId) -> bool {
        let (request, train) = (&self.requests[id], &self.train);
        let head = &self.requests[train.held[0]].sqe;
        request.sqe.first_word() == head.first_word()
            && ordinary_length(request).is_some_and(|length| train.takes(length))
    }

    /// Holds a SEND back, if it joins others or the next SQE looks as if it would.
    pub fn is_held(&mut self, id: RequestId, fd: Fd) -> bool {
        if self.train.is_empty() && !self.begins_train(id, fd) {
            return false;
        }
        let Some(length) = ordinary_length(&self.requests[id]) else { return false };
        if self.train.held.try_reserve(1).is_err() {
            return false;
        }
        self.train.complete = length < self.train.length;
        self.train.total += length;
        self.train.held.push(id);
        true
    }

    fn begins_train(&mut self, id: RequestId, fd: Fd) -> bool {
        let request = &self.requests[id];
        let Some(next) = self.length_of_next_like(&request.sqe) else { return false };
        let Some(length) = ordinary_length(request) else { return false };
        if !kinds::noted(fd).has(Kind::TRAINS_ASKED) {
            kinds::add(fd, Kind::TRAINS_ASKED.with(ask(fd)));
        }
        let known = kinds::noted(fd);
        let train = &mut self.train;
        (train.fd, train.length, train.total) = (fd, length, 0);
        train.stream = known.has(Kind::STREAM_TRAINS);
        may_go_together(known, length, next)
    }

    /// Sends what is held back.
    pub fn let_train_go(&mut self) {
        let mut held = mem::take(&mut self.train.held);
        let mut sent = if held.len() > 1 { self.send_together(&held) } else { Ok(0) };
        let mut waits = false;
        for id in held.drain(..) {
            let outcome = self.end_of_held(id, &mut sent, waits);
            waits = matches!(outcome, Outcome::Wait(_));
            let notifies = self.requests[id].flags.has(Flags::NOTIFIES);
            let outcome = if notifies { zero_copy::announce_end(self, id, outcome) } else { outcome };
            self.settle(id, outcome);
        }
        // What waited for these may have begun another.
        if self.train.is_empty() {
            self.train.held = held;
        }
    }

    /// What came of one of those held back. `sent` is what the call for all of them has left for it and those behind
    /// it; the one before it may wait for room.
    fn end_of_held(&mut self, id: RequestId, sent: &mut Result<usize, Errno>, waits: bool) -> Outcome {
        let length = self.requests[id].transfer().length;
        let fd = self.requests[id].file.fd();
        match mem::replace(sent, Ok(0)) {
            Ok(count) if count >= length as usize => {
                *sent = Ok(count - length as usize);
                Outcome::Complete(length as i32)
            }
            Ok(0) if waits => Outcome::Wait(EPOLLOUT),
            Ok(0) => transmit(self, id, fd),
            result => go_on(self, id, fd, result),
        }
    }

    /// How many bytes left; none where each is to go alone. An error is the first one's.
    fn send_together(&mut self, held: &[RequestId]) -> Result<usize, Errno> {
        if !self.is_still_asked_one(held[0]) {
            kinds::take(self.train.fd, Kind::ALL_OF_TRAINS);
            return Ok(0);
        }
        let mut vectors = mem::take(&mut self.train.vectors);
        vectors.clear();
        let mut flags = 0;
        vectors.extend(held.iter().map(|&id| {
            let transfer = self.requests[id].transfer();
            flags |= transfer.progress.flags;
            IoVector { base: transfer.address, length: u64::from(transfer.length) }
        }));
        let sent = self.train.send(&mut vectors, flags);
        self.train.vectors = vectors;
        match sent {
            Err(errno) if is_of_first(errno) => Err(errno),
            Err(Errno::EMSGSIZE | Errno::EINVAL | Errno::EIO) if !self.train.stream => {
                self.train.remember_refusal();
                Ok(0)
            }
            sent => Ok(sent.unwrap_or(0)),
        }
    }

    /// Is the socket the one that was asked? The number of the program's may stand for another file by now.
    fn is_still_asked_one(&self, id: RequestId) -> bool {
        let Train { stream, fd, .. } = self.train;
        if !stream {
            return takes_datagrams(fd);
        }
        matches!(self.requests[id].file, FileHold::Fixed(..)) || is_stream(fd)
    }
}

impl Train {
    /// The one system call.
    fn send(&self, vectors: &mut [IoVector], flags: u32) -> Result<usize, Errno> {
        let control = Control {
            header: cmsghdr {
                cmsg_len: size_of::<cmsghdr>() + size_of::<u16>(),
                cmsg_level: SOL_UDP as _,
                cmsg_type: UDP_SEGMENT as _,
            },
            segment: self.length as u16,
        };
        let mut header = empty_header();
        header.msg_iov = vectors.as_mut_ptr().cast();
        header.msg_iovlen = vectors.len();
        if !self.stream {
            header.msg_control = (&raw const control).cast_mut().cast();
            header.msg_controllen = size_of::<Control>();
        }
        calls::send_message(self.fd, &header, flags)
    }
}

/// Errors that the first alone would have met: those of a socket without room, or of its connection, which may be told
/// only once. Others may be another's, as that of memory that is none.
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

/// The control message that gives the length of each datagram.
#[repr(C, align(8))]
struct Control {
    header: cmsghdr,
    segment: u16,
}
