//! Restrictions (`IORING_REGISTER_RESTRICTIONS`): what a program that starts its ring disabled lets
//! itself do once it is enabled.

use alloc::boxed::Box;

use crate::abi::Sqe;

/// What is allowed; everything else is not.
#[derive(Default)]
pub struct Rules {
    /// One bit for each registration.
    registrations: u64,
    /// One bit for each opcode.
    opcodes: [u64; 4],
    flags_allowed: u8,
    flags_required: u8,
}

impl Rules {
    /// This registration may be made; it is below 64.
    pub fn allow_registration(&mut self, number: u8) {
        self.registrations |= 1 << number;
    }

    /// SQEs with this opcode may be submitted.
    pub fn allow_opcode(&mut self, opcode: u8) {
        self.opcodes[usize::from(opcode / 64)] |= 1 << (opcode % 64);
    }

    /// SQEs may have these flags, and those that they must have.
    pub fn allow_flags(&mut self, flags: u8) {
        self.flags_allowed = flags;
    }

    /// SQEs must have these flags.
    pub fn require_flags(&mut self, flags: u8) {
        self.flags_required = flags;
    }

    fn allow(&self, sqe: &Sqe) -> bool {
        self.opcodes[usize::from(sqe.opcode / 64)] & (1 << (sqe.opcode % 64)) != 0
            && sqe.flags & self.flags_required == self.flags_required
            && sqe.flags & !(self.flags_allowed | self.flags_required) == 0
    }
}

/// A ring's restrictions: none, or rules that are in force from when it is enabled.
#[derive(Default)]
pub struct Restrictions {
    rules: Option<Box<Rules>>,
    in_force: bool,
}

impl Restrictions {
    /// Are there any?
    #[inline]
    pub fn are_there(&self) -> bool {
        self.rules.is_some()
    }

    /// These are the ring's, for as long as the ring lives.
    pub fn set(&mut self, rules: Box<Rules>) {
        debug_assert!(self.rules.is_none() && !self.in_force, "a ring gets them once, before it is enabled");
        self.rules = Some(rules);
    }

    /// The ring is enabled.
    pub fn enforce(&mut self) {
        self.in_force = true;
    }

    fn in_force(&self) -> Option<&Rules> {
        self.rules.as_deref().filter(|_| self.in_force)
    }

    /// May this registration be made?
    pub fn allow_registration(&self, number: u32) -> bool {
        self.in_force().is_none_or(|rules| number < 64 && rules.registrations & (1 << number) != 0)
    }

    /// May this SQE be submitted?
    #[inline]
    pub fn allow(&self, sqe: &Sqe) -> bool {
        !self.are_there() || self.in_force().is_none_or(|rules| rules.allow(sqe))
    }
}
