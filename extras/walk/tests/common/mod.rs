//! Helpers that the tests of the walk share: trees to walk through, and a visitor that records what it sees.
#![allow(dead_code, reason = "each test uses a part")]

use anyring_walk::{Entry, Failure, Kind, Options, Root, Step, Visitor, What, walk};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed on drop.
pub struct Tree(pub PathBuf);

impl Tree {
    pub fn new() -> Tree {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("anyring-walk-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Tree(path)
    }

    pub fn root(&self) -> Root {
        Root::new(self.0.as_os_str().as_bytes())
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    pub fn directory(&self, name: impl AsRef<Path>) {
        std::fs::create_dir_all(self.path(name)).unwrap();
    }

    pub fn file(&self, name: impl AsRef<Path>) {
        std::fs::write(self.path(name), "x").unwrap();
    }

    pub fn link(&self, to: &str, name: impl AsRef<Path>) {
        std::os::unix::fs::symlink(to, self.path(name)).unwrap();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // The standard library's removal has trouble with paths that are too long.
        Command::new("rm").arg("-rf").arg(&self.0).status().unwrap();
    }
}

/// An event, ordered thread by thread.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Visited(Vec<u8>),
    Left(Vec<u8>),
    Failed(Vec<u8>, String),
}

/// Records all entries; enters every directory.
#[derive(Default)]
pub struct Scribe {
    pub events: Mutex<Vec<Event>>,
    pub mask: u32,
}

impl Visitor for Scribe {
    type Local = Vec<Event>;

    fn local(&self) -> Vec<Event> {
        Vec::new()
    }

    fn visit(&self, local: &mut Vec<Event>, entry: &Entry<'_>) -> Step {
        if self.mask != 0 && entry.attributes_with(self.mask).is_none() {
            return Step::Attributes(self.mask);
        }
        if let Some(attributes) = entry.attributes() {
            assert_eq!(Kind::of_mode(attributes.stx_mode.into()), entry.kind());
        }
        assert!(entry.path().ends_with(entry.name()));
        local.push(Event::Visited(entry.path().to_vec()));
        Step::Descend
    }

    fn leave(&self, local: &mut Vec<Event>, entry: &Entry<'_>) -> Step {
        assert_eq!(entry.kind(), Kind::Directory);
        local.push(Event::Left(entry.path().to_vec()));
        Step::Skip
    }

    fn failed(&self, local: &mut Vec<Event>, failure: &Failure) {
        let what = match failure.what() {
            What::Loop(of) => format!("loop of {}", String::from_utf8_lossy(of)),
            what => format!("{what:?} {:?}", failure.error().raw_os_error().unwrap()),
        };
        local.push(Event::Failed(failure.path().to_vec(), what));
    }

    fn finish(&self, mut local: Vec<Event>) {
        self.events.lock().unwrap().append(&mut local);
    }
}

/// Returns the events of a walk.
pub fn events(roots: &[Root], options: &Options, mask: u32) -> Vec<Event> {
    let scribe = Scribe { mask, ..Scribe::default() };
    walk(roots, options, &scribe).unwrap();
    scribe.events.into_inner().unwrap()
}

/// Returns the paths that are visited, sorted.
pub fn visited(events: &[Event]) -> Vec<String> {
    let visited = |event: &Event| match event {
        Event::Visited(path) => Some(shown(path)),
        _ => None,
    };
    let mut paths: Vec<_> = events.iter().filter_map(visited).collect();
    paths.sort();
    paths
}

/// Returns the paths that are left, sorted.
pub fn left(events: &[Event]) -> Vec<String> {
    let left = |event: &Event| match event {
        Event::Left(path) => Some(shown(path)),
        _ => None,
    };
    let mut paths: Vec<_> = events.iter().filter_map(left).collect();
    paths.sort();
    paths
}

/// Returns the failures, by path.
pub fn failures(events: &[Event]) -> BTreeMap<String, String> {
    let failed = |event: &Event| match event {
        Event::Failed(path, why) => Some((shown(path), why.clone())),
        _ => None,
    };
    events.iter().filter_map(failed).collect()
}

/// Returns the paths that GNU find prints, sorted.
pub fn find(before: &[&str], roots: &[&Path], after: &[&str]) -> Vec<String> {
    let mut command = Command::new("find");
    command.args(before).args(roots).args(after).arg("-print0");
    let output = command.output().unwrap();
    let mut paths: Vec<String> =
        output.stdout.split(|&byte| byte == 0).filter(|path| !path.is_empty()).map(shown).collect();
    paths.sort();
    paths
}

/// Returns a printable path.
pub fn shown(path: &[u8]) -> String {
    path.escape_ascii().to_string()
}
