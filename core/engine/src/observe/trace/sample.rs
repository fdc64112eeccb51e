//! The program's memory that is attached to an event, as the arguments of the operation describe it.

use core::mem::MaybeUninit;

use anyring_trace::buffer::MOST_BYTES;
use anyring_trace::event::{Attachment, Content, Head, padded};
use linux_raw_sys::io_uring::IORING_CQE_F_BUFFER;
use linux_raw_sys::net::msghdr;

use crate::abi::Sqe;
use crate::observe::trace::lent::Lent;
use crate::os::user::{self, IoVector};
use crate::queue::Cqe;
use crate::request::field::Field;
use crate::request::op::Op;
use crate::request::shown::Kind;

/// A piece of memory to attach.
#[derive(Clone, Copy)]
pub struct Sample {
    /// The address of the memory.
    pub address: u64,
    /// The length of the whole memory in bytes.
    pub length: u64,
    /// The length of the attached part.
    pub kept: usize,
    /// The kind of its content.
    pub content: Content,
    /// The index among the event's samples of this kind.
    pub index: u16,
}

/// The size of a descriptor in the program's memory, in bytes.
const DESCRIPTOR: u32 = size_of::<i32>() as u32;
/// The maximal number of samples of one event.
const MOST: usize = 24;
/// The maximal number of attached entries of a list.
const MOST_OF_LIST: usize = 8;
/// The maximal number of attached bytes of a path.
const MOST_OF_PATH: usize = 4096;
/// The maximal number of attached bytes of a socket address: `struct sockaddr_storage`.
const MOST_OF_ADDRESS: usize = 128;
/// The maximal number of attached bytes of control messages.
const MOST_OF_CONTROL: usize = 256;

// A record has room for the longest samples.
const _: () =
    assert!(2 * MOST_OF_PATH + MOST * (size_of::<Attachment>() + 1024) < MOST_BYTES - size_of::<Head>());

/// All samples of an event.
pub struct Samples {
    /// The first `count` are initialized. The others are not written, because most events have no samples.
    list: [MaybeUninit<Sample>; MOST],
    count: usize,
    /// The number of data bytes that may still be added.
    data: usize,
}

impl Samples {
    /// No samples.
    pub const NONE: Samples = Samples::with_data(0);

    /// Makes an empty list that may get at most `data` bytes of data.
    const fn with_data(data: usize) -> Samples {
        Samples { list: [const { MaybeUninit::uninit() }; MOST], count: 0, data }
    }

    /// Samples a program's path and arguments.
    pub fn of_program(program: &[u8], arguments: &[u8]) -> Samples {
        let mut samples = Samples::NONE;
        for (content, bytes) in [(Content::Path, program), (Content::Text, arguments)] {
            let kept = bytes.len().min(MOST_OF_PATH);
            samples.add(content, 0, bytes.as_ptr() as u64, bytes.len() as u64, kept);
        }
        samples
    }

    /// Samples a name.
    pub fn of_name(name: &[u8]) -> Samples {
        let mut samples = Samples::NONE;
        samples.add(Content::Path, 0, name.as_ptr() as u64, name.len() as u64, name.len());
        samples
    }

    /// Samples `count` `struct iovec`s.
    pub fn of_vectors(address: u64, count: u64) -> Samples {
        let mut samples = Samples::NONE;
        samples.add_vectors(address, count);
        samples
    }

    /// Samples an array of `count` structures of `bytes` bytes each.
    pub fn of_structures(address: u64, bytes: u32, count: u64) -> Samples {
        let mut samples = Samples::NONE;
        samples.add_structures(address, bytes, count);
        samples
    }

    /// Samples a submission: paths, addresses, and at most `data` bytes of the data that it writes.
    pub fn of_submission(op: &Op, sqe: &Sqe, lent: &Lent, data: usize) -> Samples {
        let mut samples = Samples::with_data(data);
        for argument in op.arguments.iter().filter(|argument| argument.applies(sqe)) {
            samples.submit(argument.kind, argument.field.value(sqe), lent, |field: Field| field.value(sqe));
        }
        samples
    }

    /// Samples a completion: at most `data` bytes of the data that the request has filled.
    pub fn of_completion(op: &Op, sqe: &Sqe, lent: &Lent, cqe: &Cqe, data: usize) -> Samples {
        let mut samples = Samples::with_data(data);
        if cqe.res >= 0 {
            for argument in op.arguments.iter().filter(|argument| argument.applies(sqe)) {
                let address = argument.field.value(sqe);
                let value = |field: Field| field.value(sqe);
                samples.complete(argument.kind, address, lent, cqe, value);
            }
        }
        samples
    }

    fn submit(&mut self, kind: Kind, address: u64, lent: &Lent, value: impl Fn(Field) -> u64) {
        match kind {
            Kind::Data(length) => self.add_data(0, address, value(length)),
            Kind::Vectors(count) => {
                self.add_vectors(address, value(count));
                self.add_pieces(lent, u64::MAX);
            }
            Kind::VectorsFilled(count) => self.add_vectors(address, value(count)),
            Kind::Message => self.add_message(address, lent),
            Kind::MessageFilled => drop(self.add_header(address, true)),
            Kind::Path => self.add_string(Content::Path, address),
            Kind::Text => self.add_string(Content::Text, address),
            Kind::SocketAddress(length) => self.add_socket_address(address, value(length)),
            Kind::Structure(structure) => self.add_structures(address, structure.bytes, 1),
            Kind::Structures(structure, count) => {
                self.add_structures(address, structure.bytes, value(count));
            }
            Kind::Descriptors(count) => self.add_structures(address, DESCRIPTOR, value(count)),
            _ => {}
        }
    }

    fn complete(&mut self, kind: Kind, address: u64, lent: &Lent, cqe: &Cqe, value: impl Fn(Field) -> u64) {
        let result = cqe.res as u64;
        match kind {
            Kind::Filled => self.add_data(0, address, result),
            Kind::VectorsFilled(_) => self.add_pieces(lent, result),
            Kind::Group if cqe.flags & IORING_CQE_F_BUFFER != 0 => self.add_selected(lent, result),
            // The header of a multishot RECVMSG is not filled, but describes the layout of its buffers.
            Kind::MessageFilled if lent.reserved().is_some() => {}
            Kind::MessageFilled => {
                self.add_received(address);
                self.add_pieces(lent, result);
            }
            Kind::SocketAddressFilled(length_at) => {
                if let Ok(length) = user::read::<u32>(value(length_at)) {
                    self.add_socket_address(address, length.into());
                }
            }
            Kind::StructureFilled(structure) => self.add_structures(address, structure.bytes, 1),
            Kind::StructuresFilled(structure) => self.add_structures(address, structure.bytes, result),
            Kind::DescriptorsFilled(count) => self.add_structures(address, DESCRIPTOR, count.into()),
            _ => {}
        }
    }

    /// Adds a sample, if there is room, and the address is not 0.
    fn add(&mut self, content: Content, index: u16, address: u64, length: u64, kept: usize) {
        if address != 0 && self.count < MOST {
            self.list[self.count].write(Sample { address, length, kept, content, index });
            self.count += 1;
        }
    }

    fn add_data(&mut self, index: u16, address: u64, length: u64) {
        let kept = self.data.min(length.min(usize::MAX as u64) as usize);
        self.data -= kept;
        self.add(Content::Data, index, address, length, kept);
    }

    /// Adds an array of structures of `bytes` bytes each.
    fn add_structures(&mut self, address: u64, bytes: u32, count: u64) {
        let kept = count.min(MOST_OF_LIST as u64) as usize * bytes as usize;
        self.add(Content::Structure, 0, address, count.saturating_mul(bytes.into()), kept);
    }

    fn add_string(&mut self, content: Content, address: u64) {
        let length = string_length(address);
        self.add(content, 0, address, length as u64, length);
    }

    fn add_socket_address(&mut self, address: u64, length: u64) {
        let kept = length.min(MOST_OF_ADDRESS as u64) as usize;
        self.add(Content::SocketAddress, 0, address, length, kept);
    }

    fn add_vectors(&mut self, address: u64, count: u64) {
        let shown = count.min(MOST_OF_LIST as u64);
        let bytes = size_of::<IoVector>();
        self.add(Content::Vectors, 0, address, count.saturating_mul(bytes as u64), shown as usize * bytes);
    }

    /// Adds the first `valid` bytes of a request's memory.
    fn add_pieces(&mut self, lent: &Lent, valid: u64) {
        let mut left = valid;
        for (index, piece) in lent.pieces().iter().enumerate() {
            if left == 0 {
                return;
            }
            self.add_data(index as u16, piece.base, piece.length.min(left));
            left = left.saturating_sub(piece.length);
        }
    }

    /// Adds the part of a provided buffer that was filled, according to the result.
    fn add_selected(&mut self, lent: &Lent, result: u64) {
        let Some(buffer) = lent.buffer() else { return };
        // As in `struct io_uring_recvmsg_out`, the address and control messages precede the data.
        const HEADER: u64 = 16;
        let Some([name, control]) = lent.reserved() else { return self.add_data(0, buffer, result) };
        let Ok([name_length, control_length, ..]) = user::read::<[u32; 4]>(buffer) else { return };
        self.add_socket_address(buffer + HEADER, name.min(name_length.into()));
        self.add_control(buffer + HEADER + name, control.min(control_length.into()));
        let front = HEADER + name + control;
        self.add_data(0, buffer + front, result.saturating_sub(front));
    }

    fn add_control(&mut self, address: u64, length: u64) {
        if length > 0 {
            self.add(Content::Control, 0, address, length, length.min(MOST_OF_CONTROL as u64) as usize);
        }
    }

    /// Adds a message's header, and its vectors if `with_vectors`.
    fn add_header(&mut self, address: u64, with_vectors: bool) -> Option<msghdr> {
        self.add(Content::Message, 0, address, size_of::<msghdr>() as u64, size_of::<msghdr>());
        let message = user::read::<msghdr>(address).ok()?;
        if with_vectors {
            self.add_vectors(message.msg_iov as u64, message.msg_iovlen as u64);
        }
        Some(message)
    }

    fn add_message(&mut self, address: u64, lent: &Lent) {
        let Some(message) = self.add_header(address, true) else { return };
        self.add_pieces(lent, u64::MAX);
        self.add_socket_address(message.msg_name as u64, message.msg_namelen.max(0) as u64);
        self.add_control(message.msg_control as u64, message.msg_controllen as u64);
    }

    /// Adds a received message's header, with the address and the control messages.
    fn add_received(&mut self, address: u64) {
        let Some(message) = self.add_header(address, false) else { return };
        self.add_socket_address(message.msg_name as u64, message.msg_namelen.max(0) as u64);
        self.add_control(message.msg_control as u64, message.msg_controllen as u64);
    }

    /// Returns the number of samples.
    pub fn count(&self) -> u16 {
        self.count as u16
    }

    /// Returns the size of the samples in a record, in bytes.
    pub fn bytes(&self) -> usize {
        self.iter().map(|sample| size_of::<Attachment>() + padded(sample.kept)).sum()
    }

    /// Returns all samples.
    pub fn iter(&self) -> impl Iterator<Item = &Sample> {
        // SAFETY: `add` has written the first `count`.
        self.list[..self.count].iter().map(|sample| unsafe { sample.assume_init_ref() })
    }
}

/// Returns the length of a string without its terminating zero, as far as it can be read.
fn string_length(address: u64) -> usize {
    const PIECE: usize = 64;
    let mut length = 0;
    while length < MOST_OF_PATH {
        let at = address.wrapping_add(length as u64);
        let mut bytes = [0; PIECE];
        let bytes = &mut bytes[..PIECE.min(user::string_piece(at))];
        if user::read_bytes(at, bytes).is_err() {
            break;
        }
        match bytes.iter().position(|&byte| byte == 0) {
            Some(end) => return length + end,
            None => length += bytes.len(),
        }
    }
    length.min(MOST_OF_PATH)
}
