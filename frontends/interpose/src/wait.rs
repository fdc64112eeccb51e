//! Calls that wait for descriptors. A ring of the user engine is a memory file, which cannot be polled. The engine has a
//! *stand-in* for each ring that is polled, an eventfd ([`frontend::readiness_fd`]), which replaces the ring in these calls. A
//! thread that polls by a list looks at its rings before and after the call ([`frontend::begin_poll`]).

use crate::arch::waits;
use crate::{Frontend, next};
use alloc::vec::Vec;
use anyring_engine::frontend;
use anyring_engine::os::{self, Timespec, user};
use anyring_runtime::{arch, calls, sys};
use core::ffi::{c_int, c_ulong, c_void};
use linux_raw_sys::general as raw;

/// Updates the stand-ins of rings that are in epoll instances.
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

/// Returns the stand-in of a ring, updated to the ring's state.
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

/// Answers a waiting call that the program makes by an instruction of its own, if the call names rings; `sleep` makes a call that
/// may sleep. `None` leaves the call to the program.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn answer<F: Frontend>(
    number: usize,
    a: [usize; 6],
    sleep: impl Fn([usize; 6]) -> isize,
) -> Option<isize> {
    let pointer = |index: usize| a[index] as *mut FdSet;
    let answered = match number as u32 {
        // SAFETY: the caller's promise.
        raw::__NR_epoll_ctl => return unsafe { control::<F>(number, a) },
        number if waits::by_epoll(number) => {
            before_wait::<F>();
            None
        }
        number if waits::by_list(number) => {
            let patience = Patience::of(number, a[2]);
            among_stand_ins::<F>(a[0] as *mut PollFd, a[1], patience, |list, left_ns| {
                let time = left_ns.map_or(a[2], |left_ns| milliseconds(left_ns) as usize);
                sleep([list.addr(), a[1], time, a[3], a[4], a[5]]) as c_int
            })
        }
        number if waits::by_sets(number) => {
            let sets = [pointer(1), pointer(2), pointer(3)];
            select_among_stand_ins::<F>(a[0] as c_int, sets, |count, [read, write, except]| {
                sleep([count as usize, read.addr(), write.addr(), except.addr(), a[4], a[5]]) as c_int
            })
        }
        _ => None,
    };
    answered.map(|answer| answer.map_or_else(|error| error, |result| result as isize))
}

/// `epoll_ctl(2)` by its number, for a ring.
///
/// # Safety
/// As for the call.
unsafe fn control<F: Frontend>(number: usize, mut a: [usize; 6]) -> Option<isize> {
    let (operation, fd) = (a[1] as u32, a[2] as c_int);
    if !calls::is_ring(fd) {
        if operation == raw::EPOLL_CTL_ADD {
            crate::sockets::watches_errors::<F>(fd);
        }
        return None;
    }
    match stand_in::<F>(fd) {
        Ok(stand_in) => a[2] = stand_in as usize,
        Err(error) => return Some(error as isize),
    }
    // SAFETY: the caller's promise.
    let result = unsafe { arch::syscall(number, a) };
    if result == 0 && operation == raw::EPOLL_CTL_ADD {
        let _stay = F::enter();
        frontend::added_to_epoll(fd);
    }
    Some(result)
}

/// `struct pollfd`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PollFd {
    fd: c_int,
    events: i16,
    revents: i16,
}

// SAFETY: integers only, without padding.
unsafe impl user::Plain for PollFd {}

/// The time limit of a poll.
#[derive(Clone, Copy)]
enum Patience {
    /// A number of milliseconds, or no limit if it is negative.
    Milliseconds(c_int),
    /// The time at this address, or no limit if it is null.
    Time(*const c_void),
    /// The time at an address, which the kernel updates to the remaining time.
    Countdown,
}

impl Patience {
    /// Returns the time limit of a call, by the call's number.
    fn of(number: u32, argument: usize) -> Patience {
        if number == raw::__NR_ppoll {
            Patience::Countdown
        } else {
            Patience::Milliseconds(argument as c_int)
        }
    }

    /// Returns the end of a wait that begins now, on the monotonic clock; `None` if there is no limit, or if the kernel
    /// updates the time.
    fn end_ns(self) -> Option<u64> {
        let lasts_ns = match self {
            Patience::Milliseconds(time_ms) => u64::try_from(time_ms).ok()? * NS_PER_MS,
            Patience::Time(time) if !time.is_null() => {
                user::read::<Timespec>(time.addr() as u64).ok()?.to_ns()?
            }
            Patience::Time(_) | Patience::Countdown => return None,
        };
        Some(os::monotonic_ns().saturating_add(lasts_ns))
    }
}

const NS_PER_MS: u64 = 1_000_000;

/// Converts nanoseconds to milliseconds for `poll`, rounded up.
fn milliseconds(ns: u64) -> c_int {
    c_int::try_from(ns.div_ceil(NS_PER_MS)).unwrap_or(c_int::MAX)
}

/// Returns the address of the remaining time, or `whole` if all of the time is left.
fn time_or(left: Option<&Timespec>, whole: *const c_void) -> *const c_void {
    left.map_or(whole, |left| core::ptr::from_ref(left).cast())
}

/// The remaining time of a poll that is repeated, in nanoseconds; `None` for all of the time.
type LeftNs = Option<u64>;

/// Calls `wait` with a list in which stand-ins replace the rings, if there are any. If the list cannot be read or written, the
/// kernel reports that.
fn with_stand_ins<F: Frontend>(
    list: *mut PollFd,
    count: usize,
    patience: Patience,
    wait: impl Fn(*mut PollFd, LeftNs) -> c_int,
) -> c_int {
    let answer = among_stand_ins::<F>(list, count, patience, &wait);
    let answered = |answer: Result<c_int, isize>| answer.unwrap_or_else(|error| next::fail(error) as c_int);
    answer.map_or_else(|| wait(list, None), answered)
}

/// Calls `wait` with a list in which stand-ins replace the rings. Returns the result, or the error of a stand-in;
/// `None` if the list contains no rings.
fn among_stand_ins<F: Frontend>(
    list: *mut PollFd,
    count: usize,
    patience: Patience,
    wait: impl Fn(*mut PollFd, LeftNs) -> c_int,
) -> Option<Result<c_int, isize>> {
    // The kernel refuses a list that is longer than the limit.
    let is_long = || count > FEW && count > sys::descriptor_limit() as usize;
    if !calls::rings_exist() || is_long() || !names_ring(list, count) {
        return None;
    }
    let mut copy = user::read_many::<PollFd>(list.addr() as u64, count).ok()?;
    // The rings of the list, with their places.
    let rings: Vec<(usize, c_int)> = (copy.iter().enumerate())
        .filter(|(_, entry)| calls::is_ring(entry.fd))
        .map(|(place, entry)| (place, entry.fd))
        .collect();
    let end_ns = patience.end_ns();
    let mut left_ns = None;
    let result = loop {
        // Each round gets the stand-ins again: the program may have closed a stand-in unseen, and its number may belong to
        // another file, which stays readable.
        for &(place, ring) in &rings {
            match begin_poll::<F>(ring) {
                Ok(stand_in) => copy[place].fd = stand_in,
                Err(error) => return Some(Err(error as isize)),
            }
        }
        let result = wait(copy.as_mut_ptr(), left_ns);
        if result <= 0 {
            break result;
        }
        let ready = result - end_polls::<F>(&mut copy, &rings);
        if ready > 0 {
            break ready;
        }
        // A stand-in was readable, but its ring has no completion: the poll is repeated, for the remaining time.
        left_ns = end_ns.map(|end_ns| end_ns.saturating_sub(os::monotonic_ns()));
    };
    if result >= 0 {
        let events = |index: usize| {
            list.wrapping_add(index).wrapping_byte_add(core::mem::offset_of!(PollFd, revents)).addr()
        };
        let mut answers = copy.iter().enumerate();
        let told =
            answers.try_for_each(|(index, entry)| user::write(events(index) as u64, &(entry.revents as u16)));
        if let Err(errno) = told {
            return Some(Err(errno.negated() as isize));
        }
    }
    Some(Ok(result))
}

/// Returns the stand-in of a ring, for a poll that begins.
fn begin_poll<F: Frontend>(ring: c_int) -> Result<c_int, c_int> {
    let _stay = F::enter();
    frontend::begin_poll(ring)
}

/// Looks at the rings whose stand-ins a poll has found readable. Returns the number of entries that have nothing to report after
/// that.
fn end_polls<F: Frontend>(list: &mut [PollFd], rings: &[(usize, c_int)]) -> c_int {
    let mut over = 0;
    for &(place, ring) in rings {
        let entry = &mut list[place];
        if entry.revents & READABLE == 0 {
            continue;
        }
        let _stay = F::enter();
        if !frontend::end_poll(ring) {
            entry.revents &= !READABLE;
            over += c_int::from(entry.revents == 0);
        }
    }
    over
}

/// The events that a poll reports for a readable eventfd.
const READABLE: i16 = (raw::POLLIN | raw::POLLRDNORM) as i16;

/// The number of entries up to which the limit on descriptors is not checked here. If the limit is lower, the kernel refuses
/// the list.
const FEW: usize = 64;

/// True if the list contains a ring.
fn names_ring(list: *mut PollFd, count: usize) -> bool {
    const PIECE: usize = 32;
    let mut piece = [0; PIECE * size_of::<PollFd>()];
    (0..count).step_by(PIECE).any(|first| {
        let bytes = &mut piece[..PIECE.min(count - first) * size_of::<PollFd>()];
        let read = user::read_bytes(list.wrapping_add(first).addr() as u64, bytes);
        let number = |entry: &[u8]| entry.first_chunk().map_or(-1, |number| c_int::from_ne_bytes(*number));
        read.is_ok() && bytes.chunks(size_of::<PollFd>()).any(|entry| calls::is_ring(number(entry)))
    })
}

/// `poll(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn poll<F: Frontend>(list: *mut PollFd, count: usize, timeout: c_int) -> c_int {
    let wait = |list, left_ns: LeftNs| {
        let time = left_ns.map_or(timeout, milliseconds);
        next!(c"poll", fn(*mut PollFd, usize, c_int) -> c_int, list, count, time)
    };
    with_stand_ins::<F>(list, count, Patience::Milliseconds(timeout), wait)
}

/// `poll`, as it is compiled under `_FORTIFY_SOURCE`.
///
/// # Safety
/// As in C.
pub unsafe fn __poll_chk<F: Frontend>(
    list: *mut PollFd,
    count: usize,
    timeout: c_int,
    bytes: usize,
) -> c_int {
    let wait = |list, left_ns: LeftNs| {
        let time = left_ns.map_or(timeout, milliseconds);
        next!(c"__poll_chk", fn(*mut PollFd, usize, c_int, usize) -> c_int, list, count, time, bytes,)
    };
    with_stand_ins::<F>(list, count.min(bytes / size_of::<PollFd>()), Patience::Milliseconds(timeout), wait)
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
    let wait = |list, left_ns: LeftNs| {
        let left = left_ns.map(Timespec::from_ns);
        let time = time_or(left.as_ref(), timeout);
        next!(
            c"ppoll",
            fn(*mut PollFd, usize, *const c_void, *const c_void) -> c_int,
            list,
            count,
            time,
            mask,
        )
    };
    with_stand_ins::<F>(list, count, Patience::Time(timeout), wait)
}

/// `ppoll`, as it is compiled under `_FORTIFY_SOURCE`.
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
    let wait = |list, left_ns: LeftNs| {
        let left = left_ns.map(Timespec::from_ns);
        let time = time_or(left.as_ref(), timeout);
        next!(
            c"__ppoll_chk",
            fn(*mut PollFd, usize, *const c_void, *const c_void, usize) -> c_int,
            list,
            count,
            time,
            mask,
            bytes,
        )
    };
    with_stand_ins::<F>(list, count.min(bytes / size_of::<PollFd>()), Patience::Time(timeout), wait)
}

/// `fd_set`. Programs allocate only as much of it as the highest number in it requires.
#[repr(C)]
pub struct FdSet([c_ulong; 0]);

const BITS: usize = c_ulong::BITS as usize;

/// The bits of a set, which may be longer than the program's.
struct Words(Vec<c_ulong>);

impl Words {
    /// Reads `words` words from the program's memory.
    fn read(set: *mut FdSet, words: usize) -> Option<Words> {
        user::read_many(set.addr() as u64, words).ok().map(Words)
    }

    fn has(&self, fd: c_int) -> bool {
        self.0[fd as usize / BITS] >> (fd as usize % BITS) & 1 != 0
    }

    fn set(&mut self, fd: c_int, on: bool) {
        let (word, bit) = (&mut self.0[fd as usize / BITS], 1 << (fd as usize % BITS));
        *word = if on { *word | bit } else { *word & !bit };
    }

    /// Moves the bit of one number to another number.
    fn exchange(&mut self, from: c_int, to: c_int) {
        if self.has(from) {
            self.set(from, false);
            self.set(to, true);
        }
    }

    /// Iterates over the numbers in the set.
    fn numbers(&self) -> impl Iterator<Item = c_int> + '_ {
        (0..(self.0.len() * BITS) as c_int).filter(|&fd| self.has(fd))
    }
}

/// Calls `wait` with sets in which stand-ins replace the rings, if there are any. If a set cannot be read or written, the kernel
/// reports that.
fn select_with_stand_ins<F: Frontend>(
    count: c_int,
    sets: [*mut FdSet; 3],
    wait: impl Fn(c_int, [*mut FdSet; 3]) -> c_int,
) -> c_int {
    let answer = select_among_stand_ins::<F>(count, sets, &wait);
    answer
        .map_or_else(|| wait(count, sets), |answer| answer.unwrap_or_else(|error| next::fail(error) as c_int))
}

/// Calls `wait` with sets in which stand-ins replace the rings. Returns the result, or the error of a stand-in; `None`
/// if the sets contain no rings.
fn select_among_stand_ins<F: Frontend>(
    count: c_int,
    sets: [*mut FdSet; 3],
    wait: impl FnOnce(c_int, [*mut FdSet; 3]) -> c_int,
) -> Option<Result<c_int, isize>> {
    if !calls::rings_exist() || count <= 0 {
        return None;
    }
    // The kernel looks only at numbers below the limit, however large `count` is.
    let named = (count as usize).min(sys::descriptor_limit() as usize);
    let words = named.div_ceil(BITS);
    let mut rings = Vec::new();
    let mut copies = [const { Words(Vec::new()) }; 3];
    for (copy, set) in copies.iter_mut().zip(sets).filter(|(_, set)| !set.is_null()) {
        *copy = Words::read(set, words)?;
        rings.extend(copy.numbers().filter(|&fd| (fd as usize) < named && calls::is_ring(fd)));
    }
    if rings.is_empty() {
        return None;
    }
    let mut pairs = Vec::new();
    let mut highest = named as c_int - 1;
    for ring in rings {
        match stand_in::<F>(ring) {
            Ok(stand_in) => pairs.push((ring, stand_in)),
            Err(error) => return Some(Err(error as isize)),
        }
        highest = highest.max(pairs[pairs.len() - 1].1);
    }
    let all = (highest as usize + 1).div_ceil(BITS);
    let mut given = sets;
    for (copy, given) in copies.iter_mut().zip(&mut given).filter(|(_, given)| !given.is_null()) {
        copy.0.resize(all, 0);
        pairs.iter().for_each(|&(ring, stand_in)| copy.exchange(ring, stand_in));
        *given = copy.0.as_mut_ptr().cast();
    }
    let result = wait(highest + 1, given);
    if result < 0 {
        return Some(Ok(result));
    }
    for (copy, set) in copies.iter_mut().zip(sets).filter(|(_, set)| !set.is_null()) {
        pairs.iter().for_each(|&(ring, stand_in)| copy.exchange(stand_in, ring));
        for (index, word) in copy.0[..words].iter().enumerate() {
            let place = set.wrapping_byte_add(index * size_of::<c_ulong>());
            if let Err(errno) = user::write(place.addr() as u64, word) {
                return Some(Err(errno.negated() as isize));
            }
        }
    }
    Some(Ok(result))
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
    let wait = |count, [read, write, except]: [*mut FdSet; 3]| {
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
    select_with_stand_ins::<F>(count, [read, write, except], wait)
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
    let wait = |count, [read, write, except]: [*mut FdSet; 3]| {
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
    select_with_stand_ins::<F>(count, [read, write, except], wait)
}
