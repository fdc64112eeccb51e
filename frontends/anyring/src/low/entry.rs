//! The entries of the two queues.

use anyring_engine::abi::{IORING_SETUP_SQE_MIXED, Sqe as Raw};
use linux_raw_sys::io_uring as abi;
use std::fmt;

/// A submission queue entry: an operation with its arguments.
///
/// The types in [`op`](super::op) make entries.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sqe(pub(crate) Raw);

/// A submission queue entry of 128 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sqe128 {
    /// The first 64 bytes; the last 16 of them begin the command of a `URING_CMD`.
    pub entry: Sqe,
    /// The other 64 bytes; for a `URING_CMD`, the rest of its command.
    pub command: [u8; 64],
}

/// An entry of a queue with entries of both sizes: an entry of 64 bytes, or one half of an entry of 128 bytes
/// (`IORING_SETUP_SQE_MIXED`, since Linux 6.19).
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SqeMixed(pub(super) Sqe);

/// A completion queue entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cqe {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// A completion queue entry of 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cqe32 {
    /// The first 16 bytes.
    pub entry: Cqe,
    /// The additional result words of some operations.
    pub extra: [u64; 2],
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Sqe {}
    impl Sealed for super::Sqe128 {}
    impl Sealed for super::SqeMixed {}
    impl Sealed for super::Cqe {}
    impl Sealed for super::Cqe32 {}
}

/// The entry type of a ring's submission queue: [`Sqe`], [`Sqe128`], or both sizes ([`SqeMixed`]).
pub trait Submission: sealed::Sealed + Copy + From<Sqe> + 'static {
    /// The setup flag of rings with this entry type.
    const SETUP_FLAGS: u32;
}

impl Submission for Sqe {
    const SETUP_FLAGS: u32 = 0;
}

impl Submission for Sqe128 {
    const SETUP_FLAGS: u32 = abi::IORING_SETUP_SQE128;
}

impl Submission for SqeMixed {
    const SETUP_FLAGS: u32 = IORING_SETUP_SQE_MIXED;
}

impl From<Sqe> for SqeMixed {
    fn from(entry: Sqe) -> SqeMixed {
        SqeMixed(entry)
    }
}

impl Sqe128 {
    /// Changes the fields that small entries have, too: user data, links, and others.
    ///
    /// ```
    /// use anyring::low::op;
    ///
    /// let nop = op::Nop128::new().build().with(|entry| entry.user_data(7).link());
    /// assert_eq!(nop.entry.get_user_data(), 7);
    /// ```
    #[inline]
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(Sqe) -> Sqe) -> Sqe128 {
        self.entry = change(self.entry);
        self
    }

    /// Returns the two halves, in the order in which they lie in a queue of both sizes.
    pub(super) fn halves(self) -> [SqeMixed; 2] {
        [SqeMixed(self.entry), SqeMixed(Sqe::from_bytes(self.command))]
    }
}

impl AsRef<Sqe> for Sqe {
    fn as_ref(&self) -> &Sqe {
        self
    }
}

impl From<Sqe> for Sqe128 {
    fn from(entry: Sqe) -> Sqe128 {
        Sqe128 { entry, command: [0; 64] }
    }
}

/// The entry type of a ring's completion queue: [`Cqe`] or [`Cqe32`].
pub trait Completion: sealed::Sealed + Copy + 'static {
    /// The setup flag of rings with this entry type.
    const SETUP_FLAGS: u32;
}

impl Completion for Cqe {
    const SETUP_FLAGS: u32 = 0;
}

impl Completion for Cqe32 {
    const SETUP_FLAGS: u32 = abi::IORING_SETUP_CQE32;
}

/// Settings that every operation has, in addition to its own fields.
impl Sqe {
    /// Sets the user data, which every completion of the entry repeats.
    #[inline]
    #[must_use]
    pub fn user_data(mut self, data: u64) -> Sqe {
        self.0.user_data = data;
        self
    }

    /// The number that [`user_data`](Sqe::user_data) has set.
    #[inline]
    pub fn get_user_data(&self) -> u64 {
        self.0.user_data
    }

    /// The opcode of the operation.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.0.opcode
    }

    #[inline]
    fn flag(mut self, flag: abi::io_uring_sqe_flags_bit) -> Sqe {
        self.0.flags |= 1 << flag as u8;
        self
    }

    /// Links the next entry: it begins when this one has succeeded; if this one fails, the rest of the chain is cancelled.
    #[inline]
    #[must_use]
    pub fn link(self) -> Sqe {
        self.flag(abi::io_uring_sqe_flags_bit::IOSQE_IO_LINK_BIT)
    }

    /// Removes the flag that [`link`](Sqe::link) sets.
    #[inline]
    pub(crate) fn unlink(mut self) -> Sqe {
        self.0.flags &= !(1 << abi::io_uring_sqe_flags_bit::IOSQE_IO_LINK_BIT as u8);
        self
    }

    /// Links the next entry: it begins when this one has ended, with or without an error.
    #[inline]
    #[must_use]
    pub fn hard_link(self) -> Sqe {
        self.flag(abi::io_uring_sqe_flags_bit::IOSQE_IO_HARDLINK_BIT)
    }

    /// Makes the request wait until all requests submitted before have ended, and later requests wait for this one.
    #[inline]
    #[must_use]
    pub fn drain(self) -> Sqe {
        self.flag(abi::io_uring_sqe_flags_bit::IOSQE_IO_DRAIN_BIT)
    }

    /// Passes the request directly to a worker, without a first attempt that does not block.
    #[inline]
    #[must_use]
    pub fn force_async(self) -> Sqe {
        self.flag(abi::io_uring_sqe_flags_bit::IOSQE_ASYNC_BIT)
    }

    /// Omits the completion if the request succeeds.
    #[inline]
    #[must_use]
    pub fn skip_success(self) -> Sqe {
        self.flag(abi::io_uring_sqe_flags_bit::IOSQE_CQE_SKIP_SUCCESS_BIT)
    }

    /// Lets the request take a buffer of this group when data is there.
    #[inline]
    #[must_use]
    pub fn buffer_group(mut self, group: u16) -> Sqe {
        self.0.buf_index = group;
        self.flag(abi::io_uring_sqe_flags_bit::IOSQE_BUFFER_SELECT_BIT)
    }

    /// Lets the request use these registered credentials.
    #[inline]
    #[must_use]
    pub fn personality(mut self, personality: u16) -> Sqe {
        self.0.personality = personality;
        self
    }

    /// Returns the flags that link this entry to the next one.
    pub(super) fn links(&self) -> u8 {
        const LINKS: u8 = 1 << abi::io_uring_sqe_flags_bit::IOSQE_IO_LINK_BIT as u8
            | 1 << abi::io_uring_sqe_flags_bit::IOSQE_IO_HARDLINK_BIT as u8;
        self.0.flags & LINKS
    }

    /// Makes an entry of its 64 bytes, for an operation that this crate does not have.
    pub fn from_bytes(bytes: [u8; 64]) -> Sqe {
        // SAFETY: integers of the same size.
        Sqe(unsafe { std::mem::transmute::<[u8; 64], Raw>(bytes) })
    }

    /// Returns the 64 bytes that the engine reads.
    pub fn to_bytes(self) -> [u8; 64] {
        // SAFETY: integers of the same size, without padding.
        unsafe { std::mem::transmute::<Raw, [u8; 64]>(self.0) }
    }
}

impl fmt::Debug for Sqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = super::op::name(self.0.opcode);
        let mut out = f.debug_struct(name);
        out.field("flags", &self.0.flags).field("fd", &self.0.fd).field("user_data", &self.0.user_data);
        out.finish_non_exhaustive()
    }
}

impl Cqe {
    /// The user data of the completed entry.
    #[inline]
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// The result: a number that depends on the operation, or a negative errno.
    #[inline]
    pub fn result(&self) -> i32 {
        self.result
    }

    /// The completion's `IORING_CQE_F_*` flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// True if more completions of the same entry follow.
    #[inline]
    pub fn more(&self) -> bool {
        self.flags & abi::IORING_CQE_F_MORE != 0
    }

    /// The id of the provided buffer that the request took.
    #[inline]
    pub fn buffer_id(&self) -> Option<u16> {
        let has = self.flags & abi::IORING_CQE_F_BUFFER != 0;
        has.then_some((self.flags >> abi::IORING_CQE_BUFFER_SHIFT) as u16)
    }

    /// True if the engine keeps the buffer that the request took, because it has room for more (incremental buffer rings).
    #[inline]
    pub fn buffer_has_more(&self) -> bool {
        self.flags & abi::IORING_CQE_F_BUF_MORE != 0
    }

    /// True if the socket had more to read.
    #[inline]
    pub fn socket_nonempty(&self) -> bool {
        self.flags & abi::IORING_CQE_F_SOCK_NONEMPTY != 0
    }

    /// True if this is the notification of a zero-copy send: its buffer is no longer used.
    #[inline]
    pub fn is_notification(&self) -> bool {
        self.flags & abi::IORING_CQE_F_NOTIF != 0
    }
}

impl From<Cqe32> for Cqe {
    fn from(cqe: Cqe32) -> Cqe {
        cqe.entry
    }
}
