//! Reading and writing files: all forms, offsets, short transfers, links, hostile memory.

use std::os::unix::fs::OpenOptionsExt;
use std::sync::Mutex;

use crate::common::prelude::*;
use anyring_engine::os::user::IoVector;

fn read(file: &File, buffer: &mut [u8], off: u64, user_data: u64) -> Sqe {
    Sqe { off, ..reading(IORING_OP_READ, user_data, file, buffer) }
}

fn write(file: &File, bytes: &[u8], off: u64, user_data: u64) -> Sqe {
    Sqe { off, ..writing(IORING_OP_WRITE, user_data, file, bytes) }
}

fn vectored(opcode: io_uring_op, file: &File, vectors: &[IoVector], off: u64) -> Sqe {
    Sqe { off, ..writing(opcode, 1, file, vectors) }
}

fn vector(bytes: &mut [u8]) -> IoVector {
    IoVector { base: bytes.as_mut_ptr() as u64, length: bytes.len() as u64 }
}

#[both(8, 0)]
fn reads_whole_short_and_at_the_end(mut ring: Ring) -> impl Answer {
    let file = nameless(b"0123456789");
    let mut buffers = [[0u8; 6]; 4];
    let [a, b, c, d] = &mut buffers;
    let sqes =
        [read(&file, a, 0, 1), read(&file, b, 7, 2), read(&file, c, 10, 3), read(&file, d, 1 << 40, 4)];
    let results = results(&ring.run(&sqes));
    (results, buffers)
}

#[both(8, 0)]
fn short_reads_break_links(mut ring: Ring) -> impl Answer {
    let file = nameless(b"0123456789");
    let (mut a, mut b, mut c) = ([0u8; 4], [0u8; 20], [0u8; 4]);
    let mut sqes = [read(&file, &mut a, 0, 1), read(&file, &mut b, 0, 2), read(&file, &mut c, 0, 3)];
    sqes[0].flags = LINK;
    sqes[1].flags = LINK;
    (results(&ring.run(&sqes)), a, b, c)
}

#[both(8, 0)]
fn writes_and_reads_back(mut ring: Ring) -> impl Answer {
    let file = nameless(b"");
    let mut back = [0u8; 12];
    let mut sqes =
        [write(&file, b"hello ", 0, 1), write(&file, b"world", 6, 2), read(&file, &mut back, 0, 3)];
    sqes[0].flags = LINK;
    sqes[1].flags = LINK | ASYNC;
    (results(&ring.run(&sqes)), back)
}

#[both(8, 0)]
fn the_position_moves_with_offset_minus_one(mut ring: Ring) -> impl Answer {
    let file = nameless(b"abcdefghij");
    let (mut a, mut b, mut c) = ([0u8; 3], [0u8; 3], [0u8; 9]);
    let mut sqes = [
        read(&file, &mut a, u64::MAX, 1),
        read(&file, &mut b, u64::MAX, 2),
        read(&file, &mut c, u64::MAX, 3),
    ];
    sqes[0].flags = LINK;
    sqes[1].flags = LINK | ASYNC;
    let results = results(&ring.run(&sqes));
    // SAFETY: ours.
    let position = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_CUR) };
    (results, a, b, c, position)
}

#[by(ours(64, 0))]
fn queued_appends_keep_their_order(mut ring: Ring) {
    let file = nameless(b"");
    let lines: Vec<String> = (0..64).map(|i| format!("line {i}\n")).collect();
    let sqes: Vec<Sqe> = lines.iter().map(|line| write(&file, line.as_bytes(), u64::MAX, 1)).collect();
    ring.run(&sqes);
    let mut content = vec![0u8; 4096];
    let length = results(&ring.run(&[read(&file, &mut content, 0, 2)]))[0].1 as usize;
    assert_eq!(std::str::from_utf8(&content[..length]).unwrap(), lines.concat());
}

#[both(8, 0)]
fn vectors_scatter_and_gather(mut ring: Ring) -> impl Answer {
    let file = nameless(b"");
    let (mut a, mut b, mut c) = (*b"one ", *b"", *b"three");
    let vectors = [vector(&mut a), vector(&mut b), vector(&mut c)];
    let written = results(&ring.run(&[vectored(IORING_OP_WRITEV, &file, &vectors, 0)]));
    let (mut d, mut e) = ([0u8; 6], [0u8; 16]);
    let vectors = [vector(&mut d), vector(&mut e)];
    let read = results(&ring.run(&[vectored(IORING_OP_READV, &file, &vectors, 0)]));
    let single = results(&ring.run(&[vectored(IORING_OP_READV, &file, &vectors[..1], 2)]));
    let none = results(&ring.run(&[vectored(IORING_OP_READV, &file, &[], 0)]));
    (written, read, single, none, d, e)
}

#[both(8, 0)]
fn vectors_are_read_when_they_are_submitted(mut ring: Ring) -> impl Answer {
    let (from, into) = pipe();
    let (mut a, mut b) = ([0u8; 3], [0u8; 3]);
    let mut vectors = [vector(&mut a), vector(&mut b)];
    ring.submit(&[vectored(IORING_OP_READV, &from, &vectors, 0)]);
    vectors = [IoVector { base: 1, length: 1 << 40 }; 2];
    (&into).write_all(b"abcdef").unwrap();
    let results = results(&ring.waited(1));
    assert_eq!(vectors[0].base, 1);
    (results, a, b)
}

#[both(8, 0)]
fn pipes_ignore_the_offset_and_wait(mut ring: Ring) -> impl Answer {
    let (from, into) = pipe();
    let (mut a, mut b) = ([0u8; 4], [0u8; 4]);
    ring.submit(&[read(&from, &mut a, 0, 1), read(&from, &mut b, 99, 2)]);
    let early = ring.reap_all();
    (&into).write_all(b"12345").unwrap();
    let mut lengths: Vec<i32> = ring.waited(2).iter().map(|cqe| cqe.res).collect();
    lengths.sort_unstable();
    (early, lengths)
}

#[both(8, 0)]
fn a_full_pipe_waits_for_room(mut ring: Ring) -> impl Answer {
    let (from, into) = pipe();
    // SAFETY: ours.
    let size = unsafe { libc::fcntl(into.as_raw_fd(), libc::F_GETPIPE_SZ) } as usize;
    let data = vec![7u8; size];
    let first = results(&ring.run(&[write(&into, &data, 0, 1)]));
    ring.submit(&[write(&into, &data[..4096], 0, 2)]);
    let early = ring.reap_all();
    let mut drained = vec![0u8; size];
    assert_eq!(std::io::Read::read(&mut &from, &mut drained).unwrap(), size);
    (first[0].1 as usize == size, early, results(&ring.waited(1)))
}

#[both(8, 0)]
fn nonblocking_files_wait_all_the_same(mut ring: Ring) -> impl Answer {
    let (from, into) = pipe_with(libc::O_NONBLOCK);
    let mut buffer = [0u8; 4];
    ring.submit(&[read(&from, &mut buffer, 0, 1)]);
    let early = ring.reap_all();
    (&into).write_all(b"abcd").unwrap();
    (early, results(&ring.waited(1)), buffer)
}

/// Terminals and inotify instances know no attempts without blocking, but with `O_NONBLOCK` their reads are tried, and wait like those of
/// a pipe. Only a read that is told not to wait fails.
#[both(8, 0)]
fn nonblocking_terminals_and_watches_wait_all_the_same(mut ring: Ring) -> impl Answer {
    ends_after(60);
    let (main, terminal) = terminal();
    // SAFETY: ours.
    assert_eq!(unsafe { libc::fcntl(terminal, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) }, 0);
    let terminal = File::from(owned(terminal));
    let watched = nameless(b"");
    let [blocking, events] = [0, libc::IN_NONBLOCK].map(|flags| inotify(&watched, libc::IN_OPEN, flags));
    let mut buffers = [[0u8; 16]; 2];
    let [line, event] = &mut buffers;
    let mut all = Vec::new();
    for file in [&terminal, &events, &blocking] {
        let now = read(file, &mut [0; 16], u64::MAX, 1);
        all.extend(ring.run(&[Sqe { op_flags: libc::RWF_NOWAIT as u32, ..now }]));
    }
    all.extend(ring.run(&[read(&events, &mut [], u64::MAX, 1)]));
    ring.submit(&[read(&terminal, line, u64::MAX, 1), read(&events, event, u64::MAX, 2)]);
    all.extend(ring.run(&[nop(3, 0)]));
    write_to(&main, b"line\n");
    all.push(ring.wait());
    drop(File::open(format!("/proc/self/fd/{}", watched.as_raw_fd())).unwrap());
    all.push(ring.wait());
    close_number(main);
    (results(&all), *line)
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn rw_flags(mut ring: Ring) -> impl Answer {
    let file = nameless(b"0123456789");
    let (from, _into) = pipe();
    let mut buffer = [0u8; 4];
    let with = |file: &File, op_flags: i32, user_data| {
        let mut buffer = [0u8; 4];
        Sqe { op_flags: op_flags as u32, ..read(file, &mut buffer, 0, user_data) }
    };
    let mut nowait = read(&file, &mut buffer, 0, 1);
    nowait.op_flags = libc::RWF_NOWAIT as u32;
    let sqes = [
        nowait,
        with(&from, libc::RWF_NOWAIT, 2),
        with(&file, libc::RWF_HIPRI, 3),
        with(&file, 0x4000_0000, 4),
        Sqe { op_flags: libc::RWF_APPEND as u32, ..write(&file, b"end", 0, 5) },
        Sqe { op_flags: libc::RWF_DSYNC as u32, ..write(&file, b"A", 0, 6) },
    ];
    let mut results = results(&ring.run(&sqes));
    // Not every file system has that flag.
    let mut plain = [0u8; 4];
    let vector = libc::iovec { iov_base: plain.as_mut_ptr().cast(), iov_len: 4 };
    // SAFETY: writes memory of ours.
    let called = unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, 0, libc::RWF_NOWAIT) };
    let has_flag = called >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EOPNOTSUPP);
    let read = (results.remove(0), buffer);
    assert_eq!(read, if has_flag { ((1, 4), *b"0123") } else { ((1, -libc::EOPNOTSUPP), [0; 4]) });
    results
}

#[both(32, IORING_SETUP_SUBMIT_ALL)]
fn hostile_memory(mut ring: Ring) -> impl Answer {
    let file = nameless(b"0123456789");
    let at = |opcode, addr: u64, len: u32, user_data| Sqe {
        fd: file.as_raw_fd(),
        addr,
        len,
        ..sqe(opcode, user_data)
    };
    let negative = [IoVector { base: 0x1000, length: u64::MAX }; 2];
    let widest = [IoVector { base: 0x1000, length: i64::MAX as u64 }; 2];
    let nowhere = [IoVector { base: 0x1000, length: 8 }, IoVector { base: 0x2000, length: 8 }];
    results(&ring.run(&[
        at(IORING_OP_READ, 0, 8, 1),
        at(IORING_OP_READ, 0x1000, 8, 2),
        at(IORING_OP_READ, u64::MAX - 100, 8, 3),
        at(IORING_OP_WRITE, 0x1000, 8, 4),
        at(IORING_OP_READV, 0, 1, 5),
        at(IORING_OP_READV, 0x1000, 4, 6),
        at(IORING_OP_READV, 0x1000, 1025, 7),
        at(IORING_OP_READV, negative.as_ptr() as u64, 1, 8),
        at(IORING_OP_READV, negative.as_ptr() as u64, 2, 9),
        at(IORING_OP_READV, nowhere.as_ptr() as u64, 2, 10),
        at(IORING_OP_WRITEV, nowhere.as_ptr() as u64, 1, 11),
        at(IORING_OP_READ, 0x1000, 0, 12),
        at(IORING_OP_READV, widest.as_ptr() as u64, 1, 13),
        at(IORING_OP_READV, widest.as_ptr() as u64, 2, 14),
    ]))
}

#[both(32, IORING_SETUP_SUBMIT_ALL)]
fn bad_files_and_fields(mut ring: Ring) -> impl Answer {
    let content = nameless(b"0123456789");
    let directory = File::open("/tmp").unwrap();
    let read_only = File::open("/proc/self/exe").unwrap();
    let mut buffer = [0u8; 4];
    let good = read(&content, &mut buffer, 0, 0);
    let sqes = [
        Sqe { fd: -1, user_data: 1, ..good },
        Sqe { fd: 900_000, user_data: 2, ..good },
        Sqe { fd: directory.as_raw_fd(), user_data: 3, ..good },
        Sqe { off: u64::MAX - 1, user_data: 4, ..good },
        Sqe { ioprio: 0xffff, user_data: 5, ..good },
        Sqe { ioprio: 2 << 13, user_data: 6, ..good },
        Sqe { ioprio: 3, user_data: 7, ..good },
        Sqe { fd: 3, flags: FIXED, user_data: 8, ..good },
        Sqe { fd: read_only.as_raw_fd(), user_data: 9, ..write(&content, b"x", 0, 0) },
        Sqe { fd: ring.fd, user_data: 10, ..good },
    ];
    results(&ring.run(&sqes))
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn syncs(mut ring: Ring) -> impl Answer {
    let file = nameless(b"0123456789");
    let (from, _into) = pipe();
    let fsync = Sqe { fd: file.as_raw_fd(), ..sqe(IORING_OP_FSYNC, 1) };
    let range = Sqe { fd: file.as_raw_fd(), len: 4096, op_flags: 7, ..sqe(IORING_OP_SYNC_FILE_RANGE, 2) };
    let sqes = [
        fsync,
        Sqe { op_flags: 1, user_data: 11, ..fsync },
        Sqe { op_flags: 2, user_data: 12, ..fsync },
        Sqe { off: u64::MAX, user_data: 13, ..fsync },
        Sqe { addr: 1, user_data: 14, ..fsync },
        Sqe { fd: from.as_raw_fd(), user_data: 15, ..fsync },
        Sqe { ioprio: 1, user_data: 16, ..fsync },
        range,
        Sqe { op_flags: 0x80, user_data: 21, ..range },
        Sqe { buf_index: 1, user_data: 22, ..range },
        Sqe { fd: from.as_raw_fd(), user_data: 23, ..range },
    ];
    results(&ring.run(&sqes))
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn allocation_and_advice(mut ring: Ring) -> impl Answer {
    let file = nameless(b"0123456789");
    let fd = file.as_raw_fd();
    let allocate = Sqe { fd, addr: 8192, off: 100, ..sqe(IORING_OP_FALLOCATE, 1) };
    let truncate = Sqe { fd, off: 5, ..sqe(IORING_OP_FTRUNCATE, 2) };
    let mut memory = vec![0u8; 16384];
    let page = (memory.as_mut_ptr() as u64 + 4095) & !4095;
    let length = |ring: &mut Ring, sqes: &[Sqe]| {
        let cqes = ring.run(sqes);
        (results(&cqes), file.metadata().unwrap().len())
    };
    [
        length(&mut ring, &[allocate]),
        length(&mut ring, &[truncate]),
        length(
            &mut ring,
            &[
                Sqe { len: 0x7777, user_data: 11, ..allocate },
                Sqe { addr: 0, user_data: 12, ..allocate },
                Sqe { op_flags: 1, user_data: 13, ..allocate },
                Sqe { len: 1, user_data: 21, ..truncate },
                Sqe { off: u64::MAX, user_data: 22, ..truncate },
                Sqe { fd, len: 4096, op_flags: 4, ..sqe(IORING_OP_FADVISE, 31) },
                Sqe { fd, addr: 4096, op_flags: 99, ..sqe(IORING_OP_FADVISE, 32) },
                Sqe { addr: page, len: 4096, op_flags: 4, ..sqe(IORING_OP_MADVISE, 41) },
                Sqe { addr: page, off: 4096, op_flags: 4, ..sqe(IORING_OP_MADVISE, 42) },
                Sqe { addr: 0x1000, len: 4096, op_flags: 3, ..sqe(IORING_OP_MADVISE, 43) },
                Sqe { addr: page, len: 4096, op_flags: 999, ..sqe(IORING_OP_MADVISE, 44) },
            ],
        ),
    ]
}

/// Threads of the kernel, which do these requests, get no signal when a file would become longer than the limit allows.
#[test]
fn beyond_the_limit_of_file_sizes_is_an_error_without_a_signal() {
    const MOST: u64 = 1 << 16;
    let limit_sizes = |most| {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a limit of ours.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    };
    both(|engine| {
        limit_sizes(MOST);
        let mut ring = Ring::new(engine, 8, 0);
        let file = memory_file(b"");
        let fd = file.as_raw_fd();
        let mut answers = results(&ring.one_by_one(&[
            Sqe { fd, addr: 2 * MOST, ..sqe(IORING_OP_FALLOCATE, 1) },
            Sqe { fd, off: 2 * MOST, ..sqe(IORING_OP_FTRUNCATE, 2) },
            Sqe { off: MOST, ..writing(IORING_OP_WRITE, 3, &file, b"abcd") },
            Sqe { off: MOST - 2, ..writing(IORING_OP_WRITE, 4, &file, b"abcd") },
        ]));
        let writes = [5, 6].map(|id| Sqe { off: MOST, ..writing(IORING_OP_WRITE, id, &file, b"abcd") });
        answers.extend(results(&ring.run(&writes)));
        limit_sizes(libc::RLIM_INFINITY);
        answers
    });
}

/// A chain goes on when an operation on a file fails in it, unless the operation's file was at fault.
#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn failures_that_break_no_link(mut ring: Ring) -> impl Answer {
    let writable = memory_file(b"0123456789");
    let path = format!("/proc/self/fd/{}", writable.as_raw_fd());
    let read_only = File::open(&path).unwrap();
    let of_path = File::options().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
    let fds = [read_only.as_raw_fd(), of_path.as_raw_fd(), -1];
    fds.map(|fd| {
        let allocate = Sqe { fd, addr: 8192, flags: 1 << 2, ..sqe(IORING_OP_FALLOCATE, 1) };
        results(&ring.run(&[allocate, sqe(IORING_OP_NOP, 2)]))
    })
}

#[both(8, 0)]
fn a_file_may_be_closed_under_a_waiting_read(mut ring: Ring) -> impl Answer {
    let (from, into) = pipe();
    let mut buffer = [0u8; 4];
    ring.submit(&[read(&from, &mut buffer, 0, 1)]);
    close(ring.engine, from.into_raw_fd());
    (&into).write_all(b"abcd").unwrap();
    let results = results(&ring.waited(1));
    // The read was the last to hold the pipe's reading end.
    // SAFETY: ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let broken = (&into).write(b"x").map_err(|error| error.kind());
    (results, buffer, broken)
}

#[both(8, 0)]
fn nothing_is_written_to_an_eventfd_without_waiting(mut ring: Ring) -> impl Answer {
    let mut all = Vec::new();
    for flags in [0, libc::EFD_NONBLOCK] {
        let event = File::from(eventfd(0, flags));
        for rw_flags in [0, libc::RWF_NOWAIT as u32] {
            let mut none = [];
            let vectors = [vector(&mut none)];
            let plain = Sqe { op_flags: rw_flags, ..write(&event, &[], 0, 1) };
            let gathered = vectored(IORING_OP_WRITEV, &event, &vectors, 0);
            all.extend(results(&ring.run(&[plain])));
            all.extend(results(&ring.run(&[Sqe { op_flags: rw_flags, ..gathered }])));
        }
    }
    all
}

#[both(8, 0)]
fn an_eventfd_counts(mut ring: Ring) -> impl Answer {
    let event = File::from(eventfd(0, 0));
    let mut buffer = [0u8; 8];
    ring.submit(&[read(&event, &mut buffer, 0, 1)]);
    let early = ring.reap_all();
    ring.submit_and_wait(&[write(&event, &5u64.to_ne_bytes(), 0, 2)], 2);
    (early, results(&ring.reap_all()), buffer)
}

#[both(8, 0)]
fn what_a_read_leaves_behind_is_there_for_the_next(mut ring: Ring) -> impl Answer {
    // inotify knows no attempts without blocking, and gives out whole events only.
    let watched = nameless(b"");
    let events = inotify(&watched, libc::IN_ALL_EVENTS, 0);
    // A registered file is never looked at again by the way.
    ring.register_files(&[events.as_raw_fd()]);
    let mut buffer = [0u8; 16];
    let take = Sqe { fd: 0, flags: 1, ..read(&events, &mut buffer, u64::MAX, 1) };
    let mut all = Vec::new();
    ring.submit(&[take]);
    all.extend(ring.reap_all());
    // Opened and closed: two events.
    drop(File::open(format!("/proc/self/fd/{}", watched.as_raw_fd())).unwrap());
    ring.enter(0, 1);
    all.extend(ring.reap_all());
    all.extend(ring.run(&[take]));
    results(&all)
}

/// A read waits until more comes than another one has taken, and nothing else waits with it.
#[both(8, 0)]
fn two_reads_of_a_terminal_share_what_comes(mut ring: Ring) -> impl Answer {
    ends_after(60);
    let (main, terminal) = terminal();
    let terminal = File::from(owned(terminal));
    let mut buffers = [[0u8; 8]; 2];
    let [a, b] = &mut buffers;
    ring.submit(&[read(&terminal, a, u64::MAX, 1), read(&terminal, b, u64::MAX, 1)]);
    write_to(&main, b"one\n");
    let mut all = vec![ring.wait()];
    all.extend(ring.run(&[nop(2, 0)]));
    write_to(&main, b"three\n");
    all.push(ring.wait());
    close_number(main);
    buffers.sort();
    (results(&all), buffers)
}

/// A read of a trace waits for what is traced, though the file looks like one on storage.
#[test]
fn a_read_of_a_trace_waits() {
    let instance = format!("/sys/kernel/tracing/instances/anyring-{}", std::process::id());
    if std::fs::create_dir(&instance).is_err() {
        skip("no tracefs");
        return;
    }
    let trace = File::open(format!("{instance}/trace_pipe"));
    let answers = trace.map(|trace| {
        both(|engine| {
            ends_after(60);
            let mut ring = ring(engine, 8, 0);
            let mut buffers = [[0u8; 64]; 2];
            let [a, b] = &mut buffers;
            ring.submit(&[read(&trace, a, u64::MAX, 1), read(&trace, b, 0, 1)]);
            let mut all = ring.run(&[nop(2, 0)]);
            all.extend(ring.collect_from(&[cancel(3, 1, IORING_ASYNC_CANCEL_ALL)], 3));
            results(&by_user_data(all))
        });
    });
    std::fs::remove_dir(instance).unwrap();
    answers.unwrap();
}

/// A read of nothing from an inotify instance waits for an event, and an eventfd refuses it at once.
#[both(8, 0)]
fn reads_of_nothing_wait_where_the_file_does(mut ring: Ring) -> impl Answer {
    ends_after(60);
    let watched = nameless(b"");
    let events = inotify(&watched, libc::IN_OPEN, 0);
    let event = File::from(eventfd(0, 0));
    let nothing = |file: &File| read(file, &mut [], u64::MAX, 1);
    let mut all = ring.run(&[nothing(&event)]);
    ring.submit(&[nothing(&events)]);
    all.extend(ring.run(&[nop(2, 0)]));
    drop(File::open(format!("/proc/self/fd/{}", watched.as_raw_fd())).unwrap());
    all.push(ring.wait());
    results(&all)
}

#[both(16, 0)]
fn reads_into_provided_buffers(mut ring: Ring) -> impl Answer {
    let file = nameless(b"0123456789");
    let (from, into) = pipe();
    let mut memory = [0u8; 64];
    let provide = providing(9, 3, &mut memory, 16);
    let select = |file: &File, len: u32, off: u64, user_data| Sqe {
        len,
        flags: SELECT,
        buf_index: 3,
        ..read(file, &mut [], off, user_data)
    };
    let mut seen = ring.one_by_one(&[
        provide,
        select(&file, 4, 0, 1),
        select(&file, 100, 5, 2),
        select(&file, 4, 100, 3),
    ]);
    ring.submit(&[select(&from, 8, 0, 4)]);
    (&into).write_all(b"abc").unwrap();
    seen.extend(ring.waited(1));
    let vector = IoVector { base: 0, length: 2 };
    let vectored =
        Sqe { addr: (&raw const vector) as u64, opcode: IORING_OP_READV as u8, ..select(&file, 1, 0, 5) };
    seen.extend(ring.one_by_one(&[
        vectored,
        Sqe { len: 2, user_data: 6, ..vectored },
        select(&file, 4, 0, 7),
        Sqe { buf_index: 9, ..select(&file, 4, 0, 8) },
    ]));
    // SAFETY: the ring wrote it.
    (seen, unsafe { (&raw const memory).read_volatile() })
}

fn direct(file: &File) -> File {
    use std::os::unix::fs::OpenOptionsExt;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

fn pages(count: usize) -> Vec<Page> {
    (0..count).map(|i| Page([i as u8 + 1; 4096])).collect()
}

#[both(64, 0)]
fn many_direct_transfers_at_once(mut ring: Ring) -> impl Answer {
    let plain = nameless(b"");
    let file = direct(&plain);
    let (out, mut back) = (pages(40), pages(40));
    let at = |i: usize| 4096 * i as u64;
    let writes: Vec<Sqe> = (0..40).map(|i| write(&file, &out[i].0, at(i), i as u64)).collect();
    let written = results(&ring.run(&writes));
    let mut reads: Vec<Sqe> =
        back.iter_mut().enumerate().map(|(i, page)| read(&file, &mut page.0, at(39 - i), i as u64)).collect();
    // From where no block begins, beyond the end, nowhere. (A device may take memory that is not aligned, or not: that depends on
    // how the pages lie.)
    reads.push(Sqe { off: 1, user_data: 40, ..reads[0] });
    reads.push(Sqe { off: at(40), user_data: 41, ..reads[0] });
    reads.push(Sqe { addr: 0x1000, user_data: 42, ..reads[0] });
    let read = results(&ring.run(&reads));
    let fits = back.iter().enumerate().all(|(i, page)| page.0 == out[39 - i].0);
    // One by one, without waiting in between, and closed under them.
    for sqe in &reads[..8] {
        ring.submit(&[*sqe]);
    }
    close(ring.engine, file.into_raw_fd());
    let mut seen = Vec::new();
    while seen.len() < 8 {
        seen.extend(ring.waited(1));
    }
    (written, read, fits, results(&seen))
}

#[both(64, 0)]
fn direct_transfers_complete_by_themselves(mut ring: Ring) -> impl Answer {
    let plain = nameless(&[9; 65536]);
    let file = direct(&plain);
    let mut back = pages(16);
    ring.submit_all(
        back.iter_mut().enumerate().map(|(i, page)| read(&file, &mut page.0, 4096 * i as u64, i as u64)),
        0,
    );
    let mut seen = Vec::new();
    while seen.len() < 16 {
        seen.extend(ring.reap());
        std::thread::yield_now();
    }
    (results(&seen), back.iter().all(|page| page.0 == [9; 4096]))
}

#[test]
fn a_ring_may_end_under_direct_transfers() {
    // What a thread is at goes on when the ring is closed: the memory stays.
    static KEPT: Mutex<Vec<Vec<Page>>> = Mutex::new(Vec::new());
    for _ in 0..20 {
        let plain = nameless(&[9; 65536]);
        let file = direct(&plain);
        let mut back = pages(16);
        let mut ring = Ring::new(Engine::User, 64, 0);
        ring.submit_all(
            back.iter_mut().enumerate().map(|(i, page)| read(&file, &mut page.0, 4096 * i as u64, i as u64)),
            0,
        );
        drop(ring);
        KEPT.lock().unwrap().push(back);
    }
}

#[by(ours(8, 0))]
fn a_descriptor_number_changes_hands_unseen(mut ring: Ring) {
    let plain = nameless(&[9; 8192]);
    let mut page = pages(1);
    let (from, into) = pipe();
    for _ in 0..2 {
        let file = direct(&plain);
        let seen =
            results(&ring.run(&[read(&file, &mut page[0].0, 0, 1), read(&file, &mut page[0].0, 0, 2)]));
        assert_eq!(seen, [(1, 4096), (2, 4096)]);
        // The pipe takes the number over, and the engine hears nothing of it.
        replace(&file, &from);
        let (mut a, mut b) = ([0u8; 2], [0u8; 2]);
        ring.submit(&[read(&file, &mut a, 0, 3), read(&file, &mut b, 0, 4)]);
        assert_eq!(ring.reap_all(), []);
        (&into).write_all(b"abcd").unwrap();
        assert_eq!(results(&ring.waited(2)), [(3, 2), (4, 2)]);
    }
}

/// A transfer that is not to wait is tried, whoever waits for its file.
#[both(8, 0)]
fn transfers_that_never_wait_are_tried(mut ring: Ring) -> impl Answer {
    let (own, _peer) = UnixStream::pair().unwrap();
    let mut buffer = [0u8; 8];
    let (ioprio, op_flags) = (IORING_RECVSEND_POLL_FIRST as u16, libc::RWF_NOWAIT as u32);
    let receive = Sqe { ioprio, ..reading(IORING_OP_RECV, 1, &own, &mut buffer) };
    ring.submit_and_wait(&[receive, Sqe { op_flags, ..writing(IORING_OP_WRITE, 2, &own, b"data") }], 1);
    ring.collect(1)
}

/// The number was another file's, which is still waited for, and nobody saw that it was closed: what has to be fetched from
/// storage is fetched from the file that the number stands for when the request is submitted.
#[both]
fn files_with_the_number_of_one_that_is_waited_for(engine: Engine) {
    let cold = |byte: u8| {
        let file = nameless(&vec![byte; 1 << 20]);
        file.sync_all().unwrap();
        // SAFETY: advice about a file of ours.
        assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
        file
    };
    let mut ring = Ring::new(engine, 8, 0);
    let (socket, _peer) = UnixStream::pair().unwrap();
    ring.submit(&[poll(1, &socket, libc::POLLIN)]);
    let mut buffer = vec![0; 1 << 16];
    replace(&socket, &cold(b'1'));
    ring.submit(&[reading(IORING_OP_READ, 2, &socket, &mut buffer)]);
    replace(&socket, &cold(b'2'));
    let completions = loop {
        let mut completions = ring.collect(1);
        completions.retain(|cqe| cqe.user_data == 2);
        if !completions.is_empty() {
            break completions;
        }
    };
    assert_eq!(completions[0].res, buffer.len() as i32);
    assert!(buffer.iter().all(|&byte| byte == b'1'), "{engine:?}: of the file that was there at first");
}

/// The last page of a full pipe has room for a short write, of which a poll does not tell.
#[both(8, 0)]
fn a_short_write_finds_the_room_of_which_no_poll_tells(mut ring: Ring) -> impl Answer {
    let (_source, mut sink) = pipe();
    // SAFETY: makes the pipe as long as it is by default.
    assert_eq!(unsafe { libc::fcntl(sink.as_raw_fd(), libc::F_SETPIPE_SZ, 16 << 12) }, 16 << 12);
    let page = [0u8; 4096];
    for length in [4096; 15].into_iter().chain([4000]) {
        sink.write_all(&page[..length]).unwrap();
    }
    ring.submit(&[writing(IORING_OP_WRITE, 1, &sink, &page[..200])]);
    let short = writing(IORING_OP_WRITE, 2, &sink, &page[..50]);
    ring.submit_and_wait(&[short, nop(3, 0)], 1);
    by_user_data(ring.reap_all())
}
