//! Slots of the file table that queued opens are to fill.
//!
//! The kernel opens during the submission, as long as it need not wait: what is submitted behind an open finds the file in the
//! slot, without a link. Here opens are queued, so what names such a slot is held back until the open is over, one way or the
//! other.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::request::RequestId;

/// They, and who waits for them.
#[derive(Default)]
pub struct Slots {
    /// How many opens are queued.
    opens: u32,
    /// A bit for each slot. The first of several opens into one slot ends the wait for it.
    bits: Vec<u64>,
    /// Requests that are held back, in their order.
    held: Vec<(u32, RequestId)>,
}

impl Slots {
    /// Is any slot to be filled?
    #[inline]
    pub fn is_any(&self) -> bool {
        self.opens > 0
    }

    /// Is this one?
    pub fn has(&self, slot: u32) -> bool {
        self.bits.get(slot as usize / 64).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }

    /// An open into this slot, which is one of the table's, has been queued.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&mut self, slot: u32) -> Result<(), Errno> {
        let words = slot as usize / 64 + 1;
        if self.bits.len() < words {
            self.bits.try_reserve(words - self.bits.len()).map_err(|_| Errno::ENOMEM)?;
            self.bits.resize(words, 0);
        }
        self.bits[words - 1] |= 1 << (slot % 64);
        self.opens += 1;
        Ok(())
    }

    /// Holds a request back until the open into this slot is over.
    pub fn hold(&mut self, slot: u32, id: RequestId) {
        debug_assert!(self.has(slot), "somebody lets it go");
        self.held.push((slot, id));
    }

    /// An open into this slot is over. Returns who was held back by it.
    pub fn remove(&mut self, slot: u32) -> Vec<RequestId> {
        self.opens = self.opens.saturating_sub(1);
        if let Some(word) = self.bits.get_mut(slot as usize / 64) {
            *word &= !(1 << (slot % 64));
        }
        if self.held.is_empty() {
            return Vec::new();
        }
        self.held.extract_if(.., |(other, _)| *other == slot).map(|(_, id)| id).collect()
    }
}
