//! epoll whose events are read from shared memory: `anyring_epoll_*` of `anyring.h`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use anyring_engine::abi::Errno;
use anyring_engine::os::sync::Mutex;
use anyring_engine::os::{self, EpollEvent, Fd};
use anyring_runtime::threads;
use anyring_uepoll::{Event, Feeder, Options, Raiser, Set};
use core::ffi::{CStr, c_int, c_void};
use linux_raw_sys::general as raw;

const USERPOLL: c_int = 1;
const EXTENDED: c_int = 2;
const FEEDER_SHIFT: u32 = 8;
const FEEDER_MASK: c_int = 0xf << FEEDER_SHIFT;
const SPIN_SHIFT: u32 = 12;
const SPIN_MASK: c_int = 0x7f << SPIN_SHIFT;
const CLOEXEC: c_int = raw::EPOLL_CLOEXEC as c_int;

static SETS: Mutex<BTreeMap<Fd, Arc<Set>>> = Mutex::new(BTreeMap::new());

/// An event that threads raise: `struct anyring_event`.
pub struct Raised {
    raiser: Raiser,
    set: Arc<Set>,
}

fn set_of(fd: c_int) -> Option<Arc<Set>> {
    SETS.lock().get(&fd).cloned()
}

fn spawn(
    name: &'static CStr,
    entry: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> Result<(), i32> {
    threads::spawn(name, entry, argument, 0..0)
}

fn options(flags: c_int, max_items: usize) -> Result<Options, Errno> {
    if flags & !(USERPOLL | EXTENDED | FEEDER_MASK | SPIN_MASK | CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let feeder = match (flags & FEEDER_MASK) >> FEEDER_SHIFT {
        0 => Feeder::Auto,
        1 => Feeder::Epoll,
        2 => Feeder::Uring,
        3 => Feeder::Aio,
        4 => Feeder::Reactor,
        _ => return Err(Errno::EINVAL),
    };
    let max_items = u32::try_from(max_items).map_err(|_| Errno::EINVAL)?;
    Ok(Options {
        feeder,
        extended: flags & EXTENDED != 0,
        spin_ns: u64::from((flags & SPIN_MASK) as u32 >> SPIN_SHIFT) * 1000,
        spawn: Some(spawn),
        ..Options::new(max_items)
    })
}

fn create(flags: c_int, max_items: usize) -> Result<c_int, Errno> {
    let set = Set::create(options(flags, max_items)?)?;
    let fd = set.fd();
    if flags & CLOEXEC == 0 {
        os::fcntl(fd, raw::F_SETFD, 0)?;
    }
    // The number may have belonged to a set whose descriptor the program has closed directly.
    let stale = SETS.lock().insert(fd, Arc::new(set));
    if let Some(stale) = stale {
        stale.lost_descriptor();
    }
    Ok(fd)
}

fn result(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(Errno::negated)
}

/// Makes a set with `EPOLL_USERPOLL`, else an epoll instance of the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn anyring_epoll_create2(flags: c_int, max_items: usize) -> c_int {
    if flags & USERPOLL != 0 {
        return result(create(flags, max_items));
    }
    // SAFETY: touches no memory.
    result(
        unsafe { os::call(raw::__NR_epoll_create1, [flags as usize, 0, 0, 0, 0, 0]) }.map(|fd| fd as c_int),
    )
}

/// Changes a set as `epoll_ctl(2)` does; for descriptors that are no sets, makes `epoll_ctl(2)`.
///
/// # Safety
/// `event` must be null or an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anyring_epoll_ctl(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *const EpollEvent,
) -> c_int {
    let Some(set) = set_of(epfd) else {
        let arguments = [epfd as usize, operation as usize, fd as usize, event as usize, 0, 0];
        // SAFETY: the kernel reads the event, as it does in `epoll_ctl(2)`.
        return result(unsafe { os::call(raw::__NR_epoll_ctl, arguments) }.map(|_| 0));
    };
    // SAFETY: the caller's promise.
    let given = unsafe { event.as_ref() };
    let event = match given {
        Some(event) => Event { events: event.events, data: event.data },
        None if operation as u32 == anyring_uepoll::DELETE => Event::default(),
        None => return Errno::EFAULT.negated(),
    };
    result(set.control(operation as u32, fd, event).map(|()| 0))
}

fn timeout(timeout_ms: c_int) -> Option<u64> {
    u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000)
}

/// Sleeps until the ring has events, and returns `-ESTALE` then; 0 if none came in time.
#[unsafe(no_mangle)]
pub extern "C" fn anyring_epoll_wait(epfd: c_int, timeout_ms: c_int) -> c_int {
    let Some(set) = set_of(epfd) else { return Errno::EBADF.negated() };
    result(set.wait(timeout(timeout_ms)).map(|()| 0))
}

/// Takes events as `epoll_wait(2)` does, and sleeps if there are none; for descriptors that are no sets, makes
/// `epoll_wait(2)`.
///
/// # Safety
/// `events` must have room for `count` events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anyring_epoll_take(
    epfd: c_int,
    events: *mut EpollEvent,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    const MOST: usize = 128;
    let Some(set) = set_of(epfd) else {
        let arguments = [epfd as usize, events as usize, count as usize, timeout_ms as isize as usize, 0, 8];
        // SAFETY: the caller's promise; the call has no signal mask.
        return result(unsafe { os::call(raw::__NR_epoll_pwait, arguments) }.map(|count| count as c_int));
    };
    let mut taken = [Event::default(); MOST];
    let room = usize::try_from(count).unwrap_or(0).min(MOST);
    match set.take(&mut taken[..room], timeout(timeout_ms)) {
        Ok(count) => {
            for (place, event) in taken[..count].iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { events.add(place).write(EpollEvent { events: event.events, data: event.data }) };
            }
            count as c_int
        }
        Err(error) => error.negated(),
    }
}

/// Ends a set, and closes its descriptor; other descriptors are only closed.
#[unsafe(no_mangle)]
pub extern "C" fn anyring_epoll_close(epfd: c_int) -> c_int {
    let set = SETS.lock().remove(&epfd);
    if set.is_none() {
        // SAFETY: touches no memory.
        return result(unsafe { os::call(raw::__NR_close, [epfd as usize, 0, 0, 0, 0, 0]) }.map(|_| 0));
    }
    0
}

/// Returns the feeder of a set: 1 to 4, in the order of `anyring.h`.
#[unsafe(no_mangle)]
pub extern "C" fn anyring_epoll_feeder(epfd: c_int) -> c_int {
    let Some(set) = set_of(epfd) else { return Errno::EBADF.negated() };
    match set.feeder() {
        Feeder::Auto => 0,
        Feeder::Epoll => 1,
        Feeder::Uring => 2,
        Feeder::Aio => 3,
        Feeder::Reactor => 4,
    }
}

/// Makes an event that any thread can raise; null if the set has its maximum number of items.
#[unsafe(no_mangle)]
pub extern "C" fn anyring_event_add(epfd: c_int, data: u64) -> *mut Raised {
    let Some(set) = set_of(epfd) else { return core::ptr::null_mut() };
    match set.add_event(data) {
        Ok(raiser) => Box::into_raw(Box::new(Raised { raiser, set })),
        Err(_) => core::ptr::null_mut(),
    }
}

/// Raises an event.
///
/// # Safety
/// The event must come from [`anyring_event_add`], and must not have been removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anyring_event_raise(event: *const Raised, events: u32) {
    // SAFETY: the caller's promise.
    unsafe { &*event }.raiser.raise(events);
}

/// Removes an event.
///
/// # Safety
/// As for [`anyring_event_raise`]; no thread may raise the event from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anyring_event_delete(event: *mut Raised) {
    // SAFETY: the caller's promise.
    let event = unsafe { Box::from_raw(event) };
    let _ = event.set.delete_event(&event.raiser);
}
