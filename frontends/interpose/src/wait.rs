//! Calls that wait for descriptors. A ring of ours is a memfd and cannot be polled; the engine has a
//! stand-in for each that is polled ([`frontend::readiness_fd`]), which takes the ring's place here.

use crate::{Frontend, next};
use anyring_engine::frontend;
use anyring_runtime::calls;
use core::ffi::{c_int, c_long, c_void};
use linux_raw_sys::general as raw;

/// Brings the stand-ins of rings in epoll instances in line.
#[inline]
fn before_wait<F: Frontend>() {
    if frontend::has_ready_rings_in_epoll() {
        synchronize::<F>();
    }
}

#[cold]
fn synchronize<F: Frontend>() {
    let _stay = F::enter();
    frontend::before_epoll_wait();
}

/// The stand-in of a ring, in line with it.
fn stand_in<F: Frontend>(ring: c_int) -> Result<c_int, c_int> {
    let _stay = F::enter();
    let stand_in = frontend::readiness_fd(ring)?;
    frontend::sync_readiness(ring);
    Ok(stand_in)
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn epoll_ctl<F: Frontend>(
    instance: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut c_void,
) -> c_int {
    let mut target = fd;
    let ring = calls::is_ring(fd);
    if ring {
        match stand_in::<F>(fd) {
            Ok(stand_in) => target = stand_in,
            Err(error) => return next::fail(error as isize) as c_int,
        }
    }
    if !ring && operation as u32 == raw::EPOLL_CTL_ADD {
        crate::sockets::watches_errors::<F>(fd);
    }
    let result = next!(
        c"epoll_ctl",
        fn(c_int, c_int, c_int, *mut c_void) -> c_int,
        instance,
        operation,
        target,
        event,
    );
    if ring && result == 0 && operation as u32 == raw::EPOLL_CTL_ADD {
        let _stay = F::enter();
        frontend::added_to_epoll(fd);
    }
    result
}

/// `epoll_wait(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn epoll_wait<F: Frontend>(
    instance: c_int,
    events: *mut c_void,
    count: c_int,
    timeout: c_int,
) -> c_int {
    before_wait::<F>();
    next!(c"epoll_wait", fn(c_int, *mut c_void, c_int, c_int) -> c_int, instance, events, count, timeout,)
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn epoll_pwait<F: Frontend>(
    instance: c_int,
    events: *mut c_void,
    count: c_int,
    timeout: c_int,
    mask: *const c_void,
) -> c_int {
    before_wait::<F>();
    next!(
        c"epoll_pwait",
        fn(c_int, *mut c_void, c_int, c_int, *const c_void) -> c_int,
        instance,
        events,
        count,
        timeout,
        mask,
    )
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn epoll_pwait2<F: Frontend>(
    instance: c_int,
    events: *mut c_void,
    count: c_int,
    timeout: *const c_void,
    mask: *const c_void,
) -> c_int {
    before_wait::<F>();
    next!(
        c"epoll_pwait2",
        fn(c_int, *mut c_void, c_int, *const c_void, *const c_void) -> c_int,
        instance,
        events,
        count,
        timeout,
        mask,
    )
}

/// `struct pollfd`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PollFd {
    fd: c_int,
    events: i16,
    revents: i16,
}

/// Calls `wait` with a list in which stand-ins have the rings' places, if there are any.
///
/// # Safety
/// `list` must hold `count` entries, as in C.
unsafe fn with_stand_ins<F: Frontend>(
    list: *mut PollFd,
    count: usize,
    mut wait: impl FnMut(*mut PollFd) -> c_int,
) -> c_int {
    if !calls::rings_exist() || list.is_null() {
        return wait(list);
    }
    // SAFETY: the caller's promise.
    let program = unsafe { core::slice::from_raw_parts_mut(list, count) };
    if !program.iter().any(|entry| calls::is_ring(entry.fd)) {
        return wait(list);
    }
    let mut copy = program.to_vec();
    for entry in copy.iter_mut().filter(|entry| calls::is_ring(entry.fd)) {
        match stand_in::<F>(entry.fd) {
            Ok(stand_in) => entry.fd = stand_in,
            Err(error) => return next::fail(error as isize) as c_int,
        }
    }
    let result = wait(copy.as_mut_ptr());
    if result >= 0 {
        for (entry, answer) in program.iter_mut().zip(copy) {
            entry.revents = answer.revents;
        }
    }
    result
}

/// `poll(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn poll<F: Frontend>(list: *mut PollFd, count: usize, timeout: c_int) -> c_int {
    let wait = |list| next!(c"poll", fn(*mut PollFd, usize, c_int) -> c_int, list, count, timeout);
    // SAFETY: the caller's promise.
    unsafe { with_stand_ins::<F>(list, count, wait) }
}

/// What `poll` is compiled to under `_FORTIFY_SOURCE`.
///
/// # Safety
/// As in C.
pub unsafe fn __poll_chk<F: Frontend>(
    list: *mut PollFd,
    count: usize,
    timeout: c_int,
    bytes: usize,
) -> c_int {
    let wait = |list| {
        next!(c"__poll_chk", fn(*mut PollFd, usize, c_int, usize) -> c_int, list, count, timeout, bytes,)
    };
    // SAFETY: the caller's promise, which the real function checks.
    unsafe { with_stand_ins::<F>(list, count.min(bytes / size_of::<PollFd>()), wait) }
}

/// `ppoll(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn ppoll<F: Frontend>(
    list: *mut PollFd,
    count: usize,
    timeout: *const c_void,
    mask: *const c_void,
) -> c_int {
    let wait = |list| {
        next!(
            c"ppoll",
            fn(*mut PollFd, usize, *const c_void, *const c_void) -> c_int,
            list,
            count,
            timeout,
            mask,
        )
    };
    // SAFETY: the caller's promise.
    unsafe { with_stand_ins::<F>(list, count, wait) }
}

/// What `ppoll` is compiled to under `_FORTIFY_SOURCE`.
///
/// # Safety
/// As in C.
pub unsafe fn __ppoll_chk<F: Frontend>(
    list: *mut PollFd,
    count: usize,
    timeout: *const c_void,
    mask: *const c_void,
    bytes: usize,
) -> c_int {
    let wait = |list| {
        next!(
            c"__ppoll_chk",
            fn(*mut PollFd, usize, *const c_void, *const c_void, usize) -> c_int,
            list,
            count,
            timeout,
            mask,
            bytes,
        )
    };
    // SAFETY: the caller's promise, which the real function checks.
    unsafe { with_stand_ins::<F>(list, count.min(bytes / size_of::<PollFd>()), wait) }
}

/// `fd_set`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FdSet([c_long; 16]);

impl FdSet {
    const BITS: c_int = c_long::BITS as c_int;

    fn has(&self, fd: c_int) -> bool {
        self.0[(fd / Self::BITS) as usize] >> (fd % Self::BITS) & 1 != 0
    }

    fn set(&mut self, fd: c_int, on: bool) {
        let bit = 1 << (fd % Self::BITS);
        let word = &mut self.0[(fd / Self::BITS) as usize];
        *word = if on { *word | bit } else { *word & !bit };
    }
}

/// A ring in an `fd_set` and what stands in for it.
#[derive(Clone, Copy, Default)]
struct Standing {
    ring: c_int,
    stand_in: c_int,
}

/// Calls `wait` with stand-ins in the rings' places.
///
/// # Safety
/// The sets are null or as in C.
unsafe fn select_with_stand_ins<F: Frontend>(
    count: c_int,
    sets: [*mut FdSet; 3],
    wait: impl FnOnce(c_int) -> c_int,
) -> c_int {
    if !calls::rings_exist() || count <= 0 || count > 1024 {
        return wait(count);
    }
    let named = |fd: c_int| {
        // SAFETY: the caller's promise; `fd` is below `count`.
        sets.iter().any(|set| unsafe { set.as_ref() }.is_some_and(|set| set.has(fd)))
    };
    let mut standing = [Standing::default(); 64];
    let mut standing_count = 0;
    let mut new_count = count;
    for ring in (0..count).filter(|&fd| named(fd) && calls::is_ring(fd)) {
        let Some(entry) = standing.get_mut(standing_count) else { break };
        match stand_in::<F>(ring) {
            Ok(stand_in) if stand_in < 1024 => *entry = Standing { ring, stand_in },
            _ => continue,
        }
        standing_count += 1;
        new_count = new_count.max(entry.stand_in + 1);
    }
    let standing = &standing[..standing_count];
    for set in sets {
        // SAFETY: the caller's promise.
        if let Some(set) = unsafe { set.as_mut() } {
            exchange(set, standing.iter().map(|entry| (entry.ring, entry.stand_in)));
        }
    }
    let result = wait(new_count);
    for set in sets {
        // SAFETY: the caller's promise.
        if let Some(set) = unsafe { set.as_mut() } {
            exchange(set, standing.iter().map(|entry| (entry.stand_in, entry.ring)));
        }
    }
    result
}

/// Moves what the set says of the first of each pair to the second.
fn exchange(set: &mut FdSet, pairs: impl Iterator<Item = (c_int, c_int)>) {
    for (from, to) in pairs {
        if set.has(from) {
            set.set(from, false);
            set.set(to, true);
        }
    }
}

/// `select(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn select<F: Frontend>(
    count: c_int,
    read: *mut FdSet,
    write: *mut FdSet,
    except: *mut FdSet,
    timeout: *mut c_void,
) -> c_int {
    let wait = |count| {
        next!(
            c"select",
            fn(c_int, *mut FdSet, *mut FdSet, *mut FdSet, *mut c_void) -> c_int,
            count,
            read,
            write,
            except,
            timeout,
        )
    };
    // SAFETY: the caller's promise.
    unsafe { select_with_stand_ins::<F>(count, [read, write, except], wait) }
}

/// `pselect(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn pselect<F: Frontend>(
    count: c_int,
    read: *mut FdSet,
    write: *mut FdSet,
    except: *mut FdSet,
    timeout: *const c_void,
    mask: *const c_void,
) -> c_int {
    let wait = |count| {
        next!(
            c"pselect",
            fn(c_int, *mut FdSet, *mut FdSet, *mut FdSet, *const c_void, *const c_void) -> c_int,
            count,
            read,
            write,
            except,
            timeout,
            mask,
        )
    };
    // SAFETY: the caller's promise.
    unsafe { select_with_stand_ins::<F>(count, [read, write, except], wait) }
}
