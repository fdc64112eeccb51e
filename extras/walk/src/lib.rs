//! A parallel walk through directory trees: `anyring find` and `anyring du` are built on it.
//!
//! [`walk`] goes through the trees below its [`Root`]s and shows each [`Entry`] to a [`Visitor`], which returns a
//! [`Step`]. Several threads do so concurrently, each with its own [`Visitor::Local`].
//!
//! Guarantees:
//! - Every entry that exists all the time is visited exactly once, after its directory; entries that appear, vanish or
//!   are renamed meanwhile may be visited or not.
//! - Names are bytes. Paths may have any length: everything is opened by its parent's descriptor.
//! - No symbolic link is followed unless [`Follow`] says so: a link that has replaced a directory is a failure.
//! - A directory that is its own ancestor, by a link that is followed or because it is mounted below itself, is not visited:
//!   [`What::Loop`].
//! - Few descriptors are open at a time, whatever the depth: [`Options::descriptors`].
//! - A failure is reported ([`Visitor::failed`]) and the walk continues.
//!
//! ```
//! use anyring_walk::{Entry, Failure, Options, Root, Step, Visitor, walk};
//! use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
//!
//! struct Count(AtomicUsize);
//!
//! impl Visitor for Count {
//!     type Local = usize;
//!     fn local(&self) -> usize {
//!         0
//!     }
//!     fn visit(&self, count: &mut usize, _: &Entry<'_>) -> Step {
//!         *count += 1;
//!         Step::Descend
//!     }
//!     fn failed(&self, _: &mut usize, failure: &Failure) {
//!         eprintln!("{failure}");
//!     }
//!     fn finish(&self, count: usize) {
//!         self.0.fetch_add(count, Relaxed);
//!     }
//! }
//!
//! let count = Count(AtomicUsize::new(0));
//! walk(&[Root::new("src")], &Options::default(), &count)?;
//! assert!(count.0.into_inner() > 3);
//! # Ok::<(), anyring::Error>(())
//! ```

mod directory;
mod entry;
mod files;
mod judge;
mod lane;
mod mounts;
mod names;
mod parallel;
mod share;
mod sorted;

pub use anyring::Engine;
pub use directory::Counters;
pub use entry::{Entry, Failure, Kind, Parent, What};
/// The kernel's structure for the attributes of a file, with the fields of `statx(2)`.
pub use libc::statx as Statx;
pub use mounts::Mounts;

/// The start of a walk: the path of a directory or of any other file, as it is to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    pub(crate) path: std::ffi::CString,
}

impl Root {
    /// Creates a root with this path, relative to the working directory if it is not absolute. A NUL byte ends the
    /// path. A path of `PATH_MAX` bytes or more cannot be opened.
    pub fn new(path: impl Into<Vec<u8>>) -> Root {
        let mut path = path.into();
        path.truncate(path.iter().position(|&byte| byte == 0).unwrap_or(path.len()));
        Root { path: std::ffi::CString::new(path).unwrap_or_default() }
    }

    /// Returns the path.
    pub fn path(&self) -> &[u8] {
        self.path.to_bytes()
    }
}

/// Which symbolic links stand for their targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Follow {
    /// No links (`find -P`).
    #[default]
    Never,
    /// Links among the roots (`find -H`).
    Roots,
    /// All links with a target (`find -L`).
    Always,
}

/// Options of a walk.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which symbolic links stand for their targets.
    pub follow: Follow,
    /// Directories on other devices than their root's are visited, but not read.
    pub same_device: bool,
    /// The depth below which nothing is visited; a root has depth 0.
    pub max_depth: Option<u32>,
    /// True to call [`Visitor::leave`].
    pub post_order: bool,
    /// True for a descriptor in [`Entry::parent`] in [`Visitor::leave`], too: directories stay open, or are opened again.
    pub open_until_left: bool,
    /// True for a stable order: siblings by the bytes of their names, each directory followed by its entries, roots in
    /// the order given. One thread makes all calls of the visitor.
    pub sorted: bool,
    /// The number of threads that visit; 0: one per processor, and without rings up to 64 if calls put them to sleep.
    pub threads: usize,
    /// The maximum number of open descriptors of directories; 0: a part of the process's limit (`RLIMIT_NOFILE`).
    pub descriptors: usize,
    /// The engine of the rings, one ring per thread (none if [`sorted`](Options::sorted)). `None`: the engine in the
    /// environment variable `ANYRING_ENGINE`; without it, the threads make the calls themselves, which is faster: with hot
    /// caches a walk through rings takes a fifth longer, and with cold caches handing each call to a worker costs more than
    /// a thread that makes all calls of a directory.
    pub engine: Option<Engine>,
    /// The mounts, which consecutive walks can share.
    pub mounts: Mounts,
}

/// The visitor's decision about an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Query attributes (`STATX_*` of `statx(2)`), then visit the entry again. If the query fails, the failure is
    /// reported and the entry is not visited again. A repeated query of the same attributes means `Skip`.
    Attributes(u32),
    /// Read the entry, if it is a directory.
    Descend,
    /// Do nothing more with the entry; a directory is not read.
    Skip,
    /// End the walk: visits that are in progress are the last ones.
    Quit,
}

/// A visitor of the entries of a walk. Several threads call its methods concurrently.
pub trait Visitor: Sync {
    /// The state of one thread: an output buffer, totals.
    type Local: Send;

    /// Returns the state of a new thread.
    fn local(&self) -> Self::Local;

    /// Visits an entry, first with the facts from its directory only (mostly, see [`Entry::attributes`]), then again
    /// with the attributes that were queried.
    fn visit(&self, local: &mut Self::Local, entry: &Entry<'_>) -> Step;

    /// Visits a directory again, after everything below it was visited and left ([`Options::post_order`]). Called once
    /// for each directory for which [`Step::Descend`] was returned, even if it could not be read or lies too deep; with
    /// the attributes known then. Only the returned step [`Step::Quit`] has an effect.
    fn leave(&self, _local: &mut Self::Local, _entry: &Entry<'_>) -> Step {
        Step::Skip
    }

    /// Reports a failure; the walk continues.
    fn failed(&self, local: &mut Self::Local, failure: &Failure);

    /// Ends a thread.
    fn finish(&self, local: Self::Local);
}

/// Returns why [`walk`] has no ring and what to do, in the words of a command with the option `--engine`.
pub fn explain(error: &anyring::Error) -> String {
    let reason = std::io::Error::from_raw_os_error(error.errno()).to_string();
    let reason = reason.split(" (os error").next().unwrap_or_default();
    let (whose, instead) = match error.engine() {
        Engine::Kernel => ("the kernel's", "Anyring's own: --engine user. "),
        Engine::Auto | Engine::User => ("anyring's own", ""),
    };
    format!(
        "a ring of {whose} io_uring cannot be had: {reason}. What the machine allows: anyring doctor. {instead}Without --engine \
         and ANYRING_ENGINE no ring is needed."
    )
}

/// Walks through the trees below `roots`.
///
/// # Errors
/// Fails if no ring can be created. Failures in the walk are reported to the visitor.
pub fn walk<V: Visitor>(roots: &[Root], options: &Options, visitor: &V) -> Result<(), anyring::Error> {
    if options.sorted {
        sorted::walk(roots, options, visitor);
        return Ok(());
    }
    parallel::walk(roots, options, visitor)
}
