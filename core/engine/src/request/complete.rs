//! The end of a request: its CQE, its links, and the release of its file and buffers.

use anyring_trace::event;
use linux_raw_sys::io_uring::IORING_CQE_F_MORE;

use crate::abi::{IORING_CQE_F_32, IORING_SETUP_CQE_MIXED};
use crate::observe::coverage;
use crate::queue::Cqe;
use crate::request::{FileHold, Flags, Request, RequestId};
use crate::ring::{Attempt, Core};

/// Flags that exclude a completion from the fast path.
const UNUSUAL: Flags = Flags::CQE_SKIP.with(Flags::SILENCED).with(Flags::TRACED).with(Flags::CHAOS);

impl Request {
    /// Marks the request as failed, so that its soft links fail, too. A CQE that would be skipped
    /// on success is posted.
    pub fn fail(&mut self) {
        self.flags.set(Flags::FAILED);
        if self.flags.has(Flags::CQE_SKIP) {
            self.flags.clear(Flags::CQE_SKIP);
            self.flags.set(Flags::SKIP_LINK_CQES);
        }
    }
}

impl Core {
    /// Completes a request with `result`: posts its CQE, and starts or fails its links.
    pub fn complete(&mut self, id: RequestId, result: i32) {
        let result = if result < 0 { self.failed(id, result) } else { result };
        let mut request = &mut self[id];
        if !request.flags.has(Flags::FAILED_EARLY) {
            coverage::seen(request.op.code, result);
        }
        let holds = request.holds();
        if holds {
            // No duplicate of a descriptor outlives the CQE. But a registered file is released after
            // the CQE, because the release may post the file's tag.
            if let FileHold::Owned(_) | FileHold::Kept(..) = request.file {
                let file = core::mem::take(&mut request.file);
                self.let_go(file);
            }
            self.attempt(id).settle_buffer(result);
            request = &mut self[id];
        } else {
            request.file = FileHold::None;
        }
        if request.flags.has(Flags::NOTIFIES) && !request.fell_with_its_chain() {
            request.cqe_flags |= IORING_CQE_F_MORE;
        }
        let cqe = request.cqe(result);
        let linked = request.link.is_some() || request.partner.is_some();
        let owes_more = holds || linked || request.flags.has(Flags::NOTIFIES);
        if !request.flags.has(UNUSUAL) {
            self.post(cqe);
        } else if !self.post_unusual(id, cqe) {
            return;
        }
        self.end_request(id, owes_more);
    }

    /// Ends a request whose CQE is posted. If it `owes_more`, it releases its file, continues its chain and posts its notification.
    #[inline(always)]
    fn end_request(&mut self, id: RequestId, owes_more: bool) {
        if owes_more {
            let notifies = self[id].flags.has(Flags::NOTIFIES);
            self.attempt(id).release_file();
            if self[id].link.is_some() || self[id].partner.is_some() {
                self.end_link(id);
            }
            if notifies {
                self.attempt(id).announce();
            }
        }
        self.requests_mut().remove(id);
        self.run_deferred();
    }

    /// Posts the CQE of a request that skips it, is traced or is under chaos. False if the CQE is delayed.
    #[cold]
    fn post_unusual(&mut self, id: RequestId, cqe: Cqe) -> bool {
        let under_chaos = self[id].flags.has(Flags::CHAOS);
        let due = if under_chaos { self.complete_under_chaos(id, cqe) } else { Some(cqe) };
        due.map(|cqe| self.post_told(id, cqe)).is_some()
    }

    /// Reports the end of a request to the trace, if traced, and posts its CQE.
    fn post_told(&mut self, id: RequestId, cqe: Cqe) {
        let flags = self[id].flags;
        let skips = flags.has(Flags::CQE_SKIP.with(Flags::SILENCED));
        if flags.has(Flags::TRACED) {
            self.trace_completion(id, &cqe, event::LAST | if skips { event::SKIPPED } else { 0 });
        }
        if skips {
            return;
        }
        if flags.has(Flags::CHAOS) { self.post_under_chaos(id, cqe) } else { self.post(cqe) }
    }

    /// Completes a request with the result and the flags that are noted in it: a notification, or a request whose CQE chaos has delayed.
    pub(crate) fn complete_as_noted(&mut self, id: RequestId) {
        let request = &self[id];
        let cqe = request.cqe(request.result);
        self.post_told(id, cqe);
        self.end_request(id, true);
    }

    /// Returns the `res` of the CQE of a request that failed with `result`.
    fn failed(&mut self, id: RequestId, result: i32) -> i32 {
        let failed = self.row(id).failed;
        let request = &mut self[id];
        if !request.flags.has(Flags::NEVER_FAILS) {
            request.fail();
        }
        failed(request, result)
    }

    /// Runs `post`, whose CQEs do not count as completions of the current submission: these become visible when it
    /// ends, but a TIMEOUT of the submission has counted the CQEs of `post` already.
    pub fn beside_batch<T>(&mut self, post: impl FnOnce(&mut Core) -> T) -> T {
        let before = self.queues().cq.tail();
        let result = post(self);
        let posted = self.queues().cq.tail().wrapping_sub(before);
        self.time_mut().timeouts.count_beside_batch(posted);
        result
    }

    /// True if the multishot request may post its next CQE. Reports the CQE, if the request is traced.
    #[cold]
    fn goes_on_watched(&mut self, id: RequestId, cqe: &Cqe) -> bool {
        let flags = self[id].flags;
        if flags.has(Flags::CHAOS) && self.ends_early(id) {
            return false;
        }
        if flags.has(Flags::TRACED) && self.queues().has_room_for(1) {
            self.trace_completion(id, cqe, 0);
        }
        true
    }
}

impl Attempt<'_> {
    /// Releases the request's file and registered buffer.
    pub fn release_file(&mut self) {
        let (core, id) = self.core_mut();
        let file = core::mem::take(&mut core[id].file);
        core.let_go(file);
        if let Some(node) = core[id].registered_buffer.take() {
            core.release_buffer(node);
        }
    }

    /// Posts a CQE of a multishot request that continues. False if the ring has no room for it or
    /// earlier CQEs are kept: then the request should end.
    pub fn post_more(&mut self, result: i32, cqe_flags: u32) -> bool {
        let (core, id) = self.core_mut();
        let request = &core[id];
        let cqe = Cqe { flags: cqe_flags | IORING_CQE_F_MORE, ..request.cqe(result) };
        coverage::seen(request.op.code, result);
        // Reported before the post: the program may reuse the memory as soon as it sees the CQE.
        if request.flags.has(Flags::TRACED.with(Flags::CHAOS)) && !core.goes_on_watched(id, &cqe) {
            return false;
        }
        core.beside_batch(|core| {
            core.hold_queue();
            core.queues_mut().post_at_once(&cqe)
        })
    }

    /// Posts a big CQE of a multishot request that has checked for room. If the program has moved the CQ
    /// head back meanwhile, the CQE is kept as overflow.
    pub fn post_more_big(&mut self, result: i32, big: [u64; 2]) {
        let (core, id) = self.core_mut();
        let mixed = if core.is(IORING_SETUP_CQE_MIXED) { IORING_CQE_F_32 } else { 0 };
        let request = &core[id];
        let cqe = Cqe { flags: mixed | IORING_CQE_F_MORE, big, ..request.cqe(result) };
        coverage::seen(request.op.code, result);
        if request.flags.has(Flags::TRACED) {
            core.trace_completion(id, &cqe, 0);
        }
        core.beside_batch(|core| core.post(cqe));
    }
}
