//! Calls that wait for descriptors. A ring of ours is a memfd and cannot be polled; the engine has a
//! stand-in for each that is polled ([`frontend::readiness_fd`]), which takes the ring's place here. A thread that polls by a list
//! looks at the rings in it before and after ([`frontend::begin_poll`]).

use crate::arch::waits;
use crate::{Frontend, next};
use alloc::vec::Vec;
use anyring_engine::frontend;
use anyring_engine::os::{self, Timespec, user};
use anyring_runtime::{arch, calls, sys};
use core::ffi::{c_int, c_ulong, c_void};
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

/// The answer of such a call that the program makes by an instruction of its own, where rings are among what it names; `sleep` makes
/// one that may sleep. `None` leaves the call to the program.
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

/// How long a poll lasts.
#[derive(Clone, Copy)]
enum Patience {
    /// A number of milliseconds, or no limit if it is negative.
    Milliseconds(c_int),
    /// The time at this address, or no limit if it is null.
    Time(*const c_void),
    /// The time at an address at which the kernel counts it down.
    Countdown,
}

impl Patience {
    /// The patience of a call by its number.
    fn of(number: u32, argument: usize) -> Patience {
        if number == raw::__NR_ppoll {
            Patience::Countdown
        } else {
            Patience::Milliseconds(argument as c_int)
        }
    }

    /// The end of a wait that begins now, on the monotonic clock; `None` if nothing has to be kept of it.
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

/// Nanoseconds as `poll` takes them, not less.
fn milliseconds(ns: u64) -> c_int {
    c_int::try_from(ns.div_ceil(NS_PER_MS)).unwrap_or(c_int::MAX)
}

/// The address of the time that is left, if it is not all of the time at `whole`.
fn time_or(left: Option<&Timespec>, whole: *const c_void) -> *const c_void {
    left.map_or(whole, |left| core::ptr::from_ref(left).cast())
}

/// The time that is left of a poll that goes on, in nanoseconds; `None` for all of it.
type LeftNs = Option<u64>;

/// Calls `wait` with a list in which stand-ins have the rings' places, if there are any. What cannot be read or written is the
/// kernel's to refuse.
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

/// The answer of a `wait` for rings among others, or why there is none; `None` where there are no rings.
fn among_stand_ins<F: Frontend>(
    list: *mut PollFd,
    count: usize,
    patience: Patience,
    wait: impl Fn(*mut PollFd, LeftNs) -> c_int,
) -> Option<Result<c_int, isize>> {
    // The kernel takes no more than the limit, which is above a few.
    let is_long = || count > FEW && count > sys::descriptor_limit() as usize;
    if !calls::rings_exist() || is_long() || !names_ring(list, count) {
        return None;
    }
    let mut copy = user::read_many::<PollFd>(list.addr() as u64, count).ok()?;
    // Each ring of the list, by its place.
    let rings: Vec<(usize, c_int)> = (copy.iter().enumerate())
        .filter(|(_, entry)| calls::is_ring(entry.fd))
        .map(|(place, entry)| (place, entry.fd))
        .collect();
    let end_ns = patience.end_ns();
    let mut left_ns = None;
    let result = loop {
        // The program may have closed a stand-in unseen meanwhile: its number may be another file's, which is readable for long.
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
        // A stand-in was readable without a completion in its ring: the poll goes on, if its time is not over.
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

/// The stand-in of a ring, in line with it, for a poll that begins.
fn begin_poll<F: Frontend>(ring: c_int) -> Result<c_int, c_int> {
    let _stay = F::enter();
    frontend::begin_poll(ring)
}

/// Looks at the rings whose stand-ins a poll has found readable. Returns how many of the list have nothing to report after that.
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

/// The events that a poll reports of an eventfd that is readable.
const READABLE: i16 = (raw::POLLIN | raw::POLLRDNORM) as i16;

/// The number of entries up to which the limit on descriptors is not asked for: the kernel refuses a list beyond a lower one.
const FEW: usize = 64;

/// True if there is a ring in the list.
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

/// `fd_set`, of which a program has as much as the highest number that it names takes.
#[repr(C)]
pub struct FdSet([c_ulong; 0]);

const BITS: usize = c_ulong::BITS as usize;

/// The bits of a set for the numbers in it, and for others behind.
struct Words(Vec<c_ulong>);

impl Words {
    /// Reads so many from the program's memory.
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

    /// Moves what is said of one number to another.
    fn exchange(&mut self, from: c_int, to: c_int) {
        if self.has(from) {
            self.set(from, false);
            self.set(to, true);
        }
    }

    /// The numbers in it.
    fn numbers(&self) -> impl Iterator<Item = c_int> + '_ {
        (0..(self.0.len() * BITS) as c_int).filter(|&fd| self.has(fd))
    }
}

/// Calls `wait` with stand-ins in the rings' places, if there are any. What cannot be read or written is the kernel's to refuse.
fn select_with_stand_ins<F: Frontend>(
    count: c_int,
    sets: [*mut FdSet; 3],
    wait: impl Fn(c_int, [*mut FdSet; 3]) -> c_int,
) -> c_int {
    let answer = select_among_stand_ins::<F>(count, sets, &wait);
    answer
        .map_or_else(|| wait(count, sets), |answer| answer.unwrap_or_else(|error| next::fail(error) as c_int))
}

/// The answer of a `wait` for rings among others, or why there is none; `None` where there are no rings.
fn select_among_stand_ins<F: Frontend>(
    count: c_int,
    sets: [*mut FdSet; 3],
    wait: impl FnOnce(c_int, [*mut FdSet; 3]) -> c_int,
) -> Option<Result<c_int, isize>> {
    if !calls::rings_exist() || count <= 0 {
        return None;
    }
    // The kernel looks at no more, however many are named.
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
