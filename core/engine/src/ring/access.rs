//! Accessors of a ring's parts, for reading and for changing.

use core::ops::{Index, IndexMut};

use crate::assets::directories::Directories;
use crate::feature::buffers::BufferTable;
use crate::feature::files::FileTable;
use crate::feature::provided_buffers::BufferGroups;
use crate::feature::zero_copy_receive::ReceiveQueues;
use crate::feature::zero_copy_send::ZeroCopy;
use crate::request::train::Train;
use crate::request::{Request, RequestId, Slab};
use crate::ring::drive::observers::Observers;
use crate::ring::drive::readiness::Readiness;
use crate::ring::life::Life;
use crate::ring::parts::{Drive, Instruments, Order, Queues, Resources, Time};
use crate::ring::{Core, Lent};
use crate::work::WorkQueue;
use crate::work::aio::Aio;

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
    readiness / readiness_mut: Readiness = readiness;
    zero_copy / zero_copy_mut: ZeroCopy = zero_copy;
    time / time_mut: Time = time;
    resources / resources_mut: Resources = resources;
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
