//! The files that were counted already.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, PoisonError};

/// A file's identity: the device, and the inode number there.
pub type Identity = (u64, u64);

/// A hasher that mixes the bits of the two numbers; there is no gain in choosing them maliciously.
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

/// A set of files that threads share.
pub struct Seen {
    parts: [Mutex<Set>; 16],
}

impl Seen {
    /// Creates an empty set.
    pub fn new() -> Seen {
        Seen { parts: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Inserts a file; returns true if it was new.
    pub fn insert(&self, file: Identity) -> bool {
        let part = &self.parts[(file.1 % 16) as usize];
        part.lock().unwrap_or_else(PoisonError::into_inner).insert(file)
    }
}
