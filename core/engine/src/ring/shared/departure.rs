//! The end of a process, or its `execve`, while other processes use its rings.
//!
//! The kernel cancels the requests of a task that executes another program. When a task ends, the kernel leaves timeouts alone, and cancels
//! requests that wait for readiness when that comes; here they are cancelled at once. A process that is killed cannot do so: its requests
//! end without completions.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::feature::timeouts;
use crate::os;
use crate::os::host;
use crate::process::family;
use crate::queue::Cqe;
use crate::request::op::Caps;
use crate::request::{Flags, Phase, RequestId};
use crate::ring::drive::caller;
use crate::ring::parts::Submitter;
use crate::ring::{Core, Ring, lifetime, live, registry};

/// How long transfers of files, which cannot be stopped, may take to end.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Ends this process's requests, because the process ends.
pub fn exits() {
    depart(false);
}

/// Ends this process's requests, because it is about to execute another program.
pub fn executes() {
    depart(true);
}

/// Ends the requests of the calling thread, because the thread ends.
pub fn thread_ends() {
    let thread = host::thread_identity();
    registry::for_each_live(|ring| {
        let mut guard = ring.lock();
        if guard.as_mut().is_some_and(|core| core.thread_ended(thread)) {
            guard.begin_to_drive();
        }
    });
}

fn depart(all: bool) {
    if !family::is_alone() {
        registry::for_each_live(|ring| depart_from(ring, all));
    }
}

fn depart_from(ring: &'static Ring, all: bool) {
    let mut guard = ring.lock();
    let Some(core) = guard.as_mut() else { return };
    if !core.shared.has_page() || core.requests.live() == 0 {
        return;
    }
    let serial = core.identity.serial;
    core.life.come_in();
    core.cancel_everything(all);
    let deadline_ns = os::monotonic_ns().saturating_add(PATIENCE_NS);
    while live(&mut guard, serial).is_some_and(|core| core.ends_soon()) {
        let left = deadline_ns.saturating_sub(os::monotonic_ns());
        if left == 0 || caller::observe(&mut guard, serial, Some(left)).is_err() {
            break;
        }
    }
    if let Some(core) = live(&mut guard, serial) {
        core.cancel_the_rest();
    }
    lifetime::go_out(guard, serial);
}

impl Core {
    /// Ends the requests that a thread left in flight. Work is cancelled, and so are waits on rings, which could keep each other alive; a
    /// wait for another file is cancelled when that becomes ready. Timeouts go on. Returns true if requests were advanced.
    fn thread_ended(&mut self, thread: usize) -> bool {
        if self.drive.submitter == Submitter::Thread(thread) {
            // The thread's identity may soon be another thread's.
            self.drive.submitter = Submitter::Elsewhere;
        }
        let left = |core: &Core, id: &RequestId| core.requests[*id].thread == thread;
        let ids: Vec<RequestId> = self.requests.ids().filter(|id| left(self, id)).collect();
        if ids.is_empty() {
            return false;
        }
        self.requests.call_off_waits(&ids);
        for id in ids {
            let Some(request) = self.requests.get_mut(id) else { continue };
            request.thread = 0;
            match request.phase {
                // A wait for a ring is a wait for its stand-in.
                Phase::Waiting if !registry::is_ring(request.sqe.fd) => request.flags.set(Flags::CANCELED),
                Phase::Waiting | Phase::Working => _ = self.try_cancel(id),
                Phase::Armed if request.op.caps.has(Caps::LISTED_FUTEX) => _ = self.try_cancel(id),
                _ => {}
            }
        }
        let advances = !self.defers();
        if advances {
            self.advance();
        }
        advances
    }

    /// Cancels this process's requests before it leaves a ring that other processes have.
    pub(in crate::ring) fn cancel_for_others(&mut self) {
        if self.shared.has_page() && self.requests.live() > 0 && !family::is_alone() {
            self.cancel_everything(true);
            self.cancel_the_rest();
        }
    }

    /// Cancels this process's requests; `all`: also those that end by themselves, and those that other processes can take over.
    fn cancel_everything(&mut self, all: bool) {
        for id in self.order.drain.clear() {
            self.complete(id, Errno::ECANCELED.negated());
        }
        let ids: Vec<RequestId> = self.requests.ids().collect();
        self.requests.call_off_waits(&ids);
        for id in ids {
            if self.requests.get(id).is_none() {
                continue;
            }
            if !all
                && let Some(left) = timeouts::to_inherit(self, id)
                && self.shared.bequeath(left)
            {
                timeouts::forget(self, id);
                continue;
            }
            // A request that cannot be cancelled ends with the request that it is linked to, or by itself.
            let _ = self.try_cancel(id);
        }
        self.advance();
    }

    /// True if an attempt is in progress that will end.
    fn ends_soon(&self) -> bool {
        self.requests.ids().any(|id| {
            let request = &self.requests[id];
            request.phase == Phase::Working && !request.flags.has(Flags::LONG)
        })
    }

    /// Posts `ECANCELED` for requests whose attempts are still in progress. The attempts may go on for a while.
    fn cancel_the_rest(&mut self) {
        let ids: Vec<RequestId> = self.requests.ids().collect();
        for id in ids {
            let request = &mut self.requests[id];
            if request.flags.has(Flags::SILENCED) {
                continue;
            }
            request.flags.set(Flags::SILENCED);
            let user_data = request.sqe.user_data;
            self.post_unrequested(Cqe { user_data, res: Errno::ECANCELED.negated(), ..Cqe::default() });
        }
        for user_data in self.zero_copy.owed() {
            self.post_unrequested(Cqe { user_data, res: Errno::ECANCELED.negated(), ..Cqe::default() });
        }
    }
}
