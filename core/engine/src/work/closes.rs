//! Requests that close a descriptor: requests that are submitted after them find it closed.

use crate::abi::Errno;
use crate::request::{Flags, RequestId};
use crate::ring::Core;

impl Core {
    /// Notes that a request will close the descriptor that it names, when its work is done.
    ///
    /// # Errors
    /// `EBADF` if the number is no descriptor, `ENOMEM`.
    pub fn will_close(&mut self, id: RequestId) -> Result<(), Errno> {
        let fd = self[id].sqe.fd;
        self.work_mut().closing.add(fd)?;
        self[id].flags.set(Flags::CLOSES);
        Ok(())
    }

    /// Forgets that a request will close its descriptor, if it is a CLOSE: the close begins now, or is given up.
    pub fn forget_closing(&mut self, id: RequestId) {
        let request = &mut self[id];
        if request.flags.has(Flags::CLOSES) {
            request.flags.clear(Flags::CLOSES);
            let fd = request.sqe.fd;
            self.work_mut().closing.remove(fd);
        }
    }
}
