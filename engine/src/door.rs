//! What a door must tell the engine, and may ask it, beside the three calls: descriptors that were
//! closed or duplicated, readiness of ring descriptors, faults.

/// Counters of this process since the engine was first used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rings created.
    pub rings: u64,
    /// SQEs taken from submission rings.
    pub submitted: u64,
    /// CQEs posted to completion rings (or kept for them on overflow).
    pub completed: u64,
}

/// The process's counters.
pub fn counters() -> Counters {
    Counters::default()
}

/// Whether `fd` is a ring of this engine.
pub fn is_ring(_fd: i32) -> bool {
    false
}

/// The program closed `fd` (or replaced it by `dup2`); call it *before* the number can be reused.
/// Any descriptor may be named: kept readiness registrations end, a ring loses one reference.
pub fn closed(_fd: i32) {}

/// The program duplicated `old` to `new` (`dup`, `dup2`, `dup3`, `F_DUPFD`). Harmless where `old` is no ring.
pub fn duplicated(_old: i32, _new: i32) {}

/// A descriptor that can be polled in place of the ring `fd`: readable while the CQ holds
/// completions, as of the last [`sync_readiness`] or completion. It stays the engine's to close.
///
/// # Errors
/// Negative errno where `fd` is no ring or a descriptor cannot be had.
pub fn readiness_fd(_fd: i32) -> Result<i32, i32> {
    Err(-38)
}

/// Brings the descriptor of [`readiness_fd`] in line with the CQ: readable if it holds
/// completions, not readable if the program has taken them all. Call it before a level-triggered
/// wait. Returns whether it is readable.
pub fn sync_readiness(_fd: i32) -> bool {
    false
}

/// Where to resume a thread that faulted (`SIGSEGV`, `SIGBUS`) at `instruction_pointer`, if that
/// lies in one of the engine's guarded copies.
pub fn resume_address(_instruction_pointer: usize) -> Option<usize> {
    None
}

/// The first and the end address of the engine's system call stub: a filter that traps the
/// program's calls must let those from here through.
pub fn syscall_stub() -> core::ops::Range<usize> {
    0..0
}

/// The process has forked and this is the child: every ring of the parent becomes one without
/// threads and without the parent's requests. A door that sees `fork` calls it; the engine also
/// finds out by itself at the next call.
pub fn forked() {}
