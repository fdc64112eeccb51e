//! A ring: what it owns, and the lock that guards it.
//!
//! A [`Ring`] is never freed, only emptied and used again, so that a thread that looks one up by its
//! descriptor while another closes it finds memory of the right type. [`Core`] is everything that
//! changes; whoever holds the lock may drive requests on.

mod attempt;
pub mod descriptors;
pub mod drive;
mod life;
pub(crate) mod lifetime;
pub mod messages;
mod parts;
mod queues;
pub(crate) mod registry;
pub(crate) mod resources;
pub mod row;
pub(crate) mod shared;
mod submitter;

use crate::os::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::{Deref, DerefMut};

use linux_raw_sys::io_uring::{IORING_SETUP_R_DISABLED, IORING_SETUP_SINGLE_ISSUER};

use crate::abi::Errno;
use crate::assets::restraint;
use crate::os::sync::{AcrossFork, Guard, Mutex};
use crate::os::{Fd, host};
use crate::process::page::Page;
use crate::queue::{Cq, RingMemory, Sq};
use crate::request::chaos::Chaos;
use crate::request::op::Op;
use crate::request::trace::Traced;
use crate::request::{FileHold, Flags, RequestId, Slab};
use crate::ring::drive::caller;
use crate::ring::drive::readiness::Readiness;
use crate::ring::drive::zero_copy::ZeroCopy;
use crate::ring::life::Life;
use crate::ring::messages::{Mailbox, Message};
use crate::ring::parts::{Drive, Identity, Instruments, Order, Queues, Resources, Time};
use crate::ring::row::{Row, Table};
use crate::ring::shared::Shared;
use crate::ring::submitter::Submitter;
use crate::work::aio::Aio;
use crate::work::{self, WorkQueue};

pub use attempt::{Attempt, Lent};

/// A place for one ring after another.
pub struct Ring {
    core: Mutex<Option<Core>>,
    /// Messages that wait for that lock.
    mailbox: Mailbox,
    /// The page that the ring's processes share, if there may be others than this; changes under the lock.
    page: AtomicPtr<Page>,
    /// Calls that are using the ring right now.
    pub(crate) users: AtomicU32,
    /// SQEs taken and CQEs posted in this place so far, by this process; changes under the lock.
    counted: [AtomicU64; 2],
    /// [`Core::serial`] of the ring that is here, or was last.
    life: AtomicU64,
    /// Changes when lent work has come back; who wants to submit sleeps on it.
    pub(crate) returned: AtomicU32,
    /// Tells this place from others.
    number: u32,
    /// The place that was made before this one.
    pub(crate) before: Option<&'static Ring>,
    /// Device and inode of its memory file, which tell whether a descriptor still is this ring.
    pub(crate) file: [AtomicU64; 2],
    /// Device and inode of the file that shows its readiness in the memory file's place, if there is one.
    pub(crate) shown: [AtomicU64; 2],
}

/// A counter of a place.
#[derive(Clone, Copy, Debug)]
pub enum Counted {
    /// SQEs taken from the submission ring.
    Submitted,
    /// CQEs posted to the completion ring, or kept for it.
    Completed,
}

/// The locked state of a live ring: the lock of this process, and inside it that of the ring's page,
/// if it has one.
pub struct CoreGuard<'a> {
    ring: &'a Ring,
    core: Guard<'a, Option<Core>>,
    page: Option<&'static Page>,
    exit: Exit,
}

/// The debts of a ring's lock: what its holder owes when it gives the lock back for good.
#[derive(Clone, Copy, Debug)]
enum Exit {
    /// Nothing beside what every unlocking owes: the holder has looked something up, or left a message.
    Visit,
    /// The holder has gone on with requests: work is left to others, and so is the driver's role.
    Drive,
    /// The reactor has gone on with requests, and says by its list when it looks at the ring again.
    Reactor,
}

impl CoreGuard<'_> {
    #[inline]
    fn enter_page(&mut self) {
        // Relaxed: changes only under the lock that we hold.
        // SAFETY: mapped until a guard takes it off the ring.
        if let Some(page) = unsafe { self.ring.page.load(Ordering::Relaxed).as_ref() } {
            page.lock();
            self.page = Some(page);
            entered(&mut self.core);
        }
    }

    #[inline]
    fn leave_page(&mut self) {
        if let Some(page) = self.page.take() {
            self.left(page);
        }
    }

    #[cold]
    fn left(&mut self, page: &'static Page) {
        let in_use = self.core.as_mut().filter(|core| core.shared.is_some());
        if let Some(core) = in_use {
            core.leave_page();
            page.unlock();
        } else {
            // The ring is gone from this process, or it is this process's alone.
            self.ring.page.store(core::ptr::null_mut(), Ordering::Relaxed);
            page.unlock();
            // SAFETY: nobody looks it up any more, and whoever did held the lock that we hold.
            unsafe { page.destroy() };
        }
    }

    /// Before every unlocking: what was posted under the lock is told. Work that waits keeps its file.
    #[inline]
    fn settle(&mut self) {
        let Some(core) = self.core.as_mut() else { return };
        core.notify();
        debug_assert!(
            core.work.keeps_files(),
            "no work waits for another thread, or for another moment, without its file"
        );
    }

    /// Lets go of the lock for the duration of `body`.
    #[inline]
    pub fn unlocked<R>(&mut self, body: impl FnOnce() -> R) -> R {
        self.settle();
        self.leave_page();
        let result = self.core.unlocked(body);
        self.enter_page();
        result
    }

    /// True if the end of the guard passes the driver's role on: nobody else may take it.
    pub fn passes_role_on(&self) -> bool {
        matches!(self.exit, Exit::Drive)
    }

    /// The holder goes on with requests from now on.
    pub fn begin_to_drive(&mut self) {
        self.exit = Exit::Drive;
    }

    /// As [`Guard::yield_to_waiters`].
    pub fn yield_to_waiters(&mut self) {
        self.settle();
        self.leave_page();
        self.core.yield_to_waiters();
        self.enter_page();
    }
}

/// The lock of a ring's page was taken.
#[cold]
fn entered(core: &mut Option<Core>) {
    if let Some(core) = core {
        core.enter_page();
    }
}

impl Deref for CoreGuard<'_> {
    type Target = Option<Core>;
    fn deref(&self) -> &Option<Core> {
        &self.core
    }
}

impl DerefMut for CoreGuard<'_> {
    fn deref_mut(&mut self) -> &mut Option<Core> {
        &mut self.core
    }
}

impl Drop for CoreGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(core) = self.core.as_mut() {
            match self.exit {
                Exit::Visit => {}
                Exit::Drive => caller::end_call(core),
                Exit::Reactor => caller::leave(core),
            }
        }
        self.settle();
        self.leave_page();
    }
}

/// A ring's state, in parts of which each has one owner: its type says what it is.
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
    shared: Option<Box<Shared>>,
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
            life: AtomicU64::new(0),
            number,
            before,
            file: [const { AtomicU64::new(0) }; 2],
            shown: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Locks the ring. The guard holds `None` where the ring was closed meanwhile.
    #[inline]
    pub fn lock(&self) -> CoreGuard<'_> {
        let mut guard = CoreGuard { ring: self, core: self.core.lock(), page: None, exit: Exit::Visit };
        guard.enter_page();
        guard
    }

    /// Locks the ring to go on with its requests.
    #[inline]
    pub fn lock_to_drive(&self) -> CoreGuard<'_> {
        let mut guard = self.lock();
        guard.exit = Exit::Drive;
        guard
    }

    /// Locks the ring for the reactor, to go on with its requests.
    pub fn lock_as_reactor(&self) -> CoreGuard<'_> {
        let mut guard = self.lock();
        guard.exit = Exit::Reactor;
        guard
    }

    /// The serial number of the ring that this place holds, for who has come to it by a descriptor of that ring. See [`live`].
    pub fn life(&self) -> u64 {
        // Relaxed: the descriptor was entered into the registry behind it.
        self.life.load(Ordering::Relaxed)
    }

    /// The number of this place, by which it is found again.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Begins the life of another ring in this place.
    pub(crate) fn begin_life(&self, serial: u64) {
        self.life.store(serial, Ordering::Relaxed);
    }

    /// The state, whoever holds the lock.
    ///
    /// # Safety
    /// No other thread may run meanwhile.
    #[cfg(anyring_simulation)]
    pub unsafe fn peek(&self) -> Option<&Core> {
        // SAFETY: passed on to the caller.
        unsafe { self.core.peek() }.as_ref()
    }

    /// Counts what the process's counters show. Called with the lock held.
    #[inline]
    pub fn count(&self, what: Counted, more: u64) {
        let count = &self.counted[what as usize];
        // Only the lock's holder stores.
        count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// The count of `what` so far.
    pub fn counted(&self, what: Counted) -> u64 {
        self.counted[what as usize].load(Ordering::Relaxed)
    }

    /// Before a `fork`, with nothing held: waits until lent work has come back, for a child begins at the SQ head, which
    /// moves only then.
    pub fn await_return(&self) {
        let mut guard = self.lock();
        if let Some(serial) = guard.as_ref().map(|core| core.identity.serial) {
            work::await_return(&mut guard, serial);
        }
    }

    /// Before a `fork`: gives the ring a page, and keeps this process's lock of it. False, and nothing done, where work
    /// is lent.
    pub fn hold_for_fork(&self) -> bool {
        let mut guard = self.core.lock();
        if guard.as_ref().is_some_and(|core| core.work.is_lent()) {
            return false;
        }
        if let Some(page) = guard.as_mut().and_then(Core::share) {
            self.page.store(core::ptr::from_ref(page).cast_mut(), Ordering::Relaxed);
        }
        core::mem::forget(guard);
        true
    }

    /// After the `fork`, in the parent: lets go of that lock.
    ///
    /// # Safety
    /// The calling thread must have held it.
    pub unsafe fn release_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.core.release() };
    }

    /// Frees the lock in a child after `fork`, and makes the ring one of the child's.
    ///
    /// # Safety
    /// No other thread of this process may use the ring.
    pub unsafe fn forked(&self) {
        // SAFETY: passed on to the caller.
        unsafe {
            self.core.reset();
            self.mailbox.forked();
        }
        self.users.store(0, Ordering::Relaxed);
        // Not the page's lock: what the core knows of the page is still the parent's.
        if let Some(core) = self.core.lock().as_mut() {
            core.forked();
        }
    }

    /// For the next schedule of a simulation: nothing is remembered of the ring that was here.
    #[cfg(anyring_simulation)]
    pub fn forget(&self) {
        debug_assert_eq!(self.users.load(Ordering::Relaxed), 0, "nobody is inside");
        debug_assert!(self.page.load(Ordering::Relaxed).is_null(), "what is gone is shared with nobody");
        self.mailbox.forget();
        let words = self.counted.iter().chain(&self.file).chain(&self.shown).chain([&self.life]);
        words.for_each(|word| word.store(0, Ordering::Relaxed));
        self.returned.store(0, Ordering::Relaxed);
    }

    /// Lets a message wait until somebody has the lock, behind those that wait already. Its sender comes for it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn leave_message(&self, message: Arc<Message>) -> Result<(), Errno> {
        self.mailbox.leave(message)
    }

    /// Locks the ring if nobody holds it.
    pub fn try_lock(&self) -> Option<CoreGuard<'_>> {
        let core = self.core.try_lock()?;
        // SAFETY: as in `CoreGuard::enter_page`.
        let page = unsafe { self.page.load(Ordering::Relaxed).as_ref() };
        if page.is_some_and(|page| !page.try_lock()) {
            return None;
        }
        let mut guard = CoreGuard { ring: self, core, page, exit: Exit::Visit };
        if page.is_some() {
            entered(&mut guard.core);
        }
        Some(guard)
    }
}

/// The core behind a guard, if the ring still is the one with `serial`.
pub fn live<'a>(guard: &'a mut CoreGuard<'_>, serial: u64) -> Option<&'a mut Core> {
    guard.as_mut().filter(|core| core.identity.serial == serial)
}

impl Core {
    /// A new ring with these `IORING_SETUP_*`, in a vacant place.
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
            identity: Identity { ring, serial, setup_flags, table },
            life: Life::begin(),
            queues: Queues { memory, sq: Sq::new(setup_flags), cq: Cq::new(setup_flags) },
            requests: Slab::new(table.operations()),
            order: Order::default(),
            work: WorkQueue::default(),
            aio: Aio::default(),
            drive: Drive { submitter, fetched_at_once: u32::MAX, ..Drive::default() },
            readiness: Readiness::default(),
            zero_copy: ZeroCopy::default(),
            time: Time::default(),
            resources: Resources { restrictions: restraint::inherited(), ..Resources::default() },
            shared: None,
            instruments: Instruments { traced: Traced::new(), chaos: Chaos::new() },
        }
    }

    /// The place where it lives.
    #[inline]
    pub fn ring(&self) -> &'static Ring {
        self.identity.ring
    }

    /// The ring's serial number, to tell it from others that used the same place.
    #[inline]
    pub fn serial(&self) -> u64 {
        self.identity.serial
    }

    /// The row of a request's operation.
    #[inline(always)]
    pub fn row(&self, id: RequestId) -> &'static Row {
        self.row_of(self.requests[id].op)
    }

    /// The row of an operation.
    #[inline(always)]
    pub fn row_of(&self, op: &Op) -> &'static Row {
        self.identity.table.row(op)
    }

    /// True if the ring has this setup flag.
    pub fn is(&self, setup_flag: u32) -> bool {
        self.identity.setup_flags & setup_flag != 0
    }

    /// The descriptor of a request's file, looked up now if it was not yet: late enough that a link
    /// before it may have opened the file.
    ///
    /// # Errors
    /// `EBADF` where a registered file is named that is not there.
    pub fn file(&mut self, id: RequestId) -> Result<Fd, Errno> {
        let request = &mut self.requests[id];
        if request.file != FileHold::None {
            return Ok(request.file.fd());
        }
        request.file = if request.flags.has(Flags::FIXED_FILE) {
            FileHold::fixed(self.resources.files.hold(request.sqe.fd as u32)?)
        } else if self.work.closes_any() && self.work.closes(request.sqe.fd) {
            return Err(Errno::EBADF);
        } else {
            FileHold::Plain(request.sqe.fd)
        };
        Ok(request.file.fd())
    }

    /// `IORING_SETUP_*`, as far as they still hold.
    pub fn setup_flags(&self) -> u32 {
        self.identity.setup_flags
    }
}
