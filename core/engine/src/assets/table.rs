//! A table of registered resources: slots that the program fills and empties, and nodes, which
//! exist as long as a slot or a request holds them.

use alloc::vec::Vec;

use crate::abi::Errno;

/// Identifies a registered resource as long as it is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeIndex(u32);

struct Node<T> {
    value: T,
    /// Number of holds: one of the slot, if any, and one of each request.
    holds: u32,
    /// The tag, posted when the node is freed; 0 for none.
    tag: u64,
}

/// The content of a node whose last hold was released.
#[derive(Clone, Copy, Debug)]
pub struct Gone<T> {
    /// The resource.
    pub value: T,
    /// The tag; 0 for none.
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
    /// Returns the number of slots; 0 if no table is registered.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if no table is registered.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds `count` empty slots to an empty table.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn create(&mut self, count: usize) -> Result<(), Errno> {
        debug_assert!(self.slots.is_empty(), "a table is created once");
        self.grow(count, 0)
    }

    /// Grows the table to at least `count` slots, and reserves memory for filling `fills` of them.
    ///
    /// # Errors
    /// `ENOMEM`; then the table is unchanged.
    pub fn grow(&mut self, count: usize, fills: usize) -> Result<(), Errno> {
        let more = count.saturating_sub(self.slots.len());
        self.nodes.try_reserve(fills).map_err(|_| Errno::ENOMEM)?;
        self.free.try_reserve(self.nodes.len() + fills).map_err(|_| Errno::ENOMEM)?;
        self.slots.try_reserve_exact(more).map_err(|_| Errno::ENOMEM)?;
        self.slots.resize(self.slots.len() + more, None);
        Ok(())
    }

    /// Removes all slots. The caller must [`Table::release`] the nodes that were in them.
    pub fn dissolve(&mut self) -> Vec<NodeIndex> {
        core::mem::take(&mut self.slots).into_iter().flatten().collect()
    }

    /// Checks that `count` slots from `first` on exist.
    ///
    /// # Errors
    /// `EOVERFLOW`, `ENXIO` without a table, `EINVAL` for slots beyond it.
    pub fn expect_slots(&self, first: u32, count: u32) -> Result<(), Errno> {
        let end = first.checked_add(count).ok_or(Errno::EOVERFLOW)?;
        if self.is_empty() {
            return Err(Errno::ENXIO);
        }
        if end as usize > self.len() { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Returns the node in a slot, and its value.
    pub fn get(&self, slot: usize) -> Option<(NodeIndex, T)> {
        let node = (*self.slots.get(slot)?)?;
        Some((node, self.nodes[node.0 as usize].value))
    }

    /// Returns the first empty slot in `range`.
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

    /// Adds a node that is in no slot, with one hold.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn keep(&mut self, value: T, tag: u64) -> Result<NodeIndex, Errno> {
        let node = Node { value, holds: 1, tag };
        let index = if let Some(index) = self.free.pop() {
            self.nodes[index as usize] = node;
            index
        } else {
            // Reserves memory for freeing the node, too, because releasing must not fail.
            self.nodes.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            self.free.try_reserve(self.nodes.len() + 1).map_err(|_| Errno::ENOMEM)?;
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        };
        Ok(NodeIndex(index))
    }

    /// Empties a slot. The caller must [`Table::release`] the node that was in it.
    pub fn empty(&mut self, slot: usize) -> Option<NodeIndex> {
        self.slots[slot].take()
    }

    /// Replaces the value of a node.
    pub fn replace(&mut self, node: NodeIndex, value: T) {
        self.nodes[node.0 as usize].value = value;
    }

    /// Returns the value of a node.
    pub fn value(&self, node: NodeIndex) -> T {
        self.nodes[node.0 as usize].value
    }

    /// Adds a hold to a node.
    pub fn hold(&mut self, node: NodeIndex) {
        self.nodes[node.0 as usize].holds += 1;
    }

    /// Releases a hold. Releasing the last hold frees the node and returns its content.
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

    /// Clears the tags of all nodes in slots, because a registration failed half-way.
    pub fn clear_tags(&mut self) {
        for node in self.slots.iter().flatten() {
            self.nodes[node.0 as usize].tag = 0;
        }
    }

    /// Clears the tags of nodes that only requests hold, in a child after `fork`: the requests are the parent's, which posts these tags.
    pub fn forked(&mut self) {
        let mut kept = alloc::vec![false; self.nodes.len()];
        self.slots.iter().flatten().for_each(|node| kept[node.0 as usize] = true);
        let gone = self.nodes.iter_mut().zip(kept).filter(|(_, kept)| !kept);
        gone.for_each(|(node, _)| node.tag = 0);
    }

    /// Removes and returns all values that are still held, when the ring is destroyed.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.slots.clear();
        self.free.clear();
        self.nodes.drain(..).filter(|node| node.holds > 0).map(|node| node.value)
    }
}
