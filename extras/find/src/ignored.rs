//! `--gitignore`: patterns of `.gitignore` files, in the tree and above it up to the top of its repository, and of
//! the repository's and the user's own lists.

use crate::files;
use crate::look::Look;
use anyring_walk::{Kind, Root};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

/// The lists that apply to a walk.
pub struct Ignored {
    /// Lists by the path of the directory that has the file.
    inside: RwLock<HashMap<Vec<u8>, Arc<Gitignore>>>,
    /// For each root, the lists above it, the nearest first, with the path from there to the root.
    above: Vec<Vec<(Gitignore, PathBuf)>>,
}

impl Ignored {
    pub fn new(roots: &[Root]) -> Ignored {
        let above = roots.iter().map(|root| above(Path::new(OsStr::from_bytes(root.path())))).collect();
        Ignored { inside: RwLock::default(), above }
    }

    /// Reads the list of a directory that is entered; it applies to the entries there.
    pub fn enter(&self, look: &Look<'_>) {
        let Some(content) = files::read_in(look.parent(), ".gitignore") else { return };
        let mut inside = self.inside.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        inside.insert(look.path().to_vec(), Arc::new(list(&content)));
    }

    /// True if an entry is ignored: the nearest list that names it decides.
    pub fn hides(&self, look: &Look<'_>) -> bool {
        let (path, root) = (look.path(), look.root().len());
        let directory = look.kind() == Kind::Directory;
        let named = |list: &Gitignore, path: &[u8]| match list.matched(OsStr::from_bytes(path), directory) {
            Match::None => None,
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
        };
        let inside = self.inside.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut end = path.len() - look.name().len();
        while end >= root && !inside.is_empty() {
            // The root may end in slashes, which are all in its key.
            let key = if end > root {
                path[..end].strip_suffix(b"/").unwrap_or(&path[..end])
            } else {
                &path[..root]
            };
            let key = if key.len() < root { &path[..root] } else { key };
            if let Some(hidden) = inside.get(key).and_then(|list| named(list, &path[end..])) {
                return hidden;
            }
            if key.len() == root {
                break;
            }
            end = root.max(key.iter().rposition(|&byte| byte == b'/').map_or(root, |slash| slash + 1));
        }
        drop(inside);
        let below = look.below_root();
        let above = &self.above[look.root_number()];
        let found = above.iter().find_map(|(list, prefix)| named(list, &joined(prefix, below)));
        found.unwrap_or(false)
    }
}

fn joined(prefix: &Path, below: &[u8]) -> Vec<u8> {
    prefix.join(OsStr::from_bytes(below)).into_os_string().into_encoded_bytes()
}

/// Parses the patterns of a list. As in git, lines without a pattern are skipped.
fn list(content: &[u8]) -> Gitignore {
    let mut builder = GitignoreBuilder::new("");
    for line in String::from_utf8_lossy(content).lines() {
        let _ = builder.add_line(None, line);
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

/// Returns the lists above a root.
fn above(root: &Path) -> Vec<(Gitignore, PathBuf)> {
    let mut lists = Vec::new();
    let Ok(real) = root.canonicalize() else { return lists };
    let top = real.ancestors().find(|directory| directory.join(".git").exists());
    let inside = |directory: &Path| real.strip_prefix(directory).unwrap_or(&real).to_path_buf();
    let read = |path: PathBuf| std::fs::read(path).ok();
    if let Some(top) = top {
        for directory in real.ancestors().skip(1).take_while(|directory| directory.starts_with(top)) {
            if let Some(content) = read(directory.join(".gitignore")) {
                lists.push((list(&content), inside(directory)));
            }
        }
        if let Some(content) = read(top.join(".git/info/exclude")) {
            lists.push((list(&content), inside(top)));
        }
    }
    let base = top.map(inside).unwrap_or_default();
    let users = ignore::gitignore::gitconfig_excludes_path();
    if let Some(content) = users.and_then(read) {
        lists.push((list(&content), base));
    }
    lists
}
