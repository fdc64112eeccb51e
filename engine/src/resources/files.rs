//! Registered files.

use alloc::vec::Vec;

use crate::errno::Errno;
use crate::request::FileHold;
use crate::ring::Core;
use crate::sys::Fd;

/// Names a registered file for as long as something holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeIndex(u32);

struct Node {
    fd: Fd,
    /// The table's hold and one for each request.
    holds: u32,
    /// Posted when the file is gone, if not zero.
    tag: u64,
}

/// A ring's registered files.
#[derive(Default)]
pub struct FileTable {
    slots: Option<Vec<Option<NodeIndex>>>,
    nodes: Vec<Node>,
    free: Vec<u32>,
}

impl FileTable {
    /// A hold on the file in a slot.
    ///
    /// # Errors
    /// `EBADF` where there is none.
    pub fn hold(&mut self, slot: u32) -> Result<FileHold, Errno> {
        let slots = self.slots.as_ref().ok_or(Errno::EBADF)?;
        let node = slots.get(slot as usize).copied().flatten().ok_or(Errno::EBADF)?;
        let entry = &mut self.nodes[node.0 as usize];
        entry.holds += 1;
        Ok(FileHold::Fixed(node, entry.fd))
    }

    /// Closes every file; the ring is going.
    pub fn close_all(&mut self) {
        for node in self.nodes.drain(..).filter(|node| node.holds > 0) {
            crate::sys::close(node.fd);
        }
    }
}

impl Core {
    /// Gives back a hold; the last one closes the file.
    pub fn release_node(&mut self, node: NodeIndex) {
        let entry = &mut self.files.nodes[node.0 as usize];
        entry.holds -= 1;
        if entry.holds > 0 {
            return;
        }
        let (fd, tag) = (entry.fd, entry.tag);
        self.files.free.push(node.0);
        self.close_own(fd);
        if tag != 0 {
            self.post(crate::memory::Cqe { user_data: tag, ..Default::default() });
        }
    }
}
