//! The system calls that front ends make themselves, none of which changes `errno`.
//!
//! The engine has calls of its own (`anyring_engine::os`), which are all made by one stub. Front ends cannot use them: a thread
//! that a signal interrupts in that stub counts as being inside the engine, and the trap defers the signal until the thread
//! leaves. A front end's call, above all the one that unblocks signals, is made outside the engine.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::arch;
use anyring_engine::frontend;
use linux_raw_sys::general as raw;

/// Length of the kernel's signal set in bytes.
const SIGNAL_SET_BYTES: usize = 8;

/// Makes `mmap(2)` of anonymous private memory; returns the address, or a negative errno.
///
/// # Safety
/// With a fixed address, the pages there must be the caller's to replace.
pub unsafe fn map(address: usize, length: usize, protection: u32, flags: u32) -> isize {
    let flags = flags | raw::MAP_PRIVATE | raw::MAP_ANONYMOUS;
    // SAFETY: a new mapping affects nothing else; a fixed address is the caller's promise.
    unsafe {
        arch::syscall(
            raw::__NR_mmap as usize,
            [address, length, protection as usize, flags as usize, usize::MAX, 0],
        )
    }
}

/// `munmap(2)`.
///
/// # Safety
/// The memory must not be in use any more.
pub unsafe fn unmap(address: usize, length: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { arch::syscall(raw::__NR_munmap as usize, [address, length, 0, 0, 0, 0]) }
}

/// `mprotect(2)`.
///
/// # Safety
/// Nothing may rely on the access that is taken away.
pub unsafe fn protect(address: usize, length: usize, protection: u32) -> isize {
    let arguments = [address, length, protection as usize, 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { arch::syscall(raw::__NR_mprotect as usize, arguments) }
}

/// True if the page at `address` is mapped.
pub fn is_mapped(address: usize, length: usize) -> bool {
    let mut resident = 0_u8;
    let arguments = [address, length, (&raw mut resident).addr(), 0, 0, 0];
    // SAFETY: writes one byte, for one page.
    unsafe { arch::syscall(raw::__NR_mincore as usize, arguments) == 0 }
}

/// Reads all pages in. Returns true if each of them exists and is readable; always false on kernels before 5.14.
pub fn populate(address: usize, length: usize) -> bool {
    // SAFETY: has no visible effect.
    unsafe {
        arch::syscall(
            raw::__NR_madvise as usize,
            [address, length, raw::MADV_POPULATE_READ as usize, 0, 0, 0],
        ) == 0
    }
}

/// Reads memory of this process. Returns true if all of it is mapped.
pub fn peek(address: usize, bytes: &mut [u8]) -> bool {
    let (local, remote) = ([bytes.as_mut_ptr().addr(), bytes.len()], [address, bytes.len()]);
    let lists = [process_id() as usize, local.as_ptr().addr(), 1, remote.as_ptr().addr(), 1, 0];
    // SAFETY: writes to `bytes`.
    let read = unsafe { arch::syscall(raw::__NR_process_vm_readv as usize, lists) };
    read == bytes.len() as isize
}

/// Makes the memory zero in a child of `fork`. Returns true if the kernel supports this.
pub fn wipe_on_fork(address: usize, length: usize) -> bool {
    let arguments = [address, length, raw::MADV_WIPEONFORK as usize, 0, 0, 0];
    // SAFETY: advice on the caller's own memory.
    unsafe { arch::syscall(raw::__NR_madvise as usize, arguments) == 0 }
}

/// Makes `mremap(2)`, which may move the mapping.
///
/// # Safety
/// `address` must be a mapping of `old` bytes that is the caller's to move.
pub unsafe fn remap(address: usize, old: usize, new: usize) -> isize {
    let arguments = [address, old, new, raw::MREMAP_MAYMOVE as usize, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { arch::syscall(raw::__NR_mremap as usize, arguments) }
}

/// Moves a mapping to the address `to`, with the same access; returns a negative errno on failure.
///
/// # Safety
/// The ranges at `from` and at `to` must be the caller's: to move the one, and to replace what is mapped in the other.
pub unsafe fn move_mapping(from: usize, to: usize, length: usize) -> isize {
    let flags = raw::MREMAP_MAYMOVE | raw::MREMAP_FIXED;
    // SAFETY: the caller's promise.
    unsafe { arch::syscall(raw::__NR_mremap as usize, [from, length, length, flags as usize, to, 0]) }
}

/// Returns the bit of a signal in a mask.
pub const fn signal_bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// Signals that an instruction raises; the kernel kills the process if such a signal is blocked.
const SYNCHRONOUS: u64 = signal_bit(raw::SIGSEGV)
    | signal_bit(raw::SIGBUS)
    | signal_bit(raw::SIGILL)
    | signal_bit(raw::SIGFPE)
    | signal_bit(raw::SIGTRAP)
    | signal_bit(raw::SIGSYS);

/// All signals except those that an instruction raises.
pub const ASYNCHRONOUS: u64 = !SYNCHRONOUS;

/// The signals that are blocked in the engine's threads: all except those that instructions of the engine may raise. The kernel delivers
/// a signal that is sent to the process, and is blocked there, to a thread of the program.
pub const OF_OWN_THREADS: u64 =
    !(signal_bit(raw::SIGSEGV) | signal_bit(raw::SIGBUS) | signal_bit(raw::SIGSYS));

/// Sets the calling thread's signal mask and returns the one before.
pub fn set_signal_mask(mask: u64) -> u64 {
    change_signal_mask(raw::SIG_SETMASK, mask)
}

/// Unblocks the signals of `mask` in the calling thread and returns the mask before.
pub fn unblock_signals(mask: u64) -> u64 {
    change_signal_mask(raw::SIG_UNBLOCK, mask)
}

/// Blocks the signals of `mask` in the calling thread and returns the mask before.
pub fn block_signals(mask: u64) -> u64 {
    change_signal_mask(raw::SIG_BLOCK, mask)
}

/// Sends a signal to the calling thread, with this `siginfo_t`.
pub fn queue_to_self(signal: u32, information: *const core::ffi::c_void) {
    queue_to_thread(thread_id(), signal, information);
}

/// Sends a signal to a thread of this process, with this `siginfo_t`; returns 0 or a negative errno. To other threads than the
/// calling one, the kernel allows only some kinds of information.
pub fn queue_to_thread(thread: u32, signal: u32, information: *const core::ffi::c_void) -> isize {
    let arguments = [process_id() as usize, thread as usize, signal as usize, information.addr(), 0, 0];
    // SAFETY: the kernel reads the information, and refuses what it cannot read.
    unsafe { arch::syscall(raw::__NR_rt_tgsigqueueinfo as usize, arguments) }
}

fn change_signal_mask(how: u32, mask: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old) = (&raw const mask as usize, &raw mut before as usize);
    // SAFETY: both pointers are to locals of the right size.
    unsafe {
        arch::syscall(raw::__NR_rt_sigprocmask as usize, [how as usize, new, old, SIGNAL_SET_BYTES, 0, 0])
    };
    before
}

/// Lets pending signals that are not in `mask` be delivered.
pub fn take_signals(mask: u64) {
    let none = [0_u64; 2];
    let (time, mask) = (none.as_ptr() as usize, &raw const mask as usize);
    // SAFETY: waits for no descriptor, and reads a time and a mask of this function.
    unsafe { arch::syscall(raw::__NR_ppoll as usize, [0, 0, time, mask, SIGNAL_SET_BYTES, 0]) };
}

/// Discards pending signals of `mask`, which must be blocked.
pub fn discard_signals(mask: u64) {
    let none = [0_u64; 2];
    let (time, mask) = (none.as_ptr() as usize, &raw const mask as usize);
    // SAFETY: does not block, and reads a time and a mask of this function.
    while unsafe {
        arch::syscall(raw::__NR_rt_sigtimedwait as usize, [mask, 0, time, SIGNAL_SET_BYTES, 0, 0]) > 0
    } {}
}

/// The option of `prctl(2)` that installs a seccomp filter, from <linux/prctl.h>.
pub const PR_SET_SECCOMP: usize = 22;

/// Returns the monotonic clock, in nanoseconds.
pub fn monotonic_ns() -> i64 {
    let mut time = [0_i64; 2];
    let arguments = [raw::CLOCK_MONOTONIC as usize, (&raw mut time).addr(), 0, 0, 0, 0];
    // SAFETY: writes two words.
    unsafe { arch::syscall(raw::__NR_clock_gettime as usize, arguments) };
    time[0] * 1_000_000_000 + time[1]
}

/// Returns the process id.
pub fn process_id() -> u32 {
    // SAFETY: takes no arguments.
    unsafe { arch::syscall(raw::__NR_getpid as usize, [0; 6]) as u32 }
}

/// Returns the thread id.
pub fn thread_id() -> u32 {
    // SAFETY: takes no arguments.
    unsafe { arch::syscall(raw::__NR_gettid as usize, [0; 6]) as u32 }
}

/// Forks a child that sends no signal when it ends; returns 0 in the child, a negative errno on failure. The child shares no
/// memory with this process, and lacks its other threads, which may have held locks: the child must not lock any.
pub fn fork_without_signal() -> isize {
    // SAFETY: without flags it is a fork.
    unsafe { arch::syscall(raw::__NR_clone as usize, [0; 6]) }
}

/// Waits for the end of a child, whatever signal it sends then. Returns the status as `wait(2)` does, or -1 if there is no such child.
pub fn wait_for(child: u32) -> i32 {
    const ANY_KIND: usize = 0x4000_0000;
    let mut status = -1_i32;
    let arguments = [child as usize, (&raw mut status).addr(), ANY_KIND, 0, 0, 0];
    // SAFETY: writes the status.
    while unsafe { arch::syscall(raw::__NR_wait4 as usize, arguments) }
        == -(linux_raw_sys::errno::EINTR as isize)
    {}
    status
}

/// The flags of `clone(2)` for a thread.
pub const THREAD: u32 = raw::CLONE_VM
    | raw::CLONE_FS
    | raw::CLONE_FILES
    | raw::CLONE_SIGHAND
    | raw::CLONE_THREAD
    | raw::CLONE_SYSVSEM
    | raw::CLONE_SETTLS
    | raw::CLONE_PARENT_SETTID
    | raw::CLONE_CHILD_CLEARTID;

/// Ends the calling thread, but not the process.
pub fn exit_thread() -> ! {
    loop {
        // SAFETY: ends this thread, of which nothing is needed any more.
        unsafe { arch::syscall(raw::__NR_exit as usize, [0; 6]) };
    }
}

/// Waits until the kernel has cleared `word`, which holds the id of a thread that ends, and no longer counts the thread among
/// this process's threads.
pub fn wait_for_thread(number: u32, word: &AtomicU32) {
    // Pairs with the kernel's store at the thread's end.
    while word.load(Ordering::Acquire) != 0 {
        let wait = [word.as_ptr().addr(), raw::FUTEX_WAIT as usize, number as usize, 0, 0, 0];
        // SAFETY: reads the word; the wait has no timeout.
        unsafe { arch::syscall(raw::__NR_futex as usize, wait) };
    }
    while is_thread(process_id(), number) {
        // SAFETY: no argument.
        unsafe { arch::syscall(raw::__NR_sched_yield as usize, [0; 6]) };
    }
}

/// Writes as [`write()`] does, and leaves no SIGPIPE pending if the reader is gone.
pub fn write_without_signal(fd: i32, bytes: &[u8]) {
    let pipe = signal_bit(raw::SIGPIPE);
    let before = block_signals(pipe);
    // A SIGPIPE that was pending before is not caused by this write, and must stay.
    let was_pending = before & pipe != 0 && pending_signals() & pipe != 0;
    let is_broken = write(fd, bytes) == -(linux_raw_sys::errno::EPIPE as isize);
    if is_broken && !was_pending {
        discard_signals(pipe);
    }
    set_signal_mask(before);
}

/// Returns the signals that are pending for the calling thread.
fn pending_signals() -> u64 {
    let mut pending = 0_u64;
    let arguments = [(&raw mut pending).addr(), SIGNAL_SET_BYTES, 0, 0, 0, 0];
    // SAFETY: writes to a local of the right size.
    unsafe { arch::syscall(raw::__NR_rt_sigpending as usize, arguments) };
    pending
}

/// Writes all of `bytes` unless an error occurs; returns 0, or the negative errno.
pub fn write(fd: i32, mut bytes: &[u8]) -> isize {
    while !bytes.is_empty() {
        let arguments = [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
        // SAFETY: the kernel reads from a live slice.
        let written = unsafe { arch::syscall(raw::__NR_write as usize, arguments) };
        match usize::try_from(written) {
            Ok(0) => return 0,
            Ok(written) => bytes = &bytes[written.min(bytes.len())..],
            Err(_) if written == -(linux_raw_sys::errno::EINTR as isize) => {}
            Err(_) => return written,
        }
    }
    0
}

/// Opens `path`, which ends with a zero byte.
///
/// # Safety
/// `path` must point to a string that ends with zero.
pub unsafe fn open(path: *const u8, flags: u32, mode: u32) -> i32 {
    let at_cwd = raw::AT_FDCWD as isize as usize;
    let flags = (flags | raw::O_CLOEXEC) as usize;
    let arguments = [at_cwd, path as usize, flags, mode as usize, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { arch::syscall(raw::__NR_openat as usize, arguments) as i32 }
}

/// Reads into `buffer` at the file's position; a negative errno on failure.
pub fn read(fd: i32, buffer: &mut [u8]) -> isize {
    let arguments = [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
    // SAFETY: the kernel writes into a live slice.
    unsafe { arch::syscall(raw::__NR_read as usize, arguments) }
}

/// Reads into `buffer` from `offset` on; a negative errno on failure.
pub fn read_at(fd: i32, buffer: &mut [u8], offset: u64) -> isize {
    let arguments = [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), offset as usize, 0, 0];
    // SAFETY: the kernel writes into a live slice.
    unsafe { arch::syscall(raw::__NR_pread64 as usize, arguments) }
}

/// `fstat(2)`.
pub fn fstat(fd: i32, status: &mut core::mem::MaybeUninit<raw::stat>) -> isize {
    let arguments = [fd as usize, status.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes the structure.
    unsafe { arch::syscall(raw::__NR_fstat as usize, arguments) }
}

/// Returns the effective user and group.
pub fn effective_ids() -> (u32, u32) {
    // SAFETY: takes no arguments.
    let ask = |number: u32| unsafe { arch::syscall(number as usize, [0; 6]) as u32 };
    (ask(raw::__NR_geteuid), ask(raw::__NR_getegid))
}

/// True if a file has the extended attribute.
pub fn has_attribute(fd: i32, name: &core::ffi::CStr) -> bool {
    // SAFETY: reads a name, and queries a length only.
    unsafe {
        arch::syscall(raw::__NR_fgetxattr as usize, [fd as usize, name.as_ptr().addr(), 0, 0, 0, 0]) > 0
    }
}

/// Converts a process id in the PID namespace of the descriptor `namespace` into the id of that process in the caller's
/// namespace; a negative errno on failure.
pub fn process_in_namespace(namespace: i32, process: usize) -> isize {
    // linux/nsfs.h
    const NS_GET_TGID_FROM_PIDNS: usize = 0x8004_b707;
    // SAFETY: the argument of this request is a number.
    unsafe {
        arch::syscall(
            raw::__NR_ioctl as usize,
            [namespace as usize, NS_GET_TGID_FROM_PIDNS, process, 0, 0, 0],
        )
    }
}

/// True if a path names a symbolic link, with or without a target.
pub fn is_link(path: &core::ffi::CStr) -> bool {
    let mut status = core::mem::MaybeUninit::<raw::stat>::uninit();
    let at_cwd = raw::AT_FDCWD as isize as usize;
    let no_follow = raw::AT_SYMLINK_NOFOLLOW as usize;
    let arguments = [at_cwd, path.as_ptr().addr(), status.as_mut_ptr().addr(), no_follow, 0, 0];
    // SAFETY: reads a string and writes the structure.
    let result = unsafe { arch::syscall(raw::__NR_newfstatat as usize, arguments) };
    // SAFETY: the kernel has filled it in if the call succeeded.
    result == 0 && unsafe { status.assume_init_ref() }.st_mode & raw::S_IFMT == raw::S_IFLNK
}

/// `readlink(2)`; a negative errno on failure.
pub fn read_link(path: &core::ffi::CStr, buffer: &mut [u8]) -> isize {
    let at_cwd = raw::AT_FDCWD as isize as usize;
    let arguments = [at_cwd, path.as_ptr().addr(), buffer.as_mut_ptr().addr(), buffer.len(), 0, 0];
    // SAFETY: the kernel writes into a live slice.
    unsafe { arch::syscall(raw::__NR_readlinkat as usize, arguments) }
}

/// True if the string `path` names a file that may be executed.
pub fn is_executable(path: *const u8) -> bool {
    const X_OK: u32 = 1;
    access(path, X_OK) == 0
}

/// True if there is a string at `path` that is readable as a path for the kernel.
pub fn is_string(path: *const u8) -> bool {
    use linux_raw_sys::errno::{EFAULT, ENAMETOOLONG};
    let found = access(path, 0);
    // Unreadable memory gives `EFAULT`; a string that is too long for a path gives `ENAMETOOLONG`.
    found != -(EFAULT as isize) && found != -(ENAMETOOLONG as isize)
}

/// True if the file at `path` may be read.
pub fn is_readable(path: &core::ffi::CStr) -> bool {
    const R_OK: u32 = 4;
    access(path.as_ptr().cast(), R_OK) == 0
}

/// Makes `access(2)`, for one kind of access or for existence. If a sandbox refuses the call, the mode's bits for others decide.
fn access(path: *const u8, kind: u32) -> isize {
    const REFUSED: [isize; 2] =
        [-(linux_raw_sys::errno::ENOSYS as isize), -(linux_raw_sys::errno::EPERM as isize)];
    let at_cwd = raw::AT_FDCWD as isize as usize;
    // SAFETY: the kernel reads a string, if there is one.
    let answer =
        unsafe { arch::syscall(raw::__NR_faccessat as usize, [at_cwd, path.addr(), kind as usize, 0, 0, 0]) };
    if !REFUSED.contains(&answer) {
        return answer;
    }
    let mut status = core::mem::MaybeUninit::uninit();
    // SAFETY: as above.
    let found = unsafe { stat(path, &mut status) };
    let everybodys = kind << 6 | kind << 3 | kind;
    // SAFETY: the kernel has filled it in if the call succeeded.
    if found == 0 && kind != 0 && unsafe { status.assume_init_ref() }.st_mode & everybodys == 0 {
        return -(linux_raw_sys::errno::EACCES as isize);
    }
    found
}

/// Maps the first `length` bytes of a file for reading; returns the address, or a negative errno.
pub fn map_file(fd: i32, length: usize) -> isize {
    let (protection, flags) = (raw::PROT_READ as usize, raw::MAP_PRIVATE as usize);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    unsafe { arch::syscall(raw::__NR_mmap as usize, [0, length, protection, flags, fd as usize, 0]) }
}

/// Makes a memory file that has no path and can be sealed; a negative errno on failure.
pub fn memory_file(name: &core::ffi::CStr) -> i32 {
    // A system may forbid memory files with execute permission in their mode; a library does not need this permission.
    const NO_EXECUTION: u32 = 8;
    let named = name.as_ptr().addr();
    let make = |flags: u32| {
        let arguments = [named, (flags | raw::MFD_CLOEXEC | raw::MFD_ALLOW_SEALING) as usize, 0, 0, 0, 0];
        // SAFETY: reads the name.
        unsafe { arch::syscall(raw::__NR_memfd_create as usize, arguments) as i32 }
    };
    match make(NO_EXECUTION) {
        // Linux before 6.3 does not know the flag.
        error if error == -(linux_raw_sys::errno::EINVAL as i32) => make(0),
        result => result,
    }
}

/// Seals a memory file against all changes.
pub fn seal(fd: i32) -> bool {
    const F_ADD_SEALS: usize = 1033;
    let seals = raw::F_SEAL_WRITE | raw::F_SEAL_SHRINK | raw::F_SEAL_GROW | raw::F_SEAL_SEAL;
    // SAFETY: touches no memory.
    unsafe {
        arch::syscall(raw::__NR_fcntl as usize, [fd as usize, F_ADD_SEALS, seals as usize, 0, 0, 0]) == 0
    }
}

/// Writes `length` bytes from an address to the start of a file; returns how many bytes could be read and written.
pub fn write_from(fd: i32, address: usize, length: usize) -> usize {
    let mut done = 0;
    while done < length {
        let arguments = [fd as usize, address + done, length - done, done, 0, 0];
        // SAFETY: the kernel only reads the memory; unreadable memory gives `EFAULT`.
        match unsafe { arch::syscall(raw::__NR_pwrite64 as usize, arguments) } {
            written @ 1.. => done += written as usize,
            error if error == -(linux_raw_sys::errno::EINTR as isize) => {}
            _ => break,
        }
    }
    done
}

/// Closes a descriptor that the caller owns.
pub fn close(fd: i32) {
    // SAFETY: the descriptor is the caller's own.
    unsafe { arch::syscall(raw::__NR_close as usize, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// True if `fd` is an open descriptor.
pub fn is_open(fd: i32) -> bool {
    // SAFETY: only reads flags.
    unsafe { arch::syscall(raw::__NR_fcntl as usize, [fd as usize, raw::F_GETFD as usize, 0, 0, 0, 0]) >= 0 }
}

/// Sets the close-on-exec flag of `fd`.
pub fn close_at_exec(fd: i32) {
    let arguments = [fd as usize, raw::F_SETFD as usize, raw::FD_CLOEXEC as usize, 0, 0, 0];
    // SAFETY: touches no memory.
    unsafe { arch::syscall(raw::__NR_fcntl as usize, arguments) };
}

/// True if `fd` is a descriptor that stays open when this process executes a program.
pub fn survives_exec(fd: i32) -> bool {
    // SAFETY: only reads flags.
    let flags =
        unsafe { arch::syscall(raw::__NR_fcntl as usize, [fd as usize, raw::F_GETFD as usize, 0, 0, 0, 0]) };
    flags >= 0 && flags & raw::FD_CLOEXEC as isize == 0
}

/// Returns a duplicate that stays open when this process executes a program, above the low numbers if the limit allows.
pub fn duplicate(fd: i32) -> i32 {
    let above = |least: usize| {
        // SAFETY: touches no memory.
        unsafe {
            arch::syscall(raw::__NR_fcntl as usize, [fd as usize, raw::F_DUPFD as usize, least, 0, 0, 0])
                as i32
        }
    };
    [100, 10].into_iter().map(above).find(|&fd| fd >= 0).unwrap_or_else(|| above(0))
}

/// Returns a duplicate with close-on-exec that the program is not likely to encounter: if the limits allow, its number is above those
/// that the program can be given. Returns a negative errno on failure, and if the program has so few descriptors that it may need all of
/// them.
pub fn duplicate_aside(fd: i32) -> i32 {
    // With higher numbers, the kernel's descriptor table would grow.
    const FAR: u64 = 1000;
    const MOST: u64 = 4096;
    const FEW: u64 = 16;
    let above = |least: u64| {
        let arguments = [fd as usize, raw::F_DUPFD_CLOEXEC as usize, least as usize, 0, 0, 0];
        // SAFETY: touches no memory.
        unsafe { arch::syscall(raw::__NR_fcntl as usize, arguments) as i32 }
    };
    let mut limit = [0_u64; 2];
    change_descriptor_limit(None, Some(&mut limit));
    let [soft, hard] = limit;
    if soft > MOST {
        return above(FAR);
    }
    let beyond = || {
        change_descriptor_limit(Some(&[soft + 1, hard]), None).then(|| {
            // A descriptor stays open when the limit is lowered.
            let aside = above(soft);
            change_descriptor_limit(Some(&limit), None);
            aside
        })
    };
    if soft < hard
        && let Some(aside @ 0..) = frontend::lifting(beyond)
    {
        return aside;
    }
    if soft < FEW {
        return -(linux_raw_sys::errno::EMFILE as i32);
    }
    let candidates = [soft - 1, 10];
    candidates.into_iter().map(above).find(|&aside| aside >= 0).unwrap_or_else(|| above(3))
}

/// Ends the process immediately.
pub fn exit_group(code: i32) -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { arch::syscall(raw::__NR_exit_group as usize, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Sends `signal` to the calling thread.
pub fn raise(signal: i32) {
    let arguments = [process_id() as usize, thread_id() as usize, signal as usize, 0, 0, 0];
    // SAFETY: sends a signal to the calling thread.
    unsafe { arch::syscall(raw::__NR_tgkill as usize, arguments) };
}

/// Returns the number of threads of this process; 0 if `/proc` does not say.
pub fn threads() -> usize {
    let mut status = core::mem::MaybeUninit::<raw::stat>::uninit();
    // SAFETY: the path is a string.
    if unsafe { stat(c"/proc/self/task".as_ptr().cast(), &mut status) } != 0 {
        return 0;
    }
    // Each thread is a subdirectory; two more links are those that every directory has.
    // SAFETY: the kernel has filled it in if the call succeeded.
    (unsafe { status.assume_init_ref() }.st_nlink as usize).saturating_sub(2)
}

/// True if `thread` is a thread of `process`.
pub fn is_thread(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 sends nothing.
    unsafe { arch::syscall(raw::__NR_tgkill as usize, [process as usize, thread as usize, 0, 0, 0, 0]) == 0 }
}

/// `prctl(2)`.
///
/// # Safety
/// As for the operation that `operation` names.
pub unsafe fn prctl(operation: u32, argument: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { arch::syscall(raw::__NR_prctl as usize, [operation as usize, argument, 0, 0, 0, 0]) }
}

/// Returns the soft limit of descriptors, at most 2^20.
pub fn descriptor_limit() -> u32 {
    let mut limit = [0_u64; 2];
    change_descriptor_limit(None, Some(&mut limit));
    limit[0].min(1 << 20) as u32
}

/// Sets the soft and hard limit of descriptors, and reads the limits from before. Returns true if the kernel has done so.
fn change_descriptor_limit(new: Option<&[u64; 2]>, before: Option<&mut [u64; 2]>) -> bool {
    const RLIMIT_NOFILE: usize = 7;
    let new = new.map_or(0, |new| new.as_ptr().addr());
    let before = before.map_or(0, |before| before.as_mut_ptr().addr());
    // SAFETY: reads two words, writes two words.
    unsafe { arch::syscall(raw::__NR_prlimit64 as usize, [0, RLIMIT_NOFILE, new, before, 0, 0]) == 0 }
}

/// `stat(2)`.
///
/// # Safety
/// `path` must point to a string that ends with zero.
pub unsafe fn stat(path: *const u8, status: &mut core::mem::MaybeUninit<raw::stat>) -> isize {
    let at_cwd = raw::AT_FDCWD as isize as usize;
    let arguments = [at_cwd, path as usize, status.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the caller's promise; the kernel writes the structure.
    unsafe { arch::syscall(raw::__NR_newfstatat as usize, arguments) }
}
