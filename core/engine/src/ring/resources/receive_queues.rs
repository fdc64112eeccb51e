//! What a ring does with its queues of zero-copy receives.

use crate::assets::receive_queues::{Notice, Shared, exported};
use crate::queue::Cqe;
use crate::ring::{Core, live, registry};

impl Core {
    /// The ring ends: it refers to no queue any more.
    pub(crate) fn leave_receive_queues(&mut self) {
        let queues = self.receive_queues.take();
        if queues.is_empty() {
            return;
        }
        for (_, queue) in queues {
            queue.lock().leave(Some(self.serial));
        }
        exported::look();
    }

    /// Tells the ring that registered a queue of an event. Where that ring is in use now, the next event of the kind is told.
    pub fn tell_of(&mut self, queue: &Shared, notice: Notice) {
        let cqe = Cqe { user_data: notice.user_data, res: notice.event as i32, ..Cqe::default() };
        if notice.ring == self.serial {
            self.beside_batch(|core| core.post_unrequested(cqe));
            queue.lock().has_told(notice.event);
            return;
        }
        let Some(ring) = registry::live().into_iter().find(|ring| ring.life() == notice.ring) else { return };
        // Never two locks are waited for.
        let Some(mut guard) = ring.try_lock() else { return };
        if let Some(other) = live(&mut guard, notice.ring) {
            other.receive(cqe);
            queue.lock().has_told(notice.event);
        }
    }
}
