//! Equal messages, by every way to send them.

use super::{About, Benchmark, Run, Side, run_workload, side};
use crate::failure::Result;
use crate::harness::hole::{ADDRESS, BlackHole};
use crate::harness::launch::{Context, On};
use crate::harness::process::Process;
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, Figure, speeds};
use crate::workload::clock::allowed_cpus;

/// The path that messages take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    LoopbackUdp,
    LoopbackTcp,
    /// A veth pair into another network namespace, which drops the messages on arrival.
    Veth,
}

/// Path, bytes of a message, messages per enter.
type Group = (Path, usize, usize);

const GROUPS: [Group; 28] = [
    (Path::LoopbackUdp, 200, 1),
    (Path::LoopbackUdp, 1500, 1),
    (Path::LoopbackUdp, 4096, 1),
    (Path::LoopbackUdp, 16_384, 1),
    (Path::LoopbackUdp, 61_440, 1),
    (Path::LoopbackUdp, 200, 8),
    (Path::LoopbackUdp, 1500, 8),
    (Path::LoopbackUdp, 4096, 8),
    (Path::LoopbackUdp, 16_384, 8),
    (Path::LoopbackUdp, 61_440, 8),
    (Path::LoopbackTcp, 200, 1),
    (Path::LoopbackTcp, 1500, 1),
    (Path::LoopbackTcp, 4096, 1),
    (Path::LoopbackTcp, 16_384, 1),
    (Path::LoopbackTcp, 65_536, 1),
    (Path::LoopbackTcp, 200, 8),
    (Path::LoopbackTcp, 4096, 8),
    (Path::LoopbackTcp, 65_536, 8),
    (Path::Veth, 200, 1),
    (Path::Veth, 1500, 1),
    (Path::Veth, 4096, 1),
    (Path::Veth, 16_384, 1),
    (Path::Veth, 61_440, 1),
    (Path::Veth, 200, 8),
    (Path::Veth, 1500, 8),
    (Path::Veth, 4096, 8),
    (Path::Veth, 16_384, 8),
    (Path::Veth, 61_440, 8),
];
const QUICK: [Group; 3] =
    [(Path::LoopbackUdp, 200, 8), (Path::LoopbackTcp, 65_536, 1), (Path::Veth, 61_440, 1)];

fn groups(quick: bool) -> &'static [Group] {
    if quick { &QUICK } else { &GROUPS }
}

const SIDES: [Side; 9] = [
    side("send", On::Denied, &["--means", "send"]),
    side("send, no filter", On::Plain, &["--means", "send"]),
    side("MSG_ZEROCOPY", On::Denied, &["--means", "zerocopy"]),
    side("kernel, SEND", On::Kernel, &["--means", "ring-send"]),
    side("kernel, SEND_ZC", On::Kernel, &["--means", "ring-zc"]),
    side("kernel, SEND_ZC fixed", On::Kernel, &["--means", "ring-zc-fixed"]),
    side("anyring, SEND", On::Anyring, &["--means", "ring-send"]),
    side("anyring, SEND_ZC", On::Anyring, &["--means", "ring-zc"]),
    side("anyring, SEND_ZC fixed", On::Anyring, &["--means", "ring-zc-fixed"]),
];

/// A sender of equal messages.
#[derive(Default)]
pub struct Send {
    hole: Option<std::result::Result<BlackHole, String>>,
}

impl Benchmark for Send {
    fn about(&self) -> About {
        About {
            name: "send",
            title: "messages of 200 bytes to 64 KiB",
            text: "One sender with 32 buffers, which it uses in turn; it uses a buffer again when its notification has arrived. There \
                   are two networks. Over the loopback interface, a process on another CPU drops the data, and never sleeps, so that \
                   no send has to wake it; a zero-copy send is copied on arrival there. Over a veth pair into a network namespace, \
                   with MTU 65535, a program drops every packet on arrival; no byte is copied there, as on the way to a network card. \
                   The sends of a ring wait for their results, with one or eight sends per enter, as in the measurements of the \
                   patches that introduced SEND_ZC (SINGLE_ISSUER, DEFER_TASKRUN); `fixed` sends from registered buffers. MSG_ZEROCOPY \
                   reads its notifications when half the buffers are in use. `send` and MSG_ZEROCOPY run under the seccomp filter that \
                   denies io_uring to anyring, because a program in the same container would, too; `send, no filter` runs without it. \
                   An operation is a message; CPU time and system calls are those of the sender.",
            goal: "SEND_ZC at least 0.95 of the better of send and MSG_ZEROCOPY; 1.5 times send at 60 KiB over veth; eight datagrams of 200 bytes per enter at least 1.2 of send",
            baseline: "send",
            sides: &SIDES,
        }
    }

    fn groups(&self, quick: bool) -> Vec<String> {
        groups(quick).iter().copied().map(label).collect()
    }

    fn prepare(&mut self, _context: &Context, _usable: &[usize]) -> Result<()> {
        self.hole = Some(BlackHole::make());
        Ok(())
    }

    fn missing(&self, context: &Context, group: usize) -> Option<String> {
        match &self.hole {
            Some(Err(why)) if groups(context.quick)[group].0 == Path::Veth => Some(why.clone()),
            _ => None,
        }
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let (path, payload, per_enter) = groups(context.quick)[group];
        let protocol = if path == Path::LoopbackTcp { "tcp" } else { "udp" };
        let cpus = allowed_cpus();
        let mut sink = (path != Path::Veth).then(|| start_sink(context, protocol, &cpus)).transpose()?;
        let to = match &mut sink {
            Some(sink) => sink.first_line()?,
            None => ADDRESS.to_owned(),
        };
        let mut command = context.workload(SIDES[side].on, "send");
        command
            .args(SIDES[side].flags)
            .args(["--protocol", protocol, "--to", &to])
            .args(["--payload", &payload.to_string()])
            .args(["--per-enter", &per_enter.to_string()])
            // Half a window: there are many cases.
            .args(["--window-ms", &(context.window().as_millis() / 2).max(1).to_string()]);
        if let [first, _, ..] = cpus[..] {
            command.args(["--cpu", &first.to_string()]);
        }
        if let (Path::Veth, Some(Ok(hole))) = (path, &self.hole) {
            hole.hold(&mut command);
        }
        run_workload(context, command, count)
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let better = outcome.cases.iter().filter_map(|case| {
            let ratio = zero_copy_over_plain(outcome, &case.name)?;
            Some(Figure::of(ratio, format!("{}: anyring, SEND_ZC", case.name)))
        });
        let large = |case: &str, side: &str| {
            case.starts_with("veth UDP, 60 KiB") && side.starts_with("anyring, SEND_ZC")
        };
        let small = |case: &str, side: &str| {
            case == "loopback UDP, 200 B, 8 per enter" && side.starts_with("anyring, SEND")
        };
        vec![
            Check::new(
                "SEND_ZC's speed over the better of send and MSG_ZEROCOPY",
                Bound::AtLeast(0.95),
                better,
            ),
            Check::new(
                "SEND_ZC's speed over send, 60 KiB over veth",
                Bound::AtLeast(1.5),
                speeds(outcome, large),
            ),
            Check::new(
                "speed over send, eight datagrams of 200 bytes per enter",
                Bound::AtLeast(1.2),
                speeds(outcome, small),
            ),
        ]
    }

    fn findings(&self, outcome: &Outcome) -> Vec<String> {
        let better = |case: &str| Some(format!("{case} {:.2}", zero_copy_over_plain(outcome, case)?));
        let copied = |case: &str, side: &str| {
            let share = outcome.side(case, side)?.copied?;
            Some(format!("{case}, {side} {:.0}%", share * 100.0))
        };
        let names = || outcome.cases.iter().map(|case| case.name.as_str());
        let better: Vec<String> = names().filter_map(better).collect();
        let zero_copy = ["MSG_ZEROCOPY", "kernel, SEND_ZC", "anyring, SEND_ZC"];
        let copied: Vec<String> =
            names().flat_map(|case| zero_copy.iter().filter_map(move |side| copied(case, side))).collect();
        let mut text = Vec::new();
        if !better.is_empty() {
            text.push(format!(
                "The better of anyring's SEND_ZC (from the program's buffers and from registered ones) over the better of send and MSG_ZEROCOPY: {}.",
                better.join("; ")
            ));
        }
        if !copied.is_empty() {
            text.push(format!("Copied after all, as the notifications say: {}.", copied.join("; ")));
        }
        text
    }
}

/// Returns the speed of the better SEND_ZC of anyring over that of the better plain call.
fn zero_copy_over_plain(outcome: &Outcome, case: &str) -> Option<f64> {
    let time = |side: &str| Some(outcome.side(case, side)?.ns_per_op);
    let best_plain = time("send")?.min(time("MSG_ZEROCOPY")?);
    let best_ring = time("anyring, SEND_ZC")?.min(time("anyring, SEND_ZC fixed")?);
    Some(best_plain / best_ring)
}

fn label((path, payload, per_enter): Group) -> String {
    let path = match path {
        Path::LoopbackUdp => "loopback UDP",
        Path::LoopbackTcp => "loopback TCP",
        Path::Veth => "veth UDP",
    };
    let size = match payload {
        bytes if bytes % 1024 == 0 => format!("{} KiB", bytes / 1024),
        bytes => format!("{bytes} B"),
    };
    match per_enter {
        1 => format!("{path}, {size}"),
        many => format!("{path}, {size}, {many} per enter"),
    }
}

/// Starts the sink, which polls without sleeping if it has a CPU of its own.
fn start_sink(context: &Context, protocol: &str, cpus: &[usize]) -> Result<Process> {
    let mut command = context.workload(On::Plain, "sink");
    command.args(["--protocol", protocol]);
    if let [_, .., last] = cpus {
        command.args(["--cpu", &last.to_string(), "--awake"]);
    }
    Process::start(command, &context.scratch, context.limit())
}
