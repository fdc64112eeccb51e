//! Other people's crates, where `io_uring` is denied: one line in a program lets every crate in it that calls
//! the C library's `syscall` (io-uring, and so tokio-uring, monoio and compio; glommio) use anyring's engine.
//!
//! ```standalone_crate
//! anyring::everywhere!();
//!
//! fn main() {
//!     // tokio_uring::start(...), monoio::start(...), io_uring::IoUring::new(...): as ever.
//! }
//! ```
//!
//! Where the kernel allows `io_uring`, its calls are handed through: the only cost is that of a function call.
//! Where not, they are answered in this process. `ANYRING_ENGINE` (`kernel`, `user`, `auto`) says otherwise, and
//! with `ANYRING_LOG=info` the program says in the end which engine it had, and how much that did. A program
//! under `anyring run` leaves all of it to that.
//!
//! Where the choice is left to anyring and the kernel's `io_uring` works, a ring whose setup flags ask for a layout of its
//! memory that this kernel does not know, and anyring does (`SQE_MIXED` for one), is anyring's, among others of the kernel's. `IORING_REGISTER_RING_FDS` is refused for such a ring.
//!
//! # How it works
//!
//! [`everywhere!`](crate::everywhere!) defines functions by the C library's names in the program, and the linker
//! takes the program's own for those of a library: `syscall`; what makes and closes descriptors (`close`, `dup`,
//! `fcntl`); what a ring's descriptor is polled by (`poll`, `select`, `epoll_wait` and their kin); `mmap`; and
//! what changes credentials. Each does what is to be done for rings, and calls the C library's. Libraries that the
//! program loads call them too. Nothing else of the process changes: there are no signal handlers, no filters,
//! nothing that programs started by this one have.
//!
//! The line belongs into the program, once, as two of them define the same functions; in a library it works for
//! the programs that use it.
//!
//! # Calls by instructions
//!
//! Some crates make system calls past the C library: io-uring with its feature `direct-syscall`, rustix-uring unless
//! rustix has its feature `use-libc`, newer C liburings that a crate builds into the program. For those there is
//!
//! ```standalone_crate
//! anyring::everywhere!(trap);
//! # fn main() {}
//! ```
//!
//! which also lets the three calls trap where the program's own code makes them. It does so only where anyring's engine is
//! to work, decided before `main`; each such call then costs more than a microsecond. The price is a seccomp
//! filter, which stays with the process and the programs that it starts. They are not affected by it, but a process
//! without `CAP_SYS_ADMIN` gets `no_new_privs` with it, and set-user-id programs that it starts gain nothing.
//! SIGSYS is anyring's then: where it is blocked, or has another handler, such a call ends the process. A program that
//! is linked to a fixed address is left without the trap, and says so.
//!
//! # What is not caught
//!
//! - Without `trap`, calls by instructions; with it, those of libraries that the program loads. They are refused as
//!   without the line. `anyring run` catches them, and who loads liburing.so.2 can have anyring's.
//! - A ring's descriptor polled by instructions (by the crate `polling` over rustix, say): it is not ready. A
//!   descriptor closed so: it is noticed some milliseconds later.
//! - Children of `vfork` and `posix_spawn` that enter rings of their parent. Children of `fork` are taken care of.
//! - Programs linked statically, with `+crt-static` or for musl: the C library's functions could not be reached behind
//!   those of the program. The line is refused there, when it is compiled.
//!
//! Requests are done with the credentials of the process as the C library changes them (`setuid`, `setgroups`),
//! and a signal handler never runs while its thread is inside the engine, except while it waits there.
//!
//! Needs Rust 1.88, as all of this crate.

mod trapped;

use crate::engine::{self, Engine};
use anyring_linked::{self as linked, Quiet};
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicU8, Ordering};

#[doc(hidden)]
pub use anyring_interpose as interpose;

/// Lets every crate in the program that calls the C library's `syscall` use `io_uring` where it is denied; with `trap`,
/// also those that make system calls by instructions: see [`everywhere`](mod@crate::everywhere).
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

/// No ring was asked for yet: the kernel answers, who knows of none.
const UNDECIDED: u8 = 0;
/// The kernel answers.
const KERNEL: u8 = 1;
/// Anyring's engine does.
const USER: u8 = 2;
/// The front end that `anyring run` has put behind this program's functions answers.
const OTHERS: u8 = 3;
/// The kernel, and anyring's engine for rings that the kernel is too old for.
const BOTH: u8 = 4;

const SETUP: usize = libc::SYS_io_uring_setup as usize;

static ANSWERS: AtomicU8 = AtomicU8::new(UNDECIDED);

/// Whether the functions are there, as far as anybody has made a ring by them.
pub(crate) fn sees_closes() -> bool {
    ANSWERS.load(Ordering::Relaxed) != UNDECIDED
}

/// Before `main`: lets the calls trap that the program makes by instructions.
#[doc(hidden)]
pub extern "C" fn trap() {
    unsafe extern "C" {
        // The linker's: where the program begins, and where its code ends.
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
            // Calls that need no ring may be the first ones; others have none of ours.
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

/// Puts anyring's engine in place beside the kernel's.
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
    // Another thread may have chosen meanwhile, and gone on.
    ANSWERS
        .compare_exchange(UNDECIDED, answers, Ordering::Relaxed, Ordering::Relaxed)
        .map_or_else(|now| now, |_| answers)
}

/// The call, made by the function that ours stands in front of.
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
