//! Injected faults in words.

use anyring_chaos_plan::{FIRST_PROCESS, Fault, Met};
use anyring_engine::ops;
use anyring_engine::support::REGISTRATIONS;

use crate::Injected;

/// Returns a text such as `READ #12 of ring 1: short (a transfer moves only a part)`.
pub fn describe(injected: &Injected) -> String {
    let Injected { fault, serial, ring, process, pid, .. } = *injected;
    let subject = subject(injected);
    let mut text = match fault.met_by() {
        Met::Setup => format!("{subject} #{serial}"),
        Met::Enter | Met::Register => format!("{subject}, call #{serial} of ring {ring}"),
        Met::Request => format!("{subject} #{serial} of ring {ring}"),
    };
    if process != FIRST_PROCESS {
        text.push_str(&format!(" in process {pid}"));
    }
    text.push_str(&format!(": {} ({})", fault.name(), fault.about()));
    text
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
        Met::Request => {
            let known = ops::ROWS.iter().find(|op| u16::from(op.code) == injected.opcode);
            known.map_or_else(|| format!("operation {}", injected.opcode), |op| op.name.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::injected;

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
        let child = Injected { process: 77, pid: 1234, ..read };
        assert!(describe(&child).contains("ring 1 in process 1234: short"));
    }
}
