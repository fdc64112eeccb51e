//! The data of patched call sites of a static program, which the tracer (`tools/cli/src/inject`) writes and the image (`frontends/inject`) reads.

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
    /// For the lower half of each call's number: [`PASSES`], [`ENTERS`] or [`ENTERS_BRIEFLY`]. All calls pass until the image changes that.
    pub table: [AtomicU8; 1 << 16],
    /// The address that stubs jump to.
    pub entry: usize,
    /// Number of sites that jump to stubs.
    pub sites: u64,
    /// 1 if all sites that are known jump to stubs, otherwise 0.
    pub has_all: u64,
    /// The addresses after the calls of those sites that make their calls in the stub page; 0: none.
    pub behind: [usize; CALLS],
}

/// The end of a stub: the data of its site for the entry.
#[repr(C)]
pub struct Record {
    /// The address at which a call continues that the engine does not answer.
    pub back: usize,
    /// The address at which a call continues that the engine has answered.
    pub next: usize,
    /// The address after the call, for traces.
    pub behind: usize,
    /// 1 if the site calls a function of a C library that makes a call in which the library may end a cancelled thread. The function's arguments are a
    /// pointer to the mark of cancellation, the number, and the call's arguments; on x86-64 the fourth of them all is in `r10`, not in `rcx`. 0 if the
    /// arguments lie as for a system call.
    pub is_function: usize,
    /// The address in the stub page at which the call is made without a trap ([`crate::stub::call_for`]); 0 if there is none.
    pub own: usize,
}

impl Record {
    /// Bytes of a record.
    pub const BYTES: usize = size_of::<Self>();
}

/// The value in the table for a call that continues to the kernel.
pub const PASSES: u8 = 0;
/// The value in the table for a call that enters the engine, where it may sleep.
pub const ENTERS: u8 = 1;
/// The value in the table for a call that enters the engine, and does not sleep there.
pub const ENTERS_BRIEFLY: u8 = 2;

impl Block {
    /// Bytes before the first stub: whole pages, for code is protected otherwise.
    pub const BYTES: usize = size_of::<Self>().next_multiple_of(STUB_BYTES);
    /// The offset of the table.
    pub const TABLE: usize = offset_of!(Self, table);
    /// The offset of the entry's address.
    pub const ENTRY: usize = offset_of!(Self, entry);
    /// The offset of the number of sites; [`Self::has_all`] lies behind it.
    pub const SITES: usize = offset_of!(Self, sites);
    /// The offset of [`Self::behind`].
    pub const BEHIND: usize = offset_of!(Self, behind);
}

const _: () = assert!(offset_of!(Block, has_all) == Block::SITES + 8);

/// The time from which a call enters the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The program's beginning.
    Always,
    /// The first ring.
    AmongRings,
}

/// The calls, beside [`FORKS`], that make a child or execute a program.
const OF_PROCESSES: &[u32] = &[raw::__NR_clone, raw::__NR_execve, raw::__NR_execveat];

/// The calls that close or duplicate descriptors.
const OF_DESCRIPTORS: &[u32] = &[raw::__NR_close, raw::__NR_close_range, raw::__NR_dup, raw::__NR_fcntl];

/// Returns the value of the table for a call with this number, and the time from which it holds; `None` if the call continues to the kernel.
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

/// True if a call with this number enters the engine.
pub fn enters(number: u32) -> bool {
    entering(number).is_some()
}
