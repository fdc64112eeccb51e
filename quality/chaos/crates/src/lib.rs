//! What the programs have in common: data that can be told from any other, and a directory that is gone in the end.

use std::path::{Path, PathBuf};

/// Bytes in the file of a program.
pub const FILE: usize = 24 * BLOCK;
/// Bytes of one read or write.
pub const BLOCK: usize = 8192;
/// Connections of an echo server.
pub const CONNECTIONS: u64 = 4;
/// Bytes that each connection sends and gets back.
pub const ECHO: usize = 100_000;

/// The same bytes for the same `seed`, and others for others.
pub fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(next).collect()
}

/// A directory of this process, removed with all that is in it.
pub struct Directory(PathBuf);

impl Directory {
    /// A new, empty one.
    pub fn new() -> Self {
        let path = std::env::current_dir().unwrap().join(format!("chaos.{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names in it.
    pub fn names(&self) -> Vec<String> {
        let name =
            |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        std::fs::read_dir(&self.0).unwrap().map(name).collect()
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self::new()
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
