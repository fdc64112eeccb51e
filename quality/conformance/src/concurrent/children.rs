//! Children of a program: they have its rings, and touch only shared memory.

use std::sync::Once;
use std::sync::atomic::Ordering::*;

use anyring_engine::abi::Sqe;
use anyring_engine::{frontend, io_uring_params};
use linux_raw_sys::io_uring::*;

use super::memory::{Kind, Request, State};
use super::plan::{Child, Own};
use super::world::World;
use crate::ring::{Engine, Ring};
use crate::rng::Rng;

/// Reports every `fork` to the engine from now on.
pub fn announce_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the hooks stay valid.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(after), Some(forked));
    });
}

unsafe extern "C" fn before() {
    frontend::before_fork();
}

unsafe extern "C" fn after() {
    frontend::after_fork();
}

unsafe extern "C" fn forked() {
    frontend::forked();
}

/// The number of messages that a child sends.
const MESSAGES: u32 = 50;

/// Forks a child. If it is `stopped`, at any point, the work on another ring must continue.
pub fn fork(world: &World, rng: &mut Rng, child: Child, stopped: Option<Own>) {
    let open = |index: usize| world.ring(index).filter(|ring| !ring.is_closed()).map(|ring| (index, ring));
    let shared = if let Child::Nop(index) = child { open(index) } else { None };
    let nop = shared.and_then(|(index, _)| world.shared.open(&Request::new(Kind::Nop, index)));
    // SAFETY: the child allocates nothing, takes no lock of this process, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: takes no pointer. The child dies with its parent.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let good = match (shared, nop, child) {
            (Some((_, ring)), Some(id), _) => push(world, ring, id),
            (_, _, Child::OwnRing(target)) => own_ring(world, target.and_then(open)),
            (_, _, Child::Nop(_)) => own_ring(world, None),
            (_, _, Child::Ends) => true,
        };
        if world.engine == Engine::User {
            frontend::exits();
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    if pid < 0 {
        world.fail("no child can be made".to_owned());
        if let Some(id) = nop {
            world.shared.entry(id).set_state(State::Free);
        }
        return;
    }
    if let Some(work) = stopped {
        (0..rng.below(20_000)).for_each(|_| std::hint::spin_loop());
        // SAFETY: a child of ours, which has not been waited for.
        let signal = |signal| unsafe { libc::kill(pid, signal) };
        signal(libc::SIGSTOP);
        super::own::work(world, rng, work);
        signal(libc::SIGCONT);
    }
    world.children.with(|children| children.push(pid));
}

fn push(world: &World, ring: &super::ring::SharedRing, id: u32) -> bool {
    let sqe = Sqe { fd: -1, user_data: u64::from(world.tag) << 32 | u64::from(id), ..Sqe::default() };
    let polled = ring.params.flags & IORING_SETUP_SQPOLL != 0;
    let flags = if polled { IORING_ENTER_SQ_WAKEUP } else { 0 };
    loop {
        let held = ring.note.sq.lock();
        // A submission by this process looks up files among the child's descriptors. The files of the parent's SQEs may
        // not be among them, or their numbers may be others': the child leaves these SQEs to the parent.
        if ring.has_room(&[sqe]) && (polled || ring.pending() == 0) {
            world.shared.entry(id).submitted.store(ring.pushed(), Relaxed);
            ring.push(&[sqe]);
            while ring.pending() > 0 && !ring.is_closed() {
                ring.enter(1, 0, flags);
                if polled {
                    std::thread::yield_now();
                }
            }
            return true;
        }
        drop(held);
        if ring.is_closed() {
            // If no process takes SQEs any more, there is never room again.
            world.shared.entry(id).set_state(State::Free);
            return true;
        }
        if polled {
            ring.enter(1, 0, flags);
        }
        std::thread::yield_now();
    }
}

fn own_ring(world: &World, target: Option<(usize, &super::ring::SharedRing)>) -> bool {
    // SAFETY: integers only.
    let params: io_uring_params = unsafe { std::mem::zeroed() };
    let Ok(ring) = Ring::new(world.engine, 4, params) else { return false };
    let run = |sqe: Sqe| {
        ring.push(sqe);
        let result = ring.enter(1, 1, IORING_ENTER_GETEVENTS);
        let cqe = ring.reap().filter(|cqe| result == 1 && cqe.user_data == sqe.user_data);
        cqe.map(|cqe| cqe.res)
    };
    let good = (0..3).all(|round| run(Sqe { fd: -1, user_data: round, ..Sqe::default() }) == Some(0));
    good && target.is_none_or(|(index, target)| send(world, index, target.fd, run))
}

/// Sends messages to a ring of the program, as long as it takes them. A closed ring takes none, and its number may be another file's.
fn send(world: &World, index: usize, fd: i32, run: impl Fn(Sqe) -> Option<i32>) -> bool {
    let mut first = None;
    for _ in 0..MESSAGES {
        // One plus the sender's first message, which stands for the sender.
        let object = first.map_or(u32::MAX, |first: u32| first + 1);
        let Some(id) = world.shared.open(&Request { object, ..Request::new(Kind::Message, index) }) else {
            break;
        };
        first.get_or_insert(id);
        let opcode = io_uring_op::IORING_OP_MSG_RING as u8;
        let off = u64::from(world.tag) << 32 | u64::from(id);
        match run(Sqe { opcode, fd, off, len: id, user_data: off, ..Sqe::default() }) {
            Some(0) => {}
            Some(_) => {
                world.shared.entry(id).set_state(State::Free);
                break;
            }
            None => return false,
        }
    }
    true
}

/// Waits for all children.
pub fn join(world: &World) {
    for pid in world.children.with(std::mem::take) {
        let mut status = 0;
        // SAFETY: a child of ours.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        if status != 0 {
            world.fail(format!("a child ends with status {status:#x}"));
        }
    }
}
