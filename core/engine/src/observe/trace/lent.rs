//! The program's memory that a request uses, remembered from submission to completion.
//!
//! A program may change vectors and message headers as soon as a request is submitted, so their targets are kept here. Data that a
//! request writes or sends must not change until the request completes: it is summed when the request begins and again when it
//! completes. For memory that a request fills, only its presence is checked, because the program's writes cannot be told from the
//! request's.

use anyring_trace::event::{CHANGED, FREED, SUMMED_BYTES, UNMAPPED};
use linux_raw_sys::io_uring::IORING_RECV_MULTISHOT;
use linux_raw_sys::net::msghdr;

use crate::abi::{IOSQE_BUFFER_SELECT, Sqe};
use crate::os::host::{self, Checker, RequestMemory};
use crate::os::user::{self, IoVector};
use crate::request::field::Field;
use crate::request::op::Op;
use crate::request::shown::Kind;

/// The number of pieces of a request's memory that are remembered; others are not checked.
const MOST_PIECES: usize = 8;
/// The number of spots of a long piece that are summed.
const SPOTS: usize = 4;

/// The state of a request's memory when the request began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The memory was not checked, because it may still change.
    Unknown,
    /// Not all of the memory could be read.
    Gone,
    /// The sum of the data; 0 if the request fills the memory.
    There(u64),
}

/// Memory of one request.
#[derive(Clone, Copy)]
pub struct Lent {
    pieces: [IoVector; MOST_PIECES],
    count: usize,
    /// The request fills the memory, and does not read it.
    is_filled: bool,
    state: State,
    /// The provided buffer that the request used last; 0 for none.
    buffer: u64,
    /// For a multishot RECVMSG: the room for the address and for control messages in each buffer.
    reserved: Option<[u64; 2]>,
    /// The number that a checker of memory has given the request, 0 for none.
    checked: usize,
    /// The request may have had to wait for others, for a checker.
    may_wait: bool,
}

impl Lent {
    /// No memory.
    pub const NONE: Lent = Lent {
        pieces: [IoVector { base: 0, length: 0 }; MOST_PIECES],
        count: 0,
        is_filled: false,
        state: State::Unknown,
        buffer: 0,
        reserved: None,
        checked: 0,
        may_wait: false,
    };

    /// Collects the memory that a request names.
    pub fn of(op: &Op, sqe: &Sqe) -> Lent {
        let mut lent = Lent::NONE;
        for argument in op.arguments.iter().filter(|argument| argument.applies(sqe)) {
            lent.add(argument.kind, argument.field.value(sqe), |field| field.value(sqe));
        }
        // If the buffer is still to be selected, the vector contains its length only.
        if lent.is_filled && u32::from(sqe.flags) & IOSQE_BUFFER_SELECT != 0 {
            lent.count = 0;
        }
        if u32::from(sqe.ioprio) & IORING_RECV_MULTISHOT == 0 {
            lent.reserved = None;
        }
        lent
    }

    fn add(&mut self, kind: Kind, address: u64, value: impl Fn(Field) -> u64) {
        match kind {
            Kind::Data(length) => self.add_piece(address, value(length)),
            Kind::Vectors(count) => self.add_vectors(address, value(count)),
            Kind::Message => self.add_message(address),
            Kind::Filled => {
                self.is_filled = true;
                self.add_piece(address, value(Field::Length));
            }
            Kind::VectorsFilled(count) => {
                self.is_filled = true;
                self.add_vectors(address, value(count));
            }
            Kind::MessageFilled => {
                self.is_filled = true;
                self.add_message(address);
            }
            _ => {}
        }
    }

    fn add_piece(&mut self, base: u64, length: u64) {
        if self.count < MOST_PIECES {
            self.pieces[self.count] = IoVector { base, length };
            self.count += 1;
        }
    }

    fn add_vectors(&mut self, address: u64, count: u64) {
        for index in 0..count.min(MOST_PIECES as u64) {
            let at = address.wrapping_add(index * size_of::<IoVector>() as u64);
            let Ok(IoVector { base, length }) = user::read(at) else { return };
            self.add_piece(base, length);
        }
    }

    fn add_message(&mut self, address: u64) {
        let Ok(header) = user::read::<msghdr>(address) else { return };
        self.reserved = Some([header.msg_namelen.max(0) as u64, header.msg_controllen as u64]);
        self.add_vectors(header.msg_iov as u64, header.msg_iovlen as u64);
    }

    /// True if this differs from [`Lent::NONE`].
    pub fn says_something(&self) -> bool {
        self.count > 0 || self.is_filled || self.buffer != 0 || self.reserved.is_some()
    }

    /// True if no memory is remembered.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the pieces, in order.
    pub fn pieces(&self) -> &[IoVector] {
        &self.pieces[..self.count]
    }

    /// Sums the data when the request begins: it must not change from now on.
    pub fn begin(&mut self) {
        self.state = self.look();
    }

    /// Tells a checker that the memory is in use by the request that `memory` describes.
    pub fn tell_begin(&mut self, checker: &dyn Checker, memory: &RequestMemory<'_>) {
        if self.count > 0 {
            self.may_wait = memory.may_wait;
            self.checked = checker.begins(&self.described(memory));
        }
    }

    /// Tells a checker that the request has given the memory back.
    pub fn tell_end(&self, checker: &dyn Checker, memory: &RequestMemory<'_>) {
        if self.checked != 0 {
            checker.ends(self.checked, &self.described(memory));
        }
    }

    /// Tells a checker that the request ends without a completion.
    pub fn tell_drop(&self, checker: &dyn Checker) {
        if self.checked != 0 {
            checker.drops(self.checked);
        }
    }

    fn described<'a>(&'a self, memory: &RequestMemory<'a>) -> RequestMemory<'a> {
        let (is_filled, may_wait) = (self.is_filled, self.may_wait);
        RequestMemory { pieces: self.pieces(), is_filled, may_wait, ..*memory }
    }

    /// Marks the memory as unknown, because requests before this one may change it.
    pub fn may_change(&mut self) {
        self.state = State::Unknown;
    }

    /// Returns marks if the memory differs from that at the request's begin: [`CHANGED`], [`UNMAPPED`], [`FREED`].
    pub fn marks(&self) -> u32 {
        let is_poisoned = |piece: &IoVector| host::is_poisoned(piece.base as usize, piece.length as usize);
        let is_used = self.state != State::Unknown;
        if is_used && self.pieces().iter().filter(|piece| piece.length > 0).any(is_poisoned) {
            return FREED;
        }
        let State::There(sum) = self.state else { return 0 };
        match self.look() {
            State::There(now) if now == sum => 0,
            State::There(_) => CHANGED,
            _ => UNMAPPED,
        }
    }

    /// Notes that the request uses this provided buffer.
    pub fn takes(&mut self, buffer: u64) {
        self.buffer = buffer;
    }

    /// Returns the provided buffer that the request used last.
    pub fn buffer(&self) -> Option<u64> {
        (self.buffer != 0).then_some(self.buffer)
    }

    /// Returns, for a multishot RECVMSG, the room for the address and for control messages in each buffer.
    pub fn reserved(&self) -> Option<[u64; 2]> {
        self.reserved
    }

    fn look(&self) -> State {
        let mut sum = Sum::default();
        let there = self.pieces().iter().filter(|piece| piece.length > 0).all(|piece| {
            if self.is_filled { is_there(piece) } else { sum.add(piece, SUMMED_BYTES / self.count) }
        });
        if there { State::There(sum.0) } else { State::Gone }
    }
}

/// True if the first and the last byte of a piece can be read.
fn is_there(piece: &IoVector) -> bool {
    let last = piece.base.wrapping_add(piece.length - 1);
    [piece.base, last].into_iter().all(|address| user::read::<u8>(address).is_ok())
}

/// A checksum in which every word counts.
#[derive(Default)]
struct Sum(u64);

impl Sum {
    /// Adds `most` bytes of a piece: all of it, or spots from its beginning to its end. False if they could not be read.
    fn add(&mut self, piece: &IoVector, most: usize) -> bool {
        if piece.length <= most as u64 {
            return self.add_bytes(piece.base, piece.length as usize);
        }
        let spot = most / SPOTS;
        let step = (piece.length - spot as u64) / (SPOTS as u64 - 1);
        (0..SPOTS as u64).all(|number| self.add_bytes(piece.base.wrapping_add(number * step), spot))
    }

    fn add_bytes(&mut self, address: u64, length: usize) -> bool {
        const LANES: usize = 4;
        const LANE: usize = size_of::<u64>();
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut bytes = [0; SUMMED_BYTES];
        let is_there = user::read_bytes(address, &mut bytes[..length]).is_ok();
        let mut lanes = [self.0, 1, 2, 3];
        for chunk in bytes[..length.next_multiple_of(LANES * LANE)].chunks_exact(LANES * LANE) {
            for (lane, word) in lanes.iter_mut().zip(chunk.chunks_exact(LANE)) {
                let word = word.try_into().map_or(0, u64::from_ne_bytes);
                *lane = (*lane ^ word).wrapping_mul(ODD).rotate_left(29);
            }
        }
        self.0 = lanes.iter().fold(length as u64, |sum, lane| (sum ^ lane).wrapping_mul(ODD).rotate_left(29));
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent(pieces: &[&[u8]]) -> Lent {
        let mut lent = Lent::NONE;
        pieces.iter().for_each(|piece| lent.add_piece(piece.as_ptr() as u64, piece.len() as u64));
        lent.begin();
        lent
    }

    #[test]
    fn any_byte_of_short_memory_counts() {
        let (mut first, second) = ([7_u8; 300], [9_u8; 33]);
        for at in 0..first.len() {
            let before = lent(&[&first, &second]);
            assert_eq!(before.marks(), 0);
            first[at] ^= 1;
            assert_eq!(before.marks(), CHANGED, "{at}");
        }
    }

    #[test]
    fn long_memory_counts_at_its_beginning_and_its_end() {
        let mut bytes = alloc::vec![1_u8; 100_000];
        for at in [0, 255, 99_744, 99_999] {
            let before = lent(&[&bytes]);
            bytes[at] ^= 1;
            assert_eq!(before.marks(), CHANGED, "{at}");
        }
        let before = lent(&[&bytes]);
        bytes.fill(2);
        assert_eq!(before.marks(), CHANGED);
    }

    #[test]
    fn what_was_never_looked_at_or_never_there_says_nothing() {
        let mut bytes = [1_u8; 8];
        let mut before = lent(&[&bytes]);
        before.state = State::Unknown;
        bytes.fill(2);
        assert_eq!(before.marks(), 0);
        let mut nowhere = Lent::NONE;
        nowhere.add_piece(8, 8);
        nowhere.begin();
        assert_eq!((nowhere.state, nowhere.marks()), (State::Gone, 0));
    }
}
