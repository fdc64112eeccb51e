//! EPOLL_CTL and EPOLL_WAIT.

use crate::common::prelude::*;

const IN: u32 = libc::EPOLLIN as u32;

fn epoll() -> OwnedFd {
    // SAFETY: touches no memory.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

fn signal(fd: &OwnedFd) {
    // SAFETY: reads eight bytes of ours.
    assert_eq!(unsafe { libc::write(fd.as_raw_fd(), [1_u64].as_ptr().cast(), 8) }, 8);
}

fn ctl(epoll: i32, operation: i32, fd: i32, event: Option<&libc::epoll_event>) -> Sqe {
    let addr = event.map_or(0, |event| std::ptr::from_ref(event) as u64);
    Sqe { fd: epoll, len: operation as u32, off: fd as u64, addr, ..sqe(IORING_OP_EPOLL_CTL, 1) }
}

fn wait(epoll: i32, events: &mut [libc::epoll_event], user_data: u64) -> Sqe {
    reading(IORING_OP_EPOLL_WAIT, user_data, &epoll, events)
}

/// The events that the system's own call finds ready, with their data.
fn ready(epoll: &OwnedFd) -> Vec<(u32, u64)> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: writes up to four events of ours.
    let count = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), 4, 0) };
    events[..count as usize].iter().map(|event| (event.events, event.u64)).collect()
}

#[both(8, 0)]
fn interest_is_added_changed_and_removed(mut ring: Ring) -> impl Answer {
    let (set, source) = (epoll(), eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK));
    let (set_fd, fd) = (set.as_raw_fd(), source.as_raw_fd());
    signal(&source);
    let mut seen = Vec::new();

    let mut event = libc::epoll_event { events: IN, u64: 7 };
    ring.submit(&[ctl(set_fd, libc::EPOLL_CTL_ADD, fd, Some(&event))]);
    // Read when submitted: the program may write over it at once.
    event.u64 = 8;
    seen.push((ring.reap_all()[0].res, ready(&set)));
    seen.push((ring.run(&[ctl(set_fd, libc::EPOLL_CTL_ADD, fd, Some(&event))])[0].res, ready(&set)));
    seen.push((ring.run(&[ctl(set_fd, libc::EPOLL_CTL_MOD, fd, Some(&event))])[0].res, ready(&set)));
    seen.push((ring.run(&[ctl(set_fd, libc::EPOLL_CTL_DEL, fd, None)])[0].res, ready(&set)));
    seen.push((ring.run(&[ctl(set_fd, libc::EPOLL_CTL_DEL, fd, None)])[0].res, ready(&set)));
    assert_eq!(seen[0], (0, vec![(IN, 7)]));
    assert_eq!(seen[2], (0, vec![(IN, 8)]));
    assert_eq!(seen[3], (0, vec![]));
    seen
}

#[both(8, 0)]
fn errors_of_epoll_ctl(mut ring: Ring) -> impl Answer {
    let (set, source) = (epoll(), eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK));
    let (set_fd, fd) = (set.as_raw_fd(), source.as_raw_fd());
    let event = libc::epoll_event { events: IN, u64: 7 };
    let add = ctl(set_fd, libc::EPOLL_CTL_ADD, fd, Some(&event));
    [
        Sqe { buf_index: 1, ..add },
        Sqe { file_index: 1, ..add },
        Sqe { ioprio: 1, ..add },
        Sqe { addr: 8, ..add },
        Sqe { len: 9, ..add },
        Sqe { fd: -1, ..add },
        Sqe { fd, ..add },
        Sqe { off: u64::from(u32::MAX), ..add },
        Sqe { off: set_fd as u64, ..add },
    ]
    .map(|sqe| ring.run(&[sqe])[0].res)
}

#[both(8, 0)]
fn waits_for_events(mut ring: Ring) {
    let (set, source) = (epoll(), eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK));
    let event = libc::epoll_event { events: IN, u64: 7 };
    ring.run(&[ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, source.as_raw_fd(), Some(&event))]);
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
    let request = wait(set.as_raw_fd(), &mut events, 2);
    // Kernels before 6.15 do not have it.
    if ring.engine == Engine::Kernel && ring.run(&[Sqe { fd: -1, ..request }])[0].res == -libc::EINVAL {
        return;
    }
    assert_eq!(ring.run(&[Sqe { off: 1, ..request }])[0].res, -libc::EINVAL);
    assert_eq!(ring.run(&[Sqe { len: 0, ..request }])[0].res, -libc::EINVAL);
    for round in 0..3 {
        ring.submit(&[request]);
        assert_eq!(ring.reap_all(), [], "nothing is ready");
        signal(&source);
        ring.enter(0, 1);
        let cqes = ring.reap_all();
        assert_eq!(cqes, [Cqe { user_data: 2, res: 1, flags: 0 }], "round {round}");
        let (what, data) = (events[0].events, events[0].u64);
        assert_eq!((what, data), (IN, 7));
        // Still ready: a wait completes at once.
        assert_eq!(ring.run(&[request])[0].res, 1);
        // SAFETY: writes eight bytes of ours.
        assert_eq!(unsafe { libc::read(source.as_raw_fd(), [0_u64].as_mut_ptr().cast(), 8) }, 8);
    }
    // Not an epoll instance, no memory.
    assert_eq!(ring.run(&[Sqe { fd: source.as_raw_fd(), ..request }])[0].res, -libc::EINVAL);
    signal(&source);
    assert_eq!(ring.run(&[Sqe { addr: 8, ..request }])[0].res, -libc::EFAULT);
}

/// A ring is ready while there are completions, and told to be so only then.
#[both(8, 0)]
fn a_ring_is_put_into_an_epoll_instance(mut ring: Ring) -> impl Answer {
    let mut other = Ring::new(ring.engine, 8, 0);
    let set = epoll();
    let engine = ring.engine;
    let look = || {
        if engine == Engine::User {
            frontend::before_epoll_wait();
        }
        ready(&set)
    };
    let mut seen = Vec::new();
    let event = libc::epoll_event { events: IN, u64: 7 };
    let own = libc::epoll_event { events: IN, u64: 8 };
    let (set_fd, fd, own_fd) = (set.as_raw_fd(), other.fd, ring.fd);
    seen.push((ring.run(&[ctl(set_fd, libc::EPOLL_CTL_ADD, fd, Some(&event))])[0].res, look()));
    seen.push((ring.run(&[ctl(set_fd, libc::EPOLL_CTL_ADD, fd, Some(&event))])[0].res, look()));
    other.push(sqe(IORING_OP_NOP, 1));
    seen.push((other.enter(1, 0), look()));
    seen.push((other.reap_all()[0].res, look()));
    other.submit(&[sqe(IORING_OP_NOP, 1)]);
    seen.push((ring.run(&[ctl(set_fd, libc::EPOLL_CTL_DEL, fd, None)])[0].res, look()));
    seen.push((ring.run(&[ctl(set_fd, libc::EPOLL_CTL_ADD, own_fd, Some(&own))])[0].res, look()));
    seen
}

/// However many rings there are, by whatever name the instance goes, and whoever waits: a ring whose completions were taken
/// is not ready.
#[test]
fn a_ring_is_ready_only_while_it_holds_completions() {
    const RINGS: usize = 300;
    both(|engine| {
        let set = epoll();
        let mut rings: Vec<Ring> = (0..RINGS).map(|_| Ring::new(engine, 1, 0)).collect();
        let mut by = Ring::new(engine, 4, 0);
        for (ring, data) in rings.iter().zip(0..) {
            let event = libc::epoll_event { events: IN, u64: data };
            let added = by.run(&[ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, ring.fd, Some(&event))]);
            assert_eq!(added[0].res, 0);
        }
        let other_name = set.try_clone().unwrap();
        let look = || {
            if engine == Engine::User {
                frontend::before_epoll_wait();
            }
            ready(&other_name)
        };
        let last = rings.last_mut().unwrap();
        last.submit(&[sqe(IORING_OP_NOP, 1)]);
        let holds = look();
        assert_eq!(last.reap_all().len(), 1);
        let empty = look();
        last.submit_and_wait(&[sqe(IORING_OP_NOP, 1)], 1);
        assert_eq!(last.reap_all().len(), 1);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        by.submit(&[wait(set.as_raw_fd(), &mut events, 2)]);
        let early = by.reap_all();
        last.submit(&[sqe(IORING_OP_NOP, 1)]);
        by.enter(0, 1);
        let data = events[0].u64;
        (holds, empty, early, by.reap_all(), data)
    });
}
