//! The system calls that the engine makes for itself; operations make theirs through [`call`].

use core::ffi::CStr;
use core::fmt::{self, Write};
use core::ops::RangeInclusive;
use core::ptr::NonNull;

use linux_raw_sys::general as nr;
use linux_raw_sys::ioctl::FIONBIO;

use crate::basic::{Fd, Timespec, futex_wait, getpid};
use crate::proc::{self, fd_path};
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use crate::user::IoVector;
use crate::{call, limits, own};
use anyring_abi::Errno;

/// An event of epoll, in the kernel's layout.
pub type EpollEvent = linux_raw_sys::general::epoll_event;

/// Creates a memfd that cannot be shrunk, even by other holders of a descriptor, so that mappings of it stay valid.
/// More seals can be added: the crate `anyring` prevents safe code from writing to a ring through its descriptor.
pub fn unshrinkable_memfd(name: &CStr) -> Result<Fd, Errno> {
    let flags = nr::MFD_CLOEXEC | nr::MFD_ALLOW_SEALING;
    let fd = match memfd_create(name, flags | nr::MFD_NOEXEC_SEAL) {
        // Kernels before 6.3 do not know `MFD_NOEXEC_SEAL`.
        Err(Errno::EINVAL) => memfd_create(name, flags),
        other => other,
    }?;
    fcntl(fd, nr::F_ADD_SEALS, nr::F_SEAL_SHRINK as usize).inspect_err(|_| close(fd))?;
    Ok(fd)
}

/// Seals a memfd: it can no longer be written through a descriptor, shrunk, or mapped writable. Existing mappings stay
/// writable. Needs Linux 5.1.
pub fn shut_memfd(fd: Fd) -> Result<(), Errno> {
    fcntl(fd, nr::F_ADD_SEALS, (nr::F_SEAL_FUTURE_WRITE | nr::F_SEAL_SHRINK) as usize).map(drop)
}

/// Calls `memfd_create(2)`.
pub fn memfd_create(name: &CStr, flags: u32) -> Result<Fd, Errno> {
    // SAFETY: reads a C string.
    unsafe { call(nr::__NR_memfd_create, [name.as_ptr() as usize, flags as usize, 0, 0, 0, 0]) }
        .map(|fd| fd as Fd)
}

/// Calls `ftruncate(2)`.
pub fn ftruncate(fd: Fd, length: u64) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_ftruncate, [fd as usize, length as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Grows a memfd to at least `length` bytes. The program's limit on file sizes is raised meanwhile, if permitted: it is not
/// meant for the engine, and exceeding it would send a signal.
pub fn grow_memfd(memfd: Fd, length: u64) -> Result<(), Errno> {
    if size(memfd)? >= length {
        return Ok(());
    }
    limits::with_file_size(length, || ftruncate(memfd, length))
}

/// Maps `length` bytes of `fd` at `offset`, shared, readable and writable.
pub fn map_shared(fd: Fd, offset: u64, length: usize) -> Result<*mut u8, Errno> {
    let flags = nr::MAP_SHARED | nr::MAP_POPULATE;
    map_anywhere(length, flags, fd, offset)
}

/// Maps the whole of `fd` for good; `open` converts the memory and its length into the result.
///
/// # Errors
/// `EINVAL` if `open` returns nothing: the memory is unmapped again. Errors of `mmap`.
pub fn map_whole<T>(fd: Fd, open: impl FnOnce(NonNull<u8>, usize) -> Option<T>) -> Result<T, Errno> {
    let length = size(fd)? as usize;
    let memory = NonNull::new(map_shared(fd, 0, length)?).ok_or(Errno::ENOMEM)?;
    open(memory, length).ok_or_else(|| {
        // SAFETY: mapped above, and nobody knows of it.
        unsafe { unmap(memory.as_ptr(), length) };
        Errno::EINVAL
    })
}

/// Calls `mmap(2)` for readable and writable memory at any address.
#[cfg(not(anyring_sanitizer))]
fn map_anywhere(length: usize, flags: u32, fd: Fd, offset: u64) -> Result<*mut u8, Errno> {
    let protection = nr::PROT_READ | nr::PROT_WRITE;
    let arguments = [0, length, protection as usize, flags as usize, fd as usize, offset as usize];
    // SAFETY: a new mapping does not replace an existing one.
    unsafe { call(nr::__NR_mmap, arguments) }.map(|address| address as *mut u8)
}

/// Calls `mmap(2)` through libc, so that ThreadSanitizer sees the call: otherwise it reports races between a
/// new mapping and an earlier one at the same address (`scripts/check-sanitizers`).
#[cfg(anyring_sanitizer)]
fn map_anywhere(length: usize, flags: u32, fd: Fd, offset: u64) -> Result<*mut u8, Errno> {
    unsafe extern "C" {
        fn mmap(address: *mut u8, length: usize, protection: u32, flags: u32, fd: Fd, offset: u64)
        -> *mut u8;
    }
    // SAFETY: the C function's own signature; a new mapping does not replace an existing one.
    let address =
        unsafe { mmap(core::ptr::null_mut(), length, nr::PROT_READ | nr::PROT_WRITE, flags, fd, offset) };
    if address as isize == -1 { Err(Errno::ENOMEM) } else { Ok(address) }
}

/// Maps anonymous memory that is zeroed in a child after `fork`.
pub fn map_wiped_on_fork(length: usize) -> Result<*mut u8, Errno> {
    let address = map_anywhere(length, nr::MAP_PRIVATE | nr::MAP_ANONYMOUS, -1, 0)?;
    // SAFETY: advice about our own fresh mapping.
    unsafe { call(nr::__NR_madvise, [address as usize, length, nr::MADV_WIPEONFORK as usize, 0, 0, 0]) }?;
    Ok(address)
}

/// Maps anonymous memory that this process and its children share.
pub fn map_for_children(length: usize) -> Result<*mut u8, Errno> {
    map_anywhere(length, nr::MAP_SHARED | nr::MAP_ANONYMOUS, -1, 0)
}

/// Maps memory that this process and its children share, and of which little may ever be used: nothing is reserved for it, and core dumps do
/// not have it.
pub fn map_much_for_children(length: usize) -> Result<*mut u8, Errno> {
    // A memfd, because anonymous memory is reserved as a whole where the system does not overcommit memory.
    let memfd = memfd_create(c"[io_uring page]", nr::MFD_CLOEXEC)?;
    let mapped =
        grow_memfd(memfd, length as u64).and_then(|()| map_anywhere(length, nr::MAP_SHARED, memfd, 0));
    close(memfd);
    let address = mapped?;
    // A dump would take memory for each page. Where a sandbox refuses the advice, it does.
    // SAFETY: advice about our own fresh mapping.
    let _ =
        unsafe { call(nr::__NR_madvise, [address as usize, length, nr::MADV_DONTDUMP as usize, 0, 0, 0]) };
    Ok(address)
}

/// True if the kernel's `access_ok` accepts `address`, a multiple of 4, from this thread. A trial mapping would not do instead: an
/// Arm kernel may accept addresses that the processor cannot map.
pub fn may_be_memory(address: usize) -> bool {
    let operation = nr::FUTEX_WAKE | nr::FUTEX_PRIVATE_FLAG;
    // SAFETY: reads and writes no memory. A thread that waits on a futex there may wake spuriously, as it may at any time.
    unsafe { call(nr::__NR_futex, [address, operation as usize, 0, 0, 0, 0]) }.is_ok()
}

/// Calls `munmap(2)`.
///
/// # Safety
/// The mapping must not be used any more.
pub unsafe fn unmap(address: *mut u8, length: usize) {
    // SAFETY: passed on to the caller.
    let result = unsafe { call(nr::__NR_munmap, [address as usize, length, 0, 0, 0, 0]) };
    debug_assert!(result.is_ok(), "unmapping what was mapped");
}

/// Closes a descriptor of the engine. The number is free even if `close(2)` fails.
pub fn close(fd: Fd) {
    // Before the close: afterwards the number may belong to another file.
    own::forget(fd);
    // SAFETY: touches no memory.
    let _ = unsafe { call(nr::__NR_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Closes descriptors of the engine with consecutive numbers, by one call if the kernel has it.
pub fn close_all(numbers: RangeInclusive<Fd>) {
    static REFUSED: AtomicBool = AtomicBool::new(false);
    let (first, last) = (*numbers.start(), *numbers.end());
    if first < last && !REFUSED.load(Ordering::Relaxed) {
        numbers.clone().for_each(own::forget);
        // SAFETY: touches no memory.
        match unsafe { call(nr::__NR_close_range, [first as usize, last as usize, 0, 0, 0, 0]) } {
            Ok(_) => return,
            // The kernel is older than 5.9, or a sandbox refuses the call.
            Err(_) => REFUSED.store(true, Ordering::Relaxed),
        }
    }
    numbers.for_each(close);
}

/// Calls `fcntl(2)` with an integer argument.
pub fn fcntl(fd: Fd, command: u32, argument: usize) -> Result<usize, Errno> {
    // SAFETY: the commands used here take integers.
    unsafe { call(nr::__NR_fcntl, [fd as usize, command as usize, argument, 0, 0, 0]) }
}

/// Returns the flags of the open file.
pub fn file_flags(fd: Fd) -> Result<u32, Errno> {
    fcntl(fd, nr::F_GETFL, 0).map(|flags| flags as u32)
}

/// Sets or clears `O_NONBLOCK` of the open file, atomically with respect to its other flags.
pub fn set_nonblocking(fd: Fd, wanted: bool) -> Result<(), Errno> {
    let wanted = i32::from(wanted);
    // SAFETY: reads an integer of ours.
    unsafe { call(nr::__NR_ioctl, [fd as usize, FIONBIO as usize, &raw const wanted as usize, 0, 0, 0]) }
        .map(drop)
}

/// True if `fd` is open, other than with `O_PATH`.
pub fn is_open(fd: Fd) -> bool {
    fcntl(fd, nr::F_GETFL, 0).is_ok_and(|flags| flags as u32 & nr::O_PATH == 0)
}

/// True if `fd` is an eventfd, or if `/proc` does not tell.
pub fn is_eventfd(fd: Fd) -> bool {
    let mut target = [0u8; 32];
    let length = proc::target_of(fd, &mut target);
    length.is_ok_and(|length| target[..length].starts_with(b"anon_inode:[eventfd]")) || length.is_err()
}

/// Returns the ID of an eventfd, which is unique among the existing ones. `None` for other files, and on kernels without such
/// IDs (before 5.2).
///
/// # Errors
/// If `/proc` does not tell.
pub fn eventfd_number(fd: Fd) -> Result<Option<u32>, Errno> {
    let mut text = [0u8; 512];
    let length = proc::details_of(fd, &mut text)?;
    let mut lines = text[..length].split(|&byte| byte == b'\n');
    let number = lines.find_map(|line| line.strip_prefix(b"eventfd-id:"));
    Ok(number.and_then(|number| core::str::from_utf8(number).ok()?.trim().parse().ok()))
}

/// Duplicates a descriptor for the engine, close-on-exec, out of the range of the program's low numbers if the limit allows it. If
/// the program's soft limit leaves no such number, the limit is raised meanwhile: descriptors that the engine holds for requests must
/// not use up the program's numbers.
pub fn duplicate(fd: Fd) -> Result<Fd, Errno> {
    let from = |least: u64| fcntl(fd, nr::F_DUPFD_CLOEXEC, least as usize);
    let made = match from(HIGH.into()) {
        // EINVAL: the limit is below; EMFILE: all numbers above are in use.
        Err(Errno::EINVAL | Errno::EMFILE) => {
            let beyond = |old: &nr::rlimit64| {
                let least = old.rlim_cur.max(HIGH.into());
                from(if least < old.rlim_max { least } else { old.rlim_cur })
            };
            let lifted = limits::with_limit(nr::RLIMIT_NOFILE, limits::highest, beyond);
            lifted.and_then(Result::ok).map_or_else(|| from(3), Ok)
        }
        other => other,
    };
    let made = made? as Fd;
    own::note(made);
    Ok(made)
}

/// The lowest number of the engine's own descriptors, if the limit allows it.
pub const HIGH: u32 = if cfg!(anyring_simulation) { 40 } else { 512 };

/// Calls `dup3(2)`, close-on-exec: makes `target` a duplicate of `fd`.
pub fn replace(fd: Fd, target: Fd) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_dup3, [fd as usize, target as usize, nr::O_CLOEXEC as usize, 0, 0, 0]) }.map(drop)
}

/// Creates an eventfd, non-blocking and close-on-exec, with a high number.
pub fn eventfd() -> Result<Fd, Errno> {
    let flags = nr::EFD_NONBLOCK | nr::EFD_CLOEXEC;
    // SAFETY: touches no memory.
    let low = unsafe { call(nr::__NR_eventfd2, [0, flags as usize, 0, 0, 0, 0]) }.map(|fd| fd as Fd)?;
    move_high(low).inspect(|&fd| mark(fd))
}

/// The signal set by `F_SETSIG` on the eventfds, epoll and inotify instances that the engine makes, which distinguishes them from
/// files of the program: C libraries reserve this signal, and no program requests it for a descriptor.
const MARK: usize = 32;

/// True if the system does not support `F_SETSIG` of [`MARK`].
static KEEPS_NO_MARKS: AtomicBool = AtomicBool::new(false);

/// Resets what is known of the system: the next schedule runs on another one.
#[cfg(anyring_simulation)]
pub fn forget_system() {
    super::same_file::reset();
    [&KEEPS_NO_MARKS, &LACKS_PWAIT2].iter().for_each(|known| known.store(false, Ordering::Relaxed));
    BEGINS_READS.store(UNKNOWN, Ordering::Relaxed);
}

/// Marks a file as the engine's.
fn mark(fd: Fd) {
    if fcntl(fd, nr::F_SETSIG, MARK).is_err() {
        KEEPS_NO_MARKS.store(true, Ordering::Relaxed);
    }
}

/// True if `fd` is still an eventfd, an epoll or an inotify instance that the engine made. The program may have
/// closed the number unobserved, and opened another file that got it.
pub fn is_still_own(fd: Fd) -> bool {
    match fcntl(fd, nr::F_GETSIG, 0) {
        Ok(mark) => mark == MARK || KEEPS_NO_MARKS.load(Ordering::Relaxed),
        Err(Errno::EBADF) => false,
        // A seccomp filter of the program refuses the call.
        Err(_) => true,
    }
}

/// Closes a descriptor, if it [is still the engine's](is_still_own).
pub fn close_own(fd: Fd) {
    if is_still_own(fd) { close(fd) } else { own::forget(fd) }
}

/// Moves a descriptor of the engine out of the range of the program's low numbers. It stays if no other number is available.
pub fn move_high(low: Fd) -> Result<Fd, Errno> {
    let high = duplicate(low);
    if high == Err(Errno::EMFILE) {
        own::note(low);
        return Ok(low);
    }
    close(low);
    high
}

/// Notes that a descriptor is the engine's own, though it keeps its low number for the moment.
pub fn keep_low(fd: Fd) {
    own::note(fd);
}

/// Adds one to a counter made by [`eventfd`]. A full counter wakes just as well. False if the file is not the engine's any more.
pub fn eventfd_signal(fd: Fd) -> bool {
    is_still_own(fd) && eventfd_add(fd)
}

/// Adds one to an eventfd. False if the write fails.
pub fn eventfd_add(fd: Fd) -> bool {
    let one = 1u64;
    // SAFETY: reads eight bytes of ours.
    let written = unsafe { call(nr::__NR_write, [fd as usize, &raw const one as usize, 8, 0, 0, 0]) };
    matches!(written, Ok(_) | Err(Errno::EAGAIN))
}

/// Resets the counter of an eventfd made by [`eventfd`].
pub fn eventfd_drain(fd: Fd) {
    if is_still_own(fd) {
        eventfd_take(fd);
    }
}

/// Resets the counter of an eventfd that was found to be [still the engine's](is_still_own) just now.
pub fn eventfd_take(fd: Fd) {
    let mut count = 0u64;
    // SAFETY: writes eight bytes of ours.
    let _ = unsafe { call(nr::__NR_read, [fd as usize, &raw mut count as usize, 8, 0, 0, 0]) };
}

/// Creates an epoll instance, close-on-exec, with a high number.
pub fn epoll_create() -> Result<Fd, Errno> {
    // SAFETY: touches no memory.
    let low = unsafe { call(nr::__NR_epoll_create1, [nr::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0]) }
        .map(|fd| fd as Fd)?;
    move_high(low).inspect(|&fd| mark(fd))
}

/// Calls `epoll_ctl(2)`.
pub fn epoll_ctl(epoll: Fd, operation: u32, fd: Fd, events: u32, data: u64) -> Result<(), Errno> {
    let mut event = EpollEvent { events, data };
    // SAFETY: reads an event of ours.
    unsafe {
        call(
            nr::__NR_epoll_ctl,
            [epoll as usize, operation as usize, fd as usize, &raw mut event as usize, 0, 0],
        )
    }
    .map(drop)
}

/// True if the file can be polled, by the same criterion as the kernel's io_uring. `poll(2)` would report
/// files that cannot be polled as ready. Creates an epoll instance, so it is for rare calls.
pub fn can_be_polled(fd: Fd) -> bool {
    let Ok(epoll) = epoll_create() else { return false };
    let added = epoll_ctl(epoll, nr::EPOLL_CTL_ADD, fd, 0, 0);
    close_own(epoll);
    added != Err(Errno::EPERM)
}

/// Makes a call that may sleep: by the front end's `Host::sleep`, unless the call has a signal mask.
///
/// # Safety
/// As for the call that `number` names.
unsafe fn sleep(number: u32, arguments: [usize; 6], has_mask: bool) -> Result<usize, Errno> {
    if !has_mask
        && let Some(host) = crate::host::get()
        // SAFETY: passed on to the caller.
        && let Some(result) = unsafe { host.sleep(number as usize, arguments) }
    {
        return crate::check(result);
    }
    // SAFETY: passed on to the caller.
    unsafe { call(number, arguments) }
}

/// Waits for events for at most `timeout_ns` (`None`: without a limit), with `signal_mask` in force
/// if given. Uses milliseconds, rounded up, if the kernel has no `epoll_pwait2`.
pub fn epoll_wait(
    epoll: Fd,
    events: &mut [EpollEvent],
    timeout_ns: Option<u64>,
    signal_mask: Option<u64>,
) -> Result<usize, Errno> {
    let mask = signal_mask.as_ref().map_or(0, |mask| core::ptr::from_ref(mask) as usize);
    let (address, count) = (events.as_mut_ptr() as usize, events.len());
    let short = |timeout_ms: i32| {
        // SAFETY: writes at most `count` events of ours, reads a mask of ours.
        unsafe {
            sleep(
                nr::__NR_epoll_pwait,
                [epoll as usize, address, count, timeout_ms as isize as usize, mask, 8],
                signal_mask.is_some() || timeout_ms == 0,
            )
        }
    };
    match timeout_ns {
        None => short(-1),
        Some(0) => short(0),
        Some(ns) if LACKS_PWAIT2.load(Ordering::Relaxed) => short(in_milliseconds(ns)),
        Some(ns) => {
            let timeout = Timespec::from_ns(ns);
            // SAFETY: writes at most `count` events of ours, reads a time and a mask of ours.
            let result = unsafe {
                sleep(
                    nr::__NR_epoll_pwait2,
                    [epoll as usize, address, count, &raw const timeout as usize, mask, 8],
                    signal_mask.is_some(),
                )
            };
            match result {
                Err(Errno::ENOSYS | Errno::EPERM) => {
                    // Relaxed: no other memory depends on it.
                    LACKS_PWAIT2.store(true, Ordering::Relaxed);
                    short(in_milliseconds(ns))
                }
                other => other,
            }
        }
    }
}

/// Excludes a mapping from the memory of children (`MADV_DONTFORK`).
///
/// # Errors
/// Errors of `madvise(2)`.
pub fn keep_from_children(address: *mut u8, length: usize) -> Result<(), Errno> {
    let arguments = [address as usize, length, nr::MADV_DONTFORK as usize, 0, 0, 0];
    // SAFETY: changes nothing in this process.
    unsafe { call(nr::__NR_madvise, arguments).map(drop) }
}

/// An address at which no program has memory. The kernel rejects it by a comparison; an address that is merely unmapped would cost a
/// page fault.
const NOWHERE: usize = (-65536_isize) as usize;

/// Waits for completions of a Linux AIO context without fetching them; `EFAULT` means that there are some. If there are none yet, the
/// wait ends when `least` have come; before Linux 6.8, when the first has come.
pub fn await_completions(
    context: usize,
    least: usize,
    timeout_ns: Option<u64>,
    signal_mask: Option<u64>,
) -> Result<usize, Errno> {
    let timeout = timeout_ns.map(Timespec::from_ns);
    let timeout = timeout.as_ref().map_or(0, |timeout| core::ptr::from_ref(timeout) as usize);
    let Some(mask) = signal_mask else {
        // SAFETY: reads a time of ours; there is no memory to write to.
        return unsafe { sleep(nr::__NR_io_getevents, [context, least, least, NOWHERE, timeout, 0], false) };
    };
    // `struct __aio_sigset`.
    let set = [&raw const mask as usize, size_of::<u64>()];
    let arguments = [context, least, least, NOWHERE, timeout, set.as_ptr() as usize];
    // SAFETY: as above; reads a mask of ours.
    unsafe { sleep(nr::__NR_io_pgetevents, arguments, true) }
}

/// True once the system has refused `epoll_pwait2` (new in Linux 5.11); then it is not tried again.
static LACKS_PWAIT2: AtomicBool = AtomicBool::new(false);

fn in_milliseconds(ns: u64) -> i32 {
    i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

/// Returns which of `events` are pending on `fd` now.
pub fn poll_now(fd: Fd, events: u32) -> Result<u32, Errno> {
    let mut entry = nr::pollfd { fd, events: events as i16, revents: 0 };
    // SAFETY: one entry of ours; a null timeout would wait, a zero one does not.
    unsafe {
        let zero = Timespec::default();
        call(nr::__NR_ppoll, [&raw mut entry as usize, 1, &raw const zero as usize, 0, 8, 0])?;
    }
    Ok(u32::from(entry.revents as u16))
}

/// Waits until `fd` is readable or a signal arrives. False on time-out.
pub fn poll_readable(fd: Fd, timeout_ns: Option<u64>, signal_mask: Option<u64>) -> Result<bool, Errno> {
    let mut entry = nr::pollfd { fd, events: nr::POLLIN as i16, revents: 0 };
    let timeout = timeout_ns.map(Timespec::from_ns);
    let timeout = timeout.as_ref().map_or(0, |time| core::ptr::from_ref(time) as usize);
    let mask = signal_mask.as_ref().map_or(0, |mask| core::ptr::from_ref(mask) as usize);
    // SAFETY: one entry, a time and a mask of ours.
    unsafe { sleep(nr::__NR_ppoll, [&raw mut entry as usize, 1, timeout, mask, 8, 0], signal_mask.is_some()) }
        .map(|ready| ready > 0)
}

/// Sleeps for `time_ns`.
pub fn pause(time_ns: u64) {
    let never = AtomicU32::new(0);
    let _ = futex_wait(&never, 0, Some(time_ns));
}

/// Returns the time of a clock in nanoseconds, by a system call.
pub fn clock_ns(clock: u32) -> u64 {
    let mut time = Timespec::default();
    // SAFETY: writes a time of ours.
    let result =
        unsafe { call(nr::__NR_clock_gettime, [clock as usize, &raw mut time as usize, 0, 0, 0, 0]) };
    debug_assert!(result.is_ok(), "only clocks that every kernel has");
    time.to_ns().unwrap_or(0)
}

/// Calls `gettid(2)`.
pub fn gettid() -> i32 {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_gettid, [0; 6]) }.map_or(0, |thread| thread as i32)
}

/// True if this process has a thread with this ID.
pub fn thread_lives(thread: i32) -> bool {
    // SAFETY: signal 0 is not delivered.
    let sent = unsafe { call(nr::__NR_tgkill, [getpid() as usize, thread as usize, 0, 0, 0, 0]) };
    sent != Err(Errno::ESRCH)
}

/// Calls `getppid(2)`.
pub fn getppid() -> i32 {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_getppid, [0; 6]) }.map_or(0, |pid| pid as i32)
}

/// Copies within this process by system calls, which return an error if memory is unmapped.
///
/// # Safety
/// The engine's side, of the two, must be valid for the copy.
pub unsafe fn process_copy(destination: *mut u8, source: *const u8, length: usize) -> Result<(), Errno> {
    let local = [destination as usize, length];
    let remote = [source as usize, length];
    let pid = getpid() as usize;
    // SAFETY: passed on to the caller; two descriptions of ours.
    let copied = unsafe {
        call(nr::__NR_process_vm_readv, [pid, local.as_ptr() as usize, 1, remote.as_ptr() as usize, 1, 0])
    };
    match copied {
        Ok(count) if count == length => Ok(()),
        // Sandboxes that forbid access to other processes forbid this call, too; some systems (qemu-user) lack it.
        // SAFETY: passed on to the caller.
        Err(Errno::ENOSYS | Errno::EPERM | Errno::EACCES) => unsafe {
            pipe_copy(destination, source, length)
        },
        _ => Err(Errno::EFAULT),
    }
}

/// Copies as [`process_copy`], but by calls that every sandbox allows: into a pipe and out again. If
/// memory is unmapped, the bytes before it may have been copied.
///
/// # Safety
/// As for [`process_copy`].
pub unsafe fn pipe_copy(destination: *mut u8, source: *const u8, length: usize) -> Result<(), Errno> {
    // A pipe has room for this many bytes even under the smallest limit.
    const CHUNK: usize = 4096;
    let ends = pipe(nr::O_CLOEXEC)?;
    let [out, into] = ends.map(|fd| fd as usize);
    let moved = |number, fd, address, count| {
        // SAFETY: passed on to the caller; the kernel checks the other side.
        match unsafe { call(number, [fd, address, count, 0, 0, 0]) } {
            Ok(done) if done == count => Ok(()),
            _ => Err(Errno::EFAULT),
        }
    };
    let result = (0..length).step_by(CHUNK).try_for_each(|start| {
        let count = CHUNK.min(length - start);
        moved(nr::__NR_write, into, source as usize + start, count)?;
        moved(nr::__NR_read, out, destination as usize + start, count)
    });
    for end in ends {
        close(end);
    }
    result
}

/// Creates a pipe: the reading end and the writing end.
pub fn pipe(flags: u32) -> Result<[Fd; 2], Errno> {
    let mut ends: [Fd; 2] = [-1; 2];
    // SAFETY: writes two descriptors of ours.
    unsafe { call(nr::__NR_pipe2, [ends.as_mut_ptr() as usize, flags as usize, 0, 0, 0, 0]) }.map(|_| ends)
}

/// Calls `preadv2(2)`, or `pwritev2(2)` if `writes`; offset -1 is the file's position. If the system
/// has neither (such as qemu-user), the older calls are used, and flags are refused.
///
/// # Safety
/// The vectors' memory must be the program's, to be read or written.
#[inline]
pub unsafe fn transfer(
    writes: bool,
    fd: Fd,
    vectors: &[IoVector],
    offset: u64,
    flags: u32,
) -> Result<usize, Errno> {
    // SAFETY: passed on to the caller.
    transfer_by(|number, arguments| unsafe { call(number, arguments) }, writes, fd, vectors, offset, flags)
}

/// Does [`transfer`] through the caller's function `call`.
#[inline]
pub fn transfer_by(
    call: impl Fn(u32, [usize; 6]) -> Result<usize, Errno>,
    writes: bool,
    fd: Fd,
    vectors: &[IoVector],
    offset: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let (address, count) = (vectors.as_ptr() as usize, vectors.len());
    let arguments = [fd as usize, address, count, offset as usize, 0, flags as usize];
    let (new, old, positioned) = if writes {
        (nr::__NR_pwritev2, nr::__NR_writev, nr::__NR_pwritev)
    } else {
        (nr::__NR_preadv2, nr::__NR_readv, nr::__NR_preadv)
    };
    match call(new, arguments) {
        Err(errno @ (Errno::ENOSYS | Errno::EPERM)) if is_refused(new, errno) => match flags {
            0 => call(if offset == u64::MAX { old } else { positioned }, arguments),
            _ => Err(Errno::EOPNOTSUPP),
        },
        result => result,
    }
}

/// True if this error means that the kernel lacks the call or that a sandbox refuses it, whatever its arguments. `EPERM` may be
/// due to the arguments: so the call is repeated with an invalid descriptor, for which the kernel returns another error.
#[cold]
pub fn is_refused(number: u32, errno: Errno) -> bool {
    let nothing = [usize::MAX, 0, 0, 0, 0, 0];
    // SAFETY: the descriptor is invalid, and no memory is passed.
    let refuses = || unsafe { call(number, nothing) } == Err(Errno::EPERM);
    errno == Errno::ENOSYS || errno == Errno::EPERM && refuses()
}

/// Sets the position of a seekable file.
pub fn seek(fd: Fd, position: u64) {
    // SAFETY: touches no memory.
    let result =
        unsafe { call(nr::__NR_lseek, [fd as usize, position as usize, nr::SEEK_SET as usize, 0, 0, 0]) };
    debug_assert!(result.is_ok(), "only files that have positions");
}

/// Sets the position of a file to one that the program passed.
pub fn seek_to(fd: Fd, position: u64) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_lseek, [fd as usize, position as usize, nr::SEEK_SET as usize, 0, 0, 0]) }
        .map(drop)
}

/// Returns the position of a file.
pub fn position(fd: Fd) -> Result<u64, Errno> {
    // SAFETY: touches no memory.
    let result = unsafe { call(nr::__NR_lseek, [fd as usize, 0, nr::SEEK_CUR as usize, 0, 0, 0]) };
    result.map(|position| position as u64)
}

/// Calls `getdents64(2)` with memory of the program.
pub fn getdents(fd: Fd, address: u64, length: u32) -> Result<usize, Errno> {
    // SAFETY: the kernel checks the memory, which the program passed to be written.
    unsafe { call(nr::__NR_getdents64, [fd as usize, address as usize, length as usize, 0, 0, 0]) }
}

/// Opens a path relative to an open directory for reading, close-on-exec.
pub fn open_at(directory: Fd, path: &CStr, flags: u32) -> Result<Fd, Errno> {
    let flags = flags | nr::O_RDONLY | nr::O_CLOEXEC;
    // SAFETY: reads a C string.
    unsafe { call(nr::__NR_openat, [directory as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0]) }
        .map(|fd| fd as Fd)
}

/// Writes a regular file at `path`, in place of the one that may be there. The content is first written to `beside`, a path in the same
/// directory that nobody else uses. A write beyond the limit of file sizes fails with `EFBIG`, without its signal.
pub fn replace_file(path: &CStr, beside: &CStr, content: &[u8]) -> Result<(), Errno> {
    const MODE: usize = 0o644;
    let at = nr::AT_FDCWD as isize as usize;
    if mode_of(path).is_some_and(|mode| mode & nr::S_IFMT != nr::S_IFREG) {
        return Err(Errno::EEXIST);
    }
    // A file that an earlier process with this id has left.
    remove(beside);
    let flags = nr::O_WRONLY | nr::O_CREAT | nr::O_EXCL | nr::O_NONBLOCK | nr::O_NOFOLLOW | nr::O_CLOEXEC;
    // SAFETY: reads a C string.
    let fd = unsafe { call(nr::__NR_openat, [at, beside.as_ptr() as usize, flags as usize, MODE, 0, 0]) }?;
    let fd = move_high(fd as Fd)?;
    let written = crate::without_size_signal(|| write_all(fd, content));
    close(fd);
    let replaced = written.and_then(|()| {
        // SAFETY: reads two C strings.
        unsafe { call(nr::__NR_renameat2, [at, beside.as_ptr() as usize, at, path.as_ptr() as usize, 0, 0]) }
    });
    if replaced.is_err() {
        remove(beside);
    }
    replaced.map(drop)
}

/// Returns the mode of the file at a path itself: of a symbolic link, not of its target. `None` if there is no such file.
pub fn mode_of(path: &CStr) -> Option<u32> {
    mode_at(nr::AT_FDCWD, path.as_ptr() as usize, false).ok()
}

fn remove(path: &CStr) {
    let at = nr::AT_FDCWD as isize as usize;
    // SAFETY: reads a C string. There need not be a file.
    let _ = unsafe { call(nr::__NR_unlinkat, [at, path.as_ptr() as usize, 0, 0, 0, 0]) };
}

fn write_all(fd: Fd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        // SAFETY: reads bytes of ours.
        let done =
            unsafe { call(nr::__NR_write, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) };
        match done {
            Ok(done) => bytes = &bytes[done..],
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Opens an absolute path.
pub fn open(path: &CStr, flags: u32) -> Result<Fd, Errno> {
    // SAFETY: reads a C string.
    unsafe {
        call(
            nr::__NR_openat,
            [nr::AT_FDCWD as isize as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0],
        )
    }
    .map(|fd| fd as Fd)
}

/// Calls `fstat(2)`.
pub fn status(fd: Fd) -> Result<nr::stat, Errno> {
    let mut stat = core::mem::MaybeUninit::<nr::stat>::zeroed();
    // SAFETY: writes one `stat` of ours.
    unsafe {
        call(nr::__NR_fstat, [fd as usize, stat.as_mut_ptr() as usize, 0, 0, 0, 0])?;
        Ok(stat.assume_init())
    }
}

/// Returns device, inode and mode of a file, by [`status`].
pub fn identity(fd: Fd) -> Result<FileIdentity, Errno> {
    let stat = status(fd)?;
    Ok(FileIdentity { device: stat.st_dev, inode: stat.st_ino, mode: stat.st_mode, names: stat.st_rdev })
}

/// Returns a device number as `stat` encodes it: the kernel's `new_encode_dev`.
pub fn device_number(major: u32, minor: u32) -> u64 {
    u64::from(minor & 0xff | major << 8 | (minor & !0xff) << 12)
}

/// Returns the identity of a file without a query to a file system that may be slow to answer.
pub fn known_identity(fd: Fd) -> Result<FileIdentity, Errno> {
    let Ok(known) = known_status(fd, nr::STATX_TYPE | nr::STATX_INO) else { return identity(fd) };
    Ok(FileIdentity {
        device: device_number(known.stx_dev_major, known.stx_dev_minor),
        inode: known.stx_ino,
        mode: known.stx_mode.into(),
        names: device_number(known.stx_rdev_major, known.stx_rdev_minor),
    })
}

/// Returns the status that the kernel knows without asking the file system, which may be slow to answer.
pub fn known_status(fd: Fd, wanted: u32) -> Result<nr::statx, Errno> {
    let mut status = core::mem::MaybeUninit::<nr::statx>::zeroed();
    let flags = nr::AT_EMPTY_PATH | nr::AT_STATX_DONT_SYNC;
    let (path, target) = (c"".as_ptr() as usize, status.as_mut_ptr() as usize);
    // SAFETY: reads a C string, writes one `statx` of ours.
    unsafe {
        call(nr::__NR_statx, [fd as usize, path, flags as usize, wanted as usize, target, 0])?;
        Ok(status.assume_init())
    }
}

/// Returns the mode of the file at a path.
pub fn mode_at(directory: Fd, path: usize, follows: bool) -> Result<u32, Errno> {
    let mut status = core::mem::MaybeUninit::<nr::statx>::zeroed();
    let no_follow = if follows { 0 } else { nr::AT_SYMLINK_NOFOLLOW };
    let flags = nr::AT_STATX_DONT_SYNC | no_follow;
    let target = status.as_mut_ptr() as usize;
    let arguments = [directory as usize, path, flags as usize, nr::STATX_TYPE as usize, target, 0];
    // SAFETY: reads a path, writes one `statx` of ours.
    unsafe {
        call(nr::__NR_statx, arguments)?;
        Ok(u32::from(status.assume_init().stx_mode))
    }
}

/// Returns the magic number of the file's file system, and its block size in bytes.
pub fn file_system(fd: Fd) -> Result<(i64, usize), Errno> {
    let mut stat = core::mem::MaybeUninit::<nr::statfs>::zeroed();
    // SAFETY: writes one `statfs` of ours.
    let stat = unsafe {
        call(nr::__NR_fstatfs, [fd as usize, stat.as_mut_ptr() as usize, 0, 0, 0, 0])?;
        stat.assume_init()
    };
    Ok((stat.f_type, stat.f_bsize as usize))
}

/// Begins to read a range of a file into the page cache, without waiting (`posix_fadvise(2)`).
///
/// # Errors
/// Errors of the call. File systems that ignore the advice return none.
pub fn will_need(fd: Fd, offset: u64, length: usize) -> Result<(), Errno> {
    let arguments = [fd as usize, offset as usize, length, nr::POSIX_FADV_WILLNEED as usize, 0, 0];
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_fadvise64, arguments).map(drop) }
}

/// The cached answer of [`nowait_begins_reads`].
static BEGINS_READS: AtomicU8 = AtomicU8::new(UNKNOWN);

const UNKNOWN: u8 = 0;

const NO: u8 = 1;

const YES: u8 = 2;

/// True if a read with `RWF_NOWAIT` that misses the page cache begins to read from the device: so since Linux 6.12.
pub fn nowait_begins_reads() -> bool {
    // Relaxed: no other memory depends on it.
    match BEGINS_READS.load(Ordering::Relaxed) {
        UNKNOWN => {
            let begins = release().is_some_and(|release| release >= (6, 12));
            BEGINS_READS.store(if begins { YES } else { NO }, Ordering::Relaxed);
            begins
        }
        known => known == YES,
    }
}

/// Returns the first two numbers of the kernel's release (`uname(2)`).
fn release() -> Option<(u32, u32)> {
    const FIELD: usize = 65;
    let mut names = [[0u8; FIELD]; 6];
    // SAFETY: writes one `utsname` of ours, six fields of bytes.
    unsafe { call(nr::__NR_uname, [names.as_mut_ptr() as usize, 0, 0, 0, 0, 0]).ok()? };
    let [_, _, release, ..] = &names;
    let number = |digits: &[u8]| {
        digits.iter().fold(0u32, |sum, &digit| sum.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')))
    };
    let mut numbers = release.split(|byte| !byte.is_ascii_digit()).map(number);
    Some((numbers.next()?, numbers.next()?))
}

/// Reads 0 bytes.
pub fn read_nothing(fd: Fd) -> Result<usize, Errno> {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_read, [fd as usize, 0, 0, 0, 0, 0]) }
}

/// Calls `recvmsg(2)` without waiting.
///
/// # Safety
/// Memory that the header names must be writable, or passed by the program to be written.
pub unsafe fn receive_message(
    fd: Fd,
    header: &mut linux_raw_sys::net::msghdr,
    flags: u32,
) -> Result<usize, Errno> {
    let flags = (flags | linux_raw_sys::net::MSG_DONTWAIT) as usize;
    let header = core::ptr::from_mut(header) as usize;
    // SAFETY: passed on to the caller.
    unsafe { call(nr::__NR_recvmsg, [fd as usize, header, flags, 0, 0, 0]) }
}

/// Sends 0 bytes on a socket, as a write would, without waiting.
pub fn send_nothing(fd: Fd) -> Result<usize, Errno> {
    let flags = linux_raw_sys::net::MSG_DONTWAIT as usize;
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_sendto, [fd as usize, 0, 0, flags, 0, 0]) }
}

/// True if the calling thread may use real-time I/O priorities (`CAP_SYS_ADMIN` or `CAP_SYS_NICE`).
pub fn may_raise_priority() -> bool {
    capabilities() & (1 << nr::CAP_SYS_ADMIN | 1 << nr::CAP_SYS_NICE) != 0
}

/// True if this capability, one of the first 32, is effective in the calling thread.
pub fn has_capability(capability: u32) -> bool {
    capabilities() & 1 << capability != 0
}

/// Returns the first 32 effective capabilities of the calling thread; 0 if the query fails.
fn capabilities() -> u32 {
    let header = [nr::_LINUX_CAPABILITY_VERSION_3, 0];
    // Effective, permitted and inheritable sets, the lower halves first.
    let mut sets = [0u32; 6];
    // SAFETY: reads a header and writes two sets of ours.
    let result =
        unsafe { call(nr::__NR_capget, [header.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    if result.is_ok() { sets[0] } else { 0 }
}

/// Returns the name of the network interface with this index, terminated by a zero.
///
/// # Errors
/// `ENODEV` if there is no such interface; others if no socket can be made for the query.
pub fn interface_name(index: u32) -> Result<[u8; 16], Errno> {
    const SIOCGIFNAME: usize = 0x8910;
    let (domain, kind) =
        (linux_raw_sys::net::AF_UNIX as usize, linux_raw_sys::net::SOCK_DGRAM | nr::O_CLOEXEC);
    // SAFETY: touches no memory.
    let socket = unsafe { call(nr::__NR_socket, [domain, kind as usize, 0, 0, 0, 0]) }?;
    let socket = OwnedFd::new(socket as Fd);
    // `struct ifreq`: the name, and for this query the index.
    let mut request = [0u8; 40];
    request[16..20].copy_from_slice(&index.to_ne_bytes());
    let arguments = [socket.fd() as usize, SIOCGIFNAME, request.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: reads and writes a `struct ifreq` of this function.
    unsafe { call(nr::__NR_ioctl, arguments) }?;
    let mut name = [0; 16];
    name[..15].copy_from_slice(&request[..15]);
    Ok(name)
}

/// True if the network interface has a receive queue with this number. `None` if sysfs does not tell.
pub fn has_receive_queue(name: &[u8; 16], queue: u32) -> Option<bool> {
    let name = CStr::from_bytes_until_nul(name).ok()?.to_str().ok()?;
    let queues = Short::of(format_args!("/sys/class/net/{name}/queues"))?;
    let directory = OwnedFd::new(open(queues.text(), nr::O_PATH | nr::O_CLOEXEC).ok()?);
    let queue = Short::of(format_args!("rx-{queue}"))?;
    match mode_at(directory.fd(), queue.text().as_ptr() as usize, true) {
        Ok(_) => Some(true),
        Err(Errno::ENOENT) => Some(false),
        Err(_) => None,
    }
}

/// A short C string. `alloc::format` needs an unwinder in debug builds, which some front ends do not have.
struct Short {
    bytes: [u8; 64],
    length: usize,
}

impl Short {
    /// Formats the text; `None` if it is too long.
    fn of(text: fmt::Arguments<'_>) -> Option<Short> {
        let mut short = Short { bytes: [0; 64], length: 0 };
        short.write_fmt(text).ok().map(|()| short)
    }

    fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("the last byte is zero")
    }
}

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        if end >= self.bytes.len() {
            return Err(fmt::Error);
        }
        self.bytes[self.length..end].copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// A descriptor that is closed when it is dropped.
#[derive(Debug)]
pub struct OwnedFd(Fd);

impl OwnedFd {
    /// Takes ownership of a descriptor of the engine.
    pub fn new(fd: Fd) -> OwnedFd {
        OwnedFd(fd)
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> Fd {
        self.0
    }

    /// Returns the descriptor, which the caller has to close.
    pub fn into_fd(self) -> Fd {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for OwnedFd {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// Device and inode of a file, with its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// The device of its file system.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// Type and permissions.
    pub mode: u32,
    /// The device number, if the file is a device.
    pub names: u64,
}

impl FileIdentity {
    /// True for a regular file.
    pub fn is_regular(self) -> bool {
        self.mode & nr::S_IFMT == nr::S_IFREG
    }

    /// True for a file without an inode of its own, as eventfds and timerfds are.
    pub fn is_anonymous(self) -> bool {
        self.mode & nr::S_IFMT == 0
    }

    /// True for a directory.
    pub fn is_directory(self) -> bool {
        self.mode & nr::S_IFMT == nr::S_IFDIR
    }

    /// True for `/dev/null`, by its device number.
    pub fn is_null_device(self) -> bool {
        const MEMORY_DEVICES: u64 = 1;
        self.mode & nr::S_IFMT == nr::S_IFCHR && self.names == MEMORY_DEVICES << 8 | 3
    }
}

/// A set of up to 1024 processors, one bit each.
pub type CpuSet = [u64; 16];

/// Returns the processors that the calling thread may run on.
pub fn allowed_cpus() -> Result<CpuSet, Errno> {
    let mut set: CpuSet = [0; 16];
    // SAFETY: writes a set of ours.
    unsafe { call(nr::__NR_sched_getaffinity, [0, size_of_val(&set), set.as_mut_ptr() as usize, 0, 0, 0]) }?;
    Ok(set)
}

/// Binds the calling thread to these processors.
pub fn run_on(set: &CpuSet) -> Result<(), Errno> {
    // SAFETY: reads a set of ours.
    unsafe { call(nr::__NR_sched_setaffinity, [0, size_of_val(set), set.as_ptr() as usize, 0, 0, 0]) }
        .map(drop)
}

/// Ends the process immediately; only for states that cannot occur.
pub fn abort() -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { call(nr::__NR_exit_group, [134, 0, 0, 0, 0, 0]) };
    }
}

/// Opens the file behind `fd` again, as a new open file description, close-on-exec.
pub fn reopen(fd: Fd) -> Result<Fd, Errno> {
    open(&fd_path(fd), nr::O_RDWR | nr::O_CLOEXEC)
}

/// Calls `maps` with a second open file description of the file behind `fd`. A mapping keeps its description alive, and the
/// program's description is to end with the program's last descriptor. If no second description can be made, as without
/// `/proc`, `maps` gets `fd` itself.
pub fn by_own_description<T>(fd: Fd, maps: impl FnOnce(Fd) -> T) -> T {
    let own = reopen(fd).map(OwnedFd::new);
    maps(own.as_ref().map_or(fd, OwnedFd::fd))
}

/// Creates an inotify instance, non-blocking and close-on-exec, with a high number.
pub fn inotify() -> Result<Fd, Errno> {
    let flags = nr::IN_NONBLOCK | nr::IN_CLOEXEC;
    // SAFETY: touches no memory.
    let low = unsafe { call(nr::__NR_inotify_init1, [flags as usize, 0, 0, 0, 0, 0]) }.map(|fd| fd as Fd)?;
    move_high(low).inspect(|&fd| mark(fd))
}

/// Watches the file behind `fd` for the close of any of its descriptions. Returns the watch.
pub fn inotify_watch_close(inotify: Fd, fd: Fd) -> Result<i32, Errno> {
    let path = fd_path(fd);
    let mask = nr::IN_CLOSE_WRITE | nr::IN_CLOSE_NOWRITE;
    // SAFETY: reads a C string.
    unsafe {
        call(nr::__NR_inotify_add_watch, [inotify as usize, path.as_ptr() as usize, mask as usize, 0, 0, 0])
    }
    .map(|watch| watch as i32)
}

/// Reads the pending notifications. Returns their watches.
pub fn inotify_take(inotify: Fd) -> alloc::vec::Vec<i32> {
    let mut buffer = [0u32; 256];
    // SAFETY: writes into a buffer of ours.
    let taken = unsafe {
        call(nr::__NR_read, [inotify as usize, buffer.as_mut_ptr() as usize, size_of_val(&buffer), 0, 0, 0])
    };
    let words = taken.unwrap_or(0) / 4;
    let mut watches = alloc::vec::Vec::new();
    let mut at = 0;
    // struct inotify_event: wd, mask, cookie, len, then len bytes of name.
    while at + 4 <= words {
        watches.push(buffer[at] as i32);
        at += 4 + buffer[at + 3] as usize / 4;
    }
    watches
}

/// Faults in `length` bytes at `address` of the program for writing.
///
/// # Errors
/// `EFAULT` if they are not writable.
pub fn populate(address: u64, length: usize) -> Result<(), Errno> {
    const PAGE: usize = 4096;
    let advice = nr::MADV_POPULATE_WRITE as usize;
    // SAFETY: changes no byte of memory.
    match unsafe { call(nr::__NR_madvise, [address as usize, length, advice, 0, 0, 0]) } {
        Ok(_) => Ok(()),
        // The kernel does not know the advice (before 5.14), a sandbox refuses it, or the pages cannot be written.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EPERM) => {
            (0..length).step_by(PAGE).try_for_each(|offset| expect_writable(address + offset as u64))
        }
        Err(_) => Err(Errno::EFAULT),
    }
}

/// Checks that the word at `address`, a multiple of 4, is writable: the kernel atomically adds 0 to it.
///
/// # Errors
/// `EFAULT` if it is not writable.
fn expect_writable(address: u64) -> Result<(), Errno> {
    const ADD_NOTHING: usize = (nr::FUTEX_OP_ADD as usize) << 28;
    let own = AtomicU32::new(0);
    let operation = (nr::FUTEX_WAKE_OP | nr::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: one word is of this function; the other is the program's and keeps its value. At most one thread that sleeps
    // on a futex there wakes spuriously, as it may at any time.
    unsafe { call(nr::__NR_futex, [own.as_ptr() as usize, operation, 1, 1, address as usize, ADD_NOTHING]) }
        .map(drop)
        .map_err(|_| Errno::EFAULT)
}

/// Returns the size of the file behind `fd`.
pub fn size(fd: Fd) -> Result<u64, Errno> {
    let mut stat = core::mem::MaybeUninit::<nr::stat>::zeroed();
    // SAFETY: writes one `stat` of ours.
    unsafe {
        call(nr::__NR_fstat, [fd as usize, stat.as_mut_ptr() as usize, 0, 0, 0, 0])?;
        Ok(stat.assume_init().st_size as u64)
    }
}
