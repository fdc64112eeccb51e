//! The code of stubs, and the jumps to them.

use super::{JUMP, STUB};
use crate::inject::sites::Site;
use anyring_trap::sites::Block;
use iced_x86::{Decoder, DecoderOptions};

/// The byte between stubs, which traps: `int3`.
const FILL: u8 = 0xcc;

/// Bytes under construction.
struct Emitter {
    bytes: [u8; STUB],
    length: usize,
    /// Where they will lie.
    address: u64,
}

impl Emitter {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// An instruction whose last four bytes say how far `target` lies from its end.
    fn relative(&mut self, opcode: &[u8], target: u64) -> Option<()> {
        self.push(opcode);
        let distance = distance(self.address + self.length as u64 + 4, target)?;
        self.push(&distance.to_le_bytes());
        Some(())
    }
}

fn distance(from: u64, to: u64) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from).cast_signed()).ok()
}

/// The stub of a site in `text`, which lies at `base`, to lie at `address` behind a block at `block`.
pub fn stub(text: &[u8], base: u64, site: Site, address: u64, block: u64) -> Option<[u8; STUB]> {
    const RECORD: usize = STUB - 8;
    /// Bytes of what enters the engine.
    const ENTERS: u8 = 7 + 6;
    let mut code = Emitter { bytes: [FILL; STUB], length: 0, address };
    copy(&mut code, &text[site.start..site.call], base + site.start as u64)?;
    code.push(&[0x0f, 0xb7, 0xc8]); // movzwl %ax,%ecx
    code.relative(&[0x4c, 0x8d, 0x1d], block + Block::TABLE as u64)?; // lea table(%rip),%r11
    code.push(&[0x41, 0x0f, 0xb6, 0x0c, 0x0b]); // movzbl (%r11,%rcx),%ecx
    code.push(&[0xe3, ENTERS]); // jrcxz, over what enters the engine
    code.relative(&[0x4c, 0x8d, 0x1d], address + RECORD as u64)?; // lea record(%rip),%r11
    code.relative(&[0xff, 0x25], block + Block::ENTRY as u64)?; // jmp *entry(%rip)
    let call = base + site.call as u64;
    code.relative(&[0xe9], call)?; // jmp to the syscall
    code.bytes[RECORD..].copy_from_slice(&call.to_le_bytes());
    Some(code.bytes)
}

/// Copies instructions, and adapts distances to memory.
fn copy(code: &mut Emitter, instructions: &[u8], from: u64) -> Option<()> {
    let mut decoder = Decoder::with_ip(64, instructions, from, DecoderOptions::NONE);
    while decoder.can_decode() {
        let at = decoder.position();
        let instruction = decoder.decode();
        let start = code.length;
        code.push(&instructions[at..decoder.position()]);
        if instruction.is_ip_rel_memory_operand() {
            let place = start + decoder.get_constant_offsets(&instruction).displacement_offset();
            let end = code.address + code.length as u64;
            let adapted = distance(end, instruction.ip_rel_memory_address())?;
            code.bytes[place..place + 4].copy_from_slice(&adapted.to_le_bytes());
        }
    }
    Some(())
}

/// The jump from `site` to `stub`.
pub fn jump(site: u64, stub: u64) -> Option<[u8; JUMP]> {
    let [a, b, c, d] = distance(site + JUMP as u64, stub)?.to_le_bytes();
    Some([0xe9, a, b, c, d])
}
