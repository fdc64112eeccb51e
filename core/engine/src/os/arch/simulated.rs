//! In the place of a processor's part: every call goes to a simulated system, which the simulation installs.

use core::sync::atomic::{AtomicPtr, Ordering};

/// A simulated system. It is what the engine's threads run on: it decides which of them goes on, and answers calls.
pub trait System: Sync {
    /// A point where another thread may go on.
    fn point(&self);

    /// A system call, with the kernel's number, arguments and result.
    ///
    /// # Safety
    /// As for the call that `number` names.
    unsafe fn call(&self, number: usize, arguments: [usize; 6]) -> isize;

    /// A value that no other thread has.
    fn thread_pointer(&self) -> usize;

    /// The simulated time in nanoseconds.
    fn now_ns(&self) -> u64;
}

static SYSTEM: AtomicPtr<&'static dyn System> = AtomicPtr::new(core::ptr::null_mut());

/// Names the system. To be called before anything else of the engine.
pub fn install_system(system: &'static &'static dyn System) {
    // Pairs with the acquire load in `system`.
    SYSTEM.store(core::ptr::from_ref(system).cast_mut(), Ordering::Release);
}

fn system() -> &'static dyn System {
    // SAFETY: the pointer is null or came from a `&'static` in `install_system`.
    let system = unsafe { SYSTEM.load(Ordering::Acquire).as_ref() };
    *system.expect("a simulation installs a system before it calls the engine")
}

/// A point where another thread may go on.
pub fn point() {
    system().point();
}

/// # Safety
/// As for the system call itself.
pub unsafe fn syscall6(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    // SAFETY: passed on to the caller.
    unsafe { system().call(number, [a, b, c, d, e, f]) }
}

/// Copies. Simulated programs name no memory that is not there.
///
/// # Safety
/// Both sides must be valid.
pub(crate) unsafe fn guarded_copy(destination: *mut u8, source: *const u8, length: usize) -> bool {
    // SAFETY: passed on to the caller.
    unsafe { core::ptr::copy(source, destination, length) };
    true
}

/// Nothing faults.
pub fn resume_address(_: usize) -> Option<usize> {
    None
}

/// There is no stub.
pub fn stub() -> core::ops::Range<usize> {
    0..0
}

/// See [`System::thread_pointer`].
pub fn thread_pointer() -> usize {
    system().thread_pointer()
}

/// Where the calling thread's stack is.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let here = 0_u8;
    (&raw const here).addr()
}

/// The simulated time.
pub fn ticks() -> u64 {
    system().now_ns()
}

/// Ticks of a microsecond.
pub const fn ticks_per_us() -> u64 {
    1000
}

/// Nothing: there is no cache.
pub fn prefetch<T>(_: *const T) {}

/// No signal interrupts a simulated thread.
pub const RESTORER_FLAG: usize = 0;
/// There is no signal frame.
pub const CONTEXT_POINTER: usize = 0;
/// There is no signal frame.
pub const CONTEXT_MASK: usize = 0;

/// There is no signal frame to return from.
pub fn signal_return() -> usize {
    0
}

/// There is no call between whose first and last instruction a signal could come.
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

/// Of a string, memory up to the next multiple of this may be read: where its page ends.
pub const STRING_STEP: usize = PAGE_SIZES[0];

/// There are no tags.
pub const fn untagged(address: u64) -> u64 {
    address
}

/// There is nothing to be remembered: there are no tags.
pub fn tags_are_used() {}

/// See [`tags_are_used`].
#[inline]
pub fn take_tags() {}

/// See [`tags_are_used`].
pub fn look_for_tags() {}

/// A word of which the kernel says whether memory may end at `end`.
pub const fn last_word(end: u64) -> u64 {
    (end - 1) & !3
}

/// Where a program's memory ends at the latest with four levels of page tables, the last page left out as the kernel does.
pub const END: u64 = (1 << 47) - 4096;
/// Where it ends with five levels.
pub const FAR_END: u64 = (1 << 56) - 4096;
/// The sizes that pages may have.
pub const PAGE_SIZES: &[usize] = &[4096];
