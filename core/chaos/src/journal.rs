//! The journal of a run whose power is cut: what its processes did to files, in an order, and what they overwrote.
//!
//! ```text
//!  ┌────────┬─────────────────────────┬──────────────────────────────────┐
//!  │ header │ deeds, one an operation │ images: contents, names and paths│
//!  └────────┴─────────────────────────┴──────────────────────────────────┘
//! ```
//!
//! The memory is a file that the command and the processes of the run share, and that outlives the processes. A deed is noted twice: when
//! its operation begins, with the contents that it will overwrite, and when it has ended, with the contents then. In between, other
//! operations may run: a clock that all processes share shows which of two operations ended before the other began.
//!
//! The power is cut at a *moment*: before the operation of a certain deed, or after it ([`moments_of`]). Once the power is cut, nothing is
//! noted any more: each process that has something to note ends instead. Where the journal has no room, the power is cut
//! ([`State::Full`]).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::decision::Who;

const MAGIC: u64 = 0x3173_6c61_6e72_756a;
const HEADER: usize = 4096;
/// The maximum number of deeds.
const DEEDS: usize = 1 << 15;
/// The size of the memory for images, in bytes.
const IMAGES: usize = 256 << 20;

/// The size of a journal's memory, of which only the used part takes space.
pub const JOURNAL_BYTES: usize = HEADER + DEEDS * size_of::<Slot>() + IMAGES;

/// The last moment that a journal can have.
pub const LAST_MOMENT: u64 = moments_of(DEEDS - 1)[1];

/// Returns the moments before and after the operation of a deed, by the deed's number in the journal. Moments are numbered from 1.
pub const fn moments_of(deed: usize) -> [u64; 2] {
    let before = 2 * deed as u64 + 1;
    [before, before + 1]
}

/// Images begin and end at multiples of this many bytes of their file: the largest sector of a device.
pub const ALIGNMENT: u64 = 4096;

/// The effect of an operation on the files of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Effect {
    /// A write to a file.
    Write = 1,
    /// A sync, which brings what was written to a file, or the entries of a directory, to the device.
    Sync = 2,
    /// A sync of data and what is needed to find them, and no more.
    SyncData = 3,
    /// A sync of everything.
    SyncAll = 4,
    /// A change of the size of a file.
    Resize = 5,
    /// An allocation of space, which may change the size of a file.
    Allocate = 6,
    /// An open of a file, which it may create, or cut to nothing.
    Open = 7,
    /// A rename of a file.
    Rename = 8,
    /// A removal of a name.
    Unlink = 9,
    /// A new directory.
    MakeDirectory = 10,
    /// A further name of a file.
    Link = 11,
    /// A new symbolic link.
    SymbolicLink = 12,
    /// A change that cannot be undone: the file is left alone.
    Other = 13,
}

impl Effect {
    const ALL: [Effect; 13] = [
        Effect::Write,
        Effect::Sync,
        Effect::SyncData,
        Effect::SyncAll,
        Effect::Resize,
        Effect::Allocate,
        Effect::Open,
        Effect::Rename,
        Effect::Unlink,
        Effect::MakeDirectory,
        Effect::Link,
        Effect::SymbolicLink,
        Effect::Other,
    ];

    fn of(number: u64) -> Option<Effect> {
        Effect::ALL.into_iter().find(|effect| *effect as u64 == number)
    }
}

/// The bits for what is special about a deed.
pub mod marks {
    /// The write is on the device when it has ended (`O_SYNC`, `O_DSYNC`, `RWF_SYNC`, `RWF_DSYNC`).
    pub const DURABLE: u64 = 1 << 0;
    /// The open cuts the file to nothing.
    pub const EMPTIES: u64 = 1 << 1;
    /// The rename exchanges two names.
    pub const EXCHANGES: u64 = 1 << 2;
    /// A file that was to be read for its images could not be.
    pub const UNREADABLE: u64 = 1 << 3;
    /// A plain call did it, no request.
    pub const PLAIN: u64 = 1 << 4;
}

/// A file by its device and inode; zeros for none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FileId {
    /// The device, as `stat` encodes it.
    pub device: u64,
    /// The inode.
    pub inode: u64,
}

/// A part of the memory for images.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Image {
    at: u64,
    /// The number of bytes.
    pub length: u64,
}

/// The state of a file before or after an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Node {
    /// The file.
    pub file: FileId,
    /// The file's mode, as in `stat`.
    pub mode: u64,
    /// The file's size in bytes.
    pub size: u64,
    /// The file's owner, and its group in the upper half.
    pub owner: u64,
    /// The file's contents, or the path that a symbolic link holds; empty if they are not needed.
    pub contents: Image,
}

/// The facts that are known of an operation when it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Began {
    /// The effect.
    pub effect: Effect,
    /// The bits for what is special: [`marks`].
    pub marks: u64,
    /// The opcode of the request, or the number of the system call.
    pub opcode: u16,
    /// The process and the ring; 0 for no ring.
    pub who: Who,
    /// The number of the request in its ring.
    pub serial: u64,
    /// The process's id in its own PID namespace.
    pub pid: u32,
    /// The time by which operations have ended that were done before this one was asked for: a sync covers them.
    pub after: u64,
    /// The first byte that is written, or the new size.
    pub offset: u64,
    /// The number of bytes to be written.
    pub length: u64,
    /// The file that is written, synced or resized; or the one that has the (first) name.
    pub node: Node,
    /// The file that a rename replaces.
    pub replaced: Node,
    /// The directories of the names.
    pub directories: [FileId; 2],
    /// The path of the file; or for each name the path of its directory, a zero, the name, and a zero.
    pub names: Image,
}

/// The facts that are known of an operation when it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ended {
    /// The number of bytes that were written.
    pub length: u64,
    /// The file that was written, or that has the new name, with the contents that the deed's part of it has now.
    pub node: Node,
}

/// A deed in the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deed {
    /// The time at which the operation began.
    pub began_at: u64,
    /// The facts that were known then.
    pub began: Began,
    /// The time at which the operation ended, and the facts that were known then; `None` if it had not ended when the power was cut.
    pub ended: Option<(u64, Ended)>,
}

/// The state of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// Deeds are noted.
    Running = 0,
    /// The power is cut.
    Cut = 1,
    /// The power is cut because the journal had no room.
    Full = 2,
}

/// The words of a deed.
const WORDS: usize = 64;

#[repr(C)]
struct Slot([AtomicU64; WORDS]);

/// The first word of a slot: 0 while it is written, then one of these.
const BEGAN: u64 = 1;
const ENDED: u64 = 2;
/// The operation has failed: it did nothing.
const VOID: u64 = 3;
/// The words of what is known at the end begin here.
const END: usize = 40;

#[repr(C)]
struct Header {
    magic: AtomicU64,
    clock: AtomicU64,
    deeds: AtomicU64,
    images: AtomicU64,
    /// The moment at which the power is cut; 0 for none.
    moment: AtomicU64,
    state: AtomicU32,
}

/// A journal that is mapped in this process.
pub struct Journal {
    memory: NonNull<u8>,
}

// SAFETY: deeds are accessed atomically; an image is written by the thread that claimed it, before it is named in a deed.
unsafe impl Send for Journal {}
// SAFETY: as above.
unsafe impl Sync for Journal {}

/// Words that are written or read one after the other.
struct Words<'a> {
    slot: &'a Slot,
    at: usize,
}

impl Words<'_> {
    fn put(&mut self, words: &[u64]) {
        for &word in words {
            self.slot.0[self.at].store(word, Ordering::Relaxed);
            self.at += 1;
        }
    }

    fn put_node(&mut self, node: &Node) {
        let Node { file, mode, size, owner, contents } = *node;
        self.put(&[file.device, file.inode, mode, size, owner, contents.at, contents.length]);
    }

    fn take(&mut self) -> u64 {
        self.at += 1;
        self.slot.0[self.at - 1].load(Ordering::Relaxed)
    }

    fn take_file(&mut self) -> FileId {
        FileId { device: self.take(), inode: self.take() }
    }

    fn take_image(&mut self) -> Image {
        let (at, length) = (self.take(), self.take());
        // What processes of the run have written is not trusted.
        let is_there = at.checked_add(length).is_some_and(|end| end <= IMAGES as u64);
        if is_there { Image { at, length } } else { Image::default() }
    }

    fn take_node(&mut self) -> Node {
        let file = self.take_file();
        let (mode, size, owner) = (self.take(), self.take(), self.take());
        Node { file, mode, size, owner, contents: self.take_image() }
    }
}

impl Journal {
    /// Makes a journal in fresh memory of [`JOURNAL_BYTES`] zeros, which has the power cut at a moment; 0 for none.
    ///
    /// # Safety
    /// The memory must be aligned to 8 bytes, live as long as the journal, and be accessed as a journal only.
    pub unsafe fn create(memory: NonNull<u8>, moment: u64) -> Journal {
        let journal = Journal { memory };
        journal.header().moment.store(moment, Ordering::Relaxed);
        // Release pairs with the acquire load in `open`.
        journal.header().magic.store(MAGIC, Ordering::Release);
        journal
    }

    /// Opens a journal that another process has made; `None` if the memory, of [`JOURNAL_BYTES`], holds none.
    ///
    /// # Safety
    /// As for [`Journal::create`].
    pub unsafe fn open(memory: NonNull<u8>) -> Option<Journal> {
        let journal = Journal { memory };
        // Acquire pairs with the release store in `create`.
        (journal.header().magic.load(Ordering::Acquire) == MAGIC).then_some(journal)
    }

    fn header(&self) -> &Header {
        // SAFETY: the header is within the memory, aligned, and consists of atomics.
        unsafe { self.memory.cast::<Header>().as_ref() }
    }

    fn slot(&self, place: usize) -> &Slot {
        debug_assert!(place < DEEDS);
        // SAFETY: the slot is one of those after the header.
        unsafe { self.memory.add(HEADER).cast::<Slot>().add(place).as_ref() }
    }

    /// Returns the current time: the number of beginnings and ends so far.
    pub fn now(&self) -> u64 {
        self.header().clock.load(Ordering::SeqCst)
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        match self.header().state.load(Ordering::SeqCst) {
            0 => State::Running,
            1 => State::Cut,
            _ => State::Full,
        }
    }

    /// Cuts the power, if it is not cut yet. True if this call did it.
    pub fn cut(&self, state: State) -> bool {
        let running = State::Running as u32;
        let cut =
            self.header().state.compare_exchange(running, state as u32, Ordering::SeqCst, Ordering::SeqCst);
        cut.is_ok()
    }

    /// Cuts the power if it is to be cut at this moment, and is not cut yet. Calls `note` first, because `anyring chaos` kills this process
    /// as soon as it sees the cut.
    pub fn cut_at(&self, moment: u64, note: impl FnOnce()) {
        if self.header().moment.load(Ordering::Relaxed) == moment && self.state() == State::Running {
            note();
            self.cut(State::Cut);
        }
    }

    /// Claims memory for an image of up to `most` bytes, which `fill` writes, and returns the image of the bytes that `fill` says it wrote.
    /// `None` if there is no room.
    pub fn image(&self, most: usize, fill: impl FnOnce(NonNull<u8>) -> usize) -> Option<Image> {
        if most == 0 {
            return Some(Image::default());
        }
        let claimed = (most as u64).checked_next_multiple_of(8)?;
        let at = self.header().images.fetch_add(claimed, Ordering::Relaxed);
        if at.checked_add(claimed)? > IMAGES as u64 {
            return None;
        }
        // SAFETY: the image is within the memory, behind the deeds.
        let start = unsafe { self.memory.add(HEADER + DEEDS * size_of::<Slot>() + at as usize) };
        Some(Image { at, length: fill(start).min(most) as u64 })
    }

    /// Returns the bytes of an image of a deed.
    pub fn bytes(&self, image: Image) -> &[u8] {
        // SAFETY: images lie within the memory, as was checked when the deed was read, and are not written after they are named.
        unsafe {
            let start = self.memory.add(HEADER + DEEDS * size_of::<Slot>() + image.at as usize);
            core::slice::from_raw_parts(start.as_ptr(), image.length as usize)
        }
    }

    /// Claims the number of the next deed, from 0; `None` if there is no room.
    pub fn claim(&self) -> Option<usize> {
        let number = self.header().deeds.fetch_add(1, Ordering::Relaxed);
        usize::try_from(number).ok().filter(|&number| number < DEEDS)
    }

    /// Returns the number of deeds that were claimed so far.
    pub fn count(&self) -> usize {
        self.header().deeds.load(Ordering::Relaxed).min(DEEDS as u64) as usize
    }

    /// Notes an operation that begins, by the number that was claimed for it.
    pub fn begin(&self, number: usize, began: &Began) {
        let slot = self.slot(number);
        let mut words = Words { slot, at: 1 };
        let Began { effect, marks, opcode, who, serial, pid, after, offset, length, .. } = *began;
        let at = self.header().clock.fetch_add(1, Ordering::SeqCst) + 1;
        words.put(&[at, effect as u64, marks, opcode.into(), who.process, who.ring.into()]);
        words.put(&[serial, pid.into(), after, offset, length]);
        words.put_node(&began.node);
        words.put_node(&began.replaced);
        let [first, second] = began.directories;
        words.put(&[first.device, first.inode, second.device, second.inode]);
        words.put(&[began.names.at, began.names.length]);
        debug_assert!(words.at <= END);
        // Release pairs with the acquire load in `deeds`.
        slot.0[0].store(BEGAN, Ordering::Release);
    }

    /// Notes the end of an operation, by its number; `None` if it has failed.
    pub fn end(&self, number: usize, ended: Option<&Ended>) {
        let slot = self.slot(number);
        let Some(ended) = ended else {
            slot.0[0].store(VOID, Ordering::Release);
            return;
        };
        let mut words = Words { slot, at: END };
        let at = self.header().clock.fetch_add(1, Ordering::SeqCst) + 1;
        words.put(&[at, ended.length]);
        words.put_node(&ended.node);
        // Release pairs with the acquire load in `deeds`.
        slot.0[0].store(ENDED, Ordering::Release);
    }

    /// Returns the deeds, in the order of their beginnings, without those that failed or never began.
    pub fn deeds(&self) -> impl Iterator<Item = Deed> {
        (0..self.count()).filter_map(|place| Deed::of(self.slot(place)))
    }
}

impl Deed {
    fn of(slot: &Slot) -> Option<Deed> {
        // Acquire pairs with the release stores in `begin` and `end`.
        let state = slot.0[0].load(Ordering::Acquire);
        if !matches!(state, BEGAN | ENDED) {
            return None;
        }
        let mut words = Words { slot, at: 1 };
        let began_at = words.take();
        let effect = Effect::of(words.take())?;
        let (marks, opcode) = (words.take(), words.take() as u16);
        let who = Who { process: words.take(), ring: words.take() as u32 };
        let (serial, pid, after) = (words.take(), words.take() as u32, words.take());
        let (offset, length) = (words.take(), words.take());
        let (node, replaced) = (words.take_node(), words.take_node());
        let directories = [words.take_file(), words.take_file()];
        let names = words.take_image();
        let began = Began {
            effect,
            marks,
            opcode,
            who,
            serial,
            pid,
            after,
            offset,
            length,
            node,
            replaced,
            directories,
            names,
        };
        let mut words = Words { slot, at: END };
        let ended = (state == ENDED).then(|| {
            let at = words.take();
            let length = words.take();
            (at, Ended { length, node: words.take_node() })
        });
        Some(Deed { began_at, began, ended })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::cell::Cell;
    use std::vec::Vec;

    use super::*;

    struct Memory(Vec<u64>);

    impl Memory {
        fn new() -> Memory {
            Memory(std::vec![0; JOURNAL_BYTES / 8])
        }

        fn journal(&mut self) -> Journal {
            // SAFETY: the memory has this size, and the test keeps it.
            unsafe { Journal::create(NonNull::new(self.0.as_mut_ptr().cast()).expect("memory is there"), 4) }
        }
    }

    fn begin(journal: &Journal, began: &Began) -> Option<usize> {
        let number = journal.claim()?;
        journal.begin(number, began);
        Some(number)
    }

    fn began(serial: u64, names: Image) -> Began {
        let file = FileId { device: 1, inode: serial };
        let node = Node { file, mode: 2, size: 3, owner: 4, contents: Image::default() };
        Began {
            effect: Effect::Rename,
            marks: marks::EXCHANGES,
            opcode: 35,
            who: Who { process: 5, ring: 6 },
            serial,
            pid: 7,
            after: 8,
            offset: 9,
            length: 10,
            node,
            replaced: Node { size: 11, ..node },
            directories: [file, FileId { device: 12, inode: 13 }],
            names,
        }
    }

    #[test]
    fn deeds_are_read_as_they_were_noted() {
        let mut memory = Memory::new();
        let journal = memory.journal();
        let names = journal.image(5, |start| {
            // SAFETY: the image has five bytes.
            unsafe { start.as_ptr().copy_from_nonoverlapping(b"a\0b\0c".as_ptr(), 5) };
            4
        });
        let names = names.expect("there is room");
        let all: Vec<usize> =
            (0..3).map(|serial| begin(&journal, &began(serial, names)).expect("room")).collect();
        let ended = Ended { length: 20, node: began(9, names).node };
        journal.end(all[2], Some(&ended));
        journal.end(all[1], None);
        let deeds: Vec<Deed> = journal.deeds().collect();
        assert_eq!(deeds.len(), 2, "one has failed");
        assert_eq!(deeds[0], Deed { began_at: 1, began: began(0, names), ended: None });
        assert_eq!(deeds[1], Deed { began_at: 3, began: began(2, names), ended: Some((4, ended)) });
        assert_eq!(journal.bytes(deeds[0].began.names), b"a\0b\0");
        assert_eq!(journal.now(), 4);
    }

    #[test]
    fn the_power_is_cut_at_its_moment() {
        let mut memory = Memory::new();
        let journal = memory.journal();
        let come_to = |number| {
            moments_of(number).map(|moment| {
                let state = Cell::new(None);
                journal.cut_at(moment, || state.set(Some(journal.state())));
                state.get()
            })
        };
        let numbers: Vec<usize> = (0..2).filter_map(|_| journal.claim()).collect();
        assert_eq!(numbers, [0, 1]);
        assert_eq!((come_to(0), journal.state()), ([None, None], State::Running));
        let noted = Some(State::Running);
        assert_eq!(
            (come_to(1), journal.state()),
            ([None, noted], State::Cut),
            "noted first, after the second one"
        );
        assert_eq!((come_to(1), journal.count()), ([None, None], 2), "once");
        assert_eq!(journal.deeds().count(), 0, "none has begun");
    }

    #[test]
    fn the_power_is_cut_once() {
        let mut memory = Memory::new();
        let journal = memory.journal();
        assert_eq!(journal.state(), State::Running);
        assert!(journal.cut(State::Full) && !journal.cut(State::Cut));
        assert_eq!(journal.state(), State::Full);
    }

    #[test]
    fn a_journal_without_room_says_so() {
        let mut memory = Memory::new();
        let journal = memory.journal();
        assert!(journal.image(IMAGES - 8, |_| 0).is_some());
        assert!(journal.image(9, |_| 9).is_none() && journal.image(usize::MAX, |_| 0).is_none());
        let images = Image::default();
        assert!((0..DEEDS as u64).all(|serial| begin(&journal, &began(serial, images)).is_some()));
        assert_eq!(begin(&journal, &began(0, images)), None);
        assert_eq!((journal.deeds().count(), journal.count()), (DEEDS, DEEDS));
    }

    #[test]
    fn what_is_no_journal_is_not_opened() {
        let mut memory = Memory::new();
        let start = NonNull::new(memory.0.as_mut_ptr().cast()).expect("memory is there");
        // SAFETY: the memory has this size, and the test keeps it.
        assert!(unsafe { Journal::open(start) }.is_none());
        memory.journal();
        // SAFETY: as above.
        assert!(unsafe { Journal::open(start) }.is_some());
    }
}
