//! Fault injection in this process: it attaches to the plan of `anyring chaos`, whose path is in `ANYRING_CHAOS`.

use crate::process::OWN_FAILURE;
use crate::{attach, config, log, sys};
use anyring_engine::frontend;
use core::sync::atomic::AtomicBool;

/// Attaches the process to the plan, if there is one; once. A process that was started by `anyring chaos` ends if this fails.
pub fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    let Some(path) = config::chaos_path() else { return };
    let attached = attach::once(&BEGUN, Some(path), "meets no faults", frontend::plan_from);
    if !attached && config::was_started() {
        // Without faults, the process would seem to pass the test.
        let path = path.to_str().unwrap_or_default();
        log::write(format_args!("{path} is no plan of faults: start the program by anyring chaos"));
        sys::exit_group(OWN_FAILURE);
    }
}
