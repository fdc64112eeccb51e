//! The functions that ours stand in front of.
//!
//! Found by `dlsym(RTLD_NEXT)` when first needed. `dlsym` itself is a weak reference, and nothing
//! else binds this library to a particular C library, so that one build serves all.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `RTLD_NEXT`.
const NEXT: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// A function of the C library, by name.
pub struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// The function `name`, not looked up yet.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address; null where the C library has none.
    pub fn get(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if !address.is_null() {
            return address;
        }
        // SAFETY: the name ends with zero.
        let address = unsafe { dlsym(NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Calls the function that ours of the same name stands in front of.
#[cfg(not(test))]
macro_rules! next {
    ($name:literal, fn($($kind:ty),*) -> $result:ty, $($argument:expr),* $(,)?) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new($name);
        let address = NEXT.get();
        if address.is_null() {
            $crate::next::fail(-(linux_raw_sys::errno::ENOSYS as isize)) as $result
        } else {
            type Function = unsafe extern "C" fn($($kind),*) -> $result;
            // SAFETY: the C library's function of this name has this type.
            let function: Function = unsafe { core::mem::transmute(address) };
            // SAFETY: the program's own arguments.
            unsafe { function($($argument),*) }
        }
    }};
}
#[cfg(not(test))]
pub(crate) use next;

/// Reports a raw result as the C library does: -1 and `errno`, or the value.
#[inline]
pub fn fail(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        // SAFETY: the C library's `errno` of this thread.
        unsafe { *__errno_location() = -result as c_int };
        return -1;
    }
    result
}
