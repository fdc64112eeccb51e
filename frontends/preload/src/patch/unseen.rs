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

/// Whether all calls are seen by which descriptors come to other processes, or from them, or are duplicated: but for the C library and
/// the dynamic linker, no code makes any by an instruction.
pub fn are_seen(of_concern: impl Fn(u32) -> bool) -> bool {
    !makes_calls(&LIBRARY.each_ref().map(|address| address.load(Ordering::Relaxed)), of_concern)
}

/// Whether code of the process may make calls that are `of_concern` by instructions of its own: code that has none of `functions`, and
/// is not this library's. What has been looked through is looked through again when there is other code.
fn makes_calls(functions: &[usize], of_concern: impl Fn(u32) -> bool) -> bool {
    const PRIME: usize = 0x0100_0000_01b3;
    /// What tells the mappings apart that were looked through and have none.
    static CLEAN: AtomicUsize = AtomicUsize::new(0);
    let own = (learn as *const ()).addr();
    let is_left_out = |mapping: &Mapping| {
        functions.iter().chain([&own]).any(|address| (mapping.start..mapping.end).contains(address))
    };
    let for_each_other = |each: &mut dyn FnMut(&Mapping, &[u8])| {
        maps::for_each_code_line(|mapping, _, line| {
            if !is_left_out(mapping) {
                each(mapping, line);
            }
            true
        });
    };
    let mut others = 1;
    // Another file, or another part of it, may lie at the same addresses by now.
    for_each_other(&mut |_, line| {
        others = line.iter().fold(others, |sum: usize, &byte| (sum ^ usize::from(byte)).wrapping_mul(PRIME));
    });
    if others == CLEAN.load(Ordering::Relaxed) {
        return false;
    }
    let mut makes = false;
    for_each_other(&mut |mapping, _| {
        let length = mapping.end - mapping.start;
        // Another thread may unmap it.
        let bytes = || user::read_many::<u8>(mapping.start as u64, length);
        let has_calls =
            || bytes().is_ok_and(|bytes| sites::has_calls_but(&bytes, |number| !of_concern(number)));
        if !makes && (length > SEARCH_MAX || has_calls()) {
            log::debug!("the code at {:#x} may make any calls", mapping.start);
            makes = true;
        }
    });
    if !makes {
        CLEAN.store(others, Ordering::Relaxed);
    }
    makes
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_runtime::{arch, sys};
    use linux_raw_sys::general as raw;

    /// Puts a new file's code at the address, or anywhere; where it is.
    fn map_code(code: &[u8], address: usize) -> usize {
        const PAGE: usize = 1 << 16;
        let mut bytes = [0; PAGE];
        bytes[..code.len()].copy_from_slice(code);
        let fd = sys::memory_file(c"code");
        assert_eq!(sys::write_from(fd, bytes.as_ptr().addr(), PAGE), PAGE);
        let fixed = if address == 0 { 0 } else { raw::MAP_FIXED };
        let (access, flags) = (raw::PROT_READ | raw::PROT_EXEC, raw::MAP_PRIVATE | fixed);
        let arguments = [address, PAGE, access as usize, flags as usize, fd as usize, 0];
        // SAFETY: new memory, or in the place of what this has mapped before.
        let mapped = unsafe { arch::syscall(raw::__NR_mmap as usize, arguments) };
        sys::close(fd);
        usize::try_from(mapped).unwrap()
    }

    #[test]
    fn other_code_at_the_same_place_is_looked_through() {
        const CALL: &[u8] =
            if cfg!(target_arch = "x86_64") { &[0x0f, 0x05] } else { &0xd400_0001_u32.to_le_bytes() };
        learn();
        let place = map_code(&[0; 4], 0);
        let seen = || are_seen(|_| true);
        assert!(seen() && seen());
        assert_eq!(map_code(CALL, place), place);
        assert!(!seen());
    }
}
