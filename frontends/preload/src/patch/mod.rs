//! Call sites that are patched to jump to stubs instead of trapping.
//!
//! A trap costs over a microsecond, more than most requests. So one instruction of a site becomes a jump to a stub: a few
//! instructions that lie within the reach of a jump and enter the engine. The form of sites, patched sites and stubs
//! depends on the architecture ([`crate::arch::sites`]); this module decides which code is searched, and when.
//!
//! Other threads may execute a site while it changes. The page stays executable throughout. Code that is not in a private
//! file mapping (JIT code, for example) is not patched, nor is anything if pages may not be made writable.

mod maps;
mod stubs;
pub mod unseen;

use crate::arch::sites;
use crate::dispatch;
use crate::start::auxiliary;
use anyring_interpose::descriptors;
use anyring_runtime::calls::{self, PATCHED_SITES};
use anyring_runtime::{arch, log};
use core::ffi::c_ulong;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use maps::Mapping;
pub use stubs::{NEXT, STUB, stub_at};

/// A call site, by its addresses.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// The first instruction of the site.
    pub start: usize,
    /// The address after the instruction that makes the call.
    pub next: usize,
}

/// True if sites may be patched when they trap.
static ENABLED: AtomicBool = AtomicBool::new(false);
/// True while a thread patches; other threads leave a site to its next trap.
static BUSY: AtomicBool = AtomicBool::new(false);
/// Sites that will always trap, by a hash of their address; a collision only costs another examination.
static REFUSED: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];

/// The size up to which mappings are searched before `main`, in bytes: the sites of larger ones are patched when they trap.
const SEARCH_MAX: usize = 32 << 20;

/// True if the number is that of one of the three calls.
pub fn is_ring_call(number: u32) -> bool {
    calls::is_ring_call(number as usize)
}

/// Patches the sites of the three calls in the program, which begins at `entry`, and in liburing; if there may be any, also the sites that
/// close or duplicate descriptors. Called before `main`.
///
/// Other libraries rarely contain sites, and reading all their code would double the start time of a small
/// program; their sites are patched when they trap.
pub fn before_main(entry: usize) {
    learn();
    search(entry, None);
    // The flag is set last, because only one search may run at a time.
    ENABLED.store(true, Ordering::Release);
}

/// Patches the sites of a process whose rings are the kernel's: sites jump to a stub that, except for setups, makes the call itself as
/// long as the byte at `mark` is zero. Returns true if all sites that were found are patched; sites do not trap in such a process.
pub fn beside_kernel(entry: usize, mark: usize) -> bool {
    learn();
    search(entry, Some(mark))
}

/// Patches all sites. Returns true if this succeeded, and, with a `mark`, the code makes the three calls only at sites.
fn search(entry: usize, mark: Option<usize>) -> bool {
    if has_nothing(entry, mark.is_some()) {
        return true;
    }
    let alone = maps::one_thread();
    let (mut all, mut tell) = (true, mark.is_none());
    maps::for_each_code(|mapping, name| {
        let program = (mapping.start..mapping.end).contains(&entry);
        let is_searched = program || is_liburing(name);
        if is_searched && mapping.end - mapping.start > SEARCH_MAX {
            (all, tell) = (false, false);
        } else if is_searched {
            // SAFETY: the mapping is readable, and nothing unmaps it while only this code runs.
            let bytes = unsafe { mapping.code() };
            all &= mark.is_none() || !sites::has_other_calls(bytes);
            // An engine that starts beside the kernel's does not need to see closes.
            let is_taken = |number| mark.is_none() && descriptors::is_call(number);
            sites::for_each_site(bytes, is_taken, |start, length| {
                let start = mapping.start + start;
                all &= patch(&Site { start, next: start + length }, mapping, mark, alone);
            });
            tell = tell && unseen::all_are_patched(bytes, mapping.start);
        } else {
            let own = (search as *const ()).addr();
            tell = tell && (is_of_c_library(name) || (mapping.start..mapping.end).contains(&own));
        }
        true
    });
    if mark.is_none() {
        let ends = if tell { "are seen" } else { "may be unseen: rings that it makes are watched" };
        log::debug!("closes of rings that are made by instructions {ends}");
    }
    unseen::note_search(tell);
    all
}

/// True if it is known that there is no site, as in most programs, without reading the list of mappings, which takes long. If there
/// are sites, only the list says whether the code is still a file's, and how its pages are protected.
fn has_nothing(entry: usize, counts_others: bool) -> bool {
    let Some(program) = maps::Program::own() else { return false };
    if program.has_loaded(is_liburing) != Some(false) {
        return false;
    }
    let is_searched = |code: &Mapping| code.end - code.start <= SEARCH_MAX && code.is_readable();
    let Some(code) = program.code_at(entry).filter(is_searched) else { return false };
    // SAFETY: the code was found to be readable, and nothing changes that while only this code runs.
    let bytes = unsafe { code.code() };
    let mut has_site = false;
    sites::for_each_site(bytes, |_| false, |_, _| has_site = true);
    !(has_site || counts_others && sites::has_other_calls(bytes))
}

fn is_liburing(name: &[u8]) -> bool {
    contains(name, b"liburing")
}

/// True if a file with this path is the C library, or part of it.
pub fn is_of_c_library(path: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 8] =
        [b"libc.so", b"libc-2", b"libc.musl", b"ld-linux", b"ld-2", b"ld-musl", b"libpthread", b"libdl"];
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

fn contains(name: &[u8], part: &[u8]) -> bool {
    name.windows(part.len()).any(|window| window == part)
}

/// Patches the site of a call that has trapped; `next` is the address after its `syscall` instruction. Called in the handler.
pub fn trapped_at(next: usize) {
    // Acquire pairs with the release in `before_main`: the results of the search are visible.
    if !ENABLED.load(Ordering::Acquire) {
        return;
    }
    let refused = &REFUSED[(next >> 2) % REFUSED.len()];
    if refused.load(Ordering::Relaxed) == next || BUSY.swap(true, Ordering::Acquire) {
        return;
    }
    if look_at(next) {
        // The program may make a ring at this site, and close it by code that is not patched.
        unseen::distrust_sites();
    } else {
        refused.store(next, Ordering::Relaxed);
    }
    BUSY.store(false, Ordering::Release);
}

/// Patches the site that ends at `next`, if there is one. Returns true if it was patched.
fn look_at(next: usize) -> bool {
    let Some(mapping) = maps::code_at(next) else { return false };
    // SAFETY: the mapping is readable, and this thread was just executing it.
    let bytes = unsafe { mapping.bytes() };
    let Some(start) = sites::site_before(bytes, next - mapping.start) else { return false };
    patch(&Site { start: mapping.start + start, next }, &mapping, None, false)
}

/// Patches one site. `alone` is true if no other thread can execute the site meanwhile; `mark` is that of
/// [`beside_kernel`].
fn patch(site: &Site, mapping: &Mapping, mark: Option<usize>, alone: bool) -> bool {
    if !sites::changes_whole(site) && !alone {
        return false;
    }
    // SAFETY: the site was decoded from this mapping.
    let body = unsafe { core::slice::from_raw_parts(site.start as *const u8, site.next - site.start) };
    let Some(stub) = stubs::emit(site, body, mark, alone) else { return false };
    // SAFETY: the stub does what the replaced bytes do.
    let done = unsafe { stubs::write_jump(site, stub, mapping) };
    if done {
        PATCHED_SITES.fetch_add(1, Ordering::Relaxed);
    }
    let how = if done { "patched" } else { "cannot patch" };
    log::debug!("{how} the call site at {:#x}", site.start);
    done
}

/// The size of a page in bytes, once [`learn`] was called.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// Reads the values that only the C library knows, because it must not be called in the trap's handler.
fn learn() {
    const AT_PAGESZ: c_ulong = 6;
    if let Some(bytes) = auxiliary(AT_PAGESZ) {
        PAGE_BYTES.store(bytes, Ordering::Relaxed);
    }
    sites::learn();
}

/// Returns the size of a page in bytes.
fn page_bytes() -> usize {
    PAGE_BYTES.load(Ordering::Relaxed)
}

/// Makes the call of a patched site.
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
    #[cfg(not(test))]
    {
        // SAFETY: the program's own call.
        let result = unsafe { descriptors::Calls::<crate::interpose::Interposed>::answer(number, arguments) };
        if let Some(result) = result {
            return result;
        }
    }
    // Code between the two instructions of the site changed the number.
    // SAFETY: the program's own call.
    unsafe { arch::syscall(number, arguments) }
}
