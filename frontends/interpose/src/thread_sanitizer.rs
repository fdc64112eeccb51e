//! Reports to ThreadSanitizer of requests in flight, if the program has it.
//!
//! ThreadSanitizer sees a request as a thread with the request's name, which accesses the request's memory at some time between
//! submission and completion. Everything that its submitter did before happens before that access; and the access happens before
//! everything that a thread does after it has seen the completion, by the tail of the completion queue, or because a call that
//! fetches completions has returned. An access of the program that is ordered neither before the submission nor after the
//! completion is a data race.
//!
//! Such a thread is a fiber of ThreadSanitizer's interface (`tsan_interface.h`). A switch to a fiber costs some microseconds,
//! and its creation a millisecond, so fibers are reused. ThreadSanitizer does not know the engine's threads, so a request whose
//! completion they post is not reported.

use crate::arch::weak;
use alloc::vec::Vec;
use anyring_engine::abi::layout::Word;
use anyring_engine::os;
use anyring_engine::os::host::{Checker, RequestMemory};
use anyring_engine::os::sync::Mutex;
use anyring_runtime::{log, sys, threads};
use core::ffi::{c_char, c_uint, c_ulong, c_void};
use core::sync::atomic::AtomicU8;

/// The maximum number of requests that are reported at the same time.
const MOST: usize = 128;
/// The maximum number of rings whose tails are remembered.
const MOST_RINGS: usize = 64;
/// The maximum number of bytes of a piece of memory that are reported.
const MOST_BYTES: u64 = 1 << 20;
/// The flag for a switch that does not order the fiber after the thread.
const NO_SYNC: c_uint = 1;

type OnAddress = unsafe extern "C" fn(*mut c_void);
type OnRange = unsafe extern "C" fn(*mut c_void, c_ulong, *mut c_void);

/// Functions of ThreadSanitizer.
#[derive(Clone, Copy)]
#[repr(C)]
struct Functions {
    create: unsafe extern "C" fn(c_uint) -> *mut c_void,
    current: unsafe extern "C" fn() -> *mut c_void,
    switch: unsafe extern "C" fn(*mut c_void, c_uint),
    name: unsafe extern "C" fn(*mut c_void, *const c_char),
    acquire: OnAddress,
    release: OnAddress,
    read: OnRange,
    write: OnRange,
}

impl Functions {
    /// Returns the functions, if the program has all of them.
    fn get() -> Option<Functions> {
        let addresses = [
            weak!("__tsan_create_fiber"),
            weak!("__tsan_get_current_fiber"),
            weak!("__tsan_switch_to_fiber"),
            weak!("__tsan_set_fiber_name"),
            weak!("__tsan_acquire"),
            weak!("__tsan_release"),
            weak!("__tsan_read_range_pc"),
            weak!("__tsan_write_range_pc"),
        ];
        if addresses.iter().any(|address| address.is_null()) {
            return None;
        }
        // SAFETY: ThreadSanitizer's functions of these names have the types of the fields, in this order; pointers to functions are
        // represented as other pointers are.
        Some(unsafe { core::mem::transmute::<[*mut c_void; 8], Functions>(addresses) })
    }
}

/// Returns ThreadSanitizer, if the program has it. If this library is instrumented itself, returns `None`, because its own
/// accesses would be attributed to the fibers.
pub fn get() -> Option<&'static dyn Checker> {
    static THREAD_SANITIZER: ThreadSanitizer = ThreadSanitizer { requests: Mutex::new(Requests::NONE) };
    let is_there = !cfg!(anyring_sanitizer) && Functions::get().is_some();
    is_there.then_some(&THREAD_SANITIZER)
}

/// The fibers that were made so far, and the addresses that were looked up.
struct Requests {
    /// The fibers, each with true if a request uses it.
    fibers: Vec<(usize, bool)>,
    /// The device and inode of rings' memory, and the addresses at which the program has mapped the tails of their completion
    /// queues.
    tails: Vec<([u64; 2], Vec<usize>)>,
}

impl Requests {
    const NONE: Requests = Requests { fibers: Vec::new(), tails: Vec::new() };

    /// Takes a free fiber; returns its place. `None` if the maximum number of requests is reported.
    fn take(&mut self, functions: &Functions) -> Option<usize> {
        let place = match self.fibers.iter().position(|(_, is_taken)| !is_taken) {
            Some(place) => place,
            None if self.fibers.len() == MOST => return None,
            None => {
                // SAFETY: the calling thread is one of the program's.
                let fiber = unsafe { (functions.create)(NO_SYNC) };
                self.fibers.push((fiber.expose_provenance(), false));
                self.fibers.len() - 1
            }
        };
        self.fibers[place].1 = true;
        Some(place)
    }

    /// Returns the addresses at which the program has mapped the tail of a ring's completion queue.
    fn tails(&mut self, file: [u64; 2]) -> &[usize] {
        let place = self.tails.iter().position(|(of, _)| *of == file).unwrap_or_else(|| {
            // Another ring may have had this inode, but it was mapped at other addresses.
            self.tails.truncate(MOST_RINGS - 1);
            self.tails.insert(0, (file, find_tails(file)));
            0
        });
        &self.tails[place].1
    }
}

/// Finds the addresses at which this process has mapped the tail of the completion queue of the ring whose memory is
/// this file.
fn find_tails([_, inode]: [u64; 2]) -> Vec<usize> {
    let text = os::mappings().unwrap_or_default();
    let lines = text.split(|&byte| byte == b'\n').filter_map(|line| core::str::from_utf8(line).ok());
    let starts = lines.filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, _) = words.next()?.split_once('-')?;
        let offset = usize::from_str_radix(words.nth(1)?, 16).ok()?;
        let is_of_ring = words.nth(1)?.parse() == Ok(inode) && words.next()?.starts_with("/memfd:");
        (offset == 0 && is_of_ring).then(|| usize::from_str_radix(start, 16).ok())?
    });
    starts.map(|start| start + Word::CqTail as usize).collect()
}

struct ThreadSanitizer {
    requests: Mutex<Requests>,
}

/// The address at which the end of a request is ordered before calls that fetch completions.
static FETCHED: AtomicU8 = AtomicU8::new(0);

/// True if the calling thread is one of the program's, which ThreadSanitizer knows.
fn is_known() -> bool {
    !threads::is_own(sys::thread_id())
}

/// The function that reports name as the place of a request's memory accesses.
#[inline(never)]
extern "C" fn request_in_flight() {}

impl Checker for ThreadSanitizer {
    fn begins(&self, _memory: &RequestMemory<'_>) -> usize {
        let Some(functions) = Functions::get().filter(|_| is_known()) else { return 0 };
        let mut requests = self.requests.lock();
        let Some(place) = requests.take(&functions) else { return 0 };
        let fiber = core::ptr::with_exposed_provenance_mut(requests.fibers[place].0);
        // SAFETY: the calling thread is one of the program's, and no other thread is on the fiber: the request's first and last
        // steps are made under its ring's lock.
        unsafe {
            let own = (functions.current)();
            (functions.switch)(fiber, 0);
            (functions.switch)(own, NO_SYNC);
        }
        place + 1
    }

    fn ends(&self, number: usize, memory: &RequestMemory<'_>) {
        let mut requests = self.requests.lock();
        requests.fibers[number - 1].1 = false;
        let Some(functions) = Functions::get().filter(|_| is_known()) else { return };
        let fiber = core::ptr::with_exposed_provenance_mut(requests.fibers[number - 1].0);
        let RequestMemory { operation, serial, ring, .. } = memory;
        let access = if memory.is_filled { functions.write } else { functions.read };
        // ThreadSanitizer takes the address for a return address.
        let place = (request_in_flight as *mut c_void).wrapping_byte_add(1);
        let tails = requests.tails(memory.file);
        // SAFETY: as in `begins`; the functions look at their own notes about the memory only.
        unsafe {
            let own = (functions.current)();
            log::as_text(format_args!("{operation} #{serial} of ring {ring}"), |name| {
                (functions.name)(fiber, name.as_ptr());
            });
            (functions.switch)(fiber, NO_SYNC);
            if memory.may_wait {
                (functions.acquire)((&raw const FETCHED).cast_mut().cast());
            }
            for piece in memory.pieces {
                let address = core::ptr::without_provenance_mut(piece.base as usize);
                access(address, piece.length.min(MOST_BYTES) as c_ulong, place);
            }
            (functions.release)((&raw const FETCHED).cast_mut().cast());
            tails.iter().for_each(|&tail| (functions.release)(core::ptr::without_provenance_mut(tail)));
            (functions.switch)(own, NO_SYNC);
        }
    }

    fn drops(&self, number: usize) {
        self.requests.lock().fibers[number - 1].1 = false;
    }

    fn fetched(&self) {
        if let Some(functions) = Functions::get().filter(|_| is_known()) {
            // SAFETY: the calling thread is one of the program's.
            unsafe { (functions.acquire)((&raw const FETCHED).cast_mut().cast()) };
        }
    }
}
