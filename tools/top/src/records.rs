//! The records of a process whose engine writes them while somebody watches ([`anyring_trace::demand`]).
//!
//! - The rings' memory says where the process's desk is. The desk is read and written by `/proc/PID/mem`, which belongs to the memory that
//!   the process had when it was opened: neither a later process of this number nor a program that the process executes is written to.
//! - What stands there, and what the process writes, is not trusted: the desk must have its mark before anything is written to it, and the
//!   file of the records must be a memory file that cannot become shorter.
//! - The process answers in its next call on a ring. Until then nothing happens that could be recorded, but completions of earlier requests.
//! - A watcher that was stopped for too long finds that the process has ended its records, and asks again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use anyring_engine::abi::layout::OFFER_OFFSET;
use anyring_trace::buffer::{self, Buffer};
use anyring_trace::demand::{ASKED, Desk, MARK, SLOTS};
use anyring_trace::event::Event;

use crate::process::{self, Process};
use crate::ring;

/// Where a ring's memory says that the records of its process can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The address of the desk in the process.
    pub desk: u64,
    /// The number by which the process's records call the ring.
    pub serial: u32,
}

impl Offer {
    /// Returns the offer in four words of a ring's memory. The program may have written anything there.
    pub(crate) fn of_words([mark, desk, serial, _]: [u64; 4]) -> Option<Offer> {
        (mark == MARK).then_some(Offer { desk, serial: serial as u32 })
    }

    /// Returns the offer in the file of a ring.
    pub(crate) fn of_file(fd: &OwnedFd) -> Option<Offer> {
        let file = File::from(fd.try_clone().ok()?);
        let mut words = [[0; size_of::<u64>()]; 4];
        file.read_exact_at(words.as_flattened_mut(), OFFER_OFFSET as u64).ok()?;
        Offer::of_words(words.map(u64::from_ne_bytes))
    }
}

/// Why there are no records of a process any more, or why some are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gap {
    /// There are none from now on, for this reason.
    Refused(String),
    /// The process has executed another program.
    Gone,
    /// The process had ended them, because this process did not read for some seconds.
    Paused,
}

/// The records of a process.
#[derive(Default)]
pub struct Records {
    state: State,
    /// The number of records that the process had no room for, in buffers that are gone.
    dropped: u64,
    /// The reason why nothing could be asked, until it is told.
    refusal: Option<String>,
}

#[derive(Default)]
enum State {
    /// No ring has been found that says where they can be asked for.
    #[default]
    Unknown,
    Asked(Asked),
    Taken(Taken),
    /// There are none.
    Refused,
}

struct Asked {
    desk: Remote,
    /// The number of buffers that the process had made before.
    generation: u32,
}

struct Taken {
    desk: Remote,
    memory: Memory,
    buffer: Buffer,
}

impl Records {
    /// Records that nobody asks for.
    pub fn refused() -> Records {
        Records { state: State::Refused, dropped: 0, refusal: None }
    }

    /// True if a ring with this offer is recorded, or will be. Asks the process if that was not done yet.
    pub fn accepts(&mut self, offer: Offer, process: &Process) -> bool {
        if matches!(self.state, State::Unknown) {
            match Remote::open(process, offer.desk) {
                Ok(desk) => self.state = Asked::begin(desk).map_or(State::Unknown, State::Asked),
                Err(why) => (self.state, self.refusal) = (State::Refused, Some(why)),
            }
        }
        matches!(self.state, State::Asked(_) | State::Taken(_))
    }

    /// True if the process writes records.
    pub fn are_taken(&self) -> bool {
        matches!(self.state, State::Taken(_))
    }

    /// Returns the number of records that were lost, because the process had no room for them.
    pub fn dropped(&self) -> u64 {
        let now = match &self.state {
            State::Taken(taken) => taken.dropped(),
            _ => 0,
        };
        self.dropped + now
    }

    /// Finds out whether the process has answered, or has executed another program. Records are to be taken before: afterwards they may be
    /// gone.
    pub fn look(&mut self, process: &Process) -> Option<Gap> {
        self.hear(process);
        if let Some(why) = self.refusal.take() {
            return Some(Gap::Refused(why));
        }
        match std::mem::take(&mut self.state) {
            // The desk is gone. Another program will be found by its own rings.
            State::Asked(asked) if asked.desk.read().is_none() => return Some(Gap::Gone),
            State::Taken(taken) if taken.has_ended() => {
                self.dropped += taken.dropped();
                self.state = Asked::begin(taken.desk).map_or(State::Unknown, State::Asked);
                return Some(Gap::Paused);
            }
            State::Taken(taken) if taken.desk.read().is_none() => {
                self.dropped += taken.dropped();
                return Some(Gap::Gone);
            }
            other => self.state = other,
        }
        None
    }

    /// Finds out whether the process has answered.
    pub fn hear(&mut self, process: &Process) {
        self.state = match std::mem::take(&mut self.state) {
            State::Asked(asked) => asked.look(process).unwrap_or_else(|why| {
                self.refusal = Some(why);
                State::Refused
            }),
            other => other,
        }
    }

    /// Shows the records that are there, but no more than the buffer holds; returns their number. If the process `has_ended`, records that
    /// it has not finished are passed over.
    pub fn take(&mut self, has_ended: bool, mut show: impl FnMut(&Event<'_>)) -> usize {
        let State::Taken(Taken { buffer, .. }) = &self.state else { return 0 };
        buffer.beat();
        for taken in 0..SLOTS {
            match buffer.next() {
                buffer::Next::Empty => return taken,
                buffer::Next::Unfinished(_) if !has_ended => return taken,
                buffer::Next::Unfinished(_) | buffer::Next::Nothing => {}
                buffer::Next::Record(record) => Event::parse(record).iter().for_each(&mut show),
            }
            buffer.advance();
        }
        SLOTS
    }

    /// True if the buffer is so full that the next look must come soon.
    pub fn are_many(&self, taken: usize) -> bool {
        taken > SLOTS / 16
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        if let State::Taken(Taken { buffer, .. }) = &self.state {
            // The process ends its records in its next call.
            buffer.header().abandoned.store(1, Ordering::Relaxed);
        }
    }
}

impl Asked {
    /// Asks, or takes the answer to another watcher's question; `None` if there is no desk.
    fn begin(desk: Remote) -> Option<Asked> {
        let there = desk.read()?;
        let is_there = there.descriptor.load(Ordering::Relaxed) > 0;
        let generation = there.generation.load(Ordering::Relaxed).wrapping_sub(is_there.into());
        let asked = Asked { desk, generation };
        if !is_there {
            asked.ask()?;
        }
        Some(asked)
    }

    fn ask(&self) -> Option<()> {
        self.desk.write(offset_of!(Desk, asked), 1)?;
        self.desk.write(offset_of!(Desk, state), ASKED)
    }

    /// Returns what has become of the question.
    ///
    /// # Errors
    /// The reason why there are no records.
    fn look(self, process: &Process) -> Result<State, String> {
        let Some(there) = self.desk.read() else { return Ok(State::Asked(self)) };
        if there.asked.load(Ordering::Relaxed) != 0 {
            // The state may have changed at the moment of the question.
            if there.state.load(Ordering::Relaxed) != ASKED {
                let _ = self.ask();
            }
            return Ok(State::Asked(self));
        }
        // What was stored before the answer is seen now.
        let Some(there) = self.desk.read() else { return Ok(State::Asked(self)) };
        let descriptor = there.descriptor.load(Ordering::Relaxed);
        let is_new = descriptor > 0 && there.generation.load(Ordering::Relaxed) != self.generation;
        if descriptor < 0 && descriptor != -libc::EBUSY {
            let error = io::Error::from_raw_os_error(-descriptor);
            return Err(format!("it has no memory for records: {error}"));
        }
        let has_other = || "its records have another reader".to_owned();
        if !is_new {
            return Err(has_other());
        }
        let file = process.duplicate(descriptor).map_err(|refusal| refusal.to_string())?;
        let memory = Memory::map(&file).map_err(|error| format!("its records: {error}"))?;
        // SAFETY: mapped, of this length, aligned to pages, and unmapped behind the buffer.
        let buffer = unsafe { Buffer::open(memory.0, buffer::bytes(SLOTS)) };
        let buffer = buffer.ok_or("its file of records is none")?;
        if !buffer.enlist(std::process::id()) {
            return Err(has_other());
        }
        buffer.beat();
        Ok(State::Taken(Taken { desk: self.desk, memory, buffer }))
    }
}

impl Taken {
    fn dropped(&self) -> u64 {
        self.buffer.header().dropped.load(Ordering::Relaxed)
    }

    /// True if the process has ended the records, and all of them were read.
    fn has_ended(&self) -> bool {
        let _ = &self.memory;
        self.buffer.header().abandoned.load(Ordering::Relaxed) != 0
            && matches!(self.buffer.next(), buffer::Next::Empty)
    }
}

/// The desk of a process.
struct Remote {
    memory: File,
    address: u64,
}

impl Remote {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// The reason, if that is refused or there is no desk of this format at the address.
    fn open(process: &Process, address: u64) -> Result<Remote, String> {
        let path = format!("/proc/{}/mem", process.id());
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let memory = opened.map_err(|error| format!("its memory cannot be opened: {error}"))?;
        let remote = Remote { memory, address };
        // Read while the process lived: it is not the memory of a later process.
        let is_there = remote.read().is_some() && !process.has_ended();
        is_there.then_some(remote).ok_or_else(|| "it has another version of anyring".into())
    }

    /// Reads the desk; `None` if it is not there, or not there any more.
    fn read(&self) -> Option<Desk> {
        let mut bytes = [0; size_of::<Desk>()];
        self.memory.read_exact_at(&mut bytes, self.address).ok()?;
        let mut desk = MaybeUninit::<Desk>::uninit();
        // SAFETY: the sizes are equal, and a desk consists of integers.
        let desk = unsafe {
            desk.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            desk.assume_init()
        };
        desk.is_whole(self.address).then_some(desk)
    }

    fn write(&self, offset: usize, word: u32) -> Option<()> {
        self.memory.write_all_at(&word.to_ne_bytes(), self.address.checked_add(offset as u64)?).ok()
    }
}

/// The memory of a buffer.
struct Memory(NonNull<u8>);

impl Memory {
    fn map(fd: &OwnedFd) -> io::Result<Memory> {
        let no_records = || io::Error::new(io::ErrorKind::InvalidData, "its file is not one of records");
        let length = buffer::bytes(SLOTS);
        let target = process::target(std::process::id(), fd.as_raw_fd());
        let metadata = fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if target.as_deref() != Some("/memfd:[anyring-trace] (deleted)") || metadata.len() != length as u64 {
            return Err(no_records());
        }
        ring::check_mappable(fd)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, wherever there is room.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast()).map(Memory).ok_or_else(no_records)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and used only through its owner.
        unsafe { libc::munmap(self.0.as_ptr().cast(), buffer::bytes(SLOTS)) };
    }
}
