//! The submission queue entry.

use core::mem::offset_of;

use linux_raw_sys::io_uring::io_uring_sqe;

/// All `IOSQE_*` flags that exist.
pub const KNOWN_SQE_FLAGS: u8 = 0x7f;

/// `struct io_uring_sqe`, with one name for each place. The names that an operation has for a place
/// are in `io_uring_enter(2)` and in the op table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sqe {
    /// `IORING_OP_*`.
    pub opcode: u8,
    /// `IOSQE_*`.
    pub flags: u8,
    /// I/O priority; many operations keep flags of their own here.
    pub ioprio: u16,
    /// File descriptor or index of a registered file.
    pub fd: i32,
    /// Offset, or second address.
    pub off: u64,
    /// Address, or `splice_off_in`.
    pub addr: u64,
    /// Length or count.
    pub len: u32,
    /// Flags of the operation: `rw_flags`, `msg_flags`, `open_flags`, ...
    pub op_flags: u32,
    /// Copied into the CQE.
    pub user_data: u64,
    /// Index of a registered buffer, or a buffer group.
    pub buf_index: u16,
    /// Number of the registered credentials to use.
    pub personality: u16,
    /// `splice_fd_in`, `file_index` or `optlen`; the lower half is `addr_len`.
    pub file_index: u32,
    /// Third address.
    pub addr3: u64,
    /// Pointer to and mask of attributes; no operation here reads them.
    pub pad: u64,
}

impl Sqe {
    /// An SQE of zeros.
    pub const EMPTY: Sqe = Sqe::from_words([0; 8]);

    /// Returns opcode, flags, `ioprio` and `fd` as one word, in memory order.
    #[inline]
    pub fn first_word(&self) -> u64 {
        self.words()[0]
    }

    /// Makes an SQE of these words.
    #[inline(always)]
    pub const fn from_words(words: [u64; 8]) -> Sqe {
        // SAFETY: both types have the same size; all fields are integers, without padding.
        unsafe { core::mem::transmute(words) }
    }

    /// Returns the SQE as words; loads and stores of words are fewer than of fields.
    #[inline(always)]
    pub const fn words(&self) -> &[u64; 8] {
        // SAFETY: both types have the same size and alignment; all fields are integers, without padding.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    /// Returns `addr_len`, the lower half of `file_index`.
    pub fn addr_len(&self) -> u16 {
        self.file_index as u16
    }
}

const _: () = {
    assert!(size_of::<Sqe>() == 64 && size_of::<Sqe>() == size_of::<io_uring_sqe>());
    assert!(align_of::<Sqe>() == align_of::<u64>());
    assert!(offset_of!(Sqe, fd) == offset_of!(io_uring_sqe, fd));
    assert!(offset_of!(Sqe, off) == offset_of!(io_uring_sqe, __bindgen_anon_1));
    assert!(offset_of!(Sqe, addr) == offset_of!(io_uring_sqe, __bindgen_anon_2));
    assert!(offset_of!(Sqe, len) == offset_of!(io_uring_sqe, len));
    assert!(offset_of!(Sqe, op_flags) == offset_of!(io_uring_sqe, __bindgen_anon_3));
    assert!(offset_of!(Sqe, user_data) == offset_of!(io_uring_sqe, user_data));
    assert!(offset_of!(Sqe, buf_index) == offset_of!(io_uring_sqe, __bindgen_anon_4));
    assert!(offset_of!(Sqe, personality) == offset_of!(io_uring_sqe, personality));
    assert!(offset_of!(Sqe, file_index) == offset_of!(io_uring_sqe, __bindgen_anon_5));
    assert!(offset_of!(Sqe, addr3) == offset_of!(io_uring_sqe, __bindgen_anon_6));
};
