//! Judges completions as they are reaped: which request they belong to, whether the result is allowed, where the bytes
//! come from. The caller holds the lock of the ring's CQ, so completions are judged in order.

use std::sync::atomic::Ordering::*;

use linux_raw_sys::io_uring::*;

use super::generate::{FILES, UNIT};
use super::memory::{Kind, Request, State, traits};
use super::prepare::{GROUP, now_ns};
use super::world::{BUFFER, BUFFERS, PLACE, SEAL, World, abort_at_close, unit_pattern};
use crate::ring::{Cqe, Engine};

/// The result of the kernel's splice after an interruption.
const ERESTARTSYS: i32 = 512;

/// User data of NOPs for waiting callers.
pub const BATON: u64 = 1;
/// User data of the cancellations that end a program.
pub const ENDING: u64 = 2;

/// Reaps all completions of a ring; returns their number.
pub fn reap(world: &World, index: usize) -> u32 {
    let Some(ring) = world.ring(index) else { return 0 };
    let _held = ring.note.cq.lock();
    let mut count = 0;
    while let Some(cqe) = ring.reap() {
        count += 1;
        // The cancellations at the end of a program are not progress.
        if cqe.user_data != ENDING {
            world.shared.step();
        }
        completed(world, index, &cqe);
    }
    count
}

fn completed(world: &World, index: usize, cqe: &Cqe) {
    let note = &world.shared.rings[index];
    let order = note.reaped.fetch_add(1, Relaxed) + 1;
    match cqe.user_data {
        BATON => {
            note.batons_seen.fetch_add(1, Relaxed);
            return expect(world, cqe.res == 0, || format!("a NOP on ring {index} ends with {}", cqe.res));
        }
        ENDING => return,
        _ => {}
    }
    let id = cqe.user_data as u32;
    if (cqe.user_data >> 32) as u32 != world.tag || id >= world.shared.used() {
        return world.fail(format!("a completion nobody asked for on ring {index}: {cqe:x?}"));
    }
    let entry = world.shared.entry(id);
    let request = entry.request();
    let say = |what: &str| {
        let before = entry.result.load(Relaxed);
        world.fail(format!(
            "{what}: request {id} {request:?}, {:?}, result before {before}, {cqe:?}",
            entry.state()
        ));
    };
    if request.ring as usize != index {
        return say("a completion in another ring");
    }
    let notification = cqe.flags & IORING_CQE_F_NOTIF != 0;
    match entry.state() {
        State::Pushed if !notification => {}
        State::Notifies if notification => {
            seal(world, id, &request);
            entry.cqes.fetch_add(1, Relaxed);
            if cqe.flags & IORING_CQE_F_MORE != 0 {
                say("a notification with more to come");
            }
            return entry.set_state(State::Done);
        }
        State::Notifies => return say("a second result where a notification is due"),
        // A request that is cancelled in a chain releases its pages by such a notification.
        State::Done if notification && is_unstarted(&request, entry.result.load(Relaxed)) => return,
        _ if notification => return say("a notification nobody waits for"),
        _ => return say("one completion too many"),
    }
    judge(world, index, id, &request, cqe, &say);
    entry.cqes.fetch_add(1, Relaxed);
    entry.result.store(cqe.res, Relaxed);
    entry.order.store(order, Relaxed);
    let more = cqe.flags & IORING_CQE_F_MORE != 0;
    match (more, request.kind) {
        (true, Kind::SendZc) => entry.set_state(State::Notifies),
        (true, _) if request.traits & traits::MULTI != 0 => {}
        (true, _) => say("more is to come of what completes once"),
        (false, _) => {
            seal(world, id, &request);
            entry.set_state(State::Done);
        }
    }
}

fn expect(world: &World, holds: bool, what: impl FnOnce() -> String) {
    if !holds {
        world.fail(what());
    }
}

/// Seals a request's memory: nothing may write to it or read from it any more.
fn seal(world: &World, id: u32, request: &Request) {
    let own = matches!(
        request.kind,
        Kind::ReadFile | Kind::Read | Kind::SendZc | Kind::Write | Kind::WriteFile | Kind::OtherPipe
    );
    let length = request.length as usize;
    if own && request.traits & traits::SELECTS == 0 && length <= PLACE {
        // SAFETY: the request is over, so its memory is the program's again.
        unsafe { std::ptr::write_bytes(world.place(id), SEAL, length) };
        world.shared.entry(id).mark(traits::SEALED);
    }
}

fn is_unstarted(request: &Request, result: i32) -> bool {
    request.before != 0 && result == -libc::ECANCELED
}

/// True if the result is that of a cancelled request.
fn is_cancelled(res: i32) -> bool {
    matches!(-res, libc::ECANCELED | libc::EINTR)
}

fn judge(world: &World, index: usize, id: u32, request: &Request, cqe: &Cqe, say: &dyn Fn(&str)) {
    let bytes = provided(world, index, request, cqe, say);
    let last = cqe.flags & IORING_CQE_F_MORE == 0;
    let res = cqe.res;
    match request.kind {
        Kind::Write | Kind::SendZc => wrote(world, request, res, say),
        Kind::Read | Kind::ReadMany => {
            let bytes = bytes.or_else(|| (res > 0).then(|| world.bytes(id, request.length as usize)));
            read(world, request, res, last, bytes, say);
        }
        Kind::Accept | Kind::AcceptMany if res >= 0 => {
            let listener = &world.listeners[request.object as usize];
            listener.accepted.fetch_add(1, Relaxed);
            if listener.tcp {
                abort_at_close(res);
            }
            world.close(res);
        }
        Kind::Timeout | Kind::TimeoutMany if res == -libc::ETIME => {
            let before =
                u64::from(world.shared.entry(id).cqes.load(Relaxed)) * u64::from(request.other) * 1000;
            if now_ns() < request.offset + before {
                say("a timeout that expires early");
            }
        }
        Kind::ReadFile if res == UNIT as i32 => read_file(world, id, request, say),
        Kind::OtherPipe if res == 8 && world.bytes(id, 8) != b"anyring!" => {
            say("other bytes than were written")
        }
        Kind::Nop
            if request.traits & traits::BIG != 0 && res == 0 && cqe.big != [0x1111_2222, 0x3333_4444] =>
        {
            say("other words in a large completion");
        }
        // A message's data is its number; a file message has none.
        Kind::Message if res != id as i32 && res != 0 => say("a message with other data"),
        _ => {}
    }
    if !allowed(world, request, res) {
        say("a result that the operation cannot have");
    }
}

/// Returns the bytes of a provided buffer, which must not have been held, and is given back now or later.
fn provided<'a>(
    world: &'a World,
    index: usize,
    request: &Request,
    cqe: &Cqe,
    say: &dyn Fn(&str),
) -> Option<&'a [u8]> {
    if cqe.flags & IORING_CQE_F_BUFFER == 0 {
        if request.traits & traits::SELECTS != 0 && cqe.res > 0 {
            say("bytes without a buffer");
        }
        return None;
    }
    let buffer = (cqe.flags >> 16) as usize;
    if request.traits & traits::SELECTS == 0 || buffer >= BUFFERS {
        say("a buffer that was not provided");
        return None;
    }
    let held = &world.held[index];
    if held[buffer].swap(true, Relaxed) {
        say("a buffer that is held already");
    }
    let (_, base) = world.group(index);
    // SAFETY: a buffer of the group.
    let place = unsafe { base.add(buffer * BUFFER) };
    // SAFETY: as above; the buffer is ours until it is given back.
    let copy = unsafe { std::slice::from_raw_parts(place, BUFFER) };
    if held.iter().filter(|held| held.load(Relaxed)).count() > BUFFERS / 2 {
        // The bytes of these buffers were checked on arrival.
        for other in (0..BUFFERS).filter(|&other| other != buffer && held[other].load(Relaxed)) {
            give(world, index, other as u16);
            held[other].store(false, Relaxed);
        }
    }
    Some(copy)
}

/// Provides a buffer to the engine.
pub fn give(world: &World, index: usize, buffer: u16) {
    let (ring, base) = world.group(index);
    // SAFETY: the ring of the group, whose tail only the program writes, under the queue's lock. The tail lies
    // in the reserved bytes of the first entry.
    unsafe {
        let tail = std::sync::atomic::AtomicU16::from_ptr(ring.add(14).cast());
        let at = tail.load(Relaxed);
        let entry = ring.add(16 * (at as usize % BUFFERS));
        entry.cast::<u64>().write(base.add(usize::from(buffer) * BUFFER) as u64);
        entry.add(8).cast::<u32>().write(BUFFER as u32);
        entry.add(12).cast::<u16>().write(buffer);
        // Release pairs with the engine's acquire load of the tail.
        tail.store(at.wrapping_add(1), Release);
    }
}

/// Registers the group of a ring, and provides all its buffers.
pub fn provide(world: &World, index: usize) -> i32 {
    let Some(ring) = world.ring(index) else { return 0 };
    let (memory, _) = world.group(index);
    // SAFETY: the group's own page, which no ring uses now.
    unsafe { std::ptr::write_bytes(memory, 0, 4096) };
    let mut argument = [0u64; 5];
    argument[0] = memory as u64;
    argument[1] = BUFFERS as u64 | u64::from(GROUP) << 32;
    for buffer in 0..BUFFERS {
        give(world, index, buffer as u16);
    }
    ring.register(io_uring_register_op::IORING_REGISTER_PBUF_RING as u32, argument.as_ptr() as usize, 1)
}

fn wrote(world: &World, request: &Request, res: i32, say: &dyn Fn(&str)) {
    let stream = &world.streams[request.object as usize];
    if res > 0 {
        if stream.written.load(Relaxed) != request.offset {
            say("a write behind one that was not whole");
        }
        stream.written.store(request.offset + res as u64, Relaxed);
    }
    if res > request.length as i32 {
        say("more written than there was");
    }
    // Release: the next writer sees the position of the stream.
    stream.writers.fetch_sub(1, AcqRel);
}

fn read(world: &World, request: &Request, res: i32, last: bool, bytes: Option<&[u8]>, say: &dyn Fn(&str)) {
    let stream = &world.streams[request.object as usize];
    let at = stream.read.load(Relaxed);
    if let (Some(bytes), Ok(count)) = (bytes, usize::try_from(res)) {
        if count > bytes.len() {
            say("more read than there is room for");
        } else if bytes[..count] != *world.pattern(request.object as usize, at, count) {
            let shown = &bytes[..count.min(16)];
            say(&format!("other bytes than were written (at {at}: {shown:x?})"));
        }
        stream.read.store(at + count as u64, Relaxed);
    }
    if last {
        // Release: the next reader sees the position of the stream.
        stream.readers.fetch_sub(1, AcqRel);
    }
}

fn read_file(world: &World, id: u32, request: &Request, say: &dyn Fn(&str)) {
    let bytes = world.bytes(id, UNIT as usize);
    let unit = request.offset as u32;
    let known = request.object as usize;
    let file = (0..FILES).find(|&file| bytes == unit_pattern(file, unit));
    match file {
        None => say(&format!("bytes of no file ({:x?})", &bytes[..16])),
        Some(file) if known < FILES && file != known => say(&format!("bytes of another file ({file})")),
        Some(_) => {}
    }
}

/// True if the operation may have this result.
fn allowed(world: &World, request: &Request, res: i32) -> bool {
    let note = &world.shared.rings[request.ring as usize];
    let cancelled = note.cancels.load(SeqCst) != 0 || request.traits & traits::TIMED != 0;
    if is_cancelled(res) && (cancelled || request.before != 0) {
        return true;
    }
    if note.closed.load(SeqCst) != 0 && (is_cancelled(res) || res == -libc::EFAULT) {
        return true;
    }
    let length = request.length as i32;
    let errno = |these: &[i32]| these.contains(&-res);
    match request.kind {
        Kind::Nop => res == request.other as i32,
        Kind::Timeout => res == 0 || errno(&[libc::ETIME]),
        Kind::TimeoutMany => errno(&[libc::ETIME]),
        Kind::TimeoutRemove => res == 0 || errno(&[libc::ENOENT, libc::EALREADY, libc::EBUSY]),
        Kind::LinkTimeout => {
            errno(&[libc::ETIME, libc::ECANCELED, libc::EALREADY, libc::ENOENT])
                || errno(&[libc::EINVAL]) && may_cut_chains(world, request.ring as usize)
        }
        Kind::Poll | Kind::PollMany => res == i32::from(libc::POLLIN),
        Kind::ReadFile => res == length || request.object as usize >= FILES && errno(&[libc::EBADF]),
        Kind::WriteFile => res == length,
        Kind::OtherPipe => res == 8,
        Kind::Write | Kind::SendZc => res > 0 && res <= length,
        Kind::Read => res > 0 && res <= length || selects(request) && errno(&[libc::ENOBUFS]),
        Kind::ReadMany => res > 0 || errno(&[libc::ENOBUFS]),
        Kind::Accept | Kind::AcceptMany => res >= 0,
        Kind::SendMessage | Kind::SendFile => {
            let doomed = world.program.rings[request.object as usize].doomed;
            res == 0
                || errno(&[libc::EOVERFLOW, libc::EOWNERDEAD])
                || doomed && errno(&[libc::EBADF, libc::EBADFD, libc::ENXIO])
        }
        Kind::Message => res >= 0,
        Kind::Cancel => (0..=1024).contains(&res) || errno(&[libc::ENOENT, libc::EALREADY]),
        // The kernel shows the errno by which its interrupted threads restart.
        Kind::Splice => res == 0 || errno(&[ERESTARTSYS]),
        Kind::FilesUpdate => res == 1,
    }
}

/// True if chains may be cut: the kernel takes at most 8 entries at a time from an SQPOLL ring whose thread serves several
/// rings; a longer chain is cut there, and a LINK_TIMEOUT after the cut stands alone.
fn may_cut_chains(world: &World, ring: usize) -> bool {
    let rings = &world.program.rings;
    let polled = rings.iter().filter(|ring| ring.is_polled()).count();
    world.engine == Engine::Kernel && rings[ring].is_polled() && polled > 1
}

fn selects(request: &Request) -> bool {
    request.traits & traits::SELECTS != 0
}
