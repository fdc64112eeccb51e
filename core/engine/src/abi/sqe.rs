//! The submission queue entry.

use core::mem::offset_of;

use linux_raw_sys::io_uring::io_uring_sqe;

/// `IOSQE_*` that exist.
pub const KNOWN_SQE_FLAGS: u8 = 0x7f;

/// `struct io_uring_sqe`, with one name for each place; which operation calls it what is in
/// `io_uring_enter(2)` and in the op table.
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
    /// Offset, second address.
    pub off: u64,
    /// Address, `splice_off_in`.
    pub addr: u64,
    /// Length or count.
    pub len: u32,
    /// `rw_flags`, `msg_flags`, `open_flags`, ...: the operation's flags.
    pub op_flags: u32,
    /// Comes back in the CQE.
    pub user_data: u64,
    /// Index of a registered buffer, or buffer group.
    pub buf_index: u16,
    /// Registered credentials.
    pub personality: u16,
    /// `splice_fd_in`, `file_index`, `optlen`, `addr_len` in its lower half.
    pub file_index: u32,
    /// Third address.
    pub addr3: u64,
    /// Attributes; none of the operations here reads them.
    pub pad: u64,
}

impl Sqe {
    /// One of zeroes.
    pub const EMPTY: Sqe = Sqe::from_words([0; 8]);

    /// Operation, flags, priority and file, as they stand in memory.
    #[inline]
    pub fn first_word(&self) -> u64 {
        self.words()[0]
    }

    /// The SQE of these words.
    #[inline(always)]
    pub const fn from_words(words: [u64; 8]) -> Sqe {
        // SAFETY: of that size, and integers without padding.
        unsafe { core::mem::transmute(words) }
    }

    /// The SQE by words, of which there are fewer than fields.
    #[inline(always)]
    pub const fn words(&self) -> &[u64; 8] {
        // SAFETY: of that size, integers without padding, aligned as the widest of them.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    /// `addr_len`, the lower half of `file_index`.
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
