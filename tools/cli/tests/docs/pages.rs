//! The pages of the repository, and the blocks of code in them. The C test of `frontends/liburing` reads them, too.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::path::{Path, PathBuf};

/// A block between fences.
#[derive(Debug)]
pub struct Block {
    /// The page, from the repository's root.
    pub page: String,
    /// The line of the first fence.
    pub line: usize,
    /// The words after the first fence.
    pub kind: String,
    /// The line before the first fence.
    pub before: String,
    pub text: String,
}

impl Block {
    pub fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }
}

/// Returns all Markdown files below the repository's root, except for built and fetched ones.
pub fn pages(root: &Path) -> Vec<PathBuf> {
    let (mut all, mut directories) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap_or_default();
            // A symbolic link is skipped: its target is read at its own path.
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                // Cargo tags its target directories.
                let is_made = ["target", "work", "venv", "node_modules"].contains(&name.as_str())
                    || entry.path().join("CACHEDIR.TAG").exists();
                if !is_made && !name.starts_with('.') {
                    directories.push(entry.path());
                }
            } else if kind.is_file() && name.ends_with(".md") {
                all.push(entry.path());
            }
        }
    }
    all.sort();
    all
}

/// Returns the blocks of all pages.
pub fn blocks(root: &Path) -> Vec<Block> {
    pages(root).iter().flat_map(|page| blocks_of(root, page)).collect()
}

fn blocks_of(root: &Path, page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).unwrap();
    let page = page.strip_prefix(root).unwrap().display().to_string();
    let (mut all, mut before, mut open) = (Vec::new(), "", None::<Block>);
    for (number, line) in text.lines().enumerate() {
        let place = format!("{page}:{}", number + 1);
        let fence = line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~");
        match &mut open {
            None if fence => {
                let kind = line.strip_prefix("```").filter(|kind| !kind.starts_with('`'));
                let kind = kind
                    .unwrap_or_else(|| panic!("{place}: a block begins with ``` at the line's beginning"));
                let (page, before) = (page.clone(), before.to_owned());
                open = Some(Block {
                    page,
                    line: number + 1,
                    kind: kind.to_owned(),
                    before,
                    text: String::new(),
                });
            }
            None => {
                let is_hidden = line.starts_with("    ") && before.is_empty();
                assert!(!is_hidden, "{place}: a block of code without fences, which no test sees: {line}");
            }
            Some(_) if line == "```" => all.extend(open.take()),
            Some(_) if fence => panic!("{place}: a fence inside a block"),
            Some(block) => block.text.extend([line, "\n"]),
        }
        before = line;
    }
    assert!(open.is_none(), "{page}: a block has no end");
    all
}

/// A command of a console block, with the output that the page shows.
#[derive(Debug)]
pub struct Command {
    pub place: String,
    pub text: String,
    pub output: Vec<String>,
}

/// Returns the commands of a console block: the words after `$ `, over several lines if a line ends with a backslash.
pub fn commands(block: &Block) -> Vec<Command> {
    let (mut all, mut goes_on) = (Vec::<Command>::new(), false);
    for (number, line) in block.text.lines().enumerate() {
        let place = format!("{}:{}", block.page, block.line + 1 + number);
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(text), _) => all.push(Command { place, text: text.to_owned(), output: Vec::new() }),
            (None, Some(command)) if goes_on => command.text.extend(["\n", line]),
            // A comment has a line of its own, if the command leaves no room beside it.
            _ if line.trim_start().starts_with("# ") => {}
            (None, Some(command)) => command.output.push(line.to_owned()),
            (None, None) => panic!("{place}: the block begins with no command: {line}"),
        }
        goes_on = line.ends_with('\\');
    }
    assert!(!all.is_empty(), "{}: a console block without a command", block.place());
    all
}
