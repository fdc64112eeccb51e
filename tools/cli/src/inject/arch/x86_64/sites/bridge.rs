//! The functions by which C libraries make calls that are cancellation points: musl's `__syscall_cp_asm`, glibc's `__syscall_cancel_arch`. A thread
//! is cancelled only while it is inside such a function, so the function itself is not patched. Instead, its callers are made to jump.

use super::chains::Chains;
use super::{COPIED, JUMP};
use crate::inject::sites::{Found, Site};

/// The moves by which arguments of C become those of a system call: `mov %rdi,%r11`; `mov %rsi,%rax`; `mov %rdx,%rdi`; `mov %rcx,%rsi`;
/// `mov %r8,%rdx`; `mov %r9,%r10`.
pub const MOVES: [u8; 18] = [
    0x49, 0x89, 0xfb, 0x48, 0x89, 0xf0, 0x48, 0x89, 0xd7, 0x48, 0x89, 0xce, 0x4c, 0x89, 0xc2, 0x4d, 0x89,
    0xca,
];

/// Returns the position of the moves before a `syscall`, if the `syscall` is in such a function.
pub fn moves_before(text: &[u8], call: usize) -> Option<usize> {
    let first = call.saturating_sub(COPIED);
    let at = text[first..call].windows(MOVES.len()).position(|bytes| bytes == MOVES)?;
    Some(first + at)
}

/// Calls `found` with each site that calls the function with these moves. If there is none, or if some are doubtful, also calls
/// `found` with a refusal.
pub fn for_each(text: &[u8], moves: usize, chains: &mut Chains<'_>, mut found: impl FnMut(Found)) {
    /// The maximum number of bytes of the function before the moves.
    const BEFORE: usize = 32;
    let begins = moves.saturating_sub(BEFORE)..moves;
    let (mut called, mut is_sure) = (None, true);
    for start in memchr::memchr2_iter(0xe8, 0xe9, text) {
        let Some(call) = target(text, start).filter(|target| begins.contains(target)) else { continue };
        if !chains.may_begin(start) {
            continue;
        }
        // All callers must call the same function, which must reach the moves, and the callers must be code.
        is_sure &= *called.get_or_insert(call) == call
            && chains.comes_to(call, moves)
            && chains.run_before(start).is_some();
        if is_sure {
            found(Found::Site(Site { start, call, is_function: true, is_certain: true }));
        }
    }
    if called.is_none() || !is_sure {
        found(Found::Refused);
    }
}

/// Returns the target of a jump at `start`.
fn target(text: &[u8], start: usize) -> Option<usize> {
    let distance = i32::from_le_bytes(text.get(start + 1..start + JUMP)?.try_into().ok()?);
    (start + JUMP).checked_add_signed(distance as isize)
}
