//! Which requests move bytes, and how many they were to move.

use anyring_engine::request::field::Field;
use anyring_engine::request::op::{Caps, Op};
use anyring_engine::request::shown::Kind;
use anyring_trace::event::Content;

use crate::model::Request;
use crate::structures::lengths;

/// The transfer that a request asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// How many bytes.
    pub length: u64,
    /// From where in the file; `None` for streams and the file's own position.
    pub offset: Option<u64>,
    /// From memory to the file.
    pub writes: bool,
}

/// True if the result of such requests is a count of bytes.
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
    // From one file to another.
    let between = op.arguments.iter().any(|argument| matches!(argument.kind, Kind::SecondFile(_)))
        && op
            .arguments
            .iter()
            .any(|argument| argument.field == Field::Length && matches!(argument.kind, Kind::Number));
    moves || between || op.caps.has(Caps::BUFFER_SELECT)
}

/// The transfer that a request asked for; `None` where it moves no bytes, or it is not known how many.
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
