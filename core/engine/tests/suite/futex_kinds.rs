//! Waits for futexes that are woken, cancelled and stopped at the same time as others.

use std::sync::Barrier;
use std::sync::atomic::{AtomicI32, AtomicUsize};

use super::futex::{PRIVATE, U32, waitv};
use crate::common::prelude::*;
#[cfg(not(anyring_sanitizer))]
use crate::lacking_calls::refuse;

fn wait(user_data: u64, word: &AtomicU32) -> Sqe {
    super::futex::wait(user_data, word, 0)
}

fn cancel(user_data: u64, target: u64) -> Sqe {
    crate::common::cancel(user_data, target, 0)
}

fn element(word: &AtomicU32) -> [u64; 3] {
    super::futex::element(word, 0)
}

/// `futex(2)`: how many it woke.
fn wake(word: &AtomicU32, count: i32) -> i64 {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: names a word of ours.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, count) }
}

/// The results of so many requests, with their user data.
fn collected(ring: &mut Ring, count: usize) -> Vec<(u64, i32)> {
    results(&ring.collect(count))
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// A wake-up that says that it woke one has completed one, whatever is cancelled meanwhile; a cancellation that says that
/// it came too late has changed nothing.
#[test]
fn no_wake_up_is_lost_to_a_cancellation() {
    const ROUNDS: usize = 300;
    for engine in [Engine::User, Engine::Kernel] {
        // The kernel is judged where it is asked anything.
        if engine == Engine::Kernel && !record::oracle().asks_the_kernel() {
            continue;
        }
        let word = AtomicU32::new(0);
        let (round, done, woken) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicI32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for next in 1..=ROUNDS {
                    until("the next round", || round.load(Ordering::SeqCst) == next);
                    (0..next % 50 * 40).for_each(|_| std::hint::spin_loop());
                    woken.store(wake(&word, 1) as i32, Ordering::SeqCst);
                    done.store(next, Ordering::SeqCst);
                }
            });
            let mut ring = Ring::new(engine, 8, 0);
            for next in 1..=ROUNDS {
                ring.submit(&[wait(1, &word), wait(2, &word)]);
                round.store(next, Ordering::SeqCst);
                (0..next * 7 % 50 * 40).for_each(|_| std::hint::spin_loop());
                ring.submit(&[cancel(3, 1)]);
                until("the wake-up", || done.load(Ordering::SeqCst) == next);
                assert_eq!(woken.load(Ordering::SeqCst), 1, "two waited, and one was cancelled at most");
                let mut all = Vec::new();
                let came = |all: &[(u64, i32)], user_data| all.iter().find(|cqe| cqe.0 == user_data).copied();
                while came(&all, 3).is_none()
                    || came(&all, 1).is_none_or(|first| first.1 != 0) && all.len() < 3
                {
                    all.extend(collected(&mut ring, 1));
                }
                all.sort_unstable();
                if all[0] == (1, 0) {
                    ring.submit(&[cancel(4, 2)]);
                    assert_eq!(collected(&mut ring, 2), [(2, -libc::ECANCELED), (4, 1)], "{engine:?}");
                    // On a busy machine our engine does not know in time what comes of it.
                    let known = engine == Engine::Kernel || all[1].1 != -libc::EALREADY;
                    assert!(!known || all[1] == (3, -libc::ENOENT), "{engine:?}: {all:?}");
                } else {
                    assert_eq!(all[..2], [(1, -libc::ECANCELED), (2, 0)], "{engine:?}: {all:?}");
                    assert!([1, -libc::EALREADY].contains(&all[2].1), "{engine:?}: {all:?}");
                }
            }
        });
    }
}

/// A wait that was woken is none to be cancelled, though its thread may not have run yet.
#[both]
fn a_cancellation_comes_too_late(engine: Engine) -> impl Answer {
    let (mut ring, word) = (Ring::new(engine, 8, 0), AtomicU32::new(0));
    let mut seen = Vec::new();
    for _ in 0..100 {
        ring.submit(&[wait(1, &word)]);
        ring.push(cancel(2, 1));
        let woken = wake(&word, 1);
        assert_eq!(ring.enter(1, 0), 1);
        seen.push((woken, collected(&mut ring, 2)));
    }
    seen
}

/// A submitted wait is there: the very next call of any thread finds it. So it is where only other processes see the word
/// as well, with masks, and where the SQ thread submits.
#[both]
fn what_was_submitted_is_found(engine: Engine) -> impl Answer {
    let mut seen = Vec::new();
    for flags in [0, IORING_SETUP_SQPOLL, DEFER] {
        let mut ring = Ring::new(engine, 8, flags);
        let word = AtomicU32::new(0);
        for turn in 0..40u32 {
            let shared = if turn % 4 == 1 { Sqe { fd: U32, ..wait(1, &word) } } else { wait(1, &word) };
            let masked = if turn % 4 == 2 { Sqe { addr3: 6, ..shared } } else { shared };
            ring.push(masked);
            if flags == IORING_SETUP_SQPOLL {
                ring.enter_with(1, 0, IORING_ENTER_SQ_WAKEUP);
                until("the SQ thread takes it", || ring.sq_taken() == turn + 1);
            } else {
                assert_eq!(ring.enter(1, 0), 1);
            }
            let private = if masked.fd & PRIVATE != 0 { libc::FUTEX_PRIVATE_FLAG } else { 0 };
            // SAFETY: names a word of ours.
            let woken =
                unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | private, 9) };
            seen.push((woken, collected(&mut ring, 1)));
        }
    }
    seen
}

/// Waiters for one word are woken in their order, wherever their threads slept before.
#[both(8, 0)]
fn the_first_is_woken_first(mut ring: Ring) -> impl Answer {
    let words: Vec<_> = (0..64).map(|_| AtomicU32::new(0)).collect();
    let mut seen = Vec::new();
    for word in &words {
        ring.submit(&[wait(1, word), wait(2, word), wait(3, word)]);
        for _ in 0..3 {
            seen.push((wake(word, 1), collected(&mut ring, 1)));
        }
    }
    seen
}

/// A wait for several words ends with the first wake-up, with or without `futex_waitv`; a word that has changed is told.
#[test]
fn one_of_several() {
    let body = |engine| {
        let mut ring = Ring::new(engine, 8, 0);
        let words: Vec<_> = (0..128).map(|_| AtomicU32::new(0)).collect();
        let mut seen = Vec::new();
        let wake_all = || words.iter().map(|word| wake(word, 1)).sum::<i64>();
        for count in [1, 2, 128] {
            let elements: Vec<_> = words[..count].iter().map(element).collect();
            for index in [0, count / 2, count - 1] {
                ring.submit(&[waitv(1, &elements)]);
                seen.push((wake(&words[index], 1), collected(&mut ring, 1)));
                if count == 128 && engine == Engine::User {
                    // So many threads take more time, on a busy machine, than is waited for them.
                    until("all threads have left", || wake_all() == 0);
                }
                seen.push((wake_all(), Vec::new()));
            }
            ring.submit(&[waitv(1, &elements), cancel(2, 1)]);
            // Where 128 threads do not come back in time, the cancellation does not wait for its answer.
            let told = |(name, result)| (name, if result == -libc::EALREADY { 1 } else { result });
            seen.push((0, collected(&mut ring, 2).into_iter().map(told).collect()));
            until("all threads have left", || wake_all() == 0);
            words[count - 1].store(1, Ordering::SeqCst);
            ring.submit(&[waitv(1, &elements)]);
            seen.push((0, collected(&mut ring, 1)));
            words[count - 1].store(0, Ordering::SeqCst);
        }
        seen
    };
    both(body);
    #[cfg(not(anyring_sanitizer))]
    {
        let with = body(Engine::User);
        let pid = child(|| {
            refuse(libc::SYS_futex_waitv, None, libc::ENOSYS);
            assert_eq!(body(Engine::User), with);
            true
        });
        assert_eq!(ended(pid), 0, "the same without futex_waitv");
    }
}

/// A process that is stopped and goes on still waits, and a word that changed meanwhile ends the wait.
#[test]
fn waits_outlast_a_stop() {
    let stopped = |body: fn(&AtomicU32) -> bool| {
        let word = mapped(4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).cast::<AtomicU32>();
        // SAFETY: shared memory that both processes see.
        let word = unsafe { &*word };
        let pid = child(|| body(word));
        let mut status = 0;
        // SAFETY: of a child of ours.
        unsafe {
            assert_eq!(libc::waitpid(pid, &mut status, libc::WUNTRACED), pid);
            assert!(libc::WIFSTOPPED(status), "it has stopped itself");
            word.store(1, Ordering::SeqCst);
            libc::kill(pid, libc::SIGCONT);
        }
        assert_eq!(ended(pid), 0);
    };
    fn stop() {
        // SAFETY: until the parent says otherwise.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
    stopped(|changed| {
        let (mut ring, word) = (Ring::new(Engine::User, 8, 0), AtomicU32::new(0));
        ring.submit(&[wait(1, &word), Sqe { fd: U32, ..wait(2, changed) }]);
        stop();
        let changed = collected(&mut ring, 1);
        // It waits again as soon as its thread has run.
        until("the other waits", || wake(&word, 1) == 1);
        (changed, collected(&mut ring, 1)) == (vec![(2, 0)], vec![(1, 0)])
    });
}

/// A wait costs a thread, which others use after it; a process that may not have more threads is told so.
#[test]
fn threads_are_used_again_and_a_lack_of_them_is_told() {
    in_child(|| {
        let mut ring = Ring::new(Engine::User, 64, 0);
        let words: Vec<_> = (0..16).map(|_| AtomicU32::new(0)).collect();
        let mut most = 0;
        for turn in 0..20 {
            let waits: Vec<_> = words.iter().map(|word| wait(1, word)).collect();
            ring.submit(&waits);
            most = if turn == 0 { threads() } else { most };
            assert!(words.iter().all(|word| wake(word, 1) == 1));
            assert_eq!(collected(&mut ring, 16), [(1, 0); 16]);
        }
        // A thread is idle a little after its wait has ended.
        assert!(threads() <= most + 16, "{} threads, {most} at first", threads());
    });
    in_child(|| {
        let mut ring = Ring::new(Engine::User, 8, 0);
        let (word, limit) = (AtomicU32::new(0), libc::rlimit { rlim_cur: 0, rlim_max: 0 });
        // SAFETY: of this process alone. Root has no limit.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &limit), 0);
            if libc::geteuid() == 0 && libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) != 0 {
                return true;
            }
        }
        ring.run(&[wait(1, &word)])[0].res == -libc::ENOMEM
    });
}

/// Threads that wait for futexes.
fn waiting_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|task| {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            name.starts_with("iou-futex")
        })
        .count()
}

/// Waits that end in every way, of several rings at once, leave nothing on the words.
#[both(16, 0)]
fn closing_takes_waits_off_the_words(mut ring: Ring) {
    let words: Vec<_> = (0..8).map(|_| AtomicU32::new(0)).collect();
    let waits: Vec<_> = words.iter().map(|word| wait(1, word)).collect();
    ring.submit(&waits);
    drop(ring);
    // The kernel, too, ends a ring some time after its close.
    words.iter().for_each(|word| until("nobody waits", || wake(word, 1) == 0));
}

/// The program has given its own action to the signal by which a thread of the engine is called back, while that waited: the thread
/// takes no wake-up from others.
#[test]
fn a_thread_that_is_left_on_a_word_passes_its_wake_up_on() {
    let pid = child(|| {
        ends_after(60);
        let word = AtomicU32::new(0);
        let mut ring = Ring::new(Engine::User, 8, 0);
        ring.submit(&[wait(1, &word)]);
        for signal in 35..=64 {
            // SAFETY: of this process alone.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        drop(ring);
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let word = &word;
            scope.spawn(move || {
                sender.send(thread_id()).unwrap();
                let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                let nothing = std::ptr::null::<libc::timespec>();
                // SAFETY: names a word of ours.
                unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 0, nothing) }
            });
            let thread = receiver.recv().unwrap();
            until("it waits", || sleeps_in(thread) == Some(libc::SYS_futex));
            assert_eq!(wake(word, 1), 1);
        });
        true
    });
    assert_eq!(ended(pid), 0);
}

/// FUTEX_WAKE of a ring counts what waits in other rings.
#[both]
fn rings_wake_each_other(engine: Engine) -> impl Answer {
    let word = AtomicU32::new(0);
    let mut rings: Vec<_> = (0..3).map(|_| Ring::new(engine, 8, 0)).collect();
    rings.iter_mut().for_each(|ring| ring.submit(&[wait(1, &word)]));
    let wake = Sqe { opcode: IORING_OP_FUTEX_WAKE as u8, off: 9, ..wait(2, &word) };
    let mut all = rings[0].run(&[wake]).iter().map(|cqe| (cqe.user_data, cqe.res)).collect::<Vec<_>>();
    all.extend(collected(&mut rings[0], 2 - all.len()));
    all.sort_unstable();
    (all, collected(&mut rings[1], 1), collected(&mut rings[2], 1))
}

/// Threads of the program that submit their first waits at the same time take no thread of one another.
#[test]
fn waits_begin_at_once_in_several_threads() {
    const SUBMITTERS: usize = 8;
    both(|engine| {
        let start = Barrier::new(SUBMITTERS);
        std::thread::scope(|scope| {
            let submitters: [_; SUBMITTERS] = std::array::from_fn(|_| {
                scope.spawn(|| {
                    let (mut ring, word) = (Ring::new(engine, 8, 0), AtomicU32::new(0));
                    start.wait();
                    let mut seen = Vec::new();
                    for _ in 0..20 {
                        ring.submit(&[wait(1, &word), wait(2, &word)]);
                        seen.push((wake(&word, 9), collected(&mut ring, 2)));
                    }
                    seen
                })
            });
            submitters.map(|submitter| submitter.join().unwrap())
        })
    });
}

/// A wait for several words that is woken while its threads are still being moved there leaves none of them behind, which
/// would take wake-ups that are meant for others.
#[cfg(not(anyring_sanitizer))]
#[by(in_child)]
fn a_wait_for_several_leaves_nobody_behind() {
    refuse(libc::SYS_futex_waitv, None, libc::ENOSYS);
    let words: Vec<_> = (0..8).map(|_| AtomicU32::new(0)).collect();
    let elements: Vec<_> = words.iter().map(element).collect();
    let over = AtomicU32::new(0);
    let mut ring = Ring::new(Engine::User, 8, 0);
    std::thread::scope(|scope| {
        for word in &words[..2] {
            let over = &over;
            scope.spawn(move || {
                while over.load(Ordering::Relaxed) == 0 {
                    wake(word, 1);
                }
            });
        }
        for turn in 0..300 {
            ring.submit(&[waitv(1, &elements)]);
            if turn % 2 == 1 {
                ring.submit(&[cancel(2, 1)]);
                collected(&mut ring, 2);
            } else {
                collected(&mut ring, 1);
            }
            assert!(words[2..].iter().all(|word| wake(word, 1) == 0), "turn {turn}");
        }
        over.store(1, Ordering::Relaxed);
    });
}

/// Waits are woken and cancelled where threads cannot be moved, and where no signal reaches them.
#[cfg(not(anyring_sanitizer))]
#[test]
fn threads_go_to_the_words_by_themselves() {
    fn waits() -> bool {
        let (mut ring, words) = (Ring::new(Engine::User, 8, 0), [const { AtomicU32::new(0) }; 3]);
        let elements = words.each_ref().map(element);
        ring.submit(&[wait(1, &words[0]), waitv(2, &elements)]);
        until("somebody waits for the last", || wake(&words[2], 1) == 1);
        let several = collected(&mut ring, 1);
        until("somebody waits for the first", || wake(&words[0], 1) == 1);
        let one = collected(&mut ring, 1);
        ring.submit(&[wait(1, &words[0]), waitv(2, &elements)]);
        ring.submit(&[cancel(3, 1), cancel(4, 2)]);
        let cancelled = collected(&mut ring, 4);
        ring.submit(&[wait(1, &words[0])]);
        drop(ring);
        until("nobody waits", || words.iter().all(|word| wake(word, 1) == 0) && waiting_threads() == 0);
        let (ended, found) = (-libc::ECANCELED, 1);
        (several, one) == (vec![(2, 2)], vec![(1, 0)])
            && cancelled == [(1, ended), (2, ended), (3, found), (4, found)]
    }
    let pid = child(|| {
        // Nor do requeues tell in gVisor how many they moved.
        refuse(libc::SYS_futex, Some([(libc::FUTEX_REQUEUE | PRIVATE) as u32, 0]), libc::ENOSYS);
        waits()
    });
    assert_eq!(ended(pid), 0, "without requeues");
    let pid = child(|| {
        for signal in 35..=64 {
            // SAFETY: of this process alone.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        waits()
    });
    assert_eq!(ended(pid), 0, "without signals");
}

/// The kernel finds that a word cannot be waited for, though it can be read: a read-only page of this process alone, if the
/// word is to be one of other processes, too.
#[test]
fn a_word_that_never_changes() {
    let length = 1 << 16;
    let word = mapped(length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE).cast::<AtomicU32>();
    // SAFETY: new memory, given back below.
    let word = unsafe {
        (*word).store(0, Ordering::Relaxed);
        assert_eq!(libc::mprotect(word.cast(), length, libc::PROT_READ), 0);
        &*word
    };
    both(|engine| {
        let mut ring = Ring::new(engine, 8, 0);
        ring.submit(&[Sqe { fd: U32, ..wait(1, word) }]);
        collected(&mut ring, 1)
    });
    // SAFETY: nobody uses it any more.
    unsafe { libc::munmap(word.as_ptr().cast(), length) };
}

/// Threads end with the last ring, also those that are at a wait then.
#[by(in_child)]
fn no_thread_outlives_the_rings() {
    let words: Vec<_> = (0..8).map(|_| AtomicU32::new(0)).collect();
    let mut ring = Ring::new(Engine::User, 16, 0);
    let waits: Vec<_> = words.iter().map(|word| wait(1, word)).collect();
    ring.submit(&waits);
    assert!(words[..4].iter().all(|word| wake(word, 1) == 1));
    collected(&mut ring, 4);
    drop(ring);
    until("the threads are gone", || waiting_threads() == 0);
}
