//! The registrations: one `io_uring_register` call each.

use crate::call;
use crate::ring::{NO_IOWAIT, REGISTERED, REGISTERS_BY_INDEX};
use crate::types::{Ring, Sqe};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use linux_raw_sys::errno::{EBADF, EEXIST, EINVAL, EMFILE, EOPNOTSUPP};
use linux_raw_sys::io_uring::io_uring_register_op as Code;
use linux_raw_sys::io_uring::{
    IORING_FEAT_NO_IOWAIT, IORING_FEAT_REG_REG_RING, IORING_RSRC_REGISTER_SPARSE, io_uring_file_index_range,
    io_uring_params, io_uring_rsrc_register, io_uring_rsrc_update, io_uring_rsrc_update2,
};

/// Registrations that are newer than the headers from which the other opcodes come.
const REGISTER_QUERY: c_uint = anyring_engine::abi::IORING_REGISTER_QUERY;
const REGISTER_ZCRX_CTRL: c_uint = 36;
const REGISTER_BPF_FILTER: c_uint = 37;

/// Makes a registration, by the ring's registered index if possible.
///
/// # Safety
/// As for the call.
pub unsafe fn register(ring: &Ring, opcode: c_uint, argument: *const c_void, count: c_uint) -> c_int {
    let (fd, opcode) = if ring.has(REGISTERS_BY_INDEX) {
        (ring.enter_ring_fd, opcode | Code::IORING_REGISTER_USE_REGISTERED_RING as c_uint)
    } else {
        (ring.ring_fd, opcode)
    };
    // SAFETY: the caller's promise.
    unsafe { call::register(fd, opcode, argument, count) }
}

/// Makes a registration whose argument is made by the library.
///
/// # Safety
/// As for the call.
pub unsafe fn with<T>(ring: &Ring, code: Code, argument: &T, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { register(ring, code as c_uint, ptr::from_ref(argument).cast(), count as c_uint) }
}

/// Defines registrations that pass the program's arguments on.
macro_rules! handed_on {
    ($($name:ident $code:expr, ($($argument:ident: $type:ty),*) => $pointer:expr, $count:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(ring: &Ring, $($argument: $type),*) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { register(ring, $code as c_uint, $pointer, $count) }
        }
    )*};
}

/// A pointer to memory of any kind.
pub type Any = *const c_void;

handed_on! {
    io_uring_register_buffers Code::IORING_REGISTER_BUFFERS, (list: Any, count: c_uint) => list, count;
    io_uring_unregister_buffers Code::IORING_UNREGISTER_BUFFERS, () => ptr::null(), 0;
    io_uring_unregister_files Code::IORING_UNREGISTER_FILES, () => ptr::null(), 0;
    io_uring_register_eventfd Code::IORING_REGISTER_EVENTFD, (fd: c_int) => (&raw const fd).cast(), 1;
    io_uring_register_eventfd_async Code::IORING_REGISTER_EVENTFD_ASYNC,
        (fd: c_int) => (&raw const fd).cast(), 1;
    io_uring_unregister_eventfd Code::IORING_UNREGISTER_EVENTFD, () => ptr::null(), 0;
    io_uring_register_personality Code::IORING_REGISTER_PERSONALITY, () => ptr::null(), 0;
    io_uring_unregister_personality Code::IORING_UNREGISTER_PERSONALITY,
        (id: c_int) => ptr::null(), id as c_uint;
    io_uring_register_restrictions Code::IORING_REGISTER_RESTRICTIONS,
        (list: Any, count: c_uint) => list, count;
    io_uring_enable_rings Code::IORING_REGISTER_ENABLE_RINGS, () => ptr::null(), 0;
    io_uring_unregister_iowq_aff Code::IORING_UNREGISTER_IOWQ_AFF, () => ptr::null(), 0;
    io_uring_register_iowq_max_workers Code::IORING_REGISTER_IOWQ_MAX_WORKERS, (values: Any) => values, 2;
    io_uring_register_napi Code::IORING_REGISTER_NAPI, (napi: Any) => napi, 1;
    io_uring_unregister_napi Code::IORING_UNREGISTER_NAPI, (napi: Any) => napi, 1;
    io_uring_register_clock Code::IORING_REGISTER_CLOCK, (clock: Any) => clock, 0;
    io_uring_register_zcrx_ctrl REGISTER_ZCRX_CTRL, (control: Any) => control, 0;
    io_uring_register_bpf_filter REGISTER_BPF_FILTER, (filter: Any) => filter, 1;
}

/// `io_uring_register_probe(3)`: on rings of the kernel, it also shows the operations that the user engine adds.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_probe(ring: &Ring, probe: Any, count: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { register(ring, Code::IORING_REGISTER_PROBE as c_uint, probe, count) };
    if result >= 0 && !call::is_user() && anyring_kernel_ring::is_possible(ring.features, ring.flags) {
        anyring_engine::probe::add_private(probe.addr() as u64, count);
    }
    result
}

/// `io_uring_register_sync_cancel(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_sync_cancel(ring: &Ring, what: Any) -> c_int {
    if call::is_extended() {
        // SAFETY: the caller's promise.
        let result = unsafe { anyring_kernel_ring::cancel(ring.ring_fd, what.addr()) };
        if let Some(result) = result {
            return result;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { register(ring, Code::IORING_REGISTER_SYNC_CANCEL as c_uint, what, 1) }
}

/// `io_uring_register_region(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_region(ring: &Ring, region: Any) -> c_int {
    // If the program does not provide the memory, it maps the ring's.
    ring.let_map();
    // SAFETY: the caller's promise.
    unsafe { register(ring, Code::IORING_REGISTER_MEM_REGION as c_uint, region, 1) }
}

/// `io_uring_register_ifq(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_ifq(ring: &Ring, queue: Any) -> c_int {
    // If the program does not provide the memory of the refill ring, it maps the ring's.
    ring.let_map();
    // SAFETY: the caller's promise.
    unsafe { register(ring, Code::IORING_REGISTER_ZCRX_IFQ as c_uint, queue, 1) }
}

/// Defines registrations that concern no ring.
macro_rules! of_no_ring {
    ($($name:ident $code:expr, $count:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(argument: Any) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { call::register(-1, $code as c_uint, argument, $count) }
        }
    )*};
}

of_no_ring! {
    io_uring_register_bpf_filter_task REGISTER_BPF_FILTER, 1;
    io_uring_register_query REGISTER_QUERY, 0;
}

/// `io_uring_register_sync_msg(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_sync_msg(sqe: *const Sqe) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { call::register(-1, Code::IORING_REGISTER_SEND_MSG_RING as c_uint, sqe.cast(), 1) }
}

/// Makes the argument of a registration of files or buffers.
pub fn resources(flags: c_uint, count: c_uint, data: Any, tags: Any) -> io_uring_rsrc_register {
    io_uring_rsrc_register { nr: count, flags, resv2: 0, data: data.addr() as u64, tags: tags.addr() as u64 }
}

/// Makes the argument of an update of files or buffers.
pub fn update(offset: c_uint, count: c_uint, data: Any, tags: Any) -> io_uring_rsrc_update2 {
    io_uring_rsrc_update2 {
        offset,
        resv: 0,
        data: data.addr() as u64,
        tags: tags.addr() as u64,
        nr: count,
        resv2: 0,
    }
}

/// Registers files. If their number is beyond the limit of descriptors, raises the limit and tries again.
fn files(count: c_uint, register: impl Fn() -> c_int) -> c_int {
    let result = register();
    if result != -(EMFILE as c_int) {
        return result;
    }
    // If the limit cannot be raised, the second attempt fails as the first did.
    let _ = call::raise_descriptor_limit(count.into());
    register()
}

/// `io_uring_register_files(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_files(ring: &Ring, list: *const c_int, count: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    files(count, || unsafe { register(ring, Code::IORING_REGISTER_FILES as c_uint, list.cast(), count) })
}

/// `io_uring_register_files_sparse(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_files_sparse(ring: &Ring, count: c_uint) -> c_int {
    let argument = resources(IORING_RSRC_REGISTER_SPARSE, count, ptr::null(), ptr::null());
    // SAFETY: the caller's promise.
    files(count, || unsafe { with(ring, Code::IORING_REGISTER_FILES2, &argument, size_of_val(&argument)) })
}

/// `io_uring_register_files_tags(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_files_tags(
    ring: &Ring,
    list: *const c_int,
    tags: Any,
    count: c_uint,
) -> c_int {
    let argument = resources(0, count, list.cast(), tags);
    // SAFETY: the caller's promise.
    files(count, || unsafe { with(ring, Code::IORING_REGISTER_FILES2, &argument, size_of_val(&argument)) })
}

/// `io_uring_register_files_update_tag(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_files_update_tag(
    ring: &Ring,
    offset: c_uint,
    list: *const c_int,
    tags: Any,
    count: c_uint,
) -> c_int {
    let argument = update(offset, count, list.cast(), tags);
    // SAFETY: the caller's promise.
    unsafe { with(ring, Code::IORING_REGISTER_FILES_UPDATE2, &argument, size_of_val(&argument)) }
}

/// `io_uring_register_files_update(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_files_update(
    ring: &Ring,
    offset: c_uint,
    list: *const c_int,
    count: c_uint,
) -> c_int {
    let argument = io_uring_rsrc_update { offset, resv: 0, data: list.addr() as u64 };
    // SAFETY: the caller's promise.
    unsafe { with(ring, Code::IORING_REGISTER_FILES_UPDATE, &argument, count as usize) }
}

/// `io_uring_register_iowq_aff(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_iowq_aff(ring: &Ring, bytes: usize, mask: Any) -> c_int {
    if bytes > c_int::MAX as usize {
        return -(EINVAL as c_int);
    }
    // SAFETY: the caller's promise.
    unsafe { register(ring, Code::IORING_REGISTER_IOWQ_AFF as c_uint, mask, bytes as c_uint) }
}

/// `io_uring_register_ring_fd(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_ring_fd(ring: &mut Ring) -> c_int {
    if ring.has(REGISTERED) {
        return -(EEXIST as c_int);
    }
    let mut argument = io_uring_rsrc_update { offset: u32::MAX, resv: 0, data: ring.ring_fd as i64 as u64 };
    let pointer = (&raw mut argument).cast_const().cast();
    // SAFETY: the caller's promise; the index is written to the argument.
    let result = unsafe { register(ring, Code::IORING_REGISTER_RING_FDS as c_uint, pointer, 1) };
    if result == 1 {
        ring.enter_ring_fd = argument.offset as c_int;
        ring.int_flags |= REGISTERED;
        if ring.features & IORING_FEAT_REG_REG_RING != 0 {
            ring.int_flags |= REGISTERS_BY_INDEX;
        }
    }
    result
}

/// `io_uring_unregister_ring_fd(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_unregister_ring_fd(ring: &mut Ring) -> c_int {
    if !ring.has(REGISTERED) {
        return -(EINVAL as c_int);
    }
    let argument = io_uring_rsrc_update { offset: ring.enter_ring_fd as u32, resv: 0, data: 0 };
    // SAFETY: the caller's promise.
    let result = unsafe { with(ring, Code::IORING_UNREGISTER_RING_FDS, &argument, 1) };
    if result == 1 {
        ring.enter_ring_fd = ring.ring_fd;
        ring.int_flags &= !(REGISTERED | REGISTERS_BY_INDEX);
    }
    result
}

/// `io_uring_close_ring_fd(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_close_ring_fd(ring: &mut Ring) -> c_int {
    if ring.features & IORING_FEAT_REG_REG_RING == 0 {
        return -(EOPNOTSUPP as c_int);
    }
    if !ring.has(REGISTERED) {
        return -(EINVAL as c_int);
    }
    if ring.ring_fd == -1 {
        return -(EBADF as c_int);
    }
    call::close_descriptor(ring.ring_fd, ring.sq.sqes);
    ring.ring_fd = -1;
    1
}

/// `io_uring_register_file_alloc_range(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_file_alloc_range(
    ring: &Ring,
    offset: c_uint,
    length: c_uint,
) -> c_int {
    let range = io_uring_file_index_range { off: offset, len: length, resv: 0 };
    // SAFETY: the caller's promise.
    unsafe { with(ring, Code::IORING_REGISTER_FILE_ALLOC_RANGE, &range, 0) }
}

/// Makes the registration of `io_uring_resize_rings(3)`.
///
/// # Safety
/// As for `io_uring_resize_rings`.
pub unsafe fn resize(ring: &Ring, p: &mut io_uring_params) -> c_int {
    let pointer = ptr::from_mut(p).cast_const().cast();
    // SAFETY: the caller's promise.
    unsafe { register(ring, Code::IORING_REGISTER_RESIZE_RINGS as c_uint, pointer, 1) }
}

/// `io_uring_register_wait_reg(3)`: fails, because kernels have this only by `io_uring_register_region`.
#[unsafe(no_mangle)]
pub extern "C" fn io_uring_register_wait_reg(_ring: &Ring, _reg: Any, _count: c_int) -> c_int {
    -(EINVAL as c_int)
}

/// `io_uring_set_iowait(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_set_iowait(ring: &mut Ring, counts: bool) -> c_int {
    if ring.features & IORING_FEAT_NO_IOWAIT == 0 {
        return -(EOPNOTSUPP as c_int);
    }
    if counts {
        ring.int_flags &= !NO_IOWAIT;
    } else {
        ring.int_flags |= NO_IOWAIT;
    }
    0
}
