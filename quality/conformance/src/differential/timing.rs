//! Other timings: a difference that disappears with one of them depends on timing, which the ABI
//! leaves open. The scheduler determines whether a thread of the kernel begins a request before or
//! after a cancellation finds it; these timings make it late or early.

use std::path::Path;

use super::child::run_and_clean;
use super::program::{Program, Sqe};
use super::run::{Arenas, Times, Unsaid};
use crate::harness::sqe_flags::{ASYNC, DRAIN, LINKS};
use crate::ring::Engine;

/// True if the engines agree under another timing.
pub fn agree_otherwise(program: &Program, arenas: &Arenas, scratch: &Path) -> bool {
    let again = || agree(program, &Arenas::default(), scratch, Times::PATIENT);
    agree(program, arenas, scratch, Times::UNHURRIED)
        // Workers of the kernel may hang in requests of earlier programs of this thread.
        || in_a_thread(again)
        || in_a_thread(|| {
            stay_here();
            again()
        })
}

/// True if the kernel itself does what the user engine does: without the flags for threads or for draining, without the links
/// of one chain, or at another time.
pub fn is_proved(program: &Program, arenas: &Arenas, scratch: &Path) -> bool {
    let agree_without = |unsaid| agree(program, arenas, scratch, Times { unsaid, ..Times::PATIENT });
    let flags = [ASYNC, DRAIN, ASYNC | DRAIN].map(|flags| Unsaid { flags, chain: None });
    let linked = |sqe: &&Sqe| sqe.flags & LINKS != 0 && program.chain_of(sqe.user_data) == sqe.user_data;
    let chains = program.sqes().filter(linked);
    let chains = chains.map(|head| Unsaid { flags: ASYNC, chain: Some(head.user_data) });
    flags.into_iter().chain(chains).any(agree_without) || agree_otherwise(program, arenas, scratch)
}

/// True if the engines behave alike in a run with these times, without an explained difference.
fn agree(program: &Program, arenas: &Arenas, scratch: &Path, times: Times) -> bool {
    matches!(run_and_clean(program, [Engine::User, Engine::Kernel], arenas, scratch, times), Ok(None))
}

/// Runs `body` in a thread, which has its own workers of the kernel.
fn in_a_thread(body: impl FnOnce() -> bool + Send) -> bool {
    std::thread::scope(|scope| scope.spawn(body).join().unwrap_or(false))
}

/// Binds the calling thread, which has no ring yet, to one processor, with priority over its
/// children. Without the privilege for the priority, they still have no other processor.
fn stay_here() {
    // SAFETY: plain calls for this thread, with structures of ours.
    unsafe {
        let mut here: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu().max(0) as usize, &mut here);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &here);
        let first = libc::sched_param { sched_priority: 1 };
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &first);
    }
    keep_workers_here();
}

/// Binds the kernel's workers of this thread to its processor.
fn keep_workers_here() {
    const REGISTER_IOWQ_AFF: u32 = 17;
    // SAFETY: a structure of integers.
    let mut params: anyring_engine::io_uring_params = unsafe { std::mem::zeroed() };
    let ring = crate::ring::setup(Engine::Kernel, 1, (&raw mut params) as usize);
    if ring >= 0 {
        let mut here = [0u64; 16];
        // SAFETY: a query only.
        let processor = unsafe { libc::sched_getcpu() }.max(0) as usize;
        here[processor / 64 % 16] |= 1 << (processor % 64);
        crate::ring::register(Engine::Kernel, ring, REGISTER_IOWQ_AFF, here.as_ptr() as usize, 128);
        crate::ring::close(ring);
    }
}
