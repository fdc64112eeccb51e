//! Copies of the program's memory, and rubbish in its place.

use alloc::vec::Vec;

use anyring_chaos_plan::{Harm, child};

use crate::os::host::{self, Checker};
use crate::os::user::{self, IoVector};

/// The number of bytes that are written or compared at a time.
pub const PIECE: usize = 512;
/// The least number of rubbish bytes in a row that count as rubbish beside bytes of the program, which may be equal by chance.
const LEAST_RUN: usize = 4;

/// The high bit of each byte: text, zeros and small numbers are no rubbish.
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// True if a checker of memory hides what requests fill until they complete.
pub fn hides_memory() -> bool {
    host::checker().is_some_and(Checker::hides_memory)
}

/// Returns the rubbish for the bytes of a copy from `at` on.
fn rubbish(seed: u64, at: usize) -> [u8; PIECE] {
    let mut rubbish = [0; PIECE];
    for (word, chunk) in rubbish.chunks_exact_mut(size_of::<u64>()).enumerate() {
        let number = child(seed, (at + word) as u64) | HIGH_BITS;
        chunk.copy_from_slice(&number.to_ne_bytes());
    }
    rubbish
}

/// A copy of memory of the program.
pub struct Copy {
    pub base: u64,
    pub bytes: Vec<u8>,
}

impl Copy {
    /// Copies memory, up to `room` bytes, which are fewer then. `None` if nothing is copied: there is no room, or no memory.
    pub fn of(place: &IoVector, room: &mut usize) -> Option<Copy> {
        let length = place.length.min(*room as u64) as usize;
        let bytes = user::read_many::<u8>(place.base, length).ok().filter(|bytes| !bytes.is_empty())?;
        *room -= length;
        Some(Copy { base: place.base, bytes })
    }

    pub fn place(&self) -> IoVector {
        IoVector { base: self.base, length: self.bytes.len() as u64 }
    }

    /// Writes the bytes from `first` on to their place. False if the memory is not there any more.
    pub fn put_from(&self, first: usize) -> bool {
        let Some(bytes) = self.bytes.get(first..) else { return true };
        user::write_bytes(self.base + first as u64, bytes).is_ok()
    }

    /// Writes rubbish to the place of the copy, up to memory that is not there any more.
    pub fn spoil(&self, seed: u64) {
        for at in (0..self.bytes.len()).step_by(PIECE) {
            let length = PIECE.min(self.bytes.len() - at);
            if user::write_bytes(self.base + at as u64, &rubbish(seed, at)[..length]).is_err() {
                return;
            }
        }
    }

    /// Returns the difference of the memory from the copy, if there is one.
    pub fn harm(&self) -> Option<Harm> {
        let mut now = [0; PIECE];
        for (index, copied) in self.bytes.chunks(PIECE).enumerate() {
            let now = &mut now[..copied.len()];
            if user::read_bytes(self.base + (index * PIECE) as u64, now).is_err() {
                return Some(Harm::Unmapped);
            }
            if now != copied {
                return Some(Harm::Changed);
            }
        }
        None
    }
}

/// Memory of the program that holds rubbish until a request has filled it, and its contents before.
///
/// Other requests may legally fill the memory meanwhile, and so may the program after a cancellation: only bytes that still are the rubbish
/// are replaced.
pub struct Spoilt {
    before: Copy,
    /// The rubbish of each piece.
    seeds: Vec<u64>,
}

impl Spoilt {
    /// Copies memory, and writes rubbish there. `None` if memory is short, or the place cannot be read and written.
    pub fn of(place: &IoVector, seed: u64) -> Option<Spoilt> {
        let before = Copy::of(place, &mut (place.length as usize))?;
        let pieces = before.bytes.len().div_ceil(PIECE);
        let mut seeds = Vec::new();
        seeds.try_reserve_exact(pieces).ok()?;
        seeds.resize(pieces, seed);
        if !before.put_from(0) {
            return None;
        }
        before.spoil(seed);
        let spoilt = Spoilt { before, seeds };
        spoilt.hide();
        Some(spoilt)
    }

    /// Tells a checker of memory that what is there must not be looked at.
    fn hide(&self) {
        if let Some(checker) = host::checker() {
            checker.hides(self.before.place());
        }
    }

    /// Tells a checker of memory that what is there may be looked at.
    fn show(&self) {
        if let Some(checker) = host::checker() {
            checker.shows(self.before.place());
        }
    }

    /// Returns the contents before.
    pub fn before(&self) -> &Copy {
        &self.before
    }

    /// Returns the number of pieces.
    pub fn pieces(&self) -> usize {
        self.seeds.len()
    }

    /// Writes other rubbish to a piece.
    pub fn respoil(&mut self, piece: usize, seed: u64) {
        let at = piece * PIECE;
        self.show();
        self.replace(piece, at, &rubbish(seed, at));
        self.seeds[piece] = seed;
        self.hide();
    }

    /// Writes the contents before to their place, from byte `first` on.
    pub fn restore_from(&self, first: usize) {
        self.show();
        for piece in first / PIECE..self.pieces() {
            let at = piece * PIECE;
            self.replace(piece, first.max(at), &self.before.bytes[at..]);
        }
    }

    /// Replaces the rubbish of a piece, from byte `first` of all on, by the `new` bytes of the piece.
    fn replace(&self, piece: usize, first: usize, new: &[u8]) {
        let at = piece * PIECE;
        let length = PIECE.min(self.before.bytes.len() - at);
        let (old, mut now) = (rubbish(self.seeds[piece], at), [0; PIECE]);
        let (old, now) = (&old[first - at..length], &mut now[first - at..length]);
        if user::read_bytes(self.before.base + first as u64, now).is_err() {
            return;
        }
        for (start, end) in equal_runs(old, now) {
            let place = self.before.base + (first + start) as u64;
            // The memory may be gone meanwhile.
            let _ = user::write_bytes(place, &new[first - at..][start..end]);
        }
    }
}

/// Iterates over the ranges of equal bytes of two parts of one length, without short ones, which are equal by chance.
fn equal_runs(one: &[u8], other: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        while at < one.len() {
            let start = at;
            at += one[at..].iter().zip(&other[at..]).take_while(|(one, other)| one == other).count();
            let is_all = start == 0 && at == one.len();
            if is_all && at > 0 || at - start >= LEAST_RUN {
                return Some((start, at));
            }
            at += usize::from(at < one.len());
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_equal_by_chance_are_the_programs() {
        let runs = |one: &[u8], other: &[u8]| equal_runs(one, other).collect::<Vec<_>>();
        assert_eq!(runs(b"abcdefgh", b"abcdefgh"), [(0, 8)]);
        assert_eq!(runs(b"abc", b"abc"), [(0, 3)]);
        assert_eq!(runs(b"abcdefgh", b"xbcxefgh"), [(4, 8)]);
        assert_eq!(runs(b"abcdefgh", b"abcdefxh"), [(0, 6)]);
        assert_eq!(runs(b"", b""), []);
    }
}
