//! The end of a program: rings are emptied by cancellations, or closed with requests in flight.

use std::sync::atomic::Ordering::*;

use anyring_engine::abi::Sqe;
use linux_raw_sys::io_uring::*;

use super::children;
use super::complete::ENDING;
use super::memory::{Held, Kind, Meeting, State};
use super::plan::End;
use super::run::{Runner, sync_cancel};
use super::world::World;

/// Ends the rings of a thread.
pub fn rings(runner: &mut Runner<'_>, barrier: &Meeting) {
    let world = runner.world;
    if runner.thread == 0 {
        children::join(world);
    }
    barrier.wait();
    let own = |index: &usize| world.program.rings[*index].owner == runner.thread;
    let own: Vec<usize> = (0..world.rings.len()).filter(own).collect();
    for &index in &own {
        match world.program.end {
            End::Close => close(world, index),
            end => {
                let plan = &world.program.rings[index];
                // A drain would hold back a cancelling request, too.
                empty(runner, index, &own, plan.drains || end == End::SyncCancel && !plan.is_polled());
            }
        }
    }
    barrier.wait();
    // Messages that other rings have sent before they were empty.
    for &index in &own {
        if is_open(world, index) {
            runner.look(index);
            // There may be more messages than the CQ has room for.
            while runner.look(index) > 0 {}
        }
    }
}

fn is_open(world: &World, index: usize) -> bool {
    world.ring(index).is_some_and(|ring| !ring.is_closed())
}

fn close(world: &World, index: usize) {
    let Some(ring) = world.ring(index) else { return };
    if ring.note.closed.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
        world.close(ring.fd);
    }
}

/// Cancels until no request is left. If one never ends, this loop makes no progress, which the parent detects.
fn empty(runner: &Runner<'_>, index: usize, own: &[usize], synchronous: bool) {
    const EVERYONE: u32 = IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL;
    let world = runner.world;
    let Some(ring) = world.ring(index) else { return };
    if ring.is_closed() {
        return;
    }
    ring.note.cancels.store(1, SeqCst);
    let mut again = false;
    loop {
        runner.look(index);
        if world.shared.outstanding(index).next().is_none() {
            return;
        }
        if synchronous {
            sync_cancel(ring, 0, -1, EVERYONE, None);
        } else {
            let _held = ring.note.sq.lock();
            let opcode = io_uring_op::IORING_OP_ASYNC_CANCEL as u8;
            let cancel = [Sqe { opcode, fd: -1, op_flags: EVERYONE, user_data: ENDING, ..Sqe::default() }];
            if ring.has_room(&cancel) {
                ring.push(&cancel);
            }
        }
        if again {
            ring.enter_for(0, 1, 0, Some(300));
        }
        again = true;
        // A request of another ring that reads a stream is its reader until its completion is reaped.
        for &other in own.iter().filter(|&&other| other != index) {
            if is_open(world, other) {
                runner.look(other);
            }
        }
        release_pages(world, index);
    }
}

/// Reads streams whose sends wait for a notification, which comes when the peer has read.
fn release_pages(world: &World, index: usize) {
    let waits = |id: u32| world.shared.entry(id).state() == State::Notifies;
    let waiting: Vec<u32> = world.shared.outstanding(index).filter(|&id| waits(id)).collect();
    for id in waiting {
        let request = world.shared.entry(id).request();
        assert_eq!(request.kind, Kind::SendZc, "only these have notifications");
        let stream = &world.streams[request.object as usize];
        // Another thread's ring may wait for the same stream: that thread drains it before or after this one, and must
        // not be taken for a reader.
        let alone = stream.drains.lock();
        if stream.readers.compare_exchange(0, 1, AcqRel, Acquire).is_ok() {
            drain(world, request.object as usize, &alone);
            stream.readers.store(0, Release);
        } else if !is_read_by_rings(world, request.object) {
            // The number of bytes it has read is unknown.
            stream.unknown.store(true, Relaxed);
            drain(world, request.object as usize, &alone);
        }
    }
}

/// True if an open ring has a request that reads this stream. Requests of a closed ring count as readers for ever.
fn is_read_by_rings(world: &World, stream: u32) -> bool {
    let reads = |id: u32| {
        let request = world.shared.entry(id).request();
        request.object == stream && matches!(request.kind, Kind::Read | Kind::ReadMany | Kind::Splice)
    };
    (0..world.rings.len())
        .filter(|&index| is_open(world, index))
        .any(|index| world.shared.outstanding(index).any(reads))
}

/// Reads a stream's data by system calls without blocking, because a closed ring's request may take it first. The caller holds
/// the stream's lock for draining.
pub fn drain(world: &World, index: usize, _alone: &Held<'_>) {
    let stream = &world.streams[index];
    let mut buffer = [0; 4096];
    let place = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    loop {
        // SAFETY: one vector over the whole buffer.
        let count = unsafe { libc::preadv2(stream.read_fd, &place, 1, -1, libc::RWF_NOWAIT) };
        if count < 0 {
            let why = std::io::Error::last_os_error();
            match why.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN | libc::ECONNRESET) => return,
                _ => return world.fail(format!("stream {index} cannot be read: {why}")),
            }
        }
        let Ok(count @ 1..) = usize::try_from(count) else { return };
        let at = stream.read.load(Relaxed);
        if !stream.unknown.load(Relaxed) && buffer[..count] != *world.pattern(index, at, count) {
            world.fail(format!("other bytes in stream {index} than were written (at {at})"));
        }
        stream.read.store(at + count as u64, Relaxed);
    }
}
