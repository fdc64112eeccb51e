//! The interface that this crate needs from the front end above it.

use anyring_engine::os::Fd;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A front end whose rings of the kernel can have private operations.
pub trait Frontend: Sync {
    /// Makes one of the three calls by anyring's engine; returns a negative errno on failure.
    ///
    /// # Safety
    /// As for the call that `number` names.
    unsafe fn call(&self, number: usize, arguments: [usize; 6]) -> i32;

    /// Keeps the program's signal handlers from running in the calling thread; returns the former signal mask.
    fn block_signals(&self) -> u64;

    /// Restores the mask that [`Frontend::block_signals`] returned.
    fn restore_signals(&self, mask: u64);

    /// Tells the front end that a ring's descriptor is about to be closed.
    fn closing(&self, fd: Fd);
}

static FRONTEND: AtomicPtr<&'static dyn Frontend> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the front end of this process.
pub fn set(frontend: &'static &'static dyn Frontend) {
    // Release pairs with the acquire load in `get`.
    FRONTEND.store(core::ptr::from_ref(frontend).cast_mut(), Ordering::Release);
}

/// Returns the front end of this process; `None` as long as its rings have no private operations.
pub fn get() -> Option<&'static dyn Frontend> {
    // Acquire pairs with the release store in `set`.
    let frontend = FRONTEND.load(Ordering::Acquire);
    // SAFETY: null, or from a `&'static` in `set`.
    unsafe { frontend.as_ref().copied() }
}

/// Returns the front end of a process whose rings have private operations.
fn present() -> &'static dyn Frontend {
    get().expect("`begin` was called before rings have private operations")
}

/// Calls [`Frontend::call`].
///
/// # Safety
/// As for [`Frontend::call`].
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { present().call(number, arguments) }
}

/// Calls [`Frontend::closing`].
pub fn closing(fd: Fd) {
    present().closing(fd);
}

/// A guard during which no signal handler of the program runs in the calling thread.
struct Quiet(&'static dyn Frontend, u64);

impl Drop for Quiet {
    fn drop(&mut self) {
        self.0.restore_signals(self.1);
    }
}

/// Runs `body` without a signal handler of the program in between.
pub fn quietly<T>(body: impl FnOnce() -> T) -> T {
    let frontend = present();
    let _quiet = Quiet(frontend, frontend.block_signals());
    body()
}
