//! How often each operation was asked for, and what it came to: for who wants sums only.

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use alloc::boxed::Box;

/// Sums of a process, since it began to count.
pub struct Counts {
    operations: [Operation; 256],
    /// `IORING_SETUP_*` of calls that were refused.
    refused_setup: AtomicU64,
    /// `IORING_REGISTER_*` that were refused, a bit each.
    refused_registrations: AtomicU64,
    enters: AtomicU64,
}

struct Operation {
    requests: AtomicU64,
    errors: AtomicU64,
    refused: AtomicU64,
}

impl Operation {
    fn new() -> Operation {
        let zero = || AtomicU64::new(0);
        Operation { requests: zero(), errors: zero(), refused: zero() }
    }
}

/// The sums of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// `IORING_OP_*`.
    pub code: u8,
    /// SQEs taken.
    pub requests: u64,
    /// Completions that say that it failed.
    pub errors: u64,
    /// Errors that say that there is no such thing: `EINVAL`, `EOPNOTSUPP`, `ENOSYS`.
    pub refused: u64,
}

static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(core::ptr::null_mut());

/// From now on this process counts, for rings that are made from now on.
pub fn begin() {
    if get().is_some() {
        return;
    }
    let counts = Box::leak(Box::new(Counts {
        operations: core::array::from_fn(|_| Operation::new()),
        refused_setup: AtomicU64::new(0),
        refused_registrations: AtomicU64::new(0),
        enters: AtomicU64::new(0),
    }));
    // Release pairs with the acquire load in `get`.
    COUNTS.store(counts, Ordering::Release);
}

/// The process's sums, where it counts.
#[inline]
pub fn get() -> Option<&'static Counts> {
    // Acquire pairs with the release store in `begin`.
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    unsafe { counts.as_ref() }
}

/// A child of `fork` begins anew.
pub fn forked() {
    let Some(counts) = get() else { return };
    let words = counts.operations.iter().flat_map(|of| [&of.requests, &of.errors, &of.refused]);
    let others = [&counts.refused_setup, &counts.refused_registrations, &counts.enters];
    words.chain(others).for_each(|word| word.store(0, Ordering::Relaxed));
}

fn says_unknown(error: Errno) -> bool {
    matches!(error, Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS)
}

impl Counts {
    /// A request was taken from a submission queue.
    pub fn submitted(&self, code: u8) {
        self.operations[usize::from(code)].requests.fetch_add(1, Ordering::Relaxed);
    }

    /// A request came to this result.
    pub fn completed(&self, code: u8, result: i32) {
        if result >= 0 {
            return;
        }
        let operation = &self.operations[usize::from(code)];
        operation.errors.fetch_add(1, Ordering::Relaxed);
        if says_unknown(Errno::from_raw(result as isize)) {
            operation.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// `enter` was called.
    pub fn entered(&self) {
        self.enters.fetch_add(1, Ordering::Relaxed);
    }

    /// A ring with these flags could not be made.
    pub fn setup_failed(&self, flags: u32, error: Errno) {
        if says_unknown(error) {
            self.refused_setup.fetch_or(flags.into(), Ordering::Relaxed);
        }
    }

    /// Something could not be registered.
    pub fn registration_failed(&self, opcode: u32, error: Errno) {
        if says_unknown(error) && opcode < u64::BITS {
            self.refused_registrations.fetch_or(1 << opcode, Ordering::Relaxed);
        }
    }

    /// The sums of operations that were asked for.
    pub fn operations(&self) -> impl Iterator<Item = Counted> + '_ {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let all = self.operations.iter().enumerate().map(move |(code, of)| Counted {
            code: code as u8,
            requests: read(&of.requests),
            errors: read(&of.errors),
            refused: read(&of.refused),
        });
        all.filter(|counted| counted.requests > 0)
    }

    /// Calls of `enter`.
    pub fn enters(&self) -> u64 {
        self.enters.load(Ordering::Relaxed)
    }

    /// `IORING_SETUP_*` of calls that were refused.
    pub fn refused_setup(&self) -> u32 {
        self.refused_setup.load(Ordering::Relaxed) as u32
    }

    /// `IORING_REGISTER_*` that were refused.
    pub fn refused_registrations(&self) -> impl Iterator<Item = u32> + use<> {
        let bits = self.refused_registrations.load(Ordering::Relaxed);
        (0..u64::BITS).filter(move |bit| bits >> bit & 1 != 0)
    }
}
