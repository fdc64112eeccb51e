//! OPENAT, OPENAT2, CLOSE, and other operations that create or close descriptors: PIPE, FIXED_FD_INSTALL,
//! FILES_UPDATE.
//!
//! The caller itself opens, and must not block on a FIFO: as in the kernel's first attempt, it opens with `O_NONBLOCK`
//! and removes the flag afterwards. If the kernel makes no such attempt, a FIFO is opened once, by a thread that waits:
//! its peers would notice an open that is undone.

use anyring_chaos_plan::journal::Effect;
use linux_raw_sys::general::{
    F_DUPFD, F_DUPFD_CLOEXEC, F_SETFL, FASYNC, O_ACCMODE, O_APPEND, O_CLOEXEC, O_CREAT, O_DIRECT,
    O_DIRECTORY, O_DSYNC, O_EXCL, O_LARGEFILE, O_NOATIME, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_SYNC,
    O_TMPFILE, O_TRUNC, open_how,
};
use linux_raw_sys::io_uring::{IORING_FIXED_FD_NO_CLOEXEC, io_uring_rsrc_update2};

use crate::abi::{Errno, names};
use crate::assets::notes::{self, Interested};
use crate::assets::{kinds, mounts};
use crate::feature::files::ALLOCATE;
use crate::feature::restrictions::filters;
use crate::feature::zero_copy_send::ending;
use crate::observe::chaos;
use crate::ops::paths;
use crate::os::user;
use crate::os::{self, Fd, nr};
use crate::request::data::{OpData, Open};
use crate::request::field::{Field, Unused};
use crate::request::op::{Caps, Named, op};
use crate::request::shown::{self, Kind, When, arg};
use crate::request::{Flags, Request, structures};
use crate::ring::row::{Outcome, Prep, Row};
use crate::ring::{Attempt, Lent, descriptors, live, registry};
use crate::work::Work;

/// With one of these flags a file may be created, and the mode is used.
const MAKES_FILE: u32 = O_CREAT | O_TMPFILE & !O_DIRECTORY;

/// Makes the row of an operation that opens a path, and may put the file into a slot.
const fn opens(op: Named, prep: Prep) -> Row {
    Row::new(op, Caps::AT_ONCE.with(Caps::INSTALLS), prep, issue_open)
        .block(open)
        .finish(opened)
        .faults(chaos::OPENS)
        .stores(Effect::Open)
        .filtered(24, show)
}

/// `IORING_OP_OPENAT`.
pub const OPENAT: Row = opens(op!(IORING_OP_OPENAT), prep_openat)
    .arguments(&[
        shown::DIRECTORY,
        shown::PATH,
        arg(Field::OpFlags, "flags", Kind::ChoiceAndFlags(O_ACCMODE, names::ACCESS_MODES, names::OPEN_FLAGS)),
        arg(Field::Length, "mode", Kind::Mode).when(&[When::Some(Field::OpFlags, MAKES_FILE as u64)]),
        shown::FILE_INDEX,
    ])
    .unused(Unused::BUF_INDEX)
    .errors(&[
        Errno::EINVAL,
        Errno::EFAULT,
        Errno::ENOENT,
        Errno::ENXIO,
        Errno::ENFILE,
        Errno::ENAMETOOLONG,
        Errno::EBADF,
    ]);

/// `IORING_OP_OPENAT2`.
pub const OPENAT2: Row = opens(op!(IORING_OP_OPENAT2), prep_openat2)
    .arguments(&[
        shown::DIRECTORY,
        shown::PATH,
        arg(Field::Offset, "how", Kind::Structure(structures::OPEN_HOW)),
        arg(Field::Length, "size", Kind::Number),
        shown::FILE_INDEX,
    ])
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::ENOENT, Errno::E2BIG, Errno::EBADF]);

const CLOSES: Caps = Caps::AT_ONCE.with(Caps::EMPTIES).with(Caps::COMMITTED);

/// `IORING_OP_CLOSE`.
pub const CLOSE: Row = Row::new(op!(IORING_OP_CLOSE), CLOSES, prep_close, issue_close)
    .block(close)
    .finish(closed)
    .arguments(&[
        arg(Field::Fd, "fd", Kind::Descriptor).when(&[When::Is(Field::FileIndex, 0)]),
        shown::FILE_INDEX,
    ])
    .unused(Unused::OFF.with(Unused::ADDR).with(Unused::LEN).with(Unused::OP_FLAGS).with(Unused::BUF_INDEX))
    .errors(&[Errno::EINVAL, Errno::EBADF, Errno::ENXIO]);

/// `IORING_OP_PIPE`.
pub const PIPE: Row = Row::new(op!(IORING_OP_PIPE), Caps::NONE, prep_pipe, issue_pipe)
    .arguments(&[
        arg(Field::Address, "fds", Kind::DescriptorsFilled(2)),
        arg(Field::OpFlags, "pipe_flags", Kind::Flags(names::PIPE_FLAGS)),
        shown::FILE_INDEX,
    ])
    .faults(chaos::DESCRIPTORS)
    .unused(Unused::FD.with(Unused::OFF).with(Unused::ADDR3))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::ENFILE]);

/// `IORING_OP_FIXED_FD_INSTALL`.
pub const FIXED_FD_INSTALL: Row =
    Row::new(op!(IORING_OP_FIXED_FD_INSTALL), Caps::FILE, prep_install, issue_install)
        .arguments(&[shown::FD, arg(Field::OpFlags, "flags", Kind::Flags(names::INSTALL_FLAGS))])
        .of_its_ring()
        .unused(
            Unused::OFF
                .with(Unused::ADDR)
                .with(Unused::LEN)
                .with(Unused::BUF_INDEX)
                .with(Unused::FILE_INDEX)
                .with(Unused::ADDR3),
        )
        .errors(&[Errno::EINVAL, Errno::EBADF]);

/// `IORING_OP_FILES_UPDATE`.
pub const FILES_UPDATE: Row =
    Row::new(op!(IORING_OP_FILES_UPDATE), Caps::IOPOLL, prep_files_update, issue_files_update)
        .arguments(&[
            arg(Field::Address, "fds", Kind::Descriptors(Field::Length)),
            arg(Field::Length, "nr_fds", Kind::Number),
            arg(Field::OffsetLow, "offset", Kind::Choice(names::FILE_INDEXES))
                .when(&[When::Is(Field::OffsetLow, ALLOCATE as u64)]),
            arg(Field::OffsetLow, "offset", Kind::Number)
                .when(&[When::Not(Field::OffsetLow, ALLOCATE as u64)]),
        ])
        .of_its_ring()
        .unused(Unused::OP_FLAGS.with(Unused::FILE_INDEX))
        .errors(&[Errno::EINVAL, Errno::ENXIO, Errno::EFAULT, Errno::EOVERFLOW]);

fn prep_openat(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = cx.sqe;
    let how = open_how { flags: u64::from(sqe.op_flags), mode: u64::from(sqe.len), resolve: 0 };
    prep_open(cx, how, false)
}

fn prep_openat2(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = cx.sqe;
    let how = read_how(sqe.off, sqe.len as usize)?;
    // The kernel checks this field after the structure.
    if sqe.buf_index != 0 {
        return Err(Errno::EINVAL);
    }
    prep_open(cx, how, true)
}

/// Reads a structure that may be a later, longer version: all bytes beyond the known ones must be zero.
fn read_how(address: u64, size: usize) -> Result<open_how, Errno> {
    const KNOWN: usize = size_of::<open_how>();
    if size < KNOWN {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; 256];
    let mut done = KNOWN;
    while done < size {
        let at = address.wrapping_add(done as u64);
        // No piece crosses into a page that may not be mapped.
        let piece = bytes.len().min(size - done).min(4096 - (at % 4096) as usize);
        user::read_bytes(at, &mut bytes[..piece])?;
        if bytes[..piece].iter().any(|&byte| byte != 0) {
            return Err(Errno::E2BIG);
        }
        done += piece;
    }
    user::read(address)
}

fn prep_open(cx: &mut Attempt<'_>, how: open_how, strict: bool) -> Result<(), Errno> {
    if cx.flags.has(Flags::FIXED_FILE) {
        return Err(Errno::EBADF);
    }
    let path = cx.read_path(cx.sqe.addr, false)?;
    let request = cx.request_mut();
    if request.sqe.file_index != 0 && how.flags & u64::from(O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let creates = u64::from(O_TRUNC | O_CREAT | (O_TMPFILE & !O_DIRECTORY));
    let patient = how.flags & creates != 0 || request.flags.has(Flags::ASYNC);
    let in_slot = request.sqe.file_index != 0;
    request.keep(OpData::Open(Open { path, how, strict, patient, in_slot }));
    Ok(())
}

fn issue_open(cx: &mut Attempt<'_>) -> Outcome {
    let request = cx.request();
    let OpData::Open(open) = &request.data else { return Outcome::Block };
    // If only caches may be used, no file system is waited for.
    let outcome = if mounts::are_any_far() && open.how.resolve & RESOLVE_CACHED == 0 {
        paths::issue_at(&[(request.sqe.fd, &open.path)])
    } else {
        Outcome::Block
    };
    // A later request of this submission may name the slot.
    if open.in_slot && !open.patient && outcome == Outcome::Block { issue_into_slot(cx) } else { outcome }
}

/// Opens a cached file, and puts it into its slot.
fn issue_into_slot(cx: &mut Attempt<'_>) -> Outcome {
    let OpData::Open(open) = &cx.data else { return Outcome::Block };
    let Ok(fd) = open.open_cached(cx.sqe.fd) else { return Outcome::Block };
    let status = open.may_wait().then(|| open.status());
    let slot = cx.sqe.file_index;
    cx.ring.install_fresh(fd, status, slot).into()
}

/// Opens only from caches, without asking a file system.
const RESOLVE_CACHED: u64 = 0x20;

/// Returns the flags and modes that `openat` does not ignore.
fn noticed(how: &open_how) -> (u64, u64) {
    const OF_PATHS: u32 = O_DIRECTORY | O_NOFOLLOW | O_PATH | O_CLOEXEC;
    const KNOWN: u32 = OF_PATHS
        | (O_ACCMODE | O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC)
        | (FASYNC | O_DIRECT | O_LARGEFILE | O_NOATIME | O_TMPFILE);
    const MODES: u64 = 0o7777;
    let known = if how.flags & u64::from(O_PATH) != 0 { OF_PATHS } else { KNOWN };
    let creates = how.flags & u64::from(O_CREAT | (O_TMPFILE & !O_DIRECTORY)) != 0;
    (how.flags & u64::from(known), if creates { how.mode & MODES } else { 0 })
}

/// True if `openat` can do what `openat2` would. `openat` ignores flags and modes that `openat2` refuses.
fn is_plain(how: &open_how) -> bool {
    how.resolve == 0 && noticed(how) == (how.flags, how.mode)
}

/// Shows filters the flags, mode and resolve flags, as the kernel has them at this point.
fn show(request: &Request, words: &mut [u32; 6]) {
    let OpData::Open(open) = &request.data else { return };
    let (mut flags, mode) = open.flags_and_mode();
    if flags & u64::from(O_PATH) == 0 {
        flags |= u64::from(O_LARGEFILE);
    }
    for (place, long) in [flags, mode, open.how.resolve].into_iter().enumerate() {
        words[2 * place..][..2].copy_from_slice(&filters::words_of(long));
    }
}

impl Open {
    fn call(&self, work: &Work, more_flags: u32) -> Result<Fd, Errno> {
        let more_flags = if self.in_slot { more_flags | O_CLOEXEC } else { more_flags };
        self.call_as(work, open_how { flags: self.how.flags | u64::from(more_flags), ..self.how })
    }

    fn call_as(&self, work: &Work, how: open_how) -> Result<Fd, Errno> {
        let (directory, path) = (work.sqe.fd as usize, self.path.address());
        let plain = [directory, path, how.flags as usize, how.mode as usize, 0, 0];
        // SAFETY: reads a path and a structure of the engine's.
        let fd = unsafe {
            if self.strict {
                let (address, size) = (&raw const how as usize, size_of::<open_how>());
                match work.call(nr::__NR_openat2, [directory, path, address, size, 0, 0]) {
                    // The kernel is older than 5.6, or a sandbox refuses the call.
                    Err(errno) if os::is_refused(nr::__NR_openat2, errno) => match is_plain(&how) {
                        true => work.call(nr::__NR_openat, plain),
                        false => Err(Errno::EINVAL),
                    },
                    other => other,
                }
            } else {
                work.call(nr::__NR_openat, plain)
            }
        };
        fd.map(|fd| fd as Fd)
    }

    /// Returns the flags and the mode for `openat2`, without those that `openat` ignores.
    fn flags_and_mode(&self) -> (u64, u64) {
        if self.strict { (self.how.flags, self.how.mode) } else { noticed(&self.how) }
    }

    /// True if the open may block without limit, unless `O_NONBLOCK` is set.
    fn may_wait(&self) -> bool {
        // A file that is created here is a regular one, and has no lease.
        let creates = u64::from(O_CREAT | O_EXCL);
        let waits_never = u64::from(O_NONBLOCK | O_PATH | O_DIRECTORY);
        self.how.flags & waits_never == 0 && self.how.flags & creates != creates
    }

    /// Opens without waiting. `EAGAIN` if that is not possible.
    fn try_call(&self, work: &Work) -> Result<Fd, Errno> {
        if self.patient && self.is_of_others(work) {
            return Err(Errno::EAGAIN);
        }
        let fd = self.call(work, O_NONBLOCK)?;
        self.may_wait_again(fd)
    }

    /// Opens a cached file for a slot, as the kernel does during submission: with `O_NONBLOCK`, if the open may wait without.
    fn open_cached(&self, directory: Fd) -> Result<Fd, Errno> {
        let waits = self.may_wait();
        let more = if waits { O_NONBLOCK | O_CLOEXEC } else { O_CLOEXEC };
        let (flags, mode) = self.flags_and_mode();
        let resolve = self.how.resolve | RESOLVE_CACHED;
        let how = open_how { flags: flags | u64::from(more), mode, resolve };
        let (address, size) = (&raw const how as usize, size_of::<open_how>());
        let arguments = [directory as usize, self.path.address(), address, size, 0, 0];
        // SAFETY: reads a path and a structure of the engine's.
        unsafe { os::call(nr::__NR_openat2, arguments) }.map(|fd| fd as Fd)
    }

    /// Returns the program's status flags of the file.
    fn status(&self) -> u32 {
        self.how.flags as u32 & (O_APPEND | O_DIRECT | O_NOATIME)
    }

    /// Restores the program's status flags of a file that was opened with `O_NONBLOCK`.
    fn may_wait_again(&self, fd: Fd) -> Result<Fd, Errno> {
        os::fcntl(fd, F_SETFL, self.status() as usize).inspect_err(|_| os::close(fd))?;
        Ok(fd)
    }
}

impl Open {
    /// True if the path is a FIFO, or a device, which may block as well. If another process replaces the file
    /// by one at this moment, it is opened immediately.
    fn is_of_others(&self, work: &Work) -> bool {
        let by_descriptor = || {
            let flags = O_PATH | O_CLOEXEC | self.how.flags as u32 & O_NOFOLLOW;
            let how = open_how { flags: u64::from(flags), mode: 0, resolve: self.how.resolve };
            self.call_as(work, how).and_then(|fd| {
                let identity = os::identity(fd);
                os::close(fd);
                identity.map(|identity| identity.mode)
            })
        };
        let follows = self.how.flags & u64::from(O_NOFOLLOW) == 0;
        let by_path = || os::mode_at(work.sqe.fd, self.path.address(), follows);
        let mode = match self.how.resolve {
            0 => match by_path() {
                Err(errno) if os::is_refused(nr::__NR_statx, errno) => by_descriptor(),
                mode => mode,
            },
            _ => by_descriptor(),
        };
        mode.is_ok_and(|mode| matches!(mode & nr::S_IFMT, nr::S_IFIFO | nr::S_IFCHR))
    }
}

fn open(work: &mut Work) -> Result<usize, Errno> {
    let OpData::Open(open) = &work.data else { return Err(Errno::EINVAL) };
    let fd = if work.long || !open.may_wait() { open.call(work, 0) } else { open.try_call(work) }?;
    if work.sqe.file_index == 0 {
        return Ok(fd as usize);
    }
    // A registered file uses none of the program's low numbers.
    notes::move_high(fd).map(|fd| fd as usize)
}

fn opened(cx: &mut Attempt<'_>, result: Result<usize, Errno>) -> Outcome {
    let request = cx.request_mut();
    if matches!(&request.data, OpData::Open(open) if open.patient) {
        // The kernel leaves an open that may create a file to a thread.
        request.flags.set(Flags::THREADED);
    }
    let request = cx.request();
    let slot = request.sqe.file_index;
    match result {
        Ok(fd) if slot != 0 => cx.ring.install_file(fd as Fd, slot).into(),
        Ok(fd) => {
            notes::renew(fd as Fd);
            Outcome::Complete(fd as i32)
        }
        Err(Errno::EAGAIN) if must_wait(&request.data) && !request.flags.has(Flags::PATIENT) => {
            cx.flags.set(Flags::PATIENT);
            Outcome::BlockForLong
        }
        Err(errno) => errno.into(),
    }
}

/// True if this attempt did not wait, although the program allows waiting.
fn must_wait(data: &OpData) -> bool {
    matches!(data, OpData::Open(open) if open.may_wait() && open.how.resolve & RESOLVE_CACHED == 0)
}

fn prep_close(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request();
    let sqe = &request.sqe;
    if request.flags.has(Flags::FIXED_FILE) {
        return Err(Errno::EBADF);
    }
    if sqe.file_index != 0 && sqe.fd != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

fn issue_close(cx: &mut Attempt<'_>) -> Outcome {
    let sqe = cx.sqe;
    if sqe.file_index != 0 {
        return cx.ring.remove_file(sqe.file_index - 1).into();
    }
    // Descriptors of the engine's own are not the program's to close.
    if registry::is_ring(sqe.fd) || os::own::is_own(sqe.fd) || cx.ring.is_closing(sqe.fd) {
        return Errno::EBADF.into();
    }
    let connection = cx.ring.readiness().is_known_connection(sqe.fd);
    if connection {
        cx.ring.forget_connection(sqe.fd);
    } else {
        cx.ring.forget_fd(sqe.fd);
    }
    if connection && ends_at_once(sqe.fd) {
        notes::closes(sqe.fd);
        return close_call(sqe.fd).into();
    }
    cx.will_close().map_or_else(Outcome::from, |()| Outcome::Block)
}

/// True if a connection that this ring has forgotten can be closed here. The close of one that does not
/// linger does not block, and no other ring is interested in it.
fn ends_at_once(fd: Fd) -> bool {
    notes::interested(fd) == Interested::Nobody && kinds::closes_at_once(fd)
}

fn closed(cx: &mut Attempt<'_>, result: Result<usize, Errno>) -> Outcome {
    cx.forget_closing();
    result.into()
}

fn close(work: &mut Work) -> Result<usize, Errno> {
    // Other rings may have state for the descriptor, too.
    descriptors::closed(work.sqe.fd);
    // During the system call, before its result is known here, the number may be reused for another file.
    let has_orphans = live(&mut work.ring().lock(), work.serial).is_some_and(|core| {
        core.attempt(work.id).forget_closing();
        core.zero_copy().has_orphans()
    });
    if has_orphans {
        ending::end_orphans(work.ring(), Some(work.sqe.fd));
    }
    close_call(work.sqe.fd)
}

fn close_call(fd: Fd) -> Result<usize, Errno> {
    // SAFETY: touches no memory; the descriptor is the program's to close.
    unsafe { os::call(nr::__NR_close, [fd as usize, 0, 0, 0, 0, 0]) }
}

fn prep_pipe(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    // O_NOTIFICATION_PIPE has the same bit as O_EXCL.
    const KNOWN: u32 = O_CLOEXEC | O_NONBLOCK | O_DIRECT | O_EXCL;
    if cx.sqe.op_flags & !KNOWN != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

fn issue_pipe(cx: &mut Attempt<'_>) -> Outcome {
    let sqe = cx.sqe;
    let flags = if sqe.file_index == 0 { sqe.op_flags } else { sqe.op_flags | O_CLOEXEC };
    let ends = match os::pipe(flags) {
        Ok(ends) => ends,
        Err(errno) => return errno.into(),
    };
    if sqe.file_index != 0 {
        return install_pipe(cx.ring, ends, &sqe).into();
    }
    for end in ends {
        notes::renew(end);
    }
    let told = user::write(sqe.addr, &[ends[0] as u32, ends[1] as u32]);
    told.map(|()| 0).inspect_err(|_| ends.into_iter().for_each(os::close)).into()
}

/// Installs both ends of a new pipe in the file table.
fn install_pipe(ring: &mut Lent, ends: [Fd; 2], sqe: &crate::abi::Sqe) -> Result<usize, Errno> {
    let [out, into] = ends.map(notes::move_high);
    let (out, into) = match (out, into) {
        (Ok(out), Ok(into)) => (out, into),
        (out, into) => {
            [out, into].into_iter().flatten().for_each(os::close);
            return Err(Errno::EMFILE);
        }
    };
    if sqe.op_flags & O_CLOEXEC != 0 {
        [out, into].into_iter().for_each(os::close);
        return Err(Errno::EINVAL);
    }
    // A named slot gets the reading end, the next one the writing end.
    let named = sqe.file_index.wrapping_sub(1);
    let place = |index: u32| {
        if sqe.file_index == ALLOCATE { ALLOCATE } else { index.wrapping_add(1) }
    };
    let slot = |index: u32, allocated: usize| {
        if sqe.file_index == ALLOCATE { allocated as u32 } else { index }
    };
    let first = ring.install_file(out, place(named)).inspect_err(|_| os::close(into))?;
    let first = slot(named, first);
    let told = ring.install_file(into, place(named.wrapping_add(1))).and_then(|second| {
        let second = slot(named.wrapping_add(1), second);
        user::write(sqe.addr, &[first, second]).inspect_err(|_| _ = ring.remove_file(second))
    });
    told.map(|()| 0).inspect_err(|_| _ = ring.remove_file(first))
}

fn prep_install(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request();
    if !request.flags.has(Flags::FIXED_FILE) {
        return Err(Errno::EBADF);
    }
    if request.sqe.op_flags & !IORING_FIXED_FD_NO_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    // Descriptors are installed with the task's own credentials only.
    if request.sqe.personality != 0 { Err(Errno::EPERM) } else { Ok(()) }
}

fn issue_install(cx: &mut Attempt<'_>) -> Outcome {
    let request = cx.request();
    let inherits = request.sqe.op_flags & IORING_FIXED_FD_NO_CLOEXEC != 0;
    let command = if inherits { F_DUPFD } else { F_DUPFD_CLOEXEC };
    let file = request.file.fd();
    let installed = os::fcntl(file, command, 0).inspect(|&fd| {
        notes::renew(fd as Fd);
        notes::duplicated(file, fd as Fd);
    });
    installed.into()
}

fn prep_files_update(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let request = cx.request();
    let bad = request.flags.has(Flags::FIXED_FILE.with(Flags::BUFFER_SELECT)) || request.sqe.len == 0;
    if bad { Err(Errno::EINVAL) } else { Ok(()) }
}

fn issue_files_update(cx: &mut Attempt<'_>) -> Outcome {
    let sqe = cx.sqe;
    let offset = sqe.off as u32;
    if offset == ALLOCATE {
        return cx.ring.allocate_files(sqe.addr, sqe.len).into();
    }
    let update = io_uring_rsrc_update2 { offset, resv: 0, data: sqe.addr, tags: 0, nr: sqe.len, resv2: 0 };
    cx.ring.update_files(&update, sqe.len).into()
}
