//! Calls on a ring.

use super::queue::{Sq, Word};
use crate::error::ErrorContext;
use crate::{Engine, Error, engine};
use linux_raw_sys::general::__kernel_timespec;
use linux_raw_sys::io_uring::{self as abi, io_uring_getevents_arg, io_uring_params};
use std::ffi::c_void;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// The calls and queries on a ring that concern neither memory, nor its tables, nor the user data of requests.
pub struct Control {
    engine: Engine,
    fd: RawFd,
    setup_flags: u32,
    features: u32,
}

/// The calls on a ring: submissions, waits, registrations, and everything in [`Control`].
pub struct Submitter {
    control: Control,
    /// The number that names the ring in calls: the descriptor, or the index where it is registered.
    enter_fd: RawFd,
    enter_flags: u32,
    sq_head: Word,
    sq_tail: Word,
    sq_flags: Word,
}

/// Options of a wait by [`Submitter::submit_with`].
#[derive(Clone, Copy, Default)]
#[must_use]
pub struct Wait<'a> {
    timeout: Option<Duration>,
    least: Option<Duration>,
    mask: Option<&'a libc::sigset_t>,
    absolute: bool,
}

impl<'a> Wait<'a> {
    /// Waits without a limit.
    pub fn new() -> Wait<'a> {
        Wait::default()
    }

    /// Limits the wait to `time`; after it the call fails with `ETIME`.
    pub fn timeout(mut self, time: Duration) -> Wait<'a> {
        (self.timeout, self.absolute) = (Some(time), false);
        self
    }

    /// Limits the wait to a point in time on the ring's clock (`CLOCK_MONOTONIC`, or the registered one).
    pub fn until(mut self, time: Duration) -> Wait<'a> {
        (self.timeout, self.absolute) = (Some(time), true);
        self
    }

    /// Waits for all wanted completions for at most `time`; after it one completion suffices. This requires Linux 6.12 with the
    /// kernel's engine, and a timeout.
    pub fn min_wait(mut self, time: Duration) -> Wait<'a> {
        self.least = Some(time);
        self
    }

    /// Waits with this signal mask.
    pub fn signal_mask(mut self, mask: &'a libc::sigset_t) -> Wait<'a> {
        self.mask = Some(mask);
        self
    }
}

pub(crate) fn timespec(time: Duration) -> __kernel_timespec {
    __kernel_timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

impl Control {
    /// The engine of the ring.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The setup flags of the ring (`IORING_SETUP_*`).
    pub fn setup_flags(&self) -> u32 {
        self.setup_flags
    }

    /// The features of the ring's engine (`IORING_FEAT_*`).
    pub fn features(&self) -> u32 {
        self.features
    }

    /// The descriptor.
    pub(super) fn fd(&self) -> RawFd {
        self.fd
    }

    /// Calls `io_uring_register(2)`.
    ///
    /// # Errors
    /// As the call.
    ///
    /// # Safety
    /// As for [`Submitter::register`].
    pub(super) unsafe fn register(
        &self,
        name: &'static str,
        opcode: u32,
        argument: *const c_void,
        count: u32,
    ) -> Result<u32, Error> {
        // SAFETY: the caller's promise.
        let result = unsafe { engine::register(self.engine, self.fd, opcode, argument, count) };
        Error::check(self.engine, ErrorContext::Register(name), result)
    }
}

impl Deref for Submitter {
    type Target = Control;

    #[inline]
    fn deref(&self) -> &Control {
        &self.control
    }
}

impl Submitter {
    pub(super) fn new<S>(engine: Engine, fd: RawFd, p: &io_uring_params, sq: &Sq<S>) -> Submitter {
        Submitter {
            control: Control { engine, fd, setup_flags: p.flags, features: p.features },
            enter_fd: fd,
            enter_flags: 0,
            sq_head: sq.head,
            sq_tail: sq.tail,
            sq_flags: sq.flags,
        }
    }

    /// Notes that the submission queue has moved.
    pub(super) fn follow<S>(&mut self, sq: &Sq<S>) {
        (self.sq_head, self.sq_tail, self.sq_flags) = (sq.head, sq.tail, sq.flags);
    }

    /// Returns the index where the descriptor is registered, if it is registered.
    pub(super) fn index(&self) -> Option<u32> {
        (self.enter_flags != 0).then_some(self.enter_fd as u32)
    }

    /// Makes calls name the ring by this index, or by the descriptor again.
    pub(super) fn enter_by_index(&mut self, index: Option<u32>) {
        (self.enter_fd, self.enter_flags) = match index {
            Some(index) => (index as RawFd, abi::IORING_ENTER_REGISTERED_RING),
            None => (self.fd(), 0),
        };
    }

    #[inline(always)]
    fn has(&self, setup_flag: u32) -> bool {
        self.control.setup_flags & setup_flag != 0
    }

    /// Submits what was pushed. Returns how many entries the engine took.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    #[inline]
    pub fn submit(&self) -> Result<usize, Error> {
        self.submit_and_wait(0)
    }

    /// Submits what was pushed, and waits until there are `want` completions. Returns how many entries the engine took.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`; `EINTR` if a signal handler ran, unless entries were taken.
    #[inline]
    pub fn submit_and_wait(&self, want: usize) -> Result<usize, Error> {
        let Some((submit, flags)) = self.prepare(want) else { return Ok(self.pending()) };
        // SAFETY: no argument; callers of `push` have promised that the entries are valid.
        unsafe { self.enter(submit, want as u32, flags, ptr::null(), 0) }
    }

    /// Works as [`submit_and_wait`](Submitter::submit_and_wait), with options of the wait.
    ///
    /// # Errors
    /// As for [`submit_and_wait`](Submitter::submit_and_wait), and `ETIME` if the time is over, unless entries were taken.
    pub fn submit_with(&self, want: usize, wait: &Wait<'_>) -> Result<usize, Error> {
        let Some((submit, mut flags)) = self.prepare(want) else { return Ok(self.pending()) };
        let time = wait.timeout.map(timespec);
        // SAFETY: a structure of integers.
        let mut argument: io_uring_getevents_arg = unsafe { std::mem::zeroed() };
        if let Some(time) = &time {
            argument.ts = ptr::from_ref(time).expose_provenance() as u64;
        }
        if let Some(mask) = wait.mask {
            argument.sigmask = ptr::from_ref(mask).expose_provenance() as u64;
            argument.sigmask_sz = 8;
        }
        if let Some(least) = wait.least {
            argument.min_wait_usec = u32::try_from(least.as_micros()).unwrap_or(u32::MAX);
        }
        flags |= abi::IORING_ENTER_EXT_ARG;
        if wait.absolute {
            flags |= abi::IORING_ENTER_ABS_TIMER;
        }
        // SAFETY: the argument is complete, and what it names outlives the call.
        unsafe {
            self.enter(submit, want as u32, flags, (&raw const argument).cast(), size_of_val(&argument))
        }
    }

    /// Submits what was pushed, and lets the engine post what is done, without waiting. Rings with
    /// [`defer_taskrun`](crate::Builder::defer_taskrun), for example, post completions only in such a call.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    pub fn submit_and_flush(&self) -> Result<usize, Error> {
        let (submit, flags) = self.prepare(0).unwrap_or((self.pending() as u32, 0));
        // SAFETY: no argument; callers of `push` have promised that the entries are valid.
        unsafe { self.enter(submit, 0, flags | abi::IORING_ENTER_GETEVENTS, ptr::null(), 0) }
    }

    /// Waits until the polling thread has made room in the submission queue.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    pub fn wait_for_room(&self) -> Result<usize, Error> {
        // SAFETY: no argument.
        unsafe { self.enter(0, 0, abi::IORING_ENTER_SQ_WAIT, ptr::null(), 0) }
    }

    /// Calls `io_uring_enter(2)` with the given arguments.
    ///
    /// # Errors
    /// As the call.
    ///
    /// # Safety
    /// `argument` must be valid for `flags`.
    #[inline(always)]
    pub unsafe fn enter(
        &self,
        submit: u32,
        want: u32,
        flags: u32,
        argument: *const c_void,
        argument_bytes: usize,
    ) -> Result<usize, Error> {
        let (fd, flags) = (self.enter_fd, flags | self.enter_flags);
        // SAFETY: the caller's promise.
        let result =
            unsafe { engine::enter(self.control.engine, fd, submit, want, flags, argument, argument_bytes) };
        Error::check(self.control.engine, ErrorContext::Enter, result).map(|count| count as usize)
    }

    /// The number of entries that the engine has not taken.
    #[inline(always)]
    pub(super) fn pending(&self) -> usize {
        // Acquire pairs with the engine's release after it has read the entries.
        self.sq_tail.load(Ordering::Relaxed).wrapping_sub(self.sq_head.load(Ordering::Acquire)) as usize
    }

    /// Returns the count to submit and the flags of the call, or `None` if no call is needed.
    #[inline(always)]
    fn prepare(&self, want: usize) -> Option<(u32, u32)> {
        const WAITING: u32 = abi::IORING_SQ_CQ_OVERFLOW | abi::IORING_SQ_TASKRUN;
        let submit = self.pending() as u32;
        let mut flags = 0;
        let waiting = self.sq_flags.load(Ordering::Relaxed) & WAITING != 0;
        if want > 0 || waiting || self.has(abi::IORING_SETUP_IOPOLL) {
            flags |= abi::IORING_ENTER_GETEVENTS;
        }
        if self.has(abi::IORING_SETUP_SQPOLL) {
            // The new tail must be visible before the flag is read, or the thread could sleep without having seen the
            // new entries, while the program does not see the flag.
            fence(Ordering::SeqCst);
            if self.sq_flags.load(Ordering::Relaxed) & abi::IORING_SQ_NEED_WAKEUP != 0 {
                flags |= abi::IORING_ENTER_SQ_WAKEUP;
            } else if want == 0 && !waiting {
                return None;
            }
        }
        Some((submit, flags))
    }

    /// Calls `io_uring_register(2)` with the given arguments; an error has the name `name`.
    ///
    /// # Errors
    /// As the call.
    ///
    /// # Safety
    /// `argument` and `count` must be valid for `opcode`, and registered memory must stay valid until it is
    /// unregistered. Completions posted to another ring must be ones that the ring's owner expects.
    pub unsafe fn register(
        &self,
        name: &'static str,
        opcode: u32,
        argument: *const c_void,
        count: u32,
    ) -> Result<u32, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.control.register(name, opcode, argument, count) }
    }
}
