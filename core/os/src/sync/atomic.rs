//! The atomics of a simulation: those of `core`, with a scheduling point before each access, at which the simulated
//! system may run another thread. Relaxed loads are no scheduling points, because no hand-over depends on them
//! alone.

pub use core::sync::atomic::Ordering;

use core::sync::atomic as real;

use crate::point;

/// Passes a scheduling point; a simulation does not reorder accesses.
#[inline]
pub fn fence(_: Ordering) {
    point();
}

macro_rules! atomic {
    ($name:ident, $inner:ty, $value:ty, [$($parameter:ident)?]) => {
        #[doc = concat!("`core::sync::atomic::", stringify!($name), "`, simulated.")]
        #[derive(Debug)]
        #[repr(transparent)]
        pub struct $name $(<$parameter>)? ($inner);

        impl $(<$parameter>)? $name $(<$parameter>)? {
            /// Makes a new atomic.
            pub const fn new(value: $value) -> Self {
                Self(<$inner>::new(value))
            }

            /// Loads like the atomic of `core`.
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                if order != Ordering::Relaxed {
                    point();
                }
                self.0.load(order)
            }

            /// Stores like the atomic of `core`.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }

            /// Swaps like the atomic of `core`.
            #[inline]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.swap(value, order)
            }

            /// Compares and exchanges like the atomic of `core`.
            ///
            /// # Errors
            /// The current value, if it differs from `current`.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(current, new, success, failure)
            }
        }
    };
}

macro_rules! number {
    ($name:ident, $value:ty) => {
        atomic!($name, real::$name, $value, []);

        impl $name {
            /// Adds like the atomic of `core`.
            #[inline]
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.fetch_add(value, order)
            }

            /// Subtracts like the atomic of `core`.
            #[inline]
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.fetch_sub(value, order)
            }

            /// Sets bits like the atomic of `core`.
            #[inline]
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.fetch_or(value, order)
            }

            /// Clears bits like the atomic of `core`.
            #[inline]
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.fetch_and(value, order)
            }

            /// Returns a pointer like the atomic of `core`.
            pub fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }

            /// Converts a pointer like the atomic of `core`.
            ///
            /// # Safety
            /// As for the atomic of `core`.
            pub unsafe fn from_ptr<'a>(place: *mut $value) -> &'a $name {
                // SAFETY: passed on to the caller; the type has the value's layout.
                unsafe { &*place.cast() }
            }
        }
    };
}

atomic!(AtomicBool, real::AtomicBool, bool, []);
atomic!(AtomicPtr, real::AtomicPtr<T>, *mut T, [T]);
number!(AtomicI32, i32);
number!(AtomicU8, u8);
number!(AtomicU16, u16);
number!(AtomicU32, u32);
number!(AtomicU64, u64);
number!(AtomicUsize, usize);
