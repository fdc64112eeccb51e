//! Requests of one submission that are held back to leave together, by one system call: sends, one behind the other on
//! one socket. How they are sent is their operation's affair ([`Depart`](crate::ring::row::Depart)); whatever else is to happen in the ring
//! happens after them.

mod depart;

use alloc::vec::Vec;
use core::mem;

use linux_raw_sys::io_uring::{IORING_RECVSEND_FIXED_BUF, IORING_SEND_ZC_REPORT_USAGE};

use crate::os::Fd;
use crate::os::user::IoVector;
use crate::request::RequestId;

/// As many the oldest kernels take.
const MOST: usize = 64;

/// The most bytes that one packet may hold, headers of IP and its options left out. A stream that was given
/// more at once came to be slower than alone, where that just did not fit into one packet.
pub const ROOM: u32 = 65_000;

/// The flags in `ioprio` that a SEND_ZC may set beside; no SEND gets here with them.
const NO_MATTER: u16 = (IORING_SEND_ZC_REPORT_USAGE | IORING_RECVSEND_FIXED_BUF) as u16;

/// Held requests.
#[derive(Default)]
pub struct Train {
    held: Vec<RequestId>,
    fd: Fd,
    /// The requests are bytes of a stream, of any lengths. Otherwise they are datagrams, all of one length
    /// but the last, which may be shorter.
    stream: bool,
    length: u32,
    /// Bytes of all of them.
    total: u32,
    /// The last datagram was shorter.
    complete: bool,
    /// Memory to be used again.
    vectors: Vec<IoVector>,
}

impl Train {
    /// True if nothing is held back.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The socket of those that are held, or were held last.
    pub fn fd(&self) -> Fd {
        self.fd
    }

    /// True if the held requests are bytes of a stream.
    pub fn is_stream(&self) -> bool {
        self.stream
    }

    /// The length of a datagram, the last perhaps excepted.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Prepares another train, of such requests.
    pub fn prepare(&mut self, fd: Fd, stream: bool, length: u32) {
        debug_assert!(self.is_empty(), "one at a time");
        (self.fd, self.stream, self.length, self.total) = (fd, stream, length, 0);
    }

    /// Holds a request of this length back. False where there is no memory for it.
    pub fn hold(&mut self, id: RequestId, length: u32) -> bool {
        if self.held.try_reserve(1).is_err() {
            return false;
        }
        self.complete = length < self.length;
        self.total += length;
        self.held.push(id);
        true
    }

    /// Memory for the vectors of the one system call, empty.
    pub fn take_vectors(&mut self) -> Vec<IoVector> {
        let mut vectors = mem::take(&mut self.vectors);
        vectors.clear();
        vectors
    }

    /// Keeps that memory for the next one.
    pub fn keep_vectors(&mut self, vectors: Vec<IoVector>) {
        self.vectors = vectors;
    }

    fn takes(&self, length: u32) -> bool {
        self.held.len() < MOST
            && length <= ROOM - self.total
            && (self.stream || !self.complete && length <= self.length)
    }
}
