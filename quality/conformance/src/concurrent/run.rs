//! A program's threads, and what they do.

use std::sync::atomic::Ordering::*;

use linux_raw_sys::io_uring::*;

use super::complete::{BATON, provide, reap};
use super::finish;
use super::generate::SLOTS;
use super::memory::Meeting;
use super::plan::*;
use super::prepare::{Batch, withdraw};
use super::ring::SharedRing;
use super::world::World;
use crate::ring::{self, Engine};
use crate::rng::Rng;
use anyring_engine::abi::{IORING_REGISTER_BPF_FILTER, Sqe};

/// Runs the program's threads to their ends.
pub fn run(world: &World) {
    if world.engine == Engine::User {
        ring::play(world.program.newest);
    }
    let count = world.program.threads.len();
    let barrier = Meeting::new(count);
    std::thread::scope(|scope| {
        let start = |thread| {
            let barrier = &barrier;
            let name = format!("program-{thread}");
            let body = move || {
                Runner { world, thread, rng: Rng::new(world.program.seed ^ thread as u64) }.run(barrier)
            };
            std::thread::Builder::new().name(name).spawn_scoped(scope, body).expect("a thread")
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        // The end of the scope would suffice, but ThreadSanitizer does not see its ordering.
        for thread in threads {
            thread.join().expect("it ends");
        }
    });
}

/// The operations with filters.
const FILTERED: [io_uring_op; 5] = [
    io_uring_op::IORING_OP_NOP,
    io_uring_op::IORING_OP_READ,
    io_uring_op::IORING_OP_SEND,
    io_uring_op::IORING_OP_TIMEOUT,
    io_uring_op::IORING_OP_ASYNC_CANCEL,
];

/// Registers a filter for an operation that allows all user data except one value, which no request has.
fn allow(ring: &SharedRing, opcode: io_uring_op) -> i32 {
    // Classic BPF instructions: load the first word of the context, jump if it is all ones, allow, deny.
    let program: [u64; 4] = [0x20, 0x15 | 1 << 16 | 0xffff_ffff << 32, 0x06 | 1 << 32, 0x06];
    // `struct io_uring_bpf`, with the command for a filter.
    let mut words = [1, opcode as u64, program.len() as u64, program.as_ptr() as u64, 0, 0, 0, 0, 0];
    ring.register(IORING_REGISTER_BPF_FILTER, words.as_mut_ptr() as usize, 1)
}

/// A thread of a program.
pub struct Runner<'a> {
    /// The program's world.
    pub world: &'a World<'a>,
    /// The thread's number.
    pub thread: usize,
    rng: Rng,
}

impl<'a> Runner<'a> {
    fn run(mut self, barrier: &Meeting) {
        let note = &self.world.shared.threads[self.thread];
        // SAFETY: asks for a number.
        note.tid.store(unsafe { libc::gettid() }, Relaxed);
        self.make_rings();
        barrier.wait();
        for (place, act) in self.world.program.threads[self.thread].iter().enumerate() {
            note.act.store(place as u32 + 1, Relaxed);
            self.act(act);
            self.world.shared.step();
        }
        note.act.store(0, Relaxed);
        barrier.wait();
        finish::rings(&mut self, barrier);
        barrier.wait();
        if self.world.engine == Engine::User {
            anyring_engine::frontend::thread_ends();
        }
    }

    /// Creates the rings of this thread.
    fn make_rings(&self) {
        for (index, plan) in self.world.program.rings.iter().enumerate() {
            if plan.owner != self.thread {
                continue;
            }
            let mut attach = 0;
            if plan.flags & IORING_SETUP_ATTACH_WQ != 0 {
                let first = &self.world.shared.rings[0].fd;
                // Acquire pairs with the release after the ring's creation.
                while first.load(Acquire) == 0 {
                    std::thread::yield_now();
                }
                attach = first.load(Relaxed) - 1;
            }
            let note = &self.world.shared.rings[index];
            let ring = SharedRing::new(self.world.engine, plan, attach, note);
            if let Err(errno) = &ring {
                note.fd.store(-1, Release);
                self.world.fail(format!("ring {index} cannot be made: {errno}"));
            }
            let _ = self.world.rings[index].set(ring);
            self.furnish(index, plan);
        }
    }

    /// Registers the resources of a ring.
    fn furnish(&self, index: usize, plan: &RingPlan) {
        let world = self.world;
        let Some(ring) = world.ring(index) else { return };
        let check = |what: &str, result: i32| {
            if result < 0 {
                world.fail(format!("{what} of ring {index} cannot be registered: {result}"));
            }
        };
        let mut files = [-1; SLOTS as usize];
        files[..world.files.len()].copy_from_slice(&world.files);
        use io_uring_register_op::*;
        check("files", ring.register(IORING_REGISTER_FILES as u32, files.as_ptr() as usize, SLOTS));
        if plan.fixed_buffer {
            let vector = [world.arena().0, world.arena().1];
            check("a buffer", ring.register(IORING_REGISTER_BUFFERS as u32, vector.as_ptr() as usize, 1));
        }
        if plan.buffers {
            check("provided buffers", provide(world, index));
        }
        if plan.filtered && world.engine == Engine::User {
            for opcode in FILTERED {
                check("a filter", allow(ring, opcode));
            }
        }
        if plan.eventfd {
            let fd = &raw const world.eventfds[index] as usize;
            check("an eventfd", ring.register(IORING_REGISTER_EVENTFD as u32, fd, 1));
        }
    }

    fn act(&mut self, act: &Act) {
        let world = self.world;
        match act {
            Act::Push(ring, requests, then) => self.push(*ring, requests, *then),
            Act::Look(ring) => drop(self.look(*ring)),
            Act::Reap(ring) => drop(self.reap(*ring)),
            Act::SyncCancel(ring, whom, limit_us) => self.sync_cancel(*ring, *whom, *limit_us),
            Act::Register(ring, slot, file) => self.register_file(*ring, *slot, *file),
            Act::Connect(listener) => world.listeners[*listener].connect(world),
            Act::Poke(event, raises) => poke(world.events[*event], *raises),
            Act::Open(file) => {
                // SAFETY: a path that ends with zero.
                let fd = unsafe {
                    libc::open(world.ground.files[*file].as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)
                };
                (0..self.rng.below(3)).for_each(|_| std::thread::yield_now());
                world.close(fd);
            }
            Act::OwnRing(what) => super::own::work(world, &mut self.rng, *what),
            Act::Exec => exec(world),
            Act::CloseRing(ring, stays) => self.close_ring(*ring, *stays),
            Act::Fork(child, stopped) => super::children::fork(world, &mut self.rng, *child, *stopped),
            Act::Spin(turns) => (0..*turns).for_each(|_| {
                std::hint::black_box(0);
                if self.rng.percent(20) {
                    std::thread::yield_now();
                }
            }),
        }
    }

    fn push(&mut self, index: usize, requests: &[Req], then: Then) {
        let world = self.world;
        let Some(ring) = world.ring(index) else { return };
        if ring.is_closed() {
            return;
        }
        if let Then::Event = then {
            // Clears the eventfd of earlier completions.
            poke(world.eventfds[index], false);
            self.look(index);
        }
        // A waiting caller must be counted before: another thread may submit the requests and reap their completions immediately.
        let waits = matches!(then, Then::Wait(_)) && !self.is_alone(index);
        if waits {
            ring.note.waiters.fetch_add(1, SeqCst);
        }
        let batch = {
            let _held = ring.note.sq.lock();
            let batch = Batch::new(world, index, &mut self.rng, requests);
            let sqes: Vec<Sqe> = batch.sqes.iter().map(|&(_, sqe)| sqe).collect();
            if !ring.has_room(&sqes) || sqes.is_empty() {
                withdraw(world, &batch);
                batch.closes.iter().chain(&batch.wakes).for_each(|&fd| world.close(fd));
                None
            } else {
                for (position, (id, _)) in ring.positions(&sqes).0.into_iter().zip(&batch.sqes) {
                    world.shared.entry(*id).submitted.store(position, Relaxed);
                }
                ring.push(&sqes);
                Some((batch.sqes.len() as u32, batch.closes, batch.wakes))
            }
        };
        match batch {
            None => {
                if waits {
                    ring.note.waiters.fetch_sub(1, SeqCst);
                }
                self.submit(index, None);
            }
            Some((count, closes, wakes)) => {
                if !closes.is_empty() {
                    self.submit(index, None);
                }
                // If the ring is closed, another thread's call may yet take the SQEs; their descriptors' numbers must
                // not be reused before.
                if ring.pending() > 0 {
                    world.kept.with(|kept| kept.extend(closes));
                } else {
                    closes.into_iter().for_each(|fd| world.close(fd));
                }
                if let Some(fd) = wakes {
                    // SAFETY: eight bytes.
                    unsafe { libc::write(fd, b"anyring!".as_ptr().cast(), 8) };
                    world.close(fd);
                }
                self.then(index, count, then);
            }
        }
    }

    /// True if no other thread uses the ring.
    fn is_alone(&self, index: usize) -> bool {
        self.world.program.rings[index].users.len() == 1
    }

    fn then(&mut self, index: usize, pushed: u32, then: Then) {
        match then {
            Then::Submit => self.submit(index, None),
            Then::Wait(count) => self.wait(index, count.min(pushed)),
            Then::WaitFor(us) => {
                self.submit(index, Some(us));
                self.reap(index);
            }
            Then::Event => {
                self.submit(index, None);
                let mut poll =
                    libc::pollfd { fd: self.world.eventfds[index], events: libc::POLLIN, revents: 0 };
                // SAFETY: one structure.
                while unsafe { libc::poll(&mut poll, 1, -1) } < 0 {}
                self.look(index);
            }
        }
    }

    /// Submits all pushed requests, and waits for a completion, at most `wait_us` microseconds.
    fn submit(&self, index: usize, wait_us: Option<u32>) {
        let Some(ring) = self.world.ring(index) else { return };
        if ring.params.flags & IORING_SETUP_SQPOLL != 0 {
            return self.submit_polled(index, ring, wait_us);
        }
        let alone = self.is_alone(index);
        let mut limit = wait_us.filter(|_| alone);
        while ring.pending() > 0 && !ring.is_closed() {
            // If other threads push, too, a count could end within one of their chains.
            let count = if alone { ring.pending() } else { ring.params.sq_entries };
            let result = ring.enter_for(count, u32::from(limit.is_some()), 0, limit);
            self.entered(index, result);
            if limit.take().is_some() && result == count as i32 {
                return;
            }
            if result == -libc::EBUSY {
                ring.enter(0, 0, IORING_ENTER_GETEVENTS);
                self.reap(index);
            }
        }
        if let (Some(us), false) = (wait_us, ring.is_closed()) {
            let result = ring.enter_for(0, 1, 0, Some(us));
            self.entered(index, result);
        }
    }

    fn submit_polled(&self, index: usize, ring: &SharedRing, limit_us: Option<u32>) {
        while ring.pending() > 0 && !ring.is_closed() {
            let flags = if ring.flags() & IORING_SQ_NEED_WAKEUP != 0 { IORING_ENTER_SQ_WAKEUP } else { 0 };
            if flags != 0 {
                let result = ring.enter(1, 0, flags);
                self.entered(index, result);
            }
            std::thread::yield_now();
        }
        if limit_us.is_some() && !ring.is_closed() {
            let result = ring.enter_for(0, 1, 0, limit_us);
            self.entered(index, result);
        }
    }

    /// True if the result can come from a ring that is being closed, whose number is unused or reused then: even by a ring
    /// without files, or one that only a certain thread may use.
    fn may_be_anothers(&self, index: usize, result: i32) -> bool {
        const SAID: [i32; 4] = [libc::EBADF, libc::EOPNOTSUPP, libc::ENXIO, libc::EEXIST];
        self.world.program.rings[index].doomed && SAID.contains(&-result)
    }

    /// Judges the result of a call.
    fn entered(&self, index: usize, result: i32) {
        let ok = [libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN];
        if result < 0 && !ok.contains(&-result) && !self.may_be_anothers(index, result) {
            self.world.fail(format!("entering ring {index} gives {result}"));
        }
    }

    /// Waits for completions that are sure to come. If other threads use the ring, the caller counts as a waiter until then.
    fn wait(&mut self, index: usize, count: u32) {
        let Some(ring) = self.world.ring(index) else { return };
        let alone = self.is_alone(index);
        let count = count.min(ring.sure_to_fit());
        // Submission and wait are one call, if possible.
        let polled = ring.params.flags & IORING_SETUP_SQPOLL != 0;
        if polled || !alone {
            self.submit(index, None);
        }
        let pending = if polled || !alone { 0 } else { ring.pending() };
        let mut result = ring.enter(pending, count, IORING_ENTER_GETEVENTS);
        self.entered(index, result);
        if pending > 0 && result != pending as i32 || result < 0 {
            self.submit(index, None);
            result = ring.enter(0, count, IORING_ENTER_GETEVENTS);
            self.entered(index, result);
        }
        let ready = ring.ready();
        if alone {
            let enough = ready >= count;
            if result >= 0 && !enough && ring.note.timed.load(Relaxed) == 0 {
                self.world.fail(format!("a wait for {count} on ring {index} ends with {ready}"));
            }
        } else {
            ring.note.waiters.fetch_sub(1, SeqCst);
        }
        self.reap(index);
    }

    /// Enters a ring for available completions, and reaps them; returns their number.
    pub fn look(&self, index: usize) -> u32 {
        let Some(ring) = self.world.ring(index) else { return 0 };
        self.submit(index, None);
        let result = ring.enter(0, 0, IORING_ENTER_GETEVENTS);
        self.entered(index, result);
        self.reap(index)
    }

    /// Reaps available completions. A thread that waits for them gets a baton.
    pub fn reap(&self, index: usize) -> u32 {
        let Some(ring) = self.world.ring(index) else { return 0 };
        let count = reap(self.world, index);
        if ring.flags() & IORING_SQ_CQ_OVERFLOW != 0 && !ring.is_closed() {
            let result = ring.enter(0, 0, IORING_ENTER_GETEVENTS);
            self.entered(index, result);
        }
        if count > 0 && ring.note.waiters.load(SeqCst) > 0 {
            self.pass_baton(index);
        }
        count
    }

    /// Pushes a NOP, the baton, for a caller that waits.
    fn pass_baton(&self, index: usize) {
        let Some(ring) = self.world.ring(index) else { return };
        loop {
            {
                let _held = ring.note.sq.lock();
                let baton = [Sqe { user_data: BATON, fd: -1, ..Sqe::default() }];
                if ring.has_room(&baton) {
                    ring.note.batons.fetch_add(1, Relaxed);
                    ring.push(&baton);
                    break;
                }
            }
            self.submit(index, None);
        }
        self.submit(index, None);
    }

    fn sync_cancel(&mut self, index: usize, whom: Whom, limit_us: Option<u32>) {
        let Some(ring) = self.world.ring(index) else { return };
        if ring.is_closed() {
            return;
        }
        ring.note.cancels.store(1, SeqCst);
        let world = self.world;
        let target: Vec<u32> = world.shared.outstanding(index).collect();
        let target = if target.is_empty() { 0 } else { self.rng.pick(&target) };
        let (fd, flags) = match whom {
            Whom::One => (-1, 0),
            Whom::Stream(stream) => {
                (world.streams[stream].read_fd, IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL)
            }
            Whom::Any => (-1, IORING_ASYNC_CANCEL_ANY),
            Whom::All => (-1, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL),
        };
        let result = sync_cancel(ring, u64::from(world.tag) << 32 | u64::from(target), fd, flags, limit_us);
        let known = [libc::ENOENT, libc::EALREADY, libc::ETIME, libc::EINTR];
        if result < 0 && !known.contains(&-result) && !self.may_be_anothers(index, result) {
            world.fail(format!("cancelling {whom:?} on ring {index} gives {result}"));
        }
        self.look(index);
    }

    fn register_file(&self, index: usize, slot: u32, file: Option<usize>) {
        let Some(ring) = self.world.ring(index) else { return };
        let fd = file.map_or(-1, |file| self.world.files[file]);
        let argument = [u64::from(slot), (&raw const fd) as u64];
        let opcode = io_uring_register_op::IORING_REGISTER_FILES_UPDATE as u32;
        let result = ring.register(opcode, argument.as_ptr() as usize, 1);
        if result != 1 && !self.may_be_anothers(index, result) {
            self.world.fail(format!("a file in slot {slot} of ring {index}: {result}"));
        }
    }

    fn close_ring(&self, index: usize, stays: bool) {
        let Some(ring) = self.world.ring(index) else { return };
        if ring.note.closed.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
            return;
        }
        let world = self.world;
        for id in world.shared.outstanding(index) {
            let request = world.shared.entry(id).request();
            use super::memory::Kind::*;
            if matches!(request.kind, Write | SendZc | Read | ReadMany) {
                world.streams[request.object as usize].unknown.store(true, Relaxed);
            }
        }
        if stays {
            if world.engine == Engine::User && world.program.announces {
                anyring_engine::frontend::closed(ring.fd);
            }
            // SAFETY: replaces a descriptor of the program.
            unsafe { libc::dup3(world.null.load(Relaxed), ring.fd, libc::O_CLOEXEC) };
            ring.note.closed.store(2, SeqCst);
        } else {
            world.close(ring.fd);
        }
    }
}

/// Calls `IORING_REGISTER_SYNC_CANCEL`. The kernel's rings always get a limit, because `io_sync_cancel` sleeps until a request
/// completes: on a ring that defers, a request that a worker ends does not wake it, and on any ring a worker that the
/// cancellation found at work may have begun to wait for a file, without a completion.
pub fn sync_cancel(ring: &SharedRing, data: u64, fd: i32, flags: u32, limit_us: Option<u32>) -> i32 {
    #[repr(C)]
    struct Argument(u64, i32, u32, [i64; 2], u8, [u8; 7], [u64; 3]);
    let limit_us = limit_us.or((ring.engine == Engine::Kernel).then_some(20_000));
    let time = limit_us.map_or([-1, -1], |us| [0, i64::from(us) * 1000]);
    let argument = Argument(data, fd, flags, time, 0, [0; 7], [0; 3]);
    let opcode = io_uring_register_op::IORING_REGISTER_SYNC_CANCEL as u32;
    ring.register(opcode, &raw const argument as usize, 1)
}

/// Starts a program while rings are in use.
fn exec(world: &World) {
    match std::process::Command::new("true").status() {
        Ok(status) if status.success() => {}
        other => world.fail(format!("a program that is started: {other:?}")),
    }
}

/// Writes to an eventfd, or reads it.
fn poke(fd: i32, raises: bool) {
    let mut count = 1u64;
    // SAFETY: eight bytes, and the descriptor does not block.
    unsafe {
        if raises {
            libc::write(fd, (&raw const count).cast(), 8);
        } else {
            libc::read(fd, (&raw mut count).cast(), 8);
        }
    }
}
