//! Opening, closing, paths, attributes, pipes: results and errors as the kernel's.

use std::os::unix::fs::MetadataExt;

use crate::common::prelude::*;

const ALLOCATE: u32 = u32::MAX;

fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn open(path: &CString, flags: i32, user_data: u64) -> Sqe {
    Sqe { len: 0o644, ..crate::common::open(user_data, path, flags) }
}

fn close(fd: RawFd, user_data: u64) -> Sqe {
    Sqe { fd, ..sqe(IORING_OP_CLOSE, user_data) }
}

fn result(ring: &mut Ring, sqe: Sqe) -> i32 {
    results(&ring.run(&[sqe]))[0].1
}

fn sparse_files(ring: &Ring, count: u32) {
    ring.register_files(&vec![-1; count as usize]);
}

/// The flags of a file, without `O_LARGEFILE`, which the kernel adds, and which has another number on aarch64; and those of its
/// descriptor.
fn flags_of(fd: RawFd) -> (i32, i32) {
    const LARGE_FILE: i32 = if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 };
    // SAFETY: touches no memory.
    let (flags, own) = unsafe { (libc::fcntl(fd, libc::F_GETFL), libc::fcntl(fd, libc::F_GETFD)) };
    (if flags < 0 { flags } else { flags & !LARGE_FILE }, own)
}

/// True if `fd` is a descriptor of this file. Other tests run at the same time, and may be given the number of one that is closed here.
fn stands_for(fd: RawFd, path: &CString) -> bool {
    let of = |path: &str| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    of(&format!("/proc/self/fd/{fd}")) == of(path.to_str().unwrap())
}

#[both(8, 0)]
fn opens_and_closes(mut ring: Ring) -> impl Answer {
    let directory = Directory::new();
    let path = directory.file("a", "content");
    let mut seen = Vec::new();
    for flags in [
        libc::O_RDONLY,
        libc::O_RDWR | libc::O_CLOEXEC,
        libc::O_WRONLY | libc::O_APPEND,
        libc::O_RDONLY | libc::O_NONBLOCK,
        libc::O_PATH,
        libc::O_CREAT | libc::O_RDWR | libc::O_TRUNC,
    ] {
        let fd = result(&mut ring, open(&path, flags, 1));
        assert!(fd >= 0, "{flags:o}: {fd}");
        seen.push(flags_of(fd));
        assert_eq!(result(&mut ring, close(fd, 2)), 0);
        assert!(!stands_for(fd, &path), "{flags:o}: closed");
    }
    (seen, result(&mut ring, close(-1, 3)), result(&mut ring, close(900_000, 3)))
}

#[both(32, IORING_SETUP_SUBMIT_ALL)]
fn errors_of_open(mut ring: Ring) -> impl Answer {
    let directory = Directory::new();
    let path = directory.file("a", "content");
    let missing = directory.path("missing");
    let long = CString::new("x".repeat(5000)).unwrap();
    let empty = CString::default();
    let good = open(&path, 0, 0);
    let how = [0u64, 0, 0, 0];
    let how_bad = [1u64 << 40, 0, 0, 0];
    let how_long = [0u64, 0, 0, 1];
    let open2 = |how: &[u64; 4], len: u32, user_data| Sqe {
        op_flags: 0,
        off: how.as_ptr() as u64,
        len,
        opcode: IORING_OP_OPENAT2 as u8,
        user_data,
        ..good
    };
    let sqes = [
        open(&missing, 0, 1),
        open(&long, 0, 2),
        open(&empty, 0, 3),
        Sqe { addr: 0, user_data: 4, ..good },
        Sqe { addr: 0x1000, user_data: 5, ..good },
        Sqe { fd: -7, addr: c"relative".as_ptr() as u64, user_data: 6, ..good },
        Sqe { buf_index: 1, user_data: 7, ..good },
        Sqe { flags: FIXED, user_data: 8, ..good },
        Sqe { file_index: 1, user_data: 9, ..good },
        Sqe { file_index: 1, op_flags: libc::O_CLOEXEC as u32, user_data: 10, ..good },
        Sqe { op_flags: libc::O_DIRECTORY as u32, user_data: 11, ..good },
        Sqe { ioprio: 1, user_data: 12, ..good },
        open2(&how_bad, 24, 13),
        open2(&how, 23, 14),
        open2(&how_long, 32, 15),
        open2(&how, 5000, 16),
        Sqe { off: 0, user_data: 17, ..open2(&how, 24, 0) },
        Sqe { len: 1, user_data: 18, ..close(0, 0) },
        Sqe { file_index: 1, fd: 1, user_data: 19, ..close(0, 0) },
        Sqe { file_index: 1, user_data: 20, ..close(0, 0) },
        Sqe { flags: FIXED, user_data: 21, ..close(0, 0) },
        close(ring.fd, 22),
    ];
    let seen = results(&ring.run(&sqes));
    let fd = result(&mut ring, open2(&how, 32, 1));
    assert!(fd >= 0);
    assert_eq!(result(&mut ring, close(fd, 2)), 0);
    seen
}

#[both(8, 0)]
fn opens_into_slots(mut ring: Ring) -> impl Answer {
    let directory = Directory::new();
    let path = directory.file("a", "content");
    sparse_files(&ring, 4);
    let mut buffer = [0u8; 7];
    let slot = |file_index, user_data| Sqe { file_index, ..open(&path, 0, user_data) };
    let mut read =
        Sqe { fd: 1, flags: FIXED, addr: buffer.as_mut_ptr() as u64, len: 7, ..sqe(IORING_OP_READ, 2) };
    let linked = Sqe { flags: LINK, ..slot(2, 1) };
    let mut seen = vec![results(&ring.run(&[linked, read]))];
    for index in [ALLOCATE, ALLOCATE, ALLOCATE, ALLOCATE, 5, 2] {
        seen.push(results(&ring.run(&[slot(index, 3)])));
    }
    seen.push(results(&ring.run(&[Sqe { file_index: 2, ..close(0, 4) }])));
    read.user_data = 5;
    seen.push(results(&ring.run(&[read, Sqe { file_index: 2, ..close(0, 6) }])));
    seen.push(results(&ring.run(&[Sqe { file_index: 9, ..close(0, 7) }])));
    seen.push(results(&ring.run(&[slot(ALLOCATE, 8)])));
    (seen, buffer)
}

#[both(8, 0)]
fn a_fifo_hangs_nobody(mut ring: Ring) -> impl Answer {
    let directory = Directory::new();
    let path = directory.path("fifo");
    // SAFETY: a path of ours.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let reader = result(&mut ring, open(&path, libc::O_RDONLY, 1));
    assert!(reader >= 0);
    let seen = flags_of(reader);
    assert_eq!(result(&mut ring, close(reader, 2)), 0);
    let lonely = result(&mut ring, open(&path, libc::O_WRONLY, 3));
    // One that waits, until somebody writes.
    ring.submit(&[Sqe { flags: ASYNC, ..open(&path, libc::O_RDONLY, 4) }]);
    let early = ring.reap_all();
    let other = std::fs::OpenOptions::new().write(true).open(path.to_str().unwrap()).unwrap();
    let late = ring.waited(1)[0].res;
    drop(other);
    assert!(late >= 0);
    assert_eq!(result(&mut ring, close(late, 5)), 0);
    (seen, lonely, early)
}

#[both(8, 0)]
fn paths_are_read_when_they_are_submitted(mut ring: Ring) -> impl Answer {
    let directory = Directory::new();
    directory.file("a", "");
    let mut path = directory.path("a").into_bytes_with_nul();
    let mut status = [0u64; 32];
    // Held back until the read completes, which it does when the pipe is written to.
    let (reader, writer) = pipe();
    let mut byte = [0u8];
    let off = status.as_mut_ptr() as u64;
    let (fd, addr) = (libc::AT_FDCWD, path.as_ptr() as u64);
    ring.submit(&[
        Sqe { flags: LINK, ..reading(IORING_OP_READ, 1, &reader, &mut byte) },
        Sqe { fd, addr, off, len: 0x7ff, ..sqe(IORING_OP_STATX, 2) },
    ]);
    path.fill(b'x');
    write_to(&writer, &[1]);
    ring.waited(2).iter().map(|cqe| (cqe.user_data, cqe.res)).collect::<Vec<_>>()
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn status_of_files(mut ring: Ring) -> impl Answer {
    let directory = Directory::new();
    let path = directory.file("a", "content");
    let missing = directory.path("missing");
    let empty = CString::default();
    let mut status = [0u64; 32];
    let good = Sqe { off: status.as_mut_ptr() as u64, len: 0x7ff, ..at_path(IORING_OP_STATX, 1, &path) };
    let seen = results(&ring.run(&[
        good,
        Sqe { addr: missing.as_ptr() as u64, user_data: 2, ..good },
        Sqe { addr: empty.as_ptr() as u64, user_data: 3, ..good },
        Sqe { addr: empty.as_ptr() as u64, op_flags: 0x1000, user_data: 4, ..good },
        Sqe { off: 0x1000, user_data: 5, ..good },
        Sqe { addr: 0x1000, user_data: 6, ..good },
        Sqe { buf_index: 1, user_data: 7, ..good },
        Sqe { flags: FIXED, user_data: 8, ..good },
        Sqe { op_flags: 0x8000_0000, user_data: 9, ..good },
        Sqe { file_index: 1, user_data: 10, ..good },
    ]));
    // stx_size
    (seen, status[5])
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn makes_moves_and_removes(mut ring: Ring) -> impl Answer {
    let directory = Directory::new();
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(|name| directory.path(name));
    directory.file("a", "content");
    let at = |opcode, path: &CString, user_data| at_path(opcode, user_data, path);
    let two = |opcode, first: &CString, second: &CString, user_data| Sqe {
        off: second.as_ptr() as u64,
        len: libc::AT_FDCWD as u32,
        ..at(opcode, first, user_data)
    };
    let symlink = Sqe { len: 0, ..two(IORING_OP_SYMLINKAT, &a, &e, 4) };
    let mkdir = Sqe { len: 0o755, ..at(IORING_OP_MKDIRAT, &b, 1) };
    let mut made = results(&ring.run(&[mkdir, mkdir]));
    made.sort();
    let mut seen = vec![(made, names(&directory.0))];
    let steps = [
        two(IORING_OP_LINKAT, &a, &c, 2),
        two(IORING_OP_RENAMEAT, &c, &d, 3),
        symlink,
        Sqe { op_flags: 1, ..two(IORING_OP_RENAMEAT, &d, &e, 5) },
        at(IORING_OP_UNLINKAT, &b, 6),
        Sqe { op_flags: libc::AT_REMOVEDIR as u32, ..at(IORING_OP_UNLINKAT, &b, 7) },
        at(IORING_OP_UNLINKAT, &d, 8),
        at(IORING_OP_UNLINKAT, &d, 9),
    ];
    for step in steps {
        seen.push((results(&ring.run(&[step])), names(&directory.0)));
    }
    let bad = [
        Sqe { flags: FIXED, user_data: 20, ..mkdir },
        Sqe { op_flags: 1, user_data: 21, ..mkdir },
        Sqe { len: 1, user_data: 22, ..symlink },
        Sqe { op_flags: 1, ..at(IORING_OP_UNLINKAT, &a, 23) },
        Sqe { off: 0x1000, user_data: 24, ..two(IORING_OP_RENAMEAT, &a, &b, 0) },
        Sqe { addr: 0x1000, user_data: 25, ..two(IORING_OP_LINKAT, &a, &b, 0) },
        Sqe { file_index: 1, ..two(IORING_OP_LINKAT, &a, &b, 26) },
        Sqe { fd: -1, addr: c"x".as_ptr() as u64, user_data: 27, ..mkdir },
    ];
    seen.push((results(&ring.run(&bad)), names(&directory.0)));
    seen
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn attributes(mut ring: Ring) -> impl Answer {
    let directory = Directory::new();
    let path = directory.file("a", "content");
    let fd = result(&mut ring, open(&path, libc::O_RDWR, 1));
    let name = c"user.anyring";
    let mut buffer = [0u8; 16];
    let set = attribute(IORING_OP_SETXATTR, 1, &path, name, b"value");
    let get = attribute(IORING_OP_GETXATTR, 2, &path, name, &raw mut buffer);
    let long = CString::new("user.".to_owned() + &"x".repeat(300)).unwrap();
    let empty = CString::default();
    let mut seen = Vec::new();
    for sqe in [
        get,
        set,
        get,
        Sqe { op_flags: 1, ..set },
        Sqe { op_flags: 9, ..set },
        Sqe { op_flags: 1, ..get },
        Sqe { len: 2, ..get },
        Sqe { len: 0, ..get },
        Sqe { addr: long.as_ptr() as u64, ..set },
        Sqe { addr: empty.as_ptr() as u64, ..set },
        Sqe { addr: 0x1000, ..get },
        Sqe { addr3: 0x1000, ..get },
        Sqe { off: 0x1000, ..get },
        Sqe { off: 0x1000, ..set },
        Sqe { len: 65537, ..set },
        Sqe { flags: FIXED, ..set },
        Sqe { opcode: IORING_OP_FSETXATTR as u8, fd, addr3: 0, len: 3, ..set },
        Sqe { opcode: IORING_OP_FGETXATTR as u8, fd, addr3: 0, ..get },
        Sqe { opcode: IORING_OP_FGETXATTR as u8, fd: -1, addr3: 0, ..get },
    ] {
        seen.push(result(&mut ring, sqe));
    }
    result(&mut ring, close(fd, 1));
    (seen, buffer)
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn splices_and_tees(mut ring: Ring) -> impl Answer {
    let directory = Directory::new();
    let path = directory.file("a", "0123456789");
    let file = result(&mut ring, open(&path, libc::O_RDWR, 1));
    let pipes = [pipe(), pipe()];
    let [first, second] = pipes.each_ref().map(|(from, into)| [from.as_raw_fd(), into.as_raw_fd()]);
    let splice = |from: i32, from_offset: u64, to: i32, to_offset: u64, len: u32, user_data| Sqe {
        file_index: from as u32,
        addr: from_offset,
        fd: to,
        off: to_offset,
        len,
        ..sqe(IORING_OP_SPLICE, user_data)
    };
    let tee = Sqe { addr: 0, off: 0, opcode: IORING_OP_TEE as u8, ..splice(first[0], 0, second[1], 0, 4, 2) };
    let mut seen = Vec::new();
    for sqe in [
        splice(file, 2, first[1], u64::MAX, 6, 1),
        tee,
        splice(first[0], u64::MAX, file, 8, 6, 3),
        splice(second[0], u64::MAX, file, 0, 3, 4),
        splice(file, 100, first[1], u64::MAX, 6, 5),
        splice(file, 0, first[1], 7, 6, 6),
        splice(-1, 0, first[1], u64::MAX, 6, 7),
        splice(file, 0, -1, u64::MAX, 6, 8),
        splice(file, 0, file, 0, 6, 9),
        splice(file, 0, first[1], u64::MAX, 0, 10),
        Sqe { op_flags: 0x100, ..splice(file, 0, first[1], u64::MAX, 6, 11) },
        Sqe { op_flags: 1 << 31, ..splice(0, 0, first[1], u64::MAX, 6, 12) },
        Sqe { addr: 1, ..tee },
    ] {
        seen.push(result(&mut ring, sqe));
    }
    close_number(file);
    (seen, std::fs::read_to_string(directory.0.join("a")).unwrap())
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn pipes(mut ring: Ring) -> impl Answer {
    sparse_files(&ring, 4);
    let mut ends = [-5i32; 2];
    let pipe = Sqe { fd: 0, addr: ends.as_mut_ptr() as u64, ..sqe(IORING_OP_PIPE, 1) };
    let mut seen = Vec::new();
    assert_eq!(result(&mut ring, Sqe { op_flags: libc::O_CLOEXEC as u32, ..pipe }), 0);
    for end in ends {
        seen.push(flags_of(end));
        result(&mut ring, close(end, 2));
    }
    let mut slots = Vec::new();
    for sqe in [
        Sqe { file_index: ALLOCATE, ..pipe },
        Sqe { file_index: 2, ..pipe },
        Sqe { file_index: ALLOCATE, ..pipe },
        Sqe { file_index: 4, ..pipe },
        Sqe { file_index: 1, op_flags: libc::O_CLOEXEC as u32, ..pipe },
        Sqe { op_flags: 1, ..pipe },
        Sqe { fd: 1, ..pipe },
        Sqe { addr: 0x1000, ..pipe },
    ] {
        ends = [-5; 2];
        let result = result(&mut ring, sqe);
        // SAFETY: the ring wrote it.
        slots.push((result, unsafe { (&raw const ends).read_volatile() }));
    }
    (seen, slots)
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn installs_registered_files(mut ring: Ring) -> impl Answer {
    let directory = Directory::new();
    let path = directory.file("a", "content");
    sparse_files(&ring, 2);
    assert_eq!(result(&mut ring, Sqe { file_index: 1, ..open(&path, 0, 1) }), 0);
    let install = Sqe { fd: 0, flags: FIXED, ..sqe(IORING_OP_FIXED_FD_INSTALL, 1) };
    let mut seen = Vec::new();
    for op_flags in [0, IORING_FIXED_FD_NO_CLOEXEC] {
        let fd = result(&mut ring, Sqe { op_flags, ..install });
        assert!(fd >= 0);
        seen.push(flags_of(fd));
        result(&mut ring, close(fd, 2));
    }
    let errors = results(&ring.run(&[
        Sqe { flags: 0, user_data: 1, ..install },
        Sqe { fd: 1, user_data: 2, ..install },
        Sqe { fd: 7, user_data: 3, ..install },
        Sqe { op_flags: 2, user_data: 4, ..install },
        Sqe { off: 1, user_data: 5, ..install },
    ]));
    (seen, errors)
}

/// On a ring that defers, the file lies in wait for its thread, which closes the ring instead.
#[both]
fn a_file_for_a_slot_of_a_ring_that_is_closed_is_closed(engine: Engine) {
    let directory = std::env::temp_dir().join(format!("anyring-slot-{}-{engine:?}", std::process::id()));
    std::fs::write(&directory, b"x").unwrap();
    let path = CString::new(directory.to_str().unwrap()).unwrap();
    let mut ring = Ring::new(engine, 4, DEFER);
    ring.register_files(&[-1]);
    ring.submit(&[Sqe { file_index: 1, ..open(&path, 0, 1) }]);
    ring.close();
    let open = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        links.flat_map(|link| std::fs::read_link(link.path())).any(|target| target == directory)
    };
    let begun = Instant::now();
    while open() {
        assert!(begun.elapsed() < PATIENCE, "the file is closed with the ring");
        std::thread::yield_now();
    }
    std::fs::remove_file(&directory).unwrap();
}

/// On a ring that defers, that the file is closed is told later than the number can be used again.
#[both(4, DEFER)]
fn the_number_of_a_closed_file_can_be_used_before_its_completion_is_seen(mut ring: Ring) -> impl Answer {
    let null = File::options().write(true).open("/dev/null").unwrap();
    let number = numbered(&null, 700);
    ring.submit(&[close(number, 1)]);
    assert_eq!(flags_of(number), (-1, -1), "it is closed");
    replace(&number, &null);
    let mut cqes = ring.run(&[writing(IORING_OP_WRITE, 2, &number, b"x")]);
    cqes.extend(ring.waited(0));
    close_number(number);
    by_user_data(cqes)
}

/// Paths of each length that the copy treats differently end before a hole, with their zero or without.
#[both(4, 0)]
fn paths_that_end_before_a_hole(mut ring: Ring) -> impl Answer {
    let pages = pages_before_a_hole(2);
    let mut status = [0u64; 32];
    // The result for a path of this byte, and what stands behind it, up to the hole.
    let mut result = |byte: u8, length: usize, behind: &[u8]| {
        let (path, end) = (pages.len() - behind.len() - length, pages.len() - behind.len());
        pages[path..end].fill(byte);
        pages[end..].copy_from_slice(behind);
        let (fd, addr) = (libc::AT_FDCWD, pages[path..].as_ptr() as u64);
        let statx = Sqe { fd, addr, off: status.as_mut_ptr() as u64, len: 0x7ff, ..sqe(IORING_OP_STATX, 1) };
        ring.run(&[statx])[0].res
    };
    let short = 1..=200;
    let long = [255, 256, 257, 511, 512, 1000, 4030, 4031, 4032, 4093, 4094, 4095, 4096, 4097, 5000];
    let lengths: Vec<usize> = short.chain(long).collect();
    let with_zero: Vec<i32> = lengths.iter().map(|&length| result(b'/', length, &[0])).collect();
    let without: Vec<i32> = lengths.iter().map(|&length| result(b'/', length, &[])).collect();
    // The byte before the zero has each of its bits.
    let odd =
        [0x01, 0x80, 0x81, 0xff].into_iter().flat_map(|byte| (1..=70).map(move |length| (byte, length)));
    let odd: Vec<i32> = odd.map(|(byte, length)| result(byte, length, &[0])).collect();
    (with_zero, without, odd)
}
