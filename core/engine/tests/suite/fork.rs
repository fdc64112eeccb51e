//! `fork` with live rings. The child has one thread.

use std::sync::LazyLock;

use crate::common::prelude::*;

/// Whether the system has `MADV_WIPEONFORK`, by which the engine notices a fork; a front end must tell it where
/// there is none. An emulator (qemu-user) may say yes to the call and do nothing.
fn pages_are_wiped() -> bool {
    static WIPED: LazyLock<bool> = LazyLock::new(|| {
        let page = mapped(4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
        // SAFETY: a page of our own, and a child that only reads it.
        unsafe {
            if libc::madvise(page, 4096, libc::MADV_WIPEONFORK) != 0 {
                return false;
            }
            page.cast::<u8>().write(1);
            let pid = libc::fork();
            if pid == 0 {
                libc::_exit(i32::from(page.cast::<u8>().read()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
            libc::WEXITSTATUS(status) == 0
        }
    });
    *WIPED
}

/// Runs `body` in a child; true where it ended well.
fn in_child(body: impl FnOnce() -> bool) -> bool {
    let wiped = pages_are_wiped();
    // SAFETY: the child runs `body` and leaves by `_exit`.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "a child");
        if pid == 0 {
            if !wiped {
                frontend::forked();
            }
            libc::_exit(i32::from(!body()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

fn works(ring: &mut Ring) -> bool {
    let cqes = ring.run(&[sqe(IORING_OP_NOP, 1)]);
    cqes == [Cqe { user_data: 1, res: 0, flags: 0 }]
}

#[both(8, 0)]
fn parent_and_child_go_on_after_a_fork(mut ring: Ring) -> impl Answer {
    assert!(works(&mut ring));
    let child = in_child(|| {
        let mut own = Ring::new(ring.engine, 8, 0);
        let both = works(&mut own) && works(&mut ring);
        // The child's end must not be the ring's.
        own.reap_all().is_empty() && both
    });
    // The child's completions are in memory that both share, and it has reaped them.
    let head = ring.word(ring.params.sq_off.head).load(Ordering::Relaxed);
    (child, head, in_child(|| true))
}

#[by(ours(8, IORING_SETUP_SQPOLL))]
fn a_ring_made_by_the_parent_with_an_sq_thread_has_none_in_the_child(mut ring: Ring) {
    assert!(in_child(|| {
        ring.push(sqe(IORING_OP_NOP, 1));
        ring.enter(1, 0) == -libc::EOWNERDEAD
    }));
}

/// A program may have limited the size of its files; its rings are none of them.
#[test]
fn a_ring_is_no_file_of_the_program() {
    install();
    // In a process of its own: the limit is for all threads.
    assert!(in_child(|| {
        let limit = libc::rlimit { rlim_cur: 1 << 17, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a limit of ours.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) };
        let mut params: io_uring_params = zeroed();
        let fd = setup(Engine::User, 4, &mut params);
        let mut after = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit of ours.
        unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut after) };
        set == 0 && fd >= 0 && after.rlim_cur == 1 << 17
    }));
}

/// At a fork, other threads of a process without a ring announce forks, too: no lock that they hold then is held in the child for ever.
#[test]
fn children_of_threads_that_fork_at_once_fork_and_make_rings() {
    install();
    let makes_a_ring = || works(&mut Ring::new(Engine::User, 8, 0));
    let fork = || {
        for _ in 0..10 {
            let own = child(|| ended(child(makes_a_ring)) == 0 && makes_a_ring());
            assert_eq!(ended(own), 0);
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(fork)));
}
