//! Registrations of a ring (`io_uring_register(2)`).

use super::submitter::{Control, Submitter, timespec};
use crate::error::ErrorContext;
use crate::{Engine, Error};
use anyring_engine::ops;
use anyring_engine::request::field::FIRST_PRIVATE;
use anyring_engine::request::op::Caps;
use linux_raw_sys::io_uring::{self as abi, io_uring_register_op as Code};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// Returns a structure of integers that are all 0.
///
/// # Safety
/// `T` must be a structure of integers.
unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller's promise.
    unsafe { std::mem::zeroed() }
}

fn address<T>(slice: &[T]) -> u64 {
    slice.as_ptr().expose_provenance() as u64
}

/// Returns descriptors in the format of the calls, with -1 for `None`.
fn numbers(files: &[Option<BorrowedFd<'_>>]) -> Vec<RawFd> {
    files.iter().map(|file| file.map_or(-1, |file| file.as_raw_fd())).collect()
}

/// The set of operations that an engine has.
#[derive(Clone, Debug)]
pub struct Probe {
    supported: [bool; 256],
}

impl Probe {
    /// True if the engine has the operation with this opcode, [`Read::CODE`](super::op::Read::CODE) for example.
    pub fn has(&self, opcode: u8) -> bool {
        self.supported[usize::from(opcode)]
    }

    /// Adds the operations that are done in user space beside the kernel's ring.
    pub(super) fn add_private(&mut self) {
        let private = ops::ROWS.iter().filter(|row| row.code >= FIRST_PRIVATE);
        for row in private.filter(|row| row.caps.has(Caps::PRESENT)) {
            self.supported[usize::from(row.code)] = true;
        }
    }

    /// Returns the opcodes of all operations that the engine has.
    pub fn opcodes(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|&opcode| self.has(opcode))
    }
}

/// An entry in the list of things that a ring is allowed to do, or that its requests must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restriction {
    /// Allows this registration (`IORING_REGISTER_*`).
    Registration(u8),
    /// Allows this operation.
    Operation(u8),
    /// Allows these flags of entries (`IOSQE_*`, as bits).
    Flags(u8),
    /// Requires these flags of each entry.
    FlagsRequired(u8),
}

impl Restriction {
    fn words(self) -> abi::io_uring_restriction {
        // SAFETY: a structure of integers.
        let mut words: abi::io_uring_restriction = unsafe { zeroed() };
        let (kind, value) = match self {
            Restriction::Registration(value) => (0, value),
            Restriction::Operation(value) => (1, value),
            Restriction::Flags(value) => (2, value),
            Restriction::FlagsRequired(value) => (3, value),
        };
        words.opcode = kind;
        words.__bindgen_anon_1.sqe_op = value;
        words
    }
}

/// The requests that [`Control::cancel`] ends.
#[derive(Clone, Copy, Debug)]
pub enum Cancel<'a> {
    /// One request with this user data.
    UserData(u64),
    /// All requests with this user data.
    EachUserData(u64),
    /// All requests that work on this descriptor.
    Fd(BorrowedFd<'a>),
    /// All requests with this opcode.
    Operation(u8),
    /// All requests.
    All,
}

/// Registrations that cannot violate memory safety.
impl Control {
    /// Makes a registration whose argument is a slice.
    ///
    /// # Safety
    /// As for [`Submitter::register`].
    unsafe fn list<T>(&self, name: &'static str, code: Code, list: &[T]) -> Result<u32, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.register(name, code as u32, list.as_ptr().cast(), list.len() as u32) }
    }

    /// Makes a registration whose argument is one structure.
    ///
    /// # Safety
    /// As for [`Submitter::register`].
    unsafe fn one<T>(&self, name: &'static str, code: Code, argument: *const T) -> Result<u32, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.register(name, code as u32, argument.cast(), 1) }
    }

    fn nothing(&self, name: &'static str, code: Code) -> Result<u32, Error> {
        // SAFETY: no argument.
        unsafe { self.register(name, code as u32, ptr::null(), 0) }
    }

    /// Asks the engine which operations it has.
    ///
    /// # Errors
    /// As `IORING_REGISTER_PROBE`.
    pub fn probe(&self) -> Result<Probe, Error> {
        // A probe of all 256 rows would show only the kernel's operations, so one row less is asked for.
        const OPERATIONS: usize = 255;
        const SUPPORTED: u16 = 1;
        // A header of 16 bytes, then 8 bytes for each operation, with its opcode first, and its flags in bytes 2 and 3.
        let mut words = [[0_u16; 4]; 2 + OPERATIONS];
        let argument = words.as_mut_ptr().cast_const().cast();
        // SAFETY: the memory is as long as the call is told.
        unsafe { self.register("PROBE", Code::IORING_REGISTER_PROBE as u32, argument, OPERATIONS as u32)? };
        let mut probe = Probe { supported: [false; 256] };
        for row in &words[2..] {
            if row[1] & SUPPORTED != 0 {
                probe.supported[usize::from(row[0] & 0xff)] = true;
            }
        }
        Ok(probe)
    }

    /// Enables a ring that was built disabled.
    ///
    /// # Errors
    /// As `IORING_REGISTER_ENABLE_RINGS`.
    pub fn enable(&self) -> Result<(), Error> {
        self.nothing("ENABLE_RINGS", Code::IORING_REGISTER_ENABLE_RINGS).map(drop)
    }

    /// Restricts the ring, from the time it is enabled, to what is listed here.
    ///
    /// # Errors
    /// As `IORING_REGISTER_RESTRICTIONS`.
    pub fn restrict(&self, allowed: &[Restriction]) -> Result<(), Error> {
        let words: Vec<_> = allowed.iter().map(|restriction| restriction.words()).collect();
        // SAFETY: the call only reads the memory.
        unsafe { self.list("RESTRICTIONS", Code::IORING_REGISTER_RESTRICTIONS, &words) }.map(drop)
    }

    /// Signals an eventfd for each completion; with `only_async`, not for completions that are posted during a submission.
    ///
    /// # Errors
    /// As `IORING_REGISTER_EVENTFD`.
    pub fn register_eventfd(&self, eventfd: impl AsFd, only_async: bool) -> Result<(), Error> {
        let (name, code) = if only_async {
            ("EVENTFD_ASYNC", Code::IORING_REGISTER_EVENTFD_ASYNC)
        } else {
            ("EVENTFD", Code::IORING_REGISTER_EVENTFD)
        };
        let eventfd = eventfd.as_fd().as_raw_fd();
        // SAFETY: the call reads the number, accepts eventfds only, and keeps a reference of its own.
        unsafe { self.one(name, code, &eventfd) }.map(drop)
    }

    /// Unregisters the eventfd.
    ///
    /// # Errors
    /// As `IORING_UNREGISTER_EVENTFD`.
    pub fn unregister_eventfd(&self) -> Result<(), Error> {
        self.nothing("UNREGISTER_EVENTFD", Code::IORING_UNREGISTER_EVENTFD).map(drop)
    }

    /// Registers the current credentials of the process. Returns the number by which entries name them.
    ///
    /// # Errors
    /// As `IORING_REGISTER_PERSONALITY`.
    pub fn register_personality(&self) -> Result<u16, Error> {
        self.nothing("PERSONALITY", Code::IORING_REGISTER_PERSONALITY).map(|id| id as u16)
    }

    /// Unregisters credentials.
    ///
    /// # Errors
    /// As `IORING_UNREGISTER_PERSONALITY`.
    pub fn unregister_personality(&self, personality: u16) -> Result<(), Error> {
        let code = Code::IORING_UNREGISTER_PERSONALITY as u32;
        let count = u32::from(personality);
        // SAFETY: the number is the only argument.
        unsafe { self.register("UNREGISTER_PERSONALITY", code, ptr::null(), count) }.map(drop)
    }

    /// Restricts workers to these processors.
    ///
    /// # Errors
    /// As `IORING_REGISTER_IOWQ_AFF`.
    pub fn set_worker_cpus(&self, cpus: &libc::cpu_set_t) -> Result<(), Error> {
        let (code, bytes) = (Code::IORING_REGISTER_IOWQ_AFF as u32, size_of_val(cpus) as u32);
        // SAFETY: the memory is as long as the call is told, and the call only reads it.
        unsafe { self.register("IOWQ_AFF", code, ptr::from_ref(cpus).cast(), bytes) }.map(drop)
    }

    /// Lets workers run on the processors of the thread that submits.
    ///
    /// # Errors
    /// As `IORING_UNREGISTER_IOWQ_AFF`.
    pub fn reset_worker_cpus(&self) -> Result<(), Error> {
        self.nothing("UNREGISTER_IOWQ_AFF", Code::IORING_UNREGISTER_IOWQ_AFF).map(drop)
    }

    /// Limits the number of workers, for work that ends by itself (files) and for work that may wait forever (sockets);
    /// 0 leaves a limit as it is. Returns the previous limits.
    ///
    /// # Errors
    /// As `IORING_REGISTER_IOWQ_MAX_WORKERS`.
    pub fn set_most_workers(&self, bounded: u32, unbounded: u32) -> Result<(u32, u32), Error> {
        let mut most = [bounded, unbounded];
        let argument = most.as_mut_ptr().cast_const().cast();
        let code = Code::IORING_REGISTER_IOWQ_MAX_WORKERS as u32;
        // SAFETY: the call reads and writes two numbers.
        unsafe { self.register("IOWQ_MAX_WORKERS", code, argument, 2)? };
        Ok((most[0], most[1]))
    }

    /// Cancels requests, and waits for at most `timeout` until they have ended. Returns the number of cancelled requests.
    ///
    /// # Errors
    /// As `IORING_REGISTER_SYNC_CANCEL`: `ENOENT` if the request does not exist, `ETIME` if the time is over.
    pub fn cancel(&self, what: Cancel<'_>, timeout: Option<Duration>) -> Result<u32, Error> {
        // SAFETY: a structure of integers.
        let mut argument: abi::io_uring_sync_cancel_reg = unsafe { zeroed() };
        argument.fd = -1;
        argument.flags = match what {
            Cancel::UserData(_) => 0,
            Cancel::EachUserData(_) => abi::IORING_ASYNC_CANCEL_ALL,
            Cancel::Fd(_) => abi::IORING_ASYNC_CANCEL_FD | abi::IORING_ASYNC_CANCEL_ALL,
            Cancel::Operation(_) => abi::IORING_ASYNC_CANCEL_OP | abi::IORING_ASYNC_CANCEL_ALL,
            Cancel::All => abi::IORING_ASYNC_CANCEL_ANY | abi::IORING_ASYNC_CANCEL_ALL,
        };
        match what {
            Cancel::UserData(data) | Cancel::EachUserData(data) => argument.addr = data,
            Cancel::Fd(fd) => argument.fd = fd.as_raw_fd(),
            Cancel::Operation(opcode) => argument.opcode = opcode,
            Cancel::All => {}
        }
        let time = timeout.map(timespec);
        (argument.timeout.tv_sec, argument.timeout.tv_nsec) =
            time.map_or((-1, -1), |time| (time.tv_sec, time.tv_nsec));
        if self.engine() == Engine::Kernel {
            let address = ptr::from_ref(&argument).expose_provenance();
            // SAFETY: the structure is complete.
            if let Some(result) = unsafe { anyring_kernel_ring::cancel(self.fd(), address) } {
                return Error::check(Engine::Kernel, ErrorContext::Register("SYNC_CANCEL"), result);
            }
        }
        // SAFETY: the structure is complete.
        unsafe { self.one("SYNC_CANCEL", Code::IORING_REGISTER_SYNC_CANCEL, &argument) }
    }

    /// Lets waits first poll network devices for the time `busy_poll`; with `prefer`, the devices' interrupts stay off.
    ///
    /// # Errors
    /// As `IORING_REGISTER_NAPI`.
    pub fn register_napi(&self, busy_poll: Duration, prefer: bool) -> Result<(), Error> {
        // SAFETY: a structure of integers.
        let mut argument: abi::io_uring_napi = unsafe { zeroed() };
        argument.busy_poll_to = u32::try_from(busy_poll.as_micros()).unwrap_or(u32::MAX);
        argument.prefer_busy_poll = prefer.into();
        let address = &raw mut argument;
        // SAFETY: the structure is complete; the call writes it.
        unsafe { self.one("NAPI", Code::IORING_REGISTER_NAPI, address.cast_const()) }.map(drop)
    }

    /// Stops the polling of network devices by waits.
    ///
    /// # Errors
    /// As `IORING_UNREGISTER_NAPI`.
    pub fn unregister_napi(&self) -> Result<(), Error> {
        // SAFETY: a structure of integers.
        let mut argument: abi::io_uring_napi = unsafe { zeroed() };
        let address = &raw mut argument;
        // SAFETY: the structure is complete; the call writes it.
        unsafe { self.one("UNREGISTER_NAPI", Code::IORING_UNREGISTER_NAPI, address.cast_const()) }.map(drop)
    }

    /// Sets the clock of waits: `CLOCK_MONOTONIC` or `CLOCK_BOOTTIME`.
    ///
    /// # Errors
    /// As `IORING_REGISTER_CLOCK`.
    pub fn register_clock(&self, clock: libc::clockid_t) -> Result<(), Error> {
        let argument = abi::io_uring_clock_register { clockid: clock as u32, __resv: [0; 3] };
        let code = Code::IORING_REGISTER_CLOCK as u32;
        // SAFETY: the structure is complete; the call only reads it.
        unsafe { self.register("CLOCK", code, (&raw const argument).cast(), 0) }.map(drop)
    }
}

/// Registrations of files and of memory.
impl Submitter {
    /// Registers buffers; an entry with a null address leaves its place empty.
    ///
    /// # Errors
    /// As `IORING_REGISTER_BUFFERS`.
    ///
    /// # Safety
    /// The memory must stay valid until it is unregistered and no request in flight uses it.
    pub unsafe fn register_buffers(&self, buffers: &[libc::iovec]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.list("BUFFERS", Code::IORING_REGISTER_BUFFERS, buffers) }.map(drop)
    }

    /// Registers an empty table of buffers.
    ///
    /// # Errors
    /// As `IORING_REGISTER_BUFFERS2`.
    pub fn register_buffers_sparse(&self, count: u32) -> Result<(), Error> {
        self.sparse("BUFFERS2", Code::IORING_REGISTER_BUFFERS2, count)
    }

    fn sparse(&self, name: &'static str, code: Code, count: u32) -> Result<(), Error> {
        // SAFETY: a structure of integers.
        let mut argument: abi::io_uring_rsrc_register = unsafe { zeroed() };
        (argument.nr, argument.flags) = (count, abi::IORING_RSRC_REGISTER_SPARSE);
        let bytes = size_of_val(&argument) as u32;
        // SAFETY: the structure is complete, and names no memory.
        unsafe { self.register(name, code as u32, (&raw const argument).cast(), bytes) }.map(drop)
    }

    /// Replaces buffers in the table, from the place `first` on. A buffer's tag, unless it is 0, is the user data of a completion
    /// that is posted when the buffer is no longer used.
    ///
    /// # Errors
    /// As `IORING_REGISTER_BUFFERS_UPDATE`.
    ///
    /// # Safety
    /// As for [`register_buffers`](Submitter::register_buffers).
    pub unsafe fn update_buffers(
        &self,
        first: u32,
        buffers: &[libc::iovec],
        tags: Option<&[u64]>,
    ) -> Result<u32, Error> {
        let code = Code::IORING_REGISTER_BUFFERS_UPDATE;
        // SAFETY: the caller's promise.
        unsafe { self.update("BUFFERS_UPDATE", code, first, buffers, tags) }
    }

    /// # Safety
    /// The content of `list` must be valid for the registration.
    unsafe fn update<T>(
        &self,
        name: &'static str,
        code: Code,
        first: u32,
        list: &[T],
        tags: Option<&[u64]>,
    ) -> Result<u32, Error> {
        assert!(tags.is_none_or(|tags| tags.len() >= list.len()), "a tag for each");
        // SAFETY: a structure of integers.
        let mut argument: abi::io_uring_rsrc_update2 = unsafe { zeroed() };
        (argument.offset, argument.data, argument.nr) = (first, address(list), list.len() as u32);
        argument.tags = tags.map_or(0, address);
        let bytes = size_of_val(&argument) as u32;
        // SAFETY: the structure is complete; the lists are as long as it says.
        unsafe { self.register(name, code as u32, (&raw const argument).cast(), bytes) }
    }

    /// Unregisters the table of buffers.
    ///
    /// # Errors
    /// As `IORING_UNREGISTER_BUFFERS`.
    pub fn unregister_buffers(&self) -> Result<(), Error> {
        self.nothing("UNREGISTER_BUFFERS", Code::IORING_UNREGISTER_BUFFERS).map(drop)
    }

    /// Copies the table of buffers of another ring.
    ///
    /// # Errors
    /// As `IORING_REGISTER_CLONE_BUFFERS`.
    ///
    /// # Safety
    /// The memory must stay valid as long as this ring has it registered, too.
    pub unsafe fn clone_buffers(&self, source: &Submitter) -> Result<(), Error> {
        // SAFETY: a structure of integers.
        let mut argument: abi::io_uring_clone_buffers = unsafe { zeroed() };
        argument.src_fd = source.fd() as u32;
        // SAFETY: the structure is complete.
        unsafe { self.one("CLONE_BUFFERS", Code::IORING_REGISTER_CLONE_BUFFERS, &argument) }.map(drop)
    }

    /// Registers a table of files; `None` leaves a place empty. The ring keeps references to the files.
    ///
    /// # Errors
    /// As `IORING_REGISTER_FILES`.
    pub fn register_files(&self, files: &[Option<BorrowedFd<'_>>]) -> Result<(), Error> {
        // SAFETY: the call only reads the memory.
        unsafe { self.list("FILES", Code::IORING_REGISTER_FILES, &numbers(files)) }.map(drop)
    }

    /// Registers an empty table of files.
    ///
    /// # Errors
    /// As `IORING_REGISTER_FILES2`.
    pub fn register_files_sparse(&self, count: u32) -> Result<(), Error> {
        self.sparse("FILES2", Code::IORING_REGISTER_FILES2, count)
    }

    /// Replaces files in the table, from the place `first` on; `None` empties a place. Tags are as for buffers.
    ///
    /// # Errors
    /// As `IORING_REGISTER_FILES_UPDATE2`.
    pub fn update_files(
        &self,
        first: u32,
        files: &[Option<BorrowedFd<'_>>],
        tags: Option<&[u64]>,
    ) -> Result<u32, Error> {
        let code = Code::IORING_REGISTER_FILES_UPDATE2;
        // SAFETY: the call only reads the memory.
        unsafe { self.update("FILES_UPDATE2", code, first, &numbers(files), tags) }
    }

    /// Unregisters the table of files.
    ///
    /// # Errors
    /// As `IORING_UNREGISTER_FILES`.
    pub fn unregister_files(&self) -> Result<(), Error> {
        self.nothing("UNREGISTER_FILES", Code::IORING_UNREGISTER_FILES).map(drop)
    }

    /// Restricts [`Slot::Any`](super::op::Slot::Any) to `count` places from `first` on.
    ///
    /// # Errors
    /// As `IORING_REGISTER_FILE_ALLOC_RANGE`.
    pub fn set_file_range(&self, first: u32, count: u32) -> Result<(), Error> {
        let range = abi::io_uring_file_index_range { off: first, len: count, resv: 0 };
        let code = Code::IORING_REGISTER_FILE_ALLOC_RANGE;
        // SAFETY: the structure is complete; the call only reads it.
        unsafe { self.register("FILE_ALLOC_RANGE", code as u32, (&raw const range).cast(), 0) }.map(drop)
    }

    /// Registers a buffer ring: `entries` (a power of two) times `io_uring_buf` at `memory`, which must be page-aligned.
    ///
    /// # Errors
    /// As `IORING_REGISTER_PBUF_RING`.
    ///
    /// # Safety
    /// The memory, and the buffers put into it, must stay valid until it is unregistered and no request in flight uses it.
    pub unsafe fn register_buffer_ring(
        &self,
        memory: *mut c_void,
        entries: u32,
        group: u16,
        flags: u16,
    ) -> Result<(), Error> {
        // SAFETY: a structure of integers.
        let mut argument: abi::io_uring_buf_reg = unsafe { zeroed() };
        argument.ring_addr = memory.expose_provenance() as u64;
        (argument.ring_entries, argument.bgid, argument.flags) = (entries, group, flags);
        // SAFETY: the structure is complete; the memory is the caller's promise.
        unsafe { self.one("PBUF_RING", Code::IORING_REGISTER_PBUF_RING, &argument) }.map(drop)
    }

    /// Unregisters a group of buffers.
    ///
    /// # Errors
    /// As `IORING_UNREGISTER_PBUF_RING`.
    pub fn unregister_buffer_ring(&self, group: u16) -> Result<(), Error> {
        // SAFETY: a structure of integers.
        let mut argument: abi::io_uring_buf_reg = unsafe { zeroed() };
        argument.bgid = group;
        // SAFETY: the structure is complete.
        unsafe { self.one("UNREGISTER_PBUF_RING", Code::IORING_UNREGISTER_PBUF_RING, &argument) }.map(drop)
    }

    /// Returns the position of the next entry of a buffer ring to be used.
    ///
    /// # Errors
    /// As `IORING_REGISTER_PBUF_STATUS`.
    pub fn buffer_ring_head(&self, group: u16) -> Result<u32, Error> {
        // SAFETY: a structure of integers.
        let mut argument: abi::io_uring_buf_status = unsafe { zeroed() };
        argument.buf_group = group.into();
        let address = &raw mut argument;
        // SAFETY: the structure is complete; the call writes it.
        unsafe { self.one("PBUF_STATUS", Code::IORING_REGISTER_PBUF_STATUS, address.cast_const())? };
        Ok(argument.head)
    }

    /// See [`Ring::register_ring_fd`](super::Ring::register_ring_fd).
    pub(super) fn register_ring_fd(&mut self) -> Result<u32, Error> {
        let mut argument = abi::io_uring_rsrc_update {
            offset: u32::MAX, // wherever there is room
            resv: 0,
            data: self.fd() as u64,
        };
        let address = &raw mut argument;
        // SAFETY: the structure is complete; the call writes it.
        unsafe { self.one("RING_FDS", Code::IORING_REGISTER_RING_FDS, address.cast_const())? };
        self.enter_by_index(Some(argument.offset));
        Ok(argument.offset)
    }

    /// See [`Ring::unregister_ring_fd`](super::Ring::unregister_ring_fd).
    pub(super) fn unregister_ring_fd(&mut self) -> Result<(), Error> {
        let Some(offset) = self.index() else { return Ok(()) };
        let argument = abi::io_uring_rsrc_update { offset, resv: 0, data: 0 };
        // SAFETY: the structure is complete.
        unsafe { self.one("UNREGISTER_RING_FDS", Code::IORING_UNREGISTER_RING_FDS, &argument)? };
        self.enter_by_index(None);
        Ok(())
    }
}
