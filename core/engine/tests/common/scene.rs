//! The surroundings that tests make for a ring: directories, and filters for system calls.

use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that goes with the test.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Directory {
        Directory::below(&std::env::temp_dir())
    }

    /// One that a process of the same number has left behind is none.
    pub fn below(parent: &Path) -> Directory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let serial = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("anyring-test-{}-{serial}", std::process::id()));
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                created => {
                    created.unwrap();
                    return Directory(path);
                }
            }
        }
    }

    pub fn path(&self, name: &str) -> CString {
        c_path(&self.0.join(name))
    }

    pub fn file(&self, name: &str, content: &str) -> CString {
        std::fs::write(self.0.join(name), content).unwrap();
        self.path(name)
    }

    pub fn fifo(&self, name: &str) -> CString {
        let path = self.path(name);
        // SAFETY: reads a path.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        path
    }
}

/// A file without a name where temporary files lie, at its beginning. It never has a name if the file system can do that: a test whose
/// calls are refused may not be able to remove one.
pub fn nameless(content: &[u8]) -> File {
    let mut options = File::options();
    options.read(true).write(true);
    let file =
        options.clone().custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap_or_else(|_| {
            let directory = Directory::new();
            options.create_new(true).open(directory.0.join("file")).unwrap()
        });
    file.write_all_at(content, 0).unwrap();
    file
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

pub const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
pub const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
pub const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// One instruction of a filter for system calls.
pub const fn code(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Has the system calls of this process pass the filter from now on.
pub fn filter_calls(filter: &mut [libc::sock_filter]) {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: reads a filter of ours; of this process alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}
