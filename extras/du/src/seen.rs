//! Which files were counted already.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, PoisonError};

/// Which file it is: the device, and the number there.
pub type Identity = (u64, u64);

/// Mixes the bits of the two numbers; nobody can gain by choosing them.
#[derive(Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(29) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

type Set = HashSet<Identity, BuildHasherDefault<Mix>>;

/// A set of files, for several threads.
pub struct Seen {
    parts: [Mutex<Set>; 16],
}

impl Seen {
    /// None yet.
    pub fn new() -> Seen {
        Seen { parts: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Puts a file in; whether it was not there.
    pub fn insert(&self, file: Identity) -> bool {
        let part = &self.parts[(file.1 % 16) as usize];
        part.lock().unwrap_or_else(PoisonError::into_inner).insert(file)
    }
}
