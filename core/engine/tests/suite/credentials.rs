//! With whose credentials requests are done: personalities, and threads with rights of their own.

use crate::common::prelude::*;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use anyring_engine::credentials::{Change, Reach};

const NONE: *const c_void = std::ptr::null();
const NOBODY: u32 = 65534;

fn register_personality(ring: &Ring) -> i32 {
    ring.register(IORING_REGISTER_PERSONALITY, NONE, 0)
}

fn unregister_personality(ring: &Ring, number: u32) -> i32 {
    ring.register(IORING_UNREGISTER_PERSONALITY, NONE, number)
}

/// A file that nobody but root may read.
struct Secret(CString, Directory);

impl Secret {
    fn new() -> Secret {
        let directory = Directory::new();
        let path = directory.file("secret", "");
        std::fs::set_permissions(directory.0.join("secret"), Permissions::from_mode(0o600)).unwrap();
        Secret(path, directory)
    }

    fn open(&self, flags: u8, personality: i32) -> Sqe {
        Sqe { flags, personality: personality as u16, ..open(1, &self.0, 0) }
    }

    /// The results of opening it in every way: by the caller, by a worker, behind another request.
    fn opens(&self, ring: &mut Ring, personality: i32) -> [i32; 3] {
        // An SQ thread may take the first of a chain before the second is there.
        let polled = ring.params.flags & IORING_SETUP_SQPOLL != 0;
        let chain = [nop(0, LINK), self.open(0, personality)];
        [
            result(ring, &[self.open(0, personality)]),
            result(ring, &[self.open(ASYNC, personality)]),
            result(ring, if polled { &chain[1..] } else { &chain }),
        ]
    }
}

/// The result of the last request; 0 for a descriptor, which is closed.
fn result(ring: &mut Ring, sqes: &[Sqe]) -> i32 {
    ring.push_together(sqes);
    // The SQ thread, where there is one, may have fallen asleep.
    let (count, flags) = (sqes.len() as u32, IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP);
    assert_eq!(ring.enter_with(count, count, flags), count as i32);
    let mut completions = ring.reap_all();
    // With an SQ thread, the call does not say that its wait was cut short.
    while completions.len() < sqes.len() {
        ring.enter(0, 1);
        completions.extend(ring.reap_all());
    }
    let result = completions[sqes.len() - 1].res;
    if result >= 0 {
        close_number(result);
    }
    result.min(0)
}

/// Changes the user whose rights to files the calling thread has.
fn act_as(engine: Engine, user: u32) {
    let change = (engine == Engine::User).then(|| Change::begin(Reach::Thread)).flatten();
    // SAFETY: changes this thread only.
    unsafe { libc::syscall(libc::SYS_setfsuid, user) };
    if let Some(change) = change {
        change.end();
    }
}

/// Runs `body` on both engines, each in a thread of its own, where there are rights to give up.
fn both_as_root<R: PartialEq + std::fmt::Debug + Send>(body: impl Fn(Engine) -> R + Sync) {
    both_if(is_root, |engine| std::thread::scope(|scope| scope.spawn(|| body(engine)).join().unwrap()));
}

/// Runs `body` in a child that is root, with a secret that others take away.
fn secretly(body: impl FnOnce(&Secret)) {
    let secret = Secret::new();
    in_child_of_root(|| body(&secret));
}

#[both(4, 0)]
fn numbers_of_personalities(ring: Ring) -> impl Answer {
    let mut all: Vec<i32> = (0..3).map(|_| register_personality(&ring)).collect();
    all.extend([2, 2, 0, 77, 1 << 16 | 1].map(|number| unregister_personality(&ring, number)));
    all.push(ring.register(IORING_REGISTER_PERSONALITY, NONE, 1));
    all.push(ring.register(IORING_UNREGISTER_PERSONALITY, std::ptr::dangling(), 1));
    // Numbers go around before they come again.
    all.extend((0..3).map(|_| register_personality(&ring)));
    loop {
        let number = register_personality(&ring);
        if number < 100 {
            all.push(number);
            return all;
        }
        assert_eq!(unregister_personality(&ring, number as u32), 0);
    }
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn requests_with_the_submitters_own_personality(mut ring: Ring) -> impl Answer {
    let own = register_personality(&ring);
    let as_own = |sqe: Sqe| Sqe { personality: own as u16, ..sqe };
    let file = eventfd(1, libc::EFD_CLOEXEC);
    ring.register_files(&[file.as_raw_fd()]);
    let install = Sqe { flags: FIXED, ..sqe(IORING_OP_FIXED_FD_INSTALL, 2) };
    let unknown = Sqe { personality: own as u16 + 1, ..nop(4, 0) };
    ring.run(&[as_own(nop(1, 0)), as_own(install), as_own(poll(3, &file, libc::POLLIN)), unknown])
}

#[by(both_as_root)]
fn personalities_outlive_the_rights_of_their_thread(engine: Engine) -> impl Answer + Send {
    let secret = Secret::new();
    let mut all = Vec::new();
    for flags in [0, DEFER, IORING_SETUP_SQPOLL] {
        let mut ring = Ring::new(engine, 8, flags);
        let root = register_personality(&ring);
        act_as(engine, NOBODY);
        let nobody = register_personality(&ring);
        all.push(secret.opens(&mut ring, root));
        all.push(secret.opens(&mut ring, nobody));
        act_as(engine, 0);
        all.push(secret.opens(&mut ring, nobody));
        all.push(secret.opens(&mut ring, root));
        // What a timeout does, everybody may do.
        let time = [0i64, 1];
        let timeout = Sqe { personality: nobody as u16, ..timeout(2, &time) };
        all.push([result(&mut ring, &[timeout]); 3]);
        let unregistered = [nobody, root, root].map(|number| unregister_personality(&ring, number as u32));
        all.push(unregistered);
        all.push(secret.opens(&mut ring, nobody));
    }
    all
}

#[by(both_as_root)]
fn requests_in_flight_keep_an_unregistered_personality(engine: Engine) -> impl Answer + Send {
    let secret = Secret::new();
    let mut ring = Ring::new(engine, 8, 0);
    let root = register_personality(&ring);
    act_as(engine, NOBODY);
    let event = eventfd(0, libc::EFD_CLOEXEC);
    let waits = Sqe { flags: LINK, ..poll(3, &event, libc::POLLIN) };
    ring.submit(&[waits, secret.open(0, root)]);
    let unregistered = unregister_personality(&ring, root as u32);
    write_to(&event, &1u64.to_ne_bytes());
    let results: Vec<i32> = ring.waited(2).iter().map(|cqe| cqe.res).collect();
    close_number(results[1]);
    (unregistered, results[0], results[1].min(0))
}

#[by(both_as_root)]
fn a_thread_has_rights_of_its_own(engine: Engine) -> impl Answer + Send {
    let secret = Secret::new();
    let mut ring = Ring::new(engine, 8, 0);
    let mut all = vec![secret.opens(&mut ring, 0)];
    for user in [NOBODY, 0, 1, 0] {
        act_as(engine, user);
        all.push(secret.opens(&mut ring, 0));
        // One that begins with what its creator has, on a ring that others have used.
        all.push(std::thread::scope(|scope| scope.spawn(|| secret.opens(&mut ring, 0)).join().unwrap()));
    }
    all
}

/// How many threads of this process have root's rights.
fn threads_of_root() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // One that ends meanwhile has none.
    let status = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")));
    status.flatten().filter(|status| status.contains("\nUid:\t0")).count()
}

/// The calling thread, and to the engine the process, is nobody from here on.
fn become_nobody() {
    let change = Change::begin(Reach::Process).expect("the engine is in use");
    // SAFETY: changes this thread, which is the only one of the program.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) }, 0);
    change.end();
}

#[by(secretly)]
fn no_thread_keeps_what_the_process_gave_up(secret: &Secret) {
    let (mut ring, mut polled) =
        (Ring::new(Engine::User, 8, 0), Ring::new(Engine::User, 8, IORING_SETUP_SQPOLL));
    let (from, mut to) = std::io::pipe().unwrap();
    let mut byte = [0u8];
    let read = Sqe { flags: ASYNC, ..reading(IORING_OP_READ, 7, &from, &mut byte) };
    // A worker for what ends soon and one for what may not, both idle; the SQ thread; the reactor.
    assert!(result(&mut ring, &[secret.open(ASYNC, 0)]) >= 0);
    ring.submit(&[read]);
    to.write_all(b"x").unwrap();
    ring.collect(1);
    assert_eq!(result(&mut polled, &[nop(1, 0)]), 0);
    assert!(threads_of_root() > 1, "there are threads of the engine");
    become_nobody();
    assert_eq!(threads_of_root(), 0, "none is left that had nothing to do");
    assert_eq!(result(&mut ring, &[secret.open(ASYNC, 0)]), -libc::EACCES);
    assert_eq!(result(&mut polled, &[secret.open(0, 0)]), -libc::EACCES);
}

#[by(secretly)]
fn a_busy_thread_ends_with_what_was_submitted_before(secret: &Secret) {
    let fifo = secret.1.fifo("fifo");
    std::fs::set_permissions(secret.1.0.join("fifo"), Permissions::from_mode(0o666)).unwrap();
    let mut ring = Ring::new(Engine::User, 8, 0);
    ring.submit(&[Sqe { flags: ASYNC, ..open(7, &fifo, 0) }]);
    until("a worker opens the FIFO", || threads_of_root() > 1);
    become_nobody();
    assert_eq!(result(&mut ring, &[secret.open(ASYNC, 0)]), -libc::EACCES);
    // SAFETY: a path.
    until("the reader is there", || unsafe {
        libc::open(fifo.as_ptr(), libc::O_WRONLY | libc::O_NONBLOCK) >= 0
    });
    assert!(ring.collect(1)[0].res >= 0);
    until("the busy thread ends", || threads_of_root() == 0);
}

/// The users of this process's threads of this name, but for those that the kernel is about to take away.
fn users_of(name: &str) -> Vec<u32> {
    let read = |task: &std::fs::DirEntry, file: &str| std::fs::read_to_string(task.path().join(file)).ok();
    let user = |task: std::fs::DirEntry| {
        let status = read(&task, "status")?;
        let named = read(&task, "comm")?.trim().starts_with(name);
        let dying = status
            .lines()
            .any(|line| line.starts_with("State:") && (line.contains('Z') || line.contains('X')));
        let line = status.lines().find(|line| line.starts_with("Uid:"))?;
        (named && !dying).then(|| line.split_whitespace().nth(2).unwrap().parse().unwrap())
    };
    std::fs::read_dir("/proc/self/task").unwrap().flatten().filter_map(user).collect()
}

#[by(in_child_of_root)]
fn no_idle_thread_keeps_what_the_process_gave_up() {
    ends_after(30);
    let mut ring = Ring::new(Engine::User, 16, 0);
    let (file, (from, mut into), (_b, to)) =
        (File::open("/dev/null").unwrap(), std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let personality = register_personality(&ring);
    assert!(personality > 0);
    let splice = splice(7, &from, &to, 4096);
    ring.push_all((0..3).map(|_| Sqe { fd: file.as_raw_fd(), ..sqe(IORING_OP_FSYNC, 1) }));
    ring.push(splice);
    assert_eq!(ring.enter(4, 0), 4);
    ring.collect(3);
    until("threads are there", || !users_of("iou-wrk").is_empty() && users_of("iou-cloner") == [0]);
    become_nobody();
    // One is at the splice, in the name of whoever submitted it; others may still be on their way back from the rest.
    until("who is idle leaves", || users_of("iou-wrk").iter().filter(|&&user| user == 0).count() <= 1);
    // A worker that it has just cloned still has its name.
    until("the personality goes on", || users_of("iou-cloner") == [0]);
    into.write_all(b"x").unwrap();
    assert_eq!(ring.collect(1)[0].res, 1);
    until("the last of them leaves", || !users_of("iou-wrk").contains(&0));
    // What is submitted now is done with what is left.
    ring.submit(&[Sqe { fd: file.as_raw_fd(), ..sqe(IORING_OP_FSYNC, 1) }, splice]);
    ring.collect(1);
    until("a thread of the new user is there", || users_of("iou-wrk").contains(&NOBODY));
    assert!(!users_of("iou-wrk").contains(&0));
    // By the personality, the cloner has it done.
    ring.submit(&[Sqe { personality: personality as u16, ..splice }]);
    until("a thread of the personality is there", || users_of("iou-wrk").contains(&0));
    for _ in 0..2 {
        // One of the two takes what is there.
        into.write_all(b"x").unwrap();
        assert_eq!(ring.collect(1)[0].res, 1);
    }
    assert_eq!(unregister_personality(&ring, personality as u32), 0);
    until("nobody is root any more", || {
        !users_of("iou-wrk").contains(&0) && users_of("iou-cloner").is_empty()
    });
}
