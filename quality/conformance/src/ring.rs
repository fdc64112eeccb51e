//! A ring of either engine, used like a program's.

use std::ffi::{CStr, c_void};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyring_engine::abi::{
    IORING_CQE_F_32, IORING_CQE_F_SKIP, IORING_OP_NOP128, IORING_SETUP_CQE_MIXED, Sqe,
};
use anyring_engine::request::version::{self, Version};
use anyring_engine::{Caller, Host, frontend, io_uring_params};
use linux_raw_sys::io_uring::*;

/// The engine of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// The user engine.
    User,
    /// The kernel's io_uring.
    Kernel,
}

/// A host made of std threads.
struct StdHost;

struct Start(unsafe extern "C" fn(*mut c_void), *mut c_void);
// SAFETY: passed to one thread.
unsafe impl Send for Start {}

impl Host for StdHost {
    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32> {
        let start = Start(entry, argument);
        let body = move || {
            let start = start;
            let Start(entry, argument) = start;
            // SAFETY: blocks signals in this thread only.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            }
            // SAFETY: called once, as the engine demands.
            unsafe { entry(argument) };
        };
        let name = name.to_string_lossy().into_owned();
        std::thread::Builder::new().name(name).spawn(body).map(drop).map_err(|_| libc::EAGAIN)
    }

    fn thread_identity(&self) -> NonZeroUsize {
        NonZeroUsize::new(anyring_engine::os::thread_pointer()).expect("a thread pointer")
    }

    fn faults_resume(&self) -> bool {
        false
    }
}

static HOST: &dyn Host = &StdHost;

/// Installs the user engine in this process, with the ABI of this machine's kernel.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        anyring_engine::install(&HOST);
        play_installed(false);
        #[cfg(feature = "coverage")]
        if let Some(file) = crate::coverage::file() {
            anyring_engine::observe::coverage::record_to(std::os::fd::AsRawFd::as_raw_fd(&file));
        }
    });
}

/// Makes the user engine emulate the newest kernel, or this machine's, as a comparison requires.
pub fn play(newest: bool) {
    install();
    play_installed(newest);
}

fn play_installed(newest: bool) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let own = Version::of_release(&release).filter(|_| !newest);
    version::play(own.unwrap_or(Version::NEWEST));
}

fn result(value: libc::c_long) -> i32 {
    // SAFETY: errno of this thread.
    if value < 0 { -unsafe { *libc::__errno_location() } } else { value as i32 }
}

/// `io_uring_setup`.
pub fn setup(engine: Engine, entries: u32, params: usize) -> i32 {
    install();
    // SAFETY: both engines check the address.
    unsafe {
        match engine {
            Engine::Kernel => result(libc::syscall(libc::SYS_io_uring_setup, entries, params)),
            Engine::User => {
                anyring_engine::setup(entries, params as *mut io_uring_params, &Caller::default()) as i32
            }
        }
    }
}

/// Calls `make` so that its result has no small descriptor. Programs register numbers that are not descriptors of theirs,
/// usually small ones; the engines do not know each other's rings.
pub fn above_small_numbers<T>(make: impl FnOnce() -> T) -> T {
    const SMALL: i32 = 16;
    // SAFETY: new descriptors, whose owners are here.
    let duplicate = || unsafe { OwnedFd::from_raw_fd(libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 0)) };
    let mut taken = vec![duplicate()];
    while taken.last().is_some_and(|fd| fd.as_raw_fd() < SMALL) {
        taken.push(duplicate());
    }
    make()
}

/// `io_uring_enter`.
pub fn enter(engine: Engine, fd: i32, submit: u32, wait: u32, flags: u32, arg: usize, size: usize) -> i32 {
    // SAFETY: the SQEs name memory that the program under test provides.
    unsafe {
        match engine {
            Engine::Kernel => {
                result(libc::syscall(libc::SYS_io_uring_enter, fd, submit, wait, flags, arg, size))
            }
            Engine::User => {
                anyring_engine::enter(fd, submit, wait, flags, arg, size, &Caller::default()) as i32
            }
        }
    }
}

/// `io_uring_register`.
pub fn register(engine: Engine, fd: i32, opcode: u32, arg: usize, count: u32) -> i32 {
    // SAFETY: as for `enter`.
    unsafe {
        match engine {
            Engine::Kernel => result(libc::syscall(libc::SYS_io_uring_register, fd, opcode, arg, count)),
            Engine::User => anyring_engine::register(fd, opcode, arg, count) as i32,
        }
    }
}

/// A completion as the ring shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields of a CQE")]
pub struct Cqe {
    pub user_data: u64,
    pub res: i32,
    pub flags: u32,
    pub big: [u64; 2],
}

/// A ring and its mappings. Several threads, and processes, may use it with a lock for each of its queues.
pub struct Ring {
    /// The engine of the ring.
    pub engine: Engine,
    /// The ring's descriptor.
    pub fd: i32,
    /// The parameters that the setup call returned.
    pub params: io_uring_params,
    /// True if dropping the ring closes its descriptor.
    pub closes: bool,
    rings: (*mut u8, usize),
    sqes: (*mut Sqe, usize),
}

// SAFETY: ring memory is accessed atomically, or under the locks of the threads that share the ring.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Creates and maps a ring, or returns the errno. Memory that is given to it (`IORING_SETUP_NO_MMAP`) stays the
    /// caller's.
    pub fn new(engine: Engine, entries: u32, mut params: io_uring_params) -> Result<Ring, i32> {
        let fd = setup(engine, entries, &raw mut params as usize);
        if fd < 0 { Err(fd) } else { Ok(Ring::of(engine, fd, params)) }
    }

    /// Maps a ring that was set up.
    pub fn of(engine: Engine, fd: i32, params: io_uring_params) -> Ring {
        let big = |flag: u32| usize::from(params.flags & flag != 0);
        let cq_end =
            params.cq_off.cqes as usize + params.cq_entries as usize * (16 << big(IORING_SETUP_CQE32));
        let rings_length = cq_end.max(params.sq_off.array as usize + params.sq_entries as usize * 4);
        let sqes_length = params.sq_entries as usize * (64 << big(IORING_SETUP_SQE128));
        let at = |given: u64, length, offset| match params.flags & IORING_SETUP_NO_MMAP {
            0 => map(length, fd, offset),
            _ => given as *mut u8,
        };
        let rings = at(params.cq_off.user_addr, rings_length, 0);
        let sqes = at(params.sq_off.user_addr, sqes_length, i64::from(IORING_OFF_SQES)).cast();
        let (rings, sqes) = ((rings, rings_length), (sqes, sqes_length));
        Ring { engine, fd, params, closes: true, rings, sqes }
    }

    /// Returns a word of ring memory.
    pub fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the offsets come from the engine and lie in the mapping.
        unsafe { AtomicU32::from_ptr(self.rings.0.add(offset as usize).cast()) }
    }

    /// Returns all memory that program and engine share.
    pub fn memory(&self) -> [(*mut u8, usize); 2] {
        [self.rings, (self.sqes.0.cast(), self.sqes.1)]
    }

    /// Returns the number of SQEs pushed so far.
    pub fn pushed(&self) -> u32 {
        self.word(self.params.sq_off.tail).load(Ordering::Relaxed)
    }

    /// Returns the number of SQEs that the engine has not taken.
    pub fn pending(&self) -> u32 {
        // Acquire pairs with the engine's release store of the head.
        self.pushed().wrapping_sub(self.word(self.params.sq_off.head).load(Ordering::Acquire))
    }

    /// Returns the positions at which SQEs would be pushed, and the new tail. An SQE of two places does not wrap around
    /// the end of the queue: one place is left out before it.
    pub fn positions(&self, sqes: &[Sqe]) -> (Vec<u32>, u32) {
        let mut at = self.pushed();
        let positions = sqes.iter().map(|sqe| {
            let wide = sqe.opcode == IORING_OP_NOP128;
            let last = self.params.sq_entries - 1;
            at = at.wrapping_add(u32::from(wide && at & last == last));
            let position = at;
            at = at.wrapping_add(1 + u32::from(wide));
            position
        });
        (positions.collect(), at)
    }

    /// True if these SQEs fit.
    pub fn has_room(&self, sqes: &[Sqe]) -> bool {
        let count = self.positions(sqes).1.wrapping_sub(self.pushed());
        self.pending().saturating_add(count) <= self.params.sq_entries
    }

    /// Queues an SQE of one place without submitting it.
    pub fn push(&self, sqe: Sqe) {
        let at = self.pushed();
        self.write(at, &sqe);
        // Release pairs with the engine's acquire load of the tail.
        self.word(self.params.sq_off.tail).store(at.wrapping_add(1), Ordering::Release);
    }

    /// Queues SQEs for which there is room; the engine sees all or none. Places that are left out get the filler; returns their number.
    pub fn push_together(&self, sqes: &[Sqe], filler: &Sqe) -> u32 {
        let (positions, end) = self.positions(sqes);
        let (mut next, mut filled) = (self.pushed(), 0);
        for (position, sqe) in positions.into_iter().zip(sqes) {
            if position != next {
                filled += 1;
                self.write(next, filler);
            }
            self.write(position, sqe);
            next = position.wrapping_add(1);
            if sqe.opcode == IORING_OP_NOP128 {
                // The content of the second half is ignored.
                self.write(next, &Sqe { opcode: u8::MAX, ..Sqe::default() });
                next = next.wrapping_add(1);
            }
        }
        // Release pairs with the engine's acquire load of the tail.
        self.word(self.params.sq_off.tail).store(end, Ordering::Release);
        filled
    }

    fn write(&self, position: u32, sqe: &Sqe) {
        let stride = 1 + usize::from(self.params.flags & IORING_SETUP_SQE128 != 0);
        let index = position & (self.params.sq_entries - 1);
        // SAFETY: a slot of the ring, which the engine does not read before the tail has passed it.
        unsafe { self.sqes.0.add(index as usize * stride).write(*sqe) };
        if self.params.flags & IORING_SETUP_NO_SQARRAY == 0 {
            self.word(self.params.sq_off.array + 4 * index).store(index, Ordering::Relaxed);
        }
    }

    /// Returns `IORING_SQ_*`.
    pub fn flags(&self) -> u32 {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.word(self.params.sq_off.flags).load(Ordering::Relaxed)
    }

    /// Returns the number of available CQEs.
    pub fn ready(&self) -> u32 {
        let off = self.params.cq_off;
        // Acquire pairs with the engine's release store of the tail.
        let tail = self.word(off.tail).load(Ordering::Acquire);
        tail.wrapping_sub(self.word(off.head).load(Ordering::Relaxed))
    }

    /// Returns the CQE `nth` after the head.
    pub fn peek(&self, nth: u32) -> Cqe {
        let off = self.params.cq_off;
        let at = self.word(off.head).load(Ordering::Relaxed).wrapping_add(nth);
        let big = self.params.flags & IORING_SETUP_CQE32 != 0;
        let index = (at & (self.params.cq_entries - 1)) as usize;
        // SAFETY: a published CQE in the mapping; one of 32 bytes does not wrap around the end.
        unsafe {
            let slot = self.rings.0.add(off.cqes as usize + (index << (4 + usize::from(big)))).cast::<u64>();
            let result = slot.add(1).read();
            let flags = (result >> 32) as u32;
            let wide = big || self.is_wide(flags);
            let big = if wide { [slot.add(2).read(), slot.add(3).read()] } else { [0; 2] };
            Cqe { user_data: slot.read(), res: result as i32, flags, big }
        }
    }

    /// True if a CQE with these flags takes two places of a queue of small ones.
    fn is_wide(&self, flags: u32) -> bool {
        self.params.flags & IORING_SETUP_CQE_MIXED != 0 && flags & IORING_CQE_F_32 != 0
    }

    /// Reaps a CQE.
    pub fn reap(&self) -> Option<Cqe> {
        loop {
            if self.ready() == 0 {
                return None;
            }
            let cqe = self.peek(0);
            let head = self.word(self.params.cq_off.head);
            let next = head.load(Ordering::Relaxed).wrapping_add(1 + u32::from(self.is_wide(cqe.flags)));
            // Release: the CQE is read before the engine may overwrite it.
            head.store(next, Ordering::Release);
            if !(self.params.flags & IORING_SETUP_CQE_MIXED != 0 && cqe.flags & IORING_CQE_F_SKIP != 0) {
                return Some(cqe);
            }
        }
    }

    /// `io_uring_enter`.
    pub fn enter(&self, submit: u32, wait: u32, flags: u32) -> i32 {
        enter(self.engine, self.fd, submit, wait, flags, 0, 0)
    }

    /// `io_uring_enter`, with a limit of the wait in microseconds, if there is one.
    pub fn enter_for(&self, submit: u32, wait: u32, flags: u32, limit_us: Option<u32>) -> i32 {
        let Some(limit_us) = limit_us else { return self.enter(submit, wait, flags) };
        let time = [0u64, u64::from(limit_us) * 1000];
        let argument = [0u64, 0, time.as_ptr() as u64];
        let flags = flags | IORING_ENTER_EXT_ARG | IORING_ENTER_GETEVENTS;
        enter(self.engine, self.fd, submit, wait, flags, argument.as_ptr() as usize, 24)
    }

    /// `io_uring_register`.
    pub fn register(&self, opcode: u32, argument: usize, count: u32) -> i32 {
        register(self.engine, self.fd, opcode, argument, count)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.params.flags & IORING_SETUP_NO_MMAP == 0 {
            for (address, length) in self.memory() {
                // SAFETY: mapped by this ring, which is not used any more.
                unsafe { libc::munmap(address.cast(), length) };
            }
        }
        if self.closes {
            close(self.fd);
        }
    }
}

/// Closes a descriptor like a program under a front end.
pub fn close(fd: i32) -> i32 {
    frontend::closed(fd);
    // SAFETY: the descriptor is the program's.
    result(unsafe { libc::close(fd) }.into())
}

/// Maps ring memory, or (-1) new memory that children share.
pub fn map(length: usize, fd: i32, offset: i64) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | if fd < 0 { libc::MAP_ANONYMOUS } else { libc::MAP_POPULATE };
    // SAFETY: a new mapping.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, offset) };
    assert_ne!(address, libc::MAP_FAILED, "memory can be mapped");
    address.cast()
}

/// True if this machine's kernel provides io_uring.
pub fn kernel_available() -> bool {
    // SAFETY: integers only.
    let params = unsafe { std::mem::zeroed() };
    Ring::new(Engine::Kernel, 1, params).is_ok()
}
