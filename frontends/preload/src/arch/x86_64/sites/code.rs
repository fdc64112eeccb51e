//! The code of stubs, and of the jumps to them.

use super::decode::{MOVE, has_number, is_setup};
use super::entry::entry;
use crate::patch::{STUB, Site};
use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as raw;

/// How far a jump reaches, but for a site's own length and a block's.
pub const REACH: usize = (1 << 31) - (1 << 20);
/// A stub ends with the entry's address.
const ENTRY: usize = STUB - 8;
/// The instruction that traps: `int3`.
pub const FILL: u8 = 0xcc;
/// Stubs may be added to a block while threads run through its others: a processor sees what is written to code.
pub const ADDS_BESIDE_THREADS: bool = true;
/// Bytes of what enters the engine, from the first `lea` to the `jmp`.
const ENTERS: u8 = 5 + 6 + 8 + 5;
/// Bytes of the look whether rings of ours are there.
const LOOKS: u8 = 10 + 3 + 2;

/// The bytes that become the jump: the `mov`, or the beginning of what stands in for it.
pub fn changed(site: &Site) -> Range<usize> {
    site.start..site.start + MOVE
}

/// Whether threads that run through the site see it changed whole or not at all: the jump lies within one aligned word.
pub fn changes_whole(site: &Site) -> bool {
    site.start % 8 + MOVE <= 8
}

/// Bytes under construction.
struct Emitter {
    bytes: [u8; STUB],
    length: usize,
    /// Where they will lie.
    address: usize,
}

impl Emitter {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// An instruction whose last four bytes say how far `target` lies from its end.
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

/// The stub of a site whose bytes are `body`, to lie at `address`. With a `mark`, the stub enters the engine only where the byte
/// there is not zero, or the call makes a ring. Where the number is another register's, all other calls go back to the site.
pub fn stub(site: &Site, body: &[u8], mark: Option<usize>, address: usize) -> Option<[u8; STUB]> {
    /// Bytes of a look at the number, which changes rcx only.
    const ASKS: usize = 6 + 2;
    // All but the `syscall` is copied.
    let (copied, call) = body.split_at(body.len() - 2);
    let asks = !has_number(body);
    let mark = mark.filter(|_| !is_setup(body));
    // Where the engine is entered, and where it is looked for, from the end of each question on.
    let own = if mark.is_some() { usize::from(LOOKS) + 7 } else { 0 };
    let all = copied.len() + if asks { 3 * ASKS + 5 } else { 0 } + usize::from(ENTERS) + own;
    if all > ENTRY {
        return None;
    }
    let mut code = Emitter { bytes: [FILL; STUB], length: 0, address };
    code.push(copied);
    if asks {
        let looks = if mark.is_some() { LOOKS } else { 0 };
        for (index, number) in
            [raw::__NR_io_uring_setup, raw::__NR_io_uring_enter, raw::__NR_io_uring_register]
                .into_iter()
                .enumerate()
        {
            code.push(&[0x8d, 0x88]); // lea -number(%rax),%ecx
            code.push(&number.wrapping_neg().to_le_bytes());
            // jrcxz, over the questions that are left and the jmp; setup needs no mark.
            let left = ((2 - index) * ASKS + 5) as u8;
            code.push(&[0xe3, if index == 0 { left + looks } else { left }]);
        }
        code.relative(&[0xe9], site.next - call.len())?; // jmp to the syscall
    }
    if let Some(mark) = mark {
        code.push(&[0x48, 0xb9]); // movabs $mark,%rcx
        code.push(&mark.to_le_bytes());
        code.push(&[0x0f, 0xb6, 0x09]); // movzbl (%rcx),%ecx
        code.push(&[0xe3, ENTERS]); // jrcxz, over what enters the engine
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

/// A jump, as its bytes.
pub type Jump = [u8; MOVE];

/// The jump from a site to `stub`.
pub fn jump(site: &Site, stub: usize) -> Option<Jump> {
    let [a, b, c, d] = distance(site.start + MOVE, stub)?.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

/// Replaces the beginning of `site` by `jump`.
///
/// # Safety
/// Its page must be writable. Where the site does not [change whole](changes_whole), no other thread may run.
pub unsafe fn write(site: &Site, jump: &Jump) {
    let start = site.start;
    // Said in assembly: ThreadSanitizer has no shadow for stores to a program's code.
    if changes_whole(site) {
        let word = (start & !7) as *const AtomicU64;
        // SAFETY: aligned, within the page that was made writable.
        let word = unsafe { &*word };
        let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
        bytes[start % 8..][..MOVE].copy_from_slice(jump);
        // SAFETY: within the page that was made writable.
        unsafe { asm!("mov qword ptr [{}], {}", in(reg) word, in(reg) u64::from_le_bytes(bytes)) };
    } else {
        let [opcode, distance @ ..] = *jump;
        // SAFETY: within the pages that were made writable, and nobody else runs.
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
