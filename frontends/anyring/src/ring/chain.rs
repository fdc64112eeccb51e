//! Chains of linked operations.

use super::Ring;
use crate::Error;
use crate::error::ErrorContext;
use crate::operation::{Operation, Token};

/// Linked operations, each of which begins after the one before has succeeded; made by [`Ring::chain`].
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

    /// Adds an operation. Dropping the chain pushes it as a whole.
    ///
    /// # Errors
    /// `E2BIG` if the chain has as many operations as [`Ring::chain`] was told.
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
