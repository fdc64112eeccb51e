//! Expressions: the tests of each entry, and the actions on it.

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
    /// True if all are true; evaluation stops at the first that is false.
    And(Vec<Tree>),
    /// True if one is true; evaluation stops there.
    Or(Vec<Tree>),
    /// Evaluates all; has the value of the last one.
    List(Vec<Tree>),
    Not(Box<Tree>),
    Test(Test),
    Action(Action),
}

/// A primary without effects.
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
    /// The kind of a link's target; if links are followed, of the link itself.
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
    /// True if the owner's number has no name.
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

/// A primary with effects on the walk or the output.
#[derive(Debug)]
pub enum Action {
    /// Prints the path and a byte.
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

/// The number of an output; 0 is the standard output.
pub type Sink = usize;

/// A number and how it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Less(u64),
    Equal(u64),
    More(u64),
}

impl Compare {
    /// True if the comparison with `number` holds.
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
    /// Returns the time's bit in a mask.
    pub fn mask(self) -> u32 {
        match self {
            Time::Access => libc::STATX_ATIME,
            Time::Birth => libc::STATX_BTIME,
            Time::Change => libc::STATX_CTIME,
            Time::Modification => libc::STATX_MTIME,
        }
    }

    /// Returns the time of a file; `None` if its file system does not have it.
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

/// An interval of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    Before(Stamp),
    After(Stamp),
    /// After the first stamp, up to and including the second.
    Between(Stamp, Stamp),
}

impl Window {
    /// True if the time lies in the interval.
    pub fn holds(self, time: Stamp) -> bool {
        match self {
            Window::Before(end) => time < end,
            Window::After(begin) => time > begin,
            Window::Between(begin, end) => time > begin && time <= end,
        }
    }
}

/// How permission bits are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    Exactly,
    All,
    Any,
}

impl Test {
    /// Returns the attributes that the test needs.
    pub fn mask(&self) -> u32 {
        match self {
            Test::Size { .. } => libc::STATX_SIZE,
            Test::Time { which, .. } => which.mask(),
            Test::Permissions { .. } => libc::STATX_TYPE | libc::STATX_MODE,
            Test::User(_) | Test::NoUser => libc::STATX_UID,
            Test::Group(_) | Test::NoGroup => libc::STATX_GID,
            Test::Links(_) => libc::STATX_NLINK,
            // For a mount point, the inode number in the directory's record is that of the directory underneath.
            Test::Inode(_) | Test::Same { .. } => libc::STATX_INO,
            // For a directory, its entries are read instead.
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
    /// Returns the attributes that the action needs.
    fn mask(&self) -> u32 {
        match self {
            Action::Printf { format, .. } => format.mask(),
            Action::List { .. } => libc::STATX_BASIC_STATS,
            _ => 0,
        }
    }

    /// True if the action replaces the default `-print`.
    fn speaks(&self) -> bool {
        !matches!(self, Action::Prune | Action::Quit)
    }

    /// True if the action must not run concurrently with itself, nor be overtaken by output.
    fn is_ordered(&self) -> bool {
        matches!(self, Action::Run(_) | Action::Quit)
    }
}

impl Tree {
    /// Returns the attributes that the expression may need.
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

    /// True if `asked` is true for some action.
    pub fn any(&self, asked: &dyn Fn(&Action) -> bool) -> bool {
        match self {
            Tree::And(all) | Tree::Or(all) | Tree::List(all) => all.iter().any(|tree| tree.any(asked)),
            Tree::Not(tree) => tree.any(asked),
            Tree::Test(_) => false,
            Tree::Action(action) => asked(action),
        }
    }

    /// True if the actions must run one after the other, in the order of the walk.
    pub fn is_ordered(&self) -> bool {
        self.any(&Action::is_ordered)
    }

    /// Adds `-print` to an expression in which no action replaces it.
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
