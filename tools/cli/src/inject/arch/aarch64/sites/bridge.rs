//! The functions by which C libraries make calls that are cancellation points: musl's `__syscall_cp_asm`, glibc's `__syscall_cancel_arch`. A thread
//! is cancelled only while it is inside such a function, so the function itself is not patched. Instead, its callers are made to branch to a stub.

use super::code::{Flow, WORD, flow, instruction};
use crate::inject::sites::{Found, Site};

/// The moves by which arguments of C become those of a system call: x1 to x8, x2 to x0, and so on to x7 to x5.
pub const MOVES: [u32; 7] =
    [0xaa01_03e8, 0xaa02_03e0, 0xaa03_03e1, 0xaa04_03e2, 0xaa05_03e3, 0xaa06_03e4, 0xaa07_03e5];

/// Returns the index of the moves before an `svc`, if the `svc` is in such a function.
pub fn moves_before(text: &[u8], call: usize) -> Option<usize> {
    let first = call.checked_sub(MOVES.len())?;
    let are_moves = MOVES.iter().enumerate().all(|(at, &word)| instruction(text, first + at) == Some(word));
    are_moves.then_some(first)
}

/// Calls `found` with each site that calls the function with these moves. If there is none, or if they call different places, also calls `found` with
/// a refusal.
pub fn for_each(text: &[u8], moves: usize, mut found: impl FnMut(Found)) {
    /// The maximum number of instructions of the function before the moves.
    const BEFORE: usize = 6;
    let begins = moves.saturating_sub(BEFORE)..moves;
    let comes_to_moves = |start: usize| {
        (start..moves).all(|index| {
            let flow = instruction(text, index).map(|word| flow(word, index));
            matches!(flow, Some(Flow::Next | Flow::Branches(_)))
        })
    };
    let (mut called, mut is_sure) = (None, true);
    for (index, bytes) in text.chunks_exact(WORD).enumerate() {
        let word = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let (Flow::Calls(Some(target)) | Flow::Jumps(Some(target))) = flow(word, index) else { continue };
        if !begins.contains(&target) {
            continue;
        }
        // All callers must call the same function, which must reach the moves.
        is_sure &= *called.get_or_insert(target) == target && comes_to_moves(target);
        if is_sure {
            let (start, call) = (index * WORD, target * WORD);
            found(Found::Site(Site { start, call, is_function: true, is_certain: true }));
        }
    }
    if called.is_none() || !is_sure {
        found(Found::Refused);
    }
}
