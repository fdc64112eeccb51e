//! The code of stubs, and of the jumps to them.

use super::decode::{MOVE, has_number, is_setup};
use super::entry::entry;
use crate::patch::{NEXT, STUB, Site};
use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as raw;

/// The distance that a jump reaches, minus the sizes of a site and of a block.
pub const REACH: usize = (1 << 31) - (1 << 20);
/// The offset in a stub of the entry's address, which is at the stub's end.
const ENTRY: usize = STUB - 8;
/// The instruction that traps: `int3`.
pub const FILL: u8 = 0xcc;
/// True: stubs may be added to a page while threads execute its other stubs, because a processor sees writes to code.
pub const ADDS_BESIDE_THREADS: bool = true;
/// The length of the instructions that enter the engine, from the first `lea` to the `jmp`, in bytes.
const ENTERS: u8 = 5 + 6 + 8 + 5;
/// The length of the test whether the user engine has rings, in bytes.
const LOOKS: u8 = 10 + 3 + 2;

/// Returns the bytes that become the jump: the `mov`, or the beginning of the instruction in its place.
pub fn changed(site: &Site) -> Range<usize> {
    site.start..site.start + MOVE
}

/// True if running threads execute either the old or the new site, never a mixture: the jump lies within one aligned word.
pub fn changes_whole(site: &Site) -> bool {
    site.start % 8 + MOVE <= 8
}

/// The calls that a stub handles if its number comes from another register: the three, and calls that close or duplicate
/// descriptors.
const TAKEN: [u32; 9] = [
    raw::__NR_io_uring_setup,
    raw::__NR_io_uring_enter,
    raw::__NR_io_uring_register,
    raw::__NR_close,
    raw::__NR_close_range,
    raw::__NR_dup,
    raw::__NR_dup2,
    raw::__NR_dup3,
    raw::__NR_fcntl,
];

/// Code under construction.
struct Emitter {
    bytes: [u8; STUB],
    length: usize,
    /// The address at which the code will be.
    address: usize,
}

impl Emitter {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Emits an instruction whose last four bytes are the distance of `target` from the instruction's end.
    fn relative(&mut self, opcode: &[u8], target: usize) -> Option<()> {
        self.push(opcode);
        let distance = distance(self.address + self.length + 4, target)?;
        self.push(&distance.to_le_bytes());
        Some(())
    }
}

fn distance(from: usize, to: usize) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from) as isize).ok()
}

/// Returns the stub of a site whose bytes are `body`, for the address `address`. With a `mark`, the stub enters the engine only if the byte
/// at `mark` is not zero, or if the call makes a ring. If the number comes from another register, the stub returns to the site for calls
/// that are not in `TAKEN`.
pub fn stub(site: &Site, body: &[u8], mark: Option<usize>, address: usize) -> Option<[u8; STUB]> {
    /// The length of a test of the number, which changes rcx only.
    const ASKS: usize = 6 + 2;
    // The whole site except the `syscall` is copied.
    let (copied, call) = body.split_at(body.len() - 2);
    let asks = !has_number(body);
    let mark = mark.filter(|_| !is_setup(body));
    // The length of the test of the mark, and of the stub's own `syscall` and `jmp`.
    let own = if mark.is_some() { usize::from(LOOKS) + 7 } else { 0 };
    let all = copied.len() + if asks { TAKEN.len() * ASKS + 5 } else { 0 } + usize::from(ENTERS) + own;
    if all > NEXT {
        return None;
    }
    let mut code = Emitter { bytes: [FILL; STUB], length: 0, address };
    code.push(copied);
    if asks {
        let looks = if mark.is_some() { LOOKS } else { 0 };
        for (index, number) in TAKEN.into_iter().enumerate() {
            code.push(&[0x8d, 0x88]); // lea -number(%rax),%ecx
            code.push(&number.wrapping_neg().to_le_bytes());
            // jrcxz, over the remaining tests and the jmp; a setup also skips the test of the mark.
            let left = ((TAKEN.len() - 1 - index) * ASKS + 5) as u8;
            code.push(&[0xe3, if index == 0 { left + looks } else { left }]);
        }
        code.relative(&[0xe9], site.next - call.len())?; // jmp to the syscall
    }
    if let Some(mark) = mark {
        code.push(&[0x48, 0xb9]); // movabs $mark,%rcx
        code.push(&mark.to_le_bytes());
        code.push(&[0x0f, 0xb6, 0x09]); // movzbl (%rcx),%ecx
        code.push(&[0xe3, ENTERS]); // jrcxz, over the instructions that enter the engine
    }
    code.push(&[0x48, 0x8d, 0x64, 0x24, 0x80]); // lea -128(%rsp),%rsp
    code.relative(&[0xff, 0x15], address + ENTRY)?; // call *entry(%rip)
    code.push(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea 128(%rsp),%rsp
    code.relative(&[0xe9], site.next)?; // jmp next
    if mark.is_some() {
        code.push(call);
        code.relative(&[0xe9], site.next)?; // jmp next
    }
    code.bytes[ENTRY..].copy_from_slice(&entry().to_le_bytes());
    Some(code.bytes)
}

/// A jump instruction.
pub type Jump = [u8; MOVE];

/// Returns the jump from a site to `stub`.
pub fn jump(site: &Site, stub: usize) -> Option<Jump> {
    let [a, b, c, d] = distance(site.start + MOVE, stub)?.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

/// Replaces the beginning of `site` by `jump`.
///
/// # Safety
/// The page of the site must be writable. If the site does not [change whole](changes_whole), no other thread may run.
pub unsafe fn write(site: &Site, jump: &Jump) {
    let start = site.start;
    // In assembly, because ThreadSanitizer has no shadow memory for stores to a program's code.
    if changes_whole(site) {
        let word = (start & !7) as *const AtomicU64;
        // SAFETY: the word is aligned, and within the page that was made writable.
        let word = unsafe { &*word };
        let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
        bytes[start % 8..][..MOVE].copy_from_slice(jump);
        // SAFETY: the word is within the page that was made writable.
        unsafe { asm!("mov qword ptr [{}], {}", in(reg) word, in(reg) u64::from_le_bytes(bytes)) };
    } else {
        let [opcode, distance @ ..] = *jump;
        // SAFETY: the bytes are within the pages that were made writable, and no other thread runs.
        unsafe {
            asm!(
                "mov byte ptr [{start}], {opcode}",
                "mov dword ptr [{start} + 1], {distance:e}",
                start = in(reg) start,
                opcode = in(reg_byte) opcode,
                distance = in(reg) u32::from_le_bytes(distance),
            );
        }
    }
}
