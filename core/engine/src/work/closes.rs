//! Requests that close a descriptor: what is submitted behind them finds it closed.

use crate::abi::Errno;
use crate::request::{Flags, RequestId};
use crate::ring::Core;

impl Core {
    /// A request will close the descriptor that it names when its work is done.
    ///
    /// # Errors
    /// `EBADF` where that is no descriptor, `ENOMEM`.
    pub fn will_close(&mut self, id: RequestId) -> Result<(), Errno> {
        let fd = self[id].sqe.fd;
        self.work_mut().closing.add(fd)?;
        self[id].flags.set(Flags::CLOSES);
        Ok(())
    }

    /// A request's CLOSE, if it is one, is about to be done, or will not be.
    pub fn forget_closing(&mut self, id: RequestId) {
        let request = &mut self[id];
        if request.flags.has(Flags::CLOSES) {
            request.flags.clear(Flags::CLOSES);
            let fd = request.sqe.fd;
            self.work_mut().closing.remove(fd);
        }
    }
}
