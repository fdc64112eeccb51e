//! Which thread does what blocks: the caller while that is quick, workers up to a number, work on one file in its order.
//!
//! Work is held up on a page of memory that is not there until the test gives it (`common::Missing`).

use crate::common::prelude::*;

/// Workers for what ends soon, where the program has not said how many.
const BOUNDED: usize = 8;

/// Runs `body` in a process of its own: workers and their limits are a process's. False where there are no pages to be
/// held back.
fn alone(body: impl FnOnce()) {
    in_child(|| {
        ends_after(30);
        body();
    });
}

/// Skips the test where memory cannot be held back.
macro_rules! missing {
    () => {
        match Missing::new() {
            Some(missing) => missing,
            None => return skip(NO_MISSING),
        }
    };
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// The file of this name in `/proc`, for each thread of the process but the first.
fn of_others(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let others = tasks.filter(|task| task.file_name().to_str() != Some(&std::process::id().to_string()));
    others.filter_map(|task| std::fs::read_to_string(task.path().join(name)).ok()).collect()
}

/// How many threads wait for a page.
fn held_up() -> usize {
    of_others("wchan").iter().filter(|place| place.contains("userfault")).count()
}

fn workers() -> usize {
    of_others("comm").iter().filter(|name| name.starts_with("iou-wrk")).count()
}

/// How many threads sleep on a futex, as workers without work do.
fn idle() -> usize {
    of_others("syscall")
        .iter()
        .filter(|call| ["202 ", "98 "].iter().any(|number| call.starts_with(number)))
        .count()
}

fn content(file: &File, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let read = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(read);
    bytes
}

fn limit(ring: &Ring, workers: u32) -> u32 {
    let mut limits = [workers, 0u32];
    assert_eq!(ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, (&raw mut limits).cast(), 2), 0);
    limits[0]
}

/// Always done by a worker.
fn sync(user_data: u64, file: &File) -> Sqe {
    Sqe { fd: file.as_raw_fd(), ..sqe(IORING_OP_SYNC_FILE_RANGE, user_data) }
}

fn statx(user_data: u64, into: *mut u8) -> Sqe {
    let len = libc::STATX_BASIC_STATS;
    Sqe { off: into as u64, len, ..at_path(IORING_OP_STATX, user_data, c"/") }
}

/// Of memory files, which know no attempt that does not block.
fn write(user_data: u64, file: &File, bytes: &[u8], off: u64) -> Sqe {
    Sqe { off, ..writing(IORING_OP_WRITE, user_data, file, bytes) }
}

fn write_missing(user_data: u64, file: &File, missing: &Missing, off: u64) -> Sqe {
    let (addr, len) = (missing.address() as u64, Missing::LENGTH);
    Sqe { fd: file.as_raw_fd(), addr, len, off, ..sqe(IORING_OP_WRITE, user_data) }
}

/// Has a worker do it, behind another request. That one's completion has the user data 1000.
fn push_for_worker(ring: &mut Ring, file: &File, sqe: Sqe) {
    ring.submit(&[Sqe { flags: LINK, ..sync(1000, file) }, sqe]);
}

/// Looks for so many completions, without a call that waits and does work meanwhile. Those of what sent others to workers
/// are left out.
fn results(ring: &mut Ring, count: usize) -> Vec<(u64, i32)> {
    let mut cqes = Vec::new();
    until("the completions are there", || {
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        cqes.extend(ring.reap_all());
        cqes.len() >= count
    });
    assert_eq!(cqes.len(), count);
    cqes.iter().filter(|cqe| cqe.user_data != 1000).map(|cqe| (cqe.user_data, cqe.res)).collect()
}

/// The results, sorted.
fn sorted(ring: &mut Ring, count: usize) -> Vec<(u64, i32)> {
    let mut seen = results(ring, count);
    seen.sort_unstable();
    seen
}

/// Has one worker more held up by this.
fn hold_up(ring: &mut Ring, file: &File, sqe: Sqe) {
    let held = held_up() + 1;
    push_for_worker(ring, file, sqe);
    until("the worker is held up", || held_up() == held);
}

#[by(alone)]
fn so_many_workers_and_no_more() {
    let missing = missing!();
    let mut ring = Ring::new(Engine::User, 64, 0);
    let file = memory_file(b"");
    let before = threads();
    for number in 0..12 {
        push_for_worker(&mut ring, &file, statx(number, missing.address()));
    }
    until("so many workers are held up", || held_up() == BOUNDED);
    // The reactor may have begun.
    assert!(threads() <= before + BOUNDED + 1);
    missing.give();
    let results = results(&mut ring, 24);
    assert!(results.iter().all(|&(_, result)| result == 0), "{results:?}");
    until("all of them look for work", || workers() >= BOUNDED && idle() == workers());
    assert_eq!(workers(), BOUNDED);
    assert_eq!(limit(&ring, 2), BOUNDED as u32);
    ring.submit(&[sync(1, &file)]);
    until("those beyond the limit leave", || workers() == 2);
    ring.collect(1);
    assert_eq!(limit(&ring, 0), 2);
}

#[by(alone)]
fn workers_as_the_program_limits_them() {
    let missing = missing!();
    let mut ring = Ring::new(Engine::User, 64, 0);
    let file = memory_file(b"");
    limit(&ring, 2);
    for number in 0..4 {
        push_for_worker(&mut ring, &file, statx(number, missing.address()));
    }
    until("two workers are held up", || held_up() == 2);
    assert_eq!(workers(), 2);
    // More than there were: the next work brings another, and it does what waited first.
    limit(&ring, 3);
    ring.submit(&[sync(7, &file)]);
    until("a third one is held up", || held_up() == 3);
    assert_eq!(workers(), 3);
    missing.give();
    assert_eq!(results(&mut ring, 9).len(), 5);
    until("all of them look for work", || idle() == workers());
    assert_eq!(workers(), 3);
}

#[by(alone)]
fn a_worker_without_work_takes_what_comes() {
    let mut ring = Ring::new(Engine::User, 8, DEFER);
    let (file, before) = (memory_file(b""), threads());
    for number in 0..10 {
        ring.submit(&[sync(number, &file)]);
        assert_eq!(results(&mut ring, 1), [(number, 0)]);
        until("the worker sleeps", || workers() > 0 && idle() == workers());
        assert_eq!(threads(), before + 1);
    }
}

#[by(alone)]
fn two_that_are_busy_get_a_third_for_what_comes() {
    let (first, second) = (missing!(), missing!());
    let mut ring = Ring::new(Engine::User, 16, 0);
    let file = memory_file(b"");
    hold_up(&mut ring, &file, statx(1, first.address()));
    hold_up(&mut ring, &file, statx(2, second.address()));
    ring.submit(&[sync(3, &file)]);
    assert_eq!(results(&mut ring, 3), [(3, 0)]);
    second.give();
    assert_eq!(results(&mut ring, 1), [(2, 0)]);
    assert_eq!(held_up(), 1);
    first.give();
    assert_eq!(results(&mut ring, 1), [(1, 0)]);
}

#[by(alone)]
fn writes_to_one_file_are_done_in_order() {
    let missing = missing!();
    let mut ring = Ring::new(Engine::User, 16, 0);
    // Their numbers are neighbours.
    let (before, file, other) = (memory_file(b""), memory_file(b""), memory_file(b""));
    hold_up(&mut ring, &file, write_missing(1, &file, &missing, 0));
    push_for_worker(&mut ring, &file, write(2, &file, b"second", 0));
    push_for_worker(&mut ring, &other, write(3, &other, b"other", 0));
    push_for_worker(&mut ring, &before, write(4, &before, b"before", 0));
    push_for_worker(&mut ring, &file, statx(5, Box::leak(Box::new([0u8; 256])).as_mut_ptr()));
    let seen = sorted(&mut ring, 8);
    assert_eq!(seen, [(3, 5), (4, 6), (5, 0)], "what is for other files does not wait");
    until("nobody has begun with the second", || idle() + 1 >= workers());
    assert_eq!(ring.reap(), None);
    missing.give();
    let seen = sorted(&mut ring, 2);
    assert_eq!(seen, [(1, Missing::LENGTH as i32), (2, 6)]);
    assert_eq!(content(&file, 8), b"second11");
    // Nothing is left of that.
    push_for_worker(&mut ring, &file, write(5, &file, b"third", 0));
    assert_eq!(results(&mut ring, 2), [(5, 5)]);
}

/// Writes that the call itself could do, behind one that a worker is at.
fn behind_a_worker(registered: bool, at: u64) {
    alone(|| {
        let missing = missing!();
        let mut ring = Ring::new(Engine::User, 16, 0);
        let (file, other) = (memory_file(b""), memory_file(b""));
        ring.register_files(&[file.as_raw_fd(), other.as_raw_fd()]);
        let through = |slot: i32, sqe: Sqe| {
            if registered { Sqe { fd: slot, flags: sqe.flags | FIXED, ..sqe } } else { sqe }
        };
        hold_up(&mut ring, &file, through(0, write_missing(1, &file, &missing, at)));
        ring.reap_all();
        // Nobody does what this call does not do itself, where there is no thread for it.
        limit(&ring, 1);
        ring.submit(&[through(1, write(2, &other, b"other", at))]);
        assert_eq!(
            ring.reap_all().iter().map(|cqe| cqe.user_data).filter(|&data| data != 1000).collect::<Vec<_>>(),
            [2]
        );
        ring.submit(&[through(0, write(3, &file, b"second", at))]);
        assert_eq!(ring.reap(), None, "it waits for the first");
        missing.give();
        let seen = sorted(&mut ring, 2);
        assert_eq!(seen, [(1, Missing::LENGTH as i32), (3, 6)]);
        let (length, start) = (Missing::LENGTH as usize, &content(&file, 8192));
        if at == 0 {
            assert_eq!((start.len(), &start[..8]), (length, &b"second11"[..]));
        } else {
            assert_eq!((start.len(), &start[length..]), (length + 6, &b"second"[..]));
        }
    });
}

#[test]
fn a_write_behind_one_that_a_worker_is_at() {
    behind_a_worker(false, 0);
}

#[test]
fn a_write_to_a_registered_file_behind_one_that_a_worker_is_at() {
    behind_a_worker(true, 0);
}

#[test]
fn a_write_at_the_position_behind_one_that_a_worker_is_at() {
    behind_a_worker(false, u64::MAX);
    behind_a_worker(true, u64::MAX);
}

#[by(alone)]
fn reads_at_the_position_are_done_in_order() {
    let missing = missing!();
    let mut ring = Ring::new(Engine::User, 16, 0);
    let (file, other) = (memory_file(b""), memory_file(b""));
    file.write_all_at(&[b'x'; 4096], 0).unwrap();
    file.write_all_at(b"behind", 4096).unwrap();
    other.write_all_at(b"other", 0).unwrap();
    let mut buffer = [0u8; 16];
    let read = |user_data, file: &File, addr: *mut u8, len, off| Sqe {
        fd: file.as_raw_fd(),
        addr: addr as u64,
        len,
        off,
        ..sqe(IORING_OP_READ, user_data)
    };
    push_for_worker(&mut ring, &file, read(1, &file, missing.address(), Missing::LENGTH, u64::MAX));
    until("the first is held up", || {
        held_up() == 1 || ring.word(ring.params.cq_off.tail).load(Ordering::Acquire) > 1
    });
    if held_up() == 1 {
        limit(&ring, 1);
        ring.submit(&[read(2, &other, buffer.as_mut_ptr(), 16, u64::MAX)]);
        ring.submit(&[read(3, &file, buffer.as_mut_ptr(), 4, 4096)]);
        assert!(ring.reap_all().len() >= 2, "what needs not wait does not");
        assert_eq!(&buffer[..5], b"behir");
        ring.submit(&[read(4, &file, buffer.as_mut_ptr(), 16, u64::MAX)]);
        assert_eq!(ring.reap(), None, "it waits for the first");
        missing.give();
        let seen = sorted(&mut ring, 2);
        assert_eq!(seen, [(1, 4096), (4, 6)]);
        assert_eq!(&buffer[..6], b"behind");
    }
}

#[by(alone)]
fn what_waits_for_a_worker_can_be_cancelled() {
    let missing = missing!();
    let mut ring = Ring::new(Engine::User, 16, 0);
    let file = memory_file(b"");
    limit(&ring, 1);
    hold_up(&mut ring, &file, statx(1, missing.address()));
    for number in 2..5 {
        ring.submit(&[sync(number, &file)]);
    }
    let mut other = Ring::new(Engine::User, 16, 0);
    other.submit(&[sync(3, &file)]);
    ring.reap_all();
    let cancel = |target| Sqe { addr: target, ..sqe(IORING_OP_ASYNC_CANCEL, 100) };
    ring.submit(&[cancel(3)]);
    let seen = crate::common::results(&ring.reap_all());
    assert_eq!(seen, [(3, -libc::ECANCELED), (100, 0)]);
    ring.submit(&[cancel(1)]);
    assert_eq!(results(&mut ring, 1), [(100, -libc::EALREADY)]);
    missing.give();
    let seen = sorted(&mut ring, 3);
    assert_eq!(seen, [(1, 0), (2, 0), (4, 0)]);
    assert_eq!(results(&mut other, 1), [(3, 0)]);
}

#[by(alone)]
fn a_caller_that_waits_does_what_is_left_of_its_ring() {
    let missing = missing!();
    let mut ring = Ring::new(Engine::User, 16, 0);
    let mut other = Ring::new(Engine::User, 16, 0);
    let file = memory_file(b"");
    limit(&ring, 1);
    hold_up(&mut ring, &file, statx(1, missing.address()));
    ring.reap_all();
    other.submit(&[sync(2, &file)]);
    ring.submit(&[sync(3, &file)]);
    assert_eq!((ring.reap(), other.reap()), (None, None));
    assert_eq!(ring.collect(1)[0].user_data, 3);
    assert_eq!(other.reap(), None, "it is another ring's");
    assert_eq!(other.collect(1)[0].user_data, 2);
    missing.give();
    assert_eq!(results(&mut ring, 1), [(1, 0)]);
}

/// The rest of a submission, where its first request is held up for longer than a quick one takes.
fn behind_a_slow_one(flags: u32, wait: u32) {
    alone(|| {
        let missing = missing!();
        let directory = std::env::temp_dir().join(format!("anyring-pool-{}", std::process::id()));
        let path = |rest: &str| CString::new(format!("{}{rest}", directory.display())).unwrap();
        let paths = ["", "/a", "/a/b", "/a/b/c"].map(path);
        let mut ring = Ring::new(Engine::User, 16, flags);
        // One worker keeps the order.
        limit(&ring, 1);
        ring.push(statx(1, missing.address()));
        ring.push_all(
            (2..)
                .zip(&paths)
                .map(|(number, path)| Sqe { len: 0o700, ..at_path(IORING_OP_MKDIRAT, number, path) }),
        );
        std::thread::scope(|scope| {
            let giver = scope.spawn(|| {
                // The calling thread is the process's first.
                until("the call is held up", || {
                    let first = format!("/proc/self/task/{}/wchan", std::process::id());
                    std::fs::read_to_string(first).unwrap().contains("userfault")
                });
                let held = Instant::now();
                while held.elapsed() < Duration::from_millis(1) {
                    std::hint::spin_loop();
                }
                assert_eq!(workers(), 0);
                missing.give();
            });
            assert_eq!(ring.enter(5, wait), 5);
            giver.join().unwrap();
        });
        until("a worker begins", || workers() == 1);
        let seen = results(&mut ring, 5);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(seen, [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)]);
    });
}

#[test]
fn what_is_behind_a_slow_one_goes_to_workers() {
    behind_a_slow_one(0, 0);
    behind_a_slow_one(DEFER, 0);
}

/// How long a look at a file usually takes here, as without a ring.
fn a_look() -> Duration {
    let mut took: Vec<_> = (0..41)
        .map(|_| {
            let begin = Instant::now();
            std::fs::metadata("/").unwrap();
            begin.elapsed()
        })
        .collect();
    took.sort();
    took[20]
}

#[test]
fn what_is_quick_the_caller_does() {
    // One that was interrupted by another program may look slow: then once more.
    let tries = 20;
    for attempt in 1..=tries {
        let pid = child(|| {
            let mut ring = Ring::new(Engine::User, 64, DEFER);
            let mut buffer = [0u8; 256];
            let before = threads();
            let file = memory_file(b"");
            let looks = (0..40).map(|number| statx(number, buffer.as_mut_ptr()));
            ring.submit_all(looks.chain((40..44).map(|number| write(number, &file, b"quick", 0))), 0);
            let seen = results(&mut ring, 44);
            assert!(
                seen.iter().all(|&(number, result)| result == if number < 40 { 0 } else { 5 }),
                "{seen:?}"
            );
            threads() == before
        });
        match ended(pid) {
            0 => return,
            1 if attempt < tries => {}
            1 => {
                let took = a_look();
                // Half of what the engine takes for slow.
                assert!(took > Duration::from_micros(10), "the caller always gives quick work away");
                return skip("looking at a file takes as long as slow work");
            }
            other => panic!("{other}"),
        }
    }
}

#[by(ours(16, 0))]
fn what_a_call_has_queued_can_be_cancelled_by_it(mut ring: Ring) {
    let mut buffers = [[0u8; 256]; 3];
    ring.push_all((1..).zip(&mut buffers).map(|(number, buffer)| statx(number, buffer.as_mut_ptr())));
    ring.push(cancel(4, 2, 0));
    assert_eq!(ring.enter(4, 4), 4);
    let seen = crate::common::results(&ring.reap_all());
    assert_eq!(seen, [(1, 0), (2, -libc::ECANCELED), (3, 0), (4, 0)]);
    assert_eq!(buffers.map(|buffer| buffer[0] != 0), [true, false, true]);
}

#[by(alone)]
fn a_synchronous_cancellation_waits_for_so_long() {
    let missing = missing!();
    let mut ring = Ring::new(Engine::User, 16, 0);
    let file = memory_file(b"");
    hold_up(&mut ring, &file, statx(1, missing.address()));
    let fd = ring.fd;
    let cancel = |seconds, nanoseconds| {
        let mut wanted: io_uring_sync_cancel_reg = zeroed();
        (wanted.addr, wanted.fd) = (1, -1);
        (wanted.timeout.tv_sec, wanted.timeout.tv_nsec) = (seconds, nanoseconds);
        let code = IORING_REGISTER_SYNC_CANCEL as u32;
        register(Engine::User, fd, code, (&raw const wanted).cast(), 1)
    };
    for (seconds, nanoseconds) in [(0, 1_000_000), (0, 0), (-1, 0), (0, -1), (-1, 1)] {
        assert_eq!(cancel(seconds, nanoseconds), -libc::ETIME, "{seconds}, {nanoseconds}");
    }
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let waits = scope.spawn(move || {
            tell.send(thread_id()).unwrap();
            cancel(-1, -1)
        });
        waits_for_events(told.recv().unwrap());
        // Longer than any time that was mistaken for one.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(20) {
            std::thread::yield_now();
        }
        assert!(!waits.is_finished());
        missing.give();
        assert_eq!(waits.join().unwrap(), 0);
    });
}

/// True if a transfer is held up that was told not to wait. Whoever makes that attempt has the ring meanwhile.
fn attempt_is_held_up() -> bool {
    of_others("syscall").iter().any(|call| {
        let words: Vec<&str> = call.split_whitespace().collect();
        // `preadv2` with RWF_NOWAIT.
        ["327", "286"].contains(&words[0]) && words.get(6) == Some(&"0x8")
    })
}

#[by(alone)]
fn a_read_at_the_position_waits_for_the_one_before() {
    let missing = missing!();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pool-{}", std::process::id()));
    std::fs::write(&path, [7; 16_384]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.sync_all().unwrap();
    // SAFETY: advice, and a mapping that is only asked about.
    let cached = unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        let at =
            libc::mmap(std::ptr::null_mut(), 16_384, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        let mut pages = [0u8; 4];
        libc::mincore(at, 16_384, pages.as_mut_ptr()) != 0 || pages.iter().any(|page| page & 1 != 0)
    };
    if cached {
        return skip("the file stays in the cache");
    }
    let mut ring = Ring::new(Engine::User, 16, 0);
    let mut buffer = [0u8; 16];
    let read = |user_data, addr: *mut u8, len| Sqe {
        fd: file.as_raw_fd(),
        addr: addr as u64,
        len,
        off: u64::MAX,
        ..sqe(IORING_OP_READ, user_data)
    };
    hold_up(&mut ring, &file, read(1, missing.address(), Missing::LENGTH));
    if attempt_is_held_up() {
        missing.give();
        return skip("the disk was as fast as the cache");
    }
    // It has the file's position: an attempt would wait for it.
    ring.submit(&[read(2, buffer.as_mut_ptr(), 16)]);
    missing.give();
    let seen = sorted(&mut ring, 3);
    assert_eq!(seen, [(1, Missing::LENGTH as i32), (2, 16)]);
    assert_eq!(buffer, [7; 16]);
}

#[by(alone)]
fn what_is_done_and_not_fetched() {
    let flags = DEFER | IORING_SETUP_TASKRUN_FLAG;
    let mut ring = Ring::new(Engine::User, 16, flags);
    let shown = |ring: &Ring| {
        let flags = ring.word(ring.params.sq_off.flags);
        flags.load(Ordering::Relaxed) & IORING_SQ_TASKRUN != 0
    };
    let file = memory_file(b"");
    for number in [1, 2] {
        ring.submit(&[sync(number, &file)]);
    }
    until("both are done", || workers() > 0 && idle() == workers());
    assert!(shown(&ring));
    ring.submit(&[cancel(3, 1, 0)]);
    assert!(shown(&ring));
    let seen = sorted(&mut ring, 3);
    assert_eq!(seen, [(1, 0), (2, 0), (3, -libc::ENOENT)]);
    assert!(!shown(&ring));
}

/// A bind that makes a file in a directory may have to wait for its file system; other addresses need none.
#[by(ours(8, 0))]
fn a_bind_that_makes_a_file_is_work(mut ring: Ring) {
    let path = format!("{}/bind-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let of_unix = |name: &[u8]| [&(libc::AF_UNIX as u16).to_ne_bytes()[..], name].concat();
    let local = [&(libc::AF_INET as u16).to_ne_bytes()[..], &[0, 0, 127, 0, 0, 1], &[0; 8]].concat();
    let name = format!("\0bind-{}", std::process::id());
    let order: Vec<Vec<u64>> = [
        (libc::AF_UNIX, of_unix(path.as_bytes())),
        (libc::AF_UNIX, of_unix(name.as_bytes())),
        // It gets a name that is not taken.
        (libc::AF_UNIX, of_unix(b"")),
        (libc::AF_INET, local),
    ]
    .iter()
    .map(|(family, address)| {
        let socket = socket(*family, libc::SOCK_STREAM);
        let off = address.len() as u64;
        let bind = Sqe { len: 0, off, ..writing(IORING_OP_BIND, 1, &socket, address) };
        let cqes = ring.run(&[bind, sqe(IORING_OP_NOP, 2)]);
        assert!(cqes.iter().all(|cqe| cqe.res == 0), "{cqes:?}");
        cqes.iter().map(|cqe| cqe.user_data).collect()
    })
    .collect();
    std::fs::remove_file(path).unwrap();
    assert_eq!(order, [[2, 1], [1, 2], [1, 2], [1, 2]]);
}
