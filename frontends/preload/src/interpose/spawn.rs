//! The file actions of `posix_spawn`, if they would close the descriptor through which a child gets the library.
//!
//! glibc does not document how it stores actions, so a few test actions are added, and their representation is examined.

use crate::file_actions::{Action, Kinds, leaving_open};
use alloc::vec::Vec;
use anyring_interpose::next;
use anyring_runtime::sys;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;

/// `posix_spawn_file_actions_t`.
#[repr(C)]
struct Actions {
    allocated: c_int,
    used: c_int,
    list: *mut Action,
    reserved: [c_int; 16],
}

impl Actions {
    /// # Safety
    /// The structure must come from the C library or from [`Kept`].
    unsafe fn all(&self) -> &[Action] {
        match usize::try_from(self.used) {
            // SAFETY: the caller's promise.
            Ok(used) if used > 0 && !self.list.is_null() => unsafe {
                core::slice::from_raw_parts(self.list, used)
            },
            _ => &[],
        }
    }
}

/// Finds out the C library's numbers of the kinds of actions; `None` if it lacks these functions, or stores actions in
/// another way.
fn kinds() -> Option<Kinds> {
    // Low numbers are used, because the C library refuses numbers above the limit, which may be low.
    const FIRST: c_int = 1;
    const SECOND: c_int = 2;
    let mut actions = Actions { allocated: 0, used: 0, list: null_mut(), reserved: [0; 16] };
    let own = &raw mut actions;
    if next!(c"posix_spawn_file_actions_init", fn(*mut Actions) -> c_int, own) != 0 {
        return None;
    }
    let path = c"/".as_ptr();
    let added = [
        next!(c"posix_spawn_file_actions_addclose", fn(*mut Actions, c_int) -> c_int, own, FIRST),
        next!(c"posix_spawn_file_actions_addclosefrom_np", fn(*mut Actions, c_int) -> c_int, own, SECOND),
        next!(
            c"posix_spawn_file_actions_adddup2",
            fn(*mut Actions, c_int, c_int) -> c_int,
            own,
            FIRST,
            SECOND
        ),
        next!(
            c"posix_spawn_file_actions_addopen",
            fn(*mut Actions, c_int, *const c_char, c_int, u32) -> c_int,
            own,
            FIRST,
            path,
            0,
            0,
        ),
    ];
    // SAFETY: the C library has filled the structure.
    let kinds = match unsafe { actions.all() } {
        [close, from, duplicate, open]
            if added == [0; 4]
                && close.descriptor() == FIRST
                && from.descriptor() == SECOND
                && (duplicate.descriptor(), duplicate.target()) == (FIRST, SECOND)
                && open.descriptor() == FIRST =>
        {
            Some(Kinds {
                close: close.kind,
                close_from: from.kind,
                duplicate: duplicate.kind,
                open: open.kind,
            })
        }
        _ => None,
    };
    next!(c"posix_spawn_file_actions_destroy", fn(*mut Actions) -> c_int, own);
    kinds
}

/// Actions that replace the program's.
pub struct Kept {
    actions: Actions,
    _list: Vec<Action>,
}

impl Kept {
    /// Returns the program's actions without those that close `descriptor`; `None` if no action closes it.
    ///
    /// # Safety
    /// `actions` must be null or come from the C library.
    pub unsafe fn new(actions: *const c_void, descriptor: c_int) -> Option<Self> {
        // SAFETY: the caller's promise.
        let given = unsafe { actions.cast::<Actions>().as_ref() }.filter(|actions| actions.used > 0)?;
        let kinds = kinds()?;
        // SAFETY: the caller's promise.
        let mut list = leaving_open(unsafe { given.all() }, &kinds, descriptor, sys::descriptor_limit())?;
        let used = list.len() as c_int;
        let actions = Actions { allocated: used, used, list: list.as_mut_ptr(), reserved: [0; 16] };
        Some(Self { actions, _list: list })
    }

    /// Returns the actions in the form that the C library accepts.
    pub fn as_ptr(&self) -> *const c_void {
        (&raw const self.actions).cast()
    }
}
