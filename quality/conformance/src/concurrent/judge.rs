//! The conditions that must hold after the end of a program.

use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use super::finish::drain;
use linux_raw_sys::io_uring::IORING_SETUP_ATTACH_WQ;

use super::memory::{Entry, Kind, Request, State, traits};
use super::plan::RingPlan;
use super::prepare::{WRITTEN, written};
use super::world::{SEAL, World};

/// Judges a program whose threads have ended.
pub fn judge(world: &World) {
    for (id, entry) in world.shared.entries().iter().enumerate() {
        let request = entry.request();
        if entry.state() == State::Free || is_closed(world, request.ring) {
            continue;
        }
        let result = entry.result.load(Relaxed);
        let say = |what: &str| {
            world.fail(format!("{what}: request {id} {request:?}, {:?} with {result}", entry.state()));
        };
        if request.kind == Kind::Message {
            childs_message(world, id as u32, &request, &say);
            continue;
        }
        if entry.state() != State::Done {
            say("no last completion");
            continue;
        }
        chain(world, entry, &request, result, &say);
        drained(world, entry, &request, result, &say);
        message(world, &request, result, &say);
        cancelled(world, &request, result, &say);
        memory(world, id as u32, &request, result, &say);
    }
    for (index, ring) in world.shared.rings.iter().enumerate() {
        let (sent, seen) = (ring.batons.load(Relaxed), ring.batons_seen.load(Relaxed));
        if sent != seen && !is_closed(world, index as u32) {
            world.fail(format!("of {sent} NOPs on ring {index}, {seen} completed"));
        }
    }
    streams(world);
    listeners(world);
}

fn is_closed(world: &World, ring: u32) -> bool {
    world.shared.rings[ring as usize].closed.load(Acquire) != 0
}

fn was_cancelled(world: &World, request: &Request) -> bool {
    world.shared.rings[request.ring as usize].cancels.load(SeqCst) != 0 || request.traits & traits::TIMED != 0
}

/// Judges a chain: after a failed request the rest is cancelled, and later requests complete later.
fn chain(world: &World, entry: &Entry, request: &Request, result: i32, say: &dyn Fn(&str)) {
    let Some(before) = request.before.checked_sub(1).map(|id| world.shared.entry(id)) else { return };
    if before.state() != State::Done || request.kind == Kind::LinkTimeout || may_be_cut(world, request) {
        return;
    }
    let first = before.request();
    let failed = before.result.load(Relaxed) < 0;
    let hard = request.traits & traits::HARD != 0;
    if failed && !hard && result != -libc::ECANCELED {
        say(&format!("not cancelled behind one that failed, {first:?} with {}", before.result.load(Relaxed)));
    }
    let whole = !failed && (first.length == 0 || before.result.load(Relaxed) == first.length as i32);
    if whole && result == -libc::ECANCELED && !was_cancelled(world, request) {
        say(&format!("cancelled behind one that succeeded, {first:?}"));
    }
    if entry.order.load(Relaxed) < before.order.load(Relaxed) {
        say("complete before its predecessor");
    }
}

/// True if an SQ thread of several rings may have cut the chain: it takes a few entries of each ring in turn.
fn may_be_cut(world: &World, request: &Request) -> bool {
    let rings = &world.program.rings;
    let attached = |ring: &RingPlan| ring.is_polled() && ring.flags & IORING_SETUP_ATTACH_WQ != 0;
    rings[request.ring as usize].is_polled() && rings.iter().any(attached)
}

/// Judges a drain, which must complete after everything before it.
fn drained(world: &World, entry: &Entry, request: &Request, result: i32, say: &dyn Fn(&str)) {
    if request.traits & traits::DRAIN == 0 || result == -libc::ECANCELED {
        return;
    }
    let (order, submitted) = (entry.order.load(Relaxed), entry.submitted.load(Relaxed));
    for (id, other) in world.shared.entries().iter().enumerate() {
        let one = other.request();
        let counts = one.ring == request.ring
            && other.state() == State::Done
            && one.traits & traits::MULTI == 0
            && !matches!(one.kind, Kind::SendZc | Kind::Message);
        if counts && other.submitted.load(Relaxed) < submitted && other.order.load(Relaxed) > order {
            return say(&format!("drained before request {id} {one:?} was complete"));
        }
    }
}

/// Judges a message of a child, which must arrive, after those that the child has sent before.
fn childs_message(world: &World, id: u32, request: &Request, say: &dyn Fn(&str)) {
    let sender = match request.object {
        0 => return,
        u32::MAX => id + 1,
        sender => sender,
    };
    let entry = world.shared.entry(id);
    if entry.state() != State::Done {
        return say("a message that a child sent did not come");
    }
    let before = (sender..id).map(|other| world.shared.entry(other)).rfind(|other| {
        let one = other.request();
        (one.kind, one.object) == (Kind::Message, sender) && other.state() == State::Done
    });
    let first = (sender <= id).then(|| world.shared.entry(sender - 1));
    let earlier = before.or(first).map_or(0, |before| before.order.load(Relaxed));
    if earlier >= entry.order.load(Relaxed) {
        say("a message that a child sent later came earlier");
    }
}

/// Judges a message, which must arrive once at its target, and not at other rings.
fn message(world: &World, request: &Request, result: i32, say: &dyn Fn(&str)) {
    if !matches!(request.kind, Kind::SendMessage | Kind::SendFile) || request.other == 0 {
        return;
    }
    let message = world.shared.entry(request.other - 1);
    let came = message.state() == State::Done;
    if !is_closed(world, message.request().ring) && came != (result >= 0) {
        say(if came { "a message that was not sent came" } else { "a message that was sent did not come" });
    }
}

/// Judges a cancellation: if it reports that it found its target, the target must be cancelled.
fn cancelled(world: &World, request: &Request, result: i32, say: &dyn Fn(&str)) {
    if request.kind != Kind::Cancel || request.other == 0 || result != 0 {
        return;
    }
    let target = world.shared.entry(request.other - 1);
    let kind = target.request().kind;
    let found =
        matches!(kind, Kind::Timeout | Kind::TimeoutMany | Kind::Poll | Kind::PollMany | Kind::Accept);
    if found && target.state() == State::Done && target.result.load(Relaxed) != -libc::ECANCELED {
        say("its target went on");
    }
}

/// Judges memory: nothing writes to the memory of a completed request, and written data is in the file.
fn memory(world: &World, id: u32, request: &Request, result: i32, say: &dyn Fn(&str)) {
    let sealed = world.shared.entry(id).request().traits & traits::SEALED != 0;
    if sealed && world.bytes(id, request.length as usize).iter().any(|&byte| byte != SEAL) {
        say("its memory was written to after its end");
    }
    if request.kind == Kind::WriteFile && result == WRITTEN as i32 {
        let mut bytes = [0; WRITTEN as usize];
        let fd = world.written[request.object as usize];
        // SAFETY: the buffer has the length given.
        unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), bytes.len(), i64::from(id * WRITTEN)) };
        if bytes[..] != *written(world.tag, id) {
            say("what it wrote is not in the file");
        }
    }
}

/// How long written data may be in transit.
const ON_ITS_WAY: Duration = Duration::from_secs(60);

/// Judges streams: bytes are neither lost nor invented.
fn streams(world: &World) {
    for entry in world.shared.entries() {
        let request = entry.request();
        let carries = matches!(request.kind, Kind::Write | Kind::SendZc | Kind::Read | Kind::ReadMany);
        let lost = is_closed(world, request.ring) && matches!(entry.state(), State::Pushed);
        if carries && lost {
            world.streams[request.object as usize].unknown.store(true, Relaxed);
        }
    }
    for (index, stream) in world.streams.iter().enumerate() {
        if stream.unknown.load(Relaxed) {
            continue;
        }
        // Data that TCP has accepted may still be in transit while the window is closed.
        let deadline = Instant::now() + ON_ITS_WAY;
        let (written, read) = loop {
            drain(world, index, &stream.drains.lock());
            let counts = (stream.written.load(Relaxed), stream.read.load(Relaxed));
            if counts.0 <= counts.1 || Instant::now() > deadline {
                break counts;
            }
            std::thread::yield_now();
        };
        if written != read {
            world.fail(format!("stream {index}: {written} bytes written, {read} read"));
        }
    }
}

/// Judges listeners: every connection is accepted once, and their flags are unchanged.
fn listeners(world: &World) {
    for (index, listener) in world.listeners.iter().enumerate() {
        let (rest, same) = listener.finish();
        if !same {
            world.fail(format!("listener {index} has other flags than before"));
        }
        let (connected, accepted) = (listener.connected.load(Relaxed), listener.accepted.load(Relaxed));
        if accepted + rest != connected {
            world.fail(format!("listener {index}: {connected} connections, {accepted} and {rest} accepted"));
        }
    }
}
