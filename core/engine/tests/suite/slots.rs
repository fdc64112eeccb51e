//! Requests behind an open into a slot of the file table, without a link: the kernel opens during the submission where
//! it need not wait, so the slot has its file by then.

use std::os::unix::fs::OpenOptionsExt;

use crate::common::prelude::*;

/// A directory with two files, whose paths the caches know.
struct Files {
    directory: Directory,
    first: CString,
    second: CString,
}

impl Files {
    fn new() -> Self {
        let directory = Directory::new();
        let (first, second) = (directory.file("first", "1111"), directory.file("second", "2222"));
        Self { directory, first, second }
    }

    fn fifo(&self) -> CString {
        self.directory.fifo("fifo")
    }
}

fn table(engine: Engine, flags: u32, slots: &[i32]) -> Ring {
    let ring = Ring::new(engine, 64, flags);
    ring.register_files(slots);
    ring
}

fn open(path: &CStr, slot: u32, data: u64) -> Sqe {
    Sqe { file_index: slot + 1, ..crate::common::open(data, path, 0) }
}

fn read(slot: i32, buffer: &mut [u8], data: u64) -> Sqe {
    Sqe { flags: FIXED, ..reading(IORING_OP_READ, data, &slot, buffer) }
}

fn close(slot: u32, data: u64) -> Sqe {
    Sqe { fd: 0, file_index: slot + 1, ..sqe(IORING_OP_CLOSE, data) }
}

#[both]
fn what_is_behind_an_open_has_its_file(engine: Engine) -> impl Answer {
    let files = Files::new();
    let other = File::open("/dev/null").unwrap();
    let defers = DEFER;
    let mut seen = Vec::new();
    for before in [-1, other.as_raw_fd()] {
        for (setup, link) in [(0, 0), (0, LINK), (defers, 0)] {
            let mut ring = table(engine, setup, &[before]);
            let (mut within, mut behind) = ([0_u8; 4], [0_u8; 4]);
            let first = ring.run(&[
                Sqe { flags: link, ..open(&files.first, 0, 1) },
                sqe(IORING_OP_NOP, 2),
                read(0, &mut within, 3),
                close(0, 4),
            ]);
            let second = ring.run(&[read(0, &mut behind, 5)]);
            seen.push((results(&first), results(&second), within, behind));
        }
    }
    seen
}

#[both]
fn a_read_behind_the_open_of_its_slot_is_cancelled(engine: Engine) -> impl Answer {
    let files = Files::new();
    let fifo = files.fifo();
    let mut ring = table(engine, 0, &[-1]);
    let mut buffer = [0_u8; 4];
    results(&ring.run(&[
        Sqe { op_flags: libc::O_RDWR as u32, ..open(&fifo, 0, 1) },
        read(0, &mut buffer, 2),
        cancel(3, 2, 0),
    ]))
}

#[both]
fn a_poll_behind_the_open_of_its_slot_is_removed(engine: Engine) -> impl Answer {
    let files = Files::new();
    let fifo = files.fifo();
    let mut ring = table(engine, 0, &[-1]);
    results(&ring.run(&[
        Sqe { op_flags: libc::O_RDWR as u32, ..open(&fifo, 0, 1) },
        Sqe { fd: 0, flags: FIXED, op_flags: 1, ..sqe(IORING_OP_POLL_ADD, 2) },
        Sqe { addr: 2, ..sqe(IORING_OP_POLL_REMOVE, 3) },
    ]))
}

#[test]
fn an_open_says_how_to_look_for_its_path() {
    if !has_openat2() {
        return;
    }
    both(|engine| {
        let mut ring = table(engine, 0, &[-1]);
        let (addr, fd) = (c"/proc/self/exe".as_ptr() as u64, libc::AT_FDCWD);
        [0, libc::RESOLVE_NO_XDEV, libc::RESOLVE_NO_SYMLINKS, libc::RESOLVE_NO_MAGICLINKS].map(|resolve| {
            let how = [libc::O_RDONLY as u64, 0, resolve];
            let off = how.as_ptr() as u64;
            results(&ring.run(&[Sqe { fd, addr, off, len: 24, file_index: 1, ..sqe(IORING_OP_OPENAT2, 1) }]))
        })
    });
}

#[both]
fn a_close_takes_no_later_file(engine: Engine) -> impl Answer {
    let files = Files::new();
    let missing = c"/nowhere/at/all";
    let mut buffer = [0_u8; 4];
    [&files.first, missing].map(|first| {
        let mut ring = table(engine, 0, &[-1]);
        let seen = results(&ring.run(&[open(first, 0, 1), close(0, 2), open(&files.second, 0, 3)]));
        (seen, results(&ring.run(&[read(0, &mut buffer, 4)])))
    })
}

#[both]
fn a_file_that_is_put_in_behind_an_open(engine: Engine) -> impl Answer {
    let files = Files::new();
    let mut ring = table(engine, 0, &[-1]);
    let mut buffer = [0_u8; 4];
    let file = File::open(files.second.to_str().unwrap()).unwrap();
    let fd = file.as_raw_fd();
    let update = Sqe { addr: (&raw const fd) as u64, len: 1, ..sqe(IORING_OP_FILES_UPDATE, 2) };
    (results(&ring.run(&[open(&files.first, 0, 1), update, read(0, &mut buffer, 3)])), buffer)
}

#[both]
fn a_slot_is_emptied_by_an_update_behind_its_open(engine: Engine) -> impl Answer {
    let files = Files::new();
    let mut ring = table(engine, 0, &[-1]);
    let mut buffer = [0_u8; 4];
    let none = -1_i32;
    let update = Sqe { addr: (&raw const none) as u64, len: 1, ..sqe(IORING_OP_FILES_UPDATE, 2) };
    let seen = results(&ring.run(&[open(&files.first, 0, 1), read(0, &mut buffer, 3), update]));
    (seen, results(&ring.run(&[read(0, &mut buffer, 4)])))
}

#[both]
fn a_socket_or_pipe_behind_an_open_stays(engine: Engine) -> impl Answer {
    let files = Files::new();
    let mut fds = [0_u32; 2];
    let stream = libc::SOCK_STREAM as u64;
    let socket = Sqe { fd: libc::AF_UNIX, off: stream, file_index: 1, ..sqe(IORING_OP_SOCKET, 2) };
    let pipe = Sqe { fd: 0, addr: fds.as_mut_ptr() as u64, file_index: 1, ..sqe(IORING_OP_PIPE, 2) };
    [socket, pipe].map(|other| {
        let mut ring = table(engine, 0, &[-1, -1]);
        ring.run(&[open(&files.first, 0, 1), other]);
        let got = ring.run(&[Sqe { fd: 0, flags: FIXED, ..sqe(IORING_OP_FIXED_FD_INSTALL, 3) }])[0].res;
        // SAFETY: a descriptor of this test's.
        unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            libc::fstat(got, &mut status);
            libc::close(got);
            status.st_mode & libc::S_IFMT
        }
    })
}

#[both]
fn each_reader_has_the_file_before_it(engine: Engine) -> impl Answer {
    let files = Files::new();
    let missing = c"/nowhere/at/all";
    [&files.first, missing].map(|first| {
        let mut ring = table(engine, 0, &[-1]);
        let (mut x, mut y) = ([0_u8; 4], [0_u8; 4]);
        let seen = results(&ring.run(&[
            open(first, 0, 1),
            read(0, &mut x, 2),
            open(&files.second, 0, 3),
            read(0, &mut y, 4),
        ]));
        (seen, x, y)
    })
}

#[both]
fn splice_from_the_slot(engine: Engine) -> impl Answer {
    let files = Files::new();
    let mut ring = table(engine, 0, &[-1]);
    let (_from, into) = pipe();
    // SPLICE_F_FD_IN_FIXED; the slot stands where file_index is.
    let splice =
        Sqe { fd: into.as_raw_fd(), off: u64::MAX, len: 4, op_flags: 1 << 31, ..sqe(IORING_OP_SPLICE, 2) };
    results(&ring.run(&[open(&files.first, 0, 1), splice]))
}

#[both]
fn a_message_passes_the_file_on(engine: Engine) -> impl Answer {
    let files = Files::new();
    let mut ring = table(engine, 0, &[-1]);
    let mut other = table(engine, 0, &[-1]);
    let message =
        Sqe { fd: other.fd, addr: 1, addr3: 0, file_index: 1, off: 77, ..sqe(IORING_OP_MSG_RING, 2) };
    (results(&ring.run(&[open(&files.first, 0, 1), message])), results(&other.reap_all()))
}

#[both]
fn a_cancellation_by_slot(engine: Engine) -> impl Answer {
    let files = Files::new();
    let mut ring = table(engine, 0, &[-1]);
    let op_flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_FD_FIXED;
    let cancel = Sqe { fd: 0, op_flags, ..sqe(IORING_OP_ASYNC_CANCEL, 2) };
    results(&ring.run(&[open(&files.first, 0, 1), cancel]))
}

#[both]
fn a_ring_that_defers(engine: Engine) -> impl Answer {
    let files = Files::new();
    let mut params = params(DEFER | IORING_SETUP_CQSIZE);
    params.cq_entries = 64;
    let mut ring = Ring::with_params(engine, 64, params).unwrap();
    let slots = [-1; 64];
    ring.register_files(&slots);
    let mut buffer = [0_u8; 4];
    for slot in 0..32 {
        ring.push(open(&files.first, slot, 1));
        ring.push(read(slot as i32, &mut buffer, 2));
    }
    assert_eq!(ring.enter(64, 1), 64);
    let mut all = ring.reap_all();
    ring.submit_and_wait(
        &[Sqe { addr: slots.as_ptr() as u64, len: 32, ..sqe(IORING_OP_FILES_UPDATE, 3) }],
        1,
    );
    let started = Instant::now();
    while all.len() < 65 && started.elapsed() < PATIENCE {
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        all.extend(ring.reap_all());
    }
    let mut seen = results(&all);
    seen.dedup();
    seen
}

/// An open into the first slot, a look at another file, and the close of the slot, as one chain.
fn opened_and_closed(files: &Files, status: &mut [u8; 256]) -> [Sqe; 3] {
    let addr = files.second.as_ptr() as u64;
    let off = status.as_mut_ptr() as u64;
    let look = Sqe { fd: libc::AT_FDCWD, addr, off, len: 0x7ff, flags: LINK, ..sqe(IORING_OP_STATX, 2) };
    [Sqe { flags: LINK, ..open(&files.first, 0, 1) }, look, close(0, 3)]
}

/// The number that the next file of this process gets.
fn next_number() -> i32 {
    File::open("/dev/null").unwrap().as_raw_fd()
}

/// A file in a slot has none of the program's numbers when the call is over that has opened it, nor the flag with which it was opened.
#[test]
fn a_file_that_stays_in_its_slot_has_no_low_number() {
    let files = Files::new();
    let mut ring = table(Engine::User, DEFER, &[-1; 4]);
    // The first open looks at what is mounted.
    ring.run(&[open(&files.first, 3, 1)]);
    let number = next_number();
    assert_eq!(ring.run(&[open(&files.first, 0, 1)])[0].res, 0);
    assert_eq!(next_number(), number);
    let install = Sqe { fd: 0, flags: FIXED, ..sqe(IORING_OP_FIXED_FD_INSTALL, 2) };
    let installed = owned(ring.run(&[install])[0].res);
    assert_eq!(installed.as_raw_fd(), number);
    // SAFETY: asks for flags.
    let flags = unsafe { libc::fcntl(installed.as_raw_fd(), libc::F_GETFL) };
    assert_eq!(flags & libc::O_NONBLOCK, 0);
    // What is opened and closed by one call leaves the numbers as they were.
    let cqes = ring.run(&opened_and_closed(&files, &mut [0; 256]));
    assert!(cqes.iter().all(|cqe| cqe.res == 0));
    drop(installed);
    assert_eq!(next_number(), number);
}

/// A thread of the program that opens files while another thread's call has a fresh file in a slot, closes only its own.
#[test]
fn chains_beside_a_thread_that_opens_files() {
    let files = Files::new();
    let mut ring = table(Engine::User, DEFER, &[-1; 4]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let mut bytes = String::new();
                File::open("/proc/self/comm").unwrap().read_to_string(&mut bytes).unwrap();
                assert!(!bytes.is_empty());
            }
        });
        for _ in 0..2000 {
            let mut buffer = [0; 4];
            let chain = opened_and_closed(&files, &mut [0; 256]);
            let reads = [open(&files.first, 1, 4), read(1, &mut buffer, 5), close(1, 6)];
            let cqes = ring.run(&[&chain[..], &reads[..]].concat());
            assert!(cqes.iter().all(|cqe| cqe.res == if cqe.user_data == 5 { 4 } else { 0 }), "{cqes:?}");
            assert_eq!(&buffer, b"1111");
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A descriptor that was opened with `O_PATH` is no file for a table.
#[both(8, 0)]
fn paths_are_not_registered(mut ring: Ring) -> impl Answer {
    let path = File::options().read(true).custom_flags(libc::O_PATH).open("/").unwrap();
    let fds = [path.as_raw_fd()];
    let registered = ring.register(IORING_REGISTER_FILES, fds.as_ptr().cast(), 1);
    let none = [-1, -1];
    assert_eq!(ring.register(IORING_REGISTER_FILES, none.as_ptr().cast(), 2), 0);
    let update = |off| Sqe { addr: fds.as_ptr() as u64, len: 1, off, ..sqe(IORING_OP_FILES_UPDATE, 1) };
    let given = io_uring_files_update { offset: 0, resv: 0, fds: fds.as_ptr() as u64 };
    let updated = ring.register(IORING_REGISTER_FILES_UPDATE, (&raw const given).cast(), 1);
    (registered, updated, ring.run(&[update(0)]), ring.run(&[update(u64::from(u32::MAX))]))
}
