//! Code that makes calls by instructions of its own, of which no function of ours hears.

use super::SEARCH_MAX;
use super::maps::{self, Mapping};
use crate::arch::sites;
use anyring_engine::os::user;
use anyring_interpose::next;
use anyring_runtime::{arch, log};
use core::sync::atomic::{AtomicUsize, Ordering};
use linux_raw_sys::general as raw;

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
pub fn are_seen() -> bool {
    !makes_calls(&LIBRARY.each_ref().map(|address| address.load(Ordering::Relaxed)))
}

/// Is it one of those calls?
fn concerns(number: u32) -> bool {
    const CALLS: &[u32] = &[
        raw::__NR_sendmsg,
        raw::__NR_sendmmsg,
        raw::__NR_recvmsg,
        raw::__NR_recvmmsg,
        raw::__NR_pidfd_getfd,
        raw::__NR_unshare,
        raw::__NR_close_range,
        raw::__NR_clone,
        raw::__NR_clone3,
        raw::__NR_dup,
        raw::__NR_fcntl,
    ];
    CALLS.contains(&number) || arch::REPLACING.contains(&number) || arch::FORKS.contains(&number)
}

/// Whether code of the process may make calls that [`concerns`] names by instructions of its own: code that has none of `functions`, and
/// is not this library's. What has been looked through is looked through again when there is other code.
fn makes_calls(functions: &[usize]) -> bool {
    const PRIME: usize = 0x0100_0000_01b3;
    /// What tells the mappings apart that were looked through and have none.
    static CLEAN: AtomicUsize = AtomicUsize::new(0);
    let own = (are_seen as *const ()).addr();
    let is_left_out = |mapping: &Mapping| {
        functions.iter().chain([&own]).any(|address| (mapping.start..mapping.end).contains(address))
    };
    let for_each_other = |each: &mut dyn FnMut(&Mapping)| {
        maps::for_each_code(|mapping, _| {
            if !is_left_out(mapping) {
                each(mapping);
            }
            true
        });
    };
    let mut others = 1;
    for_each_other(&mut |mapping| {
        others = [mapping.start, mapping.end]
            .iter()
            .fold(others, |sum: usize, &address| (sum ^ address).wrapping_mul(PRIME));
    });
    if others == CLEAN.load(Ordering::Relaxed) {
        return false;
    }
    let mut makes = false;
    for_each_other(&mut |mapping| {
        let length = mapping.end - mapping.start;
        // Another thread may unmap it.
        let bytes = || user::read_many::<u8>(mapping.start as u64, length);
        let has_calls =
            || bytes().is_ok_and(|bytes| sites::has_calls_but(&bytes, |number| !concerns(number)));
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
