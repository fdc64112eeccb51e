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

/// The outcome of an operation: its result, and the buffer or descriptor that its completion brought.
#[derive(Debug)]
#[non_exhaustive]
pub struct CqeResult {
    /// The operation's result, or the error with which it failed.
    pub result: Result<u32, Error>,
    /// The completion's `IORING_CQE_F_*` flags.
    pub flags: u32,
    /// The provided buffer that the operation took.
    pub buffer: Option<ProvidedBuffer>,
    /// The descriptor that the operation opened.
    pub file: Option<OwnedFd>,
}

impl CqeResult {
    /// Returns the result of an operation that brings no buffer and no descriptor.
    #[inline(always)]
    pub(crate) fn number(self) -> Result<u32, Error> {
        // Field by field, which is cheap if the compiler knows that the fields are `None`.
        let CqeResult { result, flags: _, buffer, file } = self;
        drop((buffer, file));
        result
    }

    /// Returns the file that the operation opened.
    pub(crate) fn opened(self) -> Result<Fd, Error> {
        let file = self.file;
        self.result.map(|_| file.map(Fd::from).expect("a descriptor comes with the result"))
    }
}

/// The table of files of the ring that an entry is for; see [`Fd::target`].
#[derive(Clone, Copy, Debug)]
pub struct Files<'a>(pub(crate) Option<&'a Arc<Table>>);

/// An operation with one completion. The module [`op`](crate::op) has operations; a program may define its own.
///
/// # Safety
/// All memory and files that the entry names must belong to the operation. The ring keeps the operation, without moving it, from
/// [`entry`](Operation::entry) until the operation has ended. The entry must not name memory that other code can access
/// while the ring keeps the operation.
pub unsafe trait Operation: Send + Sized + 'static {
    /// The type that the completion is converted into.
    type Output;

    /// The operation's name in errors.
    const NAME: &'static str;

    /// True if the result is a new descriptor.
    fn opens_descriptor(&self) -> bool {
        false
    }

    /// True if a notification follows the result, and the operation's memory is in use until the notification comes.
    fn notifies(&self) -> bool {
        false
    }

    /// Returns the SQE, for a ring with these files; called once.
    fn entry(&mut self, files: Files<'_>) -> Sqe;

    /// Notes that the operation has ended with this result. The ring calls it before [`output`](Operation::output), and also if
    /// `output` is never called.
    fn settle(&mut self, _result: i32) {}

    /// Converts the operation and the outcome `came` into the output.
    ///
    /// # Safety
    /// The operation must have ended with the outcome `came`: the number of bytes in it, for example, is trusted to be written.
    unsafe fn output(self, came: CqeResult) -> Self::Output;
}

/// An operation with many completions.
///
/// # Safety
/// As for [`Operation`].
pub unsafe trait Multishot: Send + Sized + 'static {
    /// The type that each completion is converted into.
    type Item;

    /// The operation's name in errors.
    const NAME: &'static str;

    /// True if each result is a new descriptor.
    fn opens_descriptors(&self) -> bool {
        false
    }

    /// The group of buffers that the operation takes buffers from.
    fn buffers(&self) -> Option<&crate::Buffers> {
        None
    }

    /// Returns the SQE, for a ring with these files; called once.
    fn entry(&mut self, files: Files<'_>) -> Sqe;

    /// Converts a completion into an item.
    fn item(came: CqeResult) -> Self::Item;
}

/// Identifies a request of a ring by a number that no other request of the ring ever has.
///
/// [`Token`] and [`MultiToken`] convert into an `Id`: a function with an `impl Into<Id>` accepts a reference to either.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id(pub(crate) u64);

/// Identifies a request of the operation `O`: it recognises the request's completion, and takes the output from it.
pub struct Token<O> {
    id: Id,
    operation: PhantomData<fn() -> O>,
}

/// Identifies a request of the multishot operation `M`.
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

    /// The request's number.
    pub fn id(&self) -> Id {
        self.id
    }
}

impl<M> MultiToken<M> {
    pub(crate) fn new(id: Id) -> MultiToken<M> {
        MultiToken { id, ended: false, operation: PhantomData }
    }

    /// The request's number.
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

/// The group of buffers from which a request takes buffers.
pub(crate) type Source = Option<Arc<Group>>;
