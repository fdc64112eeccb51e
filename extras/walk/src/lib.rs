//! A parallel walk through directory trees: `anyring find` and `anyring du` are built on it.
//!
//! [`walk`] goes through what is below its [`Root`]s and shows each [`Entry`] to a [`Visitor`], which says what to do
//! with it by a [`Step`]. Several threads do so at once, each with a [`Visitor::Local`] of its own.
//!
//! What holds:
//! - Every entry that is there all the time is visited exactly once, its directory before it; what appears, vanishes or
//!   is renamed meanwhile may be visited or not.
//! - Names are bytes. Paths may be as long as they like: everything is opened by its parent's descriptor.
//! - No symbolic link is followed unless [`Follow`] says so: one that takes a directory's place in time is a failure.
//! - A directory that is its own ancestor, by a link that is followed or because it is mounted below itself, is not visited:
//!   [`What::Loop`].
//! - Few descriptors are open at once, whatever the depth: [`Options::descriptors`].
//! - A failure is told ([`Visitor::failed`]) and the walk goes on.
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

/// Where a walk begins: a path, of a directory or of anything else, as it is to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    pub(crate) path: std::ffi::CString,
}

impl Root {
    /// A root of this path, relative to the working directory if it is not absolute. What follows a NUL byte is no
    /// part of it. It is shorter than `PATH_MAX`, or cannot be opened.
    pub fn new(path: impl Into<Vec<u8>>) -> Root {
        let mut path = path.into();
        path.truncate(path.iter().position(|&byte| byte == 0).unwrap_or(path.len()));
        Root { path: std::ffi::CString::new(path).unwrap_or_default() }
    }

    /// Its path.
    pub fn path(&self) -> &[u8] {
        self.path.to_bytes()
    }
}

/// Which symbolic links stand for what they lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Follow {
    /// None (`find -P`).
    #[default]
    Never,
    /// Links among the roots (`find -H`).
    Roots,
    /// All that lead somewhere (`find -L`).
    Always,
}

/// How a walk is to be.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which symbolic links stand for what they lead to.
    pub follow: Follow,
    /// Directories on other devices than their root's are visited, but not read.
    pub same_device: bool,
    /// The depth below which nothing is visited; a root has depth 0.
    pub max_depth: Option<u32>,
    /// [`Visitor::leave`] is wanted.
    pub post_order: bool,
    /// [`Entry::parent`] has a descriptor in [`Visitor::leave`], too: directories stay open for that, or are opened again.
    pub open_until_left: bool,
    /// In a stable order: siblings by the bytes of their names, what is in a directory right behind it. Roots come in the
    /// order given. All calls of the visitor come from one thread then.
    pub sorted: bool,
    /// How many threads visit; 0: as many as there are processors, and without rings up to 64 where calls put them to sleep.
    pub threads: usize,
    /// How many descriptors of directories may be open; 0: a part of what the process may have (`RLIMIT_NOFILE`).
    pub descriptors: usize,
    /// By rings of this engine, one for each thread (not where [`sorted`](Options::sorted)). `None`: what the environment
    /// variable `ANYRING_ENGINE` says; where it says nothing, the threads make the calls themselves. That is quicker: where
    /// all is cached a round trip through a ring costs a fifth, and where nothing is, handing each call to a worker costs
    /// more than a thread that makes all of a directory's.
    pub engine: Option<Engine>,
    /// The mounts, for walks one after the other.
    pub mounts: Mounts,
}

/// The visitor's decision about an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask for attributes (`STATX_*` of `statx(2)`), then visit the entry again. If they cannot be had, that is told as a
    /// failure and the entry is not visited again. Whoever asks again for what was asked already skips the entry.
    Attributes(u32),
    /// Go into it, if it is a directory.
    Descend,
    /// Done with it; a directory is not read.
    Skip,
    /// End the walk: threads that are visiting now come to an end with that, nothing is visited any more.
    Quit,
}

/// A visitor is shown what a walk finds. Its methods are called by several threads at once.
pub trait Visitor: Sync {
    /// The state that each thread has for itself: an output buffer, totals.
    type Local: Send;

    /// One of those, for a thread that begins.
    fn local(&self) -> Self::Local;

    /// An entry, first with only what reading its directory told (mostly, see [`Entry::attributes`]), then again with
    /// the attributes that were asked for.
    fn visit(&self, local: &mut Self::Local, entry: &Entry<'_>) -> Step;

    /// All that is below a directory was visited and left ([`Options::post_order`]). Called once for each directory
    /// for which [`Step::Descend`] was said, even if it could not be read or lies too deep. Attributes are there if they
    /// were when that was said. Steps other than [`Step::Quit`] say nothing here.
    fn leave(&self, _local: &mut Self::Local, _entry: &Entry<'_>) -> Step {
        Step::Skip
    }

    /// Something went wrong; the walk goes on.
    fn failed(&self, local: &mut Self::Local, failure: &Failure);

    /// The thread has ended.
    fn finish(&self, local: Self::Local);
}

/// Why [`walk`] has no ring, and what to do, in the words of a command that has `--engine`.
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

/// Walks through what is below `roots`.
///
/// # Errors
/// Where no ring can be had. What goes wrong in the walk is told to the visitor.
pub fn walk<V: Visitor>(roots: &[Root], options: &Options, visitor: &V) -> Result<(), anyring::Error> {
    if options.sorted {
        sorted::walk(roots, options, visitor);
        return Ok(());
    }
    parallel::walk(roots, options, visitor)
}
