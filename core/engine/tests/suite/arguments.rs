//! The arguments of the rows of the op table: where they stand, of which requests they are, and what they refer to.

use anyring_engine::abi::Sqe;
use anyring_engine::ops::ROWS;
use anyring_engine::request::field::Field;
use anyring_engine::request::op::{Caps, Op};
use anyring_engine::request::shown::{Argument, Kind, Structure, When};
use anyring_engine::request::structures;

const FIELDS: [Field; 15] = [
    Field::Flags,
    Field::Ioprio,
    Field::Fd,
    Field::Offset,
    Field::OffsetLow,
    Field::Address,
    Field::AddressLow,
    Field::AddressHigh,
    Field::Length,
    Field::OpFlags,
    Field::BufferIndex,
    Field::FileIndex,
    Field::AddressLength,
    Field::Address3,
    Field::Attributes,
];

fn low(place: u64, value: u64) -> u64 {
    place & !0xffff_ffff | value & 0xffff_ffff
}

fn set(sqe: &mut Sqe, field: Field, value: u64) {
    match field {
        Field::Flags => sqe.flags = value as u8,
        Field::Ioprio => sqe.ioprio = value as u16,
        Field::Fd => sqe.fd = value as i32,
        Field::Offset => sqe.off = value,
        Field::OffsetLow => sqe.off = low(sqe.off, value),
        Field::Address => sqe.addr = value,
        Field::AddressLow => sqe.addr = low(sqe.addr, value),
        Field::AddressHigh => sqe.addr = low(value << 32, sqe.addr),
        Field::Length => sqe.len = value as u32,
        Field::OpFlags => sqe.op_flags = value as u32,
        Field::BufferIndex => sqe.buf_index = value as u16,
        Field::FileIndex => sqe.file_index = value as u32,
        Field::AddressLength => sqe.file_index = sqe.file_index & 0xffff_0000 | value as u32 & 0xffff,
        Field::Address3 => sqe.addr3 = value,
        Field::Attributes => sqe.pad = value,
    }
}

fn with(field: Field, value: u64) -> Sqe {
    let mut sqe = Sqe::default();
    set(&mut sqe, field, value);
    sqe
}

fn overlap(one: Field, other: Field) -> bool {
    let (one, other) = (with(one, u64::MAX), with(other, u64::MAX));
    one.words().iter().zip(other.words()).any(|(one, other)| one & other != 0)
}

#[test]
fn a_field_has_the_bits_of_its_place() {
    for field in FIELDS {
        let all = u64::MAX >> (64 - 8 * field.bytes());
        assert_eq!(field.value(&with(field, u64::MAX)), all, "{field:?}");
        assert_eq!(
            field.value(&with(field, 0x8142_8344_8546_8748)),
            0x8142_8344_8546_8748 & all,
            "{field:?}"
        );
        let bits: u32 = with(field, u64::MAX).words().iter().map(|word| word.count_ones()).sum();
        assert_eq!(bits, 8 * field.bytes(), "{field:?}");
    }
}

/// The values of fields that a row's conditions tell apart.
fn choices(op: &Op) -> Vec<(Field, Vec<u64>)> {
    let mut choices: Vec<(Field, Vec<u64>)> = Vec::new();
    for argument in op.arguments {
        for when in argument.when {
            let (field, values) = match *when {
                When::Given => (argument.field, vec![0, 1]),
                When::Some(field, bits) | When::None(field, bits) => {
                    let each = (0..64).map(|bit| bits & 1 << bit).filter(|&bit| bit != 0);
                    (field, each.chain([0, bits, u64::MAX]).collect())
                }
                When::Is(field, value) | When::Not(field, value) => (field, vec![0, value, value + 1]),
                When::Within(field, first, last) => (field, vec![0, first, last, last + 1]),
            };
            match choices.iter_mut().find(|choice| choice.0 == field) {
                Some(choice) => choice.1.extend(values),
                None => choices.push((field, values)),
            }
        }
    }
    choices
}

/// SQEs of an operation: each of the values that its conditions tell apart, beside many of the others.
fn requests(op: &Op) -> Vec<Sqe> {
    let choices = choices(op);
    let mut random = 1u64;
    let mut requests = vec![Sqe::default()];
    for _ in 0..2000 {
        let mut sqe = Sqe::default();
        for (field, values) in &choices {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            set(&mut sqe, *field, values[(random >> 33) as usize % values.len()]);
        }
        requests.push(sqe);
    }
    requests
}

fn of_request<'a>(op: &'a Op, sqe: &Sqe) -> Vec<&'a Argument> {
    op.arguments.iter().filter(|argument| argument.applies(sqe)).collect()
}

#[test]
fn every_row_has_arguments() {
    for op in ROWS {
        assert!(!op.arguments.is_empty(), "the row of {} has no `.arguments`", op.name);
        for argument in op.arguments {
            assert!(!argument.name.is_empty(), "{} {:?}", op.name, argument.field);
            let shown = requests(op).iter().any(|sqe| argument.applies(sqe));
            assert!(shown, "{} never has {}", op.name, argument.name);
        }
    }
}

/// Conditions may give a place several meanings, of which a request has one.
#[test]
fn no_place_means_two_things_in_one_request() {
    for op in ROWS {
        for sqe in requests(op) {
            let arguments = of_request(op, &sqe);
            for (index, one) in arguments.iter().enumerate() {
                for other in &arguments[..index] {
                    let both = format!("{}: {} and {} of {sqe:?}", op.name, other.name, one.name);
                    assert!(!overlap(one.field, other.field), "one place: {both}");
                    assert_ne!(one.name, other.name, "one name: {both}");
                }
            }
        }
    }
}

/// The field with the length or number of what stands at an address.
fn length_of(kind: Kind) -> Option<Field> {
    match kind {
        Kind::Data(field)
        | Kind::Vectors(field)
        | Kind::VectorsFilled(field)
        | Kind::SocketAddress(field)
        | Kind::SocketAddressFilled(field)
        | Kind::Descriptors(field)
        | Kind::Structures(_, field) => Some(field),
        _ => None,
    }
}

#[test]
fn lengths_are_arguments_too() {
    for op in ROWS {
        for sqe in requests(op) {
            let arguments = of_request(op, &sqe);
            for argument in &arguments {
                let Some(length) = length_of(argument.kind) else { continue };
                let shown = arguments.iter().any(|other| other.field == length);
                assert!(shown, "{}: {} without its length, {sqe:?}", op.name, argument.name);
                assert_eq!(argument.field.bytes(), 8, "{}: {} is no address", op.name, argument.name);
            }
        }
    }
}

#[test]
fn members_lie_in_their_structure() {
    let known: [&Structure; 6] = [
        structures::TIMESPEC,
        structures::OPEN_HOW,
        structures::STATX,
        structures::EPOLL_EVENT,
        structures::FUTEX_WAITV,
        structures::SIGINFO,
    ];
    for structure in known {
        for (index, member) in structure.members.iter().enumerate() {
            assert!(member.offset + member.bytes <= structure.bytes, "{} {}", structure.name, member.name);
            let apart = structure.members[..index].iter().all(|other| {
                other.offset + other.bytes <= member.offset || member.offset + member.bytes <= other.offset
            });
            assert!(apart, "{} {}", structure.name, member.name);
        }
    }
}

/// The fields that operations neither show nor refuse by their row. The kernel ignores them, but for those of OPENAT2 and
/// SENDMSG_ZC, which are refused later.
const IGNORED: &[(&str, &[Field])] = &[
    ("NOP", &[Field::FileIndex]),
    ("READV", &[Field::FileIndex]),
    ("WRITEV", &[Field::FileIndex]),
    ("READ_FIXED", &[Field::FileIndex]),
    ("WRITE_FIXED", &[Field::FileIndex]),
    ("POLL_ADD", &[Field::FileIndex]),
    ("POLL_REMOVE", &[Field::Fd]),
    ("SENDMSG", &[Field::BufferIndex]),
    ("TIMEOUT", &[Field::Fd]),
    ("TIMEOUT_REMOVE", &[Field::Fd]),
    ("ASYNC_CANCEL", &[Field::BufferIndex]),
    ("LINK_TIMEOUT", &[Field::Fd]),
    ("OPENAT", &[Field::Offset]),
    ("FILES_UPDATE", &[Field::Fd, Field::BufferIndex]),
    ("READ", &[Field::FileIndex]),
    ("WRITE", &[Field::FileIndex]),
    ("MADVISE", &[Field::Fd]),
    ("OPENAT2", &[Field::OpFlags, Field::BufferIndex]),
    ("EPOLL_CTL", &[Field::OpFlags]),
    ("SPLICE", &[Field::BufferIndex]),
    ("TEE", &[Field::BufferIndex]),
    ("FSETXATTR", &[Field::BufferIndex, Field::FileIndex]),
    ("SETXATTR", &[Field::Fd, Field::BufferIndex, Field::FileIndex]),
    ("FGETXATTR", &[Field::BufferIndex, Field::FileIndex]),
    ("GETXATTR", &[Field::Fd, Field::BufferIndex, Field::FileIndex]),
    ("URING_CMD", &[Field::Length]),
    ("SENDMSG_ZC", &[Field::Offset, Field::FileIndex]),
    ("READ_MULTISHOT", &[Field::FileIndex]),
    ("RECV_ZC", &[Field::BufferIndex]),
    ("READV_FIXED", &[Field::FileIndex]),
    ("WRITEV_FIXED", &[Field::FileIndex]),
    ("PIPE", &[Field::Length, Field::BufferIndex]),
];

/// Fields that operations read are shown. Left out are those that came later than most operations, which ignore them.
#[test]
fn every_field_is_shown_refused_or_known_to_be_ignored() {
    for op in ROWS {
        // Those with big SQEs read what the others do.
        let name = op.name.trim_end_matches("128");
        let ignored = IGNORED.iter().find(|row| row.0 == name).map_or(&[][..], |row| row.1);
        for field in FIELDS {
            let later = matches!(field, Field::Address3 | Field::Attributes);
            let halves = matches!(
                field,
                Field::OffsetLow | Field::AddressLow | Field::AddressHigh | Field::AddressLength
            );
            let common = field == Field::Flags || field == Field::Ioprio && !op.caps.has(Caps::IOPRIO);
            if later || halves || common {
                continue;
            }
            let shown = op.arguments.iter().any(|argument| overlap(argument.field, field));
            let refused = op.unused.is_some_and(|unused| unused.names(field));
            match (shown || refused, ignored.contains(&field)) {
                (false, false) => panic!(
                    "{field:?} of {}: the row names it neither in `.arguments` nor in `.unused`, and IGNORED does not list it",
                    op.name
                ),
                (true, true) => {
                    panic!("{field:?} of {}: the row names it, and IGNORED lists it, too", op.name)
                }
                _ => {}
            }
        }
    }
}
