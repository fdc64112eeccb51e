//! The C library's functions that this crate's functions replace.
//!
//! They are found by `dlsym(RTLD_NEXT)`: all of them before the program begins, if the front end is loaded by then ([`find_all`]), else
//! each at its first use. `dlsym` waits for threads that load a library, and must not be called in signal handlers and children of `_Fork`,
//! where many of these functions may be called. `dlsym` itself is a weak reference, and nothing else binds this library to a C library, so
//! one build serves all of them. Before glibc 2.34, `dlsym` is in a library that a program need not load; glibc's internal names find it.

use crate::arch::weak;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The libraries in which a name is searched.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// `RTLD_DEFAULT`.
    Anywhere,
    /// `RTLD_NEXT`: libraries after this one.
    Next,
}

/// Returns the C library's list of the environment; `None` in a program that has no C library.
pub fn environment() -> Option<*const *const c_char> {
    let list = weak!("environ").cast::<*const *const c_char>();
    // SAFETY: a variable of the C library, of this type.
    (!list.is_null()).then(|| unsafe { *list })
}

/// Returns the symbol that `library` has under this name, in glibc before 2.34. There, parts of the C library are separate libraries,
/// which a program need not load, or has loaded where `dlsym` does not search. Null with other C libraries.
fn find_in(library: &CStr, name: &CStr) -> *mut c_void {
    const NOW: c_int = 2;
    /// `__RTLD_DLOPEN`.
    const BY_PROGRAM: c_int = c_int::MIN;
    let (open, find) = (weak!("__libc_dlopen_mode"), weak!("__libc_dlsym"));
    if open.is_null() || find.is_null() {
        return core::ptr::null_mut();
    }
    type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    type Find = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: glibc's function of this name has this type.
    let open: Open = unsafe { core::mem::transmute(open) };
    // SAFETY: as above.
    let find: Find = unsafe { core::mem::transmute(find) };
    // SAFETY: the names end with zero.
    unsafe {
        let library = open(library.as_ptr(), NOW | BY_PROGRAM);
        if library.is_null() { library } else { find(library, name.as_ptr()) }
    }
}

/// Returns the address of `dlsym`.
fn locate() -> *mut c_void {
    let address = weak!("dlsym");
    if address.is_null() { find_in(c"libdl.so.2", c"dlsym") } else { address }
}

/// Makes `dlsym(3)`: returns the address of `name`, or null if there is none.
pub fn find(place: Place, name: &CStr) -> *mut c_void {
    static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let mut address = DLSYM.load(Ordering::Relaxed);
    if address.is_null() {
        address = locate();
        DLSYM.store(address, Ordering::Relaxed);
    }
    if address.is_null() {
        return address;
    }
    // SAFETY: `dlsym` has this type.
    let dlsym: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { core::mem::transmute(address) };
    let handle = match place {
        Place::Anywhere => core::ptr::null_mut(),
        Place::Next => core::ptr::without_provenance_mut(usize::MAX),
    };
    // SAFETY: the name ends with zero.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// A function of the C library, by name. All of these are in the section `anyring_next`, in which [`find_all`] finds them.
#[repr(C)]
pub struct Next {
    name: &'static CStr,
    /// Null before the function was looked up; [`NONE`] if the C library does not have it.
    address: AtomicPtr<c_void>,
}

const NONE: *mut c_void = core::ptr::without_provenance_mut(1);

impl Next {
    /// Returns the function `name`, not looked up yet.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Returns the function's address; null if the C library does not have it.
    pub fn get(&self) -> *mut c_void {
        if self.address.load(Ordering::Relaxed).is_null() {
            self.find();
        }
        self.known()
    }

    /// Returns the function's address if it was looked up; otherwise null.
    pub fn known(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address == NONE { core::ptr::null_mut() } else { address }
    }

    /// Returns the library that has the function in glibc before 2.34, if that is not the C library itself.
    fn own_library(&self) -> Option<&'static CStr> {
        const LIBRARIES: [(&CStr, &CStr); 6] = [
            (c"pthread_", c"libpthread.so.0"),
            (c"_pthread_", c"libpthread.so.0"),
            (c"thrd_", c"libpthread.so.0"),
            (c"dlopen", c"libdl.so.2"),
            (c"dlmopen", c"libdl.so.2"),
            (c"login_tty", c"libutil.so.1"),
        ];
        let has = |(prefix, _): &&(&CStr, &CStr)| self.name.to_bytes().starts_with(prefix.to_bytes());
        LIBRARIES.iter().find(has).map(|&(_, library)| library)
    }

    #[cold]
    fn find(&self) {
        self.look_up();
        if self.address.load(Ordering::Relaxed).is_null()
            && let Some(library) = self.own_library()
        {
            self.address.store(find_in(library, self.name), Ordering::Relaxed);
        }
    }

    /// Looks the function up without loading another library.
    fn look_up(&self) {
        let mut address = find(Place::Next, self.name);
        // A plugin may load one of these libraries into a program later, so a function that was not found is looked up
        // again.
        if address.is_null() && self.own_library().is_none() {
            address = NONE;
        }
        self.address.store(address, Ordering::Relaxed);
    }
}

/// True if the program has AddressSanitizer, which says that this memory must not be accessed: it was freed, or ends earlier.
pub fn is_poisoned(address: usize, length: usize) -> bool {
    let first = weak!("__asan_region_is_poisoned");
    if first.is_null() {
        return false;
    }
    // SAFETY: AddressSanitizer's function of this name has this type.
    let first: unsafe extern "C" fn(usize, usize) -> usize = unsafe { core::mem::transmute(first) };
    // SAFETY: the function only reads its own records about the memory.
    unsafe { first(address, length) != 0 }
}

/// Looks up all functions of this library, before there are threads and signal handlers that call them.
pub fn find_all() {
    unsafe extern "C" {
        #[link_name = "__start_anyring_next"]
        static FIRST: [u8; 0];
        #[link_name = "__stop_anyring_next"]
        static END: [u8; 0];
    }
    let (first, end) = (&raw const FIRST, &raw const END);
    let (first, end) = (first.cast::<Next>(), end.cast::<Next>());
    // SAFETY: the linker has put all `Next` of the section into one array.
    let all = unsafe { core::slice::from_raw_parts(first, end.offset_from_unsigned(first)) };
    all.iter().for_each(Next::look_up);
}

/// Calls the C library's function of the same name.
#[doc(hidden)]
#[macro_export]
macro_rules! next {
    ($name:literal, fn($($kind:ty),*) -> $result:ty, $($argument:expr),* $(,)?) => {{
        #[unsafe(link_section = "anyring_next")]
        static NEXT: $crate::next::Next = $crate::next::Next::new($name);
        let address = NEXT.get();
        if address.is_null() {
            $crate::next::fail($crate::next::MISSING) as $result
        } else {
            type Function = unsafe extern "C" fn($($kind),*) -> $result;
            // SAFETY: the C library's function of this name has this type.
            let function: Function = unsafe { core::mem::transmute(address) };
            // SAFETY: the program's own arguments.
            unsafe { function($($argument),*) }
        }
    }};
}

/// The result of a function that the C library does not have: `-ENOSYS`.
pub const MISSING: isize = -(linux_raw_sys::errno::ENOSYS as isize);

/// Returns the address of the calling thread's `errno`.
fn errno_location() -> Option<*mut c_int> {
    let location = weak!("__errno_location");
    (!location.is_null()).then(|| {
        // SAFETY: the C library's function of this name has this type.
        let location: unsafe extern "C" fn() -> *mut c_int = unsafe { core::mem::transmute(location) };
        // SAFETY: the function has no preconditions.
        unsafe { location() }
    })
}

/// Calls a function of the C library for this crate itself: `errno` stays as the program's last call has left it.
pub fn keeping_errno<T>(call: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = call();
    if let Some(errno) = errno_location() {
        // SAFETY: the address is of this thread's `errno`.
        unsafe { *errno = before };
    }
    result
}

/// Returns `errno` of the calling thread; 0 without a C library.
pub fn errno() -> c_int {
    // SAFETY: the address is of this thread's `errno`.
    errno_location().map_or(0, |errno| unsafe { *errno })
}

/// Reports a raw result as the C library does: -1 and `errno`, or the value.
pub fn fail(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        if let Some(errno) = errno_location() {
            // SAFETY: the address is of this thread's `errno`.
            unsafe { *errno = -result as c_int };
        }
        return -1;
    }
    result
}
