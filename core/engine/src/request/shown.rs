//! Descriptions of an operation's SQE fields, for printing requests (`anyring trace`) and for making requests with
//! meaningful values (the fuzzer).

use crate::abi::{IOSQE_BUFFER_SELECT, Sqe};
use crate::request::field::Field;

pub use crate::abi::names::Names;

/// The description of one field that an operation reads.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// The field.
    pub field: Field,
    /// The name of the argument in the manual: `buf`, `nbytes`, `msg_flags`.
    pub name: &'static str,
    /// The meaning of the value.
    pub kind: Kind,
    /// The conditions under which a request has the argument. If one does not hold, the field is ignored or meaningless.
    pub when: &'static [When],
}

/// Makes an argument that every request has.
pub const fn arg(field: Field, name: &'static str, kind: Kind) -> Argument {
    Argument { field, name, kind, when: &[] }
}

impl Argument {
    /// Restricts the argument to requests for which all these conditions hold.
    pub const fn when(mut self, when: &'static [When]) -> Argument {
        self.when = when;
        self
    }

    /// Restricts the argument to requests in which the field is not zero.
    pub const fn unless_zero(self) -> Argument {
        self.when(&[When::Given])
    }

    /// True if this request has the argument.
    pub fn applies(&self, sqe: &Sqe) -> bool {
        self.when.iter().all(|condition| condition.holds(self.field, sqe))
    }
}

/// The request's file.
pub const FD: Argument = arg(Field::Fd, "fd", Kind::File);
/// The request's file, in operations on sockets.
pub const SOCKET: Argument = arg(Field::Fd, "sockfd", Kind::File);
/// The directory at which the look-up of a path begins.
pub const DIRECTORY: Argument = arg(Field::Fd, "dirfd", Kind::Descriptor);
/// The path.
pub const PATH: Argument = arg(Field::Address, "path", Kind::Path);
/// The slot for a new file, if it gets no descriptor.
pub const FILE_INDEX: Argument = arg(Field::FileIndex, "file_index", Kind::Slot).unless_zero();
/// The group that provides the buffer.
pub const GROUP: Argument = arg(Field::BufferIndex, "buf_group", Kind::Group)
    .when(&[When::Some(Field::Flags, IOSQE_BUFFER_SELECT as u64)]);
/// Condition that no provided buffer is used: only then do addresses of memory count.
pub const OWN_MEMORY: When = When::None(Field::Flags, IOSQE_BUFFER_SELECT as u64);

/// Makes the condition that the operation's flags contain some of these bits.
pub const fn asks(bits: u32) -> When {
    When::Some(Field::OpFlags, bits as u64)
}

/// A condition on an SQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// The argument itself is not 0.
    Given,
    /// Some of these bits of the field are set.
    Some(Field, u64),
    /// None of these bits of the field is set.
    None(Field, u64),
    /// The field has this value.
    Is(Field, u64),
    /// The field does not have this value.
    Not(Field, u64),
    /// The value of the field is between the two numbers, inclusive.
    Within(Field, u64, u64),
}

impl When {
    /// True if the SQE meets the condition, which must name a field ([`When::Given`] does not).
    pub const fn is_met(self, sqe: &Sqe) -> bool {
        self.holds(Field::Flags, sqe)
    }

    /// True if the SQE meets the condition of an argument in the field `own`.
    const fn holds(self, own: Field, sqe: &Sqe) -> bool {
        match self {
            When::Given => own.value(sqe) != 0,
            When::Some(field, bits) => field.value(sqe) & bits != 0,
            When::None(field, bits) => field.value(sqe) & bits == 0,
            When::Is(field, value) => field.value(sqe) == value,
            When::Not(field, value) => field.value(sqe) != value,
            When::Within(field, first, last) => {
                let value = field.value(sqe);
                first <= value && value <= last
            }
        }
    }
}

/// The meaning of a field.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// The request's file: a descriptor, or a registered file with `IOSQE_FIXED_FILE`.
    File,
    /// A descriptor, never a registered file; for directories also `AT_FDCWD`.
    Descriptor,
    /// A second file: a descriptor, or a registered file if the operation's flags have this bit.
    SecondFile(u32),
    /// The index of a registered file, whatever the flags are.
    RegisteredFile,
    /// The place for a new file: 0 for a descriptor, `IORING_FILE_INDEX_ALLOC`, or a slot's index plus one.
    Slot,
    /// A number.
    Number,
    /// A number that may be negative.
    Signed,
    /// A number shown in hexadecimal, because its bits matter.
    Hex,
    /// File permissions.
    Mode,
    /// An offset in a file; -1 is the file's own position.
    Offset,
    /// An address whose memory is not shown.
    Address,
    /// The user data of another request.
    UserData,
    /// Bits with names.
    Flags(&'static Names),
    /// One of several named values.
    Choice(&'static Names),
    /// One of several named values in the bits of the mask, and flags in the other bits.
    ChoiceAndFlags(u32, &'static Names, &'static Names),
    /// An opcode.
    Operation,
    /// The index of a registered buffer.
    Buffer,
    /// The number of a group of provided buffers.
    Group,
    /// Data that the operation writes; the field has their length.
    Data(Field),
    /// Memory that the operation fills; the result is the length of the data.
    Filled,
    /// An array of `struct iovec` with the data that the operation writes; the field has their number.
    Vectors(Field),
    /// An array of `struct iovec` that the operation fills; the field has their number. With a provided buffer, only lengths count.
    VectorsFilled(Field),
    /// A `struct msghdr` to send.
    Message,
    /// A `struct msghdr` to receive into.
    MessageFilled,
    /// A path.
    Path,
    /// A string that is not a path.
    Text,
    /// A socket address; the field has its length.
    SocketAddress(Field),
    /// Memory for a socket address; the field has the address of its length.
    SocketAddressFilled(Field),
    /// The address of a 32-bit length, which the operation updates.
    LengthAt,
    /// An array of 32-bit descriptors that the operation reads; the field has their number.
    Descriptors(Field),
    /// An array of this many descriptors or registered files' indices, which the operation fills.
    DescriptorsFilled(u32),
    /// A structure that the operation reads.
    Structure(&'static Structure),
    /// A structure that the operation fills.
    StructureFilled(&'static Structure),
    /// An array of structures that the operation reads; the field has their number.
    Structures(&'static Structure, Field),
    /// An array of structures that the operation fills; the result is their number.
    StructuresFilled(&'static Structure),
}

/// A structure in the program's memory.
#[derive(Debug)]
pub struct Structure {
    /// Name with the keyword: `struct ...`.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: u32,
    /// The members that are shown.
    pub members: &'static [Member],
}

/// A member of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Name, with a path of nested members.
    pub name: &'static str,
    /// Offset in the structure in bytes.
    pub offset: u32,
    /// Size in bytes: 1, 2, 4 or 8.
    pub bytes: u32,
    /// The meaning of the value: [`Kind::Number`], [`Kind::Signed`], [`Kind::Hex`], [`Kind::Mode`],
    /// [`Kind::Flags`], [`Kind::Choice`], [`Kind::ChoiceAndFlags`], [`Kind::Descriptor`], [`Kind::Address`].
    pub kind: Kind,
}

impl Member {
    /// Makes a member of this offset and size in bytes.
    pub const fn new(name: &'static str, offset: u32, bytes: u32, kind: Kind) -> Member {
        Member { name, offset, bytes, kind }
    }
}
