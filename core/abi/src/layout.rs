//! Sizes and offsets of ring memory.

use linux_raw_sys::io_uring::{
    IORING_OFF_PBUF_RING, IORING_OFF_SQES, IORING_SETUP_CLAMP, IORING_SETUP_CQE32, IORING_SETUP_CQSIZE,
    IORING_SETUP_NO_MMAP, IORING_SETUP_NO_SQARRAY, IORING_SETUP_SQE128,
};
use linux_raw_sys::io_uring::{io_cqring_offsets, io_sqring_offsets, io_uring_params};

use crate::{Errno, IORING_SETUP_CQE_MIXED, IORING_SETUP_SQE_MIXED};

/// Offset of the SQEs in the memfd.
pub const SQES_OFFSET: u64 = IORING_OFF_SQES as u64;
/// Offset of the parameter region in the memfd (`IORING_MAP_OFF_PARAM_REGION`).
pub const PARAM_REGION_OFFSET: u64 = 0x2000_0000;
/// Offset of the first refill ring of zero-copy receives in the memfd (`IORING_MAP_OFF_ZCRX_REGION`).
pub const RECEIVE_QUEUES_OFFSET: u64 = 0x3000_0000;
/// log2 of the distance in bytes between two refill rings (`IORING_OFF_ZCRX_SHIFT`).
pub const RECEIVE_QUEUE_SHIFT: u32 = 16;
/// Offset of the first provided buffer ring in the memfd.
pub const PBUF_OFFSET: u64 = IORING_OFF_PBUF_RING as u64;
/// Offset of the CQEs from the beginning of ring memory, behind the header.
pub const CQES_OFFSET: usize = 320;

/// Offset of the offer of records on demand (`anyring_trace::demand`): four words behind the words that programs know.
pub const OFFER_OFFSET: usize = 288;

const MAX_SQ_ENTRIES: u32 = 32768;
const MAX_CQ_ENTRIES: u32 = 2 * MAX_SQ_ENTRIES;

/// The words at the beginning of ring memory; each value is the word's offset. Heads and tails have
/// cache lines of their own. Programs read all offsets from `io_uring_params`.
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of io_sqring_offsets and io_cqring_offsets")]
pub enum Word {
    SqHead = 0,
    SqTail = 64,
    CqHead = 128,
    CqTail = 192,
    SqMask = 256,
    CqMask = 260,
    SqEntries = 264,
    CqEntries = 268,
    SqDropped = 272,
    SqFlags = 276,
    CqFlags = 280,
    CqOverflow = 284,
}

const _: () = assert!(Word::CqOverflow as usize + 4 <= OFFER_OFFSET && OFFER_OFFSET + 32 <= CQES_OFFSET);

/// Sizes of one ring's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// SQ entries, a power of two.
    pub sq_entries: u32,
    /// CQ entries, a power of two.
    pub cq_entries: u32,
    /// log2 of an SQE's size.
    pub sqe_shift: u32,
    /// log2 of a CQE's size.
    pub cqe_shift: u32,
    /// Offset of the SQ index array, if the ring has one.
    pub array_offset: Option<usize>,
}

impl Layout {
    /// Returns the layout that `entries` and the parameters ask for.
    ///
    /// # Errors
    /// `EINVAL` as in `io_uring_setup(2)`: no entries, too many without CLAMP, or a CQ smaller than the SQ.
    /// `EOVERFLOW`: a ring of mixed entry sizes with a single entry, where a big one does not fit.
    pub fn new(entries: u32, params: &io_uring_params) -> Result<Layout, Errno> {
        let flags = params.flags;
        let clamp = |wanted: u32, most: u32| match wanted {
            0 => Err(Errno::EINVAL),
            _ if wanted <= most => Ok(wanted.next_power_of_two()),
            _ if flags & IORING_SETUP_CLAMP != 0 => Ok(most),
            _ => Err(Errno::EINVAL),
        };
        let sq_entries = clamp(entries, MAX_SQ_ENTRIES)?;
        let cq_entries = if flags & IORING_SETUP_CQSIZE != 0 {
            clamp(params.cq_entries, MAX_CQ_ENTRIES)?
        } else {
            2 * sq_entries
        };
        if cq_entries < sq_entries {
            return Err(Errno::EINVAL);
        }
        let mixed = |flag: u32, entries: u32| flags & flag != 0 && entries < 2;
        if mixed(IORING_SETUP_CQE_MIXED, cq_entries) || mixed(IORING_SETUP_SQE_MIXED, sq_entries) {
            return Err(Errno::EOVERFLOW);
        }
        let cqe_shift = if flags & IORING_SETUP_CQE32 != 0 { 5 } else { 4 };
        let sqe_shift = if flags & IORING_SETUP_SQE128 != 0 { 7 } else { 6 };
        let cqes_end = CQES_OFFSET + ((cq_entries as usize) << cqe_shift);
        let array_offset = (flags & IORING_SETUP_NO_SQARRAY == 0).then(|| cqes_end.next_multiple_of(64));
        Ok(Layout { sq_entries, cq_entries, sqe_shift, cqe_shift, array_offset })
    }

    /// Returns the length in bytes of header, CQEs and SQ index array.
    pub fn rings_length(&self) -> usize {
        let cqes_end = CQES_OFFSET + ((self.cq_entries as usize) << self.cqe_shift);
        self.array_offset.map_or(cqes_end, |array| array + 4 * self.sq_entries as usize)
    }

    /// Returns the length in bytes of the SQE array.
    pub fn sqes_length(&self) -> usize {
        (self.sq_entries as usize) << self.sqe_shift
    }

    /// Writes sizes and offsets into `params`; with NO_MMAP, the addresses that the program passed are kept.
    pub fn describe(&self, params: &mut io_uring_params) {
        params.sq_entries = self.sq_entries;
        params.cq_entries = self.cq_entries;
        let given = params.flags & IORING_SETUP_NO_MMAP != 0;
        let (sqes, rings) = if given { (params.sq_off.user_addr, params.cq_off.user_addr) } else { (0, 0) };
        params.sq_off = io_sqring_offsets {
            head: Word::SqHead as u32,
            tail: Word::SqTail as u32,
            ring_mask: Word::SqMask as u32,
            ring_entries: Word::SqEntries as u32,
            flags: Word::SqFlags as u32,
            dropped: Word::SqDropped as u32,
            array: self.array_offset.unwrap_or(0) as u32,
            resv1: 0,
            user_addr: sqes,
        };
        params.cq_off = io_cqring_offsets {
            head: Word::CqHead as u32,
            tail: Word::CqTail as u32,
            ring_mask: Word::CqMask as u32,
            ring_entries: Word::CqEntries as u32,
            overflow: Word::CqOverflow as u32,
            cqes: CQES_OFFSET as u32,
            flags: Word::CqFlags as u32,
            resv1: 0,
            user_addr: rings,
        };
    }
}
