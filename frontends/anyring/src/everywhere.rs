//! Makes other crates use anyring's engine where `io_uring` is denied: one line in a program does so for every crate in it
//! that calls the C library's `syscall` (io-uring, and so tokio-uring, monoio and compio; glommio).
//!
//! ```standalone_crate
//! anyring::everywhere!();
//!
//! fn main() {
//!     // tokio_uring::start(...), monoio::start(...), io_uring::IoUring::new(...): as ever.
//! }
//! ```
//!
//! If the kernel allows `io_uring`, its calls are passed on: the only cost is that of a function call. If not, this
//! process answers them. `ANYRING_ENGINE` (`kernel`, `user`, `auto`) overrides the choice. With `ANYRING_LOG=info` the
//! program says at its end which engine it used, and how much that engine did. In a program under `anyring run`,
//! `anyring run` decides all of this.
//!
//! If the choice is left to anyring and the kernel's `io_uring` works, anyring's engine still makes those rings whose setup flags ask
//! for a memory layout unknown to this kernel (`SQE_MIXED`, for example). Such a ring refuses `IORING_REGISTER_RING_FDS`.
//!
//! # How it works
//!
//! [`everywhere!`](crate::everywhere!) defines functions with names of the C library in the program, and the linker
//! prefers the program's functions to those of a library: `syscall`; the functions that make and close descriptors (`close`,
//! `dup`, `fcntl`); those that poll a ring's descriptor (`poll`, `select`, `epoll_wait` and the like); `mmap`; and those
//! that change credentials. Each does its work for rings, and calls the C library's function. Libraries that the
//! program loads call them too. Nothing else of the process changes: there are no signal handlers and no filters,
//! and programs started by this one inherit nothing.
//!
//! The line belongs into the program, and only once: a second one would define the functions again. In a library the line
//! works for the programs that use the library.
//!
//! # Calls that bypass the C library
//!
//! Some crates make system calls without the C library: io-uring with its feature `direct-syscall`, rustix-uring unless
//! rustix has its feature `use-libc`, newer versions of liburing that a crate compiles into the program. For these crates there is
//!
//! ```standalone_crate
//! anyring::everywhere!(trap);
//! # fn main() {}
//! ```
//!
//! which also traps the three calls that the program's own code makes. The trap is set only if anyring's engine is
//! to be used, which is decided before `main`; each such call then costs more than a microsecond. The price is a seccomp
//! filter, which the process and the programs that it starts keep. These programs behave as without it, except that a process
//! without `CAP_SYS_ADMIN` gets `no_new_privs` with the filter, and set-user-id programs that it starts gain no privileges.
//! SIGSYS is reserved for anyring: if it is blocked, or has another handler, such a call ends the process. In a program
//! linked to a fixed address the trap is not set, and the program says so.
//!
//! # Limits
//!
//! - Without `trap`, calls that bypass the C library are not seen; with it, such calls of loaded libraries are not seen. The
//!   kernel refuses them as before. `anyring run` catches them, and programs that load liburing.so.2 can use anyring's.
//! - A ring's descriptor that is polled without the C library (by the crate `polling` over rustix, for example) never becomes ready.
//!   A descriptor that is closed without the C library is noticed some milliseconds later.
//! - Children of `vfork` and `posix_spawn` that enter rings of their parent are not supported. Children of `fork` are.
//! - Statically linked programs, with `+crt-static` or for musl, are not supported: the C library's functions could not be
//!   reached behind those of the program. The line is refused at compile time.
//!
//! Requests use the credentials of the process as the C library changes them (`setuid`, `setgroups`). A signal handler
//! never runs while its thread is inside the engine, except while the thread waits there.
//!
//! Needs Rust 1.88, as the whole crate does.

mod trapped;

use crate::engine::{self, Engine};
use anyring_linked::{self as linked, Quiet};
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicU8, Ordering};

#[doc(hidden)]
pub use anyring_interpose as interpose;

/// Lets every crate in the program that calls the C library's `syscall` use `io_uring` where it is denied. With `trap`,
/// this includes crates that make system calls without the C library: see [`everywhere`](mod@crate::everywhere).
#[macro_export]
macro_rules! everywhere {
    (trap) => {
        $crate::everywhere!();

        const _: () = {
            #[used]
            #[unsafe(link_section = ".init_array")]
            static START: extern "C" fn() = $crate::everywhere::trap;
        };
    };
    () => {
        #[cfg(target_feature = "crt-static")]
        ::core::compile_error!("anyring::everywhere!() needs a program that loads the C library");

        #[cfg(not(target_feature = "crt-static"))]
        $crate::everywhere::interpose::export!($crate::everywhere::Everywhere);
        #[cfg(not(target_feature = "crt-static"))]
        $crate::everywhere::interpose::export_mmap!($crate::everywhere::interpose::calls::mmap);
    };
}

/// The front end that [`everywhere!`](crate::everywhere!) puts into a program.
#[doc(hidden)]
pub struct Everywhere;

/// No ring was asked for yet: the kernel answers calls.
const UNDECIDED: u8 = 0;
/// The kernel answers calls.
const KERNEL: u8 = 1;
/// Anyring's engine answers calls.
const USER: u8 = 2;
/// The front end of `anyring run`, to which this program's functions pass calls on, answers.
const OTHERS: u8 = 3;
/// The kernel answers calls, and anyring's engine those on rings that the kernel is too old for.
const BOTH: u8 = 4;

const SETUP: usize = libc::SYS_io_uring_setup as usize;

static ANSWERS: AtomicU8 = AtomicU8::new(UNDECIDED);

/// True if [`everywhere!`](crate::everywhere!) has seen a ring made: then it sees closes of descriptors, too.
pub(crate) fn sees_closes() -> bool {
    ANSWERS.load(Ordering::Relaxed) != UNDECIDED
}

/// Sets the trap before `main`, for calls that the program makes without the C library.
#[doc(hidden)]
pub extern "C" fn trap() {
    unsafe extern "C" {
        // Linker symbols: where the program begins, and where its code ends.
        static __executable_start: u8;
        static etext: u8;
    }
    if choose() == USER {
        let text = (&raw const __executable_start).addr()..(&raw const etext).addr();
        trapped::trap_within(&text);
    }
}

impl interpose::Frontend for Everywhere {
    type Stay = Quiet;

    #[inline]
    fn enter() -> Quiet {
        Quiet::begin()
    }

    #[inline]
    fn hands_through(number: usize) -> bool {
        ANSWERS.load(Ordering::Relaxed) == KERNEL && number != SETUP
    }

    unsafe fn call(number: usize, arguments: [usize; 6]) -> Option<isize> {
        let mut answers = ANSWERS.load(Ordering::Relaxed);
        if answers == UNDECIDED {
            // A call that needs no ring may be the first one; a call on a ring cannot name a ring of ours yet.
            let needs_ring = number != SETUP && arguments[0] as c_int != -1;
            if needs_ring {
                return None;
            }
            answers = choose();
        }
        match answers {
            // SAFETY: the caller's promise.
            USER => Some(unsafe { linked::call(number, arguments, true) } as isize),
            // SAFETY: the caller's promise.
            OTHERS => Some(unsafe { behind(number, arguments) }),
            // SAFETY: the caller's promise.
            _ if number == SETUP => Some(unsafe { linked::set_up(arguments, stand_beside, true) } as isize),
            BOTH if linked::beside::is_ours(number, arguments) => {
                // SAFETY: the caller's promise.
                Some(unsafe { linked::call(number, arguments, true) } as isize)
            }
            _ => None,
        }
    }
}

/// Starts anyring's engine beside the kernel's.
fn stand_beside() {
    engine::begin(Engine::User);
    ANSWERS.store(BOTH, Ordering::Relaxed);
}

fn choose() -> u8 {
    let answers = match Engine::Auto.resolve() {
        Engine::User => USER,
        _ if linked::others_answer() => OTHERS,
        _ => KERNEL,
    };
    engine::begin(if answers == USER { Engine::User } else { Engine::Kernel });
    // Another thread may have chosen meanwhile; its choice stays.
    ANSWERS
        .compare_exchange(UNDECIDED, answers, Ordering::Relaxed, Ordering::Relaxed)
        .map_or_else(|now| now, |_| answers)
}

/// Makes the call by the `syscall` function behind this program's.
///
/// # Safety
/// As for the call that `number` names.
unsafe fn behind(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result = interpose::next!(
        c"syscall",
        fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long,
        number as c_long,
        a,
        b,
        c,
        d,
        e,
        f,
    );
    if result == -1 {
        let error = std::io::Error::last_os_error();
        return -(error.raw_os_error().unwrap_or(libc::ENOSYS) as isize);
    }
    result as isize
}
