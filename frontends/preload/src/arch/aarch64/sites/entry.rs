//! Stubs, and the entry that they call, which saves what a system call preserves, and enters the engine.

use super::branch;
use crate::patch::{STUB, Site, enter, is_ring_call};
use anyring_interpose::descriptors;
use core::arch::global_asm;
use linux_raw_sys::general as raw;

unsafe extern "C" {
    fn anyring_preload_entry();
    /// The template of stubs.
    static anyring_preload_stub: u8;
    /// The template's branch after a call that the engine answered.
    static anyring_preload_stub_answered: u8;
    /// The template's branch after a call that the stub made itself.
    static anyring_preload_stub_called: u8;
    /// The template's data: for each range of [`NUMBERS`], a bit for each number that the stub takes; the addresses of the mark and of the entry.
    static anyring_preload_stub_data: u8;
}

/// The first number of each range in which stubs take calls.
const NUMBERS: [u32; 2] = [0, HIGH * STEP];
/// The length of a range: a bit for each number.
const STEP: u32 = u64::BITS;
/// The index of the second range among all ranges of this length.
const HIGH: u32 = raw::__NR_io_uring_setup / STEP;
const _: () =
    assert!(raw::__NR_fcntl < STEP && raw::__NR_close < STEP && raw::__NR_close_range / STEP == HIGH);

/// The mark of stubs that always enter the engine.
static ALWAYS: u8 = 1;

/// Returns the stub of a site, for the address `address`. With a `mark`, the stub takes the three calls only: setups always, the others if
/// the byte at `mark` is not zero.
pub fn stub(site: &Site, _body: &[u8], mark: Option<usize>, address: usize) -> Option<[u8; STUB]> {
    // SAFETY: the template has this length.
    let mut code = unsafe { *(&raw const anyring_preload_stub).cast::<[u8; STUB]>() };
    let offset = |place: *const u8| place.addr() - (&raw const anyring_preload_stub).addr();
    let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
    for place in [&raw const anyring_preload_stub_answered, &raw const anyring_preload_stub_called] {
        put(offset(place), &branch(address + offset(place), site.next)?.to_le_bytes());
    }
    let is_taken = |number: u32| is_ring_call(number) || mark.is_none() && descriptors::is_call(number);
    let taken = NUMBERS.map(|first| {
        (0..STEP).filter(|bit| is_taken(first + bit)).fold(0_u64, |numbers, bit| numbers | 1 << bit)
    });
    let entry = anyring_preload_entry as *const () as usize;
    let addresses = [mark.unwrap_or((&raw const ALWAYS).addr()), entry].map(usize::to_le_bytes);
    let data = offset(&raw const anyring_preload_stub_data);
    put(data, taken.map(u64::to_le_bytes).as_flattened());
    put(data + size_of_val(&taken), addresses.as_flattened());
    Some(code)
}

// Nothing is preserved below the stack pointer, as in the procedure call standard.
global_asm!(
    ".pushsection .text.anyring_preload_stub,\"ax\",@progbits",
    ".globl anyring_preload_stub",
    ".hidden anyring_preload_stub",
    ".globl anyring_preload_stub_answered",
    ".hidden anyring_preload_stub_answered",
    ".globl anyring_preload_stub_called",
    ".hidden anyring_preload_stub_called",
    ".globl anyring_preload_stub_data",
    ".hidden anyring_preload_stub_data",
    ".p2align 3",
    "anyring_preload_stub:",
    "stp x16, x17, [sp, #-32]!",
    "str x30, [sp, #16]",
    // Look up, without a change of the flags, whether the number (32 bits for the kernel) is taken.
    "lsr w16, w8, #{step}",
    "cbz w16, 1f",
    "sub w16, w16, #{high}",
    "cbnz w16, 4f",
    "ldr x17, 5f",
    "b 2f",
    "1: ldr x17, anyring_preload_stub_data",
    "2: lsr x17, x17, x8",
    "tbz x17, #0, 4f",
    "sub w16, w8, #{setup}",
    "cbz w16, 3f",
    "ldr x17, 6f",
    "ldrb w17, [x17]",
    "cbz w17, 4f",
    "3: ldr x17, 7f",
    "blr x17",
    "ldr x30, [sp, #16]",
    "ldp x16, x17, [sp], #32",
    "anyring_preload_stub_answered:",
    "b .",
    "4: ldp x16, x17, [sp], #32",
    "svc #0",
    "anyring_preload_stub_called:",
    "b .",
    ".p2align 3",
    "anyring_preload_stub_data:",
    ".xword 0",
    "5: .xword 0",
    "6: .xword 0",
    "7: .xword 0",
    // Fails to assemble if the stub is longer.
    ".org anyring_preload_stub + {stub}",
    ".popsection",
    stub = const STUB,
    step = const STEP.trailing_zeros(),
    high = const HIGH,
    setup = const raw::__NR_io_uring_setup,
);

// Arguments are in the registers of a system call, with the number in x8; the function expects it in x6. The stub saved x16, x17, x30.
global_asm!(
    ".pushsection .text.anyring_preload_entry,\"ax\",@progbits",
    ".globl anyring_preload_entry",
    ".hidden anyring_preload_entry",
    ".type anyring_preload_entry,@function",
    ".p2align 4",
    "anyring_preload_entry:",
    "sub sp, sp, #672",
    "stp x29, x30, [sp]",
    "mov x29, sp",
    "stp x1, x2, [sp, #16]",
    "stp x3, x4, [sp, #32]",
    "stp x5, x6, [sp, #48]",
    "stp x7, x8, [sp, #64]",
    "stp x9, x10, [sp, #80]",
    "stp x11, x12, [sp, #96]",
    "stp x13, x14, [sp, #112]",
    "mrs x9, nzcv",
    "stp x15, x18, [sp, #128]",
    "add x10, sp, #144",
    "st1 {{v0.2d, v1.2d, v2.2d, v3.2d}}, [x10], #64",
    "st1 {{v4.2d, v5.2d, v6.2d, v7.2d}}, [x10], #64",
    "st1 {{v8.2d, v9.2d, v10.2d, v11.2d}}, [x10], #64",
    "st1 {{v12.2d, v13.2d, v14.2d, v15.2d}}, [x10], #64",
    "st1 {{v16.2d, v17.2d, v18.2d, v19.2d}}, [x10], #64",
    "st1 {{v20.2d, v21.2d, v22.2d, v23.2d}}, [x10], #64",
    "st1 {{v24.2d, v25.2d, v26.2d, v27.2d}}, [x10], #64",
    "st1 {{v28.2d, v29.2d, v30.2d, v31.2d}}, [x10], #64",
    // The called function preserves x19.
    "str x19, [sp, #656]",
    "mov x19, x9",
    "mov w6, w8",
    "bl {enter}",
    "msr nzcv, x19",
    "ldr x19, [sp, #656]",
    "add x10, sp, #144",
    "ld1 {{v0.2d, v1.2d, v2.2d, v3.2d}}, [x10], #64",
    "ld1 {{v4.2d, v5.2d, v6.2d, v7.2d}}, [x10], #64",
    "ld1 {{v8.2d, v9.2d, v10.2d, v11.2d}}, [x10], #64",
    "ld1 {{v12.2d, v13.2d, v14.2d, v15.2d}}, [x10], #64",
    "ld1 {{v16.2d, v17.2d, v18.2d, v19.2d}}, [x10], #64",
    "ld1 {{v20.2d, v21.2d, v22.2d, v23.2d}}, [x10], #64",
    "ld1 {{v24.2d, v25.2d, v26.2d, v27.2d}}, [x10], #64",
    "ld1 {{v28.2d, v29.2d, v30.2d, v31.2d}}, [x10], #64",
    "ldp x1, x2, [sp, #16]",
    "ldp x3, x4, [sp, #32]",
    "ldp x5, x6, [sp, #48]",
    "ldp x7, x8, [sp, #64]",
    "ldp x9, x10, [sp, #80]",
    "ldp x11, x12, [sp, #96]",
    "ldp x13, x14, [sp, #112]",
    "ldp x15, x18, [sp, #128]",
    "ldp x29, x30, [sp]",
    "add sp, sp, #672",
    "ret",
    ".size anyring_preload_entry, . - anyring_preload_entry",
    ".popsection",
    enter = sym enter,
);
