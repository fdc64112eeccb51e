//! The program's own allocator, which under a sanitizer is the run-time's: so the run-time knows which memory is live.
//!
//! `scripts/check-sanitizers` uses it in place of the regular [`crate::allocator`]. It has locks, so
//! a program that enters a ring in a signal handler that interrupted `malloc` hangs with it.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{c_int, c_void};
use core::ptr;

unsafe extern "C" {
    fn posix_memalign(memory: *mut *mut c_void, alignment: usize, size: usize) -> c_int;
    fn free(memory: *mut c_void);
}

/// The allocator.
#[derive(Default)]
pub struct Allocator;

impl Allocator {
    /// Returns the allocator.
    pub const fn new() -> Self {
        Self
    }
}

// SAFETY: the C library's functions fulfil the contract of the trait.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut memory = ptr::null_mut();
        // SAFETY: an alignment of at least a pointer's, and a power of two.
        unsafe { posix_memalign(&mut memory, layout.align().max(size_of::<usize>()), layout.size()) };
        memory.cast()
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _layout: Layout) {
        // SAFETY: `alloc` made it.
        unsafe { free(pointer.cast()) };
    }
}
