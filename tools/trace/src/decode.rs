//! A request as text, in strace's grammar, by its row in the op table.

use std::fmt::Write;

use anyring_engine::abi::names::{CQE_FLAGS, POLL_EVENTS, SQE_FLAGS};
use anyring_engine::ops;
use anyring_engine::request::field::Field;
use anyring_engine::request::op::Caps;
use anyring_engine::request::shown::{Argument, Kind};
use anyring_trace::event::{Content, FOUND};
use linux_raw_sys::io_uring::{
    IORING_CQE_BUFFER_SHIFT, IORING_CQE_F_BUFFER, IORING_CQE_F_MORE, IORING_FILE_INDEX_ALLOC,
    IORING_NOTIF_USAGE_ZC_COPIED,
};

use crate::memory::{Memory, Piece};
use crate::model::{Completion, Harm, Request};
use crate::names;
use crate::quote;
use crate::structures::{self, copied, signed};

const AT_FDCWD: i32 = -100;
const NO_MEMORY: &Memory = &Memory::EMPTY;

/// A decoded argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The argument's name in the manual.
    pub name: &'static str,
    /// The argument's value in the SQE.
    pub value: u64,
    /// The argument as text.
    pub text: String,
}

/// The options by which requests are decoded.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The maximum number of bytes of data, and of elements of an array, that are shown.
    pub sample: usize,
}

struct Context<'a> {
    request: &'a Request,
    result: Option<&'a Completion>,
    sample: usize,
}

impl Decoder {
    /// Prints a request as `READ(3</etc/hosts>, "127.0"..., 4096, off=0)`, with the data that the result brought into
    /// memory.
    pub fn request(&self, out: &mut String, request: &Request, result: Option<&Completion>) {
        let context = Context { request, result, sample: self.sample };
        if request.op.is_unknown() {
            let _ = write!(out, "{:#x} /* IORING_OP_??? */(", request.sqe.opcode);
        } else {
            let _ = write!(out, "{}(", request.op.name);
        }
        let mut first = true;
        let mut comma = |out: &mut String| {
            out.push_str(if first { "" } else { ", " });
            first = false;
        };
        for argument in context.arguments() {
            comma(out);
            if let Some(Piece { bytes: Some(bytes), length, .. }) = context.selected(argument) {
                structures::valid_bytes(out, bytes, length, self.sample);
                comma(out);
            }
            if context.is_named(argument) {
                let _ = write!(out, "{}=", argument.name);
            }
            context.argument(out, argument);
        }
        let sqe = &request.sqe;
        if sqe.flags != 0 {
            comma(out);
            names::flags(out, SQE_FLAGS, sqe.flags.into());
        }
        if sqe.personality != 0 {
            comma(out);
            let _ = write!(out, "personality={}", sqe.personality);
        }
        if sqe.user_data != 0 {
            comma(out);
            let _ = write!(out, "user_data={:#x}", sqe.user_data);
        }
        out.push(')');
    }

    /// Returns the arguments of a request, each decoded.
    pub fn arguments(&self, request: &Request, result: Option<&Completion>) -> Vec<Shown> {
        let context = Context { request, result, sample: self.sample };
        let shown = context.arguments().map(|argument| {
            let mut text = String::new();
            context.argument(&mut text, argument);
            Shown { name: argument.name, value: argument.field.value(&request.sqe), text }
        });
        shown.collect()
    }

    /// Prints the text behind the `=` of a result.
    pub fn result(&self, out: &mut String, request: Option<&Request>, completion: &Completion) {
        let res = completion.res;
        if completion.is_notification() {
            let copied = res as u32 & IORING_NOTIF_USAGE_ZC_COPIED != 0;
            out.push_str(if copied { "0 (IORING_NOTIF_USAGE_ZC_COPIED)" } else { "0" });
        } else if res < 0 {
            error(out, res);
        } else {
            let _ = write!(out, "{res}");
            meaning(out, request, completion);
        }
        self.flags(out, completion.flags);
        let has_place = request.is_some_and(|request| request.op.caps.has(Caps::PLACES));
        if has_place && completion.flags & IORING_CQE_F_MORE != 0 {
            let _ = write!(out, " off={:#x}", completion.big[0]);
        } else if completion.big != [0; 2] {
            let _ = write!(out, " big={{{:#x}, {:#x}}}", completion.big[0], completion.big[1]);
        }
        if request.is_some_and(|request| request.sqe.user_data != completion.user_data) {
            let _ = write!(out, " user_data={:#x}", completion.user_data);
        }
        if completion.is_skipped() {
            out.push_str(" [no CQE]");
        }
        if completion.has_overflowed() {
            out.push_str(" [CQ overflow]");
        }
        if completion.marks & FOUND != 0 {
            out.push_str(" [found late]");
        }
        out.push_str(match completion.harm() {
            Some(Harm::Changed) => " [data changed in flight]",
            Some(Harm::Freed) => " [memory freed in flight]",
            Some(Harm::Unmapped) => " [memory unmapped in flight]",
            None => "",
        });
    }

    fn flags(&self, out: &mut String, flags: u32) {
        let buffer = flags & IORING_CQE_F_BUFFER != 0;
        let bits = if buffer { flags & ((1 << IORING_CQE_BUFFER_SHIFT) - 1) } else { flags };
        if bits != 0 {
            let mut names = String::new();
            names::flags(&mut names, CQE_FLAGS, bits.into());
            let _ = write!(out, " {}", names.replace("IORING_CQE_", ""));
        }
        if buffer {
            let _ = write!(out, " bid={}", flags >> IORING_CQE_BUFFER_SHIFT);
        }
    }
}

/// Prints an error as `-1 EAGAIN (Resource temporarily unavailable)`.
pub fn error(out: &mut String, res: i32) {
    let number = res.saturating_neg();
    let _ = match names::errno(number) {
        Some(name) => write!(out, "-1 {name} ({})", names::explained(number)),
        None => write!(out, "{res}"),
    };
}

/// Prints the meaning of a result that is not an error, if it is more than a count.
fn meaning(out: &mut String, request: Option<&Request>, completion: &Completion) {
    if let Some(name) = &completion.name {
        let _ = write!(out, "<{name}>");
    }
    let Some(request) = request else { return };
    if request.op.caps.has(Caps::POLLS) && completion.res != 0 {
        out.push_str(" (");
        names::flags(out, POLL_EVENTS, completion.res as u32 as u64);
        out.push(')');
    }
}

impl<'a> Context<'a> {
    fn arguments(&self) -> impl Iterator<Item = &'static Argument> + use<'a> {
        let sqe = &self.request.sqe;
        self.request.op.arguments.iter().filter(move |argument| argument.applies(sqe))
    }

    /// True if the argument is printed with its name. An argument in the position that system calls give it needs no
    /// name.
    fn is_named(&self, argument: &Argument) -> bool {
        match argument.kind {
            Kind::Offset | Kind::Slot | Kind::Buffer | Kind::Group | Kind::UserData => true,
            Kind::Number | Kind::Signed | Kind::Hex => {
                !matches!(argument.field, Field::Length | Field::AddressLength)
            }
            _ => false,
        }
    }

    fn value(&self, field: Field) -> u64 {
        field.value(&self.request.sqe)
    }

    /// Returns the bytes in the buffer that was taken from the group of this argument, unless another argument shows them.
    fn selected(&self, argument: &Argument) -> Option<Piece<'a>> {
        let has_vectors = self.request.memory.first(Content::Vectors).is_some();
        match argument.kind {
            Kind::Group if !has_vectors => self.filled().numbered(Content::Data, 0),
            _ => None,
        }
    }

    /// Returns the memory that the kernel filled for the result.
    fn filled(&self) -> &'a Memory {
        self.result.map_or(NO_MEMORY, |result| &result.memory)
    }

    /// Returns the number of bytes that were filled, by the result.
    fn valid(&self) -> u64 {
        self.result.map_or(0, |result| u64::try_from(result.res).unwrap_or(0))
    }

    fn argument(&self, out: &mut String, argument: &Argument) {
        let value = self.value(argument.field);
        let given = &self.request.memory;
        let most = self.sample;
        let _ = match argument.kind {
            Kind::File => return self.file(out, value as i32),
            Kind::Descriptor => return self.descriptor(out, value as i32),
            Kind::SecondFile(bit) if self.value(Field::OpFlags) & u64::from(bit) != 0 => {
                write!(out, "fixed:{value}")
            }
            Kind::SecondFile(_) => return self.descriptor(out, value as i32),
            Kind::RegisteredFile => write!(out, "fixed:{value}"),
            Kind::Slot if value == IORING_FILE_INDEX_ALLOC as u32 as u64 => {
                write!(out, "IORING_FILE_INDEX_ALLOC")
            }
            Kind::Slot if value != 0 => write!(out, "{value} /* slot {} */", value - 1),
            Kind::Number | Kind::Slot | Kind::Buffer | Kind::Group => write!(out, "{value}"),
            Kind::Signed | Kind::Offset => write!(out, "{}", signed(value, argument.field.bytes())),
            Kind::Hex | Kind::UserData => write!(out, "{value:#x}"),
            Kind::Mode => write!(out, "0{value:02o}"),
            Kind::Address => return quote::address(out, value),
            Kind::Flags(names) => return names::flags(out, names, value),
            Kind::Choice(names) => return names::choice(out, names, value),
            Kind::ChoiceAndFlags(mask, choice, flags) => {
                return names::choice_and_flags(out, mask, choice, flags, value);
            }
            Kind::Operation => match ops::ROWS.iter().find(|op| u64::from(op.code) == value) {
                Some(op) => write!(out, "IORING_OP_{}", op.name),
                None => write!(out, "{value} /* IORING_OP_??? */"),
            },
            Kind::Data(length) => return self.data(out, value, self.value(length)),
            Kind::Filled => return self.filled_data(out, value),
            Kind::Vectors(count) => return self.vectors(out, value, self.value(count), given, u64::MAX),
            Kind::VectorsFilled(count) => {
                return self.vectors(out, value, self.value(count), self.filled(), self.valid());
            }
            Kind::Message => return self.message(out, value),
            Kind::MessageFilled => return self.message_filled(out, value),
            Kind::Path => return self.string(out, Content::Path, value),
            Kind::Text => return self.string(out, Content::Text, value),
            Kind::SocketAddress(_) => return self.socket_address(out, given, value),
            Kind::SocketAddressFilled(_) => return self.socket_address(out, self.filled(), value),
            Kind::LengthAt => {
                let piece = self.filled().at(Content::Structure, value);
                let piece = piece.or_else(|| given.at(Content::Structure, value));
                return copied(out, piece, value, |out, bytes, _| structures::numbers(out, bytes, 1, most));
            }
            Kind::Descriptors(count) => {
                let count = self.value(count);
                let piece = given.at(Content::Structure, value);
                return copied(out, piece, value, |out, bytes, _| {
                    structures::numbers(out, bytes, count, most);
                });
            }
            Kind::DescriptorsFilled(count) => {
                let piece = self.filled().at(Content::Structure, value);
                return copied(out, piece, value, |out, bytes, _| {
                    structures::numbers(out, bytes, count.into(), most);
                });
            }
            Kind::Structure(of) => {
                let piece = given.at(Content::Structure, value);
                return copied(out, piece, value, |out, bytes, _| structures::structure(out, of, bytes));
            }
            Kind::StructureFilled(of) => {
                let piece = self.filled().at(Content::Structure, value);
                return copied(out, piece, value, |out, bytes, _| structures::structure(out, of, bytes));
            }
            Kind::StructuresFilled(of) => {
                let (piece, count) = (self.filled().at(Content::Structure, value), self.valid());
                return copied(out, piece, value, |out, bytes, _| {
                    structures::structures(out, of, count, bytes, most);
                });
            }
            Kind::Structures(of, count) => {
                let count = self.value(count);
                let print =
                    |out: &mut String, bytes: &[u8], _| structures::structures(out, of, count, bytes, most);
                return copied(out, given.at(Content::Structure, value), value, print);
            }
        };
    }

    fn file(&self, out: &mut String, fd: i32) {
        if self.request.has_registered_file() {
            let _ = write!(out, "fixed:{fd}");
            self.name(out, self.request.file);
        } else {
            self.descriptor(out, fd);
        }
    }

    fn descriptor(&self, out: &mut String, fd: i32) {
        if fd == AT_FDCWD {
            out.push_str("AT_FDCWD");
        } else {
            let _ = write!(out, "{fd}");
        }
        self.name(out, fd);
    }

    fn name(&self, out: &mut String, fd: i32) {
        if let Some(name) = self.request.name_of(fd) {
            let _ = write!(out, "<{name}>");
        }
    }

    fn data(&self, out: &mut String, address: u64, length: u64) {
        let memory = &self.request.memory;
        // Data in a registered buffer may lie at an offset in it.
        let piece = memory.at(Content::Data, address).or_else(|| memory.numbered(Content::Data, 0));
        copied(out, piece, address, |out, bytes, _| quote::bytes(out, bytes, length, self.sample));
    }

    fn filled_data(&self, out: &mut String, address: u64) {
        let memory = self.filled();
        let piece = memory.at(Content::Data, address).or_else(|| memory.numbered(Content::Data, 0));
        copied(out, piece, address, |out, bytes, _| {
            structures::valid_bytes(out, bytes, self.valid(), self.sample);
        });
    }

    fn vectors(&self, out: &mut String, address: u64, count: u64, data: &Memory, valid: u64) {
        let piece = self.request.memory.at(Content::Vectors, address);
        copied(out, piece, address, |out, bytes, _| {
            structures::vectors(out, bytes, count, data, valid, self.sample);
        });
    }

    fn message(&self, out: &mut String, address: u64) {
        let memory = &self.request.memory;
        copied(out, memory.at(Content::Message, address), address, |out, header, _| {
            structures::message(out, header, memory, memory, u64::MAX, self.sample);
        });
    }

    /// Prints the message as the kernel filled it; if it was not copied, as the program passed it.
    fn message_filled(&self, out: &mut String, address: u64) {
        let (given, filled) = (&self.request.memory, self.filled());
        let piece = filled.at(Content::Message, address).or_else(|| given.at(Content::Message, address));
        copied(out, piece, address, |out, header, _| {
            structures::message(out, header, given, filled, self.valid(), self.sample);
        });
    }

    fn string(&self, out: &mut String, content: Content, address: u64) {
        copied(out, self.request.memory.at(content, address), address, |out, bytes, length| {
            quote::bytes(out, bytes, length, usize::MAX);
        });
    }

    fn socket_address(&self, out: &mut String, memory: &Memory, address: u64) {
        copied(out, memory.at(Content::SocketAddress, address), address, |out, bytes, _| {
            structures::socket_address(out, bytes, self.sample);
        });
    }
}
