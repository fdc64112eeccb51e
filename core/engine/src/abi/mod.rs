//! The ABI that the kernel and programs agree on: SQEs, ring layout, error numbers, and definitions of Linux
//! 7.2's `<linux/io_uring.h>` that the bindings do not have yet.

pub mod errno;
mod flags;
pub mod layout;
pub mod names;
mod sqe;

pub use errno::Errno;
pub(crate) use flags::{columns, flags};
use linux_raw_sys::io_uring::io_uring_sqe_flags_bit as SqeFlag;
pub use sqe::{KNOWN_SQE_FLAGS, Sqe};

/// Big CQEs among small ones.
pub const IORING_SETUP_CQE_MIXED: u32 = 1 << 18;
/// Big SQEs among small ones: those of operations that have big ones.
pub const IORING_SETUP_SQE_MIXED: u32 = 1 << 19;
/// Each submission begins at the first SQE again.
pub const IORING_SETUP_SQ_REWIND: u32 = 1 << 20;
/// A NOP whose SQE is a big one.
pub const IORING_OP_NOP128: u8 = 63;
/// A command whose SQE is a big one.
pub const IORING_OP_URING_CMD128: u8 = 64;
/// One more than the last operation.
pub const IORING_OP_LAST: u8 = 65;
/// The time is in the SQE, in nanoseconds.
pub const IORING_TIMEOUT_IMMEDIATE_ARG: u32 = 1 << 7;
/// The name of a socket, or of the other end of its connection.
pub const SOCKET_URING_OP_GETSOCKNAME: u32 = 5;
/// To be skipped: it only fills the last entry before the end of the ring.
pub const IORING_CQE_F_SKIP: u32 = 1 << 5;
/// A time stamp by the clock of the network card.
pub const IORING_CQE_F_TSTAMP_HW: u32 = 1 << 16;
/// A big CQE on a ring that mixes sizes.
pub const IORING_CQE_F_32: u32 = 1 << 15;
/// A NOP's CQE is big, its second half `off` and `addr`.
pub const IORING_NOP_CQE32: u32 = 1 << 5;
/// Asks what there is.
pub const IORING_REGISTER_QUERY: u32 = 35;
/// The registration that controls a queue of zero-copy receives.
pub const IORING_REGISTER_ZCRX_CTRL: u32 = 36;
/// A queue of zero-copy receives that was exported.
pub const ZCRX_REG_IMPORT: u32 = 1;
/// A queue without an interface: everything is copied.
pub const ZCRX_REG_NODEV: u32 = 2;
/// Takes what the program gave back out of the refill ring.
pub const ZCRX_CTRL_FLUSH_RQ: u32 = 0;
/// Makes a descriptor of a queue.
pub const ZCRX_CTRL_EXPORT: u32 = 1;
/// Tells of an event once more.
pub const ZCRX_CTRL_ARM_EVENT: u32 = 2;
/// A filter of requests.
pub const IORING_REGISTER_BPF_FILTER: u32 = 37;
/// One more than the last registration.
pub const IORING_REGISTER_LAST: u32 = 38;

/// `fd` is the number of a registered file.
pub const IOSQE_FIXED_FILE: u32 = 1 << SqeFlag::IOSQE_FIXED_FILE_BIT as u32;
/// After all before it.
pub const IOSQE_IO_DRAIN: u32 = 1 << SqeFlag::IOSQE_IO_DRAIN_BIT as u32;
/// The next one follows it.
pub const IOSQE_IO_LINK: u32 = 1 << SqeFlag::IOSQE_IO_LINK_BIT as u32;
/// The next one follows it, also where it fails.
pub const IOSQE_IO_HARDLINK: u32 = 1 << SqeFlag::IOSQE_IO_HARDLINK_BIT as u32;
/// By a worker at once.
pub const IOSQE_ASYNC: u32 = 1 << SqeFlag::IOSQE_ASYNC_BIT as u32;
/// Into or from a buffer of a group.
pub const IOSQE_BUFFER_SELECT: u32 = 1 << SqeFlag::IOSQE_BUFFER_SELECT_BIT as u32;
/// No CQE of a success.
pub const IOSQE_CQE_SKIP_SUCCESS: u32 = 1 << SqeFlag::IOSQE_CQE_SKIP_SUCCESS_BIT as u32;

/// Not at the end, though the file is open for appending.
pub const RWF_NOAPPEND: u32 = 0x20;
/// All of it or nothing.
pub const RWF_ATOMIC: u32 = 0x40;
/// Nothing of it stays in the page cache.
pub const RWF_DONTCACHE: u32 = 0x80;
/// No signal for writing to what nobody reads.
pub const RWF_NOSIGNAL: u32 = 0x100;
/// From the program's own pages.
pub const MSG_ZEROCOPY: u32 = 0x400_0000;
