use super::*;

const CALL: u32 = 0xd400_0001; // svc #0
const ENTER: u32 = 0xd280_3548; // mov x8, #426
const GETPID: u32 = 0xd280_1588; // mov x8, #172
const MOVE: u32 = 0xaa03_03e1; // mov x1, x3
const UNKNOWN: u32 = 0x2a00_03e8; // mov w8, w0
const RET: u32 = 0xd65f_03c0;

fn bytes(code: &[u32]) -> Vec<u8> {
    code.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the judgements of some code, with the indices of the calls.
fn judge_all(code: &[u32]) -> Vec<(usize, Found)> {
    let mut judgements = Vec::new();
    let is_handled = |number| number == 57 || number == 426;
    for_each_of(&bytes(code), is_handled, |call, found| judgements.push((call / WORD, found)));
    judgements
}

/// Returns the only judgement of some code.
fn judge(code: &[u32]) -> Found {
    let judgements = judge_all(code);
    assert_eq!(judgements.len(), 1, "{judgements:?}");
    judgements[0].1
}

#[test]
fn the_instruction_before_becomes_the_branch() {
    assert_eq!(judge(&[RET, ENTER, CALL, RET]), site(1, 2, true));
    assert_eq!(judge(&[RET, ENTER, MOVE, MOVE, CALL, RET]), site(3, 4, true));
    // str x0, [sp]
    assert_eq!(judge(&[RET, ENTER, 0xf900_03e0, CALL]), site(2, 3, true));
    // Whatever x8 holds, the stub looks it up.
    assert_eq!(judge(&[RET, UNKNOWN, MOVE, CALL]), site(2, 3, false));
    // ldr x8, [sp, #8]; ldr x5, [sp, #56], as Go has it
    assert_eq!(judge(&[RET, 0xf940_07e8, 0xf940_1fe5, CALL]), site(2, 3, false));
}

#[test]
fn other_calls_are_left_alone() {
    assert_eq!(judge(&[RET, GETPID, CALL]), Found::Nothing);
    // orr x8, xzr, #0x38; orr w8, wzr, #0x40; orr x8, xzr, #0x3f
    for (instruction, is) in [(0xb27d_0be8, 56), (0x321a_03e8, 64), (0xb240_17e8, 63), (0xb27f_17e8, 126)] {
        assert_eq!(code::number(instruction), Some(is), "{instruction:x}");
        assert_eq!(judge(&[RET, instruction, CALL]), Found::Nothing);
    }
    // mov x8, #172 is followed by a branch with link to what makes the call.
    assert_eq!(judge(&[RET, MOVE, CALL, RET, GETPID, 0x97ff_fffc]), Found::Nothing);
    assert_eq!(judge(&[RET, MOVE, CALL, RET, ENTER, 0x97ff_fffc]), site(1, 2, true));
    // Nobody is seen to come here.
    assert_eq!(judge(&[RET, MOVE, CALL, RET]), site(1, 2, false));
    // A call leaves the number as it is.
    assert_eq!(judge_all(&[RET, GETPID, CALL, MOVE, CALL]), [(2, Found::Nothing), (4, Found::Nothing)]);
    // svc #1, which no compiler makes
    assert_eq!(judge_all(&[ENTER, 0xd400_0021]), []);
}

#[test]
fn what_cannot_run_elsewhere_stays() {
    for before in [
        0x1000_0001, // adr x1, .
        0x9000_0001, // adrp x1, .
        0x5800_0001, // ldr x1, .
        0xb400_0041, // cbz x1, over the call
        0x5400_0040, // b.eq, over the call
        0xd503_245f, // bti c
        0xd503_249f, // bti j
        0x885f_7c01, // ldxr w1, [x0]
        CALL,
        0,
    ] {
        let all = judge_all(&[RET, ENTER, before, CALL, RET]);
        assert_eq!(all.last(), Some(&(3, Found::Refused)), "{before:x}");
    }
    for before in [0xd503_201f, 0xd53b_d041, 0xd503_3bbf, 0x8b03_0021, 0x4ea1_1c20, 0xa940_07e0] {
        assert_eq!(judge(&[RET, ENTER, before, CALL, RET]), site(2, 3, true), "{before:x}");
    }
    assert_eq!(judge(&[CALL]), Found::Refused);
}

#[test]
fn the_number_is_what_was_moved_last() {
    for (between, is_certain) in [
        (MOVE, true),
        (UNKNOWN, false),
        (0xf280_0028, false), // movk x8, #1
        (0xf940_03e8, false), // ldr x8, [sp]
        (0xf900_03e8, true),  // str x8, [sp]
        (0xa940_23e9, false), // ldp x9, x8, [sp]
        (0xa900_23e9, true),  // stp x9, x8, [sp]
        (0xf840_8500, false), // ldr x0, [x8], #8
        (0xf840_8420, true),  // ldr x0, [x1], #8
        (0xd53b_4208, false), // mrs x8, nzcv
        (0xd51b_4208, true),  // msr nzcv, x8
        (0x9400_0010, false), // bl
        (0xd63f_0020, false), // blr x1
        (0x3400_0088, true),  // cbz w8, away
    ] {
        assert_eq!(judge(&[RET, ENTER, between, MOVE, CALL, RET]), site(3, 4, is_certain), "{between:x}");
    }
}

#[test]
fn calls_that_share_their_end() {
    // b to the instruction before the call, which becomes the branch.
    assert_eq!(judge(&[RET, ENTER, 0x1400_0003, RET, GETPID, MOVE, CALL, RET]), site(5, 6, true));
    // With other numbers only, on both ways.
    assert_eq!(judge(&[RET, GETPID, 0x1400_0003, RET, GETPID, MOVE, CALL, RET]), Found::Nothing);
    // b to the call itself passes the stub by, which matters if the number is one of the engine's.
    let both = judge_all(&[RET, ENTER, 0x1400_0004, RET, ENTER, MOVE, CALL, RET]);
    assert_eq!(both, [(6, site(5, 6, true)), (6, Found::Refused)]);
    let other = judge_all(&[RET, GETPID, 0x1400_0004, RET, ENTER, MOVE, CALL, RET]);
    assert_eq!(other, [(6, site(5, 6, true))]);
    // The call is reached by such a jump only.
    assert_eq!(judge(&[RET, ENTER, 0x1400_0002, RET, CALL, RET]), Found::Refused);
    assert_eq!(judge(&[RET, GETPID, 0x1400_0002, RET, CALL, RET]), Found::Nothing);
    // A loop: tbnz from behind the call to the instruction before.
    assert_eq!(judge(&[RET, ENTER, MOVE, CALL, 0x37ff_ffc0, RET]), site(2, 3, true));
    // By two branches: mov; b; b; svc.
    assert_eq!(judge(&[RET, GETPID, 0x1400_0002, RET, 0x1400_0002, RET, CALL]), Found::Nothing);
}

/// The callers of a function for cancellation points are patched, and not the function.
#[test]
fn calls_of_what_cancels_threads_are_taken() {
    // ldr w0, [x0]; cbnz w0, behind
    let function = [&[0xb940_0000, 0x3500_0120][..], &bridge::MOVES, &[CALL, RET]].concat();
    let found = |callers: &[u32]| judge_all(&[&[RET, RET], &function[..], callers].concat());
    let caller = |start| {
        Found::Site(Site { start: start * WORD, call: 2 * WORD, is_function: true, is_certain: true })
    };
    // bl, and b
    let expected = [(11, caller(13)), (11, caller(14))];
    assert_eq!(found(&[0x97ff_fff5, 0x17ff_fff4, RET]), expected);
    assert_eq!(found(&[RET]), [(11, Found::Refused)]);
    // A second caller calls another place.
    assert_eq!(found(&[0x97ff_fff5, 0x97ff_fff5]), [(11, caller(13)), (11, Found::Refused)]);
}

/// Reads a word of a stub.
fn word_of(stub: &[u8], index: usize) -> u32 {
    code::instruction(stub, index).unwrap()
}

#[test]
fn stubs() {
    let text = bytes(&[RET, ENTER, MOVE, CALL, RET]);
    let at = |start, call, is_function| Site { start, call, is_function, is_certain: true };
    let (block, address) = (0x30_0000, 0x34_0000);
    let made = stub(&text, 0x40_0000, at(8, 12, false), address, block, 0).unwrap();
    assert_eq!(word_of(&made, 0), MOVE);
    // adrp x16: 0x40 pages back
    assert_eq!(word_of(&made, 2), 0x90ff_fe10);
    let long = |index: usize| u64::from_le_bytes(made[88 + index * 8..][..8].try_into().unwrap());
    let (back, next, behind) = (long(0), long(1), long(2));
    assert_eq!((behind, long(3), long(4)), (0x40_0010, 0, 0));
    // The last instructions of both ways back.
    let ends = |from: u64| {
        let index = ((from - address) / 4) as usize + 2;
        let code::Flow::Jumps(Some(target)) =
            code::flow(word_of(&made, index), index + (address as usize / 4))
        else {
            panic!("{index}")
        };
        target * 4
    };
    assert_eq!((ends(back), ends(next)), (0x40_000c, 0x40_0010));
    let branch = jump(&text, 0x40_0000, at(8, 12, false), address).unwrap();
    let index = 0x40_0008 / 4;
    assert_eq!(code::flow(u32::from_le_bytes(branch), index), code::Flow::Jumps(Some(0x34_0000 / 4)));
    // The stub is out of reach.
    assert_eq!(jump(&text, 0x40_0000, at(8, 12, false), 0x40_0008 + (128 << 20)), None);
    assert_eq!(stub(&text, 1 << 40, at(8, 12, false), address, block, 0), None);
    // A function's caller calls the stub.
    let text = bytes(&[0x9400_0010, 0x1400_0010]);
    for (start, is) in [(0, 0x9400_0040), (4, 0x1400_003f)] {
        let branch = jump(&text, 0x40_0000, at(start, 64, true), 0x40_0100).unwrap();
        assert_eq!(u32::from_le_bytes(branch), is);
    }
    let made = stub(&text, 0x40_0000, at(0, 64, true), address, block, 0).unwrap();
    let last = (0..22).rev().map(|index| word_of(&made, index)).find(|&word| word != 0);
    assert_eq!(last, Some(RET));
}
