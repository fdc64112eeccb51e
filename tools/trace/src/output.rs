//! Common parts of all outputs.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use crate::model::{Listener, Model};

/// A printer of the events that the model passes on.
pub trait Output: Listener {
    /// Prints the end of the output, after the last event.
    fn end(&mut self, model: &Model);
    /// Flushes the output.
    ///
    /// # Errors The first error of writing.
    fn flush(&mut self) -> io::Result<()>;
}

/// The destination of an output's lines.
pub enum Destination {
    /// One writer for all processes.
    One(Box<dyn Write>),
    /// A file for each process: this path with a dot and the process's number.
    EachProcess(PathBuf),
}

/// The writers of an output. After the first error, nothing is written.
pub struct Sink {
    to: Writers,
    failed: Option<io::Error>,
}

enum Writers {
    One(Box<dyn Write>),
    EachProcess(Files),
}

/// A file for each process.
struct Files {
    path: PathBuf,
    open: HashMap<u32, BufWriter<File>>,
    /// The processes whose files were begun.
    begun: HashSet<u32>,
}

/// The maximum number of files that are open at the same time.
const MOST_OPEN: usize = 256;

impl Writers {
    /// Returns the writer for the lines of a process.
    fn of(&mut self, process: u32) -> io::Result<&mut dyn Write> {
        match self {
            Writers::One(to) => Ok(to),
            Writers::EachProcess(files) => Ok(files.of(process)?),
        }
    }
}

impl Files {
    fn of(&mut self, process: u32) -> io::Result<&mut BufWriter<File>> {
        if self.open.len() >= MOST_OPEN && !self.open.contains_key(&process) {
            self.flush()?;
            self.open.clear();
        }
        match self.open.entry(process) {
            Entry::Occupied(open) => Ok(open.into_mut()),
            Entry::Vacant(place) => {
                let mut name = self.path.clone().into_os_string();
                name.push(format!(".{process}"));
                let mut options = File::options();
                options.write(true).create(true);
                // A file of an earlier trace is emptied.
                let options =
                    if self.begun.insert(process) { options.truncate(true) } else { options.append(true) };
                Ok(place.insert(BufWriter::new(options.open(name)?)))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.open.values_mut().try_for_each(BufWriter::flush)
    }
}

impl Sink {
    /// Returns a sink that prints to one writer.
    pub fn new(to: impl Write + 'static) -> Sink {
        Sink::to(Destination::One(Box::new(to)))
    }

    /// Returns a sink that prints to this destination.
    pub fn to(destination: Destination) -> Sink {
        let to = match destination {
            Destination::One(to) => Writers::One(to),
            Destination::EachProcess(path) => {
                Writers::EachProcess(Files { path, open: HashMap::new(), begun: HashSet::new() })
            }
        };
        Sink { to, failed: None }
    }

    /// Prints lines that concern all processes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.put_of(0, bytes);
    }

    /// Prints lines that concern a process.
    pub fn put_of(&mut self, process: u32, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.to.of(process).and_then(|to| to.write_all(bytes)).err();
        }
    }

    /// Flushes the output.
    ///
    /// # Errors The first error of writing; every call from then on returns it.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.failed.is_none() {
            let flushed = match &mut self.to {
                Writers::One(to) => to.flush(),
                Writers::EachProcess(files) => files.flush(),
            };
            self.failed = flushed.err();
        }
        self.failed.as_ref().map_or(Ok(()), |error| Err(copy(error)))
    }
}

fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A caller of `flush` that only checks for an error must not hide the error from a later caller, which reports it.
    #[test]
    fn an_error_is_told_until_the_end() {
        let mut sink = Sink::to(Destination::EachProcess("/nonexistent/trace".into()));
        sink.put_of(1, b"line\n");
        for _ in 0..2 {
            assert_eq!(sink.flush().unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }
}
