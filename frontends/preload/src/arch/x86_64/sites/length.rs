//! The sizes of instructions, and their beginnings.

/// The maximum length of an instruction in bytes.
const LONGEST: usize = 15;

/// True if an instruction certainly begins at `start`.
///
/// Instructions have different sizes, and bytes of one may look like another. But at least one instruction begins among any fifteen
/// bytes: of the chains of instructions from these bytes, one is the true chain. The others merge with it after a few instructions. So
/// if all chains reach `start`, an instruction begins there; if one chain misses it, perhaps none begins there.
pub fn is_start(bytes: &[u8], start: usize) -> bool {
    let (arrived, passed) = follow_chains(bytes, start, |_, passed| passed);
    arrived && !passed
}

/// True if an instruction may begin at `start`: a chain reaches it, or no chain passes it, as behind data.
pub fn may_be_start(bytes: &[u8], start: usize) -> bool {
    let (arrived, passed) = follow_chains(bytes, start, |arrived, _| arrived);
    arrived || !passed
}

/// Returns whether a chain reaches `start`, and whether a chain passes it. Stops as soon as `is_enough` is true for the two.
fn follow_chains(bytes: &[u8], start: usize, is_enough: impl Fn(bool, bool) -> bool) -> (bool, bool) {
    const BACK: usize = 96;
    let first = start.saturating_sub(BACK);
    // A mapping begins with an instruction.
    let chains = if first == 0 { 1 } else { LONGEST };
    // The offsets that earlier chains have visited, as bits: a chain that reaches one of them continues as the earlier
    // chain did.
    let mut known: u128 = 0;
    let (mut arrived, mut passed) = (false, false);
    for begin in first..first + chains {
        let mut at = begin;
        while at < start && known >> (at - first) & 1 == 0 {
            known |= 1 << (at - first);
            // A chain that reaches invalid bytes is not the true one.
            let Some(length) = bytes.get(at..).and_then(length) else { break };
            at += length;
        }
        passed |= at > start;
        arrived |= at == start;
        if is_enough(arrived, passed) {
            break;
        }
    }
    (arrived, passed)
}

/// The bytes that follow an opcode.
#[derive(Clone, Copy)]
enum Rest {
    /// A number of bytes.
    Bytes(usize),
    /// An operand, and a number of bytes.
    Operand(usize),
}
use Rest::{Bytes, Operand};

/// Returns the length of the instruction at the beginning of `bytes`, or `None` if there is no valid one.
pub fn length(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut short, mut short_address) = (0, false, false);
    let opcode = loop {
        let byte = *bytes.get(at)?;
        at += 1;
        match byte {
            0x66 => short = true,
            0x67 => short_address = true,
            0xf0 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => {}
            other => break other,
        }
    };
    let (wide, opcode) = match opcode {
        rex @ 0x40..=0x4f => {
            at += 1;
            (rex & 8 != 0, *bytes.get(at - 1)?)
        }
        other => (false, other),
    };
    // An immediate of the operand's size, at most four bytes.
    let immediate = if short && !wide { 2 } else { 4 };
    let rest = match opcode {
        0x0f => {
            let second = *bytes.get(at)?;
            at += 1;
            match second {
                0x38 | 0x3a => {
                    at += 1;
                    Operand(usize::from(second == 0x3a))
                }
                _ => two_bytes(second)?,
            }
        }
        // VEX and EVEX: the map, and fields that replace prefixes.
        0xc5 => {
            at += 2;
            vector(1, *bytes.get(at - 1)?)?
        }
        0xc4 => {
            at += 3;
            vector(*bytes.get(at - 3)? & 0x1f, *bytes.get(at - 1)?)?
        }
        0x62 => {
            at += 4;
            vector(*bytes.get(at - 4)? & 7, *bytes.get(at - 1)?)?
        }
        0xa0..=0xa3 => Bytes(if short_address { 4 } else { 8 }),
        0xb8..=0xbf => Bytes(if wide { 8 } else { immediate }),
        // Two of the eight operations have an immediate.
        0xf6 | 0xf7 => match (*bytes.get(at)? >> 3 & 7, opcode) {
            (0 | 1, 0xf6) => Operand(1),
            (0 | 1, _) => Operand(immediate),
            _ => Operand(0),
        },
        _ => one_byte(opcode, immediate)?,
    };
    let length = match rest {
        Bytes(count) => at + count,
        Operand(count) => at + operand(bytes.get(at..)?)? + count,
    };
    (length <= LONGEST && length <= bytes.len()).then_some(length)
}

/// Returns what follows an opcode of one byte.
fn one_byte(opcode: u8, immediate: usize) -> Option<Rest> {
    Some(match opcode {
        0x00..=0x3f => match opcode & 7 {
            0..=3 => Operand(0),
            4 => Bytes(1),
            5 => Bytes(immediate),
            _ => return None,
        },
        0x50..=0x5f | 0x6c..=0x6f | 0x90..=0x99 | 0x9b..=0x9f | 0xa4..=0xa7 | 0xaa..=0xaf => Bytes(0),
        0x63 | 0x84..=0x8e | 0xd0..=0xd3 | 0xd8..=0xdf | 0xfe | 0xff => Operand(0),
        0x68 | 0xa9 => Bytes(immediate),
        0x69 | 0x81 | 0xc7 => Operand(immediate),
        0x6a | 0x70..=0x7f | 0xa8 | 0xb0..=0xb7 | 0xcd | 0xe0..=0xe7 | 0xeb => Bytes(1),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => Operand(1),
        // pop; XOP instructions are not supported.
        0x8f => Operand(0),
        0xc2 | 0xca => Bytes(2),
        0xc8 => Bytes(3),
        0xc3 | 0xc9 | 0xcb | 0xcc | 0xcf | 0xd7 | 0xec..=0xef | 0xf1 | 0xf4 | 0xf5 | 0xf8..=0xfd => Bytes(0),
        0xe8 | 0xe9 => Bytes(4),
        _ => return None,
    })
}

/// Returns what follows an opcode after `0f`.
fn two_bytes(opcode: u8) -> Option<Rest> {
    Some(match opcode {
        0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x35 | 0x37 | 0x77 | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf => {
            Bytes(0)
        }
        0x80..=0x8f => Bytes(4),
        0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => Operand(1),
        0x04 | 0x0a | 0x0c | 0x24..=0x27 | 0x36 | 0x39 | 0x3b..=0x3f | 0xa6 | 0xa7 => return None,
        _ => Operand(0),
    })
}

/// Returns what follows the opcode of a vector instruction, by its map.
fn vector(map: u8, opcode: u8) -> Option<Rest> {
    Some(match (map, opcode) {
        (1, 0x77) => Bytes(0),
        (1, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) | (3, _) => Operand(1),
        (1 | 2 | 5 | 6, _) => Operand(0),
        _ => return None,
    })
}

/// Returns the length of an operand: the ModRM byte, the SIB byte and the displacement.
fn operand(bytes: &[u8]) -> Option<usize> {
    let byte = *bytes.first()?;
    let (mode, low) = (byte >> 6, byte & 7);
    if mode == 3 {
        return Some(1);
    }
    let (length, base) = if low == 4 { (2, *bytes.get(1)? & 7) } else { (1, low) };
    let displacement = match mode {
        0 if base == 5 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    Some(length + displacement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Compares the sizes with those of binutils' disassembler, for a whole library.
    #[test]
    fn lengths_are_those_of_a_disassembler() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library =
            maps.lines().find_map(|line| line.split(' ').next_back().filter(|path| path.contains("libc.so")));
        let library = library.unwrap();
        let output = Command::new("objdump").args(["-d", "-w", "--insn-width=16", library]).output();
        let Ok(output) = output else {
            eprintln!("skipped: there is no objdump (Debian: binutils)");
            return;
        };
        let (mut seen, mut wrong) = (0, Vec::new());
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut parts = line.split('\t');
            let (Some(_), Some(bytes), Some(text)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let bytes: Vec<u8> =
                bytes.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
            if text.contains("(bad)") || matches!(bytes[..], [0x9b, ..]) {
                continue;
            }
            seen += 1;
            if length(&bytes) != Some(bytes.len()) {
                wrong.push(line.to_owned());
            }
        }
        assert!(seen > 10_000 && wrong.is_empty(), "{seen}: {wrong:#?}");
    }

    #[test]
    fn an_instruction_may_begin_behind_data() {
        // A table that ends like the beginning of a movabs, and one in which nothing can be decoded.
        let tables: [Vec<u8>; 2] = [[[0x48, 0xb8].repeat(60), vec![0x48]].concat(), vec![0x06; 120]];
        for table in tables {
            let code = [&table[..], &[0xb8, 3, 0, 0, 0, 0x0f, 0x05], &[0x90; 32]].concat();
            let call = table.len() + 5;
            assert!(may_be_start(&code, call), "{table:x?}");
        }
        let operand = [&[0x90; 120][..], &[0xb9, 0x0f, 0x05, 0, 0], &[0x90; 32]].concat();
        assert!(!may_be_start(&operand, 121));
    }

    #[test]
    fn numbers_in_operands_are_no_instructions() {
        let before: [(&[u8], bool); 6] = [
            (&[], true),
            (&[0x48, 0x89, 0xc7], true), // mov %rax,%rdi
            (&[0x31, 0xf6], true),       // xor %esi,%esi
            (&[0xc7, 0x45], false),      // movl $426,-72(%rbp)
            (&[0xc7, 0x04], false),      // movl $426,(%rax,%rdi,4)
            (&[0x89], false),            // mov %edi,426(%rax)
        ];
        for padding in [0, 7, 200] {
            for (code, is) in before {
                let mut bytes = vec![0x90; padding];
                bytes.extend_from_slice(code);
                let start = bytes.len();
                bytes.extend_from_slice(&[0xb8, 0xaa, 1, 0, 0, 0x0f, 0x05]);
                assert_eq!(is_start(&bytes, start), is, "{padding} {code:x?}");
            }
        }
    }
}
