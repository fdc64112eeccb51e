//! Operations that the kernel lacks, on rings of the kernel's `io_uring`.
//!
//! Before a front end hands a program's submission queue to the kernel, [`take`] takes out of the queue the SQEs that the kernel cannot do:
//! private operations, and those linked with them. A *companion*, a ring of anyring's engine, does them, and a small ring of the kernel
//! posts each of their completions to the program's own completion queue as a message (`IORING_OP_MSG_RING`). So the program waits for
//! these completions and reaps them like any others.
//!
//! The companion also does known operations with features that an older kernel lacks (`newer`), if the SQE alone shows that they are used.
//!
//! SQEs for which this is impossible stay in the queue, and the kernel fails them with `-EINVAL`.
//!
//! Only rings on which a private operation was submitted have a companion; a front end need not call [`take`] before
//! the program says that it uses such operations.
#![no_std]

extern crate alloc;

mod cancel;
mod companion;
mod files;
mod frontend;
mod newer;
mod poster;
mod queue;
mod queues;
mod reserved;

pub use frontend::Frontend;
pub use queue::{Queue, Taken};

use alloc::sync::Arc;
use alloc::vec::Vec;
use anyring_engine::abi::{Errno, IORING_SETUP_SQE_MIXED, Sqe};
use anyring_engine::os::Fd;
use anyring_engine::os::sync::{AcrossFork, Mutex};
use companion::Companion;
use core::sync::atomic::{AtomicBool, Ordering};
use files::Receiver;
use linux_raw_sys::io_uring::{IORING_FEAT_REG_REG_RING, IORING_SETUP_IOPOLL, IORING_SETUP_R_DISABLED};
use newer::Times;

/// The state of a ring of the kernel that uses this crate.
#[derive(Default)]
struct Extended {
    companion: Option<Companion>,
    /// Memory for times that SQEs contained.
    times: Option<Times>,
    /// The ring that receives registered files.
    receiver: Option<Receiver>,
    /// The ring uses `IOSQE_IO_DRAIN`: only the kernel knows when its drains are done.
    drains: bool,
    /// No companion can be made.
    refused: bool,
    /// No receiver can be made.
    refused_files: bool,
}

struct Entry {
    name: Name,
    ring: Arc<Mutex<Extended>>,
}

/// The key of a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    /// By its descriptor.
    Descriptor(Fd),
    /// By the address of its SQEs: the program has closed the descriptor, and enters the ring by its place in a thread's table.
    Memory(usize),
}

impl Name {
    fn of(queue: &Queue) -> Name {
        if queue.fd < 0 { Name::memory(queue.sqes) } else { Name::Descriptor(queue.fd) }
    }

    fn memory(sqes: *const Sqe) -> Name {
        Name::Memory(sqes.addr())
    }
}

/// The rings of this process that use private operations, or have drained.
static RINGS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// True if rings with these features and setup flags can have private operations.
pub fn is_possible(features: u32, flags: u32) -> bool {
    // Messages have flags since the kernel with this feature. A polled ring accepts what its drivers support, and restrictions of a
    // ring that starts disabled are not known here. If SQEs have two sizes, a gap cannot be closed, because a long SQE must not be
    // moved to the queue's end.
    const NOT: u32 = IORING_SETUP_IOPOLL | IORING_SETUP_R_DISABLED | IORING_SETUP_SQE_MIXED;
    features & IORING_FEAT_REG_REG_RING != 0 && flags & NOT == 0
}

/// Takes the SQEs that the kernel cannot do out of the entries that are about to be submitted, and submits them to
/// the companion. [`begin`] must have been called.
///
/// # Safety
/// `queue` must describe the ring's memory, and no other thread may use its submission side meanwhile. The entries
/// name memory that the requests will read and write.
pub unsafe fn take(queue: &Queue) -> Taken {
    // SAFETY: the caller's promise.
    let mut wants = unsafe { queue.look() };
    let mut taken = Taken { count: 0, tail: queue.tail, brings_files: false };
    wants.time = wants.time && newer::kernel_lacks_times();
    let parts = queue.fd >= 0
        && is_possible(queue.features, queue.flags)
        && (!wants.is_nothing() || poster::any_stranded());
    if !parts && !wants.time {
        return taken;
    }
    let known = find(Name::of(queue));
    let ring = match known {
        Some(ring) => ring,
        // Cancellations concern only rings that may have a companion.
        None if !wants.private && !wants.drain && !wants.time => return taken,
        None => enter_into_list(Name::of(queue)),
    };
    // A signal handler of the program that submits must not find a lock that its own thread holds.
    frontend::quietly(|| {
        let mut ring = ring.lock();
        if parts {
            // SAFETY: the caller's promise.
            taken = unsafe { queue.part(&mut ring) };
        }
        if wants.time {
            let times = ring.times.get_or_insert_with(|| Times::new(queue.mask + 1));
            // SAFETY: the caller's promise.
            unsafe { queue.lay_times(taken.tail, times) };
        }
    });
    taken
}

/// Submits requests whose files are brought by entries that [`take`] left, after these were submitted.
pub fn deliver(fd: Fd) {
    let Some(ring) = find(Name::Descriptor(fd)) else { return };
    frontend::quietly(|| {
        let mut ring = ring.lock();
        let Extended { companion: Some(companion), receiver: Some(receiver), .. } = &mut *ring else {
            return;
        };
        receiver.receive(companion);
        companion.submit();
    });
}

/// Forgets the ring `fd`, which the program gives up: the companion's requests are cancelled.
pub fn close(fd: Fd) {
    forget(Name::Descriptor(fd));
}

/// Forgets the descriptor `fd` of a ring with these SQEs, which the program closes but continues to use: the companion's
/// requests are cancelled; times that the kernel has not read yet stay until [`close_memory`].
pub fn close_descriptor(fd: Fd, sqes: *const Sqe) {
    let Some(ring) = find(Name::Descriptor(fd)) else { return };
    frontend::quietly(|| {
        let mut extended = ring.lock();
        let times = extended.times.take();
        if let Some(companion) = &mut extended.companion {
            companion.return_all(fd);
        }
        drop(extended);
        close(fd);
        if let Some(times) = times {
            enter_into_list(Name::memory(sqes)).lock().times = Some(times);
        }
    });
}

/// Forgets a ring without a descriptor, by the address of its SQEs, when it ends.
pub fn close_memory(sqes: *const Sqe) {
    forget(Name::memory(sqes));
}

/// Notes that the SQEs of a ring without a descriptor have moved.
pub fn move_memory(from: *const Sqe, to: *const Sqe) {
    if frontend::get().is_none() {
        return;
    }
    frontend::quietly(|| {
        let mut rings = RINGS.lock();
        if let Some(entry) = rings.iter_mut().find(|entry| entry.name == Name::memory(from)) {
            entry.name = Name::memory(to);
        }
    });
}

fn forget(name: Name) {
    if frontend::get().is_none() {
        return;
    }
    frontend::quietly(|| {
        let mut rings = RINGS.lock();
        let Some(index) = rings.iter().position(|entry| entry.name == name) else { return };
        let entry = rings.swap_remove(index);
        drop(rings);
        *entry.ring.lock() = Extended::default();
    });
}

/// Does `IORING_REGISTER_SYNC_CANCEL` for the companion's requests: returns its result, or `None` if the
/// kernel must be asked.
///
/// # Safety
/// `argument` must be the address of an `io_uring_sync_cancel_reg`, or any that cannot be read.
pub unsafe fn cancel(fd: Fd, argument: usize) -> Option<i32> {
    let ring = find(Name::Descriptor(fd))?;
    // SAFETY: the caller's promise.
    frontend::quietly(|| unsafe { ring.lock().companion.as_ref()?.cancel_at(fd, argument) })
}

type Hook = Option<extern "C" fn()>;

unsafe extern "C" {
    fn pthread_atfork(prepare: Hook, parent: Hook, child: Hook) -> i32;
}

/// Lets rings of `front` have private operations. Call this after the engine is installed: a child of `fork` begins
/// without the parent's requests, and the engine's own hooks run first in the child.
pub fn begin(front: &'static &'static dyn Frontend) {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    frontend::set(front);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        // SAFETY: the hooks are never unloaded.
        unsafe { pthread_atfork(Some(before_fork), Some(after_fork), Some(forked)) };
    }
}

extern "C" fn before_fork() {
    RINGS.hold();
}

extern "C" fn after_fork() {
    // SAFETY: held by `before_fork` in this thread.
    unsafe { RINGS.release() };
}

extern "C" fn forked() {
    // SAFETY: held by this thread before the fork; it is the only one in the child.
    unsafe { RINGS.release() };
    for entry in core::mem::take(&mut *RINGS.lock()) {
        // A ring that a thread of the parent was using is leaked.
        let Some(mut ring) = entry.ring.try_lock() else {
            core::mem::forget(entry.ring.clone());
            continue;
        };
        *ring = Extended::default();
    }
}

fn find(name: Name) -> Option<Arc<Mutex<Extended>>> {
    // Before `begin` there are no rings.
    frontend::get()?;
    frontend::quietly(|| RINGS.lock().iter().find(|entry| entry.name == name).map(|entry| entry.ring.clone()))
}

fn enter_into_list(name: Name) -> Arc<Mutex<Extended>> {
    let ring = Arc::new(Mutex::new(Extended::default()));
    frontend::quietly(|| RINGS.lock().push(Entry { name, ring: ring.clone() }));
    ring
}

impl Extended {
    /// Returns the companion, which is made if there is none.
    fn companion(&mut self, queue: &Queue) -> Option<&mut Companion> {
        if self.companion.is_none() && !self.refused {
            let made: Result<Companion, Errno> = Companion::new(queue.fd, queue.mask + 1);
            self.refused = made.is_err();
            self.companion = made.ok();
        }
        self.companion.as_mut()
    }

    /// Returns the receiver, which is made if there is none.
    fn receiver(&mut self, queue: &Queue) -> Option<&mut Receiver> {
        if self.receiver.is_none() && !self.refused_files {
            let made = Receiver::new(queue.mask + 1);
            self.refused_files = made.is_err();
            self.receiver = made.ok();
        }
        self.receiver.as_mut()
    }
}
