//! Parts that all outputs have in common.

use std::io::{self, Write};

use crate::model::{Listener, Model};

/// Something that prints what the model hands on.
pub trait Output: Listener {
    /// Nothing more comes: prints what is printed at the end.
    fn end(&mut self, model: &Model);
    /// Gives what was printed on, or tells why something could not be.
    ///
    /// # Errors
    /// The first of those that writing came to.
    fn flush(&mut self) -> io::Result<()>;
}

/// Where an output prints. After the first error, nowhere.
pub struct Sink {
    to: Box<dyn Write>,
    failed: Option<io::Error>,
}

impl Sink {
    /// One that prints here.
    pub fn new(to: impl Write + 'static) -> Sink {
        Sink { to: Box::new(to), failed: None }
    }

    /// Prints.
    pub fn put(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.to.write_all(bytes).err();
        }
    }

    /// Gives on what was printed.
    ///
    /// # Errors
    /// The first of those that writing came to, once.
    pub fn flush(&mut self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.to.flush(),
        }
    }
}
