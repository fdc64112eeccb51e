//! Finds call sites: `mov x8, #number`, and the `svc` that execution reaches from it.

use crate::patch::{STUB, is_ring_call};
use alloc::vec::Vec;
use anyring_interpose::descriptors;

/// The length of an instruction in bytes.
pub const WORD: usize = 4;
/// The maximum number of instructions from the number to the `svc`.
const BETWEEN: usize = 32;

/// Calls `found` with the offset and length of each site in `bytes` whose number is one of the three or `is_taken`. A site reaches from the
/// number to the `svc`; if the `svc` lies before the number, it is the `svc` alone.
pub fn for_each_site(bytes: &[u8], is_taken: impl Fn(u32) -> bool, mut found: impl FnMut(usize, usize)) {
    for (at, chunk) in bytes.chunks_exact(WORD).enumerate() {
        if number(word(chunk)).is_some_and(|number| is_ring_call(number) || is_taken(number)) {
            for call in calls_after(bytes, at) {
                let start = if call < at { call } else { at };
                found(start * WORD, (call + 1 - start) * WORD);
            }
        }
    }
}

/// True if `bytes` contain a number of one of the calls that belongs to no site: its path to the `svc` could not be followed.
/// Numbers that are not constants in the code are not noticed.
pub fn has_other_calls(bytes: &[u8]) -> bool {
    let mut words = bytes.chunks_exact(WORD).enumerate();
    words.any(|(at, chunk)| is_number(word(chunk)) && calls_after(bytes, at).next().is_none())
}

/// True if `bytes` contain a call whose number may be neither harmless (`is_harmless`) nor one of the three. Code may reach a stub with any
/// number, too, but the stub takes calls that close or duplicate descriptors; `are_taken` says that all others are harmless. `stub_of`
/// returns the stub at its first argument, for the site that ends at its second: distances from the beginning of `bytes`.
pub fn has_calls_but(
    bytes: &[u8],
    is_harmless: impl Fn(u32) -> bool,
    stub_of: impl Fn(isize, usize) -> Option<&'static [u8; STUB]>,
    are_taken: bool,
) -> bool {
    let at = |index: usize| word(&bytes[index * WORD..(index + 1) * WORD]);
    let leads_to_stub = |index: usize| {
        let stub = |far| stub_of((index * WORD) as isize + far, (index + 1) * WORD);
        branch_distance(at(index)).and_then(stub).is_some()
    };
    let makes_call = |index: usize| is_call(at(index)) || !are_taken && leads_to_stub(index);
    let is_harmless = |number: u32, call: usize| {
        is_ring_call(number) || is_harmless(number) || !is_call(at(call)) && descriptors::is_call(number)
    };
    // A branch that an earlier branch skips does not end the code before it.
    let is_passed = |branch: usize| {
        let before = branch.saturating_sub(BETWEEN)..branch;
        branch_distance(at(branch)).is_some()
            && before.into_iter().any(|index| branch_target(index, at(index)) == Some(branch + 1))
    };
    let mut paths = Vec::new();
    for call in (0..bytes.len() / WORD).filter(|&call| makes_call(call)) {
        // A call leaves the number as it is: compilers use it for the next call, too.
        let ends = |index: usize| {
            number(at(index)).is_some() || changes(at(index)) && !leads_to_stub(index) && !is_passed(index)
        };
        let last = (call.saturating_sub(BETWEEN)..call)
            .rev()
            .find(|&index| ends(index))
            .filter(|&index| number(at(index)).is_some_and(|number| is_harmless(number, call)));
        let Some(from) = last else { return true };
        paths.push((from, call));
    }
    // Compilers let calls share their ends: a number is known only if no branch leads to the code between it and the
    // call.
    !paths.is_empty()
        && (0..bytes.len() / WORD).any(|index| {
            let target = branch_target(index, at(index));
            target.is_some_and(|target| {
                let is_joined = |&(from, call): &(usize, usize)| {
                    target > from && target <= call && !(from..call).contains(&index)
                };
                paths.iter().any(is_joined)
            })
        })
}

/// Returns the index of the instruction to which the one at `index` branches, with or without a condition.
fn branch_target(index: usize, instruction: u32) -> Option<usize> {
    // The distance is a field of `bits` bits at the bit `place`.
    let (bits, place) = match instruction {
        // b
        _ if instruction & 0xfc00_0000 == 0x1400_0000 => (26, 0),
        // b.cond, cbz, cbnz
        _ if instruction & 0xff00_0000 == 0x5400_0000 || instruction & 0x7e00_0000 == 0x3400_0000 => (19, 5),
        // tbz, tbnz
        _ if instruction & 0x7e00_0000 == 0x3600_0000 => (14, 5),
        _ => return None,
    };
    let distance = (instruction << (32 - bits - place)).cast_signed() >> (32 - bits);
    index.checked_add_signed(distance as isize)
}

/// Returns the distance of a `b`, in bytes.
fn branch_distance(instruction: u32) -> Option<isize> {
    let is_branch = instruction & 0xfc00_0000 == 0x1400_0000;
    is_branch.then(|| ((instruction << 6).cast_signed() >> 4) as isize)
}

/// True if an instruction branches without a condition, or has x8 in the field that names the destination in most instructions.
fn changes(instruction: u32) -> bool {
    let leaves = instruction & 0x7c00_0000 == 0x1400_0000 || instruction & 0xfe00_0000 == 0xd600_0000;
    // b.cond; cbz, cbnz, tbz, tbnz
    let asks = instruction & 0xff00_0000 == 0x5400_0000 || instruction & 0x7c00_0000 == 0x3400_0000;
    leaves || !asks && instruction & 0x1f == 8
}

/// Returns the offset of the `svc` before offset `next`, which made a call, if code with one of the three numbers leads to it. Another
/// `svc` makes other calls, too, perhaps on a stack with little room.
pub fn site_before(bytes: &[u8], next: usize) -> Option<usize> {
    let start = next.checked_sub(WORD)?;
    if start % WORD != 0 || !is_call(word(bytes.get(start..next)?)) {
        return None;
    }
    let call = start / WORD;
    let comes_here = |at: &usize| {
        is_number(word(&bytes[at * WORD..(at + 1) * WORD])) && calls_after(bytes, *at).any(|one| one == call)
    };
    (call.saturating_sub(BETWEEN)..call).rev().find(comes_here).map(|_| start)
}

/// Reads an instruction.
fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().unwrap_or_default())
}

/// True for `mov w8, #425..427`, also to x8.
fn is_number(instruction: u32) -> bool {
    number(instruction).is_some_and(is_ring_call)
}

/// Returns the number that a `movz w8, #imm` moves, also to x8.
fn number(instruction: u32) -> Option<u32> {
    (instruction & 0x7fe0_001f == 0x5280_0008).then_some(instruction >> 5 & 0xffff)
}

/// True for `svc #imm`, with any immediate: the kernel ignores it.
fn is_call(instruction: u32) -> bool {
    instruction & 0xffe0_001f == 0xd400_0001
}

/// Returns the indices of the `svc`s that are reached from the instruction at index `at`, before the code leaves or sets another number: a
/// call leaves the number as it is.
fn calls_after(bytes: &[u8], at: usize) -> impl Iterator<Item = usize> {
    let mut next = Some(at + 1);
    let step = move || {
        let at = next?;
        let instruction = word(bytes.get(at * WORD..(at + 1) * WORD)?);
        next = match instruction {
            _ if number(instruction).is_some() => None,
            // b
            _ if instruction & 0xfc00_0000 == 0x1400_0000 => branch_target(at, instruction),
            // bl; br, blr, ret and similar instructions
            _ if instruction & 0xfc00_0000 == 0x9400_0000 || instruction & 0xfe00_0000 == 0xd600_0000 => None,
            _ => Some(at + 1),
        };
        Some((at, is_call(instruction)))
    };
    let steps = core::iter::from_fn(step).take(BETWEEN);
    steps.filter_map(|(at, is_call)| is_call.then_some(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: u32 = 0xd280_3548; // mov x8, #426
    const CALL: u32 = 0xd400_0001; // svc #0
    const NOP: u32 = 0xd503_201f;

    fn bytes(code: &[u32]) -> Vec<u8> {
        code.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn sites(code: &[u32]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for_each_site(&bytes(code), |_| false, |start, length| found.push((start / WORD, length / WORD)));
        found
    }

    #[test]
    fn numbers() {
        for (instruction, is) in [
            (NUMBER, true),
            (0x5280_3548, true),  // mov w8, #426
            (0xd280_3528, true),  // mov x8, #425
            (0xd280_3568, true),  // mov x8, #427
            (0xd280_3508, false), // mov x8, #424
            (0xd280_3588, false), // mov x8, #428
            (0xd280_3549, false), // mov x9, #426
            (0xd2a0_3548, false), // mov x8, #426, lsl #16
            (0xf280_3548, false), // movk x8, #426
            (0x9280_3548, false), // mov x8, #-427
        ] {
            assert_eq!(is_number(instruction), is, "{instruction:x}");
            assert_eq!(sites(&[instruction, CALL]).len(), is.into(), "{instruction:x}");
        }
    }

    #[test]
    fn what_lies_between() {
        for (between, is) in [
            (NOP, true),
            (0xaa00_03e1, true),  // mov x1, x0
            (0xb400_0040, true),  // cbz x0, over the call
            (0xd280_0028, false), // mov x8, #1
            (0x9400_0000, false), // bl
            (0xd65f_03c0, false), // ret
            (0xd61f_0100, false), // br x8
            (0xd63f_0020, false), // blr x1
        ] {
            assert_eq!(sites(&[NUMBER, between, CALL, NOP]).len(), is.into(), "{between:x}");
        }
        let mut far = vec![NUMBER];
        far.resize(BETWEEN, NOP);
        far.push(CALL);
        assert_eq!(sites(&far), [(0, BETWEEN + 1)]);
        far.insert(1, NOP);
        assert_eq!(sites(&far), []);
    }

    #[test]
    fn branches_are_followed() {
        assert_eq!(sites(&[NUMBER, 0x1400_0002, NOP, CALL]), [(0, 4)]);
        // The branch leads to a call before the number.
        assert_eq!(sites(&[CALL, NOP, NUMBER, 0x17ff_fffd]), [(0, 1)]);
        // The branch leads out of the code, and in an endless loop.
        assert_eq!(sites(&[NUMBER, 0x1400_1000, CALL]), []);
        assert_eq!(sites(&[NUMBER, 0x17ff_0000, CALL]), []);
        assert_eq!(sites(&[NUMBER, 0x1400_0000, CALL]), []);
    }

    /// Compilers set a number once for calls that follow one another.
    #[test]
    fn calls_that_share_a_number() {
        const CLOSE: u32 = 0xd280_0728; // mov x8, #57
        let code = [NUMBER, CALL, 0xb400_0040, CALL, NOP, CLOSE, CALL, CALL];
        assert_eq!(sites(&code), [(0, 2), (0, 4)]);
        assert_eq!(site_before(&bytes(&code), 16), Some(12));
        assert_eq!(site_before(&bytes(&code), 32), None);
        let has = |code: &[u32]| has_calls_but(&bytes(code), |number| number == 57, |_, _| None, true);
        assert!(!has(&code[4..]));
        // tbz over a branch, as behind the first of two `mmap`s
        assert!(!has(&[CLOSE, CALL, 0x3600_0040, 0x1400_1000, CALL]));
        assert!(has(&[CLOSE, CALL, NOP, 0x1400_1000, CALL]));
        assert!(has(&[CLOSE, CALL, 0x3600_0040, 0x9400_1000, CALL])); // bl
    }

    #[test]
    fn a_call_that_was_made() {
        let code = bytes(&[CALL, NOP, NUMBER, NOP, CALL, NOP]);
        assert_eq!(site_before(&code, 20), Some(16));
        for next in [0, 2, 4, 8, 18, 22, 24, 28] {
            assert_eq!(site_before(&code, next), None, "{next}");
        }
    }

    #[test]
    fn other_calls() {
        assert!(!has_other_calls(&bytes(&[NUMBER, NOP, CALL])));
        assert!(!has_other_calls(&bytes(&[NOP, CALL])));
        assert!(has_other_calls(&bytes(&[NUMBER, 0xd65f_03c0, CALL])));
        // A branch skips another call.
        assert!(has_other_calls(&bytes(&[NUMBER, 0xb400_0061, 0xd280_0728, CALL, CALL])));
    }

    #[test]
    fn calls_that_share_their_end() {
        const MOVE: u32 = 0xd280_0728; // mov x8, #57
        let has = |code: &[u32]| has_calls_but(&bytes(code), |number| number == 57, |_, _| None, true);
        assert!(!has(&[NOP, MOVE, NOP, CALL, NOP]));
        assert!(!has(&[0xb400_0020, MOVE, NOP, CALL, NOP])); // cbz, to the number
        assert!(has(&[0xb400_0040, MOVE, NOP, CALL, NOP])); // cbz, behind it
        assert!(has(&[0x3600_0060, MOVE, NOP, CALL, NOP])); // tbz, to the call
        assert!(has(&[0x5400_0060, MOVE, NOP, CALL, NOP])); // b.eq
        assert!(!has(&[MOVE, 0x5400_1008, 0x3400_1008, CALL, NOP])); // b.hi, cbz w8, away
        assert!(has(&[NOP, MOVE, NOP, CALL, 0x17ff_ffff])); // b, back to the call
    }

    /// Other calls are sites, too, if they are asked for.
    #[test]
    fn calls_that_close() {
        const CLOSE: u32 = 0xd280_0728; // mov x8, #57
        let code = bytes(&[CLOSE, NOP, CALL, NOP]);
        let mut found = Vec::new();
        for_each_site(&code, |number| number == 57, |start, length| found.push((start, length)));
        assert_eq!(found, [(0, 12)]);
        for_each_site(&code, |_| false, |_, _| panic!("not asked for"));
        assert!(has_calls_but(&code, |number| number != 57, |_, _| None, true));
    }

    /// A branch to a stub makes the call whose number comes before it; the stub takes some calls, whatever comes before.
    #[test]
    fn patched_calls() {
        const BRANCH: u32 = 0x1400_0400;
        static TAKES: [u8; STUB] = [0; STUB];
        let stub_of = |stub, next| ((stub, next) == (4 + 0x1000, 8)).then_some(&TAKES);
        assert_eq!(branch_distance(BRANCH), Some(0x1000));
        assert_eq!(branch_distance(0x17ff_ffff), Some(-4));
        // mov x8, #57; mov x8, #211
        for (number, is_unseen) in [(NUMBER, false), (0xd280_0728, false), (0xd280_1a68, true), (NOP, true)] {
            let code = bytes(&[number, BRANCH]);
            assert_eq!(has_calls_but(&code, |_| false, stub_of, false), is_unseen, "{number:x}");
            assert!(!has_calls_but(&code, |_| false, stub_of, true), "{number:x}");
        }
        assert!(!has_calls_but(&bytes(&[NOP, BRANCH + 1]), |_| false, stub_of, false));
    }
}
