//! ASYNC_CANCEL and IORING_REGISTER_SYNC_CANCEL.

use crate::common::prelude::*;

const POLLIN: i16 = libc::POLLIN;
static LONG: [i64; 2] = [1000, 0];

fn timeout(user_data: u64) -> Sqe {
    crate::common::timeout(user_data, &LONG)
}

#[both(16, 0)]
fn timeouts_are_cancelled(mut ring: Ring) -> impl Answer {
    let mut all = ring.collect_from(&[timeout(1), cancel(2, 1, 0), cancel(3, 1, 0)], 3);
    let sqes = [timeout(4), timeout(5), timeout(5), cancel(6, 5, IORING_ASYNC_CANCEL_ALL)];
    all.extend(ring.collect_from(&sqes, 3));
    all.extend(ring.collect_from(&[timeout(7), cancel(8, 0, IORING_ASYNC_CANCEL_ANY)], 3));
    all.extend(ring.collect_from(&[cancel(9, 0, IORING_ASYNC_CANCEL_ANY)], 1));
    all
}

#[both(16, 0)]
fn by_opcode(mut ring: Ring) -> impl Answer {
    let op = IORING_ASYNC_CANCEL_OP;
    let timeouts = IORING_OP_TIMEOUT as u32;
    let mut all = ring.collect_from(&[timeout(1), cancel(2, 0, op)], 1);
    all.extend(ring.collect_from(&[Sqe { len: timeouts, ..cancel(3, 0, op) }], 2));
    let user_data = op | IORING_ASYNC_CANCEL_USERDATA;
    all.extend(ring.collect_from(&[timeout(4), Sqe { len: timeouts, ..cancel(5, 9, user_data) }], 1));
    all.extend(ring.collect_from(&[Sqe { len: timeouts, ..cancel(6, 4, user_data) }], 2));
    all
}

#[both(32, IORING_SETUP_SUBMIT_ALL)]
fn bad_cancellations_are_refused(mut ring: Ring) -> impl Answer {
    let good = cancel(0, 1, 0);
    ring.run(&[
        Sqe { off: 1, ..good },
        Sqe { file_index: 1, ..good },
        Sqe { ioprio: 1, ..good },
        cancel(0, 1, 1 << 9),
        cancel(0, 1, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_FD),
        cancel(0, 1, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_OP),
        cancel(0, 1, IORING_ASYNC_CANCEL_FD),
        cancel(0, 1, IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_FD_FIXED),
        Sqe { fd: 0, ..cancel(0, 1, IORING_ASYNC_CANCEL_FD) },
        Sqe { flags: 1, ..good },
        good,
    ])
}

/// A close that is cancelled would leak the descriptor. The kernel closes at submission.
#[both(8, 0)]
fn a_close_before_a_cancellation_is_not_cancelled(mut ring: Ring) -> impl Answer {
    [cancel(2, 0, IORING_ASYNC_CANCEL_ANY), cancel(2, 1, 0)].map(|cancel| {
        let fd = pipe().0.into_raw_fd();
        let cqes = ring.collect_from(&[Sqe { fd, ..sqe(IORING_OP_CLOSE, 1) }, cancel], 2);
        // SAFETY: asks for the flags of a descriptor.
        (by_user_data(cqes), unsafe { libc::fcntl(fd, libc::F_GETFD) })
    })
}

#[both(16, 0)]
fn links_and_drains_whose_turn_has_not_come_cannot_be_found(mut ring: Ring) -> impl Answer {
    let first = Sqe { flags: LINK, ..timeout(1) };
    let sqes = [first, nop(2, 0), cancel(3, 2, 0), cancel(4, 1, 0)];
    let mut all = ring.collect_from(&sqes, 4);
    let sqes = [timeout(5), nop(6, DRAIN), cancel(7, 6, 0)];
    all.extend(ring.collect_from(&sqes, 0));
    let found = [ring.sync_cancel(6), ring.sync_cancel(5)];
    all.extend(ring.collect_from(&[], 3));
    (found, all)
}

#[both(4, 0)]
fn bad_synchronous_cancellations(ring: Ring) -> impl Answer {
    let good: io_uring_sync_cancel_reg = zeroed();
    let call = |argument: &io_uring_sync_cancel_reg, count| {
        let argument = std::ptr::from_ref(argument).cast();
        ring.register(IORING_REGISTER_SYNC_CANCEL, argument, count)
    };
    let mut pad = good;
    pad.pad[0] = 1;
    let mut fd = good;
    (fd.flags, fd.fd) = (IORING_ASYNC_CANCEL_FD, -1);
    [
        call(&good, 1),
        call(&good, 2),
        call(&pad, 1),
        call(&io_uring_sync_cancel_reg { flags: 1 << 9, ..good }, 1),
        call(&fd, 1),
        ring.register(IORING_REGISTER_SYNC_CANCEL, std::ptr::null(), 1),
        ring.register(IORING_REGISTER_SYNC_CANCEL, 8 as *const _, 1),
    ]
}

#[both(512, 0)]
fn of_many_with_one_name_the_newest_that_waits_is_cancelled_first(mut ring: Ring) -> impl Answer {
    let (source, sink) = pipe();
    let mut buffer = [0u8; 1];
    let poll = |user_data, events| poll(user_data, &source, events);
    let remove = |user_data: u64, target: u64| Sqe { addr: target, ..sqe(IORING_OP_POLL_REMOVE, user_data) };
    let rename = |user_data: u64, target: u64, name: u64| Sqe {
        off: name,
        len: IORING_POLL_UPDATE_USER_DATA,
        ..remove(user_data, target)
    };
    // So many that names share chains, and the chains have to be made more.
    ring.submit_all(
        (0..200).map(|number| reading(IORING_OP_READ, 1000 + number % 100, &source, &mut buffer)),
        0,
    );
    let mut seen = Vec::new();
    // Two CQEs for a cancellation that finds something.
    let steps: [(Sqe, usize); 9] = [
        (remove(2, 6), 1),
        (cancel(3, 1042, 0), 2),
        (cancel(4, 1042, 0), 2),
        (cancel(5, 1042, 0), 1),
        (cancel(6, 1043, IORING_ASYNC_CANCEL_ALL), 3),
        (poll(7, POLLIN), 0),
        (rename(8, 7, 9), 1),
        (remove(10, 7), 1),
        (remove(11, 9), 2),
    ];
    for (sqe, count) in steps {
        let cqes = by_user_data(ring.collect_from(&[sqe], count));
        seen.extend(cqes);
    }
    // Which one is left shows by what it polls for.
    let polls = [poll(12, POLLIN), poll(12, POLLIN | libc::POLLRDNORM), poll(12, POLLIN), remove(13, 12)];
    seen.extend(ring.collect_from(&polls, 2));
    seen.extend(ring.collect_from(&[cancel(14, 12, 0)], 2));
    let mut rest = ring.collect_from(&[cancel(15, IORING_OP_READ as u64, 0)], 1);
    let reads =
        Sqe { len: IORING_OP_READ as u32, ..cancel(16, 0, IORING_ASYNC_CANCEL_OP | IORING_ASYNC_CANCEL_ALL) };
    rest.extend(ring.collect_from(&[reads], 197));
    rest.sort_by_key(|cqe| cqe.user_data);
    seen.extend(rest);
    write_to(&sink, b"a");
    seen.extend(ring.collect_from(&[], 1));
    seen
}

/// Waits until a thread sleeps or has ended.
fn at_rest<T>(thread: &std::thread::JoinHandle<T>, told: &std::sync::mpsc::Receiver<libc::pid_t>) {
    let pid = told.recv().unwrap();
    let sleeps = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('S')
    };
    while !thread.is_finished() && !sleeps() {
        std::thread::yield_now();
    }
}

/// Waits until the reactor, if there is one, has left the ring to its callers and sleeps for good.
fn reactor_at_rest() {
    let wakes = || {
        std::fs::read_dir("/proc/self/task").unwrap().find_map(|task| {
            let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let of_reactor = status.starts_with("Name:\tanyring-reactor");
            of_reactor.then(|| status.lines().find(|line| line.starts_with("voluntary_")).map(str::to_owned))
        })
    };
    let mut before = None;
    while before.replace(wakes()) != Some(wakes()) {
        // Longer than many ticks; a test that goes on too early proves less, but fails no more.
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The thread in SYNC_CANCEL neither drives nor gets the driver's role from one that leaves: the other waiter has to.
#[both]
fn who_waits_beside_a_synchronous_cancellation_is_served(engine: Engine) -> impl Answer {
    use std::sync::mpsc;

    fn thread<T: Send + 'static>(
        body: impl FnOnce() -> T + Send + 'static,
    ) -> (std::thread::JoinHandle<T>, mpsc::Receiver<libc::pid_t>) {
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(thread_id()).unwrap();
            body()
        });
        at_rest(&thread, &told);
        (thread, told)
    }

    let mut ring = Ring::new(engine, 8, 0);
    let (empty, mut end) = std::io::pipe().unwrap();
    let (_out, into) = std::io::pipe().unwrap();
    let (first, mut first_end) = std::io::pipe().unwrap();
    let (second, mut second_end) = std::io::pipe().unwrap();
    let mut buffers = [[0u8; 8]; 2];
    let read = |user_data, from: &std::io::PipeReader, buffer: &mut [u8; 8]| {
        reading(IORING_OP_READ, user_data, from, buffer)
    };
    let [first_buffer, second_buffer] = &mut buffers;
    ring.submit(&[
        splice(77, &empty, &into, 8),
        read(1, &first, first_buffer),
        read(2, &second, second_buffer),
    ]);
    let fd = ring.fd;
    let wait = move |count| enter(engine, fd, 0, count, IORING_ENTER_GETEVENTS, std::ptr::null(), 0);
    let (driver, _) = thread(move || wait(1));
    let (canceller, _) = thread(move || {
        let mut argument: io_uring_sync_cancel_reg = zeroed();
        (argument.addr, argument.fd) = (77, -1);
        (argument.timeout.tv_sec, argument.timeout.tv_nsec) = (-1, -1);
        let argument = (&raw const argument).cast();
        register(engine, fd, IORING_REGISTER_SYNC_CANCEL as u32, argument, 1)
    });
    let (served, heard) = mpsc::channel();
    let (other, _) = thread(move || served.send(wait(2)).unwrap());
    reactor_at_rest();
    first_end.write_all(b"first").unwrap();
    driver.join().unwrap();
    second_end.write_all(b"second").unwrap();
    let returned = heard.recv_timeout(PATIENCE).expect("somebody drives");
    other.join().unwrap();
    end.write_all(b"an end").unwrap();
    canceller.join().unwrap();
    let mut ended: Vec<_> = ring.collect(3).iter().map(|cqe| cqe.user_data).collect();
    ended.sort_unstable();
    (returned, ended)
}

/// On a ring that defers, nothing is posted of work that ended before somebody comes for it: here that is the thread in
/// SYNC_CANCEL itself. Not on the kernel's engine: Linux 6.18 now and then does not wake that thread.
#[test]
fn a_synchronous_cancellation_sees_work_end_on_a_ring_that_defers() {
    // A thread may be at rest before it cancels, too (in an emulator's lock): then the work has ended.
    until("the cancellation came before the end", || match returned_by_synchronous_cancellation() {
        0 => true,
        errno => {
            assert_eq!(errno, -libc::ENOENT);
            false
        }
    });
}

fn returned_by_synchronous_cancellation() -> i32 {
    let engine = Engine::User;
    let (tell, told) = std::sync::mpsc::channel();
    let (heard, hear) = std::sync::mpsc::channel();
    let (empty, mut end) = std::io::pipe().unwrap();
    let from = empty.as_raw_fd();
    let canceller = std::thread::spawn(move || {
        let mut ring = Ring::new(engine, 8, DEFER);
        let (_out, into) = std::io::pipe().unwrap();
        ring.submit(&[splice(77, &from, &into, 8)]);
        tell.send(thread_id()).unwrap();
        heard.send(ring.sync_cancel(77)).unwrap();
        ring.collect(1).len()
    });
    at_rest(&canceller, &told);
    end.write_all(b"an end").unwrap();
    let returned = hear.recv_timeout(PATIENCE).expect("the work has ended");
    assert_eq!(canceller.join().unwrap(), 1);
    returned
}

/// Files of several kinds, and another descriptor of each.
fn files_with_others() -> Vec<[OwnedFd; 2]> {
    let counter = || eventfd(0, libc::EFD_CLOEXEC);
    let socket = || OwnedFd::from(UnixDatagram::unbound().unwrap());
    let files = [socket(), socket(), counter(), counter()];
    files.into_iter().map(|file| [file.try_clone().unwrap(), file]).collect()
}

#[both(64, 0)]
fn by_file_among_many(mut ring: Ring) -> impl Answer {
    let files = files_with_others();
    let poll = |user_data, file: &OwnedFd| poll(user_data, file, POLLIN);
    let by_file = |user_data, file: &OwnedFd, flags| Sqe {
        fd: file.as_raw_fd(),
        ..cancel(user_data, 0, IORING_ASYNC_CANCEL_FD | flags)
    };
    let polls: Vec<Sqe> = (1..).zip(&files).map(|(number, [file, _])| poll(number, file)).collect();
    let mut all = ring.collect_from(&polls, 0);
    for (number, [_, other]) in (100..).zip(&files) {
        all.extend(ring.collect_from(&[by_file(number, other, 0)], 2));
        all.extend(ring.collect_from(&[by_file(number, other, 0)], 1));
    }
    // Their places have other requests now, some of which end before anybody asks for a file.
    let [[first, _], [second, again], ..] = &files[..] else { unreachable!() };
    let sqes = [poll(10, second), nop(11, 0), poll(12, second), poll(13, first)];
    all.extend(ring.collect_from(&sqes, 1));
    all.extend(ring.collect_from(&[by_file(14, again, IORING_ASYNC_CANCEL_ALL)], 3));
    all.extend(ring.collect_from(&[by_file(15, again, IORING_ASYNC_CANCEL_ALL)], 1));
    all.extend(ring.collect_from(&[cancel(16, 13, 0)], 2));
    all.extend(ring.collect_from(&[poll(17, first), by_file(18, first, 0)], 2));
    by_user_data(all)
}

/// A request whose turn has not come has no file yet.
#[both(16, 0)]
fn by_a_file_that_comes_later(mut ring: Ring) -> impl Answer {
    let (near, _far) = UnixStream::pair().unwrap();
    let (other, mut far_of_other) = UnixStream::pair().unwrap();
    let poll = |user_data, file: &UnixStream, flags| Sqe { flags, ..poll(user_data, file, POLLIN) };
    let by_file = |user_data| Sqe { fd: near.as_raw_fd(), ..cancel(user_data, 0, IORING_ASYNC_CANCEL_FD) };
    let chain = [poll(1, &other, LINK), poll(2, &near, 0), by_file(3)];
    let mut all = ring.collect_from(&chain, 1);
    far_of_other.write_all(b"x").unwrap();
    all.extend(ring.collect_from(&[], 1));
    all.extend(ring.collect_from(&[by_file(4)], 2));
    all.extend(ring.collect_from(&[by_file(5)], 1));
    by_user_data(all)
}
