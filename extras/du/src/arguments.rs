//! The command line.

use clap::{ArgAction, Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Print how much space directories and files take, as GNU du
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
  anyring du -h -d1 --sorted             the working directory and each directory in it, sorted by name
  anyring du -xh -t 1G /                 directories of at least 1 GiB, on this file system only
  anyring du -sc --si *.iso              several files and their total, in powers of 1000
  anyring du -ah --exclude='*.o' src     every file except object files
  anyring du --inodes -s ~               the number of files instead of their size
  anyring du -s0 * | sort -znr | tr '\\0' '\\n'     names with newlines are safe
  find . -name target -print0 | anyring du -shc --files0-from=-

SIZE is a number with or without a unit: K, M, G, T, P, E are powers of 1024 (KiB and so on mean the
same), kB, MB and so on are powers of 1000. A unit without a number means 1, and is printed after the
sizes.

Several threads read directories, so the lines of siblings come in any order; the line of a directory
comes after those of its contents. With --sorted, siblings are sorted by name. A file with several
names is counted once, in the directory in which it is found first.

Environment:
  DU_BLOCK_SIZE, BLOCK_SIZE, BLOCKSIZE   the SIZE in which sizes are printed [default: 1024]
  POSIXLY_CORRECT                        512 is the default
  TIME_STYLE                             as --time-style
  ANYRING_ENGINE                         auto, kernel or user

Exit status: 0 if everything could be read, 1 if something could not be read. Messages on standard error
say what; everything else is counted."
)]
pub struct Arguments {
    /// The files and directories to measure [default: .]
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,

    /// Print a line for every file, not only for directories
    #[arg(short, long)]
    pub all: bool,

    /// Print the length of files instead of the space that they take: holes count, unused ends of blocks do not
    #[arg(long)]
    pub apparent_size: bool,

    /// Print sizes in blocks of this SIZE
    #[arg(short = 'B', long, value_name = "SIZE")]
    pub block_size: Vec<OsString>,

    /// Like --apparent-size --block-size=1
    #[arg(short, long)]
    pub bytes: bool,

    /// Print a total at the end
    #[arg(short = 'c', long)]
    pub total: bool,

    /// Follow symbolic links that are given as PATHs (-D, -H)
    #[arg(short = 'D', long, short_alias = 'H')]
    pub dereference_args: bool,

    /// Print lines only for entries at most N levels below a PATH
    #[arg(short = 'd', long, value_name = "N")]
    pub max_depth: Option<String>,

    /// Read the PATHs from this file, each followed by NUL; - is standard input
    #[arg(long, value_name = "FILE")]
    pub files0_from: Option<PathBuf>,

    /// Print sizes like 1.4K, 230M, 5.0G
    #[arg(short, long)]
    pub human_readable: bool,

    /// Print the number of files instead of their size
    #[arg(long)]
    pub inodes: bool,

    /// Like --block-size=1K
    #[arg(short = 'k')]
    pub kilobytes: bool,

    /// Follow all symbolic links
    #[arg(short = 'L', long)]
    pub dereference: bool,

    /// Count a file once for each of its names
    #[arg(short = 'l', long)]
    pub count_links: bool,

    /// Like --block-size=1M
    #[arg(short = 'm')]
    pub megabytes: bool,

    /// Do not follow symbolic links (the default)
    #[arg(short = 'P', long)]
    pub no_dereference: bool,

    /// Do not add the sizes of subdirectories to that of a directory
    #[arg(short = 'S', long)]
    pub separate_dirs: bool,

    /// Like -h, but in powers of 1000
    #[arg(long)]
    pub si: bool,

    /// Print only one line for each PATH
    #[arg(short, long)]
    pub summarize: bool,

    /// Print lines only for entries of at least this SIZE, or, if it is negative, at most this SIZE
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true)]
    pub threshold: Option<String>,

    /// Print the time of the last modification in each directory; with =WORD, of the last access or status change
    #[arg(long, value_name = "WORD", num_args = 0..=1, require_equals = true, default_missing_value = "mtime")]
    pub time: Option<Time>,

    /// The format of times: full-iso, long-iso, iso, or + and a format of date(1)
    #[arg(long, value_name = "STYLE")]
    pub time_style: Option<String>,

    /// Do not count files that match a pattern in this file; - is standard input
    #[arg(short = 'X', long, value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,

    /// Do not count files that match this shell pattern, by the whole path or by its end after any slash
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<OsString>,

    /// Skip directories on other file systems
    #[arg(short = 'x', long)]
    pub one_file_system: bool,

    /// End lines with NUL instead of a newline, for names that contain newlines
    #[arg(short = '0', long)]
    pub null: bool,

    /// Sort siblings by name, and read with one thread
    #[arg(long)]
    pub sorted: bool,

    /// How many threads read directories [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Read directories through rings of this engine
    #[arg(long, value_enum)]
    pub engine: Option<Engine>,

    /// Print help
    #[arg(long, action = ArgAction::HelpLong)]
    pub help: Option<bool>,

    /// Print the version
    #[arg(long, action = ArgAction::Version)]
    pub version: Option<bool>,
}

/// A time of a file.
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

/// The engine of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// The kernel's io_uring where it works, or else anyring's
    Auto,
    /// The kernel's io_uring
    Kernel,
    /// Anyring's io_uring
    User,
}
