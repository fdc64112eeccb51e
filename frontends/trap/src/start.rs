//! The start of a process that has the trap.

use crate::filter::Reach;
use crate::trap::Failure;
use crate::{Frontend, stub, trap};
use anyring_engine::Host;
use anyring_runtime::config::{Choice, Config, Level};
use anyring_runtime::process::{self, Asks, adopt, choose};
use anyring_runtime::{ask, beside, log, metrics, trace};
use linux_raw_sys::errno::ENOMEM;

/// Chooses the engine and puts the trap in place, before the program's first instruction. Whether
/// the three calls come to us: to our engine, or on their way to the kernel's, where the process is traced. Where calls do not
/// trap, that is of use only where the front end `interposes` functions.
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
    // An ancestor's engine is ours, or it was traced.
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
        // No room for one filter more: those of ancestors are of the same kind.
        if !interposes && why != Failure::Refused("seccomp", -(ENOMEM as isize)) {
            process::goes_without(config, format_args!("cannot install the trap ({why})"));
            return false;
        }
        // Programs that never use io_uring must not find this in their output, but the one that was asked for.
        let level = if config.started { Level::Off } else { Level::Info };
        log::line(
            level,
            format_args!("cannot install the trap ({why}): only calls through the C library are answered"),
        );
    }
    adopt(host);
    true
}

/// The kernel's engine was chosen. Whether its calls come to us, to be traced.
fn watch(reach: &Reach, interposes: bool, inherited: bool, host: &'static &'static dyn Host) -> bool {
    if !process::watch_kernel(host) {
        // What an ancestor's filter still traps, all of the calls or some, goes on to the kernel.
        trap::pass_on();
        return false;
    }
    // The kernel's rings are told of, or ours.
    beside::withdraw();
    let trapped = if inherited { Ok(()) } else { trap::install(reach, interposes) };
    if let Err(why) = trapped {
        let seen =
            if interposes { "only calls through the C library are traced" } else { "nothing is traced" };
        log::line(Level::Off, format_args!("cannot install the trap ({why}): {seen}"));
    }
    true
}
