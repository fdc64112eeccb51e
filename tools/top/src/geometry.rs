//! The layout of a ring's memory.
//!
//! Programs get the layout from `io_uring_setup`; a later observer has only the memory. The words lie in one of two orders, and
//! some of them are sizes. The contents of the memory show the rest: whether entries have double size, and whether the submission
//! queue has an array of indices, in which most programs store each place's own index.

use anyring_engine::abi::layout::{CQES_OFFSET, OFFER_OFFSET};
use linux_raw_sys::io_uring::{IORING_OFF_SQ_RING, IORING_OFF_SQES, IORING_SQ_CQ_OVERFLOW};
use std::io;
use std::os::fd::BorrowedFd;

use crate::find::Engine;
use crate::records::Offer;
use crate::view::View;

/// Offsets of the words at the beginning of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    sq_head: usize,
    sq_tail: usize,
    cq_head: usize,
    cq_tail: usize,
    sq_mask: usize,
    cq_mask: usize,
    sq_entries: usize,
    cq_entries: usize,
    dropped: usize,
    sq_flags: usize,
    overflow: usize,
    cqes: usize,
}

/// The offsets in newer kernels, Linux 6.18 among them: the words lie one behind the other.
const CLOSE: Words = Words {
    sq_head: 0,
    sq_tail: 4,
    cq_head: 8,
    cq_tail: 12,
    sq_mask: 16,
    cq_mask: 20,
    sq_entries: 24,
    cq_entries: 28,
    dropped: 32,
    sq_flags: 36,
    overflow: 44,
    cqes: 64,
};

/// The offsets in the user engine and in older kernels: heads and tails have cache lines of their own.
const APART: Words = Words {
    sq_head: 0,
    sq_tail: 64,
    cq_head: 128,
    cq_tail: 192,
    sq_mask: 256,
    cq_mask: 260,
    sq_entries: 264,
    cq_entries: 268,
    dropped: 272,
    sq_flags: 276,
    overflow: 284,
    cqes: 320,
};

const LINE: usize = 64;
const PAGE: usize = 4096;
/// The sizes of ordinary entries in bytes.
const SQE: usize = 64;
const CQE: usize = 16;
const INDEX: usize = size_of::<u32>();
/// The maximum numbers of entries in rings of the kernel.
const MOST_SQ_ENTRIES: u32 = 1 << 15;
const MOST_CQ_ENTRIES: u32 = 1 << 16;

/// The sizes and offsets in a ring's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    words: Words,
    sq_entries: u32,
    cq_entries: u32,
    cqe_bytes: usize,
    sqe_bytes: usize,
    array: Option<usize>,
    /// The submission queue's tail when the geometry was found out.
    guessed_at: u32,
}

/// The state of both queues at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of SQEs that were taken from the queue since the ring was made (all counts wrap at 32 bits).
    pub sq_head: u32,
    /// The number of SQEs that were put into the queue.
    pub sq_tail: u32,
    /// The number of CQEs that were reaped.
    pub cq_head: u32,
    /// The number of CQEs that were posted.
    pub cq_tail: u32,
    /// The number of SQEs that were taken and named no entry.
    pub dropped: u32,
    /// The number of CQEs that found no room and were lost; `None` if that cannot be seen.
    pub overflow: Option<u32>,
    /// `IORING_SQ_*`.
    pub sq_flags: u32,
    /// The size of the submission queue.
    pub sq_entries: u32,
    /// The size of the completion queue.
    pub cq_entries: u32,
}

impl Counters {
    /// Returns the number of SQEs that wait to be taken.
    pub fn sq_ready(&self) -> u32 {
        self.sq_tail.wrapping_sub(self.sq_head).min(self.sq_entries)
    }

    /// Returns the number of CQEs that wait to be reaped.
    pub fn cq_ready(&self) -> u32 {
        self.cq_tail.wrapping_sub(self.cq_head).min(self.cq_entries)
    }

    /// Returns the number of requests in flight, if each has exactly one completion: requests taken less completions posted or lost.
    /// `None` if unknown, as while completions are in the overflow list, which no counter shows.
    pub fn in_flight(&self) -> Option<u32> {
        self.surplus()?.try_into().ok()
    }

    /// Returns [`Counters::in_flight`], or 0 if more completions were posted than requests were taken: the user engine may post a
    /// completion before it moves the queue's head past the request.
    pub fn about_in_flight(&self) -> Option<u32> {
        let surplus = self.surplus()?;
        (i64::from(surplus) >= -i64::from(self.sq_entries)).then_some(surplus.max(0) as u32)
    }

    fn surplus(&self) -> Option<i32> {
        let completed = self.cq_tail.wrapping_add(self.overflow?);
        let taken = self.sq_head.wrapping_sub(self.dropped);
        (self.sq_flags & IORING_SQ_CQ_OVERFLOW == 0).then_some(taken.wrapping_sub(completed) as i32)
    }
}

/// The memory of a ring during one look.
pub struct Memory {
    rings: View,
    sqes: View,
    geometry: Geometry,
}

impl Memory {
    /// Maps the memory of a ring, whose geometry at the last look was `known`.
    ///
    /// # Errors
    /// The errors of `mmap`: `EINVAL` if the ring is in pages of the program (`IORING_SETUP_NO_MMAP`); and
    /// `InvalidData` if `fd` has no memory of a ring.
    pub fn map(fd: BorrowedFd<'_>, engine: Engine, known: Option<&Geometry>) -> io::Result<Memory> {
        if let Some(known) = known.filter(|known| known.has_array())
            && let Some(memory) = Memory::as_before(fd, known)?
        {
            return Ok(memory);
        }
        Memory::find_out(fd, engine)
    }

    /// Maps memory of this geometry; `None` if the geometry has changed.
    fn as_before(fd: BorrowedFd<'_>, known: &Geometry) -> io::Result<Option<Memory>> {
        let Geometry { words, sq_entries, cq_entries, sqe_bytes, array, .. } = *known;
        let rings_length = array.unwrap_or(0) + sq_entries as usize * INDEX;
        let sqes_length = sq_entries as usize * sqe_bytes;
        let mut rings = View::new(fd, IORING_OFF_SQ_RING.into(), whole_pages(rings_length))?;
        let mut sqes = View::new(fd, IORING_OFF_SQES.into(), whole_pages(sqes_length))?;
        // This check comes before any search for the words, which the program may have overwritten.
        let is_same = rings.reaches(PAGE)
            && rings.reaches(rings_length)
            && sqes.reaches(sqes_length)
            && Words::found(&rings) == Some((words, sq_entries, cq_entries))
            && known.stands(rings.word(words.sq_tail));
        Ok(is_same.then_some(Memory { rings, sqes, geometry: *known }))
    }

    /// Maps the memory, and finds out its geometry.
    fn find_out(fd: BorrowedFd<'_>, engine: Engine) -> io::Result<Memory> {
        let no_ring = || io::Error::new(io::ErrorKind::InvalidData, "its memory is not laid out as a ring's");
        let mut first = View::new(fd, IORING_OFF_SQ_RING.into(), PAGE)?;
        if !first.reaches(PAGE) {
            return Err(no_ring());
        }
        let (words, sq_entries, cq_entries) = Words::found(&first).ok_or_else(no_ring)?;
        let sqe_bytes = SQE * sq_entries as usize;
        let cqes_end = words.cqes + CQE * cq_entries as usize;
        // The memory may have entries of double size, and an array. Some kernels map no more memory than there is.
        let arrays = words.array_places(engine, cq_entries);
        let [ordinary, double] = arrays.map(|array| array + sq_entries as usize * INDEX);
        let mut rings = longest(fd, IORING_OFF_SQ_RING, &[double, ordinary, cqes_end])?;
        let mut sqes = longest(fd, IORING_OFF_SQES, &[2 * sqe_bytes, sqe_bytes])?;
        let is_whole = rings.reaches(PAGE)
            && rings.reaches(cqes_end)
            && sqes.reaches(sqe_bytes)
            // The ring may have been resized between the mappings.
            && Words::found(&rings) == Some((words, sq_entries, cq_entries));
        if !is_whole {
            return Err(no_ring());
        }
        let geometry = Geometry::found_out((words, sq_entries, cq_entries), arrays, &mut rings, &mut sqes);
        Ok(Memory { rings, sqes, geometry })
    }

    /// Returns where the memory says that the records of its process can be asked for. The program may have written anything there.
    pub fn offer(&self) -> Option<Offer> {
        let is_engines = self.geometry.words.cqes == CQES_OFFSET;
        Offer::of_words(is_engines.then(|| self.rings.words(OFFER_OFFSET))?)
    }

    /// Returns the geometry of the memory.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the state of both queues. The completion queue is read first, because the requests of its completions
    /// were taken before.
    pub fn counters(&self) -> Counters {
        let Geometry { words, sq_entries, cq_entries, .. } = self.geometry;
        let word = |offset| self.rings.word(offset);
        let cq_tail = word(words.cq_tail);
        let sq_head = word(words.sq_head);
        Counters {
            cq_tail,
            sq_head,
            sq_tail: word(words.sq_tail),
            cq_head: word(words.cq_head),
            dropped: word(words.dropped),
            overflow: Some(word(words.overflow)),
            sq_flags: word(words.sq_flags),
            sq_entries,
            cq_entries,
        }
    }

    /// Returns the SQE at a position of the queue; `None` if the program names no entry there.
    pub fn sqe(&self, position: u32) -> Option<[u64; 8]> {
        Some(self.sqes.words(self.index(position)? as usize * self.geometry.sqe_bytes))
    }

    /// Returns the index of the entry at a position of the submission queue.
    pub fn index(&self, position: u32) -> Option<u32> {
        let Geometry { sq_entries, array, .. } = self.geometry;
        let place = position & (sq_entries - 1);
        let index = array.map_or(place, |array| self.rings.word(array + place as usize * INDEX));
        (index < sq_entries).then_some(index)
    }

    /// Returns the words of the CQE at a position: the user data, then the result and the flags.
    pub fn cqe(&self, position: u32) -> [u64; 2] {
        let Geometry { words, cq_entries, cqe_bytes, .. } = self.geometry;
        let place = (position & (cq_entries - 1)) as usize;
        self.rings.words(words.cqes + place * cqe_bytes)
    }
}

/// Maps the longest of these lengths that can be mapped.
fn longest(fd: BorrowedFd<'_>, offset: u32, lengths: &[usize]) -> io::Result<View> {
    let mut result = Err(io::Error::from_raw_os_error(libc::EINVAL));
    for length in lengths {
        result = View::new(fd, offset.into(), whole_pages(*length));
        if result.is_ok() {
            break;
        }
    }
    result
}

fn whole_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

impl Words {
    /// Returns the offsets at which an array of indices may begin: behind CQEs of the ordinary size, and of double size.
    fn array_places(&self, engine: Engine, cq_entries: u32) -> [usize; 2] {
        let cqes = cq_entries as usize * CQE;
        let double = match engine {
            // The kernel doubles the part before the CQEs, too.
            Engine::Kernel => 2 * (self.cqes + cqes),
            Engine::User => self.cqes + 2 * cqes,
        };
        [self.cqes + cqes, double].map(|end| end.next_multiple_of(LINE))
    }

    /// Finds the order in which the words lie, and returns it with the sizes of both queues; `None` if this is not a
    /// ring's memory.
    fn found(view: &View) -> Option<(Words, u32, u32)> {
        let sizes = |words: &Words| {
            let size = |entries, mask, most| {
                let entries = view.word(entries);
                let fits = entries.is_power_of_two() && entries <= most && view.word(mask) == entries - 1;
                fits.then_some(entries)
            };
            let sq_entries = size(words.sq_entries, words.sq_mask, MOST_SQ_ENTRIES)?;
            Some((*words, sq_entries, size(words.cq_entries, words.cq_mask, MOST_CQ_ENTRIES)?))
        };
        sizes(&CLOSE).or_else(|| sizes(&APART))
    }
}

impl Geometry {
    /// The size of the submission queue.
    pub fn sq_entries(&self) -> u32 {
        self.sq_entries
    }

    /// The size of the completion queue.
    pub fn cq_entries(&self) -> u32 {
        self.cq_entries
    }

    /// True if an array maps positions to entries.
    pub fn has_array(&self) -> bool {
        self.array.is_some()
    }

    /// True if the geometry is still up to date when the submission queue has this tail. It can still change until all places
    /// were used.
    fn stands(&self, sq_tail: u32) -> bool {
        self.guessed_at >= self.sq_entries || self.guessed_at == sq_tail
    }

    fn found_out(
        (words, sq_entries, cq_entries): (Words, u32, u32),
        arrays: [usize; 2],
        rings: &mut View,
        sqes: &mut View,
    ) -> Geometry {
        let likely = arrays.map(|array| likelihood_of_array(rings, array, sq_entries));
        let array = match likely {
            [0, 0] => None,
            [ordinary, double] => {
                Some(if ordinary >= double { (CQE, arrays[0]) } else { (2 * CQE, arrays[1]) })
            }
        };
        let cqe_bytes = array.map_or_else(
            || {
                let end = words.cqes + cq_entries as usize * CQE;
                if has_contents(rings, end, cq_entries as usize * CQE) { 2 * CQE } else { CQE }
            },
            |(bytes, _)| bytes,
        );
        let is_double = has_contents(sqes, sq_entries as usize * SQE, sq_entries as usize * SQE);
        Geometry {
            words,
            sq_entries,
            cq_entries,
            cqe_bytes,
            sqe_bytes: if is_double { 2 * SQE } else { SQE },
            array: array.map(|(_, array)| array),
            guessed_at: rings.word(words.sq_tail),
        }
    }
}

/// Returns the likelihood that an array of indices begins here: 0 for no array, or an empty one. In an empty array, each place may mean
/// its own index or the first, until the program fills it.
fn likelihood_of_array(rings: &mut View, offset: usize, entries: u32) -> usize {
    if !rings.reaches(offset + entries as usize * INDEX) {
        return 0;
    }
    let indices = || (0..entries).map(|place| (place, rings.word(offset + place as usize * INDEX)));
    if !indices().all(|(_, index)| index < entries) || indices().all(|(_, index)| index == 0) {
        return 0;
    }
    // In the arrays of most programs, each place has its own index.
    1 + indices().filter(|(place, index)| place == index).count()
}

/// True if there are bytes other than zero in this part.
fn has_contents(view: &mut View, offset: usize, length: usize) -> bool {
    view.reaches(offset + length)
        && (offset..offset + length).step_by(size_of::<u64>()).any(|at| view.words::<1>(at) != [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_in_flight_are_those_that_have_not_completed() {
        let counters = |sq_head, cq_tail, overflow| Counters {
            sq_head,
            cq_tail,
            overflow,
            sq_entries: 8,
            ..Counters::default()
        };
        let both = |counters: Counters| (counters.in_flight(), counters.about_in_flight());
        assert_eq!(both(counters(10, 7, Some(0))), (Some(3), Some(3)));
        // Two of the three completions were lost.
        assert_eq!(both(counters(10, 7, Some(2))), (Some(1), Some(1)));
        assert_eq!(both(counters(10, 7, None)), (None, None));
        // More completions were posted than requests were taken.
        assert_eq!(both(counters(7, 10, Some(0))), (None, Some(0)));
        assert_eq!(both(counters(7, 16, Some(0))), (None, None));
        let keeps = Counters { sq_flags: IORING_SQ_CQ_OVERFLOW, ..counters(10, 7, Some(0)) };
        assert_eq!(both(keeps), (None, None));
    }
}
