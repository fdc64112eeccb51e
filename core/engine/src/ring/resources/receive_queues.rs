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
        exported::drop_unreferenced();
    }

    /// Tells the ring that registered a queue of an event. Where that ring is in use now, the next event of the kind is told.
    pub fn tell_of(&mut self, queue: &Shared, notice: Notice) {
        let cqe = Cqe { user_data: notice.user_data, res: notice.event as i32, ..Cqe::default() };
        if notice.ring == self.serial {
            self.beside_batch(|core| core.post_unrequested(cqe));
        } else if !Core::tell_another(notice.ring, cqe) {
            queue.lock().forget_told(notice.event);
        }
    }

    /// Tells a ring, by its serial number; whether it could be told now.
    fn tell_another(serial: u64, cqe: Cqe) -> bool {
        let Some(ring) = registry::live().into_iter().find(|ring| ring.life() == serial) else {
            return false;
        };
        // Never two locks are waited for.
        let Some(mut guard) = ring.try_lock() else { return false };
        live(&mut guard, serial).map(|other| other.receive(cqe)).is_some()
    }
}
