//! Injected faults in words.

use anyring_chaos_plan::{FIRST_PROCESS, Fault, Harm, Harmed, Met};
use anyring_engine::ops;
use anyring_engine::support::REGISTRATIONS;

use crate::Injected;

/// Returns a text such as `READ #12 of ring 1: short (a transfer moves only a part)`.
pub fn describe(injected: &Injected) -> String {
    let &Injected { fault, serial, ring, process, pid, .. } = injected;
    let subject = subject(injected);
    let mut text = match fault.met_by() {
        Met::Setup => format!("{subject} #{serial}"),
        Met::Enter | Met::Register => format!("{subject}, call #{serial} of ring {ring}"),
        Met::Request if ring == 0 => format!("{subject}, plain call #{serial}"),
        Met::Request => format!("{subject} #{serial} of ring {ring}"),
    };
    text.push_str(&in_process(process, pid));
    text.push_str(&format!(": {} ({})", fault.name(), fault.about()));
    if !injected.detail.is_empty() {
        text.push_str(&format!(": {}", injected.detail));
    }
    text
}

fn in_process(process: u64, pid: u32) -> String {
    if process == FIRST_PROCESS { String::new() } else { format!(" in process {pid}") }
}

/// Returns a text such as `WRITE #12 of ring 1: its data changed before its completion`.
pub fn describe_harm(harmed: &Harmed) -> String {
    let Harmed { who, serial, opcode, pid, harm } = *harmed;
    let what = match harm {
        Harm::Changed => "its data changed before its completion",
        Harm::Unmapped => "its memory was unmapped before its completion",
        Harm::Poisoned => "its memory is freed or too short at its completion, by AddressSanitizer",
    };
    let (name, ring, place) = (operation(opcode), who.ring, in_process(who.process, pid));
    format!("{name} #{serial} of ring {ring}{place}: {what}")
}

/// Returns the name of a plain call by its number.
fn plain_call(number: u16) -> String {
    const NAMES: [(i64, &str); 9] = [
        (libc::SYS_fsync, "fsync"),
        (libc::SYS_fdatasync, "fdatasync"),
        (libc::SYS_syncfs, "syncfs"),
        (libc::SYS_sync, "sync"),
        (libc::SYS_ftruncate, "ftruncate"),
        (libc::SYS_unlinkat, "unlink"),
        (libc::SYS_mkdirat, "mkdir"),
        (libc::SYS_renameat2, "rename"),
        (libc::SYS_linkat, "link"),
    ];
    let known = NAMES.iter().find(|(one, _)| *one == i64::from(number));
    known.map_or_else(|| "symlink".to_owned(), |(_, name)| (*name).to_owned())
}

fn operation(opcode: u16) -> String {
    let known = ops::ROWS.iter().find(|op| u16::from(op.code) == opcode);
    known.map_or_else(|| format!("operation {opcode}"), |op| op.name.to_owned())
}

/// Returns the name of the operation or call that met the fault.
pub(crate) fn subject(injected: &Injected) -> String {
    match injected.fault.met_by() {
        Met::Setup => "setup".to_owned(),
        Met::Enter => "enter".to_owned(),
        Met::Register => {
            let name = REGISTRATIONS.of(u32::from(injected.opcode));
            format!("register({})", name.map_or_else(|| injected.opcode.to_string(), str::to_owned))
        }
        // Notifications are numbered separately.
        Met::Request if injected.fault == Fault::NotificationLate => "notification".to_owned(),
        Met::Request if injected.ring == 0 => plain_call(injected.opcode),
        Met::Request => operation(injected.opcode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::injected;
    use anyring_chaos_plan::Who;

    #[test]
    fn requests_calls_and_processes_are_named() {
        let read = injected(Fault::Short, 12);
        assert_eq!(describe(&read), "READ #12 of ring 1: short (a transfer moves only a part)");
        let enter = injected(Fault::EnterAgain, 3);
        assert!(describe(&enter).starts_with("enter, call #3 of ring 1: enter-eagain ("));
        let register = Injected { opcode: 0, ..injected(Fault::RegisterBusy, 4) };
        assert!(
            describe(&register).starts_with("register(IORING_REGISTER_BUFFERS), call #4"),
            "{}",
            describe(&register)
        );
        let setup = Injected { ring: 0, ..injected(Fault::SetupNoMemory, 1) };
        assert!(describe(&setup).starts_with("setup #1: "));
        let who = Who { process: FIRST_PROCESS, ring: 2 };
        let harmed = Harmed { who, serial: 7, opcode: 23, pid: 9, harm: Harm::Changed };
        assert_eq!(describe_harm(&harmed), "WRITE #7 of ring 2: its data changed before its completion");
        let child = Injected { process: 77, pid: 1234, ..read };
        assert!(describe(&child).contains("ring 1 in process 1234: short"));
    }
}
