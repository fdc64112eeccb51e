//! The code of stubs, and the branches to them.
//!
//! A system call changes no register but x0, so a stub has no register to itself. It saves two of them below the program's stack pointer, which it moves
//! first: the frame of a signal lies below that. Sixteen bytes directly below are left as they are, because Go keeps a frame pointer there.

use super::code::{WORD, instruction};
use super::{CALL, JUMP, STUB};
use crate::inject::sites::Site;
use anyring_trap::sites::{Block, Record};

/// `stp x16, x17, [sp, #-48]!` and what takes it back.
const SAVE: u32 = 0xa9bd_47f0;
const RESTORE: u32 = 0xa8c3_47f0;
/// `ldp x14, x15, [sp, #16]`: the entry saves them.
const RESTORE_OTHERS: u32 = 0xa941_3fee;
const B: u32 = 0x1400_0000;
const RET: u32 = 0xd65f_03c0;

/// The code of a stub under construction.
struct Emitter {
    bytes: [u8; STUB],
    length: usize,
    /// The address at which the stub will be.
    address: u64,
}

impl Emitter {
    fn push(&mut self, instruction: u32) {
        self.bytes[self.length..self.length + WORD].copy_from_slice(&instruction.to_le_bytes());
        self.length += WORD;
    }

    /// Returns the address of the next instruction.
    fn here(&self) -> u64 {
        self.address + self.length as u64
    }

    /// Adds a branch.
    fn branch(&mut self, target: u64) -> Option<()> {
        let branch = branch(B, self.here(), target)?;
        self.push(branch);
        Some(())
    }

    /// Adds `adrp`, which makes a register the address of the page of `target`.
    fn page(&mut self, register: u32, target: u64) -> Option<()> {
        const ADRP: u32 = 0x9000_0000;
        let pages = (target >> 12).wrapping_sub(self.here() >> 12).cast_signed();
        let fits = (-(1 << 20)..1 << 20).contains(&pages);
        let field = (pages & 0x1f_ffff) as u32;
        self.push(ADRP | (field & 3) << 29 | field >> 2 << 5 | register);
        fits.then_some(())
    }

    /// Adds the look into the table for the number in the register `number`: x16 becomes 0 if the call is not the engine's.
    fn look_up(&mut self, number: u32, block: u64) -> Option<()> {
        self.page(16, block + Block::TABLE as u64)?;
        self.push(0x8b20_2210 | number << 16); // add x16, x16, wN, uxth
        self.push(0x3940_0210); // ldrb w16, [x16]
        Some(())
    }

    /// Adds a branch into the engine. The instruction that names the record has to be the one after the next four.
    fn enter(&mut self, block: u64) -> Option<()> {
        let entry = block + Block::ENTRY as u64;
        let distance = RECORD - self.length;
        self.push(0x1000_0011 | ((distance / WORD) as u32) << 5); // adr x17, record
        self.page(16, entry)?;
        self.push(0xf940_0210 | ((entry & 0xfff) as u32 / 8) << 10); // ldr x16, [x16, #entry]
        self.push(0xd61f_0200); // br x16
        Some(())
    }

    /// Adds the end of a call that has entered the engine. Returns its address.
    fn end(&mut self) -> u64 {
        let address = self.here();
        self.push(RESTORE_OTHERS);
        self.push(RESTORE);
        address
    }
}

/// Returns a branch from one address to another: `b` or `bl`, as the opcode says.
fn branch(opcode: u32, from: u64, to: u64) -> Option<u32> {
    const BITS: u32 = 26;
    let words = to.wrapping_sub(from).cast_signed() >> 2;
    let fits = (-(1 << (BITS - 1))..1 << (BITS - 1)).contains(&words);
    fits.then_some(opcode | words as u32 & ((1 << BITS) - 1))
}

/// The offset of the record in a stub.
const RECORD: usize = STUB - Record::BYTES;

/// Returns the stub at `address` of a site in `text`, whose address is `base`. The stub's block is at `block`; `own` is for [`Record::own`].
pub fn stub(text: &[u8], base: u64, site: Site, address: u64, block: u64, own: u64) -> Option<[u8; STUB]> {
    // Unused bytes trap: `udf #0`.
    let mut code = Emitter { bytes: [0; STUB], length: 0, address };
    let call = base + site.call as u64;
    let (back, next, behind) = if site.is_function {
        let (back, next) = of_function(&mut code, call, block)?;
        (back, next, base + (site.start + JUMP) as u64)
    } else {
        code.push(instruction(text, site.start / WORD)?);
        let behind = call + CALL as u64;
        let (back, next) = of_call(&mut code, call, behind, block)?;
        (back, next, behind)
    };
    assert!(code.length <= RECORD);
    let record = [back, next, behind, u64::from(site.is_function), own].map(u64::to_le_bytes);
    code.bytes[RECORD..].copy_from_slice(record.as_flattened());
    Some(code.bytes)
}

/// Adds the check of the number for an `svc` at `call`: enters the engine, or continues at the `svc`. Returns the two addresses at which the call
/// continues, for [`Record`].
fn of_call(code: &mut Emitter, call: u64, behind: u64, block: u64) -> Option<(u64, u64)> {
    code.push(SAVE);
    code.look_up(8, block)?;
    code.push(0x3400_0010 | 5 << 5); // cbz w16, behind what enters the engine
    code.enter(block)?;
    code.push(RESTORE);
    code.branch(call)?;
    let back = code.end();
    code.branch(call)?;
    let next = code.end();
    code.branch(behind)?;
    Some((back, next))
}

/// Adds the check of the number for a function at `call`, which makes the call, and is a cancellation point. If the thread was cancelled already, the
/// stub continues at the function. Its arguments are those of C, and it may use the registers that functions may use.
fn of_function(code: &mut Emitter, call: u64, block: u64) -> Option<(u64, u64)> {
    code.look_up(1, block)?;
    code.push(0x3400_0010 | 9 << 5); // cbz w16, to what continues at the function
    code.push(0xb940_0010); // ldr w16, [x0]
    code.push(0x3500_0010 | 7 << 5); // cbnz w16, there
    code.push(0xaa01_03e8); // mov x8, x1
    code.push(SAVE);
    code.enter(block)?;
    code.branch(call)?;
    let back = code.end();
    code.branch(call)?;
    let next = code.end();
    code.push(RET);
    Some((back, next))
}

/// Returns the branch from a site in `text`, whose address is `base`, to its stub; one that calls, if the site has one.
pub fn jump(text: &[u8], base: u64, site: Site, stub: u64) -> Option<[u8; JUMP]> {
    const BL: u32 = 0x9400_0000;
    let was = instruction(text, site.start / WORD)?;
    let opcode = if site.is_function { was & BL } else { B };
    Some(branch(opcode, base + site.start as u64, stub)?.to_le_bytes())
}
