//! Late requests: their completions, the moments at which their data move, and the memory of the program meanwhile.

use anyring_chaos_plan::{Fault, Harm, Harmed, Subject, Who};
use linux_raw_sys::io_uring::{IORING_CQE_F_BUFFER, IORING_SETUP_IOPOLL};

use crate::abi::Errno;
use crate::observe::chaos::copies::hides_memory;
use crate::observe::chaos::in_flight::Memory;
use crate::observe::chaos::{PATH, delay_ns, plan};
use crate::os;
use crate::os::host;
use crate::os::sync::atomic::Ordering;
use crate::os::user::IoVector;
use crate::queue::Cqe;
use crate::request::data::OpData;
use crate::request::data::net::Data;
use crate::request::op::Caps;
use crate::request::shown::Kind;
use crate::request::{Flags, Phase, RequestId};
use crate::ring::row::{HELD, LATE, Outcome};
use crate::ring::{Attempt, Core};
use crate::wait::timers::Clock;

/// The longest delay of a completion.
const LATEST_NS: u64 = 2_000_000;
/// The time after which a completion that is only kept back for a refusal comes without a call of `enter`, to programs that look at the CQ.
const KEPT_NS: u64 = 100_000_000;
/// The number of such completions after which no more are kept back.
const MOST_UNCLAIMED: u8 = 8;
/// The maximal number of times that rubbish is written over data before they arrive.
const MOST_ROUNDS: u64 = 4;

/// The purposes of numbers that are drawn from a fault's value.
enum Purpose {
    Hold = 1,
    Rounds = 2,
}

impl Core {
    /// Remembers the memory of a request that was consumed from the SQ, if its completion will come late, or a checker of memory hides
    /// the memory that requests fill.
    pub(in crate::observe::chaos) fn remember_memory(&mut self, id: RequestId) {
        let late = self.will_meet(id, Fault::Late);
        let Some(value) = late.or_else(|| hides_memory().then_some(0)) else { return };
        let request = &self[id];
        let mut memory = Memory::of(request.op, &request.sqe, value);
        let selects = Flags::of_sqe(request.sqe.flags).has(Flags::BUFFER_SELECT);
        // Operations that do not transfer data have copied what they read, or do so when they are prepared.
        if selects || late.is_none() || !request.op.faults.has(Fault::Short) {
            memory.reads_selected();
        }
        if selects {
            memory.fills_selected(&[]);
        }
        let serial = request.serial;
        if selects || !memory.is_empty() {
            self.instruments_mut().chaos.in_flight.insert(serial, memory);
        }
    }

    /// Returns the value of a fault that the request meets if it comes to that, without meeting it now.
    pub(in crate::observe::chaos) fn will_meet(&self, id: RequestId, fault: Fault) -> Option<u64> {
        let request = &self[id];
        let who = Who { process: PATH.load(Ordering::Relaxed), ring: self.instruments().chaos.ring };
        let subject = Subject { who, serial: request.serial, fault };
        let plan = plan().filter(|_| request.op.faults.has(fault))?;
        plan.decide(&subject).map(|injection| injection.value)
    }

    fn memory_in_flight(&mut self, id: RequestId) -> Option<&mut Memory> {
        let serial = self[id].serial;
        self.instruments_mut().chaos.in_flight.get_mut(serial)
    }

    /// Holds a late request that writes or sends data back before its first attempt: data that the program changes meanwhile are
    /// transferred as they are then. Returns the outcome in place of the attempt.
    pub(in crate::observe::chaos) fn hold_back(&mut self, id: RequestId) -> Result<(), Outcome> {
        if !self.may_come_late(id) {
            return Ok(());
        }
        let room = self.instruments().chaos.in_flight.room();
        let Some(memory) = self.memory_in_flight(id).filter(|memory| memory.is_read()) else { return Ok(()) };
        memory.copy_read(room);
        let moment = memory.draw(Purpose::Hold as u64);
        // A polled ring waits for requests only that are in flight. A ring that defers goes on only when the program waits for it, which it
        // need not do before it waits for the other end of what it has sent.
        let may_be_held = !self.is(IORING_SETUP_IOPOLL) && !self.defers();
        // The program may close its descriptor as soon as the submission returns.
        if !may_be_held || self[id].hold_file().is_err() {
            return Ok(());
        }
        let Some(value) = self.meets_late(id) else { return Ok(()) };
        let held_ns = moment % lateness_ns(value).max(1);
        if let Some(memory) = self.memory_in_flight(id) {
            memory.held_ns = held_ns;
        }
        self[id].op = &HELD.op;
        self.instruments_mut().chaos.held.push(id);
        self.arm_late(id, held_ns);
        Err(Outcome::Armed)
    }

    /// Returns the fault's value if the request meets the fault, which is noted in the log once.
    fn meets_late(&mut self, id: RequestId) -> Option<u64> {
        if self.memory_in_flight(id).is_some_and(|memory| memory.is_logged) {
            return self.will_meet(id, Fault::Late);
        }
        let value = self.request_meets(id, Fault::Late)?;
        if let Some(memory) = self.memory_in_flight(id) {
            memory.is_logged = true;
        }
        Some(value)
    }

    /// Makes the first attempts of requests that are held back, if another request on their file begins: transfers keep their order.
    pub(in crate::observe::chaos) fn let_go_before(&mut self, id: RequestId) {
        if self.instruments().chaos.held.is_empty() || !self[id].op.caps.has(Caps::FILE) {
            return;
        }
        let has_second = self[id].op.arguments.iter().any(|one| matches!(one.kind, Kind::SecondFile(_)));
        let fd = self[id].file.fd();
        let held = core::mem::take(&mut self.instruments_mut().chaos.held);
        for other in held {
            if !self.is_held(other) {
                continue;
            }
            if has_second || os::same_file(self[other].file.fd(), fd) {
                self.ends_hold_now(other);
            } else {
                self.instruments_mut().chaos.held.push(other);
            }
        }
        self.let_train_go();
    }

    fn is_held(&self, id: RequestId) -> bool {
        self.requests().get(id).is_some_and(|request| core::ptr::eq(request.op, &raw const HELD.op))
    }

    /// Ends the hold of a request by its first attempt.
    pub fn ends_hold_now(&mut self, id: RequestId) {
        self.attempt(id).ends_hold();
        self.begins_to_store(id);
        self.start(id);
    }

    /// Makes the first attempts of all requests that are held back.
    pub(in crate::observe::chaos) fn end_holds(&mut self) {
        let held = core::mem::take(&mut self.instruments_mut().chaos.held);
        for id in held {
            if self.is_held(id) {
                self.ends_hold_now(id);
            }
        }
        self.let_train_go();
    }

    /// Ends what chaos does to the memory of a request that is cancelled and does not run: the program may use it, even before the CQE.
    #[cold]
    pub(crate) fn cancels_under_chaos(&mut self, id: RequestId) {
        if let Some(memory) = self.memory_in_flight(id) {
            memory.forget_read();
            self.end_redirection(id, 0);
        }
    }

    /// Gives the memory of a request back that ends with its ring, without a CQE.
    #[cold]
    pub(crate) fn drops_under_chaos(&mut self, id: RequestId) {
        self.cancels_under_chaos(id);
        let serial = self[id].serial;
        self.instruments_mut().chaos.storing.remove(&serial);
        if let Some(memory) = self.instruments_mut().chaos.in_flight.remove(serial) {
            // If the memory is gone, nobody waits for it.
            let _ = memory.put_data();
        }
    }

    /// Lets a late read or receive fill memory of the engine instead of the program's, if that is known before its first attempt.
    pub(in crate::observe::chaos) fn redirect(&mut self, id: RequestId) {
        let in_place = Flags::BUFFER_SELECT.with(Flags::REGISTERED_BUFFER).with(Flags::MULTISHOT);
        let request = &self[id];
        if !request.op.faults.has(Fault::BufferRubbish)
            || request.flags.has(in_place)
            || !self.may_come_late(id)
            || os::identity(request.file.fd()).is_err()
        {
            return;
        }
        let filled = self.memory_of(id);
        let in_flight = &self.instruments().chaos.in_flight;
        // Requests that fill the same memory would take each other's rubbish for its contents. A checker reports what a system call does
        // to memory that is not there.
        let is_poisoned = |piece: &IoVector| host::is_poisoned(piece.base as usize, piece.length as usize);
        if in_flight.holds_rubbish(&filled) || hides_memory() && filled.iter().any(is_poisoned) {
            return;
        }
        let room = in_flight.room();
        let Some(memory) = self.memory_in_flight(id) else { return };
        let Some(places) = memory.stand_in(filled, room) else { return };
        // What happens to a request is logged when it happens: the process may end before the completion.
        self.meets_late(id);
        let request = &mut self[id];
        match &mut request.data {
            OpData::Vectors(vectors) => vectors.copy_from_slice(&places),
            OpData::Net(Data::Message(message)) => message.vectors.copy_from_slice(&places),
            OpData::Net(Data::Transfer(transfer)) => transfer.address = places[0].base,
            _ => request.sqe.addr = places[0].base,
        }
    }

    /// Ends a redirection. The request is done, or cancelled.
    fn end_redirection(&mut self, id: RequestId, result: i32) {
        let Some(memory) = self.memory_in_flight(id).filter(|memory| memory.has_stand_in()) else { return };
        let address = memory.first_filled();
        memory.end_stand_in(result.max(0) as u64);
        if matches!(self[id].data, OpData::None) {
            self[id].sqe.addr = address;
        }
    }

    /// Writes other rubbish over some of the memory that late requests are to fill.
    pub(in crate::observe::chaos) fn spoil_in_flight(&mut self) {
        self.instruments_mut().chaos.in_flight.spoil_some();
    }

    /// Delays the completion of a request, if it meets the fault: its data come late, too.
    pub(in crate::observe::chaos) fn completes_late(&mut self, id: RequestId, cqe: &Cqe) -> bool {
        self.end_redirection(id, cqe.res);
        let held_ns = self.memory_in_flight(id).map_or(0, |memory| memory.held_ns);
        let value = if self.may_come_late(id) { self.meets_late(id) } else { None };
        let lateness_ns = value.map(lateness_ns).or_else(|| self.keeps_for_refusal(id));
        let Some(lateness_ns) = lateness_ns else {
            self.end_memory(id);
            return false;
        };
        let first_ns = self.hide_data(id, cqe, lateness_ns.saturating_sub(held_ns));
        self.comes_after(id, first_ns);
        self[id].op = &LATE.op;
        true
    }

    /// Keeps a completion back only because the next call of `enter` is to be refused or interrupted, which it may be only while a completion
    /// is still to come: a request on a file is mostly done when the call that submits it returns. One is enough, and none that the current
    /// call waits for. The next call posts it, so that time decides nothing; returns the time after which it is posted without a call.
    fn keeps_for_refusal(&mut self, id: RequestId) -> Option<u64> {
        const FAULTS: [Fault; 3] = [Fault::EnterAgain, Fault::EnterBusy, Fault::EnterInterrupted];
        let chaos = &self.instruments().chaos;
        let (plan, serial) = (plan()?, chaos.calls + 1);
        let who = Who { process: PATH.load(Ordering::Relaxed), ring: chaos.ring };
        // Where late completions are injected, some are in flight anyway. What is kept back for a fault that then is not met is in no log, so
        // a replay would not have it, and there the program may go another way.
        let is_kept = !plan.settings().faults.has(Fault::Late)
            && chaos.kept.is_none()
            && chaos.unclaimed < MOST_UNCLAIMED
            && FAULTS.iter().any(|&fault| plan.decide(&Subject { who, serial, fault }).is_some())
            && self[id].op.faults.has(Fault::Late)
            && self.may_come_late(id)
            && self.queues().cq_ready() >= chaos.wanted;
        is_kept.then(|| {
            self.instruments_mut().chaos.kept = Some(id);
            KEPT_NS
        })
    }

    /// Posts the completion that is kept back, if there is one: this call of `enter` neither refuses nor is interrupted.
    pub(in crate::observe::chaos) fn pay_what_is_kept(&mut self) {
        if let Some(id) = self.instruments_mut().chaos.kept.take() {
            self.pay(id);
        }
    }

    /// Returns a request that is done, and whose completion is delayed.
    fn late_completion(&self) -> Option<RequestId> {
        self.requests().ids().find(|&id| core::ptr::eq(self[id].op, &raw const LATE.op))
    }

    /// True if a delayed completion is pending, which comes whatever the program does.
    pub(in crate::observe::chaos) fn owes_a_completion(&self) -> bool {
        self.late_completion().is_some()
    }

    /// Posts a delayed completion now, if there is one: that which is kept back, or another.
    pub(in crate::observe::chaos) fn pay_a_completion(&mut self) {
        let kept = self.instruments_mut().chaos.kept.take();
        if let Some(id) = kept.or_else(|| self.late_completion()) {
            self.pay(id);
        }
    }

    fn pay(&mut self, id: RequestId) {
        self.time_mut().timers.cancel(id);
        if let Some(memory) = self.memory_in_flight(id) {
            memory.rounds_left = 0;
        }
        self.comes_now(id);
    }

    /// Delays the notification of a zero-copy send by a timer, if it meets the fault.
    #[cold]
    pub(crate) fn delay_notification(&mut self, notification: RequestId) -> bool {
        let Some(value) = self.request_meets(notification, Fault::NotificationLate) else { return false };
        self.comes_after(notification, lateness_ns(value));
        true
    }

    fn comes_after(&mut self, id: RequestId, delay_ns: u64) {
        let request = &mut self[id];
        request.phase = Phase::Armed;
        request.flags.clear(Flags::UNTRIED);
        self.time_mut().timers.cancel(id);
        self.arm_late(id, delay_ns);
    }

    fn arm_late(&mut self, id: RequestId, delay_ns: u64) {
        self.attempt(id).arm_timer(Clock::Monotonic, os::monotonic_ns() + delay_ns);
    }

    /// True if the completion may be delayed: not of a TIMEOUT, which ends the waits of `enter` when it fires;
    /// not of a LINK_TIMEOUT, which ends with its request; not of a ring that processes share.
    fn may_come_late(&self, id: RequestId) -> bool {
        let request = &self[id];
        !request.flags.has(Flags::CQE_SKIP.with(Flags::SILENCED))
            && !request.op.caps.has(Caps::WATCHES)
            && !matches!(request.data, OpData::Timeout(_))
            && !self.shared().has_page()
    }

    /// Takes the data of a request that is done from the program's memory. They come back after `delay_ns`. Returns the time until they
    /// come, or until rubbish is to be written over their memory again.
    fn hide_data(&mut self, id: RequestId, cqe: &Cqe, delay_ns: u64) -> u64 {
        let selects = self[id].flags.has(Flags::BUFFER_SELECT);
        let fills = cqe.res >= 0 && (!selects || cqe.flags & IORING_CQE_F_BUFFER != 0);
        let room = self.instruments().chaos.in_flight.room();
        let Some(memory) = self.memory_in_flight(id).filter(|_| fills) else { return delay_ns };
        memory.take_data(cqe.res as u64, room);
        memory.rounds_left = memory.draw(Purpose::Rounds as u64) % MOST_ROUNDS;
        memory.round_ns = delay_ns / (memory.rounds_left + 1);
        memory.round_ns
    }

    /// Posts a delayed completion, unless rubbish is to be written over its data once more.
    pub fn comes_now(&mut self, id: RequestId) {
        if let Some(memory) = self.memory_in_flight(id).filter(|memory| memory.rounds_left > 0) {
            memory.rounds_left -= 1;
            memory.spoil_data();
            let round_ns = memory.round_ns;
            return self.arm_late(id, round_ns);
        }
        let chaos = &mut self.instruments_mut().chaos;
        if chaos.kept == Some(id) {
            chaos.kept = None;
            chaos.unclaimed += 1;
        }
        self[id].op = self.identity().table.lookup(self[id].sqe.opcode);
        self.end_memory(id);
        self.complete_as_noted(id);
    }

    /// Ends the memory of a request whose CQE is about to be posted: writes its data there, or looks at data that it has read.
    fn end_memory(&mut self, id: RequestId) {
        let serial = self[id].serial;
        let Some(memory) = self.instruments_mut().chaos.in_flight.remove(serial) else { return };
        let harm = memory.harm();
        let is_there = memory.put_data();
        if let Some(harm) = harm.or((!is_there).then_some(Harm::Unmapped)) {
            self.note_harm(id, harm);
        }
        if !is_there {
            self[id].result = Errno::EFAULT.negated();
            self[id].fail();
        }
    }

    fn note_harm(&self, id: RequestId, harm: Harm) {
        let request = &self[id];
        let who = Who { process: PATH.load(Ordering::Relaxed), ring: self.instruments().chaos.ring };
        let (serial, opcode, pid) = (request.serial, request.sqe.opcode.into(), os::getpid() as u32);
        if let Some(plan) = plan() {
            plan.note_harm(&Harmed { who, serial, opcode, pid, harm });
        }
    }
}

/// Returns the delay of a completion by the fault's value.
fn lateness_ns(value: u64) -> u64 {
    delay_ns().unwrap_or(value % LATEST_NS)
}

impl Attempt<'_> {
    /// Ends the hold of a request, which is cancelled instead of attempted.
    pub fn ends_hold(&mut self) -> bool {
        let (core, id) = self.core_mut();
        core[id].op = core.identity().table.lookup(core[id].sqe.opcode);
        core.time_mut().timers.cancel(id)
    }

    /// Notes the provided buffers that a request fills.
    #[cold]
    pub fn fills_selected(&mut self, buffers: &[IoVector]) {
        let (core, id) = self.core_mut();
        if let Some(memory) = core.memory_in_flight(id) {
            memory.fills_selected(buffers);
        }
    }
}
