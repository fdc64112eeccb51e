//! The progress of a child, in memory that its parent sees: a child that dies or hangs leaves its
//! position there.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::explain::EXPLANATIONS;
use crate::ring::Engine;

/// The page of a child.
#[repr(C)]
pub struct Page {
    /// The index of the running program.
    pub program: AtomicU64,
    /// The program's step, doubled; odd during the kernel's turn.
    pub step: AtomicU64,
    /// The number of programs with equal results on both engines.
    pub clean: AtomicU64,
    /// The number of programs that differed once and not again, or in which the kernel hung once.
    pub unsteady: AtomicU64,
    /// The number of programs for which the kernel differs from itself.
    pub racy: AtomicU64,
    /// The numbers of programs with intended differences, by explanation, for which the kernel itself was seen to do the same.
    pub proved: [AtomicU64; EXPLANATIONS.len()],
    /// The numbers of the other programs with intended differences, by explanation.
    pub unproved: [AtomicU64; EXPLANATIONS.len()],
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());

/// Maps a page that children share.
pub fn new_page() -> &'static Page {
    // SAFETY: zeroes make a page.
    unsafe { crate::harness::map_shared() }
}

/// Sets the page of this child.
pub fn use_page(page: &'static Page) {
    PAGE.store(std::ptr::from_ref(page).cast_mut(), Ordering::Relaxed);
}

/// Records the next step and its engine.
pub fn mark(step: usize, engine: Engine) {
    // SAFETY: null or a page that stays mapped.
    if let Some(page) = unsafe { PAGE.load(Ordering::Relaxed).as_ref() } {
        let step = (step as u64).wrapping_mul(2) + u64::from(engine == Engine::Kernel);
        page.step.store(step, Ordering::Relaxed);
    }
}

impl Page {
    /// Returns the engine whose turn it is.
    pub fn engine(&self) -> Engine {
        if self.step.load(Ordering::Relaxed) & 1 == 1 { Engine::Kernel } else { Engine::User }
    }

    /// Returns the child's position as text.
    pub fn place(&self) -> String {
        let step = self.step.load(Ordering::Relaxed);
        let engine = if self.engine() == Engine::Kernel { "kernel" } else { "user engine" };
        if step / 2 >= u64::from(u32::MAX) {
            format!("at the end, in the {engine}")
        } else {
            format!("at step {}, in the {engine}", step / 2)
        }
    }
}
