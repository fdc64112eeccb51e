//! Stubs, and the entry that they call, which saves what a system call preserves, and enters the engine.

use super::branch;
use crate::patch::{STUB, Site, enter};
use core::arch::global_asm;

unsafe extern "C" {
    fn anyring_preload_entry();
    /// The template of stubs.
    static anyring_preload_stub: u8;
    /// The template's branch after a call that the engine answered.
    static anyring_preload_stub_answered: u8;
    /// The template's branch after a call that the stub made itself.
    static anyring_preload_stub_called: u8;
    /// The template's two addresses: of the mark, and of the entry.
    static anyring_preload_stub_addresses: u8;
}

/// The mark of stubs that always enter the engine.
static ALWAYS: u8 = 1;

/// Returns the stub of a site, for the address `address`. With a `mark`, the stub enters the engine only if the byte at `mark` is not
/// zero, or if the call makes a ring.
pub fn stub(site: &Site, _body: &[u8], mark: Option<usize>, address: usize) -> Option<[u8; STUB]> {
    // SAFETY: the template has this length.
    let mut code = unsafe { *(&raw const anyring_preload_stub).cast::<[u8; STUB]>() };
    let offset = |place: *const u8| place.addr() - (&raw const anyring_preload_stub).addr();
    let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
    for place in [&raw const anyring_preload_stub_answered, &raw const anyring_preload_stub_called] {
        put(offset(place), &branch(address + offset(place), site.next)?.to_le_bytes());
    }
    let addresses = offset(&raw const anyring_preload_stub_addresses);
    put(addresses, &mark.unwrap_or((&raw const ALWAYS).addr()).to_le_bytes());
    put(addresses + 8, &(anyring_preload_entry as *const () as usize).to_le_bytes());
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
    ".globl anyring_preload_stub_addresses",
    ".hidden anyring_preload_stub_addresses",
    ".p2align 3",
    "anyring_preload_stub:",
    "stp x16, x17, [sp, #-32]!",
    "str x30, [sp, #16]",
    // Test, without a change of the flags, whether the number (32 bits for the kernel) is one of 425 to 428.
    "sub w16, w8, #425",
    "lsr w17, w16, #2",
    "cbnz w17, 2f",
    "cbz w16, 1f",
    "ldr x17, anyring_preload_stub_addresses",
    "ldrb w17, [x17]",
    "cbz w17, 2f",
    "1: ldr x17, 3f",
    "blr x17",
    "ldr x30, [sp, #16]",
    "ldp x16, x17, [sp], #32",
    "anyring_preload_stub_answered:",
    "b .",
    "2: ldp x16, x17, [sp], #32",
    "svc #0",
    "anyring_preload_stub_called:",
    "b .",
    ".p2align 3",
    "anyring_preload_stub_addresses:",
    ".xword 0",
    "3: .xword 0",
    // Fails to assemble if the stub is longer.
    ".org anyring_preload_stub + {stub}",
    ".popsection",
    stub = const STUB,
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
