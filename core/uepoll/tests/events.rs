//! Events that threads raise: none is lost or doubled, and sleeping consumers wake.

mod common;

use anyring_uepoll::Raiser;
use common::*;

const IN_EDGE: u32 = (libc::EPOLLIN | libc::EPOLLET) as u32;

#[by(each(4))]
fn bits_are_gathered_until_they_are_taken(set: &Set) {
    let (one, two) = (set.add_event(1).unwrap(), set.add_event(2).unwrap());
    one.raise(1);
    two.raise(0x8000_0000);
    one.raise(6);
    assert_eq!(next(set), event(7, 1));
    one.raise(1);
    assert_eq!(next(set), event(0x8000_0000, 2));
    assert_eq!(next(set), event(1, 1));
    none(set);
    set.delete_event(&one).unwrap();
    one.raise(1);
    none(set);
    assert_eq!(set.delete_event(&one).err(), Some(Errno::ENOENT));
    // The item now belongs to another event, which the former raiser must not raise.
    let three = set.add_event(3).unwrap();
    assert_eq!(three.item(), one.item());
    one.raise(1);
    none(set);
    three.raise(1);
    assert_eq!(next(set), event(1, 3));
}

#[by(each(2))]
fn an_event_is_removed_while_it_is_raised(set: &Set) {
    for round in 0..10 {
        let one = set.add_event(round).unwrap();
        one.raise(1);
        set.delete_event(&one).unwrap();
        none(set);
    }
}

/// Makes each of many threads pass many messages to a consumer that sleeps whenever it finds none. A message is counted before its event is
/// raised, so a consumer that takes the event sees the count; a lost event would leave the consumer asleep.
fn ping(set: &Set, threads: u64, messages: u64) {
    let events: Vec<Raiser> = (0..threads).map(|number| set.add_event(number).unwrap()).collect();
    let posted: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for (event, posted) in events.iter().zip(&posted) {
            scope.spawn(move || {
                for message in 0..messages {
                    posted.fetch_add(1, Ordering::Relaxed);
                    event.raise(1);
                    if message % 64 == 0 {
                        thread::yield_now();
                    }
                }
            });
        }
        let mut seen = vec![0; threads as usize];
        let mut out = [Event::default(); 8];
        while seen.iter().sum::<u64>() < threads * messages {
            let count = take(set, &mut out, 10_000_000_000);
            assert_ne!(count, 0, "asleep with messages waiting: {seen:?}");
            for event in &out[..count] {
                assert_eq!(event.events, 1);
                seen[event.data as usize] = posted[event.data as usize].load(Ordering::Relaxed);
            }
        }
    });
    for event in &events {
        set.delete_event(event).unwrap();
    }
}

#[test]
fn sleepers_wake() {
    each(64, |set| ping(set, 4, 20_000));
}

/// Consumers that sleep for files, too, wake for raised events.
#[by(each(64))]
fn sleepers_beside_files_wake(set: &Set) {
    let (ours, theirs) = pair();
    set.control(ADD, ours.as_raw_fd(), event(IN_EDGE, 99)).unwrap();
    ping(set, 4, 5_000);
    (&theirs).write_all(b"x").unwrap();
    assert_eq!(next(set), event(libc::EPOLLIN as u32, 99));
}

/// A child raises the parent's events, and wakes it.
#[test]
fn a_child_raises_events() {
    for files in [false, true] {
        each(4, |set| {
            let raiser = set.add_event(5).unwrap();
            let (ours, _theirs) = pair();
            if files {
                set.control(ADD, ours.as_raw_fd(), event(IN_EDGE, 99)).unwrap();
                none(set);
            }
            // SAFETY: the child makes system calls and touches its own memory; it takes no lock.
            let child = unsafe { libc::fork() };
            if child == 0 {
                raiser.raise(4);
                // The child must not make calls that only the parent may make.
                let refused = set.control(ADD, ours.as_raw_fd(), event(IN_EDGE, 1)) == Err(Errno::EPERM)
                    && set.take(&mut [Event::default()], None).is_ok_and(|count| count == 1)
                        | (set.wait(Some(0)) == Err(Errno::EPERM));
                // SAFETY: ends the child immediately.
                unsafe { libc::_exit(i32::from(!refused)) };
            }
            let mut status = 0;
            // SAFETY: waits for the child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            raiser.raise(8);
            assert_eq!(next(set).data, 5);
            none(set);
        });
    }
}

/// A consumer died between two steps, with events in the ring that its head has not passed: raisers continue,
/// and another consumer takes the events.
#[by(each(4))]
fn a_consumer_dies(set: &Set) {
    let (one, two) = (set.add_event(1).unwrap(), set.add_event(2).unwrap());
    one.raise(1);
    two.raise(2);
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(next(set), event(1, 1)));
    });
    // The state of a consumer that died asleep.
    for how in [1, 2, 77] {
        set.ring().header().sleeper.store(how, Ordering::Relaxed);
        one.raise(1);
        two.raise(2);
        assert_eq!((next(set).data + next(set).data), 3);
    }
    wait_and_see(set, &one);
}

fn wait_and_see(set: &Set, raiser: &Raiser) {
    thread::scope(|scope| {
        scope.spawn(|| raiser.raise(1));
        wait(set);
    });
    assert_eq!(next(set), event(1, 1));
}
