//! The entry, to which stubs of patched sites jump: takes a slot, runs the engine on the slot's stack, and continues after the site.
//!
//! At the beginning, eax holds the number, rcx the number's value in the table, and r11 the address of the stub's record. From `rol` on, rcx holds from its
//! highest bits down: the number (32 bits), the value in the table and the count of slots that were found taken (8 bits each), and the flags as `lahf` and
//! `seto` store them.

use crate::patched::pool::{self, POOL, Slot, offset};
use crate::patched::{enter, leave_interrupted};
use anyring_trap::arch::{Context, register};
use anyring_trap::handlers::{self, LAST, Place};
use anyring_trap::sites::ENTERS_BRIEFLY;
use core::arch::global_asm;
use core::cell::Cell;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as raw;

#[cfg(target_feature = "avx")]
compile_error!(
    "the image is built for x86-64 without AVX (no -C target-cpu=native): a patched call site does not save the vector registers that such \
     code changes"
);

const _: () = assert!(
    LAST == usize::MAX
        && pool::SLEEPING < 256
        && pool::SLEEPING.is_power_of_two()
        && pool::BRIEF.is_power_of_two()
);

/// The bytes of the program's stack that hold registers of it while the thread is inside.
pub const STACK_USED: usize = 0;

/// The program's registers, except the stack pointer.
#[repr(C, align(16))]
pub struct Saved {
    /// The number of the call, and the flags below it, as [the entry](self) has them in rcx.
    packed: Cell<usize>,
    /// The registers in which a system call has its arguments.
    arguments: [Cell<usize>; 6],
    /// rbx, which the entry needs.
    base: Cell<usize>,
    frame: Cell<usize>,
    /// The vector registers that code for the baseline changes.
    vectors: [u128; 16],
}

impl Saved {
    /// The number of the call.
    pub fn number(&self) -> usize {
        self.packed.get() >> 32
    }

    /// The flags, as `lahf` and `seto %al` have them.
    fn flags(&self) -> u16 {
        self.packed.get() as u16
    }

    /// The registers in which a system call has its arguments.
    pub fn registers(&self) -> [usize; 6] {
        self.arguments.each_ref().map(Cell::get)
    }

    /// The arguments of the call that a function with eight arguments makes of its last six.
    pub fn arguments_of_function(&self, stack_pointer: usize) -> [usize; 6] {
        let [_, _, third, fourth, fifth, sixth] = self.registers();
        // SAFETY: behind the address to return to lie the last two arguments.
        let on_stack = |index| unsafe { *(stack_pointer as *const usize).add(index) };
        [third, fourth, fifth, sixth, on_stack(1), on_stack(2)]
    }

    /// The frame pointer, and 0 because there is no link register.
    pub fn frame_and_link(&self) -> [usize; 2] {
        [self.frame.get(), 0]
    }

    /// Returns the value that the result's register has before the call: the number.
    pub fn before_call(&self) -> isize {
        self.number() as isize
    }
}

unsafe extern "C" {
    fn anyring_inject_site();
    /// The code that looks for a free slot.
    fn anyring_inject_claim();
    /// The code behind the instruction that may have taken a slot; CF is set if it has not.
    fn anyring_inject_claimed();
    /// The code from which on the thread is on the slot's stack.
    fn anyring_inject_entered();
    /// The code that looks for signals that were kept out.
    fn anyring_inject_leave();
    /// The code that restores the registers from the slot in rcx.
    fn anyring_inject_restore();
    /// The code behind the instruction that gives back the slot.
    fn anyring_inject_left();
    /// The code in which the thread, on the program's stack, unblocks signals; the slot is in rbx.
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
    ".type anyring_inject_site,@function",
    ".p2align 4",
    "anyring_inject_site:",
    "endbr64",
    "mov eax, eax",
    "bswap rcx",
    "lea rcx, [rcx + rax]",
    "lahf",
    "seto al",
    "rol rcx, 32",
    "mov cx, ax",
    "cmp dword ptr [rip + {in_use}], 0",
    "jne 6f",
    "anyring_inject_claim:",
    // Stacks of threads are far from each other, and a thread makes its calls at similar depths: it finds the slot that it had, whose memory is in
    // the cache.
    "mov rax, rsp",
    "shr rax, 14",
    "imul eax, eax, 0x9e3779b1",
    "shr eax, 16",
    "ror rcx, 16",
    "add al, cl",
    "cmp ch, {briefly}",
    "je 21f",
    "and eax, {sleeping} - 1",
    "8: rol rcx, 16",
    "shl eax, {shift}",
    "add rax, [rip + {pool}]",
    "lock bts qword ptr [rax], 0",
    "anyring_inject_claimed:",
    "jc 2f",
    "mov [rax + {stack_pointer}], rsp",
    "lea rsp, [rax + {bytes}]",
    "anyring_inject_entered:",
    "mov [rax + {record}], r11",
    "mov [rax + {packed}], rcx",
    "mov [rax + {arguments}], rdi",
    "mov [rax + {arguments} + 8], rsi",
    "mov [rax + {arguments} + 16], rdx",
    "mov [rax + {arguments} + 24], r10",
    "mov [rax + {arguments} + 32], r8",
    "mov [rax + {arguments} + 40], r9",
    "mov [rax + {base}], rbx",
    "mov [rax + {frame}], rbp",
    ".irp index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps [rax + {vectors} + 16 * \\index], xmm\\index",
    ".endr",
    "mov rdi, rax",
    "call {enter}",
    // From here to `restore`, and on to where the stack pointer is the program's, the thread may be set back to here.
    "anyring_inject_leave:",
    "lea rcx, [rsp - 8]",
    "and rcx, -{bytes}",
    ".irp index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps xmm\\index, [rcx + {vectors} + 16 * \\index]",
    ".endr",
    "cmp byte ptr [rcx + {interrupted}], 0",
    "jne 4f",
    "anyring_inject_restore:",
    "mov rax, [rcx + {packed}]",
    "add al, 127",
    "sahf",
    "mov rdi, [rcx + {arguments}]",
    "mov rsi, [rcx + {arguments} + 8]",
    "mov rdx, [rcx + {arguments} + 16]",
    "mov r10, [rcx + {arguments} + 24]",
    "mov r8, [rcx + {arguments} + 32]",
    "mov r9, [rcx + {arguments} + 40]",
    "mov rbx, [rcx + {base}]",
    "mov rax, [rcx + {result}]",
    "mov r11, [rcx + {next}]",
    "mov rsp, [rcx + {stack_pointer}]",
    "mov qword ptr [rcx], 0",
    "anyring_inject_left:",
    "notrack jmp r11",
    // A slot for calls that do not sleep.
    "21: and eax, {brief} - 1",
    "add eax, {sleeping}",
    "jmp 8b",
    // The slot is taken: the next one, until all have been looked at. One of those for calls that do not sleep will be free soon.
    "2: pause",
    "ror rcx, 16",
    "inc cl",
    "cmp ch, {briefly}",
    "je 22f",
    "cmp cl, {sleeping}",
    "je 23f",
    "22: rol rcx, 16",
    "jmp anyring_inject_claim",
    "23: rol rcx, 16",
    // No slot: the call continues at the `syscall`.
    "3: mov eax, ecx",
    "shr rcx, 32",
    "add al, 127",
    "sahf",
    "mov eax, ecx",
    "notrack jmp qword ptr [r11]",
    // Handlers run on alternate stacks: this thread's, perhaps.
    "6: cmp dword ptr [rip + {unplaced}], 0",
    "jne 3b",
    "lea rax, [rip + {places}]",
    "9: cmp rsp, [rax + {address}]",
    "jb 7f",
    "cmp rsp, [rax + {end}]",
    "jbe 3b",
    "7: add rax, {place_bytes}",
    "cmp qword ptr [rax + {address}], -1",
    "jne 9b",
    "jmp anyring_inject_claim",
    // Signals wait for the thread.
    "4: mov rbx, rcx",
    "mov rdi, rcx",
    "call {leave_interrupted}",
    ".irp index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps xmm\\index, [rbx + {vectors} + 16 * \\index]",
    ".endr",
    "mov rsp, [rbx + {stack_pointer}]",
    "anyring_inject_unblock:",
    "test al, al",
    "jz 5f",
    "xor edi, edi",
    "xor esi, esi",
    "lea rdx, [rbx + {no_time}]",
    "lea r10, [rbx + {let_in}]",
    "mov r8d, 8",
    "mov eax, {ppoll}",
    "syscall",
    "5: mov edi, {set}",
    "lea rsi, [rbx + {mask}]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, {rt_sigprocmask}",
    "syscall",
    "mov rcx, rbx",
    "anyring_inject_unblocked:",
    "jmp anyring_inject_restore",
    "anyring_inject_site_end:",
    ".size anyring_inject_site, . - anyring_inject_site",
    ".popsection",
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
    packed = const offset::SAVED + offset_of!(Saved, packed),
    arguments = const offset::SAVED + offset_of!(Saved, arguments),
    base = const offset::SAVED + offset_of!(Saved, base),
    frame = const offset::SAVED + offset_of!(Saved, frame),
    result = const offset::RESULT,
    next = const offset::NEXT,
    interrupted = const offset::INTERRUPTED,
    mask = const offset::MASK,
    let_in = const offset::LET_IN,
    no_time = const offset::NO_TIME,
    vectors = const offset::SAVED + offset_of!(Saved, vectors),
    ppoll = const raw::__NR_ppoll,
    rt_sigprocmask = const raw::__NR_rt_sigprocmask,
    set = const raw::SIG_SETMASK,
);

/// The address that stubs jump to.
pub fn address() -> usize {
    anyring_inject_site as *const () as usize
}

/// Returns the stack pointer of an interrupted thread.
pub fn stack_pointer(interrupted: &Context) -> usize {
    interrupted.register(register::RSP)
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
    let at = interrupted.instruction_pointer();
    if range(anyring_inject_claimed, anyring_inject_entered).contains(&at) {
        unclaim(interrupted);
    } else if range(anyring_inject_unblock, anyring_inject_unblocked).contains(&at) {
        let slot = slot_in(interrupted, register::RBX);
        interrupted.set_signal_mask(slot.mask.get());
        leave(slot, interrupted);
    } else if at == anyring_inject_unblocked as *const () as usize
        || range(anyring_inject_restore, anyring_inject_left).contains(&at)
    {
        leave(slot_in(interrupted, register::RCX), interrupted);
    }
}

/// Returns the slot that a register of the entry's code points to.
fn slot_in(interrupted: &Context, place: usize) -> &'static Slot {
    // SAFETY: at this instruction, as the caller has checked, the register points to a slot; slots stay mapped.
    unsafe { &*(interrupted.register(place) as *const Slot) }
}

/// Frees a slot that was just taken, and has the thread look for one again.
fn unclaim(interrupted: &mut Context) {
    const CARRY: usize = 1;
    let claimed = anyring_inject_claimed as *const () as usize;
    let was_taken =
        interrupted.instruction_pointer() == claimed && interrupted.register(register::FLAGS) & CARRY != 0;
    if !was_taken {
        // SAFETY: the bit is the first field of a slot, which stays mapped.
        let taken = unsafe { &*(interrupted.register(register::RAX) as *const AtomicU64) };
        taken.store(0, Ordering::Release);
        interrupted.set_instruction_pointer(anyring_inject_claim as *const () as usize);
    }
}

/// Has the thread continue in the program, and frees its slot.
fn leave(slot: &Slot, interrupted: &mut Context) {
    const BY_LAHF: usize = 0xd5;
    const OVERFLOW: usize = 1 << 11;
    let [overflow, by_lahf] = slot.saved.flags().to_le_bytes().map(usize::from);
    let others = interrupted.register(register::FLAGS) & !(BY_LAHF | OVERFLOW);
    let flags = others | by_lahf & BY_LAHF | if overflow != 0 { OVERFLOW } else { 0 };
    let places = [register::RDI, register::RSI, register::RDX, register::R10, register::R8, register::R9];
    for (place, value) in places.into_iter().zip(slot.saved.registers()) {
        interrupted.set_register(place, value);
    }
    for (place, value) in [
        (register::RBX, slot.saved.base.get()),
        (register::RAX, slot.result.get() as usize),
        (register::RSP, slot.stack_pointer.get()),
        (register::RIP, slot.next.get()),
        (register::FLAGS, flags),
    ] {
        interrupted.set_register(place, value);
    }
    slot.give_back();
}
