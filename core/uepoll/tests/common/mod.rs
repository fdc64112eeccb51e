//! Sets with every feeder, and helpers for tests of them.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part")]

// Names that many tests use.
pub use anyring_both::by;
pub use anyring_engine::abi::Errno;
pub use anyring_uepoll::{ADD, DELETE, Event, Feeder, MODIFY, Set};
pub use std::io::Write;
pub use std::os::fd::AsRawFd;
pub use std::os::unix::net::UnixStream;
pub use std::sync::atomic::{AtomicU64, Ordering};
pub use std::thread;

use std::ffi::{CStr, c_void};

use anyring_uepoll::Options;

/// Starts a thread for the reactor.
fn spawn(
    _name: &'static CStr,
    entry: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> Result<(), i32> {
    let argument = argument as usize;
    // SAFETY: called once, as the set requires.
    std::thread::spawn(move || unsafe { entry(argument as *mut c_void) });
    Ok(())
}

/// Creates a set; `None` if the kernel refuses what its feeder needs.
pub fn set(feeder: Feeder, items: u32, extended: bool) -> Option<Set> {
    let first_position = u32::MAX - 5;
    let options = Options { feeder, extended, first_position, spawn: Some(spawn), ..Options::new(items) };
    match Set::create(options) {
        Ok(set) => Some(set),
        Err(error @ (Errno::EPERM | Errno::ENOSYS)) if feeder == Feeder::Uring => {
            eprintln!("no set fed by io_uring here: {error:?}");
            anyring_tally::skipped("no kernel ring");
            None
        }
        Err(error) => panic!("{feeder:?}: {error:?}"),
    }
}

/// Runs a test with a set of each feeder.
pub fn each(items: u32, body: impl Fn(&Set)) {
    for feeder in [Feeder::Epoll, Feeder::Uring, Feeder::Aio, Feeder::Reactor] {
        eprintln!("{feeder:?}");
        set(feeder, items, false).iter().for_each(&body);
    }
}

/// Runs a test with an extended set of each feeder.
pub fn each_extended(items: u32, body: impl Fn(&Set)) {
    for feeder in [Feeder::Epoll, Feeder::Uring, Feeder::Aio, Feeder::Reactor] {
        eprintln!("{feeder:?}");
        set(feeder, items, true).iter().for_each(&body);
    }
}

/// Returns an event: a registration, or an expected event.
pub fn event(events: u32, data: u64) -> Event {
    Event { events, data }
}

/// Returns two connected sockets, neither of which blocks.
pub fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (ours, theirs)
}

/// Returns the next event, which must come.
pub fn next(set: &Set) -> Event {
    let mut out = [Event::default()];
    assert_eq!(take(set, &mut out, 120_000_000_000), 1, "no event came");
    out[0]
}

/// Checks that no event comes.
pub fn none(set: &Set) {
    let mut out = [Event::default()];
    // The reactor may need a moment.
    let timeout = if set.feeder() == Feeder::Reactor { 2_000_000 } else { 0 };
    assert_eq!(take(set, &mut out, timeout), 0, "{out:?}");
}

/// Takes events; retries after interruptions.
pub fn take(set: &Set, out: &mut [Event], timeout_ns: u64) -> usize {
    loop {
        match set.take(out, Some(timeout_ns)) {
            Err(Errno::EINTR) => {}
            result => return result.unwrap(),
        }
    }
}

/// Waits until the ring has events.
pub fn wait(set: &Set) {
    loop {
        match set.wait(None) {
            Err(Errno::EINTR) => {}
            result => return assert_eq!(result, Err(Errno::ESTALE)),
        }
    }
}
