//! The algorithm by which many processes write records into one bounded queue, and one process reads them.
//!
//! A writer *claims* the slots at the tail by one exchange of the first slot's claim, which holds their number and the writer's process:
//! from then on all writers and the reader know where the record ends, whatever happens to its writer. The writer fills the slots, and
//! *commits* the record by the first slot's mark. The reader takes committed records in order, and skips records whose writer
//! died before its commit.
//!
//! Positions count slots and never wrap (64 bits). Claims and marks contain the lap of their position, so those of an earlier
//! lap have no meaning. A writer that slept since it read the tail finds a claim of this lap or a later one there, and
//! tries again. The tail moves only across a claim, so no writer can claim slots of another writer.
//!
//! The tail is moved by the writer that has claimed, or by the next writer that finds it unmoved.

/// The maximum number of slots of a record.
pub const MOST: u64 = 1023;

/// The claim of a record: its lap, its number of slots, and its process, which is 0 for slots without a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Claim(pub u64);

impl Claim {
    const SLOT_BITS: u32 = 10;
    const PROCESS_BITS: u32 = 24;

    fn new(lap: u64, slots: u64, process: u32) -> Claim {
        debug_assert!(slots <= MOST && process >> Claim::PROCESS_BITS == 0);
        Claim((lap << Claim::SLOT_BITS | slots) << Claim::PROCESS_BITS | u64::from(process))
    }

    fn lap(self) -> u64 {
        self.0 >> (Claim::SLOT_BITS + Claim::PROCESS_BITS)
    }

    /// The number of slots.
    pub fn slots(self) -> u64 {
        self.0 >> Claim::PROCESS_BITS & ((1 << Claim::SLOT_BITS) - 1)
    }

    fn process(self) -> u32 {
        self.0 as u32 & ((1 << Claim::PROCESS_BITS) - 1)
    }
}

/// The shared words. A place is a position modulo the number of slots.
pub trait Cells {
    /// The number of slots: a power of two.
    fn slots(&self) -> u64;
    /// The reader's position. Acquire, which pairs with the release in `move_head`: the reader accesses no slot before it any more.
    fn head(&self) -> u64;
    /// Moves the reader's position. Release.
    fn move_head(&self, to: u64);
    /// The reader's position when this process last read it. Acquire, which pairs with the release in `see_head`.
    fn seen_head(&self) -> u64;
    /// Stores the reader's position for `seen_head`. Release: a thread that loads it sees as much of the reader as the storing thread.
    fn see_head(&self, head: u64);
    /// The position after the last claim. Acquire, which pairs with the release in `move_tail`: claims before it are visible.
    fn tail(&self) -> u64;
    /// The tail when the reader last read it. Only the reader's thread calls this.
    fn seen_tail(&self) -> u64;
    /// Stores the tail for `seen_tail`.
    fn see_tail(&self, tail: u64);
    /// Moves the tail to `to` if it is at `from`. Release.
    fn move_tail(&self, from: u64, to: u64);
    /// The claim at a place.
    fn claimed(&self, place: u64) -> Claim;
    /// Replaces the claim at a place if it equals `old`. Returns true if it did.
    fn replace(&self, place: u64, old: Claim, new: Claim) -> bool;
    /// The lap in which a record was last committed at a place. Acquire, which pairs with the release in `mark`: the record is visible.
    fn marked(&self, place: u64) -> u32;
    /// Marks the record at a place as committed. Release.
    fn mark(&self, place: u64, lap: u32);
}

/// The error of a claim without room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// The part of the buffer that the reader finds next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// A record at this position.
    Record(u64, Claim),
    /// Slots without a record.
    Nothing,
    /// A record that this process has claimed and not committed yet.
    Unfinished(u32),
    /// No further slot is claimed.
    Empty,
}

fn place(cells: &impl Cells, position: u64) -> u64 {
    position & (cells.slots() - 1)
}

/// Returns the lap of a position, from 1: memory that was never claimed has 0.
fn lap(cells: &impl Cells, position: u64) -> u64 {
    // The number of slots is a power of two.
    (position >> cells.slots().trailing_zeros()) + 1
}

/// Claims `wanted` contiguous slots for a process. Returns their position.
///
/// # Errors
/// [`Full`] if the reader must first make room.
///
/// # Panics
/// If `wanted` is 0, or more than a record may have.
pub fn claim(cells: &impl Cells, wanted: u64, process: u32) -> Result<u64, Full> {
    assert!((1..=MOST).contains(&wanted) && wanted < cells.slots(), "records are bounded");
    loop {
        let tail = cells.tail();
        let left = cells.slots() - place(cells, tail);
        // A record that does not fit before the end begins at the front; the slots at the end are claimed without a record.
        let fits = wanted <= left;
        let (slots, owner) = if fits { (wanted, process) } else { (left, 0) };
        // A head beyond this tail is no lack of room: other writers claimed meanwhile, and their records were read.
        if !has_room(cells, tail + slots) {
            return Err(Full);
        }
        if !claim_at(cells, tail, slots, owner) {
            continue;
        }
        if fits {
            return Ok(tail);
        }
        commit(cells, tail);
    }
}

/// True if there is room up to this position.
fn has_room(cells: &impl Cells, end: u64) -> bool {
    // The head only grows, so an old value will do. Reading it each time would move its cache line between writer and reader.
    if end <= cells.seen_head() + cells.slots() {
        return true;
    }
    let head = cells.head();
    cells.see_head(head);
    end <= head + cells.slots()
}

/// True if the reader has taken all claimed slots.
fn is_empty(cells: &impl Cells, head: u64) -> bool {
    // While there is something to read, the tail is not read: its cache line belongs to the writers.
    if head < cells.seen_tail() {
        return false;
    }
    let tail = cells.tail();
    cells.see_tail(tail);
    tail == head
}

/// Claims these slots, unless another writer has claimed at the tail. In both cases, the tail is moved.
fn claim_at(cells: &impl Cells, tail: u64, slots: u64, process: u32) -> bool {
    let (place, lap) = (place(cells, tail), lap(cells, tail));
    let mine = Claim::new(lap, slots, process);
    let there = cells.claimed(place);
    // Claims at a place only grow, so a claim of an earlier lap is replaced only once.
    let got = there.lap() < lap && cells.replace(place, there, mine);
    let there = if got { mine } else { cells.claimed(place) };
    // If the place was claimed in a later lap, the tail is far beyond, and this changes nothing.
    cells.move_tail(tail, tail + there.slots());
    got
}

/// Publishes a record to the reader.
pub fn commit(cells: &impl Cells, position: u64) {
    cells.mark(place(cells, position), lap(cells, position) as u32);
}

/// Returns the next part for the reader. There may be only one reader.
pub fn next(cells: &impl Cells) -> Next {
    let head = cells.head();
    if is_empty(cells, head) {
        return Next::Empty;
    }
    let place = place(cells, head);
    let claim = cells.claimed(place);
    if cells.marked(place) != lap(cells, head) as u32 {
        return Next::Unfinished(claim.process());
    }
    if claim.process() == 0 { Next::Nothing } else { Next::Record(head, claim) }
}

/// Releases the part that [`next`] returned.
pub fn advance(cells: &impl Cells) {
    let head = cells.head();
    // Wraps only if a writer has overwritten the head.
    cells.move_head(head.wrapping_add(cells.claimed(place(cells, head)).slots().max(1)));
}
