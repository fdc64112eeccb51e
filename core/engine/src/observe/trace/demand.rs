//! Records on demand: a watcher outside of the process asks for them while it runs ([`anyring_trace::demand`] says how).
//!
//! - The desk's state is the word that each call reads anyway ([`is_on`](super::is_on)); nothing else is done while nobody watches.
//! - A ring remembers the state that it saw last. When another one is there, it begins or ends to report its requests, at the next call or
//!   submission: first those in flight, then each new one. Its requests take the ordinary way meanwhile, as those of a traced ring do.
//! - A process that is watched must behave as if it were not: no record makes a system call. So names of files and numbers of threads that
//!   the kernel would have to be asked for are left to the watcher, memory of the program is copied only where a fault is resumed, and a
//!   record without room is dropped, and counted.
//! - All threads share the writer, which is freed when the last of them is done with it. A child of `fork` has none: the memory is not in it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Deref;
use core::ptr::NonNull;

use anyring_trace::buffer::{self, Buffer, Header};
pub(super) use anyring_trace::demand::ASKED;
use anyring_trace::demand::{Desk, LEASE_NS, MARK, NONE, SAMPLE, SLOTS};
use anyring_trace::event::ENGINE_USER;

use super::{PROCESS, TRACER, Tracer};
use crate::abi::Errno;
use crate::abi::layout::OFFER_OFFSET;
use crate::os::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, host};

/// The place where watchers ask.
pub(super) static DESK: Desk = Desk::new();

/// Whether the process is traced, counted or under chaos from its beginning.
static ALWAYS: AtomicBool = AtomicBool::new(false);

/// The writer for a watcher, if there is one.
static WRITER: Mutex<Option<Arc<Tracer>>> = Mutex::new(None);

/// Returns the lock of the writer.
pub fn lock() -> &'static dyn AcrossFork {
    &WRITER
}

/// Returns the words by which watchers find the desk, for the memory of a ring.
pub fn offer(serial: u64) -> [u64; 4] {
    let address = (&raw const DESK).addr() as u64;
    DESK.address.store(address, Ordering::Relaxed);
    [MARK, address, serial, 0]
}

/// Leaves the offer in the file of a ring whose memory is the program's: a watcher finds the file alone. Without room for it, the ring has none.
pub fn leave_offer(fd: Fd, serial: u64) {
    let length = os::page_bytes();
    let mapped = os::grow_memfd(fd, length as u64).and_then(|()| os::map_shared(fd, 0, length));
    if let Ok(memory) = mapped {
        // SAFETY: within the fresh mapping, which is given back, and aligned.
        unsafe {
            memory.add(OFFER_OFFSET).cast::<[u64; 4]>().write(offer(serial));
            os::unmap(memory, length);
        }
    }
}

/// Has all rings that are made from now on observed.
pub(super) fn begin_for_good() {
    ALWAYS.store(true, Ordering::Relaxed);
    DESK.state.store(1, Ordering::Relaxed);
}

/// True if rings that are made now are observed as long as they live.
pub(super) fn is_for_good() -> bool {
    ALWAYS.load(Ordering::Relaxed)
}

/// Returns the state of the desk: 0 if nothing of the process is observed.
#[inline(always)]
pub fn state() -> u32 {
    DESK.state.load(Ordering::Relaxed)
}

/// Returns the state that a new ring remembers: while a question waits it is 0, so that the next call looks.
pub(super) fn seen() -> u32 {
    if state() == ASKED { 0 } else { state() }
}

/// True if a watcher gets records, or asks for them: then no record may make a system call.
#[inline]
pub(super) fn is_watched() -> bool {
    state() >= ASKED
}

/// A tracer that lives at least as long as this.
pub(super) enum Held {
    /// The tracer of a process that is traced from its beginning.
    ForGood(&'static Tracer),
    /// The writer for a watcher.
    OnDemand(Arc<Tracer>),
}

impl Deref for Held {
    type Target = Tracer;

    fn deref(&self) -> &Tracer {
        match self {
            Held::ForGood(tracer) => tracer,
            Held::OnDemand(tracer) => tracer,
        }
    }
}

/// Returns the writer for a watcher, if there is one.
#[inline]
pub(super) fn writer() -> Option<Held> {
    if is_watched() { WRITER.lock().clone().map(Held::OnDemand) } else { None }
}

/// Answers a watcher that asks.
pub(super) fn answer() {
    if state() != ASKED {
        return;
    }
    let mut writer = WRITER.lock();
    // Acquire pairs with nothing in this process: the watcher asks by a system call before it stores the state.
    if DESK.asked.load(Ordering::Acquire) != 0 {
        let ended = writer.take_if(|writer| !writer.is_heard(os::monotonic_ns()));
        let descriptor = make(writer.is_some()).map(|(made, fd)| {
            *writer = Some(Arc::new(made));
            DESK.generation.fetch_add(1, Ordering::Relaxed);
            fd
        });
        DESK.descriptor.store(descriptor.unwrap_or_else(Errno::negated), Ordering::Relaxed);
        // Release: a watcher that sees the answer and reads the desk once more sees what was stored before.
        DESK.asked.store(0, Ordering::Release);
        drop(ended);
    }
    settle(writer.is_some());
}

/// Sets the state after a watcher has come or gone.
fn settle(is_watched: bool) {
    let generation = DESK.generation.load(Ordering::Relaxed);
    let state =
        if is_watched { generation.wrapping_add(1) << 2 } else { ALWAYS.load(Ordering::Relaxed).into() };
    DESK.state.store(state, Ordering::Relaxed);
}

/// Makes the writer for a watcher, and the descriptor that the watcher takes.
///
/// # Errors
/// `EBUSY` if there is another reader, and those of memory files.
fn make(has_other: bool) -> Result<(Tracer, Fd), Errno> {
    if has_other || !TRACER.load(Ordering::Relaxed).is_null() {
        return Err(Errno::EBUSY);
    }
    let fd = os::move_high(os::unshrinkable_memfd(c"[anyring-trace]")?)?;
    let length = buffer::bytes(SLOTS);
    let mapped = os::grow_memfd(fd, length as u64).and_then(|()| os::map_shared(fd, 0, length));
    let memory = mapped
        .and_then(|address| NonNull::new(address).ok_or(Errno::ENOMEM))
        .inspect_err(|_| os::close(fd))?;
    // Where that is refused, a child has the memory, and does not use it.
    let _ = os::keep_from_children(memory.as_ptr(), length);
    // SAFETY: fresh memory, aligned to pages, which is unmapped with the lease, behind the buffer.
    let buffer = unsafe { Buffer::create(memory, SLOTS) };
    buffer.header().settings.sample.store(SAMPLE, Ordering::Relaxed);
    PROCESS.store(os::getpid() as u32, Ordering::Relaxed);
    let lease = Lease {
        beat: AtomicU32::new(0),
        since_ns: AtomicU64::new(os::monotonic_ns()),
        descriptor: AtomicI32::new(fd),
        memory: AtomicPtr::new(memory.as_ptr()),
        length,
    };
    Ok((Tracer { engine: ENGINE_USER, buffer, names: None, lease: Some(Box::new(lease)) }, fd))
}

/// Ends the records for a watcher that is gone.
#[cold]
fn end(tracer: &Tracer) {
    let mut writer = WRITER.lock();
    let ended = writer.take_if(|writer| core::ptr::eq(&raw const **writer, tracer));
    if ended.is_some() {
        DESK.descriptor.store(NONE, Ordering::Relaxed);
        settle(false);
    }
    drop(writer);
}

/// Forgets the watcher in a child of `fork`: only the parent is watched.
///
/// # Safety
/// The calling thread must be the only one of the process.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { WRITER.reset() };
    DESK.asked.store(0, Ordering::Relaxed);
    DESK.descriptor.store(NONE, Ordering::Relaxed);
    settle(false);
    if let Some(lease) = WRITER.lock().take().as_ref().and_then(|writer| writer.lease.as_ref()) {
        // The memory is the parent's alone, and may be other memory here.
        lease.memory.store(core::ptr::null_mut(), Ordering::Relaxed);
        // Another thread of the parent may hold the writer, which is not freed here then.
        lease.close_descriptor();
    }
}

/// A watcher's claim to records of the process, which ends when the watcher shows no life.
pub(super) struct Lease {
    /// The watcher's sign of life that was seen last, and when it was new.
    beat: AtomicU32,
    since_ns: AtomicU64,
    /// The descriptor that the watcher takes, until it shows life.
    descriptor: AtomicI32,
    /// The buffer's memory; null if it is not this process's.
    memory: AtomicPtr<u8>,
    length: usize,
}

impl Lease {
    /// True if the watcher lives.
    fn holds(&self, header: &Header, now_ns: u64) -> bool {
        let beat = header.beat.load(Ordering::Relaxed);
        if header.abandoned.load(Ordering::Relaxed) != 0 {
            return false;
        }
        // Acquire pairs with the release below: the time is that of this sign of life, or a later one.
        if beat == self.beat.load(Ordering::Acquire) {
            return now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed)) < LEASE_NS;
        }
        self.since_ns.store(now_ns, Ordering::Relaxed);
        self.beat.store(beat, Ordering::Release);
        self.close_descriptor();
        true
    }

    fn close_descriptor(&self) {
        let fd = self.descriptor.swap(NONE, Ordering::Relaxed);
        // The program may have closed the number where nobody sees that.
        if fd != NONE && os::own::is_own(fd) {
            let _ = DESK.descriptor.compare_exchange(fd, NONE, Ordering::Relaxed, Ordering::Relaxed);
            os::close(fd);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.close_descriptor();
        let memory = self.memory.load(Ordering::Relaxed);
        if !memory.is_null() {
            // SAFETY: mapped for this lease, whose tracer nobody holds any more.
            unsafe { os::unmap(memory, self.length) };
        }
    }
}

impl Tracer {
    /// True if somebody reads the records.
    fn is_heard(&self, now_ns: u64) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.holds(self.buffer.header(), now_ns))
    }

    /// True if an event at this moment is for somebody. Ends the records if their reader is gone.
    pub(super) fn is_wanted(&self, now_ns: u64) -> bool {
        let is_heard = self.is_heard(now_ns);
        if !is_heard {
            self.buffer.header().abandoned.store(1, Ordering::Relaxed);
            end(self);
        }
        is_heard
    }

    /// True if the program's memory may be copied: for a watcher only where that takes no system call.
    pub(super) fn may_copy(&self) -> bool {
        self.lease.is_none() || host::get().is_some_and(|host| host.faults_resume())
    }
}
