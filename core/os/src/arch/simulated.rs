//! The processor's part in a simulation: every call goes to the simulated system that the simulation has installed.

use core::sync::atomic::{AtomicPtr, Ordering};

/// A simulated system. The engine's threads run on it: it schedules them and answers their system calls.
pub trait System: Sync {
    /// Passes a scheduling point: another thread may run now.
    fn point(&self);

    /// Executes a system call, with the kernel's number, arguments and result.
    ///
    /// # Safety
    /// As for the call that `number` names.
    unsafe fn call(&self, number: usize, arguments: [usize; 6]) -> isize;

    /// Returns a value that is unique to the calling thread.
    fn thread_pointer(&self) -> usize;

    /// Returns the simulated time in nanoseconds.
    fn now_ns(&self) -> u64;
}

static SYSTEM: AtomicPtr<&'static dyn System> = AtomicPtr::new(core::ptr::null_mut());

/// Installs the system. Must be called before any other function of the engine.
pub fn install_system(system: &'static &'static dyn System) {
    // Pairs with the acquire load in `system`.
    SYSTEM.store(core::ptr::from_ref(system).cast_mut(), Ordering::Release);
}

fn system() -> &'static dyn System {
    // SAFETY: the pointer is null or came from a `&'static` in `install_system`.
    let system = unsafe { SYSTEM.load(Ordering::Acquire).as_ref() };
    *system.expect("a simulation installs a system before it calls the engine")
}

/// Passes a scheduling point: another thread may run now.
pub fn point() {
    system().point();
}

/// # Safety
/// As for the system call itself.
pub unsafe fn syscall6(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    // SAFETY: passed on to the caller.
    unsafe { system().call(number, [a, b, c, d, e, f]) }
}

/// Copies memory. Simulated programs pass only valid addresses.
///
/// # Safety
/// Both sides must be valid.
pub unsafe fn guarded_copy(destination: *mut u8, source: *const u8, length: usize) -> bool {
    // SAFETY: passed on to the caller.
    unsafe { core::ptr::copy(source, destination, length) };
    true
}

/// Returns `None`: no access faults.
pub fn resume_address(_: usize) -> Option<usize> {
    None
}

/// Returns an empty range: there is no stub.
pub fn stub() -> core::ops::Range<usize> {
    0..0
}

/// Returns [`System::thread_pointer`].
pub fn thread_pointer() -> usize {
    system().thread_pointer()
}

/// Returns an address on the calling thread's stack.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let here = 0_u8;
    (&raw const here).addr()
}

/// Returns the simulated time.
pub fn ticks() -> u64 {
    system().now_ns()
}

/// Returns the number of ticks per microsecond.
pub const fn ticks_per_us() -> u64 {
    1000
}

/// Does nothing: there is no cache.
pub fn prefetch<T>(_: *const T) {}

/// Unused: no signal interrupts a simulated thread.
pub const RESTORER_FLAG: usize = 0;
/// Unused: there is no signal frame.
pub const CONTEXT_POINTER: usize = 0;
/// Unused: there is no signal frame.
pub const CONTEXT_MASK: usize = 0;

/// Returns 0: there is no signal frame to return from.
pub fn signal_return() -> usize {
    0
}

/// Returns `None`: no signal arrives inside a call.
pub fn interruption_address(_: usize) -> Option<usize> {
    None
}

/// # Safety
/// As for the system call itself; `stopped` must be readable.
pub unsafe fn interruptible_syscall6(number: usize, arguments: [usize; 6], stopped: *const u32) -> isize {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: passed on to the caller.
    unsafe {
        if stopped.read_volatile() != 0 {
            return -(linux_raw_sys::errno::EINTR as isize);
        }
        syscall6(number, a, b, c, d, e, f)
    }
}

/// A string may be read up to the next multiple of this: the end of its page.
pub const STRING_STEP: usize = PAGE_SIZES[0];

/// Returns the address unchanged: there are no tags.
pub const fn untagged(address: u64) -> u64 {
    address
}

/// Does nothing: there are no tags.
pub fn tags_are_used() {}

/// Does nothing: there are no tags.
#[inline]
pub fn take_tags() {}

/// Does nothing: there are no tags.
pub fn look_for_tags() {}

/// Returns the address of a word for which the kernel tells whether memory may end at `end`.
pub const fn last_word(end: u64) -> u64 {
    (end - 1) & !3
}

/// The end of the address space with four levels of page tables; the kernel does not use the last page.
pub const END: u64 = (1 << 47) - 4096;
/// The end of the address space with five levels of page tables.
pub const FAR_END: u64 = (1 << 56) - 4096;
/// The only page size.
pub const PAGE_SIZES: &[usize] = &[4096];
