//! The verbs by which a ring notes what its requests do to files, for a power cut ([`storage`](super::storage)).

use anyring_chaos_plan::Who;
use anyring_chaos_plan::journal::{Effect, Journal};
use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;

use crate::observe::chaos::PATH;
use crate::observe::chaos::storage::{Asked, begin, journal};
use crate::os::Fd;
use crate::os::sync::atomic::Ordering;
use crate::request::data::OpData;
use crate::request::{Flags, RequestId};
use crate::ring::Core;

impl Core {
    /// Remembers what was done before a request was submitted, if the request is to bring that to the device. What ends while the same call
    /// submits was not done before, unless the request waits for it.
    pub(in crate::observe::chaos) fn submits_sync(&mut self, id: RequestId) {
        let Some(journal) = journal().filter(|_| self[id].op.stores == Some(Effect::Sync)) else { return };
        let waits = self.order().assembly.head().is_some()
            || Flags::of_sqe(self[id].sqe.flags).has(Flags::DRAIN)
            || self.order().drain.is_active();
        let serial = self[id].serial;
        let chaos = &mut self.instruments_mut().chaos;
        if !waits {
            chaos.syncs.insert(serial, chaos.called_at.unwrap_or_else(|| journal.now()));
        }
    }

    /// Remembers the time at which a call of `enter` begins.
    pub(in crate::observe::chaos) fn called_now(&mut self) {
        self.instruments_mut().chaos.called_at = journal().map(Journal::now);
    }

    /// Notes that a request is about to change files, or cuts the power.
    pub(in crate::observe::chaos) fn begins_to_store(&mut self, id: RequestId) {
        let (Some(journal), Some(effect)) = (journal(), self[id].op.stores) else { return };
        let who = Who { process: PATH.load(Ordering::Relaxed), ring: self.instruments().chaos.ring };
        let serial = self[id].serial;
        let after = self.instruments_mut().chaos.syncs.remove(&serial);
        let request = &self[id];
        let sqe = &request.sqe;
        let (mut effect, mut length, mut flags) = (effect, u64::from(sqe.len), u64::from(sqe.op_flags));
        let paths = match &request.data {
            OpData::Open(open) => {
                flags = open.how.flags;
                [(sqe.fd, open.path.bytes()), (-1, &[][..])]
            }
            // The first path is what the link holds.
            OpData::TwoPaths(_, path) if effect == Effect::SymbolicLink => {
                [(sqe.fd, path.bytes()), (-1, &[])]
            }
            OpData::TwoPaths(old, new) => [(sqe.fd, old.bytes()), (sqe.len as Fd, new.bytes())],
            OpData::Path(path) => [(sqe.fd, path.bytes()), (-1, &[])],
            _ => [(-1, &[][..]); 2],
        };
        match effect {
            Effect::Write => length = self.memory_of(id).iter().map(|piece| piece.length).sum(),
            Effect::Sync if sqe.op_flags & IORING_FSYNC_DATASYNC != 0 => effect = Effect::SyncData,
            Effect::Allocate => (length, flags) = (sqe.addr, length),
            _ => {}
        }
        let asked = Asked {
            effect,
            opcode: sqe.opcode.into(),
            who,
            serial,
            after,
            file: request.file.fd(),
            offset: sqe.off,
            length,
            flags,
            paths,
        };
        if let Some(storing) = begin(journal, &asked) {
            self.instruments_mut().chaos.storing.insert(serial, storing);
        }
    }

    /// Notes the end of a request that changes files, or cuts the power.
    pub(in crate::observe::chaos) fn ends_to_store(&mut self, id: RequestId, result: i32) {
        let serial = self[id].serial;
        self.instruments_mut().chaos.syncs.remove(&serial);
        if let Some(journal) = journal()
            && let Some(storing) = self.instruments_mut().chaos.storing.remove(&serial)
        {
            storing.end(journal, result);
        }
    }
}
