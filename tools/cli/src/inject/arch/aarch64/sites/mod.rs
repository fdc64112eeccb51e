//! Call sites of a static program, and the stubs that they jump to.
//!
//! A branch replaces the instruction before an `svc`, which itself stays; the stub does what that instruction does. A branch has the size of every
//! instruction. So code that jumps to the replaced instruction comes to the stub, and code that jumps to the `svc` merely misses the stub.

mod bridge;
mod code;
mod numbers;
mod stub;

use crate::inject::sites::{Found, Site};
use anyring_trap::sites::enters;
use code::{WORD, instruction, is_call, may_run_elsewhere};
use numbers::{Given, Numbers};
pub use stub::{jump, stub};

/// The reach of a jump in bytes, less the size of the stubs. In a larger program, sites that are too far from the stubs are not patched.
pub const REACH: u64 = (128 << 20) - (8 << 20);
/// The size of a stub in bytes.
pub const STUB: usize = 128;
/// The size of a jump in bytes.
pub const JUMP: usize = WORD;
/// The size in bytes of the instruction that makes a call.
pub const CALL: usize = WORD;

/// Calls `found` for every `svc` in `text`.
pub fn for_each(text: &[u8], found: impl FnMut(usize, Found)) {
    for_each_of(text, enters, found);
}

/// Works as [`for_each`]; the engine handles the calls whose number `is_handled`.
fn for_each_of(text: &[u8], is_handled: impl Fn(u32) -> bool, mut found: impl FnMut(usize, Found)) {
    let count = text.len() / WORD;
    let calls: Vec<usize> =
        (0..count).filter(|&index| instruction(text, index).is_some_and(is_call)).collect();
    let numbers = Numbers::before(text, &calls);
    for call in calls {
        let mut found = |judgement| found(call * WORD, judgement);
        match bridge::moves_before(text, call) {
            Some(moves) => bridge::for_each(text, moves, found),
            None => look(text, call, &numbers, &is_handled, &mut found),
        }
    }
}

/// Judges the `svc` at an index.
fn look(
    text: &[u8],
    call: usize,
    numbers: &Numbers,
    is_handled: &impl Fn(u32) -> bool,
    found: &mut impl FnMut(Found),
) {
    let is_others = |given: &Given| matches!(given, Given::Number(number) if !is_handled(*number));
    let (mut straight, jumped) = (numbers.straight(text, call), numbers.by_jumps(text, call));
    if straight.is_empty() && jumped.is_empty() {
        straight.push(Given::Unknown);
    }
    if straight.iter().chain(&jumped).all(is_others) {
        found(Found::Nothing);
        return;
    }
    // A jump to the `svc` passes the stub by.
    let mut is_missed = !jumped.iter().all(is_others);
    if !straight.iter().all(is_others) {
        let start =
            call.checked_sub(1).filter(|&before| instruction(text, before).is_some_and(may_run_elsewhere));
        let is_certain = straight.iter().all(|given| matches!(given, Given::Number(_)));
        match start {
            Some(start) => found(site(start, call, is_certain)),
            None => is_missed = true,
        }
    }
    if is_missed {
        found(Found::Refused);
    }
}

fn site(start: usize, call: usize, is_certain: bool) -> Found {
    Found::Site(Site { start: start * WORD, call: call * WORD, is_function: false, is_certain })
}

/// Returns false: a site of `clone3` has no `svc` of its own, because the way back from there would need a register.
pub fn makes_threads(_code: &[u8]) -> bool {
    false
}

#[cfg(test)]
mod tests;
