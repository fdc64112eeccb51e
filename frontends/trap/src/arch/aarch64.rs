//! AArch64.

use core::arch::{asm, global_asm};
use core::ffi::c_void;
use linux_raw_sys::general as raw;

/// `AUDIT_ARCH_AARCH64`.
pub const AUDIT_ARCH: u32 = 0xc000_00b7;
/// `EM_AARCH64`: programs of this architecture.
pub const ELF_MACHINE: u16 = 183;
/// System calls that only fork: none, programs use `clone`.
pub const FORKS: &[u32] = &[];

/// System calls that wait for descriptors, or register descriptors with epoll.
pub const WAITING: &[u32] = &[
    raw::__NR_ppoll,
    raw::__NR_pselect6,
    raw::__NR_epoll_ctl,
    raw::__NR_epoll_pwait,
    raw::__NR_epoll_pwait2,
];

/// `extern "C" fn(number, a, b, c, d, e, f) -> isize`, position-independent.
pub const STUB_CODE: &[u8] = &[
    0xe8, 0x03, 0x00, 0xaa, // mov x8, x0
    0xe0, 0x03, 0x01, 0xaa, // mov x0, x1
    0xe1, 0x03, 0x02, 0xaa, // mov x1, x2
    0xe2, 0x03, 0x03, 0xaa, // mov x2, x3
    0xe3, 0x03, 0x04, 0xaa, // mov x3, x4
    0xe4, 0x03, 0x05, 0xaa, // mov x4, x5
    0xe5, 0x03, 0x06, 0xaa, // mov x5, x6
    0x01, 0x00, 0x00, 0xd4, // svc #0
    0xc0, 0x03, 0x5f, 0xd6, // ret
];

/// Bytes of the stub page: the architecture's largest page size.
pub const STUB_BYTES: usize = 65536;

/// Bytes that fill a page.
#[repr(align(65536))]
pub struct Page(pub [u8; STUB_BYTES]);

unsafe extern "C" {
    fn anyring_trap_restorer();

    /// Calls `function(argument)` on the stack that ends at `top`, a multiple of 16.
    pub fn anyring_trap_on_stack(top: usize, function: extern "C" fn(*mut c_void), argument: *mut c_void);
}

global_asm!(
    ".pushsection .text.anyring_trap_restorer,\"ax\",@progbits",
    ".globl anyring_trap_restorer",
    ".hidden anyring_trap_restorer",
    ".type anyring_trap_restorer,@function",
    // Unwinders look up the byte before the return address, and recognize a signal frame by these two instructions.
    "nop",
    "anyring_trap_restorer:",
    "mov x8, #139",
    "svc #0",
    ".size anyring_trap_restorer, . - anyring_trap_restorer",
    ".globl anyring_trap_on_stack",
    ".hidden anyring_trap_on_stack",
    ".type anyring_trap_on_stack,@function",
    "anyring_trap_on_stack:",
    "stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "mov sp, x0",
    "mov x0, x2",
    "blr x1",
    "mov sp, x29",
    "ldp x29, x30, [sp], #16",
    "ret",
    ".size anyring_trap_on_stack, . - anyring_trap_on_stack",
    ".popsection",
);

unsafe extern "C" {
    /// Makes a system call, or returns `-EINTR` if `*interrupted` is set; see [`crate::sleep`].
    pub fn anyring_trap_sleep(number: usize, arguments: *const usize, interrupted: *const bool) -> isize;

    /// The address at which `anyring_trap_sleep` reads `*interrupted`.
    pub fn anyring_trap_sleep_start();
    /// The address behind the `svc` of `anyring_trap_sleep`.
    pub fn anyring_trap_sleep_end();
    /// The address at which `anyring_trap_sleep` returns `-EINTR`.
    pub fn anyring_trap_sleep_interrupted();
}

global_asm!(
    ".pushsection .text.anyring_trap_sleep,\"ax\",@progbits",
    ".globl anyring_trap_sleep",
    ".hidden anyring_trap_sleep",
    ".type anyring_trap_sleep,@function",
    ".globl anyring_trap_sleep_start",
    ".hidden anyring_trap_sleep_start",
    ".globl anyring_trap_sleep_end",
    ".hidden anyring_trap_sleep_end",
    ".globl anyring_trap_sleep_interrupted",
    ".hidden anyring_trap_sleep_interrupted",
    "anyring_trap_sleep:",
    // A thread may end in the call: its unwinder passes this frame.
    ".cfi_startproc",
    "mov x9, x1",
    "mov x10, x2",
    "mov x8, x0",
    "ldp x0, x1, [x9]",
    "ldp x2, x3, [x9, #16]",
    "ldp x4, x5, [x9, #32]",
    "anyring_trap_sleep_start:",
    "ldrb w11, [x10]",
    "cbnz w11, anyring_trap_sleep_interrupted",
    "svc #0",
    "anyring_trap_sleep_end:",
    "ret",
    "anyring_trap_sleep_interrupted:",
    "mov x0, #-4",
    "ret",
    ".cfi_endproc",
    ".size anyring_trap_sleep, . - anyring_trap_sleep",
    ".popsection",
);

/// Returns the flag `SA_RESTORER`, and the function that returns from a signal handler. Without them handlers would return through
/// the vdso, which a program may unmap (valgrind does).
pub fn restorer() -> (u32, usize) {
    const SA_RESTORER: u32 = 0x0400_0000;
    (SA_RESTORER, anyring_trap_restorer as *const () as usize)
}

/// `stack_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AlternateStack {
    /// The lowest address.
    pub address: usize,
    /// `SS_*`.
    pub flags: u32,
    /// The length.
    pub bytes: usize,
}

/// The state of the thread that a signal interrupted, in the layout of `ucontext_t`.
#[repr(C)]
pub struct Context {
    flags: usize,
    link: usize,
    stack: AlternateStack,
    signal_mask: u64,
    unused: [u8; 120],
    // `sigcontext` is aligned to 16 bytes.
    padding: usize,
    fault_address: u64,
    registers: [usize; 31],
    stack_pointer: usize,
    program_counter: usize,
    state: u64,
}

const _: () = {
    assert!(core::mem::offset_of!(Context, signal_mask) == 40);
    assert!(core::mem::offset_of!(Context, fault_address) == 176);
    // They lie as their indices say.
    assert!(core::mem::offset_of!(Context, stack_pointer) == FIRST_REGISTER + 8 * register::SP);
    assert!(core::mem::offset_of!(Context, program_counter) == FIRST_REGISTER + 8 * register::PC);
};

/// Indices of registers for [`Context::register`].
pub mod register {
    /// The stack pointer.
    pub const SP: usize = 31;
    /// The program counter.
    pub const PC: usize = 32;
    /// The flags, in the state of the processor.
    pub const STATE: usize = 33;
    /// Where the registers lie in a context.
    pub const FIRST: usize = super::FIRST_REGISTER;
}

const FIRST_REGISTER: usize = core::mem::offset_of!(Context, registers);

impl Context {
    /// Returns the value of a register: of x0 to x30 by their numbers, of the others by a [`register`].
    pub fn register(&self, place: usize) -> usize {
        match place {
            register::SP => self.stack_pointer,
            register::PC => self.program_counter,
            register::STATE => self.state as usize,
            number => self.registers[number],
        }
    }

    /// Sets the value of a register with which the thread continues.
    pub fn set_register(&mut self, place: usize, value: usize) {
        match place {
            register::SP => self.stack_pointer = value,
            register::PC => self.program_counter = value,
            register::STATE => self.state = value as u64,
            number => self.registers[number] = value,
        }
    }

    /// Returns the arguments of the trapped system call.
    pub fn arguments(&self) -> [usize; 6] {
        [0, 1, 2, 3, 4, 5].map(|index: usize| self.registers[index])
    }

    /// Sets the result of the trapped call.
    pub fn set_result(&mut self, result: isize) {
        self.registers[0] = result as usize;
    }

    /// Returns the address at which the thread continues.
    pub fn instruction_pointer(&self) -> usize {
        self.program_counter
    }

    /// Returns the thread's program counter, stack pointer, frame pointer and link register.
    pub fn pointers(&self) -> [usize; 4] {
        [self.program_counter, self.stack_pointer, self.registers[29], self.registers[30]]
    }

    /// Lets the thread continue at `address`.
    pub fn set_instruction_pointer(&mut self, address: usize) {
        self.program_counter = address;
    }

    /// Lets the thread repeat its system call, as call `number` with the first argument `first`.
    pub fn repeat_call(&mut self, number: usize, first: usize) {
        self.registers[8] = number;
        self.registers[0] = first;
        self.program_counter -= 4;
    }

    /// Returns the thread's alternate stack; the return from the handler sets it.
    pub fn alternate_stack(&mut self) -> &mut AlternateStack {
        &mut self.stack
    }

    /// Returns the signals that the thread had blocked.
    pub fn signal_mask(&self) -> u64 {
        self.signal_mask
    }

    /// Sets the signals that the thread will have blocked.
    pub fn set_signal_mask(&mut self, mask: u64) {
        self.signal_mask = mask;
    }
}

/// Makes code that was just written visible to instruction fetches.
///
/// # Safety
/// The bytes must be mapped.
pub unsafe fn synchronize_code(code: *const u8, length: usize) {
    let (start, end) = (code.addr(), code.addr() + length);
    for line in (start & !15..end).step_by(16) {
        // SAFETY: cache maintenance by address, within mapped memory.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: barriers have no other effect.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    for line in (start & !15..end).step_by(16) {
        // SAFETY: as above.
        unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: as above.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}
