//! Files and events in a set, with every feeder that is supported here.

mod common;

use std::io::Read;
use std::time::Duration;

use common::*;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
const WAKEUP: u32 = libc::EPOLLWAKEUP as u32;

fn drain(stream: &UnixStream) {
    let mut bytes = [0; 64];
    while matches!((&*stream).read(&mut bytes), Ok(1..)) {}
}

#[by(each(8))]
fn an_event_comes_once_and_again_with_news(set: &Set) {
    let (ours, theirs) = pair();
    set.control(ADD, ours.as_raw_fd(), event(IN | ET, 7)).unwrap();
    none(set);
    for _ in 0..100 {
        (&theirs).write_all(b"x").unwrap();
        assert_eq!(next(set), event(IN, 7));
        drain(&ours);
        none(set);
    }
}

#[by(each(8))]
fn wait_says_that_the_ring_has_events(set: &Set) {
    let (ours, theirs) = pair();
    set.control(ADD, ours.as_raw_fd(), event(IN | ET, 7)).unwrap();
    assert!(matches!(set.wait(Some(1_000_000)), Ok(()) | Err(Errno::EINTR)), "nothing came");
    (&theirs).write_all(b"x").unwrap();
    wait(set);
    assert_eq!(set.wait(None), Err(Errno::ESTALE), "it has them still");
    assert_eq!(set.ring().take(), Some(event(IN, 7)));
    drain(&ours);
    assert_eq!(set.wait(Some(0)), Ok(()));
}

#[by(each(8))]
fn a_timeout_is_kept(set: &Set) {
    let (ours, _theirs) = pair();
    set.control(ADD, ours.as_raw_fd(), event(IN | ET, 7)).unwrap();
    for _ in 0..3 {
        let start = std::time::Instant::now();
        match set.take(&mut [Event::default()], Some(20_000_000)) {
            Ok(0) => assert!(start.elapsed() >= Duration::from_millis(20)),
            result => assert_eq!(result, Err(Errno::EINTR)),
        }
    }
}

#[by(each(8))]
fn what_is_there_already_is_an_event(set: &Set) {
    let (ours, theirs) = pair();
    (&theirs).write_all(b"x").unwrap();
    set.control(ADD, ours.as_raw_fd(), event(IN | OUT | ET, 1)).unwrap();
    assert_eq!(next(set), event(IN | OUT, 1));
}

/// A program that registers for everything and leaves the file writable must not get events without end.
#[by(each(8))]
fn writable_is_told_once(set: &Set) {
    let (ours, theirs) = pair();
    set.control(ADD, ours.as_raw_fd(), event(IN | OUT | RDHUP | ET, 1)).unwrap();
    assert_eq!(next(set).events & OUT, OUT);
    none(set);
    (&theirs).write_all(b"x").unwrap();
    assert_eq!(next(set).events & IN, IN);
    none(set);
    drop(theirs);
    assert_eq!(next(set).events & (RDHUP | HUP), RDHUP | HUP);
}

/// Unread input is reported once more at most.
#[by(each(8))]
fn unread_input_is_not_told_for_ever(set: &Set) {
    let (ours, theirs) = pair();
    set.control(ADD, ours.as_raw_fd(), event(IN | ET, 1)).unwrap();
    (&theirs).write_all(b"x").unwrap();
    assert_eq!(next(set), event(IN, 1));
    let mut repeated = 0;
    let mut out = [Event::default(); 4];
    while take(set, &mut out, 1_000_000) > 0 {
        repeated += 1;
        assert!(repeated <= 2, "told again and again");
    }
    // New input is reported all the same.
    (&theirs).write_all(b"y").unwrap();
    assert_eq!(next(set), event(IN, 1));
}

#[by(each(8))]
fn one_shot(set: &Set) {
    let (ours, theirs) = pair();
    let fd = ours.as_raw_fd();
    set.control(ADD, fd, event(IN | ET | ONESHOT, 1)).unwrap();
    for round in 1..10 {
        (&theirs).write_all(b"x").unwrap();
        assert_eq!(next(set), event(IN, round));
        (&theirs).write_all(b"x").unwrap();
        none(set);
        drain(&ours);
        (&theirs).write_all(b"x").unwrap();
        none(set);
        drain(&ours);
        set.control(MODIFY, fd, event(IN | ET | ONESHOT, round + 1)).unwrap();
        none(set);
    }
}

#[by(each(8))]
fn a_modification_changes_word_and_events_and_loses_nothing(set: &Set) {
    let (ours, theirs) = pair();
    let fd = ours.as_raw_fd();
    set.control(ADD, fd, event(ET, 1)).unwrap();
    (&theirs).write_all(b"x").unwrap();
    none(set);
    // Earlier input is reported.
    set.control(MODIFY, fd, event(IN | ET, 2)).unwrap();
    assert_eq!(next(set), event(IN, 2));
    drain(&ours);
    for round in 3..100 {
        // The event is on its way while the registration changes.
        (&theirs).write_all(b"x").unwrap();
        set.control(MODIFY, fd, event(IN | ET, round)).unwrap();
        assert_eq!(next(set), event(IN, round));
        drain(&ours);
    }
    // The event is in the ring already.
    (&theirs).write_all(b"x").unwrap();
    wait(set);
    set.control(MODIFY, fd, event(IN | OUT | ET, 200)).unwrap();
    assert_eq!(set.ring().take().map(|event| (event.events & IN, event.data)), Some((IN, 200)));
    set.control(MODIFY, fd, event(RDHUP | ET, 201)).unwrap();
    drop(theirs);
    assert_eq!(next(set).events & RDHUP, RDHUP);
}

#[by(each(2))]
fn a_removed_file_is_silent(set: &Set) {
    let (ours, theirs) = pair();
    let fd = ours.as_raw_fd();
    for round in 0..50 {
        set.control(ADD, fd, event(IN | ET, round)).unwrap();
        (&theirs).write_all(b"x").unwrap();
        // Removes the file with its event in the ring, or before the event gets there.
        if round % 2 == 0 {
            wait(set);
        }
        set.control(DELETE, fd, Event::default()).unwrap();
        assert_eq!(set.ring().take(), None);
        drain(&ours);
        none(set);
    }
}

/// Files are removed while their events are in the ring, and others are added: no item is reused before the program
/// has passed its entry.
#[by(each(2))]
fn items_rest_until_the_program_has_passed_them(set: &Set) {
    let (first, second) = (pair(), pair());
    for (number, (ours, theirs)) in [&first, &second].into_iter().enumerate() {
        set.control(ADD, ours.as_raw_fd(), event(IN | ET, number as u64)).unwrap();
        (&*theirs).write_all(b"x").unwrap();
    }
    while set.ring().next_position() != u32::MAX - 3 {
        // The positions have wrapped around: both events are in the ring.
        wait(set);
        thread::yield_now();
    }
    set.control(DELETE, first.0.as_raw_fd(), Event::default()).unwrap();
    let third = pair();
    let refused = set.control(ADD, third.0.as_raw_fd(), event(IN | ET, 3));
    assert_eq!(refused, Err(Errno::ENOSPC), "its place is in the ring");
    assert_eq!(next(set), event(IN, 1));
    set.control(ADD, third.0.as_raw_fd(), event(IN | ET, 3)).unwrap();
    (&third.1).write_all(b"x").unwrap();
    assert_eq!(next(set), event(IN, 3));
}

#[by(each(2))]
fn what_is_refused(set: &Set) {
    let (ours, theirs) = pair();
    let (one, two) = (ours.as_raw_fd(), theirs.as_raw_fd());
    let good = event(IN | ET, 1);
    assert_eq!(set.control(ADD, -1, good), Err(Errno::EBADF));
    assert_eq!(set.control(ADD, 1_000_000, good), Err(Errno::EBADF));
    assert_eq!(set.control(MODIFY, one, good), Err(Errno::ENOENT));
    assert_eq!(set.control(DELETE, one, good), Err(Errno::ENOENT));
    assert_eq!(set.control(9, one, good), Err(Errno::EINVAL));
    assert_eq!(set.control(ADD, set.fd(), good), Err(Errno::EINVAL));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(set.control(ADD, file.as_raw_fd(), good), Err(Errno::EPERM));
    for wrong in [IN, IN | ET | WAKEUP, IN | ET | EXCLUSIVE] {
        assert_eq!(set.control(ADD, one, event(wrong, 1)), Err(Errno::EINVAL), "{wrong:#x}");
    }
    set.control(ADD, one, good).unwrap();
    assert_eq!(set.control(ADD, one, good), Err(Errno::EEXIST));
    assert_eq!(set.control(MODIFY, one, event(IN, 1)), Err(Errno::EINVAL));
    set.control(ADD, two, good).unwrap();
    let another = pair().0;
    assert_eq!(set.control(ADD, another.as_raw_fd(), good), Err(Errno::ENOSPC));
    assert_eq!(set.add_event(1).err(), Some(Errno::ENOSPC));
    set.control(DELETE, two, good).unwrap();
    set.control(ADD, another.as_raw_fd(), good).unwrap();
}

#[by(each_extended(8))]
fn level_triggered(set: &Set) {
    if set.feeder() == Feeder::Reactor {
        let (ours, _theirs) = pair();
        assert_eq!(set.control(ADD, ours.as_raw_fd(), event(IN, 1)), Err(Errno::EINVAL));
        return;
    }
    let (ours, theirs) = pair();
    let (edge, edges) = pair();
    set.control(ADD, ours.as_raw_fd(), event(IN, 1)).unwrap();
    set.control(ADD, edge.as_raw_fd(), event(IN | ET, 2)).unwrap();
    none(set);
    (&theirs).write_all(b"x").unwrap();
    for _ in 0..10 {
        assert_eq!(next(set), event(IN, 1), "as long as it is there");
    }
    (&edges).write_all(b"x").unwrap();
    let mut seen = [false; 3];
    for _ in 0..8 {
        seen[next(set).data as usize] = true;
    }
    assert_eq!(seen, [false, true, true]);
    drain(&ours);
    drain(&edge);
    while take(set, &mut [Event::default(); 8], 0) > 0 {}
    none(set);
    set.control(MODIFY, ours.as_raw_fd(), event(IN | ET, 3)).unwrap();
    (&theirs).write_all(b"x").unwrap();
    assert_eq!(next(set), event(IN, 3));
    set.control(MODIFY, ours.as_raw_fd(), event(OUT, 4)).unwrap();
    for _ in 0..3 {
        assert_eq!(next(set), event(OUT, 4));
    }
    set.control(DELETE, ours.as_raw_fd(), event(0, 0)).unwrap();
    none(set);
}

#[by(each_extended(8))]
fn exclusive(set: &Set) {
    let (ours, theirs) = pair();
    let fd = ours.as_raw_fd();
    assert_eq!(set.control(ADD, fd, event(IN | ET | EXCLUSIVE | ONESHOT, 1)), Err(Errno::EINVAL));
    set.control(ADD, fd, event(IN | ET | EXCLUSIVE, 1)).unwrap();
    assert_eq!(set.control(MODIFY, fd, event(IN | ET, 1)), Err(Errno::EINVAL));
    (&theirs).write_all(b"x").unwrap();
    assert_eq!(next(set), event(IN, 1));
}

/// A sleeping consumer gets events of a file that another thread registers, and writes to then.
#[by(each(8))]
fn a_sleeper_hears_of_what_others_do(set: &Set) {
    let (idle, _others) = pair();
    set.control(ADD, idle.as_raw_fd(), event(IN | ET, 1)).unwrap();
    for round in 0..20 {
        let (ours, theirs) = pair();
        thread::scope(|scope| {
            scope.spawn(|| {
                if round % 2 == 0 {
                    thread::sleep(Duration::from_millis(2));
                }
                set.control(ADD, ours.as_raw_fd(), event(IN | ET, 100 + round)).unwrap();
                (&theirs).write_all(b"x").unwrap();
            });
            assert_eq!(next(set), event(IN, 100 + round));
        });
        set.control(DELETE, ours.as_raw_fd(), event(0, 0)).unwrap();
    }
}

/// As above, if the consumer sleeps for raised events only, or for nothing at all.
#[test]
fn a_sleeper_hears_of_the_first_file() {
    for events in [false, true] {
        for _ in 0..20 {
            each(8, |set| {
                let raiser = events.then(|| set.add_event(1).unwrap());
                let (ours, theirs) = pair();
                thread::scope(|scope| {
                    scope.spawn(|| {
                        while set.ring().header().sleeper.load(Ordering::Relaxed) == 0 {
                            thread::yield_now();
                        }
                        set.control(ADD, ours.as_raw_fd(), event(IN | ET, 2)).unwrap();
                        (&theirs).write_all(b"x").unwrap();
                    });
                    assert_eq!(next(set), event(IN, 2));
                });
                drain(&ours);
                // Then raise the first event of a set whose consumer sleeps for files.
                thread::scope(|scope| {
                    scope.spawn(|| {
                        while set.ring().header().sleeper.load(Ordering::Relaxed) == 0 {
                            thread::yield_now();
                        }
                        let (other, _theirs) = pair();
                        set.control(ADD, other.as_raw_fd(), event(IN | ET, 3)).unwrap();
                        set.control(DELETE, other.as_raw_fd(), event(0, 0)).unwrap();
                        set.add_event(4).unwrap().raise(1);
                    });
                    assert_eq!(next(set), event(1, 4));
                });
                drop(raiser);
            });
        }
    }
}

/// Files are watched even after the threads that registered them have ended.
#[by(each(8))]
fn registrations_outlive_their_threads(set: &Set) {
    let (ours, theirs) = pair();
    thread::scope(|scope| {
        scope.spawn(|| set.control(ADD, ours.as_raw_fd(), event(IN | ET, 1)).unwrap());
    });
    thread::scope(|scope| {
        scope.spawn(|| none(set));
    });
    (&theirs).write_all(b"x").unwrap();
    assert_eq!(next(set), event(IN, 1));
}

/// Files are closed with and without pending events: nothing breaks, and the number can be registered again once it is removed.
#[by(each(4))]
fn files_are_closed_with_events_pending(set: &Set) {
    for round in 0..20 {
        let (ours, theirs) = pair();
        let fd = ours.as_raw_fd();
        set.control(ADD, fd, event(IN | ET, round)).unwrap();
        (&theirs).write_all(b"x").unwrap();
        if round % 2 == 0 {
            wait(set);
        }
        drop(ours);
        let removed = set.control(DELETE, fd, event(0, 0));
        // The number may have been reused for a file of another test by now.
        assert!(matches!(removed, Ok(()) | Err(Errno::EBADF | Errno::ENOENT | Errno::EPERM)), "{removed:?}");
        assert_eq!(set.ring().take(), None);
        none(set);
        // No reference to the file is left, except for a moment by a look in progress.
        let start = std::time::Instant::now();
        while let Err(error) = (&theirs).read(&mut [0; 8])
            && error.kind() != std::io::ErrorKind::ConnectionReset
        {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            assert!(start.elapsed() < Duration::from_secs(120), "the file is still open");
            thread::yield_now();
        }
    }
}

/// As with epoll, closing a file ends its registration, if the set is fed by epoll.
#[test]
fn a_closed_file_makes_room() {
    for feeder in [Feeder::Epoll, Feeder::Reactor] {
        let Some(set) = set(feeder, 2, false) else { continue };
        for round in 0..10 {
            let (ours, theirs) = pair();
            for file in [&ours, &theirs] {
                // Events of one end for the close of the other must be taken first.
                while let Err(error) = set.control(ADD, file.as_raw_fd(), event(IN | ET, round)) {
                    assert_eq!((feeder, error), (Feeder::Reactor, Errno::ENOSPC));
                    take(&set, &mut [Event::default(); 4], 1_000_000);
                }
            }
        }
    }
}

/// Two changes of a file are one event: a program that closes the file after its event must not find another event of the
/// file in the same array.
#[by(each(8))]
fn a_file_is_told_once_in_a_look(set: &Set) {
    let (ours, theirs) = pair();
    set.control(ADD, ours.as_raw_fd(), event(IN | RDHUP | ET, 1)).unwrap();
    none(set);
    (&theirs).write_all(b"x").unwrap();
    // A system call that only makes the kernel post completions at its end.
    thread::yield_now();
    (&theirs).write_all(b"x").unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    thread::yield_now();
    drop(theirs);
    let mut out = [Event::default(); 8];
    assert_eq!(take(set, &mut out, 120_000_000_000), 1, "{out:?}");
    assert_eq!(out[0].events & IN, IN);
}

#[by(each(200))]
fn many_files_and_little_room(set: &Set) {
    let pairs: Vec<_> = (0..200).map(|_| pair()).collect();
    for (number, (ours, _)) in pairs.iter().enumerate() {
        set.control(ADD, ours.as_raw_fd(), event(IN | ET, number as u64)).unwrap();
    }
    for _ in 0..20 {
        for (_, theirs) in &pairs {
            (&*theirs).write_all(b"x").unwrap();
        }
        let mut seen = [0; 200];
        while seen.contains(&0) {
            let mut out = [Event::default(); 7];
            let count = take(set, &mut out, 120_000_000_000);
            assert_ne!(count, 0, "events are missing: {seen:?}");
            for event in &out[..count] {
                assert_eq!(event.events, IN);
                seen[event.data as usize] += 1;
                drain(&pairs[event.data as usize].0);
            }
        }
        assert!(seen.iter().all(|&count| count <= 2));
    }
}

/// A registration whose number was closed, while its file lives on under another number, cannot be removed from an epoll
/// instance. No event of it may come, and waits must sleep all the same.
#[by(each_extended(8))]
fn a_registration_that_cannot_be_removed_wakes_nobody(set: &Set) {
    let level = if set.feeder() == Feeder::Reactor { ET } else { 0 };
    let (ours, theirs) = pair();
    let (other, others) = pair();
    let (edge, edges) = pair();
    set.control(ADD, other.as_raw_fd(), event(IN | level, 2)).unwrap();
    set.control(ADD, edge.as_raw_fd(), event(IN | ET | ONESHOT, 3)).unwrap();
    for round in 0..3 {
        let name = ours.try_clone().unwrap();
        set.control(ADD, name.as_raw_fd(), event(IN | level, 1)).unwrap();
        (&theirs).write_all(b"x").unwrap();
        assert_eq!(next(set), event(IN, 1));
        let fd = name.as_raw_fd();
        drop(name);
        if round == 0 {
            assert_eq!(set.control(DELETE, fd, Event::default()), Err(Errno::EBADF));
        } else {
            // The number now refers to another file.
            let another = pair().0;
            assert_eq!(another.as_raw_fd(), fd);
            set.control(ADD, fd, event(IN | ET, 4)).unwrap();
            set.control(DELETE, fd, Event::default()).unwrap();
        }
        let processor = processor_time();
        let start = std::time::Instant::now();
        assert_eq!(take(set, &mut [Event::default()], 50_000_000), 0);
        assert!(start.elapsed() >= Duration::from_millis(50));
        let used = processor_time() - processor;
        assert!(used < Duration::from_millis(25), "{used:?} of a processor");
        // Events of another thread come, and the other files are watched as before.
        (&others).write_all(b"x").unwrap();
        assert_eq!(next(set), event(IN, 2));
        drain(&other);
        drain(&ours);
    }
    (&edges).write_all(b"x").unwrap();
    assert_eq!(next(set), event(IN, 3));
    (&edges).write_all(b"x").unwrap();
    none(set);
}

/// An event of a registration that cannot be removed must not cause events of other files.
#[test]
fn an_event_of_a_registration_that_cannot_be_removed_tells_nothing_of_others() {
    let set = &set(Feeder::Epoll, 8, false).unwrap();
    let (ours, theirs) = pair();
    let (other, others) = pair();
    set.control(ADD, other.as_raw_fd(), event(IN | ET, 2)).unwrap();
    let name = ours.try_clone().unwrap();
    let fd = name.as_raw_fd();
    set.control(ADD, fd, event(IN | ET, 1)).unwrap();
    drop(name);
    assert_eq!(set.control(DELETE, fd, Event::default()), Err(Errno::EBADF));
    (&others).write_all(b"x").unwrap();
    assert_eq!(next(set), event(IN, 2));
    (&theirs).write_all(b"x").unwrap();
    assert_eq!(take(set, &mut [Event::default()], 2_000_000), 0);
}

/// Returns the processor time that this thread has used.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a structure of this program.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A failed modification changes nothing.
#[by(each_extended(8))]
fn a_failed_modification_shows_nothing(set: &Set) {
    let (ours, theirs) = pair();
    let (fd, name) = (ours.as_raw_fd(), ours.try_clone().unwrap());
    set.control(ADD, fd, event(IN | ET, 7)).unwrap();
    (&theirs).write_all(b"x").unwrap();
    wait(set);
    drop(ours);
    // A level-triggered file is watched by epoll, which notices that the number was closed.
    let level = if set.feeder() == Feeder::Reactor { ET } else { 0 };
    assert_eq!(set.control(MODIFY, fd, event(IN | level, 99)), Err(Errno::EBADF));
    assert_eq!(set.ring().take(), Some(event(IN, 7)));
    drop(name);
}
