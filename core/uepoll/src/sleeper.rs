//! Falling asleep and waking the consumer: one word says whether it sleeps, and where.
//!
//! ```text
//!            ,-- announce (ON_THE_WORD): without files, on the word itself, a futex
//!  AWAKE ----+
//!    ^       `-- announce (AT_THE_BELL): where files are waited for, and the bell is heard once there is one
//!    `---------- woke: by the consumer; or wake: by a thread with an event, which resets the word first
//! ```
//!
//! A thread with something for the consumer publishes it first, and reads the word then; the consumer writes the word
//! first, and checks for events then. So either the consumer sees the events, or the thread sees the word.
//!
//! The bell is made when it is first needed, for an event that a thread raises. Until then, a consumer that sleeps at the bell
//! is woken by files only. The word keeps saying where the consumer sleeps, for threads that come once there is a bell.

/// The consumer does not sleep.
pub const AWAKE: u32 = 0;
/// The consumer sleeps where the bell, an eventfd, is heard.
pub const AT_THE_BELL: u32 = 1;
/// The consumer sleeps on this word itself, a futex.
pub const ON_THE_WORD: u32 = 2;

/// The word, the bell and the events, as an interface that a model checker can implement, too.
pub trait Alarm {
    /// Reads the word, in one total order with all changes of it, and with the tail.
    fn word(&self) -> u32;
    /// Writes the word, in that order.
    fn set_word(&self, word: u32);
    /// Replaces the word, in that order; returns the former word.
    fn swap_word(&self, word: u32) -> u32;
    /// Replaces the word if it is `from`, in that order; returns whether it was.
    fn replace_word(&self, from: u32, to: u32) -> bool;
    /// Issues a sequentially consistent fence.
    fn barrier(&self);
    /// True if the ring is empty. In one total order with the word.
    fn is_empty(&self) -> bool;
    /// True if there is a bell. Acquire: then the feeder hears it already.
    fn has_bell(&self) -> bool;
    /// Rings the bell.
    fn ring_bell(&self);
    /// Wakes a consumer that sleeps on the word.
    fn wake_word(&self);
}

/// Announces that the caller is about to sleep; false if there are events already, so that it must not sleep.
pub fn announce(alarm: &impl Alarm, how: u32) -> bool {
    // In one total order with the tail: either the caller sees the event, or the thread that inserts it sees the sleeper.
    alarm.set_word(how);
    // The fence does the same for other state that the caller checks next: pairs with the one in `changed`.
    alarm.barrier();
    let sleeps = alarm.is_empty();
    if !sleeps {
        alarm.set_word(AWAKE);
    }
    sleeps
}

/// Wakes the consumer, if it sleeps, after an insertion into the ring.
#[inline]
pub fn wake(alarm: &impl Alarm) {
    if alarm.word() != AWAKE {
        wake_sleeper(alarm);
    }
}

/// Wakes the consumer, if it sleeps, after a change of state other than the ring, which the consumer must see.
pub fn changed(alarm: &impl Alarm) {
    alarm.barrier();
    wake(alarm);
}

#[cold]
fn wake_sleeper(alarm: &impl Alarm) {
    if !alarm.has_bell() {
        // Not a swap: since the word was read, the consumer may have fallen asleep where the bell will be heard.
        if alarm.replace_word(ON_THE_WORD, AWAKE) {
            alarm.wake_word();
        }
        return;
    }
    // Only one of the threads that find the consumer asleep wakes it.
    match alarm.swap_word(AWAKE) {
        AT_THE_BELL => alarm.ring_bell(),
        ON_THE_WORD => alarm.wake_word(),
        _ => {}
    }
}
