//! Addresses with a tag in their upper bits, as programs have them whose allocator tags memory (HWASan, MTE): the kernel takes them
//! from threads that have asked for it.

use crate::common::prelude::*;
use anyring_engine::os::user::IoVector;

const GROUP: u16 = 7;
const MESSAGE: [u8; 4] = *b"data";
const LENGTH: u32 = MESSAGE.len() as u32;

fn results(cqes: &[Cqe]) -> Vec<i32> {
    cqes.iter().map(|cqe| cqe.res).collect()
}

/// The results of each operation on memory whose addresses went through `tag`.
fn use_memory(engine: Engine, tag: fn(u64) -> u64) -> Vec<(&'static str, Vec<i32>, bool)> {
    let mut ring = Ring::new(engine, 8, 0);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let fd = theirs.as_raw_fd();
    let mut seen = Vec::new();
    let write = |opcode, addr, len| Sqe { fd, addr, len, ..sqe(opcode, 1) };

    let from = IoVector { base: tag(MESSAGE.as_ptr() as u64), length: u64::from(LENGTH) };
    let vector = tag(&raw const from as u64);
    for (name, request) in [
        ("WRITE", write(IORING_OP_WRITE, from.base, LENGTH)),
        ("WRITE in a thread", Sqe { flags: ASYNC, ..write(IORING_OP_WRITE, from.base, LENGTH) }),
        ("WRITEV", write(IORING_OP_WRITEV, vector, 1)),
        ("SEND", write(IORING_OP_SEND, from.base, LENGTH)),
    ] {
        let answers = results(&ring.run(&[request]));
        let mut arrived = [0; 4];
        let good = ours.read_exact(&mut arrived).is_ok() && arrived == MESSAGE;
        seen.push((name, answers, good));
    }

    let mut room = [0_u8; 4];
    let into = IoVector { base: tag(room.as_mut_ptr() as u64), length: u64::from(LENGTH) };
    let vector = tag(&raw const into as u64);
    for (name, request) in [
        ("READ", write(IORING_OP_READ, into.base, LENGTH)),
        ("READ in a thread", Sqe { flags: ASYNC, ..write(IORING_OP_READ, into.base, LENGTH) }),
        ("READV", write(IORING_OP_READV, vector, 1)),
        ("RECV", write(IORING_OP_RECV, into.base, LENGTH)),
        (
            "RECV of parts",
            Sqe { op_flags: libc::MSG_WAITALL as u32, ..write(IORING_OP_RECV, into.base, LENGTH) },
        ),
    ] {
        room = [0; 4];
        ring.push(request);
        // Without data at first, so that it waits.
        let mut answers = vec![ring.enter(1, 0)];
        ours.write_all(&MESSAGE).unwrap();
        ring.enter(0, 1);
        answers.extend(results(&ring.reap_all()));
        // SAFETY: the place of `room`, which the request has filled.
        let good = unsafe { (&raw const room).read_volatile() } == MESSAGE;
        if !good {
            let _ = (&theirs).read(&mut [0; 4]).unwrap();
        }
        seen.push((name, answers, good));
    }

    room = [0; 4];
    let provide = Sqe { fd: 1, buf_index: GROUP, ..write(IORING_OP_PROVIDE_BUFFERS, into.base, LENGTH) };
    let mut answers = results(&ring.run(&[provide]));
    if answers == [0] {
        ours.write_all(&MESSAGE).unwrap();
        let receive = Sqe { flags: SELECT, buf_index: GROUP, ..write(IORING_OP_RECV, 0, LENGTH) };
        answers.extend(results(&ring.run(&[receive])));
    }
    // SAFETY: as above.
    let good = unsafe { (&raw const room).read_volatile() } == MESSAGE;
    seen.push(("PROVIDE_BUFFERS", answers, good));
    seen
}

/// A thread of its own: whether the kernel takes tags is a thread's matter.
fn in_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(body).join().unwrap())
}

fn in_thread_with_tags<T: Send>(body: impl FnOnce(fn(u64) -> u64) -> T + Send) -> T {
    in_thread(|| body(crate::arch::allow_tags().expect("another thread may use tags")))
}

/// Whether addresses can have tags: on processors that the record's has not to be like.
fn has_tags() -> bool {
    let allowed = in_thread(|| crate::arch::allow_tags().map(drop));
    if let Err(reason) = allowed {
        skip(reason);
    }
    allowed.is_ok()
}

/// Runs `body` on ours, and on the kernel's io_uring where that is asked, if there are tags: its own assertions say what both answer.
fn both_with_tags<T: Answer>(body: impl Fn(Engine) -> T) {
    if !has_tags() {
        return;
    }
    let user = body(Engine::User);
    if record::oracle().asks_the_kernel() {
        assert_eq!(user, body(Engine::Kernel), "user engine (left) and kernel (right) agree");
    }
    anyring_tally::compared();
}

#[by(both_with_tags)]
fn they_are_taken_from_threads_that_have_asked_for_it(engine: Engine) -> impl Answer {
    let seen = in_thread_with_tags(|tag| use_memory(engine, tag));
    assert!(seen.iter().all(|(_, _, good)| *good), "{engine:?}: {seen:?}");
    seen
}

#[both]
fn they_are_refused_to_others(engine: Engine) -> impl Answer {
    let other = |address| address | 0x2a << 56;
    let seen = in_thread(|| use_memory(engine, other));
    assert!(seen.iter().all(|(_, answers, good)| !good && answers.contains(&-libc::EFAULT)), "{seen:?}");
    seen
}

/// Has a worker read from a file, and the reactor receive, while nobody is inside.
fn have_threads_use(tag: fn(u64) -> u64) -> bool {
    let mut ring = Ring::new(Engine::User, 8, 0);
    let mut room = [0_u8; 4];
    let addr = tag(room.as_mut_ptr() as u64);
    // SAFETY: the room outlives the requests, which alone write to it.
    let filled = || unsafe { (&raw const room).read_volatile() } == MESSAGE;

    let file = memory_file(&MESSAGE);
    let read = Sqe { fd: file.as_raw_fd(), addr, len: LENGTH, flags: ASYNC, ..sqe(IORING_OP_READ, 1) };
    let by_worker = (results(&ring.run(&[read])), filled());

    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let fd = theirs.as_raw_fd();
    ring.submit(&[Sqe { fd, addr, len: LENGTH, ..sqe(IORING_OP_RECV, 2) }]);
    ours.write_all(&MESSAGE.map(|byte| byte ^ 1)).unwrap();
    let tail = ring.params.cq_off.tail;
    until("the reactor receives", || ring.word(tail).load(Ordering::Acquire) == 2);
    let by_reactor = (results(&ring.reap_all()), room.map(|byte| byte ^ 1) == MESSAGE);
    let good = [&by_worker, &by_reactor].iter().all(|seen| **seen == (vec![LENGTH as i32], true));
    if !good {
        println!("the worker and the reactor: {by_worker:?}, {by_reactor:?}");
    }
    good
}

/// The kernel's own threads are its affair: ours are not to differ from the program's.
#[test]
fn threads_of_the_engine_take_them_that_were_made_before() {
    // In a process that has no other threads of the engine.
    in_child(|| {
        in_thread(|| have_threads_use(|address| address))
            && (!has_tags() || in_thread_with_tags(have_threads_use))
    });
}

#[by(both_with_tags)]
fn a_registered_buffer_has_its_tag(engine: Engine) -> impl Answer {
    in_thread_with_tags(|tag| {
        let mut ring = Ring::new(engine, 8, 0);
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let room = [0_u8; 64];
        let plain = room.as_ptr() as u64;
        let buffer = IoVector { base: tag(plain), length: room.len() as u64 };
        let opcode = IORING_REGISTER_BUFFERS;
        let mut seen = vec![ring.register(opcode, (&raw const buffer).cast(), 1)];
        for addr in [tag(plain), plain, tag(plain) + 60, tag(plain) + 61] {
            ours.write_all(&MESSAGE).unwrap();
            let read = Sqe { fd: theirs.as_raw_fd(), addr, len: LENGTH, ..sqe(IORING_OP_READ_FIXED, 1) };
            seen.extend(results(&ring.run(&[read])));
        }
        assert_eq!(seen, [0, 4, -libc::EFAULT, 4, -libc::EFAULT]);
        seen
    })
}

/// An address that cannot be memory is refused before its file is looked at: it fails a whole chain, and ends the submission.
#[test]
fn memory_behind_the_last_is_refused_first() {
    let behind = anyring_engine::os::user::END;
    if anyring_engine::os::may_be_memory(behind as usize + (64 << 10)) {
        return skip("programs have memory at higher addresses here");
    }
    both(|engine| {
        let (_peer, theirs) = UnixStream::pair().unwrap();
        let of = |opcode, user_data| Sqe {
            fd: theirs.as_raw_fd(),
            addr: behind,
            len: 1,
            ..sqe(opcode, user_data)
        };
        let none = |user_data| Sqe { fd: i32::MAX, ..sqe(IORING_OP_CLOSE, user_data) };
        let link = 1 << 2;
        let submissions = [
            vec![Sqe { off: 5, ..of(IORING_OP_WRITE, 1) }],
            vec![Sqe { flags: link, ..none(1) }, of(IORING_OP_READ, 2)],
            vec![of(IORING_OP_RECV, 1), none(2)],
            vec![Sqe { addr: behind - 1, len: 2, ..of(IORING_OP_SEND, 1) }, none(2)],
        ];
        submissions.map(|sqes| {
            let mut ring = Ring::new(engine, 4, 0);
            sqes.iter().for_each(|&sqe| ring.push(sqe));
            let count = sqes.len() as u32;
            let taken = ring.enter(count, 0);
            ring.enter(count - taken as u32, count);
            (taken, ring.reap_all())
        })
    });
}
