//! Personalities: a program registers its current credentials, for later requests.
//!
//! At registration a thread with these credentials is cloned, the cloner. The cloner only clones workers for
//! requests that name the personality, and ends when the last such registration is gone.

pub(crate) mod register;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::process::credentials::{Credentials, Whose};

/// A ring's personalities.
#[derive(Default)]
pub struct Personalities {
    registered: BTreeMap<u16, Credentials>,
    /// The number that was assigned last.
    last: u16,
    /// Credentials that were unregistered while requests still needed them.
    fading: Vec<Credentials>,
    /// Credentials of submitters with requests in progress.
    submitters: Vec<Credentials>,
}

impl Personalities {
    /// Returns the credentials for a request that names this personality.
    pub fn find(&self, number: u16) -> Option<Whose> {
        self.registered.get(&number).map(|&credentials| Whose::Personality(credentials))
    }

    /// Returns the next free number; a number is reused only after all others have been used.
    fn next_number(&mut self) -> Option<u16> {
        (0..u16::MAX).find_map(|_| {
            self.last = self.last.checked_add(1).unwrap_or(1);
            (!self.registered.contains_key(&self.last)).then_some(self.last)
        })
    }

    /// Forgets pinned credentials in a child after `fork`: the cloners are the parent's.
    pub fn forked(&mut self) {
        self.fading.clear();
        self.submitters.clear();
    }
}
