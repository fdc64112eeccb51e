//! The structures of `liburing.h`, as its inline functions in programs read and write them.

use core::ffi::{c_int, c_uint, c_void};

/// A queue entry of 64 bytes.
pub use anyring_engine::abi::Sqe;

/// `struct io_uring_cqe`, without the second half of large ones.
#[repr(C)]
#[derive(Debug)]
pub struct Cqe {
    /// The user data of the SQE.
    pub user_data: u64,
    /// The result, or a negative errno.
    pub res: i32,
    /// Flags (`IORING_CQE_F_*`).
    pub flags: u32,
}

/// `struct io_uring_sq`.
#[repr(C)]
#[derive(Debug)]
pub struct SubmissionQueue {
    /// The position up to which the kernel has taken entries.
    pub khead: *mut c_uint,
    /// The position up to which the program has submitted entries.
    pub ktail: *mut c_uint,
    /// For programs built with headers before 2.2.
    pub kring_mask: *mut c_uint,
    /// For programs built with headers before 2.2.
    pub kring_entries: *mut c_uint,
    /// Flags (`IORING_SQ_*`).
    pub kflags: *mut c_uint,
    /// The number of invalid entries that the kernel has skipped.
    pub kdropped: *mut c_uint,
    /// The index of the SQE at each position; null with `IORING_SETUP_NO_SQARRAY`.
    pub array: *mut c_uint,
    /// The SQEs.
    pub sqes: *mut Sqe,
    /// The position up to which entries were submitted.
    pub sqe_head: c_uint,
    /// The position up to which entries were given to the program.
    pub sqe_tail: c_uint,
    /// The length of the mapping at `ring_ptr` in bytes.
    pub ring_sz: usize,
    /// The mapping of the ring.
    pub ring_ptr: *mut c_void,
    /// The number of entries minus one.
    pub ring_mask: c_uint,
    /// The number of entries.
    pub ring_entries: c_uint,
    /// The length of the mapping at `sqes` in bytes.
    pub sqes_sz: c_uint,
    /// Unused.
    pub pad: c_uint,
}

/// `struct io_uring_cq`.
#[repr(C)]
#[derive(Debug)]
pub struct CompletionQueue {
    /// The position up to which the program has reaped CQEs.
    pub khead: *mut c_uint,
    /// The position up to which the kernel has posted CQEs.
    pub ktail: *mut c_uint,
    /// For programs built with headers before 2.2.
    pub kring_mask: *mut c_uint,
    /// For programs built with headers before 2.2.
    pub kring_entries: *mut c_uint,
    /// Flags (`IORING_CQ_*`); null if the kernel does not have them.
    pub kflags: *mut c_uint,
    /// The number of completions that were lost because there was no room.
    pub koverflow: *mut c_uint,
    /// The CQEs.
    pub cqes: *mut Cqe,
    /// The length of the mapping at `ring_ptr` in bytes.
    pub ring_sz: usize,
    /// The mapping of the ring.
    pub ring_ptr: *mut c_void,
    /// The number of entries minus one.
    pub ring_mask: c_uint,
    /// The number of entries.
    pub ring_entries: c_uint,
    /// Unused.
    pub pad: [c_uint; 2],
}

/// `struct io_uring`.
#[repr(C)]
#[derive(Debug)]
pub struct Ring {
    /// The submission queue.
    pub sq: SubmissionQueue,
    /// The completion queue.
    pub cq: CompletionQueue,
    /// Setup flags (`IORING_SETUP_*`).
    pub flags: c_uint,
    /// The ring's descriptor; -1 if it has none.
    pub ring_fd: c_int,
    /// Features (`IORING_FEAT_*`).
    pub features: c_uint,
    /// The number that names the ring in `enter`: the descriptor, or its registered index.
    pub enter_ring_fd: c_int,
    /// The library's notes about the ring, see [`crate::ring`].
    pub int_flags: u8,
    /// Unused.
    pub pad: [u8; 3],
    /// One more than the descriptor for mapping the ring's memory, if this is not `ring_fd`; else 0.
    pub pad2: c_uint,
}

/// `struct io_uring_cqe_iter`.
#[repr(C)]
#[derive(Debug)]
pub struct CqeIter {
    /// The CQEs.
    pub cqes: *mut Cqe,
    /// The number of entries minus one.
    pub mask: c_uint,
    /// 1 if each entry takes two places.
    pub shift: c_uint,
    /// The position of the next CQE.
    pub head: c_uint,
    /// The position after the last CQE.
    pub tail: c_uint,
}

/// `struct __kernel_timespec`.
#[repr(C)]
#[derive(Debug)]
pub struct Timespec {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanoseconds: i64,
}

/// The layouts that a test compares with the header: each structure's name in C, and its fields.
#[macro_export]
macro_rules! layouts {
    ($visit:ident) => {
        $visit! {
            SubmissionQueue "struct io_uring_sq" {
                khead, ktail, kring_mask, kring_entries, kflags, kdropped, array, sqes, sqe_head, sqe_tail,
                ring_sz, ring_ptr, ring_mask, ring_entries, sqes_sz, pad
            }
            CompletionQueue "struct io_uring_cq" {
                khead, ktail, kring_mask, kring_entries, kflags, koverflow, cqes, ring_sz, ring_ptr, ring_mask,
                ring_entries, pad
            }
            Ring "struct io_uring" {
                sq, cq, flags, ring_fd, features, enter_ring_fd, int_flags, pad, pad2
            }
            CqeIter "struct io_uring_cqe_iter" { cqes, mask, shift, head, tail }
            Cqe "struct io_uring_cqe" { user_data, res, flags }
        }
    };
}
