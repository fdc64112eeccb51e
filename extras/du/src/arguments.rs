//! The command line.

use clap::{ArgAction, Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Say how much space directories and files take, as GNU du
#[derive(Debug, Args)]
#[command(
    version,
    disable_help_flag = true,
    disable_version_flag = true,
    infer_long_args = true,
    args_override_self = true,
    after_long_help = "\
Examples:
  anyring du -sh /var/log                how much one directory takes
  anyring du -h -d1 --sorted             this one and each in it, in order of names
  anyring du -xh -t 1G /                 what takes at least 1 GiB, on this file system only
  anyring du -sc --si *.iso              several files and their total, in powers of 1000
  anyring du -ah --exclude='*.o' src     every file but object files
  anyring du --inodes -s ~               how many files there are, rather than how large they are
  anyring du -s0 * | sort -znr | tr '\\0' '\\n'     names with newlines are safe
  find . -name target -print0 | anyring du -shc --files0-from=-

SIZE is a number with or without a unit: K, M, G, T, P, E are powers of 1024 (KiB and so on mean the
same), kB, MB and so on of 1000. A unit alone is one of it, and is printed behind the numbers.

Directories are read by several threads: lines of siblings come in any order, a directory's behind
those of what is in it. --sorted has them in order of names. A file with several names counts once,
for the directory in which it is met first.

Environment:
  DU_BLOCK_SIZE, BLOCK_SIZE, BLOCKSIZE   the SIZE in which sizes are printed [default: 1024]
  POSIXLY_CORRECT                        512 is the default
  TIME_STYLE                             as --time-style
  ANYRING_ENGINE                         auto, kernel or user

Exit status: 0 where everything could be read, 1 where something could not (what, is said on the
standard error; everything else is counted all the same)."
)]
pub struct Arguments {
    /// What is measured [default: .]
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,

    /// A line for every file, not only for directories
    #[arg(short, long)]
    pub all: bool,

    /// What is said to be in files, rather than what they take: holes count, unused ends of blocks do not
    #[arg(long)]
    pub apparent_size: bool,

    /// In blocks of this SIZE
    #[arg(short = 'B', long, value_name = "SIZE")]
    pub block_size: Vec<OsString>,

    /// As --apparent-size --block-size=1
    #[arg(short, long)]
    pub bytes: bool,

    /// A total at the end
    #[arg(short = 'c', long)]
    pub total: bool,

    /// What symbolic links among the PATHs lead to is measured (-D, -H)
    #[arg(short = 'D', long, short_alias = 'H')]
    pub dereference_args: bool,

    /// Lines only for what is at most N levels below a PATH
    #[arg(short = 'd', long, value_name = "N")]
    pub max_depth: Option<String>,

    /// The PATHs are in this file, each with a NUL behind it; - is the standard input
    #[arg(long, value_name = "FILE")]
    pub files0_from: Option<PathBuf>,

    /// Sizes like 1.4K, 230M, 5.0G
    #[arg(short, long)]
    pub human_readable: bool,

    /// How many files there are, rather than how large they are
    #[arg(long)]
    pub inodes: bool,

    /// As --block-size=1K
    #[arg(short = 'k')]
    pub kilobytes: bool,

    /// What all symbolic links lead to is measured
    #[arg(short = 'L', long)]
    pub dereference: bool,

    /// A file counts as often as it has names
    #[arg(short = 'l', long)]
    pub count_links: bool,

    /// As --block-size=1M
    #[arg(short = 'm')]
    pub megabytes: bool,

    /// Symbolic links themselves are measured (the default)
    #[arg(short = 'P', long)]
    pub no_dereference: bool,

    /// A directory's size is without that of the directories in it
    #[arg(short = 'S', long)]
    pub separate_dirs: bool,

    /// As -h, in powers of 1000
    #[arg(long)]
    pub si: bool,

    /// One line for each PATH
    #[arg(short, long)]
    pub summarize: bool,

    /// Lines only for what has at least this SIZE, or at most if it is negative
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true)]
    pub threshold: Option<String>,

    /// When anything in it was last modified; with =WORD, its access or its status
    #[arg(long, value_name = "WORD", num_args = 0..=1, require_equals = true, default_missing_value = "mtime")]
    pub time: Option<Time>,

    /// How times are printed: full-iso, long-iso, iso, or + and a format of date(1)
    #[arg(long, value_name = "STYLE")]
    pub time_style: Option<String>,

    /// What the patterns in this file fit is not counted; - is the standard input
    #[arg(short = 'X', long, value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,

    /// What this pattern of the shell fits is not counted: the path, or its end behind any slash
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<OsString>,

    /// Nothing on other file systems
    #[arg(short = 'x', long)]
    pub one_file_system: bool,

    /// Lines end with NUL, for names with newlines
    #[arg(short = '0', long)]
    pub null: bool,

    /// Siblings in the order of their names, read by one thread
    #[arg(long)]
    pub sorted: bool,

    /// How many threads read directories [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Whose io_uring reads them
    #[arg(long, value_enum)]
    pub engine: Option<Engine>,

    /// Print help
    #[arg(long, action = ArgAction::HelpLong)]
    pub help: Option<bool>,

    /// Print the version
    #[arg(long, action = ArgAction::Version)]
    pub version: Option<bool>,
}

/// Which time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Time {
    /// When its content was changed
    #[value(name = "mtime", alias = "modification")]
    Modified,
    /// When it was read
    #[value(name = "atime", alias = "access", alias = "use")]
    Accessed,
    /// When anything about it was changed
    #[value(name = "ctime", alias = "status")]
    Changed,
}

/// Which engine the rings have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// The kernel's where it works, else anyring's
    Auto,
    /// The kernel's
    Kernel,
    /// Anyring's
    User,
}
