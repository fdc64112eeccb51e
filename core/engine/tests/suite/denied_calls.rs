//! The calls that the engine does without, which `docs/system-calls.md` lists with what it does instead: programs come to the same where
//! they are refused, one by one, and where those are that old kernels and sandboxes refuse together.
#![cfg(not(anyring_sanitizer))]

use std::collections::BTreeSet;

use crate::common::prelude::*;
use crate::same_files::{Refused, refuse};

/// A row of the page, by the names in its first column: a call, its second argument where only that is refused, and the programs for which
/// the page says that they come to something else, or to no end.
struct Row(&'static str, libc::c_long, Option<u32>, &'static [&'static str]);

/// Not of `libc`.
const F_DUPFD_QUERY: u32 = 1027;
const F_SETSIG: u32 = 10;
const F_GETSIG: u32 = 11;

const ROWS: &[Row] = &[
    Row("close_range", libc::SYS_close_range, None, &[]),
    Row("epoll_pwait2", libc::SYS_epoll_pwait2, None, &[]),
    Row("fcntl(F_DUPFD_QUERY)", libc::SYS_fcntl, Some(F_DUPFD_QUERY), &[]),
    Row("fcntl(F_GETSIG)", libc::SYS_fcntl, Some(F_GETSIG), &[]),
    Row("fcntl(F_SETSIG)", libc::SYS_fcntl, Some(F_SETSIG), &[]),
    Row("fstatfs", libc::SYS_fstatfs, None, &[]),
    Row("futex_waitv", libc::SYS_futex_waitv, None, &[]),
    Row("getdents64", libc::SYS_getdents64, None, &[]),
    Row("getsockopt", libc::SYS_getsockopt, None, &[]),
    Row("inotify_add_watch", libc::SYS_inotify_add_watch, None, &[]),
    Row("inotify_init1", libc::SYS_inotify_init1, None, &[]),
    Row("io_getevents", libc::SYS_io_getevents, None, &[]),
    Row("io_pgetevents", linux_raw_sys::general::__NR_io_pgetevents as libc::c_long, None, &[]),
    Row("io_setup", libc::SYS_io_setup, None, &[]),
    Row("io_submit", libc::SYS_io_submit, None, &[]),
    Row("kcmp", libc::SYS_kcmp, None, &[]),
    Row("madvise", libc::SYS_madvise, None, &[]),
    Row("mremap", libc::SYS_mremap, None, &[]),
    Row("openat2", libc::SYS_openat2, None, &[]),
    Row("preadv2", libc::SYS_preadv2, None, &["reads without waiting"]),
    Row("prlimit64", libc::SYS_prlimit64, None, &[]),
    Row("process_vm_readv", libc::SYS_process_vm_readv, None, &[]),
    Row("pwritev2", libc::SYS_pwritev2, None, &[]),
    Row("readlinkat", libc::SYS_readlinkat, None, &[]),
    Row("rt_sigaction", libc::SYS_rt_sigaction, None, &["futexes", "interruptions"]),
    Row("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo, None, &["futexes", "interruptions"]),
    Row("statx", libc::SYS_statx, None, &["statuses"]),
    Row("uname", libc::SYS_uname, None, &[]),
];

/// Rows that are refused together.
const TOGETHER: &[(&str, &[&str])] = &[
    ("Linux 5.10", &["epoll_pwait2", "fcntl(F_DUPFD_QUERY)", "futex_waitv", "madvise"]),
    (
        "Linux 5.4",
        &["close_range", "epoll_pwait2", "fcntl(F_DUPFD_QUERY)", "futex_waitv", "madvise", "openat2"],
    ),
    (
        "Linux 4.4",
        &[
            "close_range",
            "epoll_pwait2",
            "fcntl(F_DUPFD_QUERY)",
            "futex_waitv",
            "io_pgetevents",
            "madvise",
            "openat2",
            "preadv2",
            "pwritev2",
            "statx",
        ],
    ),
    ("a container over Linux 5.10", &["epoll_pwait2", "fcntl(F_DUPFD_QUERY)", "futex_waitv", "kcmp"]),
    (
        "gVisor",
        &[
            "fcntl(F_DUPFD_QUERY)",
            "fcntl(F_GETSIG)",
            "fcntl(F_SETSIG)",
            "futex_waitv",
            "io_pgetevents",
            "kcmp",
            "madvise",
            "openat2",
            "process_vm_readv",
        ],
    ),
    ("without Linux AIO", &["io_getevents", "io_pgetevents", "io_setup", "io_submit"]),
    ("without /proc and inotify", &["getdents64", "inotify_add_watch", "inotify_init1", "readlinkat"]),
    (
        "a service that is hardened",
        &[
            "futex_waitv",
            "io_getevents",
            "io_pgetevents",
            "io_setup",
            "io_submit",
            "kcmp",
            "openat2",
            "prlimit64",
            "process_vm_readv",
            "rt_tgsigqueueinfo",
            "uname",
        ],
    ),
];

/// The calls of the engine for which nothing stands in, beside those that are a request's own: where they are refused, no ring can be made,
/// or requests fail.
const NEEDED: &str = "capget clock_gettime close connect dup3 epoll_create1 epoll_ctl epoll_pwait eventfd2 exit_group fstat ftruncate \
    futex getgroups getpeername getpid getppid getresgid getresuid getsockname gettid io_destroy ioctl lseek memfd_create \
    mincore mmap munmap nanosleep openat pipe2 ppoll prctl read recvmsg rt_sigprocmask rt_sigqueueinfo sched_getaffinity sched_setaffinity \
    sched_yield setfsgid setfsuid setsockopt shutdown socket tgkill write";

type Program = fn(&mut Ring) -> Vec<(u64, i32)>;

/// The programs, each in a ring of its own, with their results.
const PROGRAMS: &[(&str, Program)] = &[
    ("time", time),
    ("streams", streams),
    ("storage", storage),
    ("reads without waiting", reads_without_waiting),
    ("direct", direct),
    ("paths", paths),
    ("statuses", statuses),
    ("sockets", sockets),
    ("zero copy", zero_copy),
    ("futexes", futexes),
    ("cancelled futexes", cancelled_futexes),
    ("children", children),
    ("registered", registered),
    ("nowhere", nowhere),
    ("cancellations", cancellations),
    ("interruptions", interruptions),
    ("threads", threads),
    ("ends", ends),
    ("epoll", epoll),
    ("messages", messages),
];

fn time(ring: &mut Ring) -> Vec<(u64, i32)> {
    let (short, long) = ([0i64, 1_200_000], [1000i64, 0]);
    let (reader, _writer) = pipe();
    let linked = Sqe { op_flags: 0, opcode: IORING_OP_LINK_TIMEOUT as u8, ..timeout(3, &short) };
    let poll = Sqe { flags: LINK, ..poll(2, &reader, libc::POLLIN) };
    let mut all = results(&ring.collect_from(&[timeout(1, &short), poll, linked, timeout(4, &long)], 3));
    all.sort_unstable();
    all.extend(results(&ring.collect_from(&[cancel(5, 4, 0)], 2)));
    all
}

fn streams(ring: &mut Ring) -> Vec<(u64, i32)> {
    let ((reader, mut writer), (other, into)) = (pipe(), pipe());
    let mut buffer = [0u8; 8];
    ring.submit(&[reading(IORING_OP_READ, 1, &reader, &mut buffer)]);
    writer.write_all(b"text").unwrap();
    let mut all = results(&ring.collect(1));
    writer.write_all(b"more").unwrap();
    all.extend(results(&ring.run(&[splice(2, &reader, &into, 4)])));
    all.extend(results(&ring.run(&[reading(IORING_OP_READ, 3, &other, &mut buffer)])));
    let event = eventfd(0, 0);
    ring.register_eventfd(&event);
    ring.run(&[nop(4, 0)]);
    all.push((5, i32::from(shown(&event, libc::POLLIN, PATIENCE_MS))));
    all
}

fn storage(ring: &mut Ring) -> Vec<(u64, i32)> {
    let file = nameless(b"0123456789");
    let mut buffer = [0u8; 4];
    let vectors = [vector(&buffer)];
    let at = |off: u64, sqe: Sqe| Sqe { off, ..sqe };
    let sync = Sqe { fd: file.as_raw_fd(), ..sqe(IORING_OP_FSYNC, 5) };
    let mut all = ring.one_by_one(&[
        at(2, reading(IORING_OP_READ, 1, &file, &mut buffer)),
        at(u64::MAX, reading(IORING_OP_READ, 2, &file, &mut buffer)),
        at(8, writing(IORING_OP_WRITE, 3, &file, b"abcd")),
        at(8, Sqe { fd: file.as_raw_fd(), addr: vectors.as_ptr() as u64, len: 1, ..sqe(IORING_OP_READV, 4) }),
        sync,
        Sqe { flags: ASYNC, ..at(0, reading(IORING_OP_READ, 6, &file, &mut buffer)) },
    ]);
    all.extend(ring.collect_from(
        &[at(0, Sqe { flags: LINK, ..writing(IORING_OP_WRITE, 8, &file, b"x") }), nop(9, 0)],
        2,
    ));
    results(&all)
}

fn reads_without_waiting(ring: &mut Ring) -> Vec<(u64, i32)> {
    let file = nameless(b"0123456789");
    let mut buffer = [0u8; 4];
    let op_flags = linux_raw_sys::general::RWF_NOWAIT;
    results(&ring.run(&[Sqe { op_flags, ..reading(IORING_OP_READ, 1, &file, &mut buffer) }]))
}

fn direct(ring: &mut Ring) -> Vec<(u64, i32)> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = nameless(&[9; 16384]);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let mut pages: Vec<Page> = (0..4).map(|_| Page([0; 4096])).collect();
    let read = |(page, at): (&mut Page, u64)| Sqe {
        off: at * 4096,
        ..reading(IORING_OP_READ, at, &file, &mut page.0)
    };
    let reads: Vec<Sqe> = pages.iter_mut().zip(0..).map(read).collect();
    results(&by_user_data(ring.collect_from(&reads, 4)))
}

fn paths(ring: &mut Ring) -> Vec<(u64, i32)> {
    let directory = Directory::new();
    let (file, other) = (directory.file("file", "text"), directory.path("other"));
    let rename = Sqe {
        addr3: 0,
        off: other.as_ptr() as u64,
        len: libc::AT_FDCWD as u32,
        ..at_path(IORING_OP_RENAMEAT, 2, &file)
    };
    let mut all = results(&ring.one_by_one(&[rename, at_path(IORING_OP_UNLINKAT, 3, &file)]));
    let opened = ring.run(&[open(4, &other, libc::O_RDONLY)])[0].res;
    all.push((4, i32::from(opened >= 0)));
    let how = [libc::O_RDONLY as u64, 0, 0];
    let open = Sqe { off: how.as_ptr() as u64, len: 24, ..at_path(IORING_OP_OPENAT2, 6, &other) };
    let strictly = ring.run(&[open])[0].res;
    all.push((6, i32::from(strictly >= 0)));
    close(ring.engine, strictly.max(-1));
    all.extend(results(&ring.run(&[Sqe { fd: opened, ..sqe(IORING_OP_CLOSE, 5) }])));
    all
}

fn statuses(ring: &mut Ring) -> Vec<(u64, i32)> {
    let mut status = [0u64; 32];
    let off = status.as_mut_ptr() as u64;
    results(&ring.run(&[Sqe { len: 0x7ff, off, ..at_path(IORING_OP_STATX, 1, c"/dev/null") }]))
}

fn sockets(ring: &mut Ring) -> Vec<(u64, i32)> {
    let (listener, address) = listening();
    let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
    let address = address_of(address);
    let accept = Sqe { fd: listener.as_raw_fd(), ..sqe(IORING_OP_ACCEPT, 1) };
    let mut all = ring.collect_from(&[accept, connect(2, &socket, &address)], 2);
    all.iter_mut().for_each(|cqe| cqe.res = cqe.res.min(0));
    all = by_user_data(all);
    let (one, other) = tcp_pair();
    let mut buffer = [0u8; 8];
    ring.submit(&[reading(IORING_OP_RECV, 3, &other, &mut buffer)]);
    let sent = ring.collect_from(&[writing(IORING_OP_SEND, 4, &one, b"bytes")], 2);
    all.extend(by_user_data(sent));
    drop(one);
    all.extend(ring.run(&[reading(IORING_OP_RECV, 5, &other, &mut buffer)]));
    let (other, one) = udp_connected();
    all.extend(
        ring.collect_from(
            &[writing(IORING_OP_SEND, 6, &one, b"a"), writing(IORING_OP_SEND, 7, &one, b"b")],
            2,
        ),
    );
    all.extend(ring.run(&[reading(IORING_OP_RECV, 8, &other, &mut buffer)]));
    results(&all)
}

fn zero_copy(ring: &mut Ring) -> Vec<(u64, i32)> {
    let (one, other) = tcp_pair();
    let bytes = pattern(100_000);
    let reads = std::thread::spawn(move || {
        let mut received = vec![0; 100_000];
        (&other).read_exact(&mut received).unwrap();
        received == pattern(100_000)
    });
    let whole = Sqe { op_flags: libc::MSG_WAITALL as u32, ..send_zc(1, &one, &bytes) };
    let mut all = results(&ring.collect_from(&[whole], 2));
    all.push((2, i32::from(reads.join().unwrap())));
    all
}

fn futexes(ring: &mut Ring) -> Vec<(u64, i32)> {
    const PRIVATE: i32 = 2 | 128;
    let words = [const { AtomicU32::new(0) }; 2];
    let on = |opcode, user_data, word: &AtomicU32| Sqe {
        fd: PRIVATE,
        addr: word.as_ptr() as u64,
        addr3: u32::MAX.into(),
        ..sqe(opcode, user_data)
    };
    ring.submit(&[on(IORING_OP_FUTEX_WAIT, 1, &words[0])]);
    let wake = |user_data, word| Sqe { off: 1, ..on(IORING_OP_FUTEX_WAKE, user_data, word) };
    let mut all = by_user_data(ring.collect_from(&[wake(2, &words[0])], 2));
    let elements = words.each_ref().map(|word| [0u64, word.as_ptr() as u64, PRIVATE as u64]);
    ring.submit(&[Sqe { fd: 0, addr: elements.as_ptr() as u64, len: 2, ..sqe(IORING_OP_FUTEX_WAITV, 3) }]);
    all.extend(by_user_data(ring.collect_from(&[wake(4, &words[1])], 2)));
    results(&all)
}

fn cancelled_futexes(ring: &mut Ring) -> Vec<(u64, i32)> {
    let word = AtomicU32::new(0);
    let wait = sqe(IORING_OP_FUTEX_WAIT, 1);
    ring.submit(&[Sqe { fd: 2 | 128, addr: word.as_ptr() as u64, addr3: u32::MAX.into(), ..wait }]);
    let ends = by_user_data(ring.collect_from(&[cancel(2, 1, 0)], 2));
    // Where the thread that waits has no processor for 100 ms, it is not known in time that it was not woken.
    let known = |cqe: &Cqe| (cqe.user_data, if cqe.res == -libc::EALREADY { 1 } else { cqe.res });
    ends.iter().map(known).collect()
}

fn children(ring: &mut Ring) -> Vec<(u64, i32)> {
    let pid = child(|| true);
    let wait =
        Sqe { fd: pid, len: libc::P_PID, file_index: libc::WEXITED as u32, ..sqe(IORING_OP_WAITID, 1) };
    let all = results(&ring.run(&[wait]));
    let in_child = ended(child(|| ring.run(&[nop(2, 0)])[0].res == 0));
    [all, vec![(2, in_child)]].concat()
}

fn registered(ring: &mut Ring) -> Vec<(u64, i32)> {
    let file = nameless(b"0123456789");
    let mut page = Page([0; 4096]);
    let refused = |vectors: &[libc::iovec]| {
        ring.register(IORING_REGISTER_BUFFERS, vectors.as_ptr().cast(), vectors.len() as u32)
    };
    let nowhere = libc::iovec { iov_base: 8 as *mut _, iov_len: 8 };
    let mut all = vec![(1, refused(&[nowhere])), (2, refused(&[vector(&page.0)]))];
    ring.register_files(&[file.as_raw_fd()]);
    let read = Sqe { fd: 0, flags: FIXED, ..reading(IORING_OP_READ_FIXED, 3, &file, &mut page.0) };
    let mut memory = [0u8; 64];
    let mut buffers = Buffers::of(ring, 4, 3, 0);
    buffers.fill(&mut memory, 16, 0, 1);
    let select = Sqe { fd: file.as_raw_fd(), len: 4, flags: SELECT, buf_index: 3, ..sqe(IORING_OP_READ, 4) };
    all.extend(results(&ring.one_by_one(&[Sqe { len: 4, ..read }, select])));
    let set = [1u64; 1];
    all.push((5, ring.register(IORING_REGISTER_IOWQ_AFF, set.as_ptr().cast(), 8)));
    let personality = ring.register(IORING_REGISTER_PERSONALITY, std::ptr::null(), 0);
    all.push((6, i32::from(personality > 0)));
    all.extend(results(&ring.run(&[Sqe { personality: personality as u16, ..nop(7, ASYNC) }])));
    all
}

fn nowhere(ring: &mut Ring) -> Vec<(u64, i32)> {
    let file = nameless(b"0123456789");
    let bad = |opcode, user_data| Sqe { fd: file.as_raw_fd(), addr: 8, len: 1, ..sqe(opcode, user_data) };
    let mut buffer = [0u8; 4];
    let gone = mapped(4096, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    results(&ring.one_by_one(&[
        bad(IORING_OP_READV, 1),
        bad(IORING_OP_WRITE, 2),
        Sqe { addr: gone, ..bad(IORING_OP_READV, 3) },
        Sqe { fd: libc::AT_FDCWD, addr: gone, ..bad(IORING_OP_OPENAT, 4) },
        Sqe { addr: gone, ..timeout(5, &[0i64, 1]) },
        Sqe { fd: 9999, ..reading(IORING_OP_READ, 6, &file, &mut buffer) },
    ]))
}

fn cancellations(ring: &mut Ring) -> Vec<(u64, i32)> {
    let (one, other) = (eventfd(0, 0), eventfd(0, 0));
    let duplicate = one.try_clone().unwrap();
    ring.submit(&[poll(1, &one, libc::POLLIN), poll(2, &other, libc::POLLIN), poll(3, &one, libc::POLLIN)]);
    let op_flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL;
    let by_file = Sqe { fd: duplicate.as_raw_fd(), ..cancel(4, 0, op_flags) };
    results(&by_user_data(ring.collect_from(&[by_file], 3)))
}

/// An open that a thread has begun with is interrupted.
fn interruptions(ring: &mut Ring) -> Vec<(u64, i32)> {
    let directory = Directory::new();
    let fifo = directory.fifo("fifo");
    loop {
        ring.submit(&[Sqe { flags: ASYNC, ..open(1, &fifo, libc::O_RDONLY) }]);
        let cqes = by_user_data(ring.collect_from(&[cancel(2, 1, 0)], 2));
        if cqes[0].res != -libc::ECANCELED {
            return results(&cqes);
        }
    }
}

fn threads(ring: &mut Ring) -> Vec<(u64, i32)> {
    let mut polled = Ring::new(ring.engine, 8, IORING_SETUP_SQPOLL);
    polled.push(nop(1, 0));
    polled.enter_with(1, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP);
    results(&polled.reap_all())
}

fn ends(ring: &mut Ring) -> Vec<(u64, i32)> {
    let mut buffer = [0u8; 8];
    // A ring whose close nobody tells ends; the kernel's and ours then hold nothing of the socket.
    let (mut one, two) = tcp_pair();
    let closed = Ring::new(ring.engine, 8, 0);
    closed.register_files(&[two.as_raw_fd()]);
    drop((two, closed));
    vec![(3, one.read(&mut buffer).map_or(-1, |count| count as i32))]
}

fn epoll(ring: &mut Ring) -> Vec<(u64, i32)> {
    // SAFETY: makes a descriptor.
    let instance = unsafe { owned(libc::epoll_create1(0)) };
    let (reader, mut writer) = pipe();
    let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    let mut events = [event; 2];
    let add = Sqe {
        fd: instance.as_raw_fd(),
        addr: (&raw const event) as u64,
        len: libc::EPOLL_CTL_ADD as u32,
        off: reader.as_raw_fd() as u64,
        ..sqe(IORING_OP_EPOLL_CTL, 1)
    };
    let mut all = results(&ring.run(&[add]));
    let wait = Sqe {
        fd: instance.as_raw_fd(),
        addr: events.as_mut_ptr() as u64,
        len: 2,
        ..sqe(IORING_OP_EPOLL_WAIT, 2)
    };
    ring.submit(&[wait]);
    writer.write_all(b"text").unwrap();
    all.extend(results(&ring.collect(1)));
    all
}

fn messages(ring: &mut Ring) -> Vec<(u64, i32)> {
    let mut other = Ring::new(ring.engine, 8, 0);
    let message = Sqe { fd: other.fd, len: 5, off: 9, ..sqe(IORING_OP_MSG_RING, 1) };
    let all = results(&ring.run(&[message]));
    [all, results(&other.collect(1))].concat()
}

/// The outcomes of all programs but `others`, in a child where `denied` calls are refused.
fn outcomes(denied: &[Refused], others: &[&str]) -> Vec<String> {
    let (mut reader, mut writer) = pipe();
    let pid = child(|| {
        // Ends it where it waits for what never comes.
        ends_after(60);
        refuse(denied);
        for (name, program) in PROGRAMS.iter().filter(|(name, _)| !others.contains(name)) {
            let all = program(&mut Ring::new(Engine::User, 16, 0));
            writeln!(writer, "{name}: {all:?}").unwrap();
        }
        true
    });
    drop(writer);
    let status = ended(pid);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text.lines().map(str::to_owned).chain((status != 0).then(|| format!("ended by {status}"))).collect()
}

/// Programs come to the same where each of these sets of rows, which has a name, is refused.
fn come_to_the_same<'a>(sets: impl Iterator<Item = (&'a str, Vec<&'a Row>)>, errno: i32) {
    let mut wrong = Vec::new();
    for (name, rows) in sets {
        let others: Vec<&str> = rows.iter().flat_map(|row| row.3).copied().collect();
        let denied: Vec<Refused> = rows.iter().map(|row| (row.1, row.2, errno)).collect();
        let (found, expected) = (outcomes(&denied, &others), outcomes(&[], &others));
        let programs = PROGRAMS.iter().filter(|(program, _)| !others.contains(program));
        assert_eq!(expected.len(), programs.count(), "{expected:#?}");
        let at = expected.iter().zip(&found).take_while(|(expected, found)| expected == found).count();
        if expected != found {
            wrong.push(format!("{name}: {:?}, not {:?}", found.get(at..), expected.get(at)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn programs_come_to_the_same(errno: i32) {
    come_to_the_same(ROWS.iter().map(|row| (row.0, vec![row])), errno);
}

fn programs_come_to_the_same_together(errno: i32) {
    let row = |name: &&str| ROWS.iter().find(|row| row.0 == *name).expect("it is the name of a row");
    let sets = TOGETHER.iter().map(|(name, rows)| (*name, rows.iter().map(row).collect()));
    come_to_the_same(sets.chain([("all", ROWS.iter().collect())]), errno);
}

#[test]
fn programs_come_to_the_same_without_a_call_that_the_kernel_lacks() {
    programs_come_to_the_same(libc::ENOSYS);
}

#[test]
fn programs_come_to_the_same_without_a_call_that_a_sandbox_refuses() {
    programs_come_to_the_same(libc::EPERM);
}

#[test]
fn programs_come_to_the_same_without_calls_that_kernels_lack_together() {
    programs_come_to_the_same_together(libc::ENOSYS);
}

#[test]
fn programs_come_to_the_same_without_calls_that_sandboxes_refuse_together() {
    programs_come_to_the_same_together(libc::EPERM);
}

/// The names that stand behind `__NR_` in the engine's sources.
fn made(path: &Path, names: &mut BTreeSet<String>) {
    if path.is_dir() {
        std::fs::read_dir(path).unwrap().for_each(|entry| made(&entry.unwrap().path(), names));
        return;
    }
    let text = std::fs::read_to_string(path).unwrap();
    let is_part = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    names
        .extend(text.split("__NR_").skip(1).map(|name| name.chars().take_while(is_part).collect::<String>()));
}

/// Each call of the engine is a request's own, or needed, or has a row here and on the page.
#[test]
fn each_call_has_its_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("../../docs/system-calls.md")).unwrap();
    let listed = |heading: &str| {
        let section =
            page.split("\n## ").find(|section| section.starts_with(heading)).expect("a heading of the page");
        let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
        cells
            .flat_map(|cell| cell.split(", "))
            .map(|name| name.trim_matches('`').to_owned())
            .collect::<BTreeSet<_>>()
    };
    let rows: BTreeSet<String> = ROWS.iter().map(|row| row.0.to_owned()).collect();
    assert_eq!(rows, listed("Calls that the engine does without\n"), "here (left) and docs/system-calls.md");
    let mut calls = BTreeSet::new();
    made(&root.join("src"), &mut calls);
    let needed: BTreeSet<String> = NEEDED.split_whitespace().map(str::to_owned).collect();
    let plain = |name: &String| name.split('(').next().unwrap().to_owned();
    let placed: BTreeSet<String> = rows.iter().map(plain).chain(needed).chain(listed("Requests\n")).collect();
    let missing: Vec<&String> = calls.difference(&placed).collect();
    assert!(missing.is_empty(), "what is done where these are refused? {missing:?}");
}
