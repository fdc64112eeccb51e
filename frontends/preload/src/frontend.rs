//! The library as the front end of the trap, and as the host of the engine.

use crate::{arch, inside, patch};
use anyring_engine::Host;
use anyring_engine::os::host::Checker;
use anyring_runtime::{arch::thread_pointer, log, threads, valgrind};
use anyring_trap::arch::Context;
use anyring_trap::{Frontend, signals, sleep};
use core::ffi::{CStr, c_void};
use core::num::NonZeroUsize;

/// The front end and host in a process with a C library, and with thread-local storage of this library.
pub struct Preload;

static PRELOAD: Preload = Preload;
/// The front end for the trap.
pub static FRONTEND: &dyn Frontend = &PRELOAD;
/// The host for the engine.
pub static HOST: &dyn Host = &PRELOAD;

/// The host in a process in which the engine starts late, beside the kernel's: nothing traps, and signal actions are
/// the program's.
pub struct Beside;

/// The host for an engine that starts late.
pub static BESIDE: &dyn Host = &Beside;

impl Host for Beside {
    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32> {
        PRELOAD.spawn(name, entry, argument)
    }

    fn thread_identity(&self) -> NonZeroUsize {
        thread_pointer()
    }

    fn faults_resume(&self) -> bool {
        false
    }

    fn may_end_in(&self, call: &mut dyn FnMut(), ended: &mut dyn FnMut()) {
        inside::may_end_in(call, ended);
    }

    fn sees_closes(&self) -> bool {
        true
    }
}

impl Frontend for Preload {
    fn is_inside(&self, _interrupted: &Context) -> bool {
        inside::active()
    }

    fn kept_out(&self, signal: u64, interrupted: &mut Context) {
        inside::kept_out(signal, interrupted.signal_mask());
        sleep::give_up(interrupted);
    }

    fn take_kept_out(&self) -> u64 {
        inside::take_kept_out()
    }

    fn thread_pointer(&self) -> usize {
        anyring_runtime::arch::thread_pointer().get()
    }

    fn enters(&self) {
        crate::threads::seen();
    }

    fn trapped_at(&self, next: usize) {
        patch::trapped_at(next);
    }

    fn wanted_blocked(&self) -> Option<u64> {
        inside::wanted_blocked()
    }

    fn note_blocked(&self, signals: Option<u64>) {
        inside::note_blocked(signals);
    }
}

impl Host for Preload {
    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32> {
        // Only the note is accessed in the thread-local storage.
        let note = inside::note_offset();
        threads::spawn(name, entry, argument, note..note + arch::NOTE_BYTES as isize)
    }

    fn thread_identity(&self) -> NonZeroUsize {
        thread_pointer()
    }

    fn kept_thread_number(&self) -> Option<usize> {
        Some(thread_pointer().get().wrapping_add_signed(arch::THREAD_NUMBER?))
    }

    fn interrupt_signal(&self) -> Option<u32> {
        // The trap has set the signal's action before the first ring.
        Some(linux_raw_sys::general::SIGSYS)
    }

    fn faults_resume(&self) -> bool {
        signals::active()
    }

    fn sees_closes(&self) -> bool {
        true
    }

    fn finds_unseen_closes(&self) -> Option<fn() -> bool> {
        // A filter of the program may kill the process for the calls that the search makes, or for the thread that
        // makes them.
        (!log::is_filtered()).then_some(patch::unseen::closes)
    }

    fn sees_handovers(&self) -> bool {
        true
    }

    fn is_poisoned(&self, address: usize, length: usize) -> bool {
        anyring_interpose::next::is_poisoned(address, length) || valgrind::is_poisoned(address, length)
    }

    fn checker(&self) -> Option<&'static dyn Checker> {
        anyring_interpose::thread_sanitizer::get().or_else(valgrind::memcheck)
    }

    #[cfg(not(test))]
    fn has_seen_handovers(&self) -> bool {
        use patch::unseen::Question;
        static HAND_OVERS: Question = Question::new(crate::interpose::hands_over, false);
        HAND_OVERS.is_answered_yes()
    }

    fn may_end_in(&self, call: &mut dyn FnMut(), ended: &mut dyn FnMut()) {
        inside::may_end_in(call, ended);
    }

    unsafe fn sleep(&self, number: usize, arguments: [usize; 6]) -> Option<isize> {
        // SAFETY: the caller's promise.
        unsafe { inside::sleep(number, arguments) }
    }
}
