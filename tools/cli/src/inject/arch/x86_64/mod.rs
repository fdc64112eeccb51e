//! x86-64.

pub mod sites;

/// The type of the relocations in the image, `R_X86_64_RELATIVE`.
pub const RELATIVE: u32 = 8;
/// The alignment, in bytes, of the parts of the image that are mapped separately.
pub const PAGE: usize = 4096;
/// True: code that was written is fetched, whoever wrote it.
pub const WRITES_ARE_FETCHED: bool = true;
/// The instruction `syscall`.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The registers of a traced thread.
#[derive(Clone, Copy)]
pub struct Registers(pub libc::user_regs_struct);

impl Registers {
    /// Returns the address at which the thread continues.
    pub fn instruction(&self) -> u64 {
        self.0.rip
    }

    /// Prepares the registers for a system call, which the thread makes if it continues at an instruction for system
    /// calls.
    pub fn with_call(mut self, number: i64, a: [u64; 6]) -> Self {
        [self.0.rdi, self.0.rsi, self.0.rdx, self.0.r10, self.0.r8, self.0.r9] = a;
        self.0.rax = number as u64;
        self.outside_of_calls()
    }

    /// Prepares the registers for a function with three arguments.
    pub fn with_function(mut self, address: u64, arguments: [u64; 3]) -> Self {
        self.0.rip = address;
        [self.0.rdi, self.0.rsi, self.0.rdx] = arguments;
        self.outside_of_calls()
    }

    /// Makes the kernel assume that the thread is in no system call, because the kernel might restart one.
    fn outside_of_calls(mut self) -> Self {
        self.0.orig_rax = u64::MAX;
        self
    }

    /// Returns the result of a system call.
    pub fn result(&self) -> i64 {
        self.0.rax as i64
    }
}
