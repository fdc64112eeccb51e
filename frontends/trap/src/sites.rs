//! Patched call sites of a static program, of which the tracer that patches them (`tools/cli/src/inject`) and the image that they enter
//! (`frontends/inject`) have to agree.

use crate::arch::{STUB_BYTES, WAITING};
use crate::stub::CALLS;
use anyring_runtime::arch::{FORKS, REPLACING};
use anyring_runtime::calls;
use core::mem::offset_of;
use core::sync::atomic::AtomicU8;
use linux_raw_sys::general as raw;

/// The data before the stubs.
#[repr(C)]
pub struct Block {
    /// By the lower half of a call's number, one of the `ENTERS`; not before the image says so.
    pub table: [AtomicU8; 1 << 16],
    /// Where stubs jump.
    pub entry: usize,
    /// How many sites jump to stubs.
    pub sites: u64,
    /// Whether no site is known that does not.
    pub has_all: u64,
    /// Where the program goes on behind sites that make calls in the stub page; 0: none.
    pub behind: [usize; CALLS],
}

/// The end of a stub: what the entry has to know of its site.
#[repr(C)]
pub struct Record {
    /// Where a call goes on that is not the engine's.
    pub back: usize,
    /// Where a call goes on that the engine has answered.
    pub next: usize,
    /// The address behind the call, for whoever asks where it was made.
    pub behind: usize,
    /// Whether the site calls a function that makes a call in which a C library may cancel the thread: with a pointer to whether the thread is cancelled, the
    /// number, and the arguments, as C passes them, but for the fourth (`rcx`), which is in `r10`. Otherwise they lie as for a system call.
    pub is_function: usize,
    /// Where the call is made out of reach of the filter, and goes on behind the site ([`crate::stub::call_for`]); 0 if nowhere.
    pub own: usize,
}

impl Record {
    /// Bytes of a record.
    pub const BYTES: usize = size_of::<Self>();
}

/// In the table: the call goes on to the kernel.
pub const PASSES: u8 = 0;
/// In the table: the call enters the engine, where it may sleep.
pub const ENTERS: u8 = 1;
/// In the table: the call enters the engine, and soon comes back.
pub const ENTERS_BRIEFLY: u8 = 2;

impl Block {
    /// Bytes before the first stub: whole pages, for code is protected otherwise.
    pub const BYTES: usize = size_of::<Self>().next_multiple_of(STUB_BYTES);
    /// Where the table lies, from the block's start.
    pub const TABLE: usize = offset_of!(Self, table);
    /// Where the entry's address lies.
    pub const ENTRY: usize = offset_of!(Self, entry);
    /// Where the number of sites lies, and behind it whether they are all.
    pub const SITES: usize = offset_of!(Self, sites);
    /// Where [`Self::behind`] lies.
    pub const BEHIND: usize = offset_of!(Self, behind);
}

const _: () = assert!(offset_of!(Block, has_all) == Block::SITES + 8);

/// When a call enters the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// From the program's beginning.
    Always,
    /// From the first ring on.
    AmongRings,
}

/// The calls, beside [`FORKS`], that make a child or execute a program.
const OF_PROCESSES: &[u32] = &[raw::__NR_clone, raw::__NR_execve, raw::__NR_execveat];

/// The calls that close or duplicate descriptors.
const OF_DESCRIPTORS: &[u32] = &[raw::__NR_close, raw::__NR_close_range, raw::__NR_dup, raw::__NR_fcntl];

/// How a call with this number is to enter the engine, and when; `None` where it is the kernel's.
pub fn entering(number: u32) -> Option<(u8, When)> {
    match number {
        number if calls::is_ring_call(number as usize) => Some((ENTERS, When::Always)),
        raw::__NR_rt_sigaction | raw::__NR_rt_sigprocmask | raw::__NR_clone3 => {
            Some((ENTERS_BRIEFLY, When::Always))
        }
        number if OF_PROCESSES.contains(&number) || FORKS.contains(&number) => Some((ENTERS, When::Always)),
        number if OF_DESCRIPTORS.contains(&number) || REPLACING.contains(&number) => {
            Some((ENTERS_BRIEFLY, When::AmongRings))
        }
        number if WAITING.contains(&number) => Some((ENTERS, When::AmongRings)),
        _ => None,
    }
}

/// Whether a call with this number is to enter the engine.
pub fn enters(number: u32) -> bool {
    entering(number).is_some()
}
