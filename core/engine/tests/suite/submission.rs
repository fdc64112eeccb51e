//! Submission and completion, links and drains, on NOPs: the life cycle without any I/O.

use crate::common::prelude::*;

/// A NOP that fails with `res`.
fn failing(user_data: u64, flags: u8, res: i32) -> Sqe {
    Sqe { op_flags: IORING_NOP_INJECT_RESULT, len: res as u32, ..nop(user_data, flags) }
}

#[both(8, 0)]
fn nops_complete_in_order(mut ring: Ring) -> impl Answer {
    ring.run(&[nop(1, 0), nop(2, 0), nop(3, 0)])
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn unknown_opcodes_and_flags_are_refused(mut ring: Ring) -> impl Answer {
    let unknown = Sqe { opcode: 250, ..nop(1, 0) };
    let flags = nop(2, 0x80);
    let ioprio = Sqe { ioprio: 1, ..nop(3, 0) };
    let personality = Sqe { personality: 7, ..nop(4, 0) };
    ring.run(&[unknown, flags, ioprio, personality])
}

#[both(8, 0)]
fn a_bad_sqe_stops_the_batch(mut ring: Ring) -> impl Answer {
    ring.push(nop(1, 0));
    ring.push(Sqe { opcode: 250, ..nop(2, 0) });
    ring.push(nop(3, 0));
    let first = ring.enter(3, 0);
    let second = ring.enter(1, 0);
    (first, second, ring.reap_all())
}

#[both(8, 0)]
fn a_bad_sqe_in_a_chain_does_not_stop_the_batch(mut ring: Ring) -> impl Answer {
    let unknown = |user_data, flags| Sqe { opcode: 250, ..nop(user_data, flags) };
    let begins = ring.run(&[unknown(1, LINK), nop(2, LINK), nop(3, 0), nop(4, 0)]);
    let goes_on = ring.run(&[nop(5, LINK), unknown(6, LINK), nop(7, 0)]);
    ring.push_all([nop(8, LINK), unknown(9, 0), nop(10, 0)]);
    (begins, goes_on, ring.enter(3, 0), ring.reap_all())
}

#[both(16, 0)]
fn links_fail_together_and_hard_links_do_not(mut ring: Ring) -> impl Answer {
    let mut all = ring.run(&[nop(1, LINK), failing(2, LINK, -5), nop(3, LINK), nop(4, 0)]);
    all.extend(ring.run(&[nop(5, HARDLINK), failing(6, HARDLINK, -5), nop(7, 0)]));
    all.extend(ring.run(&[nop(8, LINK), nop(9, LINK)]));
    all
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn a_chain_with_a_bad_member_is_cancelled(mut ring: Ring) -> impl Answer {
    ring.run(&[nop(1, LINK), Sqe { opcode: 250, ..nop(2, LINK) }, nop(3, 0), nop(4, 0)])
}

#[both(16, 0)]
fn skipped_completions_appear_on_failure(mut ring: Ring) -> impl Answer {
    ring.push_all([nop(1, SKIP), failing(2, SKIP | LINK, -7), nop(3, LINK), nop(4, 0), nop(5, 0)]);
    let submitted = ring.enter(5, 2);
    (submitted, ring.reap_all())
}

#[both(16, 0)]
fn drains_wait_for_all_before_them(mut ring: Ring) -> impl Answer {
    ring.run(&[nop(1, LINK), nop(2, 0), nop(3, DRAIN), nop(4, 0), nop(5, DRAIN | LINK), nop(6, 0), nop(7, 0)])
}

/// Nothing is before the chain; what follows it waits for it all the same.
#[both(16, 0)]
fn what_follows_a_chain_that_drains_does_so_too(mut ring: Ring) -> impl Answer {
    let (reader, writer) = pipe();
    let mut buffer = [0; 8];
    let (fd, addr) = (reader.as_raw_fd(), buffer.as_mut_ptr() as u64);
    let first = Sqe { fd, addr, len: 8, flags: DRAIN | LINK, ..sqe(IORING_OP_READ, 1) };
    ring.submit(&[first, nop(2, 0), nop(3, 0)]);
    let early = ring.reap_all();
    write_to(&writer, b"x");
    (early, ring.collect(3))
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn drains_and_skips_do_not_mix(mut ring: Ring) -> impl Answer {
    ring.push(nop(1, SKIP));
    ring.push(nop(2, DRAIN));
    let submitted = ring.enter(2, 1);
    (submitted, ring.reap_all())
}

#[both(4, 0)]
fn a_full_cq_overflows_and_loses_nothing(mut ring: Ring) -> impl Answer {
    let mut seen = Vec::new();
    for round in 0..5u64 {
        ring.submit_all((0..4).map(|i| nop(round * 4 + i, 0)), 0);
    }
    let overflowed = ring.overflowed();
    for _ in 0..5 {
        seen.extend(ring.reap_all().iter().map(|cqe| cqe.user_data));
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    }
    (overflowed, ring.overflowed(), seen)
}

#[by(ours(4, 0))]
fn corrupt_indices_break_nothing(mut ring: Ring) {
    ring.push(nop(1, 0));
    let array = ring.params.sq_off.array;
    ring.word(array).store(77, Ordering::Relaxed);
    assert_eq!(ring.enter(1, 0), 0);
    assert_eq!(ring.word(ring.params.sq_off.dropped).load(Ordering::Relaxed), 1);
    ring.word(ring.params.sq_off.tail).store(0x8000_0000, Ordering::Relaxed);
    ring.word(ring.params.cq_off.head).store(0x1234_5678, Ordering::Relaxed);
    ring.word(ring.params.cq_off.ring_mask).store(u32::MAX, Ordering::Relaxed);
    for _ in 0..100 {
        ring.enter(u32::MAX, 0);
    }
}

#[both(4, 0)]
fn errors_of_enter(ring: Ring) -> impl Answer {
    let none = std::ptr::null();
    [
        enter(ring.engine, -1, 0, 0, 0, none, 0),
        enter(ring.engine, 0, 0, 0, 0, none, 0),
        enter(ring.engine, ring.fd, 0, 0, 1 << 31, none, 0),
        enter(ring.engine, ring.fd, 1, 0, IORING_ENTER_GETEVENTS, none, 0),
        enter(ring.engine, ring.fd, 0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, none, 3),
    ]
}

#[both(4, 0)]
fn a_wait_ends_in_time(ring: Ring) -> impl Answer {
    let time = [0i64, 2_000_000];
    let mut arg: io_uring_getevents_arg = zeroed();
    arg.ts = time.as_ptr() as u64;
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    enter(ring.engine, ring.fd, 0, 1, flags, (&raw const arg).cast(), size_of_val(&arg))
}

/// Waits for one completion with times in microseconds; returns the result, and whether the wait took
/// `at_least_us`.
fn timed_wait(ring: &Ring, min_wait_us: u32, timeout_us: Option<i64>, at_least_us: u64) -> (i32, bool) {
    let time = [0i64, timeout_us.unwrap_or(0) * 1000];
    let mut arg: io_uring_getevents_arg = zeroed();
    arg.min_wait_usec = min_wait_us;
    arg.ts = timeout_us.map_or(0, |_| time.as_ptr() as u64);
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    let start = Instant::now();
    let result = enter(ring.engine, ring.fd, 0, 2, flags, (&raw const arg).cast(), size_of_val(&arg));
    (result, start.elapsed().as_micros() as u64 >= at_least_us)
}

#[both(4, 0)]
fn the_first_part_of_a_wait_is_not_cut_short(mut ring: Ring) -> impl Answer {
    let longer_than_the_rest = timed_wait(&ring, 20_000, Some(1000), 20_000);
    let without_a_rest = timed_wait(&ring, 20_000, None, 20_000);
    let shorter = timed_wait(&ring, 1000, Some(20_000), 20_000);
    assert_eq!(ring.run(&[nop(1, 0)]).len(), 1);
    ring.submit(&[nop(2, 0)]);
    let one_is_there = timed_wait(&ring, 1000, Some(900_000_000), 1000);
    [longer_than_the_rest, without_a_rest, shorter, one_is_there]
}

#[both]
fn an_sq_thread_begins_asleep(engine: Engine) -> impl Answer {
    let mut params = params(IORING_SETUP_SQPOLL);
    params.sq_thread_idle = 60_000;
    let mut ring = Ring::with_params(engine, 4, params).unwrap();
    let give_up = Instant::now() + PATIENCE;
    while ring.word(ring.params.sq_off.flags).load(Ordering::Acquire) & IORING_SQ_NEED_WAKEUP == 0 {
        assert!(Instant::now() < give_up, "{engine:?}: it spins");
        std::thread::yield_now();
    }
    ring.push(nop(1, 0));
    assert_eq!(ring.enter_with(1, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP), 1);
    ring.reap()
}

#[both(4, 0)]
fn a_wait_that_ends_early_tells_of_what_is_there(mut ring: Ring) -> impl Answer {
    assert_eq!(ring.run(&[nop(1, 0)]).len(), 1);
    ring.submit(&[nop(2, 0)]);
    let time = [0i64, 2_000_000];
    let mut arg: io_uring_getevents_arg = zeroed();
    arg.ts = time.as_ptr() as u64;
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    enter(ring.engine, ring.fd, 0, 2, flags, (&raw const arg).cast(), size_of_val(&arg))
}

#[both(4, 0)]
fn a_program_limits_workers(ring: Ring) -> impl Answer {
    let set = |limits: &mut [u32; 2], count| {
        ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, limits.as_mut_ptr().cast(), count)
    };
    let mut first = [3, 5];
    let mut second = [0, 4];
    let mut third = [0, 0];
    let results = [
        set(&mut first, 2),
        set(&mut second, 2),
        set(&mut third, 2),
        set(&mut [1 << 31, 0], 2),
        set(&mut [1, 1], 1),
        ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, std::ptr::null(), 2),
        ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, 8 as *const _, 2),
    ];
    (results, first.map(|before| before > 0), second, third)
}

#[both(4, 0)]
fn waits_are_timed_by_a_chosen_clock(ring: Ring) -> impl Answer {
    let choose = |clock: [u32; 4], count| ring.register(IORING_REGISTER_CLOCK, clock.as_ptr().cast(), count);
    let realtime = choose([0; 4], 0);
    let results = [
        realtime,
        choose([1, 0, 1, 0], 0),
        choose([1, 0, 0, 0], 1),
        ring.register(IORING_REGISTER_CLOCK, std::ptr::null(), 0),
        choose([1, 0, 0, 0], 0),
        choose([7, 0, 0, 0], 0),
    ];
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: integers only; a structure of ours.
    let mut arg: io_uring_getevents_arg = unsafe {
        libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now);
        std::mem::zeroed()
    };
    now.tv_nsec = (now.tv_nsec + 2_000_000).min(999_999_999);
    arg.ts = (&raw const now) as u64;
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG | IORING_ENTER_ABS_TIMER;
    (results, enter(ring.engine, ring.fd, 0, 1, flags, (&raw const arg).cast(), size_of_val(&arg)))
}

/// A time before the clock's beginning is no deadline: the wait ends when the timeout of a request does. Times are counted modulo 2^64 ns.
#[both(4, 0)]
fn a_negative_deadline_never_comes(mut ring: Ring) -> impl Answer {
    let times = [
        (-1, 0),
        (0, -1),
        (1, -2_000_000_000),
        (0, 0),
        (-1, 2_000_000_000),
        (i64::MIN, 0),
        (-5_000_000_000, 0),
        (9_223_372_036, 0),
    ];
    let mut answers = Vec::new();
    for absolute in [0, IORING_ENTER_ABS_TIMER] {
        for (tv_sec, tv_nsec) in times {
            let time = __kernel_timespec { tv_sec, tv_nsec };
            let arg = io_uring_getevents_arg { ts: (&raw const time) as u64, ..zeroed() };
            let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG | absolute;
            // Long enough for a wait that ends at once to be seen to.
            ring.submit(&[timeout(1, &[0, 20_000_000])]);
            let waited = enter(ring.engine, ring.fd, 0, 1, flags, (&raw const arg).cast(), size_of_val(&arg));
            answers.push((waited, ring.collect_from(&[], 1).len()));
        }
    }
    answers
}

#[test]
fn an_engine_tells_what_it_has() {
    const QUERY: u32 = 35;
    /// `struct io_uring_query_hdr`.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Header(u64, u64, u32, u32, i32, [u32; 3]);
    both(|engine| {
        let ask =
            |header: &Header, count| register(engine, -1, QUERY, std::ptr::from_ref(header).cast(), count);
        let mut reply = [u64::MAX; 8];
        let data = (&raw mut reply) as u64;
        let first = Header(0, data, 0, 64, 0, [0; 3]);
        let mut results = vec![ask(&first, 0), ask(&first, 1)];
        // SAFETY: the engines wrote behind the compiler's back.
        let (first, seen) =
            unsafe { ((&raw const first).read_volatile(), (&raw const reply).read_volatile()) };
        if results[0] != 0 {
            return None;
        }
        let refused = [
            Header(0, data, 9, 40, 0, [0; 3]),
            Header(0, data, 0, 0, 0, [0; 3]),
            Header(0, data, 0, 40, 1, [0; 3]),
            Header(0, data, 0, 40, 0, [0, 0, 1]),
            Header(8, data, 0, 40, 0, [0; 3]),
            Header(0, 8, 0, 40, 0, [0; 3]),
        ];
        let mut told = Vec::new();
        for header in &refused {
            results.push(ask(header, 0));
            // SAFETY: as above.
            let header = unsafe { std::ptr::from_ref(header).read_volatile() };
            told.push((header.3, header.4));
        }
        let mut circle = Header(0, data, 0, 8, 0, [0; 3]);
        circle.0 = (&raw const circle) as u64;
        results.push(ask(&circle, 0));
        let ops_and_registers = [seen[0] & 0xffff_ffff > 50, seen[0] >> 32 > u64::from(QUERY)];
        Some((results, first.3, first.4, told, ops_and_registers, seen[4], seen[5..].to_vec()))
    });
}

#[test]
fn rings_come_and_go() {
    for _ in 0..200 {
        let mut ring = Ring::new(Engine::User, 8, 0);
        assert_eq!(ring.run(&[nop(1, 0)]).len(), 1);
    }
}

#[both(8, IORING_SETUP_SQPOLL)]
fn an_sq_thread_takes_sqes_by_itself(mut ring: Ring) -> impl Answer {
    let mut seen = Vec::new();
    for i in 0..20 {
        ring.push(nop(i, 0));
        let flags = ring.word(ring.params.sq_off.flags).load(Ordering::SeqCst);
        let wake = if flags & IORING_SQ_NEED_WAKEUP != 0 { IORING_ENTER_SQ_WAKEUP } else { 0 };
        ring.enter_with(1, 1, IORING_ENTER_GETEVENTS | wake);
        seen.extend(ring.reap_all());
    }
    seen
}

#[both(8, IORING_SETUP_IOPOLL | IORING_SETUP_SUBMIT_ALL)]
fn a_polled_ring_takes_nops_and_refuses_what_cannot_be_polled(mut ring: Ring) -> impl Answer {
    let connect = sqe(IORING_OP_CONNECT, 2);
    ring.run(&[nop(1, 0), connect, nop(3, LINK), nop(4, 0)])
}

#[test]
fn a_polled_ring_takes_direct_transfers_of_files_on_storage() {
    use std::os::unix::fs::OpenOptionsExt;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("polled");
    let open = |path: &Path, flags| {
        File::options().read(true).write(true).create(true).custom_flags(flags).open(path)
    };
    let is_storage = |file: &File| {
        // That takes the flag, and is none.
        !anyring_engine::os::file_system(file.as_raw_fd()).is_ok_and(|(kind, _)| kind == libc::TMPFS_MAGIC)
    };
    let Some(direct) = open(&path, libc::O_DIRECT).ok().filter(is_storage) else {
        return skip("no direct transfers to and from storage");
    };
    let (buffered, (pipe, _end)) = (open(&path, 0).unwrap(), std::io::pipe().unwrap());
    both(|engine| {
        let mut page = Page([b'x'; 4096]);
        let addr = (&raw mut page) as u64;
        let mut ring = Ring::new(engine, 8, IORING_SETUP_IOPOLL | IORING_SETUP_SUBMIT_ALL);
        let mut transfer = |opcode, fd: &dyn AsRawFd| {
            ring.submit_and_wait(&[Sqe { fd: fd.as_raw_fd(), addr, len: 4096, ..sqe(opcode, 1) }], 1);
            // Where a worker does it there is nothing to poll, and the wait ends.
            loop {
                if let Some(cqe) = ring.reap() {
                    return cqe.res;
                }
                assert_eq!(ring.enter(0, 1), 0);
            }
        };
        let (write, read) = (IORING_OP_WRITE, IORING_OP_READ);
        let refused = (transfer(write, &buffered), transfer(read, &pipe));
        let appended = transfer(write, &direct);
        let read_back = transfer(read, &direct);
        // The kernel asks the device too, and those of virtual machines have nothing to poll.
        assert!(read_back == 4096 || engine == Engine::Kernel && read_back == -libc::EOPNOTSUPP);
        (refused, appended, page.0 == [b'x'; 4096])
    });
}

/// A thread that polls a device for completions waits no longer than anything is in flight, nor beside a completion.
#[test]
fn a_polled_ring_waits_only_for_what_is_in_flight() {
    use std::os::unix::fs::OpenOptionsExt;
    const LENGTH: usize = 1 << 16;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("polled for");
    std::fs::write(&path, vec![1; 2 * LENGTH]).unwrap();
    let Ok(file) = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path) else {
        return skip("no direct transfers from storage");
    };
    both(|engine| {
        let mut ring = Ring::new(engine, 8, IORING_SETUP_IOPOLL);
        let (tell, told) = std::sync::mpsc::channel();
        let file = file.try_clone().unwrap();
        std::thread::spawn(move || {
            let memory = mapped(2 * LENGTH, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE) as u64;
            let read = |index: u64| Sqe {
                fd: file.as_raw_fd(),
                addr: memory + index * LENGTH as u64,
                off: index * LENGTH as u64,
                len: LENGTH as u32,
                ..sqe(IORING_OP_READ, index)
            };
            ring.submit_and_wait(&[read(0), read(1)], 5);
            while ring.enter(0, 1) == 0 && ring.reap().is_none() {}
            // The other completion is unreaped, and nothing is in flight.
            tell.send(ring.enter(0, 5)).unwrap();
        });
        told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{engine:?}: it waits for what never comes"))
    });
}

#[by(ours(32768, 0))]
fn a_cq_that_is_never_read_stays_bounded(mut ring: Ring) {
    const BADR: i32 = -53;
    for _ in 0..36 {
        ring.submit_all((0..32768).map(|i| nop(i, 0)), 0);
    }
    assert!(ring.word(ring.params.cq_off.overflow).load(Ordering::Relaxed) > 0);
    assert_eq!(ring.enter_with(0, 1, IORING_ENTER_GETEVENTS), BADR);
    assert_eq!(ring.enter_with(0, 1, IORING_ENTER_GETEVENTS), 0);
}

#[both]
fn an_sq_thread_can_be_bound_to_a_processor(engine: Engine) -> impl Answer {
    let bound = |cpu| {
        let mut params = params(IORING_SETUP_SQPOLL | IORING_SETUP_SQ_AFF);
        params.sq_thread_cpu = cpu;
        Ring::with_params(engine, 4, params).map(|ring| ring.enter(0, 0))
    };
    (bound(0), bound(100_000))
}

#[both(4, 0)]
fn a_number_that_was_a_ring_can_be_another_file(mut ring: Ring) -> impl Answer {
    let gone = Ring::new(ring.engine, 4, 0);
    // Closed where nobody sees it; the number goes to a file.
    let number = gone.forget();
    replace(&number, &File::open("/dev/null").unwrap());
    ring.run(&[Sqe { fd: number, ..sqe(IORING_OP_CLOSE, 1) }])
}

#[both]
fn a_ring_closed_during_a_wait_lives_until_the_wait_ends(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 4, 0);
    let (from, into) = pipe();
    ring.submit(&[poll(1, &from, libc::POLLIN)]);
    let fd = ring.fd;
    let (tell, told) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        tell.send(thread_id()).unwrap();
        let waited = ring.enter(0, 1);
        (waited, ring.reap_all(), ring.forget())
    });
    wait_until_asleep(told.recv().unwrap());
    close(engine, fd);
    write_to(&into, b"x");
    let (waited, cqes, _) = waiter.join().unwrap();
    (waited, cqes)
}

/// A wait counts what was posted since it began, also what another thread has reaped meanwhile.
#[both]
fn a_wait_counts_what_another_thread_reaps(engine: Engine) {
    let mut ring = Ring::new(engine, 4, 0);
    let (fd, wanted) = (ring.fd, 2);
    let (tell, told) = std::sync::mpsc::channel();
    // One of them drives the ring, the other one sleeps beside it.
    for _ in 0..2 {
        let tell = tell.clone();
        std::thread::spawn(move || {
            tell.send(thread_id()).unwrap();
            let waited = enter(engine, fd, 0, wanted, IORING_ENTER_GETEVENTS, std::ptr::null(), 0);
            tell.send(waited).unwrap();
        });
        wait_until_asleep(told.recv().unwrap());
    }
    for user_data in 0..u64::from(wanted) {
        assert_eq!(ring.run(&[nop(user_data, 0)]).len(), 1);
    }
    let waited = [(); 2].map(|()| told.recv_timeout(PATIENCE));
    assert_eq!(waited, [Ok(0); 2], "{engine:?}");
}

/// As in the kernel, whose number of completions is an `int`.
#[both(4, 0)]
fn a_wait_for_a_negative_number_does_not_wait(ring: Ring) -> impl Answer {
    let time = [0i64, 1_000_000];
    let arg = io_uring_getevents_arg { ts: time.as_ptr() as u64, ..zeroed() };
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    [1, u32::MAX].map(|wanted| {
        enter(ring.engine, ring.fd, 0, wanted, flags, (&raw const arg).cast(), size_of_val(&arg))
    })
}

/// Returns once a thread of this process sleeps in one of the calls that wait for a ring.
fn wait_until_asleep(thread: i32) {
    let waits = [libc::SYS_io_uring_enter, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_ppoll];
    while !sleeps_in(thread).is_some_and(|call| waits.contains(&call)) {
        std::thread::yield_now();
    }
}

/// A request that is linked to one that ends when it is to be given to a worker goes on, without anybody entering.
#[both]
fn links_of_what_no_worker_can_take(engine: Engine) -> impl Answer {
    let file = File::open("/proc/self/exe").unwrap();
    let mut ring = Ring::new(engine, 4, 0);
    let sync = |user_data, fd, flags| Sqe { fd, flags, ..sqe(IORING_OP_FSYNC, user_data) };
    ring.submit(&[sync(1, file.as_raw_fd(), HARDLINK), sync(2, -1, LINK), sqe(IORING_OP_NOP, 3)]);
    let deadline = Instant::now() + PATIENCE;
    let mut results = Vec::new();
    while results.len() < 3 {
        results.extend(ring.reap_all().iter().map(|cqe| (cqe.user_data, cqe.res)));
        assert!(Instant::now() < deadline, "{engine:?}: only {results:?}");
        std::thread::yield_now();
    }
    results
}
