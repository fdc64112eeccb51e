//! What the kernel and programs agree on: SQEs, ring layout, error numbers, and what Linux 6.18 has in
//! `<linux/io_uring.h>` and the bindings do not have yet.

pub mod errno;
pub mod layout;
mod sqe;

pub use errno::Errno;
pub use sqe::{KNOWN_SQE_FLAGS, Sqe};

/// Big CQEs among small ones.
pub const IORING_SETUP_CQE_MIXED: u32 = 1 << 18;
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
/// One more than the last registration.
pub const IORING_REGISTER_LAST: u32 = 36;
