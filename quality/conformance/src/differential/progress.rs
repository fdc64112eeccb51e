//! How far a child has come, in memory that its parent sees: a child that dies or hangs leaves its
//! place behind.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::explain::EXPLANATIONS;
use crate::ring::Engine;

/// One child's page.
#[repr(C)]
pub struct Page {
    /// The index of the program that runs.
    pub program: AtomicU64,
    /// Its step, doubled; odd while the kernel's turn is.
    pub step: AtomicU64,
    /// Programs that were the same on both engines.
    pub clean: AtomicU64,
    /// Programs that differed once and not again, and those in which the kernel hung once.
    pub unsteady: AtomicU64,
    /// Programs for which the kernel differs from itself.
    pub racy: AtomicU64,
    /// Programs that differ as is meant to be, by explanation: the kernel itself was seen to do the same.
    pub proved: [AtomicU64; EXPLANATIONS.len()],
    /// The others.
    pub unproved: [AtomicU64; EXPLANATIONS.len()],
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());

/// Maps a page that children share.
pub fn new_page() -> &'static Page {
    // SAFETY: zeroes make a page.
    unsafe { crate::harness::map_shared() }
}

/// In a child: this is our page.
pub fn use_page(page: &'static Page) {
    PAGE.store(std::ptr::from_ref(page).cast_mut(), Ordering::Relaxed);
}

/// Something is about to be done.
pub fn mark(step: usize, engine: Engine) {
    // SAFETY: null or a page that stays.
    if let Some(page) = unsafe { PAGE.load(Ordering::Relaxed).as_ref() } {
        let step = (step as u64).wrapping_mul(2) + u64::from(engine == Engine::Kernel);
        page.step.store(step, Ordering::Relaxed);
    }
}

impl Page {
    /// The engine whose turn it is.
    pub fn engine(&self) -> Engine {
        if self.step.load(Ordering::Relaxed) & 1 == 1 { Engine::Kernel } else { Engine::User }
    }

    /// Where the child is, in words.
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
