//! The start of a process that has the trap.

use crate::filter::Reach;
use crate::trap::Failure;
use crate::{Frontend, stub, trap};
use anyring_engine::Host;
use anyring_runtime::config::{Choice, Config, Level};
use anyring_runtime::process::{self, Asks, adopt, choose};
use anyring_runtime::{ask, beside, log, metrics, trace};
use linux_raw_sys::errno::ENOMEM;

/// Chooses the engine and installs the trap, before the program's first instruction. Returns true if anyring sees the three calls:
/// the user engine answers them, or they are traced on their way to the kernel. If calls do not trap, anyring sees only those that
/// the front end `interposes`.
pub fn begin(
    config: &Config,
    reach: &Reach,
    interposes: bool,
    frontend: &'static &'static dyn Frontend,
    host: &'static &'static dyn Host,
) -> bool {
    crate::set_frontend(frontend);
    if let Err(error) = stub::install() {
        if stub::is_others() {
            process::leaves_to_another();
            return false;
        }
        process::goes_without(config, format_args!("cannot place the stub page (errno {})", -error));
        return false;
    }
    // SAFETY: makes a ring; the stub is in place.
    let kernel = |number, arguments| unsafe { stub::syscall(number, arguments) };
    let inherited = ask::is_filtered() && trap::inherit(reach) == Ok(true);
    // An ancestor has installed the filter for the user engine, or to be traced.
    let known = inherited && config.choice == Choice::Auto && !trace::is_wanted();
    let asked = if known { Choice::User } else { config.choice };
    let engine = choose(asked, Asks::Thread, kernel);
    let nobody_answers = engine == Choice::Kernel && asked == Choice::Auto && !beside::is_offered();
    if nobody_answers || engine == Choice::User && !inherited && process::rings_kill() {
        process::goes_without(config, format_args!("{}", process::RINGS_KILL));
        return false;
    }
    if engine == Choice::Kernel {
        metrics::left_to_kernel();
        return watch(reach, interposes, inherited, host);
    }
    let trapped = if inherited { Ok(()) } else { trap::install(reach, interposes) };
    if let Err(why) = trapped {
        // `ENOMEM`: no room for one more filter; those of ancestors trap the same calls.
        if !interposes && why != Failure::Refused("seccomp", -(ENOMEM as isize)) {
            process::goes_without(config, format_args!("cannot install the trap ({why})"));
            return false;
        }
        // Only the program that the user has started always reports this: others may never use io_uring.
        let level = if config.started { Level::Off } else { Level::Info };
        log::line(
            level,
            format_args!("cannot install the trap ({why}): only calls through the C library are answered"),
        );
    }
    adopt(host);
    true
}

/// Installs the trap for the kernel engine, if calls are to be traced; returns true if they are.
fn watch(reach: &Reach, interposes: bool, inherited: bool, host: &'static &'static dyn Host) -> bool {
    if !process::watch_kernel(host) {
        // The trap passes on to the kernel the calls that an ancestor's filter still traps.
        trap::pass_on();
        return false;
    }
    // A trace shows the kernel's rings only: the user engine makes none.
    beside::withdraw();
    let trapped = if inherited { Ok(()) } else { trap::install(reach, interposes) };
    if let Err(why) = trapped {
        let seen =
            if interposes { "only calls through the C library are traced" } else { "nothing is traced" };
        log::line(Level::Off, format_args!("cannot install the trap ({why}): {seen}"));
    }
    true
}
