//! Shows the names that a thread has read to the visitor.

use super::{FOUND, Lane, PARTS};
use crate::directory::Directory;
use crate::files;
use crate::judge::{Candidate, Verdict};
use crate::names::{Name, is_dots, name_at};
use crate::{Statx, Visitor, What};
use std::sync::Arc;

impl<V: Visitor> Lane<'_, V> {
    /// Shows the names that were read, while there are places for entries that need attributes.
    pub(super) fn show(&mut self, index: usize) {
        let Some(directory) = self.slots[index].directory.clone() else { return };
        while self.slots[index].part < PARTS.len() {
            if let Some(requests) = self.requests.as_mut().filter(|requests| requests.is_full()) {
                return requests.stalled.push(index);
            }
            if let Some((at, verdict)) = self.show_part(index, &directory) {
                self.follow_verdict(index, at, verdict);
                continue;
            }
            let slot = &mut self.slots[index];
            slot.part = if self.walk.has_quit() { PARTS.len() } else { slot.part + 1 };
            slot.offset = PARTS.get(slot.part).map_or(0, |part| part.0);
        }
        self.after_names(index);
    }

    /// Shows names of a part up to one that needs an action; returns that name's offset and the verdict.
    fn show_part(&mut self, index: usize, directory: &Arc<Directory>) -> Option<(usize, Verdict)> {
        let slot = &self.slots[index];
        let (bytes, fd, mut at) = (&slot.bytes()[..slot.end(slot.part)], slot.fd, slot.offset);
        while let Some((name, next)) = name_at(bytes, at)
            && !self.walk.has_quit()
        {
            if directory.parent().is_none() || !is_dots(name.name) {
                match self.walk.judge(&mut self.own, directory, fd, candidate(directory, name)) {
                    Verdict::Done => {}
                    verdict => {
                        self.slots[index].offset = next;
                        return Some((at, verdict));
                    }
                }
            }
            at = next;
        }
        None
    }

    /// Carries out the verdict on the name at `at`.
    pub(super) fn follow_verdict(&mut self, slot: usize, at: usize, verdict: Verdict) {
        match verdict {
            Verdict::Attributes(mask) if self.requests.is_some() => self.request_attributes(slot, at, mask),
            Verdict::Attributes(mask) => self.ask_now(slot, at, mask),
            Verdict::Read(child) => {
                self.slots[slot].found.push(child);
                if self.slots[slot].found.len() >= FOUND {
                    self.give_found(slot);
                }
            }
            Verdict::Leave(child) => self.walk.leave(&mut self.own, &child, None),
            Verdict::Done => {}
        }
    }

    /// Queries attributes by a call, and shows the entry again.
    fn ask_now(&mut self, index: usize, at: usize, mut mask: u32) {
        let slot = &self.slots[index];
        let (Some(directory), Some((name, _))) = (slot.directory.clone(), name_at(slot.bytes(), at)) else {
            unreachable!("it was there before")
        };
        let (candidate, follow) = (candidate(&directory, name), self.walk.follows(&directory));
        // SAFETY: integers only.
        let mut status = unsafe { std::mem::zeroed::<Statx>() };
        let verdict = loop {
            match files::attributes(slot.fd, name.name, mask, follow, &mut status) {
                Ok(()) => {
                    let candidate = Candidate { attributes: Some((&status, mask)), ..candidate };
                    match self.walk.judge(&mut self.own, &directory, slot.fd, candidate) {
                        Verdict::Attributes(more) => mask = more,
                        verdict => break verdict,
                    }
                }
                Err(error) => {
                    let Candidate { name, root, .. } = candidate;
                    self.walk.failed(&mut self.own, &directory, name, root, What::Attributes, error);
                    break Verdict::Done;
                }
            }
        };
        self.called();
        self.follow_verdict(index, at, verdict);
    }
}

/// Returns the known facts about a name. The virtual parent of the roots has their numbers as inodes.
pub(super) fn candidate<'n>(directory: &Directory, name: Name<'n>) -> Candidate<'n> {
    let Name { name, kind, inode } = name;
    let has_parent = directory.parent().is_some();
    let (root, inode) = if has_parent { (directory.root, inode) } else { (inode as u32, 0) };
    Candidate { name, kind, inode, root, attributes: None }
}
