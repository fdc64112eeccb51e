//! The parts of a ring. Each part has its own state and the methods that change it; a method that takes several parts at once is one of
//! `Core`.

use crate::assets::directories::Directories;
use crate::feature::buffers::BufferTable;
use crate::feature::files::FileTable;
use crate::feature::personalities::Personalities;
use crate::feature::provided_buffers::BufferGroups;
use crate::feature::region::ParamRegion;
use crate::feature::restrictions::Restrictions;
use crate::feature::timeouts::Timeouts;
use crate::feature::zero_copy_receive::ReceiveQueues;
use crate::observe::chaos::Chaos;
use crate::observe::trace::Traced;
use crate::queue::{Cq, RingMemory, Sq};
use crate::request::train::Train;
use crate::request::{Assembly, Drain, ReadyQueue, RequestId};
use crate::ring::Ring;
use crate::ring::drive::observers::Observers;
use crate::ring::drive::reactor::Attendance;
use crate::ring::drive::sleepers::Sleepers;
use crate::ring::drive::sq_thread::SqThread;
use crate::ring::row::Table;
use crate::ring::submitter::Submitter;
use crate::wait::Token;
use crate::wait::timers::{Clock, Timers};

/// The name of a ring, and its setup.
pub struct Identity {
    /// The place of the ring.
    pub ring: &'static Ring,
    /// The ring's serial number, which tells it from other rings in the same place.
    pub serial: u64,
    /// `IORING_SETUP_*`.
    pub setup_flags: u32,
    /// The op table of the ring.
    pub table: &'static Table,
}

/// The queues that the ring shares with its program.
pub struct Queues {
    /// Shared memory.
    pub memory: RingMemory,
    /// The position in the submission ring.
    pub sq: Sq,
    /// The position in the completion ring.
    pub cq: Cq,
}

/// The requests whose turn has not come, by what they wait for.
#[derive(Default)]
pub struct Order {
    /// The chain that the current submission is assembling.
    pub assembly: Assembly,
    /// Chains that drains hold back.
    pub drain: Drain,
    /// Requests to be issued, in order.
    pub ready: ReadyQueue,
    /// Requests that are to leave together.
    pub train: Train,
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
