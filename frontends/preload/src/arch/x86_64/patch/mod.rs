//! Call sites that jump here instead of trapping.
//!
//! A trap costs over a microsecond, more than most requests. But the instruction in front of nearly
//! every `syscall` that enters a ring is `mov $426,%eax`: five bytes, as long as a jump. So
//!
//! ```text
//!        mov  $426,%eax   ->       jmp  stub         stub: mov  $426,%eax
//!        xor  %r9d,%r9d            xor  %r9d,%r9d          xor  %r9d,%r9d     (a copy)
//!        syscall                   syscall                 lea  -128(%rsp),%rsp
//!  next: ...                 next: ...                     call entry
//!                                                          lea  128(%rsp),%rsp
//!                                                          jmp  next
//! ```
//!
//! That the bytes of the `mov` are one, and no operand of another instruction, is proved by decoding what comes before
//! (`length`); where that leaves a doubt, the site is left to the trap. What lies between the two instructions is copied
//! if it is straight and does not depend on where it lies (`decode`). The `syscall` stays where it is: code that jumps to it still traps.
//!
//! Other threads may run through the site while it changes. One aligned 8-byte store is seen whole,
//! so where the five bytes lie within an aligned word they are written so; where they do not, the
//! site is left to the trap, unless the process has one thread only, as before `main`. The page
//! stays executable throughout. Code that is not a private file mapping (a JIT's, say) is left alone,
//! and so is everything where pages may not be made writable.
//!
//! Where the kernel answers, and our engine only for rings that the kernel is too old for, the stub looks before its `lea` whether
//! there is such a ring, and else makes the call itself:
//!
//! ```text
//!              movabs $mark,%rcx
//!              movzbl (%rcx),%ecx
//!              jrcxz  own            own:  syscall
//!              lea ...                     jmp  next
//! ```
//!
//! A system call changes rcx anyway, and none of these changes the flags.
//!
//! The entry keeps what a system call keeps: all registers but rax, rcx and r11, the red zone, the
//! vector registers. Of those it saves xmm0 to xmm15; their upper halves, the AVX-512 registers, the
//! x87 state and MXCSR are safe because nothing compiled here touches them (the memory routines of
//! the C library would: hence our own).

mod code;
mod decode;
mod entry;
mod length;
mod maps;

use anyring_runtime::calls::PATCHED_SITES;
use anyring_runtime::log;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use decode::Site;
use maps::Mapping;

/// Whether sites may be patched at all.
static ENABLED: AtomicBool = AtomicBool::new(false);
/// One patch at a time; who finds it taken leaves the site to the next trap.
static BUSY: AtomicBool = AtomicBool::new(false);
/// Sites that will always trap, by a hash of their address; a collision only costs another look.
static REFUSED: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];

/// Larger mappings are not searched before `main`: their sites are patched when they trap.
const SEARCH_MAX: usize = 32 << 20;

/// Patches the sites of the program, which begins at `entry`, and of liburing. Called before `main`.
///
/// Other libraries rarely hold any, and reading all their code would double the time that a small
/// program takes to start; their sites are patched when they trap.
pub fn before_main(entry: usize) {
    ENABLED.store(true, Ordering::Relaxed);
    search(entry, None);
}

/// The same in a process whose rings are the kernel's: but for setups, sites jump to a stub that makes the call, as long as the byte
/// at `mark` is zero. Whether all sites that were found are patched: nothing traps here.
pub fn beside_kernel(entry: usize, mark: usize) -> bool {
    search(entry, Some(mark))
}

/// Patches all sites there; whether it could. With a `mark` other calls must not be there, either.
fn search(entry: usize, mark: Option<usize>) -> bool {
    if has_nothing(entry, mark.is_some()) {
        return true;
    }
    let alone = maps::one_thread();
    let mut all = true;
    maps::for_each_code(|mapping, name| {
        let program = (mapping.start..mapping.end).contains(&entry);
        let is_searched = program || is_liburing(name);
        if is_searched && mapping.end - mapping.start > SEARCH_MAX {
            all = false;
        } else if is_searched {
            // SAFETY: a readable mapping, and nobody unmaps it while only we run.
            let bytes = unsafe { mapping.bytes() };
            all &= mark.is_none() || !decode::has_other_calls(bytes);
            decode::for_each_site(bytes, |start, length| {
                let start = mapping.start + start;
                all &= patch(&Site { start, next: start + length }, mapping, mark, alone);
            });
        }
        true
    });
    all
}

/// Whether it is plain that there is no site, as in most programs, before the list of mappings is read, which takes long. Where
/// there are some, only that list says whether the code is a file's still, and what may be done with its pages.
fn has_nothing(entry: usize, counts_others: bool) -> bool {
    let Some(program) = maps::Program::own() else { return false };
    if program.has_loaded(is_liburing) != Some(false) {
        return false;
    }
    let is_searched = |code: &Mapping| code.end - code.start <= SEARCH_MAX && code.is_readable();
    let Some(code) = program.code_at(entry).filter(is_searched) else { return false };
    // SAFETY: just seen to be readable, and nobody changes that while only we run.
    let bytes = unsafe { code.bytes() };
    let mut has_site = false;
    decode::for_each_site(bytes, |_, _| has_site = true);
    !(has_site || counts_others && decode::has_other_calls(bytes))
}

fn is_liburing(name: &[u8]) -> bool {
    contains(name, b"liburing")
}

fn contains(name: &[u8], part: &[u8]) -> bool {
    name.windows(part.len()).any(|window| window == part)
}

/// A call trapped; `next` is the address behind its `syscall` instruction. Called in the handler.
pub fn trapped_at(next: usize) {
    if !ENABLED.load(Ordering::Relaxed) {
        return;
    }
    let refused = &REFUSED[(next >> 1) % REFUSED.len()];
    if refused.load(Ordering::Relaxed) == next || BUSY.swap(true, Ordering::Acquire) {
        return;
    }
    if !look_at(next) {
        refused.store(next, Ordering::Relaxed);
    }
    BUSY.store(false, Ordering::Release);
}

/// Patches the site before `next`, if it is one.
fn look_at(next: usize) -> bool {
    let Some(mapping) = maps::code_at(next) else { return false };
    // SAFETY: a readable mapping, out of which this thread was just running.
    let bytes = unsafe { mapping.bytes() };
    let Some(start) = decode::start_of_site(bytes, next - mapping.start) else { return false };
    patch(&Site { start: mapping.start + start, next }, &mapping, None, false)
}

/// Patches one site; `alone` says that no other thread can run through it meanwhile, `mark` is for [`beside_kernel`].
fn patch(site: &Site, mapping: &Mapping, mark: Option<usize>, alone: bool) -> bool {
    let word = code::within_one_word(site.start);
    if !word && !alone {
        return false;
    }
    // SAFETY: the site was decoded from this mapping.
    let body = unsafe { core::slice::from_raw_parts(site.start as *const u8, site.next - site.start) };
    let mark = mark.filter(|_| !decode::is_setup(body));
    let Some(stub) = code::emit_stub(site, body, mark) else { return false };
    // SAFETY: the stub does what the bytes do that the jump replaces.
    let done = unsafe { code::write_jump(site.start, stub, mapping) };
    if done {
        PATCHED_SITES.fetch_add(1, Ordering::Relaxed);
    }
    let how = if done { "patched" } else { "cannot patch" };
    log::debug!("{how} the call site at {:#x}", site.start);
    done
}
