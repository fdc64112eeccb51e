//! The places in a ring's table of files.

use crate::op::Waker;
use crate::operation::Files;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The free places of a ring's table of files.
#[derive(Debug)]
pub(crate) struct Table {
    places: Mutex<Places>,
    /// Wakes the driver to empty abandoned places, if a driver owns the ring.
    waker: OnceLock<Waker>,
}

#[derive(Debug)]
struct Places {
    free: Vec<u32>,
    /// Places that no [`FixedSlot`] refers to any more, but that still hold a file.
    abandoned: Vec<u32>,
}

impl Table {
    pub(crate) fn new(count: u32) -> Arc<Table> {
        let places = Places { free: (0..count).rev().collect(), abandoned: Vec::new() };
        Arc::new(Table { places: Mutex::new(places), waker: OnceLock::new() })
    }

    /// Sets the waker, which wakes the driver whenever there is a place to empty.
    pub(crate) fn wake_by(&self, waker: &Waker) {
        let _ = self.waker.set(waker.clone());
        if !self.places().abandoned.is_empty() {
            waker.wake();
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free place.
    pub(crate) fn take(self: &Arc<Table>) -> Option<FixedSlot> {
        let index = self.places().free.pop()?;
        Some(FixedSlot { index, table: self.clone(), holds_file: false })
    }

    /// Takes the list of places to be emptied.
    pub(crate) fn abandoned(&self) -> Vec<u32> {
        std::mem::take(&mut self.places().abandoned)
    }

    /// Marks an emptied place as free.
    pub(crate) fn give_back(&self, index: u32) {
        self.places().free.push(index);
    }
}

/// An index that is in no table.
const NOWHERE: u32 = i32::MAX as u32;

/// A reserved place in a ring's table of files, into which an operation puts the file that it opens.
///
/// [`Ring::slot`](crate::Ring::slot) reserves a place. Dropping the slot frees the place. Operations of another ring
/// fail with `EINVAL`.
#[derive(Debug)]
pub struct FixedSlot {
    index: u32,
    table: Arc<Table>,
    holds_file: bool,
}

impl FixedSlot {
    /// The index in the table.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the index for an entry of the ring with these files, or an index that is in no table if the slot is another ring's.
    pub(crate) fn place(&self, files: Files<'_>) -> u32 {
        let here = files.0.is_some_and(|table| Arc::ptr_eq(table, &self.table));
        if here { self.index } else { NOWHERE }
    }

    /// Returns [`place`](FixedSlot::place) of a slot that may have been taken out already.
    pub(crate) fn place_of(slot: Option<&FixedSlot>, files: Files<'_>) -> u32 {
        slot.map_or(NOWHERE, |slot| slot.place(files))
    }

    /// Notes that the place holds a file.
    pub(crate) fn fill(&mut self) {
        self.holds_file = true;
    }

    /// Frees the place, whose file was closed.
    pub(crate) fn emptied(mut self) {
        self.holds_file = false;
    }
}

impl Drop for FixedSlot {
    fn drop(&mut self) {
        let mut places = self.table.places();
        if !self.holds_file {
            places.free.push(self.index);
            return;
        }
        places.abandoned.push(self.index);
        drop(places);
        if let Some(waker) = self.table.waker.get() {
            waker.wake();
        }
    }
}
