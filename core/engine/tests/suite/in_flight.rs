//! Reads that miss the page cache: the device has any number of them, and who waits fetches them.

use crate::arch::Stopped;
use crate::common::prelude::*;

const PAGE: usize = 4096;
/// As far apart that no read begins the next one's.
const STEP: usize = 64;
const READS: usize = 16;

/// A file of which each page is full of its number in the steps, and nothing is cached; `None` where that cannot be had.
fn cold(name: &str, seed: u8) -> Option<File> {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cold-{name}-{}", std::process::id()));
    let content: Vec<u8> = (0..READS).flat_map(|at| vec![seed + at as u8; STEP * PAGE]).collect();
    std::fs::create_dir_all(path.parent()?).ok()?;
    std::fs::write(&path, content).ok()?;
    let file = File::options().read(true).write(true).open(&path).ok()?;
    std::fs::remove_file(&path).unwrap();
    file.sync_all().ok()?;
    chill(&file).then_some(file)
}

/// Empties the cache of a file; false where it keeps what it has.
fn chill(file: &File) -> bool {
    let length = READS * STEP * PAGE;
    // SAFETY: touch no memory but a mapping of this function's.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM);
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        let kind = libc::MAP_SHARED;
        let map = libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, kind, file.as_raw_fd(), 0);
        let mut resident = vec![0u8; length / PAGE];
        let known = libc::mincore(map, length, resident.as_mut_ptr()) == 0;
        libc::munmap(map, length);
        known && resident.iter().all(|&page| page & 1 == 0)
    }
}

/// [`both`] with such a file, where there is one.
fn on_cold<T: Answer>(name: &str, body: impl Fn(Engine, File) -> T) {
    let has = cold(name, 1).is_some();
    if !has {
        return skip("no file whose cache can be emptied");
    }
    both(|engine| body(engine, cold(name, 1).expect("there was one before")));
}

fn read(at: usize, file: &File, page: &mut Page) -> Sqe {
    let off = (at * STEP * PAGE) as u64;
    Sqe { off, ..reading(IORING_OP_READ, at as u64, file, &mut page.0) }
}

fn pages() -> Vec<Page> {
    vec![Page([0xff; PAGE]); READS]
}

fn reads(file: &File, pages: &mut [Page]) -> Vec<Sqe> {
    pages.iter_mut().enumerate().map(|(at, page)| read(at, file, page)).collect()
}

fn all_read(seen: &[Cqe], pages: &[Page]) {
    let all: Vec<_> = (0..READS as u64).map(|number| (number, PAGE as i32)).collect();
    assert_eq!(results(seen), all);
    assert!(pages.iter().enumerate().all(|(at, page)| page.0 == [1 + at as u8; PAGE]));
}

#[by(on_cold("wait"))]
fn whoever_waits_fetches_them(engine: Engine, file: File) {
    anyring_engine::install(&SEEING);
    for flags in [0, DEFER] {
        let mut ring = Ring::new(engine, 32, flags);
        for wait in [0, 1, READS as u32] {
            assert!(chill(&file));
            let mut pages = pages();
            ring.submit_and_wait(&reads(&file, &mut pages), wait);
            let seen = ring.waited(READS as u32);
            all_read(&seen, &pages);
        }
    }
}

/// A caller leaves reads to workers where a timeout is about to fire. Here no worker can be had: the caller has read before that.
#[by(on_cold("alone"))]
fn a_caller_that_no_worker_helps_reads_before_it_sleeps(engine: Engine, file: File) -> impl Answer {
    ended(child(|| {
        without_more_threads(0x6000_0000 + std::process::id(), 1);
        let mut ring = Ring::new(engine, 4, 0);
        let mut page = Page([0; PAGE]);
        let fifty_ms: [i64; 2] = [0, 50_000_000];
        // A round in which this process does not run for that long says nothing.
        (0..20).any(|_| {
            // This user is not told whether it is.
            chill(&file);
            ring.submit_and_wait(&[timeout(9, &fifty_ms), read(1, &file, &mut page)], 2);
            let first = ring.reap_all()[0];
            (first.user_data, first.res) == (1, PAGE as i32) && page.0 == [2; PAGE]
        })
    }))
}

/// Nor is there a descriptor for who looks after it then.
#[by(on_cold("limit"))]
fn whoever_only_looks_finds_them_at_the_limit_of_descriptors(engine: Engine, file: File) -> impl Answer {
    ended(child(|| {
        let mut ring = Ring::new(engine, 4, 0);
        // SAFETY: descriptors and a limit of this process's own.
        unsafe {
            while libc::dup(2) < 100 {}
            // One is left for the read.
            libc::close(100);
            let limit = libc::rlimit { rlim_cur: 101, rlim_max: 101 };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        }
        let mut page = Page([0; PAGE]);
        ring.submit(&[read(1, &file, &mut page)]);
        let mut seen = Vec::new();
        until("the read is there", || {
            seen.extend(ring.reap_all());
            !seen.is_empty()
        });
        results(&seen) == [(1, PAGE as i32)] && page.0 == [2; PAGE]
    }))
}

/// The number of this process's workers.
fn workers() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    names
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("iou-wrk"))
        })
        .count()
}

/// A ring that a child has, too, which does not wait for it. On a busy machine the reactor may come before the caller: not each time.
#[by(on_cold("inherited"))]
fn whoever_waits_fetches_them_on_a_ring_of_several_processes(engine: Engine, file: File) {
    anyring_engine::install(&SEEING);
    let round = || {
        ended(child(|| {
            let mut ring = Ring::new(engine, 32, 0);
            let (mut end, writer) = pipe();
            let other = child(|| end.read(&mut [0]).is_ok());
            assert!(chill(&file));
            let mut pages = pages();
            ring.submit(&reads(&file, &mut pages));
            let seen = ring.waited(READS as u32);
            all_read(&seen, &pages);
            drop(writer);
            // SAFETY: ends the other process, which sleeps.
            unsafe { libc::kill(other, libc::SIGKILL) };
            ended(other);
            workers() == 0
        }))
    };
    assert!((0..20).any(|_| round() == 0));
}

/// Reads that one process left to the device, another waits for.
#[by(on_cold("elsewhere"))]
fn whoever_waits_in_another_process_is_told(engine: Engine, file: File) {
    let mut ring = Ring::new(engine, 32, 0);
    for sleeps_before in [false, true] {
        assert!(chill(&file));
        let mut pages = pages();
        let (mut begin, mut writer) = pipe();
        let waiter = child(|| {
            if !sleeps_before {
                begin.read_exact(&mut [0]).unwrap();
            }
            ring.enter_with(0, READS as u32, IORING_ENTER_GETEVENTS) == 0
        });
        if sleeps_before {
            asleep(waiter);
        }
        ring.submit(&reads(&file, &mut pages));
        writer.write_all(&[0]).unwrap();
        assert_eq!(ended(waiter), 0);
        all_read(&ring.reap_all(), &pages);
    }
}

/// Nobody enters the ring for its reads.
#[by(on_cold("look"))]
fn whoever_only_looks_finds_them(engine: Engine, file: File) {
    let mut ring = Ring::new(engine, 32, 0);
    for _ in 0..2 {
        assert!(chill(&file));
        let mut pages = pages();
        ring.submit(&reads(&file, &mut pages));
        let mut seen = Vec::new();
        until("all reads are there", || {
            seen.extend(ring.reap_all());
            seen.len() == READS
        });
        all_read(&seen, &pages);
    }
}

#[by(on_cold("eventfd"))]
fn whoever_sleeps_elsewhere_is_told(engine: Engine, file: File) {
    for flags in [0, DEFER] {
        let mut ring = Ring::new(engine, 32, flags);
        let event = eventfd(0, 0);
        ring.register_eventfd(&event);
        let mut pages = pages();
        ring.submit(&reads(&file, &mut pages));
        let mut seen = Vec::new();
        while seen.len() < READS {
            shown(&event, libc::POLLIN, -1);
            File::from(event.try_clone().unwrap()).read_exact(&mut [0; 8]).unwrap();
            // On a ring that defers, to be told means to come in.
            ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
            seen.extend(ring.reap_all());
        }
        all_read(&seen, &pages);
        chill(&file);
    }
}

#[by(on_cold("thread"))]
fn the_sq_thread_fetches_them(engine: Engine, file: File) {
    let mut ring = Ring::new(engine, 32, IORING_SETUP_SQPOLL);
    let mut pages = pages();
    let sqes = reads(&file, &mut pages);
    sqes.iter().for_each(|&sqe| ring.push(sqe));
    ring.enter_with(READS as u32, 0, IORING_ENTER_SQ_WAKEUP);
    let seen = ring.waited(READS as u32);
    all_read(&seen, &pages);
}

/// The descriptor becomes another file's while the reads are in flight.
fn keep_their_file(engine: Engine, file: &File, wait: u32, change: impl Fn(&File, &File)) {
    let other = cold("other", 100).expect("there was one before");
    for registered in [false, true] {
        chill(file);
        let name = file.try_clone().unwrap();
        let mut ring = Ring::new(engine, 32, 0);
        let mut pages = pages();
        let mut sqes = reads(&name, &mut pages);
        if registered {
            ring.register_files(&[name.as_raw_fd()]);
            sqes.iter_mut().for_each(|sqe| (sqe.fd, sqe.flags) = (0, FIXED));
        }
        ring.submit_and_wait(&sqes, wait);
        if registered {
            assert_eq!(ring.unregister(IORING_UNREGISTER_FILES), 0);
        }
        change(&name, &other);
        let seen = by_user_data(ring.waited(READS as u32));
        all_read(&seen, &pages);
    }
}

#[by(on_cold("closed"))]
fn they_keep_their_file_where_closes_are_told(engine: Engine, file: File) {
    anyring_engine::install(&SEEING);
    for wait in [0, 1] {
        keep_their_file(engine, &file, wait, |name, other| {
            closes(engine, name.as_raw_fd());
            replace(name, other);
        });
    }
}

#[by(on_cold("unseen"))]
fn they_keep_their_file_where_closes_are_not_told(engine: Engine, file: File) {
    for wait in [0, 1] {
        keep_their_file(engine, &file, wait, |name, other| replace(name, other));
    }
}

/// Reads of what is cached in part come whole, and end where the file has no more.
#[by(on_cold("parts"))]
fn some_are_there_in_part(engine: Engine, file: File) -> impl Answer {
    let mut ring = Ring::new(engine, 8, 0);
    [0, 3].map(|wait| {
        chill(&file);
        file.read_exact_at(&mut [0; 2 * PAGE], 0).unwrap();
        let end = (READS * STEP * PAGE) as u64;
        let mut memory = vec![[0xffu8; 8 * PAGE]; 3];
        let [first, second, third] = &mut memory[..] else { panic!() };
        let (left, right) = second.split_at_mut(PAGE / 2);
        let vectors = [vector(left), vector(right)];
        let sqes = [
            reading(IORING_OP_READ, 1, &file, first),
            Sqe {
                addr: vectors.as_ptr() as u64,
                len: 2,
                off: PAGE as u64,
                fd: file.as_raw_fd(),
                ..sqe(IORING_OP_READV, 2)
            },
            Sqe { off: end - PAGE as u64, ..reading(IORING_OP_READ, 3, &file, third) },
        ];
        ring.submit_and_wait(&sqes, wait);
        let seen = results(&ring.collect(3));
        assert!(memory[0].iter().chain(&memory[1]).all(|&byte| byte == 1));
        (seen, memory[2][PAGE - 1], memory[2][PAGE])
    })
}

#[by(on_cold("truncated"))]
fn the_file_shrinks_meanwhile(engine: Engine, file: File) {
    let mut ring = Ring::new(engine, 32, 0);
    let mut pages = pages();
    ring.submit(&reads(&file, &mut pages));
    file.set_len(0).unwrap();
    let seen = ring.waited(READS as u32);
    assert!(seen.iter().all(|cqe| cqe.res == 0 || cqe.res == PAGE as i32), "{seen:?}");
}

#[by(on_cold("buffers"))]
fn buffers_are_chosen_once(engine: Engine, file: File) {
    let mut ring = Ring::new(engine, 32, 0);
    let mut memory = vec![0u8; READS * PAGE];
    ring.run(&[providing(100, 7, &mut memory, PAGE)]);
    let sqes = (0..READS).map(|at| Sqe {
        fd: file.as_raw_fd(),
        off: (at * STEP * PAGE) as u64,
        len: PAGE as u32,
        flags: SELECT,
        buf_index: 7,
        ..sqe(IORING_OP_READ, at as u64)
    });
    ring.submit_all(sqes, 0);
    let seen = by_user_data(ring.waited(READS as u32));
    let mut ids: Vec<u32> = Vec::new();
    for (at, cqe) in seen.iter().enumerate() {
        assert_eq!(cqe.res, PAGE as i32, "{engine:?}");
        let id = cqe.flags >> 16;
        assert!(memory[id as usize * PAGE..][..PAGE].iter().all(|&byte| byte == 1 + at as u8));
        ids.push(id);
    }
    ids.sort_unstable();
    assert!(ids.iter().copied().eq(0..READS as u32));
}

/// The ring ends while the device has its reads.
#[by(on_cold("ends"))]
fn nobody_wants_them_any_more(engine: Engine, file: File) {
    let mut ring = Ring::new(engine, 32, 0);
    let mut pages = pages();
    ring.submit(&reads(&file, &mut pages));
    ring.close();
}

/// A caller is stopped as it begins the read, and the descriptor's number is given to another file then.
#[test]
fn a_read_that_its_caller_begins_has_the_file_of_its_submission() {
    let (Some(file), Some(other)) = (cold("begun", 1), cold("other", 101)) else {
        return skip("no file whose cache can be emptied");
    };
    let (mut asked, ask) = pipe();
    let (mut told, tell) = pipe();
    let fd = file.as_raw_fd();
    let pid = child(|| {
        anyring_engine::install(&SEEING);
        let mut ring = Ring::new(Engine::User, 4, 0);
        let mut page = Page([0; PAGE]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                asked.read_exact(&mut [0]).unwrap();
                closes(Engine::User, fd);
                replace(&file, &other);
                write_to(&tell, b"x");
            });
            // SAFETY: the parent traces this thread, and lets it go on.
            unsafe {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::raise(libc::SIGSTOP);
                // Ends the process if it never makes that read.
                libc::alarm(60);
            }
            ring.submit_and_wait(&[read(1, &file, &mut page)], 1);
        });
        results(&ring.reap_all()) == [(1, PAGE as i32)] && page.0 == [2; PAGE]
    });
    let begins_read = |stopped: Stopped| {
        let [number, .., flags] = stopped.arguments();
        stopped.number() == libc::SYS_preadv2 && number == fd as u64 && flags == 0
    };
    let mut status = 0;
    // SAFETY: our child, which stops at once; then at each call's begin and end.
    unsafe {
        assert_eq!(libc::waitpid(pid, &mut status, libc::__WALL), pid);
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        assert_eq!(libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options), 0);
        loop {
            assert_eq!(libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, 0), 0);
            assert_eq!(libc::waitpid(pid, &mut status, libc::__WALL), pid);
            let stop = libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status));
            assert_eq!(stop, Some(libc::SIGTRAP | 0x80), "the caller reads by the program's descriptor");
            if begins_read(Stopped::look(pid)) {
                break;
            }
        }
        write_to(&ask, b"x");
        told.read_exact(&mut [0]).unwrap();
        assert_eq!(libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0), 0);
    }
    assert_eq!(ended(pid), 0);
}
