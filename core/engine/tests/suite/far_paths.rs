//! Paths on file systems that others answer for: who submits such a request is not held up.

use std::fs;

use crate::common::prelude::*;
use anyring_engine::request::version::{self, Version};

/// A file system in user space whose server answers nothing.
struct Mute {
    path: PathBuf,
    server: Option<OwnedFd>,
}

impl Mute {
    /// `None` where the machine has no such file systems, or does not let us mount one.
    fn new(name: &str) -> Option<Mute> {
        let path = std::env::temp_dir().join(format!("anyring-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).ok()?;
        let target = CString::new(path.to_str()?).ok()?;
        // SAFETY: a new descriptor; reads strings of ours.
        unsafe {
            let fd = libc::open(c"/dev/fuse".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            if fd < 0 {
                return None;
            }
            let server = OwnedFd::from_raw_fd(fd);
            let options = CString::new(format!("fd={fd},rootmode=40000,user_id=0,group_id=0")).ok()?;
            let kind = c"fuse.mute".as_ptr();
            let mounted = libc::mount(c"mute".as_ptr(), target.as_ptr(), kind, 0, options.as_ptr().cast());
            (mounted == 0).then(|| Mute { path, server: Some(server) })
        }
    }

    /// The server ends, and with it every question.
    fn end(&mut self) {
        self.server = None;
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        self.end();
        let target = CString::new(self.path.to_str().unwrap()).unwrap();
        // SAFETY: reads a string.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        let _ = fs::remove_dir(&self.path);
    }
}

#[test]
fn the_submitter_does_not_wait() {
    let path_of = |mute: &Mute, name: &str| CString::new(mute.path.join(name).to_str().unwrap()).unwrap();
    if Mute::new("mute").is_none() {
        return skip("no FUSE file system can be mounted");
    }
    let status = [0u64; 32];
    both(|engine| {
        let mut results = Vec::new();
        for which in 0..4 {
            let mut mute = Mute::new(&format!("mute-{engine:?}-{which}")).expect("another could be mounted");
            // What is known of the mounts is believed for some milliseconds: so long a new one may not be seen.
            std::thread::sleep(Duration::from_millis(50));
            let path = path_of(&mute, "file");
            let (address, cwd) = (path.as_ptr() as u64, libc::AT_FDCWD);
            let sqe = match which {
                0 => Sqe { off: status.as_ptr() as u64, ..sqe(IORING_OP_STATX, 1) },
                1 => sqe(IORING_OP_OPENAT, 1),
                2 => sqe(IORING_OP_UNLINKAT, 1),
                _ => Sqe { off: address, len: cwd as u32, ..sqe(IORING_OP_RENAMEAT, 1) },
            };
            let mut ring = Ring::new(engine, 4, 0);
            ring.push(Sqe { fd: cwd, addr: address, ..sqe });
            ring.push(crate::common::sqe(IORING_OP_NOP, 2));
            let server = mute.server.as_ref().unwrap().as_raw_fd();
            results.push(without_waiting(&mut ring, server));
            mute.end();
            // Linux 7.2 was seen to say either.
            let end = ring.collect(1)[0].res;
            install();
            let is_either = end == -libc::ECONNREFUSED && version::current() >= Version::new(7, 2);
            results.push(if is_either { -libc::ENOTCONN } else { end });
        }
        results
    });
}

/// Submits both, of which the NOP must complete. Where the submitter hangs, the server ends, so that the test fails.
fn without_waiting(ring: &mut Ring, server: i32) -> i32 {
    let (told, done) = std::sync::mpsc::channel();
    let guard = std::thread::spawn(move || {
        let late = done.recv_timeout(PATIENCE).is_err();
        if late {
            replace(&server, &File::options().read(true).write(true).open("/dev/null").unwrap());
        }
        late
    });
    assert_eq!(ring.enter(2, 1), 2);
    let first = ring.reap_all();
    let _ = told.send(());
    assert!(!guard.join().unwrap(), "{:?}: the submitter waited", ring.engine);
    assert_eq!(first.len(), 1, "{:?}: {first:?}", ring.engine);
    assert_eq!(first[0].user_data, 2);
    first[0].res
}
