//! The page that the processes of a ring share beside its memory, with a lock of its own.
//!
//! The page is the engine's, of the same program in every process, but a process may die while it
//! holds the lock: whoever finds that out takes it over, and finds whatever the dead one left. So it
//! consists of integers, and every index in it is bounded by whoever reads it.

use crate::os::sync::atomic::{AtomicU32, Ordering};
use core::cell::UnsafeCell;

use crate::abi::Errno;
use crate::os;
use crate::process::family;

/// Processes with requests in flight that a page has room for.
pub const OWNERS: usize = 32;
/// Messages that a page has room for.
pub const MAIL: usize = 32;

/// A thread sleeps for the lock.
const CONTENDED: u32 = 1 << 31;
/// How long to sleep for the lock before looking whether its holder lives.
const PATIENCE_NS: u64 = 20_000_000;

/// One ring's page.
#[repr(C)]
pub struct Page {
    /// 0, or who holds it.
    lock: AtomicU32,
    state: UnsafeCell<State>,
}

// SAFETY: the state is only reached with the lock held.
unsafe impl Sync for Page {}

/// The state that the lock guards.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct State {
    /// The process that held the lock last: others take the ring's counts anew.
    pub last: u32,
    /// Processes that have used the ring since it is shared, the dead ones too.
    pub users: u32,
    /// Threads and processes that want to hear of completions.
    pub hearers: u32,
    /// Processes that keep CQEs which found the ring full.
    pub overflowing: u32,
    /// Processes that left reads to the device.
    pub reading: u32,
    /// 1 once the ring was enabled.
    pub enabled: u32,
    /// The process of the one thread that may submit, once known.
    pub submitter: u32,
    /// The process that has the SQ thread.
    pub sq_thread: u32,
    /// 1 while the stand-in that all processes have is readable.
    pub readable: u32,
    /// Messages in [`State::mail`].
    pub messages: u32,
    /// The next id of a queue of zero-copy receives: each has its part of the ring's file.
    pub receive_queues: u32,
    /// Processes with requests in flight.
    pub owners: [Owner; OWNERS],
    /// Messages between processes.
    pub mail: [Letter; MAIL],
}

const _: () = assert!(size_of::<Page>() <= 4096);

/// A process with requests in flight.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Owner {
    /// 0 for none.
    pub process: u32,
    /// The number of its requests in flight.
    pub requests: u32,
}

/// A message from one process to others. Its meaning is in [`crate::ring::shared::mail`].
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Letter {
    /// 0 for an empty place.
    pub kind: u32,
    /// The process that wrote it.
    pub from: u32,
    pub user_data: u64,
    pub time_ns: u64,
    pub flags: u32,
    pub opcode: u32,
    pub index: u32,
    pub generation: u32,
    /// The places of the owners that have not answered, as bits.
    pub asked: u32,
    pub count: u32,
    pub already: u32,
    pub found: u32,
}

impl Page {
    /// A fresh page, zeroed, that children inherit.
    pub fn create() -> Result<&'static Page, Errno> {
        let page = os::map_for_children(4096)?.cast::<Page>();
        // SAFETY: mapped until `destroy`; all zeros are a page whose lock is free.
        Ok(unsafe { &*page })
    }

    /// Unmaps it from this process.
    ///
    /// # Safety
    /// Nobody in this process may use it any more.
    pub unsafe fn destroy(&'static self) {
        // SAFETY: mapped in `create` with this length, by this process or the one it forked off.
        unsafe { os::unmap(core::ptr::from_ref(self).cast_mut().cast(), 4096) };
    }

    /// The state.
    ///
    /// # Safety
    /// The caller must hold the lock, or know that no other process has the page, and must not keep
    /// the reference beyond that, nor have another.
    #[expect(clippy::mut_from_ref, reason = "the lock in the page guards it")]
    pub unsafe fn state(&self) -> &mut State {
        // SAFETY: passed on to the caller.
        unsafe { &mut *self.state.get() }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> bool {
        // Acquire pairs with the release in `unlock`.
        self.lock.compare_exchange(0, family::own(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock, from the dead if need be.
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

    /// Lets go of the lock.
    #[inline]
    pub fn unlock(&self) {
        // Release pairs with the acquires above.
        if self.lock.swap(0, Ordering::Release) & CONTENDED != 0 {
            os::futex_wake_shared(&self.lock, 1);
        }
    }
}
