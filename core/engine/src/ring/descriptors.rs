//! Reactions of rings when the program closes or duplicates a descriptor, polls it by other means, or sets an option on it.

use crate::assets::kinds;
use crate::assets::notes::{self, Interested};
use crate::feature::zero_copy_send::{self, ending};
use crate::os::Fd;
use crate::os::sync::atomic::{Ordering, fence};
use crate::process::identity;
use crate::ring::{Core, Ring, lifetime, lookup, registry};

/// Handles that `fd`, any descriptor, is about to be closed or replaced: kept readiness registrations end, and a ring loses one reference.
pub fn closed(fd: Fd) {
    if !concerns_close(fd) {
        return;
    }
    let interested = notes::interested(fd);
    // A child of `vfork`, which shares this memory, closes only its own descriptor: here it stays open.
    if !identity::is_own() {
        return;
    }
    notes::closes(fd);
    if let Some(ring) = registry::clear(fd) {
        lifetime::descriptor_gone(&ring);
    }
    let mut has_orphans = false;
    registry::for_each(interested, |ring| {
        report_to(ring, |core| {
            core.forget_fd(fd);
            has_orphans |= core.zero_copy.has_orphans();
        });
    });
    if has_orphans {
        registry::for_each(interested, |ring| ending::end_orphans(ring, Some(fd)));
    }
}

/// True if the end of `fd` concerns a ring, or anything noted about the descriptor.
pub fn concerns_close(fd: Fd) -> bool {
    registry::is_ring(fd) || notes::interested(fd) != Interested::Nobody || notes::changes_by_close(fd)
}

/// Reports an event to a ring, and issues requests that the event made ready.
pub fn report_to(ring: &Ring, know: impl FnOnce(&mut Core)) {
    let mut guard = ring.lock_to_drive();
    let Some(core) = guard.as_mut() else { return };
    let was_idle = core.order.ready.is_empty();
    know(core);
    if was_idle && !core.order.ready.is_empty() {
        proceed(core);
    }
}

/// Issues requests that became ready: epoll does not report them again.
fn proceed(core: &mut Core) {
    if core.defers() {
        core.notify_deferred();
    } else {
        core.drive.observers.posts_later();
        core.advance();
    }
}

/// Handles that `old` was duplicated to `new`.
pub fn duplicated(old: Fd, new: Fd) {
    if !identity::is_own() {
        return;
    }
    notes::duplicated(old, new);
    if let Some(ring) = registry::get(old) {
        lookup::stand_for(new, ring.ring(), |_| true);
    }
}

/// Handles that `fd`, perhaps a socket, is about to become a socket of another kind.
pub fn changes_kind(fd: Fd) {
    if !identity::is_own() {
        return;
    }
    registry::for_each(notes::interested(fd), |ring| {
        report_to(ring, |core| core.readiness.forget_socket_kind(fd));
    });
}

/// Handles that `fd`, perhaps a socket, is about to be polled by other means than rings, or to get an option that concerns its error queue;
/// `takes`: the program reads the queue then. Notifications of zero-copy sends must not appear there.
pub fn watches_errors(fd: Fd, takes: bool) {
    let is_news = kinds::watch_errors(fd);
    // Pairs with `Lent::channel_for`: either the ring is found here, or `channel_for` finds the note.
    fence(Ordering::SeqCst);
    let mut interested = notes::interested(fd);
    if is_news && zero_copy_send::are_any() {
        // A ring may know the socket by another descriptor.
        interested = Interested::Several;
    }
    if interested == Interested::Nobody || !identity::is_own() {
        return;
    }
    registry::for_each(interested, |ring| report_to(ring, |core| core.leave_error_queue(fd, takes)));
}
