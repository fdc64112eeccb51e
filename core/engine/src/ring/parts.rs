//! The parts of a ring. Each part has its own state and the methods that change it; a method that takes several parts at once is one of
//! `Core`.

use core::ops::{Index, IndexMut};

use crate::assets::directories::Directories;
use crate::feature::buffers::BufferTable;
use crate::feature::files::FileTable;
use crate::feature::personalities::Personalities;
use crate::feature::provided_buffers::BufferGroups;
use crate::feature::region::ParamRegion;
use crate::feature::restrictions::Restrictions;
use crate::feature::timeouts::Timeouts;
use crate::feature::zero_copy_receive::ReceiveQueues;
use crate::feature::zero_copy_send::ZeroCopy;
use crate::observe::chaos::Chaos;
use crate::observe::trace::Traced;
use crate::queue::Queues;
use crate::request::order::{Order, Train};
use crate::request::{Request, RequestId, Slab};
use crate::ring::drive::observers::Observers;
use crate::ring::drive::readiness::Readiness;
use crate::ring::drive::sleepers::Sleepers;
use crate::ring::drive::sq_thread::SqThread;
use crate::ring::row::Table;
use crate::ring::shared::Sharing;
use crate::ring::{Core, Lent, Ring};
use crate::wait::Token;
use crate::wait::timers::{Clock, Timers};
use crate::work::WorkQueue;
use crate::work::aio::Aio;

/// The name of a ring, and its setup.
pub struct Identity {
    /// The place of the ring.
    pub ring: &'static Ring,
    /// The ring's serial number, which tells it from other rings in the same place.
    pub serial: u64,
    /// `IORING_SETUP_*`. ENABLE_RINGS clears R_DISABLED.
    pub setup_flags: u32,
    /// The op table of the ring.
    pub table: Table,
}

/// The deadlines of a ring.
#[derive(Default)]
pub struct Time {
    /// Deadlines of requests.
    pub timers: Timers<RequestId>,
    /// Armed TIMEOUTs.
    pub timeouts: Timeouts,
    /// The clock by which a wait's own deadline is given.
    pub wait_clock: Clock,
}

/// The threads that act for a ring, and those that wait for it.
#[derive(Default)]
pub struct Drive {
    /// The driver's role: which thread turns readiness into completions.
    pub token: Token,
    /// The eventfds on which threads sleep for the ring.
    pub sleepers: Sleepers,
    /// Observers, which are notified of completions without a call of `enter`.
    pub observers: Observers,
    /// The state of the ring on the reactor's list.
    pub attendance: Attendance,
    /// The thread that may submit, once known (`IORING_SETUP_SINGLE_ISSUER`).
    pub submitter: Submitter,
    /// The ring's SQ thread, if it has one.
    pub sq_thread: SqThread,
    /// On a ring that defers: the number of unreaped completions at which the current call stops to fetch more.
    pub fetched_at_once: u32,
}

/// The resources that a program has registered with a ring, and its provided buffers.
#[derive(Default)]
pub struct Resources {
    /// The restrictions that the program has registered.
    pub restrictions: Restrictions,
    /// Registered files.
    pub files: FileTable,
    /// The engine's own file descriptions through which directories are read.
    pub directories: Directories,
    /// Registered buffers.
    pub buffers: BufferTable,
    /// Provided buffers.
    pub groups: BufferGroups,
    /// Registered memory from which `enter` reads the arguments of waits.
    pub region: ParamRegion,
    /// Queues of zero-copy receives, which put data into pages of the program.
    pub receive_queues: ReceiveQueues,
    /// Registered credentials.
    pub personalities: Personalities,
}

/// The state of the trace, which watches a ring's requests, and of chaos, which interferes with them.
pub struct Instruments {
    /// Whether the ring is traced or under chaos.
    pub traced: Traced,
    /// The state of chaos in the ring.
    pub chaos: Chaos,
}

/// The thread that may submit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Submitter {
    /// Not known yet, or the ring has no single submitter.
    #[default]
    Unknown,
    /// The thread with this identity.
    Thread(usize),
    /// A thread of another process, or one that has ended.
    Elsewhere,
}

impl Submitter {
    /// True if the submitter is known.
    pub fn is_known(self) -> bool {
        self != Submitter::Unknown
    }

    /// True if the submitter is a thread of this process.
    pub fn is_here(self) -> bool {
        matches!(self, Submitter::Thread(_))
    }
}

/// The references to a ring, and whether the ring is closed.
pub struct Life {
    /// Descriptors of the program that stand for the ring, as far as the engine sees them.
    descriptors: u32,
    /// Calls that are in progress.
    inside: u32,
    /// The ring was closed. Only attempts in progress still end.
    closing: bool,
    /// The number of `enter` calls so far, by which an observer sees whether any thread enters the ring.
    activity: u64,
}

impl Life {
    /// Begins the life of a new ring, which has one descriptor.
    pub fn begin() -> Life {
        Life { descriptors: 1, inside: 0, closing: false, activity: 0 }
    }

    /// Counts one more descriptor of the ring.
    pub fn gain_descriptor(&mut self) {
        self.descriptors += 1;
    }

    /// Counts one descriptor less. Returns true if that was the last.
    pub fn lose_descriptor(&mut self) -> bool {
        self.descriptors = self.descriptors.saturating_sub(1);
        self.descriptors == 0
    }

    /// Counts a call of `enter`.
    #[inline]
    pub fn call(&mut self) {
        self.activity += 1;
    }

    /// Returns the number of `enter` calls so far.
    #[inline]
    pub fn activity(&self) -> u64 {
        self.activity
    }

    /// Keeps the ring alive for a call until the call [leaves](Life::go_out).
    #[inline]
    pub fn come_in(&mut self) {
        self.inside += 1;
    }

    /// Ends a call that came in.
    #[inline]
    pub fn go_out(&mut self) {
        self.inside -= 1;
    }

    /// Returns the number of calls that are inside.
    #[inline]
    pub fn inside(&self) -> u32 {
        self.inside
    }

    /// Notes that the ring is closed.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// True if the ring is closed.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Forgets the calls of the parent, in a child after `fork`.
    pub fn forked(&mut self) {
        self.inside = 0;
    }
}

/// The state that a ring keeps about the reactor.
#[derive(Default)]
pub struct Attendance {
    /// The ring is on the reactor's list.
    pub(super) listed: bool,
    /// The reactor drove the ring, and may sleep as if it still did.
    pub(super) was_driven: bool,
    /// The reactor runs and learns of the ring's close, or no watch reports closes.
    pub(super) is_heard: bool,
}

impl Attendance {
    /// True if the ring is on the reactor's list.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// Resets the state in a child after `fork`, whose reactor has no ring.
    pub fn forked(&mut self) {
        self.listed = false;
        self.is_heard = false;
    }
}

impl Index<RequestId> for Core {
    type Output = Request;

    /// Returns a live request.
    #[inline(always)]
    fn index(&self, id: RequestId) -> &Request {
        &self.requests[id]
    }
}

impl IndexMut<RequestId> for Core {
    #[inline(always)]
    fn index_mut(&mut self, id: RequestId) -> &mut Request {
        &mut self.requests[id]
    }
}

/// Defines two accessors for each part: one to read it, one to change it.
macro_rules! parts {
    ($owner:ty: $($field:ident / $change:ident: $part:ty = $($path:ident).+;)*) => {
        impl $owner { $(
            #[doc = concat!("The part `", stringify!($field), "`.")]
            #[inline(always)]
            pub fn $field(&self) -> &$part {
                &self.$($path).+
            }

            #[doc = concat!("The part `", stringify!($field), "`, to be changed.")]
            #[inline(always)]
            pub fn $change(&mut self) -> &mut $part {
                &mut self.$($path).+
            }
        )* }
    };
}

parts! { Core:
    life / life_mut: Life = life;
    queues / queues_mut: Queues = queues;
    requests / requests_mut: Slab = requests;
    order / order_mut: Order = order;
    work / work_mut: WorkQueue = work;
    aio / aio_mut: Aio = aio;
    drive / drive_mut: Drive = drive;
    time / time_mut: Time = time;
    resources / resources_mut: Resources = resources;
    shared / shared_mut: Sharing = shared;
    instruments / instruments_mut: Instruments = instruments;
}

parts! { Lent:
    readiness / readiness_mut: Readiness = core.readiness;
    zero_copy / zero_copy_mut: ZeroCopy = core.zero_copy;
    train / train_mut: Train = core.order.train;
    observers / observers_mut: Observers = core.drive.observers;
    files / files_mut: FileTable = core.resources.files;
    directories / directories_mut: Directories = core.resources.directories;
    buffers / buffers_mut: BufferTable = core.resources.buffers;
    groups / groups_mut: BufferGroups = core.resources.groups;
    receive_queues / receive_queues_mut: ReceiveQueues = core.resources.receive_queues;
}
