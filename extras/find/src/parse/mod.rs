//! The command line, as GNU find reads it: options, paths, and an expression that begins with the first word that looks
//! like one.

mod numbers;
mod primaries;

pub mod mode;

use crate::expression::{Action, Tree};
use crate::locale::Charset;
use crate::output::Outputs;
use crate::pattern::Dialect;
use crate::settings::{Colour, Settings};
use crate::when::{SECOND, Stamp};
use anyring_walk::Follow;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The contents of a command line.
#[derive(Debug)]
pub struct Command {
    /// The paths of the roots.
    pub roots: Vec<Vec<u8>>,
    pub settings: Settings,
    pub tree: Tree,
    pub outputs: Outputs,
}

/// The action instead of a walk.
#[derive(Debug)]
pub enum Stop {
    Help,
    Version,
    /// The error of the command line.
    Wrong(String),
}

impl From<String> for Stop {
    fn from(message: String) -> Stop {
        Stop::Wrong(message)
    }
}

/// Parses a command line, which lacks the command's own name.
pub fn parse(words: &[OsString], now: Stamp) -> Result<Command, Stop> {
    let words = words.iter().map(|word| word.as_bytes()).collect();
    let mut parser = Parser::new(words, now);
    parser.leading_options()?;
    let mut roots = parser.paths()?;
    let tree = parser.expression()?;
    if let Some(source) = parser.roots_from.take() {
        if !roots.is_empty() {
            return Err(String::from(
                "paths are given on the command line and by -files0-from: give one of the two",
            )
            .into());
        }
        if source == b"-" && tree.any(&asks) {
            return Err(
                String::from("-files0-from - and -ok both read the standard input: name a file").into()
            );
        }
        roots = read_roots(source)?;
    } else if roots.is_empty() {
        roots.push(b".".to_vec());
    }
    let mut settings = parser.settings;
    if tree.any(&|action| matches!(action, Action::Delete)) {
        check_deletion(&tree, &mut settings)?;
    }
    Ok(Command { roots, settings, tree: tree.or_printed(), outputs: parser.outputs })
}

fn asks(action: &Action) -> bool {
    matches!(action, Action::Run(execution) if execution.asks())
}

/// Refuses deletions that users do not expect.
fn check_deletion(tree: &Tree, settings: &mut Settings) -> Result<(), String> {
    if settings.follow == Follow::Always {
        return Err(
            "-delete with -L would follow links out of the tree and delete there: leave -L away".into()
        );
    }
    let prunes = tree.any(&|action| matches!(action, Action::Prune));
    if prunes && !settings.depth {
        return Err(
            "-delete means -depth, under which -prune does nothing, so more would be deleted than it looks: \
                    say -depth too if that is meant"
                .into(),
        );
    }
    settings.depth = true;
    Ok(())
}

/// Reads paths that each end in a NUL byte.
fn read_roots(source: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let shown = crate::message::quoted(source);
    let content = if source == b"-" {
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut content).map(|_| content)
    } else {
        std::fs::read(std::ffi::OsStr::from_bytes(source))
    };
    let content = content.map_err(|error| format!("-files0-from {shown}: {}", crate::message::of(&error)))?;
    let content = content.strip_suffix(b"\0").unwrap_or(&content);
    if content.is_empty() {
        return Ok(Vec::new());
    }
    let roots: Vec<Vec<u8>> = content.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
    if roots.iter().any(Vec::is_empty) {
        return Err(format!("-files0-from {shown}: one of the paths is empty"));
    }
    Ok(roots)
}

struct Parser<'a> {
    words: Vec<&'a [u8]>,
    at: usize,
    settings: Settings,
    outputs: Outputs,
    roots_from: Option<&'a [u8]>,
    charset: Charset,
    dialect: Dialect,
    /// The time at which the walk began.
    now: Stamp,
    /// A day ago: 24 hours before, or with `-daystart` the beginning of today.
    day_ago: Stamp,
    /// The number of open groups.
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(words: Vec<&'a [u8]>, now: Stamp) -> Parser<'a> {
        Parser {
            words,
            at: 0,
            settings: Settings::default(),
            outputs: Outputs::default(),
            roots_from: None,
            charset: Charset::of_environment(),
            dialect: Dialect::DEFAULT,
            now,
            day_ago: now - 86400 * SECOND,
            depth: 0,
        }
    }

    fn peek(&self) -> Option<&'a [u8]> {
        self.words.get(self.at).copied()
    }

    fn take(&mut self) -> Option<&'a [u8]> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    /// Returns the argument after the word `of`.
    fn argument(&mut self, of: &str) -> Result<&'a [u8], String> {
        self.take().ok_or_else(|| format!("{of} needs an argument behind it"))
    }

    /// Returns the argument after the word `of`, as text.
    fn text(&mut self, of: &str) -> Result<&'a str, String> {
        let word = self.argument(of)?;
        std::str::from_utf8(word)
            .map_err(|_| format!("{of} {}: this is no text", crate::message::quoted(word)))
    }

    /// Takes `-H -L -P`, up to the first path.
    fn leading_options(&mut self) -> Result<(), Stop> {
        while let Some(word) = self.peek() {
            match word {
                b"-H" => self.settings.follow = Follow::Roots,
                b"-L" => self.settings.follow = Follow::Always,
                b"-P" => self.settings.follow = Follow::Never,
                // The level of optimisation is ignored: there is only one.
                [b'-', b'O', level @ ..] if level.iter().all(u8::is_ascii_digit) => {
                    if String::from_utf8_lossy(level).parse::<u16>().is_err() {
                        return Err(Stop::Wrong(format!(
                            "{} needs a number right behind it, as -O3",
                            shown(word)
                        )));
                    }
                }
                b"--" => {
                    self.at += 1;
                    return Ok(());
                }
                _ if self.own_option()? => continue,
                _ => return Ok(()),
            }
            self.at += 1;
        }
        Ok(())
    }

    fn paths(&mut self) -> Result<Vec<Vec<u8>>, Stop> {
        let mut paths = Vec::new();
        while let Some(word) = self.peek() {
            if self.own_option()? {
                continue;
            }
            if begins_expression(word) {
                break;
            }
            paths.push(OsString::from_vec(word.to_vec()).into_vec());
            self.at += 1;
        }
        Ok(paths)
    }

    /// Takes an extension, which begins with two dashes, if there is one here.
    fn own_option(&mut self) -> Result<bool, Stop> {
        let Some(word) = self.peek().filter(|word| word.starts_with(b"--") && word.len() > 2) else {
            return Ok(false);
        };
        let shown = String::from_utf8_lossy(word).into_owned();
        let (name, value) = match shown.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (shown.as_str(), None),
        };
        self.at += 1;
        if value.is_some() && !matches!(name, "--threads" | "--engine" | "--color" | "--colour") {
            return Err(Stop::Wrong(format!("{shown}: {name} takes no value")));
        }
        let mut value = || match &value {
            Some(value) => Ok(value.clone()),
            None => self.text(name).map(str::to_owned),
        };
        match name {
            "--help" => return Err(Stop::Help),
            "--version" => return Err(Stop::Version),
            "--sorted" => self.settings.sorted = true,
            "--no-hidden" => self.settings.no_hidden = true,
            "--gitignore" => self.settings.gitignore = true,
            "--threads" => {
                let value = value()?;
                let number = value.parse().ok().filter(|number| (1..=1024).contains(number));
                self.settings.threads =
                    number.ok_or_else(|| format!("--threads {value}: a number from 1 to 1024 is wanted"))?;
            }
            "--engine" => self.settings.engine = engine(&value()?)?,
            "--color" | "--colour" => self.settings.colour = colour(&value()?)?,
            _ => {
                return Err(Stop::Wrong(format!("{shown}: no such option (anyring find --help lists them)")));
            }
        }
        Ok(true)
    }

    /// Parses everything after the paths.
    fn expression(&mut self) -> Result<Tree, Stop> {
        self.skip_options()?;
        if self.peek().is_none() {
            return Ok(Tree::And(Vec::new()));
        }
        let tree = self.list()?;
        match self.peek() {
            None => Ok(tree),
            Some(b")") => Err(Stop::Wrong("there is a ) without a ( before it".into())),
            Some(word) => Err(unexpected(word).into()),
        }
    }

    /// Skips options, which may be anywhere.
    fn skip_options(&mut self) -> Result<(), Stop> {
        while self.own_option()? || self.silent_option()? {}
        Ok(())
    }

    /// Parses `a , b`.
    fn list(&mut self) -> Result<Tree, Stop> {
        self.separated(&[b","], Parser::or, Tree::List)
    }

    /// Parses `a -o b`.
    fn or(&mut self) -> Result<Tree, Stop> {
        self.separated(&[b"-o", b"-or"], Parser::and, Tree::Or)
    }

    fn separated(
        &mut self,
        separators: &[&[u8]],
        part: fn(&mut Self) -> Result<Tree, Stop>,
        whole: fn(Vec<Tree>) -> Tree,
    ) -> Result<Tree, Stop> {
        let mut parts = vec![part(self)?];
        while self.peek().is_some_and(|word| separators.contains(&word)) {
            self.at += 1;
            parts.push(part(self)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { whole(parts) })
    }

    /// Parses `a b` or `a -a b`.
    fn and(&mut self) -> Result<Tree, Stop> {
        let mut parts = vec![self.not()?];
        loop {
            self.skip_options()?;
            match self.peek() {
                None | Some(b")" | b"," | b"-o" | b"-or") => break,
                Some(b"-a" | b"-and") => self.at += 1,
                Some(_) => {}
            }
            parts.push(self.not()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Tree::And(parts) })
    }

    /// Parses `! a`, `( a )` or `a`.
    fn not(&mut self) -> Result<Tree, Stop> {
        self.skip_options()?;
        let before = self.at.checked_sub(1).map(|at| self.words[at]);
        match self.take() {
            None => Err(Stop::Wrong(match before {
                Some(word) => format!("{} needs a test or an action behind it", shown(word)),
                None => "a test or an action is missing".into(),
            })),
            Some(b"!" | b"-not") => {
                self.nest()?;
                let tree = self.not()?;
                self.depth -= 1;
                Ok(Tree::Not(Box::new(tree)))
            }
            Some(b"(") => self.group(),
            Some(b")") if before == Some(b"(") => Err(Stop::Wrong("there is nothing between ( and )".into())),
            Some(word @ (b")" | b"," | b"-o" | b"-or" | b"-a" | b"-and")) => {
                Err(Stop::Wrong(format!("{} needs a test or an action before it", shown(word))))
            }
            Some(word) => self.primary(word),
        }
    }

    fn group(&mut self) -> Result<Tree, Stop> {
        self.nest()?;
        let tree = self.list()?;
        self.depth -= 1;
        match self.take() {
            Some(b")") => Ok(tree),
            Some(word) => Err(unexpected(word).into()),
            None => Err(Stop::Wrong("a ( has no ) behind it (the shell wants them quoted: \\( \\))".into())),
        }
    }

    /// Counts a level of nesting; refuses an expression that would overflow the stack.
    fn nest(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > 1000 { Err("the expression is nested too deep".into()) } else { Ok(()) }
    }
}

fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

/// True if the word ends the paths.
fn begins_expression(word: &[u8]) -> bool {
    match word {
        [b'-', rest @ ..] => !rest.is_empty(),
        _ => word == b"(" || word == b"!",
    }
}

fn unexpected(word: &[u8]) -> String {
    format!(
        "{} is neither a test nor an action; paths stand before the expression",
        crate::message::quoted(word)
    ) + " (is a pattern not quoted, and the shell has put names in its place?)"
}

fn engine(word: &str) -> Result<Option<anyring_walk::Engine>, String> {
    match word {
        "auto" => Ok(None),
        "user" => Ok(Some(anyring_walk::Engine::User)),
        "kernel" => Ok(Some(anyring_walk::Engine::Kernel)),
        _ => Err(format!("--engine {word}: auto, user or kernel is wanted")),
    }
}

fn colour(word: &str) -> Result<Colour, String> {
    match word {
        "auto" => Ok(Colour::Auto),
        "always" => Ok(Colour::Always),
        "never" => Ok(Colour::Never),
        _ => Err(format!("--color {word}: auto, always or never is wanted")),
    }
}
