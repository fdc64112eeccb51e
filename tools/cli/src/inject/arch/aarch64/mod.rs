//! AArch64.

pub mod sites;

/// The type of the relocations in the image, `R_AARCH64_RELATIVE`.
pub const RELATIVE: u32 = 1027;
/// The alignment, in bytes, of the parts of the image that are mapped separately. The image is linked for the largest page size.
pub const PAGE: usize = 64 << 10;
/// False: `process_vm_writev` does not make code that it writes visible to instruction fetches, as `ptrace` does.
pub const WRITES_ARE_FETCHED: bool = false;
/// The instruction `svc #0`.
pub const SYSCALL: [u8; 4] = [0x01, 0x00, 0x00, 0xd4];

/// The registers of a traced thread.
#[derive(Clone, Copy)]
pub struct Registers(pub libc::user_regs_struct);

// The kernel restarts a call behind its instruction only if the result in `x0` is one of some small negative numbers. The
// tracer never stores such a number in `x0`. So the call itself need not be taken away (`NT_ARM_SYSTEM_CALL`).
impl Registers {
    /// Returns the address at which the thread continues.
    pub fn instruction(&self) -> u64 {
        self.0.pc
    }

    /// Prepares the registers for a system call, which the thread makes if it continues at an instruction for system
    /// calls.
    pub fn with_call(mut self, number: i64, a: [u64; 6]) -> Self {
        self.0.regs[..6].copy_from_slice(&a);
        self.0.regs[8] = number as u64;
        self
    }

    /// Prepares the registers for a function with three arguments.
    pub fn with_function(mut self, address: u64, arguments: [u64; 3]) -> Self {
        self.0.pc = address;
        self.0.regs[..3].copy_from_slice(&arguments);
        self
    }

    /// Returns the result of a system call.
    pub fn result(&self) -> i64 {
        self.0.regs[0] as i64
    }
}
