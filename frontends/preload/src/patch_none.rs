//! Call-site patching, on architectures where it is not needed badly enough: every call traps.

use core::sync::atomic::AtomicU64;

/// Call sites that no longer trap.
pub static SITES: AtomicU64 = AtomicU64::new(0);

/// Patches nothing.
pub fn before_main(_entry: usize) {}

/// Patches nothing.
pub fn trapped_at(_next: usize) {}
