//! The ABI that the kernel and programs agree on: SQEs, ring layout, error numbers, and definitions of Linux
//! 7.2's `<linux/io_uring.h>` that the bindings do not have yet.
#![no_std]

pub mod errno;
mod flags;
pub mod layout;
pub mod names;
mod sqe;

pub use errno::Errno;
use linux_raw_sys::io_uring::io_uring_sqe_flags_bit as SqeFlag;
pub use sqe::{KNOWN_SQE_FLAGS, Sqe};

/// The ring mixes CQEs of 16 and 32 bytes.
pub const IORING_SETUP_CQE_MIXED: u32 = 1 << 18;
/// The ring mixes SQEs of 64 and 128 bytes; the operation determines the size.
pub const IORING_SETUP_SQE_MIXED: u32 = 1 << 19;
/// Each submission begins at the first SQE again.
pub const IORING_SETUP_SQ_REWIND: u32 = 1 << 20;
/// A NOP with an SQE of 128 bytes.
pub const IORING_OP_NOP128: u8 = 63;
/// A URING_CMD with an SQE of 128 bytes.
pub const IORING_OP_URING_CMD128: u8 = 64;
/// `addr` of a timeout is the time itself in nanoseconds, not a pointer.
pub const IORING_TIMEOUT_IMMEDIATE_ARG: u32 = 1 << 7;
/// Socket command: returns the address of the socket or of its peer.
pub const SOCKET_URING_OP_GETSOCKNAME: u32 = 5;
/// A filler CQE in the last entry before the end of the ring; programs skip it.
pub const IORING_CQE_F_SKIP: u32 = 1 << 5;
/// The time stamp is by the clock of the network card.
pub const IORING_CQE_F_TSTAMP_HW: u32 = 1 << 16;
/// This CQE has 32 bytes, on a ring that mixes sizes.
pub const IORING_CQE_F_32: u32 = 1 << 15;
/// The CQE of the NOP has 32 bytes; the second half is `off` and `addr`.
pub const IORING_NOP_CQE32: u32 = 1 << 5;
/// Registration that queries which operations and features exist.
pub const IORING_REGISTER_QUERY: u32 = 35;
/// The registration that controls a queue of zero-copy receives.
pub const IORING_REGISTER_ZCRX_CTRL: u32 = 36;
/// Imports a queue of zero-copy receives that was exported.
pub const ZCRX_REG_IMPORT: u32 = 1;
/// A queue of zero-copy receives without a network interface: all data is copied.
pub const ZCRX_REG_NODEV: u32 = 2;
/// Flushes the refill ring: consumes the buffers that the program has returned.
pub const ZCRX_CTRL_FLUSH_RQ: u32 = 0;
/// Exports a queue of zero-copy receives as a descriptor.
pub const ZCRX_CTRL_EXPORT: u32 = 1;
/// Arms the notification of an event again.
pub const ZCRX_CTRL_ARM_EVENT: u32 = 2;
/// Registration of a BPF filter of requests.
pub const IORING_REGISTER_BPF_FILTER: u32 = 37;

/// `fd` is an index of a registered file.
pub const IOSQE_FIXED_FILE: u32 = 1 << SqeFlag::IOSQE_FIXED_FILE_BIT as u32;
/// The request starts only after all earlier requests have completed.
pub const IOSQE_IO_DRAIN: u32 = 1 << SqeFlag::IOSQE_IO_DRAIN_BIT as u32;
/// The next SQE starts only after this one has succeeded.
pub const IOSQE_IO_LINK: u32 = 1 << SqeFlag::IOSQE_IO_LINK_BIT as u32;
/// The next SQE starts after this one, even if this one fails.
pub const IOSQE_IO_HARDLINK: u32 = 1 << SqeFlag::IOSQE_IO_HARDLINK_BIT as u32;
/// A worker does the request, without an attempt in the submission.
pub const IOSQE_ASYNC: u32 = 1 << SqeFlag::IOSQE_ASYNC_BIT as u32;
/// The buffer comes from the group of provided buffers in `buf_group`.
pub const IOSQE_BUFFER_SELECT: u32 = 1 << SqeFlag::IOSQE_BUFFER_SELECT_BIT as u32;
/// A request that succeeds posts no CQE.
pub const IOSQE_CQE_SKIP_SUCCESS: u32 = 1 << SqeFlag::IOSQE_CQE_SKIP_SUCCESS_BIT as u32;

/// Writes at the given offset although the file is open with `O_APPEND`.
pub const RWF_NOAPPEND: u32 = 0x20;
/// The write is atomic: not torn by a crash.
pub const RWF_ATOMIC: u32 = 0x40;
/// The data is dropped from the page cache after the transfer.
pub const RWF_DONTCACHE: u32 = 0x80;
/// No `SIGPIPE` when the peer has closed.
pub const RWF_NOSIGNAL: u32 = 0x100;
/// Sends from the program's own pages, without a copy.
pub const MSG_ZEROCOPY: u32 = 0x400_0000;
