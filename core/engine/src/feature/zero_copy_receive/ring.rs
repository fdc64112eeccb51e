//! Operations of a ring on its queues of zero-copy receives.

use crate::abi::Errno;
use crate::feature::zero_copy_receive::{Notice, Shared, exported};
use crate::queue::Cqe;
use crate::ring::{Core, CoreGuard, Ring, live, registry};

impl Core {
    /// Returns the id of the next queue, and the offset of its refill ring in the ring's file.
    ///
    /// # Errors
    /// `ENOMEM` if no id is left.
    pub(in crate::feature::zero_copy_receive) fn next_receive_queue(&mut self) -> Result<(u32, u64), Errno> {
        let given = self.receive_queue_ids();
        self.resources_mut().receive_queues.skip_to(given);
        self.resources().receive_queues.next()
    }

    /// Adds a queue under the next id. Its refill ring occupies `bytes` bytes of the ring's file.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(in crate::feature::zero_copy_receive) fn add_receive_queue(
        &mut self,
        queue: Shared,
        bytes: u64,
    ) -> Result<(), Errno> {
        self.resources_mut().receive_queues.add(queue, bytes)?;
        self.publish_receive_queue_ids();
        Ok(())
    }

    /// Releases all queues, because the ring ends.
    pub(crate) fn leave_receive_queues(&mut self) {
        let queues = self.resources_mut().receive_queues.take();
        if queues.is_empty() {
            return;
        }
        for (_, queue) in queues {
            queue.lock().leave(Some(self.serial()));
        }
        exported::drop_unreferenced();
    }

    /// Makes the ring that registered a queue report an event. False if another thread holds that ring's
    /// lock: then the caller must use `wait_to_tell`.
    pub fn tell_of(&mut self, queue: &Shared, notice: Notice) -> bool {
        if notice.ring == self.serial() {
            if let Some(cqe) = completion(queue, notice) {
                self.beside_batch(|core| core.post_unrequested(cqe));
            }
            return true;
        }
        let Some(ring) = registrant(notice) else { return true };
        // Two rings' locks are never waited for together.
        ring.try_lock().map(|mut guard| tell(&mut guard, queue, notice)).is_some()
    }
}

/// Makes the ring that registered a queue report an event; waits for the ring's lock. The caller must hold no ring's lock.
pub fn wait_to_tell(queue: &Shared, notice: Notice) {
    if let Some(ring) = registrant(notice) {
        tell(&mut ring.lock(), queue, notice);
    }
}

/// Returns the ring that must report, if it still exists.
fn registrant(notice: Notice) -> Option<&'static Ring> {
    registry::live().into_iter().find(|ring| ring.life() == notice.ring)
}

fn tell(guard: &mut CoreGuard<'_>, queue: &Shared, notice: Notice) {
    if let Some(core) = live(guard, notice.ring)
        && let Some(cqe) = completion(queue, notice)
    {
        core.receive(cqe);
    }
}

/// Returns the CQE that reports an event, unless the event was reported already.
fn completion(queue: &Shared, notice: Notice) -> Option<Cqe> {
    let user_data = queue.lock().claim(notice)?;
    Some(Cqe { user_data, res: notice.event as i32, ..Cqe::default() })
}
