//! Operations that stay in place while the engine may have pointers into them.

use crate::operation::{Multishot, Operation};
use std::any::TypeId;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

/// Memory that is large enough for most operations. The memory of one operation is used for the next.
#[repr(align(16))]
pub(crate) struct Room(#[expect(dead_code, reason = "used by address")] MaybeUninit<[u8; 64]>);

const fn fits<O>() -> bool {
    size_of::<O>() <= size_of::<Room>() && align_of::<O>() <= align_of::<Room>()
}

/// Memory for an operation, allocated before the operation is moved, so that the operation is moved only once.
pub(crate) struct Memory<O>(NonNull<O>);

impl<O> Memory<O> {
    /// Returns `room` if the operation fits into it, or else new memory.
    #[inline(always)]
    pub(crate) fn new(room: Option<Box<Room>>) -> Memory<O> {
        if fits::<O>() {
            let room = room.unwrap_or_else(|| Box::new(Room(MaybeUninit::uninit())));
            Memory(NonNull::from(Box::leak(room)).cast())
        } else {
            Memory(NonNull::from(Box::leak(Box::<O>::new_uninit())).cast())
        }
    }
}

/// The functions and the name that all requests of an operation share.
struct Kind {
    name: &'static str,
    /// Calls [`settle`](Operation::settle) of the operation.
    settle: unsafe fn(NonNull<()>, i32),
    /// Drops the operation, and frees its memory.
    end: unsafe fn(NonNull<()>),
}

impl Kind {
    const fn single<O: Operation>() -> &'static Kind {
        const {
            &Kind {
                name: O::NAME,
                // SAFETY: `at` holds an operation of this type.
                settle: |at, result| unsafe { at.cast::<O>().as_mut() }.settle(result),
                end: end::<O>,
            }
        }
    }

    const fn multi<M: Multishot>() -> &'static Kind {
        const { &Kind { name: M::NAME, settle: |_, _| {}, end: end::<M> } }
    }
}

/// # Safety
/// `at` must hold an operation of this type, which nothing uses any more.
unsafe fn end<O>(at: NonNull<()>) {
    // SAFETY: the caller's promise.
    unsafe {
        at.cast::<O>().drop_in_place();
        if fits::<O>() {
            drop(Box::from_raw(at.cast::<Room>().as_ptr()));
        } else {
            drop(Box::from_raw(at.cast::<MaybeUninit<O>>().as_ptr()));
        }
    }
}

/// An operation that must not move. Not a `Box`, which would claim to be the only user of the memory.
pub(crate) struct Kept {
    /// Points to a [`Room`] if the operation fits into one, else to a box of its own.
    at: NonNull<()>,
    kind: &'static Kind,
    type_id: TypeId,
}

// SAFETY: operations are `Send`.
unsafe impl Send for Kept {}
// SAFETY: a shared reference gives access to the operation's name and type only.
unsafe impl Sync for Kept {}

impl Kept {
    #[inline(always)]
    pub(crate) fn single<O: Operation>(memory: Memory<O>, operation: O) -> Kept {
        Kept::new(memory, operation, Kind::single::<O>())
    }

    #[inline(always)]
    pub(crate) fn multi<M: Multishot>(memory: Memory<M>, operation: M) -> Kept {
        Kept::new(memory, operation, Kind::multi::<M>())
    }

    #[inline(always)]
    fn new<O: Send + 'static>(memory: Memory<O>, operation: O, kind: &'static Kind) -> Kept {
        // SAFETY: the memory is large enough, and nothing else refers to it.
        unsafe { memory.0.write(operation) };
        Kept { at: memory.0.cast(), kind, type_id: TypeId::of::<O>() }
    }

    /// The operation's name.
    #[inline]
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name
    }

    /// The operation's type.
    #[inline]
    pub(crate) fn type_id(&self) -> TypeId {
        self.type_id
    }

    /// True if the operation has the type `O`.
    #[inline]
    pub(crate) fn is<O: 'static>(&self) -> bool {
        self.type_id == TypeId::of::<O>()
    }

    /// Returns the operation, whose type is `O`.
    ///
    /// # Safety
    /// The operation's type must be `O`, and the engine must not use the operation.
    #[inline]
    pub(crate) unsafe fn get_mut<O>(&mut self) -> &mut O {
        // SAFETY: the caller's promise.
        unsafe { self.at.cast().as_mut() }
    }

    /// Notes in the operation, which the engine no longer uses, that it has ended.
    pub(crate) fn settle(&mut self, result: i32) {
        // SAFETY: the operation at `at` is of this kind.
        unsafe { (self.kind.settle)(self.at, result) };
    }

    /// Takes the operation, which the engine no longer uses, if its type is `O`.
    #[inline]
    pub(crate) fn take<O: 'static>(self) -> Result<O, Kept> {
        // SAFETY: the operation's type is `O`.
        if self.is::<O>() { Ok(unsafe { self.into_inner() }.0) } else { Err(self) }
    }

    /// Takes the operation, whose type is `O`, and the room where it was.
    ///
    /// # Safety
    /// The operation's type must be `O`, and the engine must not use the operation.
    #[inline(always)]
    pub(crate) unsafe fn into_inner<O>(self) -> (O, Option<Box<Room>>) {
        let at = ManuallyDrop::new(self).at;
        // SAFETY: `at` holds the operation, in memory of this kind; both are taken only here.
        unsafe {
            let operation = at.cast::<O>().read();
            if fits::<O>() {
                (operation, Some(Box::from_raw(at.cast::<Room>().as_ptr())))
            } else {
                drop(Box::from_raw(at.cast::<MaybeUninit<O>>().as_ptr()));
                (operation, None)
            }
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: `at` holds the operation, which was not taken.
        unsafe { (self.kind.end)(self.at) };
    }
}
