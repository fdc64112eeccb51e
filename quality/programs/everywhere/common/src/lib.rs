//! Parts that the programs have in common: data that can be told from any other, and a directory that is gone in the end.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// True if the program runs among the faults of `anyring chaos`. It does less then, for it runs from many seeds.
pub const FAULTS: bool = cfg!(feature = "faults");
/// Bytes in a file of each program.
pub const FILE_BYTES: usize = if FAULTS { 24 * BLOCK } else { 64 * BLOCK };
/// Bytes of one read or write.
pub const BLOCK: usize = if FAULTS { 8 << 10 } else { 64 << 10 };
/// Connections of each echo server.
pub const CONNECTIONS: usize = if FAULTS { 4 } else { 6 };
/// Bytes that each connection sends and gets back.
pub const ECHO_BYTES: usize = if FAULTS { 100_000 } else { 2 << 20 };
/// How long what is given up is waited for.
pub const SHORT: Duration = Duration::from_millis(if FAULTS { 5 } else { 30 });

/// Does it again while it is interrupted, as every use of a plain read, write or accept has to.
#[macro_export]
macro_rules! retry {
    ($what:expr) => {
        loop {
            match $what {
                // accept(2) wants both tried again: a connection may be gone before it is accepted.
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::Interrupted | std::io::ErrorKind::ConnectionAborted
                    ) => {}
                other => break other,
            }
        }
    };
}

/// Random bytes, the same for the same `seed`, and others for others.
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

/// How many descriptors this process has of a file.
pub fn descriptors_of(path: &Path) -> usize {
    let names =
        std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| std::fs::read_link(entry.unwrap().path()));
    names.filter(|name| name.as_ref().is_ok_and(|name| name == path)).count()
}

/// The two ends of a pipe.
pub fn pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    std::io::pipe().unwrap()
}
