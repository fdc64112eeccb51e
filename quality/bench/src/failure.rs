//! Errors for people: what failed, why it probably did, what to do about it.

use std::fmt;

/// A failure that ends a benchmark or the whole program.
#[derive(Debug)]
pub struct Failure {
    what: String,
    cause: Option<String>,
    advice: Option<String>,
}

/// The result of this crate's functions that can fail.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Creates a failure without a cause.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), cause: None, advice: None }
    }

    /// Creates the failure of `what` with the calling thread's `errno`.
    pub fn errno(what: impl Into<String>) -> Self {
        Self::new(what).cause(std::io::Error::last_os_error().to_string())
    }

    /// Creates the failure of `what` with a negative errno, as the ring calls return it.
    pub fn negative_errno(what: impl Into<String>, result: i64) -> Self {
        let errno = i32::try_from(-result).unwrap_or(i32::MAX);
        Self::new(what).cause(std::io::Error::from_raw_os_error(errno).to_string())
    }

    /// Adds the likely cause.
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Adds what the reader can do.
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(cause) = &self.cause {
            write!(f, ": {cause}")?;
        }
        if let Some(advice) = &self.advice {
            write!(f, "\n  {advice}")?;
        }
        Ok(())
    }
}

/// Turns a foreign error into a [`Failure`] that says what was being done.
pub trait Doing<T> {
    /// Names what was being done when the error occurred.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure::new(what()).cause(error.to_string()))
    }
}
