//! Setup flags, and where ring memory lies: the program's own pages, big completions among small ones,
//! other sizes later on, arguments of waits in registered memory.

use crate::common::prelude::*;
use anyring_engine::os::page_bytes;

/// Anonymous pages, given back when dropped.
struct Pages(*mut c_void, usize);

impl Pages {
    fn new(count: usize, protection: i32) -> Pages {
        let length = count * page_bytes();
        Pages(mapped(length, protection, libc::MAP_PRIVATE), length)
    }

    /// Anonymous pages that children would share.
    fn shared(count: usize) -> Pages {
        let length = count * page_bytes();
        Pages(mapped(length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED), length)
    }

    /// The pages, mapped once more.
    fn again(&self) -> Pages {
        // SAFETY: adds a mapping, which this type removes.
        let again = unsafe { libc::mremap(self.0, 0, self.1, libc::MREMAP_MAYMOVE) };
        assert_ne!(again, libc::MAP_FAILED);
        Pages(again, self.1)
    }

    fn writable(count: usize) -> Pages {
        Pages::new(count, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Takes them away, but for their place, which another test could get.
    fn forbid(&self) {
        // SAFETY: ours.
        assert_eq!(unsafe { libc::mprotect(self.0, self.1, libc::PROT_NONE) }, 0);
    }

    fn address(&self) -> u64 {
        self.0 as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// Parameters of a ring whose memory lies there.
fn in_pages(flags: u32, rings: u64, sqes: u64) -> io_uring_params {
    let mut params = params(flags);
    (params.cq_off.user_addr, params.sq_off.user_addr) = (rings, sqes);
    params
}

/// The answer of setup, with descriptors closed again and not told apart.
fn try_setup(engine: Engine, entries: u32, mut params: io_uring_params) -> i32 {
    let fd = setup(engine, entries, &mut params);
    if fd >= 0 {
        close(engine, fd);
    }
    fd.min(0)
}

#[both]
fn flags_are_taken_and_refused_as_the_kernel_does(engine: Engine) -> impl Answer {
    // What the newest kernel has beyond these is newer than the engine.
    let known = 19;
    let mut answers = Vec::new();
    for first in 0..32 {
        answers.push((first, first, try_setup(engine, 4, params(1 << first))));
        for second in 0..known.min(first) {
            answers.push((first, second, try_setup(engine, 4, params(1 << first | 1 << second))));
        }
    }
    answers
}

#[both]
fn three_flags_together(engine: Engine) -> impl Answer {
    let flags = [
        IORING_SETUP_IOPOLL,
        IORING_SETUP_SQPOLL,
        IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_TASKRUN_FLAG,
        IORING_SETUP_SINGLE_ISSUER,
        IORING_SETUP_DEFER_TASKRUN,
        IORING_SETUP_HYBRID_IOPOLL,
        IORING_SETUP_CQE_MIXED,
        IORING_SETUP_SQE128,
    ];
    let mut answers = Vec::new();
    for a in flags {
        for b in flags {
            for c in flags {
                answers.push((a, b, c, try_setup(engine, 4, params(a | b | c))));
            }
        }
    }
    answers
}

#[both(4, 0)]
fn calls_on_a_ring_are_checked(ring: Ring) -> impl Answer {
    let enters: Vec<i32> = (0..32)
        .filter(|&bit| 1 << bit != IORING_ENTER_REGISTERED_RING)
        .map(|bit| ring.enter_with(0, 0, 1 << bit))
        .collect();
    let null = std::ptr::null();
    // Numbers that no kernel has; those it has are tested one by one.
    let registers: Vec<i32> =
        [64, 1 << 30, 1 << 20].map(|code| register(ring.engine, ring.fd, code, null, 0)).into();
    (enters, registers, register(ring.engine, -1, 64, null, 0), register(ring.engine, -1, 0, null, 0))
}

#[both(4, 0)]
fn a_ring_is_no_file_to_read_or_write(ring: Ring) -> impl Answer {
    let mut byte = [0u8; 1];
    // SAFETY: one byte of ours.
    let results = unsafe {
        [libc::read(ring.fd, byte.as_mut_ptr().cast(), 1), libc::write(ring.fd, byte.as_ptr().cast(), 1)]
    };
    (results, std::io::Error::last_os_error().raw_os_error())
}

/// Memory that the engine writes to was taken away by whoever shrank a ring's file, and the process died of `SIGBUS`.
#[both(4, 0)]
fn a_ring_keeps_its_memory(mut ring: Ring) -> impl Answer {
    let fd = ring.fd;
    // SAFETY: calls on a descriptor of ours.
    let refused = unsafe { [libc::ftruncate(fd, 0), libc::ftruncate(fd, page_bytes() as i64)] };
    (refused, ring.run(&[nop(1, 0)]))
}

/// Here the program can write to a ring's memory by its descriptor, too: what comes of it is the ring's trouble alone.
#[by(ours(4, 0))]
fn a_hole_in_ring_memory_harms_nobody(mut ring: Ring) {
    assert_eq!(ring.run(&[nop(1, 0)]).len(), 1);
    let length = i64::from(IORING_OFF_SQES) + page_bytes() as i64;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes pages of a ring away, which are zeros from then on.
    assert_eq!(unsafe { libc::fallocate(ring.fd, mode, 0, length) }, 0);
    ring.push(nop(2, 0));
    ring.enter_with(4, 0, IORING_ENTER_GETEVENTS);
    let mut other = Ring::new(Engine::User, 4, 0);
    assert_eq!(other.run(&[nop(3, 0)])[0].user_data, 3);
}

/// Whoever opened the file behind a ring's descriptor, and closed it, ended the ring.
#[test]
fn a_ring_goes_on_as_long_as_it_has_a_descriptor() {
    for flags in [0, IORING_SETUP_NO_MMAP] {
        let (rings, sqes) = (Pages::writable(4), Pages::writable(4));
        let params = match flags {
            0 => params(0),
            _ => in_pages(flags, rings.address(), sqes.address()),
        };
        let mut ring = Ring::with_params(Engine::User, 4, params).unwrap();
        drop(File::open(format!("/proc/self/fd/{}", ring.fd)).unwrap());
        // A new ring looks for those that have ended.
        drop(Ring::new(Engine::User, 4, 0));
        assert_eq!(ring.run(&[nop(1, 0)])[0].user_data, 1);
        let time = [60i64, 0];
        ring.submit(&[timeout(2, &time)]);
        let fd = ring.forget();
        assert_eq!(frontend::in_flight(fd), 1);
        ends_unseen(fd);
    }
}

/// The engine maps what is registered in a ring's file, and rings of other sizes. The ring ends with the program's last
/// reference all the same.
#[test]
fn a_ring_ends_whose_file_the_engine_has_mapped_again() {
    fn resized(ring: &Ring) -> i32 {
        resize(ring, 8, 32, IORING_SETUP_CQSIZE).0
    }
    fn with_region(ring: &Ring) -> i32 {
        let (result, memory) = register_region(ring, None, 0);
        // SAFETY: mapped for this test, which has no use for it.
        unsafe { libc::munmap(memory.cast(), page_bytes()) };
        result
    }
    fn with_buffers(ring: &Ring) -> i32 {
        let wanted = io_uring_buf_reg { ring_addr: 0, ring_entries: 8, bgid: 1, flags: 1, resv: [0; 3] };
        ring.register(IORING_REGISTER_PBUF_RING, (&raw const wanted).cast(), 1)
    }
    for registers in [resized, with_region, with_buffers] {
        let mut ring = Ring::new(Engine::User, 4, DEFER);
        let time = [60i64, 0];
        ring.submit(&[timeout(2, &time)]);
        assert_eq!(registers(&ring), 0);
        let fd = ring.forget();
        ends_unseen(fd);
    }
}

#[both]
fn rings_in_pages_of_the_program(engine: Engine) -> impl Answer {
    let (rings, sqes) = (Pages::writable(1), Pages::writable(1));
    let mut params = in_pages(IORING_SETUP_NO_MMAP, rings.address(), sqes.address());
    let fd = setup(engine, 4, &mut params);
    assert!(fd >= 0, "{fd}");
    assert_eq!((params.cq_off.user_addr, params.sq_off.user_addr), (rings.address(), sqes.address()));
    let mut ring = Ring::of(engine, fd, params);
    let mut seen = Vec::new();
    for round in 0..10 {
        let sqes: Vec<_> = (0..3).map(|number| nop(10 * round + number, 0)).collect();
        seen.extend(ring.run(&sqes));
    }
    seen
}

/// As PostgreSQL makes its rings. The kernel holds such pages, and so does the engine.
#[both]
fn rings_in_shared_pages_outlive_the_mapping_that_gave_them(engine: Engine) -> impl Answer {
    let (rings, sqes) = (Pages::shared(1), Pages::shared(1));
    let views = (rings.again(), sqes.again());
    let mut params = in_pages(IORING_SETUP_NO_MMAP, rings.address(), sqes.address());
    let fd = setup(engine, 4, &mut params);
    assert!(fd >= 0, "{fd}");
    rings.forbid();
    sqes.forbid();
    (params.cq_off.user_addr, params.sq_off.user_addr) = (views.0.address(), views.1.address());
    let mut ring = Ring::of(engine, fd, params);
    let answers: Vec<_> =
        (0..3).flat_map(|round| ring.run(&[nop(2 * round, 0), nop(2 * round + 1, 0)])).collect();
    close(engine, ring.forget());
    answers
}

#[both]
fn pages_for_rings_are_checked(engine: Engine) -> impl Answer {
    let (good, read_only) = (Pages::writable(4), Pages::new(2, libc::PROT_READ));
    // Far from where anything is mapped.
    let gone = 1 << 46;
    let (at, page) = (good.address(), page_bytes() as u64);
    let addresses = [
        (0, 0),
        (0, at),
        (at, 0),
        (at + 8, at + page),
        (at, at + page + 1),
        (read_only.address(), at),
        (at, read_only.address()),
        (gone, at),
        (at, gone),
        (u64::MAX - page + 1, at),
        (at, at + page),
    ];
    addresses.map(|(rings, sqes)| try_setup(engine, 4, in_pages(IORING_SETUP_NO_MMAP, rings, sqes)))
}

#[test]
fn pages_that_are_taken_away_harm_nobody() {
    let (rings, sqes) = (Pages::writable(1), Pages::writable(1));
    let mut params = in_pages(IORING_SETUP_NO_MMAP, rings.address(), sqes.address());
    let fd = setup(Engine::User, 4, &mut params);
    assert!(fd >= 0, "{fd}");
    sqes.forbid();
    let mut ring = Ring::of(Engine::User, fd, params);
    ring.word(params.sq_off.tail).store(2, Ordering::Release);
    assert_eq!(ring.enter(2, 0), 1, "the first SQE cannot be read and ends the batch");
    assert_eq!(ring.reap().map(|cqe| cqe.res), Some(-libc::EINVAL));
    rings.forbid();
    assert_eq!(ring.enter(2, 0), 0, "nothing can be seen of the ring");
    close(Engine::User, ring.forget());
}

/// In a thread of its own: places for rings are the thread's.
fn in_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(body).join().unwrap())
}

#[both]
fn a_ring_without_a_descriptor(engine: Engine) -> impl Answer {
    in_thread(move || {
        let (rings, sqes) = (Pages::writable(1), Pages::writable(1));
        let mut params =
            in_pages(IORING_SETUP_NO_MMAP | IORING_SETUP_REGISTERED_FD_ONLY, rings.address(), sqes.address());
        let index = setup(engine, 4, &mut params);
        let mut ring = Ring::of(engine, index, params);
        ring.push(nop(7, 0));
        let registered = IORING_ENTER_REGISTERED_RING;
        let submitted = ring.enter_with(1, 1, IORING_ENTER_GETEVENTS | registered);
        let cqes = ring.reap_all();
        let mut places: Vec<_> = (0..20).map(|_| setup(engine, 4, &mut params)).collect();
        let mut release = |offset: u32| {
            let update = io_uring_rsrc_update { offset, resv: 0, data: 0 };
            let code = IORING_UNREGISTER_RING_FDS as u32 | IORING_REGISTER_USE_REGISTERED_RING as u32;
            register(engine, 0, code, (&raw const update).cast(), 1)
        };
        let released = [15, 0].map(&mut release);
        places.push(ring.enter_with(0, 0, registered));
        ring.forget();
        (index, submitted, cqes, places, released)
    })
}

#[both(4, IORING_SETUP_CQE_MIXED)]
fn big_completions_among_small_ones(mut ring: Ring) -> impl Answer {
    let big = |user_data| Sqe {
        op_flags: IORING_NOP_CQE32,
        off: 100 + user_data,
        addr: 200 + user_data,
        ..nop(user_data, 0)
    };
    // Eight places: one small and three big, the next does not go around the end.
    let mut seen = Vec::new();
    for batch in [vec![nop(1, 0), big(2), big(3), big(4)], vec![big(5), big(6)]] {
        ring.push_all(batch.iter().copied());
        let count = batch.len() as u32;
        let entered = ring.enter(count, 0);
        let tail = ring.word(ring.params.cq_off.tail).load(Ordering::Relaxed);
        seen.push((entered, ring.overflowed(), tail));
    }
    let mut cqes: Vec<_> = std::iter::from_fn(|| ring.reap_big()).collect();
    seen.push((ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), ring.overflowed(), 0));
    cqes.extend(std::iter::from_fn(|| ring.reap_big()));
    (seen, cqes)
}

/// A NOP that is cancelled with its chain did not get as far as its big completion.
#[both]
fn what_a_chain_cancels_has_ordinary_completions(engine: Engine) -> impl Answer {
    [IORING_SETUP_CQE32, IORING_SETUP_CQE_MIXED].map(|flags| {
        let mut ring = Ring::new(engine, 4, flags);
        let big = Sqe { op_flags: IORING_NOP_CQE32, off: 5, addr: 6, ..nop(2, 0) };
        let fails = Sqe {
            op_flags: IORING_NOP_CQE32 | IORING_NOP_INJECT_RESULT,
            len: (-libc::EIO) as u32,
            ..nop(1, LINK)
        };
        ring.submit_and_wait(&[Sqe { off: 7, addr: 8, ..fails }, big], 2);
        [ring.reap_big(), ring.reap_big()]
    })
}

#[both]
fn a_big_completion_needs_a_ring_that_has_them(engine: Engine) -> impl Answer {
    [0, IORING_SETUP_CQE32, IORING_SETUP_CQE_MIXED].map(|flags| {
        let mut ring = Ring::new(engine, 4, flags);
        let nop = Sqe {
            op_flags: IORING_NOP_CQE32 | IORING_NOP_INJECT_RESULT,
            len: 9,
            off: 5,
            addr: 6,
            ..nop(1, 0)
        };
        ring.submit_and_wait(&[nop], 1);
        ring.reap_big()
    })
}

fn resize(ring: &Ring, sq_entries: u32, cq_entries: u32, flags: u32) -> (i32, io_uring_params) {
    let mut wanted = params(flags);
    (wanted.sq_entries, wanted.cq_entries) = (sq_entries, cq_entries);
    let result = ring.register(IORING_REGISTER_RESIZE_RINGS, (&raw const wanted).cast(), 1);
    (result, wanted)
}

#[both]
fn resizing_is_checked(engine: Engine) -> impl Answer {
    let cqsize = IORING_SETUP_CQSIZE;
    let cases = [
        (0, 0, 0),
        (8, 0, 0),
        (8, 0, cqsize),
        (8, 4, cqsize),
        (8, 64, cqsize),
        (1 << 16, 0, 0),
        (1 << 16, 0, IORING_SETUP_CLAMP),
        (8, 8, cqsize | IORING_SETUP_SQPOLL),
        (8, 8, IORING_SETUP_CQE32),
    ];
    [0, DEFER].map(|flags| {
        cases.map(|(sq, cq, asked)| {
            let ring = Ring::new(engine, 4, flags);
            let (result, params) = resize(&ring, sq, cq, asked);
            (result, params.sq_entries, params.cq_entries, params.flags)
        })
    })
}

#[both]
fn resizing_keeps_what_is_in_the_rings(engine: Engine) -> impl Answer {
    [DEFER, DEFER | IORING_SETUP_NO_SQARRAY | IORING_SETUP_SQE128 | IORING_SETUP_CQE32].map(|flags| {
        let mut ring = Ring::new(engine, 4, flags | IORING_SETUP_R_DISABLED);
        assert_eq!(ring.enable(), 0);
        // Neither head is at the beginning any more.
        ring.run(&[1, 2, 3].map(|number| nop(number, 0)));
        ring.push_all((4..8).map(|number| nop(number, 0)));
        assert_eq!(ring.enter_with(4, 4, IORING_ENTER_GETEVENTS), 4);
        ring.push_all((8..11).map(|number| nop(number, 0)));
        let too_small = [(2, 0), (4, 2)].map(|(sq, cq)| {
            let flags = if cq > 0 { IORING_SETUP_CQSIZE } else { 0 };
            resize(&ring, sq, cq, flags).0
        });
        let (result, mut new) = resize(&ring, 32, 0, 0);
        assert_eq!(result, 0);
        if flags & IORING_SETUP_NO_SQARRAY == 0 && new.sq_off.array == 0 {
            // Linux leaves it to the program to remember.
            new.sq_off.array = new.cq_off.cqes + 16 * new.cq_entries;
        }
        let fd = ring.forget();
        let mut ring = Ring::of(engine, fd, new);
        ring.continue_at_tail();
        ring.push_all((11..31).map(|number| nop(number, 0)));
        let submitted = ring.enter_with(23, 23, IORING_ENTER_GETEVENTS);
        (too_small, submitted, ring.reap_all())
    })
}

/// A region of one page: registered, mapped where it is the ring's.
fn register_region(ring: &Ring, user: Option<&Pages>, flags: u64) -> (i32, *mut u8) {
    let mut region: io_uring_region_desc = zeroed();
    region.size = page_bytes() as u64;
    if let Some(pages) = user {
        region.user_addr = pages.address();
        region.flags = IORING_MEM_REGION_TYPE_USER as u32;
    }
    let given = io_uring_mem_region_reg { region_uptr: &raw mut region as u64, flags, __resv: [0; 2] };
    let result = ring.register(IORING_REGISTER_MEM_REGION, (&raw const given).cast(), 1);
    let memory = match user {
        Some(pages) => pages.0.cast(),
        None if result == 0 => map(ring.fd, page_bytes(), region.mmap_offset as i64),
        None => std::ptr::null_mut(),
    };
    (result, memory)
}

#[both]
fn waits_take_their_arguments_from_registered_memory(engine: Engine) -> impl Answer {
    [false, true].map(|user| {
        let pages = Pages::writable(1);
        let ring = Ring::new(engine, 4, IORING_SETUP_R_DISABLED);
        let (result, memory) = register_region(&ring, user.then_some(&pages), 1);
        assert_eq!(result, 0);
        let again = register_region(&ring, None, 1).0;
        assert_eq!(ring.enable(), 0);
        let mut wait: io_uring_reg_wait = zeroed();
        wait.ts.tv_nsec = 20_000_000;
        wait.flags = IORING_REG_WAIT_TS as u32;
        // SAFETY: in the page.
        unsafe { memory.add(64).cast::<io_uring_reg_wait>().write(wait) };
        wait.flags = 2;
        // SAFETY: in the page.
        unsafe { memory.add(128).cast::<io_uring_reg_wait>().write(wait) };
        let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG | IORING_ENTER_EXT_ARG_REG;
        let wait = |offset: usize, size| enter(engine, ring.fd, 0, 1, flags, offset as *const c_void, size);
        let begin = Instant::now();
        let timed_out = wait(64, 64);
        let took = begin.elapsed() >= Duration::from_millis(20);
        let over_the_end = page_bytes() - 64 + 8;
        let refused =
            [(128, 64), (64, 24), (64, 0), (over_the_end, 64), (4, 64), (usize::MAX - 7, 64), (1 << 20, 64)]
                .map(|(offset, size)| wait(offset, size));
        (again, timed_out, took, refused)
    })
}

#[both]
fn regions_are_checked(engine: Engine) -> impl Answer {
    let (pages, page) = (Pages::writable(2), page_bytes() as u64);
    let (user, waits) = (IORING_MEM_REGION_TYPE_USER as u32, 1);
    // flags, address, size, region flags, offset, id, disabled ring
    let cases = [
        (waits, 0, page, 0, 0, 0, false),
        (0, 0, page, 0, 0, 0, false),
        (2, 0, page, 0, 0, 0, true),
        (0, pages.address(), page, 0, 0, 0, true),
        (0, 0, page, user, 0, 0, true),
        (0, pages.address() + 8, page, user, 0, 0, true),
        (0, pages.address(), 100, user, 0, 0, true),
        (0, pages.address(), 0, user, 0, 0, true),
        (0, pages.address(), 2 * page, user, 0, 0, true),
        (0, pages.address(), page, user | 2, 0, 0, true),
        (0, 0, page, 0, page, 0, true),
        (0, 0, page, 0, 0, 1, true),
        (0, 0, 1 << 60, 0, 0, 0, true),
        (0, 1 << 46, page, user, 0, 0, true),
    ];
    cases.map(|(flags, user_addr, size, region_flags, mmap_offset, id, disabled)| {
        let ring = Ring::new(engine, 4, if disabled { IORING_SETUP_R_DISABLED } else { 0 });
        let region =
            io_uring_region_desc { user_addr, size, flags: region_flags, id, mmap_offset, __resv: [0; 4] };
        let given = io_uring_mem_region_reg { region_uptr: &raw const region as u64, flags, __resv: [0; 2] };
        ring.register(IORING_REGISTER_MEM_REGION, (&raw const given).cast(), 1)
    })
}
