//! The plan's memory.
//!
//! ```text
//!  ┌────────┬─────────────┬───────────────────────┐
//!  │ header │ ids, sorted │ log, one entry a fault│
//!  └────────┴─────────────┴───────────────────────┘
//! ```

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::decision::{FIRST_PROCESS, Injection, Subject, Who, child};
use crate::fault::{Fault, Faults};

const MAGIC: u64 = 0x3173_6f61_6863_7261;
const HEADER: usize = 20 << 10;
/// The maximum number of processes whose paths depend on what made them; later processes get paths of orphans.
const PROCESSES: usize = 1024;
/// The maximum length of the log and of the list of ids: a longer one does not come from this crate.
const MOST: usize = 1 << 32;

#[repr(C)]
struct Header {
    magic: AtomicU64,
    seed: AtomicU64,
    faults: AtomicU64,
    rate: AtomicU32,
    only: AtomicU32,
    delay_ns: AtomicU64,
    /// The number of ids.
    ids: AtomicU64,
    /// The number of entries for which the log has room.
    room: AtomicU64,
    /// The number of entries that were claimed, including those without room.
    claimed: AtomicU64,
    /// The number of times that harm was noted.
    harmed: AtomicU64,
    /// The number of processes that were made by no process in the table.
    orphans: AtomicU64,
    /// The process that has the journal, in its own PID namespace, and its descriptor; 0 if there is no journal.
    journal_pid: AtomicU32,
    journal_fd: AtomicU32,
    processes: [Process; PROCESSES],
}

/// A process in the table, in which the processes that it makes or becomes find its path.
#[repr(C)]
struct Process {
    /// The process's id in its own PID namespace; 0 for a free entry.
    pid: AtomicU32,
    /// The number of programs that the process has executed, or started other than by `fork`.
    programs: AtomicU32,
    path: AtomicU64,
}

const _: () = assert!(size_of::<Header>() <= HEADER);

/// The selection of the seed's decisions that are carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode<'a> {
    /// All decisions.
    Random,
    /// The decisions with these ids, which must be sorted.
    Only(&'a [u64]),
}

/// The parameters of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The number from which the decisions are drawn.
    pub seed: u64,
    /// Faults per [`crate::MILLION`] decisions.
    pub rate: u32,
    /// The faults that are on.
    pub faults: Faults,
    /// The length of pauses, and the delay of late completions, in nanoseconds; 0 if each decision is to set its own.
    pub delay_ns: u64,
}

/// A fault that was injected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The injection that was decided.
    pub injection: Injection,
    /// The decision's subject.
    pub subject: Subject,
    /// The opcode of the request, or the registration's of a `register`; 0 for other calls.
    pub opcode: u16,
    /// The process's id in its own PID namespace.
    pub pid: u32,
}

/// Harm that a program does to memory of a request in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Harm {
    /// The program has changed data before the request that writes or sends them completed.
    Changed = 0x100,
    /// The memory is not there any more.
    Unmapped = 0x101,
    /// AddressSanitizer says that the memory must not be accessed: it was freed, or ends earlier.
    Poisoned = 0x102,
}

impl Harm {
    /// Returns the harm with this number.
    const fn of(number: u16) -> Option<Harm> {
        match number {
            0x100 => Some(Harm::Changed),
            0x101 => Some(Harm::Unmapped),
            0x102 => Some(Harm::Poisoned),
            _ => None,
        }
    }
}

// The log distinguishes harm from faults by the number.
const _: () = {
    let mut place = 0;
    while place < Fault::ALL.len() {
        assert!(Harm::of(Fault::ALL[place] as u16).is_none());
        place += 1;
    }
};

/// Harm to the memory of a certain request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Harmed {
    /// The process and the ring.
    pub who: Who,
    /// The number of the request within its ring.
    pub serial: u64,
    /// The opcode of the request.
    pub opcode: u16,
    /// The process's id in its own PID namespace.
    pub pid: u32,
    /// The harm.
    pub harm: Harm,
}

/// The representation of an [`Entry`], or of a [`Harmed`], in the log.
#[repr(C)]
struct Slot {
    id: AtomicU64,
    process: AtomicU64,
    serial: AtomicU64,
    value: AtomicU64,
    ring: AtomicU32,
    pid: AtomicU32,
    /// The opcode in the lower half, the fault in the upper half.
    what: AtomicU32,
    /// 1 once the entry is written completely.
    written: AtomicU32,
}

impl Slot {
    fn who(&self) -> Who {
        Who { process: self.process.load(Ordering::Relaxed), ring: self.ring.load(Ordering::Relaxed) }
    }

    fn entry(&self) -> Option<Entry> {
        let what = self.what.load(Ordering::Relaxed);
        let fault = Fault::of((what >> 16) as u16)?;
        let (id, value) = (self.id.load(Ordering::Relaxed), self.value.load(Ordering::Relaxed));
        let subject = Subject { who: self.who(), serial: self.serial.load(Ordering::Relaxed), fault };
        let pid = self.pid.load(Ordering::Relaxed);
        Some(Entry { injection: Injection { id, value }, subject, opcode: what as u16, pid })
    }

    fn harmed(&self) -> Option<Harmed> {
        let what = self.what.load(Ordering::Relaxed);
        let harm = Harm::of((what >> 16) as u16)?;
        let (serial, pid) = (self.serial.load(Ordering::Relaxed), self.pid.load(Ordering::Relaxed));
        Some(Harmed { who: self.who(), serial, opcode: what as u16, pid, harm })
    }
}

/// Returns the size of a plan's memory in bytes.
pub const fn bytes(mode: Mode<'_>, room: usize) -> usize {
    let ids = match mode {
        Mode::Random => 0,
        Mode::Only(ids) => ids.len(),
    };
    HEADER + ids * size_of::<AtomicU64>() + room * size_of::<Slot>()
}

/// A plan that is mapped in this process.
pub struct Plan {
    memory: NonNull<u8>,
    /// Read once, as is `room`: later changes of the memory have no effect on them.
    ids: usize,
    room: usize,
}

// SAFETY: all of the memory is accessed atomically.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

impl Plan {
    /// Makes a plan whose log has room for `room` entries, in fresh memory of [`bytes`]`(mode, room)` zeros.
    ///
    /// # Panics
    /// If the ids are not sorted.
    ///
    /// # Safety
    /// The memory must be aligned to 8 bytes, live as long as the plan, and be accessed as a plan only.
    pub unsafe fn create(memory: NonNull<u8>, settings: Settings, mode: Mode<'_>, room: usize) -> Plan {
        let (only, ids) = match mode {
            Mode::Random => (false, &[][..]),
            Mode::Only(ids) => (true, ids),
        };
        assert!(ids.is_sorted(), "they are searched");
        let plan = Plan { memory, ids: ids.len(), room };
        let header = plan.header();
        header.seed.store(settings.seed, Ordering::Relaxed);
        header.rate.store(settings.rate, Ordering::Relaxed);
        header.faults.store(settings.faults.bits(), Ordering::Relaxed);
        header.delay_ns.store(settings.delay_ns, Ordering::Relaxed);
        header.only.store(u32::from(only), Ordering::Relaxed);
        header.ids.store(ids.len() as u64, Ordering::Relaxed);
        header.room.store(room as u64, Ordering::Relaxed);
        for (place, id) in ids.iter().enumerate() {
            plan.id(place).store(*id, Ordering::Relaxed);
        }
        // Release pairs with the acquire load in `open`.
        header.magic.store(MAGIC, Ordering::Release);
        plan
    }

    /// Opens a plan that another process has made, in `length` bytes of memory; `None` if the memory holds no valid plan.
    ///
    /// # Safety
    /// As for [`Plan::create`].
    pub unsafe fn open(memory: NonNull<u8>, length: usize) -> Option<Plan> {
        if length < HEADER {
            return None;
        }
        let mut plan = Plan { memory, ids: 0, room: 0 };
        let header = plan.header();
        // Acquire pairs with the release store in `create`.
        let is_one = header.magic.load(Ordering::Acquire) == MAGIC;
        let ids = usize::try_from(header.ids.load(Ordering::Relaxed)).ok()?;
        let room = usize::try_from(header.room.load(Ordering::Relaxed)).ok()?;
        if !is_one || ids > MOST || room > MOST {
            return None;
        }
        let needed = HEADER + ids * size_of::<AtomicU64>() + room * size_of::<Slot>();
        if needed > length {
            return None;
        }
        (plan.ids, plan.room) = (ids, room);
        Some(plan)
    }

    /// Registers a process that begins, and returns its path: it is the first process of a program, or `pid` became it by `exec`, or
    /// `parent` started it.
    pub fn begin(&self, pid: u32, parent: u32) -> u64 {
        /// The bit that distinguishes programs from children by `fork`.
        const PROGRAM: u64 = 1 << 63;
        let known = self.process(pid).or_else(|| self.process(parent));
        let path = match known {
            Some(process) => {
                let number = process.programs.fetch_add(1, Ordering::Relaxed);
                child(process.path.load(Ordering::Relaxed), PROGRAM | u64::from(number))
            }
            None => match self.header().orphans.fetch_add(1, Ordering::Relaxed) {
                0 => FIRST_PROCESS,
                number => child(FIRST_PROCESS, PROGRAM >> 1 | number),
            },
        };
        self.enter(pid, path);
        path
    }

    /// Sets the path of a process.
    pub fn enter(&self, pid: u32, path: u64) {
        let place = self.process(pid).or_else(|| {
            let free = |process: &&Process| {
                process.pid.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            };
            self.header().processes.iter().find(free)
        });
        if let Some(process) = place {
            process.path.store(path, Ordering::Relaxed);
        }
    }

    /// Returns the processes of the plan, also those that have ended, by their numbers in their own PID namespaces.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        let pids = self.header().processes.iter().map(|process| process.pid.load(Ordering::Relaxed));
        pids.filter(|&pid| pid != 0)
    }

    fn process(&self, pid: u32) -> Option<&Process> {
        self.header().processes.iter().find(|process| process.pid.load(Ordering::Relaxed) == pid)
    }

    fn header(&self) -> &Header {
        // SAFETY: the header is within the memory, aligned, and consists of atomics.
        unsafe { self.memory.cast::<Header>().as_ref() }
    }

    fn id(&self, place: usize) -> &AtomicU64 {
        debug_assert!(place < self.ids);
        // SAFETY: the id is one of those after the header.
        unsafe { self.memory.add(HEADER).cast::<AtomicU64>().add(place).as_ref() }
    }

    fn slot(&self, place: usize) -> &Slot {
        debug_assert!(place < self.room);
        let slots = HEADER + self.ids * size_of::<AtomicU64>();
        // SAFETY: the slot is one of those after the ids.
        unsafe { self.memory.add(slots).cast::<Slot>().add(place).as_ref() }
    }

    /// Returns the parameters with which the plan was made.
    pub fn settings(&self) -> Settings {
        let header = self.header();
        Settings {
            seed: header.seed.load(Ordering::Relaxed),
            rate: header.rate.load(Ordering::Relaxed),
            faults: Faults::of_bits(header.faults.load(Ordering::Relaxed)),
            delay_ns: header.delay_ns.load(Ordering::Relaxed),
        }
    }

    /// Lets the processes of the plan note what they do to files in the journal that the process `pid` has open as `fd`.
    pub fn keep_journal(&self, pid: u32, fd: u32) {
        let header = self.header();
        header.journal_fd.store(fd, Ordering::Relaxed);
        header.journal_pid.store(pid, Ordering::Relaxed);
    }

    /// Returns the process that has the journal, and its descriptor.
    pub fn journal(&self) -> Option<(u32, u32)> {
        let pid = self.header().journal_pid.load(Ordering::Relaxed);
        (pid != 0).then(|| (pid, self.header().journal_fd.load(Ordering::Relaxed)))
    }

    /// Returns the injection if this fault is to be injected here.
    pub fn decide(&self, subject: &Subject) -> Option<Injection> {
        let Settings { seed, rate, faults, .. } = self.settings();
        if !faults.has(subject.fault) {
            return None;
        }
        subject.decide(seed, rate).filter(|injection| self.carries_out(injection.id))
    }

    fn carries_out(&self, id: u64) -> bool {
        if self.header().only.load(Ordering::Relaxed) == 0 {
            return true;
        }
        let (mut low, mut high) = (0, self.ids);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.id(middle).load(Ordering::Relaxed) < id {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low < self.ids && self.id(low).load(Ordering::Relaxed) == id
    }

    /// Appends an injected fault to the log. Without room for it, it is only counted.
    pub fn note(&self, entry: &Entry) {
        let Entry { injection, subject, opcode, pid } = *entry;
        let what = u32::from(subject.fault as u16) << 16 | u32::from(opcode);
        self.append(injection, subject.who, subject.serial, pid, what);
    }

    /// Appends harm to the log. Without room for it, it is only counted.
    pub fn note_harm(&self, harmed: &Harmed) {
        let Harmed { who, serial, opcode, pid, harm } = *harmed;
        self.header().harmed.fetch_add(1, Ordering::Relaxed);
        let what = u32::from(harm as u16) << 16 | u32::from(opcode);
        self.append(Injection { id: 0, value: 0 }, who, serial, pid, what);
    }

    fn append(&self, injection: Injection, who: Who, serial: u64, pid: u32, what: u32) {
        let place = self.header().claimed.fetch_add(1, Ordering::Relaxed);
        if place >= self.room as u64 {
            return;
        }
        let slot = self.slot(place as usize);
        slot.id.store(injection.id, Ordering::Relaxed);
        slot.value.store(injection.value, Ordering::Relaxed);
        slot.process.store(who.process, Ordering::Relaxed);
        slot.serial.store(serial, Ordering::Relaxed);
        slot.ring.store(who.ring, Ordering::Relaxed);
        slot.pid.store(pid, Ordering::Relaxed);
        slot.what.store(what, Ordering::Relaxed);
        // Release pairs with the acquire load in `written`.
        slot.written.store(1, Ordering::Release);
    }

    /// Returns the faults that were injected so far, in approximate order. An entry whose process died while writing it
    /// is left out.
    pub fn log(&self) -> impl Iterator<Item = Entry> {
        self.written().filter_map(Slot::entry)
    }

    /// Returns the harm that was noted so far, in approximate order, and the number of times that harm was noted at all.
    pub fn harms(&self) -> (impl Iterator<Item = Harmed>, u64) {
        (self.written().filter_map(Slot::harmed), self.header().harmed.load(Ordering::Relaxed))
    }

    fn written(&self) -> impl Iterator<Item = &Slot> {
        let claimed = self.header().claimed.load(Ordering::Relaxed);
        let slots = (0..self.room.min(claimed as usize)).map(|place| self.slot(place));
        // Acquire pairs with the release store in `append`.
        slots.filter(|slot| slot.written.load(Ordering::Acquire) == 1)
    }

    /// Returns the number of injected faults, and of times that harm was noted, for which the log had no room.
    pub fn unlogged(&self) -> u64 {
        self.header().claimed.load(Ordering::Relaxed).saturating_sub(self.room as u64)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::decision::MILLION;

    struct Memory(Vec<u64>);

    impl Memory {
        fn new(mode: Mode<'_>, room: usize) -> Memory {
            Memory(std::vec![0; bytes(mode, room) / 8])
        }

        fn start(&mut self) -> NonNull<u8> {
            NonNull::new(self.0.as_mut_ptr().cast()).expect("memory is there")
        }

        fn plan(&mut self, rate: u32, mode: Mode<'_>, room: usize) -> Plan {
            let settings = Settings { seed: 3, rate, faults: Faults::ALL, delay_ns: 0 };
            // SAFETY: the memory has the right size, and the test keeps it.
            unsafe { Plan::create(self.start(), settings, mode, room) }
        }
    }

    fn subject(serial: u64) -> Subject {
        Subject { who: Who { process: FIRST_PROCESS, ring: 1 }, serial, fault: Fault::Short }
    }

    #[test]
    fn only_those_are_carried_out_that_are_listed() {
        let mut memory = Memory::new(Mode::Random, 0);
        let plan = memory.plan(MILLION / 2, Mode::Random, 0);
        let all: Vec<u64> =
            (0..1000).filter_map(|serial| plan.decide(&subject(serial))).map(|one| one.id).collect();
        let mut some: Vec<u64> = all.iter().copied().step_by(3).collect();
        let wanted = some.clone();
        some.push(12345);
        some.sort_unstable();
        let mode = Mode::Only(&some);
        let mut memory = Memory::new(mode, 0);
        let plan = memory.plan(MILLION / 2, mode, 0);
        let met: Vec<u64> =
            (0..1000).filter_map(|serial| plan.decide(&subject(serial))).map(|one| one.id).collect();
        assert_eq!(met, wanted);
        let plan = memory.plan(MILLION / 2, Mode::Only(&[]), 0);
        assert!((0..1000).all(|serial| plan.decide(&subject(serial)).is_none()));
    }

    #[test]
    fn a_fault_that_is_off_is_not_decided() {
        let mut memory = Memory::new(Mode::Random, 0);
        let faults = Faults::NONE.with(Fault::Late);
        let settings = Settings { seed: 3, rate: MILLION, faults, delay_ns: 0 };
        // SAFETY: the memory has the right size, and the test keeps it.
        let plan = unsafe { Plan::create(memory.start(), settings, Mode::Random, 0) };
        assert!(plan.decide(&subject(1)).is_none());
        assert!(plan.decide(&Subject { fault: Fault::Late, ..subject(1) }).is_some());
    }

    #[test]
    fn the_log_holds_what_it_has_room_for_and_counts_the_rest() {
        const ROOM: usize = 4;
        let mut memory = Memory::new(Mode::Random, ROOM);
        let plan = memory.plan(MILLION, Mode::Random, ROOM);
        let length = bytes(Mode::Random, ROOM);
        // SAFETY: the plan was made above.
        let again = unsafe { Plan::open(memory.start(), length) }.expect("a plan");
        assert_eq!(again.settings(), plan.settings());
        let entries: Vec<Entry> = (1..=6)
            .map(|serial| Entry {
                injection: plan.decide(&subject(serial)).expect("each"),
                subject: subject(serial),
                opcode: 22,
                pid: 9,
            })
            .collect();
        entries.iter().for_each(|entry| again.note(entry));
        assert_eq!(plan.log().collect::<Vec<_>>(), entries[..ROOM]);
        assert_eq!(plan.unlogged(), 2);
    }

    #[test]
    fn processes_are_told_apart_by_what_made_them() {
        let mut memory = Memory::new(Mode::Random, 0);
        let plan = memory.plan(0, Mode::Random, 0);
        assert_eq!(plan.begin(10, 1), FIRST_PROCESS);
        let executed = plan.begin(10, 1);
        assert_ne!(executed, FIRST_PROCESS, "by exec");
        plan.enter(11, child(executed, 1));
        let started = [plan.begin(12, 11), plan.begin(13, 11), plan.begin(14, 10), plan.begin(15, 1)];
        let mut all: Vec<u64> = started.into_iter().chain([FIRST_PROCESS, executed]).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 6);
    }

    #[test]
    fn the_journal_is_found_by_the_plan() {
        let mut memory = Memory::new(Mode::Random, 0);
        let plan = memory.plan(MILLION, Mode::Random, 0);
        assert_eq!(plan.journal(), None);
        plan.keep_journal(7, 8);
        assert_eq!(plan.journal(), Some((7, 8)));
    }

    #[test]
    fn what_is_no_plan_is_not_opened() {
        let mut memory = Memory(std::vec![0; HEADER / 8]);
        // SAFETY: the memory has this size, and the test keeps it.
        assert!(unsafe { Plan::open(memory.start(), HEADER) }.is_none());
        memory.plan(0, Mode::Random, 0).header().room.store(1, Ordering::Relaxed);
        // SAFETY: as above.
        assert!(unsafe { Plan::open(memory.start(), HEADER) }.is_none(), "more room than memory");
    }
}
