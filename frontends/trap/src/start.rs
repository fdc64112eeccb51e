//! The start of a process that has the trap.

use crate::filter::Reach;
use crate::{Frontend, stub, trap};
use anyring_engine::Host;
use anyring_runtime::config::{Choice, Config};
use anyring_runtime::process::{adopt, choose};
use anyring_runtime::{log, sys};

/// Chooses the engine and puts the trap in place, before the program's first instruction. Whether
/// the engine is ours.
pub fn begin(
    config: &Config,
    reach: &Reach,
    frontend: &'static &'static dyn Frontend,
    host: &'static &'static dyn Host,
) -> bool {
    crate::set_frontend(frontend);
    if let Err(error) = stub::install() {
        log::write(format_args!("cannot place the stub page (errno {}): io_uring is left as it is", -error));
        return false;
    }
    // SAFETY: creates nothing, reads nothing; the stub is in place.
    let kernel = |number, arguments| unsafe { stub::syscall(number, arguments) };
    if choose(config.choice, kernel) == Choice::Kernel {
        // A filter that an ancestor installed still traps; then, and only then, calls are passed on.
        if under_a_filter() {
            let _ = trap::install(Choice::Kernel, reach);
        }
        return false;
    }
    adopt(host);
    if let Err((what, error)) = trap::install(Choice::User, reach) {
        log::write(format_args!(
            "cannot install the trap ({what}, errno {}): only calls through the C library are answered",
            -error
        ));
    }
    true
}

/// Whether the process has a seccomp filter.
fn under_a_filter() -> bool {
    const PR_GET_SECCOMP: u32 = 21;
    // SAFETY: asks only.
    unsafe { sys::prctl(PR_GET_SECCOMP, 0) != 0 }
}
