//! Code that makes calls by its own instructions, which interposed functions do not see, and which may not be patched.

use super::maps::{self, Mapping};
use super::{SEARCH_MAX, STUB, stub_at};
use crate::arch::sites;
use anyring_engine::{frontend, os::user};
use anyring_interpose::{descriptors, next};
use anyring_runtime::log;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The addresses of a function in each of the libraries that make up the C library.
static LIBRARY: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// Looks up the C library, before the first ring, because threads of the engine cannot ask the dynamic linker.
pub fn learn() {
    // The second function is in the dynamic linker; the third is in a separate library in glibc before 2.34.
    let functions = [c"sendmsg", c"__tls_get_addr", c"pthread_create"];
    for (place, name) in LIBRARY.iter().zip(functions) {
        place.store(next::find(next::Place::Next, name).addr(), Ordering::Relaxed);
    }
}

/// The question whether anyring sees all calls of certain kinds.
pub struct Question {
    /// True for the numbers of these calls.
    of_concern: fn(u32) -> bool,
    /// True if stubs handle all of these calls, even if the number is known only when the call is made.
    are_taken: bool,
    /// A hash of the mapped code that was examined; the lowest bit says whether the code makes such calls.
    known: AtomicUsize,
}

/// The question whether anyring sees all calls that close or replace descriptors.
static CLOSES: Question = Question::new(descriptors::closes, true);

impl Question {
    /// Returns the question about these calls.
    pub const fn new(of_concern: fn(u32) -> bool, are_taken: bool) -> Self {
        Self { of_concern, are_taken, known: AtomicUsize::new(0) }
    }

    /// True if all of these calls are seen: apart from the C library, the dynamic linker and this library, no code of a file makes such a
    /// call by an instruction of its own, except at patched sites. Code is examined again when the set of mapped code changes.
    pub fn is_answered_yes(&self) -> bool {
        const MAKES: usize = 1;
        let now = look(|_, _, _| false) & !MAKES;
        let known = self.known.load(Ordering::Relaxed);
        if known & !MAKES == now {
            return known & MAKES == 0;
        }
        let found = look(|mapping, access, name| {
            let may_make = self.may_be_made(mapping, access);
            if may_make {
                let name = core::str::from_utf8(name).unwrap_or_default();
                log::debug!("the code at {:#x} may make any calls: {name}", mapping.start);
            }
            may_make
        });
        // The set of mapped code may have changed meanwhile.
        if found & !MAKES == now {
            self.known.store(found, Ordering::Relaxed);
        }
        found & MAKES == 0
    }

    /// True if code in the mapping may make such calls.
    fn may_be_made(&self, mapping: &Mapping, access: &[u8]) -> bool {
        let length = mapping.end - mapping.start;
        if length > SEARCH_MAX || access.contains(&b'w') {
            return true;
        }
        // The code is copied with a guard, because another thread may unmap it, and not all code is readable.
        let bytes = user::read_many::<u8>(mapping.start as u64, length);
        let is_harmless = |number| !(self.of_concern)(number);
        bytes.map_or(true, |bytes| {
            sites::has_calls_but(&bytes, is_harmless, stub_from(mapping.start), self.are_taken)
        })
    }
}

/// Returns a function that finds the stub of a site, by the distances of the stub and of the site's end from `start`.
fn stub_from(start: usize) -> impl Fn(isize, usize) -> Option<&'static [u8; STUB]> {
    move |stub, next| stub_at(start.wrapping_add_signed(stub), start + next)
}

/// True if the process has no code except the C library and code that was searched before `main` and closes and duplicates descriptors only at
/// patched sites. Then closes of rings that this code makes are reported.
static SITES_TELL: AtomicBool = AtomicBool::new(false);
/// True if a ring was made whose close is reported by patched sites.
static IS_TOLD: AtomicBool = AtomicBool::new(false);
/// True if code that was not searched may close such a ring.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Returns whether the close of a ring that is about to be made will be reported by the sites.
pub fn trust_sites() -> bool {
    let tell = SITES_TELL.load(Ordering::Relaxed);
    if tell {
        // In one order with the accesses in `distrust_sites`: either the ring is not trusted, or that function sees that such a ring
        // may exist.
        IS_TOLD.store(true, Ordering::SeqCst);
    }
    tell && SITES_TELL.load(Ordering::SeqCst)
}

/// Notes that rings may be closed by code that was not searched: code that is about to be loaded, or whose call has trapped.
pub fn distrust_sites() {
    SITES_TELL.store(false, Ordering::SeqCst);
    if IS_TOLD.load(Ordering::SeqCst) {
        IS_LOST.store(true, Ordering::Relaxed);
    }
}

/// Makes the engine watch the rings whose closes are no longer reported. Called when the program enters a ring, and therefore holds no lock
/// of the engine.
#[inline]
pub fn watch_lost_rings() {
    if IS_LOST.load(Ordering::Relaxed) && IS_LOST.swap(false, Ordering::Relaxed) {
        frontend::ring_closes_may_be_unseen();
    }
}

/// True if some code of the process may close or replace descriptors without a report.
pub fn closes() -> bool {
    let are_seen = !log::is_filtered() && CLOSES.is_answered_yes();
    let how =
        if are_seen { "are all seen: registrations are not" } else { "may be unseen: registrations are" };
    log::debug!("closes {how} checked at ticks");
    !are_seen
}

/// Notes whether the sites report closes, after the search.
pub fn note_search(tell: bool) {
    SITES_TELL.store(tell, Ordering::Relaxed);
}

/// True if searched code, which begins at `start`, closes and duplicates descriptors only at patched sites.
pub fn all_are_patched(code: &[u8], start: usize) -> bool {
    !sites::has_calls_but(code, |number| !descriptors::is_call(number), stub_from(start), true)
}

/// Examines all code except the known libraries, until `makes` returns true. Returns a hash of the set of code; the lowest bit is 1 if
/// some code makes calls, or if not all code could be seen.
fn look(makes: impl Fn(&Mapping, &[u8], &[u8]) -> bool) -> usize {
    const PRIME: usize = 0x0100_0000_01b3;
    let own = (learn as *const ()).addr();
    let functions = LIBRARY.each_ref().map(|address| address.load(Ordering::Relaxed));
    let (mut others, mut has) = (PRIME, false);
    let all = maps::for_each_executable(|mapping, access, name, line| {
        if functions.iter().chain([&own]).any(|address| (mapping.start..mapping.end).contains(address)) {
            return;
        }
        // The hash includes the line, because another file, or another part of it, may be mapped at the same addresses later.
        others = line.iter().fold(others, |sum, &byte| (sum ^ usize::from(byte)).wrapping_mul(PRIME));
        has = has || makes(mapping, access, name);
    });
    others & !1 | usize::from(has || !all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_runtime::{arch, sys};
    use linux_raw_sys::general as raw;

    const PAGE: usize = 1 << 16;
    /// Code that makes call 1, which is of concern in the tests.
    const CALL: &[u8] = if cfg!(target_arch = "x86_64") {
        &[0xb8, 1, 0, 0, 0, 0x0f, 0x05]
    } else {
        &[0x28, 0x00, 0x80, 0x52, 0x01, 0x00, 0x00, 0xd4]
    };

    /// Maps a new file with this code, `bytes` long, at the address, or anywhere. Returns the address.
    fn map_code(code: &[u8], bytes: usize, address: usize, access: u32, flags: u32) -> usize {
        let mut page = [0; PAGE];
        page[..code.len()].copy_from_slice(code);
        let fd = sys::memory_file(c"code");
        assert_eq!(sys::write_from(fd, page.as_ptr().addr(), bytes), bytes);
        let fixed = if address == 0 { 0 } else { raw::MAP_FIXED };
        let arguments = [address, PAGE, access as usize, (flags | fixed) as usize, fd as usize, 0];
        // SAFETY: a new mapping, or one in the place of an earlier mapping of this function.
        let mapped = unsafe { arch::syscall(raw::__NR_mmap as usize, arguments) };
        sys::close(fd);
        usize::try_from(mapped).unwrap()
    }

    #[test]
    fn other_code_at_the_same_place_is_looked_through() {
        const READ: u32 = raw::PROT_READ | raw::PROT_EXEC;
        const PRIVATE: u32 = raw::MAP_PRIVATE;
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let question = Question::new(
            |number| {
                ASKED.fetch_add(usize::from(number == 1), Ordering::Relaxed);
                number == 1
            },
            true,
        );
        let are_seen = || question.is_answered_yes();
        learn();
        let place = map_code(&[0; 4], PAGE, 0, READ, PRIVATE);
        assert!(are_seen());
        assert!(are_seen());
        let others = [
            ("has a call", CALL, PAGE, READ, PRIVATE),
            ("is shared", CALL, PAGE, READ, raw::MAP_SHARED),
            ("can be written to", &[0; 4], PAGE, READ | raw::PROT_WRITE, PRIVATE),
            ("cannot be read", &[0; 4], PAGE, raw::PROT_EXEC, PRIVATE),
            ("is longer than its file", &[0; 4], 4096, READ, PRIVATE),
        ];
        for (what, code, bytes, access, flags) in others {
            assert_eq!(map_code(code, bytes, place, access, flags), place);
            assert!(!are_seen(), "{what}");
            let times = ASKED.load(Ordering::Relaxed);
            let again = are_seen();
            assert!(!again && ASKED.load(Ordering::Relaxed) == times, "{what}, and that is known");
        }
        assert_eq!(map_code(&[0; 4], PAGE, place, READ, PRIVATE), place);
        assert!(are_seen());
    }
}
