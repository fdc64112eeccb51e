//! A page with a system call instruction that the filter lets through.
//!
//! It lies at the same address in every process. A filter outlives `exec`, and it can tell the calls
//! that must pass from those that it traps by the instruction pointer alone: with a fixed address,
//! the filter of an ancestor serves its descendants too, and none needs a second one.

use crate::arch::{Page, STUB_BYTES, STUB_CODE};
use anyring_runtime::arch::{self, STUB_ADDRESS};
use anyring_runtime::sys;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use linux_raw_sys::general as raw;

/// The addresses that filters let through.
pub const RANGE: Range<usize> = STUB_ADDRESS..STUB_ADDRESS + STUB_BYTES;

/// The code as the library's own file has it, in a page of its own: where no memory can be made executable
/// (`PR_SET_MDWE`, SELinux's `execmem`), this page moves to the address, and leaves a hole in the library.
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

/// Whether this front end has put the page in place.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Puts the page in place.
///
/// # Errors
/// The negative errno, where something else lies there or executable memory is not allowed.
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
    // SAFETY: just mapped, and nobody uses it yet.
    let error = unsafe { fill(STUB_ADDRESS) };
    let own = (&raw const PAGE).addr();
    // SAFETY: nobody reads or executes the page in the library; the one at the address is ours, and unused yet.
    let moves = || unsafe { sys::move_mapping(own, STUB_ADDRESS, STUB_BYTES) } == STUB_ADDRESS as isize;
    if error != 0 && !moves() {
        // Who looks for the page is to find none.
        // SAFETY: ours, and unused.
        unsafe { sys::unmap(STUB_ADDRESS, STUB_BYTES) };
        return Err(error);
    }
    INSTALLED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Writes the code to the page at `address` and makes it executable; a negative errno where that is not allowed.
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

/// How many calls of patched sites have a place in the page.
pub const CALLS: usize = 16;
/// Where they lie.
const FIRST_CALL: usize = 128;
/// Bytes of one.
const CALL_BYTES: usize = 16;

const _: () = assert!(STUB_CODE.len() <= FIRST_CALL && FIRST_CALL + CALLS * CALL_BYTES <= STUB_BYTES);

/// Where sites go on whose calls have a place; 0: none.
static BEHIND: [AtomicUsize; CALLS] = [const { AtomicUsize::new(0) }; CALLS];

/// The address in the page at which a call is made that goes on at `next`, if there is one.
pub fn call_behind(next: usize) -> Option<usize> {
    BEHIND.iter().position(|place| next != 0 && place.load(Ordering::Relaxed) == next).map(call_for)
}

/// The address in the page at which a site makes a call that the filter is not to trap at its place.
pub const fn call_for(index: usize) -> usize {
    STUB_ADDRESS + FIRST_CALL + index * CALL_BYTES
}

/// Puts code into the page that makes a call, and goes on at an address with all registers as the call leaves them: one for each address that is not 0.
/// Returns false if the page stays as it was.
///
/// # Safety
/// The process must have one thread, and what goes on at the addresses must be what makes the calls.
#[cfg(target_arch = "x86_64")]
pub unsafe fn put_calls(behind: &[usize; CALLS]) -> bool {
    let is_writable = INSTALLED.load(Ordering::Relaxed)
        // SAFETY: the page is ours, and nobody executes it meanwhile.
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
    // SAFETY: the page is ours.
    let error = unsafe { sys::protect(STUB_ADDRESS, STUB_BYTES, raw::PROT_READ | raw::PROT_EXEC) };
    assert!(error == 0, "the memory was executable before, and the tracer has just made other memory so");
    true
}

/// Whether another front end has put the page in place, in a process that runs a program in its own memory (valgrind).
pub fn is_others() -> bool {
    let mut code = [0; STUB_CODE.len()];
    !INSTALLED.load(Ordering::Relaxed) && sys::peek(STUB_ADDRESS, &mut code) && code == *STUB_CODE
}

/// Performs a system call that no filter of ours traps.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn syscall(number: usize, a: [usize; 6]) -> isize {
    if !INSTALLED.load(Ordering::Relaxed) {
        // Then there is no filter either, but perhaps one that traps the three calls alone.
        // SAFETY: the caller's promise.
        return unsafe { arch::syscall(number, a) };
    }
    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;
    // SAFETY: the page holds a function of this type.
    let call: Call = unsafe { core::mem::transmute(STUB_ADDRESS) };
    // SAFETY: the caller's promise.
    unsafe { call(number, a[0], a[1], a[2], a[3], a[4], a[5]) }
}
