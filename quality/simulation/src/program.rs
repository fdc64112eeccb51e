//! Programs: what some threads do with some rings and files, generated from a seed.

use std::fmt;

use clap::ValueEnum;
use linux_raw_sys::io_uring::{
    IORING_SETUP_COOP_TASKRUN, IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_R_DISABLED,
    IORING_SETUP_SINGLE_ISSUER, IORING_SETUP_SQPOLL,
};

use crate::kernel::Kind;
use crate::random::Random;

/// The subject of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Family {
    /// All subjects.
    Any,
    /// Messages between rings.
    Messages,
    /// Files on storage, which are closed and reopened meanwhile.
    Storage,
    /// Programs that poll for completions without a call.
    Quiet,
    /// Cancellation.
    Cancel,
    /// Pipes and sockets.
    Streams,
    /// More completions than fit into the CQs.
    Overflow,
    /// Listening sockets, which are closed and reopened meanwhile.
    Listeners,
    /// Waits for futexes, woken by rings and by plain calls.
    Futexes,
    /// Rings that are created and closed while others exist.
    Rings,
}

/// The number of words to wait for.
pub const WORDS: usize = 3;

/// How a program gets its last completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// The thread waits in `enter`.
    Enter,
    /// The thread polls the ring from time to time.
    Look,
    /// The thread reads a registered eventfd.
    Eventfd,
    /// The thread polls the ring's descriptor.
    Poll,
}

/// A ring; the thread with the same number creates it and reaps its completions.
#[derive(Clone, Debug)]
pub struct Ring {
    /// `IORING_SETUP_*`.
    pub flags: u32,
    /// The size of its CQ.
    pub completions: u32,
    /// How its completions are reaped.
    pub fetch: Fetch,
}

impl Ring {
    /// True if other threads may submit.
    pub fn is_shared(&self) -> bool {
        self.flags & IORING_SETUP_SINGLE_ISSUER == 0
    }
}

/// A file. Rings use its near end; threads use its far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// A pipe that rings read.
    PipeIn,
    /// A pipe that rings write.
    PipeOut,
    /// A connection.
    Socket(Kind),
    /// A listening socket.
    Listener(Kind),
    /// A file on storage.
    Storage { slowness_ns: usize, writes_wait: bool, direct: bool, stalls: bool },
}

impl File {
    /// True if the file's device may delay a transfer for longer than anything else takes.
    pub fn stalls(self) -> bool {
        matches!(self, File::Storage { stalls: true, .. })
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Nop,
    Read(usize),
    Write(usize),
    Recv(usize),
    Send(usize),
    Poll { file: usize, multishot: bool },
    Timeout { time_ns: u64 },
    LinkTimeout { time_ns: u64 },
    CancelOne { before: usize },
    CancelFile(usize),
    CancelAny,
    Accept { file: usize, multishot: bool },
    Message { ring: usize },
    SendFile { ring: usize, slot: u32 },
    FilesUpdate { slot: u32, file: usize },
    Close(usize),
    Sync(usize),
    FutexWait { word: usize },
    FutexWaitv { first: usize, count: usize },
    FutexWake { word: usize, count: u32 },
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The operation.
    pub what: What,
    /// True if the next request is linked to this one.
    pub link: bool,
    /// True if no earlier request may be in flight.
    pub drain: bool,
    /// True if a thread is to do the request.
    pub asynchronous: bool,
    /// True if the file is the registered one in the slot with the file's number.
    pub fixed: bool,
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.what)?;
        let marks = [
            (self.link, "+link"),
            (self.drain, "+drain"),
            (self.asynchronous, "+async"),
            (self.fixed, "+fixed"),
        ];
        marks.iter().filter(|(is, _)| *is).try_for_each(|(_, mark)| f.write_str(mark))
    }
}

/// A step of a thread.
#[derive(Clone, Debug)]
pub enum Action {
    /// Submits; waits for a completion, for some time, if `waits`.
    Submit { ring: usize, ops: Vec<Op>, waits: bool },
    /// Waits for a completion for some time.
    Wait { ring: usize, time_ns: u64 },
    /// Reaps available completions.
    Look { ring: usize },
    /// Writes to the far end of a file.
    Put { file: usize, length: usize },
    /// Reads from the far end of a file.
    Take { file: usize, length: usize },
    /// Connects to a listener.
    Call { file: usize },
    /// Closes the near end and opens another such file, usually at the same number.
    Reopen { file: usize },
    /// Reopens two files; usually each gets the other's number.
    Exchange { files: [usize; 2] },
    /// Duplicates the near end; requests use the new number from now on if `changes`.
    Name { file: usize, changes: bool },
    /// Closes a duplicate of the near end that requests do not use any more.
    CloseName { file: usize },
    /// Creates a ring, submits a request to it, and closes it; `renames` replaces its descriptor by a duplicate before.
    BriefRing { renames: bool },
    /// Sleeps for some time.
    Pause { time_ns: u64 },
    /// `futex(2)`: wakes some waiters of a word.
    Wake { word: usize, count: u32 },
    /// Cancels a request, and waits for its completion.
    SyncCancel { ring: usize, before: usize, time_ns: u64 },
}

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program's rings.
    pub rings: Vec<Ring>,
    /// The program's files.
    pub files: Vec<File>,
    /// The steps of each thread.
    pub threads: Vec<Vec<Action>>,
    /// True if the engine is told of every closed descriptor.
    pub tells_closes: bool,
    /// True if the engine has a signal for its threads.
    pub has_signal: bool,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {} its closes", if self.tells_closes { "tells" } else { "does not tell" })?;
        for (index, ring) in self.rings.iter().enumerate() {
            writeln!(f, "  ring {index}: {ring:x?}")?;
        }
        for (index, file) in self.files.iter().enumerate() {
            writeln!(f, "  file {index}: {file:?}")?;
        }
        for (index, thread) in self.threads.iter().enumerate() {
            writeln!(f, "  thread {index}:")?;
            thread.iter().try_for_each(|action| writeln!(f, "    {action:?}"))?;
        }
        Ok(())
    }
}

/// Generates programs.
struct Maker {
    random: Random,
    family: Family,
    rings: Vec<Ring>,
    files: Vec<File>,
}

impl Program {
    /// Generates the program of a seed.
    pub fn of_seed(seed: u64, family: Family) -> Program {
        let mut random = Random::new(seed, 3);
        let count = 2 + random.below(if family == Family::Messages { 2 } else { 3 });
        let rings = 1 + random.below(count.min(3));
        let rings = match family {
            Family::Messages => count.min(2 + random.below(2)),
            // Cancellation affects one ring.
            Family::Cancel => 1,
            _ => rings,
        };
        let mut maker = Maker { random, family, rings: Vec::new(), files: Vec::new() };
        maker.rings = (0..rings).map(|_| maker.ring()).collect();
        let files = 1 + maker.random.below(3);
        maker.files = (0..files).map(|_| maker.file()).collect();
        let tells_closes = maker.random.once_in(2);
        let threads = (0..count).map(|thread| maker.thread(thread)).collect();
        let has_signal = family == Family::Futexes;
        Program { rings: maker.rings, files: maker.files, threads, tells_closes, has_signal }
    }
}

impl Maker {
    fn ring(&mut self) -> Ring {
        let flags = match self.random.below(8) {
            0 | 1 if self.family != Family::Quiet => IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER,
            2 => IORING_SETUP_SQPOLL,
            3 => IORING_SETUP_R_DISABLED,
            4 => IORING_SETUP_COOP_TASKRUN,
            _ => 0,
        };
        let quiet = matches!(self.family, Family::Quiet | Family::Cancel);
        let defers = flags & IORING_SETUP_DEFER_TASKRUN != 0;
        let fetch = match self.random.below(if quiet { 4 } else { 7 }) {
            0 | 1 if !defers => Fetch::Look,
            2 => Fetch::Eventfd,
            3 => Fetch::Poll,
            _ => Fetch::Enter,
        };
        let few = self.family == Family::Overflow;
        Ring { flags, completions: if few { 4 } else { self.random.of(&[4, 8, 32]) }, fetch }
    }

    fn file(&mut self) -> File {
        let storage = match self.family {
            Family::Storage | Family::Cancel => 2,
            Family::Streams | Family::Listeners => 0,
            _ => 5,
        };
        if self.random.once_in(storage) {
            let slow = if self.family == Family::Cancel { 20_000_000 } else { 10_000 };
            let slowness_ns = self.random.of(&[slow, 100_000, 1_000_000, 20_000_000]);
            let writes_wait = self.random.once_in(2);
            let direct = self.random.once_in(2);
            let stalls = direct && self.family == Family::Storage && self.random.once_in(2);
            return File::Storage { slowness_ns, writes_wait, direct, stalls };
        }
        let listens = self.family == Family::Listeners && self.random.once_in(2);
        match if listens { 7 } else { self.random.below(8) } {
            0 | 1 => File::PipeIn,
            2 => File::PipeOut,
            3 | 4 => File::Socket(Kind::Unix),
            5 | 6 => File::Socket(Kind::Tcp),
            _ => File::Listener(self.random.of(&[Kind::Unix, Kind::Tcp])),
        }
    }

    fn thread(&mut self, thread: usize) -> Vec<Action> {
        let count = 2 + self.random.below(5);
        (0..count).map(|_| self.action(thread)).collect()
    }

    /// Returns a ring to which the thread may submit.
    fn ring_of(&mut self, thread: usize) -> Option<usize> {
        let may = |&ring: &usize| ring == thread || self.rings[ring].is_shared();
        let rings: Vec<usize> = (0..self.rings.len()).filter(may).collect();
        if rings.is_empty() { None } else { Some(self.random.of(&rings)) }
    }

    fn action(&mut self, thread: usize) -> Action {
        let file = self.random.below(self.files.len());
        let length = 1 + self.random.below(12);
        let choice = self.random.below(if self.family == Family::Overflow { 11 } else { 20 });
        let ring = self.ring_of(thread);
        let time_ns = self.random.of(&[1_000, 50_000, 1_000_000, 6_000_000]);
        match (choice, ring) {
            (9..=17, _) if self.family == Family::Futexes => {
                Action::Wake { word: self.random.below(WORDS), count: 1 + self.random.below(2) as u32 }
            }
            (3..=17, _) if self.family == Family::Rings => {
                Action::BriefRing { renames: self.random.once_in(2) }
            }
            (0..=8, Some(ring)) => {
                let many = self.family == Family::Overflow || self.random.once_in(4);
                let most = match self.family {
                    // Each wait needs a thread.
                    Family::Futexes => 2,
                    _ if many => 6,
                    _ => 3,
                };
                let count = 1 + self.random.below(most);
                let ops = (0..count).map(|_| self.op(ring)).collect();
                let seldom = if self.family == Family::Overflow { 9 } else { 3 };
                Action::Submit { ring, ops, waits: self.random.once_in(seldom) }
            }
            (9, Some(ring)) => Action::Wait { ring, time_ns },
            (10 | 11, Some(ring)) if self.family == Family::Cancel => {
                Action::SyncCancel { ring, before: self.random.below(4), time_ns: time_ns * 10 }
            }
            (10, Some(ring)) => Action::Look { ring },
            (11, Some(ring)) if self.random.once_in(3) => {
                Action::SyncCancel { ring, before: self.random.below(8), time_ns: time_ns * 10 }
            }
            (12 | 13, _) => Action::Reopen { file },
            (15..=17, _) if self.family == Family::Listeners => {
                let other = self.random.below(self.files.len());
                if file == other {
                    Action::Reopen { file }
                } else {
                    Action::Exchange { files: [file, other] }
                }
            }
            (14, _) => Action::Pause { time_ns },
            (18, _) if self.random.once_in(2) => Action::Name { file, changes: self.random.once_in(2) },
            (19, _) if self.random.once_in(2) => Action::CloseName { file },
            _ => match self.files[file] {
                File::Listener(_) => Action::Call { file },
                File::PipeOut => Action::Take { file, length },
                File::Storage { .. } => Action::Pause { time_ns },
                _ if self.random.once_in(3) => Action::Take { file, length },
                _ => Action::Put { file, length },
            },
        }
    }

    fn op(&mut self, ring: usize) -> Op {
        let what = self.what(ring);
        let rare = |random: &mut Random| random.once_in(12);
        Op {
            what,
            link: rare(&mut self.random),
            drain: self.random.once_in(40),
            asynchronous: rare(&mut self.random),
            fixed: self.random.once_in(8),
        }
    }

    fn what(&mut self, ring: usize) -> What {
        let file = self.random.below(self.files.len());
        let time_ns = self.random.of(&[0, 10_000, 1_000_000, 5_000_000, 100_000_000]);
        let other = self.random.below(self.rings.len());
        let choice = match self.family {
            Family::Messages if self.random.once_in(2) => 12,
            Family::Cancel if self.random.once_in(3) => 10,
            Family::Futexes if self.random.once_in(4) => 10,
            Family::Futexes if self.random.once_in(8) => 13,
            Family::Futexes => return self.futex(),
            Family::Overflow => self.random.of(&[0, 0, 0, 1, 2, 12, 13]),
            // On any file: its number may soon be that of a listening socket.
            Family::Listeners if self.random.once_in(2) => {
                return What::Accept { file, multishot: self.random.once_in(2) };
            }
            _ => self.random.below(14),
        };
        match choice {
            0 => What::Nop,
            1 => What::Timeout { time_ns },
            2 => What::Poll { file, multishot: self.random.once_in(3) },
            3 => What::FilesUpdate { slot: self.random.below(4) as u32, file },
            4 if self.random.once_in(3) => What::Close(file),
            10 => match self.random.below(4) {
                0 => What::CancelAny,
                1 => What::CancelFile(file),
                _ => What::CancelOne { before: self.random.below(6) },
            },
            12 if other != ring && self.random.once_in(2) => {
                What::SendFile { ring: other, slot: self.random.below(4) as u32 }
            }
            12 => What::Message { ring: other },
            13 => What::LinkTimeout { time_ns },
            _ => self.transfer(file),
        }
    }

    fn futex(&mut self) -> What {
        let word = self.random.below(WORDS);
        match self.random.below(5) {
            0 => What::FutexWake { word, count: 1 + self.random.below(2) as u32 },
            1 => {
                let first = self.random.below(WORDS - 1);
                What::FutexWaitv { first, count: 2 + self.random.below(WORDS - 1 - first) }
            }
            _ => What::FutexWait { word },
        }
    }

    fn transfer(&mut self, file: usize) -> What {
        let first = self.random.once_in(2);
        match self.files[file] {
            File::PipeIn => What::Read(file),
            File::PipeOut => What::Write(file),
            File::Listener(_) => What::Accept { file, multishot: first },
            File::Storage { .. } => match self.random.below(5) {
                0 => What::Sync(file),
                1 | 2 => What::Read(file),
                _ => What::Write(file),
            },
            File::Socket(_) if self.random.once_in(4) => {
                if first {
                    What::Read(file)
                } else {
                    What::Write(file)
                }
            }
            File::Socket(_) => {
                if first {
                    What::Recv(file)
                } else {
                    What::Send(file)
                }
            }
        }
    }
}
