//! Setup and exit of rings.

use crate::ring::{ENTERS_FOR_COMPLETIONS, PROGRAM_MEMORY, REGISTERED, REGISTERS_BY_INDEX};
use crate::size;
use crate::types::{CompletionQueue, Cqe, Ring, Sqe, SubmissionQueue};
use crate::{call, register, user};
use anyring_mapping::{Lengths, is_single};
use core::ffi::{c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use linux_raw_sys::errno::{EFBIG, EINVAL, ENOMEM};
use linux_raw_sys::general::{MAP_ANONYMOUS, MAP_HUGETLB, MAP_POPULATE, MAP_SHARED};
use linux_raw_sys::io_uring::{
    IORING_OFF_CQ_RING, IORING_OFF_SQ_RING, IORING_OFF_SQES, IORING_SETUP_IOPOLL, IORING_SETUP_NO_MMAP,
    IORING_SETUP_NO_SQARRAY, IORING_SETUP_REGISTERED_FD_ONLY, IORING_SETUP_SQPOLL, io_uring_params,
};

/// The size of the page for a ring in memory of the library that does not fit into an ordinary page.
const HUGE_PAGE: usize = 2 << 20;
/// From `<linux/mman.h>`: the size of huge pages, by its logarithm.
const HUGE_2MB: c_uint = 21 << 26;

// Null pointers and zeros, as C's `memset` leaves them.
// SAFETY: zeros are values of pointers and integers.
const EMPTY: Ring = unsafe { MaybeUninit::zeroed().assume_init() };
// SAFETY: as above.
const EMPTY_SQ: SubmissionQueue = unsafe { MaybeUninit::zeroed().assume_init() };
// SAFETY: as above.
const EMPTY_CQ: CompletionQueue = unsafe { MaybeUninit::zeroed().assume_init() };

/// The two queues of a ring.
struct Queues {
    sq: SubmissionQueue,
    cq: CompletionQueue,
}

impl Queues {
    /// Maps the memory of a ring that was just made or resized.
    fn map(fd: c_int, p: &io_uring_params) -> Result<Queues, c_int> {
        let mut queues = Queues { sq: EMPTY_SQ, cq: EMPTY_CQ };
        let (sq, cq) = (&mut queues.sq, &mut queues.cq);
        let lengths = Lengths::of(p, size::of_sqes(p.flags, 1), size::of_cqes(p.flags, 1));
        (sq.ring_sz, cq.ring_sz) = (lengths.sq_ring, lengths.cq_ring);
        let map = |bytes, offset: u32| call::map(bytes, MAP_SHARED | MAP_POPULATE, fd, offset.into());
        sq.ring_ptr = map(sq.ring_sz, IORING_OFF_SQ_RING)?;
        cq.ring_ptr = if is_single(p) {
            sq.ring_ptr
        } else {
            // SAFETY: nothing refers to the mappings yet.
            map(cq.ring_sz, IORING_OFF_CQ_RING).inspect_err(|_| unsafe { unmap_rings(sq, &EMPTY_CQ) })?
        };
        sq.sqes_sz = lengths.sqes as c_uint;
        let sqes = if sq.sqes_sz as usize == lengths.sqes {
            map(lengths.sqes, IORING_OFF_SQES)
        } else {
            Err(-(EINVAL as c_int))
        };
        // SAFETY: as above.
        sq.sqes = sqes.inspect_err(|_| unsafe { unmap_rings(sq, cq) })?.cast::<Sqe>();
        // SAFETY: the memory was just mapped as the parameters say.
        unsafe { queues.point(p) };
        Ok(queues)
    }

    /// Sets the pointers into the two rings.
    ///
    /// # Safety
    /// The `ring_ptr` of each of the two queues must point to memory of the layout that `p` describes.
    unsafe fn point(&mut self, p: &io_uring_params) {
        let Queues { sq, cq } = self;
        let (sq_ring, cq_ring) = (sq.ring_ptr, cq.ring_ptr);
        // SAFETY: the caller's promise.
        let in_sq = |offset: u32| unsafe { sq_ring.byte_add(offset as usize).cast::<c_uint>() };
        // SAFETY: the caller's promise.
        let in_cq = |offset: u32| unsafe { cq_ring.byte_add(offset as usize).cast::<c_uint>() };
        sq.khead = in_sq(p.sq_off.head);
        sq.ktail = in_sq(p.sq_off.tail);
        sq.kring_mask = in_sq(p.sq_off.ring_mask);
        sq.kring_entries = in_sq(p.sq_off.ring_entries);
        sq.kflags = in_sq(p.sq_off.flags);
        sq.kdropped = in_sq(p.sq_off.dropped);
        if p.flags & IORING_SETUP_NO_SQARRAY == 0 {
            sq.array = in_sq(p.sq_off.array);
        }
        cq.khead = in_cq(p.cq_off.head);
        cq.ktail = in_cq(p.cq_off.tail);
        cq.kring_mask = in_cq(p.cq_off.ring_mask);
        cq.kring_entries = in_cq(p.cq_off.ring_entries);
        cq.koverflow = in_cq(p.cq_off.overflow);
        cq.cqes = in_cq(p.cq_off.cqes).cast::<Cqe>();
        if p.cq_off.flags != 0 {
            cq.kflags = in_cq(p.cq_off.flags);
        }
        // SAFETY: the pointers were just set.
        unsafe {
            (sq.ring_mask, sq.ring_entries) = (*sq.kring_mask, *sq.kring_entries);
            (cq.ring_mask, cq.ring_entries) = (*cq.kring_mask, *cq.kring_entries);
        }
    }

    /// Places queues into memory of the program, `buffer`, or into new memory. If `huge`, new memory that must be contiguous for the
    /// kernel has huge pages. Returns the queues, and the number of bytes that they use.
    fn place(
        entries: c_uint,
        p: &mut io_uring_params,
        buffer: *mut c_void,
        bytes: usize,
        huge: bool,
    ) -> Result<(Queues, usize), c_int> {
        let page = call::page_bytes();
        let (sq_entries, cq_entries) = size::entries(entries, p)?;
        let sqe_bytes = size::of_sqes(p.flags, sq_entries).next_multiple_of(page);
        let ring_bytes = size::of_rings(p.flags, sq_entries, cq_entries);
        let used = (sqe_bytes + ring_bytes).next_multiple_of(page);
        let mut queues = Queues { sq: EMPTY_SQ, cq: EMPTY_CQ };
        let sq = &mut queues.sq;
        let room = if buffer.is_null() {
            if huge && (sqe_bytes > HUGE_PAGE || ring_bytes > HUGE_PAGE) {
                return Err(-(ENOMEM as c_int));
            }
            let room = memory_for(sqe_bytes, page, huge);
            sq.sqes = map_own(room, page, huge)?.cast::<Sqe>();
            sq.sqes_sz = room as c_uint;
            room
        } else if used > bytes {
            return Err(-(ENOMEM as c_int));
        } else {
            sq.sqes = buffer.cast::<Sqe>();
            bytes
        };
        if used <= room {
            // One mapping contains everything; its length is in `sqes_sz`.
            // SAFETY: the address is within the mapping.
            sq.ring_ptr = unsafe { sq.sqes.byte_add(sqe_bytes) }.cast();
        } else {
            let room = memory_for(ring_bytes, page, huge);
            // SAFETY: nothing refers to the mapping yet.
            let ring = map_own(room, page, huge).inspect_err(|_| unsafe {
                call::unmap(sq.sqes.cast(), sq.sqes_sz as usize);
            })?;
            (sq.ring_ptr, sq.ring_sz) = (ring, room);
        }
        queues.cq.ring_ptr = sq.ring_ptr;
        p.sq_off.user_addr = sq.sqes.expose_provenance() as u64;
        p.cq_off.user_addr = sq.ring_ptr.expose_provenance() as u64;
        Ok((queues, used))
    }
}

/// Returns the size of memory for `bytes` bytes: whole pages, or one huge page if more than a page must be contiguous.
fn memory_for(bytes: usize, page: usize, huge: bool) -> usize {
    if bytes > page && huge { HUGE_PAGE } else { bytes.next_multiple_of(page) }
}

fn map_own(bytes: usize, page: usize, huge: bool) -> Result<*mut c_void, c_int> {
    let huge = if bytes > page && huge { MAP_HUGETLB | HUGE_2MB } else { 0 };
    call::map(bytes, MAP_SHARED | MAP_ANONYMOUS | huge, -1, 0)
}

/// Unmaps the rings of both queues, which may be one mapping.
///
/// # Safety
/// The memory must not be in use any more.
unsafe fn unmap_rings(sq: &SubmissionQueue, cq: &CompletionQueue) {
    // SAFETY: the caller's promise.
    unsafe {
        if sq.ring_sz > 0 {
            call::unmap(sq.ring_ptr, sq.ring_sz);
        }
        if cq.ring_sz > 0 && !cq.ring_ptr.is_null() && cq.ring_ptr != sq.ring_ptr {
            call::unmap(cq.ring_ptr, cq.ring_sz);
        }
    }
}

/// Unmaps all memory of a ring that the library has mapped.
///
/// # Safety
/// The memory must not be in use any more.
unsafe fn unmap_all(sq: &SubmissionQueue, cq: &CompletionQueue) {
    // SAFETY: the caller's promise.
    unsafe {
        call::unmap(sq.sqes.cast(), sq.sqes_sz as usize);
        unmap_rings(sq, cq);
    }
}

/// Fills the SQ array so that each position names the SQE of the same index, for good.
///
/// # Safety
/// The queue must have an array.
unsafe fn fill_array(sq: &SubmissionQueue, entries: c_uint) {
    for index in 0..entries {
        // SAFETY: the caller's promise.
        unsafe { *sq.array.add(index as usize) = index };
    }
}

/// Makes a ring. Returns the number of bytes of `buffer` that it uses.
///
/// # Safety
/// As for `io_uring_queue_init_mem`.
unsafe fn init(
    entries: c_uint,
    ring: &mut Ring,
    p: &mut io_uring_params,
    buffer: *mut c_void,
    bytes: usize,
) -> Result<usize, c_int> {
    *ring = EMPTY;
    let mut placed = p.flags & IORING_SETUP_NO_MMAP != 0;
    let index_only = p.flags & IORING_SETUP_REGISTERED_FD_ONLY != 0;
    if index_only && !placed {
        return Err(-(EINVAL as c_int));
    }
    let mut own = placed && buffer.is_null();
    let (mut queues, used) = if placed {
        Queues::place(entries, p, buffer, bytes, true)?
    } else {
        (Queues { sq: EMPTY_SQ, cq: EMPTY_CQ }, 0)
    };
    // SAFETY: the memory belongs to the program or the library.
    let mut fd = unsafe { call::setup(entries, p) };
    let mut flags = p.flags;
    if fd == -(EFBIG as c_int) && !placed {
        // A ring of the user engine lies in a memory file, which the program's file size limit forbids: the ring is made without a file.
        // The program did not ask for `NO_MMAP`, and may use its parameters again, so they do not show the flag.
        flags |= IORING_SETUP_NO_MMAP;
        let mut changed = io_uring_params { flags, ..*p };
        (placed, own) = (true, true);
        queues = Queues::place(entries, &mut changed, ptr::null_mut(), 0, false)?.0;
        // SAFETY: as above.
        fd = unsafe { call::setup(entries, &mut changed) };
        if fd >= 0 {
            changed.flags = p.flags;
            (changed.sq_off.user_addr, changed.cq_off.user_addr) = (0, 0);
            *p = changed;
        }
    }
    if fd < 0 {
        if own {
            // SAFETY: nothing else refers to the memory.
            unsafe { unmap_all(&queues.sq, &queues.cq) };
        }
        return Err(fd);
    }
    if placed {
        // SAFETY: the ring is in that memory now.
        unsafe { queues.point(p) };
    } else {
        queues = Queues::map(fd, p).inspect_err(|_| call::close(fd))?;
    }
    (ring.sq, ring.cq) = (queues.sq, queues.cq);
    if p.flags & IORING_SETUP_NO_SQARRAY == 0 {
        // SAFETY: without the flag, the ring has an array.
        unsafe { fill_array(&ring.sq, ring.sq.ring_entries) };
    }
    (ring.flags, ring.features) = (flags, p.features);
    (ring.ring_fd, ring.enter_ring_fd) = (fd, fd);
    if index_only {
        ring.ring_fd = -1;
        ring.int_flags |= REGISTERED | REGISTERS_BY_INDEX;
    }
    if !index_only && call::serves(fd) {
        ring.pad2 = (user::show_readiness(fd) + 1).max(0) as c_uint;
    }
    if placed && !own {
        ring.int_flags |= PROGRAM_MEMORY;
    }
    // With IOPOLL and without an SQ thread, only callers of `enter` look for completions.
    if p.flags & (IORING_SETUP_IOPOLL | IORING_SETUP_SQPOLL) == IORING_SETUP_IOPOLL {
        ring.int_flags |= ENTERS_FOR_COMPLETIONS;
    }
    Ok(used)
}

/// Works as [`init`]. The ring has no SQ array, which is of no use, unless the kernel requires one.
///
/// # Safety
/// As for [`init`].
unsafe fn init_best(
    entries: c_uint,
    ring: &mut Ring,
    p: &mut io_uring_params,
    buffer: *mut c_void,
    bytes: usize,
) -> c_int {
    let flags = p.flags;
    p.flags |= IORING_SETUP_NO_SQARRAY;
    // SAFETY: the caller's promise.
    let mut result = unsafe { init(entries, ring, p, buffer, bytes) };
    if result == Err(-(EINVAL as c_int)) && flags & IORING_SETUP_NO_SQARRAY == 0 {
        p.flags = flags;
        // SAFETY: the caller's promise.
        result = unsafe { init(entries, ring, p, buffer, bytes) };
    }
    result.map_or_else(|error| error, |used| used as c_int)
}

/// `io_uring_queue_init_mem(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_queue_init_mem(
    entries: c_uint,
    ring: &mut Ring,
    p: &mut io_uring_params,
    buffer: *mut c_void,
    bytes: usize,
) -> c_int {
    p.flags |= IORING_SETUP_NO_MMAP;
    // SAFETY: the caller's promise.
    unsafe { init_best(entries, ring, p, buffer, bytes) }
}

/// `io_uring_queue_init_params(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_queue_init_params(
    entries: c_uint,
    ring: &mut Ring,
    p: &mut io_uring_params,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { init_best(entries, ring, p, ptr::null_mut(), 0) }.min(0)
}

/// `io_uring_queue_init(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_queue_init(entries: c_uint, ring: &mut Ring, flags: c_uint) -> c_int {
    let mut p = size::parameters(flags);
    // SAFETY: the caller's promise.
    unsafe { io_uring_queue_init_params(entries, ring, &mut p) }
}

/// `io_uring_queue_mmap(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_queue_mmap(fd: c_int, p: &io_uring_params, ring: &mut Ring) -> c_int {
    *ring = EMPTY;
    match Queues::map(fd, p) {
        Ok(queues) => {
            (ring.sq, ring.cq) = (queues.sq, queues.cq);
            (ring.flags, ring.features) = (p.flags, p.features);
            (ring.ring_fd, ring.enter_ring_fd) = (fd, fd);
            0
        }
        Err(error) => error,
    }
}

/// `io_uring_ring_dontfork(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_ring_dontfork(ring: &Ring) -> c_int {
    let (sq, cq) = (&ring.sq, &ring.cq);
    if sq.ring_ptr.is_null() || sq.sqes.is_null() || cq.ring_ptr.is_null() {
        return -(EINVAL as c_int);
    }
    let sqe_bytes = size::of_sqes(ring.flags, sq.ring_entries);
    // SAFETY: the memory belongs to the ring.
    unsafe {
        let mut result = call::dont_fork(sq.sqes.cast(), sqe_bytes);
        if result >= 0 {
            result = call::dont_fork(sq.ring_ptr, sq.ring_sz);
        }
        if result >= 0 && cq.ring_ptr != sq.ring_ptr {
            result = call::dont_fork(cq.ring_ptr, cq.ring_sz);
        }
        result.min(0)
    }
}

/// `io_uring_queue_exit(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_queue_exit(ring: &mut Ring) {
    // Memory that was mapped by the descriptor keeps the ring alive, so it is unmapped first. Other memory is written by the ring until the
    // ring ends, and is unmapped afterwards.
    let is_mapped = ring.flags & IORING_SETUP_NO_MMAP == 0;
    if is_mapped {
        // SAFETY: the program gives the ring up.
        unsafe { unmap_all(&ring.sq, &ring.cq) };
    }
    // Frees the place in the thread's table now, instead of when the thread ends.
    if ring.has(REGISTERED) {
        // SAFETY: the index is the ring's own.
        unsafe { register::io_uring_unregister_ring_fd(ring) };
    }
    if ring.ring_fd == -1 {
        call::close_memory(ring.sq.sqes);
    } else {
        call::close(ring.ring_fd);
    }
    if ring.pad2 != 0 {
        call::close_own(ring.memory_fd());
    }
    if !is_mapped && !ring.has(PROGRAM_MEMORY) {
        // SAFETY: as above.
        unsafe { unmap_all(&ring.sq, &ring.cq) };
    }
}

/// `io_uring_resize_rings(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_resize_rings(ring: &mut Ring, p: &mut io_uring_params) -> c_int {
    if ring.flags & IORING_SETUP_NO_MMAP != 0 {
        return -(EINVAL as c_int);
    }
    // The engine maps the new queues by the descriptor of the ring, too.
    ring.let_map();
    // SAFETY: the caller's promise.
    let result = unsafe { resize(ring, p) };
    if ring.pad2 != 0 {
        user::show_again(ring.ring_fd);
    }
    p.flags = 0;
    result
}

/// # Safety
/// As for `io_uring_resize_rings`.
unsafe fn resize(ring: &mut Ring, p: &mut io_uring_params) -> c_int {
    let fresh = size::parameters(0);
    (p.sq_off, p.cq_off) = (fresh.sq_off, fresh.cq_off);
    // SAFETY: the caller's promise.
    let result = unsafe { register::resize(ring, p) };
    if result < 0 {
        return result;
    }
    // The call does not return the features.
    let mut described = *p;
    described.features |= ring.features;
    let mut queues = match Queues::map(ring.memory_fd(), &described) {
        Ok(queues) => queues,
        Err(error) => return error,
    };
    (queues.sq.sqe_head, queues.sq.sqe_tail) = (ring.sq.sqe_head, ring.sq.sqe_tail);
    if ring.ring_fd == -1 {
        call::move_memory(ring.sq.sqes, queues.sq.sqes);
    }
    // SAFETY: the old queues are no longer used.
    unsafe { unmap_all(&ring.sq, &ring.cq) };
    (ring.sq, ring.cq) = (queues.sq, queues.cq);
    if p.flags & IORING_SETUP_NO_SQARRAY == 0 {
        // SAFETY: without the flag, the ring has an array.
        unsafe { fill_array(&ring.sq, p.sq_entries) };
    }
    0
}
