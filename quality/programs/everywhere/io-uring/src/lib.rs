//! Files, TCP, timeouts, cancellation and a polled ring with the io-uring crate.

mod echo;

use common::{BLOCK, Directory, FAULTS, FILE_BYTES, SHORT, random};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{CancelBuilder, Fd, Fixed, FsyncFlags, OpenHow, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use std::ffi::CString;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The maximum number of transfers in flight.
const DEPTH: usize = 16;

/// Runs all parts, in one thread and in several.
pub fn run() {
    let mut ring = IoUring::new(64).unwrap();
    files(&mut ring, 1);
    fixed(&mut ring);
    timeouts(&mut ring);
    cancellation(&mut ring);
    polled(&mut ring, Polled::Poll);
    polled(&mut ring, Polled::Epoll);
    duplicated(&ring);
    children(&mut ring);
    echo::run();
    let threads = (2..4).map(|seed| {
        std::thread::spawn(move || {
            let mut ring = IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(32).unwrap();
            files(&mut ring, seed);
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    let mut ring = IoUring::builder().setup_sqpoll(50).build(32).unwrap();
    files(&mut ring, 5);
}

/// Runs the parts that also run with the faults of `anyring chaos`.
pub fn run_among_faults() {
    let mut ring = IoUring::new(DEPTH as u32).unwrap();
    let directory = Directory::new();
    let path = directory.file("data");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    write_and_read(&mut ring, &path, file.as_raw_fd(), &random(1, FILE_BYTES));
    echo::over_a_pair(&mut ring);
}

fn push(ring: &mut IoUring, entry: Entry, data: u64) {
    // SAFETY: callers wait for the completion before they free what the entry names.
    unsafe { ring.submission().push(&entry.user_data(data)).unwrap() };
}

/// Returns the user data and the result of the next completion.
fn next(ring: &mut IoUring) -> (u64, i32) {
    loop {
        if let Some(entry) = ring.completion().next() {
            return (entry.user_data(), entry.result());
        }
        match ring.submit_and_wait(1) {
            Err(error)
                if ![libc::EINTR, libc::EAGAIN, libc::EBUSY].contains(&error.raw_os_error().unwrap()) =>
            {
                panic!("submit_and_wait: {error}")
            }
            _ => {}
        }
    }
}

/// Transfers the bytes at offsets `0..length` in blocks, from the last block to the first, with up to DEPTH blocks in
/// flight.
fn transfer(ring: &mut IoUring, length: usize, entry: impl Fn(usize, usize) -> Entry) {
    let mut todo: Vec<_> =
        (0..length.div_ceil(BLOCK)).map(|n| (n * BLOCK, length.min((n + 1) * BLOCK))).collect();
    let mut doing = [(0, 0); DEPTH];
    let mut free: Vec<_> = (0..DEPTH).collect();
    while !todo.is_empty() || free.len() < DEPTH {
        while !todo.is_empty() && !free.is_empty() {
            let (slot, (from, to)) = (free.pop().unwrap(), todo.pop().unwrap());
            doing[slot] = (from, to);
            push(ring, entry(from, to), slot as u64);
        }
        let (slot, result) = next(ring);
        free.push(slot as usize);
        let (from, to) = doing[slot as usize];
        match result {
            _ if FAULTS && [-libc::EINTR, -libc::EAGAIN].contains(&result) => todo.push((from, to)),
            1.. if FAULTS && from + (result as usize) < to => todo.push((from + result as usize, to)),
            _ => assert_eq!(result, (to - from) as i32, "a transfer of {from}..{to}"),
        }
    }
}

fn write_and_read(ring: &mut IoUring, path: &Path, file: RawFd, content: &[u8]) {
    transfer(ring, content.len(), |from, to| {
        let write = opcode::Write::new(Fd(file), content[from..].as_ptr(), (to - from) as u32);
        write.offset(from as u64).build()
    });
    common::assert_holds(path, content);
    let mut read = vec![0_u8; content.len()];
    let place = read.as_mut_ptr();
    transfer(ring, content.len(), |from, to| {
        let read = opcode::Read::new(Fd(file), place.wrapping_add(from), (to - from) as u32);
        read.offset(from as u64).build()
    });
    assert!(read == content, "something else was read");
}

/// Pushes an entry, and returns the result of its completion.
fn one(ring: &mut IoUring, entry: Entry) -> i32 {
    push(ring, entry, 77);
    let (data, result) = next(ring);
    assert_eq!(data, 77);
    result
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn open(ring: &mut IoUring, path: &Path, flags: i32) -> i32 {
    let (path, how) = (
        c_path(path),
        OpenHow::new().flags(flags as u64).mode(0o600 * u64::from(flags & libc::O_CREAT != 0)),
    );
    one(ring, opcode::OpenAt2::new(Fd(libc::AT_FDCWD), path.as_ptr(), &how).build())
}

fn files(ring: &mut IoUring, seed: u64) {
    let directory = Directory::new();
    let (path, renamed) = (directory.file("data"), directory.file("renamed"));
    let content = random(seed, FILE_BYTES);
    let file = open(ring, &path, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR);
    assert!(file >= 0, "open: {file}");
    write_and_read(ring, &path, file, &content);
    assert_eq!(one(ring, opcode::Fsync::new(Fd(file)).flags(FsyncFlags::DATASYNC).build()), 0);

    // SAFETY: all-zero bytes are a valid `statx`.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    let (name, place) = (c_path(&path), (&raw mut status).cast());
    let statx = opcode::Statx::new(Fd(libc::AT_FDCWD), name.as_ptr(), place).mask(libc::STATX_ALL);
    assert_eq!(one(ring, statx.build()), 0);
    assert_eq!(status.stx_size, FILE_BYTES as u64);

    // A chain: close, rename, unlink.
    let other = c_path(&renamed);
    let here = Fd(libc::AT_FDCWD);
    let close = opcode::Close::new(Fd(file)).build().flags(Flags::IO_LINK);
    let rename = opcode::RenameAt::new(here, name.as_ptr(), here, other.as_ptr()).build();
    let unlink = opcode::UnlinkAt::new(here, other.as_ptr()).build();
    let chain = [close.user_data(1), rename.flags(Flags::IO_LINK).user_data(2), unlink.user_data(3)];
    // SAFETY: the paths live as long as the chain. They are pushed together: between two pushes an SQ thread may take
    // the entries so far, and the chain would end there.
    unsafe { ring.submission().push_multiple(&chain).unwrap() };
    for expected in 1..4 {
        assert_eq!(next(ring), (expected, 0));
    }
    assert_eq!(open(ring, &path, libc::O_RDONLY), -libc::ENOENT);
    let below = c_path(&directory.file("below"));
    assert_eq!(one(ring, opcode::MkDirAt::new(here, below.as_ptr()).mode(0o700).build()), 0);
    assert_eq!(directory.names(), ["below"]);
}

/// Registered files and buffers.
fn fixed(ring: &mut IoUring) {
    let (reader, mut writer) = common::pipe();
    let mut buffer = vec![0_u8; 4096];
    let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the buffer is alive until it is unregistered below.
    unsafe { ring.submitter().register_buffers(&[vector]).unwrap() };
    ring.submitter().register_files(&[reader.as_raw_fd()]).unwrap();
    drop(reader);
    push(ring, opcode::ReadFixed::new(Fixed(0), buffer.as_mut_ptr(), 4096, 0).build(), 1);
    ring.submit().unwrap();
    writer.write_all(b"fixed").unwrap();
    assert_eq!(next(ring), (1, 5));
    assert_eq!(&buffer[..5], b"fixed");
    ring.submitter().unregister_files().unwrap();
    ring.submitter().unregister_buffers().unwrap();
    // The registered file was the last descriptor of the read end.
    assert_eq!(writer.write(b"?").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
}

fn timeouts(ring: &mut IoUring) {
    let begin = Instant::now();
    let time = Timespec::from(SHORT);
    assert_eq!(one(ring, opcode::Timeout::new(&time).build()), -libc::ETIME);
    assert!(begin.elapsed() >= SHORT);
    let begin = Instant::now();
    let result = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time));
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ETIME));
    assert!(begin.elapsed() >= SHORT);

    let (reader, _writer) = common::pipe();
    let mut buffer = [0_u8; 16];
    let read = opcode::Read::new(Fd(reader.as_raw_fd()), buffer.as_mut_ptr(), 16).build();
    push(ring, read.flags(Flags::IO_LINK), 1);
    push(ring, opcode::LinkTimeout::new(&time).build(), 2);
    let mut results = [next(ring), next(ring)];
    results.sort_unstable();
    assert_eq!(results, [(1, -libc::ECANCELED), (2, -libc::ETIME)]);
}

fn cancellation(ring: &mut IoUring) {
    let (reader, mut writer) = common::pipe();
    let fd = Fd(reader.as_raw_fd());
    let mut buffers = [[0_u8; 16]; 3];
    for (data, buffer) in (1..).zip(&mut buffers) {
        push(ring, opcode::Read::new(fd, buffer.as_mut_ptr(), 16).build(), data);
    }
    ring.submit().unwrap();
    push(ring, opcode::AsyncCancel::new(2).build(), 20);
    let mut results = [next(ring), next(ring)];
    results.sort_unstable();
    assert_eq!(results, [(2, -libc::ECANCELED), (20, 0)]);
    // A call cancels the remaining requests.
    ring.submitter().register_sync_cancel(None, CancelBuilder::fd(fd).all()).unwrap();
    let mut results = [next(ring), next(ring)];
    results.sort_unstable();
    assert_eq!(results, [(1, -libc::ECANCELED), (3, -libc::ECANCELED)]);

    // The read of a dropped ring must not take data any more.
    let mut dropped = IoUring::new(8).unwrap();
    push(&mut dropped, opcode::Read::new(fd, buffers[0].as_mut_ptr(), 16).build(), 1);
    dropped.submit().unwrap();
    drop(dropped);
    // The kernel ends the requests of a ring some time after the ring was closed.
    let begin = Instant::now();
    loop {
        writer.write_all(b"left").unwrap();
        let mut buffer = [0_u8; 16];
        push(ring, opcode::Read::new(fd, buffer.as_mut_ptr(), 16).build(), 5);
        let time = Timespec::from(SHORT);
        let _ = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time));
        if let Some(entry) = ring.completion().next() {
            assert_eq!((entry.user_data(), entry.result(), &buffer[..4]), (5, 4, b"left".as_slice()));
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "the ring that was dropped still reads");
        push(ring, opcode::AsyncCancel::new(5).build(), 6);
        next(ring);
        next(ring);
    }
}

enum Polled {
    Poll,
    Epoll,
}

/// Waits for the ring's descriptor, as an event loop does.
fn polled(ring: &mut IoUring, how: Polled) {
    // SAFETY: the call creates a descriptor.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 3 };
    // SAFETY: the event is read.
    assert_eq!(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, ring.as_raw_fd(), &mut event) }, 0);
    let wait = |ring: RawFd, timeout: i32| {
        let mut list = [libc::pollfd { fd: ring, events: libc::POLLIN, revents: 0 }];
        let mut events = [libc::epoll_event { events: 0, u64: 0 }];
        // SAFETY: both lists have one entry.
        unsafe {
            match how {
                Polled::Poll => libc::poll(list.as_mut_ptr(), 1, timeout),
                Polled::Epoll => libc::epoll_wait(epoll, events.as_mut_ptr(), 1, timeout),
            }
        }
    };
    let (reader, mut writer) = common::pipe();
    let mut buffer = [0_u8; 16];
    for turn in 0..20_u8 {
        assert_eq!(wait(ring.as_raw_fd(), 0), 0);
        let read = opcode::Read::new(Fd(reader.as_raw_fd()), buffer.as_mut_ptr(), 16);
        push(ring, read.build(), u64::from(turn));
        ring.submit().unwrap();
        writer.write_all(&[turn]).unwrap();
        assert_eq!(wait(ring.as_raw_fd(), 20_000), 1);
        let entry = ring.completion().next().unwrap();
        assert_eq!((entry.user_data(), entry.result(), buffer[0]), (u64::from(turn), 1, turn));
    }
    // SAFETY: the descriptor was created above.
    unsafe { libc::close(epoll) };
}

/// Closes a duplicate of the ring's descriptor.
fn duplicated(ring: &IoUring) {
    // SAFETY: a descriptor of our own.
    unsafe {
        let duplicate = libc::fcntl(ring.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 50);
        assert!(duplicate >= 50);
        let nothing = libc::syscall(libc::SYS_io_uring_enter, duplicate, 0, 0, 0, 0, 0);
        assert_eq!(nothing, 0);
        assert_eq!(libc::close(duplicate), 0);
        let closed = libc::syscall(libc::SYS_io_uring_enter, duplicate, 0, 0, 0, 0, 0);
        assert_eq!((closed, *libc::__errno_location()), (-1, libc::EBADF));
    }
}

/// Starts another program, and forks a child that creates a ring.
fn children(ring: &mut IoUring) {
    let output = std::process::Command::new("echo").arg("child").output().unwrap();
    assert_eq!(output.stdout, b"child\n");
    // SAFETY: the child makes a ring and ends.
    match unsafe { libc::fork() } {
        0 => {
            let mut ring = IoUring::new(4).unwrap();
            let result = one(&mut ring, opcode::Nop::new().build());
            // SAFETY: ends the child.
            unsafe { libc::_exit(if result == 0 { 7 } else { 1 }) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: writes the status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
        }
    }
    assert_eq!(one(ring, opcode::Nop::new().build()), 0);
}
