//! Counts of each operation's requests and errors, for front ends that need sums only.

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use alloc::boxed::Box;

/// The counts of a process, since it began to count.
pub struct Counts {
    operations: [Operation; 256],
    /// `IORING_SETUP_*` of calls that failed because a flag may be unknown.
    refused_setup: AtomicU64,
    /// One bit for each `IORING_REGISTER_*` that failed as unknown.
    refused_registrations: AtomicU64,
    enters: AtomicU64,
}

struct Operation {
    requests: AtomicU64,
    completions: AtomicU64,
    errors: AtomicU64,
    refused: AtomicU64,
}

impl Operation {
    fn new() -> Operation {
        let zero = || AtomicU64::new(0);
        Operation { requests: zero(), completions: zero(), errors: zero(), refused: zero() }
    }
}

/// The counts of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// `IORING_OP_*`.
    pub code: u8,
    /// Submitted requests.
    pub requests: u64,
    /// Completions, of which a multishot request has several.
    pub completions: u64,
    /// Completions with an error.
    pub errors: u64,
    /// Errors that may mean that the kernel lacks the operation or an option: `EINVAL`, `EOPNOTSUPP`, `ENOSYS`.
    pub refused: u64,
}

static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(core::ptr::null_mut());

/// Starts counting, for rings that are created from now on.
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

/// Returns the process's counts, if it counts.
#[inline]
pub fn get() -> Option<&'static Counts> {
    // Acquire pairs with the release store in `begin`.
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    unsafe { counts.as_ref() }
}

/// Resets the counts in a child after `fork`.
pub fn forked() {
    let Some(counts) = get() else { return };
    let words =
        counts.operations.iter().flat_map(|of| [&of.requests, &of.completions, &of.errors, &of.refused]);
    let others = [&counts.refused_setup, &counts.refused_registrations, &counts.enters];
    words.chain(others).for_each(|word| word.store(0, Ordering::Relaxed));
}

fn says_unknown(error: Errno) -> bool {
    matches!(error, Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS)
}

impl Counts {
    /// Counts a submitted request.
    pub fn submitted(&self, code: u8) {
        self.operations[usize::from(code)].requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a completion with this result.
    pub fn completed(&self, code: u8, result: i32) {
        let operation = &self.operations[usize::from(code)];
        operation.completions.fetch_add(1, Ordering::Relaxed);
        if result >= 0 {
            return;
        }
        operation.errors.fetch_add(1, Ordering::Relaxed);
        if says_unknown(Errno::from_raw(result as isize)) {
            operation.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a call of `enter`.
    pub fn entered(&self) {
        self.enters.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the flags of a failed `setup`.
    pub fn setup_failed(&self, flags: u32, error: Errno) {
        if says_unknown(error) {
            self.refused_setup.fetch_or(flags.into(), Ordering::Relaxed);
        }
    }

    /// Notes a failed registration.
    pub fn registration_failed(&self, opcode: u32, error: Errno) {
        if says_unknown(error) && opcode < u64::BITS {
            self.refused_registrations.fetch_or(1 << opcode, Ordering::Relaxed);
        }
    }

    /// Returns the counts of operations with requests.
    pub fn operations(&self) -> impl Iterator<Item = Counted> + '_ {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let all = self.operations.iter().enumerate().map(move |(code, of)| Counted {
            code: code as u8,
            requests: read(&of.requests),
            completions: read(&of.completions),
            errors: read(&of.errors),
            refused: read(&of.refused),
        });
        all.filter(|counted| counted.requests > 0)
    }

    /// Returns the number of calls of `enter`.
    pub fn enters(&self) -> u64 {
        self.enters.load(Ordering::Relaxed)
    }

    /// Returns `IORING_SETUP_*` of calls that failed because a flag may be unknown.
    pub fn refused_setup(&self) -> u32 {
        self.refused_setup.load(Ordering::Relaxed) as u32
    }

    /// Returns the `IORING_REGISTER_*` that failed as unknown.
    pub fn refused_registrations(&self) -> impl Iterator<Item = u32> + use<> {
        let bits = self.refused_registrations.load(Ordering::Relaxed);
        (0..u64::BITS).filter(move |bit| bits >> bit & 1 != 0)
    }
}
