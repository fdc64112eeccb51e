//! Letters between the processes of a ring.
//!
//! - `CANCEL`: the writer looked for requests in vain and asks every process that has some. Each process clears its bit in `asked` and adds
//!   what it found; the writer removes the letter when no process is left to answer. Meanwhile the writer's own request is armed, with a
//!   timer by which it notices that a process died without an answer.
//! - `TIMEOUT`: the writer ends, its timeout does not. The first process that reads the letter takes the timeout over.

use crate::abi::Errno;
use crate::feature::timeouts::{self, Inherited};
use crate::os;
use crate::process::family;
use crate::process::page::{Letter, MAIL, OWNERS, State};
use crate::request::{Phase, RequestId, cancel};
use crate::ring::Core;
use crate::ring::shared::{Shared, Sharing};
use crate::wait::timers::Clock;

const CANCEL: u32 = 1;
const TIMEOUT: u32 = 2;

/// The time between two checks whether the processes that a writer asked still live.
const PATIENCE_NS: u64 = 50_000_000;

/// A cancellation, in values that mean the same in every process.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// `IORING_ASYNC_CANCEL_*`, without the flags that name a file.
    pub flags: u32,
    /// The user data, with `IORING_ASYNC_CANCEL_USERDATA` or no other key.
    pub user_data: u64,
    /// The operation, with `IORING_ASYNC_CANCEL_OP`.
    pub opcode: u8,
}

impl Shared {
    /// Returns the places of other owners, as bits.
    fn others(&self) -> u32 {
        let state = self.state();
        (0..OWNERS)
            .filter(|&place| self.published.owner != Some(place) && state.owners[place].requests > 0)
            .fold(0, |bits, place| bits | 1 << place)
    }

    fn write(&self, letter: Letter) -> bool {
        let state = self.state();
        let Some(place) = state.mail.iter_mut().find(|place| place.kind == 0) else { return false };
        *place = letter;
        state.letters = state.letters.saturating_add(1);
        self.ring_the_bell();
        true
    }
}

impl State {
    fn take_letter(&mut self, place: usize) {
        self.mail[place] = Letter::default();
        self.letters = self.letters.saturating_sub(1);
    }
}

impl Sharing {
    /// Leaves a timeout to the first process that reads of it. Returns false if there is no room.
    pub(super) fn bequeath(&self, timeout: Inherited) -> bool {
        self.0.as_ref().is_some_and(|shared| {
            shared.write(Letter {
                kind: TIMEOUT,
                from: family::own(),
                user_data: timeout.user_data,
                time_ns: timeout.deadline_ns,
                flags: timeout.flags,
                opcode: u32::from(timeout.opcode),
                index: u32::from(timeout.sqe_flags),
                ..Letter::default()
            })
        })
    }

    /// Removes the questions of this process, whose answers nobody will read.
    pub(super) fn withdraw_letters(&self) {
        let Some(shared) = &self.0 else { return };
        let state = shared.state();
        for place in 0..MAIL {
            let letter = &state.mail[place];
            if letter.kind == CANCEL && letter.from == family::own() {
                state.take_letter(place);
            }
        }
    }
}

impl Core {
    /// Asks the other processes to cancel as `question` says; `found` is what this process found. Returns false if there is no process to
    /// ask; otherwise `id` will be completed.
    pub fn ask_others(&mut self, id: RequestId, question: Question, found: Result<usize, Errno>) -> bool {
        let Some(shared) = &self.shared.0 else { return false };
        let asked = shared.others();
        let letter = Letter {
            kind: CANCEL,
            from: family::own(),
            user_data: question.user_data,
            flags: question.flags,
            opcode: u32::from(question.opcode),
            index: id.index,
            generation: id.generation,
            asked,
            count: found.unwrap_or(0) as u32,
            already: u32::from(found == Err(Errno::EALREADY)),
            found: u32::from(found.is_ok()),
            ..Letter::default()
        };
        if asked == 0 || !shared.write(letter) {
            return false;
        }
        // This process counts as a user now: the answer has to reach it.
        self.join();
        self.attempt(id).arm_timer(Clock::Monotonic, os::monotonic_ns().saturating_add(PATIENCE_NS));
        true
    }

    /// Reads letters of other processes, and their answers.
    #[inline]
    pub(in crate::ring) fn read_mail(&mut self) {
        let Some(shared) = &self.shared.0 else { return };
        if shared.state().letters == 0 {
            return;
        }
        for place in 0..MAIL {
            let Some(shared) = &self.shared.0 else { return };
            let letter = shared.state().mail[place];
            match (letter.kind, letter.from == family::own()) {
                (CANCEL, true) => self.read_answers(place, letter),
                (CANCEL, false) => self.answer(place, letter),
                (TIMEOUT, false) => self.inherit(place, letter),
                _ => {}
            }
        }
    }

    /// Cancels requests for another process that asked for it.
    fn answer(&mut self, place: usize, letter: Letter) {
        let Some(shared) = &self.shared.0 else { return };
        let Some(own) = shared.published.owner else { return };
        if letter.asked & (1 << own) == 0 {
            return;
        }
        let question =
            Question { flags: letter.flags, user_data: letter.user_data, opcode: letter.opcode as u8 };
        let result = cancel::answer(self, question);
        let Some(shared) = &self.shared.0 else { return };
        let answered = &mut shared.state().mail[place];
        answered.asked &= !(1 << own);
        match result {
            Ok(count) => answered.count = answered.count.saturating_add(count as u32),
            Err(Errno::EALREADY) => answered.already = 1,
            Err(_) => {}
        }
        answered.found |= u32::from(result.is_ok());
        shared.ring_the_bell();
    }

    /// Completes the request that asked, if no process is left that could answer.
    fn read_answers(&mut self, place: usize, letter: Letter) {
        let Some(shared) = &self.shared.0 else { return };
        let gone = |place: &usize| {
            let process = shared.state().owners[*place].process;
            letter.asked & (1 << place) != 0 && (process == 0 || !family::lives(process))
        };
        let gone = (0..OWNERS).filter(gone).fold(0u32, |bits, place| bits | 1 << place);
        if letter.asked & !gone != 0 {
            return;
        }
        shared.state().take_letter(place);
        let id = RequestId { index: letter.index, generation: letter.generation };
        if self.requests.get(id).is_none_or(|request| request.phase != Phase::Armed) {
            return;
        }
        self.time.timers.cancel(id);
        let found = letter.found != 0 || cancel::is_plural(letter.flags);
        let result = match (found, letter.already != 0) {
            (true, _) => letter.count as i32,
            (false, true) => Errno::EALREADY.negated(),
            (false, false) => Errno::ENOENT.negated(),
        };
        self.complete(id, result);
    }

    /// Takes over a timeout whose process has ended.
    fn inherit(&mut self, place: usize, letter: Letter) {
        let Some(shared) = &self.shared.0 else { return };
        shared.state().take_letter(place);
        timeouts::inherit(
            self,
            Inherited {
                user_data: letter.user_data,
                deadline_ns: letter.time_ns,
                flags: letter.flags,
                opcode: letter.opcode as u8,
                sqe_flags: letter.index as u8,
            },
        );
    }
}

/// Handles the timer of a request that asked: reads answers, and waits on if there is none.
pub fn expire(core: &mut Core, id: RequestId) {
    core.read_mail();
    if core.requests.get(id).is_some() {
        core.attempt(id).arm_timer(Clock::Monotonic, os::monotonic_ns().saturating_add(PATIENCE_NS));
    }
}
