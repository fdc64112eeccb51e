//! Visits, compared with GNU find, with all kinds of options.

mod common;

use anyring_walk::{Entry, Failure, Follow, Options, Root, Step, Visitor, walk};
use common::{Event, Tree, events, failures, find, left, visited};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the options: sorted or not, with one or more threads, with few or many descriptors.
fn ways() -> Vec<Options> {
    let mut ways = Vec::new();
    for sorted in [false, true] {
        for threads in [1, 3] {
            for descriptors in [0, 1] {
                for (post_order, open_until_left) in [(false, false), (true, false), (true, true)] {
                    let options = Options { sorted, threads, descriptors, ..Options::default() };
                    ways.push(Options { post_order, open_until_left, ..options });
                }
            }
        }
    }
    ways
}

fn odd_tree() -> Tree {
    let tree = Tree::new();
    for directory in ["a/b/c", "a/d", "e", "f/g/h/i/j/k", "empty"] {
        tree.directory(directory);
        tree.file(format!("{directory}/file"));
    }
    for name in
        [&b"new\nline"[..], b"\xff\xfe", b" ", b"-name", "x".repeat(255).as_bytes(), b"...", b".hidden"]
    {
        tree.file(Path::new("e").join(OsStr::from_bytes(name)));
        tree.directory(Path::new("f").join(OsStr::from_bytes(name)));
        tree.file(Path::new("f").join(OsStr::from_bytes(name)).join("below"));
    }
    tree.link("../a", "e/link");
    tree.link("nowhere", "e/dangling");
    tree.link("itself", "e/itself");
    tree
}

#[test]
fn visits_what_find_prints() {
    let tree = odd_tree();
    let expected = find(&[], &[&tree.0], &[]);
    assert!(expected.len() > 30);
    let directories = find(&[], &[&tree.0], &["-type", "d"]);
    for options in ways() {
        for mask in [0, libc::STATX_SIZE] {
            let events = events(&[tree.root()], &options, mask);
            assert_eq!(visited(&events), expected, "{options:?}");
            let expected_left = if options.post_order { directories.clone() } else { Vec::new() };
            assert_eq!(left(&events), expected_left, "{options:?}");
            assert!(failures(&events).is_empty());
        }
    }
}

#[test]
fn goes_as_deep_as_it_is_told() {
    let tree = odd_tree();
    for depth in 0..5 {
        let text = depth.to_string();
        let expected = find(&[], &[&tree.0], &["-maxdepth", &text]);
        let directories = find(&[], &[&tree.0], &["-maxdepth", &text, "-type", "d"]);
        for options in ways() {
            let events = events(&[tree.root()], &Options { max_depth: Some(depth), ..options }, 0);
            assert_eq!(visited(&events), expected);
            if !left(&events).is_empty() {
                assert_eq!(left(&events), directories);
            }
        }
    }
}

#[test]
fn follows_links_and_tells_of_loops() {
    let tree = odd_tree();
    tree.link("..", "a/b/up");
    tree.link(".", "f/g/here");
    tree.link("a", "root-link");
    let link = tree.path("root-link");
    for (follow, flag) in [(Follow::Never, "-P"), (Follow::Roots, "-H"), (Follow::Always, "-L")] {
        let expected = find(&[flag], &[&tree.0, &link], &[]);
        for options in ways() {
            let roots = [tree.root(), Root::new(link.as_os_str().as_bytes())];
            let events = events(&roots, &Options { follow, ..options }, 0);
            assert_eq!(visited(&events), expected, "{follow:?}");
            let failures = failures(&events);
            assert_eq!(failures.len(), if follow == Follow::Always { 5 } else { 0 }, "{failures:?}");
        }
    }
}

#[test]
fn a_sorted_walk_has_one_order() {
    let tree = odd_tree();
    let options = Options { sorted: true, threads: 2, post_order: true, ..Options::default() };
    let first = events(&[tree.root()], &options, 0);
    let mut open: Vec<Vec<u8>> = Vec::new();
    let mut last: Option<Vec<u8>> = None;
    for event in &first {
        match event {
            Event::Visited(path) => {
                let parts =
                    |path: &[u8]| path.split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>();
                assert!(last.is_none_or(|last| parts(&last) < parts(path)));
                last = Some(path.clone());
                if std::fs::symlink_metadata(OsStr::from_bytes(path)).unwrap().is_dir() {
                    open.push(path.clone());
                }
            }
            Event::Left(path) => assert_eq!(open.pop().as_ref(), Some(path)),
            Event::Failed(..) => panic!("{event:?}"),
        }
    }
    assert!(open.is_empty());
    assert_eq!(events(&[tree.root()], &options, 0), first);
}

#[test]
fn roots_may_be_anything() {
    let tree = odd_tree();
    let file = tree.path("a/d/file");
    let dangling = tree.path("e/dangling");
    let missing = tree.path("missing");
    let slash = tree.path("a/");
    let all: Vec<&Path> = vec![&file, &dangling, &missing, &slash, &file, &slash];
    let roots: Vec<Root> = all.iter().map(|path| Root::new(path.as_os_str().as_bytes())).collect();
    for (follow, flag) in [(Follow::Never, "-P"), (Follow::Roots, "-H"), (Follow::Always, "-L")] {
        let expected = find(&[flag], &all, &[]);
        for options in ways() {
            let events = events(&roots, &Options { follow, ..options }, 0);
            assert_eq!(visited(&events), expected);
            let failures = failures(&events);
            assert_eq!(failures.len(), 1, "{failures:?}");
        }
    }
}

/// The working directory is the package's, into which nothing is written.
#[test]
fn dots_are_roots() {
    for (root, depth) in [(".", 1), ("..", 0)] {
        let expected = find(&[], &[Path::new(root)], &["-maxdepth", &depth.to_string()]);
        for options in ways() {
            let options = Options { max_depth: Some(depth), ..options };
            assert_eq!(visited(&events(&[Root::new(root)], &options, 0)), expected, "{options:?}");
        }
    }
}

#[test]
fn devices_are_not_left() {
    for options in ways() {
        let expected = find(&[], &[Path::new("/dev")], &["-xdev", "-maxdepth", "2"]);
        let options = Options { same_device: true, max_depth: Some(2), ..options };
        assert_eq!(visited(&events(&[Root::new("/dev")], &options, 0)), expected);
    }
}

/// Counts the threads of a walk.
struct Threads(AtomicU64);

impl Visitor for Threads {
    type Local = ();
    fn local(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn visit(&self, (): &mut (), _: &Entry<'_>) -> Step {
        Step::Descend
    }

    fn failed(&self, (): &mut (), failure: &Failure) {
        panic!("{failure}");
    }

    fn finish(&self, (): ()) {}
}

#[test]
fn others_begin_where_there_is_more_to_do() {
    let (chain, wide) = (Tree::new(), Tree::new());
    chain.directory("d/".repeat(300));
    (0..100).for_each(|number| wide.directory(format!("d{number}")));
    for (tree, expected) in [(chain, 1), (wide, 2)] {
        let threads = Threads(AtomicU64::new(0));
        walk(&[tree.root()], &Options { threads: 2, ..Options::default() }, &threads).unwrap();
        assert_eq!(threads.0.into_inner(), expected);
    }
}

/// Adds one to a counter of each directory on the way up.
struct Sum(AtomicU64);

impl Visitor for Sum {
    type Local = ();
    fn local(&self) {}

    fn visit(&self, (): &mut (), entry: &Entry<'_>) -> Step {
        if entry.attributes_with(libc::STATX_INO).is_none() {
            return Step::Attributes(libc::STATX_INO);
        }
        if entry.kind() != anyring_walk::Kind::Directory {
            entry.directory_counters()[0].fetch_add(1, Ordering::Relaxed);
        }
        Step::Descend
    }

    fn leave(&self, (): &mut (), entry: &Entry<'_>) -> Step {
        assert_eq!(entry.attributes().unwrap().stx_ino, entry.inode());
        let below = entry.counters().unwrap()[0].load(Ordering::Relaxed);
        entry.directory_counters()[0].fetch_add(below + 1, Ordering::Relaxed);
        if entry.depth() == 0 {
            self.0.store(below + 1, Ordering::Relaxed);
        }
        Step::Skip
    }

    fn failed(&self, (): &mut (), failure: &Failure) {
        panic!("{failure}");
    }

    fn finish(&self, (): ()) {}
}

#[test]
fn counters_sum_up() {
    let tree = odd_tree();
    let all = find(&[], &[&tree.0], &[]).len() as u64;
    for options in ways() {
        let sum = Sum(AtomicU64::new(0));
        walk(&[tree.root()], &Options { post_order: true, ..options }, &sum).unwrap();
        assert_eq!(sum.0.into_inner(), all);
    }
}

/// Panics when the first thread is shown the 50th name, or when another thread begins.
struct Panics {
    shown: AtomicU64,
    first: std::thread::ThreadId,
    in_another: bool,
}

impl Visitor for Panics {
    type Local = ();
    fn local(&self) {
        assert!(!self.in_another || std::thread::current().id() == self.first, "the visitor's own");
    }

    fn visit(&self, (): &mut (), entry: &Entry<'_>) -> Step {
        if entry.attributes_with(libc::STATX_INO).is_none() {
            return Step::Attributes(libc::STATX_INO);
        }
        let shown = self.shown.fetch_add(1, Ordering::Relaxed);
        assert!(self.in_another || shown != 50, "the visitor's own");
        Step::Descend
    }

    fn failed(&self, (): &mut (), failure: &Failure) {
        panic!("{failure}");
    }

    fn finish(&self, (): ()) {}
}

/// Returns how many descriptors this process has of files below a directory.
fn open_under(directory: &Path) -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    files.filter(|fd| std::fs::read_link(fd).is_ok_and(|file| file.starts_with(directory))).count()
}

/// The other threads end, and the memory that the engine writes into is not reused.
#[test]
fn a_visitor_that_panics_ends_the_walk() {
    let tree = Tree::new();
    for directory in 0..100 {
        tree.directory(format!("d{directory}"));
        (0..4).for_each(|file| tree.file(format!("d{directory}/f{file}")));
    }
    for engine in [None, Some(anyring_walk::Engine::User), Some(anyring_walk::Engine::Auto)] {
        for (threads, in_another) in [(1, false), (2, false), (2, true)] {
            let panics = Panics { shown: AtomicU64::new(0), first: std::thread::current().id(), in_another };
            let options = Options { threads, engine, ..Options::default() };
            let walk = std::panic::AssertUnwindSafe(|| walk(&[tree.root()], &options, &panics));
            std::panic::catch_unwind(walk).unwrap_err();
            if engine.is_none() {
                assert_eq!(open_under(&tree.path("")), 0, "nothing is under way without a ring");
            }
            // The size of a file's attributes.
            let others: Vec<_> = (0..500).map(|_| std::hint::black_box(vec![0_u64; 32])).collect();
            for _ in 0..200 {
                std::thread::yield_now();
                assert!(others.iter().flatten().all(|&number| std::hint::black_box(number) == 0));
            }
        }
    }
}
