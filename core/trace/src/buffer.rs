//! The shared memory: a bounded queue of records from any number of processes to one reader.
//!
//! ```text
//!  ┌────────┬──────────────────────┬─────────────────────┬──────────────────────────────────────────┐
//!  │ header │ claims, one per slot │ marks, one per slot │ slots of 64 bytes                        │
//!  └────────┴──────────────────────┴─────────────────────┴──────────────────────────────────────────┘
//!     head ─► the reader's position     a record: ▓▓▓▓▓▓▓▓ (1 to 1023 slots, never around the end)
//!   tail ─► the position after the last claim
//! ```
//!
//! [`crate::claim`] defines how records are claimed, committed and read; this module defines the memory.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::claim::{self, Cells, Claim, Full, MOST};

/// The size of a slot in bytes.
pub const SLOT: usize = 64;
/// The maximum size of a record in bytes.
pub const MOST_BYTES: usize = MOST as usize * SLOT;

const MAGIC: u64 = 0x3165_6361_7274_7261;
const HEADER: usize = 4096;

/// The header at the beginning of a buffer.
#[repr(C)]
pub struct Header {
    magic: AtomicU64,
    /// The number of slots: a power of two.
    slots: AtomicU64,
    /// The reader's requests to the writers.
    pub settings: Settings,
    /// The reader has taken all records before this position.
    head: Padded,
    /// The next record begins at this position.
    tail: Padded,
    /// The number of records that writers dropped because there was no room.
    pub dropped: AtomicU64,
    /// Not 0 once the reader is gone: writers no longer wait for it. Of a buffer on demand: once one side has ended the records.
    pub abandoned: AtomicU32,
    /// The reader of a buffer on demand changes it as long as it lives.
    pub beat: AtomicU32,
}

#[repr(C, align(64))]
struct Padded(AtomicU64);

/// The reader's requests to the writers, set before the first writer attaches.
#[repr(C)]
#[derive(Debug)]
pub struct Settings {
    /// The reader's process.
    pub reader: AtomicU32,
    /// The maximum number of bytes of a request's data in a record.
    pub sample: AtomicU32,
    /// [`LOSSY`], [`CALLERS`].
    pub flags: AtomicU32,
}

/// A writer without room drops its record and counts it, instead of waiting.
pub const LOSSY: u32 = 1 << 0;
/// Writers report the code of the program that enters rings ([`crate::event::Called`]).
pub const CALLERS: u32 = 1 << 1;

const _: () = assert!(size_of::<Header>() <= HEADER);

/// Returns the size of a buffer with `slots` slots in bytes.
pub const fn bytes(slots: usize) -> usize {
    HEADER + slots * (size_of::<u64>() + size_of::<u32>() + SLOT)
}

/// A buffer that is mapped in this process.
pub struct Buffer {
    memory: NonNull<u8>,
    /// Read once: later changes of the memory have no effect on it.
    slots: u64,
    /// The head and the tail when this process last read them.
    seen_head: AtomicU64,
    seen_tail: AtomicU64,
}

// SAFETY: memory that several threads access is atomic; a slot belongs to the writer that claimed it.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

/// Slots that the calling thread has claimed, to be filled and committed. A record that is dropped uncommitted is skipped
/// once its process is gone.
#[must_use = "a claim that is not committed stops the reader"]
pub struct Record<'a> {
    buffer: &'a Buffer,
    position: u64,
    length: usize,
    filled: usize,
}

/// The part of the buffer that the reader finds next.
#[derive(Debug)]
pub enum Next<'a> {
    /// A record's bytes, rounded up to whole slots.
    Record(&'a [u8]),
    /// Slots without a record.
    Nothing,
    /// A record that this process has claimed and not committed yet.
    Unfinished(u32),
    /// No further slot is claimed.
    Empty,
}

impl Buffer {
    fn at(memory: NonNull<u8>, slots: u64) -> Buffer {
        Buffer { memory, slots, seen_head: AtomicU64::new(0), seen_tail: AtomicU64::new(0) }
    }

    /// Makes a buffer in fresh memory of [`bytes`]`(slots)` zeros.
    ///
    /// # Panics
    /// If `slots` is no power of two, or not larger than a record may be.
    ///
    /// # Safety
    /// The memory must be aligned to 64 bytes, live as long as the buffer, and be accessed as a buffer only.
    pub unsafe fn create(memory: NonNull<u8>, slots: usize) -> Buffer {
        assert!(slots.is_power_of_two() && slots > MOST as usize, "a record fits in, however it lies");
        let buffer = Buffer::at(memory, slots as u64);
        let header = buffer.header();
        header.slots.store(slots as u64, Ordering::Relaxed);
        // Release pairs with the acquire load in `open`.
        header.magic.store(MAGIC, Ordering::Release);
        buffer
    }

    /// Opens a buffer that another process has made, in `length` bytes of memory; `None` if the memory holds no valid buffer.
    ///
    /// # Safety
    /// As for [`Buffer::create`].
    pub unsafe fn open(memory: NonNull<u8>, length: usize) -> Option<Buffer> {
        if length < HEADER {
            return None;
        }
        let mut buffer = Buffer::at(memory, 0);
        let header = buffer.header();
        // Acquire pairs with the release store in `create`.
        let is_one = header.magic.load(Ordering::Acquire) == MAGIC;
        let slots = header.slots.load(Ordering::Relaxed);
        let fits = slots.is_power_of_two() && slots > MOST && slots < length as u64;
        if !is_one || !fits || bytes(slots as usize) > length {
            return None;
        }
        buffer.slots = slots;
        Some(buffer)
    }

    /// The header at the beginning of the memory.
    pub fn header(&self) -> &Header {
        // SAFETY: the header is within the memory, aligned, and consists of atomics.
        unsafe { self.memory.cast::<Header>().as_ref() }
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.slots as usize
    }

    /// Makes this process the only reader of a buffer on demand. False if there is another one.
    pub fn enlist(&self, reader: u32) -> bool {
        let settings = &self.header().settings;
        settings.reader.compare_exchange(0, reader, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Shows the writers of a buffer on demand that the reader lives.
    pub fn beat(&self) {
        self.header().beat.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of slots that are claimed and not read.
    pub fn used(&self) -> usize {
        let header = self.header();
        let head = header.head.0.load(Ordering::Relaxed);
        header.tail.0.load(Ordering::Relaxed).saturating_sub(head) as usize
    }

    fn claim_at(&self, place: u64) -> &AtomicU64 {
        // SAFETY: the claim is one of those after the header.
        unsafe { self.memory.add(HEADER).cast::<AtomicU64>().add(place as usize).as_ref() }
    }

    fn mark_at(&self, place: u64) -> &AtomicU32 {
        let marks = HEADER + self.slots() * size_of::<u64>();
        // SAFETY: the mark is one of those after the claims.
        unsafe { self.memory.add(marks).cast::<AtomicU32>().add(place as usize).as_ref() }
    }

    fn slot_at(&self, place: u64) -> *mut u8 {
        let slots = HEADER + self.slots() * (size_of::<u64>() + size_of::<u32>());
        // SAFETY: the slot is one of those after the marks.
        unsafe { self.memory.as_ptr().add(slots + place as usize * SLOT) }
    }

    /// Claims room for a record of `length` bytes, for the process with this id (not 0).
    ///
    /// # Errors
    /// [`Full`] if the reader must first make room.
    ///
    /// # Panics
    /// If the length exceeds [`MOST_BYTES`].
    pub fn claim(&self, length: usize, process: u32) -> Result<Record<'_>, Full> {
        let position = claim::claim(self, length.div_ceil(SLOT).max(1) as u64, process)?;
        Ok(Record { buffer: self, position, length, filled: 0 })
    }

    /// Returns the next part for the reader. There may be only one reader.
    pub fn next(&self) -> Next<'_> {
        let (position, claim) = match claim::next(self) {
            claim::Next::Empty => return Next::Empty,
            claim::Next::Unfinished(process) => return Next::Unfinished(process),
            claim::Next::Nothing => return Next::Nothing,
            claim::Next::Record(position, claim) => (position, claim),
        };
        let place = position & (self.slots - 1);
        // A writer may be any process, and its claim may be invalid.
        let slots = claim.slots().min(self.slots - place) as usize;
        // SAFETY: these slots belong to the reader until it advances. A writer that violates this only garbles the output.
        Next::Record(unsafe { core::slice::from_raw_parts(self.slot_at(place), slots * SLOT) })
    }

    /// Releases the part that [`Buffer::next`] returned.
    pub fn advance(&self) {
        claim::advance(self);
    }
}

impl Cells for Buffer {
    fn slots(&self) -> u64 {
        self.slots
    }
    fn head(&self) -> u64 {
        self.header().head.0.load(Ordering::Acquire)
    }
    fn move_head(&self, to: u64) {
        self.header().head.0.store(to, Ordering::Release);
    }
    fn seen_head(&self) -> u64 {
        self.seen_head.load(Ordering::Acquire)
    }
    fn see_head(&self, head: u64) {
        self.seen_head.store(head, Ordering::Release);
    }
    fn tail(&self) -> u64 {
        self.header().tail.0.load(Ordering::Acquire)
    }
    fn seen_tail(&self) -> u64 {
        self.seen_tail.load(Ordering::Relaxed)
    }
    fn see_tail(&self, tail: u64) {
        self.seen_tail.store(tail, Ordering::Relaxed);
    }
    fn move_tail(&self, from: u64, to: u64) {
        let _ = self.header().tail.0.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed);
    }
    fn claimed(&self, place: u64) -> Claim {
        Claim(self.claim_at(place).load(Ordering::Relaxed))
    }
    fn replace(&self, place: u64, old: Claim, new: Claim) -> bool {
        self.claim_at(place).compare_exchange(old.0, new.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
    fn marked(&self, place: u64) -> u32 {
        self.mark_at(place).load(Ordering::Acquire)
    }
    fn mark(&self, place: u64, lap: u32) {
        self.mark_at(place).store(lap, Ordering::Release);
    }
}

impl Record<'_> {
    /// Returns where to write the next `length` bytes of the record.
    ///
    /// # Panics
    /// If less than `length` bytes of the record are left.
    pub fn next(&mut self, length: usize) -> *mut u8 {
        assert!(length <= self.length - self.filled, "within what was claimed");
        // SAFETY: the place is within the record's slots, which are contiguous.
        let place = unsafe { self.buffer.slot_at(self.position & (self.buffer.slots - 1)).add(self.filled) };
        self.filled += length;
        place
    }

    /// Writes the next bytes.
    ///
    /// # Panics
    /// If the bytes exceed the rest of the record.
    pub fn put(&mut self, bytes: &[u8]) {
        let place = self.next(bytes.len());
        // SAFETY: the record has room for the bytes at this place.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Publishes the record to the reader.
    ///
    /// # Panics
    /// If the record is not filled completely.
    pub fn commit(self) {
        assert_eq!(self.filled, self.length, "nothing is left of what was there before");
        claim::commit(self.buffer, self.position);
    }
}
