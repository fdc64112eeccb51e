//! The file actions of `posix_spawn`, where they would close the descriptor that a child gets the library by.
//!
//! glibc tells nobody what it keeps of them, so it is asked: what it makes of two actions of ours shows how it keeps them.

use alloc::vec::Vec;
use anyring_interpose::next;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// One of the actions: what it does, and with what.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    kind: c_int,
    arguments: [u64; 3],
}

impl Action {
    fn new(kind: c_int, descriptor: c_int) -> Self {
        Self { kind, arguments: [u64::from(descriptor as u32), 0, 0] }
    }

    /// The descriptor that it is about, where that is the first it names.
    fn descriptor(&self) -> c_int {
        self.arguments[0] as c_int
    }
}

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
    /// The C library, or [`Kept`], must have made them.
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

/// By which numbers the C library knows "close this one" and "close from here on".
struct Kinds {
    close: c_int,
    close_from: c_int,
}

/// Asks the C library; `None` where it has no such function, or keeps actions in another way.
fn kinds() -> Option<Kinds> {
    const FIRST: c_int = 0x1234;
    const SECOND: c_int = 0x4321;
    let mut actions = Actions { allocated: 0, used: 0, list: null_mut(), reserved: [0; 16] };
    let own = &raw mut actions;
    if next!(c"posix_spawn_file_actions_init", fn(*mut Actions) -> c_int, own) != 0 {
        return None;
    }
    let added = next!(c"posix_spawn_file_actions_addclose", fn(*mut Actions, c_int) -> c_int, own, FIRST)
        == 0
        && next!(c"posix_spawn_file_actions_addclosefrom_np", fn(*mut Actions, c_int) -> c_int, own, SECOND)
            == 0;
    // SAFETY: as the C library has left them.
    let kinds = match unsafe { actions.all() } {
        [close, from] if added && close.descriptor() == FIRST && from.descriptor() == SECOND => {
            Some(Kinds { close: close.kind, close_from: from.kind })
        }
        _ => None,
    };
    next!(c"posix_spawn_file_actions_destroy", fn(*mut Actions) -> c_int, own);
    kinds
}

/// Actions that stand in for the program's.
pub struct Kept {
    actions: Actions,
    _list: Vec<Action>,
}

impl Kept {
    /// The actions of a program, but for those that would close `descriptor`; `None` where there are none.
    ///
    /// # Safety
    /// `actions` must be null or the C library's.
    pub unsafe fn new(actions: *const c_void, descriptor: c_int) -> Option<Self> {
        // SAFETY: the caller's promise.
        let given = unsafe { actions.cast::<Actions>().as_ref() }.filter(|actions| actions.used > 0)?;
        let kinds = kinds()?;
        // SAFETY: the caller's promise.
        let mut list = leaving_open(unsafe { given.all() }, &kinds, descriptor)?;
        let used = list.len() as c_int;
        let actions = Actions { allocated: used, used, list: list.as_mut_ptr(), reserved: [0; 16] };
        Some(Self { actions, _list: list })
    }

    /// As the C library takes them.
    pub fn as_ptr(&self) -> *const c_void {
        (&raw const self.actions).cast()
    }
}

/// The actions that do the same but for `descriptor`; `None` where none of them closes it.
fn leaving_open(given: &[Action], kinds: &Kinds, descriptor: c_int) -> Option<Vec<Action>> {
    let closes_from = |action: &Action| action.kind == kinds.close_from && action.descriptor() <= descriptor;
    let closes = |action: &Action| action.kind == kinds.close && action.descriptor() == descriptor;
    if !given.iter().any(|action| closes_from(action) || closes(action)) {
        return None;
    }
    let mut list = Vec::new();
    for action in given.iter().filter(|action| !closes(action)) {
        if closes_from(action) {
            // To close what is not open is no failure.
            let below = action.descriptor()..descriptor;
            list.extend(below.map(|number| Action::new(kinds.close, number)));
            list.push(Action::new(kinds.close_from, descriptor + 1));
        } else {
            list.push(*action);
        }
    }
    Some(list)
}
