//! Refusals of the three calls: swept over their arguments on both engines.

use crate::common::prelude::*;
use anyring_engine::os::page_bytes;

/// The answer of setup, with descriptors closed again and not told apart, and the sizes it gives.
fn try_setup(engine: Engine, entries: u32, mut params: io_uring_params) -> (i32, u32, u32) {
    let fd = setup(engine, entries, &mut params);
    if fd >= 0 {
        close(engine, fd);
    }
    (fd.min(0), params.sq_entries, params.cq_entries)
}

/// A ring takes one descriptor, the lowest, where the process may have no other.
#[both]
fn one_descriptor_is_enough(engine: Engine) -> impl Answer {
    // The engine's own, which it keeps, come first.
    drop(Ring::new(engine, 8, 0));
    let pid = child(|| {
        // SAFETY: descriptors and a limit of this process's own.
        let lowest = unsafe {
            let lowest = libc::dup(2);
            libc::close(lowest);
            let limit = libc::rlimit { rlim_cur: lowest as u64 + 1, rlim_max: 1 << 10 };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
            lowest
        };
        let mut ring = Ring::new(engine, 8, 0);
        ring.push(sqe(IORING_OP_NOP, 1));
        let done = ring.enter(1, 1) == 1 && ring.reap().is_some_and(|cqe| cqe.user_data == 1);
        let first = ring.fd == lowest;
        close(engine, ring.fd);
        done && first && setup(engine, 8, &mut params(0)) == lowest
    });
    ended(pid)
}

/// A ring that gets no registered descriptor leaves no other behind.
#[by(ours(8, 0))]
fn a_ring_that_cannot_be_registered_leaves_no_descriptor(_ring: Ring) {
    let page = page_bytes();
    let memory = mapped(2 * page, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED) as u64;
    let pid = child(|| {
        // SAFETY: descriptors and a limit of this process's own.
        let lowest = unsafe {
            let lowest = libc::dup(2);
            libc::close(lowest);
            let limit = libc::rlimit { rlim_cur: lowest as u64 + 1, rlim_max: lowest as u64 + 1 };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
            lowest
        };
        let mut params = params(IORING_SETUP_NO_MMAP | IORING_SETUP_REGISTERED_FD_ONLY);
        (params.cq_off.user_addr, params.sq_off.user_addr) = (memory, memory + page as u64);
        // SAFETY: a new descriptor of this process's own.
        setup(Engine::User, 8, &mut params) == -libc::EMFILE && unsafe { libc::dup(2) } == lowest
    });
    assert_eq!(ended(pid), 0);
}

#[both]
fn sizes(engine: Engine) -> impl Answer {
    let (cqsize, clamp) = (IORING_SETUP_CQSIZE, IORING_SETUP_CLAMP);
    let mut answers = Vec::new();
    for flags in [0, cqsize, clamp, cqsize | clamp] {
        for sq in [0, 1, 3, 8, 32768, 32769, u32::MAX] {
            for cq in [0, 1, 5, 8, 65536, 65537, u32::MAX] {
                let mut params = params(flags);
                params.cq_entries = cq;
                answers.push((flags, sq, cq, try_setup(engine, sq, params)));
            }
        }
    }
    answers
}

#[both]
fn other_parameters(engine: Engine) -> impl Answer {
    let mut answers = Vec::new();
    for word in 0..3 {
        let mut reserved = params(0);
        reserved.resv[word] = 1;
        answers.push(try_setup(engine, 4, reserved));
    }
    for cpu in [0, 4096, u32::MAX] {
        let mut bound = params(IORING_SETUP_SQPOLL | IORING_SETUP_SQ_AFF);
        bound.sq_thread_cpu = cpu;
        answers.push(try_setup(engine, 4, bound));
    }
    // SAFETY: a path.
    let file = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    let rings = [Ring::new(engine, 4, 0), Ring::new(engine, 4, IORING_SETUP_SQPOLL)];
    for fd in [-1, 1 << 20, file, rings[0].fd, rings[1].fd] {
        for flags in [0, IORING_SETUP_SQPOLL] {
            let mut attached = params(IORING_SETUP_ATTACH_WQ | flags);
            attached.wq_fd = fd as u32;
            answers.push(try_setup(engine, 4, attached));
        }
    }
    // A thread that another ring has already is not bound: the processor is not looked at.
    for (fd, flags) in [(rings[1].fd, IORING_SETUP_SQPOLL), (rings[1].fd, 0), (file, IORING_SETUP_SQPOLL)] {
        let mut attached = params(IORING_SETUP_ATTACH_WQ | IORING_SETUP_SQ_AFF | flags);
        (attached.wq_fd, attached.sq_thread_cpu) = (fd as u32, 4096);
        answers.push(try_setup(engine, 4, attached));
    }
    close(engine, file);
    answers
}

/// In a process of its own: one of them is a rule for all rings that its caller makes from then on.
#[by(in_child)]
fn registrations() {
    // Interfaces for zero-copy receives are the administrator's.
    const INTERFACES: u32 = IORING_REGISTER_ZCRX_IFQ as u32;
    if is_root() {
        registrations_of(&[INTERFACES]);
    } else {
        record::leave_out();
    }
    const BUSY: [u32; 2] = [IORING_REGISTER_NAPI as u32, IORING_UNREGISTER_NAPI as u32];
    if has_busy_epoll() {
        registrations_of(&BUSY);
    } else {
        record::leave_out();
    }
    let others: Vec<u32> = (0..37).filter(|code| *code != INTERFACES && !BUSY.contains(code)).collect();
    registrations_of(&others);
}

fn registrations_of(codes: &[u32]) {
    both(|engine| {
        let ring = Ring::new(engine, 4, 0);
        // SAFETY: a path.
        let file = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        let mut answers = Vec::new();
        for &code in codes {
            for (address, count) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (2, 0), (2, 2), (2, u32::MAX)] {
                for fd in [ring.fd, -1, file, 1 << 20] {
                    let mut zeros = [0u64; 512];
                    let argument: *const c_void = match address {
                        0 => std::ptr::null(),
                        1 => 8 as *const c_void,
                        _ => zeros.as_mut_ptr().cast(),
                    };
                    let answer = register(engine, fd, code, argument, count);
                    let which = if fd == ring.fd { 0 } else { fd.min(2) };
                    answers.push((code, address, count, which, answer));
                }
            }
        }
        close(engine, file);
        answers
    });
}

#[both]
fn buffer_rings(engine: Engine) -> impl Answer {
    let mut memory = vec![0u8; 32768 * 16 + 2 * page_bytes()];
    let page = (memory.as_mut_ptr() as u64).next_multiple_of(page_bytes() as u64);
    let mut answers = Vec::new();
    for flags in 0..5 {
        let addresses = [0, 8, page, page + 8, 1 << 46];
        for (ring_addr, name) in addresses.into_iter().zip(["0", "8", "page", "page + 8", "1 << 46"]) {
            for ring_entries in [0, 1, 3, 8, 32768, 65536, 1 << 31] {
                let ring = Ring::new(engine, 4, 0);
                let request = io_uring_buf_reg { ring_addr, ring_entries, bgid: 7, flags, resv: [0; 3] };
                let argument = (&raw const request).cast();
                let twice = [(); 2].map(|()| ring.register(IORING_REGISTER_PBUF_RING, argument, 1));
                answers.push((flags, Case(name.to_owned()), ring_entries, twice[0], twice[1]));
            }
        }
    }
    answers
}

#[both]
fn arguments_of_enter(engine: Engine) -> impl Answer {
    let defers = DEFER;
    let kinds = [
        0,
        defers,
        IORING_SETUP_IOPOLL,
        IORING_SETUP_IOPOLL | defers,
        IORING_SETUP_SQPOLL,
        IORING_SETUP_R_DISABLED,
    ];
    let (get, ext, reg) = (IORING_ENTER_GETEVENTS, IORING_ENTER_EXT_ARG, IORING_ENTER_EXT_ARG_REG);
    let zeros = [0u64; 16];
    let mut answers = Vec::new();
    for kind in kinds {
        let ring = Ring::new(engine, 4, kind);
        for flags in [0, get, get | ext, get | ext | reg, get | reg, get | IORING_ENTER_ABS_TIMER, ext] {
            for address in [0, 8, zeros.as_ptr() as usize] {
                for size in [0, 4, 8, 16, 24, 64] {
                    let argument = address as *const c_void;
                    let answer = enter(engine, ring.fd, 0, 0, flags, argument, size);
                    answers.push((kind, flags, address.min(9), size, answer));
                }
            }
        }
    }
    answers
}

#[both(4, IORING_SETUP_IOPOLL)]
fn a_polled_ring_does_not_wait_for_what_cannot_come(ring: Ring) -> impl Answer {
    ring.enter_with(0, 1, IORING_ENTER_GETEVENTS)
}

#[both]
fn kinds_of_restrictions(engine: Engine) -> impl Answer {
    let mut answers = Vec::new();
    for kind in 0..6u32 {
        for argument in [0u32, 1, 34, 35, 36, 62, 63, 64, 127, 128, 255] {
            let ring = Ring::new(engine, 4, IORING_SETUP_R_DISABLED);
            let list = [[kind | argument << 16, 0, 0, 0]];
            let restrict = |count| {
                let list = list.as_ptr().cast();
                ring.register(IORING_REGISTER_RESTRICTIONS, list, count)
            };
            let enable = || ring.enable();
            answers.push([restrict(1 << 20), restrict(1), restrict(1), enable(), restrict(1), enable()]);
        }
    }
    answers
}
