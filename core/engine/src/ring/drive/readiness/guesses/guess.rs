//! Receives that are tried on a guess.

use linux_raw_sys::general::EPOLLIN;

use crate::ring::Core;
use crate::ring::drive::readiness::guesses::AT_ONCE;

impl Core {
    /// Wakes receives that probably find data, before a caller asks epoll. Returns false if there are none.
    pub(in crate::ring::drive) fn guess(&mut self) -> bool {
        self.readiness.guesses.judge();
        if !self.readiness.guesses.are_on() {
            return false;
        }
        let next = self.readiness.guesses.queue.iter().take(AT_ONCE).map(|guess| guess.index);
        self.readiness.expect_entries(&self.requests, next);
        let mut made = 0;
        while made < AT_ONCE as u32
            && let Some(guess) = self.readiness.guesses.queue.pop_front()
        {
            let Some(entry) = self.readiness.entries.get_mut(guess.index as usize) else { continue };
            if guess.holds(entry) {
                entry.ready |= EPOLLIN;
                self.wake_waiters(guess.index, EPOLLIN);
                made += 1;
            }
        }
        let guesses = &mut self.readiness.guesses;
        guesses.made = made;
        if made == 0 {
            guesses.end();
        }
        made > 0
    }
}
