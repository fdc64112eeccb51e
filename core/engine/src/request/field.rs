//! The fields of an SQE, by which the arguments of operations are described.

use crate::abi::Sqe;

/// The lowest number of the engine's private operations, far above the kernel's growing list.
pub const FIRST_PRIVATE: u8 = 192;
/// The lowest number of hidden operations, which no program can submit; private operations have smaller numbers.
pub const FIRST_HIDDEN: u8 = 252;
/// The operation that stands for all unassigned opcodes.
pub const UNKNOWN: u8 = FIRST_HIDDEN;
/// The operation of a request whose first attempt chaos delays.
pub const HELD: u8 = FIRST_HIDDEN + 1;
/// The operation of a completed request whose CQE chaos delays.
pub const LATE: u8 = FIRST_HIDDEN + 2;
/// The operation of a zero-copy send's notification.
pub const NOTIFICATION: u8 = FIRST_HIDDEN + 3;

/// A field of an SQE. Fields may overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// `IOSQE_*`, a field that all operations have.
    Flags,
    /// Flags of the operation in `ioprio`.
    Ioprio,
    /// A descriptor, or the index of a registered file.
    Fd,
    /// Offset or second address.
    Offset,
    /// The lower half of `off`.
    OffsetLow,
    /// The address.
    Address,
    /// The lower half of `addr`.
    AddressLow,
    /// The upper half of `addr`.
    AddressHigh,
    /// The length or count.
    Length,
    /// The operation's flags.
    OpFlags,
    /// A registered buffer or a buffer group.
    BufferIndex,
    /// A slot of the file table, a second descriptor, or the length of an option.
    FileIndex,
    /// The length of an address, the lower half of `file_index`.
    AddressLength,
    /// The third address.
    Address3,
    /// Attributes.
    Attributes,
}

impl Field {
    /// Returns the value of the field, zero-extended.
    pub const fn value(self, sqe: &Sqe) -> u64 {
        match self {
            Field::Flags => sqe.flags as u64,
            Field::Ioprio => sqe.ioprio as u64,
            Field::Fd => sqe.fd as u32 as u64,
            Field::Offset => sqe.off,
            Field::OffsetLow => sqe.off as u32 as u64,
            Field::Address => sqe.addr,
            Field::AddressLow => sqe.addr as u32 as u64,
            Field::AddressHigh => sqe.addr >> 32,
            Field::Length => sqe.len as u64,
            Field::OpFlags => sqe.op_flags as u64,
            Field::BufferIndex => sqe.buf_index as u64,
            Field::FileIndex => sqe.file_index as u64,
            Field::AddressLength => sqe.file_index as u16 as u64,
            Field::Address3 => sqe.addr3,
            Field::Attributes => sqe.pad,
        }
    }

    /// Sets bits of the field.
    pub const fn set(self, sqe: &mut Sqe, bits: u64) {
        self.put(sqe, self.value(sqe) | bits);
    }

    /// Clears bits of the field.
    pub const fn clear(self, sqe: &mut Sqe, bits: u64) {
        self.put(sqe, self.value(sqe) & !bits);
    }

    /// Stores a value, truncated to the width of the field.
    const fn put(self, sqe: &mut Sqe, value: u64) {
        const LOW: u64 = u32::MAX as u64;
        match self {
            Field::Flags => sqe.flags = value as u8,
            Field::Ioprio => sqe.ioprio = value as u16,
            Field::Fd => sqe.fd = value as i32,
            Field::Offset => sqe.off = value,
            Field::OffsetLow => sqe.off = sqe.off & !LOW | value & LOW,
            Field::Address => sqe.addr = value,
            Field::AddressLow => sqe.addr = sqe.addr & !LOW | value & LOW,
            Field::AddressHigh => sqe.addr = sqe.addr & LOW | value << 32,
            Field::Length => sqe.len = value as u32,
            Field::OpFlags => sqe.op_flags = value as u32,
            Field::BufferIndex => sqe.buf_index = value as u16,
            Field::FileIndex => sqe.file_index = value as u32,
            Field::AddressLength => sqe.file_index = sqe.file_index & 0xffff_0000 | value as u16 as u32,
            Field::Address3 => sqe.addr3 = value,
            Field::Attributes => sqe.pad = value,
        }
    }

    /// Returns the width of the field in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Field::Flags => 1,
            Field::Ioprio | Field::BufferIndex | Field::AddressLength => 2,
            Field::Fd
            | Field::OffsetLow
            | Field::AddressLow
            | Field::AddressHigh
            | Field::Length
            | Field::OpFlags
            | Field::FileIndex => 4,
            Field::Offset | Field::Address | Field::Address3 | Field::Attributes => 8,
        }
    }
}

/// A set of fields: an SQE in which all their bits are set.
#[derive(Clone, Copy, Debug)]
pub struct Unused {
    sqe: Sqe,
}

impl Unused {
    /// The descriptor.
    pub const FD: Unused = Unused { sqe: Sqe { fd: -1, ..Sqe::EMPTY } };
    /// Offset or second address.
    pub const OFF: Unused = Unused { sqe: Sqe { off: u64::MAX, ..Sqe::EMPTY } };
    /// The address.
    pub const ADDR: Unused = Unused { sqe: Sqe { addr: u64::MAX, ..Sqe::EMPTY } };
    /// The length or count.
    pub const LEN: Unused = Unused { sqe: Sqe { len: u32::MAX, ..Sqe::EMPTY } };
    /// The operation's flags.
    pub const OP_FLAGS: Unused = Unused { sqe: Sqe { op_flags: u32::MAX, ..Sqe::EMPTY } };
    /// The index of a registered buffer, or a buffer group.
    pub const BUF_INDEX: Unused = Unused { sqe: Sqe { buf_index: u16::MAX, ..Sqe::EMPTY } };
    /// Registered credentials.
    pub const PERSONALITY: Unused = Unused { sqe: Sqe { personality: u16::MAX, ..Sqe::EMPTY } };
    /// A slot of the file table, or a second descriptor.
    pub const FILE_INDEX: Unused = Unused { sqe: Sqe { file_index: u32::MAX, ..Sqe::EMPTY } };
    /// The padding behind `addr_len`.
    pub const ADDR_LEN_PAD: Unused = Unused { sqe: Sqe { file_index: 0xffff_0000, ..Sqe::EMPTY } };
    /// The third address.
    pub const ADDR3: Unused = Unused { sqe: Sqe { addr3: u64::MAX, ..Sqe::EMPTY } };
    /// The padding at the end, which no operation reads.
    pub const PAD: Unused = Unused { sqe: Sqe { pad: u64::MAX, ..Sqe::EMPTY } };

    /// Returns the union of both sets.
    pub const fn with(self, other: Unused) -> Unused {
        let (a, b) = (self.sqe, other.sqe);
        let sqe = Sqe {
            fd: a.fd | b.fd,
            off: a.off | b.off,
            addr: a.addr | b.addr,
            len: a.len | b.len,
            op_flags: a.op_flags | b.op_flags,
            buf_index: a.buf_index | b.buf_index,
            personality: a.personality | b.personality,
            file_index: a.file_index | b.file_index,
            addr3: a.addr3 | b.addr3,
            pad: a.pad | b.pad,
            ..Sqe::EMPTY
        };
        Unused { sqe }
    }

    /// True if any of these fields is not zero.
    #[inline(always)]
    pub const fn is_set(&self, sqe: &Sqe) -> bool {
        // By words, so that the compiler can test several words at a time.
        let (sqe, mask) = (sqe.words(), self.sqe.words());
        let (mut set, mut word) = (0, 0);
        while word < sqe.len() {
            set |= sqe[word] & mask[word];
            word += 1;
        }
        set != 0
    }

    /// True if the set contains this field.
    pub const fn names(&self, field: Field) -> bool {
        let all = u64::MAX >> (64 - 8 * field.bytes());
        field.value(&self.sqe) == all
    }
}
