//! Numbers that compilers keep in a register, for functions that make a call several times.
//!
//! The number is known if the code from `mov $number,%register` to the call does not change the register otherwise: the instructions follow one
//! another, and code behind an instruction that leaves is reached by a jump in the code before. The caller must check whether jumps from elsewhere
//! lead into this code.

use super::length::{is_start, length};

/// The number of bytes before a call that are searched, about the size of a function.
const BEFORE: usize = 512;
/// The number of bytes between the `mov` to eax and the call.
const BETWEEN: usize = 48;
const EAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const R11: u8 = 11;
/// The registers that a called function preserves: rbx, rbp, r12 to r15. The stack pointer is omitted, because no number is
/// kept in it.
const PRESERVED: [u8; 6] = [3, 5, 12, 13, 14, 15];

/// Returns the number of the `syscall` at offset `call`, if a register holds it, and the offset of the instruction that sets the
/// register.
pub fn number(bytes: &[u8], call: usize) -> Option<(usize, u32)> {
    let (start, register) = (call.saturating_sub(BETWEEN)..call).rev().find_map(|start| {
        let instruction = Instruction::at(&bytes[..call], start)?;
        let register = instruction.moved_to_eax().filter(|_| is_start(bytes, start))?;
        comes_to(bytes, start + instruction.length, call, EAX).then_some((start, register))
    })?;
    let (at, length, number) = (start.saturating_sub(BEFORE)..start).rev().find_map(|at| {
        let (length, number) = given_number(&bytes[at..start], register)?;
        is_start(bytes, at).then_some((at, length, number))
    })?;
    comes_to(bytes, at + length, start, register).then_some((at, number))
}

/// Returns the length and the operand of `mov $imm32,%register`.
fn given_number(bytes: &[u8], register: u8) -> Option<(usize, u32)> {
    let (prefix, rest) = if register < 8 { (0, bytes) } else { (1, bytes.strip_prefix(&[0x41])?) };
    let operand = rest.strip_prefix(&[0xb8 | register & 7])?.first_chunk()?;
    Some((prefix + 5, u32::from_le_bytes(*operand)))
}

/// True if the instructions from `at` on reach `end`, and do not change the register.
fn comes_to(bytes: &[u8], mut at: usize, end: usize, register: u8) -> bool {
    // The targets of the jumps so far.
    let (mut targets, mut count) = ([0; 16], 0);
    while at < end {
        let Some(instruction) = Instruction::at(bytes, at).filter(|one| !one.may_change(register)) else {
            return false;
        };
        at += instruction.length;
        if let Some(distance) = instruction.jump() {
            if count == targets.len() {
                return false;
            }
            targets[count] = at.wrapping_add_signed(distance);
            count += 1;
        }
        if instruction.leaves() && !targets[..count].contains(&at) {
            return false;
        }
    }
    at == end
}

/// The parts of an instruction that matter here.
struct Instruction<'a> {
    /// The bytes from the opcode on, without the prefixes.
    code: &'a [u8],
    rex: u8,
    length: usize,
}

impl<'a> Instruction<'a> {
    fn at(bytes: &'a [u8], at: usize) -> Option<Self> {
        let bytes = bytes.get(at..)?;
        let length = length(bytes)?;
        let is_prefix =
            |byte: &u8| matches!(byte, 0x66 | 0x67 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65);
        let mut code = bytes.get(..length)?;
        while code.first().is_some_and(is_prefix) {
            code = &code[1..];
        }
        let rex = code.first().copied().filter(|byte| byte & 0xf0 == 0x40);
        Some(Self { code: if rex.is_some() { &code[1..] } else { code }, rex: rex.unwrap_or(0), length })
    }

    fn byte(&self, at: usize) -> u8 {
        self.code.get(at).copied().unwrap_or(0)
    }

    /// Returns the register in the middle field of the operands at an offset.
    fn middle(&self, at: usize) -> u8 {
        self.byte(at) >> 3 & 7 | (self.rex & 4) << 1
    }

    /// Returns the register in the low field of the operands; `None` if the operand is memory.
    fn low(&self, at: usize) -> Option<u8> {
        (self.byte(at) >> 6 == 3).then(|| self.byte(at) & 7 | (self.rex & 1) << 3)
    }

    /// Returns the register that the opcode names.
    fn named(&self, at: usize) -> u8 {
        self.byte(at) & 7 | (self.rex & 1) << 3
    }

    /// Returns the register that the instruction moves to eax.
    fn moved_to_eax(&self) -> Option<u8> {
        let (from, to) = match self.byte(0) {
            0x89 => (Some(self.middle(1)), self.low(1)?),
            0x8b => (self.low(1), self.middle(1)),
            _ => return None,
        };
        from.filter(|&from| to == EAX && from != EAX)
    }

    /// Returns the distance of a jump whose target is in the instruction.
    fn jump(&self) -> Option<isize> {
        match (self.byte(0), self.byte(1)) {
            (0x70..=0x7f | 0xeb, distance) => Some(distance.cast_signed().into()),
            (0xe9, _) | (0x0f, 0x80..=0x8f) => {
                let distance = *self.code.last_chunk()?;
                Some(i32::from_le_bytes(distance) as isize)
            }
            _ => None,
        }
    }

    /// True if the next instruction is not executed after this one.
    fn leaves(&self) -> bool {
        matches!(self.byte(0), 0xc2 | 0xc3 | 0xcc | 0xe9 | 0xeb | 0xf4)
            || self.byte(0) == 0xff && matches!(self.byte(1) >> 3 & 7, 4 | 5)
            || self.code.starts_with(&[0x0f, 0x0b])
    }

    /// True if the instruction may change a register. Unknown instructions may change any.
    fn may_change(&self, register: u8) -> bool {
        let extension = self.byte(1) >> 3 & 7;
        let is_low = |at| self.low(at) == Some(register);
        match self.byte(0) {
            0x0f => self.may_change_by_second(register),
            // Computations: bit 1 of the opcode says which operand is the result; those with an immediate operand change
            // eax.
            opcode @ 0x00..=0x3f => match opcode & 7 {
                _ if opcode >= 0x38 => false,
                0 | 1 => is_low(1),
                2 | 3 => self.middle(1) == register,
                _ => register == EAX,
            },
            // push, jumps, nop, test, ret, int3, hlt
            0x50..=0x57 | 0x68 | 0x6a | 0x70..=0x7f | 0x84 | 0x85 | 0x90 | 0xa8 | 0xa9 => false,
            0xc2 | 0xc3 | 0xcc | 0xe9 | 0xeb | 0xf4 => false,
            0x58..=0x5f | 0xb0..=0xbf => self.named(0) == register,
            0x63 | 0x69 | 0x6b | 0x8a | 0x8b | 0x8d => self.middle(1) == register,
            0x80 | 0x81 | 0x83 => extension != 7 && is_low(1),
            0x88 | 0x89 | 0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3 | 0xfe => is_low(1),
            0xe8 => !PRESERVED.contains(&register),
            0xf6 | 0xf7 => match extension {
                0 | 1 => false,
                2 | 3 => is_low(1),
                _ => matches!(register, EAX | RDX),
            },
            0xff => match extension {
                0 | 1 => is_low(1),
                2 | 3 => !PRESERVED.contains(&register),
                _ => false,
            },
            _ => true,
        }
    }

    /// Returns [`Self::may_change`] of an instruction whose opcode begins with 0x0f.
    fn may_change_by_second(&self, register: u8) -> bool {
        match self.byte(1) {
            0x05 => matches!(register, EAX | RCX | R11),
            0x40..=0x4f | 0xaf | 0xb6 | 0xb7 | 0xbe | 0xbf => self.middle(2) == register,
            0x90..=0x9f => self.low(2) == Some(register),
            // nop, jumps, ud2, moves between vector registers and memory
            0x0b
            | 0x10
            | 0x11
            | 0x16
            | 0x17
            | 0x1e
            | 0x1f
            | 0x28
            | 0x29
            | 0x57
            | 0x6f
            | 0x7f
            | 0x80..=0x8f
            | 0xd6
            | 0xef => false,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: [u8; 2] = [0x0f, 0x05];
    /// mov $9,%r12d
    const GIVEN: [u8; 6] = [0x41, 0xbc, 9, 0, 0, 0];
    /// mov %r12d,%eax
    const TAKEN: [u8; 3] = [0x44, 0x89, 0xe0];

    fn found(code: &[&[u8]]) -> Option<u32> {
        let code = [&[0x90; 200], &code.concat()[..]].concat();
        let call = code.len();
        number(&[&code[..], &CALL, &[0x90; 32]].concat(), call).map(|(_, number)| number)
    }

    #[test]
    fn what_leaves_the_number() {
        assert_eq!(found(&[&GIVEN, &TAKEN]), Some(9));
        let between: [(&[u8], bool); 12] = [
            (&[0xe8, 0, 0, 0, 0], true),       // call
            (&[0x31, 0xff], true),             // xor %edi,%edi
            (&[0x0f, 0x05], true),             // syscall
            (&[0x74, 0x02, 0x31, 0xff], true), // je, over xor
            (&[0x74, 0x01, 0xc3], true),       // je, over ret
            (&[0x74, 0x02, 0xeb, 0x10], true), // je, over jmp
            (&[0xc3], false),                  // ret
            (&[0xeb, 0x10], false),            // jmp
            (&[0x45, 0x31, 0xe4], false),      // xor %r12d,%r12d
            (&[0x41, 0x5c], false),            // pop %r12
            (&[0x4d, 0x89, 0xc4], false),      // mov %r8,%r12
            (&[0x0f, 0xa2], false),            // cpuid
        ];
        for (code, is) in between {
            assert_eq!(found(&[&GIVEN, code, &TAKEN]), is.then_some(9), "{code:x?}");
        }
        // sbb %rdx,%rdx; imul %rdx,%rsi do not change eax; imul %rdx,%rax does.
        assert_eq!(found(&[&GIVEN, &TAKEN, &[0x48, 0x19, 0xd2, 0x48, 0x0f, 0xaf, 0xf2]]), Some(9));
        assert_eq!(found(&[&GIVEN, &TAKEN, &[0x48, 0x0f, 0xaf, 0xc2]]), None);
    }

    #[test]
    fn a_function_does_not_preserve_all_registers() {
        // mov $9,%edx; call; mov %edx,%eax
        let (given, taken) = ([0xba, 9, 0, 0, 0], [0x89, 0xd0]);
        assert_eq!(found(&[&given, &taken]), Some(9));
        assert_eq!(found(&[&given, &[0xe8, 0, 0, 0, 0], &taken]), None);
    }

    /// A number that is loaded in one function is not known in the next function, whose number may be any.
    #[test]
    fn numbers_of_other_functions() {
        // mov $9,%edi; jmp; mov %rdi,%rax
        assert_eq!(found(&[&[0xbf, 9, 0, 0, 0], &[0xe9, 0, 1, 0, 0], &[0x48, 0x89, 0xf8]]), None);
    }
}
