//! Operations one after the other.

use super::Ring;
use crate::Error;
use crate::error::ErrorContext;
use crate::operation::{Operation, Token};

/// Operations that begin one after the other, made by [`Ring::chain`].
///
/// ```
/// use anyring::{Ring, op};
/// use std::time::Duration;
///
/// let mut ring = Ring::new(8)?;
/// let mut chain = ring.chain(2)?;
/// let first = chain.push(op::timeout(Duration::from_millis(1)).success())?;
/// let second = chain.push(op::nop())?;
/// drop(chain);
/// assert!(ring.wait()?.is(&first));
/// assert!(ring.wait()?.is(&second));
/// # Ok::<(), anyring::Error>(())
/// ```
pub struct Chain<'a> {
    ring: &'a mut Ring,
    left: usize,
}

impl<'a> Chain<'a> {
    pub(super) fn new(ring: &'a mut Ring, length: usize) -> Chain<'a> {
        Chain { ring, left: length }
    }

    /// Adds an operation. The chain is handed over as a whole when this is dropped.
    ///
    /// # Errors
    /// Where it has as many as were said.
    pub fn push<O: Operation>(&mut self, operation: O) -> Result<Token<O>, Error> {
        if self.left == 0 {
            return Err(self
                .ring
                .error(ErrorContext::Use("more operations than the chain was to have"), libc::E2BIG));
        }
        self.left -= 1;
        Ok(Token::new(self.ring.link(operation, false)))
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        self.ring.close_chain();
    }
}
