//! A *train*: sends of one submission, one behind the other on one socket, that are held back to leave together by one system call. How
//! they are sent is defined by their operation ([`Depart`](crate::ring::row::Depart)). All other actions of the ring happen after them.

mod depart;

use alloc::vec::Vec;
use core::mem;

use linux_raw_sys::io_uring::{IORING_RECVSEND_FIXED_BUF, IORING_SEND_ZC_REPORT_USAGE};

use crate::os::Fd;
use crate::os::user::IoVector;
use crate::request::RequestId;

/// Maximum number of requests in a train: the limit of the oldest kernels.
const MOST: usize = 64;

/// Maximum number of bytes in a train: what one packet may hold without IP headers and options. A stream
/// that got slightly more in one call was slower than with single sends.
pub const ROOM: u32 = 65_000;

/// Flags in `ioprio` that a SEND_ZC may have; no SEND that gets here has any.
const NO_MATTER: u16 = (IORING_SEND_ZC_REPORT_USAGE | IORING_RECVSEND_FIXED_BUF) as u16;

/// The held requests.
#[derive(Default)]
pub struct Train {
    held: Vec<RequestId>,
    fd: Fd,
    /// The requests are bytes of a stream, of any length. Otherwise they are datagrams of one length, of
    /// which only the last may be shorter.
    stream: bool,
    length: u32,
    /// Sum of their lengths in bytes.
    total: u32,
    /// The last datagram was shorter, so no other may follow.
    complete: bool,
    /// Memory that is reused for the next train.
    vectors: Vec<IoVector>,
}

impl Train {
    /// True if no request is held back.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the socket of the held requests, or of the last ones.
    pub fn fd(&self) -> Fd {
        self.fd
    }

    /// True if the held requests are bytes of a stream.
    pub fn is_stream(&self) -> bool {
        self.stream
    }

    /// Returns the length of each datagram; only the last may be shorter.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Prepares a train for this socket; `length` is that of its datagrams.
    pub fn prepare(&mut self, fd: Fd, stream: bool, length: u32) {
        debug_assert!(self.is_empty(), "one at a time");
        (self.fd, self.stream, self.length, self.total) = (fd, stream, length, 0);
    }

    /// Holds back a request of this length. False if memory is short.
    pub fn hold(&mut self, id: RequestId, length: u32) -> bool {
        if self.held.try_reserve(1).is_err() {
            return false;
        }
        self.complete = length < self.length;
        self.total += length;
        self.held.push(id);
        true
    }

    /// Returns empty memory for the vectors of the system call.
    pub fn take_vectors(&mut self) -> Vec<IoVector> {
        let mut vectors = mem::take(&mut self.vectors);
        vectors.clear();
        vectors
    }

    /// Keeps the memory for the next train.
    pub fn keep_vectors(&mut self, vectors: Vec<IoVector>) {
        self.vectors = vectors;
    }

    fn takes(&self, length: u32) -> bool {
        self.held.len() < MOST
            && length <= ROOM - self.total
            && (self.stream || !self.complete && length <= self.length)
    }
}
