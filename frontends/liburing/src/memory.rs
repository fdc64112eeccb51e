//! Memory that the library allocates for the program: probes and buffer rings. The memory of rings is in [`setup`].

use crate::types::Ring;
use crate::{buffers, call, register, setup};
use core::ffi::{c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use linux_raw_sys::general::{MAP_ANONYMOUS, MAP_SHARED};
use linux_raw_sys::io_uring::{io_uring_buf, io_uring_buf_reg, io_uring_probe, io_uring_probe_op};

unsafe extern "C" {
    // Memory comes from the C library, because some programs free a probe by `free`.
    fn calloc(count: usize, bytes: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
}

/// The number of possible opcodes.
const OPERATIONS: usize = 256;

/// `io_uring_get_probe_ring(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_get_probe_ring(ring: &Ring) -> *mut c_void {
    let bytes = size_of::<io_uring_probe>() + OPERATIONS * size_of::<io_uring_probe_op>();
    // SAFETY: only allocates memory.
    let probe = unsafe { calloc(1, bytes) };
    if probe.is_null() {
        return probe;
    }
    // A probe of all 256 rows would show only the kernel's operations, so one row less is asked for.
    // SAFETY: the memory has room for this number.
    if unsafe { register::io_uring_register_probe(ring, probe, OPERATIONS as c_uint - 1) } >= 0 {
        return probe;
    }
    // SAFETY: the memory was just allocated.
    unsafe { free(probe) };
    ptr::null_mut()
}

/// `io_uring_get_probe(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_get_probe() -> *mut c_void {
    let mut ring = MaybeUninit::<Ring>::zeroed();
    // SAFETY: zeros are a ring that is not set up.
    let ring = unsafe { ring.assume_init_mut() };
    // SAFETY: the ring is this function's own.
    unsafe {
        if setup::io_uring_queue_init(2, ring, 0) < 0 {
            return ptr::null_mut();
        }
        let probe = io_uring_get_probe_ring(ring);
        setup::io_uring_queue_exit(ring);
        probe
    }
}

/// `io_uring_free_probe(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_free_probe(probe: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { free(probe) };
}

/// `io_uring_setup_buf_ring(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_setup_buf_ring(
    ring: &Ring,
    entries: c_uint,
    group: c_int,
    flags: c_uint,
    error: &mut c_int,
) -> *mut c_void {
    let bytes = entries as usize * size_of::<io_uring_buf>();
    // Shared, so that the user engine can map it, too, instead of asking for each word.
    let memory = match call::map(bytes, MAP_ANONYMOUS | MAP_SHARED, -1, 0) {
        Ok(memory) => memory,
        Err(why) => {
            *error = why;
            return ptr::null_mut();
        }
    };
    let mut argument = io_uring_buf_reg {
        ring_addr: memory.expose_provenance() as u64,
        ring_entries: entries,
        bgid: group as u16,
        flags: 0,
        resv: [0; 3],
    };
    // SAFETY: the memory belongs to the ring from here on; it is zero, and so is the tail in it.
    *error = unsafe { buffers::io_uring_register_buf_ring(ring, &mut argument, flags) };
    if *error == 0 {
        return memory;
    }
    // SAFETY: nothing else refers to the memory.
    unsafe { call::unmap(memory, bytes) };
    ptr::null_mut()
}

/// `io_uring_free_buf_ring(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_free_buf_ring(
    ring: &Ring,
    memory: *mut c_void,
    entries: c_uint,
    group: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let result = buffers::io_uring_unregister_buf_ring(ring, group);
        if result == 0 {
            call::unmap(memory, entries as usize * size_of::<io_uring_buf>());
        }
        result
    }
}
