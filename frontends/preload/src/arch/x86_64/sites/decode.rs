//! Finds call sites: `mov $number,%eax`, optionally straight-line code, `syscall`; or straight-line code that moves another register's
//! value to eax as the number, if an earlier instruction has set this register to the number of one of the three calls.

use super::held;
use super::length::{is_start, length, may_be_start};
use crate::patch::{STUB, is_ring_call};
use alloc::vec::Vec;
use core::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set1_epi8};

/// The length of `mov $imm32,%eax` and of a jump, in bytes.
pub const MOVE: usize = 5;
/// The opcode of `mov $imm32,%eax`.
const MOVE_OPCODE: u8 = 0xb8;
/// The opcode of a jump.
const JUMP_OPCODE: u8 = 0xe9;
/// The maximum number of bytes between the two instructions.
const BETWEEN: usize = 48;
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Calls `found` with the offset and length of each site in `bytes` that makes one of the three calls, or has a number that `is_taken`.
pub fn for_each_site(bytes: &[u8], is_taken: impl Fn(u32) -> bool, mut found: impl FnMut(usize, usize)) {
    let is_taken = |number| is_ring_call(number) || is_taken(number);
    // Each process that loads the library reads its program's code here, and most code has no call: the search is for the rarer byte.
    for_each_byte(bytes, SYSCALL[1], |second| {
        let Some(call) = second.checked_sub(1).filter(|&call| bytes[call] == SYSCALL[0]) else { return };
        let Some(last) = call.checked_sub(MOVE) else { return };
        for start in last.saturating_sub(BETWEEN)..=last {
            let length = call + SYSCALL.len() - start;
            if site_at(bytes, start, is_taken) == Some(length) {
                found(start, length);
            }
        }
        if let Some((start, register)) = held_before(bytes, call)
            && is_given_number(bytes, start, register)
        {
            found(start, call + SYSCALL.len() - start);
        }
    });
}

/// True if the site with these bytes loads a constant as the number. Otherwise its number is known only when it runs.
pub fn has_number(site: &[u8]) -> bool {
    site[0] == MOVE_OPCODE
}

/// Returns where the straight-line code before the `syscall` at offset `call` begins, with an instruction that is at least as long as a
/// jump, and the register whose value becomes the number.
fn held_before(bytes: &[u8], call: usize) -> Option<(usize, u8)> {
    let last = call.checked_sub(MOVE)?;
    (last.saturating_sub(BETWEEN)..=last).rev().find_map(|start| {
        if bytes[start] == MOVE_OPCODE || movable_length(&bytes[start..])? < MOVE {
            return None;
        }
        let (mut at, mut holder) = (start, None);
        while at < call {
            let rest = &bytes[at..];
            holder = moved_to_number(rest).or(holder);
            at += movable_length(rest)?;
        }
        let found = (start, holder?);
        (at == call && is_start(bytes, start)).then_some(found)
    })
}

/// Returns the register whose value is moved to eax by the instruction at the beginning of `bytes`.
fn moved_to_number(bytes: &[u8]) -> Option<u8> {
    const EAX: u8 = 0;
    let (rex, bytes) = match *bytes.first()? {
        rex @ 0x40..=0x4f => (rex, &bytes[1..]),
        _ => (0, bytes),
    };
    let &[opcode, operands, ..] = bytes else { return None };
    let (mode, middle, low) =
        (operands >> 6, operands >> 3 & 7 | (rex & 4) << 1, operands & 7 | (rex & 1) << 3);
    let (from, to) = match opcode {
        0x89 => (middle, low),
        0x8b => (low, middle),
        _ => return None,
    };
    (mode == 3 && to == EAX && from != EAX).then_some(from)
}

/// True if an instruction before `end` sets the register to the number of one of the calls. The instruction need not be on the path
/// to `end`: the stub tests the number when it runs.
fn is_given_number(bytes: &[u8], end: usize, register: u8) -> bool {
    // The typical size of a function.
    const BEFORE: usize = 2048;
    let first = end.saturating_sub(BEFORE);
    bytes[first..end].iter().enumerate().rev().any(|(offset, &byte)| {
        let opcode = first + offset;
        let is_move = byte == MOVE_OPCODE | register & 7 && is_number(bytes, opcode + 1);
        let start = if register < 8 { Some(opcode) } else { opcode.checked_sub(1) };
        is_move && start.is_some_and(|start| (register < 8 || bytes[start] == 0x41) && is_start(bytes, start))
    })
}

/// True if `bytes` contain one of the calls in a form that is no site: the code between the two instructions is not straight, or another
/// kind of instruction moves the number. Numbers that are not constants in the code are not noticed.
pub fn has_other_calls(bytes: &[u8]) -> bool {
    let mut has = false;
    for_each_byte(bytes, MOVE_OPCODE, |start| {
        has |= is_number(bytes, start + 1)
            && comes_to_call(bytes, start + MOVE)
            && site_at(bytes, start, is_ring_call).is_none();
    });
    // mov $imm32,%eax and %rax as in handwritten code.
    for_each_byte(bytes, 0xc7, |start| {
        has |= bytes.get(start + 1) == Some(&0xc0)
            && is_number(bytes, start + 2)
            && comes_to_call(bytes, start + 6);
    });
    has
}

/// True if `bytes` contain a call whose number may not be harmless (`is_harmless`), except at sites that jump to a stub. `stub_of` returns
/// the stub at its first argument, for the site that ends at its second: distances from the beginning of `bytes`. A stub for a number in a
/// register counts only if it takes all calls that are not harmless (`are_taken`).
///
/// Jumps through a register, or a table, into the code between a number and its call are not noticed.
pub fn has_calls_but(
    bytes: &[u8],
    is_harmless: impl Fn(u32) -> bool,
    stub_of: impl Fn(isize, usize) -> Option<&'static [u8; STUB]>,
    are_taken: bool,
) -> bool {
    const X32: u32 = 1 << 30;
    let serves = |stub, next| stub_of(stub, next).is_some_and(|stub| are_taken || has_number(stub));
    let is_harmless = |number: u32| number & X32 == 0 && is_harmless(number);
    let (mut has, mut paths) = (has_old_call(bytes), Vec::new());
    // The slower tests come last, because most calls are known before them.
    let known_from = |call| {
        patched_from(bytes, call, serves).or_else(|| {
            let (at, number) = number_before(bytes, call)?;
            (is_harmless(number) && is_start(bytes, at)).then_some(at)
        })
    };
    let held_from =
        |call| held::number(bytes, call).filter(|&(_, number)| is_harmless(number)).map(|(at, _)| at);
    for_each_byte(bytes, SYSCALL[0], |call| {
        if has || bytes.get(call + 1) != Some(&SYSCALL[1]) {
            return;
        }
        let from = known_from(call);
        if from.is_some() || may_be_call(bytes, call, is_harmless) {
            match from.or_else(|| held_from(call)) {
                Some(from) => paths.push(Path { from, call }),
                None => has = true,
            }
        }
    });
    has || jumps_into(bytes, &paths)
}

/// True if the bytes at offset `call` may be a call, and not a part of something else. If it is not certain that an instruction begins there, as in
/// tables and behind them, true only if they follow a move of a number that is not harmless.
fn may_be_call(bytes: &[u8], call: usize, is_harmless: impl Fn(u32) -> bool) -> bool {
    is_start(bytes, call)
        || number_before(bytes, call).is_some_and(|(_, number)| !is_harmless(number))
            && may_be_start(bytes, call)
}

/// True if `bytes` may contain a call of a 32-bit program, which has other numbers: `int $0x80` or `sysenter`.
fn has_old_call(bytes: &[u8]) -> bool {
    [[0xcd, 0x80], [0x0f, 0x34]].into_iter().any(|call| {
        let mut has = false;
        for_each_byte(bytes, call[0], |at| {
            has = has || bytes.get(at + 1) == Some(&call[1]) && may_be_call(bytes, at, |_| false);
        });
        has
    })
}

/// The code from the load of a known number to its call. Compilers let calls share their ends, so a jump may lead into
/// the code.
struct Path {
    /// The instruction that loads the number.
    from: usize,
    call: usize,
}

impl Path {
    /// True if a jump from outside leads behind the instruction that loads the number.
    fn is_joined(&self, jump: usize, target: usize) -> bool {
        target > self.from && target <= self.call && !(self.from..self.call).contains(&jump)
    }
}

/// True if a jump may lead into one of the paths.
fn jumps_into(bytes: &[u8], paths: &[Path]) -> bool {
    let (Some(first), Some(last)) =
        (paths.iter().map(|path| path.from).min(), paths.iter().map(|path| path.call).max())
    else {
        return false;
    };
    let is_joined = |jump: usize, target: usize| {
        target > first
            && target <= last
            && paths.iter().any(|path| path.is_joined(jump, target))
            && may_be_start(bytes, jump)
    };
    let mut has = paths.iter().any(|path| {
        // The reach of a jump with a distance of one byte.
        let near = path.from.saturating_sub(130)..(path.call + 129).min(bytes.len());
        near.into_iter().any(|at| {
            let is_short = matches!(bytes[at], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb);
            is_short
                && bytes.get(at + 1).is_some_and(|&distance| {
                    is_joined(at, (at + 2).wrapping_add_signed(distance.cast_signed().into()))
                })
        })
    });
    let leads = |at: usize, operand: usize| {
        number_at(bytes, operand).is_some_and(|distance| {
            is_joined(at, (operand + 4).wrapping_add_signed(distance.cast_signed() as isize))
        })
    };
    for_each_byte(bytes, JUMP_OPCODE, |at| has = has || leads(at, at + 1));
    for_each_byte(bytes, 0x0f, |at| {
        has = has || matches!(bytes.get(at + 1), Some(0x80..=0x8f)) && leads(at, at + 2);
    });
    has
}

/// Returns the beginning of a jump before the `syscall` at offset `call` that leads to the stub of this site.
fn patched_from(bytes: &[u8], call: usize, serves: impl Fn(isize, usize) -> bool) -> Option<usize> {
    let last = call.checked_sub(MOVE)?;
    (last.saturating_sub(BETWEEN)..=last).rev().filter(|&start| bytes[start] == JUMP_OPCODE).find(|&start| {
        let distance = bytes[start + 1..start + MOVE].try_into().map(i32::from_le_bytes);
        distance
            .is_ok_and(|distance| serves((start + MOVE) as isize + distance as isize, call + SYSCALL.len()))
    })
}

/// Returns the number of the call at offset `call`, and the offset of the `mov` to eax that loads it, if straight-line code leads from
/// there to the call.
fn number_before(bytes: &[u8], call: usize) -> Option<(usize, u32)> {
    let last = call.checked_sub(MOVE)?;
    let start = (last.saturating_sub(BETWEEN)..=last)
        .rev()
        .find(|&start| bytes[start] == MOVE_OPCODE && goes_on(bytes, start + MOVE, call))?;
    let number = bytes[start + 1..start + MOVE].try_into().map(u32::from_le_bytes);
    number.ok().map(|number| (start, number))
}

/// True if the instructions from `at` on reach `end`, and do not change eax.
fn goes_on(bytes: &[u8], mut at: usize, end: usize) -> bool {
    while at < end {
        let Some(length) = movable_length(&bytes[at..]).filter(|_| !changes_number(&bytes[at..])) else {
            return false;
        };
        at += length;
    }
    at == end
}

/// True if an instruction that [`movable_length`] knows changes eax, or may do so.
fn changes_number(bytes: &[u8]) -> bool {
    moved_to_number(bytes).is_some() || {
        let (rex, bytes) = match bytes[0] {
            rex @ 0x40..=0x4f => (rex, &bytes[1..]),
            _ => (0, bytes),
        };
        let operands = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let to_low = |byte: u8| byte >> 6 == 3 && byte & 7 == 0 && rex & 1 == 0;
        let to_middle = |byte: u8| byte >> 3 & 7 == 0 && rex & 4 == 0;
        match bytes[0] {
            0xb8 => rex & 1 == 0,
            // cmp and test change nothing; nop, push
            0x39 | 0x3b | 0x85 | 0x90 | 0x50..=0x57 => false,
            // Instructions whose destination is the register in the middle field.
            0x03 | 0x0b | 0x23 | 0x2b | 0x33 | 0x63 | 0x8a | 0x8b | 0x8d => to_middle(operands(1)),
            0x0f => matches!(operands(1), 0x40..=0x4f | 0xb6 | 0xb7 | 0xbe | 0xbf) && to_middle(operands(2)),
            _ => to_low(operands(1)),
        }
    }
}

/// True if the bytes at `at` are the number of one of the three calls.
fn is_number(bytes: &[u8], at: usize) -> bool {
    number_at(bytes, at).is_some_and(is_ring_call)
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

/// True if the instructions from `at` on reach a `syscall` before they leave the code or load another number.
fn comes_to_call(bytes: &[u8], mut at: usize) -> bool {
    let end = at + 2 * BETWEEN;
    while at < end
        && let Some(rest) = bytes.get(at..)
        && let Some(length) = length(rest)
    {
        match rest[0] {
            _ if rest.starts_with(&SYSCALL) => return true,
            // ret, call, jmp, int3, mov $imm,%eax
            0xc2 | 0xc3 | 0xcc | 0xe8 | 0xe9 | 0xeb | MOVE_OPCODE => return false,
            _ => at += length,
        }
    }
    false
}

/// Calls `found` with the offset of each occurrence of `byte` in `bytes`, except in the last bytes, which do not fill a vector.
fn for_each_byte(bytes: &[u8], byte: u8, mut found: impl FnMut(usize)) {
    // SAFETY: SSE2 is part of the architecture.
    let wanted = unsafe { _mm_set1_epi8(byte as i8) };
    for (index, lanes) in bytes.as_chunks::<16>().0.iter().enumerate() {
        // A value, not a load by its address: without optimisation, the checks of an address take most of the search.
        // SAFETY: any 16 bytes are a vector, and SSE2 is part of the architecture.
        let mut hits = unsafe {
            let lanes = core::mem::transmute::<[u8; 16], __m128i>(*lanes);
            _mm_movemask_epi8(_mm_cmpeq_epi8(lanes, wanted))
        };
        while hits != 0 {
            let start = index * 16 + hits.trailing_zeros() as usize;
            hits &= hits - 1;
            found(start);
        }
    }
}

/// Returns the offset of the site with the `syscall` before offset `next`, which has made one of the calls.
pub fn site_before(bytes: &[u8], next: usize) -> Option<usize> {
    let last = next.checked_sub(SYSCALL.len() + MOVE)?;
    let first = last.saturating_sub(BETWEEN);
    let moves = (first..=last).rev().find(|&start| site_at(bytes, start, is_ring_call) == Some(next - start));
    moves.or_else(|| held_before(bytes, next - SYSCALL.len()).map(|(start, _)| start))
}

/// True if the site with these bytes always makes a ring.
pub fn is_setup(site: &[u8]) -> bool {
    has_number(site) && site[1..MOVE] == 425_u32.to_le_bytes()
}

/// Returns the length of the site at `start`, or `None` if the bytes are none, or belong to other instructions.
fn site_at(bytes: &[u8], start: usize, is_taken: impl Fn(u32) -> bool) -> Option<usize> {
    let length = site_length(&bytes[start..], is_taken)?;
    is_start(bytes, start).then_some(length)
}

/// Returns the length of the site at the beginning of `bytes`, if there is one.
fn site_length(bytes: &[u8], is_taken: impl Fn(u32) -> bool) -> Option<usize> {
    if *bytes.first()? != MOVE_OPCODE || !number_at(bytes, 1).is_some_and(is_taken) {
        return None;
    }
    let mut at = MOVE;
    while at <= MOVE + BETWEEN {
        let rest = bytes.get(at..)?;
        if rest.starts_with(&SYSCALL) {
            return Some(at + SYSCALL.len());
        }
        at += movable_length(rest)?;
    }
    None
}

/// Returns the size of the instruction at the beginning of `bytes`, if it can run at any address: not a jump, not
/// relative to the instruction pointer, and with the stack pointer only in addresses and in pushes of registers.
fn movable_length(bytes: &[u8]) -> Option<usize> {
    // A 16-bit mov; with an immediate, its length would differ from that of the 32-bit form.
    if let [0x66, rest @ ..] = bytes {
        let opcode = if rest.first()? & 0xf0 == 0x40 { rest.get(1)? } else { &rest[0] };
        return matches!(opcode, 0x89 | 0x8b).then(|| movable_length(rest))?.map(|length| length + 1);
    }
    let (rex, mut at) = match *bytes.first()? {
        rex @ 0x40..=0x4f => (rex, 1),
        _ => (0, 0),
    };
    let opcode = *bytes.get(at)?;
    at += 1;
    let length = match opcode {
        // nop
        0x90 => at,
        // push of any register but the stack pointer
        0x50..=0x57 if opcode & 7 != 4 || rex & 1 != 0 => at,
        // mov $imm,reg
        0xb8..=0xbf if opcode & 7 == 4 && rex & 1 == 0 => return None,
        0xb8..=0xbf => at + if rex & 8 != 0 { 8 } else { 4 },
        // add, or, and, sub, xor, cmp, test, mov, lea, movslq: register and operand
        0x01 | 0x03 | 0x09 | 0x0b | 0x21 | 0x23 | 0x29 | 0x2b | 0x31 | 0x33 | 0x39 | 0x3b | 0x63 | 0x85
        | 0x88 | 0x8a | 0x8b | 0x8d => at + operand_length(bytes.get(at..)?, rex, true)?,
        // mov reg,operand: the stack pointer may be read
        0x89 => at + operand_length(bytes.get(at..)?, rex, false)?,
        // The operations above with an immediate, shifts, mov $imm,operand.
        0x83 | 0xc1 | 0xc6 => at + operand_length(bytes.get(at..)?, rex, false)? + 1,
        0x81 | 0xc7 => at + operand_length(bytes.get(at..)?, rex, false)? + 4,
        0x0f => match *bytes.get(at)? {
            // movups, movaps, xorps, cmov, movzx, movsx
            0x10 | 0x11 | 0x28 | 0x29 | 0x57 | 0x40..=0x4f | 0xb6 | 0xb7 | 0xbe | 0xbf => {
                at + 1 + operand_length(bytes.get(at + 1..)?, rex, true)?
            }
            // nop with an operand
            0x1f => at + 1 + operand_length(bytes.get(at + 1..)?, rex, false)?,
            _ => return None,
        },
        _ => return None,
    };
    Some(length)
}

/// Returns the length of the ModRM byte and its SIB byte and displacement. `register` says that the byte names a register, too,
/// instead of extending the opcode.
fn operand_length(bytes: &[u8], rex: u8, register: bool) -> Option<usize> {
    const STACK_POINTER: u8 = 4;
    let byte = *bytes.first()?;
    let (mode, middle, low) = (byte >> 6, byte >> 3 & 7, byte & 7);
    if register && middle == STACK_POINTER && rex & 4 == 0 {
        return None;
    }
    if mode == 3 {
        return (low != STACK_POINTER || rex & 1 != 0).then_some(1);
    }
    let mut length = 1;
    if low == 4 {
        length += 1;
        if mode == 0 && *bytes.get(1)? & 7 == 5 {
            length += 4;
        }
    } else if mode == 0 && low == 5 {
        // The operand is relative to the instruction pointer.
        return None;
    }
    Some(length + [0, 1, 4][mode as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECT: &[u8] = &[0xb8, 0xaa, 1, 0, 0, 0x0f, 0x05];

    #[test]
    fn direct_sites() {
        assert_eq!(site_length(DIRECT, is_ring_call), Some(7));
        for (number, is) in [(0xa8, false), (0xa9, true), (0xab, true), (0xac, false)] {
            let bytes = [0xb8, number, 1, 0, 0, 0x0f, 0x05];
            assert_eq!(site_length(&bytes, is_ring_call).is_some(), is);
        }
        assert_eq!(site_length(&DIRECT[..6], is_ring_call), None);
    }

    #[test]
    fn other_registers() {
        let behind = |prefix: &[u8]| [prefix, DIRECT, &[0x90; 16]].concat();
        let sites = |code: &[u8]| {
            let mut found = 0;
            for_each_site(code, |_| false, |_, _| found += 1);
            (found, site_before(code, code.len() - 16).is_some())
        };
        assert_eq!(sites(&behind(&[])), (1, true));
        assert_eq!(sites(&behind(&[0x41])), (0, false)); // mov $426,%r8d
        assert_eq!(sites(&behind(&[0x8b, 0x7b, 0x48])), (1, true)); // mov 72(%rbx),%edi before
    }

    #[test]
    fn straight_code_between() {
        let between: [(&[u8], bool); 21] = [
            (&[0x45, 0x31, 0xc9], true),                         // xor %r9d,%r9d
            (&[0x41, 0xb9, 8, 0, 0, 0], true),                   // mov $8,%r9d
            (&[0x49, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8], true),       // movabs $..,%r8
            (&[0x4d, 0x89, 0xc2], true),                         // mov %r8,%r10
            (&[0x8b, 0x7b, 0x40], true),                         // mov 64(%rbx),%edi
            (&[0x48, 0x8b, 0x54, 0x24, 0x18], true),             // mov 24(%rsp),%rdx
            (&[0x48, 0x8d, 0x74, 0x24, 0x10], true),             // lea 16(%rsp),%rsi
            (&[0x41, 0x83, 0xca, 1], true),                      // or $1,%r10d
            (&[0x48, 0xc7, 0xc6, 0xff, 0xff, 0xff, 0xff], true), // mov $-1,%rsi
            (&[0x8b, 0x3d, 0, 1, 0, 0], false),                  // mov 256(%rip),%edi
            (&[0xeb, 0x00], false),                              // jmp
            (&[0xe8, 0, 0, 0, 0], false),                        // call
            (&[0x48, 0x83, 0xec, 8], false),                     // sub $8,%rsp
            (&[0x66, 0x89, 0x74, 0x24, 0x0c], true),             // mov %si,12(%rsp)
            (&[0x66, 0xb8, 1, 0], false),                        // mov $1,%ax
            (&[0x48, 0x89, 0xe2], true),                         // mov %rsp,%rdx
            (&[0x48, 0x89, 0xc4], false),                        // mov %rax,%rsp
            (&[0x55], true),                                     // push %rbp
            (&[0x41, 0x54], true),                               // push %r12
            (&[0x54], false),                                    // push %rsp
            (&[0x5d], false),                                    // pop %rbp
        ];
        for (code, movable) in between {
            let mut bytes = DIRECT[..MOVE].to_vec();
            bytes.extend_from_slice(code);
            bytes.extend_from_slice(&SYSCALL);
            let expected = movable.then_some(bytes.len());
            assert_eq!(site_length(&bytes, is_ring_call), expected, "{code:x?}");
        }
    }

    /// The setup of liburing 2.3, which saves registers after it has set the number.
    #[test]
    fn a_site_that_pushes() {
        let setup = [
            0x41, 0x54, 0xb8, 0xa9, 1, 0, 0, 0x55, 0x53, 0x48, 0x89, 0xf3, 0x48, 0x89, 0xd6, 0x0f, 0x05,
            0x85, 0xc0, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
        ];
        let mut found = Vec::new();
        for_each_site(&setup, |_| false, |start, length| found.push((start, length)));
        assert_eq!(found, [(2, 15)]);
        assert_eq!(site_before(&setup, 17), Some(2));
    }

    /// The wait of liburing 2.3 in Debian 12: the function sets a register to the number at its beginning.
    const BEGINNING: &[u8] = &[
        0x41, 0x57, // push %r15
        0x41, 0xbf, 0xaa, 1, 0, 0, // mov $426,%r15d
        0x41, 0x56, // push %r14
    ];
    const HELD: &[u8] = &[
        0xf6, 0x85, 0xd0, 0, 0, 0, 1, // testb $1,0xd0(%rbp)
        0x4d, 0x63, 0x4c, 0x24, 0x0c, // movslq 12(%r12),%r9
        0x44, 0x0f, 0x44, 0xd0, // cmove %eax,%r10d
        0x44, 0x89, 0xf8, // mov %r15d,%eax
        0x0f, 0x05, // syscall
        0x85, 0xc0, // test %eax,%eax
    ];

    #[test]
    fn a_number_in_a_register() {
        let sites = |code: &[u8]| {
            let mut found = Vec::new();
            for_each_site(code, |_| false, |start, length| found.push((start, length)));
            found
        };
        let between = [0x90; 300];
        let end = [0x90; 16];
        let code = [BEGINNING, &between, HELD, &end].concat();
        let start = BEGINNING.len() + between.len() + 7;
        assert_eq!(sites(&code), [(start, 14)]);
        assert_eq!(site_before(&code, start + 14), Some(start));
        assert!(!has_number(&code[start..]) && !is_setup(&code[start..]));
        // Another register has the number, or the register has another number: the site is not recognised before the
        // call is made.
        for (at, byte) in [(3, 0xbe), (4, 0xa0)] {
            let mut other = code.clone();
            other[at] = byte;
            assert_eq!((sites(&other), site_before(&other, start + 14)), (Vec::new(), Some(start)), "{at}");
        }
        // No instruction is as long as a jump, so there is no room for one.
        let mut short = code;
        short.splice(start..start + 5, [0x49, 0x89, 0xc1, 0x66, 0x90]);
        assert_eq!(sites(&short), []);
    }

    #[test]
    fn registers_that_become_the_number() {
        let cases: [(&[u8], Option<u8>); 7] = [
            (&[0x89, 0xd8], Some(3)),        // mov %ebx,%eax
            (&[0x44, 0x89, 0xf8], Some(15)), // mov %r15d,%eax
            (&[0x41, 0x8b, 0xc4], Some(12)), // mov %r12d,%eax
            (&[0x89, 0xc0], None),           // mov %eax,%eax
            (&[0x41, 0x89, 0xd8], None),     // mov %ebx,%r8d
            (&[0x8b, 0x03], None),           // mov (%rbx),%eax
            (&[0x31, 0xd8], None),           // xor %ebx,%eax
        ];
        for (code, from) in cases {
            assert_eq!(moved_to_number(code), from, "{code:x?}");
        }
    }

    /// Calls that are no sites are noticed; numbers that lead to no call are not.
    #[test]
    fn other_calls() {
        let number = &DIRECT[..MOVE];
        let cases: [(&[&[u8]], bool); 9] = [
            (&[DIRECT], false),
            (&[number, &[0x8b, 0x3d, 0, 1, 0, 0], &SYSCALL], true), // mov 256(%rip),%edi
            (&[number, &[0x74, 0x03], &SYSCALL], true),             // je
            (&[&[0x48, 0xc7, 0xc0, 0xaa, 1, 0, 0], &SYSCALL], true), // mov $426,%rax
            (&[&[0x48, 0xc7, 0xc0, 0xad, 1, 0, 0], &SYSCALL], false),
            (&[number, &[0xc3], DIRECT], false),               // ret
            (&[number, &[0xe8, 0, 0, 0, 0], &SYSCALL], false), // call
            (&[number, &[0xb8, 1, 0, 0, 0], &SYSCALL], false), // another number
            (&[number, &[0x90; 90], &[0xc3]], false),
        ];
        for (code, has) in cases {
            let bytes = [&[0x90; 8], &code.concat()[..], &[0x90; 32]].concat();
            assert_eq!(has_other_calls(&bytes), has, "{bytes:x?}");
        }
    }

    /// Calls whose number is known to be harmless, and calls whose number is not harmless or not known.
    #[test]
    fn calls_but_some() {
        let call = |number: u8, between: &[u8]| [&[0xb8, number, 0, 0, 0], between, &SYSCALL].concat();
        let cases: [(Vec<u8>, bool); 11] = [
            (vec![0x90; 8], false),
            ([&[0xc7, 0x45, 0xb8, 9, 0, 0, 0][..], &SYSCALL].concat(), true), // movl $9,-72(%rbp)
            (call(9, &[]), false),                                            // mov $9,%eax
            (call(46, &[]), true),                                            // mov $46,%eax
            (call(9, &[0x48, 0x89, 0xf7, 0x31, 0xf6]), false),                // mov %rsi,%rdi; xor %esi,%esi
            (call(9, &[0x89, 0xd0]), true),                                   // mov %edx,%eax
            (call(9, &[0x31, 0xc0]), true),                                   // xor %eax,%eax
            (call(9, &[0x83, 0xc0, 37]), true),                               // add $37,%eax
            (call(9, &[0xc3]), true),                                         // ret
            ([&[0x89, 0xf8][..], &SYSCALL].concat(), true),                   // mov %edi,%eax
            (vec![0xb9, 0x0f, 0x05, 0, 0, 0x90], false),                      // mov $0x50f,%ecx
        ];
        for (code, has) in cases {
            let bytes = [&[0x90; 120], &code[..], &[0x90; 32]].concat();
            assert_eq!(has_calls_but(&bytes, |number| number == 9, |_, _| None, true), has, "{code:x?}");
        }
    }

    /// A number is known only if no jump leads to the code between it and the call. Numbers of 32-bit calls have
    /// another meaning.
    #[test]
    fn calls_that_share_their_end() {
        const ADDS: [u8; 2] = [0x31, 0xf6]; // xor %esi,%esi
        let call = [&[0xb8, 9, 0, 0, 0][..], &ADDS, &SYSCALL].concat();
        let has = |before: &[u8], after: &[u8]| {
            let bytes = [&[0x90; 200][..], before, &call, after, &[0x90; 200]].concat();
            has_calls_but(&bytes, |number| number == 9, |_, _| None, true)
        };
        let cases: [(&[u8], &[u8], bool); 9] = [
            (&[], &[], false),
            (&[0xeb, 0x00], &[], false),                  // jmp to the mov
            (&[0x74, 0x05], &[], true),                   // je behind it
            (&[0xeb, 0x07], &[], true),                   // jmp to the call
            (&[0xeb, 0x09], &[], false),                  // jmp past it
            (&[], &[0xeb, 0xfb], true),                   // jmp back to the xor
            (&[], &[0xe9, 0xf7, 0xff, 0xff, 0xff], true), // the same, longer
            (&[0x0f, 0x85, 7, 0, 0, 0], &[], true),       // jne to the call
            (&[0xb9, 0xeb, 0x0a, 0, 0], &[], false),      // mov $0xaeb,%ecx
        ];
        for (before, after, is) in cases {
            assert_eq!(has(before, after), is, "{before:x?} {after:x?}");
        }
        assert!(has(&[0xcd, 0x80], &[]) && has(&[0x0f, 0x34], &[]));
        assert!(!has(&[0xb9, 0xcd, 0x80, 0, 0], &[]), "mov $0x80cd,%ecx");
        let table = [0x48, 0xb8].repeat(60);
        for (number, is) in [(3, true), (9, false)] {
            let bytes = [&table[..], &[0x48, 0xb8, number, 0, 0, 0], &SYSCALL, &[0x90; 32]].concat();
            assert_eq!(
                has_calls_but(&bytes, |number| number == 9, |_, _| None, true),
                is,
                "behind a table: {number}"
            );
        }
        let x32 = [&[0x90; 120][..], &[0xb8, 3, 0, 0, 0x40], &SYSCALL, &[0x90; 32]].concat();
        assert!(has_calls_but(&x32, |number| number != 3, |_, _| None, true));
    }

    /// Other calls are sites, too, if they are selected. Their jumps to stubs are recognised, and other jumps are not.
    #[test]
    fn patched_calls() {
        static OF_REGISTER: [u8; STUB] = [0x90; STUB];
        static OF_NUMBER: [u8; STUB] = [MOVE_OPCODE; STUB];
        let code = |first: [u8; MOVE]| {
            [&[0x90; 120], &first[..], &[0x48, 0x89, 0xf7], &SYSCALL, &[0x90; 32]].concat()
        };
        let close = code([0xb8, 3, 0, 0, 0]);
        let mut found = Vec::new();
        for_each_site(&close, |number| number == 3, |start, length| found.push((start, length)));
        assert_eq!(found, [(120, 10)]);
        for (jump, leads) in [([0xe9, 0, 0x10, 0, 0], true), ([0xe9, 1, 0x10, 0, 0], false)] {
            for (stub, are_taken, serves) in
                [(&OF_REGISTER, true, true), (&OF_REGISTER, false, false), (&OF_NUMBER, false, true)]
            {
                let stub_of = |at, next| ((at, next) == (120 + 5 + 0x1000, 120 + 10)).then_some(stub);
                let is_unseen = has_calls_but(&code(jump), |number| number == 9, stub_of, are_taken);
                assert_eq!(is_unseen, !(leads && serves), "{jump:x?}");
            }
        }
    }

    #[test]
    fn sites_are_found_from_both_ends() {
        let mut bytes = vec![0x90; 100];
        bytes[37..44].copy_from_slice(DIRECT);
        bytes[60..65].copy_from_slice(&DIRECT[..MOVE]);
        bytes[65..68].copy_from_slice(&[0x45, 0x31, 0xc9]);
        bytes[68..70].copy_from_slice(&SYSCALL);
        let mut found = Vec::new();
        for_each_site(&bytes, |_| false, |start, length| found.push((start, length)));
        assert_eq!(found, [(37, 7), (60, 10)]);
        assert_eq!(site_before(&bytes, 44), Some(37));
        assert_eq!(site_before(&bytes, 70), Some(60));
        assert_eq!(site_before(&bytes, 43), None);
        assert_eq!(site_before(&bytes, 3), None);
    }
}
