//! Expressions: what is asked of each entry, and what is done with it.

use crate::execute::Execution;
use crate::format::Format;
use crate::glob::Glob;
use crate::parse::mode::Mode;
use crate::when::Stamp;
use anyring_walk::Kind;
use regex::bytes::Regex;

/// An expression.
#[derive(Debug)]
pub enum Tree {
    /// All of them, up to the first that is false.
    And(Vec<Tree>),
    /// The first that is true.
    Or(Vec<Tree>),
    /// All of them, whatever they say; the last one's value.
    List(Vec<Tree>),
    Not(Box<Tree>),
    Test(Test),
    Action(Action),
}

/// A primary that changes nothing.
#[derive(Debug)]
pub enum Test {
    Constant(bool),
    /// The last part of the path.
    Name(Glob),
    Path(Glob),
    /// The target of a symbolic link.
    Link(Glob),
    Regex(Regex),
    Kind(Vec<Kind>),
    /// Of what a link leads to; where links are followed, of the link.
    OtherKind(Vec<Kind>),
    Size {
        unit: u64,
        count: Compare,
    },
    Time {
        which: Time,
        window: Window,
    },
    Permissions {
        mode: Mode,
        how: Bits,
    },
    User(Compare),
    Group(Compare),
    /// Owned by a number that has no name.
    NoUser,
    NoGroup,
    Links(Compare),
    Inode(Compare),
    Same {
        device: (u32, u32),
        inode: u64,
    },
    Empty,
    /// The answer of access(2).
    Access(i32),
}

/// A primary that changes something, the walk or the output.
#[derive(Debug)]
pub enum Action {
    /// The path and a byte.
    Print {
        to: Sink,
        end: u8,
    },
    Printf {
        to: Sink,
        format: Format,
    },
    List {
        to: Sink,
    },
    Run(Execution),
    Delete,
    Prune,
    Quit,
}

/// Which output, by number; 0 is the standard output.
pub type Sink = usize;

/// A number and how it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Less(u64),
    Equal(u64),
    More(u64),
}

impl Compare {
    /// Whether a number is as asked for.
    pub fn holds(self, number: u64) -> bool {
        match self {
            Compare::Less(than) => number < than,
            Compare::Equal(to) => number == to,
            Compare::More(than) => number > than,
        }
    }
}

/// One of the times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    Access,
    Birth,
    Change,
    Modification,
}

impl Time {
    /// Its bit in a mask.
    pub fn mask(self) -> u32 {
        match self {
            Time::Access => libc::STATX_ATIME,
            Time::Birth => libc::STATX_BTIME,
            Time::Change => libc::STATX_CTIME,
            Time::Modification => libc::STATX_MTIME,
        }
    }

    /// The stamp that a file has there; nothing where its file system does not tell.
    pub fn of(self, file: &libc::statx) -> Option<Stamp> {
        let time = match self {
            Time::Access => &file.stx_atime,
            Time::Birth => &file.stx_btime,
            Time::Change => &file.stx_ctime,
            Time::Modification => &file.stx_mtime,
        };
        (file.stx_mask & self.mask() != 0).then(|| crate::when::of_file(time))
    }
}

/// A part of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    Before(Stamp),
    After(Stamp),
    /// After the first, up to the second.
    Between(Stamp, Stamp),
}

impl Window {
    /// Whether a time lies in it.
    pub fn holds(self, time: Stamp) -> bool {
        match self {
            Window::Before(end) => time < end,
            Window::After(begin) => time > begin,
            Window::Between(begin, end) => time > begin && time <= end,
        }
    }
}

/// How bits are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    Exactly,
    All,
    Any,
}

impl Test {
    /// Which attributes it needs.
    pub fn mask(&self) -> u32 {
        match self {
            Test::Size { .. } => libc::STATX_SIZE,
            Test::Time { which, .. } => which.mask(),
            Test::Permissions { .. } => libc::STATX_TYPE | libc::STATX_MODE,
            Test::User(_) | Test::NoUser => libc::STATX_UID,
            Test::Group(_) | Test::NoGroup => libc::STATX_GID,
            Test::Links(_) => libc::STATX_NLINK,
            // The number that a directory says is not that of what is mounted there.
            Test::Inode(_) | Test::Same { .. } => libc::STATX_INO,
            // Directories are looked into.
            Test::Empty => libc::STATX_SIZE,
            Test::Constant(_)
            | Test::Name(_)
            | Test::Path(_)
            | Test::Link(_)
            | Test::Regex(_)
            | Test::Kind(_)
            | Test::OtherKind(_)
            | Test::Access(_) => 0,
        }
    }
}

impl Action {
    /// Which attributes it needs.
    fn mask(&self) -> u32 {
        match self {
            Action::Printf { format, .. } => format.mask(),
            Action::List { .. } => libc::STATX_BASIC_STATS,
            _ => 0,
        }
    }

    /// Whether an expression with it says itself what becomes of an entry, so that none is printed unasked.
    fn speaks(&self) -> bool {
        !matches!(self, Action::Prune | Action::Quit)
    }

    /// Whether it must not run beside itself, or be overtaken by output.
    fn is_ordered(&self) -> bool {
        matches!(self, Action::Run(_) | Action::Quit)
    }
}

impl Tree {
    /// Which attributes it may need.
    pub fn mask(&self) -> u32 {
        match self {
            Tree::And(all) | Tree::Or(all) | Tree::List(all) => {
                all.iter().fold(0, |mask, tree| mask | tree.mask())
            }
            Tree::Not(tree) => tree.mask(),
            Tree::Test(test) => test.mask(),
            Tree::Action(action) => action.mask(),
        }
    }

    /// Whether some action in it is as asked for.
    pub fn any(&self, asked: &dyn Fn(&Action) -> bool) -> bool {
        match self {
            Tree::And(all) | Tree::Or(all) | Tree::List(all) => all.iter().any(|tree| tree.any(asked)),
            Tree::Not(tree) => tree.any(asked),
            Tree::Test(_) => false,
            Tree::Action(action) => asked(action),
        }
    }

    /// Whether its actions come one after the other, in the order of the walk.
    pub fn is_ordered(&self) -> bool {
        self.any(&Action::is_ordered)
    }

    /// With a `-print` where nothing in it says what becomes of an entry.
    pub fn or_printed(self) -> Tree {
        if self.any(&Action::speaks) {
            return self;
        }
        let print = Tree::Action(Action::Print { to: 0, end: b'\n' });
        match self {
            Tree::And(all) if all.is_empty() => print,
            Tree::And(mut all) => {
                all.push(print);
                Tree::And(all)
            }
            other => Tree::And(vec![other, print]),
        }
    }
}
