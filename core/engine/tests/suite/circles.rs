//! The files of the engine import in few and small circles. A file that can be understood without those that use it can be
//! tested and changed without them, too.
//!
//! An import is a path, in a `use` or elsewhere, to an item of another file. A path by a re-export leads to the file that has the item. The
//! re-export itself is no import, nor is the call of a method: a file that adds verbs to [`Core`](anyring_engine::ring::Core) is imported
//! by none that calls them.

use std::collections::{BTreeMap, BTreeSet};

use crate::layers::{code, judged};

/// The most files that may import one another.
const LARGEST: usize = 4;

/// The crates that the root of the engine's names as its own modules.
const CRATES: [&str; 3] = ["abi", "os", "wait"];

/// A path, as its names from the root of the crate on.
type Names = Vec<String>;

/// The sources of the engine by the paths of their modules.
struct Modules {
    /// Their code, without tests and comments, by path.
    code: BTreeMap<Names, String>,
    /// Names that a module re-exports, and the paths to what they name.
    exported: BTreeMap<Names, BTreeMap<String, Names>>,
    /// Modules all of whose items a module re-exports.
    exported_whole: BTreeMap<Names, Vec<Names>>,
}

/// The module whose source file has this name below `src/`.
fn module(file: &str) -> Names {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    if path == "lib" { Names::new() } else { path.split('/').map(str::to_owned).collect() }
}

/// The paths of a tree of imports, `a::{b, c::d}`.
fn paths(tree: &str) -> Vec<String> {
    let Some((prefix, list)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let list = list.trim_end().strip_suffix('}').expect("a list of imports ends");
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in list.chars() {
        match letter {
            ',' if depth == 0 => parts.push(String::new()),
            letter => {
                depth += i32::from(letter == '{') - i32::from(letter == '}');
                parts.last_mut().unwrap().push(letter);
            }
        }
    }
    let inner = parts.iter().filter(|part| !part.trim().is_empty()).flat_map(|part| paths(part.trim()));
    inner.map(|path| format!("{}{path}", prefix.trim())).collect()
}

/// The declarations `use ...;` of a source: whether it is public, and its tree; and the rest of the source.
fn declarations(text: &str) -> (Vec<(bool, String)>, String) {
    let (mut found, mut rest, mut open) = (Vec::new(), String::new(), None::<(bool, String)>);
    for line in text.lines() {
        if open.is_none() {
            let (public, after) = match line.strip_prefix("pub") {
                Some(after) => (true, after.trim_start_matches(|c| c != ' ').trim_start()),
                None => (false, line),
            };
            let Some(tree) = after.trim_start().strip_prefix("use ") else {
                rest.extend([line, "\n"]);
                continue;
            };
            open = Some((public, tree.to_owned()));
        } else if let Some((_, tree)) = &mut open {
            tree.push_str(line.trim());
        }
        if let Some((public, tree)) = open.take_if(|(_, tree)| tree.trim_end().ends_with(';')) {
            found.push((public, tree.trim_end().trim_end_matches(';').to_owned()));
        }
    }
    (found, rest)
}

impl Modules {
    fn new() -> Modules {
        let of_engine = |name: &str| name.strip_prefix("core/engine/src/").map(module);
        let sources = judged().into_iter().filter_map(|(name, text)| Some((of_engine(&name)?, code(&text))));
        let mut modules =
            Modules { code: sources.collect(), exported: BTreeMap::new(), exported_whole: BTreeMap::new() };
        let public = |text: &str| declarations(text).0.into_iter().filter(|(public, _)| *public);
        let exports = |(module, text): (&Names, &String)| -> (Names, BTreeMap<String, Names>) {
            let paths: Vec<_> = public(text).flat_map(|(_, tree)| paths(&tree)).collect();
            (module.clone(), paths.iter().filter_map(|path| modules.named(module, path)).collect())
        };
        modules.exported = modules.code.iter().map(exports).collect();
        for (module, exported) in &mut modules.exported {
            let (whole, named): (BTreeMap<_, _>, _) =
                std::mem::take(exported).into_iter().partition(|(name, _)| name.ends_with('*'));
            *exported = named;
            modules.exported_whole.insert(module.clone(), whole.into_values().collect());
        }
        modules
    }

    /// The name by which `module` knows a path, and the path from the root; `None` for another crate's.
    fn named(&self, module: &[String], path: &str) -> Option<(String, Names)> {
        let (path, alias) = path.split_once(" as ").map_or((path, None), |(path, name)| (path, Some(name)));
        let names: Names = path.split("::").map(|name| name.trim().to_owned()).collect();
        let above = names.iter().take_while(|name| *name == "super").count();
        let is_crate =
            names[0] == "crate" && names.get(1).is_some_and(|name| CRATES.contains(&name.as_str()));
        let mut full = match names[0].as_str() {
            _ if is_crate => return None,
            "crate" => names[1..].to_vec(),
            "self" => [module, &names[1..]].concat(),
            "super" => [&module[..module.len() - above], &names[above..]].concat(),
            first if self.code.contains_key(&[module, &[first.to_owned()]].concat()) => {
                [module, &names].concat()
            }
            _ => return None,
        };
        full.pop_if(|last| last == "self");
        if full.pop_if(|last| last == "*").is_some() {
            // By its path, as there may be several.
            return Some((format!("{}::*", full.join("::")), full));
        }
        let name = alias.map(str::to_owned).or_else(|| full.last().cloned());
        Some((name.unwrap_or_default(), full))
    }

    /// True if a module has an item of this name in its own file.
    fn defines(&self, module: &[String], name: &str) -> bool {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let kinds = ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules!"];
        kinds.iter().any(|kind| {
            let item = format!("{kind} {name}");
            self.code[module].match_indices(&item).any(|(at, _)| ends(&self.code[module][at + item.len()..]))
        })
    }

    /// The module in whose file the item of a path is.
    fn file_of(&self, path: &[String]) -> Names {
        let length = (0..=path.len()).rev().find(|&length| self.code.contains_key(&path[..length]));
        let (module, rest) = path.split_at(length.expect("the root is a module"));
        let Some(name) = rest.first() else { return module.to_vec() };
        if let Some(target) = self.exported.get(module).and_then(|exported| exported.get(name)) {
            return self.file_of(&[target, &rest[1..]].concat());
        }
        let whole = self.exported_whole.get(module).filter(|_| !self.defines(module, name));
        let others = whole.into_iter().flatten();
        let has = |other: &&Names| self.code.contains_key(*other) && self.defines(other, name);
        others
            .into_iter()
            .find(has)
            .map_or_else(|| module.to_vec(), |other| self.file_of(&[other, rest].concat()))
    }

    /// The modules whose items a module names.
    fn imports(&self, module: &Names) -> BTreeSet<Names> {
        let (declared, rest) = declarations(&self.code[module]);
        let mut known = BTreeMap::new();
        let mut found = BTreeSet::new();
        for path in declared.iter().filter(|(public, _)| !public).flat_map(|(_, tree)| paths(tree)) {
            let Some((name, path)) = self.named(module, &path) else { continue };
            if self.code.contains_key(&path) {
                known.insert(name, path);
            } else {
                found.insert(self.file_of(&path));
            }
        }
        let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
        // Who may see something is no import.
        let seen_by = rest.split("pub(in ").skip(1).map(|rest| rest.split(')').next().unwrap());
        let rest = seen_by.fold(rest.clone(), |rest, path| rest.replace(&format!("pub(in {path})"), "pub"));
        for path in rest.split(|letter| !is_path(letter)).filter(|path| path.contains("::")) {
            let first = path.split("::").next().unwrap();
            let named = match known.get(first) {
                Some(module) => Some(
                    [module.as_slice(), &path.split("::").skip(1).map(str::to_owned).collect::<Names>()]
                        .concat(),
                ),
                None => self.named(module, path).map(|(_, path)| path),
            };
            found.extend(named.map(|path| self.file_of(&path)));
        }
        found.remove(module);
        // The crate's root re-exports, and has the three calls.
        found.remove(&Names::new());
        found
    }
}

/// All that can be reached from one of the nodes, and it is there itself only if a way leads back.
fn reached<'a>(from: &Names, arrows: &'a BTreeMap<Names, BTreeSet<Names>>) -> BTreeSet<&'a Names> {
    let mut found = BTreeSet::new();
    let mut ahead: Vec<&Names> = arrows[from].iter().collect();
    while let Some(next) = ahead.pop() {
        if found.insert(next) {
            ahead.extend(&arrows[next]);
        }
    }
    found
}

#[test]
fn circles_of_files_are_small() {
    let modules = Modules::new();
    let arrows: BTreeMap<_, _> =
        modules.code.keys().map(|module| (module.clone(), modules.imports(module))).collect();
    let reach: BTreeMap<_, _> = arrows.keys().map(|module| (module, reached(module, &arrows))).collect();
    let circle = |module: &Names| -> BTreeSet<String> {
        let both = reach[module].iter().filter(|other| reach[*other].contains(module));
        both.map(|other| other.join("::")).collect()
    };
    let circles: BTreeSet<_> = arrows.keys().map(circle).filter(|circle| circle.len() > 1).collect();
    assert!(
        circles.contains(&BTreeSet::from(["work::backlog", "work::handover"].map(str::to_owned))),
        "a circle is found: {circles:#?}"
    );
    let large: Vec<_> = circles.iter().filter(|circle| circle.len() > LARGEST).collect();
    assert!(large.is_empty(), "these files import one another: {large:#?}");
}
