//! Hostile conditions that must not harm the process: overwritten ring memory, a child, denied calls, many threads with many files.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32};

use anyring_uepoll::Options;
use common::*;

const IN_EDGE: u32 = (libc::EPOLLIN | libc::EPOLLET) as u32;

/// Maps the ring's memory as a program does, and returns its words.
fn mapped(set: &Set) -> &[AtomicU32] {
    let length = set.ring().geometry().length();
    // SAFETY: a new mapping, which is never unmapped.
    unsafe {
        let (protection, none) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
        let memory = libc::mmap(none, length, protection, libc::MAP_SHARED, set.fd(), 0);
        assert_ne!(memory, libc::MAP_FAILED);
        std::slice::from_raw_parts(memory.cast(), length / 4)
    }
}

/// A thread overwrites the memory while files are registered, written to and removed: calls may fail, but nothing else may happen.
#[by(each(8))]
fn scribbling(set: &Set) {
    let words = mapped(set);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 0x9e37_79b9_7f4a_7c15u64;
            while !done.load(Ordering::Relaxed) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let among = if random & 1 == 0 { 64 } else { words.len() };
                words[(random >> 8) as usize % among].store((random >> 32) as u32, Ordering::Relaxed);
            }
        });
        let raiser = set.add_event(1);
        for round in 0..300 {
            let (ours, theirs) = pair();
            let _ = set.control(ADD, ours.as_raw_fd(), event(IN_EDGE, round));
            (&theirs).write_all(b"x").unwrap();
            if let Ok(raiser) = &raiser {
                raiser.raise(1);
            }
            let _ = set.take(&mut [Event::default(); 4], Some(10_000));
            let _ = set.wait(Some(10_000));
            let _ = set.control(MODIFY, ours.as_raw_fd(), event(IN_EDGE, round));
            let _ = set.control(DELETE, ours.as_raw_fd(), event(0, 0));
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A child uses and drops its copy of the set: the parent must not be affected.
#[by(each(4))]
fn a_child_does_not_break_the_parents_set(parents: &Set) {
    let (ours, theirs) = pair();
    parents.control(ADD, ours.as_raw_fd(), event(IN_EDGE, 1)).unwrap();
    none(parents);
    // SAFETY: the child makes system calls and touches its own memory; no other thread holds the set's locks.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let fd = ours.as_raw_fd();
        let refused = [
            parents.control(MODIFY, fd, event(IN_EDGE, 2)),
            parents.control(DELETE, fd, event(0, 0)),
            parents.add_event(1).map(drop),
            parents.wait(Some(0)),
            parents.take(&mut [Event::default()], Some(0)).map(drop),
        ];
        let good = refused.iter().all(|result| *result == Err(Errno::EPERM));
        // SAFETY: drops the child's copy of the set, once.
        unsafe { std::ptr::drop_in_place(std::ptr::from_ref(parents).cast_mut()) };
        // SAFETY: ends the child immediately.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    for _ in 0..3 {
        (&theirs).write_all(b"x").unwrap();
        assert_eq!(next(parents), event(libc::EPOLLIN as u32, 1));
        while matches!(std::io::Read::read(&mut &ours, &mut [0; 8]), Ok(1..)) {}
    }
    parents.control(DELETE, ours.as_raw_fd(), event(0, 0)).unwrap();
}

/// Makes `io_uring_setup` fail in the calling thread, as in containers.
fn deny_io_uring() {
    const SETUP: u32 = 425;
    let step = |code: u32, k, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, SETUP, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the filter outlives the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

#[test]
fn io_uring_is_denied() {
    thread::spawn(|| {
        deny_io_uring();
        let options = |feeder| Options { feeder, ..Options::new(4) };
        assert_eq!(Set::create(options(Feeder::Uring)).err(), Some(Errno::EPERM));
        for feeder in [Feeder::Auto, Feeder::Epoll, Feeder::Aio] {
            let set = Set::create(options(feeder)).unwrap();
            assert!(!matches!(set.feeder(), Feeder::Auto | Feeder::Uring));
            let (ours, theirs) = pair();
            set.control(ADD, ours.as_raw_fd(), event(IN_EDGE, 1)).unwrap();
            (&theirs).write_all(b"x").unwrap();
            assert_eq!(next(&set), event(libc::EPOLLIN as u32, 1));
        }
    })
    .join()
    .unwrap();
}

#[test]
fn a_set_that_would_look_for_ever_looks_no_longer_than_it_waits() {
    for feeder in [Feeder::Epoll, Feeder::Aio] {
        let set = Set::create(Options { feeder, spin_ns: u64::MAX, ..Options::new(4) }).unwrap();
        assert_eq!(set.wait(Some(1_000_000)), Ok(()));
        assert_eq!(set.wait(Some(0)), Ok(()));
    }
}

/// A non-blocking eventfd.
struct EventFd(i32);

impl EventFd {
    fn new() -> EventFd {
        // SAFETY: touches no memory.
        EventFd(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
    }

    fn write(&self) {
        // SAFETY: reads eight bytes of this program.
        assert_eq!(unsafe { libc::write(self.0, (&raw const ONE).cast(), 8) }, 8);
    }

    fn read(&self) -> u64 {
        let mut count = 0u64;
        // SAFETY: writes eight bytes of this program.
        unsafe { libc::read(self.0, (&raw mut count).cast(), 8) };
        count
    }
}

static ONE: u64 = 1;

impl Drop for EventFd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this structure's own.
        unsafe { libc::close(self.0) };
    }
}

/// The proposal's own stress test: many threads write to many eventfds, one consumer reads the counts, which must be exact.
#[test]
fn many_threads_many_eventfds_one_consumer() {
    const THREADS: usize = 8;
    const FILES: usize = 8;
    const WRITES: u64 = 2_000;
    each((THREADS * FILES) as u32, |set| {
        let files: Vec<EventFd> = (0..THREADS * FILES).map(|_| EventFd::new()).collect();
        for (number, file) in files.iter().enumerate() {
            set.control(ADD, file.0, event(IN_EDGE, number as u64)).unwrap();
        }
        let total = AtomicU64::new(0);
        thread::scope(|scope| {
            for files in files.chunks(FILES) {
                scope.spawn(|| {
                    for write in 0..WRITES {
                        files[write as usize % FILES].write();
                        total.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let (mut seen, wanted) = (0, THREADS as u64 * WRITES);
            while seen < wanted {
                let mut out = [Event::default(); 16];
                let count = take(set, &mut out, 10_000_000_000);
                assert_ne!(
                    count,
                    0,
                    "asleep with {seen} of {wanted} seen, {} written",
                    total.load(Ordering::Relaxed)
                );
                for event in &out[..count] {
                    seen += files[event.data as usize].read();
                }
            }
            assert_eq!(seen, wanted);
        });
        for file in &files {
            set.control(DELETE, file.0, event(0, 0)).unwrap();
        }
    });
}

/// Registers a file in a set that may be full of resting items, until the consumer has passed their last events.
fn add_once_there_is_room(set: &Set, fd: i32, event: Event) {
    loop {
        match set.control(ADD, fd, event) {
            Err(Errno::ENOSPC) => thread::yield_now(),
            result => return result.unwrap(),
        }
    }
}

/// Ends the consumer when dropped, also if the test panics.
struct EndsConsumer<'a>(&'a AtomicBool);

impl Drop for EndsConsumer<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads register and remove files while the consumer waits and takes.
#[by(each(64))]
fn registered_and_removed_by_many_threads(set: &Set) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for round in 0..300 {
                        let (ours, theirs): (UnixStream, UnixStream) = pair();
                        add_once_there_is_room(set, ours.as_raw_fd(), event(IN_EDGE, 1));
                        (&theirs).write_all(b"x").unwrap();
                        if round % 2 == 0 {
                            set.control(MODIFY, ours.as_raw_fd(), event(IN_EDGE, 2)).unwrap();
                        }
                        // An item that is still in the ring may rest meanwhile.
                        set.control(DELETE, ours.as_raw_fd(), event(0, 0)).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let mut out = [Event::default(); 4];
                take(set, &mut out, 1_000_000);
            }
        });
        let _ends = EndsConsumer(&done);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    none(set);
}

#[test]
fn a_set_is_dropped_with_everything_in_it() {
    for feeder in [Feeder::Epoll, Feeder::Uring, Feeder::Aio, Feeder::Reactor] {
        let (ours, theirs) = pair();
        let Some(set) = set(feeder, 4, false) else { continue };
        let raiser = set.add_event(1).unwrap();
        set.control(ADD, ours.as_raw_fd(), event(IN_EDGE, 1)).unwrap();
        (&theirs).write_all(b"x").unwrap();
        raiser.raise(1);
        drop(set);
        raiser.raise(1);
    }
}
