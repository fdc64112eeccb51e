//! Operations at rest, while the engine may have pointers into them.

use crate::operation::{Multishot, Operation};
use std::any::TypeId;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

/// Memory in which most operations have room: the next one uses it again.
#[repr(align(16))]
pub(crate) struct Room(#[expect(dead_code, reason = "used by address")] MaybeUninit<[u8; 64]>);

const fn fits<O>() -> bool {
    size_of::<O>() <= size_of::<Room>() && align_of::<O>() <= align_of::<Room>()
}

/// Memory for an operation, made before that is moved: it is moved once then.
pub(crate) struct Memory<O>(NonNull<O>);

impl<O> Memory<O> {
    /// This room, or new memory.
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
    /// Tells the operation that it has ended.
    settle: unsafe fn(NonNull<()>, i32),
    /// Drops it, and frees its memory.
    end: unsafe fn(NonNull<()>),
}

impl Kind {
    const fn single<O: Operation>() -> &'static Kind {
        const {
            &Kind {
                name: O::NAME,
                // SAFETY: an operation of this type is there.
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
/// An operation of this type must be there, which nobody uses any more.
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

/// An operation at rest. A box would claim to be its only user.
pub(crate) struct Kept {
    /// In a [`Room`] where it fits there, else in a box of its own.
    at: NonNull<()>,
    kind: &'static Kind,
    type_id: TypeId,
}

// SAFETY: as the operation is.
unsafe impl Send for Kept {}
// SAFETY: who shares it has its name and type, and nothing of the operation.
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
        // SAFETY: memory for it, which nobody else knows of.
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

    /// True if the operation is one of this type.
    #[inline]
    pub(crate) fn is<O: 'static>(&self) -> bool {
        self.type_id == TypeId::of::<O>()
    }

    /// The operation, which is one of this type.
    ///
    /// # Safety
    /// It must be, and the engine must not use it.
    #[inline]
    pub(crate) unsafe fn get_mut<O>(&mut self) -> &mut O {
        // SAFETY: the caller's promise.
        unsafe { self.at.cast().as_mut() }
    }

    /// Tells the operation, which the engine has done with, that it has ended.
    pub(crate) fn settle(&mut self, result: i32) {
        // SAFETY: it is of this kind.
        unsafe { (self.kind.settle)(self.at, result) };
    }

    /// The operation, which the engine has done with, if it is one of this type.
    #[inline]
    pub(crate) fn take<O: 'static>(self) -> Result<O, Kept> {
        // SAFETY: it is of this type.
        if self.is::<O>() { Ok(unsafe { self.into_inner() }.0) } else { Err(self) }
    }

    /// The operation, which is one of this type, and the room where it was.
    ///
    /// # Safety
    /// It must be, and the engine must not use it.
    #[inline(always)]
    pub(crate) unsafe fn into_inner<O>(self) -> (O, Option<Box<Room>>) {
        let at = ManuallyDrop::new(self).at;
        // SAFETY: it is there, and in memory of this kind; both are taken once.
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
        // SAFETY: it is there, and was not taken.
        unsafe { (self.kind.end)(self.at) };
    }
}
