//! The parts of a ring, for who has to do with one of them. Each keeps its own state and changes it by its verbs; what takes
//! several at once is a verb of [`Core`].

use core::ops::{Index, IndexMut};

use crate::assets::buffers::BufferTable;
use crate::assets::directories::Directories;
use crate::assets::files::FileTable;
use crate::assets::kbuf::BufferGroups;
use crate::assets::receive_queues::ReceiveQueues;
use crate::assets::region::ParamRegion;
use crate::assets::restrictions::Restrictions;
use crate::queue::{Cq, RingMemory, Sq};
use crate::request::chaos::Chaos;
use crate::request::timeouts::Timeouts;
use crate::request::trace::Traced;
use crate::request::train::Train;
use crate::request::{Assembly, Drain, ReadyQueue, Request, RequestId, Slab};
use crate::ring::Core;
use crate::ring::drive::observers::Observers;
#[cfg(anyring_simulation)]
use crate::ring::drive::reactor::Attendance;
use crate::ring::drive::readiness::Readiness;
use crate::ring::drive::sq_thread::SqThread;
use crate::ring::drive::zero_copy::ZeroCopy;
use crate::ring::life::Life;
use crate::ring::resources::personalities::Personalities;
use crate::wait::Token;
use crate::wait::timers::Timers;
use crate::work::WorkQueue;
use crate::work::aio::Aio;

impl Index<RequestId> for Core {
    type Output = Request;

    /// A live request.
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

/// Parts that nobody but the ring changes.
impl Core {
    /// Shared memory.
    #[inline(always)]
    pub fn memory(&self) -> &RingMemory {
        &self.memory
    }

    /// The state of tracing, for who counts what was submitted.
    pub(crate) fn traced_mut(&mut self) -> &mut Traced {
        &mut self.traced
    }

    /// The state of chaos in the ring.
    pub(crate) fn chaos(&self) -> &Chaos {
        &self.chaos
    }

    /// The state of chaos in the ring, to be changed.
    pub(crate) fn chaos_mut(&mut self) -> &mut Chaos {
        &mut self.chaos
    }

    /// Whether it is traced or under chaos.
    #[inline(always)]
    pub fn traced(&self) -> &Traced {
        &self.traced
    }

    /// The position in the completion ring.
    #[inline(always)]
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// The driver's role: which thread turns readiness into completions.
    #[inline(always)]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The reactor's duties for the ring.
    #[cfg(anyring_simulation)]
    pub fn attendance(&self) -> &Attendance {
        &self.attendance
    }

    /// The thread that takes SQEs, where there is one.
    pub fn sq_thread(&self) -> &SqThread {
        &self.sq_thread
    }

    /// Registered credentials.
    #[inline(always)]
    pub fn personalities(&self) -> &Personalities {
        &self.personalities
    }
}

/// Gives each part to who reads it, and to who changes it.
macro_rules! parts {
    ($($(#[$meaning:meta])* $field:ident / $change:ident: $part:ty;)*) => {
        impl Core {
            $(
                $(#[$meaning])*
                #[inline(always)]
                pub fn $field(&self) -> &$part {
                    &self.$field
                }

                /// The part, to be changed.
                #[inline(always)]
                pub fn $change(&mut self) -> &mut $part {
                    &mut self.$field
                }
            )*
        }
    };
}

parts! {
    /// The descriptors and calls that keep the ring alive.
    life / life_mut: Life;
    /// The position in the submission ring.
    sq / sq_mut: Sq;
    /// The restrictions that the program has registered.
    restrictions / restrictions_mut: Restrictions;
    /// All live requests.
    requests / requests_mut: Slab;
    /// The chain that the current submission is assembling.
    assembly / assembly_mut: Assembly;
    /// Chains that drains hold back.
    drain / drain_mut: Drain;
    /// To be issued, in order.
    ready / ready_mut: ReadyQueue;
    /// Blocking attempts: queued, out, done.
    work / work_mut: WorkQueue;
    /// O_DIRECT transfers that the kernel does.
    aio / aio_mut: Aio;
    /// Observers, which hear of completions without coming in.
    observers / observers_mut: Observers;
    /// Descriptors that requests wait for.
    readiness / readiness_mut: Readiness;
    /// Sockets that send without copying.
    zero_copy / zero_copy_mut: ZeroCopy;
    /// Datagrams that are to leave together.
    train / train_mut: Train;
    /// Deadlines.
    timers / timers_mut: Timers<RequestId>;
    /// Armed TIMEOUTs.
    timeouts / timeouts_mut: Timeouts;
    /// Registered files.
    files / files_mut: FileTable;
    /// Descriptions of the engine's own through which directories are read.
    directories / directories_mut: Directories;
    /// Registered buffers.
    buffers / buffers_mut: BufferTable;
    /// Provided buffers.
    groups / groups_mut: BufferGroups;
    /// Memory from which waits take their arguments.
    region / region_mut: ParamRegion;
    /// Into which data is received in the program's pages.
    receive_queues / receive_queues_mut: ReceiveQueues;
}
