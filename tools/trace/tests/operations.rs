//! The text of every operation, with meaningful values in every argument.

mod common;

use anyring_engine::abi::{IOSQE_BUFFER_SELECT, Sqe};
use anyring_engine::ops;
use anyring_engine::request::field::Field;
use anyring_engine::request::op::{Caps, Op};
use anyring_engine::request::shown::{Argument, Kind, Names, Structure};
use common::*;

const DATA: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const FILLED: &[u8] = b"\x01\x02binary\0\xff9 and \"text\"";
const AT_FDCWD: u64 = -100_i32 as u32 as u64;

/// The ways to fill the fields of an operation.
#[derive(Clone, Copy, PartialEq)]
enum Variant {
    /// Ordinary values.
    Plain,
    /// Every flag that has a name, and one that has none.
    AllFlags,
    /// All fields zero.
    Zero,
    /// Memory that could not be read.
    Unreadable,
    /// A provided buffer.
    Selected,
}

struct Maker {
    variant: Variant,
    sqe: Sqe,
    set: Vec<Field>,
    given: Vec<Attached>,
    filled: Vec<Attached>,
    result: i32,
}

fn set(sqe: &mut Sqe, field: Field, value: u64) {
    match field {
        Field::Flags => sqe.flags = value as u8,
        Field::Ioprio => sqe.ioprio = value as u16,
        Field::Fd => sqe.fd = value as i32,
        Field::Offset => sqe.off = value,
        Field::OffsetLow => sqe.off = sqe.off >> 32 << 32 | value & 0xffff_ffff,
        Field::Address => sqe.addr = value,
        Field::AddressLow => sqe.addr = sqe.addr >> 32 << 32 | value & 0xffff_ffff,
        Field::AddressHigh => sqe.addr = value << 32 | sqe.addr & 0xffff_ffff,
        Field::Length => sqe.len = value as u32,
        Field::OpFlags => sqe.op_flags = value as u32,
        Field::BufferIndex => sqe.buf_index = value as u16,
        Field::FileIndex => sqe.file_index = value as u32,
        Field::AddressLength => sqe.file_index = sqe.file_index & 0xffff_0000 | value as u16 as u32,
        Field::Address3 => sqe.addr3 = value,
        Field::Attributes => sqe.pad = value,
    }
}

fn ipv4() -> Vec<u8> {
    [&2_u16.to_ne_bytes()[..], &80_u16.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]].concat()
}

fn vectors() -> Vec<u8> {
    words(&[0x7000, 5, 0x8000, 30])
}

/// Returns a `struct msghdr` with a name, two vectors and a control message.
fn message() -> Vec<u8> {
    words(&[0x9000, 16, 0xa000, 2, 0xb000, 24, 0])
}

fn control() -> Vec<u8> {
    let mut bytes = words(&[20, 1 << 32 | 1]);
    bytes.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// Returns a structure whose members are 1, 2, 3. Their offsets differ between processors.
fn structure(of: &Structure) -> Vec<u8> {
    let mut bytes = vec![0; of.bytes as usize];
    for (member, value) in of.members.iter().zip(1_u64..) {
        let (at, length) = (member.offset as usize, member.bytes as usize);
        bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
    }
    bytes
}

impl Maker {
    fn new(op: &Op, variant: Variant) -> Maker {
        let sqe = Sqe { opcode: op.code, ..Sqe::EMPTY };
        let mut maker =
            Maker { variant, sqe, set: Vec::new(), given: Vec::new(), filled: Vec::new(), result: 0 };
        if variant == Variant::Selected {
            maker.sqe.flags = IOSQE_BUFFER_SELECT as u8;
            maker.filled.push(attached(Content::Data, 0xc000, FILLED));
            maker.result = FILLED.len() as i32;
        }
        // The flags come first, because other arguments depend on them.
        let (flags, others): (Vec<&Argument>, Vec<_>) = op.arguments.iter().partition(|argument| {
            matches!(argument.kind, Kind::Flags(_) | Kind::Choice(_) | Kind::ChoiceAndFlags(..))
        });
        for argument in flags.iter().chain(&others) {
            if variant == Variant::Zero {
                break;
            }
            // An argument may apply only if another argument's field is not zero; so it is tried with its own field set
            // to 1.
            let is_free = argument.field == Field::Ioprio || argument.applies(&maker.sqe) || {
                let mut with = maker.sqe;
                set(&mut with, argument.field, 1);
                argument.applies(&with)
            };
            if is_free && !maker.set.contains(&argument.field) {
                let value = maker.value(argument);
                maker.put(argument.field, value);
            }
        }
        maker
    }

    fn put(&mut self, field: Field, value: u64) {
        self.set.push(field);
        set(&mut self.sqe, field, value);
    }

    fn bits(&self, names: &Names, bytes: u32) -> u64 {
        let width = u64::MAX >> (64 - 8 * bytes.min(4));
        let all = names.names.iter().fold(0, |all, (bits, _)| all | u64::from(*bits)) & width;
        let unnamed = width & !all;
        match self.variant {
            Variant::AllFlags => all | 1 << (63 - unnamed.leading_zeros().min(63)),
            _ => 0,
        }
    }

    /// Returns a value for a field, and attaches the memory that it points to.
    fn value(&mut self, argument: &Argument) -> u64 {
        let address = 0x1000 * (1 + argument.field as u64);
        let given = |content, bytes: &[u8]| attached(content, address, bytes);
        match argument.kind {
            Kind::File | Kind::RegisteredFile => 4,
            Kind::Descriptor if argument.name.ends_with("dirfd") => AT_FDCWD,
            Kind::Descriptor => 6,
            Kind::SecondFile(_) => 5,
            Kind::Slot | Kind::Operation => 0,
            Kind::Number | Kind::Signed | Kind::Group | Kind::Buffer => 3,
            Kind::Hex | Kind::UserData => 0x77,
            Kind::Mode => 0o644,
            Kind::Offset if self.variant == Variant::AllFlags => u64::MAX,
            Kind::Offset => 512,
            Kind::Address => address,
            Kind::Flags(names) => self.bits(names, argument.field.bytes()),
            Kind::Choice(names) => match self.variant {
                Variant::AllFlags => 0xfe,
                _ => names.names[names.names.len() / 2].0.into(),
            },
            Kind::ChoiceAndFlags(mask, choice, flags) => {
                let last = choice.names.last().map_or(0, |last| u64::from(last.0));
                last | self.bits(flags, 4) & !u64::from(mask)
            }
            Kind::Data(length) => {
                self.put(length, DATA.len() as u64);
                self.given.push(given(Content::Data, &DATA[..16]).length(DATA.len() as u64));
                address
            }
            Kind::Filled => {
                self.put(Field::Length, 4096);
                self.filled.push(given(Content::Data, FILLED));
                self.result = FILLED.len() as i32;
                address
            }
            Kind::Vectors(count) => {
                self.put(count, 2);
                self.given.push(given(Content::Vectors, &vectors()));
                self.data(true);
                address
            }
            Kind::VectorsFilled(count) => {
                self.put(count, 2);
                self.given.push(given(Content::Vectors, &vectors()));
                self.data(false);
                address
            }
            Kind::Message => {
                self.given.push(given(Content::Message, &message()));
                self.given.push(attached(Content::SocketAddress, 0x9000, &ipv4()));
                self.given.push(attached(Content::Vectors, 0xa000, &vectors()));
                self.given.push(attached(Content::Control, 0xb000, &control()));
                self.data(true);
                address
            }
            Kind::MessageFilled => {
                self.given.push(given(Content::Message, &message()));
                self.given.push(attached(Content::Vectors, 0xa000, &vectors()));
                self.filled.push(given(Content::Message, &message()));
                self.filled.push(attached(Content::SocketAddress, 0x9000, &ipv4()));
                self.filled.push(attached(Content::Control, 0xb000, &control()));
                self.data(false);
                address
            }
            Kind::Path => {
                self.given.push(given(Content::Path, b"/etc/hosts"));
                address
            }
            Kind::Text => {
                self.given.push(given(Content::Text, b"user.name"));
                address
            }
            Kind::SocketAddress(length) => {
                self.put(length, 16);
                self.given.push(given(Content::SocketAddress, &ipv4()));
                address
            }
            Kind::SocketAddressFilled(_) => {
                self.filled.push(given(Content::SocketAddress, &ipv4()));
                address
            }
            Kind::LengthAt => {
                self.filled.push(given(Content::Structure, &16_u32.to_ne_bytes()));
                address
            }
            Kind::Descriptors(count) => {
                self.put(count, 2);
                self.given.push(given(Content::Structure, &[7, 0, 0, 0, 255, 255, 255, 255]));
                address
            }
            Kind::DescriptorsFilled(_) => {
                self.filled.push(given(Content::Structure, &[7, 0, 0, 0, 8, 0, 0, 0]));
                address
            }
            Kind::Structure(of) => {
                self.given.push(given(Content::Structure, &structure(of)));
                address
            }
            Kind::StructureFilled(of) => {
                self.filled.push(given(Content::Structure, &structure(of)));
                address
            }
            Kind::Structures(of, count) => {
                self.put(count, 2);
                self.given.push(given(Content::Structure, &structure(of).repeat(2)));
                address
            }
            Kind::StructuresFilled(of) => {
                self.result = 2;
                self.filled.push(given(Content::Structure, &structure(of).repeat(2)));
                address
            }
        }
    }

    /// Attaches the data of two vectors, of 5 and 30 bytes; a result fills the first 8 of these bytes.
    fn data(&mut self, is_given: bool) {
        let first = attached(Content::Data, 0x7000, b"first");
        let second = attached(Content::Data, 0x8000, b"second").index(1);
        if is_given {
            self.given.extend([first, second.length(30)]);
        } else {
            self.filled.extend([first, second]);
            self.result = 8;
        }
    }

    fn show(mut self, stream: &mut Stream) {
        if self.variant == Variant::Unreadable {
            self.given = self.given.into_iter().map(Attached::unreadable).collect();
            self.filled.clear();
            self.result = -14;
        }
        let serial = stream.submitted(self.sqe, &self.given);
        let flags = if self.variant == Variant::Selected { F_BUFFER | 5 << 16 } else { 0 };
        let completed = Completed { serial, res: self.result, flags, marks: LAST, ..Completed::default() };
        stream.posted(completed, &self.filled);
    }
}

/// Returns the text of all operations, a line for each, without the parts of a line before and behind it.
fn shown(variant: Variant, wanted: impl Fn(&Op) -> bool) -> String {
    let mut stream = Stream::default();
    stream.named(4, "/etc/hosts");
    stream.named(5, "pipe:[17]");
    for op in ops::ROWS.iter().filter(|op| wanted(op)) {
        Maker::new(op, variant).show(&mut stream);
    }
    let text = stream.text();
    let lines = text.lines().map(|line| {
        let request = line.splitn(6, ' ').nth(5).expect("a request behind the prefix");
        request.rsplit_once(" <").expect("a latency").0
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn plain() {
    assert_snapshot!(shown(Variant::Plain, |_| true));
}

#[test]
fn with_all_flags() {
    assert_snapshot!(shown(Variant::AllFlags, |_| true));
}

#[test]
fn of_zeroes() {
    assert_snapshot!(shown(Variant::Zero, |_| true));
}

#[test]
fn with_memory_that_cannot_be_read() {
    assert_snapshot!(shown(Variant::Unreadable, |_| true));
}

#[test]
fn with_provided_buffers() {
    assert_snapshot!(shown(Variant::Selected, |op| op.caps.has(Caps::BUFFER_SELECT)));
}

#[test]
fn every_line_names_its_operation() {
    let text = shown(Variant::Plain, |_| true);
    assert_eq!(text.lines().count(), ops::TOTAL);
    for (line, op) in text.lines().zip(ops::ROWS) {
        assert!(line.starts_with(&format!("{}(", op.name)), "{line}");
    }
}

#[test]
fn an_operation_that_nobody_knows() {
    let mut stream = Stream::default();
    let serial = stream.submitted(Sqe { opcode: 150, ..Sqe::EMPTY }, &[]);
    stream.completed(serial, -22);
    assert!(stream.text().contains("0x96 /* IORING_OP_??? */() = -1 EINVAL (Invalid argument)"));
}
