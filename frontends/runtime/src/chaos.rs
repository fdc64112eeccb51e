//! The faults that this process meets: it attaches to the plan of `anyring chaos`, of which `ANYRING_CHAOS` is the path.

use crate::process::OWN_FAILURE;
use crate::{attach, config, log, sys};
use anyring_engine::frontend;
use core::sync::atomic::AtomicBool;

/// Attaches the process, where it is to meet faults; once. One that was started to meet some does not go without.
pub fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    let Some(path) = config::chaos_path() else { return };
    let attached = attach::once(&BEGUN, Some(path), "meets no faults", frontend::plan_from);
    if !attached && config::was_started() {
        // Without them, it would seem to pass.
        let path = path.to_str().unwrap_or_default();
        log::write(format_args!("{path} is no plan of faults: start the program by anyring chaos"));
        sys::exit_group(OWN_FAILURE);
    }
}
