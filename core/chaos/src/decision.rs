//! Decisions: each is a hash of its subject.

use crate::Fault;

/// The unit of rates: a rate is a number of faults per million decisions.
pub const MILLION: u32 = 1_000_000;

/// The path of the first process of a program.
pub const FIRST_PROCESS: u64 = 0;

/// Returns the path of a process that is made by its parent's `number`th `fork`, or that replaces it by its `number`th `exec`.
pub const fn child(parent: u64, number: u64) -> u64 {
    mix(mix(parent ^ 0x6368_696c_6421) ^ number)
}

/// The process and the ring that meet a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    /// The process, by its path: [`FIRST_PROCESS`], or a result of [`child`].
    pub process: u64,
    /// The ring, by its number in the process, from 1; 0 if the fault concerns no ring.
    pub ring: u32,
}

/// The fault that a decision is about, and the request or call that would meet it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subject {
    /// The process and the ring that would meet the fault.
    pub who: Who,
    /// The number of the request or call within its ring.
    pub serial: u64,
    /// The fault.
    pub fault: Fault,
}

/// A decision to inject a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Injection {
    /// The number that identifies the decision. It is equal in every run in which the rings do the same.
    pub id: u64,
    /// The degree of the fault, if it has one (how short, how late). Any number.
    pub value: u64,
}

impl Subject {
    /// The number that identifies the decision.
    pub const fn id(&self) -> u64 {
        let id = mix(self.who.process ^ 0x0061_6e79_7269_6e67);
        let id = mix(id ^ self.who.ring as u64);
        let id = mix(id ^ self.serial);
        mix(id ^ self.fault as u64)
    }

    /// Returns the injection if the seed decides for it, at a rate of `rate` in a [`MILLION`]. The rate of faults after which programs
    /// [try again](Fault::is_tried_again) is limited to one half.
    pub const fn decide(&self, seed: u64, rate: u32) -> Option<Injection> {
        let id = self.id();
        let drawn = mix(id ^ mix(seed));
        let rate = if self.fault.is_tried_again() && rate > MILLION / 2 { MILLION / 2 } else { rate };
        if drawn % MILLION as u64 >= rate as u64 {
            return None;
        }
        Some(Injection { id, value: mix(drawn) })
    }
}

/// The finalizer of SplitMix64: each bit of the result depends on each bit of `number`.
const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(ring: u32, serial: u64) -> Subject {
        Subject { who: Who { process: FIRST_PROCESS, ring }, serial, fault: Fault::Short }
    }

    #[test]
    fn the_same_is_decided_for_the_same() {
        for serial in 0..1000 {
            assert_eq!(subject(1, serial).decide(7, 500_000), subject(1, serial).decide(7, 500_000));
        }
    }

    #[test]
    fn whatever_differs_decides_otherwise() {
        let drawn = |subject: Subject, seed| {
            (0..64).fold(0_u64, |bits, serial| {
                bits << 1 | u64::from(Subject { serial, ..subject }.decide(seed, MILLION / 2).is_some())
            })
        };
        let one = drawn(subject(1, 0), 7);
        assert_ne!(one, drawn(subject(1, 0), 8), "seed");
        assert_ne!(one, drawn(subject(2, 0), 7), "ring");
        assert_ne!(one, drawn(Subject { fault: Fault::Late, ..subject(1, 0) }, 7), "fault");
        let who = Who { process: child(FIRST_PROCESS, 1), ring: 1 };
        assert_ne!(one, drawn(Subject { who, ..subject(1, 0) }, 7), "process");
        assert_ne!(child(FIRST_PROCESS, 1), child(FIRST_PROCESS, 2));
        assert_ne!(child(child(FIRST_PROCESS, 1), 2), child(child(FIRST_PROCESS, 2), 1));
    }

    #[test]
    fn the_rate_is_met() {
        const DECISIONS: u64 = 200_000;
        for rate in [0, 10_000, 300_000, MILLION] {
            let met =
                (0..DECISIONS).filter(|&serial| subject(1, serial).decide(1, rate).is_some()).count() as u64;
            let wanted = DECISIONS * u64::from(rate) / u64::from(MILLION);
            assert!(met.abs_diff(wanted) <= wanted / 20, "{met} of {wanted} at {rate}");
        }
    }
}
