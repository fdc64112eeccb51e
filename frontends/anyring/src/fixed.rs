//! A ring's table of files, place by place.

use crate::op::Waker;
use crate::operation::Files;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Which places of a ring's table are free.
#[derive(Debug)]
pub(crate) struct Table {
    places: Mutex<Places>,
    /// Wakes the driver that is to empty places, if a driver has the ring.
    waker: OnceLock<Waker>,
}

#[derive(Debug)]
struct Places {
    free: Vec<u32>,
    /// Nobody names them any more, but they still hold a file.
    abandoned: Vec<u32>,
}

impl Table {
    pub(crate) fn new(count: u32) -> Arc<Table> {
        let places = Places { free: (0..count).rev().collect(), abandoned: Vec::new() };
        Arc::new(Table { places: Mutex::new(places), waker: OnceLock::new() })
    }

    /// From now on `waker` wakes the driver that empties places, as soon as there is a place to be emptied.
    pub(crate) fn wake_by(&self, waker: &Waker) {
        let _ = self.waker.set(waker.clone());
        if !self.places().abandoned.is_empty() {
            waker.wake();
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free place.
    pub(crate) fn take(self: &Arc<Table>) -> Option<FixedSlot> {
        let index = self.places().free.pop()?;
        Some(FixedSlot { index, table: self.clone(), holds_file: false })
    }

    /// Places to be emptied.
    pub(crate) fn abandoned(&self) -> Vec<u32> {
        std::mem::take(&mut self.places().abandoned)
    }

    /// A place was emptied.
    pub(crate) fn give_back(&self, index: u32) {
        self.places().free.push(index);
    }
}

/// A place that no table has.
const NOWHERE: u32 = i32::MAX as u32;

/// A place in a ring's table of files, kept for somebody: an operation that opens a file puts it there.
///
/// [`Ring::slot`](crate::Ring::slot) makes them. One that is dropped is free again. Operations of another ring do
/// not find it (`EINVAL`).
#[derive(Debug)]
pub struct FixedSlot {
    index: u32,
    table: Arc<Table>,
    holds_file: bool,
}

impl FixedSlot {
    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its number for an entry of the ring with these files; of another ring's table, one that no table has.
    pub(crate) fn place(&self, files: Files<'_>) -> u32 {
        let here = files.0.is_some_and(|table| Arc::ptr_eq(table, &self.table));
        if here { self.index } else { NOWHERE }
    }

    /// [`place`](FixedSlot::place) of one that may have been taken.
    pub(crate) fn place_of(slot: Option<&FixedSlot>, files: Files<'_>) -> u32 {
        slot.map_or(NOWHERE, |slot| slot.place(files))
    }

    /// A file was put there.
    pub(crate) fn fill(&mut self) {
        self.holds_file = true;
    }

    /// Its file was closed.
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
