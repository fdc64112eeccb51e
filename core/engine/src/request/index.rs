//! An index of requests by a 64-bit key, such as user data, for cancellation: hash chains through the
//! slab's slots. It is built when first needed, so that rings which never cancel do not pay for it.

use alloc::vec::Vec;

/// No slot.
const NONE: u32 = u32::MAX;
/// Initial number of chains.
const FEWEST: usize = 64;

/// A slot's links in its chain.
#[derive(Clone, Copy, Debug)]
struct Link {
    user_data: u64,
    next: u32,
    before: u32,
}

/// The chains.
#[derive(Default)]
pub struct Index {
    /// The first slot of each chain. The number of chains is a power of two, or 0 while the index is not in use.
    heads: Vec<u32>,
    links: Vec<Link>,
    count: usize,
}

impl Index {
    /// True once the index was built.
    #[inline]
    pub fn in_use(&self) -> bool {
        !self.heads.is_empty()
    }

    /// Builds the index of these slots. False if memory is short.
    pub fn build(&mut self, slots: impl Iterator<Item = (u32, u64)>) -> bool {
        if !self.resize(FEWEST) {
            return false;
        }
        for (slot, user_data) in slots {
            if !self.add(slot, user_data) {
                return false;
            }
        }
        true
    }

    fn chain(&self, user_data: u64) -> usize {
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let hash = user_data.wrapping_mul(SPREAD);
        (hash >> (64 - self.heads.len().trailing_zeros())) as usize
    }

    /// Adds a slot to the front of its chain. If memory is short, the index is reset and out of use; returns false.
    pub fn add(&mut self, slot: u32, user_data: u64) -> bool {
        let missing = (slot as usize + 1).saturating_sub(self.links.len());
        let grown = self.count < self.heads.len() || self.resize(self.heads.len() * 2);
        if !grown || self.links.try_reserve(missing).is_err() {
            *self = Index::default();
            return false;
        }
        let vacant = Link { user_data: 0, next: NONE, before: NONE };
        self.links.resize(self.links.len() + missing, vacant);
        self.count += 1;
        self.push(slot, user_data);
        true
    }

    fn push(&mut self, slot: u32, user_data: u64) {
        let chain = self.chain(user_data);
        let next = core::mem::replace(&mut self.heads[chain], slot);
        if let Some(next) = self.links.get_mut(next as usize) {
            next.before = slot;
        }
        self.links[slot as usize] = Link { user_data, next, before: NONE };
    }

    /// Removes a slot from its chain.
    pub fn remove(&mut self, slot: u32) {
        let Link { user_data, next, before } = self.links[slot as usize];
        let chain = self.chain(user_data);
        match self.links.get_mut(before as usize) {
            Some(before) => before.next = next,
            None => self.heads[chain] = next,
        }
        if let Some(next) = self.links.get_mut(next as usize) {
            next.before = before;
        }
        self.count -= 1;
    }

    /// Returns the slots with this user data, newest first.
    pub fn find(&self, user_data: u64) -> impl Iterator<Item = u32> + '_ {
        let slot = |slot: u32| (slot != NONE).then_some(slot);
        core::iter::successors(slot(self.heads[self.chain(user_data)]), move |&at| {
            slot(self.links[at as usize].next)
        })
        .filter(move |&at| self.links[at as usize].user_data == user_data)
    }

    /// Distributes the slots over more chains. False if memory is short.
    fn resize(&mut self, chains: usize) -> bool {
        let mut heads = Vec::new();
        if heads.try_reserve_exact(chains).is_err() {
            return false;
        }
        heads.resize(chains, NONE);
        let old = core::mem::replace(&mut self.heads, heads);
        for head in old {
            // From the oldest to the newest, so that the newest end up in front.
            let mut at = head;
            let mut last = NONE;
            while at != NONE {
                last = at;
                at = self.links[at as usize].next;
            }
            while last != NONE {
                let Link { user_data, before, .. } = self.links[last as usize];
                self.push(last, user_data);
                last = before;
            }
        }
        true
    }
}
