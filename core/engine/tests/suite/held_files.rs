//! Requests hold their files: once the program can know that an SQE was consumed, it may close the descriptor, and the
//! number may be another file's.
//!
//! The first of two writes stops in the middle, on a page of its buffer that is not there until the test gives it. As soon
//! as there is evidence that both SQEs were consumed, the descriptor of the second becomes that of another file.

use std::sync::mpsc;
use std::thread::JoinHandle;

use crate::common::prelude::*;

/// However many requests wait for a file that is closed, the engine has one descriptor of it.
#[test]
fn requests_on_a_closed_file_share_a_descriptor() {
    let mut ring = Ring::new(Engine::User, 128, 0);
    let (near, far) = UnixStream::pair().unwrap();
    let polls = |user_data| Sqe { len: user_data as u32 % 2, ..poll(user_data, &near, libc::POLLIN) };
    ring.submit_all((0..100).map(polls), 0);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    close(Engine::User, near.into_raw_fd());
    assert_eq!(open(), before);
    write_to(&far, b"x");
    assert!(ring.collect(100).iter().all(|cqe| cqe.res & i32::from(libc::POLLIN) != 0));
}

/// A thread, once it sleeps or has ended.
fn thread(body: impl FnOnce() -> i32 + Send + 'static) -> JoinHandle<i32> {
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        tell.send(thread_id()).unwrap();
        body()
    });
    let pid = told.recv().unwrap();
    let rests = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().unwrap().trim_start().starts_with(['S', 'D'])
    };
    while !thread.is_finished() && !rests() {
        std::thread::yield_now();
    }
    thread
}

/// The sign that the writes were consumed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// The SQ head is behind them.
    Head,
    /// A request that was submitted behind them has completed.
    LaterCompletion,
    /// A call of another thread, which submits what is behind them, has returned.
    OtherCall,
    /// The SQ head is behind them when another thread forks.
    HeadAtFork,
    /// The SQ head is behind them when a thread that waits has done other work.
    HeadAfterOtherWork,
}

fn case(evidence: Evidence) {
    if Missing::new().is_none() {
        return skip(NO_MISSING);
    }
    let directory =
        std::env::temp_dir().join(format!("anyring-held-{}-{}", std::process::id(), evidence as u8));
    std::fs::create_dir_all(&directory).unwrap();
    both(|engine| {
        let missing = Missing::new().expect("there was one");
        let open = |name: &str| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(true).open(directory.join(name)).unwrap()
        };
        let (first, second, other, third) = (open("first"), open("second"), open("other"), open("third"));
        // Through another descriptor, for that of the second becomes another file's.
        let mut written = second.try_clone().unwrap();
        let mut spoiled = other.try_clone().unwrap();
        let mut ring = Ring::new(engine, 8, 0);
        let write = |user_data, file: &File, buffer: *const u8, len: u32| Sqe {
            fd: file.as_raw_fd(),
            addr: buffer as u64,
            len,
            ..sqe(IORING_OP_WRITE, user_data)
        };
        let mut waiter = None;
        let (event, woken) = pipe();
        if evidence == Evidence::HeadAfterOtherWork {
            let waits = Sqe { flags: LINK, ..poll(4, &event, libc::POLLIN) };
            ring.submit(&[waits, write(5, &third, b"third".as_ptr(), 5)]);
        }
        let wake = || write_to(&woken, b"x");
        let before = ring.word(ring.params.sq_off.head).load(Ordering::Acquire);
        ring.push(write(1, &first, missing.address(), Missing::LENGTH));
        ring.push(write(2, &second, b"second".as_ptr(), 6));
        let behind = u32::from(evidence == Evidence::LaterCompletion);
        if behind > 0 {
            ring.push(sqe(IORING_OP_NOP, 3));
        }
        let fd = ring.fd;
        let submitter = thread(move || enter(engine, fd, 2 + behind, 0, 0, std::ptr::null(), 0));
        let mut other_call = None;
        if evidence == Evidence::OtherCall {
            ring.push(sqe(IORING_OP_NOP, 3));
            other_call = Some(thread(move || enter(engine, fd, 1, 0, 0, std::ptr::null(), 0)));
        }
        let mut forks = None;
        if evidence == Evidence::HeadAtFork {
            ring.push(sqe(IORING_OP_NOP, 3));
            forks = Some(thread(move || child(|| enter(engine, fd, 1, 0, 0, std::ptr::null(), 0) == 1)));
        }
        if evidence == Evidence::HeadAfterOtherWork {
            let wait = move || enter(engine, fd, 0, 2, IORING_ENTER_GETEVENTS, std::ptr::null(), 0);
            let thread = thread(wait);
            if engine == Engine::User {
                wake();
                until("a call that waits does work", || thread.is_finished());
            }
            waiter = Some(thread);
        }
        let consumed = submitter.is_finished()
            || match evidence {
                Evidence::Head | Evidence::HeadAtFork | Evidence::HeadAfterOtherWork => {
                    ring.word(ring.params.sq_off.head).load(Ordering::Acquire) >= before + 2
                }
                Evidence::LaterCompletion => ring.word(ring.params.cq_off.tail).load(Ordering::Acquire) > 0,
                Evidence::OtherCall => other_call.as_ref().is_some_and(JoinHandle::is_finished),
            };
        if consumed {
            replace(&second, &other);
        }
        missing.give();
        if waiter.is_some() && engine == Engine::Kernel {
            // There, nothing of the ring goes on while a submission stops.
            wake();
        }
        assert_eq!(submitter.join().unwrap(), 2 + behind as i32);
        let others = if waiter.is_some() { 2 } else { 0 };
        let nops = others + behind as usize + usize::from(other_call.is_some() || forks.is_some());
        if let Some(call) = other_call {
            assert_eq!(call.join().unwrap(), 1);
        }
        if let Some(waiter) = waiter {
            assert_eq!(waiter.join().unwrap(), 0);
        }
        if let Some(forks) = forks {
            assert_eq!(ended(forks.join().unwrap()), 0);
        }
        let results = results(&ring.collect(2 + nops));
        let (mut content, mut wrong) = (String::new(), String::new());
        written.read_to_string(&mut content).unwrap();
        spoiled.read_to_string(&mut wrong).unwrap();
        assert_eq!((content.as_str(), wrong.as_str()), ("second", ""), "written to the file that was named");
        results
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn the_sq_head_tells_that_files_are_held() {
    case(Evidence::Head);
}

#[test]
fn a_later_completion_tells_that_files_are_held() {
    case(Evidence::LaterCompletion);
}

#[test]
fn another_call_tells_that_files_are_held() {
    case(Evidence::OtherCall);
}

#[test]
fn the_sq_head_tells_that_files_are_held_around_a_fork() {
    case(Evidence::HeadAtFork);
}

#[test]
fn a_thread_that_waits_does_not_end_what_is_lent_to_another() {
    case(Evidence::HeadAfterOtherWork);
}
