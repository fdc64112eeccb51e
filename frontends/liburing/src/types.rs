//! The structures of `liburing.h`, as its inline functions in programs read and write them.

use core::ffi::{c_int, c_uint, c_void};

/// A queue entry of 64 bytes, which the library never looks into.
pub use anyring_engine::abi::Sqe;

/// `struct io_uring_cqe`, without the second half of large ones.
#[repr(C)]
#[derive(Debug)]
pub struct Cqe {
    /// From the SQE.
    pub user_data: u64,
    /// The result, or a negative errno.
    pub res: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
}

/// `struct io_uring_sq`.
#[repr(C)]
#[derive(Debug)]
pub struct SubmissionQueue {
    /// Where the kernel says how far it has read.
    pub khead: *mut c_uint,
    /// Where it is told how far it may.
    pub ktail: *mut c_uint,
    /// For programs built with headers before 2.2.
    pub kring_mask: *mut c_uint,
    /// For programs built with headers before 2.2.
    pub kring_entries: *mut c_uint,
    /// `IORING_SQ_*`.
    pub kflags: *mut c_uint,
    /// Entries that the kernel did not take.
    pub kdropped: *mut c_uint,
    /// Which SQE each entry names; null with `IORING_SETUP_NO_SQARRAY`.
    pub array: *mut c_uint,
    /// The SQEs.
    pub sqes: *mut Sqe,
    /// Up to where entries were submitted.
    pub sqe_head: c_uint,
    /// Up to where entries were handed out.
    pub sqe_tail: c_uint,
    /// Bytes to unmap at `ring_ptr`.
    pub ring_sz: usize,
    /// The ring.
    pub ring_ptr: *mut c_void,
    /// Number of entries, less one.
    pub ring_mask: c_uint,
    /// Number of entries.
    pub ring_entries: c_uint,
    /// Bytes to unmap at `sqes`.
    pub sqes_sz: c_uint,
    /// Unused.
    pub pad: c_uint,
}

/// `struct io_uring_cq`.
#[repr(C)]
#[derive(Debug)]
pub struct CompletionQueue {
    /// Where the program says how far it has read.
    pub khead: *mut c_uint,
    /// Where the kernel says how far it may.
    pub ktail: *mut c_uint,
    /// For programs built with headers before 2.2.
    pub kring_mask: *mut c_uint,
    /// For programs built with headers before 2.2.
    pub kring_entries: *mut c_uint,
    /// `IORING_CQ_*`; null where the kernel has none.
    pub kflags: *mut c_uint,
    /// Completions that found no room.
    pub koverflow: *mut c_uint,
    /// The CQEs.
    pub cqes: *mut Cqe,
    /// Bytes to unmap at `ring_ptr`.
    pub ring_sz: usize,
    /// The ring.
    pub ring_ptr: *mut c_void,
    /// Number of entries, less one.
    pub ring_mask: c_uint,
    /// Number of entries.
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
    /// `IORING_SETUP_*`.
    pub flags: c_uint,
    /// The ring's descriptor; -1 where it has none.
    pub ring_fd: c_int,
    /// `IORING_FEAT_*`.
    pub features: c_uint,
    /// The number to enter by: the descriptor, or its registered index.
    pub enter_ring_fd: c_int,
    /// Facts that the library remembers, see [`crate::ring`].
    pub int_flags: u8,
    /// Unused.
    pub pad: [u8; 3],
    /// One more than the descriptor that the ring's memory is mapped by, if that is another than `ring_fd`.
    pub pad2: c_uint,
}

/// `struct io_uring_cqe_iter`.
#[repr(C)]
#[derive(Debug)]
pub struct CqeIter {
    /// The CQEs.
    pub cqes: *mut Cqe,
    /// Number of entries, less one.
    pub mask: c_uint,
    /// 1 where each entry has two places.
    pub shift: c_uint,
    /// The next one.
    pub head: c_uint,
    /// Behind the last one.
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

/// The layout that the test compares with the header: each structure's name in C, its size, and its fields.
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
