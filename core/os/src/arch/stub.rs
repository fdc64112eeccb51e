//! The functions that call the stub, the interruptible call and the guarded copy of each processor.

unsafe extern "C" {
    fn anyring_syscall6(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, number: usize) -> isize;
    fn anyring_interruptible_syscall6(
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
        number: usize,
        stopped: *const u32,
    ) -> isize;
    fn anyring_signal_return();
    static anyring_interruptible_start: u8;
    static anyring_interruptible_end: u8;
    static anyring_interruptible_stop: u8;
    fn anyring_guarded_copy(destination: *mut u8, source: *const u8, length: usize) -> usize;
    static anyring_stub_start: u8;
    static anyring_stub_end: u8;
    static anyring_guarded_start: u8;
    static anyring_guarded_end: u8;
    static anyring_guarded_fault: u8;
}

/// # Safety
/// As for the system call itself.
#[inline]
pub unsafe fn syscall6(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    // SAFETY: passed on to the caller; the stub keeps to the C calling convention.
    unsafe { anyring_syscall6(a, b, c, d, e, f, number) }
}

/// Makes a system call, or returns `-EINTR` without the call if `stopped` is not zero. A signal handler that
/// interrupts the thread in this function resumes it at [`interruption_address`].
///
/// # Safety
/// As for the system call itself; `stopped` must be readable.
pub unsafe fn interruptible_syscall6(number: usize, arguments: [usize; 6], stopped: *const u32) -> isize {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: passed on to the caller; the stub keeps to the C calling convention.
    unsafe { anyring_interruptible_syscall6(a, b, c, d, e, f, number, stopped) }
}

/// Returns where to resume a thread that a signal found in the interruptible call, so that the kernel does not begin the call.
pub fn interruption_address(instruction_pointer: usize) -> Option<usize> {
    let start = &raw const anyring_interruptible_start as usize;
    let end = &raw const anyring_interruptible_end as usize;
    match instruction_pointer {
        pointer if pointer == end => Some(end),
        pointer => (start..end).contains(&pointer).then_some(&raw const anyring_interruptible_stop as usize),
    }
}

/// Returns the address that signal handlers of the engine return to.
pub fn signal_return() -> usize {
    anyring_signal_return as *const () as usize
}

/// Copies between two ranges of which one may be unmapped. False if a fault ended the copy.
///
/// # Safety
/// A fault handler must resume at [`resume_address`]; the engine's side must be valid.
pub unsafe fn guarded_copy(destination: *mut u8, source: *const u8, length: usize) -> bool {
    // SAFETY: passed on to the caller; a fault ends the copy.
    unsafe { anyring_guarded_copy(destination, source, length) == 0 }
}

/// Returns where to resume a thread that faulted in the guarded copy.
pub fn resume_address(instruction_pointer: usize) -> Option<usize> {
    let start = &raw const anyring_guarded_start as usize;
    let end = &raw const anyring_guarded_end as usize;
    (start..end).contains(&instruction_pointer).then_some(&raw const anyring_guarded_fault as usize)
}

/// Returns the addresses of the system call stub.
pub fn stub() -> core::ops::Range<usize> {
    (&raw const anyring_stub_start as usize)..(&raw const anyring_stub_end as usize)
}
