//! `-exec` and its variants: commands that run on the entries found.

use crate::look::Look;
use crate::{files, message};
use anyring_walk::Parent;
use std::ffi::{CString, OsStr};
use std::io::{self, BufRead, Write};
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// The total length of the paths of one command: long enough to run few commands, and below `ARG_MAX` with any environment.
const PATHS_LENGTH: usize = 128 << 10;

/// A command, when it runs, and in which directory.
#[derive(Debug)]
pub struct Execution {
    /// The command's words, each split at `{}`.
    words: Vec<Vec<Vec<u8>>>,
    when: When,
    /// True to run in the directory of the entry.
    inside: bool,
    ask: bool,
}

#[derive(Debug)]
enum When {
    /// Once for each entry (`;`).
    Each,
    /// Once for many entries (`{} +`).
    Many(Mutex<Gathered>),
}

#[derive(Debug, Default)]
struct Gathered {
    paths: Vec<Vec<u8>>,
    length: usize,
    /// The directory of the entries, with its device and inode, for `-execdir`.
    directory: Option<(OwnedFd, (u64, u64))>,
}

impl Execution {
    /// Parses the words after `name`; returns the command and its number of words.
    pub fn parse(name: &str, words: &[&[u8]]) -> Result<(Execution, usize), String> {
        let (ask, inside) = (name.starts_with("-ok"), name.ends_with("dir"));
        let ends = |at: usize| match words[at] {
            b";" => true,
            b"+" => !ask && at > 0 && words[at - 1] == b"{}",
            _ => false,
        };
        let Some(end) = (0..words.len()).find(|&at| ends(at)) else {
            return Err(format!("{name} needs its command to end with \\; or with {{}} +"));
        };
        let many = words[end] == b"+";
        let command = &words[..end - usize::from(many)];
        if command.is_empty() {
            return Err(format!("{name} needs a command behind it"));
        }
        if many && command.iter().any(|word| pieces(word).len() > 1) {
            return Err(format!("{name}: with {{}} + at its end, a command has no other {{}}"));
        }
        if inside {
            check_path(name)?;
        }
        let when = if many { When::Many(Mutex::default()) } else { When::Each };
        let words = command.iter().map(|word| pieces(word)).collect();
        Ok((Execution { words, when, inside, ask }, end + 1))
    }

    /// True if the command asks at the terminal.
    pub fn asks(&self) -> bool {
        self.ask
    }

    /// Runs the command for an entry, or keeps the entry for later; returns the action's value. `flush` writes earlier output.
    pub fn run(&self, look: &Look<'_>, flush: &mut dyn FnMut(), failed: &mut dyn FnMut(String)) -> bool {
        match &self.when {
            When::Each => self.run_each(look, flush, failed),
            When::Many(gathered) => {
                let mut gathered = gathered.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                self.gather(&mut gathered, look, flush, failed);
                true
            }
        }
    }

    /// Runs the command on the entries that were kept.
    pub fn finish(&self, failed: &mut dyn FnMut(String)) {
        if let When::Many(gathered) = &self.when {
            let mut gathered = gathered.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.run_many(mem::take(&mut *gathered), failed);
        }
    }

    fn run_each(&self, look: &Look<'_>, flush: &mut dyn FnMut(), failed: &mut dyn FnMut(String)) -> bool {
        let path = self.path(look);
        let words: Vec<Vec<u8>> = self.words.iter().map(|word| word.join(path.as_slice())).collect();
        flush();
        if self.ask && !confirmed(&self.words, look.path()) {
            return false;
        }
        let opened;
        let directory = match self.inside.then(|| directory_of(look)) {
            None => None,
            Some(Ok((directory, _))) => {
                opened = directory;
                Some(&opened)
            }
            Some(Err(error)) => {
                failed(problem(look.path(), &error));
                return false;
            }
        };
        match spawn(&words, directory, self.ask) {
            Ok(success) => success,
            Err(error) => {
                // As in GNU find, a command that cannot be run is false, and not a failure of the walk.
                message::say(&problem(&words[0], &error));
                false
            }
        }
    }

    fn gather(
        &self,
        gathered: &mut Gathered,
        look: &Look<'_>,
        flush: &mut dyn FnMut(),
        failed: &mut dyn FnMut(String),
    ) {
        let path = self.path(look);
        let length = path.len() + 1 + size_of::<usize>();
        let mut directory = None;
        if self.inside {
            match directory_of(look) {
                Ok(found) => directory = Some(found),
                Err(error) => return failed(problem(look.path(), &error)),
            }
        }
        let identity =
            |directory: &Option<(OwnedFd, (u64, u64))>| directory.as_ref().map(|(_, identity)| *identity);
        let elsewhere = !gathered.paths.is_empty() && identity(&directory) != identity(&gathered.directory);
        if elsewhere || gathered.length + length > PATHS_LENGTH {
            flush();
            self.run_many(mem::take(gathered), failed);
        }
        if gathered.directory.is_none() {
            gathered.directory = directory;
        }
        gathered.length += length;
        gathered.paths.push(path);
    }

    fn run_many(&self, gathered: Gathered, failed: &mut dyn FnMut(String)) {
        if gathered.paths.is_empty() {
            return;
        }
        let mut words: Vec<Vec<u8>> = self.words.iter().map(|word| word.concat()).collect();
        words.extend(gathered.paths);
        match spawn(&words, gathered.directory.as_ref().map(|(directory, _)| directory), false) {
            Ok(true) => {}
            Ok(false) => failed(String::new()),
            Err(error) => failed(problem(&words[0], &error)),
        }
    }

    /// Returns the path that replaces `{}`.
    fn path(&self, look: &Look<'_>) -> Vec<u8> {
        match look.base() {
            _ if !self.inside => look.path().to_vec(),
            b"/" => b"/".to_vec(),
            base => [b"./", base].concat(),
        }
    }
}

/// Splits a word at `{}`.
fn pieces(word: &[u8]) -> Vec<Vec<u8>> {
    let (mut pieces, mut rest) = (Vec::new(), word);
    while let Some(at) = rest.windows(2).position(|two| two == b"{}") {
        pieces.push(rest[..at].to_vec());
        rest = &rest[at + 2..];
    }
    pieces.push(rest.to_vec());
    pieces
}

/// Refuses relative directories in PATH: anybody could have put the command into the directory of an entry.
fn check_path(name: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let relative = |part: &[u8]| !part.starts_with(b"/");
    if !path.is_empty() && path.as_bytes().split(|&byte| byte == b':').any(relative) {
        return Err(format!(
            "{name} runs commands in directories of others, and PATH leads there: leave relative and empty parts out of PATH"
        ));
    }
    Ok(())
}

/// Opens the directory of an entry; returns it with its device and inode.
fn directory_of(look: &Look<'_>) -> io::Result<(OwnedFd, (u64, u64))> {
    let parent = look.parent();
    let name = match parent.fd {
        libc::AT_FDCWD => CString::new(look.directory_of_root())?,
        _ => c".".to_owned(),
    };
    let directory = files::open_directory(Parent { fd: parent.fd, name: &name }, true, libc::O_PATH)?;
    let file = std::fs::File::from(directory);
    let attributes = file.metadata()?;
    use std::os::unix::fs::MetadataExt;
    let identity = (attributes.dev(), attributes.ino());
    Ok((file.into(), identity))
}

fn problem(what: &[u8], error: &io::Error) -> String {
    format!("{}: {}", message::quoted(what), message::of(error))
}

/// Asks whether to run a command; the question shows the command's first word and the path.
fn confirmed(words: &[Vec<Vec<u8>>], path: &[u8]) -> bool {
    let mut question = b"< ".to_vec();
    question.extend_from_slice(&words[0].join(&b"{}"[..]));
    question.extend_from_slice(b" ... ");
    question.extend_from_slice(path);
    question.extend_from_slice(b" > ? ");
    let _ = io::stderr().write_all(&question);
    let mut answer = Vec::new();
    let _ = io::stdin().lock().read_until(b'\n', &mut answer);
    matches!(answer.first(), Some(b'y' | b'Y'))
}

/// Runs a command and waits for its end; returns true if it succeeded.
fn spawn(words: &[Vec<u8>], directory: Option<&OwnedFd>, mute: bool) -> io::Result<bool> {
    let mut command = Command::new(OsStr::from_bytes(&words[0]));
    command.args(words[1..].iter().map(|word| OsStr::from_bytes(word)));
    if mute {
        command.stdin(Stdio::null());
    }
    if let Some(directory) = directory {
        let fd = directory.as_raw_fd();
        // SAFETY: one system call, on a descriptor that stays open until the program is executed.
        unsafe {
            command.pre_exec(
                move || if libc::fchdir(fd) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) },
            );
        }
    }
    Ok(command.status()?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_commands_end() {
        let parse = |name, words: &[&str]| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            Execution::parse(name, &words).map(|(_, length)| length)
        };
        assert_eq!(parse("-exec", &["echo", "{}", ";", "x"]), Ok(3));
        assert_eq!(parse("-exec", &["echo", "{}", "+", "x"]), Ok(3));
        assert_eq!(parse("-exec", &["echo", "+", ";"]), Ok(3));
        for words in
            [&["echo"][..], &[";"], &["echo", "{}", "x", "+"], &["echo", "a{}", "{}", "+"], &["{}", "+"]]
        {
            assert!(parse("-exec", words).is_err(), "{words:?}");
        }
        assert!(parse("-ok", &["echo", "{}", "+"]).is_err());
    }

    #[test]
    fn words_in_pieces() {
        let word = |text: &str| pieces(text.as_bytes()).join(&b"X"[..]);
        assert_eq!(word("a{}b{}"), b"aXbX");
        assert_eq!(word("{{}}"), b"{X}");
        assert_eq!(word(""), b"");
    }
}
