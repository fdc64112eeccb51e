//! What the programs have in common: data that can be told from any other, and a directory that is gone in the end.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in a file of each program.
pub const FILE_BYTES: usize = 4 << 20;
/// Bytes of one read or write.
pub const BLOCK: usize = 64 << 10;
/// Connections of each echo server.
pub const CONNECTIONS: usize = 6;
/// Bytes that each connection sends and gets back.
pub const ECHO_BYTES: usize = 2 << 20;

/// The same bytes for the same `seed`, and others for others.
pub fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// FNV-1a, to be continued from `hash`.
pub fn checksum(hash: u64, bytes: &[u8]) -> u64 {
    let start = if hash == 0 { 0xcbf2_9ce4_8422_2325 } else { hash };
    bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A directory below the current one, removed with all that is in it.
pub struct Directory(PathBuf);

impl Default for Directory {
    fn default() -> Self {
        Self::new()
    }
}

impl Directory {
    /// A new, empty one.
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("files.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::current_dir().unwrap().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names in it.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The file holds exactly these bytes, read without io_uring.
pub fn assert_holds(path: &Path, expected: &[u8]) {
    assert!(std::fs::read(path).unwrap() == expected, "{} holds something else", path.display());
}

/// Both ends of a pipe.
pub fn pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    std::io::pipe().unwrap()
}
