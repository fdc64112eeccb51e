//! Where output goes: whole entries at a time, through a buffer per thread of the walk.

use crate::locale::Charset;
use crate::message;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How much a buffer holds before it is written.
const FULL: usize = 64 << 10;

/// All outputs of an expression; the first is the standard output.
#[derive(Debug)]
pub struct Outputs {
    all: Vec<Output>,
    charset: Charset,
    /// Something could not be written.
    failed: AtomicBool,
}

#[derive(Debug)]
struct Output {
    /// As the expression has it.
    name: Vec<u8>,
    /// None: it is closed.
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
    /// The output of this path, opened (and emptied) unless it was named before.
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

    /// Whether somebody looks at it as it comes.
    pub fn is_terminal(&self, number: usize) -> bool {
        self.all[number].terminal
    }

    /// Whether all could be written.
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
        // Said once: what follows would fail alike.
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

/// The output that a thread has not written yet.
#[derive(Debug)]
pub struct Buffers<'a> {
    outputs: &'a Outputs,
    pending: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    bytes: Vec<u8>,
    /// So much is written as soon as an entry ends.
    enough: usize,
}

impl<'a> Buffers<'a> {
    pub fn new(outputs: &'a Outputs) -> Buffers<'a> {
        let pending = |output: &Output| Pending {
            bytes: Vec::new(),
            // Where somebody looks at it as it comes, anything.
            enough: if output.terminal { 1 } else { FULL },
        };
        Buffers { outputs, pending: outputs.all.iter().map(pending).collect() }
    }

    /// The pending bytes of an output.
    pub fn to(&mut self, number: usize) -> &mut Vec<u8> {
        &mut self.pending[number].bytes
    }

    /// Writes a name. A terminal gets nothing that it would act on.
    pub fn name(&mut self, number: usize, name: &[u8]) {
        let Pending { bytes, enough } = &mut self.pending[number];
        let harmless = |byte: &u8| (b' '..=b'~').contains(byte);
        if *enough > 1 || name.iter().all(harmless) {
            bytes.extend_from_slice(name);
        } else {
            tame(bytes, name, self.outputs.charset);
        }
    }

    /// An entry is done: writes what is enough.
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

/// A name with question marks in place of what is no visible character.
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
