//! Where stubs of patched sites jump: takes a slot, enters the engine on its stack, and goes on in the stub, behind the site.
//!
//! A system call changes no register but x0, so the stub saves x16 and x17 below the program's stack pointer, which it moves there first. The sixteen
//! bytes directly below are left as they are: Go keeps a frame pointer there. The entry saves x14 and x15 beside them. The stub restores the four when
//! the thread has given back its slot, for a register has to name the slot until then.
//!
//! x8 holds the number, x17 the stub's record, and x15 from its highest bits down: the flags, what the table says (bits 8 to 15), and how many slots
//! were looked at in vain (bits 0 to 7).

use crate::patched::pool::{self, POOL, Slot, offset};
use crate::patched::{BLOCK, enter, leave_interrupted};
use anyring_trap::arch::{Context, register};
use anyring_trap::handlers::{self, LAST, Place};
use anyring_trap::sites::ENTERS_BRIEFLY;
use core::arch::global_asm;
use core::cell::Cell;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as raw;

const _: () = assert!(
    LAST == usize::MAX
        && pool::SLEEPING < 256
        && pool::SLEEPING.is_power_of_two()
        && pool::BRIEF.is_power_of_two()
);

/// The bytes of the program's stack that hold registers of it while the thread is inside: x16, x17, x14, x15, and what is left as it was.
pub const STACK_USED: usize = 48;

/// The program's registers, except the stack pointer and those that the stub has saved on the program's stack.
#[repr(C, align(16))]
pub struct Saved {
    /// x0 to x13.
    registers: [Cell<usize>; 14],
    /// x18, and x19, which the entry needs.
    beyond: [Cell<usize>; 2],
    frame: Cell<usize>,
    link: Cell<usize>,
    /// x15 as [the entry](self) has it.
    flags: Cell<usize>,
    /// The halves of the vector registers that a system call preserves.
    vectors: [u128; 32],
}

impl Saved {
    /// The number of the call.
    pub fn number(&self) -> usize {
        self.registers[8].get() as u32 as usize
    }

    /// The registers in which a system call has its arguments.
    pub fn registers(&self) -> [usize; 6] {
        [0, 1, 2, 3, 4, 5].map(|index: usize| self.registers[index].get())
    }

    /// The arguments of the call that a function with eight arguments makes of its last six.
    pub fn arguments_of_function(&self, _stack_pointer: usize) -> [usize; 6] {
        [2, 3, 4, 5, 6, 7].map(|index: usize| self.registers[index].get())
    }

    /// The frame pointer, and the link register.
    pub fn frame_and_link(&self) -> [usize; 2] {
        [self.frame.get(), self.link.get()]
    }

    /// Returns the value that the result's register has before the call: the first argument.
    pub fn before_call(&self) -> isize {
        self.registers[0].get() as isize
    }
}

unsafe extern "C" {
    fn anyring_inject_site();
    /// The code that looks for a free slot.
    fn anyring_inject_claim();
    /// The code behind the instruction that may have taken the slot in x16; w14 is zero if it has.
    fn anyring_inject_claimed();
    /// The code from which on the thread is on the slot's stack.
    fn anyring_inject_entered();
    /// The code that looks for signals that were kept out.
    fn anyring_inject_leave();
    /// The code that restores the registers from the slot in x16.
    fn anyring_inject_restore();
    /// The code behind the instruction that gives back the slot.
    fn anyring_inject_left();
    /// The code in which the thread, on the program's stack, unblocks signals; the slot is in x19.
    fn anyring_inject_unblock();
    /// The code in which the thread goes on to [`anyring_inject_restore`].
    fn anyring_inject_unblocked();
}

global_asm!(
    ".pushsection .text.anyring_inject_site,\"ax\",@progbits",
    ".irp name, site, site_end, claim, claimed, entered, leave, restore, left, unblock, unblocked",
    ".globl anyring_inject_\\name",
    ".hidden anyring_inject_\\name",
    ".endr",
    // The vector registers, from or to x14 on.
    ".macro anyring_inject_vectors instruction",
    "\\instruction {{v0.2d, v1.2d, v2.2d, v3.2d}}, [x14], #64",
    "\\instruction {{v4.2d, v5.2d, v6.2d, v7.2d}}, [x14], #64",
    "\\instruction {{v8.2d, v9.2d, v10.2d, v11.2d}}, [x14], #64",
    "\\instruction {{v12.2d, v13.2d, v14.2d, v15.2d}}, [x14], #64",
    "\\instruction {{v16.2d, v17.2d, v18.2d, v19.2d}}, [x14], #64",
    "\\instruction {{v20.2d, v21.2d, v22.2d, v23.2d}}, [x14], #64",
    "\\instruction {{v24.2d, v25.2d, v26.2d, v27.2d}}, [x14], #64",
    "\\instruction {{v28.2d, v29.2d, v30.2d, v31.2d}}, [x14], #64",
    ".endm",
    ".type anyring_inject_site,@function",
    ".p2align 4",
    "anyring_inject_site:",
    "hint #34", // bti c
    "stp x14, x15, [sp, #16]",
    "mrs x15, nzcv",
    "adrp x14, {block}",
    "ldr x14, [x14, #:lo12:{block}]",
    "add x14, x14, w8, uxth",
    "ldrb w14, [x14]",
    "bfi w15, w14, #8, #8",
    "adrp x16, {in_use}",
    "ldr w16, [x16, #:lo12:{in_use}]",
    "cbnz w16, 6f",
    "anyring_inject_claim:",
    // Threads lie apart, and a thread comes by the same calls: it finds the slot that it had, whose memory is at hand.
    "mov x16, sp",
    "lsr x16, x16, #14",
    "mov w14, #0x79b1",
    "movk w14, #0x9e37, lsl #16",
    "mul w16, w16, w14",
    "lsr w16, w16, #16",
    "add w16, w16, w15, uxtb",
    "ubfx w14, w15, #8, #8",
    "cmp w14, #{briefly}",
    "b.eq 21f",
    "and w16, w16, #({sleeping} - 1)",
    "8: adrp x14, {pool}",
    "ldr x14, [x14, #:lo12:{pool}]",
    "add x16, x14, x16, lsl #{shift}",
    "7: ldaxr x14, [x16]",
    "cbnz x14, 2f",
    "stxr w14, x16, [x16]",
    "anyring_inject_claimed:",
    "cbnz w14, 7b",
    "mov x14, sp",
    "str x14, [x16, #{stack_pointer}]",
    "add x14, x16, #{bytes}",
    "mov sp, x14",
    "anyring_inject_entered:",
    "str x17, [x16, #{record}]",
    "stp x0, x1, [x16, #{registers}]",
    "stp x2, x3, [x16, #{registers} + 16]",
    "stp x4, x5, [x16, #{registers} + 32]",
    "stp x6, x7, [x16, #{registers} + 48]",
    "stp x8, x9, [x16, #{registers} + 64]",
    "stp x10, x11, [x16, #{registers} + 80]",
    "stp x12, x13, [x16, #{registers} + 96]",
    "stp x18, x19, [x16, #{beyond}]",
    "stp x29, x30, [x16, #{frame}]",
    "str x15, [x16, #{flags}]",
    "add x14, x16, #{vectors}",
    "anyring_inject_vectors st1",
    "mov x0, x16",
    "bl {enter}",
    // From here to `restore`, and on to where the stack pointer is the program's, the thread may be set back to here.
    "anyring_inject_leave:",
    "sub x16, sp, #{bytes}",
    "add x14, x16, #{vectors}",
    "anyring_inject_vectors ld1",
    "ldrb w14, [x16, #{interrupted}]",
    "cbnz w14, 4f",
    "anyring_inject_restore:",
    "ldr x15, [x16, #{flags}]",
    "msr nzcv, x15",
    "ldp x0, x1, [x16, #{registers}]",
    "ldp x2, x3, [x16, #{registers} + 16]",
    "ldp x4, x5, [x16, #{registers} + 32]",
    "ldp x6, x7, [x16, #{registers} + 48]",
    "ldp x8, x9, [x16, #{registers} + 64]",
    "ldp x10, x11, [x16, #{registers} + 80]",
    "ldp x12, x13, [x16, #{registers} + 96]",
    "ldp x18, x19, [x16, #{beyond}]",
    "ldp x29, x30, [x16, #{frame}]",
    "ldr x0, [x16, #{result}]",
    "ldr x17, [x16, #{next}]",
    "ldr x14, [x16, #{stack_pointer}]",
    "mov sp, x14",
    // Release pairs with the acquire at `claim`.
    "stlr xzr, [x16]",
    "anyring_inject_left:",
    "br x17",
    // A slot for calls that do not sleep.
    "21: and w16, w16, #({brief} - 1)",
    "add w16, w16, #{sleeping}",
    "b 8b",
    // The slot is taken: the next one, until all have been looked at. One of those for calls that do not sleep will be free soon.
    "2: clrex",
    "yield",
    "add w14, w15, #1",
    "bfxil w15, w14, #0, #8",
    "ubfx w14, w15, #8, #8",
    "cmp w14, #{briefly}",
    "b.eq anyring_inject_claim",
    "and w14, w15, #0xff",
    "cmp w14, #{sleeping}",
    "b.ne anyring_inject_claim",
    // Not the engine's: on to the `svc`.
    "3: msr nzcv, x15",
    "ldr x16, [x17]",
    "br x16",
    // Handlers run on alternate stacks: this thread's, perhaps.
    "6: adrp x16, {unplaced}",
    "ldr w16, [x16, #:lo12:{unplaced}]",
    "cbnz w16, 3b",
    "adrp x16, {places}",
    "add x16, x16, #:lo12:{places}",
    "9: ldr x14, [x16, #{address}]",
    "cmp sp, x14",
    "b.lo 5f",
    "ldr x14, [x16, #{end}]",
    "cmp sp, x14",
    "b.ls 3b",
    "5: add x16, x16, #{place_bytes}",
    "ldr x14, [x16, #{address}]",
    "cmn x14, #1",
    "b.ne 9b",
    "b anyring_inject_claim",
    // Signals were kept out.
    "4: mov x19, x16",
    "mov x0, x16",
    "bl {leave_interrupted}",
    "add x14, x19, #{vectors}",
    "anyring_inject_vectors ld1",
    "ldr x14, [x19, #{stack_pointer}]",
    "mov sp, x14",
    "anyring_inject_unblock:",
    "tbz w0, #0, 5f",
    "mov x0, #0",
    "mov x1, #0",
    "add x2, x19, #{no_time}",
    "add x3, x19, #{let_in}",
    "mov x4, #8",
    "mov x8, #{ppoll}",
    "svc #0",
    "5: mov x0, #{set}",
    "add x1, x19, #{mask}",
    "mov x2, #0",
    "mov x3, #8",
    "mov x8, #{rt_sigprocmask}",
    "svc #0",
    "mov x16, x19",
    "anyring_inject_unblocked:",
    "b anyring_inject_restore",
    "anyring_inject_site_end:",
    ".size anyring_inject_site, . - anyring_inject_site",
    ".popsection",
    block = sym BLOCK,
    in_use = sym handlers::IN_USE,
    unplaced = sym handlers::UNPLACED,
    places = sym handlers::PLACES,
    address = const offset_of!(Place, address),
    end = const offset_of!(Place, end),
    place_bytes = const size_of::<Place>(),
    briefly = const ENTERS_BRIEFLY,
    sleeping = const pool::SLEEPING,
    brief = const pool::BRIEF,
    pool = sym POOL,
    enter = sym enter,
    leave_interrupted = sym leave_interrupted,
    shift = const pool::SHIFT,
    bytes = const pool::BYTES,
    stack_pointer = const offset::STACK_POINTER,
    record = const offset::RECORD,
    registers = const offset::SAVED + offset_of!(Saved, registers),
    beyond = const offset::SAVED + offset_of!(Saved, beyond),
    frame = const offset::SAVED + offset_of!(Saved, frame),
    flags = const offset::SAVED + offset_of!(Saved, flags),
    vectors = const offset::SAVED + offset_of!(Saved, vectors),
    result = const offset::RESULT,
    next = const offset::NEXT,
    interrupted = const offset::INTERRUPTED,
    mask = const offset::MASK,
    let_in = const offset::LET_IN,
    no_time = const offset::NO_TIME,
    ppoll = const raw::__NR_ppoll,
    rt_sigprocmask = const raw::__NR_rt_sigprocmask,
    set = const raw::SIG_SETMASK,
);

const _: () = assert!(
    offset_of!(Saved, link) == offset_of!(Saved, frame) + 8
        && offset_of!(anyring_trap::sites::Record, back) == 0
        && offset_of!(anyring_trap::sites::Block, table) == 0
);

/// The address that stubs jump to.
pub fn address() -> usize {
    anyring_inject_site as *const () as usize
}

/// Returns the stack pointer of an interrupted thread.
pub fn stack_pointer(interrupted: &Context) -> usize {
    interrupted.register(register::SP)
}

fn range(first: unsafe extern "C" fn(), end: unsafe extern "C" fn()) -> Range<usize> {
    first as *const () as usize..end as *const () as usize
}

/// Has a thread on a slot's stack, for which a signal waits, look for signals again if it has already done so.
pub fn look_again(interrupted: &mut Context) {
    let leaves = range(anyring_inject_leave, anyring_inject_left);
    if leaves.contains(&interrupted.instruction_pointer()) {
        interrupted.set_instruction_pointer(leaves.start);
    }
}

/// Finishes what a thread on the program's stack, on its way in or out, was about to do with a slot: a handler of the program is about to run,
/// and may jump out.
pub fn settle(interrupted: &mut Context) {
    /// x16 and x19, which name the slot.
    const SLOT: usize = 16;
    const KEPT: usize = 19;
    let at = interrupted.instruction_pointer();
    if range(anyring_inject_claimed, anyring_inject_entered).contains(&at) {
        unclaim(interrupted);
    } else if range(anyring_inject_unblock, anyring_inject_unblocked).contains(&at) {
        let slot = slot_in(interrupted, KEPT);
        interrupted.set_signal_mask(slot.mask.get());
        leave(slot, interrupted);
    } else if at == anyring_inject_unblocked as *const () as usize
        || range(anyring_inject_restore, anyring_inject_left).contains(&at)
    {
        leave(slot_in(interrupted, SLOT), interrupted);
    }
}

/// Returns the slot that a register of the entry's code points to.
fn slot_in(interrupted: &Context, place: usize) -> &'static Slot {
    // SAFETY: at this instruction, as the caller has checked, the register points to a slot; slots stay mapped.
    unsafe { &*(interrupted.register(place) as *const Slot) }
}

/// Frees a slot that was just taken, and has the thread look for one again.
fn unclaim(interrupted: &mut Context) {
    /// x14 tells whether the slot was taken, whose address is in x16.
    const FAILED: usize = 14;
    const SLOT: usize = 16;
    let claimed = anyring_inject_claimed as *const () as usize;
    let was_taken = interrupted.instruction_pointer() == claimed && interrupted.register(FAILED) as u32 != 0;
    if !was_taken {
        // SAFETY: the word is the first field of a slot, which stays mapped.
        let taken = unsafe { &*(interrupted.register(SLOT) as *const AtomicU64) };
        taken.store(0, Ordering::Release);
        interrupted.set_instruction_pointer(anyring_inject_claim as *const () as usize);
    }
}

/// Has the thread continue in the program, and frees its slot. The end of the stub is done here, too, so that a handler finds the address of a call of
/// the program. A thread that goes back to a function continues in the stub, because the record does not have the function's address.
fn leave(slot: &Slot, interrupted: &mut Context) {
    /// N, Z, C and V.
    const FLAGS: usize = 0xf << 28;
    /// That the instruction before was an indirect branch (BTYPE).
    const BRANCHED: usize = 3 << 10;
    /// The size of an `svc` in bytes.
    const CALL: usize = 4;
    let (saved, record) = (&slot.saved, slot.record());
    for (number, value) in saved.registers.iter().enumerate() {
        interrupted.set_register(number, value.get());
    }
    let [platform, kept] = saved.beyond.each_ref().map(Cell::get);
    let state = interrupted.register(register::STATE) & !(FLAGS | BRANCHED) | saved.flags.get() & FLAGS;
    for (place, value) in [
        (0, slot.result.get() as usize),
        (18, platform),
        (19, kept),
        (29, saved.frame.get()),
        (30, saved.link.get()),
        (register::STATE, state),
        (register::SP, slot.stack_pointer.get()),
        (register::PC, slot.next.get()),
    ] {
        interrupted.set_register(place, value);
    }
    let on_stack = slot.stack_pointer.get();
    let next = match slot.next.get() {
        next if next == record.next => Some(record.behind),
        next if next == record.back && record.is_function == 0 => Some(record.behind - CALL),
        _ => None,
    };
    slot.give_back();
    if let Some(next) = next {
        // SAFETY: the stub and the entry have saved these registers there, and nothing lies below.
        let [x16, x17, x14, x15] = unsafe { *(on_stack as *const [usize; 4]) };
        for (place, value) in [
            (14, x14),
            (15, x15),
            (16, x16),
            (17, x17),
            (register::SP, on_stack + STACK_USED),
            (register::PC, next),
        ] {
            interrupted.set_register(place, value);
        }
    }
}
