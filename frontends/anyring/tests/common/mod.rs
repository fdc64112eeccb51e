//! Helpers that the tests share.
#![allow(dead_code, unused_imports, reason = "each test program uses its own part")]

// Imports for all tests.
pub use anyring::low::{Cancel, Cqe, Sqe, Sqe128};
pub use anyring::{AsyncRing, BufferExt, Builder, Engine, Fd};
pub use std::io::{Read, Write};
pub use std::net::{TcpListener, TcpStream};
pub use std::os::fd::{AsFd, AsRawFd};
pub use std::os::unix::fs::FileExt;
pub use std::os::unix::net::UnixStream;
pub use std::path::PathBuf;
pub use std::process::Command;
pub use std::sync::Arc;
pub use std::sync::atomic::{AtomicBool, Ordering};
pub use std::time::{Duration, Instant};

use anyring::{Buffer, BufferMut, Ring};
pub use anyring_both::{both, by};
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// True if this machine's kernel allows its io_uring. If not, the test counts as skipped.
pub fn kernel_available() -> bool {
    let is_available = Builder::new(1).engine(Engine::Kernel).build().is_ok();
    if !is_available {
        anyring_tally::skipped("no kernel ring");
    }
    is_available
}

/// Runs `body` on the user engine, and on the kernel engine if the machine has it.
pub fn both(body: impl Fn(Engine)) {
    body(Engine::User);
    if kernel_available() {
        body(Engine::Kernel);
    }
}

/// Makes a ring.
pub fn ring(engine: Engine) -> Ring {
    Builder::new(16).engine(engine).build().unwrap()
}

/// Makes two connected sockets.
pub fn pair() -> (Fd, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    (one.into(), other)
}

/// The number of buffers that are not freed.
#[derive(Clone, Default)]
pub struct Count(Arc<AtomicUsize>);

impl Count {
    pub fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub fn buffer(&self) -> Counted {
        self.0.fetch_add(1, Ordering::SeqCst);
        Counted { bytes: vec![0; 64].into(), count: self.clone(), panics: false }
    }
}

/// A buffer that counts itself, and may panic when it is freed.
pub struct Counted {
    bytes: Box<[u8]>,
    count: Count,
    pub panics: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.0.fetch_sub(1, Ordering::SeqCst);
        assert!(!self.panics, "panics where it is freed, as the test wants");
    }
}

// SAFETY: the trait's contract holds for the box.
unsafe impl Buffer for Counted {
    fn pointer(&self) -> *const u8 {
        self.bytes.pointer()
    }

    fn length(&self) -> usize {
        self.bytes.length()
    }
}

// SAFETY: the trait's contract holds for the box.
unsafe impl BufferMut for Counted {
    fn pointer_mut(&mut self) -> *mut u8 {
        self.bytes.pointer_mut()
    }

    fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    unsafe fn set_length(&mut self, _length: usize) {}
}

/// A temporary directory, removed with its content.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Directory {
        Directory::below(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    pub fn below(home: &std::path::Path) -> Directory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("anyring-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = home.join(name);
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
