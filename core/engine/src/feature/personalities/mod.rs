//! Personalities: credentials that a program registers while it has them, for requests to come.
//!
//! A thread that holds them is cloned at registration, the cloner. It does nothing but clone workers
//! for requests that name the personality, and ends when the last such registration is gone.

mod keep;
pub(crate) mod register;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::process::credentials::{Credentials, Whose};

/// A ring's personalities.
#[derive(Default)]
pub struct Personalities {
    registered: BTreeMap<u16, Credentials>,
    /// The last number that was given out.
    last: u16,
    /// Unregistered while requests still needed them.
    fading: Vec<Credentials>,
    /// Credentials of submitters whose requests are under way.
    submitters: Vec<Credentials>,
}

impl Personalities {
    /// The credentials for a request that names this personality.
    pub fn find(&self, number: u16) -> Option<Whose> {
        self.registered.get(&number).map(|&credentials| Whose::Personality(credentials))
    }

    /// The next number that is free; numbers are not used again before all had their turn.
    fn next_number(&mut self) -> Option<u16> {
        (0..u16::MAX).find_map(|_| {
            self.last = self.last.checked_add(1).unwrap_or(1);
            (!self.registered.contains_key(&self.last)).then_some(self.last)
        })
    }

    /// In a child after `fork`: the cloners are the parent's.
    pub fn forked(&mut self) {
        self.fading.clear();
        self.submitters.clear();
    }
}
