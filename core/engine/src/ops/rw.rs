//! READ, WRITE and their vectored and registered-buffer forms.
//!
//! The attempt is one `preadv2` or `pwritev2` with `RWF_NOWAIT`. If it would block, a file on storage is left
//! to the caller (a miss of the page cache ends soon), a file that can be polled is waited for, and any other
//! file is left to a thread of its own.

use alloc::boxed::Box;

use anyring_chaos_plan::journal::Effect;
use linux_raw_sys::general::{
    EPOLLIN, EPOLLOUT, F_GETFD, F_GETFL, O_ACCMODE, O_RDONLY, O_WRONLY, RWF_APPEND, RWF_DSYNC, RWF_HIPRI,
    RWF_NOWAIT, RWF_SYNC, S_IFDIR, S_IFMT, S_IFSOCK,
};
use linux_raw_sys::io_uring::IORING_RW_ATTR_FLAG_PI;

use crate::abi::{Errno, RWF_ATOMIC, RWF_DONTCACHE, RWF_NOAPPEND, RWF_NOSIGNAL, Sqe, names};
use crate::assets::kinds::{self, Kind};
use crate::assets::table::NodeIndex;
use crate::observe::chaos;
use crate::os::user::{self, IoVector};
use crate::os::{self, Fd, host, pages};
use crate::process::nonblocking;
use crate::request::data::OpData;
use crate::request::field::Field;
use crate::request::op::{Caps, Named, op};
use crate::request::shown::{self, Argument, When, arg};
use crate::request::{FileHold, Flags, POSITION, Request};
use crate::ring::drive::readiness::SocketKind;
use crate::ring::row::{Outcome, Prep, Row};
use crate::ring::{Attempt, registry};
use crate::work::Work;

const MAX_VECTORS: u32 = 1024;
/// The file system tmpfs: its files have no non-blocking attempts. Files elsewhere have them, or refuse them themselves.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Flags that do not change how an attempt is made.
const PLAIN_FLAGS: u32 = RWF_DSYNC | RWF_SYNC | RWF_APPEND | RWF_NOAPPEND | RWF_NOSIGNAL;
const KNOWN_FLAGS: u32 = PLAIN_FLAGS | RWF_HIPRI | RWF_NOWAIT | RWF_ATOMIC | RWF_DONTCACHE;
/// The last offset at which no transfer can end beyond the maximal offset.
pub const LAST_SAFE_OFFSET: u64 = (i64::MAX - i32::MAX as i64) as u64;
/// An advice that takes longer than this has begun a read.
const CACHED_US: u64 = 3;

/// Returns the arguments of a transfer, with one of the forms of its memory.
const fn arguments(memory: Argument, length: &'static str) -> [Argument; 9] {
    [
        shown::FD,
        memory,
        shown::GROUP,
        arg(Field::Length, length, shown::Kind::Number),
        arg(Field::Offset, "offset", shown::Kind::Offset),
        arg(Field::OpFlags, "rw_flags", shown::Kind::Flags(names::RW_FLAGS)).unless_zero(),
        arg(Field::Ioprio, "ioprio", shown::Kind::Hex).unless_zero(),
        arg(Field::Address3, "attr_ptr", shown::Kind::Address).when(&[When::Not(Field::Attributes, 0)]),
        arg(Field::Attributes, "attr_type_mask", shown::Kind::Flags(names::RW_ATTRIBUTES)).unless_zero(),
    ]
}

/// Returns the arguments of a transfer with a registered buffer, which replaces the group.
const fn fixed_arguments(memory: Argument, length: &'static str) -> [Argument; 9] {
    let [fd, memory, _, length, offset, flags, ioprio, pointer, mask] = arguments(memory, length);
    let buffer = arg(Field::BufferIndex, "buf_index", shown::Kind::Buffer);
    [fd, memory, length, offset, buffer, flags, ioprio, pointer, mask]
}

const FILLED: Argument = arg(Field::Address, "buf", shown::Kind::Filled);
const DATA: Argument = arg(Field::Address, "buf", shown::Kind::Data(Field::Length));
const VECTORS_FILLED: Argument = arg(Field::Address, "iovecs", shown::Kind::VectorsFilled(Field::Length));
const VECTORS: Argument = arg(Field::Address, "iovecs", shown::Kind::Vectors(Field::Length));

const READS: Caps = Caps::FILE.with(Caps::IOPRIO).with(Caps::IOPOLL).with(Caps::POSITION);
const WRITES: Caps = READS.with(Caps::HASHED);

const fn reads(op: Named, prep: Prep) -> Row {
    Row::new(op, READS, prep, |cx| issue(cx, Direction::Read))
        .block(|work| block(work, Direction::Read))
        .finish(|cx, result| finish(cx, result, Direction::Read))
        .failed(failed)
        .faults(chaos::READS)
}

const fn writes(op: Named, prep: Prep) -> Row {
    Row::new(op, WRITES, prep, |cx| issue(cx, Direction::Write))
        .block(|work| block(work, Direction::Write))
        .finish(|cx, result| finish(cx, result, Direction::Write))
        .failed(failed)
        .faults(chaos::WRITES)
        .stores(Effect::Write)
}

/// `IORING_OP_READ`.
pub const READ: Row = reads(op!(IORING_OP_READ), prep)
    .select_buffer()
    .arguments(&arguments(FILLED.when(&[shown::OWN_MEMORY]), "nbytes"))
    .errors(&[
        Errno::EINVAL,
        Errno::EFAULT,
        Errno::EBADF,
        Errno::EOPNOTSUPP,
        Errno::ENOBUFS,
        Errno::EAGAIN,
        Errno::ECANCELED,
    ]);
/// `IORING_OP_WRITE`.
pub const WRITE: Row = writes(op!(IORING_OP_WRITE), prep).arguments(&arguments(DATA, "nbytes")).errors(&[
    Errno::EINVAL,
    Errno::EFAULT,
    Errno::EBADF,
    Errno::EOPNOTSUPP,
]);
/// `IORING_OP_READV`.
pub const READV: Row = reads(op!(IORING_OP_READV), prep_vectored)
    .select_buffer()
    .arguments(&arguments(VECTORS_FILLED, "nr_vecs"))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::EOPNOTSUPP, Errno::ENOBUFS]);
/// `IORING_OP_WRITEV`.
pub const WRITEV: Row = writes(op!(IORING_OP_WRITEV), prep_vectored)
    .arguments(&arguments(VECTORS, "nr_vecs"))
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::EOPNOTSUPP]);
/// `IORING_OP_READ_FIXED`.
pub const READ_FIXED: Row = reads(op!(IORING_OP_READ_FIXED), prep_fixed)
    .arguments(&fixed_arguments(FILLED, "nbytes"))
    .of_its_ring()
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF]);
/// `IORING_OP_WRITE_FIXED`.
pub const WRITE_FIXED: Row = writes(op!(IORING_OP_WRITE_FIXED), prep_fixed)
    .arguments(&fixed_arguments(DATA, "nbytes"))
    .of_its_ring()
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF]);
/// `IORING_OP_READV_FIXED`.
pub const READV_FIXED: Row = reads(op!(IORING_OP_READV_FIXED), prep_vectored_fixed)
    .arguments(&fixed_arguments(VECTORS_FILLED, "nr_vecs"))
    .of_its_ring()
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOMEM]);
/// `IORING_OP_WRITEV_FIXED`.
pub const WRITEV_FIXED: Row = writes(op!(IORING_OP_WRITEV_FIXED), prep_vectored_fixed)
    .arguments(&fixed_arguments(VECTORS, "nr_vecs"))
    .of_its_ring()
    .errors(&[Errno::EINVAL, Errno::EFAULT, Errno::EBADF, Errno::ENOMEM]);

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Into memory.
    Read,
    /// From memory.
    Write,
}

impl Direction {
    const fn events(self) -> u32 {
        match self {
            Direction::Read => EPOLLIN,
            Direction::Write => EPOLLOUT,
        }
    }
}

fn prep(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    prep_any(cx)?;
    let request = cx.request_mut();
    let sqe = &mut request.sqe;
    if request.flags.has(Flags::BUFFER_SELECT) {
        return Ok(());
    }
    user::check_range(sqe.addr, u64::from(sqe.len))?;
    sqe.len = sqe.len.min(os::max_transfer_bytes() as u32);
    Ok(())
}

fn prep_fixed(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    prep_any(cx)?;
    cx.flags.set(Flags::REGISTERED_BUFFER);
    Ok(())
}

/// Does the checks that all forms share.
#[inline(always)]
fn prep_any(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    let sqe = &cx.sqe;
    if sqe.ioprio != 0 {
        check_priority(sqe.ioprio)?;
    }
    check_attributes(sqe)
}

/// Checks attributes. The only one is for devices that verify stored data, and no file here is on such a device.
pub fn check_attributes(sqe: &Sqe) -> Result<(), Errno> {
    if sqe.pad == 0 {
        return Ok(());
    }
    if sqe.pad == u64::from(IORING_RW_ATTR_FLAG_PI) {
        user::read::<[u64; 4]>(sqe.addr3)?;
    }
    Err(Errno::EINVAL)
}

fn prep_vectored(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    prep_any(cx)?;
    import_vectors(cx, false)
}

/// Copies the vectors of a request.
fn import_vectors(cx: &mut Attempt<'_>, fixed: bool) -> Result<(), Errno> {
    let request = cx.request_mut();
    let sqe = &mut request.sqe;
    if request.flags.has(Flags::BUFFER_SELECT) {
        if sqe.len != 1 {
            return Err(Errno::EINVAL);
        }
        sqe.len = user::read::<IoVector>(sqe.addr)?.length as u32;
        return Ok(());
    }
    if sqe.len == 1 {
        // A single vector is a plain transfer.
        let vector: IoVector = user::read(sqe.addr)?;
        let length = check_vector(vector, os::max_transfer_bytes() as u64, fixed)?;
        sqe.addr = vector.base;
        sqe.len = length as u32;
        return Ok(());
    }
    if sqe.len > MAX_VECTORS {
        return Err(Errno::EINVAL);
    }
    let mut vectors = user::read_many::<IoVector>(sqe.addr, sqe.len as usize)?;
    let mut room = os::max_transfer_bytes() as u64;
    for vector in &mut vectors {
        vector.length = check_vector(*vector, room, fixed)?;
        room -= vector.length;
    }
    cx.keep(OpData::Vectors(vectors.into_boxed_slice()));
    Ok(())
}

fn prep_vectored_fixed(cx: &mut Attempt<'_>) -> Result<(), Errno> {
    prep_any(cx)?;
    if cx.sqe.len as usize > pages::max_allocation_bytes() / size_of::<IoVector>() {
        // The kernel allocates memory for the vectors before it checks their number.
        return Err(Errno::ENOMEM);
    }
    import_vectors(cx, true)?;
    let request = cx.request_mut();
    request.flags.set(Flags::REGISTERED_BUFFER);
    if request.sqe.len == 0 && matches!(request.data, OpData::None) {
        // As in the kernel, a single empty segment is refused later; plain transfers are not.
        request.data = OpData::Vectors(Box::new([IoVector { base: request.sqe.addr, length: 0 }]));
    }
    Ok(())
}

/// Checks a segment; returns its length, limited to `room`. If `fixed`, its address is compared with a
/// registered buffer later; otherwise it must be in the program's address range.
fn check_vector(vector: IoVector, room: u64, fixed: bool) -> Result<u64, Errno> {
    if vector.length > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    if !fixed {
        user::check_range(vector.base, vector.length)?;
    }
    Ok(vector.length.min(room))
}

/// Does the kernel's `ioprio_check_cap`. The priority itself has no effect here.
fn check_priority(priority: u16) -> Result<(), Errno> {
    const REALTIME: u16 = 1;
    match (priority >> 13, priority & 7) {
        (REALTIME, _) if !os::may_raise_priority() => Err(Errno::EPERM),
        (0, 0) | (1..=3, _) => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// The memory of a transfer's data.
enum Memory<'a> {
    One(IoVector),
    Many(&'a [IoVector]),
}

impl Memory<'_> {
    fn of<'a>(sqe: &Sqe, data: &'a OpData) -> Memory<'a> {
        match data {
            OpData::Vectors(vectors) => Memory::Many(vectors),
            _ => Memory::One(IoVector { base: sqe.addr, length: u64::from(sqe.len) }),
        }
    }

    fn vectors(&self) -> &[IoVector] {
        match self {
            Memory::One(vector) => core::slice::from_ref(vector),
            Memory::Many(vectors) => vectors,
        }
    }

    fn length(&self) -> usize {
        match self {
            Memory::One(vector) => vector.length as usize,
            // The sum cannot overflow: it was limited when the request was checked.
            Memory::Many(vectors) => vectors.iter().map(|vector| vector.length as usize).sum(),
        }
    }
}

/// Makes one system call.
fn call(direction: Direction, fd: Fd, memory: &Memory<'_>, offset: u64, flags: u32) -> Result<usize, Errno> {
    let vectors = memory.vectors();
    // SAFETY: the request names this memory; the kernel checks that it is mapped.
    unsafe { os::transfer(direction == Direction::Write, fd, vectors, offset, flags) }
}

/// Makes a call that may block, by `call` with the SQE's flags. A file that supports none of its flags is transferred
/// without flags.
fn plain_call(
    fd: Fd,
    sqe: &crate::abi::Sqe,
    call: impl Fn(u32) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    match call(sqe.op_flags) {
        Err(Errno::EOPNOTSUPP)
            if match os::identity(fd)?.mode & S_IFMT {
                0 => true,
                S_IFDIR => sqe.op_flags & !PLAIN_FLAGS == 0,
                _ => false,
            } =>
        {
            call(0)
        }
        other => other,
    }
}

#[inline]
fn issue(cx: &mut Attempt<'_>, direction: Direction) -> Outcome {
    let request = cx.request();
    if request.flags.has(Flags::BUFFER_SELECT) && request.buffer.is_none() {
        return issue_selected(cx);
    }
    issue_into(cx, direction)
}

/// Reads into a provided buffer, which the request keeps if a thread does the read.
#[inline(never)]
fn issue_selected(cx: &mut Attempt<'_>) -> Outcome {
    let wanted = cx.sqe.len;
    if let Err(errno) = registry::transfer_kind(cx.file.fd()) {
        return errno.into();
    }
    let span = match cx.select_buffer(wanted as usize) {
        Ok(span) => span,
        Err(errno) => return errno.into(),
    };
    if cx.ring.groups().is_list(cx.sqe.buf_index) {
        // The request keeps the buffer from here on, whatever the result.
        cx.keep_buffers(span.length, 1);
    }
    let sqe = &mut cx.sqe;
    sqe.addr = span.address;
    sqe.len = span.length as u32;
    let outcome = issue_into(cx, Direction::Read);
    match outcome {
        // If the file can be polled, a part of the buffer may suffice.
        Outcome::Block | Outcome::BlockForLong if lends_buffer(cx) => cx.lend_buffer(),
        Outcome::Block | Outcome::BlockForLong | Outcome::InFlight => cx.keep_buffers(span.length, 1),
        Outcome::Complete(done) if done != span.length as i32 && takes_whole_buffers(cx) => {
            cx.keep_buffers(span.length, 1);
        }
        // At the end of a file the CQE reports the buffer, empty.
        Outcome::Complete(0) => {
            let flags = cx.use_buffers(0, 1);
            cx.cqe_flags |= flags;
        }
        Outcome::Complete(_) => {}
        _ => {
            cx.return_buffer();
            let request = cx.request_mut();
            if request.buffer.is_none() {
                request.sqe.len = wanted;
            }
        }
    }
    outcome
}

/// True if a thread's read must use the buffer as a non-blocking attempt would: the kernel makes only such attempts on files that can
/// be polled. Files on storage can hardly ever be polled, so this matters there only if a buffer may be used in part.
#[cold]
fn lends_buffer(cx: &Attempt<'_>) -> bool {
    let fd = cx.file.fd();
    let storage = kinds::look_at_type(fd).is_ok_and(|kind| kind.has(Kind::STORAGE));
    (!storage || cx.ring.groups().is_incremental(cx.sqe.buf_index))
        && !cx.ring.groups().is_list(cx.sqe.buf_index)
        && os::can_be_polled(fd)
}

/// True if the file cannot be polled: the kernel gives such a read its whole buffer as it begins, whatever the result. Files that are
/// not on storage give their buffer back.
#[cold]
fn takes_whole_buffers(cx: &Attempt<'_>) -> bool {
    let fd = cx.file.fd();
    kinds::typed_kind(fd).is_ok_and(|kind| kind.has(Kind::STORAGE))
        && !(cx.ring.groups().is_incremental(cx.sqe.buf_index) && os::can_be_polled(fd))
}

fn issue_into(cx: &mut Attempt<'_>, direction: Direction) -> Outcome {
    match attempt(cx, direction) {
        Ok(outcome) => outcome,
        Err(errno) => end(cx, Err(errno)),
    }
}

fn attempt(cx: &mut Attempt<'_>, direction: Direction) -> Result<Outcome, Errno> {
    let request = cx.request();
    let fd = request.file.fd();
    if request.flags.has(Flags::REGISTERED_BUFFER) && request.registered_buffer.is_none() {
        return with_registered_buffer(cx, direction);
    }
    let kind = registry::transfer_kind(fd)?;
    if request.sqe.op_flags & !PLAIN_FLAGS != 0 {
        special_flags(cx, direction)?;
    }
    if kind.has(Kind::DIRECT) && past_the_cache(cx)? || blocks_at_once(cx, kind, direction)? {
        return block_on_storage(cx);
    }
    let request = cx.request();
    let memory = Memory::of(&request.sqe, &request.data);
    let wanted = memory.length();
    let is_begun_otherwise = kind.has(Kind::FAR.with(Kind::ADVISED));
    if direction == Direction::Read && is_begun_otherwise && wanted > 0 && can_begin(request) {
        return begin_read(cx, Errno::EOPNOTSUPP);
    }
    if request.sqe.off > LAST_SAFE_OFFSET && request.sqe.off != POSITION {
        check_end(fd, request.sqe.off, wanted, direction)?;
    }
    // The type must be that of the present file: a wrong decision for a former file of this number would not be noticed.
    if wanted == 0 && !kinds::look_at_type(fd)?.has(Kind::STORAGE) {
        return nothing(cx, fd, direction);
    }
    let flags = request.sqe.op_flags | RWF_NOWAIT;
    // A request that never waits has only this attempt, so known readiness bits must not replace it. Nor must they replace a write: a small
    // one may find room in a file that epoll does not call writable.
    let waits = direction == Direction::Read && !request.flags.has(Flags::NOWAIT);
    if waits && !cx.ring.readiness().worth_trying(fd, EPOLLIN) && waits_if_idle(cx, wanted)? {
        return Ok(Outcome::Wait(EPOLLIN));
    }
    let request = cx.request();
    let memory = Memory::of(&request.sqe, &request.data);
    match call(direction, fd, &memory, request.sqe.off, flags) {
        Ok(done) if done == wanted => Ok(whole(cx, done)),
        Ok(done) => short(cx, done, direction),
        Err(errno @ (Errno::EAGAIN | Errno::EOPNOTSUPP)) => not_now(cx, errno, direction),
        Err(Errno::ESPIPE) if ignores_offset(fd, request.sqe.off) => {
            ignore_offset(cx);
            attempt(cx, direction)
        }
        Err(errno) => Err(errno),
    }
}

/// Refuses a transfer that would go beyond the maximal offset, even on a file that ignores offsets.
#[cold]
pub fn check_end(fd: Fd, offset: u64, length: usize, direction: Direction) -> Result<(), Errno> {
    check_mode(fd, direction)?;
    match offset.checked_add(length as u64) {
        Some(end) if offset.max(end) <= i64::MAX as u64 => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// True if a read of a file that is not ready waits, instead of failing immediately.
fn waits_if_idle(cx: &mut Attempt<'_>, wanted: usize) -> Result<bool, Errno> {
    let request = cx.request();
    let (fd, offset) = (request.file.fd(), request.sqe.off);
    if is_unseen_storage(fd)? {
        return Ok(false);
    }
    let stream = kinds::typed_kind(fd)?.has(Kind::STREAM);
    let kind = cx.ring.readiness_mut().socket_kind(fd);
    if stream || kind == SocketKind::NoSocket {
        // The wrong end of a pipe never becomes ready.
        check_mode(fd, Direction::Read)?;
    }
    // Sockets refuse offsets; eventfd and the like refuse buffers that are too short for their data.
    Ok(stream
        || if kind == SocketKind::NoSocket {
            wanted >= size_of::<u64>()
        } else {
            kind.receives() && (offset == 0 || offset == POSITION)
        })
}

/// True if the descriptor's present file is on storage, which is never waited for. If closes are not seen, it may be another file than
/// the one registered with epoll.
fn is_unseen_storage(fd: Fd) -> Result<bool, Errno> {
    Ok(!host::sees_closes() && kinds::look_at_type(fd)?.has(Kind::STORAGE))
}

/// Checks that the file is open for this direction.
fn check_mode(fd: Fd, direction: Direction) -> Result<(), Errno> {
    let other = match direction {
        Direction::Read => O_WRONLY,
        Direction::Write => O_RDONLY,
    };
    if os::fcntl(fd, F_GETFL, 0)? as u32 & O_ACCMODE == other { Err(Errno::EBADF) } else { Ok(()) }
}

/// Transfers no bytes: the vectored system calls do not pass such a transfer on to the file.
#[cold]
fn nothing(cx: &mut Attempt<'_>, fd: Fd, direction: Direction) -> Result<Outcome, Errno> {
    let request = cx.request();
    let memory = Memory::of(&request.sqe, &request.data);
    check_mode(fd, direction)?;
    // A transfer that is refused for other reasons still is.
    let mut result = call(direction, fd, &memory, request.sqe.off, request.sqe.op_flags | RWF_NOWAIT);
    if result == Err(Errno::ESPIPE) && ignores_offset(fd, request.sqe.off) {
        result = Ok(0);
    }
    let mode = os::identity(fd)?.mode & S_IFMT;
    if result == Ok(0) && mode == S_IFSOCK && direction == Direction::Write {
        result = os::send_nothing(fd);
        if result == Err(Errno::EAGAIN) && !request.flags.has(Flags::NOWAIT) {
            return Ok(Outcome::Wait(EPOLLOUT));
        }
    } else if result == Ok(0) && mode == 0 && direction == Direction::Read {
        // A file without a type. inotify and fanotify, which tell how much there is, are waited for, and then asked for nothing. Others,
        // as eventfd, signalfd and timerfd, refuse buffers that are too short for their data.
        if os::unread(fd).is_err() {
            result = os::read_nothing(fd);
        } else if request.flags.has(Flags::NOWAIT) {
            return Err(Errno::EOPNOTSUPP);
        } else if !nonblocking::is_wanted(fd) && os::poll_now(fd, EPOLLIN)? == 0 {
            return Ok(Outcome::Wait(EPOLLIN));
        }
    } else if result == Ok(0) && mode == 0 && !nonblocking::is_wanted(fd) {
        // As in `not_now` for an eventfd: the length of the write does not matter.
        if request.flags.has(Flags::NOWAIT) {
            result = Err(Errno::EAGAIN);
        } else if os::poll_now(fd, EPOLLOUT)? == 0 {
            return Ok(Outcome::Wait(EPOLLOUT));
        }
    }
    result.map(|_| whole(cx, 0))
}

/// Checks the memory of a request against its registered buffer, and holds the buffer if the request does not complete.
#[inline(never)]
fn with_registered_buffer(cx: &mut Attempt<'_>, direction: Direction) -> Result<Outcome, Errno> {
    let node = check_registered(cx).map_err(|errno| {
        // The error of an invalid descriptor takes precedence.
        os::fcntl(cx.file.fd(), F_GETFD, 0).err().unwrap_or(errno)
    })?;
    cx.flags.clear(Flags::REGISTERED_BUFFER);
    let outcome = attempt(cx, direction)?;
    if !matches!(outcome, Outcome::Complete(_)) {
        cx.ring.hold_buffer(cx.id(), node);
    }
    Ok(outcome)
}

fn check_registered(cx: &Attempt<'_>) -> Result<NodeIndex, Errno> {
    let request = cx.request();
    let vectored = matches!(request.data, OpData::Vectors(_));
    let memory = Memory::of(&request.sqe, &request.data);
    let mut found = cx.ring.buffers().node(request.sqe.buf_index);
    for vector in memory.vectors() {
        if vectored && vector.length == 0 {
            return Err(Errno::EFAULT);
        }
        found = cx.ring.buffers().check(request.sqe.buf_index, vector.base, vector.length);
        found?;
    }
    found
}

/// Checks flags that change the possible results of an attempt.
#[cold]
fn special_flags(cx: &mut Attempt<'_>, direction: Direction) -> Result<(), Errno> {
    let request = cx.request_mut();
    let flags = request.sqe.op_flags;
    let for_storage = flags & (RWF_ATOMIC | RWF_DONTCACHE) != 0;
    if flags & !KNOWN_FLAGS != 0
        || flags & RWF_ATOMIC != 0 && direction == Direction::Read
        || for_storage && !kinds::look_at_type(request.file.fd())?.has(Kind::STORAGE)
    {
        check_mode(request.file.fd(), direction)?;
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & RWF_HIPRI != 0 {
        // Only polled rings accept this flag.
        check_mode(request.file.fd(), direction)?;
        return Err(Errno::EINVAL);
    }
    if flags & RWF_NOWAIT != 0 {
        request.flags.set(Flags::NOWAIT);
        let fd = request.file.fd();
        if kinds::look_at_type(fd)?.has(Kind::STORAGE)
            && os::file_system(fd).is_ok_and(|(kind, _)| kind == TMPFS_MAGIC)
        {
            check_mode(fd, direction)?;
            return Err(Errno::EOPNOTSUPP);
        }
    }
    Ok(())
}

/// True if the file ignores the offset: files without positions do; sockets do so only if it is zero.
#[cold]
pub fn ignores_offset(fd: Fd, offset: u64) -> bool {
    offset == 0 || (offset as i64) > 0 && os::identity(fd).is_ok_and(|file| file.mode & S_IFMT != S_IFSOCK)
}

/// Makes a transfer on a pipe or the like ignore the offset, as io_uring does.
fn ignore_offset(cx: &mut Attempt<'_>) {
    cx.sqe.off = POSITION;
}

/// True if a non-blocking attempt would fail, or overtake earlier work.
#[inline]
fn blocks_at_once(cx: &Attempt<'_>, kind: Kind, direction: Direction) -> Result<bool, Errno> {
    let request = cx.request();
    if request.flags.has(Flags::NOWAIT) {
        return Ok(false);
    }
    if request.sqe.off == POSITION {
        let fd = request.file.fd();
        return Ok(cx.ring.has_work_on(fd) && kinds::look_at_type(fd)?.has(Kind::STORAGE));
    }
    // If the file is not on storage any more, an attempt at an offset fails immediately with ESPIPE.
    Ok(direction == Direction::Write && kind.has(Kind::WRITES_BLOCK))
}

/// True if a transfer waits for the device, whatever its flags are. Facts noted about a plain descriptor suffice only if closes are
/// seen.
#[cold]
fn past_the_cache(cx: &mut Attempt<'_>) -> Result<bool, Errno> {
    // A transfer that is passed to the kernel now may be on any file: the kernel's answer is checked then.
    let is_sure = host::sees_closes() || cx.file.plain().is_none() || cx.will_transfer();
    let request = cx.request_mut();
    let fd = request.file.fd();
    if !is_sure && !kinds::is_direct(fd)? {
        kinds::forget(fd);
        return Ok(false);
    }
    if request.sqe.off != POSITION {
        request.flags.set(Flags::DIRECT);
        if !is_sure {
            // The transfer may be done after the call.
            request.hold_file()?;
        }
    }
    Ok(true)
}

/// Completes a whole transfer.
#[inline]
fn whole(cx: &Attempt<'_>, done: usize) -> Outcome {
    Outcome::Complete(cx.result + done as i32)
}

/// Returns the result of a request that ended before its next attempt: bytes of earlier attempts take precedence over the error.
fn failed(request: &Request, result: i32) -> i32 {
    if request.result > 0 { request.result } else { result }
}

/// Completes a request with the bytes of earlier attempts added.
fn end(cx: &mut Attempt<'_>, result: Result<usize, Errno>) -> Outcome {
    let before = cx.result;
    cx.fail();
    match result {
        Ok(done) => Outcome::Complete(before + done as i32),
        Err(_) if before > 0 => Outcome::Complete(before),
        Err(errno) => errno.into(),
    }
}

/// Handles a short transfer. On storage it may have reached the end of the page cache instead of the end of
/// the file: the rest is tried once more.
#[cold]
fn short(cx: &mut Attempt<'_>, done: usize, direction: Direction) -> Result<Outcome, Errno> {
    let request = cx.request();
    let fd = request.file.fd();
    if done == 0 || request.flags.has(Flags::NOWAIT) {
        return Ok(end(cx, Ok(done)));
    }
    let mut kind = kinds::typed_kind(fd);
    if kind.is_ok_and(|kind| kind.has(Kind::STORAGE)) && request.sqe.off == POSITION {
        kind = kinds::look_at_type(fd);
    }
    // Whatever file the number refers to by now, these bytes were transferred.
    let Ok(kind) = kind else { return Ok(end(cx, Ok(done))) };
    if kind.has(Kind::STORAGE) {
        cx.step_over(done);
        return attempt(cx, direction);
    }
    if kind.has(Kind::STREAM) {
        cx.ring.readiness_mut().drained(fd, direction.events());
    } else if direction == Direction::Read {
        cx.ring.readiness_mut().came_short(fd);
    }
    Ok(end(cx, Ok(done)))
}

/// Handles an attempt that would have blocked, or that the file does not support.
#[cold]
fn not_now(cx: &mut Attempt<'_>, errno: Errno, direction: Direction) -> Result<Outcome, Errno> {
    let events = direction.events();
    let request = cx.request();
    let (fd, nowait) = (request.file.fd(), request.flags.has(Flags::NOWAIT));
    if errno == Errno::EAGAIN && cx.ring.readiness().is_registered(fd) && !is_unseen_storage(fd)? {
        cx.ring.readiness_mut().drained(fd, events);
        return Ok(Outcome::Wait(events));
    }
    let begins = direction == Direction::Read && can_begin(request);
    // A type seen earlier suffices if an attempt at an offset has just failed this way.
    let kind = if begins && host::sees_closes() { kinds::typed_kind(fd)? } else { kinds::look_at_type(fd)? };
    if kind.has(Kind::STORAGE) {
        if errno == Errno::EOPNOTSUPP
            && direction == Direction::Read
            && !nowait
            && kinds::kind_of_reads(fd).has(Kind::READS_WAIT)
        {
            // The kernel's log and its traces have nothing to read until something happens.
            if os::poll_now(fd, events)? == 0 {
                return without_nowait(cx, direction);
            }
            if cx.flags.has(Flags::WOKEN) {
                return Ok(Outcome::BlockForLong);
            }
        }
        if errno == Errno::EOPNOTSUPP && direction == Direction::Write {
            kinds::writes_block(fd);
        }
        let told = if direction == Direction::Write { Errno::EAGAIN } else { errno };
        return match (nowait, begins) {
            (true, _) => Err(told),
            (_, true) => begin_read(cx, errno),
            _ => block_on_storage(cx),
        };
    }
    if nowait && errno == Errno::EOPNOTSUPP && os::identity(fd)?.mode & S_IFMT == 0 {
        if direction == Direction::Read {
            // inotify and fanotify know no attempts that must not wait.
            return Err(errno);
        }
        if !nonblocking::is_wanted(fd) {
            // An eventfd: the kernel's own loop over its plain calls cannot promise not to wait.
            return Err(Errno::EAGAIN);
        }
    }
    if nowait && !nonblocking::is_wanted(fd) {
        return Err(errno);
    }
    if errno == Errno::EAGAIN { Ok(Outcome::Wait(events)) } else { without_nowait(cx, direction) }
}

/// True if a read that misses the page cache can be left to the device.
fn can_begin(request: &Request) -> bool {
    request.sqe.off != POSITION && !request.flags.has(Flags::NOWAIT)
}

/// Begins a read on storage that would have blocked, or whose file does not support non-blocking attempts: submits it to the
/// device, if that is possible without waiting.
#[cold]
fn begin_read(cx: &mut Attempt<'_>, errno: Errno) -> Result<Outcome, Errno> {
    let request = cx.request();
    let (fd, offset) = (request.file.fd(), request.sqe.off);
    let length = Memory::of(&request.sqe, &request.data).length();
    if errno == Errno::EAGAIN {
        if !os::nowait_begins_reads() {
            os::will_need(fd, offset, length)?;
        }
        return Ok(Outcome::InFlight);
    }
    let kind = kinds::kind_of_reads(fd);
    if !kind.has(Kind::ADVISED) {
        return Ok(Outcome::Block);
    }
    let started = os::ticks();
    if let Err(errno) = os::will_need(fd, offset, length) {
        // The number refers to another file by now, or to none.
        kinds::forget(fd);
        return if errno == Errno::ESPIPE { attempt(cx, Direction::Read) } else { Err(errno) };
    }
    // Cached data need not be waited for. A second advice for data that is being read returns as quickly, though.
    let is_cached =
        !cx.ring.has_reads_in_flight() && os::ticks().wrapping_sub(started) < CACHED_US * os::ticks_per_us();
    Ok(if is_cached { Outcome::Block } else { Outcome::InFlight })
}

/// Returns the outcome for an attempt that blocks, on a file that was on storage when its type was read. Another thread
/// may have closed the descriptor since. At an offset, a pipe with its number refuses the transfer; at the file's own
/// position it would block the caller, so the file is held before its type counts.
fn block_on_storage(cx: &mut Attempt<'_>) -> Result<Outcome, Errno> {
    let request = cx.request_mut();
    if request.sqe.off != POSITION || !matches!(request.file, FileHold::Plain(_)) {
        return Ok(Outcome::Block);
    }
    request.hold_file()?;
    let is_storage = kinds::look_at_type(request.file.fd())?.has(Kind::STORAGE);
    Ok(if is_storage { Outcome::Block } else { Outcome::BlockForLong })
}

/// Handles a file that does not support non-blocking attempts, and is not on storage.
fn without_nowait(cx: &mut Attempt<'_>, direction: Direction) -> Result<Outcome, Errno> {
    let request = cx.request();
    let fd = request.file.fd();
    if nonblocking::is_wanted(fd) {
        let memory = Memory::of(&request.sqe, &request.data);
        let wanted = memory.length();
        let offset = request.sqe.off;
        let done = plain_call(fd, &request.sqe, |flags| call(direction, fd, &memory, offset, flags));
        if done == Err(Errno::EAGAIN) && !request.flags.has(Flags::NOWAIT) {
            // A terminal, an inotify instance, an eventfd at its limit: the kernel considers any file with `O_NONBLOCK` to support
            // non-blocking attempts, and polls it.
            return Ok(Outcome::Wait(direction.events()));
        }
        let done = done?;
        return Ok(if done == wanted { whole(cx, done) } else { end(cx, Ok(done)) });
    }
    // If the file cannot be polled, the wait finds that out, too, and a thread blocks on it.
    let polled = request.flags.has(Flags::WOKEN) || cx.ring.watch(fd).is_ok();
    if polled && os::poll_now(fd, direction.events())? != 0 {
        // Another reader may come first, and then the read waits for what comes next. Writes keep their order.
        let reads = direction == Direction::Read;
        return Ok(if reads { Outcome::BlockForLong } else { Outcome::Block });
    }
    Ok(Outcome::Wait(direction.events()))
}

fn block(work: &mut Work, direction: Direction) -> Result<usize, Errno> {
    if direction == Direction::Write && os::limits::were_sizes_limited() {
        // The kernel's worker threads, which do writes that block, get no SIGXFSZ.
        return os::without_size_signal(|| transfer(work, direction));
    }
    transfer(work, direction)
}

#[inline(always)]
fn transfer(work: &Work, direction: Direction) -> Result<usize, Errno> {
    let memory = Memory::of(&work.sqe, &work.data);
    // SAFETY: the request names this memory; the kernel checks that it is mapped.
    let call = |number, arguments| unsafe { work.call(number, arguments) };
    plain_call(work.fd, &work.sqe, |flags| {
        os::transfer_by(call, direction == Direction::Write, work.fd, memory.vectors(), work.sqe.off, flags)
    })
}

fn finish(cx: &mut Attempt<'_>, result: Result<usize, Errno>, direction: Direction) -> Outcome {
    let request = cx.request();
    let wanted = Memory::of(&request.sqe, &request.data).length();
    match result {
        Ok(done) if done == wanted => whole(cx, done),
        // The facts noted about the descriptor are outdated.
        Err(Errno::ESPIPE) if ignores_offset(request.file.fd(), request.sqe.off) => {
            kinds::forget(request.file.fd());
            ignore_offset(cx);
            issue(cx, direction)
        }
        // At the end of a file the CQE reports the buffer, as in `issue_selected`.
        Ok(0) if request.buffer.is_some() && request.result == 0 => {
            let flags = cx.use_buffers(0, 1);
            cx.cqe_flags |= flags;
            end(cx, Ok(0))
        }
        other => end(cx, other),
    }
}
