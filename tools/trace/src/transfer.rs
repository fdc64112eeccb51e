//! Requests that move bytes, and the number of bytes to be moved.

use anyring_engine::request::field::Field;
use anyring_engine::request::op::{Caps, Op};
use anyring_engine::request::shown::Kind;
use anyring_trace::event::Content;

use crate::model::Request;
use crate::structures::lengths;

/// The transfer that a request asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The number of bytes.
    pub length: u64,
    /// The offset in the file; `None` for streams, and for the file's own position.
    pub offset: Option<u64>,
    /// True if the bytes are moved from memory to the file.
    pub writes: bool,
}

/// True if the result of the operation is a count of bytes.
pub fn moves_bytes(op: &Op) -> bool {
    let moves = op.arguments.iter().any(|argument| {
        matches!(
            argument.kind,
            Kind::Data(_)
                | Kind::Filled
                | Kind::Vectors(_)
                | Kind::VectorsFilled(_)
                | Kind::Message
                | Kind::MessageFilled
        )
    });
    // Bytes are moved from one file to another.
    let between = op.arguments.iter().any(|argument| matches!(argument.kind, Kind::SecondFile(_)))
        && op
            .arguments
            .iter()
            .any(|argument| argument.field == Field::Length && matches!(argument.kind, Kind::Number));
    moves || between || op.caps.has(Caps::BUFFER_SELECT)
}

/// Returns the transfer that a request asked for; `None` if it moves no bytes, or their number is not known.
pub fn asked(request: &Request) -> Option<Asked> {
    let sqe = &request.sqe;
    let vectors = || request.memory.first(Content::Vectors)?.bytes.map(lengths);
    let of = |kind| match kind {
        Kind::Data(length) => Some((length.value(sqe), true)),
        Kind::Filled => Some((Field::Length.value(sqe), false)),
        Kind::Vectors(_) | Kind::Message => Some((vectors()?, true)),
        Kind::VectorsFilled(_) | Kind::MessageFilled => Some((vectors()?, false)),
        _ => None,
    };
    let arguments = || request.op.arguments.iter().filter(|argument| argument.applies(sqe));
    let (length, writes) = arguments().find_map(|argument| of(argument.kind))?;
    let offset = arguments().find(|argument| matches!(argument.kind, Kind::Offset));
    let offset = offset.map(|argument| argument.field.value(sqe)).filter(|offset| *offset != u64::MAX);
    Some(Asked { length, offset, writes })
}
