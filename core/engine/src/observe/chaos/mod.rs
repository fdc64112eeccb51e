//! Injects faults, by the plan of [`anyring_chaos_plan`].
//!
//! A front end [attaches](attach) the process to the plan before the first ring is created. Rings created from then on are
//! *under chaos*: each of their requests has a serial number, by which the plan decides, and takes the ordinary way through
//! the engine, not the quick one. Rings that are not under chaos cost no more than before: these checks are in branches that
//! an ordinary request does not reach.
//!
//! The row of the op table lists the faults that a request may meet. A fault is injected only if the ABI allows it for this very request: a
//! send of a datagram is not shortened, a request that must wait does not fail with `EAGAIN`.

pub mod calls;
mod copies;
mod in_flight;
mod inject;
mod late;
pub mod let_go;
pub mod storage;
mod storing;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use anyring_chaos_plan::{Entry, FIRST_PROCESS, Fault, Plan, Subject, Who, child};
use anyring_trace::event::{self};

use crate::abi::Errno;
use crate::observe::chaos::in_flight::InFlight;
use crate::observe::chaos::storage::Storing;
use crate::observe::trace;
use crate::os::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::os::{self, Fd};
use crate::request::RequestId;

/// Faults of reads from a file.
pub const READS: &[Fault] = &[
    Fault::Short,
    Fault::Interrupted,
    Fault::Again,
    Fault::NoMemory,
    Fault::Canceled,
    Fault::Device,
    Fault::GroupDry,
    Fault::BufferRubbish,
];

/// Faults of writes to a file.
pub const WRITES: &[Fault] = &[
    Fault::Short,
    Fault::Interrupted,
    Fault::Again,
    Fault::NoMemory,
    Fault::Canceled,
    Fault::Device,
    Fault::NoSpace,
];

/// Faults of multishot reads.
pub const READ_SHOTS: &[Fault] =
    &[Fault::MultishotEnds, Fault::GroupDry, Fault::Interrupted, Fault::NoMemory, Fault::Canceled];

/// Faults of receives.
pub const RECEIVES: &[Fault] = &[
    Fault::Short,
    Fault::Interrupted,
    Fault::Again,
    Fault::NoMemory,
    Fault::Canceled,
    Fault::GroupDry,
    Fault::MultishotEnds,
    Fault::BufferRubbish,
];

/// Faults of receives into pages of a queue.
pub const ZERO_COPY_RECEIVES: &[Fault] = &[Fault::Interrupted, Fault::NoMemory, Fault::Canceled];

/// Faults of sends.
pub const SENDS: &[Fault] = &[
    Fault::Short,
    Fault::Interrupted,
    Fault::Again,
    Fault::NoBuffers,
    Fault::NoMemory,
    Fault::Canceled,
    Fault::GroupDry,
];

/// Faults of SPLICE and TEE.
pub const SPLICES: &[Fault] = &[Fault::Short, Fault::Interrupted, Fault::NoMemory, Fault::Canceled];

/// Faults of ACCEPT.
pub const ACCEPTS: &[Fault] = &[
    Fault::Interrupted,
    Fault::Again,
    Fault::NoMemory,
    Fault::Canceled,
    Fault::NoDescriptor,
    Fault::NoFile,
    Fault::Aborted,
    Fault::MultishotEnds,
];

/// Faults of CONNECT. By connect(2), an interrupted connect continues in the background, which is not simulated here.
pub const CONNECTS: &[Fault] = &[Fault::NoMemory, Fault::Refused];

/// Faults of SOCKET and PIPE.
pub const DESCRIPTORS: &[Fault] = &[Fault::NoMemory, Fault::NoDescriptor, Fault::NoFile];

/// Faults of OPENAT and OPENAT2. By open(2), only opens of slow devices are interrupted.
pub const OPENS: &[Fault] = &[Fault::NoMemory, Fault::NoDescriptor, Fault::NoFile, Fault::NoSpace];

/// Faults of operations on paths.
pub const PATHS: &[Fault] = &[Fault::NoMemory];

/// Faults of FSYNC and FALLOCATE.
pub const STORAGE: &[Fault] = &[Fault::Interrupted, Fault::Device, Fault::NoSpace];

/// Faults of cancellations.
pub const CANCELS: &[Fault] = &[Fault::CancelTooLate];

/// A long pause, in which other threads can finish their work; at most twice as long.
const LONG_PAUSE_NS: u64 = 1_000_000;

/// A short pause, which lets another thread overtake; at most twice as long.
const SHORT_PAUSE_NS: u64 = 20_000;

static PLAN: AtomicPtr<Plan> = AtomicPtr::new(core::ptr::null_mut());

/// The number that identifies this process in decisions.
static PATH: AtomicU64 = AtomicU64::new(FIRST_PROCESS);

/// How often the process has forked.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The number of rings that the process has created.
static RINGS: AtomicU32 = AtomicU32::new(0);

/// How often the process has called `setup`.
static SETUPS: AtomicU64 = AtomicU64::new(0);

#[inline]
fn plan() -> Option<&'static Plan> {
    // Acquire pairs with the release store in `attach`.
    let plan = PLAN.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    unsafe { plan.as_ref() }
}

/// Injects the faults of the plan behind `fd` into this process from now on. `fd` stays the caller's.
///
/// # Errors
/// `EINVAL` if there is no plan, and those of `mmap`.
pub fn attach(fd: Fd) -> Result<(), Errno> {
    // SAFETY: never unmapped, and page-aligned.
    let plan = os::map_whole(fd, |memory, length| unsafe { Plan::open(memory, length) })?;
    storage::attach(&plan)?;
    PATH.store(plan.begin(os::getpid() as u32, os::getppid() as u32), Ordering::Relaxed);
    // Release pairs with the acquire load in `plan`.
    PLAN.store(Box::leak(Box::new(plan)), Ordering::Release);
    trace::watch();
    Ok(())
}

/// Counts a fork that is about to happen.
pub fn forks() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Makes this process, a child of one under chaos, a process of its own for the plan.
pub fn forked() {
    let Some(plan) = plan() else { return };
    let path = child(PATH.load(Ordering::Relaxed), FORKS.swap(0, Ordering::Relaxed));
    PATH.store(path, Ordering::Relaxed);
    plan.enter(os::getpid() as u32, path);
    storage::forked();
    RINGS.store(0, Ordering::Relaxed);
    SETUPS.store(0, Ordering::Relaxed);
}

/// Delays the calling thread, by a time that depends on the fault's value.
fn pause(value: u64) {
    let length_ns = if value % 4 == 0 { LONG_PAUSE_NS } else { SHORT_PAUSE_NS };
    os::pause(delay_ns().unwrap_or(length_ns + value % length_ns));
}

/// Returns the fixed delay, if the plan has one.
fn delay_ns() -> Option<u64> {
    plan().map(|plan| plan.settings().delay_ns).filter(|&delay_ns| delay_ns > 0)
}

/// Decides whether to inject a fault, and logs it in the plan. Returns the fault's value, from which its details are derived.
fn inject(ring: u32, serial: u64, fault: Fault, opcode: u16) -> Option<u64> {
    let plan = plan()?;
    let who = Who { process: PATH.load(Ordering::Relaxed), ring };
    let subject = Subject { who, serial, fault };
    let injection = plan.decide(&subject)?;
    plan.note(&Entry { injection, subject, opcode, pid: os::getpid() as u32 });
    Some(injection.value)
}

/// Counts a call of `setup`, if this process is under chaos.
pub fn begin_setup() -> Option<Call> {
    plan()?;
    Some(Call { told: 0, ring: 0, number: SETUPS.fetch_add(1, Ordering::Relaxed) + 1 })
}

/// The state of chaos in a ring.
#[derive(Default)]
pub struct Chaos {
    /// The ring's number in its process; 0 if the ring is neither under chaos nor has its memory hidden by a checker.
    ring: u32,
    /// The number of the ring's calls of `enter` and `register`.
    calls: u64,
    /// The position up to which CQEs were overwritten.
    scrubbed: u32,
    /// The number of CQEs that each multishot request has posted, by its serial number.
    shots: BTreeMap<u64, u64>,
    /// The values that determine how bundles of receives are shortened, by the requests' serial numbers.
    bundles: BTreeMap<u64, u64>,
    /// The memory of requests that complete late.
    in_flight: InFlight,
    /// Late requests that are held back before their first attempt, in their order. Some may have ended.
    held: Vec<RequestId>,
    /// The requests that change files and have begun, by their serial numbers.
    storing: BTreeMap<u64, Storing>,
    /// The times of the journal by which operations have ended that requests bring to the device, by the requests' serial numbers.
    syncs: BTreeMap<u64, u64>,
    /// The time at which the last call of `enter` began; `None` if the SQ is not consumed by calls, or there is no journal.
    called_at: Option<u64>,
    /// The number of CQEs that the current call of `enter` waits for, or the last one did.
    wanted: u32,
    /// The request whose completion is kept back until the next call of `enter`.
    kept: Option<RequestId>,
    /// The number of completions that were kept back, and that no call of `enter` came for.
    unclaimed: u8,
}

impl Chaos {
    /// Makes the state of a new ring of this process.
    pub fn new() -> Chaos {
        let is_on = plan().is_some() || copies::hides_memory();
        let ring = if is_on { RINGS.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        Chaos { ring, ..Chaos::default() }
    }

    /// Forgets the requests, in a child after `fork`: they are its parent's.
    pub fn forked(&mut self) {
        self.in_flight.forked();
        self.held.clear();
        self.kept = None;
        self.storing.clear();
        self.syncs.clear();
        self.shots.clear();
        self.bundles.clear();
    }

    /// True if the ring is under chaos.
    pub fn is_on(&self) -> bool {
        self.ring != 0
    }
}

/// A call that may meet faults.
#[derive(Clone, Copy)]
pub struct Call {
    /// The ring's number in the trace, 0 for none.
    told: u32,
    ring: u32,
    number: u64,
}

impl Call {
    /// Decides whether the call meets the fault; returns the fault's value. `opcode` is that of a registration, or 0.
    pub fn meets(self, fault: Fault, opcode: u16) -> Option<u64> {
        let value = inject(self.ring, self.number, fault, opcode)?;
        let body = event::Injected { call: self.number, fault: fault as u32, reserved: 0 };
        trace::tell(self.told, event::Kind::Injected, &body, &trace::Samples::NONE);
        Some(value)
    }

    /// Delays the calling thread, if the call meets the fault.
    pub fn pause(self, fault: Fault) {
        if let Some(value) = self.meets(fault, 0) {
            pause(value);
        }
    }
}
