//! The code of a program that submitted a request (`-k`).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use anyring_trace::event::{Called, Content, Mapped};

use crate::memory::Memory;
use crate::model::Place;

/// A finder of names for the frames of a stack.
pub trait Callers {
    /// Notes that code of a file is mapped in a process.
    fn mapped(&mut self, process: u32, mapped: &Mapped, path: &Path);
    /// Notes that a process begins; `parent` forked it, or is 0 if the process was not forked.
    fn started(&mut self, process: u32, parent: u32);
    /// Notes that a process has ended.
    fn ended(&mut self, process: u32);
    /// Returns the frames of a stack from the stack pointer upwards, the innermost first.
    fn frames(&mut self, process: u32, called: &Called, stack: &[u8]) -> Vec<String>;
}

/// The newest call of each thread.
#[derive(Default)]
pub struct Calls {
    callers: Option<Box<dyn Callers>>,
    newest: HashMap<(u32, u32), Arc<[String]>>,
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.newest.fmt(f)
    }
}

impl Calls {
    /// Returns calls whose frames get names from `callers`.
    pub fn named_by(callers: Box<dyn Callers>) -> Calls {
        Calls { callers: Some(callers), newest: HashMap::new() }
    }

    /// Notes where a process has code.
    pub fn mapped(&mut self, place: Place, mapped: &Mapped, memory: &Memory) {
        let path = memory.first(Content::Path).and_then(|piece| piece.bytes).unwrap_or(&[]);
        if let Some(callers) = &mut self.callers {
            callers.mapped(place.process, mapped, Path::new(OsStr::from_bytes(path)));
        }
    }

    /// Notes that a thread is about to enter a ring.
    pub fn called(&mut self, place: Place, called: &Called, memory: &Memory) {
        let stack = memory.first(Content::Stack).and_then(|piece| piece.bytes).unwrap_or(&[]);
        if let Some(callers) = &mut self.callers {
            let frames = callers.frames(place.process, called, stack);
            self.newest.insert((place.process, place.thread), frames.into());
        }
    }

    /// Returns the frames of the call by which the thread entered a ring; none if it is not in a call.
    pub fn of(&self, place: Place) -> Arc<[String]> {
        self.newest.get(&(place.process, place.thread)).cloned().unwrap_or_default()
    }

    /// Notes that a thread has left a ring.
    pub fn left(&mut self, place: Place) {
        self.newest.remove(&(place.process, place.thread));
    }

    /// Notes that a process begins.
    pub fn started(&mut self, process: u32, parent: u32) {
        self.newest.retain(|(of, _), _| *of != process);
        if let Some(callers) = &mut self.callers {
            callers.started(process, parent);
        }
    }

    /// Notes that a process has ended.
    pub fn ended(&mut self, process: u32) {
        self.newest.retain(|(of, _), _| *of != process);
        if let Some(callers) = &mut self.callers {
            callers.ended(process);
        }
    }
}
