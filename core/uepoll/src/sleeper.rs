//! How the consumer falls asleep, and how it is woken: one word says whether it sleeps, and where.
//!
//! ```text
//!            ,-- announce (ON_THE_WORD): without files, on the word itself, a futex
//!  AWAKE ----+
//!    ^       `-- announce (AT_THE_BELL): where the files are waited for, and the bell is heard, once there is one
//!    `---------- woke: the consumer itself; or wake: whoever has something for it, and takes the word away first
//! ```
//!
//! Who has something for the consumer shows it first, and looks at the word then; the consumer writes the word first, and
//! looks then. So either the consumer sees what there is, or the word is seen.
//!
//! The bell is made when something needs it, an event that a thread raises. A consumer that sleeps where a bell would be heard, and
//! there is none, hears of files by itself. Its word stays, for whoever comes when there is a bell.

/// Nobody sleeps.
pub const AWAKE: u32 = 0;
/// The consumer sleeps where the bell is heard, an eventfd.
pub const AT_THE_BELL: u32 = 1;
/// The consumer sleeps on the very word that says so.
pub const ON_THE_WORD: u32 = 2;

/// The word, the bell and what the consumer is woken for, as they are needed here and as a model checker can stand in
/// for them.
pub trait Alarm {
    /// Reads the word, in one order with all that changes it, and with the tail.
    fn word(&self) -> u32;
    /// Writes the word, in that order.
    fn set_word(&self, word: u32);
    /// Replaces the word; returns what it was. In that order.
    fn swap_word(&self, word: u32) -> u32;
    /// Replaces the word if it is `from`; whether it was. In that order.
    fn replace_word(&self, from: u32, to: u32) -> bool;
    /// A sequentially consistent fence.
    fn barrier(&self);
    /// Whether the ring has nothing to take. In one order with the word.
    fn is_empty(&self) -> bool;
    /// Whether there is a bell. Acquire: if so, the feeder hears it already.
    fn has_bell(&self) -> bool;
    /// Rings it.
    fn ring_bell(&self);
    /// Wakes who sleeps on the word.
    fn wake_word(&self);
}

/// Says that the caller is about to sleep; false where there is something already, and it must not.
pub fn announce(alarm: &impl Alarm, how: u32) -> bool {
    // In one order with the tail: either the caller sees what came, or who put it there sees the sleeper.
    alarm.set_word(how);
    // As much for what the caller looks at next: `changed` is the other side.
    alarm.barrier();
    let sleeps = alarm.is_empty();
    if !sleeps {
        alarm.set_word(AWAKE);
    }
    sleeps
}

/// Wakes the consumer, if it sleeps: something was put into the ring.
#[inline]
pub fn wake(alarm: &impl Alarm) {
    if alarm.word() != AWAKE {
        wake_sleeper(alarm);
    }
}

/// Wakes the consumer, if it sleeps: something else than the ring was changed that it has to look at.
pub fn changed(alarm: &impl Alarm) {
    alarm.barrier();
    wake(alarm);
}

#[cold]
fn wake_sleeper(alarm: &impl Alarm) {
    if !alarm.has_bell() {
        // Not a swap: since the look at the word, the consumer may have gone to sleep where the bell will be heard.
        if alarm.replace_word(ON_THE_WORD, AWAKE) {
            alarm.wake_word();
        }
        return;
    }
    // One of those who find it asleep.
    match alarm.swap_word(AWAKE) {
        AT_THE_BELL => alarm.ring_bell(),
        ON_THE_WORD => alarm.wake_word(),
        _ => {}
    }
}
