//! Restrictions (`IORING_REGISTER_RESTRICTIONS`) and filters (`IORING_REGISTER_BPF_FILTER`): they limit the requests and
//! registrations of a ring, or of all rings that a process creates from then on.

pub mod filters;
pub(crate) mod register;

use alloc::boxed::Box;

use crate::abi::{Errno, Sqe};
use crate::feature::restrictions::filters::{Filters, Program};
use crate::os::sync::Mutex;

/// Lists of allowed registrations and submissions; everything else of a listed kind is forbidden.
#[derive(Clone, Default)]
pub struct Rules {
    /// One bit for each allowed registration; `None` if registrations are not restricted.
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

    /// Allows SQEs with this opcode.
    pub fn allow_opcode(&mut self, opcode: u8) {
        self.submissions().opcodes[usize::from(opcode / 64)] |= 1 << (opcode % 64);
    }

    /// Allows SQEs with these flags, beside the required ones.
    pub fn allow_flags(&mut self, flags: u8) {
        self.submissions().flags_allowed = flags;
    }

    /// Requires these flags of SQEs.
    pub fn require_flags(&mut self, flags: u8) {
        self.submissions().flags_required = flags;
    }

    /// Restricts both registrations and submissions: whatever no rule allows is forbidden.
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
    /// The rules apply: the ring is enabled, or the rules are the process's.
    in_force: bool,
    /// The rules are the process's, so they apply to registrations even before the ring is enabled.
    of_process: bool,
}

impl Restrictions {
    /// True if requests must be checked against rules or filters.
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

    /// Sets the rules of a process, which apply immediately.
    pub fn set_for_process(&mut self, rules: Box<Rules>) {
        self.set(rules);
        (self.in_force, self.of_process) = (true, true);
    }

    /// Makes the rules apply, because the ring is enabled.
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

    /// Returns the filters, if they concern an operation.
    #[inline]
    pub fn filters_of(&self, opcode: u8) -> Option<&Filters> {
        self.filters.as_deref().filter(|filters| filters.know(opcode))
    }

    /// True if this registration is allowed. A ring's own rules do not apply until the ring is enabled.
    pub fn allow_registration(&self, number: u32) -> bool {
        let rules = self.rules.as_ref().filter(|_| self.in_force || self.of_process);
        let allowed = rules.and_then(|rules| rules.registrations);
        allowed.is_none_or(|allowed| number < 64 && allowed & (1 << number) != 0)
    }

    /// True if the rules allow this SQE.
    #[inline]
    pub fn allow(&self, sqe: &Sqe) -> bool {
        let Some(rules) = &self.rules else { return true };
        rules.submissions.as_ref().is_none_or(|submissions| submissions.allow(sqe))
    }
}

/// The restrictions and filters that the process has registered without a ring, for the rings that it creates. Forked children inherit
/// them with the memory of the process.
static OF_PROCESS: Mutex<Option<Restrictions>> = Mutex::new(None);

/// Returns the restrictions of a ring that the process creates.
pub fn inherited() -> Restrictions {
    OF_PROCESS.lock().clone().unwrap_or_default()
}

/// Changes the restrictions of the process.
///
/// # Errors
/// The errors of `change`. After an error nothing has changed.
pub fn change_inherited<R>(change: impl FnOnce(&mut Restrictions) -> Result<R, Errno>) -> Result<R, Errno> {
    let mut of_process = OF_PROCESS.lock();
    let mut changed = of_process.clone().unwrap_or_default();
    let result = change(&mut changed)?;
    *of_process = Some(changed);
    Ok(result)
}

/// True if the process has any restrictions.
pub fn are_inherited() -> bool {
    OF_PROCESS.lock().is_some()
}
