//! How a request is shown: what each field of its SQE means, for whoever prints one (`anyring trace`) and for whoever fills
//! one with values that mean something (the fuzzer).

use crate::abi::{IOSQE_BUFFER_SELECT, Sqe};
use crate::request::field::Field;

pub use crate::abi::names::Names;

/// One field that an operation reads, as it is shown.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Where it stands in the SQE.
    pub field: Field,
    /// The manual's name of it: `buf`, `nbytes`, `msg_flags`.
    pub name: &'static str,
    /// The meaning of the value.
    pub kind: Kind,
    /// Of which requests it is one: of those for which all of this holds. Of others it is ignored, or says nothing.
    pub when: &'static [When],
}

/// An argument of every request.
pub const fn arg(field: Field, name: &'static str, kind: Kind) -> Argument {
    Argument { field, name, kind, when: &[] }
}

impl Argument {
    /// The argument, of those requests only for which all of this holds.
    pub const fn when(mut self, when: &'static [When]) -> Argument {
        self.when = when;
        self
    }

    /// The argument, of those requests only in which the field is not zero.
    pub const fn unless_zero(self) -> Argument {
        self.when(&[When::Given])
    }

    /// True if the argument is one of this request's.
    pub fn applies(&self, sqe: &Sqe) -> bool {
        self.when.iter().all(|condition| condition.holds(self.field, sqe))
    }
}

/// The request's file.
pub const FD: Argument = arg(Field::Fd, "fd", Kind::File);
/// The request's file, of operations on sockets.
pub const SOCKET: Argument = arg(Field::Fd, "sockfd", Kind::File);
/// From where a path is looked up.
pub const DIRECTORY: Argument = arg(Field::Fd, "dirfd", Kind::Descriptor);
/// The path of operations on one.
pub const PATH: Argument = arg(Field::Address, "path", Kind::Path);
/// Where a new file goes, if not among the descriptors.
pub const FILE_INDEX: Argument = arg(Field::FileIndex, "file_index", Kind::Slot).unless_zero();
/// The group that a buffer is taken from.
pub const GROUP: Argument = arg(Field::BufferIndex, "buf_group", Kind::Group)
    .when(&[When::Some(Field::Flags, IOSQE_BUFFER_SELECT as u64)]);
/// Of requests that take no buffer from a group: what addresses of memory are arguments of.
pub const OWN_MEMORY: When = When::None(Field::Flags, IOSQE_BUFFER_SELECT as u64);

/// Of requests with some of these flags of their operation.
pub const fn asks(bits: u32) -> When {
    When::Some(Field::OpFlags, bits as u64)
}

/// A condition on an SQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// The argument itself is not 0.
    Given,
    /// Of these bits of the field, some are set.
    Some(Field, u64),
    /// Of these bits of the field, none is set.
    None(Field, u64),
    /// The field is this.
    Is(Field, u64),
    /// The field is not this.
    Not(Field, u64),
    /// The field is neither less than the first nor more than the second.
    Within(Field, u64, u64),
}

impl When {
    /// True if the condition holds for an SQE, whatever argument it is a condition of. For those that name their field.
    pub const fn is_met(self, sqe: &Sqe) -> bool {
        self.holds(Field::Flags, sqe)
    }

    /// True if the condition holds for an argument in the field `own`.
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
    /// The request's file: a descriptor, or a registered one with `IOSQE_FIXED_FILE`.
    File,
    /// A descriptor that is never a registered one; directories may be `AT_FDCWD`.
    Descriptor,
    /// A file beside the request's: a descriptor, or a registered one where the operation's flags have this bit.
    SecondFile(u32),
    /// The number of a registered file, whatever the flags say.
    RegisteredFile,
    /// A place for a new file: 0 for a descriptor, `IORING_FILE_INDEX_ALLOC`, or a slot's number and one.
    Slot,
    /// A number.
    Number,
    /// A number that may be negative.
    Signed,
    /// A number whose bits matter.
    Hex,
    /// Permissions.
    Mode,
    /// An offset in a file, -1 for the file's own position.
    Offset,
    /// An address that is not followed.
    Address,
    /// User data of another request.
    UserData,
    /// Bits with names.
    Flags(&'static Names),
    /// One of several values with names.
    Choice(&'static Names),
    /// One of several values with names in these bits, and flags in the others.
    ChoiceAndFlags(u32, &'static Names, &'static Names),
    /// The number of an operation.
    Operation,
    /// The number of a registered buffer.
    Buffer,
    /// The number of a buffer group.
    Group,
    /// Data that the operation writes; how long they are stands in this field.
    Data(Field),
    /// Memory that the operation reads into; how much of it was filled, the result says.
    Filled,
    /// `struct iovec`s of what it writes; how many, this field says.
    Vectors(Field),
    /// `struct iovec`s that it reads into; how many, this field says. With a buffer of a group, only their lengths count.
    VectorsFilled(Field),
    /// `struct msghdr` of what it sends.
    Message,
    /// `struct msghdr` that it receives into.
    MessageFilled,
    /// A path.
    Path,
    /// A string that is no path.
    Text,
    /// A socket address; its length stands in this field.
    SocketAddress(Field),
    /// Where a socket address is stored; where its length lies, this field says.
    SocketAddressFilled(Field),
    /// The address of a length of 32 bits, which is replaced.
    LengthAt,
    /// Descriptors that it reads, of 32 bits each; how many, this field says.
    Descriptors(Field),
    /// So many descriptors, or numbers of registered files, that are filled by the time it completes.
    DescriptorsFilled(u32),
    /// A structure that it reads.
    Structure(&'static Structure),
    /// A structure that is filled by the time it completes.
    StructureFilled(&'static Structure),
    /// So many structures one after the other that it reads; how many, this field says.
    Structures(&'static Structure, Field),
    /// Structures one after the other that are filled by the time it completes; how many, the result says.
    StructuresFilled(&'static Structure),
}

/// A structure in the program's memory, by its members.
#[derive(Debug)]
pub struct Structure {
    /// `struct ...`.
    pub name: &'static str,
    /// Its length in bytes.
    pub bytes: u32,
    /// The members that are shown.
    pub members: &'static [Member],
}

/// A member of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Its name.
    pub name: &'static str,
    /// Where it begins, in bytes.
    pub offset: u32,
    /// Its length: 1, 2, 4 or 8 bytes.
    pub bytes: u32,
    /// The meaning of the value: [`Kind::Number`], [`Kind::Signed`], [`Kind::Hex`], [`Kind::Mode`],
    /// [`Kind::Flags`], [`Kind::Choice`], [`Kind::ChoiceAndFlags`], [`Kind::Descriptor`], [`Kind::Address`].
    pub kind: Kind,
}

impl Member {
    /// A member of so many bytes.
    pub const fn new(name: &'static str, offset: u32, bytes: u32, kind: Kind) -> Member {
        Member { name, offset, bytes, kind }
    }
}
