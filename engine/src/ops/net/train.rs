//! Datagrams that leave together: SENDs, or SEND_ZCs, of one submission, one behind the other on one connected UDP
//! socket, go by one system call (`UDP_SEGMENT`), which the network takes apart again.
//!
//! The first is held back where the next SQE is another one for its socket, and the rest with it. Whatever
//! else is to happen in the ring happens after them. Where they cannot go together, each goes alone.

use alloc::vec::Vec;
use core::mem;

use linux_raw_sys::io_uring::{IORING_RECVSEND_FIXED_BUF, IORING_SEND_ZC_REPORT_USAGE};
use linux_raw_sys::net::{MSG_NOSIGNAL, MSG_WAITALL, cmsghdr};

use super::message::empty_header;
use super::send::transmit;
use super::{Data, calls, ended, zero_copy};
use crate::errno::Errno;
use crate::memory::Sqe;
use crate::ops::{Code, OpData, Outcome};
use crate::request::{Flags, Request, RequestId};
use crate::resources::kinds::{self, Kind};
use crate::ring::Core;
use crate::sys::{self, Fd};
use crate::user::IoVector;

const SOL_UDP: u32 = 17;
const UDP_SEGMENT: u32 = 103;
/// As many the oldest kernels take.
const MOST: usize = 64;
/// Where SEND_ZC would copy anyway, it is a SEND with a notification behind it.
const OPERATIONS: [u8; 2] = [Code::IORING_OP_SEND as u8, Code::IORING_OP_SEND_ZC as u8];
/// What a SEND_ZC may ask for beside, in `ioprio`; no SEND gets here with it.
const NO_MATTER: u16 = (IORING_SEND_ZC_REPORT_USAGE | IORING_RECVSEND_FIXED_BUF) as u16;
/// What a datagram may hold, headers of IP and its options left out: together they leave as one.
const ROOM: u32 = 65_000;
/// Two of them fit.
const LONGEST: u32 = ROOM / 2;
/// Fits the path nearly everywhere. Where the path is too narrow for a longer one, it goes in fragments, and
/// those of one that is many are not to be had.
const SHORT: u32 = 1200;

/// Held SENDs, all of one length but the last, which may be shorter.
#[derive(Default)]
pub struct Train {
    held: Vec<RequestId>,
    fd: Fd,
    length: u32,
    /// Bytes of all of them.
    total: u32,
    /// The last one was shorter.
    complete: bool,
    vectors: Vec<IoVector>,
}

impl Train {
    /// Is anything held back?
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
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
    // A datagram leaves as a whole or not at all, whatever `MSG_WAITALL` says.
    let plain = OPERATIONS.contains(&request.op.code)
        && Flags::of_sqe(request.sqe.flags & !1) == Flags::default()
        && !request.flags.has(Flags::FAILED_EARLY)
        && request.sqe.ioprio & !NO_MATTER == 0
        && request.sqe.personality == 0
        && transfer.progress.flags & !MSG_WAITALL == MSG_NOSIGNAL
        && transfer.to.is_none();
    (plain && (1..=LONGEST).contains(&transfer.length)).then_some(transfer.length)
}

/// May datagrams of this length go together, as far as is known?
fn may_go_together(known: Kind, length: u32) -> bool {
    if !known.has(Kind::TRAINS_ASKED) {
        return true;
    }
    known.has(Kind::TRAINS) && (length <= SHORT || !known.has(Kind::SHORT_TRAINS))
}

/// Does a socket take datagrams together, and leave it to each send how?
fn takes_trains(fd: Fd) -> bool {
    sys::socket_option_at(fd, SOL_UDP, UDP_SEGMENT) == Ok(0)
}

impl Core {
    /// May a request of this SQE begin a train, as far as is known?
    #[inline]
    pub fn may_begin_train(&self, sqe: &Sqe, fd: Fd) -> bool {
        sqe.len <= LONGEST && self.next_sqe_is_like(sqe) && may_go_together(kinds::noted(fd), sqe.len)
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
        !train.complete
            && train.held.len() < MOST
            && request.sqe.first_word() == head.first_word()
            && ordinary_length(request)
                .is_some_and(|length| length <= train.length && length <= ROOM - train.total)
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
        if !self.next_sqe_is_like(&self.requests[id].sqe) {
            return false;
        }
        let Some(length) = ordinary_length(&self.requests[id]) else { return false };
        let known = kinds::noted(fd);
        if !known.has(Kind::TRAINS_ASKED) {
            let found = if takes_trains(fd) { Kind::TRAINS } else { Kind::default() };
            kinds::add(fd, Kind::TRAINS_ASKED.with(found));
        }
        (self.train.fd, self.train.length, self.train.total) = (fd, length, 0);
        may_go_together(kinds::noted(fd), length)
    }

    /// Sends what is held back.
    pub fn let_train_go(&mut self) {
        let mut held = mem::take(&mut self.train.held);
        let sent = if held.len() > 1 { self.send_together(&held) } else { Sent::Nothing };
        for (place, id) in held.drain(..).enumerate() {
            let outcome = match sent {
                Sent::All => Outcome::Complete(self.requests[id].transfer().length as i32),
                Sent::Failed(errno) if place == 0 => ended(self, id, errno),
                _ => {
                    let fd = self.requests[id].file.fd();
                    transmit(self, id, fd)
                }
            };
            let notifies = self.requests[id].flags.has(Flags::NOTIFIES);
            let outcome = if notifies { zero_copy::announce_end(self, id, outcome) } else { outcome };
            self.settle(id, outcome);
        }
        self.train.held = held;
    }

    fn send_together(&mut self, held: &[RequestId]) -> Sent {
        // The number may stand for another file than the one that was asked.
        if !takes_trains(self.train.fd) {
            return Sent::Nothing;
        }
        let mut vectors = mem::take(&mut self.train.vectors);
        vectors.clear();
        vectors.extend(held.iter().map(|&id| {
            let transfer = self.requests[id].transfer();
            IoVector { base: transfer.address, length: u64::from(transfer.length) }
        }));
        let control = Control {
            header: cmsghdr {
                cmsg_len: size_of::<cmsghdr>() + size_of::<u16>(),
                cmsg_level: SOL_UDP as _,
                cmsg_type: UDP_SEGMENT as _,
            },
            segment: self.train.length as u16,
        };
        let mut header = empty_header();
        header.msg_iov = vectors.as_mut_ptr().cast();
        header.msg_iovlen = vectors.len();
        header.msg_control = (&raw const control).cast_mut().cast();
        header.msg_controllen = size_of::<Control>();
        let sent = calls::send_message(self.train.fd, &header, MSG_NOSIGNAL);
        self.train.vectors = vectors;
        match sent {
            Ok(count) if count == self.train.total as usize => Sent::All,
            Err(errno) if is_pending(errno) => Sent::Failed(errno),
            Err(Errno::EMSGSIZE | Errno::EINVAL | Errno::EIO) => {
                self.train.remember_refusal();
                Sent::Nothing
            }
            _ => Sent::Nothing,
        }
    }
}

/// What came of sending together.
#[derive(Clone, Copy)]
enum Sent {
    /// All of them left.
    All,
    /// None left: each has to go alone.
    Nothing,
    /// None left, and the socket gave away an error that the first alone would have met.
    Failed(Errno),
}

/// Errors that an earlier datagram brought about, and that are told once.
fn is_pending(errno: Errno) -> bool {
    matches!(errno, Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH)
}

/// The control message that gives the length of each datagram.
#[repr(C, align(8))]
struct Control {
    header: cmsghdr,
    segment: u16,
}
