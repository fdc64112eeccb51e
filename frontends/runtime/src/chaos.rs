//! The faults that this process meets: it attaches to the plan of `anyring chaos`, of which `ANYRING_CHAOS` is the path.

use crate::{attach, config};
use anyring_engine::frontend;
use core::sync::atomic::AtomicBool;

/// Attaches the process, where it is to meet faults; once.
pub fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    attach::once(&BEGUN, config::chaos_path(), "meets no faults", frontend::plan_from);
}
