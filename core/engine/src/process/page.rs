//! The page that the processes of a ring share beside the ring memory, with a lock of its own.
//!
//! Only the engine writes the page, the same program in every process. But a process may die while
//! it holds the lock: a process that finds this out takes the lock over, with the state as the dead
//! process left it. So the page contains only integers, and readers check every index in it.

use crate::os::sync::atomic::{AtomicU32, Ordering};
use core::cell::UnsafeCell;

use crate::abi::Errno;
use crate::os;
use crate::process::family;

/// Number of processes with requests in flight for which a page has room.
pub const OWNERS: usize = 32;
/// Number of letters for which a page has room.
pub const MAIL: usize = 32;
/// Number of CQEs that wait for which a page has room.
pub const CQES: usize = 1 << 16;

/// Set in the lock word while a thread sleeps for the lock.
const CONTENDED: u32 = 1 << 31;
/// How long to sleep for the lock before checking whether its holder lives.
const PATIENCE_NS: u64 = 20_000_000;

/// One ring's page.
#[repr(C)]
pub struct Page {
    /// 0, or the holder's number in the family, with [`CONTENDED`].
    lock: AtomicU32,
    state: UnsafeCell<State>,
}

// SAFETY: the state is only accessed with the lock held.
unsafe impl Sync for Page {}

/// The state that the lock guards.
#[repr(C)]
pub struct State {
    /// The process that held the lock last; another process that takes the lock reads the ring's counts again.
    pub last: u32,
    /// Number of processes that have used the ring since it is shared, including dead ones.
    pub users: u32,
    /// Number of threads and processes that want to be woken by completions.
    pub hearers: u32,
    /// Number of processes that have reads in flight at the device.
    pub reading: u32,
    /// 1 once the ring was enabled.
    pub enabled: u32,
    /// The process of the one thread that may submit; 0 if not known yet.
    pub submitter: u32,
    /// The process that runs the SQ thread.
    pub sq_thread: u32,
    /// 1 while the stand-in (the file polled in place of the ring's descriptor), if all processes share it, is readable.
    pub readable: u32,
    /// Number of letters in [`State::mail`].
    pub letters: u32,
    /// The next ID of a queue of zero-copy receives: the ID determines the queue's place in the ring's file.
    pub receive_queues: u32,
    /// Processes with requests in flight.
    pub owners: [Owner; OWNERS],
    /// Letters between processes.
    pub mail: [Letter; MAIL],
    /// CQEs that wait until they may be posted.
    pub cqes: Cqes,
}

/// A process with requests in flight.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Owner {
    /// The process's number in the family; 0 for an empty place.
    pub process: u32,
    /// The number of its requests in flight.
    pub requests: u32,
}

/// A letter from one process to others; [`crate::ring::shared::mail`] defines the kinds.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Letter {
    /// 0 for an empty place.
    pub kind: u32,
    /// The process that sent the letter.
    pub from: u32,
    pub user_data: u64,
    pub time_ns: u64,
    pub flags: u32,
    pub opcode: u32,
    pub index: u32,
    pub generation: u32,
    /// Bit mask of the places in `owners` whose processes have not answered.
    pub asked: u32,
    pub count: u32,
    pub already: u32,
    pub found: u32,
}

/// CQEs that wait, in order; [`crate::queue`] says for what.
#[repr(C)]
pub struct Cqes {
    /// The place of the first (the upper half) and the number of CQEs. They are one word: a process that is killed has changed both or neither.
    span: u64,
    /// Number of CQEs that were ever added.
    pub added: u32,
    /// The content of CQEs.
    places: [[u64; 4]; CQES],
}

impl Cqes {
    /// Returns the place of the first, and the number of CQEs.
    fn span(&self) -> (usize, usize) {
        ((self.span >> 32) as usize % CQES, (self.span as u32 as usize).min(CQES))
    }

    /// Returns the number of CQEs.
    pub fn len(&self) -> usize {
        self.span().1
    }

    /// Adds a CQE. Returns false if there is no room.
    pub fn push(&mut self, cqe: [u64; 4]) -> bool {
        let (first, count) = self.span();
        if count >= CQES {
            return false;
        }
        // From the beginning again once all are taken: memory is taken only as far as it is needed.
        let first = if count == 0 { 0 } else { first };
        self.places[(first + count) % CQES] = cqe;
        self.span = (first as u64) << 32 | (count as u64 + 1);
        self.added = self.added.wrapping_add(1);
        true
    }

    /// Returns the first CQE.
    pub fn first(&self) -> Option<[u64; 4]> {
        let (first, count) = self.span();
        (count > 0).then(|| self.places[first])
    }

    /// Removes the first CQE, if there is one.
    pub fn remove_first(&mut self) {
        let (first, count) = self.span();
        if count > 0 {
            self.span = (first as u64 + 1) << 32 | (count as u64 - 1);
        }
    }
}

impl Page {
    /// Maps a fresh page of zeros that children inherit.
    pub fn create() -> Result<&'static Page, Errno> {
        let page = os::map_much_for_children(size_of::<Page>())?.cast::<Page>();
        // SAFETY: mapped until `destroy`; all zeros is a valid page with a free lock.
        Ok(unsafe { &*page })
    }

    /// Unmaps the page from this process.
    ///
    /// # Safety
    /// No thread in this process may use the page any more.
    pub unsafe fn destroy(&'static self) {
        // SAFETY: mapped in `create` with this length, by this process or an ancestor.
        unsafe { os::unmap(core::ptr::from_ref(self).cast_mut().cast(), size_of::<Page>()) };
    }

    /// Returns the state.
    ///
    /// # Safety
    /// The caller must hold the lock, or know that no other process has the page. It must not keep
    /// the reference longer, nor have a second one.
    #[expect(clippy::mut_from_ref, reason = "the lock in the page guards it")]
    pub unsafe fn state(&self) -> &mut State {
        // SAFETY: passed on to the caller.
        unsafe { &mut *self.state.get() }
    }

    /// Locks the page if the lock is free. True if locked.
    pub fn try_lock(&self) -> bool {
        // Acquire pairs with the release in `unlock`.
        self.lock.compare_exchange(0, family::own(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Locks the page; takes the lock over if its holder is dead.
    #[inline]
    pub fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow();
        }
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..100 {
            if self.lock.load(Ordering::Relaxed) == 0 && self.try_lock() {
                return;
            }
            core::hint::spin_loop();
        }
        let own = family::own() | CONTENDED;
        let take = |from| {
            // Acquire pairs with the release in `unlock`.
            self.lock.compare_exchange(from, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        loop {
            let seen = self.lock.load(Ordering::Relaxed);
            let marked = seen | CONTENDED;
            if seen == 0 {
                if take(0) {
                    return;
                }
            } else if seen == marked
                || self.lock.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                let woken = os::futex_wait_shared(&self.lock, marked, Some(PATIENCE_NS));
                let late = woken == Err(Errno::ETIMEDOUT);
                if late && !family::lives(seen & !CONTENDED) && take(marked) {
                    return;
                }
            }
        }
    }

    /// Releases the lock, and wakes a waiter.
    #[inline]
    pub fn unlock(&self) {
        // Release pairs with the acquires above.
        if self.lock.swap(0, Ordering::Release) & CONTENDED != 0 {
            os::futex_wake_shared(&self.lock, 1);
        }
    }
}
