//! Trees that change, deny access or are very deep.

mod common;

use anyring_walk::{Engine, Entry, Failure, Options, Root, Step, Visitor, walk};
use common::{Tree, events, failures, find, left, visited};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn ways() -> Vec<Options> {
    let mut ways = Vec::new();
    for sorted in [false, true] {
        for engine in [None, Some(Engine::User), Some(Engine::Auto)] {
            ways.push(Options { sorted, engine, threads: 2, ..Options::default() });
        }
    }
    ways
}

/// True if the caller is root, whom permissions do not stop.
fn is_root() -> bool {
    // SAFETY: touches no memory.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn what_cannot_be_read_is_told() {
    let tree = Tree::new();
    tree.directory("closed/below");
    tree.directory("open/below");
    tree.link("open", "link");
    std::fs::set_permissions(tree.path("closed"), PermissionsExt::from_mode(0o000)).unwrap();
    let expected = find(&[], &[&tree.0], &[]);
    for post_order in [false, true] {
        for options in ways() {
            let events = events(&[tree.root()], &Options { post_order, ..options }, 0);
            assert_eq!(visited(&events), expected);
            assert_eq!(failures(&events).len(), usize::from(!is_root()));
            if post_order {
                assert_eq!(left(&events), find(&[], &[&tree.0], &["-type", "d"]));
            }
        }
    }
    std::fs::set_permissions(tree.path("closed"), PermissionsExt::from_mode(0o700)).unwrap();
}

/// Creates `depth` nested directories, and returns the innermost.
fn chain(tree: &Tree, name: &str, depth: usize) -> OwnedFd {
    let name = CString::new(name).unwrap();
    let mut at: OwnedFd = std::fs::File::open(&tree.0).unwrap().into();
    for _ in 0..depth {
        // SAFETY: strings that end; the descriptor is fresh and owned by nothing else.
        at = unsafe {
            assert_eq!(libc::mkdirat(at.as_raw_fd(), name.as_ptr(), 0o700), 0);
            let fd = libc::openat(at.as_raw_fd(), name.as_ptr(), libc::O_DIRECTORY);
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd)
        };
    }
    at
}

/// Removes every directory that it leaves, and files when it visits them.
struct Remove(AtomicUsize);

impl Visitor for Remove {
    type Local = ();
    fn local(&self) {}

    fn visit(&self, (): &mut (), entry: &Entry<'_>) -> Step {
        if entry.kind() != anyring_walk::Kind::Directory {
            self.remove(entry, 0);
        }
        Step::Descend
    }

    fn leave(&self, (): &mut (), entry: &Entry<'_>) -> Step {
        self.remove(entry, libc::AT_REMOVEDIR);
        Step::Skip
    }

    fn failed(&self, (): &mut (), failure: &Failure) {
        panic!("{failure}");
    }

    fn finish(&self, (): ()) {}
}

impl Remove {
    fn remove(&self, entry: &Entry<'_>, flags: i32) {
        let parent = entry.parent();
        // SAFETY: a string that ends.
        let result = unsafe { libc::unlinkat(parent.fd, parent.name.as_ptr(), flags) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn paths_may_be_longer_than_any_call_takes() {
    for (index, options) in ways().into_iter().enumerate() {
        let tree = Tree::new();
        let (depth, name) = (60, "n".repeat(200));
        chain(&tree, &name, depth);
        let wide = chain(&tree, "m", 40);
        for number in 0..50 {
            let name = CString::new(format!("file{number}")).unwrap();
            // SAFETY: a string that ends; the descriptor is closed immediately.
            unsafe {
                libc::close(libc::openat(
                    wide.as_raw_fd(),
                    name.as_ptr(),
                    libc::O_CREAT | libc::O_RDWR,
                    0o600,
                ))
            };
        }
        // The minimum of descriptors, or the default.
        let descriptors = [1, 0][index % 2];
        let options = Options { descriptors, post_order: true, open_until_left: true, ..options };
        let seen = events(&[tree.root()], &options, 0);
        let expected = find(&[], &[&tree.0], &[]);
        assert_eq!(expected.len(), 1 + depth + 40 + 50);
        assert_eq!(visited(&seen), expected);
        assert_eq!(left(&seen).len(), 1 + depth + 40);
        let remove = Remove(AtomicUsize::new(0));
        walk(&[tree.root()], &options, &remove).unwrap();
        assert_eq!(remove.0.into_inner(), expected.len());
        assert!(!tree.0.exists());
    }
}

#[test]
fn few_descriptors_lead_back_by_directories_that_are_done() {
    let tree = Tree::new();
    let mut level = "done/here".to_owned();
    for number in 0..40 {
        // The order in which the walk finds the two directories varies.
        tree.directory(format!("{level}/side{number}/below"));
        level.push_str(&format!("/deeper{number}"));
    }
    tree.directory(level);
    let expected = find(&[], &[&tree.0], &[]);
    for options in ways() {
        for post_order in [false, true] {
            let seen = events(&[tree.root()], &Options { descriptors: 1, post_order, ..options.clone() }, 0);
            assert_eq!(visited(&seen), expected);
            assert!(failures(&seen).is_empty());
        }
    }
}

#[test]
fn roots_that_no_call_takes_are_told() {
    let tree = Tree::new();
    for options in ways() {
        let long = Root::new(b"x/".repeat(20_000));
        let seen = events(&[tree.root(), long.clone(), tree.root()], &options, 0);
        assert_eq!(visited(&seen).len(), 2);
        let failed = failures(&seen);
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[&common::shown(long.path())], "Attributes 36");
    }
}

#[test]
fn what_stays_is_seen_once_whatever_else_happens() {
    let tree = Tree::new();
    for directory in 0..10 {
        for file in 0..30 {
            tree.directory(format!("d{directory}/s{}", file % 3));
            tree.file(format!("d{directory}/s{}/stays{file}", file % 3));
        }
    }
    let stays = find(&[], &[&tree.0], &[]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_usize;
            while !over.load(Ordering::Relaxed) {
                round += 1;
                let at = |name: &str| tree.path(format!("d{}/s{}/{name}", round % 10, round % 3));
                std::fs::write(at("new"), "").unwrap();
                std::fs::create_dir_all(at("newdir/below")).unwrap();
                std::fs::rename(at("new"), at("renamed")).unwrap();
                std::fs::remove_file(at("renamed")).unwrap();
                std::fs::remove_dir_all(at("newdir")).unwrap();
                // A link replaces a directory.
                std::fs::create_dir(at("swapped")).unwrap();
                std::fs::remove_dir(at("swapped")).unwrap();
                std::os::unix::fs::symlink("/", at("swapped")).unwrap();
                std::fs::remove_file(at("swapped")).unwrap();
            }
        });
        for options in ways() {
            for mask in [0, libc::STATX_SIZE] {
                let events = events(&[tree.root()], &options, mask);
                let root = common::shown(tree.root().path());
                let seen = visited(&events);
                assert!(seen.iter().all(|path| path.starts_with(&root)));
                let passing =
                    |path: &&String| ["/new", "/renamed", "/swapped"].iter().any(|name| path.contains(name));
                let seen: Vec<_> = seen.iter().filter(|path| !passing(path)).cloned().collect();
                assert_eq!(seen, stays);
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Ends the walk at the entry with this number.
struct Quitter(AtomicUsize, usize);

impl Visitor for Quitter {
    type Local = ();
    fn local(&self) {}

    fn visit(&self, (): &mut (), _: &Entry<'_>) -> Step {
        if self.0.fetch_add(1, Ordering::Relaxed) + 1 >= self.1 { Step::Quit } else { Step::Descend }
    }

    fn failed(&self, (): &mut (), failure: &Failure) {
        panic!("{failure}");
    }

    fn finish(&self, (): ()) {}
}

#[test]
fn quitting_leaves_nothing_open() {
    let tree = Tree::new();
    for number in 0..300 {
        tree.directory(format!("{number}/a/b"));
    }
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for options in ways() {
        for most in [1, 50, 500] {
            let quitter = Quitter(AtomicUsize::new(0), most);
            walk(&[tree.root()], &options, &quitter).unwrap();
            // Visits that were in progress come to their end.
            assert!(quitter.0.into_inner() <= most + 2);
        }
    }
    let before = open();
    for _ in 0..20 {
        let quitter = Quitter(AtomicUsize::new(0), 50);
        walk(&[tree.root()], &Options { threads: 2, post_order: true, ..Options::default() }, &quitter)
            .unwrap();
    }
    // Other tests of this process open descriptors for a while; leaked ones would stay.
    let deadline = Instant::now() + Duration::from_secs(120);
    while open() >= before + 40 {
        assert!(Instant::now() < deadline, "{} after {before}", open());
        std::thread::yield_now();
    }
}

#[test]
fn a_directory_may_be_large() {
    let tree = Tree::new();
    for number in 0..2000 {
        tree.file(format!("a-file-with-quite-a-long-name-{number}"));
        if number % 2 == 0 {
            tree.directory(format!("directory-{number}"));
        }
    }
    let expected = find(&[], &[&tree.0], &[]);
    for options in ways() {
        for (mask, descriptors) in [(0, 0), (libc::STATX_MTIME, 1)] {
            let events = events(&[tree.root()], &Options { descriptors, ..options.clone() }, mask);
            assert_eq!(visited(&events), expected);
        }
    }
    let roots: Vec<Root> = expected.iter().map(|path| Root::new(path.as_bytes())).collect();
    assert_eq!(visited(&events(&roots, &Options { max_depth: Some(0), ..Options::default() }, 0)), expected);
}
