//! Call sites of a static program, and the stubs that they jump to.
//!
//! A jump of five bytes replaces instructions before a `syscall`, which itself stays. `frontends/inject/src/patched/mod.rs` describes the
//! work of a stub.
//!
//! No jump of the program may lead into the five bytes. If one instruction fills them, as the `mov` of the number does nearly everywhere,
//! no jump leads there; a jump to the instruction behind that `mov` merely avoids the stub. If several instructions have to be replaced,
//! the site is refused if anything near it looks like a jump into them.

mod bridge;
mod chains;
mod stub;

use crate::inject::sites::{Found, Site};
use anyring_trap::sites::enters;
use chains::{Chains, Placed};
use iced_x86::{Code, InstructionInfoFactory, InstructionInfoOptions, OpAccess, Register};
use std::ops::Range;
pub use stub::{jump, stub};

/// The reach of a jump in bytes, less the size of the code that is searched and of the stubs.
pub const REACH: u64 = (1 << 31) - (256 << 20);
/// The size of a stub in bytes.
pub const STUB: usize = 128;
/// The size of a jump in bytes.
pub const JUMP: usize = 5;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The size in bytes of the instruction that makes a call.
pub const CALL: usize = SYSCALL.len();
/// The maximum number of bytes that a stub copies.
const COPIED: usize = 48;
/// The distance in bytes within which jumps to a place are searched for.
const NEAR: usize = 32 << 10;

/// Calls `found` for everything in `text` that looks like a `syscall`.
pub fn for_each(text: &[u8], mut found: impl FnMut(usize, Found)) {
    let mut chains = Chains::new(text);
    for call in memchr::memmem::find_iter(text, &SYSCALL) {
        match bridge::moves_before(text, call) {
            Some(moves) => bridge::for_each(text, moves, &mut chains, |site| found(call, site)),
            None => found(call, look(text, call, &mut chains)),
        }
    }
}

fn site(start: usize, call: usize, is_certain: bool) -> Found {
    Found::Site(Site { start, call, is_function: false, is_certain })
}

fn look(text: &[u8], call: usize, chains: &mut Chains<'_>) -> Found {
    if number_nearby(text, call).is_some_and(|number| !enters(number)) {
        return Found::Nothing;
    }
    let Some(run) = chains.run_before(call) else { return Found::Nothing };
    let number = number(&run);
    let near = &run[run.partition_point(|placed| call - placed.offset > COPIED)..];
    match number {
        Number::Is(number) if !enters(number) => return Found::Nothing,
        Number::Moved(offset) if call - offset <= COPIED => return site(offset, call, true),
        _ => {}
    }
    let is_certain = matches!(number, Number::Moved(_));
    let fills = near.iter().rev().find(|one| one.instruction.len() >= JUMP);
    let start = match fills {
        Some(one) => Some(one.offset),
        None => several(text, call, near, chains),
    };
    match (start, number) {
        (Some(start), _) if is_certain || chains.looks_like_call(near, call) => site(start, call, is_certain),
        (_, Number::Held(register)) if is_given_others(text, call, register) => Found::Nothing,
        (_, Number::Unknown) if run.is_empty() && is_jumped_to_with_others(text, call, chains) => {
            Found::Nothing
        }
        _ => Found::Refused,
    }
}

/// Returns the number that the nearest `mov $imm32,%eax` before a `syscall` seems to load. This is a quick check that excludes most calls.
/// If it excludes a call of the engine by mistake, that call traps.
fn number_nearby(text: &[u8], call: usize) -> Option<u32> {
    let before = &text[call.saturating_sub(COPIED)..call];
    let from = before.windows(2).rposition(|pair| pair == SYSCALL).map_or(0, |at| at + 2);
    before[from..].windows(JUMP).enumerate().rev().find_map(|(at, bytes)| match *bytes {
        // With such a prefix, the register is r8.
        [0xb8, ..] if at > 0 && before[from + at - 1] & 0xf1 == 0x41 => None,
        [0xb8, a, b, 0, 0] => Some(u32::from_le_bytes([a, b, 0, 0])),
        _ => None,
    })
}

/// True if this code of a site loads the number of `clone3`, which makes threads.
pub fn makes_threads(code: &[u8]) -> bool {
    let number = (libc::SYS_clone3 as u32).to_le_bytes();
    code.strip_prefix(&[0xb8])
        .or_else(|| code.strip_prefix(&[0x48, 0xc7, 0xc0]))
        .is_some_and(|rest| rest.starts_with(&number))
}

/// The number of a call, as far as the code directly before it shows it.
enum Number {
    Is(u32),
    /// A number of the engine's calls, loaded by the instruction at this offset, which has the size of a jump.
    Moved(usize),
    /// The number that is in this register.
    Held(Register),
    Unknown,
}

fn number(run: &[Placed]) -> Number {
    let mut factory = InstructionInfoFactory::new();
    for placed in run.iter().rev() {
        let instruction = &placed.instruction;
        let uses =
            factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE).used_registers();
        let writes = uses.iter().any(|used| {
            used.register().full_register() == Register::RAX
                && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
        });
        if !writes {
            continue;
        }
        return match instruction.code() {
            Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 | Code::Mov_rm64_imm32 => {
                let number = instruction.immediate32();
                if enters(number) { Number::Moved(placed.offset) } else { Number::Is(number) }
            }
            Code::Xor_r32_rm32 | Code::Xor_rm32_r32
                if instruction.op0_register() == instruction.op1_register() =>
            {
                Number::Is(0)
            }
            Code::Mov_r32_rm32 | Code::Mov_rm32_r32 | Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                if instruction.op1_register() != Register::None =>
            {
                Number::Held(instruction.op1_register().full_register())
            }
            // Handwritten code that has cleared the rest of the register before.
            Code::Mov_r8_imm8 if !enters(instruction.immediate8().into()) => {
                Number::Is(instruction.immediate8().into())
            }
            _ => Number::Unknown,
        };
    }
    Number::Unknown
}

/// True if a register seems to hold the number of a call that the engine does not handle. Compilers keep a number in a register if a function
/// makes the call in a loop, or twice.
fn is_given_others(text: &[u8], call: usize, register: Register) -> bool {
    /// The number of bytes before the call that are searched, about the size of a function.
    const BEFORE: usize = 512;
    let number = register.number() as u8;
    let opcode = 0xb8 | number & 7;
    let before = &text[call.saturating_sub(BEFORE)..call];
    let given = before.windows(JUMP + 1).rev().find_map(|bytes| match *bytes {
        [prefix, code, a, b, 0, 0] if code == opcode && (number < 8 || prefix == 0x41) => {
            Some(u32::from_le_bytes([a, b, 0, 0]))
        }
        _ => None,
    });
    given.is_some_and(|number| !enters(number))
}

/// Returns the beginning of the shortest run of several instructions that has room for a jump, if no jump near it leads into the
/// run.
fn several(text: &[u8], call: usize, run: &[Placed], chains: &mut Chains<'_>) -> Option<usize> {
    let last = call.checked_sub(JUMP)?;
    let index = run.iter().rposition(|placed| placed.offset <= last)?;
    let start = run[index].offset;
    let inside = start + 1..start + JUMP;
    (!jumps_to(text, inside).any(|jump| chains.may_begin(jump.start))).then_some(start)
}

/// Iterates over the jumps near these places that seem to lead to one of them.
fn jumps_to(text: &[u8], places: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end: behind } = places;
    let leads_there =
        move |end: usize, distance: isize| (start..behind).contains(&end.wrapping_add_signed(distance));
    let first_short = start.saturating_sub(130).max(1);
    let short = (first_short..(behind + 130).min(text.len())).filter_map(move |at| {
        let is_jump = matches!(text[at - 1], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb);
        (is_jump && leads_there(at + 1, isize::from(text[at].cast_signed()))).then_some(at - 1..at + 1)
    });
    let first = start.saturating_sub(NEAR);
    // A long jump may have two bytes of opcode before its distance: the window shows the second, and the first of some
    // jumps.
    let long = text[first..(behind + NEAR).min(text.len())].windows(6).enumerate();
    let long = long.filter_map(move |(at, bytes)| {
        let opcode = match (bytes[0], bytes[1]) {
            (_, 0xe8 | 0xe9) => Some(1),
            (0x0f, 0x80..=0x8f) => Some(2),
            _ => None,
        };
        let distance = i32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
        let end = first + at + 6;
        opcode.filter(|_| leads_there(end, distance as isize)).map(|opcode| end - 4 - opcode..end)
    });
    short.chain(long)
}

/// True if a `syscall` seems to be reached only by jumps, with numbers of calls that the engine does not handle.
fn is_jumped_to_with_others(text: &[u8], call: usize, chains: &mut Chains<'_>) -> bool {
    let mut jumps = jumps_to(text, call..call + 1).filter(|jump| chains.may_begin(jump.start)).peekable();
    // test %rax,%rax; je
    let is_zero = |jump: &Range<usize>| text[..jump.start + 1].ends_with(&[0x48, 0x85, 0xc0, 0x74]);
    let has_other = |jump: Range<usize>| {
        is_zero(&jump) || number_nearby(text, jump.start).is_some_and(|number| !enters(number))
    };
    jumps.peek().is_some() && jumps.all(has_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: [u8; 2] = SYSCALL;
    const ENTER: [u8; 5] = [0xb8, 0xaa, 1, 0, 0];

    /// Returns the judgement of the only `syscall` in some code, which begins behind padding.
    fn judge(code: &[&[u8]]) -> Found {
        let text = [&[0xcc; 200], &code.concat()[..], &[0xc3; 200]].concat();
        let mut judgements = Vec::new();
        for_each(&text, |_, found| judgements.push(found));
        assert_eq!(judgements.len(), 1);
        judgements[0]
    }

    fn site(start: usize, call: usize) -> Found {
        super::site(200 + start, 200 + call, true)
    }

    /// Returns a site whose number is not known.
    fn likely(start: usize, call: usize) -> Found {
        super::site(200 + start, 200 + call, false)
    }

    #[test]
    fn the_move_of_the_number_becomes_the_jump() {
        assert_eq!(judge(&[&ENTER, &CALL]), site(0, 5));
        // mov %rdi,%rdx before, xor %r9d,%r9d between
        assert_eq!(judge(&[&[0x48, 0x89, 0xfa], &ENTER, &[0x45, 0x31, 0xc9], &CALL]), site(3, 11));
        // mov $8,%r8d between
        assert_eq!(judge(&[&ENTER, &[0x41, 0xb8, 8, 0, 0, 0], &CALL]), site(0, 11));
        // mov $426,%rax as handwritten code has it
        assert_eq!(judge(&[&[0x48, 0xc7, 0xc0, 0xaa, 1, 0, 0], &CALL]), site(0, 7));
    }

    #[test]
    fn other_calls_are_left_alone() {
        assert_eq!(judge(&[&[0xb8, 39, 0, 0, 0], &CALL]), Found::Nothing);
        // rt_sigreturn, as the C libraries have it
        assert_eq!(judge(&[&[0x48, 0xc7, 0xc0, 15, 0, 0, 0], &CALL]), Found::Nothing);
        // mov $426,%eax; xor %eax,%eax
        assert_eq!(judge(&[&ENTER, &[0x31, 0xc0], &CALL]), Found::Nothing);
    }

    #[test]
    fn a_number_is_held_in_a_register() {
        // mov $202,%r9d; test %eax,%eax; je .+3; mov %r9,%rax
        let branch = [0x85, 0xc0, 0x74, 3, 0x4c, 0x89, 0xc8];
        assert_eq!(judge(&[&[0x41, 0xb9, 202, 0, 0, 0], &branch, &CALL]), Found::Nothing);
        assert_eq!(judge(&[&[0x41, 0xb9, 3, 0, 0, 0], &branch, &CALL]), Found::Refused);
        assert_eq!(judge(&[&branch, &CALL]), Found::Refused);
    }

    #[test]
    fn bytes_in_instructions_are_no_calls() {
        // mov $0x050f01aa,%eax; add %ebx,%ecx (many times)
        let more = [0x01, 0xd9].repeat(20);
        assert_eq!(judge(&[&more, &[0xb8, 0xaa, 1, 0x0f, 0x05], &more]), Found::Nothing);
    }

    #[test]
    fn an_instruction_that_fills_a_jump_stands_in_for_the_number() {
        // movslq 12(%r12),%r9; mov %r15d,%eax
        assert_eq!(judge(&[&[0x4d, 0x63, 0x4c, 0x24, 0x0c], &[0x44, 0x89, 0xf8], &CALL]), likely(0, 8));
        // lea 0(%rip),%rsi; mov %ebx,%eax
        assert_eq!(judge(&[&[0x48, 0x8d, 0x35, 0, 0, 0, 0], &[0x89, 0xd8], &CALL]), likely(0, 9));
    }

    /// The end of Go's Syscall6.
    const MOVES: [&[u8]; 4] =
        [&[0x48, 0x89, 0xf2], &[0x49, 0x89, 0xfa], &[0x48, 0x89, 0xde], &[0x48, 0x89, 0xcf]];

    #[test]
    fn several_instructions_make_room() {
        let code = MOVES.concat();
        assert_eq!(judge(&[&code, &CALL]), likely(6, 12));
        // jmp to the last of them, which is within the bytes that the jump would replace
        assert_eq!(judge(&[&[0xeb, 9], &code, &CALL]), Found::Refused);
        // jmp to the first of the two
        assert_eq!(judge(&[&[0xeb, 6], &code, &CALL]), likely(8, 14));
        // jmp to the last of them from behind, by four bytes
        assert_eq!(judge(&[&code, &CALL, &[0xe9, 0xf6, 0xff, 0xff, 0xff]]), Found::Refused);
        assert_eq!(judge(&[MOVES[0], &CALL]), Found::Refused);
    }

    #[test]
    fn data_that_look_like_code_are_left_alone() {
        // A single register has an argument; the code after the call does not continue.
        assert_eq!(judge(&[&[0x48, 0x81, 0xc1, 1, 2, 3, 4], &[0x89, 0xd8], &CALL]), Found::Refused);
        assert_eq!(judge(&[MOVES[2], MOVES[3], &CALL, &[0xfa]]), Found::Refused);
    }

    /// The callers of a function for cancellation points are patched, and not the function.
    #[test]
    fn calls_of_what_cancels_threads_are_taken() {
        // mov (%rdi),%eax; test %eax,%eax; jne .+16
        let asks = [0x8b, 0x07, 0x85, 0xc0, 0x0f, 0x85, 16, 0, 0, 0];
        let rest = [0x4c, 0x8b, 0x44, 0x24, 0x08, 0x4c, 0x89, 0x5c, 0x24, 0x08, 0x0f, 0x05, 0xc3];
        let function = [&asks[..], &bridge::MOVES, &rest].concat();
        let (fills, behind) = ([0xcc; 200], [0xe8, 0xb1, 0xff, 0xff, 0xff]);
        let found = |caller: &[u8]| {
            let text = [&fills, &function[..], &[0x90; 33], caller, &fills].concat();
            let mut judgements = Vec::new();
            for_each(&text, |_, found| judgements.push(found));
            judgements
        };
        let caller = 200 + function.len() + 33;
        assert_eq!(
            found(&behind),
            [Found::Site(Site { start: caller, call: 200, is_function: true, is_certain: true })]
        );
        assert_eq!(found(&[]), [Found::Refused]);
    }

    #[test]
    fn a_jump_target_by_padding_is_not_passed_over() {
        // jmp over nopl 0(%rax,%rax,1), and to what follows it
        assert_eq!(judge(&[&[0xeb, 5], &[0x0f, 0x1f, 0x44, 0, 0], MOVES[0], &CALL]), Found::Refused);
    }

    #[test]
    fn what_lies_elsewhere_is_found_from_the_stub() {
        // lea 16(%rip),%rsi; mov %ebx,%eax; syscall
        let text = [&[0x48, 0x8d, 0x35, 16, 0, 0, 0], &[0x89, 0xd8][..], &CALL].concat();
        let stub = stub(
            &text,
            0x40_0000,
            Site { start: 0, call: 9, is_function: false, is_certain: true },
            0x30_0000,
            0x2f_0000,
            0,
        )
        .unwrap();
        let distance = i32::from_le_bytes(stub[3..7].try_into().unwrap());
        assert_eq!(0x30_0007 + i64::from(distance), 0x40_0017);
        assert_eq!(stub[7..9], [0x89, 0xd8]);
        // The stub is out of reach.
        assert_eq!(
            super::stub(
                &text,
                0x40_0000,
                Site { start: 0, call: 9, is_function: false, is_certain: true },
                1 << 40,
                1 << 40,
                0
            ),
            None
        );
        let jump = jump(
            &text,
            0x40_0000,
            Site { start: 0, call: 9, is_function: false, is_certain: true },
            0x30_0000,
        )
        .unwrap();
        assert_eq!(i32::from_le_bytes(jump[1..].try_into().unwrap()), -0x10_0005);
    }
}
