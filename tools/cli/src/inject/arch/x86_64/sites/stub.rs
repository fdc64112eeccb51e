//! The code of stubs, and the jumps to them.

use super::{JUMP, STUB, SYSCALL};
use crate::inject::sites::Site;
use anyring_trap::sites::{Block, Record};
use iced_x86::{Decoder, DecoderOptions};

/// The byte that fills unused parts of stubs, `int3`, which traps.
const FILL: u8 = 0xcc;

/// The code of a stub under construction.
struct Emitter {
    bytes: [u8; STUB],
    length: usize,
    /// The address at which the stub will be.
    address: u64,
}

impl Emitter {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Adds an instruction whose last four bytes are the distance from its end to `target`.
    fn relative(&mut self, opcode: &[u8], target: u64) -> Option<()> {
        self.push(opcode);
        let distance = distance(self.address + self.length as u64 + 4, target)?;
        self.push(&distance.to_le_bytes());
        Some(())
    }

    /// Adds a jump into the engine.
    fn enter(&mut self, block: u64) -> Option<()> {
        self.relative(&[0x4c, 0x8d, 0x1d], self.address + RECORD as u64)?; // lea record(%rip),%r11
        self.relative(&[0xff, 0x25], block + Block::ENTRY as u64) // jmp *entry(%rip)
    }
}

fn distance(from: u64, to: u64) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from).cast_signed()).ok()
}

/// Returns the stub at `address` of a site in `text`, whose address is `base`. The stub's block is at `block`; `own` is for
/// [`Record::own`].
pub fn stub(text: &[u8], base: u64, site: Site, address: u64, block: u64, own: u64) -> Option<[u8; STUB]> {
    let mut code = Emitter { bytes: [FILL; STUB], length: 0, address };
    let call = base + site.call as u64;
    let (back, next) = if site.is_function {
        of_function(&mut code, call, block)?
    } else {
        copy(&mut code, &text[site.start..site.call], base + site.start as u64)?;
        of_call(&mut code, call, block)?;
        (call, call + SYSCALL.len() as u64)
    };
    assert!(code.length <= RECORD);
    let record = [back, next, next, u64::from(site.is_function), own].map(u64::to_le_bytes);
    code.bytes[RECORD..].copy_from_slice(record.as_flattened());
    Some(code.bytes)
}

/// The offset of the record in a stub.
const RECORD: usize = STUB - Record::BYTES;

/// Adds the check of the number for a `syscall` at `call`: enters the engine, or continues at the `syscall`.
fn of_call(code: &mut Emitter, call: u64, block: u64) -> Option<()> {
    /// The size in bytes of the code that enters the engine.
    const ENTERS: u8 = 7 + 6;
    code.push(&[0x0f, 0xb7, 0xc8]); // movzwl %ax,%ecx
    code.relative(&[0x4c, 0x8d, 0x1d], block + Block::TABLE as u64)?; // lea table(%rip),%r11
    code.push(&[0x41, 0x0f, 0xb6, 0x0c, 0x0b]); // movzbl (%r11,%rcx),%ecx
    code.push(&[0xe3, ENTERS]); // jrcxz, over what enters the engine
    code.enter(block)?;
    code.relative(&[0xe9], call) // jmp to the syscall
}

/// Adds the check of the number for a function at `call`, which makes the call, and is a cancellation point. If the thread was cancelled already, the
/// stub continues at the function. Returns the two addresses at which the call continues, for [`Record`].
fn of_function(code: &mut Emitter, call: u64, block: u64) -> Option<(u64, u64)> {
    code.push(&[0x0f, 0xb7, 0xc6]); // movzwl %si,%eax
    code.relative(&[0x4c, 0x8d, 0x1d], block + Block::TABLE as u64)?; // lea table(%rip),%r11
    code.push(&[0x41, 0x0f, 0xb6, 0x04, 0x03]); // movzbl (%r11,%rax),%eax
    code.push(&[0x85, 0xc0]); // test %eax,%eax
    code.relative(&[0x0f, 0x84], call)?; // je to the function
    code.push(&[0x83, 0x3f, 0x00]); // cmpl $0,(%rdi)
    code.relative(&[0x0f, 0x85], call)?; // jne to the function
    code.push(&[0x49, 0x89, 0xca]); // mov %rcx,%r10
    code.push(&[0x89, 0xc1]); // mov %eax,%ecx
    code.push(&[0x89, 0xf0]); // mov %esi,%eax
    code.enter(block)?;
    let back = code.address + code.length as u64;
    code.push(&[0x4c, 0x89, 0xd1]); // mov %r10,%rcx
    code.relative(&[0xe9], call)?; // jmp to the function
    let next = code.address + code.length as u64;
    code.push(&[0xc3]); // ret
    Some((back, next))
}

/// Copies instructions, and adapts their distances to memory.
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

/// Returns the jump from a site in `text`, whose address is `base`, to its stub; a call instruction if the site has
/// one.
pub fn jump(text: &[u8], base: u64, site: Site, stub: u64) -> Option<[u8; JUMP]> {
    const JMP: u8 = 0xe9;
    let opcode = if site.is_function { text[site.start] } else { JMP };
    let [a, b, c, d] = distance(base + (site.start + JUMP) as u64, stub)?.to_le_bytes();
    Some([opcode, a, b, c, d])
}
