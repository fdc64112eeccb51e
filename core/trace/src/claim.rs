//! How many processes write records into one bounded queue, and one reads them.
//!
//! A writer *claims* the slots at the tail by one exchange of the first slot's claim, which says how many they are and whose:
//! from then on anybody, the reader too, knows where the record ends, whatever becomes of its writer. It fills them, and
//! *commits* by the first slot's mark. The reader takes committed records in order, and passes over those whose writer
//! died before.
//!
//! Positions count slots and never wrap (64 bits). Claims and marks bear the lap of their position, so what is left of a lap
//! before says nothing. A writer that slept since it read the tail finds a claim of the same lap or a later one there, and
//! tries again: a tail moves on over a claim only, so nobody can claim slots that are another's.
//!
//! The tail is moved on by whoever claimed, or by whoever comes next and finds it where it was.

/// The most slots that one record takes.
pub const MOST: u64 = 1023;

/// The claim of a record: the lap, how many slots it takes, whose it is; 0 for slots that hold nothing.
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

    /// How many slots.
    pub fn slots(self) -> u64 {
        self.0 >> Claim::PROCESS_BITS & ((1 << Claim::SLOT_BITS) - 1)
    }

    fn process(self) -> u32 {
        self.0 as u32 & ((1 << Claim::PROCESS_BITS) - 1)
    }
}

/// The shared words. A place is a position within the slots.
pub trait Cells {
    /// How many slots there are: a power of two.
    fn slots(&self) -> u64;
    /// The reader's position. Acquire, which pairs with the release in `move_head`: the reader looks at no slot before it.
    fn head(&self) -> u64;
    /// Moves it. Release.
    fn move_head(&self, to: u64);
    /// A position that the reader had when this process looked last. Acquire, which pairs with the release in `see_head`.
    fn seen_head(&self) -> u64;
    /// Keeps it. Release: who uses it has seen as much of the reader as who looked.
    fn see_head(&self, head: u64);
    /// The position behind the last claim. Acquire, which pairs with the release in `move_tail`: claims before it are seen.
    fn tail(&self) -> u64;
    /// The tail that the reader saw last. Only the reader's thread asks.
    fn seen_tail(&self) -> u64;
    /// Keeps it.
    fn see_tail(&self, tail: u64);
    /// Moves it if it is there. Release.
    fn move_tail(&self, from: u64, to: u64);
    /// The claim at a place.
    fn claimed(&self, place: u64) -> Claim;
    /// Replaces it if it is this one.
    fn replace(&self, place: u64, old: Claim, new: Claim) -> bool;
    /// In which lap a record was last committed there. Acquire, which pairs with the release in `mark`: the record is seen.
    fn marked(&self, place: u64) -> u32;
    /// Commits it. Release.
    fn mark(&self, place: u64, lap: u32);
}

/// There is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// The part of the buffer that the reader finds next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// A record at this position.
    Record(u64, Claim),
    /// Slots that hold nothing.
    Nothing,
    /// A record that this process has claimed and not committed yet.
    Unfinished(u32),
    /// Nothing was claimed.
    Empty,
}

fn place(cells: &impl Cells, position: u64) -> u64 {
    position & (cells.slots() - 1)
}

/// The lap of a position, from 1: memory that nobody has claimed yet says 0.
fn lap(cells: &impl Cells, position: u64) -> u64 {
    // The number of slots is a power of two.
    (position >> cells.slots().trailing_zeros()) + 1
}

/// Claims so many slots side by side, for a process: their position.
///
/// # Errors
/// [`Full`] where the reader has to make room first.
///
/// # Panics
/// Where a record cannot be so long.
pub fn claim(cells: &impl Cells, wanted: u64, process: u32) -> Result<u64, Full> {
    assert!((1..=MOST).contains(&wanted) && wanted < cells.slots(), "records are bounded");
    loop {
        let tail = cells.tail();
        let left = cells.slots() - place(cells, tail);
        // What does not fit before the end begins at the front, and the rest holds nothing.
        let fits = wanted <= left;
        let (slots, owner) = if fits { (wanted, process) } else { (left, 0) };
        // A head beyond this tail is no lack of room: others claimed meanwhile, and their records were read.
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
    // The head only grows. Looked at each time, its cache line would go back and forth between writer and reader.
    if end <= cells.seen_head() + cells.slots() {
        return true;
    }
    let head = cells.head();
    cells.see_head(head);
    end <= head + cells.slots()
}

/// True if the reader has taken all that was claimed.
fn is_empty(cells: &impl Cells, head: u64) -> bool {
    // The tail's cache line is the writers', as long as there is something to read.
    if head < cells.seen_tail() {
        return false;
    }
    let tail = cells.tail();
    cells.see_tail(tail);
    tail == head
}

/// Claims these slots, if nobody else has claimed at the tail. Whoever has: the tail is moved on.
fn claim_at(cells: &impl Cells, tail: u64, slots: u64, process: u32) -> bool {
    let (place, lap) = (place(cells, tail), lap(cells, tail));
    let mine = Claim::new(lap, slots, process);
    let there = cells.claimed(place);
    // Claims at one place only grow, so that of an earlier lap is replaced once.
    let got = there.lap() < lap && cells.replace(place, there, mine);
    let there = if got { mine } else { cells.claimed(place) };
    // Where it was claimed in a later lap, the tail is far beyond, and this changes nothing.
    cells.move_tail(tail, tail + there.slots());
    got
}

/// Shows a record to the reader.
pub fn commit(cells: &impl Cells, position: u64) {
    cells.mark(place(cells, position), lap(cells, position) as u32);
}

/// The next part for the reader. There is one reader.
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

/// The reader is done with what [`next`] showed.
pub fn advance(cells: &impl Cells) {
    let head = cells.head();
    cells.move_head(head + cells.claimed(place(cells, head)).slots().max(1));
}
