//! x86-64.

use core::arch::global_asm;
use core::ffi::c_void;
use linux_raw_sys::general as raw;

/// `AUDIT_ARCH_X86_64`.
pub const AUDIT_ARCH: u32 = 0xc000_003e;
/// `EM_X86_64`: programs of this architecture.
pub const ELF_MACHINE: u16 = 62;
/// System calls that only fork.
pub const FORKS: &[u32] = &[raw::__NR_fork];

/// System calls that wait for descriptors, or register descriptors with epoll.
pub const WAITING: &[u32] = &[
    raw::__NR_poll,
    raw::__NR_ppoll,
    raw::__NR_select,
    raw::__NR_pselect6,
    raw::__NR_epoll_ctl,
    raw::__NR_epoll_wait,
    raw::__NR_epoll_pwait,
    raw::__NR_epoll_pwait2,
];

/// `extern "C" fn(number, a, b, c, d, e, f) -> isize`, position-independent.
pub const STUB_CODE: &[u8] = &[
    0x48, 0x89, 0xf8, // mov %rdi,%rax
    0x48, 0x89, 0xf7, // mov %rsi,%rdi
    0x48, 0x89, 0xd6, // mov %rdx,%rsi
    0x48, 0x89, 0xca, // mov %rcx,%rdx
    0x4d, 0x89, 0xc2, // mov %r8,%r10
    0x4d, 0x89, 0xc8, // mov %r9,%r8
    0x4c, 0x8b, 0x4c, 0x24, 0x08, // mov 8(%rsp),%r9
    0x0f, 0x05, // syscall
    0xc3, // ret
];

/// Bytes of the stub page.
pub const STUB_BYTES: usize = 4096;

/// Bytes that fill a page.
#[repr(align(4096))]
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
    "mov rax, 15",
    "syscall",
    ".size anyring_trap_restorer, . - anyring_trap_restorer",
    ".globl anyring_trap_on_stack",
    ".hidden anyring_trap_on_stack",
    ".type anyring_trap_on_stack,@function",
    "anyring_trap_on_stack:",
    "push rbp",
    "mov rbp, rsp",
    "mov rsp, rdi",
    "mov rdi, rdx",
    "call rsi",
    "mov rsp, rbp",
    "pop rbp",
    "ret",
    ".size anyring_trap_on_stack, . - anyring_trap_on_stack",
    ".popsection",
);

unsafe extern "C" {
    /// Makes a system call, or returns `-EINTR` if `*interrupted` is set; see [`crate::sleep`].
    pub fn anyring_trap_sleep(number: usize, arguments: *const usize, interrupted: *const bool) -> isize;

    /// The address at which `anyring_trap_sleep` reads `*interrupted`.
    pub fn anyring_trap_sleep_start();
    /// The address behind the `syscall` of `anyring_trap_sleep`.
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
    "mov rcx, rdx",
    "mov rax, rdi",
    "mov r11, rsi",
    "mov rdi, [r11]",
    "mov rsi, [r11 + 8]",
    "mov rdx, [r11 + 16]",
    "mov r10, [r11 + 24]",
    "mov r8, [r11 + 32]",
    "mov r9, [r11 + 40]",
    "anyring_trap_sleep_start:",
    "cmp byte ptr [rcx], 0",
    "jne anyring_trap_sleep_interrupted",
    "syscall",
    "anyring_trap_sleep_end:",
    "ret",
    "anyring_trap_sleep_interrupted:",
    "mov rax, -4",
    "ret",
    ".cfi_endproc",
    ".size anyring_trap_sleep, . - anyring_trap_sleep",
    ".popsection",
);

/// Returns the flag `SA_RESTORER`, and the function for `sa_restorer`, which returns from a signal handler.
pub fn restorer() -> (u32, usize) {
    const SA_RESTORER: u32 = 0x0400_0000;
    (SA_RESTORER, anyring_trap_restorer as *const () as usize)
}

/// Does nothing: instruction fetches see code that was just written.
///
/// # Safety
/// None here.
pub unsafe fn synchronize_code(_code: *const u8, _length: usize) {}

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
    registers: [usize; 23],
    float_state: usize,
    reserved: [usize; 8],
    signal_mask: u64,
}

const _: () = {
    assert!(core::mem::offset_of!(Context, registers) == 40);
    assert!(core::mem::offset_of!(Context, signal_mask) == 296);
};

/// Indices of registers in `ucontext_t` (`REG_*` of `<sys/ucontext.h>`).
pub mod register {
    /// r8.
    pub const R8: usize = 0;
    /// r9.
    pub const R9: usize = 1;
    /// r10.
    pub const R10: usize = 2;
    /// rdi.
    pub const RDI: usize = 8;
    /// rsi.
    pub const RSI: usize = 9;
    /// rbp.
    pub const RBP: usize = 10;
    /// rbx.
    pub const RBX: usize = 11;
    /// rdx.
    pub const RDX: usize = 12;
    /// rax.
    pub const RAX: usize = 13;
    /// rcx.
    pub const RCX: usize = 14;
    /// The stack pointer.
    pub const RSP: usize = 15;
    /// The instruction pointer.
    pub const RIP: usize = 16;
    /// The flags.
    pub const FLAGS: usize = 17;
}
use register::{R8, R9, R10, RAX, RBP, RDI, RDX, RIP, RSI, RSP};

impl Context {
    /// Returns the arguments of the trapped system call.
    pub fn arguments(&self) -> [usize; 6] {
        [RDI, RSI, RDX, R10, R8, R9].map(|index| self.registers[index])
    }

    /// Sets the result of the trapped call.
    pub fn set_result(&mut self, result: isize) {
        self.registers[RAX] = result as usize;
    }

    /// Returns the address at which the thread continues.
    pub fn instruction_pointer(&self) -> usize {
        self.registers[RIP]
    }

    /// Returns the thread's instruction pointer, stack pointer and frame pointer, and 0 because there is no link register.
    pub fn pointers(&self) -> [usize; 4] {
        let [ip, sp, bp] = [RIP, RSP, RBP].map(|index| self.registers[index]);
        [ip, sp, bp, 0]
    }

    /// Lets the thread continue at `address`.
    pub fn set_instruction_pointer(&mut self, address: usize) {
        self.registers[RIP] = address;
    }

    /// Returns the value of a [`register`].
    pub fn register(&self, place: usize) -> usize {
        self.registers[place]
    }

    /// Sets the value of a [`register`] with which the thread continues.
    pub fn set_register(&mut self, place: usize, value: usize) {
        self.registers[place] = value;
    }

    /// Lets the thread repeat its system call, as call `number` with the first argument `first`.
    pub fn repeat_call(&mut self, number: usize, first: usize) {
        self.registers[RAX] = number;
        self.registers[RDI] = first;
        self.registers[RIP] -= 2;
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
