//! Call sites that jump here instead of trapping.
//!
//! A trap costs over a microsecond, more than most requests. So one instruction of a site becomes a jump to a stub, a few
//! instructions that lie near enough for a jump and enter the engine. How a site looks, what it becomes, and what the stub does is
//! the architecture's ([`crate::arch::sites`]); which code is searched, and when, is told here.
//!
//! Other threads may run through a site while it changes. The page stays executable throughout. Code that is not a private
//! file mapping (a JIT's, say) is left alone, and so is everything where pages may not be made writable.

mod maps;
mod stubs;
pub mod unseen;

use crate::arch::sites;
use crate::dispatch;
use crate::start::auxiliary;
use anyring_runtime::calls::{self, PATCHED_SITES};
use anyring_runtime::{arch, log};
use core::ffi::c_ulong;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use maps::Mapping;
pub use stubs::STUB;

/// A call site, by addresses.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Its first instruction.
    pub start: usize,
    /// Behind the instruction that makes the call.
    pub next: usize,
}

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
    learn();
    search(entry, None);
    // Only now, for there is one search at a time.
    ENABLED.store(true, Ordering::Release);
}

/// Patches the sites of a process whose rings are the kernel's: but for setups, sites jump to a stub that makes the call, as long
/// as the byte at `mark` is zero. Whether all sites that were found are patched: nothing traps here.
pub fn beside_kernel(entry: usize, mark: usize) -> bool {
    learn();
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
            let bytes = unsafe { mapping.code() };
            all &= mark.is_none() || !sites::has_other_calls(bytes);
            sites::for_each_site(bytes, |start, length| {
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
    let bytes = unsafe { code.code() };
    let mut has_site = false;
    sites::for_each_site(bytes, |_, _| has_site = true);
    !(has_site || counts_others && sites::has_other_calls(bytes))
}

fn is_liburing(name: &[u8]) -> bool {
    contains(name, b"liburing")
}

fn contains(name: &[u8], part: &[u8]) -> bool {
    name.windows(part.len()).any(|window| window == part)
}

/// A call trapped; `next` is the address behind its `syscall` instruction. Called in the handler.
pub fn trapped_at(next: usize) {
    // Acquire pairs with the release in `before_main`: what the search wrote is there.
    if !ENABLED.load(Ordering::Acquire) {
        return;
    }
    let refused = &REFUSED[(next >> 2) % REFUSED.len()];
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
    let Some(start) = sites::site_before(bytes, next - mapping.start) else { return false };
    patch(&Site { start: mapping.start + start, next }, &mapping, None, false)
}

/// Patches one site; `alone` says that no other thread can run through it meanwhile, `mark` is for [`beside_kernel`].
fn patch(site: &Site, mapping: &Mapping, mark: Option<usize>, alone: bool) -> bool {
    if !sites::changes_whole(site) && !alone {
        return false;
    }
    // SAFETY: the site was decoded from this mapping.
    let body = unsafe { core::slice::from_raw_parts(site.start as *const u8, site.next - site.start) };
    let Some(stub) = stubs::emit(site, body, mark, alone) else { return false };
    // SAFETY: the stub does what the bytes do that the jump replaces.
    let done = unsafe { stubs::write_jump(site, stub, mapping) };
    if done {
        PATCHED_SITES.fetch_add(1, Ordering::Relaxed);
    }
    let how = if done { "patched" } else { "cannot patch" };
    log::debug!("{how} the call site at {:#x}", site.start);
    done
}

/// Bytes of a page, once [`learn`] has asked.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// Learns what only the C library tells, which must not be asked in the trap's handler.
fn learn() {
    const AT_PAGESZ: c_ulong = 6;
    if let Some(bytes) = auxiliary(AT_PAGESZ) {
        PAGE_BYTES.store(bytes, Ordering::Relaxed);
    }
    sites::learn();
}

/// Bytes of a page.
fn page_bytes() -> usize {
    PAGE_BYTES.load(Ordering::Relaxed)
}

/// The call that a patched site made.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe extern "C" fn enter(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    number: usize,
) -> isize {
    let arguments = [a, b, c, d, e, f];
    if calls::is_ring_call(number) {
        // SAFETY: the program's own call.
        return unsafe { dispatch::called(number, arguments, false) };
    }
    // Code between the two instructions changed the number.
    // SAFETY: the program's own call.
    unsafe { arch::syscall(number, arguments) }
}
