//! An entry, as tests and actions see it.

use anyring_walk::{Entry, Follow, Kind, Parent, Root, Statx};

/// An entry of a walk, with its root.
pub struct Look<'a> {
    entry: &'a Entry<'a>,
    roots: &'a [Root],
    follow: Follow,
}

impl<'a> Look<'a> {
    pub fn new(entry: &'a Entry<'a>, roots: &'a [Root], follow: Follow) -> Look<'a> {
        Look { entry, roots, follow }
    }

    /// True if the entry, if it is a link, stands for its target.
    pub fn is_followed(&self) -> bool {
        match self.follow {
            Follow::Always => true,
            Follow::Roots => self.depth() == 0,
            Follow::Never => false,
        }
    }

    pub fn path(&self) -> &[u8] {
        self.entry.path()
    }

    pub fn depth(&self) -> u32 {
        self.entry.depth()
    }

    pub fn kind(&self) -> Kind {
        self.entry.kind()
    }

    pub fn parent(&self) -> Parent<'_> {
        self.entry.parent()
    }

    /// Returns the attributes, if all in `mask` were queried.
    pub fn attributes(&self, mask: u32) -> Option<&Statx> {
        self.entry.attributes_with(mask)
    }

    /// Returns the path of the root as it was given.
    pub fn root(&self) -> &[u8] {
        self.roots[self.entry.root()].path()
    }

    /// Returns the number of the root that the entry is or lies below.
    pub fn root_number(&self) -> usize {
        self.entry.root()
    }

    /// Returns the path without the root and the slash after it.
    pub fn below_root(&self) -> &[u8] {
        let below = &self.path()[self.root().len()..];
        below.strip_prefix(b"/").unwrap_or(below)
    }

    /// Returns the last part of the path. For a root whose path ends in slashes, one of them is included.
    pub fn base(&self) -> &[u8] {
        if self.depth() > 0 { self.entry.name() } else { split(self.entry.name()).1 }
    }

    /// Returns the last part of the path, which is compared with patterns.
    pub fn name(&self) -> &[u8] {
        match trimmed(self.base()) {
            b"" => b"/",
            name => name,
        }
    }

    /// Returns the part of the path before the last part and its slash.
    pub fn directory(&self) -> &[u8] {
        if self.depth() == 0 {
            return split(self.path()).0;
        }
        &self.path()[..self.path().len() - self.entry.name().len() - 1]
    }

    /// Returns the path of the directory that contains the entry, which is a root.
    pub fn directory_of_root(&self) -> &[u8] {
        match split(trimmed(self.path())).0 {
            b"" => b"/",
            directory => directory,
        }
    }
}

fn trimmed(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1)]
}

/// Splits a root's path at the last slash that has a name after it. The name is returned with one of the slashes after
/// it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let name = trimmed(path);
    if name.is_empty() {
        return (&path[..path.len().saturating_sub(1)], b"/");
    }
    let named = &path[..path.len().min(name.len() + 1)];
    match name.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &named[slash + 1..]),
        // As in GNU find.
        None => (path.strip_suffix(b"/").unwrap_or(b"."), named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_in_two() {
        for (path, directory, base) in [
            ("a", ".", "a"),
            ("a/", "a", "a/"),
            ("a/b//", "a", "b/"),
            ("a//", "a/", "a/"),
            ("./a", ".", "a"),
            ("/a", "", "a"),
            ("/", "", "/"),
            (".", ".", "."),
            ("a/..", "a", ".."),
        ] {
            assert_eq!(split(path.as_bytes()), (directory.as_bytes(), base.as_bytes()), "{path}");
        }
    }
}
