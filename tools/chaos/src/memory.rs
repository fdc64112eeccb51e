//! The plan's memory, as the process has it that makes the plan.

use std::io;

use anyring_chaos_plan::{Entry, Fault, Mode, Plan, Settings, bytes};
use anyring_mapping::SharedFile;

/// How many faults the log has room for: 3 MiB. Processes map all of it at once, which takes time for each page.
const ROOM: usize = 1 << 16;

/// The faults that a run meets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dose {
    /// The settings from which faults are drawn.
    pub settings: Settings,
    /// Only decisions with these ids are carried out, if there is a list.
    pub only: Option<Vec<u64>>,
}

impl Dose {
    /// All that the seed decides.
    pub fn of(settings: Settings) -> Dose {
        Dose { settings, only: None }
    }

    /// None of it.
    pub fn nothing(settings: Settings) -> Dose {
        Dose { settings, only: Some(Vec::new()) }
    }

    /// The dose that has only these of its faults.
    pub fn only(settings: Settings, injected: &[Injected]) -> Dose {
        let mut ids: Vec<u64> = injected.iter().map(|one| one.id).collect();
        ids.sort_unstable();
        ids.dedup();
        Dose { settings, only: Some(ids) }
    }
}

/// A fault that was injected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Injected {
    /// The number that tells the decision from others.
    pub id: u64,
    /// Which fault.
    pub fault: Fault,
    /// The operation; of calls, that of `register`, or 0.
    pub opcode: u16,
    /// Which request or call of its ring.
    pub serial: u64,
    /// Which ring of its process.
    pub ring: u32,
    /// The path of the process.
    pub process: u64,
    /// The process, as it calls itself.
    pub pid: u32,
}

impl From<Entry> for Injected {
    fn from(entry: Entry) -> Injected {
        let Entry { injection, subject, opcode, pid } = entry;
        Injected {
            id: injection.id,
            fault: subject.fault,
            opcode,
            serial: subject.serial,
            ring: subject.who.ring,
            process: subject.who.process,
            pid,
        }
    }
}

/// A plan in a file in memory, which other processes open by its path.
pub struct SharedPlan {
    /// Lies in the file.
    plan: Plan,
    file: SharedFile,
}

impl SharedPlan {
    /// Makes one.
    ///
    /// # Errors
    /// Those of `memfd_create`, `ftruncate` and `mmap`.
    pub fn new(dose: &Dose) -> io::Result<SharedPlan> {
        let mode = dose.only.as_deref().map_or(Mode::Random, Mode::Only);
        let file = SharedFile::new(c"anyring-chaos", bytes(mode, ROOM))
            .map_err(|error| io::Error::from_raw_os_error(-error.negated()))?;
        // SAFETY: fresh memory, aligned to pages, which is unmapped when the plan is dropped.
        let plan = unsafe { Plan::create(file.address(), dose.settings, mode, ROOM) };
        Ok(SharedPlan { plan, file })
    }

    /// Where processes of this user find it, as long as it is there.
    pub fn path(&self) -> String {
        self.file.path()
    }

    /// The faults that were injected so far, and how many found no room in the log.
    pub fn injected(&self) -> (Vec<Injected>, u64) {
        (self.plan.log().map(Injected::from).collect(), self.plan.unlogged())
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

#[cfg(test)]
pub(crate) fn injected(fault: Fault, serial: u64) -> Injected {
    const READ: u16 = 22;
    Injected { id: serial * 1000 + fault as u64, fault, opcode: READ, serial, ring: 1, process: 0, pid: 9 }
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
