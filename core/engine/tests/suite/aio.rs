//! Transfers past the cache, several at a time: the kernel does them while nobody waits.

use std::io::{Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use anyring_engine::assets::kinds::{self, Kind};

use crate::common::prelude::*;

const PAGE: usize = 4096;
const PAGES: usize = 300;

/// A file that is read and written past the cache; `None` where the file system has none such. Each of its pages is full
/// of its number's last byte.
fn storage(name: &str) -> Option<File> {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("aio-{name}-{}", std::process::id()));
    let content: Vec<u8> = (0..PAGES).flat_map(|page| [page as u8; PAGE]).collect();
    std::fs::create_dir_all(path.parent()?).ok()?;
    std::fs::write(&path, content).ok()?;
    let file = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
    std::fs::remove_file(&path).unwrap();
    // Memory takes transfers from any place on.
    let is_storage = |file: &File| file.read_at(&mut [0; 1], 17).is_err();
    let file = file.ok().filter(is_storage);
    if file.is_none() {
        skip("no direct transfers to and from storage");
    }
    file
}

/// [`both`] with such a file, where there is one.
fn on_storage<T: Answer>(name: &str, body: impl Fn(Engine, File) -> T) {
    if let Some(file) = storage(name) {
        both(|engine| body(engine, file.try_clone().unwrap()));
    }
}

fn read(user_data: u64, file: &File, page: &mut Page, at: usize) -> Sqe {
    let off = (at * PAGE) as u64;
    Sqe { len: PAGE as u32, off, ..reading(IORING_OP_READ, user_data, file, &mut page.0) }
}

fn run(ring: &mut Ring, sqes: &[Sqe], wait: u32) -> Vec<(u64, i32)> {
    sqes.iter().for_each(|&sqe| ring.push(sqe));
    assert_eq!(ring.enter(sqes.len() as u32, wait), sqes.len() as i32);
    results(&ring.collect(sqes.len()))
}

/// How many descriptors this process has.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// How many contexts of Linux AIO the process has: each has a mapping.
fn contexts() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("[aio]").count()
}

#[by(on_storage("many"))]
fn more_than_there_is_room_for_at_once(engine: Engine, file: File) {
    for flags in [0, DEFER] {
        let mut ring = Ring::new(engine, 512, flags);
        for wait in [0, 1, PAGES as u32] {
            let mut pages = vec![Page([0xff; PAGE]); PAGES];
            let sqes: Vec<Sqe> =
                pages.iter_mut().enumerate().map(|(at, page)| read(at as u64, &file, page, at)).collect();
            let seen = run(&mut ring, &sqes, wait);
            let all: Vec<_> = (0..PAGES as u64).map(|number| (number, PAGE as i32)).collect();
            assert_eq!(seen, all, "{engine:?}");
            assert!(pages.iter().enumerate().all(|(at, page)| page.0 == [at as u8; PAGE]), "{engine:?}");
        }
    }
}

#[by(on_storage("errors"))]
fn some_fail_and_some_come_short(engine: Engine, file: File) -> impl Answer {
    let mut ring = Ring::new(engine, 16, 0);
    [0, 7].map(|wait| {
        let mut pages = vec![Page([0xff; PAGE]); 8];
        let vector = libc::iovec { iov_base: 0x1000 as *mut _, iov_len: PAGE };
        let [a, b, c, d, e, f, ..] = &mut pages[..] else { panic!() };
        let sqes = [
            read(1, &file, a, 0),
            // Not where a page begins.
            Sqe { off: 17, ..read(2, &file, b, 0) },
            read(3, &file, c, 2),
            // Nothing is there.
            Sqe { addr: 0x1000, ..read(4, &file, d, 3) },
            // The end of the file, and what is behind it.
            Sqe { len: 2 * PAGE as u32, ..read(5, &file, e, PAGES - 1) },
            read(6, &file, f, PAGES + 1),
            Sqe {
                opcode: IORING_OP_READV as u8,
                addr: (&raw const vector) as u64,
                len: 1,
                ..read(7, &file, &mut Page([0; PAGE]), 1)
            },
        ];
        let seen = run(&mut ring, &sqes, wait);
        (seen, pages[..5].iter().map(|page| page.0[0]).collect::<Vec<_>>())
    })
}

#[by(on_storage("writes"))]
fn one_after_the_other_and_together(engine: Engine, file: File) {
    let mut ring = Ring::new(engine, 16, 0);
    let (mut buffers, mut pages) = ([Page([1; PAGE]), Page([2; PAGE])], [Page([0; PAGE]); 4]);
    for round in 0..20u8 {
        let count = 1 + usize::from(round % 4);
        let mut sqes = Vec::new();
        for (number, page) in pages[..count].iter_mut().enumerate() {
            page.0.fill(round + number as u8);
            let opcode = IORING_OP_WRITE as u8;
            sqes.push(Sqe { opcode, ..read(number as u64, &file, page, 2 * number) });
        }
        let seen = run(&mut ring, &sqes, if round < 10 { 0 } else { count as u32 });
        assert!(seen.iter().all(|&(_, result)| result == PAGE as i32), "{engine:?}: {seen:?}");
        let reads: Vec<Sqe> =
            buffers.iter_mut().zip([0, 2 * (count - 1)]).map(|(page, at)| read(9, &file, page, at)).collect();
        assert_eq!(run(&mut ring, &reads, 0), [(9, PAGE as i32); 2]);
        assert_eq!(buffers.each_ref().map(|page| page.0[17]), [round, round + count as u8 - 1]);
    }
}

#[by(on_storage("flags"))]
fn priorities_and_flags(engine: Engine, file: File) -> impl Answer {
    let mut ring = Ring::new(engine, 16, 0);
    let mut pages = [Page([7; PAGE]); 3];
    let [a, b, c] = &mut pages;
    // Best effort, in the middle.
    let ioprio = 2 << 13 | 4;
    let sqes = [
        Sqe { ioprio, ..read(1, &file, a, 3) },
        Sqe { ioprio, ..read(2, &file, b, 4) },
        read(3, &file, c, 5),
    ];
    let seen = run(&mut ring, &sqes, 0);
    assert_eq!(seen, [(1, PAGE as i32), (2, PAGE as i32), (3, PAGE as i32)]);
    assert_eq!(pages.each_ref().map(|page| page.0[9]), [3, 4, 5]);
    // To the end, wherever the request says.
    file.set_len((PAGES * PAGE) as u64).unwrap();
    let (opcode, op_flags) = (IORING_OP_WRITE as u8, libc::RWF_APPEND as u32);
    let [a, b, _] = &mut pages;
    let sqes = [read(1, &file, a, 0), read(2, &file, b, 0)].map(|sqe| Sqe { opcode, op_flags, ..sqe });
    let seen = run(&mut ring, &sqes, 0);
    (seen, file.metadata().unwrap().len())
}

#[test]
fn nothing_is_left_of_a_ring_that_ends_meanwhile() {
    let Some(file) = storage("end") else { return };
    let before = {
        let pid = child(|| {
            ends_after(30);
            drop(Ring::new(Engine::User, 8, 0));
            // Those of tests beside this one; the child has their memory, and nothing else of them.
            let inherited = contexts();
            let mut pages = vec![Page([0xff; PAGE]); PAGES];
            let open = descriptors();
            for round in 0..20 {
                let mut ring = Ring::new(Engine::User, 512, 0);
                ring.submit_all(
                    pages.iter_mut().enumerate().map(|(at, page)| read(at as u64, &file, page, at)),
                    0,
                );
                if round % 2 == 0 {
                    ring.collect(PAGES);
                }
            }
            until("all descriptors are closed", || descriptors() <= open + 8);
            until("all contexts have ended", || contexts() <= inherited);
            true
        });
        ended(pid)
    };
    assert_eq!(before, 0);
    // What the file says is still what it was.
    let mut page = Page([0; PAGE]);
    file.read_exact_at(&mut page.0, (7 * PAGE) as u64).unwrap();
    assert_eq!(page.0, [7; PAGE]);
}

/// With a priority they are told of as without one.
#[test]
fn transfers_with_a_priority() {
    const BEST_EFFORT: u16 = 2 << 13;
    let Some(file) = storage("priority") else { return };
    both(|engine| {
        let mut ring = Ring::new(engine, 16, 0);
        [0, 8].map(|wait| {
            let mut pages = vec![Page([0xff; PAGE]); 8];
            let sqes: Vec<Sqe> = pages
                .iter_mut()
                .enumerate()
                .map(|(at, page)| Sqe { ioprio: BEST_EFFORT | 4, ..read(at as u64, &file, page, at) })
                .collect();
            (
                run(&mut ring, &sqes, wait),
                pages.iter().enumerate().all(|(at, page)| page.0 == [at as u8; PAGE]),
            )
        })
    });
}

/// Whoever sleeps on the ring's eventfd hears of transfers, too where the ring waits for its thread to come in.
#[by(on_storage("eventfd"))]
fn an_eventfd_tells_of_transfers(engine: Engine, file: File) -> impl Answer {
    [0, DEFER].map(|flags| {
        let mut ring = Ring::new(engine, 16, flags);
        let eventfd = eventfd(0, libc::EFD_CLOEXEC);
        let fd = eventfd.as_raw_fd();
        ring.register_eventfd(&eventfd);
        let mut pages = [Page([0; PAGE]); 4];
        ring.submit_all(pages.iter_mut().enumerate().map(|(at, page)| read(at as u64, &file, page, at)), 0);
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` lives through the call.
        let told = unsafe { libc::poll(&raw mut poll, 1, 10_000) };
        (told, ring.collect(4).iter().filter(|cqe| cqe.res == PAGE as i32).count())
    })
}

/// The call of the second FSYNC has the completion that it waits for before it waits: a caller that would do the FSYNC itself leaves it to another
/// thread then.
#[both]
fn a_file_is_synchronized_though_its_caller_need_not_wait(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 32, 0);
    anyring_engine::install(&SEEING);
    let direct = storage("unawaited");
    let file = direct.unwrap_or_else(|| memory_file(b"some"));
    let sync = |user_data| Sqe { fd: file.as_raw_fd(), ..sqe(IORING_OP_FSYNC, user_data) };
    // Once it is found out how the file was opened.
    ring.run(&[read(1, &file, &mut Page([0; PAGE]), 0)]);
    let first = ring.run(&[sync(1)])[0].res;
    let before = ring.word(ring.params.cq_off.tail).load(Ordering::Acquire);
    ring.submit_and_wait(&[sqe(IORING_OP_NOP, 3)], 1);
    ring.submit_and_wait(&[sync(2)], 1);
    until("both have ended", || ring.word(ring.params.cq_off.tail).load(Ordering::Acquire) == before + 2);
    let mut seen: Vec<_> = ring.reap_all().iter().map(|cqe| (cqe.user_data, cqe.res)).collect();
    seen.sort_unstable();
    (first, seen)
}

/// A descriptor that cannot be synchronized, or is none, is told as by the calls that wait.
#[both]
fn what_cannot_be_synchronized(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 32, 0);
    let (pipe, _other) = pipe();
    let file = memory_file(b"some");
    (0..3)
        .map(|_| {
            let sqes = [file.as_raw_fd(), pipe.as_raw_fd(), 9999, file.as_raw_fd()];
            let sqes = sqes.map(|fd| Sqe { fd, user_data: fd as u64, ..sqe(IORING_OP_FSYNC, 0) });
            ring.submit_and_wait(&(0..6).flat_map(|_| sqes).collect::<Vec<_>>(), 24);
            let mut seen: Vec<_> = ring.reap_all().iter().map(|cqe| cqe.res).collect();
            seen.sort_unstable();
            seen
        })
        .collect::<Vec<_>>()
}

/// The process would be long in ending with it.
#[test]
fn a_context_that_is_not_used_ends_though_nobody_comes() {
    let Some(file) = storage("idle") else { return };
    for flags in [0, DEFER] {
        let pid = child(|| {
            ends_after(30);
            let inherited = contexts();
            let mut ring = Ring::new(Engine::User, 8, flags);
            let mut pages = [Page([0xff; PAGE]); 2];
            let [a, b] = &mut pages;
            let sqes = [read(0, &file, a, 0), read(1, &file, b, 1)];
            assert_eq!(run(&mut ring, &sqes, 2), [(0, PAGE as i32), (1, PAGE as i32)]);
            assert_eq!(contexts(), inherited + 1);
            until("the context has ended", || contexts() == inherited);
            true
        });
        assert_eq!(ended(pid), 0, "{flags:#x}");
    }
}

#[test]
fn a_context_that_could_not_be_had_is_asked_for_again() {
    let Some(file) = storage("refused") else { return };
    let pid = child(|| {
        ends_after(30);
        let inherited = contexts();
        let mut ring = Ring::new(Engine::User, 8, 0);
        let limit = |most| {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            // SAFETY: a limit of this process's own.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0 }
        };
        let read_two = |ring: &mut Ring| {
            let mut pages = [Page([0xff; PAGE]); 2];
            let [a, b] = &mut pages;
            run(ring, &[read(0, &file, a, 0), read(1, &file, b, 1)], 0)
        };
        // No descriptor is to be had, for whatever purpose.
        assert!(limit(0));
        read_two(&mut ring);
        if !limit(4096) {
            // It takes a privilege to lift it.
            return true;
        }
        assert_eq!(contexts(), inherited);
        until("there is a context", || {
            assert_eq!(read_two(&mut ring), [(0, PAGE as i32), (1, PAGE as i32)]);
            contexts() > inherited
        });
        true
    });
    assert_eq!(ended(pid), 0);
}

/// Nothing tells the thread of what it gave to the kernel while it was awake.
#[test]
fn the_sq_thread_sleeps_while_the_device_is_busy() {
    let Some(file) = storage("busy") else { return };
    let pid = child(|| {
        ends_after(60);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("aio-dirty-{}", std::process::id()));
        let mut dirty = File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let params = io_uring_params { sq_thread_idle: 1, ..params(IORING_SETUP_SQPOLL) };
        let mut ring = Ring::with_params(Engine::User, 8, params).unwrap();
        let submit = |ring: &mut Ring, sqes: &[Sqe]| {
            sqes.iter().for_each(|&sqe| ring.push(sqe));
            ring.enter_with(sqes.len() as u32, 0, IORING_ENTER_SQ_WAKEUP);
        };
        let mut pages = [Page([0xff; PAGE]); 2];
        let [a, b] = &mut pages;
        // From then on there is a context.
        submit(&mut ring, &[read(0, &file, a, 0), read(1, &file, b, 1)]);
        let completions = |ring: &Ring| ring.word(ring.params.cq_off.tail).load(Ordering::Acquire);
        until("they are read", || completions(&ring) == 2);
        dirty.write_all(&vec![1; 64 << 20]).unwrap();
        submit(&mut ring, &[Sqe { fd: dirty.as_raw_fd(), ..sqe(IORING_OP_FSYNC, 2) }]);
        let (mut sleeps, mut slept) = (0, false);
        until("it is synchronized", || {
            let flags = ring.word(ring.params.sq_off.flags).load(Ordering::Acquire);
            let is_there = completions(&ring) == 3;
            let sleeps_now = !is_there && flags & IORING_SQ_NEED_WAKEUP != 0;
            sleeps += u32::from(sleeps_now && !slept);
            slept = sleeps_now;
            is_there
        });
        // The first is that from which it is woken.
        assert!(sleeps <= 2, "{sleeps}");
        true
    });
    assert_eq!(ended(pid), 0);
}

/// Of a transfer of two parts the kernel may refuse the second when the program has closed its descriptor, for all that is known.
#[test]
fn a_transfer_of_two_parts_has_a_descriptor_of_its_own() {
    let Some(file) = storage("parts") else { return };
    let mut ring = Ring::new(Engine::User, 32, DEFER);
    let mut pages = vec![Page([0xff; PAGE]); 16];
    for (offset, own) in [(0, false), (PAGE as u64 / 2, true)] {
        let sqes: Vec<Sqe> = (0..pages.len())
            .map(|at| Sqe { off: (at * PAGE) as u64 + offset, ..read(at as u64, &file, &mut pages[at], 0) })
            .collect();
        for is_warm in [false, true] {
            let before = descriptors();
            ring.submit_all(sqes.iter().copied(), 0);
            let more = descriptors() - before;
            let seen = ring.collect(sqes.len());
            if seen.iter().any(|cqe| cqe.res == -libc::EINVAL) {
                return skip("no direct transfers of parts of a page");
            }
            assert!(seen.iter().all(|cqe| cqe.res == PAGE as i32), "{seen:?}");
            // The ring has what it needs of the system by then.
            assert!(!is_warm || (more > 0) == own, "{more}");
        }
    }
}

/// Whatever file has the number by now: here one that the kernel does no transfers of in this way, and that has nothing to read.
#[test]
fn a_number_that_has_become_a_file_without_transfers() {
    let Some(file) = storage("number") else { return };
    let Ok(mut log) = File::open("/dev/kmsg") else { return skip("no log of the kernel") };
    log.seek(SeekFrom::End(0)).unwrap();
    let pid = child(|| {
        ends_after(30);
        let mut ring = Ring::new(Engine::User, 8, 0);
        let mut pages = [Page([0xff; PAGE]); 2];
        let [a, b] = &mut pages;
        let sqes = [read(0, &file, a, 0), read(1, &file, b, 1)];
        assert_eq!(run(&mut ring, &sqes, 2).len(), 2);
        replace(&file, &log);
        let time = [0u64, 50_000_000];
        let timeout = Sqe { addr: time.as_ptr() as u64, len: 1, ..sqe(IORING_OP_TIMEOUT, 3) };
        ring.submit_and_wait(&[sqes[0], timeout], 1);
        // A message of the kernel's is read, perhaps.
        ring.reap_all().iter().any(|cqe| cqe.user_data == 3 || cqe.res > 0)
    });
    assert_eq!(ended(pid), 0);
}

/// The system has no list of them either.
#[by(on_storage("cancel"))]
fn what_the_device_has_cannot_be_cancelled(engine: Engine, file: File) -> impl Answer {
    let mut ring = Ring::new(engine, 16, 0);
    let mut pages = [Page([0xff; PAGE]); 4];
    let mut reads = || -> Vec<Sqe> {
        pages.iter_mut().enumerate().map(|(at, page)| read(at as u64, &file, page, at)).collect()
    };
    run(&mut ring, &reads(), 4);
    let cancel = |op_flags| Sqe { addr: 2, op_flags, fd: file.as_raw_fd(), ..sqe(IORING_OP_ASYNC_CANCEL, 9) };
    [0, IORING_ASYNC_CANCEL_ANY, IORING_ASYNC_CANCEL_FD, IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL]
        .map(|flags| {
            let together = [reads(), vec![cancel(flags)]].concat();
            let together = run(&mut ring, &together, 5);
            reads().into_iter().for_each(|sqe| ring.push(sqe));
            ring.enter(4, 0);
            ring.push(cancel(flags));
            ring.enter(1, 0);
            (together, results(&ring.collect(5)))
        })
}

/// Transfers that the kernel leaves to its workers: it finds them before those begin, which may be at once, so that its answers are not
/// recorded.
#[test]
fn what_waits_for_a_worker_can_be_cancelled() {
    let Some(file) = storage("workers") else { return };
    let mut page = Page([0xff; PAGE]);
    let end = file.metadata().unwrap().len();
    let extends = Sqe { opcode: IORING_OP_WRITE as u8, off: end, ..read(1, &file, &mut page, 0) };
    let in_a_worker = Sqe { flags: ASYNC, ..read(1, &file, &mut page, 0) };
    let mut ring = Ring::new(Engine::User, 16, 0);
    // Before there is a context, and with one.
    for _ in 0..8 {
        for transfer in [extends, in_a_worker] {
            let cancel = Sqe { addr: 1, ..sqe(IORING_OP_ASYNC_CANCEL, 9) };
            assert_eq!(run(&mut ring, &[transfer, cancel], 2), [(1, -libc::ECANCELED), (9, 0)]);
        }
        run(&mut ring, &[read(1, &file, &mut page, 0)], 1);
    }
}

/// A note that the kernel does not do a transfer without waiting ends with one that it does, by whatever number that went.
#[test]
fn a_write_behind_the_end_makes_no_others_dear() {
    let Some(file) = storage("behind") else { return };
    let mut page = Page([0xff; PAGE]);
    let end = file.metadata().unwrap().len();
    let mut ring = Ring::new(Engine::User, 16, 0);
    let mut write = |off| {
        let sqe = Sqe { opcode: IORING_OP_WRITE as u8, off, ..read(1, &file, &mut page, 0) };
        assert_eq!(run(&mut ring, &[sqe], 1), [(1, PAGE as i32)]);
        kinds::noted(file.as_raw_fd()).has(Kind::DIRECT_WRITES_WAIT)
    };
    (0..8).for_each(|_| assert!(!write(0)));
    if !write(end) {
        return skip("the kernel lets files grow without waiting");
    }
    // One in so many is tried.
    assert!((0..200).any(|_| !write(0)), "a write is tried, and done without waiting");
}

/// Polls a ring's descriptor as a front end does; whether there are completions within the time.
fn polled(engine: Engine, ring: RawFd, time_ms: i32) -> bool {
    let is_user = engine == Engine::User;
    let fd = if is_user { frontend::begin_poll(ring).unwrap() } else { ring };
    let mut list = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    loop {
        // SAFETY: a list of one.
        match unsafe { libc::poll(list.as_mut_ptr(), 1, time_ms) } {
            1 if is_user && !frontend::end_poll(ring) => {}
            ready => return ready == 1,
        }
    }
}

/// Reads of the first pages of a file.
fn reads(file: &File, pages: &mut [Page]) -> Vec<Sqe> {
    pages.iter_mut().enumerate().map(|(at, page)| read(at as u64, file, page, at)).collect()
}

/// Polls tell of all transfers, however many go together, and whatever the program leaves in the CQ.
#[by(on_storage("polled"))]
fn a_poll_tells_of_transfers(engine: Engine, file: File) {
    let mut ring = Ring::new(engine, 16, 0);
    let mut pages = [Page([0; PAGE]); 8];
    for round in 0..100 {
        let count = 1 + round % pages.len();
        let sqes = reads(&file, &mut pages[..count]);
        let (now, later) = sqes.split_at(count.min(round % 3));
        for part in [now, later] {
            ring.submit(part);
        }
        for left in (0..count).rev() {
            assert!(
                polled(engine, ring.fd, PATIENCE_MS),
                "{engine:?}, round {round}: {left} and one are left"
            );
            assert_eq!(ring.reap().map(|cqe| cqe.res), Some(PAGE as i32), "{engine:?}: readable with one");
        }
        assert!(!polled(engine, ring.fd, 0), "{engine:?}: nothing is left");
    }
}

/// Polls tell of a completion until the ring's thread has fetched it, whether it came before the poll or during it.
#[test]
fn a_poll_tells_of_what_a_ring_that_defers_has_to_fetch() {
    const SOON: [i64; 2] = [0, 2_000_000];
    let Some(file) = storage("deferred") else { return };
    let mut page = Page([0; PAGE]);
    for is_during in [false, true] {
        let mut ring = Ring::new(Engine::User, 8, DEFER);
        let (reader, mut writer) = pipe();
        let by_worker = Sqe { fd: file.as_raw_fd(), flags: ASYNC, ..sqe(IORING_OP_FSYNC, 3) };
        let mut kinds = vec![timeout(1, &SOON), poll(2, &reader, libc::POLLIN), by_worker];
        kinds.extend([read(4, &file, &mut page, 1), sqe(IORING_OP_MSG_RING, 5)]);
        for mut kind in kinds {
            assert!(!polled(Engine::User, ring.fd, 0), "{}", kind.user_data);
            let mut other = Ring::new(Engine::User, 4, 0);
            if kind.user_data == 5 {
                (kind.fd, kind.off) = (ring.fd, 5);
                other.submit(&[kind]);
            } else {
                ring.submit(&[kind]);
            }
            if kind.user_data == 2 {
                writer.write_all(b"x").unwrap();
            }
            if !is_during {
                let stand_in = frontend::begin_poll(ring.fd).unwrap();
                // SAFETY: the engine's descriptor, for as long as the ring lives.
                let stand_in = unsafe { std::os::fd::BorrowedFd::borrow_raw(stand_in) };
                assert_eq!(shown(&stand_in, libc::POLLIN, PATIENCE_MS), libc::POLLIN, "{}", kind.user_data);
            }
            for _ in 0..3 {
                assert!(polled(Engine::User, ring.fd, PATIENCE_MS), "{}", kind.user_data);
            }
            ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
            assert_eq!(ring.reap().map(|cqe| cqe.user_data), Some(kind.user_data), "{}", kind.user_data);
        }
    }
}

/// A host whose reactor's thread never begins.
struct Unattended;

impl anyring_engine::Host for Unattended {
    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32> {
        if name == c"anyring-reactor" { Ok(()) } else { SEEING.spawn(name, entry, argument) }
    }

    as_seeing!(but spawn);
}

/// Runs a body in a child, with a ring that no reactor attends, and a file of this name on storage.
fn unattended(name: &str, body: impl FnOnce(Ring, File)) {
    static UNATTENDED: &dyn anyring_engine::Host = &Unattended;
    let Some(file) = storage(name) else { return };
    let pid = child(|| {
        ends_after(30);
        let ring = Ring::new(Engine::User, 16, 0);
        anyring_engine::install(&UNATTENDED);
        body(ring, file);
        true
    });
    assert_eq!(ended(pid), 0);
}

/// A poll needs no other thread to wake for a transfer.
#[test]
fn a_thread_that_polls_takes_transfers_back_itself() {
    unattended("unattended", |mut ring, file| {
        let mut pages = [Page([0; PAGE]); 4];
        assert!(!polled(Engine::User, ring.fd, 0));
        for _ in 0..50 {
            ring.submit(&reads(&file, &mut pages));
            for _ in 0..pages.len() {
                assert!(polled(Engine::User, ring.fd, -1));
                assert_eq!(ring.reap().map(|cqe| cqe.res), Some(PAGE as i32));
            }
        }
    });
}

/// A transfer counts as ended when its event is there, though no thread has taken it back when the timer is due.
#[test]
fn a_transfer_that_has_ended_is_before_a_timer_that_is_due() {
    unattended("ended", |mut ring, file| {
        let mut pages = [Page([0; PAGE])];
        for _ in 0..20 {
            let stand_in = frontend::begin_poll(ring.fd).unwrap();
            assert!(!frontend::end_poll(ring.fd));
            let time = [0, 10_000_000];
            let start = Instant::now();
            let [read] = reads(&file, &mut pages)[..] else { unreachable!() };
            ring.submit(&[Sqe { off: 1, ..timeout(7, &time) }, read]);
            shown(&stand_in, libc::POLLIN, PATIENCE_MS);
            until("the timer is due", || start.elapsed() > Duration::from_millis(20));
            assert_eq!(by_user_data(ring.collect(2))[1].res, 0, "the read has been waited for");
        }
    });
}

/// Every thread hears of it, also where another one has taken the transfer back, or has found nothing just before.
#[by(on_storage("pollers"))]
fn all_threads_that_poll_hear_of_a_transfer(engine: Engine, file: File) {
    const POLLERS: u32 = 3;
    let mut ring = Ring::new(engine, 16, 0);
    let mut pages = [Page([0; PAGE]); 2];
    // How often one has heard of a round's transfers, and how many rounds are over.
    let (heard, over) = (AtomicU32::new(0), AtomicU32::new(0));
    let fd = ring.fd;
    std::thread::scope(|scope| {
        for poller in 0..POLLERS {
            let (heard, over) = (&heard, &over);
            scope.spawn(move || {
                for round in 1..=200 {
                    if poller == 0 {
                        // One looks all the time, and the others sleep.
                        until("it is readable", || polled(engine, fd, 0));
                    } else {
                        assert!(
                            polled(engine, fd, PATIENCE_MS),
                            "{engine:?}: poller {poller}, round {round}"
                        );
                    }
                    heard.fetch_add(1, Ordering::Release);
                    until("the round is over", || over.load(Ordering::Acquire) >= round);
                }
            });
        }
        for round in 1..=200 {
            ring.submit(&reads(&file, &mut pages));
            until("all have heard", || heard.load(Ordering::Acquire) == round * POLLERS);
            assert_eq!(ring.collect(2).len(), 2);
            over.store(round, Ordering::Release);
        }
    });
}

/// A ring may be watched in another way from some time on: what the kernel signals for transfers of before does not stay.
#[test]
fn a_ring_that_was_polled_is_not_ready_in_epoll_without_completions() {
    let Some(file) = storage("watched") else { return };
    let mut ring = Ring::new(Engine::User, 16, 0);
    let mut pages = [Page([0; PAGE]); 4];
    // SAFETY: a new descriptor.
    let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let ready = || {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        if frontend::has_ready_rings_in_epoll() {
            frontend::before_epoll_wait();
        }
        // SAFETY: room for one.
        unsafe { libc::epoll_wait(epoll.as_raw_fd(), &mut event, 1, 0) == 1 }
    };
    assert!(!polled(Engine::User, ring.fd, 0));
    for round in 0..50 {
        ring.submit(&reads(&file, &mut pages));
        if round == 1 {
            let fd = frontend::readiness_fd(ring.fd).unwrap();
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
            // SAFETY: an instance and an event of ours.
            let added = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
            assert_eq!(added, 0);
            frontend::added_to_epoll(ring.fd);
        }
        if round > 0 {
            until("it is ready", ready);
        }
        assert_eq!(ring.collect(4).len(), 4);
        until("it is not ready any more", || !ready());
    }
}
