//! The SQE fields that an operation does not read, and in which it refuses values other than zero.

use crate::abi::Sqe;
use crate::request::field::Field;

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
