//! Code that makes calls by instructions of its own, of which no function of ours hears.

use super::SEARCH_MAX;
use super::maps::{self, Mapping};
use crate::arch::sites;
use anyring_engine::os::user;
use anyring_interpose::next;
use anyring_runtime::log;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Functions of the libraries that the C library consists of.
static LIBRARY: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// Finds the C library, before the first ring. Threads of the engine cannot ask the dynamic linker.
pub fn learn() {
    // The second is the dynamic linker's; the third's library is another one in glibc before 2.34.
    let functions = [c"sendmsg", c"__tls_get_addr", c"pthread_create"];
    for (place, name) in LIBRARY.iter().zip(functions) {
        place.store(next::find(next::Place::Next, name).addr(), Ordering::Relaxed);
    }
}

/// Whether all calls are seen that are `of_concern`: but for the C library, the dynamic linker and this library, no code that is a file's
/// makes any by an instruction. What has been looked through is looked through again when there is other code.
pub fn are_seen(of_concern: impl Fn(u32) -> bool) -> bool {
    /// The number that tells the code apart that was looked through, and in the lowest bit whether it makes such calls.
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    const MAKES: usize = 1;
    let now = look(|_, _| false) & !MAKES;
    let known = KNOWN.load(Ordering::Relaxed);
    if known & !MAKES == now {
        return known & MAKES == 0;
    }
    let found = look(|mapping, access| {
        let may_make = makes_calls(mapping, access, &of_concern);
        if may_make {
            log::debug!("the code at {:#x} may make any calls", mapping.start);
        }
        may_make
    });
    // Other code may have come meanwhile.
    if found & !MAKES == now {
        KNOWN.store(found, Ordering::Relaxed);
    }
    found & MAKES == 0
}

/// Looks at all code but that of the known libraries until some `makes` calls; what tells it apart from other code, and in the lowest bit
/// whether some does. What cannot be seen may make any.
fn look(makes: impl Fn(&Mapping, &[u8]) -> bool) -> usize {
    const PRIME: usize = 0x0100_0000_01b3;
    let own = (learn as *const ()).addr();
    let functions = LIBRARY.each_ref().map(|address| address.load(Ordering::Relaxed));
    let (mut others, mut has) = (PRIME, false);
    let all = maps::for_each_executable(|mapping, access, line| {
        if functions.iter().chain([&own]).any(|address| (mapping.start..mapping.end).contains(address)) {
            return;
        }
        // Another file, or another part of it, may lie at the same addresses by now.
        others = line.iter().fold(others, |sum, &byte| (sum ^ usize::from(byte)).wrapping_mul(PRIME));
        has = has || makes(mapping, access);
    });
    others & !1 | usize::from(has || !all)
}

/// Whether code there may make calls that are `of_concern`.
fn makes_calls(mapping: &Mapping, access: &[u8], of_concern: impl Fn(u32) -> bool) -> bool {
    let length = mapping.end - mapping.start;
    if length > SEARCH_MAX || access.contains(&b'w') {
        return true;
    }
    // Another thread may unmap it; nor can all code be read.
    let bytes = user::read_many::<u8>(mapping.start as u64, length);
    bytes.map_or(true, |bytes| sites::has_calls_but(&bytes, |number| !of_concern(number)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_runtime::{arch, sys};
    use core::cell::Cell;
    use linux_raw_sys::general as raw;

    const PAGE: usize = 1 << 16;
    /// The call 1, of which the test has concern.
    const CALL: &[u8] = if cfg!(target_arch = "x86_64") {
        &[0xb8, 1, 0, 0, 0, 0x0f, 0x05]
    } else {
        &[0x28, 0x00, 0x80, 0x52, 0x01, 0x00, 0x00, 0xd4]
    };

    /// Puts a new file's code of so many bytes at the address, or anywhere; where it is.
    fn map_code(code: &[u8], bytes: usize, address: usize, access: u32, flags: u32) -> usize {
        let mut page = [0; PAGE];
        page[..code.len()].copy_from_slice(code);
        let fd = sys::memory_file(c"code");
        assert_eq!(sys::write_from(fd, page.as_ptr().addr(), bytes), bytes);
        let fixed = if address == 0 { 0 } else { raw::MAP_FIXED };
        let arguments = [address, PAGE, access as usize, (flags | fixed) as usize, fd as usize, 0];
        // SAFETY: new memory, or in the place of what this has mapped before.
        let mapped = unsafe { arch::syscall(raw::__NR_mmap as usize, arguments) };
        sys::close(fd);
        usize::try_from(mapped).unwrap()
    }

    #[test]
    fn other_code_at_the_same_place_is_looked_through() {
        const READ: u32 = raw::PROT_READ | raw::PROT_EXEC;
        const PRIVATE: u32 = raw::MAP_PRIVATE;
        let asked = Cell::new(0);
        let are_seen = || {
            are_seen(|number| {
                asked.set(asked.get() + usize::from(number == 1));
                number == 1
            })
        };
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
            let times = asked.get();
            assert!(!are_seen() && asked.get() == times, "{what}, and that is known");
        }
        assert_eq!(map_code(&[0; 4], PAGE, place, READ, PRIVATE), place);
        assert!(are_seen());
    }
}
