//! Reading, writing, and other operations on open files.

use super::plain;
use crate::fd::Closing;
use crate::low::op::{self as low, Target};
use crate::low::{Sqe, flags};
use crate::operation::{CqeResult, Files, Operation};
use crate::{Buffer, BufferMut, Error, Fd};
use std::os::fd::{AsRawFd, IntoRawFd};

/// Stands for the file position, instead of an offset.
const HERE: u64 = u64::MAX;

/// Returns a length as entries have it, at most `u32::MAX`: the rest is left for another operation.
pub(super) fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// See [`read`].
#[derive(Debug)]
pub struct Read<B> {
    file: Fd,
    buffer: B,
    offset: u64,
    flags: i32,
}

/// Reads into a buffer, from its beginning up to its capacity: an empty `Vec` must have some capacity.
///
/// With a [`FixedBuffer`](crate::FixedBuffer) the operation is a `READ_FIXED`.
pub fn read<B: BufferMut>(file: &Fd, buffer: B) -> Read<B> {
    Read { file: file.clone(), buffer, offset: HERE, flags: 0 }
}

impl<B> Read<B> {
    /// Reads from this offset, instead of the file position.
    pub fn at(mut self, offset: u64) -> Read<B> {
        self.offset = offset;
        self
    }

    /// Sets `RWF_*` flags.
    pub fn flags(mut self, flags: i32) -> Read<B> {
        self.flags = flags;
        self
    }
}

// SAFETY: the operation owns the buffer and the file.
unsafe impl<B: BufferMut> Operation for Read<B> {
    type Output = (Result<usize, Error>, B);

    const NAME: &'static str = "READ";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let (pointer, length) = (self.buffer.pointer_mut(), length(self.buffer.capacity()));
        let target = self.file.target(files);
        match self.buffer.registered() {
            Some(index) => low::ReadFixed::new(target, pointer, length, index)
                .offset(self.offset)
                .flags(self.flags)
                .build(),
            None => low::Read::new(target, pointer, length).offset(self.offset).flags(self.flags).build(),
        }
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        // SAFETY: the result says how much the engine has written.
        unsafe { filled(self.buffer, came.number()) }
    }
}

/// Sets the length of a buffer into which data was read. Returns the result and the buffer.
///
/// # Safety
/// The result must be the number of bytes read, or an error.
pub(super) unsafe fn filled<B: BufferMut>(
    mut buffer: B,
    result: Result<u32, Error>,
) -> (Result<usize, Error>, B) {
    let result = result.map(|count| count as usize);
    if let Ok(count) = result {
        let count = count.min(buffer.capacity());
        // SAFETY: the caller's promise.
        unsafe { buffer.set_length(count) };
    }
    (result, buffer)
}

/// Returns the result of a write, with its buffer.
pub(super) fn written<B>(buffer: B, result: Result<u32, Error>) -> (Result<usize, Error>, B) {
    (result.map(|count| count as usize), buffer)
}

/// See [`write()`].
#[derive(Debug)]
pub struct Write<B> {
    file: Fd,
    buffer: B,
    offset: u64,
    flags: i32,
}

/// Writes a buffer's content. With a [`FixedBuffer`](crate::FixedBuffer) the operation is a `WRITE_FIXED`.
pub fn write<B: Buffer>(file: &Fd, buffer: B) -> Write<B> {
    Write { file: file.clone(), buffer, offset: HERE, flags: 0 }
}

impl<B> Write<B> {
    /// Writes at this offset, instead of the file position.
    pub fn at(mut self, offset: u64) -> Write<B> {
        self.offset = offset;
        self
    }

    /// Sets `RWF_*` flags.
    pub fn flags(mut self, flags: i32) -> Write<B> {
        self.flags = flags;
        self
    }
}

// SAFETY: the operation owns the buffer and the file.
unsafe impl<B: Buffer> Operation for Write<B> {
    type Output = (Result<usize, Error>, B);

    const NAME: &'static str = "WRITE";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let (pointer, length) = (self.buffer.pointer(), length(self.buffer.length()));
        let target = self.file.target(files);
        match self.buffer.registered() {
            Some(index) => low::WriteFixed::new(target, pointer, length, index)
                .offset(self.offset)
                .flags(self.flags)
                .build(),
            None => low::Write::new(target, pointer, length).offset(self.offset).flags(self.flags).build(),
        }
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        written(self.buffer, came.number())
    }
}

/// The segments of a vectored operation.
struct Vectors(Vec<libc::iovec>);

// SAFETY: the pointers point into buffers that are `Send`, and only the engine uses them.
unsafe impl Send for Vectors {}

impl std::fmt::Debug for Vectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} segments", self.0.len())
    }
}

/// See [`readv`].
#[derive(Debug)]
pub struct Readv<B> {
    file: Fd,
    buffers: Vec<B>,
    vectors: Vectors,
    offset: u64,
}

/// Reads into several buffers, one after the other.
pub fn readv<B: BufferMut>(file: &Fd, buffers: Vec<B>) -> Readv<B> {
    Readv { file: file.clone(), buffers, vectors: Vectors(Vec::new()), offset: HERE }
}

impl<B> Readv<B> {
    /// Reads from this offset, instead of the file position.
    pub fn at(mut self, offset: u64) -> Readv<B> {
        self.offset = offset;
        self
    }
}

// SAFETY: the operation owns buffers, segments and file.
unsafe impl<B: BufferMut> Operation for Readv<B> {
    type Output = (Result<usize, Error>, Vec<B>);

    const NAME: &'static str = "READV";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let vector = |buffer: &mut B| libc::iovec {
            iov_base: buffer.pointer_mut().cast(),
            iov_len: buffer.capacity(),
        };
        self.vectors.0 = self.buffers.iter_mut().map(vector).collect();
        let (first, count) = (self.vectors.0.as_ptr(), length(self.vectors.0.len()));
        low::Readv::new(self.file.target(files), first, count).offset(self.offset).build()
    }

    unsafe fn output(mut self, came: CqeResult) -> Self::Output {
        let result = came.result.map(|count| count as usize);
        let mut left = result.unwrap_or(0);
        for buffer in self.buffers.iter_mut().filter(|_| result.is_ok()) {
            let count = left.min(buffer.capacity());
            // SAFETY: the engine has filled the buffers in their order.
            unsafe { buffer.set_length(count) };
            left -= count;
        }
        (result, self.buffers)
    }
}

/// See [`writev`].
#[derive(Debug)]
pub struct Writev<B> {
    file: Fd,
    buffers: Vec<B>,
    vectors: Vectors,
    offset: u64,
}

/// Writes the content of several buffers, one after the other.
pub fn writev<B: Buffer>(file: &Fd, buffers: Vec<B>) -> Writev<B> {
    Writev { file: file.clone(), buffers, vectors: Vectors(Vec::new()), offset: HERE }
}

impl<B> Writev<B> {
    /// Writes at this offset, instead of the file position.
    pub fn at(mut self, offset: u64) -> Writev<B> {
        self.offset = offset;
        self
    }
}

// SAFETY: the operation owns buffers, segments and file.
unsafe impl<B: Buffer> Operation for Writev<B> {
    type Output = (Result<usize, Error>, Vec<B>);

    const NAME: &'static str = "WRITEV";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let vector = |buffer: &B| libc::iovec {
            iov_base: buffer.pointer().cast_mut().cast(),
            iov_len: buffer.length(),
        };
        self.vectors.0 = self.buffers.iter().map(vector).collect();
        let (first, count) = (self.vectors.0.as_ptr(), length(self.vectors.0.len()));
        low::Writev::new(self.file.target(files), first, count).offset(self.offset).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        written(self.buffers, came.number())
    }
}

/// See [`fsync`].
#[derive(Debug)]
pub struct Fsync {
    file: Fd,
    flags: u32,
}

/// Writes a file's data and metadata to its disk.
pub fn fsync(file: &Fd) -> Fsync {
    Fsync { file: file.clone(), flags: 0 }
}

impl Fsync {
    /// Writes the data, and only the metadata that is needed to read it.
    pub fn data_only(mut self) -> Fsync {
        self.flags = flags::FSYNC_DATASYNC;
        self
    }
}

plain!(unit Fsync, "FSYNC", |it, files| low::Fsync::new(it.file.target(files)).flags(it.flags).build());

/// See [`truncate`].
#[derive(Debug)]
pub struct Truncate {
    file: Fd,
    length: u64,
}

/// Changes a file's length.
#[doc(alias = "ftruncate")]
pub fn truncate(file: &Fd, length: u64) -> Truncate {
    Truncate { file: file.clone(), length }
}

plain!(unit Truncate, "FTRUNCATE", |it, files| low::Ftruncate::new(it.file.target(files), it.length).build());

/// See [`allocate`].
#[derive(Debug)]
pub struct Allocate {
    file: Fd,
    offset: u64,
    length: u64,
    mode: i32,
}

/// Allocates a range of a file, as `fallocate(2)`.
#[doc(alias = "fallocate")]
pub fn allocate(file: &Fd, offset: u64, length: u64) -> Allocate {
    Allocate { file: file.clone(), offset, length, mode: 0 }
}

impl Allocate {
    /// Sets the mode (`FALLOC_FL_*`).
    pub fn mode(mut self, mode: i32) -> Allocate {
        self.mode = mode;
        self
    }
}

plain!(unit Allocate, "FALLOCATE", |it, files| low::Fallocate::new(it.file.target(files), it.offset, it.length)
    .mode(it.mode)
    .build());

/// See [`advise`].
#[derive(Debug)]
pub struct Advise {
    file: Fd,
    advice: i32,
}

/// Announces how a file will be used (`POSIX_FADV_*`).
#[doc(alias = "fadvise")]
pub fn advise(file: &Fd, advice: i32) -> Advise {
    Advise { file: file.clone(), advice }
}

plain!(unit Advise, "FADVISE", |it, files| low::Fadvise::new(it.file.target(files), it.advice).build());

/// See [`splice`].
#[derive(Debug)]
pub struct Splice {
    from: Fd,
    to: Fd,
    length: u32,
    from_offset: i64,
    to_offset: i64,
    flags: u32,
}

/// Moves up to `length` bytes from one file to another, one of which must be a pipe.
pub fn splice(from: &Fd, to: &Fd, length: u32) -> Splice {
    Splice { from: from.clone(), to: to.clone(), length, from_offset: -1, to_offset: -1, flags: 0 }
}

impl Splice {
    /// Reads from this offset of the source, instead of its file position.
    pub fn from_offset(mut self, offset: u64) -> Splice {
        self.from_offset = offset as i64;
        self
    }

    /// Writes to this offset of the destination, instead of its file position.
    pub fn to_offset(mut self, offset: u64) -> Splice {
        self.to_offset = offset as i64;
        self
    }

    /// Sets `SPLICE_F_*` flags.
    pub fn flags(mut self, flags: u32) -> Splice {
        self.flags |= flags & !flags::SPLICE_F_FD_IN_FIXED;
        self
    }
}

plain!(number Splice, "SPLICE", |it, files| {
    let (input, fixed) = match it.from.target(files) {
        Target::Fd(fd) => (fd, 0),
        Target::Fixed(place) => (place as i32, flags::SPLICE_F_FD_IN_FIXED),
    };
    low::Splice::new(it.to.target(files), it.to_offset, input, it.from_offset, it.length)
        .flags(it.flags | fixed)
        .build()
});

/// See [`poll`].
#[derive(Debug)]
pub struct Poll {
    file: Fd,
    events: u32,
}

/// Waits until a file is ready for one of these events (`POLLIN`, ...); the output is the set of events that are ready.
pub fn poll(file: &Fd, events: u32) -> Poll {
    Poll { file: file.clone(), events }
}

plain!(number Poll, "POLL_ADD", |it, files| low::PollAdd::new(it.file.target(files), it.events).build());

/// See [`poll_multi`].
#[derive(Debug)]
pub struct PollMulti {
    file: Fd,
    events: u32,
}

/// Completes each time that a file becomes ready for one of these events.
pub fn poll_multi(file: &Fd, events: u32) -> PollMulti {
    PollMulti { file: file.clone(), events }
}

// SAFETY: the operation owns the file.
unsafe impl crate::operation::Multishot for PollMulti {
    type Item = Result<u32, Error>;

    const NAME: &'static str = "POLL_ADD";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        low::PollAddMulti::new(self.file.target(files), self.events).build()
    }

    fn item(came: CqeResult) -> Self::Item {
        came.result
    }
}

/// See [`read_multi`].
#[derive(Debug)]
pub struct ReadMulti {
    file: Fd,
    buffers: crate::Buffers,
}

/// Reads from a pipe, a terminal or the like whenever data is there, each time into a buffer of the group.
pub fn read_multi(file: &Fd, buffers: &crate::Buffers) -> ReadMulti {
    ReadMulti { file: file.clone(), buffers: buffers.clone() }
}

// SAFETY: the operation owns the file and the buffers.
unsafe impl crate::operation::Multishot for ReadMulti {
    /// The bytes that were read; empty at the end of the file.
    type Item = Result<crate::Received, Error>;

    const NAME: &'static str = "READ_MULTISHOT";

    fn buffers(&self) -> Option<&crate::Buffers> {
        Some(&self.buffers)
    }

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        low::ReadMulti::new(self.file.target(files), self.buffers.0.id()).build()
    }

    fn item(came: CqeResult) -> Self::Item {
        super::net::received(came)
    }
}

/// See [`close`].
#[derive(Debug)]
pub struct Close {
    /// The file to be closed; `None` once it is closed.
    file: Option<Closing>,
}

/// Closes a file, as dropping the last [`Fd`] of it would, but without blocking.
///
/// # Errors
/// The file again, if something else refers to it.
pub fn close(file: Fd) -> Result<Close, Fd> {
    file.into_closing().map(|file| Close { file: Some(file) })
}

// SAFETY: the entry names no memory; nothing else owns the descriptor.
unsafe impl Operation for Close {
    type Output = Result<(), Error>;

    const NAME: &'static str = "CLOSE";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        match &self.file {
            Some(Closing::Descriptor(fd)) => low::Close::new(fd.as_raw_fd()).build(),
            Some(Closing::Slot(slot)) => low::CloseFixed::new(low::Slot::At(slot.place(files))).build(),
            None => low::Nop::new().build(),
        }
    }

    fn settle(&mut self, result: i32) {
        if result == -libc::ECANCELED {
            // The operation never began.
            return;
        }
        match self.file.take() {
            Some(Closing::Descriptor(fd)) => drop(fd.into_raw_fd()),
            Some(Closing::Slot(slot)) if result >= 0 => slot.emptied(),
            // Dropping the slot lets its ring empty the place.
            Some(Closing::Slot(slot)) => drop(slot),
            None => {}
        }
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        came.number().map(drop)
    }
}
