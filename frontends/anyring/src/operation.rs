//! Operations of a safe ring.

use crate::fixed::Table;
use crate::low::Sqe;
use crate::provided::{Group, ProvidedBuffer};
use crate::{Error, Fd};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The outcome of an operation: its result, and what came with it.
#[derive(Debug)]
#[non_exhaustive]
pub struct CqeResult {
    /// The number that it came to, or why it failed.
    pub result: Result<u32, Error>,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
    /// The provided buffer that it took.
    pub buffer: Option<ProvidedBuffer>,
    /// The descriptor that it opened.
    pub file: Option<OwnedFd>,
}

impl CqeResult {
    /// The result alone, where nothing comes with it.
    #[inline(always)]
    pub(crate) fn number(self) -> Result<u32, Error> {
        // Field by field, which is cheap where the compiler knows that nothing is there.
        let CqeResult { result, flags: _, buffer, file } = self;
        drop((buffer, file));
        result
    }

    /// The descriptor that it opened.
    pub(crate) fn opened(self) -> Result<Fd, Error> {
        let file = self.file;
        self.result.map(|_| file.map(Fd::from).expect("a descriptor comes with the result"))
    }
}

/// The table of files of the ring that an entry is for: see [`Fd::target`].
#[derive(Clone, Copy, Debug)]
pub struct Files<'a>(pub(crate) Option<&'a Arc<Table>>);

/// An operation with one completion. [`op`](crate::op) has them; a program may make its own.
///
/// # Safety
/// What the entry names must belong to the operation, which the ring keeps, without moving it, from
/// [`entry`](Operation::entry) on until it has ended. It must not name a place to which the value itself does not
/// keep others from having access.
pub unsafe trait Operation: Send + Sized + 'static {
    /// The value that the completion is turned into.
    type Output;

    /// The operation's name in errors.
    const NAME: &'static str;

    /// True if the result is a new descriptor.
    fn opens_descriptor(&self) -> bool {
        false
    }

    /// True if another completion follows the result, by which alone the operation's memory is free.
    fn notifies(&self) -> bool {
        false
    }

    /// The entry, for a ring with these files; called once.
    fn entry(&mut self, files: Files<'_>) -> Sqe;

    /// Notes that the operation has ended, with this result: called before [`output`](Operation::output), and where nobody asks
    /// for that, too.
    fn settle(&mut self, _result: i32) {}

    /// The operation's output, made of itself and what came of it.
    ///
    /// # Safety
    /// The operation must have ended, with what came: so much of a buffer, for one, is believed to be written.
    unsafe fn output(self, came: CqeResult) -> Self::Output;
}

/// An operation with many completions.
///
/// # Safety
/// As for [`Operation`].
pub unsafe trait Multishot: Send + Sized + 'static {
    /// The value that each completion is turned into.
    type Item;

    /// The operation's name in errors.
    const NAME: &'static str;

    /// True if each result is a new descriptor.
    fn opens_descriptors(&self) -> bool {
        false
    }

    /// The buffers that it takes.
    fn buffers(&self) -> Option<&crate::Buffers> {
        None
    }

    /// The entry, for a ring with these files; called once.
    fn entry(&mut self, files: Files<'_>) -> Sqe;

    /// The item that a completion brings.
    fn item(came: CqeResult) -> Self::Item;
}

/// Names a request of one ring, by a number that no other request of it ever has.
///
/// [`Token`] and [`MultiToken`] convert into it: what asks for `impl Into<Id>` takes a reference to either.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id(pub(crate) u64);

/// Names a request of the operation `O`, to know its completion by and to take what it says.
pub struct Token<O> {
    id: Id,
    operation: PhantomData<fn() -> O>,
}

/// Names a request of the multishot operation `M`.
///
/// Dropping it does not end the request: [`Ring::cancel`](crate::Ring::cancel) does.
pub struct MultiToken<M> {
    id: Id,
    pub(crate) ended: bool,
    operation: PhantomData<fn() -> M>,
}

impl<O> Token<O> {
    pub(crate) fn new(id: Id) -> Token<O> {
        Token { id, operation: PhantomData }
    }

    /// Its number.
    pub fn id(&self) -> Id {
        self.id
    }
}

impl<M> MultiToken<M> {
    pub(crate) fn new(id: Id) -> MultiToken<M> {
        MultiToken { id, ended: false, operation: PhantomData }
    }

    /// Its number.
    pub fn id(&self) -> Id {
        self.id
    }
}

impl<O> Clone for Token<O> {
    fn clone(&self) -> Token<O> {
        *self
    }
}

impl<O> Copy for Token<O> {}

impl<O> PartialEq for Token<O> {
    fn eq(&self, other: &Token<O>) -> bool {
        self.id == other.id
    }
}

impl<O> Eq for Token<O> {}

impl<O> Hash for Token<O> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl<O> fmt::Debug for Token<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Token").field(&self.id.0).finish()
    }
}

impl<M> fmt::Debug for MultiToken<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiToken").field("id", &self.id.0).field("ended", &self.ended).finish()
    }
}

macro_rules! ids {
    ($($of:ident $type:ty),*) => { $(impl<$of> From<$type> for Id {
        fn from(token: $type) -> Id {
            token.id
        }
    })* };
}
ids! { O &Token<O>, M &MultiToken<M> }

impl From<&Id> for Id {
    fn from(id: &Id) -> Id {
        *id
    }
}

/// The group that a request takes buffers from.
pub(crate) type Source = Option<Arc<Group>>;
