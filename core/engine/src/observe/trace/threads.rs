//! Numbers of threads, for which the kernel is asked as rarely as is safe.
//!
//! No value that can be read distinguishes a thread for sure from one that ended before it, or that shares its storage
//! (`clone` without `CLONE_SETTLS`). So a number is remembered
//!
//! - for the time of a call, in which the thread runs on a part of its stack that no other thread has;
//! - from call to call if the C library keeps the same number in the thread's storage, for calls from the same place on the stack. The
//!   C library's number changes with the thread. A thread without storage of its own usually has another stack; if it uses the very
//!   stack of the storage's owner (a child of `vfork`, a coroutine that moves), it is reported as the owner.

use crate::observe::trace::demand;
use crate::os::sync::atomic::{AtomicU64, Ordering};
use crate::os::{self, host, stack_pointer, user};

/// The number of remembered threads; others ask the kernel. A simulation forgets them after every schedule.
const REMEMBERED: usize = if cfg!(anyring_simulation) { 4 } else { 256 };
/// The maximal number of bits of a thread number.
const NUMBER_BITS: u32 = 22;
/// The number of low bits of a stack address that are ignored.
const STACK_BITS: u32 = 6;
/// The number of bits of an address: 48 on Arm; 47 on x86-64.
const ADDRESS_BITS: u32 = 48;
const _: () = assert!(ADDRESS_BITS - STACK_BITS + NUMBER_BITS <= u64::BITS);
/// The range of a thread's stack pointer during a call, relative to its value at the call's begin: this far down, or a little up.
const DEPTH: usize = 16 << 10;
const HEIGHT: usize = 1 << 10;

/// The stack pointer of a thread at its call's begin, and the thread's number; 0 for none.
static KNOWN: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];

/// Entries as in [`KNOWN`], for threads that have made a call and own their storage.
static OWNERS: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];

fn place(identity: usize) -> &'static AtomicU64 {
    // Identities of threads differ by whole pages.
    &KNOWN[(identity >> 12 ^ identity >> 20) % REMEMBERED]
}

fn place_of_owner(identity: usize, stack: usize) -> &'static AtomicU64 {
    // A thread makes calls from several places.
    &OWNERS[(identity >> 12 ^ identity >> 20 ^ stack >> STACK_BITS) % REMEMBERED]
}

fn entry(stack: usize, number: u32) -> u64 {
    (stack as u64 >> STACK_BITS) << NUMBER_BITS | u64::from(number)
}

/// Returns the remembered number of the thread with an identity and this stack pointer.
fn remembered(identity: usize, stack: usize) -> Option<u32> {
    let known = place(identity).load(Ordering::Relaxed);
    let came_in = (known >> NUMBER_BITS << STACK_BITS) as usize;
    let is_in_its_call = (came_in.saturating_sub(DEPTH)..came_in + HEIGHT).contains(&stack);
    (known != 0 && is_in_its_call).then_some(number_in(known))
}

fn number_in(entry: u64) -> u32 {
    entry as u32 & ((1 << NUMBER_BITS) - 1)
}

/// Returns the number that the C library keeps for the owner of the calling thread's storage.
fn kept() -> Option<u32> {
    let host = host::get().filter(|host| host.faults_resume())?;
    user::read(host.kept_thread_number()? as u64).ok()
}

/// Returns the calling thread's number if it owns its storage, and has made a call from the same place before.
fn remembered_owner(identity: usize, stack: usize) -> Option<u32> {
    let known = place_of_owner(identity, stack).load(Ordering::Relaxed);
    let number = number_in(known);
    (known != 0 && known == entry(stack, number) && kept() == Some(number)).then_some(number)
}

/// Returns the calling thread's number as far as it is known without a system call; 0 if it is not.
fn unasked() -> u32 {
    kept().unwrap_or(0)
}

/// Asks the kernel for the calling thread's number.
fn ask(identity: usize, stack: usize) -> u32 {
    if demand::is_watched() {
        return unasked();
    }
    let number = os::gettid() as u32;
    if number >> NUMBER_BITS == 0 && kept() == Some(number) {
        place_of_owner(identity, stack).store(entry(stack, number), Ordering::Relaxed);
    }
    number
}

/// Returns the calling thread's number.
pub fn number() -> u32 {
    let ask = || if demand::is_watched() { unasked() } else { os::gettid() as u32 };
    remembered(host::thread_identity(), stack_pointer()).unwrap_or_else(ask)
}

/// A guard for the time that a thread spends in a call.
#[must_use]
pub struct InCall(());

impl Drop for InCall {
    fn drop(&mut self) {
        forget();
    }
}

/// Notes that the calling thread enters by a call of the program.
pub fn comes_in() -> InCall {
    let (identity, stack) = (host::thread_identity(), stack_pointer());
    let number = remembered_owner(identity, stack).unwrap_or_else(|| ask(identity, stack));
    if number >> NUMBER_BITS == 0 {
        place(identity).store(entry(stack, number), Ordering::Relaxed);
    }
    InCall(())
}

/// Forgets the calling thread, which leaves or ends: its entry may match a later thread.
pub fn forget() {
    place(host::thread_identity()).store(0, Ordering::Relaxed);
}

/// Forgets all threads in a child of `fork`, whose thread has its parent's stack, and another number.
pub fn forked() {
    KNOWN.iter().chain(&OWNERS).for_each(|known| known.store(0, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_during_its_call() {
        let identity = host::thread_identity();
        let call = comes_in();
        assert_eq!(remembered(identity, stack_pointer()), Some(os::gettid() as u32));
        // Stands for a thread with the same storage on another stack.
        assert_eq!(remembered(identity, stack_pointer() + (1 << 16)), None);
        assert_eq!(remembered(identity, stack_pointer() - (1 << 16)), None);
        drop(call);
        assert_eq!(remembered(identity, stack_pointer()), None);
        assert_eq!(number(), os::gettid() as u32);
    }
}
