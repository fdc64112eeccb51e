//! The functions that `anyring::everywhere!()` defines, called by the C library's names only, on both engines.

use linux_raw_sys::io_uring as abi;
use std::ffi::{c_int, c_long, c_void};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

anyring::everywhere!();

const TEST: &str = "ANYRING_TEST";

/// Runs `body` in a separate process for each engine, and asserts that this engine was in use at the end; `name` is the
/// test's name.
fn both(name: &str, body: fn()) {
    if std::env::var_os(TEST).is_some() {
        return body();
    }
    // Other tests may have created rings in this process, so this test does not use the C library's names to check
    // whether the kernel has io_uring.
    let kernel = anyring::Builder::new(1).engine(anyring::Engine::Kernel).build().is_ok();
    for engine in if kernel { ["user", "kernel"].as_slice() } else { &["user"] } {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture"]);
        command.env(TEST, "1").env("ANYRING_ENGINE", engine).env("ANYRING_LOG", "info");
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "{engine}: {}\n{}{}", output.status, text[0], text[1]);
        assert!(text[1].contains(&format!("engine={engine}")), "{engine}: {}", text[1]);
    }
}

/// A ring with setup flags that the kernel is too old for is the user engine's, among rings of the kernel.
#[test]
fn a_ring_beside_the_kernels() {
    const SQE_MIXED: u32 = 1 << 19;
    if std::env::var_os(TEST).is_none() {
        let output = |engine: &str| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["a_ring_beside_the_kernels", "--exact", "--nocapture"]);
            command.env(TEST, "1").env("ANYRING_ENGINE", engine).env("ANYRING_LOG", "info");
            let output = command.output().unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        if anyring::Builder::new(1).engine(anyring::Engine::Kernel).build().is_err() {
            anyring_tally::skipped("no kernel ring");
            return;
        }
        let (kernel_makes_it, _) = output("kernel");
        let (works, log) = output("auto");
        assert!(works, "{log}");
        assert_eq!(log.contains("engine=kernel+user rings=1 "), !kernel_makes_it, "{log}");
        return;
    }
    let plain = Ring::new();
    let mixed = Ring::with(SQE_MIXED);
    for ring in [&plain, &mixed, &plain] {
        // SAFETY: an SQE of zeros is a NOP.
        assert_eq!(ring.one(unsafe { std::mem::zeroed() }), 0);
    }
    // SAFETY: the descriptor belongs to the test.
    let reused = unsafe {
        libc::close(mixed.fd);
        Ring::new()
    };
    assert_eq!(reused.fd, mixed.fd);
    // SAFETY: as above.
    assert_eq!(reused.one(unsafe { std::mem::zeroed() }), 0);
}

/// A ring whose three parts are mapped separately, as the first programs with `io_uring` did.
struct Ring {
    fd: c_int,
    params: abi::io_uring_params,
    submission: *mut u8,
    completion: *mut u8,
    entries: *mut abi::io_uring_sqe,
}

fn enter(fd: c_int, submit: u32, least: u32) -> c_long {
    let flags = abi::IORING_ENTER_GETEVENTS;
    // SAFETY: the submitted entries name memory that stays.
    unsafe { libc::syscall(libc::SYS_io_uring_enter, fd, submit, least, flags, 0, 0) }
}

impl Ring {
    fn new() -> Self {
        Self::with(0)
    }

    fn with(flags: u32) -> Self {
        // SAFETY: a structure of integers.
        let mut params: abi::io_uring_params = unsafe { std::mem::zeroed() };
        params.flags = flags;
        // SAFETY: the call reads and writes the parameters.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, &mut params) } as c_int;
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let map = |bytes: u32, offset: u32| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let bytes = bytes as usize;
            // SAFETY: a new mapping.
            let place =
                unsafe { libc::mmap(null_mut(), bytes, access, libc::MAP_SHARED, fd, i64::from(offset)) };
            assert_ne!(place, libc::MAP_FAILED);
            place.cast::<u8>()
        };
        let submission = map(params.sq_off.array + params.sq_entries * 4, abi::IORING_OFF_SQ_RING);
        let completion = map(params.cq_off.cqes + params.cq_entries * 16, abi::IORING_OFF_CQ_RING);
        let entries = map(params.sq_entries * 64, abi::IORING_OFF_SQES).cast();
        Self { fd, params, submission, completion, entries }
    }

    fn word(&self, ring: *mut u8, offset: u32) -> &AtomicU32 {
        // SAFETY: a word of the ring, which stays mapped.
        unsafe { &*ring.add(offset as usize).cast() }
    }

    fn push(&self, entry: abi::io_uring_sqe) {
        let tail = self.word(self.submission, self.params.sq_off.tail);
        let index = tail.load(Ordering::Relaxed) % self.params.sq_entries;
        // SAFETY: the entry is free: the engine does not read it yet.
        unsafe { self.entries.add(index as usize).write(entry) };
        self.word(self.submission, self.params.sq_off.array + index * 4).store(index, Ordering::Relaxed);
        tail.fetch_add(1, Ordering::Release);
    }

    fn pop(&self) -> Option<(u64, i32)> {
        let head = self.word(self.completion, self.params.cq_off.head);
        let index = head.load(Ordering::Relaxed);
        if index == self.word(self.completion, self.params.cq_off.tail).load(Ordering::Acquire) {
            return None;
        }
        let offset = self.params.cq_off.cqes + index % self.params.cq_entries * 16;
        // SAFETY: the completion was posted.
        let entry = unsafe { &*self.completion.add(offset as usize).cast::<abi::io_uring_cqe>() };
        let result = (entry.user_data, entry.res);
        head.store(index + 1, Ordering::Release);
        Some(result)
    }

    /// Runs one request, and waits for it in spite of interruptions.
    fn one(&self, entry: abi::io_uring_sqe) -> i32 {
        self.push(entry);
        let mut submit = 1;
        loop {
            if enter(self.fd, submit, 1) >= 0 {
                submit = 0;
            }
            if let Some((_, result)) = self.pop() {
                return result;
            }
        }
    }
}

fn request(opcode: abi::io_uring_op, fd: c_int, address: *const c_void, length: u32) -> abi::io_uring_sqe {
    // SAFETY: a structure of integers.
    let mut entry: abi::io_uring_sqe = unsafe { std::mem::zeroed() };
    entry.opcode = opcode as u8;
    entry.fd = fd;
    entry.user_data = 5;
    entry.__bindgen_anon_2.addr = address.expose_provenance() as u64;
    entry.__bindgen_anon_3 = abi::io_uring_sqe__bindgen_ty_3 { rw_flags: 0 };
    entry.len = length;
    entry
}

fn nothing() -> abi::io_uring_sqe {
    request(abi::io_uring_op::IORING_OP_NOP, -1, null(), 0)
}

#[test]
fn rings_are_mapped_polled_and_closed() {
    both("rings_are_mapped_polled_and_closed", || {
        let ring = Ring::new();
        let polled = |by_select: bool| {
            let mut list = [libc::pollfd { fd: ring.fd, events: libc::POLLIN, revents: 0 }];
            // SAFETY: the list has one element; the set is initialised.
            unsafe {
                if !by_select {
                    return libc::poll(list.as_mut_ptr(), 1, 0);
                }
                let mut set: libc::fd_set = std::mem::zeroed();
                libc::FD_SET(ring.fd, &mut set);
                let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
                libc::select(ring.fd + 1, &mut set, null_mut(), null_mut(), &mut time)
            }
        };
        for _ in 0..20 {
            assert_eq!((polled(false), polled(true)), (0, 0));
            ring.push(nothing());
            assert_eq!(enter(ring.fd, 1, 0), 1);
            assert_eq!((polled(false), polled(true)), (1, 1));
            assert_eq!((ring.pop(), ring.pop()), (Some((5, 0)), None));
        }
        // SAFETY: the descriptors belong to this test.
        let duplicate = unsafe { libc::dup(ring.fd) };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::close(ring.fd) }, 0);
        assert_eq!(enter(duplicate, 0, 0), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::close(duplicate) }, 0);
        assert_eq!(enter(duplicate, 0, 0), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
    });
}

#[test]
fn handlers_may_close_descriptors() {
    extern "C" fn handler(_: c_int) {
        // SAFETY: the handler closes only its own duplicate.
        unsafe {
            let error = *libc::__errno_location();
            libc::close(libc::dup(2));
            *libc::__errno_location() = error;
        }
    }
    both("handlers_may_close_descriptors", || {
        let often = libc::timeval { tv_sec: 0, tv_usec: 100 };
        let timer = libc::itimerval { it_interval: often, it_value: often };
        // SAFETY: the handler is async-signal-safe.
        unsafe {
            libc::signal(libc::SIGALRM, handler as *const () as libc::sighandler_t);
            assert_eq!(libc::setitimer(libc::ITIMER_REAL, &timer, null_mut()), 0);
        }
        let ring = Ring::new();
        for _ in 0..10_000 {
            assert_eq!(ring.one(nothing()), 0);
        }
    });
}

#[test]
fn privileges_that_are_dropped_are_dropped_for_requests() {
    // SAFETY: only reads an id.
    if unsafe { libc::geteuid() } != 0 {
        anyring_tally::skipped("not root");
        return;
    }
    both("privileges_that_are_dropped_are_dropped_for_requests", || {
        const NOBODY: u32 = 65534;
        let path = std::env::temp_dir().join(format!("anyring-everywhere-{}", std::process::id()));
        std::fs::write(&path, "secret").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let ring = Ring::new();
        let open = || {
            let place = name.as_ptr().cast();
            let mut open = request(abi::io_uring_op::IORING_OP_OPENAT, libc::AT_FDCWD, place, 0);
            // Forces the request to a worker.
            open.flags = 1 << abi::io_uring_sqe_flags_bit::IOSQE_ASYNC_BIT as u8;
            ring.one(open)
        };
        assert!(open() >= 0);
        // SAFETY: drops privileges of this process.
        assert_eq!(unsafe { libc::seteuid(NOBODY) }, 0);
        assert_eq!(open(), -libc::EACCES);
        // SAFETY: restores the privileges.
        assert_eq!(unsafe { libc::seteuid(0) }, 0);
        assert!(open() >= 0);
        std::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn rings_of_this_crate_beside_those_of_others() {
    both("rings_of_this_crate_beside_those_of_others", || {
        use anyring::op;
        let other = Ring::new();
        let mut ring = anyring::Ring::builder(8).pollable().build().unwrap();
        for _ in 0..3 {
            let file = ring.run(op::open("/dev/zero")).unwrap().unwrap();
            assert_eq!(ring.run(op::read(&file, vec![1; 4])).unwrap().1, [0; 4]);
            // Dropping the file calls the `close` that `everywhere!` defines.
            drop(file);
        }
        drop(ring);
        // The other ring is still open.
        assert_eq!(enter(other.fd, 0, 0), 0);
    });
}
