//! A table of registered things: slots that the program fills and empties, and nodes that live on
//! while requests hold them.

use alloc::vec::Vec;

use crate::abi::Errno;

/// Names a registered thing for as long as something holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeIndex(u32);

struct Node<T> {
    value: T,
    /// The slot's hold, if it has one, and one for each request.
    holds: u32,
    /// Posted when the thing is gone, if not zero.
    tag: u64,
}

/// The contents of a node whose last hold was given back.
#[derive(Clone, Copy, Debug)]
pub struct Gone<T> {
    /// The thing itself.
    pub value: T,
    /// Its tag, or zero.
    pub tag: u64,
}

/// Slots and nodes.
pub struct Table<T> {
    slots: Vec<Option<NodeIndex>>,
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { slots: Vec::new(), nodes: Vec::new(), free: Vec::new() }
    }
}

impl<T: Copy> Table<T> {
    /// How many slots there are; none means that nothing is registered.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Makes `count` empty slots.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn create(&mut self, count: usize) -> Result<(), Errno> {
        debug_assert!(self.slots.is_empty(), "a table is created once");
        self.grow(count, 0)
    }

    /// Sees to it that there are `count` slots, and room for filling some of them.
    ///
    /// # Errors
    /// `ENOMEM`; then nothing has changed.
    pub fn grow(&mut self, count: usize, fills: usize) -> Result<(), Errno> {
        let more = count.saturating_sub(self.slots.len());
        self.nodes.try_reserve(fills).map_err(|_| Errno::ENOMEM)?;
        self.free.try_reserve(self.nodes.len() + fills).map_err(|_| Errno::ENOMEM)?;
        self.slots.try_reserve_exact(more).map_err(|_| Errno::ENOMEM)?;
        self.slots.resize(self.slots.len() + more, None);
        Ok(())
    }

    /// Takes all slots away; what was in them is the caller's to [`Table::release`].
    pub fn dissolve(&mut self) -> Vec<NodeIndex> {
        core::mem::take(&mut self.slots).into_iter().flatten().collect()
    }

    /// The node in a slot, and its value.
    pub fn get(&self, slot: usize) -> Option<(NodeIndex, T)> {
        let node = (*self.slots.get(slot)?)?;
        Some((node, self.nodes[node.0 as usize].value))
    }

    /// The first empty slot in `range`.
    pub fn first_empty(&self, range: core::ops::Range<usize>) -> Option<usize> {
        let slots = self.slots.get(range.clone())?;
        slots.iter().position(Option::is_none).map(|index| range.start + index)
    }

    /// Fills an empty slot.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn fill(&mut self, slot: usize, value: T, tag: u64) -> Result<(), Errno> {
        debug_assert!(self.slots[slot].is_none(), "filled slots are emptied first");
        self.slots[slot] = Some(self.keep(value, tag)?);
        Ok(())
    }

    /// A thing in no slot, with a hold.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn keep(&mut self, value: T, tag: u64) -> Result<NodeIndex, Errno> {
        let node = Node { value, holds: 1, tag };
        let index = if let Some(index) = self.free.pop() {
            self.nodes[index as usize] = node;
            index
        } else {
            // Room for its end, too: giving back must not fail.
            self.nodes.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            self.free.try_reserve(self.nodes.len() + 1).map_err(|_| Errno::ENOMEM)?;
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        };
        Ok(NodeIndex(index))
    }

    /// Empties a slot; what was in it is the caller's to [`Table::release`].
    pub fn empty(&mut self, slot: usize) -> Option<NodeIndex> {
        self.slots[slot].take()
    }

    /// Adds one more hold of a node.
    pub fn hold(&mut self, node: NodeIndex) {
        self.nodes[node.0 as usize].holds += 1;
    }

    /// Gives back a hold; the last one ends the node.
    pub fn release(&mut self, node: NodeIndex) -> Option<Gone<T>> {
        let entry = &mut self.nodes[node.0 as usize];
        entry.holds -= 1;
        if entry.holds > 0 {
            return None;
        }
        let gone = Gone { value: entry.value, tag: entry.tag };
        self.free.push(node.0);
        Some(gone)
    }

    /// No node announces its end any more: a registration failed half-way.
    pub fn clear_tags(&mut self) {
        for node in self.slots.iter().flatten() {
            self.nodes[node.0 as usize].tag = 0;
        }
    }

    /// In a child after `fork`: requests are the parent's, which tells the end of what only they hold.
    pub fn forked(&mut self) {
        let mut kept = alloc::vec![false; self.nodes.len()];
        self.slots.iter().flatten().for_each(|node| kept[node.0 as usize] = true);
        let gone = self.nodes.iter_mut().zip(kept).filter(|(_, kept)| !kept);
        gone.for_each(|(node, _)| node.tag = 0);
    }

    /// All things that something still holds; the ring is going.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.slots.clear();
        self.free.clear();
        self.nodes.drain(..).filter(|node| node.holds > 0).map(|node| node.value)
    }
}
