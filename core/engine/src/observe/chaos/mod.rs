//! Injects faults, by the plan of [`anyring_chaos_plan`].
//!
//! A front end [attaches](attach) the process to the plan before the first ring is made. Rings that are made from then on are
//! *under chaos*: each of their requests has a serial number and takes the ordinary way through the engine, not the short
//! one, and what the plan says about it is decided by that number. Rings that are not cost nothing more than they did:
//! what is asked here stands in branches that an ordinary request does not come to.
//!
//! Which faults a request may meet, its row of the op table says. Injected is only what the ABI allows of this very
//! request: a send of a datagram is not cut, a request that is to wait does not answer `EAGAIN`.

pub mod calls;
mod inject;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use anyring_chaos_plan::{Entry, FIRST_PROCESS, Fault, Plan, Subject, Who, child};
use anyring_trace::event::{self};

use crate::abi::Errno;
use crate::observe::trace;
use crate::os::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::os::{self, Fd};

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

/// Faults of CONNECT. One that is interrupted goes on nevertheless, as connect(2) says, which is not done here.
pub const CONNECTS: &[Fault] = &[Fault::NoMemory, Fault::Refused];

/// Faults of SOCKET and PIPE.
pub const DESCRIPTORS: &[Fault] = &[Fault::NoMemory, Fault::NoDescriptor, Fault::NoFile];

/// Faults of OPENAT and OPENAT2. Only opens of slow devices are interrupted, as open(2) says.
pub const OPENS: &[Fault] = &[Fault::NoMemory, Fault::NoDescriptor, Fault::NoFile, Fault::NoSpace];

/// Faults of operations on paths.
pub const PATHS: &[Fault] = &[Fault::NoMemory];

/// Faults of FSYNC and FALLOCATE.
pub const STORAGE: &[Fault] = &[Fault::Interrupted, Fault::Device, Fault::NoSpace];

/// Faults of cancellations.
pub const CANCELS: &[Fault] = &[Fault::CancelTooLate];

/// A long pause, in which other threads do what they have to. It may be up to twice as long.
const LONG_PAUSE_NS: u64 = 1_000_000;

/// A short one, which lets another thread come first. It may be up to twice as long.
const SHORT_PAUSE_NS: u64 = 20_000;

static PLAN: AtomicPtr<Plan> = AtomicPtr::new(core::ptr::null_mut());

/// The number that stands for this process in decisions.
static PATH: AtomicU64 = AtomicU64::new(FIRST_PROCESS);

/// How often the process has forked.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// How many rings the process has made.
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

/// From now on this process meets the faults of the plan behind `fd`, which stays the caller's.
///
/// # Errors
/// `EINVAL` where there is no plan, and those of `mmap`.
pub fn attach(fd: Fd) -> Result<(), Errno> {
    // SAFETY: mapped for good, and page-aligned.
    let plan = os::map_whole(fd, |memory, length| unsafe { Plan::open(memory, length) })?;
    PATH.store(plan.begin(os::getpid() as u32, os::getppid() as u32), Ordering::Relaxed);
    // Release pairs with the acquire load in `plan`.
    PLAN.store(Box::leak(Box::new(plan)), Ordering::Release);
    trace::watch();
    Ok(())
}

/// This process is about to fork.
pub fn forks() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// This process is a child of one that was under chaos.
pub fn forked() {
    let Some(plan) = plan() else { return };
    let path = child(PATH.load(Ordering::Relaxed), FORKS.swap(0, Ordering::Relaxed));
    PATH.store(path, Ordering::Relaxed);
    plan.enter(os::getpid() as u32, path);
    RINGS.store(0, Ordering::Relaxed);
    SETUPS.store(0, Ordering::Relaxed);
}

/// Holds the calling thread up, by what the fault is made of.
fn pause(value: u64) {
    let length_ns = if value % 4 == 0 { LONG_PAUSE_NS } else { SHORT_PAUSE_NS };
    os::pause(delay_ns().unwrap_or(length_ns + value % length_ns));
}

/// How long everything is held up, where the plan says so.
fn delay_ns() -> Option<u64> {
    plan().map(|plan| plan.settings().delay_ns).filter(|&delay_ns| delay_ns > 0)
}

/// Decides, and notes what is going to be injected. The answer is what the fault is made of.
fn inject(ring: u32, serial: u64, fault: Fault, opcode: u16) -> Option<u64> {
    let plan = plan()?;
    let who = Who { process: PATH.load(Ordering::Relaxed), ring };
    let subject = Subject { who, serial, fault };
    let injection = plan.decide(&subject)?;
    plan.note(&Entry { injection, subject, opcode, pid: os::getpid() as u32 });
    Some(injection.value)
}

/// A call of `setup`, if this process is under chaos.
pub fn begin_setup() -> Option<Call> {
    plan()?;
    Some(Call { told: 0, ring: 0, number: SETUPS.fetch_add(1, Ordering::Relaxed) + 1 })
}

/// The state of chaos in a ring.
#[derive(Default)]
pub struct Chaos {
    /// The ring's number in its process; 0 where it is not under chaos.
    ring: u32,
    /// How many calls of `enter` and `register` the ring has seen.
    calls: u64,
    /// CQEs before this one were overwritten.
    scrubbed: u32,
    /// How many CQEs the multishot requests have posted that go on, by their serials.
    shots: BTreeMap<u64, u64>,
    /// By what the bundles of receives are cut, by their serials.
    bundles: BTreeMap<u64, u64>,
}

impl Chaos {
    /// For a new ring of this process.
    pub fn new() -> Chaos {
        let ring = if plan().is_some() { RINGS.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        Chaos { ring, ..Chaos::default() }
    }

    /// True if the ring is under chaos.
    pub fn is_on(&self) -> bool {
        self.ring != 0
    }
}

/// A call that may meet faults.
#[derive(Clone, Copy)]
pub struct Call {
    /// The number by which the ring is told of, 0 for none.
    told: u32,
    ring: u32,
    number: u64,
}

impl Call {
    /// Decides whether the call meets the fault; returns what the fault is made of. `opcode` is that of a registration, or 0.
    pub fn meets(self, fault: Fault, opcode: u16) -> Option<u64> {
        let value = inject(self.ring, self.number, fault, opcode)?;
        let body = event::Injected { call: self.number, fault: fault as u32, reserved: 0 };
        trace::tell(self.told, event::Kind::Injected, &body, &trace::Samples::NONE);
        Some(value)
    }

    /// Holds the calling thread up, if it does.
    pub fn pause(self, fault: Fault) {
        if let Some(value) = self.meets(fault, 0) {
            pause(value);
        }
    }
}
