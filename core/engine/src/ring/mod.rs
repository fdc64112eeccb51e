//! A ring: what it owns, and the lock that guards it.
//!
//! A [`Ring`] is never freed, only emptied and used again. So a thread that looks a ring up by its descriptor while another thread closes
//! it finds memory of the right type. [`Core`] is all state that changes; the thread that holds the lock may advance requests.

mod attempt;
pub mod descriptors;
pub mod drive;
pub(crate) mod lifetime;
mod lock;
pub(crate) mod lookup;
pub(crate) mod parts;
mod queues;
pub(crate) mod registry;
pub mod row;
pub(crate) mod shared;
pub(crate) mod watches;

use alloc::sync::Arc;

use linux_raw_sys::io_uring::{IORING_SETUP_R_DISABLED, IORING_SETUP_SINGLE_ISSUER};

use crate::abi::Errno;
use crate::feature::messages::{Mailbox, Message};
use crate::feature::restrictions;
use crate::feature::zero_copy_send::ZeroCopy;
use crate::observe::chaos::Chaos;
use crate::observe::trace::Traced;
use crate::os::host;
use crate::os::sync::Mutex;
use crate::os::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::process::page::Page;
use crate::queue::{Queues, RingMemory};
use crate::request::order::Order;
use crate::request::{RequestId, Slab};
use crate::ring::drive::readiness::Readiness;
use crate::ring::parts::{Drive, Identity, Instruments, Life, Resources, Submitter, Time};
use crate::ring::row::{Row, Table};
use crate::ring::shared::Sharing;
use crate::work::WorkQueue;
use crate::work::aio::Aio;

pub use attempt::{Attempt, Lent};
pub use lock::{CoreGuard, live};

/// A place that holds one ring after another.
pub struct Ring {
    core: Mutex<Option<Core>>,
    /// Messages that wait for the lock of `core`.
    mailbox: Mailbox,
    /// The page that the ring's processes share, if there may be several processes; changes under the lock.
    page: AtomicPtr<Page>,
    /// Threads that are using the ring right now.
    pub(crate) users: AtomicU32,
    /// SQEs consumed and CQEs posted in this place so far, by this process; changes under the lock.
    counted: [AtomicU64; 2],
    /// [`Lent::serial`] of the ring that is here, or of the last one.
    serial: AtomicU64,
    /// A futex that changes when lent work is back. Threads that want to submit sleep on it.
    pub(crate) returned: AtomicU32,
    /// Identifies this place.
    number: u32,
    /// The place that was made before this one.
    pub(crate) before: Option<&'static Ring>,
    /// Device and inode of the ring's memory file, by which a descriptor is recognised as this ring's.
    pub(crate) file: [AtomicU64; 2],
    /// Device and inode of the stand-in that has replaced the ring's descriptor, if one has.
    pub(crate) shown: [AtomicU64; 2],
}

/// A counter of a place.
#[derive(Clone, Copy, Debug)]
pub enum Counted {
    /// SQEs consumed from the submission ring.
    Submitted,
    /// CQEs posted to the completion ring, or kept for it.
    Completed,
}

/// A ring's state. Each part has one owner; the part's type describes it.
pub struct Core {
    identity: Identity,
    life: Life,
    queues: Queues,
    requests: Slab,
    order: Order,
    work: WorkQueue,
    aio: Aio,
    drive: Drive,
    readiness: Readiness,
    zero_copy: ZeroCopy,
    time: Time,
    resources: Resources,
    shared: Sharing,
    instruments: Instruments,
}

impl Ring {
    pub(crate) const fn vacant(number: u32, before: Option<&'static Ring>) -> Ring {
        Ring {
            core: Mutex::new(None),
            mailbox: Mailbox::new(),
            page: AtomicPtr::new(core::ptr::null_mut()),
            users: AtomicU32::new(0),
            returned: AtomicU32::new(0),
            counted: [const { AtomicU64::new(0) }; 2],
            serial: AtomicU64::new(0),
            number,
            before,
            file: [const { AtomicU64::new(0) }; 2],
            shown: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Returns the serial number of the ring in this place, for callers that found the place by a descriptor of that ring. See [`live`].
    pub fn serial(&self) -> u64 {
        // Relaxed: the descriptor was entered into the registry after this number.
        self.serial.load(Ordering::Relaxed)
    }

    /// Returns the messages that wait for the ring's lock.
    pub(crate) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Returns the number of this place, by which it can be found.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Begins the life of another ring in this place.
    pub(crate) fn begin(&self, serial: u64) {
        self.serial.store(serial, Ordering::Relaxed);
    }

    /// Returns the state, whichever thread holds the lock.
    ///
    /// # Safety
    /// No other thread may run during the call.
    #[cfg(anyring_simulation)]
    pub unsafe fn peek(&self) -> Option<&Core> {
        // SAFETY: passed on to the caller.
        unsafe { self.core.peek() }.as_ref()
    }

    /// Adds to a counter that the process's counters show. Called with the lock held.
    #[inline]
    pub fn count(&self, what: Counted, more: u64) {
        let count = &self.counted[what as usize];
        // Only the lock's holder stores.
        count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Returns the count of `what` so far.
    pub fn counted(&self, what: Counted) -> u64 {
        self.counted[what as usize].load(Ordering::Relaxed)
    }

    /// Forgets the ring that was here, for the next schedule of a simulation.
    #[cfg(anyring_simulation)]
    pub fn forget(&self) {
        debug_assert_eq!(self.users.load(Ordering::Relaxed), 0, "nobody is inside");
        debug_assert!(self.page.load(Ordering::Relaxed).is_null(), "what is gone is shared with nobody");
        self.mailbox.forget();
        let words = self.counted.iter().chain(&self.file).chain(&self.shown).chain([&self.serial]);
        words.for_each(|word| word.store(0, Ordering::Relaxed));
        self.returned.store(0, Ordering::Relaxed);
    }

    /// Queues a message for the next thread that has the lock, behind those that wait already. The sender locks the ring for it later.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn leave_message(&self, message: Arc<Message>) -> Result<(), Errno> {
        self.mailbox.leave(message)
    }
}

impl Core {
    /// Makes a ring with these `IORING_SETUP_*`, in a vacant place.
    pub fn new(
        ring: &'static Ring,
        serial: u64,
        memory: RingMemory,
        setup_flags: u32,
        table: &'static Table,
    ) -> Core {
        let owned =
            setup_flags & IORING_SETUP_SINGLE_ISSUER != 0 && setup_flags & IORING_SETUP_R_DISABLED == 0;
        let submitter = if owned { Submitter::Thread(host::thread_identity()) } else { Submitter::Unknown };
        Core {
            identity: Identity { ring, serial, setup_flags, table: *table },
            life: Life::begin(),
            queues: Queues::new(memory, setup_flags),
            requests: Slab::default(),
            order: Order::default(),
            work: WorkQueue::default(),
            aio: Aio::default(),
            drive: Drive { submitter, fetched_at_once: u32::MAX, ..Drive::default() },
            readiness: Readiness::default(),
            zero_copy: ZeroCopy::default(),
            time: Time::default(),
            resources: Resources { restrictions: restrictions::inherited(), ..Resources::default() },
            shared: Sharing::default(),
            instruments: Instruments { traced: Traced::new(), chaos: Chaos::new() },
        }
    }

    /// Returns the row of a request's operation.
    #[inline(always)]
    pub fn row(&self, id: RequestId) -> &'static Row {
        self.identity.table.row(self.requests[id].op)
    }
}

impl Core {
    /// Checks that `thread` may submit. On a SINGLE_ISSUER ring only one thread may; if the ring defers, only this thread may fetch.
    ///
    /// # Errors
    /// `EEXIST` if another thread is the submitter.
    #[inline(always)]
    pub fn admit(&mut self, thread: usize) -> Result<(), Errno> {
        if !self.is(IORING_SETUP_SINGLE_ISSUER) {
            return Ok(());
        }
        if !self.drive.submitter.is_known() {
            self.drive.submitter = Submitter::Thread(thread);
            self.shared.publish_submitter(!self.is(IORING_SETUP_R_DISABLED), true);
        }
        if self.drive.submitter == Submitter::Thread(thread) { Ok(()) } else { Err(Errno::EEXIST) }
    }

    /// True if only another thread may submit to the ring and register with it.
    pub fn is_anothers(&self) -> bool {
        self.is(IORING_SETUP_SINGLE_ISSUER)
            && !self.is(IORING_SETUP_R_DISABLED)
            && self.drive.submitter.is_known()
            && self.drive.submitter != Submitter::Thread(host::thread_identity())
    }

    /// Enables a ring that was set up with `IORING_SETUP_R_DISABLED`.
    ///
    /// # Errors
    /// `EBADFD` if the ring is not disabled.
    pub fn enable(&mut self) -> Result<(), Errno> {
        if !self.is(IORING_SETUP_R_DISABLED) {
            return Err(Errno::EBADFD);
        }
        self.begin_enabled();
        if self.is(IORING_SETUP_SINGLE_ISSUER) {
            self.drive.submitter = Submitter::Thread(host::thread_identity());
        }
        self.shared.publish_submitter(true, self.drive.submitter.is_here());
        self.drive.kick_driver();
        Ok(())
    }

    /// Notes that the ring was enabled, by this process or by another.
    pub(in crate::ring) fn begin_enabled(&mut self) {
        self.identity.setup_flags &= !IORING_SETUP_R_DISABLED;
        self.resources.restrictions.enforce();
    }
}
