//! Attempts that sleep in a thread of their own: what cancels them ends them, and so does the end of their ring.

use std::fs;

use crate::common::prelude::*;

/// The kernel's own errno for an interrupted call, which it tells programs of some operations.
const ERESTARTSYS: i32 = 512;

/// Parts of the names of the kernel's functions in which such requests sleep. Idle workers sleep elsewhere, and those that
/// begin may.
const WAITS: [&str; 3] = ["pipe", "partner", "unix"];

/// How many workers sleep in a system call for a request.
fn blocked() -> usize {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return 0 };
    tasks
        .flatten()
        .filter(|task| {
            let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let place = read("wchan");
            let sleeps = read("stat").rsplit(')').next().is_some_and(|rest| rest.starts_with(" S"));
            read("comm").starts_with("iou-wrk") && sleeps && WAITS.iter().any(|name| place.contains(name))
        })
        .count()
}

/// The result of what was interrupted: the kernel does not translate its own errno where it does not expect one.
fn interrupted(engine: Engine, result: i32) -> bool {
    result == -libc::EINTR || engine == Engine::Kernel && result == -ERESTARTSYS
}

/// Submits `sqe`, and goes on when a worker sleeps for it.
fn submit_blocking(ring: &mut Ring, sqe: Sqe) {
    let before = blocked();
    ring.submit(&[sqe]);
    until("a worker sleeps for the request", || blocked() > before);
}

/// Requests that sleep in a system call until somebody else does something, one after the other.
fn each_blocking(mut body: impl FnMut(&str, Sqe)) {
    let place = Directory::new();
    let ((from, _a), (_b, to)) = (pipe(), pipe());
    body("SPLICE", splice(1, &from, &to, 4096));
    let tee = Sqe { opcode: IORING_OP_TEE as u8, addr: 0, off: 0, ..splice(1, &from, &to, 1) };
    body("TEE", tee);
    let fifo = place.fifo("fifo");
    body("OPENAT in a thread", Sqe { flags: ASYNC, ..open(1, &fifo, libc::O_RDONLY) });
    body("OPENAT that may create", open(1, &fifo, libc::O_WRONLY | libc::O_CREAT));
    let full = Full::new(&place.0.join("socket"), 0);
    body("CONNECT", full.connect(1));
}

#[both]
fn cancellation_ends_it(engine: Engine) {
    each_blocking(|name, sqe| {
        let mut ring = Ring::new(engine, 4, 0);
        submit_blocking(&mut ring, sqe);
        // The kernel does not find a request now and then, which a thread has just begun with, and may end it all
        // the same.
        let (mut answers, mut ends) = (Vec::new(), Vec::new());
        while ends.is_empty() && answers.iter().all(|&answer| answer == -libc::ENOENT) {
            ring.submit_and_wait(&[cancel(2, 1, 0)], 1);
            for cqe in ring.reap_all() {
                if cqe.user_data == 1 { ends.push(cqe.res) } else { answers.push(cqe.res) }
            }
        }
        if ends.is_empty() {
            ends.push(ring.collect(1)[0].res);
        }
        assert!(interrupted(engine, ends[0]), "{engine:?} {name}: {ends:?}, {answers:?}");
        assert!(answers == [-libc::EALREADY] || engine == Engine::Kernel, "{engine:?} {name}: {answers:?}");
    });
}

#[both]
fn synchronous_cancellation_waits_for_the_end(engine: Engine) {
    each_blocking(|name, sqe| {
        let mut ring = Ring::new(engine, 4, 0);
        submit_blocking(&mut ring, sqe);
        let mut wanted: io_uring_sync_cancel_reg = zeroed();
        (wanted.addr, wanted.fd) = (1, -1);
        (wanted.timeout.tv_sec, wanted.timeout.tv_nsec) = (20, 0);
        let code = IORING_REGISTER_SYNC_CANCEL;
        let cancel = || ring.register(code, (&raw const wanted).cast(), 1);
        let mut result = cancel();
        // As above; and what is done for the ring meanwhile may end the wait.
        while engine == Engine::Kernel && [-libc::ENOENT, -libc::EINTR].contains(&result) {
            result = cancel();
            if result == -libc::ENOENT {
                break;
            }
        }
        assert!(
            result == 0 || engine == Engine::Kernel && result == -libc::ENOENT,
            "{engine:?} {name}: {result}"
        );
        let cqes = ring.collect(1);
        assert!(interrupted(engine, cqes[0].res), "{engine:?} {name}: {cqes:?}");
    });
}

/// A request, and the timeout behind it.
fn with_timeout(ring: &mut Ring, sqe: Sqe, time: &[i64; 2]) -> [i32; 2] {
    ring.submit(&[
        Sqe { flags: sqe.flags | LINK, ..sqe },
        Sqe { opcode: IORING_OP_LINK_TIMEOUT as u8, ..timeout(2, time) },
    ]);
    let mut cqes = Vec::new();
    while cqes.len() < 2 {
        // The kernel's own means to carry out the timeout may end the wait with EINTR.
        let waited = ring.enter(0, 1);
        assert!(waited == 0 || waited == -libc::EINTR, "{waited}");
        cqes.extend(ring.reap_all());
    }
    cqes.sort_by_key(|cqe| cqe.user_data);
    [cqes[0].res, cqes[1].res]
}

/// A request that a thread has begun with when the time is over, and the timeout behind it.
fn begun_with_timeout(engine: Engine, sqe: Sqe, time: &[i64; 2]) -> [i32; 2] {
    let mut tries = std::iter::repeat_with(|| with_timeout(&mut Ring::new(engine, 4, 0), sqe, time)).take(20);
    tries.find(|results| results[0] != -libc::ECANCELED).expect("a thread begins at last")
}

#[test]
fn link_timeout_ends_it() {
    let time = [0, 50_000_000];
    let place = Directory::new();
    both(|engine| {
        let path = place.0.join(format!("{engine:?}"));
        let full = Full::new(&path, 0);
        let results = begun_with_timeout(engine, full.connect(1), &time);
        assert_eq!(results[0], -libc::EINTR);
        results
    });
    // Linux 6.18 does not arm a timeout behind what it leaves to a thread at once.
    each_blocking(|name, sqe| {
        let results = begun_with_timeout(Engine::User, sqe, &time);
        assert_eq!(results, [-libc::EINTR, -libc::ENOENT], "{name}");
    });
}

#[both(4, 0)]
fn end_of_the_ring_ends_it(mut ring: Ring) {
    let ((from, into), (_b, to)) = (pipe(), pipe());
    submit_blocking(&mut ring, splice(1, &from, &to, 4096));
    drop((from, ring));
    until("nobody reads the pipe any more", || shown(&into, 0, 0) & libc::POLLERR != 0);
}

#[by(ours(4, 0))]
fn whenever_it_comes(mut ring: Ring) {
    let ((from, _a), (_b, to)) = (pipe(), pipe());
    for round in 0..3000 {
        ring.submit(&[splice(1, &from, &to, 4096)]);
        // From before the worker begins until it sleeps.
        (0..round % 300 * 30).for_each(|_| std::hint::spin_loop());
        ring.submit(&[cancel(2, 1, 0)]);
        let cqes = by_user_data(ring.collect(2));
        let results = (cqes[0].res, cqes[1].res);
        let ended = results == (-libc::EINTR, -libc::EALREADY) || results == (-libc::ECANCELED, 0);
        assert!(ended, "round {round}: {cqes:?}");
    }
}

#[both]
fn others_are_left_alone(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 8, 0);
    let ((from, _a), (other, into), (_b, to)) = (pipe(), pipe(), pipe());
    submit_blocking(&mut ring, splice(1, &from, &to, 4096));
    submit_blocking(&mut ring, splice(3, &other, &to, 4096));
    ring.submit(&[cancel(2, 1, 0)]);
    ring.collect(2);
    assert_eq!(blocked(), 1, "{engine:?}");
    write_to(&into, b"x");
    let cqes = ring.collect(1);
    (cqes[0].user_data, cqes[0].res)
}

#[both]
fn those_of_other_rings_are_left_alone(engine: Engine) {
    let mut rings = [(); 3].map(|()| Ring::new(engine, 8, 0));
    let (pipes, (_b, to)) = ([(); 3].map(|()| pipe()), pipe());
    for (ring, (from, _)) in rings.iter_mut().zip(&pipes) {
        submit_blocking(ring, splice(1, from, &to, 4096));
    }
    // Neither the first that began, nor the last.
    rings[1].push(cancel(2, 1, 0));
    assert_eq!(rings[1].enter(1, 0), 1);
    assert_eq!(rings[1].collect(2).len(), 2);
    assert_eq!(blocked(), 2, "{engine:?}");
    for (ring, (_, into)) in rings.iter_mut().zip(&pipes).step_by(2) {
        write_to(into, b"x");
        let cqes = ring.collect(1);
        assert_eq!((cqes[0].user_data, cqes[0].res), (1, 1), "{engine:?}");
    }
}

/// The program's action for a signal; it is asked and changed as a C library does it.
fn action(signal: i32, new: Option<usize>) -> usize {
    // SAFETY: a handler that is one, or none.
    unsafe {
        let (mut action, mut before) = (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed());
        let new = new.map(|new| {
            action.sa_sigaction = new;
            &raw const action
        });
        assert_eq!(libc::sigaction(signal, new.unwrap_or(std::ptr::null()), &mut before), 0);
        before.sa_sigaction
    }
}

fn taken_signal() -> Option<i32> {
    (35..=64).rev().find(|&signal| action(signal, None) != libc::SIG_DFL)
}

extern "C" fn nothing(_signal: i32) {}

#[by(in_child)]
fn a_program_that_takes_the_signal_is_not_killed() {
    let ((from, _a), (_b, to)) = (pipe(), pipe());
    let mut ring = Ring::new(Engine::User, 4, 0);
    for taken in [libc::SIG_DFL, nothing as *const () as usize] {
        submit_blocking(&mut ring, splice(1, &from, &to, 4096));
        let signal = taken_signal().expect("the engine has taken one");
        action(signal, Some(taken));
        ring.submit(&[cancel(2, 1, 0)]);
        assert_eq!(ring.collect(1)[0].res, -libc::EALREADY);
        assert_eq!(blocked(), 1, "it cannot be ended");
        write_to(&_a, b"x");
        assert_eq!(ring.collect(1)[0].res, 1);
        // The next has another signal.
        submit_blocking(&mut ring, splice(1, &from, &to, 4096));
        ring.submit(&[cancel(2, 1, 0)]);
        let cqes = ring.collect(2);
        assert!(cqes.iter().any(|cqe| cqe.res == -libc::EINTR), "{cqes:?}");
        assert_eq!(action(signal, None) == nothing as *const () as usize, taken != libc::SIG_DFL);
    }
}

#[by(in_child)]
fn a_program_that_waits_for_the_signal_gets_it() {
    let ((from, _a), (_b, to)) = (pipe(), pipe());
    let mut ring = Ring::new(Engine::User, 4, 0);
    // SAFETY: a set of signals of ours.
    let (signal, set) = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        submit_blocking(&mut ring, splice(1, &from, &to, 4096));
        let signal = taken_signal().expect("the engine has taken one");
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        (signal, set)
    };
    // SAFETY: to this process, which waits for it.
    let got = unsafe {
        libc::kill(libc::getpid(), signal);
        let time = libc::timespec { tv_sec: 20, tv_nsec: 0 };
        libc::sigtimedwait(&set, std::ptr::null_mut(), &time)
    };
    assert_eq!(got, signal);
    // The request goes on.
    write_to(&_a, b"x");
    assert_eq!(ring.collect(1)[0].res, 1);
}

/// Opens and closes of a FIFO that others can see, as inotify tells them.
struct Seen(OwnedFd);

impl Seen {
    fn of(path: &CString) -> Seen {
        // SAFETY: a new descriptor; reads a path.
        unsafe {
            let fd = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
            let events = libc::IN_OPEN | libc::IN_CLOSE_WRITE | libc::IN_CLOSE_NOWRITE;
            assert!(libc::inotify_add_watch(fd, path.as_ptr(), events) >= 0);
            Seen(OwnedFd::from_raw_fd(fd))
        }
    }

    fn so_far(&self) -> Vec<u32> {
        let mut events = [0u32; 256];
        // SAFETY: writes into the array.
        let got = unsafe { libc::read(self.0.as_raw_fd(), events.as_mut_ptr().cast(), size_of_val(&events)) };
        // No names: four words each, of which the second is the mask.
        events[..got.max(0) as usize / 4].chunks(4).map(|event| event[1]).collect()
    }
}

#[both]
fn a_fifo_is_opened_once(engine: Engine) -> impl Answer {
    let place = Directory::new();
    let mut seen = Vec::new();
    for (index, (flags, more)) in
        [(libc::O_RDONLY, ASYNC), (libc::O_RDONLY | libc::O_CREAT, 0), (libc::O_WRONLY | libc::O_CREAT, 0)]
            .into_iter()
            .enumerate()
    {
        let path = place.fifo(&format!("{engine:?}{index}"));
        let watch = Seen::of(&path);
        let mut ring = Ring::new(engine, 4, 0);
        submit_blocking(&mut ring, Sqe { flags: more, ..open(1, &path, flags) });
        seen.push(watch.so_far());
        let other = if flags & libc::O_ACCMODE == libc::O_RDONLY { libc::O_WRONLY } else { libc::O_RDONLY };
        // SAFETY: reads a path.
        let peer = unsafe { libc::open(path.as_ptr(), other) };
        let opened = ring.collect(1)[0].res;
        assert!(peer >= 0 && opened >= 0, "{engine:?}: {peer}, {opened}");
        seen.push(watch.so_far());
        drop([owned(peer), owned(opened)]);
    }
    seen
}

#[test]
fn many_wait_at_once() {
    const MANY: u64 = 1100;
    if !allow_files(8192) {
        return skip("too few files may be open (ulimit -n)");
    }
    both(|engine| {
        let ((from, _a), (_b, to), (other, into)) = (pipe(), pipe(), pipe());
        write_to(&into, b"x");
        let mut ring = Ring::new(engine, 2048, 0);
        ring.push_all((0..MANY).map(|user_data| splice(user_data, &from, &to, 4096)));
        ring.push(splice(MANY, &other, &to, 4096));
        assert_eq!(ring.enter(MANY as u32 + 1, 1), MANY as i32 + 1);
        let cqes = ring.reap_all();
        (cqes[0].user_data, cqes[0].res)
    });
}

/// Splices that block, in a process that may have `threads` threads: how many got what was written for them.
fn with_threads(engine: Engine, user: u32, threads: u64, splices: u64) -> i32 {
    let pid = child(|| {
        without_more_threads(user, threads);
        let mut ring = Ring::new(engine, 64, 0);
        let (_b, to) = pipe();
        let pipes: Vec<_> = (0..splices).map(|_| pipe()).collect();
        ring.submit_all(
            pipes.iter().enumerate().map(|(user_data, (from, _))| splice(user_data as u64, from, &to, 4096)),
            0,
        );
        for (_, into) in pipes.iter().rev() {
            write_to(into, b"x");
        }
        let cqes = ring.collect(splices as usize);
        let done = cqes.iter().filter(|cqe| cqe.res == 1).count();
        let refused = cqes.iter().filter(|cqe| cqe.res == -libc::ECANCELED).count();
        assert_eq!(done + refused, cqes.len(), "{cqes:?}");
        // SAFETY: ends the child.
        unsafe { libc::_exit(done as i32) }
    });
    ended(pid)
}

#[by(in_child_of_root)]
fn without_threads_the_caller_does_what_is_slow() -> impl Found {
    const LENGTH: usize = 32 << 20;
    without_more_threads(0x5000_0000 + std::process::id(), 1);
    let mut ring = Ring::new(Engine::User, 8, 0);
    let file = memory_file(b"");
    let data = vec![1u8; LENGTH];
    ring.submit_all(
        (0..4)
            .map(|index| Sqe { off: index * LENGTH as u64, ..writing(IORING_OP_WRITE, index, &file, &data) }),
        0,
    );
    // Nobody else could do it.
    let cqes = ring.reap_all();
    cqes.len() == 4 && cqes.iter().all(|cqe| cqe.res == LENGTH as i32)
}

#[by(both_if(is_root))]
fn without_threads_requests_wait_or_end(engine: Engine) -> impl Answer {
    let user = 0x4000_0000 + std::process::id();
    let with = |offset, threads| with_threads(engine, user + offset, threads, 10);
    [with(0, 1), with(1, 4)]
}
