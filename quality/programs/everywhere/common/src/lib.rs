//! Parts that the programs share: test data, echo servers' sizes, temporary directories.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// True if the program runs with the faults that `anyring chaos` injects. The program then does less, because it runs
/// with many seeds.
pub const FAULTS: bool = cfg!(feature = "faults");
/// The size of a program's file in bytes.
pub const FILE_BYTES: usize = if FAULTS { 24 * BLOCK } else { 64 * BLOCK };
/// The size of one read or write in bytes.
pub const BLOCK: usize = if FAULTS { 8 << 10 } else { 64 << 10 };
/// The number of connections of each echo server.
pub const CONNECTIONS: usize = if FAULTS { 4 } else { 6 };
/// The number of bytes that each connection sends and receives back.
pub const ECHO_BYTES: usize = if FAULTS { 100_000 } else { 2 << 20 };
/// The time after which the programs give up a request.
pub const SHORT: Duration = Duration::from_millis(if FAULTS { 5 } else { 30 });

/// Repeats an expression while it is interrupted: every program has to do so after a plain read, write or accept.
#[macro_export]
macro_rules! retry {
    ($what:expr) => {
        loop {
            match $what {
                // accept(2) must be repeated after both errors: a client may have closed its connection before it was
                // accepted.
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

/// Returns pseudo-random bytes, which depend on `seed` only.
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

/// Returns the FNV-1a hash of the bytes, continued from `hash` (0 at the beginning).
pub fn checksum(hash: u64, bytes: &[u8]) -> u64 {
    let start = if hash == 0 { 0xcbf2_9ce4_8422_2325 } else { hash };
    bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A directory below the working directory. Dropping the value removes it with its contents.
pub struct Directory(PathBuf);

impl Default for Directory {
    fn default() -> Self {
        Self::new()
    }
}

impl Directory {
    /// Creates an empty directory.
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("files.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::current_dir().unwrap().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Returns the path of a file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the names in the directory, sorted.
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

/// Asserts that the file has these contents, read without io_uring.
pub fn assert_holds(path: &Path, expected: &[u8]) {
    assert!(std::fs::read(path).unwrap() == expected, "{} holds something else", path.display());
}

/// Returns how many descriptors of a file this process has.
pub fn descriptors_of(path: &Path) -> usize {
    let names =
        std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| std::fs::read_link(entry.unwrap().path()));
    names.filter(|name| name.as_ref().is_ok_and(|name| name == path)).count()
}

/// Returns the two ends of a new pipe.
pub fn pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    std::io::pipe().unwrap()
}
