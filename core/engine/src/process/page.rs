//! The page that the processes of a ring share beside the ring memory, with a lock of its own.
//!
//! Only the engine writes the page, the same program in every process. But a process may die while
//! it holds the lock: a process that finds this out takes the lock over, with the state as the dead
//! process left it. So the page contains only integers, and readers check every index in it.

use crate::os::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::cell::UnsafeCell;
use core::ptr::NonNull;

use crate::abi::Errno;
use crate::os;
use crate::process::family;

/// Number of processes with requests in flight for which a page has room.
pub const OWNERS: usize = 32;
/// Number of letters for which a page has room.
pub const MAIL: usize = 32;
/// Number of CQEs that wait for which a page has room, beside those that wait when it is made.
const CQES: usize = 1 << 16;
/// The length of a page where there is no memory for so many, in bytes.
const SHORT: usize = 4096;

/// Set in the lock word while a thread sleeps for the lock.
const CONTENDED: u32 = 1 << 31;
/// How long to sleep for the lock before checking whether its holder lives.
const PATIENCE_NS: u64 = 20_000_000;

/// One ring's page.
#[repr(C)]
pub struct Page {
    /// 0, or the holder's number in the family, with [`CONTENDED`].
    lock: AtomicU32,
    /// The length of the page with the places behind it, in bytes.
    length: u32,
    state: UnsafeCell<State>,
}

/// The content of a CQE that waits.
type Content = [u64; 4];

const _: () = assert!(
    size_of::<Page>() % align_of::<Content>() == 0 && size_of::<Page>() + 32 * size_of::<Content>() <= SHORT
);

/// The places behind a page for the content of CQEs. They have the same address in all processes that inherit them.
#[derive(Clone, Copy)]
pub struct Places {
    first: NonNull<Content>,
    count: usize,
}

// SAFETY: the places are only accessed with the lock of the page held.
unsafe impl Send for Places {}

impl Places {
    /// Returns the number of CQEs that may wait.
    pub fn count(&self) -> usize {
        self.count
    }

    fn at(&self, place: usize) -> NonNull<Content> {
        // SAFETY: within the places.
        unsafe { self.first.add(place % self.count) }
    }
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
    span: AtomicU64,
    /// Number of CQEs that were ever added. A process that is killed may have counted one that it has not added.
    pub added: u32,
}

impl Cqes {
    /// Returns the place of the first, and the number of CQEs.
    fn span(&self, places: &Places) -> (usize, usize) {
        // Acquire pairs with the release in `set_span`: the process that added the last CQE may have been killed before it unlocked the page.
        let span = self.span.load(Ordering::Acquire);
        ((span >> 32) as usize % places.count, (span as u32 as usize).min(places.count))
    }

    fn set_span(&mut self, first: usize, count: usize) {
        // Release pairs with the acquire in `span`: the CQEs of the span are there.
        self.span.store((first as u64) << 32 | count as u64, Ordering::Release);
    }

    /// Returns the number of CQEs.
    pub fn len(&self, places: &Places) -> usize {
        self.span(places).1
    }

    /// Adds a CQE. Returns false if there is no room.
    pub fn push(&mut self, places: &Places, cqe: Content) -> bool {
        let (first, count) = self.span(places);
        if count >= places.count {
            return false;
        }
        // From the beginning again once all are taken: a queue that empties now and then takes little memory.
        let first = if count == 0 { 0 } else { first };
        // SAFETY: the lock of the page is held, as this reference says.
        unsafe { places.at(first + count).write(cqe) };
        self.added = self.added.wrapping_add(1);
        self.set_span(first, count + 1);
        true
    }

    /// Returns the first CQE.
    pub fn first(&self, places: &Places) -> Option<Content> {
        let (first, count) = self.span(places);
        // SAFETY: as in `push`.
        (count > 0).then(|| unsafe { places.at(first).read() })
    }

    /// Removes the first CQE, if there is one.
    pub fn remove_first(&mut self, places: &Places) {
        let (first, count) = self.span(places);
        if count > 0 {
            self.set_span(first + 1, count - 1);
        }
    }
}

impl Page {
    /// Maps a fresh page of zeros that children inherit, with places for `waiting` CQEs and for more. Where memory is scarce, these are few.
    pub fn create(waiting: usize) -> Result<(&'static Page, Places), Errno> {
        const FEW: usize = (SHORT - size_of::<Page>()) / size_of::<Content>();
        let many = CQES + waiting;
        let length = size_of::<Page>() + many * size_of::<Content>();
        let (page, length, count) = match os::map_much_for_children(length) {
            Ok(page) => (page, length, many),
            Err(_) if waiting <= FEW => (os::map_for_children(SHORT)?, SHORT, FEW),
            Err(errno) => return Err(errno),
        };
        let page = NonNull::new(page.cast::<Page>()).ok_or(Errno::ENOMEM)?;
        // SAFETY: mapped until `destroy`; all zeros is a valid page with a free lock. The places lie behind it, in the same mapping.
        unsafe {
            (*page.as_ptr()).length = length as u32;
            Ok((page.as_ref(), Places { first: page.add(1).cast(), count }))
        }
    }

    /// Unmaps the page from this process.
    ///
    /// # Safety
    /// No thread in this process may use the page any more.
    pub unsafe fn destroy(&'static self) {
        // SAFETY: mapped in `create` with this length, by this process or an ancestor.
        unsafe { os::unmap(core::ptr::from_ref(self).cast_mut().cast(), self.length as usize) };
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
