//! The stub: a page with a system call instruction whose calls the filter lets pass.
//!
//! The page has the same address in every process. A filter survives `exec`, and distinguishes calls that must pass from those that
//! must trap only by the instruction pointer. With a fixed address, the filter of an ancestor serves its descendants, which need none
//! of their own.

use crate::arch::{Page, STUB_BYTES, STUB_CODE};
use anyring_runtime::arch::{self, STUB_ADDRESS};
use anyring_runtime::sys;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use linux_raw_sys::general as raw;

/// The addresses that filters let through.
pub const RANGE: Range<usize> = STUB_ADDRESS..STUB_ADDRESS + STUB_BYTES;

/// The stub's code in a page of the library's file. If no memory may be made executable (`PR_SET_MDWE`, SELinux's `execmem`), this page
/// is moved to the stub's address, and leaves a hole in the library.
// The section's name makes it part of the code.
#[unsafe(link_section = ".text.anyring_trap_stub")]
static PAGE: Page = {
    let mut bytes = [0; STUB_BYTES];
    let mut at = 0;
    while at < STUB_CODE.len() {
        bytes[at] = STUB_CODE[at];
        at += 1;
    }
    Page(bytes)
};

/// True if this front end has put the page in place.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Puts the page in place.
///
/// # Errors
/// The negative errno, if other memory is mapped there or executable memory is not allowed.
pub fn install() -> Result<(), isize> {
    let fixed = raw::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    let page = unsafe { sys::map(STUB_ADDRESS, STUB_BYTES, raw::PROT_READ | raw::PROT_WRITE, fixed) };
    if page != STUB_ADDRESS as isize {
        if let Ok(elsewhere) = usize::try_from(page) {
            // SAFETY: a kernel without MAP_FIXED_NOREPLACE put the new page elsewhere.
            unsafe { sys::unmap(elsewhere, STUB_BYTES) };
            return Err(-(linux_raw_sys::errno::EEXIST as isize));
        }
        return Err(page);
    }
    // SAFETY: just mapped, and not used yet.
    let error = unsafe { fill(STUB_ADDRESS) };
    let own = (&raw const PAGE).addr();
    // SAFETY: no code reads or executes the page in the library; the page at the address was just mapped here, and is not used yet.
    let moves = || unsafe { sys::move_mapping(own, STUB_ADDRESS, STUB_BYTES) } == STUB_ADDRESS as isize;
    if error != 0 && !moves() {
        // Front ends that look for the page must not find an unfinished one.
        // SAFETY: mapped above, and not used yet.
        unsafe { sys::unmap(STUB_ADDRESS, STUB_BYTES) };
        return Err(error);
    }
    INSTALLED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Writes the code to the page at `address` and makes the page executable; returns a negative errno if that is not allowed.
///
/// # Safety
/// The page must be the caller's, writable, and used by nobody.
unsafe fn fill(address: usize) -> isize {
    let code = address as *mut u8;
    // SAFETY: the caller's promise; the page is longer than the code.
    unsafe {
        code.copy_from_nonoverlapping(STUB_CODE.as_ptr(), STUB_CODE.len());
        crate::arch::synchronize_code(code, STUB_CODE.len());
        sys::protect(address, STUB_BYTES, raw::PROT_READ | raw::PROT_EXEC)
    }
}

/// Number of places in the page for calls of patched sites.
pub const CALLS: usize = 16;
/// The offset of the first place.
const FIRST_CALL: usize = 128;
/// Bytes of a place.
const CALL_BYTES: usize = 16;

const _: () = assert!(STUB_CODE.len() <= FIRST_CALL && FIRST_CALL + CALLS * CALL_BYTES <= STUB_BYTES);

/// The address at which the program continues after the call of each place; 0: the place is free.
static BEHIND: [AtomicUsize; CALLS] = [const { AtomicUsize::new(0) }; CALLS];

/// Returns the address of the place whose call continues at `next`, if there is one.
pub fn call_behind(next: usize) -> Option<usize> {
    BEHIND.iter().position(|place| next != 0 && place.load(Ordering::Relaxed) == next).map(call_for)
}

/// Returns the address of a place. A patched site continues there to make a call that would trap in the program's text.
pub const fn call_for(index: usize) -> usize {
    STUB_ADDRESS + FIRST_CALL + index * CALL_BYTES
}

/// Returns false: no such code is known for this architecture, where a jump to an address needs a register.
///
/// # Safety
/// None here.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn put_calls(_behind: &[usize; CALLS]) -> bool {
    false
}

/// Writes a place for each address in `behind` that is not 0: code that makes a call and continues at the address, with all registers as
/// the call leaves them. Returns false if the page cannot be changed.
///
/// # Safety
/// The process must have one thread. The code at each address must be able to continue after such a call.
#[cfg(target_arch = "x86_64")]
pub unsafe fn put_calls(behind: &[usize; CALLS]) -> bool {
    let is_writable = INSTALLED.load(Ordering::Relaxed)
        // SAFETY: the page is this module's, and the only thread does not execute it meanwhile.
        && unsafe { sys::protect(STUB_ADDRESS, STUB_BYTES, raw::PROT_READ | raw::PROT_WRITE) } == 0;
    if !is_writable {
        return false;
    }
    for (index, &address) in behind.iter().enumerate().filter(|&(_, &address)| address != 0) {
        // syscall; jmp *0(%rip)
        let code = [0x0f, 0x05, 0xff, 0x25, 0, 0, 0, 0];
        let place = call_for(index) as *mut [u8; 8];
        // SAFETY: within the page, which is writable.
        unsafe {
            place.write(code);
            place.add(1).write(address.to_le_bytes());
        }
        BEHIND[index].store(address, Ordering::Relaxed);
    }
    // SAFETY: the page is this module's.
    let error = unsafe { sys::protect(STUB_ADDRESS, STUB_BYTES, raw::PROT_READ | raw::PROT_EXEC) };
    assert!(error == 0, "the memory was executable before, and the tracer has just made other memory so");
    true
}

/// True if another front end has put the page in place, in a process that runs a program in its own memory (valgrind).
pub fn is_others() -> bool {
    let mut code = [0; STUB_CODE.len()];
    !INSTALLED.load(Ordering::Relaxed) && sys::peek(STUB_ADDRESS, &mut code) && code == *STUB_CODE
}

/// Makes a system call that the engine's filters do not trap.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn syscall(number: usize, a: [usize; 6]) -> isize {
    if !INSTALLED.load(Ordering::Relaxed) {
        // Without the stub there is no filter, except perhaps one that traps only the three calls.
        // SAFETY: the caller's promise.
        return unsafe { arch::syscall(number, a) };
    }
    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;
    // SAFETY: the page holds a function of this type.
    let call: Call = unsafe { core::mem::transmute(STUB_ADDRESS) };
    // SAFETY: the caller's promise.
    unsafe { call(number, a[0], a[1], a[2], a[3], a[4], a[5]) }
}
