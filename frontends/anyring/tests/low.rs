//! The low-level interface, on both engines.

mod common;

use anyring::ErrorContext;
use anyring::low::op::{self, Fixed, Slot, Timespec};
use anyring::low::{Cqe32, Full, Restriction, Ring, SqeMixed, Wait};
use common::*;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};

fn ring(engine: Engine, entries: u32) -> Ring {
    Builder::new(entries).engine(engine).build_low().unwrap()
}

#[both]
fn nops_come_back_in_order(engine: Engine) {
    let mut ring: Ring = Builder::new(4).engine(engine).build_low().unwrap();
    assert_eq!(ring.engine(), engine);
    for round in 0..3 {
        for number in 0..4 {
            // SAFETY: the entry names no memory.
            unsafe { ring.push(op::Nop::new().build().user_data(round * 4 + number)) }.unwrap();
        }
        // SAFETY: the entry names no memory.
        unsafe { ring.push(op::Nop::new().build()) }.unwrap_err();
        assert_eq!(ring.submit_and_wait(4).unwrap(), 4);
        let seen: Vec<_> = ring.completion().map(|cqe| (cqe.user_data(), cqe.result())).collect();
        assert_eq!(seen, (0..4).map(|number| (round * 4 + number, 0)).collect::<Vec<_>>());
    }
}

#[both]
fn entries_may_be_large(engine: Engine) {
    let mut ring: Ring<Sqe128, Cqe32> = Builder::new(2).engine(engine).build_low().unwrap();
    for number in 0..5 {
        // SAFETY: the entry names no memory.
        unsafe { ring.push(op::Nop::new().build().user_data(number)) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().entry.user_data(), number);
    }
}

/// On the user engine only: kernels have such rings since 6.19.
#[test]
fn entries_may_be_of_two_sizes() {
    let mut ring: Ring<SqeMixed> = Builder::new(4).engine(Engine::User).build_low().unwrap();
    let small = |number| op::Nop::new().build().user_data(number);
    let wide = |number| op::Nop128::new().build().with(|entry| entry.user_data(number));
    let taken = |ring: &mut Ring<SqeMixed>, count, least| {
        assert_eq!(ring.submit_and_wait(least).unwrap(), count);
        ring.completion().map(|cqe| (cqe.user_data(), cqe.result())).collect::<Vec<_>>()
    };
    // SAFETY: the entries name no memory.
    unsafe {
        ring.push(small(1)).unwrap();
        ring.push_wide(wide(2)).unwrap();
        assert_eq!(ring.push_wide(wide(3)), Err(Full), "one place, or three from the end");
        assert_eq!(taken(&mut ring, 3, 2), [(1, 0), (2, 0)]);
        // The last place before the end is filled by a no-op, the wide entry takes two from the front; one place is left.
        ring.push_wide(wide(3)).unwrap();
        ring.push(small(4)).unwrap();
        assert_eq!(taken(&mut ring, 4, 2), [(3, 0), (4, 0)]);
        for number in 0..3 {
            ring.push(small(number)).unwrap();
        }
        assert_eq!(taken(&mut ring, 3, 3).len(), 3);
        // A chain continues across the place that is filled, and breaks across it.
        ring.push(small(5).link()).unwrap();
        ring.push_wide(wide(6)).unwrap();
        assert_eq!(taken(&mut ring, 4, 2), [(5, 0), (6, 0)]);
        let failing = op::Nop::new().flags(1).result(-libc::EIO).build().user_data(7).link();
        ring.push(failing).unwrap();
        ring.push_wide(wide(8)).unwrap();
    }
    let canceled = -libc::ECANCELED;
    let broken = taken(&mut ring, 4, 3);
    assert_eq!(broken, [(7, -libc::EIO), (u64::MAX, canceled), (8, canceled)]);
    // A command with an invalid descriptor.
    let command = op::UringCmd128::of(op::UringCmd::new(-1, 0), [0; 64]).build();
    // SAFETY: the entry names no memory.
    unsafe { ring.push_wide(command.with(|entry| entry.user_data(9))) }.unwrap();
    assert_eq!(taken(&mut ring, 2, 1), [(9, -libc::EBADF)]);
}

#[both]
fn a_full_queue_says_so(engine: Engine) {
    let mut ring = ring(engine, 4);
    let nop = op::Nop::new().build();
    let mut queue = ring.submission();
    assert_eq!((queue.capacity(), queue.len(), queue.free()), (4, 0, 4));
    // SAFETY: the entries name no memory.
    unsafe {
        queue.push_all(&[nop; 3]).unwrap();
        queue.push_all(&[nop; 2]).unwrap_err();
        queue.push(nop).unwrap();
        assert!(queue.is_full() && !queue.is_empty());
        assert_eq!(queue.push(nop), Err(Full));
    }
    drop(queue);
    assert_eq!(ring.submit_and_wait(4).unwrap(), 4);
    assert_eq!(ring.submission().free(), 4);
    assert_eq!(ring.completion().len(), 4);
    assert_eq!(ring.completion().count(), 4);
    assert!(ring.completion().is_empty() && ring.completion().overflow() == 0);
}

#[both]
fn waits_have_limits(engine: Engine) {
    let mut ring = ring(engine, 4);
    let start = Instant::now();
    let error = ring.submit_with(1, &Wait::new().timeout(Duration::from_millis(10))).unwrap_err();
    assert_eq!((error.errno(), error.context()), (libc::ETIME, ErrorContext::Enter));
    assert!(start.elapsed() >= Duration::from_millis(10));
    // A point in time that has passed; and a signal mask.
    // SAFETY: the mask is written before it is read.
    let mask = unsafe {
        let mut mask = std::mem::zeroed();
        libc::sigfillset(&mut mask);
        mask
    };
    let wait = Wait::new().until(Duration::from_nanos(1)).signal_mask(&mask);
    match ring.submit_with(1, &wait) {
        Err(error) => assert!(matches!(error.errno(), libc::ETIME | libc::EINVAL), "{error}"),
        Ok(count) => panic!("{count} entries were taken"),
    }
    // One of two wanted completions suffices after the shorter time.
    // SAFETY: the entry names no memory.
    unsafe { ring.push(op::Nop::new().build()) }.unwrap();
    let wait = Wait::new().timeout(Duration::from_secs(3600)).min_wait(Duration::from_millis(1));
    match ring.submit_with(2, &wait) {
        Ok(count) => assert_eq!(count, 1),
        Err(error) => assert_eq!(error.errno(), libc::EINVAL, "before Linux 6.12: {error}"),
    }
}

#[test]
fn halves_are_used_by_different_threads() {
    const COUNT: u64 = 20_000;
    both(|engine| {
        let mut ring = ring(engine, 64);
        let (submitter, mut queue, mut completions) = ring.split();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut number = 0;
                while number < COUNT {
                    while number < COUNT {
                        let nop = op::Nop::new().build().user_data(number);
                        // SAFETY: the entry names no memory.
                        if unsafe { queue.push(nop) }.is_err() {
                            break;
                        }
                        number += 1;
                    }
                    queue.sync();
                    match submitter.submit() {
                        Err(error) => assert_eq!(error.errno(), libc::EBUSY),
                        Ok(_) => queue.sync(),
                    }
                }
            });
            let mut seen = 0;
            while seen < COUNT {
                completions.sync();
                for cqe in completions.by_ref() {
                    assert_eq!((cqe.user_data(), cqe.result()), (seen, 0));
                    seen += 1;
                }
                if seen < COUNT {
                    completions.sync();
                    // Also flushes completions for which the queue had no room.
                    let _ = submitter.submit_with(1, &Wait::new().timeout(Duration::from_millis(10)));
                }
            }
        });
    });
}

#[both]
fn registered_buffers_and_files(engine: Engine) {
    let mut ring = ring(engine, 8);
    let zero = File::open("/dev/zero").unwrap();
    let mut memory = [1_u8; 64];
    let vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    let submitter = ring.submitter();
    submitter.register_buffers_sparse(4).unwrap();
    submitter.register_files_sparse(4).unwrap();
    submitter.set_file_range(2, 2).unwrap();
    // SAFETY: the memory outlives the ring.
    assert_eq!(unsafe { submitter.update_buffers(1, &[vector], None) }.unwrap(), 1);
    assert_eq!(submitter.update_files(3, &[Some(zero.as_fd())], None).unwrap(), 1);
    // SAFETY: the memory is part of a registered buffer.
    unsafe { ring.push(op::ReadFixed::new(Fixed(3), memory.as_mut_ptr(), 32, 1).build()) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    assert_eq!(ring.completion().next().unwrap().result(), 32);
    assert_eq!((memory[31], memory[32]), (0, 1));
    // The engine selects a place: the first of its range.
    let open = op::OpenAt::new(libc::AT_FDCWD, c"/dev/null".as_ptr()).slot(Slot::Any);
    // SAFETY: the path is static.
    unsafe { ring.push(open) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    assert_eq!(ring.completion().next().unwrap().result(), 2);
    let mut other: Ring = Builder::new(8).engine(engine).build_low().unwrap();
    // SAFETY: the memory outlives both rings.
    unsafe { other.submitter().clone_buffers(ring.submitter()) }.unwrap();
    // SAFETY: the memory is part of a registered buffer.
    unsafe { other.push(op::ReadFixed::new(&zero, memory.as_mut_ptr(), 64, 1).build()) }.unwrap();
    other.submit_and_wait(1).unwrap();
    assert_eq!(other.completion().next().unwrap().result(), 64);
    ring.submitter().unregister_files().unwrap();
    ring.submitter().unregister_buffers().unwrap();
    let error = ring.submitter().unregister_buffers().unwrap_err();
    assert_eq!((error.errno(), error.context()), (libc::ENXIO, ErrorContext::Register("UNREGISTER_BUFFERS")));
    assert!(error.to_string().contains("nothing of the kind is registered"), "{error}");
}

#[both]
fn an_eventfd_tells_of_completions(engine: Engine) {
    let mut ring = ring(engine, 4);
    // SAFETY: a new descriptor, which is owned from here on.
    let eventfd = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)) };
    let count = || {
        let mut count = 0_u64;
        // SAFETY: eight bytes.
        unsafe { libc::read(eventfd.as_raw_fd(), (&raw mut count).cast(), 8) };
        count
    };
    let nop = |ring: &mut Ring| {
        // SAFETY: the entry names no memory.
        unsafe { ring.push(op::Nop::new().build()) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        ring.completion().for_each(drop);
    };
    ring.submitter().register_eventfd(&eventfd, false).unwrap();
    nop(&mut ring);
    assert_eq!(count(), 1);
    assert!(ring.completion().set_eventfd_enabled(false));
    nop(&mut ring);
    assert_eq!(count(), 0);
    ring.completion().set_eventfd_enabled(true);
    ring.submitter().unregister_eventfd().unwrap();
    ring.submitter().register_eventfd(&eventfd, true).unwrap();
    nop(&mut ring);
    assert_eq!(count(), 0, "it came about in the submission");
}

#[both]
fn restrictions_and_enabling(engine: Engine) {
    let mut ring: Ring = Builder::new(4).start_disabled().engine(engine).build_low().unwrap();
    let error = ring.submit_and_wait(1).unwrap_err();
    assert_eq!(error.errno(), libc::EBADFD);
    assert!(error.to_string().ends_with("the ring was built disabled: call enable()"), "{error}");
    // Newer kernels restrict registrations only if at least one is listed.
    let files = Restriction::Registration(2);
    ring.submitter()
        .restrict(&[Restriction::Operation(op::Nop::CODE), Restriction::Flags(0), files])
        .unwrap();
    ring.submitter().enable().unwrap();
    // SAFETY: the entries name no memory.
    unsafe {
        ring.push(op::Nop::new().build()).unwrap();
        ring.push(op::Close::new(-1).build()).unwrap();
    }
    ring.submit_and_wait(2).unwrap();
    let results: Vec<_> = ring.completion().map(|cqe| cqe.result()).collect();
    assert_eq!(results, [0, -libc::EACCES]);
    assert_eq!(ring.submitter().register_personality().unwrap_err().errno(), libc::EACCES);
}

#[both]
fn what_else_is_registered(engine: Engine) {
    let mut ring = ring(engine, 4);
    let submitter = ring.submitter();
    let personality = submitter.register_personality().unwrap();
    submitter.unregister_personality(personality).unwrap();
    assert_eq!(submitter.unregister_personality(personality).unwrap_err().errno(), libc::EINVAL);
    submitter.set_most_workers(3, 5).unwrap();
    assert_eq!(submitter.set_most_workers(0, 0).unwrap(), (3, 5));
    // SAFETY: a structure of integers; the set has room for processor 0.
    let cpus = unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut cpus);
        cpus
    };
    submitter.set_worker_cpus(&cpus).unwrap();
    submitter.reset_worker_cpus().unwrap();
    submitter.register_clock(libc::CLOCK_BOOTTIME).unwrap();
    assert_eq!(submitter.register_clock(libc::CLOCK_REALTIME).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(submitter.cancel(Cancel::All, None).unwrap(), 0);
    assert_eq!(submitter.cancel(Cancel::UserData(1), None).unwrap_err().errno(), libc::ENOENT);
    assert_eq!(submitter.buffer_ring_head(9).unwrap_err().errno(), libc::ENOENT);
    ring.register_ring_fd().unwrap();
    // SAFETY: the entry names no memory.
    unsafe { ring.push(op::Nop::new().build()) }.unwrap();
    assert_eq!(ring.submit_and_wait(1).unwrap(), 1);
    ring.unregister_ring_fd().unwrap();
    assert_eq!(ring.submit().unwrap(), 0);
}

#[both]
fn cancellations_that_wait(engine: Engine) {
    let mut ring = ring(engine, 8);
    let (one, _other) = UnixStream::pair().unwrap();
    for number in 0..3 {
        // SAFETY: the entry names no memory.
        unsafe { ring.push(op::PollAdd::new(&one, libc::POLLIN as u32).build().user_data(number)) }.unwrap();
    }
    ring.submit().unwrap();
    ring.submitter().cancel(Cancel::UserData(1), Some(Duration::from_secs(60))).unwrap();
    ring.submitter().cancel(Cancel::Fd(one.as_fd()), None).unwrap();
    ring.submit_and_wait(3).unwrap();
    let mut seen: Vec<_> = ring.completion().map(|cqe| (cqe.user_data(), cqe.result())).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..3).map(|number| (number, -libc::ECANCELED)).collect::<Vec<_>>());
}

#[both]
fn some_operations_of_the_layer_below(engine: Engine) {
    let mut ring = ring(engine, 8);
    let run = |ring: &mut Ring, entry: Sqe| {
        // SAFETY: the memory that the entries below name outlives them, because each is waited for.
        unsafe { ring.push(entry) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        ring.completion().next().unwrap().result()
    };
    let mut ends = [0; 2];
    assert_eq!(run(&mut ring, op::Pipe::new(ends.as_mut_ptr()).flags(libc::O_CLOEXEC).build()), 0);
    // SAFETY: two new descriptors.
    let [reader, writer] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    assert_eq!(run(&mut ring, op::Write::new(&writer, b"abc".as_ptr(), 3).build()), 3);
    let mut bytes = [0; 8];
    assert_eq!(run(&mut ring, op::Read::new(&reader, bytes.as_mut_ptr(), 8).build()), 3);
    let (one, _other) = UnixStream::pair().unwrap();
    let mut value = 0_i32;
    let pointer = (&raw mut value).cast();
    let entry = op::UringCmd::get_socket_option(&one, libc::SOL_SOCKET, libc::SO_TYPE, pointer, 4).build();
    assert_eq!((run(&mut ring, entry), value), (4, libc::SOCK_STREAM));
    let futex = 1_u32;
    let size_u32 = 2;
    let entry = op::FutexWait::new(&futex, 0, u64::from(u32::MAX), size_u32).build();
    assert_eq!(run(&mut ring, entry), -libc::EAGAIN);
    let time = Timespec::from(Duration::from_millis(1));
    assert_eq!(run(&mut ring, op::Timeout::new(&time).build()), -libc::ETIME);
    // A message to another ring.
    let mut other: Ring = Builder::new(8).engine(engine).build_low().unwrap();
    assert_eq!(run(&mut ring, op::MsgRing::new(other.as_raw_fd(), 7, 9).build()), 0);
    let cqe = other.completion().next().unwrap();
    assert_eq!((cqe.user_data(), cqe.result(), cqe.flags()), (9, 7, 0));
    // An operation that this version does not know is made from its bytes.
    let mut unknown = [0; 64];
    unknown[0] = 150;
    assert_eq!(run(&mut ring, Sqe::from_bytes(unknown)), -libc::EINVAL);
    assert_eq!(
        format!("{:?}", op::Nop::new().build().user_data(3)),
        "NOP { flags: 0, fd: -1, user_data: 3, .. }"
    );
}

#[both]
fn queues_are_resized(engine: Engine) {
    let builder = Builder::new(2).single_issuer().defer_taskrun().engine(engine);
    let mut ring: Ring = builder.build_low().unwrap();
    // SAFETY: the entry names no memory.
    unsafe { ring.push(op::Nop::new().build().user_data(1)) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    // SAFETY: the entry names no memory.
    unsafe { ring.push(op::Nop::new().build().user_data(2)) }.unwrap();
    if let Err(error) = ring.resize(16, 64) {
        assert_eq!(error.errno(), libc::EINVAL, "before Linux 6.13: {error}");
        anyring_tally::skipped("no resizing of rings (Linux 6.13)");
        return;
    }
    assert_eq!(ring.submission().capacity(), 16);
    assert_eq!(ring.completion().capacity(), 64);
    for number in 3..18 {
        // SAFETY: the entry names no memory.
        unsafe { ring.push(op::Nop::new().build().user_data(number)) }.unwrap();
    }
    assert_eq!(ring.submit_and_wait(17).unwrap(), 16);
    let seen: Vec<_> = ring.completion().map(|cqe| cqe.user_data()).collect();
    assert_eq!(seen, (1..18).collect::<Vec<_>>());
    assert_eq!(ring.resize(0, 0).unwrap_err().context(), ErrorContext::Register("RESIZE_RINGS"));
}
