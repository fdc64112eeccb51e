//! Which descriptors stand for one file, where the kernel says so and where a sandbox or an older kernel does not: by
//! `F_DUPFD_QUERY` (since Linux 6.10), by `kcmp`, which the default profiles of Docker and podman refuse, and by epoll.
#![cfg(not(anyring_sanitizer))]

use crate::common::prelude::*;
use anyring_engine::os::same_file;

/// The calls that are refused to a process, each set in its turn.
const REFUSED: [&[Refused]; 4] = [&[], &[QUERY], &[KCMP], &[QUERY, KCMP]];

/// A call, the command in its second argument where that matters, and the error that it answers.
pub type Refused = (libc::c_long, Option<u32>, i32);
/// An older kernel does not know the command.
const QUERY: Refused = (libc::SYS_fcntl, Some(1027), libc::EINVAL);
/// As containers do.
const KCMP: Refused = (libc::SYS_kcmp, None, libc::EPERM);

/// Has these fail in this process from now on.
pub fn refuse(refused: &[Refused]) {
    let mut filter = Vec::new();
    for &(number, second, errno) in refused {
        let answer = code(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32);
        filter.push(code(LOAD, 0, 0, 0));
        match second {
            // The lower half of the argument.
            Some(second) => filter.extend([
                code(EQUAL, 0, 3, number as u32),
                code(LOAD, 0, 0, 16 + 8),
                code(EQUAL, 0, 1, second),
                answer,
            ]),
            None => filter.extend([code(EQUAL, 0, 1, number as u32), answer]),
        }
    }
    filter.push(code(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    filter_calls(&mut filter);
}

/// Runs `body` in a child of its own for each of what can be refused.
fn wherever(body: impl Fn()) {
    for refused in REFUSED {
        let pid = child(|| {
            // Ends it where it waits for what never comes.
            ends_after(60);
            refuse(refused);
            body();
            true
        });
        assert_eq!(ended(pid), 0, "refused: {refused:?}");
    }
}

fn counter() -> OwnedFd {
    eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
}

/// Two files of each kind that waits, and some others. What begins the list has no inode of its own.
fn files() -> Vec<OwnedFd> {
    let mut files = Vec::new();
    let (fifo, _writer) = std::io::pipe().unwrap();
    for _ in 0..2 {
        files.push(counter());
        // SAFETY: no set is read but one of ours.
        files.extend(unsafe {
            let mut signals = std::mem::zeroed();
            libc::sigemptyset(&mut signals);
            [
                owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC)),
                owned(libc::inotify_init1(libc::IN_CLOEXEC)),
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)),
                owned(libc::signalfd(-1, &signals, libc::SFD_CLOEXEC)),
            ]
        });
        let (reader, writer) = std::io::pipe().unwrap();
        files.extend([reader.into(), writer.into()]);
        files.push(File::open(format!("/proc/self/fd/{}", fifo.as_raw_fd())).unwrap().into());
        files.extend([
            UnixDatagram::unbound().unwrap().into(),
            TcpListener::bind("127.0.0.1:0").unwrap().into(),
        ]);
        files.push(File::options().read(true).write(true).open("/dev/ptmx").unwrap().into());
        files.push(File::open("/dev/null").unwrap().into());
    }
    // Where the kernel does not say it, two of one inode that does not wait count as one.
    files.pop();
    files.extend([File::open("/proc/self/exe").unwrap().into(), File::open("/").unwrap().into()]);
    files.extend([File::open("/proc/self/mounts").unwrap().into(), fifo.into()]);
    files
}

#[by(wherever)]
fn each_file_is_told_from_all_others() {
    let files = files();
    for (at, file) in files.iter().enumerate() {
        let other = file.try_clone().unwrap();
        for (with, candidate) in files.iter().enumerate() {
            assert_eq!(
                same_file(other.as_raw_fd(), candidate.as_raw_fd()),
                at == with,
                "{:?} and {:?}",
                std::fs::read_link(format!("/proc/self/fd/{}", other.as_raw_fd())),
                std::fs::read_link(format!("/proc/self/fd/{}", candidate.as_raw_fd())),
            );
        }
        let number = other.as_raw_fd();
        drop(other);
        assert!(!same_file(number, file.as_raw_fd()) && !same_file(file.as_raw_fd(), number));
    }
}

/// An epoll instance takes a descriptor.
#[by(in_child)]
fn at_the_limit_of_descriptors_files_of_one_inode_are_taken_for_different_ones() -> impl Found {
    refuse(&[QUERY, KCMP]);
    let (one, two) = (counter(), counter());
    // SAFETY: reads a limit of ours.
    let limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    assert_eq!(limited, 0);
    !same_file(one.as_raw_fd(), two.as_raw_fd()) && same_file(one.as_raw_fd(), one.as_raw_fd())
}

#[by(wherever)]
fn a_cancellation_by_descriptor_ends_no_other_file_s_requests() {
    both(|engine| {
        let mut ring = Ring::new(engine, 64, 0);
        // An eventfd, a timerfd, an inotify instance, an epoll instance, a signalfd.
        let waiting = || files().into_iter().take(5);
        let files: Vec<_> = waiting().chain(waiting()).collect();
        for (user_data, file) in (1..).zip(&files) {
            let poll = sqe(IORING_OP_POLL_ADD, user_data);
            ring.push(Sqe { fd: file.as_raw_fd(), op_flags: libc::POLLIN as u32, ..poll });
        }
        assert_eq!(ring.enter(files.len() as u32, 0), files.len() as i32);
        let mut all = Vec::new();
        for (user_data, file) in (100..).zip(&files) {
            let other = file.try_clone().unwrap();
            let op_flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL;
            let cancel = sqe(IORING_OP_ASYNC_CANCEL, user_data);
            ring.submit_and_wait(&[Sqe { fd: other.as_raw_fd(), op_flags, ..cancel }], 1);
            all.extend(ring.reap_all().iter().map(|cqe| (cqe.user_data, cqe.res)));
        }
        all.sort_unstable();
        all
    });
}

/// The poll of an eventfd that a ring signals must not feed itself; one of another eventfd goes on.
#[by(wherever)]
fn a_poll_of_another_eventfd_than_the_registered_one_goes_on() {
    both(|engine| {
        let mut ring = Ring::new(engine, 8, 0);
        let (registered, other) = (counter(), counter());
        ring.register_eventfd(&registered);
        let poll = Sqe { len: IORING_POLL_ADD_MULTI, ..sqe(IORING_OP_POLL_ADD, 1) };
        ring.submit(&[Sqe { fd: other.as_raw_fd(), op_flags: libc::POLLIN as u32, ..poll }]);
        let mut told = Vec::new();
        while told.len() < 3 && told.iter().all(|&(_, flags)| flags & IORING_CQE_F_MORE != 0) {
            File::from(other.try_clone().unwrap()).write_all(&1u64.to_ne_bytes()).unwrap();
            let cqe = ring.collect(1)[0];
            told.push((cqe.res, cqe.flags));
        }
        told
    });
}

/// Many requests on eventfds are found by the numbers that `/proc` shows, as long as it does; other files of their inode have none.
#[test]
fn a_cancellation_by_descriptor_among_many_finds_all_requests_of_its_file() {
    const OPEN: Refused = (libc::SYS_openat, None, libc::EACCES);
    // Before which of the cancellations.
    const ALL: u64 = 160;
    for refused_at in [usize::MAX, 0, 40] {
        let pid = child(|| {
            let mut ring = Ring::new(Engine::User, 256, 0);
            // SAFETY: touches no memory.
            let timer = || owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) });
            let files: Vec<_> = (0..40).flat_map(|_| [counter(), timer()]).collect();
            let others: Vec<_> = files.iter().map(|file| file.try_clone().unwrap()).collect();
            for (user_data, file) in (1..).zip(files.iter().chain(&others)) {
                let poll = sqe(IORING_OP_POLL_ADD, user_data);
                ring.push(Sqe { fd: file.as_raw_fd(), op_flags: libc::POLLIN as u32, ..poll });
            }
            assert_eq!(ring.enter(ALL as u32, 0), ALL as i32);
            for (at, file) in files.iter().enumerate() {
                if at == refused_at {
                    refuse(&[OPEN]);
                }
                let third = file.try_clone().unwrap();
                let op_flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL;
                let cancel = sqe(IORING_OP_ASYNC_CANCEL, 1000);
                ring.submit_and_wait(&[Sqe { fd: third.as_raw_fd(), op_flags, ..cancel }], 1);
                let ends = results(&ring.reap_all());
                let (first, second) = (at as u64 + 1, at as u64 + 1 + ALL / 2);
                assert_eq!(ends, [(first, -libc::ECANCELED), (second, -libc::ECANCELED), (1000, 2)]);
            }
            true
        });
        assert_eq!(ended(pid), 0, "refused at {refused_at}");
    }
}
