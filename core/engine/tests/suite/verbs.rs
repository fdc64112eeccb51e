//! Few methods of the whole ring are there for others. A verb belongs to the part whose state it changes; a verb of the whole ring that one
//! folder needs is seen in that folder only; and one that operations need is a method of `Attempt` or `Lent`.

use crate::layers::{code, judged};

/// The most methods of `Core` that may be seen beyond the folder of their file. The number falls, and never rises.
const MOST: usize = 96;

/// The folder in which an item of the file can be seen, as its path below `src/`, by the item's visibility.
fn seen_in(file: &str, visibility: &str) -> String {
    let module = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let above = |levels: usize| {
        let names: Vec<_> = module.split('/').collect();
        names[..names.len() - levels].join("/")
    };
    let path = visibility.trim_start_matches("pub").trim().trim_start_matches('(').trim_end_matches(')');
    match path.trim_start_matches("in ") {
        "" | "crate" => String::new(),
        "super" => above(1),
        path if path.starts_with("super") => above(path.matches("super").count()),
        path => path.trim_start_matches("crate::").replace("::", "/"),
    }
}

/// The methods of `Core` that are seen beyond the folder of their file.
fn seen_beyond_their_folders() -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in judged() {
        let Some(file) = name.strip_prefix("core/engine/src/") else { continue };
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let code = code(&text);
        let blocks = code.split("\nimpl Core {\n").skip(1).map(|rest| rest.split("\n}").next().unwrap());
        for line in blocks.flat_map(str::lines) {
            let item = line.strip_prefix("    ").filter(|item| item.starts_with("pub"));
            let Some((visibility, method)) = item.and_then(|item| item.split_once(" fn ")) else { continue };
            let visibility = visibility.trim_end_matches(" const").trim_end_matches(" unsafe");
            let seen = seen_in(file, visibility);
            if seen != folder && !seen.starts_with(&format!("{folder}/")) {
                found.push(format!("{file}: {}", method.split(['(', '<']).next().unwrap()));
            }
        }
    }
    found
}

#[test]
fn few_methods_of_the_whole_ring_are_seen_beyond_their_folders() {
    let found = seen_beyond_their_folders();
    assert!(
        found.len() <= MOST,
        "{} methods of `Core` are seen beyond their folders, {MOST} may be. A new one is seen in its folder only (`pub(in crate::...)`), or is \
         a method of `Attempt`, `Lent` or the part of `Core` that it changes: {found:#?}",
        found.len()
    );
    assert_eq!(found.len(), MOST, "fewer are seen now: `MOST` falls, too");
}
