//! Which memory of the program goes along with an event: what the arguments of the operation say.

use anyring_trace::buffer::MOST_BYTES;
use anyring_trace::event::{Attachment, Content, Head, padded};
use linux_raw_sys::net::msghdr;

use crate::abi::Sqe;
use crate::os::user::{self, IoVector};
use crate::request::op::{Field, Op};
use crate::request::shown::Kind;

/// Memory that goes along.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Where it is.
    pub address: u64,
    /// How long it is altogether.
    pub length: u64,
    /// How much of it goes along.
    pub kept: usize,
    /// What it is.
    pub content: Content,
    /// Which of its kind.
    pub index: u16,
}

/// Bytes of a descriptor in the program's memory.
const DESCRIPTOR: u32 = size_of::<i32>() as u32;
/// As many go along with one event at most.
const MOST: usize = 24;
/// Of a list, as many entries at most.
const MOST_OF_LIST: usize = 8;
/// Of a path, as many bytes.
const MOST_OF_PATH: usize = 4096;
/// Of a socket address: `struct sockaddr_storage`.
const MOST_OF_ADDRESS: usize = 128;
/// Of control messages.
const MOST_OF_CONTROL: usize = 256;

// What a record holds is enough for all of them.
const _: () =
    assert!(2 * MOST_OF_PATH + MOST * (size_of::<Attachment>() + 1024) < MOST_BYTES - size_of::<Head>());

/// All that goes along with an event.
pub struct Samples {
    list: [Sample; MOST],
    count: usize,
    /// How many bytes of data there may be altogether.
    data: usize,
}

impl Samples {
    const EMPTY: Sample = Sample { address: 0, length: 0, kept: 0, content: Content::Data, index: 0 };
    /// Nothing.
    pub const NONE: Samples = Samples { list: [Samples::EMPTY; MOST], count: 0, data: 0 };

    /// A program's path and arguments.
    pub fn of_program(program: &[u8], arguments: &[u8]) -> Samples {
        let mut samples = Samples::NONE;
        for (content, bytes) in [(Content::Path, program), (Content::Text, arguments)] {
            let kept = bytes.len().min(MOST_OF_PATH);
            samples.add(content, 0, bytes.as_ptr() as u64, bytes.len() as u64, kept);
        }
        samples
    }

    /// A name.
    pub fn of_name(name: &[u8]) -> Samples {
        let mut samples = Samples::NONE;
        samples.add(Content::Path, 0, name.as_ptr() as u64, name.len() as u64, name.len());
        samples
    }

    /// What a request brings: paths, addresses, and at most `data` bytes of what it writes.
    pub fn of_submission(op: &Op, sqe: &Sqe, data: usize) -> Samples {
        let mut samples = Samples { data, ..Samples::NONE };
        for argument in op.arguments.iter().filter(|argument| argument.applies(sqe)) {
            samples.submit(argument.kind, argument.field.value(sqe), |field: Field| field.value(sqe));
        }
        samples
    }

    /// What a request has filled that came to `result`, at most `data` bytes of it.
    pub fn of_completion(op: &Op, sqe: &Sqe, result: i32, data: usize) -> Samples {
        let mut samples = Samples { data, ..Samples::NONE };
        if result >= 0 {
            for argument in op.arguments.iter().filter(|argument| argument.applies(sqe)) {
                let address = argument.field.value(sqe);
                samples.complete(argument.kind, address, result as u64, |field: Field| field.value(sqe));
            }
        }
        samples
    }

    fn submit(&mut self, kind: Kind, address: u64, value: impl Fn(Field) -> u64) {
        match kind {
            Kind::Data(length) => self.add_data(0, address, value(length)),
            Kind::Vectors(count) => self.add_vectors(address, value(count), true),
            Kind::VectorsFilled(count) => self.add_vectors(address, value(count), false),
            Kind::Message => self.add_message(address, true),
            Kind::MessageFilled => self.add_message(address, false),
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

    fn complete(&mut self, kind: Kind, address: u64, result: u64, value: impl Fn(Field) -> u64) {
        match kind {
            Kind::Filled => self.add_data(0, address, result),
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

    /// Adds one, where there is room and an address.
    fn add(&mut self, content: Content, index: u16, address: u64, length: u64, kept: usize) {
        if address != 0 && self.count < MOST {
            self.list[self.count] = Sample { address, length, kept, content, index };
            self.count += 1;
        }
    }

    fn add_data(&mut self, index: u16, address: u64, length: u64) {
        let kept = self.data.min(length.min(usize::MAX as u64) as usize);
        self.data -= kept;
        self.add(Content::Data, index, address, length, kept);
    }

    /// Structures of so many bytes, one after the other.
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

    /// Vectors, and what lies in them where it is to be written.
    fn add_vectors(&mut self, address: u64, count: u64, with_data: bool) {
        let shown = count.min(MOST_OF_LIST as u64);
        let bytes = size_of::<IoVector>();
        self.add(Content::Vectors, 0, address, count.saturating_mul(bytes as u64), shown as usize * bytes);
        for index in (0..shown).take_while(|_| with_data) {
            let Ok(vector) = user::read::<IoVector>(address.wrapping_add(index * bytes as u64)) else {
                break;
            };
            self.add_data(index as u16, vector.base, vector.length);
        }
    }

    fn add_message(&mut self, address: u64, sent: bool) {
        self.add(Content::Message, 0, address, size_of::<msghdr>() as u64, size_of::<msghdr>());
        let Ok(message) = user::read::<msghdr>(address) else { return };
        self.add_vectors(message.msg_iov as u64, message.msg_iovlen as u64, sent);
        if sent {
            self.add_socket_address(message.msg_name as u64, message.msg_namelen as u64);
            let length = message.msg_controllen;
            let kept = length.min(MOST_OF_CONTROL);
            self.add(Content::Control, 0, message.msg_control as u64, length as u64, kept);
        }
    }

    /// How many there are.
    pub fn count(&self) -> u16 {
        self.count as u16
    }

    /// How much of a record they take.
    pub fn bytes(&self) -> usize {
        self.iter().map(|sample| size_of::<Attachment>() + padded(sample.kept)).sum()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Sample> {
        self.list[..self.count].iter()
    }
}

/// How long the string is, without its end, up to what can be read of it.
fn string_length(address: u64) -> usize {
    const PIECE: usize = 64;
    let mut length = 0;
    while length < MOST_OF_PATH {
        // No piece crosses into a page that the string may not reach.
        let at = address.wrapping_add(length as u64);
        let mut bytes = [0; PIECE];
        let bytes = &mut bytes[..PIECE - (at % PIECE as u64) as usize];
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
