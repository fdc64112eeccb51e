//! Rings in epoll instances of the program. A ring is a memfd and cannot be polled: its stand-in is put
//! there ([`crate::frontend::readiness_fd`]). An instance outlives the call, so which rings it has is kept here:
//! before a wait their stand-ins are brought in line, or a level-triggered wait would answer for
//! completions that the program has taken meanwhile.

use crate::os::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLL_CTL_DEL};

use crate::os::Fd;

/// The instance in the upper half, the ring in the lower; 0 is free (that instance would be standard
/// input).
static WATCHED: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// How many of them are taken.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A ring's stand-in was added to an instance, or taken out of it.
pub fn changed(instance: Fd, operation: u32, ring: Fd) {
    match operation {
        EPOLL_CTL_ADD => add(instance, ring),
        EPOLL_CTL_DEL => remove(|i, r| i == instance && r == ring),
        _ => {}
    }
}

fn add(instance: Fd, ring: Fd) {
    let pair = u64::from(instance as u32) << 32 | u64::from(ring as u32);
    for entry in &WATCHED {
        if entry.compare_exchange(0, pair, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            // Release pairs with the acquire load in `any`.
            COUNT.fetch_add(1, Ordering::Release);
            return;
        }
    }
}

fn remove(matches: impl Fn(Fd, Fd) -> bool) {
    if !any() {
        return;
    }
    for entry in &WATCHED {
        let seen = entry.load(Ordering::Acquire);
        let gone = seen != 0 && matches((seen >> 32) as Fd, seen as Fd);
        if gone && entry.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            COUNT.fetch_sub(1, Ordering::Release);
        }
    }
}

/// A descriptor is about to be closed: it may be an instance or a ring.
pub fn closed(fd: Fd) {
    remove(|instance, ring| instance == fd || ring == fd);
}

/// Is any ring in any instance?
#[inline]
pub fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// The rings in an instance.
pub fn rings_in(instance: Fd) -> impl Iterator<Item = Fd> {
    WATCHED.iter().filter_map(move |entry| {
        let seen = entry.load(Ordering::Acquire);
        (seen != 0 && (seen >> 32) as Fd == instance).then_some(seen as Fd)
    })
}
