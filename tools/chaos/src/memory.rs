//! The plan's memory in the process that creates the plan.

use std::io;

use anyring_chaos_plan::journal::LAST_MOMENT;
use anyring_chaos_plan::{Entry, Fault, Mode, Plan, Settings, bytes};
use anyring_mapping::SharedFile;

use crate::Harms;

/// The number of faults in the log: 3 MiB. Each process maps the whole log, which takes time for each page.
const ROOM: usize = 1 << 16;

/// The faults that a run meets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dose {
    /// The settings from which faults are drawn.
    pub settings: Settings,
    /// If set, only decisions with these ids are carried out.
    pub only: Option<Vec<u64>>,
}

impl Dose {
    /// Creates a dose with all faults that the seed decides.
    pub fn of(settings: Settings) -> Dose {
        Dose { settings, only: None }
    }

    /// Creates a dose without faults.
    pub fn nothing(settings: Settings) -> Dose {
        Dose { settings, only: Some(Vec::new()) }
    }

    /// Creates a dose with only these faults.
    pub fn only(settings: Settings, injected: &[Injected]) -> Dose {
        let mut ids: Vec<u64> = injected.iter().map(|one| one.id).collect();
        ids.sort_unstable();
        ids.dedup();
        Dose { settings, only: Some(ids) }
    }

    /// Returns the moment of the power cut among these faults; 0 if there is none. The id of a cut is its moment, and no other id is so small.
    pub(crate) fn moment(&self) -> u64 {
        self.only.iter().flatten().copied().find(|id| (1..=LAST_MOMENT).contains(id)).unwrap_or(0)
    }
}

/// A fault that was injected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Injected {
    /// The number that identifies the decision; the moment, if the power was cut there.
    pub id: u64,
    /// The fault.
    pub fault: Fault,
    /// The operation of the request or registration; 0 for other calls.
    pub opcode: u16,
    /// The number of the request or call in its ring.
    pub serial: u64,
    /// The number of the ring in its process.
    pub ring: u32,
    /// The path of the process.
    pub process: u64,
    /// The process ID, as the process sees it.
    pub pid: u32,
    /// The loss or the moment in words, if the fault is a loss or a power cut; otherwise empty.
    pub detail: String,
}

impl From<Entry> for Injected {
    fn from(entry: Entry) -> Injected {
        let Entry { injection, subject, opcode, pid } = entry;
        let detail = match subject.fault {
            Fault::CutBefore | Fault::CutAfter => format!("moment {}", injection.id),
            _ => String::new(),
        };
        Injected {
            id: injection.id,
            fault: subject.fault,
            opcode,
            serial: subject.serial,
            ring: subject.who.ring,
            process: subject.who.process,
            pid,
            detail,
        }
    }
}

/// A plan in a memory file, which other processes open by its path.
pub struct SharedPlan {
    /// The plan, which lies in the file.
    plan: Plan,
    file: SharedFile,
}

impl SharedPlan {
    /// Creates a shared plan.
    ///
    /// # Errors
    /// Returns errors of `memfd_create`, `ftruncate` and `mmap`.
    pub fn new(dose: &Dose) -> io::Result<SharedPlan> {
        let mode = dose.only.as_deref().map_or(Mode::Random, Mode::Only);
        let file = SharedFile::new(c"anyring-chaos", bytes(mode, ROOM))
            .map_err(|error| io::Error::from_raw_os_error(-error.negated()))?;
        // SAFETY: fresh memory, aligned to pages, which is unmapped when the plan is dropped.
        let plan = unsafe { Plan::create(file.address(), dose.settings, mode, ROOM) };
        Ok(SharedPlan { plan, file })
    }

    /// Returns the path by which processes of this user open the plan, while this value exists.
    pub fn path(&self) -> String {
        self.file.path()
    }

    /// Returns the faults injected so far, and the number of faults that did not fit into the log.
    pub fn injected(&self) -> (Vec<Injected>, u64) {
        (self.plan.log().map(Injected::from).collect(), self.plan.unlogged())
    }

    /// Returns the harm to memory in flight that was found so far.
    pub fn harms(&self) -> Harms {
        let (logged, count) = self.plan.harms();
        Harms { logged: logged.collect(), count }
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

#[cfg(test)]
pub(crate) fn injected(fault: Fault, serial: u64) -> Injected {
    const READ: u16 = 22;
    Injected {
        id: serial * 1000 + fault as u64,
        fault,
        opcode: READ,
        serial,
        ring: 1,
        process: 0,
        pid: 9,
        detail: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_chaos_plan::{Faults, MILLION, Subject, Who};

    #[test]
    fn another_mapping_sees_the_plan_and_its_notes_are_seen() {
        let settings = Settings { seed: 5, rate: MILLION, faults: Faults::ALL, delay_ns: 0 };
        let shared = SharedPlan::new(&Dose::of(settings)).unwrap();
        let length = std::fs::metadata(shared.path()).unwrap().len() as usize;
        assert_eq!(length, shared.file.length());
        let subject = Subject { who: Who { process: 0, ring: 1 }, serial: 3, fault: Fault::Late };
        let injection = shared.plan().decide(&subject).expect("at this rate");
        shared.plan().note(&Entry { injection, subject, opcode: 22, pid: 9 });
        let (injected, unlogged) = shared.injected();
        assert_eq!((injected.len(), unlogged), (1, 0));
        assert_eq!((injected[0].fault, injected[0].serial), (Fault::Late, 3));

        let only = Dose::only(settings, &injected);
        let shared = SharedPlan::new(&only).unwrap();
        assert!(shared.plan().decide(&subject).is_some());
        assert!(shared.plan().decide(&Subject { serial: 4, ..subject }).is_none());
        assert!(SharedPlan::new(&Dose::nothing(settings)).unwrap().plan().decide(&subject).is_none());
    }
}
