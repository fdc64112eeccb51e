//! Tests, actions and options of GNU find, by name.

use super::{Parser, Stop, mode, numbers, shown};
use crate::execute::Execution;
use crate::expression::{Action, Bits, Compare, Sink, Test, Time, Tree, Window};
use crate::format::Format;
use crate::glob::Glob;
use crate::message;
use crate::pattern::{self, Dialect};
use crate::settings::Settings;
use crate::when::{self, SECOND, Stamp};
use crate::{files, names};
use anyring_walk::{Follow, Kind};

/// The primaries of GNU find that are missing here, and why.
const MISSING: [(&str, &str); 4] = [
    ("-fstype", "the kinds of file systems are not looked at; -xdev stays on one"),
    ("-context", "SELinux contexts are not looked at"),
    ("-used", "days between access and change are not compared; see -anewer, -newerXY"),
    ("-D", "there is nothing to debug"),
];

impl<'a> Parser<'a> {
    /// Parses the primary that a word names, with its arguments.
    pub(super) fn primary(&mut self, word: &'a [u8]) -> Result<Tree, Stop> {
        if !word.starts_with(b"-") || word.len() < 2 {
            return Err(super::unexpected(word).into());
        }
        let name = shown(word);
        if matches!(name.as_str(), "-help" | "-version") {
            return Err(if name == "-help" { Stop::Help } else { Stop::Version });
        }
        if self.option(&name)? {
            return Ok(Tree::Test(Test::Constant(true)));
        }
        if let Some(action) = self.action(&name)? {
            return Ok(Tree::Action(action));
        }
        if let Some(test) = self.test(&name)? {
            return Ok(Tree::Test(test));
        }
        let missing = MISSING.iter().find(|(own, _)| *own == name);
        Err(Stop::Wrong(match missing {
            Some((_, why)) => format!("{name}: there is no such test here: {why}"),
            None => {
                format!("{}: no such test or action (anyring find --help lists them)", message::quoted(word))
            }
        }))
    }

    /// Sets an option, which holds for the whole walk or for the words after it; as a primary, it is true.
    fn option(&mut self, name: &str) -> Result<bool, String> {
        let settings: &mut Settings = &mut self.settings;
        match name {
            "-depth" | "-d" => settings.depth = true,
            "-xdev" | "-mount" => settings.same_device = true,
            "-follow" => settings.follow = Follow::Always,
            "-ignore_readdir_race" => settings.ignore_races = true,
            "-noignore_readdir_race" => settings.ignore_races = false,
            // Options of GNU find for an old optimisation, and for warnings that do not exist here.
            "-noleaf" | "-warn" | "-nowarn" => {}
            "-maxdepth" => self.settings.max_depth = Some(self.depth_of(name)?),
            "-mindepth" => self.settings.min_depth = self.depth_of(name)?,
            "-regextype" => self.dialect = Dialect::named(self.text(name)?)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes an option that is not part of the expression, if there is one: `! -daystart -mtime 1` is `-daystart ! -mtime 1`.
    pub(super) fn silent_option(&mut self) -> Result<bool, String> {
        match self.peek() {
            Some(b"-daystart") => {
                self.at += 1;
                let midnight = when::midnight(when::split(self.now).0);
                self.day_ago = Stamp::from(midnight) * SECOND;
            }
            Some(b"-files0-from") => {
                self.at += 1;
                self.roots_from = Some(self.argument("-files0-from")?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn depth_of(&mut self, name: &str) -> Result<u32, String> {
        let text = self.text(name)?;
        numbers::int(text).ok_or_else(|| format!("{name} {text}: a number of levels is wanted"))
    }

    fn action(&mut self, name: &str) -> Result<Option<Action>, String> {
        let file = name.starts_with("-f");
        Ok(Some(match name {
            "-print" | "-fprint" => Action::Print { to: self.sink(name, file)?, end: b'\n' },
            "-print0" | "-fprint0" => Action::Print { to: self.sink(name, file)?, end: 0 },
            "-ls" | "-fls" => Action::List { to: self.sink(name, file)? },
            "-printf" | "-fprintf" => {
                let to = self.sink(name, file)?;
                let text = self.argument(name)?;
                let format = Format::parse(text);
                Action::Printf {
                    to,
                    format: format.map_err(|error| format!("{name} {}: {error}", message::quoted(text)))?,
                }
            }
            "-delete" => Action::Delete,
            "-prune" => Action::Prune,
            "-quit" => Action::Quit,
            "-exec" | "-execdir" | "-ok" | "-okdir" => {
                let (execution, length) = Execution::parse(name, &self.words[self.at..])?;
                self.at += length;
                Action::Run(execution)
            }
            _ => return Ok(None),
        }))
    }

    /// Returns the output of an action; actions that begin with `-f` name a file.
    fn sink(&mut self, name: &str, file: bool) -> Result<Sink, String> {
        if !file {
            return Ok(0);
        }
        let path = self.argument(name)?;
        self.outputs
            .open(path)
            .map_err(|error| format!("{name} {}: {}", message::quoted(path), message::of(&error)))
    }

    fn test(&mut self, name: &str) -> Result<Option<Test>, String> {
        Ok(Some(match name {
            "-true" => Test::Constant(true),
            "-false" => Test::Constant(false),
            "-name" | "-iname" => self.name(name)?,
            "-path" | "-wholename" => Test::Path(self.glob(name, false)?),
            "-ipath" | "-iwholename" => Test::Path(self.glob(name, true)?),
            "-lname" | "-ilname" => Test::Link(self.glob(name, name == "-ilname")?),
            "-regex" | "-iregex" => {
                let text = self.argument(name)?;
                let regex = pattern::compile(text, self.dialect, name == "-iregex", self.charset);
                Test::Regex(regex.map_err(|error| format!("{name} {}: {error}", message::quoted(text)))?)
            }
            "-type" => Test::Kind(self.kinds(name)?),
            "-xtype" => Test::OtherKind(self.kinds(name)?),
            "-size" => {
                let text = self.text(name)?;
                let (unit, count) = numbers::size(text).ok_or_else(|| {
                    format!(
                        "{name} {text}: wanted is a number with one of c, w, b, k, M, G behind it, as +10M"
                    )
                })?;
                Test::Size { unit, count }
            }
            "-perm" => self.permissions(name)?,
            "-user" => Test::User(self.owner(name, names::user)?),
            "-group" => Test::Group(self.owner(name, names::group)?),
            "-uid" => Test::User(self.number(name)?),
            "-gid" => Test::Group(self.number(name)?),
            "-nouser" => Test::NoUser,
            "-nogroup" => Test::NoGroup,
            "-links" => Test::Links(self.number(name)?),
            "-inum" => Test::Inode(self.number(name)?),
            "-samefile" => {
                let file = self.reference(name)?;
                Test::Same { device: (file.stx_dev_major, file.stx_dev_minor), inode: file.stx_ino }
            }
            "-empty" => Test::Empty,
            "-readable" => Test::Access(libc::R_OK),
            "-writable" => Test::Access(libc::W_OK),
            "-executable" => Test::Access(libc::X_OK),
            _ => return self.time(name),
        }))
    }

    fn glob(&mut self, name: &str, fold: bool) -> Result<Glob, String> {
        Ok(Glob::new(self.argument(name)?, fold, self.charset))
    }

    fn name(&mut self, name: &str) -> Result<Test, String> {
        let pattern = self.argument(name)?;
        if pattern.contains(&b'/') && pattern != b"/" {
            let shown = message::quoted(pattern);
            message::say(&format!(
                "{name} {shown} can match nothing: names have no slash (-path compares whole paths)"
            ));
        }
        Ok(Test::Name(Glob::new(pattern, name == "-iname", self.charset)))
    }

    fn kinds(&mut self, name: &str) -> Result<Vec<Kind>, String> {
        let text = self.text(name)?;
        let kind = |letter: &str| match letter {
            "f" => Some(Kind::File),
            "d" => Some(Kind::Directory),
            "l" => Some(Kind::Link),
            "b" => Some(Kind::Block),
            "c" => Some(Kind::Character),
            "p" => Some(Kind::Fifo),
            "s" => Some(Kind::Socket),
            _ => None,
        };
        let kinds: Option<Vec<Kind>> = text.split(',').map(kind).collect();
        let once = |kinds: &Vec<Kind>| !kinds.iter().enumerate().any(|(at, kind)| kinds[..at].contains(kind));
        kinds.filter(once).ok_or_else(|| {
            format!(
                "{name} {text}: wanted are letters out of f d l p s b c, each once, with commas between them, as f,l"
            )
        })
    }

    fn number(&mut self, name: &str) -> Result<Compare, String> {
        let text = self.text(name)?;
        numbers::compare(text).ok_or_else(|| {
            format!("{name} {text}: a number is wanted, with + before it for more, - for less")
        })
    }

    /// Parses a user or a group: a name, else a number.
    fn owner(&mut self, name: &str, find: fn(&[u8]) -> Option<u32>) -> Result<Compare, String> {
        let word = self.argument(name)?;
        let number = || numbers::int(std::str::from_utf8(word).ok()?);
        let found = find(word).or_else(number).map(u64::from);
        let what = &name[1..];
        found
            .map(Compare::Equal)
            .ok_or_else(|| format!("{name} {}: there is no such {what}", message::quoted(word)))
    }

    fn permissions(&mut self, name: &str) -> Result<Test, String> {
        let text = self.text(name)?;
        let (how, rest) = match text.chars().next() {
            Some('-') => (Bits::All, &text[1..]),
            Some('/') => (Bits::Any, &text[1..]),
            _ => (Bits::Exactly, text),
        };
        // `+644` once meant what is `/644` now; GNU find accepts neither meaning.
        let old = matches!(text.as_bytes(), [b'+', b'0'..=b'7', ..]);
        let mode = mode::parse(rest).filter(|_| !old).ok_or_else(|| {
            format!("{name} {text}: no permissions; they are as 644, u=rw,g=r, with - before for all of, / for any of")
        })?;
        Ok(Test::Permissions { mode, how })
    }

    /// Returns the attributes of a file with which others are compared.
    fn reference(&mut self, name: &str) -> Result<libc::statx, String> {
        let path = self.argument(name)?;
        let follow = self.settings.follow != Follow::Never;
        files::attributes_of_path(path, follow)
            .map_err(|error| format!("{name} {}: {}", message::quoted(path), message::of(&error)))
    }

    /// Parses tests of times.
    fn time(&mut self, name: &str) -> Result<Option<Test>, String> {
        let (which, minutes) = match name {
            "-amin" | "-atime" => (Time::Access, name == "-amin"),
            "-cmin" | "-ctime" => (Time::Change, name == "-cmin"),
            "-mmin" | "-mtime" => (Time::Modification, name == "-mmin"),
            _ => return self.newer(name),
        };
        let text = self.text(name)?;
        let day = 86400 * SECOND;
        let window = if minutes {
            numbers::age(text, self.day_ago + day, 60, 0)
        } else {
            // In GNU find, less than a day means at most a day and nearly a second.
            numbers::age(text, self.day_ago, 86400, day - SECOND)
        };
        let what = if minutes { "minutes" } else { "days" };
        let window = window.ok_or_else(|| {
            format!("{name} {text}: a number of {what} is wanted, with - before it for newer, + for older")
        })?;
        Ok(Some(Test::Time { which, window }))
    }

    /// Parses tests that compare a time with another file's, or with a date.
    fn newer(&mut self, name: &str) -> Result<Option<Test>, String> {
        let (own, other) = match name {
            "-newer" => ('m', 'm'),
            "-anewer" => ('a', 'm'),
            "-cnewer" => ('c', 'm'),
            _ => {
                let mut letters = name.strip_prefix("-newer").unwrap_or_default().chars();
                match (letters.next(), letters.next(), letters.next()) {
                    (Some(own), Some(other), None) => (own, other),
                    _ => return Ok(None),
                }
            }
        };
        let time = |letter| match letter {
            'a' => Some(Time::Access),
            'B' => Some(Time::Birth),
            'c' => Some(Time::Change),
            'm' => Some(Time::Modification),
            _ => None,
        };
        let Some(which) = time(own) else { return Ok(None) };
        let stamp = if other == 't' {
            let text = self.text(name)?;
            when::parse(text, self.now).ok_or_else(|| {
                format!("{name} {text}: no time; it is as 2026-11-22, '2026-11-22 10:30', @SECONDS, or '3 days ago'")
            })?
        } else {
            let Some(other) = time(other) else { return Ok(None) };
            let file = self.reference(name)?;
            other
                .of(&file)
                .ok_or_else(|| format!("{name}: the file system does not tell when the file was made"))?
        };
        Ok(Some(Test::Time { which, window: Window::After(stamp) }))
    }
}
