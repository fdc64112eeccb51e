//! Restrictions (`IORING_REGISTER_RESTRICTIONS`) and filters (`IORING_REGISTER_BPF_FILTER`): what a program lets itself do on a
//! ring, or a process on all rings that it makes from then on.

pub mod filters;
pub mod process;
pub(crate) mod register;

use alloc::boxed::Box;

use crate::abi::{Errno, Sqe};
use crate::feature::restrictions::filters::{Filters, Program};

/// Lists of allowed registrations and submissions; everything else of a listed kind is forbidden.
#[derive(Clone, Default)]
pub struct Rules {
    /// One bit for each registration; `None` where nothing is said of registrations.
    registrations: Option<u64>,
    /// The rules for submissions, if there are any.
    submissions: Option<Submissions>,
}

#[derive(Clone, Default)]
struct Submissions {
    /// One bit for each opcode.
    opcodes: [u64; 4],
    flags_allowed: u8,
    flags_required: u8,
}

impl Rules {
    /// Allows this registration, whose number is below 64.
    pub fn allow_registration(&mut self, number: u8) {
        *self.registrations.get_or_insert_default() |= 1 << number;
    }

    /// SQEs with this opcode may be submitted.
    pub fn allow_opcode(&mut self, opcode: u8) {
        self.submissions().opcodes[usize::from(opcode / 64)] |= 1 << (opcode % 64);
    }

    /// SQEs may have these flags, and those that they must have.
    pub fn allow_flags(&mut self, flags: u8) {
        self.submissions().flags_allowed = flags;
    }

    /// SQEs must have these flags.
    pub fn require_flags(&mut self, flags: u8) {
        self.submissions().flags_required = flags;
    }

    /// Restricts registrations and submissions both: whatever no rule allows is forbidden.
    pub fn say_of_both(&mut self) {
        self.registrations.get_or_insert_default();
        self.submissions();
    }

    fn submissions(&mut self) -> &mut Submissions {
        self.submissions.get_or_insert_default()
    }
}

impl Submissions {
    fn allow(&self, sqe: &Sqe) -> bool {
        self.opcodes[usize::from(sqe.opcode / 64)] & (1 << (sqe.opcode % 64)) != 0
            && sqe.flags & self.flags_required == self.flags_required
            && sqe.flags & !(self.flags_allowed | self.flags_required) == 0
    }
}

/// The restrictions of a ring, or of a process.
#[derive(Clone, Default)]
pub struct Restrictions {
    rules: Option<Box<Rules>>,
    filters: Option<Box<Filters>>,
    /// The rules hold: the ring is enabled, or they are the process's.
    in_force: bool,
    /// The rules hold for registrations.
    of_process: bool,
}

impl Restrictions {
    /// True if there is anything that a request has to be held against.
    #[inline]
    pub fn are_there(&self) -> bool {
        self.rules.is_some() || self.filters.is_some()
    }

    /// True if there are rules.
    pub fn have_rules(&self) -> bool {
        self.rules.is_some()
    }

    /// Sets the ring's rules, for as long as the ring lives.
    pub fn set(&mut self, rules: Box<Rules>) {
        debug_assert!(self.rules.is_none(), "a ring gets them once");
        self.rules = Some(rules);
    }

    /// Sets the rules of a process, which are in force at once.
    pub fn set_for_process(&mut self, rules: Box<Rules>) {
        self.set(rules);
        (self.in_force, self.of_process) = (true, true);
    }

    /// The ring is enabled.
    pub fn enforce(&mut self) {
        self.in_force = true;
    }

    /// Adds a filter; see [`Filters::add`].
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn filter(&mut self, opcode: u8, program: Program, denies_others: bool) -> Result<(), Errno> {
        self.filters.get_or_insert_default().add(opcode, program, denies_others)
    }

    /// The filters, where they know of an operation.
    #[inline]
    pub fn filters_of(&self, opcode: u8) -> Option<&Filters> {
        self.filters.as_deref().filter(|filters| filters.know(opcode))
    }

    /// True if this registration may be made. A ring that is not enabled is set up by its maker, whatever its own rules say.
    pub fn allow_registration(&self, number: u32) -> bool {
        let rules = self.rules.as_ref().filter(|_| self.in_force || self.of_process);
        let allowed = rules.and_then(|rules| rules.registrations);
        allowed.is_none_or(|allowed| number < 64 && allowed & (1 << number) != 0)
    }

    /// True if this SQE may be submitted, by the rules.
    #[inline]
    pub fn allow(&self, sqe: &Sqe) -> bool {
        let Some(rules) = &self.rules else { return true };
        rules.submissions.as_ref().is_none_or(|submissions| submissions.allow(sqe))
    }
}
