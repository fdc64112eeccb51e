//! Standard streams that are closed when the command begins. The standard library opens `/dev/null` in their places; a program that
//! is executed finds them closed all the same.

use anyring_runtime::sys;
use std::sync::atomic::{AtomicU8, Ordering};

/// A bit for each.
static CLOSED: AtomicU8 = AtomicU8::new(0);

// Before the standard library looks.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

fn all() -> impl Iterator<Item = (i32, u8)> {
    (0..3).map(|stream| (stream, 1 << stream))
}

extern "C" fn look() {
    let closed = all().filter(|&(stream, _)| !sys::is_open(stream)).map(|(_, bit)| bit).sum();
    CLOSED.store(closed, Ordering::Relaxed);
}

/// Leaves closed streams closed for the program: what stands in for them ends with the command.
pub fn leave_closed() {
    let closed = CLOSED.load(Ordering::Relaxed);
    all().filter(|&(_, bit)| closed & bit != 0).for_each(|(stream, _)| sys::close_at_exec(stream));
}
