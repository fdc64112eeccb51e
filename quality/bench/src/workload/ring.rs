//! A ring with nothing between it and the kernel's ABI.
//!
//! Its three calls are inline system calls in the form that a static liburing has them: the number
//! in `%eax` by one immediate move, then `syscall`. A program that is not prepared for anyring
//! looks the same, so the trap and the patching of call sites apply to it as to any other.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

pub use anyring_engine::abi::Sqe;
pub use linux_raw_sys::io_uring::io_uring_op;
use linux_raw_sys::io_uring::{
    IORING_ENTER_GETEVENTS, IORING_ENTER_REGISTERED_RING, IORING_OFF_SQ_RING, IORING_OFF_SQES,
    IORING_RSRC_REGISTER_SPARSE, IORING_SETUP_CQSIZE, IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_SINGLE_ISSUER,
    io_uring_buf_reg, io_uring_cqe, io_uring_params, io_uring_register_op, io_uring_rsrc_register,
    io_uring_rsrc_update, io_uring_sqe_flags_bit as bit,
};
use serde::{Deserialize, Serialize};

use super::arch::ring_call;
use super::linked;
use crate::failure::{Failure, Result};

/// The implementation of the ring on which a workload ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The kernel's io_uring.
    Kernel,
    /// Any other implementation: the ring's descriptor is not the kernel's.
    User,
}

/// The setup flags with which the kernel is fastest.
pub const DEFER: u32 = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;

pub const FIXED_FILE: u8 = 1 << bit::IOSQE_FIXED_FILE_BIT as u8;
pub const LINK: u8 = 1 << bit::IOSQE_IO_LINK_BIT as u8;
pub const ASYNC: u8 = 1 << bit::IOSQE_ASYNC_BIT as u8;
pub const SELECT: u8 = 1 << bit::IOSQE_BUFFER_SELECT_BIT as u8;

/// Returns a request with its opcode and user data only.
pub fn sqe(opcode: io_uring_op, user_data: u64) -> Sqe {
    Sqe { opcode: opcode as u8, user_data, ..Sqe::EMPTY }
}

/// Returns a close of a descriptor, or of a slot of the table of direct descriptors.
pub fn close(fixed: bool, file: u32, user_data: u64) -> Sqe {
    let close = sqe(io_uring_op::IORING_OP_CLOSE, user_data);
    if fixed { Sqe { file_index: file + 1, ..close } } else { Sqe { fd: file as i32, ..close } }
}

/// A completion, copied out of the ring.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The user data of the request.
    pub user_data: u64,
    /// The request's result or negative errno.
    pub result: i32,
    /// `IORING_CQE_F_*`, and the number of the selected buffer, if any.
    pub flags: u32,
}

/// One ring, used by one thread.
pub struct Ring {
    descriptor: i32,
    /// The ring's name in `enter`: its descriptor or registered index, and the flag that distinguishes them.
    name: (i32, u32),
    submission: Submission,
    completion: CompletionQueue,
}

struct Submission {
    head: &'static AtomicU32,
    tail: &'static AtomicU32,
    mask: u32,
    entries: u32,
    requests: *mut Sqe,
    /// The tail including the requests that `submit_and_wait` has not shown to the engine yet.
    local_tail: u32,
}

struct CompletionQueue {
    head: &'static AtomicU32,
    tail: &'static AtomicU32,
    mask: u32,
    entries: *const io_uring_cqe,
}

impl Ring {
    /// Creates a ring of `entries` requests and `completions` completions and maps it. The mappings
    /// stay until the process ends.
    pub fn new(entries: u32, completions: u32, flags: u32) -> Result<Self> {
        // SAFETY: all-zero bytes are a valid `io_uring_params`.
        let mut params: io_uring_params = unsafe { core::mem::zeroed() };
        params.flags = flags | IORING_SETUP_CQSIZE;
        params.cq_entries = completions;
        // SAFETY: `params` lives through the call.
        let result = unsafe { setup(entries, &mut params) };
        if result < 0 {
            return Err(Failure::negative_errno("io_uring_setup", result)
                .advice("`anyring doctor` says what this machine allows and why"));
        }
        let descriptor = i32::try_from(result).expect("a descriptor fits an int");
        let index_bytes = params.sq_off.array + params.sq_entries * 4;
        let completion_bytes = params.cq_off.cqes + params.cq_entries * size_of::<io_uring_cqe>() as u32;
        let base = map(descriptor, IORING_OFF_SQ_RING, index_bytes.max(completion_bytes) as usize)?;
        let requests = map(descriptor, IORING_OFF_SQES, params.sq_entries as usize * size_of::<Sqe>())?;
        // SAFETY: the offsets come from the engine and lie within the mapping, whose size was computed from them.
        unsafe {
            let indices = base.add(params.sq_off.array as usize).cast::<u32>();
            for index in 0..params.sq_entries {
                indices.add(index as usize).write(index);
            }
            Ok(Self {
                descriptor,
                name: (descriptor, 0),
                submission: Submission {
                    head: shared(base, params.sq_off.head),
                    tail: shared(base, params.sq_off.tail),
                    mask: params.sq_entries - 1,
                    entries: params.sq_entries,
                    requests: requests.cast(),
                    local_tail: 0,
                },
                completion: CompletionQueue {
                    head: shared(base, params.cq_off.head),
                    tail: shared(base, params.cq_off.tail),
                    mask: params.cq_entries - 1,
                    entries: base.add(params.cq_off.cqes as usize).cast(),
                },
            })
        }
    }

    /// Returns the implementation of this ring.
    pub fn engine(&self) -> Engine {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", self.descriptor));
        match link {
            Ok(path) if path.as_os_str() == "anon_inode:[io_uring]" => Engine::Kernel,
            _ => Engine::User,
        }
    }

    /// Returns how many requests fit before a submission.
    pub fn room(&self) -> u32 {
        let queue = &self.submission;
        queue.entries - queue.local_tail.wrapping_sub(queue.head.load(Ordering::Acquire))
    }

    /// Puts a request into the SQ. If the SQ is full, its requests are submitted first.
    pub fn push(&mut self, request: Sqe) -> Result<()> {
        if self.room() == 0 {
            self.submit_and_wait(0)?;
        }
        if self.room() == 0 {
            return Err(Failure::new("the submission ring stays full after a submission"));
        }
        let queue = &mut self.submission;
        let index = (queue.local_tail & queue.mask) as usize;
        queue.local_tail = queue.local_tail.wrapping_add(1);
        // SAFETY: the index is within the ring, and the engine reads this entry only once the tail has passed it.
        unsafe { queue.requests.add(index).write(request) };
        Ok(())
    }

    /// Submits the queued requests and waits for `want` completions.
    pub fn submit_and_wait(&mut self, want: u32) -> Result<()> {
        let queue = &self.submission;
        // Pairs with the engine's acquire load of the tail.
        queue.tail.store(queue.local_tail, Ordering::Release);
        let pending = queue.local_tail.wrapping_sub(queue.head.load(Ordering::Acquire));
        let flags = if want > 0 { IORING_ENTER_GETEVENTS } else { 0 };
        // SAFETY: the requests name memory that outlives them, as the callers of `push` ensure.
        let result = unsafe { enter(self.name.0, pending, want, flags | self.name.1) };
        if result < 0 && result != -i64::from(libc::EINTR) {
            return Err(Failure::negative_errno("io_uring_enter", result));
        }
        Ok(())
    }

    /// Reaps the oldest completion.
    pub fn completion(&mut self) -> Option<Completion> {
        let queue = &self.completion;
        let head = queue.head.load(Ordering::Relaxed);
        // Pairs with the engine's release store of the tail.
        if head == queue.tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the index is within the ring, and the engine does not reuse the entry before the head has passed it.
        let completion = unsafe {
            let entry = queue.entries.add((head & queue.mask) as usize);
            Completion { user_data: (*entry).user_data, result: (*entry).res, flags: (*entry).flags }
        };
        // Pairs with the engine's acquire load of the head.
        queue.head.store(head.wrapping_add(1), Ordering::Release);
        Some(completion)
    }

    /// Registers the ring's descriptor with this thread, which enters by the registered index from now on.
    pub fn register_descriptor(&mut self) -> Result<()> {
        let mut update = io_uring_rsrc_update { offset: u32::MAX, resv: 0, data: self.descriptor as u64 };
        let code = io_uring_register_op::IORING_REGISTER_RING_FDS;
        self.register(code, ptr::from_mut(&mut update).cast(), 1, "the ring's descriptor")?;
        self.name = (update.offset as i32, IORING_ENTER_REGISTERED_RING);
        Ok(())
    }

    /// Registers memory as the one fixed buffer.
    pub fn register_buffer(&self, memory: *mut u8, bytes: usize) -> Result<()> {
        let buffer = libc::iovec { iov_base: memory.cast(), iov_len: bytes };
        let code = io_uring_register_op::IORING_REGISTER_BUFFERS;
        self.register(code, ptr::from_ref(&buffer).cast(), 1, "a buffer")
            .map_err(|failure| failure.advice("raise the limit of locked memory with `ulimit -l`"))
    }

    /// Registers these files, with the first in slot 0.
    pub fn register_files(&self, files: &[i32]) -> Result<()> {
        let code = io_uring_register_op::IORING_REGISTER_FILES;
        self.register(code, files.as_ptr().cast(), files.len() as u32, "files")
    }

    /// Limits the workers for bounded work.
    pub fn limit_workers(&self, workers: u32) -> Result<()> {
        let mut limits = [workers, 0];
        let code = io_uring_register_op::IORING_REGISTER_IOWQ_MAX_WORKERS;
        self.register(code, limits.as_mut_ptr().cast(), 2, "a limit of workers")
    }

    /// Registers a ring of provided buffers.
    pub fn register_provided(&self, buffers: &io_uring_buf_reg) -> Result<()> {
        let code = io_uring_register_op::IORING_REGISTER_PBUF_RING;
        self.register(code, ptr::from_ref(buffers).cast(), 1, "provided buffers")
    }

    /// Registers a table of `slots` direct descriptors, all empty.
    pub fn register_slots(&self, slots: u32) -> Result<()> {
        let flags = IORING_RSRC_REGISTER_SPARSE;
        let table = io_uring_rsrc_register { nr: slots, flags, resv2: 0, data: 0, tags: 0 };
        let code = io_uring_register_op::IORING_REGISTER_FILES2;
        self.register(code, ptr::from_ref(&table).cast(), size_of_val(&table) as u32, "direct descriptors")
    }

    /// Registers `argument`, which is as `code` demands and lives through the call.
    fn register(
        &self,
        code: io_uring_register_op,
        argument: *const c_void,
        count: u32,
        what: &str,
    ) -> Result<()> {
        // SAFETY: as the callers promise.
        match unsafe { register(self.descriptor, code as u32, argument, count) } {
            0.. => Ok(()),
            error => Err(Failure::negative_errno(format!("registering {what}"), error)),
        }
    }
}

/// Returns the shared word at `offset` of the ring memory.
///
/// # Safety
/// The word must lie within a mapping that stays until the process ends.
unsafe fn shared(base: *mut u8, offset: u32) -> &'static AtomicU32 {
    // SAFETY: the caller's promise; the engine accesses it atomically too.
    unsafe { AtomicU32::from_ptr(base.add(offset as usize).cast()) }
}

fn map(descriptor: i32, offset: u32, bytes: usize) -> Result<*mut u8> {
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            descriptor,
            libc::off_t::from(offset),
        )
    };
    if address == libc::MAP_FAILED {
        return Err(Failure::errno(format!("mapping the ring at offset {offset:#x}")));
    }
    Ok(address.cast())
}

/// # Safety
/// As for the system call.
#[inline(never)]
unsafe fn setup(entries: u32, params: *mut io_uring_params) -> i64 {
    if linked::active() {
        // SAFETY: the caller's promise.
        return unsafe { anyring_engine::setup(entries, params, &anyring_engine::Caller::default()) as i64 };
    }
    // SAFETY: the caller's promise.
    unsafe { ring_call::<425>([entries as usize, params as usize, 0, 0, 0, 0]) }
}

/// # Safety
/// As for the system call.
#[inline(never)]
unsafe fn enter(descriptor: i32, submit: u32, want: u32, flags: u32) -> i64 {
    if linked::active() {
        let caller = anyring_engine::Caller::default();
        // SAFETY: the caller's promise.
        return unsafe { anyring_engine::enter(descriptor, submit, want, flags, 0, 8, &caller) as i64 };
    }
    let arguments = [descriptor as usize, submit as usize, want as usize, flags as usize, 0, 8];
    // SAFETY: the caller's promise.
    unsafe { ring_call::<426>(arguments) }
}

/// # Safety
/// As for the system call.
#[inline(never)]
unsafe fn register(descriptor: i32, opcode: u32, argument: *const c_void, count: u32) -> i64 {
    if linked::active() {
        // SAFETY: the caller's promise.
        return unsafe { anyring_engine::register(descriptor, opcode, argument as usize, count) as i64 };
    }
    let arguments = [descriptor as usize, opcode as usize, argument as usize, count as usize, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { ring_call::<427>(arguments) }
}
