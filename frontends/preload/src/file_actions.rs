//! The file actions of `posix_spawn` in glibc's layout, and a copy of them that does not close a certain descriptor.

use alloc::vec::Vec;
use core::ffi::c_int;

/// A file action with its arguments.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Action {
    /// The kind, as the C library numbers it.
    pub kind: c_int,
    /// The arguments, in the C library's layout.
    pub arguments: [u64; 3],
}

impl Action {
    /// Makes an action on a descriptor.
    pub fn new(kind: c_int, descriptor: c_int) -> Self {
        Self { kind, arguments: [u64::from(descriptor as u32), 0, 0] }
    }

    /// The first descriptor of the action.
    pub fn descriptor(&self) -> c_int {
        self.arguments[0] as c_int
    }

    /// The second descriptor, which becomes a duplicate of the first.
    pub fn target(&self) -> c_int {
        (self.arguments[0] >> 32) as c_int
    }
}

/// The C library's numbers of the kinds of actions.
pub struct Kinds {
    /// Closes a descriptor.
    pub close: c_int,
    /// Closes all descriptors from a number on.
    pub close_from: c_int,
    /// Makes one descriptor a duplicate of another.
    pub duplicate: c_int,
    /// Opens a file.
    pub open: c_int,
}

/// Returns actions with the same effect that leave `descriptor` open; `None` if no action closes it. Descriptors from `limit` on
/// stay open, too, because the C library treats closing such a number as a failure.
pub fn leaving_open(given: &[Action], kinds: &Kinds, descriptor: c_int, limit: u32) -> Option<Vec<Action>> {
    let closes_from = |action: &Action| action.kind == kinds.close_from && action.descriptor() <= descriptor;
    let closes = |action: &Action| action.kind == kinds.close && action.descriptor() == descriptor;
    let fills = |action: &Action| {
        action.kind == kinds.open && action.descriptor() == descriptor
            || action.kind == kinds.duplicate && action.target() == descriptor
    };
    // After such an action, the number is the program's own.
    let filled = given.iter().position(fills).unwrap_or(given.len());
    let (before, behind) = given.split_at(filled);
    if !before.iter().any(|action| closes_from(action) || closes(action)) {
        return None;
    }
    let mut list = Vec::new();
    for action in before.iter().filter(|action| !closes(action)) {
        if closes_from(action) {
            // Closing a descriptor that is not open is no failure.
            let below = action.descriptor()..descriptor.min(limit as c_int);
            list.extend(below.map(|number| Action::new(kinds.close, number)));
            list.push(Action::new(kinds.close_from, descriptor + 1));
        } else {
            list.push(*action);
        }
    }
    list.extend(behind);
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: Kinds = Kinds { close: 0, close_from: 5, duplicate: 1, open: 2 };

    fn left(given: &[(c_int, c_int, c_int)], limit: u32) -> Option<Vec<(c_int, c_int)>> {
        let action = |&(kind, first, second): &(c_int, c_int, c_int)| Action {
            kind,
            arguments: [first as u64 | (second as u64) << 32, 0, 0],
        };
        let given: Vec<Action> = given.iter().map(action).collect();
        let list = leaving_open(&given, &KINDS, 6, limit)?;
        Some(list.iter().map(|action| (action.kind, action.descriptor())).collect())
    }

    #[test]
    fn a_descriptor_is_left_open() {
        assert_eq!(left(&[(0, 5, 0), (5, 7, 0), (1, 6, 0)], 100), None);
        assert_eq!(left(&[(0, 6, 0), (0, 5, 0)], 100), Some(vec![(0, 5)]));
        assert_eq!(left(&[(5, 4, 0)], 100), Some(vec![(0, 4), (0, 5), (5, 7)]));
    }

    #[test]
    fn numbers_above_the_limit_are_not_closed_one_by_one() {
        assert_eq!(left(&[(5, 3, 0)], 5), Some(vec![(0, 3), (0, 4), (5, 7)]));
        assert_eq!(left(&[(5, 3, 0)], 2), Some(vec![(5, 7)]));
    }

    #[test]
    fn the_programs_own_file_there_is_closed() {
        for fills in [(1, 0, 6), (2, 6, 0)] {
            assert_eq!(left(&[fills, (0, 6, 0)], 100), None);
            let list = vec![(fills.0, fills.1), (0, 6), (5, 3)];
            assert_eq!(left(&[(0, 6, 0), fills, (0, 6, 0), (5, 3, 0)], 100), Some(list));
        }
    }
}
