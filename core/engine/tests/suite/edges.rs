//! The last value that is taken and the first that is not, of lengths, counts and positions; and transfers that go on where
//! their first attempt ended.

use crate::common::prelude::*;
use anyring_engine::os::page_bytes;
use anyring_engine::os::user::END;

use super::futex::{PRIVATE, U32, element, waitv, wake};

/// Results of requests, each in a submission of its own.
fn each(ring: &mut Ring, sqes: &[Sqe]) -> Vec<i32> {
    sqes.iter().map(|&sqe| ring.run(&[sqe])[0].res).collect()
}

/// On storage.
fn directory() -> Directory {
    Directory::below(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// A file on storage of which only the first page is in the cache. Its number is one that no other test's file has had: the
/// engine is not told here of what is closed.
fn partly_cached(content: &[u8]) -> File {
    let directory = directory();
    let path = directory.0.join("cached");
    let mut options = File::options();
    let mut file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
    // SAFETY: advice, and a read into memory of ours.
    unsafe {
        assert_eq!(libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED), 0);
        assert_eq!(libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM), 0);
        let mut page = [0u8; 4096];
        assert_eq!(libc::pread(file.as_raw_fd(), page.as_mut_ptr().cast(), 4096, 0), 4096);
        assert_eq!(libc::lseek(file.as_raw_fd(), 0, libc::SEEK_SET), 0);
        let own = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 900);
        if own < 0 { file } else { File::from_raw_fd(own) }
    }
}

#[both]
fn reads_go_on_behind_what_is_in_the_cache(engine: Engine) {
    let content: Vec<u8> = (0..40_000u32).map(|number| (number / 7) as u8).collect();
    let mut ring = Ring::new(engine, 8, 0);
    let mut buffer = vec![0xee_u8; 50_000];
    // Up to the end of the file, and not.
    for (off, len) in [(100u64, 20_000u32), (0, 45_000), (4000, 4000)] {
        let expected = &content[off as usize..(off as usize + len as usize).min(content.len())];
        let file = partly_cached(&content);
        buffer.fill(0xee);
        let addr = buffer.as_mut_ptr() as u64;
        let read = Sqe { fd: file.as_raw_fd(), addr, len, off, ..sqe(IORING_OP_READ, 1) };
        assert_eq!(each(&mut ring, &[read]), [expected.len() as i32], "{engine:?}");
        assert_eq!(&buffer[..expected.len()], expected, "{engine:?}");
        assert!(buffer[expected.len()..].iter().all(|&byte| byte == 0xee), "{engine:?}");

        if len < 4500 {
            continue;
        }
        let file = partly_cached(&content);
        buffer.fill(0xee);
        let lengths = [1000usize, 0, 3000, 500, len as usize - 4500];
        let mut at = addr;
        let vectors = lengths.map(|length| {
            let vector = libc::iovec { iov_base: at as *mut _, iov_len: length.min(45_000) };
            at += vector.iov_len as u64;
            vector
        });
        let sqe = sqe(IORING_OP_READV, 1);
        let read = Sqe { fd: file.as_raw_fd(), addr: vectors.as_ptr() as u64, len: 5, off, ..sqe };
        assert_eq!(each(&mut ring, &[read]), [expected.len() as i32], "{engine:?}");
        assert_eq!(&buffer[..expected.len()], expected, "{engine:?}");
        assert!(buffer[expected.len()..].iter().all(|&byte| byte == 0xee), "{engine:?}");
    }
}

#[both]
fn reads_at_the_position_go_on_behind_what_is_in_the_cache(engine: Engine) {
    let content: Vec<u8> = (0..40_000u32).map(|number| (number / 7) as u8).collect();
    let mut ring = Ring::new(engine, 8, 0);
    let mut buffer = vec![0xee_u8; 20_000];
    let file = partly_cached(&content);
    let read = Sqe { len: 9000, off: u64::MAX, ..reading(IORING_OP_READ, 1, &file, &mut buffer) };
    assert_eq!(each(&mut ring, &[read]), [9000]);
    assert_eq!(buffer[..9000], content[..9000], "{engine:?}");
    assert_eq!(each(&mut ring, &[read]), [9000]);
    assert_eq!(buffer[..9000], content[9000..18_000], "{engine:?}");
}

/// A control message: its header says `length`, and so much of `data` follows.
fn control(level: i32, kind: i32, length: usize, data: &[i32]) -> Vec<u8> {
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(level.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    data.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

#[both(8, 0)]
fn rings_are_not_handed_over(mut ring: Ring) -> impl Answer {
    let other = Ring::new(ring.engine, 8, 0);
    let plain = File::open("/dev/null").unwrap().into();
    let file: OwnedFd = plain;
    let (file, own) = (file.as_raw_fd(), other.fd);
    let rights = |descriptors: &[i32]| {
        control(libc::SOL_SOCKET, libc::SCM_RIGHTS, 16 + 4 * descriptors.len(), descriptors)
    };
    let ucred = |pid: i32| {
        // SAFETY: takes nothing.
        let (uid, gid) = unsafe { (libc::getuid() as i32, libc::getgid() as i32) };
        control(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, 28, &[pid, uid, gid])
    };
    let me = std::process::id() as i32;
    let many = vec![file; 252];
    let last_of_many = [&many[..], &[own]].concat();
    let cases: Vec<(Vec<u8>, Option<usize>)> = vec![
        (rights(&[file]), None),
        (rights(&[own]), None),
        (rights(&[file, own]), None),
        (rights(&[own, file]), None),
        (rights(&last_of_many), None),
        ([rights(&[file]), rights(&[own])].concat(), None),
        ([ucred(me), rights(&[own])].concat(), None),
        ([ucred(me), rights(&[file])].concat(), None),
        // An empty one before.
        ([rights(&[]), rights(&[own])].concat(), None),
        // Of another kind or level.
        (control(libc::SOL_SOCKET, 77, 20, &[own]), None),
        (control(libc::SOL_TCP, libc::SCM_RIGHTS, 20, &[own]), None),
        // Longer than there is, shorter than a header.
        (control(libc::SOL_SOCKET, libc::SCM_RIGHTS, 28, &[own]), None),
        (control(libc::SOL_SOCKET, libc::SCM_RIGHTS, 24, &[own]), None),
        (control(libc::SOL_SOCKET, libc::SCM_RIGHTS, 15, &[own]), None),
        (control(libc::SOL_SOCKET, libc::SCM_RIGHTS, 0, &[own]), None),
        // A part of a descriptor behind a whole one is none.
        (control(libc::SOL_SOCKET, libc::SCM_RIGHTS, 22, &[own, file]), None),
        (control(libc::SOL_SOCKET, libc::SCM_RIGHTS, 22, &[file, own]), None),
        // What is said of the whole.
        (rights(&[own]), Some(20)),
        (rights(&[own]), Some(19)),
        (rights(&[own]), Some(16)),
        (rights(&[own]), Some(15)),
        ([rights(&[file]), rights(&[own])].concat(), Some(24)),
        ([rights(&[file]), rights(&[own])].concat(), Some(39)),
        ([rights(&[file]), rights(&[own])].concat(), Some(44)),
    ];
    let results: Vec<(i32, usize)> = cases
        .iter()
        .map(|(control, length)| {
            let (from, to) = UnixStream::pair().unwrap();
            let byte = [vector(b"x")];
            let mut header = message_of(&byte);
            header.msg_control = control.as_ptr().cast_mut().cast();
            header.msg_controllen = length.unwrap_or(control.len());
            let addr = (&raw const header) as u64;
            let send = Sqe { fd: from.as_raw_fd(), addr, len: 1, ..sqe(IORING_OP_SENDMSG, 1) };
            let sent = each(&mut ring, &[send])[0];
            (sent, received_descriptors(&to))
        })
        .collect();
    results
}

/// How many descriptors came with what a socket has.
fn received_descriptors(socket: &UnixStream) -> usize {
    let (mut byte, mut control) = ([0u8; 1], [0u64; 160]);
    let vectors = [libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 }];
    let mut header = message_of(&vectors);
    // SAFETY: names memory of ours; descriptors that come are closed.
    unsafe {
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        if libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) <= 0 {
            return 0;
        }
        let mut count = 0;
        let mut message = libc::CMSG_FIRSTHDR(&header);
        while let Some(one) = message.as_ref() {
            if one.cmsg_type == libc::SCM_RIGHTS {
                let descriptors = libc::CMSG_DATA(message).cast::<i32>();
                for index in 0..(one.cmsg_len - 16) / 4 {
                    drop(OwnedFd::from_raw_fd(descriptors.add(index).read_unaligned()));
                    count += 1;
                }
            }
            message = libc::CMSG_NXTHDR(&header, message);
        }
        count
    }
}

#[both(8, 0)]
fn lengths_of_messages(mut ring: Ring) -> impl Answer {
    let (one, other) = UnixStream::pair().unwrap();
    let mut name = [0u8; 256];
    name[0] = libc::AF_UNIX as u8;
    let mut bytes = [0u8; 64];
    let vectors = vec![libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 0 }; 1100];
    let mut results = Vec::new();
    for (opcode, socket) in [(IORING_OP_SENDMSG, &one), (IORING_OP_RECVMSG, &other)] {
        for count in [0, 1, 2, 1023, 1024, 1025, usize::MAX] {
            for (name_length, named) in [
                (0, false),
                (110, false),
                (-1, false),
                (0, true),
                (-1, true),
                (1, true),
                (110, true),
                (128, true),
                (129, true),
            ] {
                let mut header: libc::msghdr = zeroed();
                (header.msg_iov, header.msg_iovlen) = (vectors.as_ptr().cast_mut(), count);
                header.msg_namelen = name_length as u32;
                if named {
                    header.msg_name = name.as_mut_ptr().cast();
                }
                let (fd, addr) = (socket.as_raw_fd(), (&raw mut header) as u64);
                let op_flags = libc::MSG_DONTWAIT as u32;
                let result = each(&mut ring, &[Sqe { fd, addr, len: 1, op_flags, ..sqe(opcode, 1) }]);
                results.push((opcode as u32, count, name_length, named, result[0]));
            }
        }
        // Lengths that are none, memory that is none.
        for (base, length) in [(bytes.as_ptr() as u64, i64::MAX as u64 + 1), (u64::MAX - 10, 4), (1 << 62, 1)]
        {
            let vector = [base, length];
            let mut header: libc::msghdr = zeroed();
            (header.msg_iov, header.msg_iovlen) = (vector.as_ptr() as *mut _, 1);
            let (fd, addr) = (socket.as_raw_fd(), (&raw mut header) as u64);
            let op_flags = libc::MSG_DONTWAIT as u32;
            let result = each(&mut ring, &[Sqe { fd, addr, len: 1, op_flags, ..sqe(opcode, 1) }]);
            results.push((opcode as u32, 1, length as i32, false, result[0]));
        }
    }
    results
}

#[test]
fn structures_of_later_versions() {
    let page = page_bytes();
    let memory = pages_before_a_hole(3).as_mut_ptr() as usize;
    both(|engine| {
        let mut ring = Ring::new(engine, 8, 0);
        let mut results = Vec::new();
        for start in [0, page - 24, page - 25, page - 100, 2 * page - 24, 3 * page - 300] {
            for size in [0, 23, 24, 25, 32, 100, 24 + 256, 24 + 257, 300, 301, 1000, 4096, page, page + 1] {
                // What stands in the structure that no version knows yet: nothing, or something in its last byte, or
                // right behind it.
                for set in [None, Some(size.max(1) - 1), Some(size)] {
                    // SAFETY: three pages of ours, which nobody else uses.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(memory as *mut u8, 3 * page) };
                    bytes.fill(0);
                    if let Some(byte) = set.and_then(|set| bytes.get_mut(start + set)).filter(|_| size > 24) {
                        *byte = 1;
                    }
                    let (off, len) = ((memory + start) as u64, size as u32);
                    let open = Sqe { off, len, ..at_path(IORING_OP_OPENAT2, 1, c"/dev/null") };
                    let result = each(&mut ring, &[open])[0];
                    if result >= 0 {
                        close_number(result);
                    }
                    results.push((start, size, set, result.min(0)));
                }
            }
        }
        results
    });
}

#[test]
fn attributes_of_the_greatest_length() {
    let directory = directory();
    let (path, plain) = (directory.file("file", ""), directory.file("plain", ""));
    let value = vec![b'x'; 65_537];
    // What the calls answer, a file system may decide.
    let errno = |result: i64| {
        if result < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap() } else { result as i32 }
    };
    both(|engine| {
        let mut ring = Ring::new(engine, 8, 0);
        let name = |length: usize| CString::new(format!("user.{}", "n".repeat(length - 5))).unwrap();
        let mut results = Vec::new();
        for length in [6, 254, 255, 256, 257] {
            let name = name(length);
            for len in [0, 1, 65_536, 65_537] {
                let set = Sqe { len, ..attribute(IORING_OP_SETXATTR, 1, &path, &name, &raw const value[..]) };
                // SAFETY: reads strings and memory of ours.
                let called = errno(i64::from(unsafe {
                    libc::setxattr(plain.as_ptr(), name.as_ptr(), value.as_ptr().cast(), len as usize, 0)
                }));
                results.push((length, len, each(&mut ring, &[set])[0] == called));
            }
            let mut got = [0u8; 16];
            // SAFETY: reads strings, and writes memory of ours.
            let called = errno(unsafe {
                libc::getxattr(plain.as_ptr(), name.as_ptr(), got.as_mut_ptr().cast(), got.len()) as i64
            });
            let get = attribute(IORING_OP_GETXATTR, 1, &path, &name, &raw mut got);
            results.push((length, 16, each(&mut ring, &[get])[0] == called));
        }
        results
    });
}

#[both]
fn waits_on_as_many_futexes_as_there_can_be(engine: Engine) -> impl Answer {
    let words: Vec<_> = (0..129).map(|_| AtomicU32::new(0)).collect();
    let mut results = Vec::new();
    for (count, woken) in [(1, 0), (2, 1), (127, 0), (127, 126), (128, 0), (128, 1), (128, 127), (129, 0)] {
        let mut ring = Ring::new(engine, 8, 0);
        let elements: Vec<_> = words[..count].iter().map(|word| element(word, 0)).collect();
        ring.submit(&[waitv(1, &elements)]);
        if let Some(refused) = ring.reap() {
            results.push((count, woken, refused.res));
            continue;
        }
        words[woken].store(1, Ordering::SeqCst);
        ring.submit(&[wake(2, &words[woken], 1)]);
        let cqes = ring.collect(2);
        words[woken].store(0, Ordering::SeqCst);
        results.push((count, woken, cqes.iter().find(|cqe| cqe.user_data == 1).unwrap().res));
    }
    results
}

#[both(8, 0)]
fn futexes_that_are_asked_for_nothing(mut ring: Ring) -> impl Answer {
    let words = [0u32; 4];
    let at = words.as_ptr() as u64;
    let mut results = Vec::new();
    for addr in [0, 2, 4096, at, at + 1, at + 2, at + 4, 1 << 46, 1 << 60, u64::MAX - 3, u64::MAX] {
        for flags in [U32 as u32, (U32 | PRIVATE) as u32] {
            let every_bit = u64::from(u32::MAX);
            let wakes = [0, 1].map(|count| (IORING_OP_FUTEX_WAKE, count));
            // What the word does not hold.
            let waits = [every_bit, every_bit + 1].map(|value| (IORING_OP_FUTEX_WAIT, value));
            for (opcode, off) in wakes.into_iter().chain(waits) {
                let futex = Sqe { addr, off, addr3: every_bit, fd: flags as i32, ..sqe(opcode, 1) };
                results.push((addr.wrapping_sub(at), flags, off, each(&mut ring, &[futex])[0]));
            }
        }
    }
    results.retain(|&(offset, ..)| !(5..=1 << 40).contains(&offset));
    results.into_iter().map(|(_, flags, off, result)| (flags, off, result)).collect::<Vec<_>>()
}

#[both]
fn connections_for_which_there_is_no_room(engine: Engine) -> impl Answer {
    let mut results = Vec::new();
    for waiting in 1..4 {
        for taken in 4..9 {
            let mut ring = Ring::new(engine, 4, 0);
            let (listener, address) = listening();
            let clients: Vec<_> = (0..waiting).map(|_| TcpStream::connect(address).unwrap()).collect();
            for _ in 0..taken {
                ring.submit(&[sqe(IORING_OP_NOP, 1)]);
            }
            let ioprio = IORING_ACCEPT_MULTISHOT as u16;
            ring.submit(&[Sqe { fd: listener.as_raw_fd(), ioprio, ..sqe(IORING_OP_ACCEPT, 2) }]);
            let mut seen = ring.reap_all();
            ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
            seen.extend(ring.reap_all());
            let accepted: Vec<_> = seen.iter().filter(|cqe| cqe.user_data == 2).collect();
            for cqe in &accepted {
                assert!(cqe.res >= 0);
                close_number(cqe.res);
            }
            results.push((waiting, taken, accepted.iter().map(|cqe| cqe.flags).collect::<Vec<_>>()));
            drop(clients);
        }
    }
    results
}

#[both(8, 0)]
fn what_is_refused_ends_its_submission(mut ring: Ring) -> impl Answer {
    let mut words = [0u64; 8];
    let addr = words.as_mut_ptr() as u64;
    ring.register_files(&[-1; 2]);
    let pipe = Sqe { fd: 0, addr, ..sqe(IORING_OP_PIPE, 1) };
    let socket = Sqe { fd: libc::AF_UNIX, off: libc::SOCK_STREAM as u64, ..sqe(IORING_OP_SOCKET, 1) };
    let read = Sqe { fd: ring.fd, addr, len: 8, ..sqe(IORING_OP_READ, 1) };
    let poll = Sqe { fd: 0, ..sqe(IORING_OP_POLL_ADD, 1) };
    let fsync = Sqe { fd: 0, ..sqe(IORING_OP_FSYNC, 1) };
    let cases = [
        Sqe { op_flags: 1, ..pipe },
        Sqe { op_flags: libc::O_CLOEXEC as u32 | 1 << 30, ..pipe },
        Sqe { off: libc::SOCK_STREAM as u64 | 1 << 20, ..socket },
        Sqe { off: libc::SOCK_STREAM as u64 | libc::SOCK_CLOEXEC as u64, file_index: 1, ..socket },
        Sqe { off: libc::SOCK_STREAM as u64 | libc::SOCK_NONBLOCK as u64, file_index: 1, ..socket },
        Sqe { off: libc::SOCK_STREAM as u64, file_index: 1, ..socket },
        Sqe { pad: 1, addr3: 8, ..read },
        Sqe { pad: 2, addr3: addr, ..read },
        Sqe { pad: 2, addr3: 8, ..read },
        Sqe { op_flags: 0, len: 2, ..poll },
        Sqe { op_flags: 2, ..fsync },
        Sqe { off: 1 << 63, ..fsync },
    ];
    cases.map(|case| {
        ring.push(case);
        ring.push(sqe(IORING_OP_NOP, 2));
        let first = ring.enter(2, 0);
        let second = if first < 2 { ring.enter(1, 0) } else { 0 };
        let seen = results(&ring.collect(2));
        (first, second, seen)
    })
}

#[both(8, 0)]
fn polls_without_a_completion(mut ring: Ring) -> impl Answer {
    let (from, mut to) = std::io::pipe().unwrap();
    let poll = Sqe { flags: SKIP, ..poll(1, &from, libc::POLLIN) };
    ring.push(poll);
    let mut taken = vec![ring.enter(1, 0)];
    ring.push(Sqe { len: IORING_POLL_ADD_MULTI, ..poll });
    taken.push(ring.enter(1, 0));
    to.write_all(b"x").unwrap();
    ring.push(sqe(IORING_OP_NOP, 3));
    taken.push(ring.enter(1, 1));
    (taken, ring.reap_all())
}

#[both(8, 0)]
fn polls_for_what_is_always_reported(mut ring: Ring) -> impl Answer {
    let (from, to) = std::io::pipe().unwrap();
    let (one, other) = UnixStream::pair().unwrap();
    other.shutdown(std::net::Shutdown::Write).unwrap();
    drop(to);
    let mut results = Vec::new();
    for fd in [from.as_raw_fd(), one.as_raw_fd()] {
        for events in [libc::POLLHUP, libc::POLLERR, libc::POLLRDHUP, libc::POLLPRI, libc::POLLIN, -1] {
            let poll = Sqe { fd, op_flags: events as u16 as u32, ..sqe(IORING_OP_POLL_ADD, 1) };
            ring.push(poll);
            ring.push(Sqe { addr: 1, ..sqe(IORING_OP_POLL_REMOVE, 2) });
            ring.enter(2, 2);
            results.push(ring.collect(2));
        }
    }
    results
}

#[both(8, 0)]
fn room_for_messages_of_a_multishot_receive(mut ring: Ring) -> impl Answer {
    let (one, mut other) = UnixStream::pair().unwrap();
    other.write_all(b"x").unwrap();
    let most = i32::MAX as usize - 16;
    let mut results = Vec::new();
    for (name_length, control_length) in [
        (0, most - 1),
        (0, most),
        (0, most + 1),
        (1, most - 1),
        (1, most),
        (100, most - 100),
        (100, most - 99),
        (0, usize::MAX),
        (0, usize::MAX - 16),
        (-1, 0),
        (i32::MAX, 0),
        (i32::MAX - 16, 0),
        (i32::MAX - 15, 0),
    ] {
        let mut header: libc::msghdr = zeroed();
        header.msg_namelen = name_length as u32;
        header.msg_controllen = control_length;
        let ioprio = IORING_RECV_MULTISHOT as u16;
        let receive = Sqe {
            flags: SELECT,
            buf_index: 9,
            ioprio,
            ..messaging(IORING_OP_RECVMSG, 1, &one, &raw mut header)
        };
        results.push((name_length, control_length, each(&mut ring, &[receive])[0]));
    }
    results
}

#[test]
fn what_opens_starts_no_thread() {
    let directory = directory();
    let fifo = directory.fifo("fifo");
    std::os::unix::fs::symlink("fifo", directory.0.join("link")).unwrap();
    let has_openat2 = has_openat2();
    let pid = child(|| {
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let mut ring = Ring::new(Engine::User, 8, DEFER);
        let before = threads();
        let create = libc::O_CREAT | libc::O_RDWR;
        let (file, link) = (directory.path("file"), directory.path("link"));
        let open = |path: &CString, flags| open(1, path, flags);
        let hows = [
            [create as u64, 0o600, 0],
            [create as u64, 0o600, libc::RESOLVE_NO_SYMLINKS],
            [create as u64, 0o600, libc::RESOLVE_NO_MAGICLINKS],
            [libc::O_RDWR as u64, 0, libc::RESOLVE_CACHED],
            [create as u64, 0o600, libc::RESOLVE_CACHED],
            [(libc::O_RDWR | libc::O_TRUNC) as u64, 0, libc::RESOLVE_NO_SYMLINKS],
        ];
        let how = |how: &[u64; 3]| Sqe {
            off: how.as_ptr() as u64,
            len: 24,
            ..at_path(IORING_OP_OPENAT2, 1, &file)
        };
        let results = [
            each(&mut ring, &[open(&file, create), open(&file, create), open(&file, libc::O_RDWR)]),
            each(&mut ring, &hows.each_ref().map(how)),
            // A link to a FIFO is none, where links are not followed.
            each(&mut ring, &[open(&link, create | libc::O_NOFOLLOW)]),
            each(&mut ring, &[open(&fifo, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CREAT)]),
        ];
        let codes: Vec<i32> = results.concat().iter().map(|&result| result.min(0)).collect();
        let mut expected = [0, 0, 0, 0, 0, 0, 0, -libc::EAGAIN, 0, -libc::ELOOP, 0];
        if !has_openat2 {
            expected[4..9].fill(-libc::EINVAL);
        }
        assert_eq!(codes, expected);
        threads() == before
    });
    assert_eq!(ended(pid), 0);
}

/// With a flag that has the call's own thread try first: an open that waits there never returns.
#[test]
fn an_open_through_a_link_waits_for_the_other_end() {
    let directory = directory();
    let (fifo, link) = (directory.fifo("fifo"), directory.path("link"));
    std::os::unix::fs::symlink("fifo", directory.0.join("link")).unwrap();
    let open_by = |resolve: Option<u64>| {
        both(|engine| {
            let mut ring = Ring::new(engine, 8, 0);
            let mut results = Vec::new();
            for (path, mode) in [(&fifo, libc::O_RDONLY), (&link, libc::O_RDONLY), (&link, libc::O_WRONLY)] {
                let flags = mode | libc::O_CREAT;
                let how = [flags as u64, 0o600, resolve.unwrap_or_default()];
                let (opcode, off) = (IORING_OP_OPENAT2 as u8, how.as_ptr() as u64);
                let open = match resolve {
                    None => open(1, path, flags),
                    Some(_) => Sqe { opcode, off, len: 24, ..open(1, path, 0) },
                };
                ring.submit(&[open]);
                assert!(ring.reap().is_none(), "{engine:?}: nobody has the other end yet");
                // SAFETY: opens and closes descriptors of ours.
                unsafe {
                    let other = if mode == libc::O_RDONLY { libc::O_WRONLY } else { libc::O_RDONLY };
                    let other = libc::open(fifo.as_ptr(), other);
                    let opened = ring.collect(1)[0].res;
                    results.push((opened >= 0, other >= 0));
                    libc::close(opened);
                    libc::close(other);
                }
            }
            results
        });
    };
    open_by(None);
    if has_openat2() {
        open_by(Some(libc::RESOLVE_NO_MAGICLINKS));
    } else {
        record::leave_out();
    }
}

#[both(8, 0)]
fn offsets_near_the_last(mut ring: Ring) -> impl Answer {
    let last = i64::MAX as u64;
    let offsets = [
        0,
        1,
        5,
        last - 0x7fff_f000,
        last - 0x7fff_efff,
        last - 4096,
        last - 1,
        last,
        last + 1,
        u64::MAX - 1,
    ];
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (one, mut other) = UnixStream::pair().unwrap();
    for _ in 0..100 {
        writer.write_all(&[1; 64]).unwrap();
        other.write_all(&[1; 64]).unwrap();
    }
    let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
    let memory = memory_file(b"");
    let mut buffer = [0u8; 64];
    let addr = buffer.as_mut_ptr() as u64;
    let files =
        [reader.as_raw_fd(), writer.as_raw_fd(), one.as_raw_fd(), zero.as_raw_fd(), memory.as_raw_fd()];
    let mut results = Vec::new();
    for (index, fd) in files.into_iter().enumerate() {
        for opcode in [IORING_OP_READ, IORING_OP_WRITE] {
            for off in offsets {
                for len in [0, 1, 2] {
                    // A memory file grows as far as there can be one.
                    let result = each(&mut ring, &[Sqe { fd, addr, len, off, ..sqe(opcode, 1) }]);
                    results.push((index, opcode as u32, off, len, result[0]));
                }
            }
        }
    }
    results
}

#[both(8, 0)]
fn counts_of_vectors(mut ring: Ring) -> impl Answer {
    // How many of them the kernel makes room for depends on the size of its pages: 4, 16, 64 KiB.
    const MOST: [u32; 3] = [1 << 18, 1 << 21, 1 << 25];
    let most = MOST[(page_bytes().trailing_zeros() as usize - 12) / 2];
    let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
    let mut bytes = [0u8; 64];
    let base = bytes.as_mut_ptr().cast();
    let vectors = vec![libc::iovec { iov_base: base, iov_len: 1 }; 1025];
    let whole = libc::iovec { iov_base: base, iov_len: 64 };
    ring.register_buffers(&[whole]);
    let ops = [IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_READV_FIXED, IORING_OP_WRITEV_FIXED];
    let mut results = Vec::new();
    for opcode in ops {
        let rooms = MOST.map(|most| [most - 1, most, most + 1]);
        for len in [0, 1, 2, 1023, 1024, 1025, u32::MAX].into_iter().chain(rooms.concat()) {
            let sqe = Sqe { fd: zero.as_raw_fd(), addr: vectors.as_ptr() as u64, len, ..sqe(opcode, 1) };
            let mut result = each(&mut ring, &[sqe]);
            // Rarely it has a piece of memory for such a list.
            if ring.engine == Engine::Kernel && result[0] == -libc::ENOMEM && len <= most {
                result[0] = -libc::EINVAL;
            }
            results.push((opcode as u32, len, result[0]));
        }
    }
    results
}

#[both(8, 0)]
fn paths_that_may_be_empty(mut ring: Ring) -> impl Answer {
    let file = File::open("/proc/self/comm").unwrap();
    let mut room = [0u8; 256];
    let mut results = Vec::new();
    for fd in [file.as_raw_fd(), libc::AT_FDCWD, -1] {
        for path in [c"".as_ptr(), std::ptr::null(), c"/".as_ptr(), c"none".as_ptr()] {
            for op_flags in [0, libc::AT_EMPTY_PATH, libc::AT_SYMLINK_NOFOLLOW] {
                let (off, len) = (room.as_mut_ptr() as u64, libc::STATX_BASIC_STATS);
                let (addr, op_flags) = (path as u64, op_flags as u32);
                let statx = Sqe { fd, addr, op_flags, off, len, ..sqe(IORING_OP_STATX, 1) };
                results.push(each(&mut ring, &[statx])[0]);
            }
        }
    }
    results
}

#[both(8, 0)]
fn files_of_requests_that_do_nothing(mut ring: Ring) -> impl Answer {
    const INJECT_RESULT: u32 = 1 << 0;
    const FILE: u32 = 1 << 1;
    const FIXED: u32 = 1 << 2;
    const FIXED_BUFFER: u32 = 1 << 3;
    let file = File::open("/dev/null").unwrap();
    ring.register_files(&[-1, file.as_raw_fd()]);
    let mut results = Vec::new();
    for op_flags in [0, INJECT_RESULT, FILE, FIXED, FILE | FIXED, FIXED_BUFFER, FILE | INJECT_RESULT, 1 << 20]
    {
        for fd in [file.as_raw_fd(), 0, 1, 2, 700, -1] {
            // As a number of the program's, a slot has the same number as its own output.
            let fd = if op_flags & FIXED == 0 && (0..3).contains(&fd) { file.as_raw_fd() } else { fd };
            results.push(each(&mut ring, &[Sqe { fd, op_flags, len: 7, ..sqe(IORING_OP_NOP, 1) }])[0]);
        }
    }
    results
}

#[both(8, 0)]
fn connects_that_cannot_begin(mut ring: Ring) -> impl Answer {
    // A listener whose queue is full: further connections stay under way.
    let (listener, address) = listening();
    has_room_for(&listener, 0);
    let address = address_of(address);
    let connecting = || {
        let socket = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
        // SAFETY: reads an address of ours.
        unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), 16) };
        socket
    };
    let mut sockets: Vec<_> = (0..4).map(|_| connecting()).collect();
    let under_way = each(&mut ring, &[connect(1, &sockets.pop().unwrap(), &address)])[0];
    // A Unix socket that does not wait for room.
    let directory = directory();
    let full = Full::new(&directory.0.join("socket"), libc::SOCK_NONBLOCK);
    (under_way, each(&mut ring, &[full.connect(1)])[0])
}

#[both(8, 0)]
fn messages_into_provided_buffers(mut ring: Ring) -> impl Answer {
    let (one, mut other) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 256];
    let addr = memory.as_mut_ptr() as u64;
    let provide = Sqe { fd: 4, addr, len: 64, buf_index: 9, ..sqe(IORING_OP_PROVIDE_BUFFERS, 1) };
    let mut results = each(&mut ring, &[provide]);
    for length in [4usize, 64, 100, 0] {
        let vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: length }];
        let mut header = message_of(&vectors);
        ring.submit(&[Sqe {
            flags: SELECT,
            buf_index: 9,
            ..messaging(IORING_OP_RECVMSG, 1, &one, &raw mut header)
        }]);
        if let Some(cqe) = ring.reap() {
            results.push(cqe.res);
            continue;
        }
        other.write_all(&[5; 10]).unwrap();
        let cqe = ring.collect(1)[0];
        results.extend([cqe.res, (cqe.flags & !0xffff_0000) as i32]);
        let mut rest = [0u8; 10];
        // SAFETY: memory of ours.
        let left = unsafe { libc::recv(one.as_raw_fd(), rest.as_mut_ptr().cast(), 10, libc::MSG_DONTWAIT) };
        results.push(left as i32);
    }
    results
}

/// The outcome of a program: how many requests were taken, and what completed before and after the read.
type Told = (i32, Vec<(u64, i32)>, Vec<(u64, i32)>);

/// Runs one program of four such requests behind a read that waits.
fn program(engine: Engine, kinds: &[Sqe], program: usize) -> Told {
    let mut ring = Ring::new(engine, 8, 0);
    let (from, mut to) = std::io::pipe().unwrap();
    let mut buffer = [0u8; 1];
    ring.push(Sqe { len: 1, ..reading(IORING_OP_READ, 9, &from, &mut buffer) });
    let mut rest = program;
    for user_data in 0..4 {
        ring.push(Sqe { user_data, ..kinds[rest % kinds.len()] });
        rest /= kinds.len();
    }
    let taken = ring.enter(5, 0);
    // In which order what may go goes is each engine's own affair.
    let list = |cqes: Vec<Cqe>| results(&cqes);
    let before = list(ring.reap_all());
    to.write_all(b"x").unwrap();
    let mut after = ring.collect(1);
    // What goes with that one may be on its way, in another thread: this call waits for it.
    assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
    after.extend(ring.reap_all());
    (taken, before, list(after))
}

/// Runs every program of four such requests on both engines.
///
/// The kernel is asked up to three times, until it says the same twice. Its count of completions is a `u32` that goes back while
/// timeouts that have fired are on their way: where it looks in between (about once in 5,000 runs on a busy machine), the difference
/// wraps, and every timeout that counts fires.
fn programs(kinds: &[Sqe]) {
    both(|engine| {
        let run = |number| match engine {
            Engine::User => program(engine, kinds, number),
            Engine::Kernel => {
                let first = program(engine, kinds, number);
                let second = program(engine, kinds, number);
                if first == second { first } else { program(engine, kinds, number) }
            }
        };
        by_outcome((0..kinds.len().pow(4)).map(|number| (number, run(number))))
    });
}

#[test]
fn timeouts_that_count() {
    static HOUR: [i64; 2] = [3600, 0];
    let timeout = |off| Sqe { off, ..timeout(0, &HOUR) };
    programs(&[sqe(IORING_OP_NOP, 0), timeout(1), timeout(2), timeout(3)]);
}

/// A file that takes writes whose bytes are not looked at.
fn nowhere() -> File {
    File::options().read(true).write(true).open("/dev/null").unwrap()
}

#[both(8, 0)]
fn vectors_of_more_than_one_call_takes(mut ring: Ring) -> impl Answer {
    let (file, vectors) =
        (nowhere(), [anyring_engine::os::user::IoVector { base: 4096, length: 1 << 30 }; 3]);
    let write = Sqe { flags: LINK, ..writing(IORING_OP_WRITEV, 1, &file, &vectors) };
    let cqes = ring.run(&[write, sqe(IORING_OP_NOP, 2)]);
    cqes.iter().map(|cqe| (cqe.user_data, cqe.res)).collect::<Vec<_>>()
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn addresses_that_are_none_and_buffers_beyond_all_memory(mut ring: Ring) -> impl Answer {
    let file = nowhere();
    let mut status = [0u64; 32];
    let look = Sqe { fd: file.as_raw_fd(), off: status.as_mut_ptr() as u64, ..sqe(IORING_OP_STATX, 1) };
    let provide = Sqe { fd: 16, addr: END - 4096, len: 4096, ..sqe(IORING_OP_PROVIDE_BUFFERS, 2) };
    let nop = Sqe { fd: file.as_raw_fd(), op_flags: IORING_NOP_FILE, ..sqe(IORING_OP_NOP, 3) };
    let fixed = IORING_NOP_FILE | IORING_NOP_FIXED_FILE;
    let cases = [
        look,
        Sqe { addr: c"".as_ptr() as u64, ..look },
        Sqe { op_flags: libc::AT_EMPTY_PATH as u32, ..look },
        provide,
        Sqe { fd: 1, ..provide },
        nop,
        Sqe { fd: -1, ..nop },
        Sqe { op_flags: fixed, ..nop },
    ];
    each(&mut ring, &cases)
}

/// A file that is known to be idle, because a request waits for it, is not waited for where that would be in vain.
#[both(32, 0)]
fn transfers_that_an_idle_file_refuses(mut ring: Ring) -> impl Answer {
    let (mut first, mut second) = ([0u8; 8], [0u8; 8]);
    let mut all = Vec::new();
    let (mut own, mut peer) = UnixStream::pair().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (source, mut sink) = std::io::pipe().unwrap();
    let mut event = File::from(eventfd(0, 0));
    let read = |file: &dyn AsRawFd, buffer: &mut [u8; 8]| Sqe {
        len: 8,
        off: u64::MAX,
        ..reading(IORING_OP_READ, 1, file, buffer)
    };
    let accept = Sqe { fd: listener.as_raw_fd(), ..sqe(IORING_OP_ACCEPT, 1) };
    let waiting = [read(&own, &mut first), read(&source, &mut first), read(&event, &mut first), accept];
    ring.submit_all(waiting, 0);
    assert_eq!(ring.reap_all(), []);
    let of = |file: &dyn AsRawFd, second: &mut [u8; 8]| Sqe { user_data: 2, ..read(file, second) };
    let refused = [
        Sqe { off: 5, ..of(&own, &mut second) },
        Sqe { off: 5, len: 4, ..of(&own, &mut second) },
        of(&listener, &mut second),
        Sqe { off: 0, ..of(&listener, &mut second) },
        Sqe { opcode: IORING_OP_WRITE as u8, ..of(&source, &mut second) },
        Sqe { len: 4, ..of(&event, &mut second) },
        Sqe { len: 7, off: 0, ..of(&event, &mut second) },
    ];
    // What is known of a file counts where the call waits.
    for sqe in refused {
        all.push(ring.run(&[sqe])[0].res);
    }
    // These wait as the first ones do.
    let nop = sqe(IORING_OP_NOP, 3);
    let done = Cqe { user_data: 3, res: 0, flags: 0 };
    for sqe in [Sqe { off: 0, ..of(&own, &mut second) }, Sqe { off: 5, ..of(&source, &mut second) }] {
        ring.submit_and_wait(&[sqe, nop], 1);
        assert_eq!(ring.reap_all(), [done]);
    }
    peer.write_all(&[1; 16]).unwrap();
    sink.write_all(&[1; 16]).unwrap();
    event.write_all(&1u64.to_ne_bytes()).unwrap();
    let mut woken = results(&ring.collect(5));
    woken.sort();
    let _ = own.flush();
    (all, woken)
}
