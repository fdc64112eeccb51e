//! Random trees, walked with all combinations of options: the walk sees the same as a plain recursive reading.
//! ANYRING_WALK_CASES sets the number of trees.

mod common;

use anyring_walk::{Engine, Entry, Failure, Follow, Options, Root, Step, Visitor, What, walk};
use common::{Event, Tree, events};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::RngSeed;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A node to be created in an earlier directory.
#[derive(Clone, Debug)]
enum Node {
    File,
    Directory,
    /// A link to another node, or to the directory that has the link.
    Link(Option<Index>),
    Dangling,
}

fn nodes() -> impl Strategy<Value = Vec<(Index, Node)>> {
    let node = prop_oneof![
        30 => Just(Node::File),
        20 => Just(Node::Directory),
        1 => any::<Option<Index>>().prop_map(Node::Link),
        1 => Just(Node::Dangling),
    ];
    prop::collection::vec((any::<Index>(), node), 0..150)
}

fn options() -> impl Strategy<Value = Options> {
    let order = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let numbers = (prop::option::weighted(0.3, 0..5_u32), 0..4_usize, select(vec![0, 1, 20]));
    let engine = select(vec![None, None, Some(Engine::User), Some(Engine::Auto)]);
    let follow = select(vec![Follow::Never, Follow::Roots, Follow::Always]);
    (order, numbers, engine, follow).prop_map(|(order, numbers, engine, follow)| {
        let (sorted, same_device, post_order, open_until_left) = order;
        let (max_depth, threads, descriptors) = numbers;
        let order = Options { sorted, same_device, post_order, open_until_left, ..Options::default() };
        Options { follow, max_depth, threads, descriptors, engine, ..order }
    })
}

/// Creates the nodes; returns their paths.
fn make(tree: &Tree, nodes: &[(Index, Node)]) -> Vec<PathBuf> {
    let (mut directories, mut paths, mut links) = (vec![tree.0.clone()], vec![tree.0.clone()], 0);
    for (number, (parent, node)) in nodes.iter().enumerate() {
        let parent = parent.get(&directories).clone();
        let path = parent.join(format!("{number}{}", ["", "\n", " x", "ä", ".."][number % 5]));
        match node {
            Node::Directory => {
                fs::create_dir(&path).unwrap();
                directories.push(path.clone());
            }
            // With more links there are too many cyclic paths.
            Node::Link(to) if links < 3 => {
                links += 1;
                let to = to.as_ref().map_or(&parent, |to| to.get(&paths));
                std::os::unix::fs::symlink(to, &path).unwrap();
            }
            Node::Dangling => std::os::unix::fs::symlink("nowhere", &path).unwrap(),
            _ => fs::write(&path, "x").unwrap(),
        }
        paths.push(path);
    }
    paths
}

/// The events of a plain recursive reading.
struct Reading<'a> {
    options: &'a Options,
    events: Vec<Event>,
    /// The directories on the current path.
    above: Vec<(PathBuf, (u64, u64))>,
}

impl Reading<'_> {
    fn read(&mut self, path: &Path, depth: u32) {
        let bytes = path.as_os_str().as_bytes().to_vec();
        let follows = match self.options.follow {
            Follow::Never => false,
            Follow::Roots => depth == 0,
            Follow::Always => true,
        };
        let itself = fs::symlink_metadata(path).unwrap();
        let status = if follows { fs::metadata(path).unwrap_or(itself) } else { itself };
        let identity = (status.dev(), status.ino());
        if self.options.follow == Follow::Always
            && let Some((above, _)) = self.above.iter().find(|(_, above)| *above == identity)
        {
            let what = format!("loop of {}", above.to_string_lossy());
            return self.events.push(Event::Failed(bytes, what));
        }
        self.events.push(Event::Visited(bytes.clone()));
        if !status.is_dir() {
            return;
        }
        if self.options.max_depth.is_none_or(|most| depth < most) {
            self.above.push((path.to_owned(), identity));
            let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
            names.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
            names.iter().for_each(|name| self.read(name, depth + 1));
            self.above.pop();
        }
        if self.options.post_order {
            self.events.push(Event::Left(bytes));
        }
    }
}

/// Enters every directory; at each entry, removes another file or directory.
struct Thief {
    victims: Mutex<Vec<PathBuf>>,
    visited: Mutex<Vec<PathBuf>>,
    failed: Mutex<Vec<(PathBuf, io::ErrorKind)>>,
    mask: u32,
}

fn path(bytes: &[u8]) -> PathBuf {
    std::ffi::OsStr::from_bytes(bytes).into()
}

impl Visitor for Thief {
    type Local = ();
    fn local(&self) {}

    fn visit(&self, (): &mut (), entry: &Entry<'_>) -> Step {
        if self.mask != 0 && entry.attributes_with(self.mask).is_none() {
            return Step::Attributes(self.mask);
        }
        self.visited.lock().unwrap().push(path(entry.path()));
        if let Some(victim) = self.victims.lock().unwrap().pop() {
            // The victim may have been removed with a directory above it.
            let _ = fs::remove_file(&victim).or_else(|_| fs::remove_dir_all(&victim));
        }
        Step::Descend
    }

    fn failed(&self, (): &mut (), failure: &Failure) {
        assert!(!matches!(failure.what(), What::Loop(_)));
        self.failed.lock().unwrap().push((path(failure.path()), failure.error().kind()));
    }

    fn finish(&self, (): ()) {}
}

fn config() -> ProptestConfig {
    let cases = std::env::var("ANYRING_WALK_CASES").ok().and_then(|cases| cases.parse().ok());
    // The same cases each time, or the requested number of random ones.
    let rng_seed = if cases.is_some() { RngSeed::Random } else { RngSeed::Fixed(0) };
    let config =
        ProptestConfig { failure_persistence: None, max_shrink_iters: 60, ..ProptestConfig::default() };
    ProptestConfig { cases: cases.unwrap_or(64), rng_seed, ..config }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_same_as_by_plain_reading(
        nodes in nodes(),
        roots in prop::collection::vec(any::<Index>(), 0..3),
        options in options(),
        mask in select(vec![0, libc::STATX_SIZE]),
    ) {
        let tree = Tree::new();
        let paths = make(&tree, &nodes);
        let roots = std::iter::once(tree.0.clone()).chain(roots.iter().map(|root| root.get(&paths).clone()));
        let roots: Vec<PathBuf> = roots.collect();
        let mut reading = Reading { options: &options, events: Vec::new(), above: Vec::new() };
        roots.iter().for_each(|root| reading.read(root, 0));
        let mut expected = reading.events;
        let roots: Vec<_> = roots.iter().map(|root| Root::new(root.as_os_str().as_bytes())).collect();
        let mut seen = events(&roots, &options, mask);
        if !options.sorted {
            expected.sort();
            seen.sort();
        }
        let only_seen: Vec<_> = seen.iter().filter(|event| !expected.contains(event)).collect();
        let unseen: Vec<_> = expected.iter().filter(|event| !seen.contains(event)).collect();
        prop_assert!(seen == expected, "seen: {only_seen:?}, unseen: {unseen:?}, {options:?}");
    }

    #[test]
    fn what_vanishes_hides_nothing_else(
        nodes in nodes(),
        victims in prop::collection::vec(any::<Index>(), 1..20),
        options in options(),
        mask in select(vec![0, libc::STATX_SIZE]),
    ) {
        let tree = Tree::new();
        let paths = make(&tree, &nodes);
        let options = Options { follow: Follow::Never, max_depth: None, ..options };
        // The root is never removed.
        let victims = victims.iter().map(|victim| victim.get(&paths).clone()).filter(|path| *path != tree.0);
        let victims: Vec<PathBuf> = victims.collect();
        let thief = Thief {
            victims: Mutex::new(victims.clone()),
            visited: Mutex::default(),
            failed: Mutex::default(),
            mask,
        };
        walk(&[tree.root()], &options, &thief).unwrap();
        let may_be_gone = |path: &Path| victims.iter().any(|victim| path.starts_with(victim));
        let visited = thief.visited.into_inner().unwrap();
        let seen: BTreeSet<_> = visited.iter().cloned().collect();
        prop_assert_eq!(seen.len(), visited.len(), "something was seen twice");
        let all: BTreeSet<_> = paths.iter().cloned().collect();
        prop_assert!(seen.is_subset(&all));
        let missed: Vec<_> = all.difference(&seen).filter(|path| !may_be_gone(path)).collect();
        let failed = thief.failed.into_inner().unwrap();
        prop_assert!(missed.is_empty(), "missed: {:?} failed: {:?} victims: {:?}, {:?}", missed, failed, victims, options);
        for (path, kind) in failed {
            prop_assert!(may_be_gone(&path) && kind == io::ErrorKind::NotFound, "{path:?}: {kind}");
        }
    }
}
