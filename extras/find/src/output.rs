//! Outputs: whole entries at a time, through a buffer per thread of the walk.

use crate::locale::Charset;
use crate::message;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The size at which a buffer is written.
const FULL: usize = 64 << 10;

/// All outputs of an expression; the first is the standard output.
#[derive(Debug)]
pub struct Outputs {
    all: Vec<Output>,
    charset: Charset,
    /// True if a write has failed.
    failed: AtomicBool,
}

#[derive(Debug)]
struct Output {
    /// The path as the expression has it.
    name: Vec<u8>,
    /// `None` if the file is closed.
    file: Mutex<Option<File>>,
    terminal: bool,
}

impl Output {
    fn of(name: &[u8], stream: impl AsFd + IsTerminal) -> Output {
        let terminal = stream.is_terminal();
        let file = stream.as_fd().try_clone_to_owned().ok().map(File::from);
        Output { name: name.to_vec(), file: Mutex::new(file), terminal }
    }
}

impl Default for Outputs {
    fn default() -> Outputs {
        let standard = Output::of(b"/dev/stdout", io::stdout());
        Outputs { all: vec![standard], charset: Charset::of_environment(), failed: AtomicBool::new(false) }
    }
}

impl Outputs {
    /// Opens (and truncates) the output of this path, unless it is open; returns its number.
    pub fn open(&mut self, path: &[u8]) -> io::Result<usize> {
        if let Some(number) = self.all.iter().position(|output| output.name == path) {
            return Ok(number);
        }
        let output = match path {
            b"/dev/stderr" => Output::of(path, io::stderr()),
            _ => Output::of(path, File::create(std::ffi::OsStr::from_bytes(path))?),
        };
        self.all.push(output);
        Ok(self.all.len() - 1)
    }

    /// True if the output is a terminal, where each entry is shown immediately.
    pub fn is_terminal(&self, number: usize) -> bool {
        self.all[number].terminal
    }

    /// True if no write has failed.
    pub fn is_whole(&self) -> bool {
        !self.failed.load(Relaxed)
    }

    fn write(&self, number: usize, bytes: &[u8]) {
        let output = &self.all[number];
        let mut file = output.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let result = match file.as_mut() {
            Some(file) => file.write_all(bytes),
            None => Err(io::Error::from_raw_os_error(libc::EBADF)),
        };
        // Reported once: later writes would fail alike.
        if let Err(error) = result
            && !self.failed.swap(true, Relaxed)
        {
            message::say(&format!(
                "cannot write to {}: {}",
                message::quoted(&output.name),
                message::of(&error)
            ));
        }
    }
}

/// A thread's output that is not written yet.
#[derive(Debug)]
pub struct Buffers<'a> {
    outputs: &'a Outputs,
    pending: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    bytes: Vec<u8>,
    /// The number of bytes that is written at the end of an entry.
    enough: usize,
}

impl<'a> Buffers<'a> {
    pub fn new(outputs: &'a Outputs) -> Buffers<'a> {
        let pending = |output: &Output| Pending {
            bytes: Vec::new(),
            // On a terminal, every entry is written immediately.
            enough: if output.terminal { 1 } else { FULL },
        };
        Buffers { outputs, pending: outputs.all.iter().map(pending).collect() }
    }

    /// Returns the pending bytes of an output.
    pub fn to(&mut self, number: usize) -> &mut Vec<u8> {
        &mut self.pending[number].bytes
    }

    /// Writes a name. For a terminal, control characters are replaced.
    pub fn name(&mut self, number: usize, name: &[u8]) {
        let Pending { bytes, enough } = &mut self.pending[number];
        let harmless = |byte: &u8| (b' '..=b'~').contains(byte);
        if *enough > 1 || name.iter().all(harmless) {
            bytes.extend_from_slice(name);
        } else {
            tame(bytes, name, self.outputs.charset);
        }
    }

    /// Ends an entry: writes buffers that are full enough.
    pub fn entry_ends(&mut self) {
        self.write(|pending| pending.enough);
    }

    /// Writes everything.
    pub fn flush(&mut self) {
        self.write(|_| 1);
    }

    fn write(&mut self, enough: impl Fn(&Pending) -> usize) {
        for (number, pending) in self.pending.iter_mut().enumerate() {
            if pending.bytes.len() >= enough(pending) {
                self.outputs.write(number, &pending.bytes);
                pending.bytes.clear();
            }
        }
    }
}

/// Writes a name with question marks instead of invisible characters.
fn tame(out: &mut Vec<u8>, name: &[u8], charset: Charset) {
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                out.push(b'?');
            } else if charset == Charset::Utf8 || character.is_ascii() {
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                out.extend(std::iter::repeat_n(b'?', character.len_utf8()));
            }
        }
        out.extend(std::iter::repeat_n(b'?', chunk.invalid().len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_only_what_is_visible() {
        let tamed = |name: &[u8], charset| {
            let mut out = Vec::new();
            tame(&mut out, name, charset);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(tamed(b"a\n\x1b[31m\xff", Charset::Utf8), "a??[31m?");
        assert_eq!(tamed("é".as_bytes(), Charset::Utf8), "é");
        assert_eq!(tamed("é".as_bytes(), Charset::Bytes), "??");
    }
}
