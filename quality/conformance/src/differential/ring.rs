//! A ring of either engine, used as a program uses it.

use std::ffi::{CStr, c_void};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyring_engine::abi::Sqe;
use anyring_engine::request::version::{self, Version};
use anyring_engine::{Caller, Host, frontend, io_uring_params};
use linux_raw_sys::io_uring::*;

/// Which engine a ring runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// Ours.
    User,
    /// The kernel's io_uring.
    Kernel,
}

/// A front end made of std threads.
struct StdHost;

struct Start(unsafe extern "C" fn(*mut c_void), *mut c_void);
// SAFETY: handed to one thread.
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
            // SAFETY: once, as the engine wants it.
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

/// Makes the user engine this process's, playing the kernel of this machine.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        anyring_engine::install(&HOST);
        play_installed(false);
        #[cfg(feature = "coverage")]
        if let Some(file) = crate::coverage::file() {
            anyring_engine::coverage::record_to(std::os::fd::AsRawFd::as_raw_fd(&file));
        }
    });
}

/// Has the user engine play the newest kernel, or that of this machine, as what is compared with it must.
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

/// Makes what `make` makes get no small descriptor. Programs register numbers that are no descriptors of theirs, small ones as a
/// rule; of a ring of the one engine, the other knows nothing.
fn above_small_numbers<T>(make: impl FnOnce() -> T) -> T {
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
    // SAFETY: the SQEs name memory that the program under test gives away.
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

/// A ring and its mappings.
pub struct Ring {
    /// Who works for it.
    pub engine: Engine,
    /// Its descriptor.
    pub fd: i32,
    /// What the setup call returned.
    pub params: io_uring_params,
    rings: *mut u8,
    rings_length: usize,
    sqes: *mut Sqe,
    sqes_length: usize,
    sq_tail: u32,
}

impl Ring {
    /// Creates and maps a ring, or says which errno there was.
    pub fn new(engine: Engine, entries: u32, mut params: io_uring_params) -> Result<Ring, i32> {
        let fd = above_small_numbers(|| setup(engine, entries, &raw mut params as usize));
        if fd < 0 {
            return Err(fd);
        }
        let big = |flag: u32| usize::from(params.flags & flag != 0);
        let cq_end =
            params.cq_off.cqes as usize + params.cq_entries as usize * (16 << big(IORING_SETUP_CQE32));
        let sq_end = params.sq_off.array as usize + params.sq_entries as usize * 4;
        let rings_length = cq_end.max(sq_end);
        let sqes_length = params.sq_entries as usize * (64 << big(IORING_SETUP_SQE128));
        let rings = map(fd, rings_length, 0);
        let sqes = map(fd, sqes_length, i64::from(IORING_OFF_SQES)).cast();
        Ok(Ring { engine, fd, params, rings, rings_length, sqes, sqes_length, sq_tail: 0 })
    }

    /// A word of ring memory.
    pub fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the offsets come from the engine and lie in the mapping.
        unsafe { AtomicU32::from_ptr(self.rings.add(offset as usize).cast()) }
    }

    /// All of the memory that program and engine share.
    pub fn memory(&self) -> [(*mut u8, usize); 2] {
        [(self.rings, self.rings_length), (self.sqes.cast(), self.sqes_length)]
    }

    /// Does the SQ have room?
    pub fn sq_space(&self) -> bool {
        let head = self.word(self.params.sq_off.head).load(Ordering::Acquire);
        self.sq_tail.wrapping_sub(head) < self.params.sq_entries
    }

    /// Queues an SQE without submitting it.
    pub fn push(&mut self, sqe: Sqe) {
        let index = self.sq_tail & (self.params.sq_entries - 1);
        let stride = 1 + usize::from(self.params.flags & IORING_SETUP_SQE128 != 0);
        // SAFETY: a slot of the ring, which the engine does not read before the tail says so.
        unsafe { self.sqes.add(index as usize * stride).write(sqe) };
        if self.params.flags & IORING_SETUP_NO_SQARRAY == 0 {
            self.word(self.params.sq_off.array + 4 * index).store(index, Ordering::Relaxed);
        }
        self.sq_tail = self.sq_tail.wrapping_add(1);
        // Release pairs with the engine's acquire load of the tail.
        self.word(self.params.sq_off.tail).store(self.sq_tail, Ordering::Release);
    }

    /// CQEs that are there.
    pub fn cq_ready(&self) -> u32 {
        let off = self.params.cq_off;
        // Acquire pairs with the engine's release store of the tail.
        let tail = self.word(off.tail).load(Ordering::Acquire);
        tail.wrapping_sub(self.word(off.head).load(Ordering::Relaxed))
    }

    /// The CQE `nth` behind the head.
    pub fn peek(&self, nth: u32) -> Cqe {
        let off = self.params.cq_off;
        let head = self.word(off.head).load(Ordering::Relaxed).wrapping_add(nth);
        let big = self.params.flags & IORING_SETUP_CQE32 != 0;
        let index = (head & (self.params.cq_entries - 1)) as usize;
        // SAFETY: a published CQE of the mapping.
        unsafe {
            let slot = self.rings.add(off.cqes as usize + (index << (4 + usize::from(big)))).cast::<u64>();
            let result = slot.add(1).read();
            Cqe {
                user_data: slot.read(),
                res: result as i32,
                flags: (result >> 32) as u32,
                big: if big { [slot.add(2).read(), slot.add(3).read()] } else { [0; 2] },
            }
        }
    }

    /// Takes a CQE.
    pub fn reap(&mut self) -> Option<Cqe> {
        if self.cq_ready() == 0 {
            return None;
        }
        let cqe = self.peek(0);
        let head = self.word(self.params.cq_off.head);
        // Release: the CQE was read before the engine may write it again.
        head.store(head.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        Some(cqe)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by this ring, used by nobody any more.
        unsafe {
            libc::munmap(self.rings.cast(), self.rings_length);
            libc::munmap(self.sqes.cast(), self.sqes_length);
        }
        close(self.fd);
    }
}

/// Closes a descriptor as a program under a front end does.
pub fn close(fd: i32) -> i32 {
    frontend::closed(fd);
    // SAFETY: the descriptor is the program's.
    result(unsafe { libc::close(fd) }.into())
}

fn map(fd: i32, length: usize, offset: i64) -> *mut u8 {
    // SAFETY: a new mapping.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            fd,
            offset,
        )
    };
    assert_ne!(address, libc::MAP_FAILED, "ring memory can be mapped");
    address.cast()
}

/// Does this machine's kernel give its io_uring?
pub fn kernel_available() -> bool {
    // SAFETY: integers only.
    let params = unsafe { std::mem::zeroed() };
    Ring::new(Engine::Kernel, 1, params).is_ok()
}
