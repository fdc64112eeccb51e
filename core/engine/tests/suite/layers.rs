//! The engine's modules import downwards only: a module may use those below it, never one above. So what a part does
//! can be understood, tested and changed without what is built on it. The words of the whole workspace are looked at here, too.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom to the top. Verbs of the ring stand with what they are about, so requests, work and the ring name one another:
/// by files they import downwards, too (`circles.rs`). What a simulation asks is about the whole engine.
const LAYERS: [&[&str]; 7] = [
    &["process"],
    &["assets"],
    &["queue"],
    &["request", "work", "ring"],
    &["ops"],
    &["calls"],
    &["frontend", "simulation"],
];
/// Folders with files of several layers: what a ring keeps of a feature is far below its registration.
const THROUGH_ALL: [&str; 2] = ["feature", "observe"];

/// The folder of sources that are not the repository's: liburing's.
const FETCHED: &str = "quality/conformance/work";

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with(FETCHED) {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// A source file without its tests and comments.
pub fn code(text: &str) -> String {
    let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules below the crate's root that a source file names, tests and comments left out.
fn imports(text: &str) -> BTreeSet<String> {
    let code = code(text);
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let behind = &code[at + "crate::".len()..];
        let names = match behind.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default().split(',').collect(),
            None => vec![behind],
        };
        for name in names {
            let name = name.trim_start();
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            found.insert(name[..end].to_owned());
        }
    }
    found
}

#[test]
fn imports_go_downwards() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    let mut files = Vec::new();
    sources(&source, &mut files);
    let mut upwards = BTreeSet::new();
    for file in files {
        let name = file.strip_prefix(&source).unwrap();
        let module = name.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if module == "lib" || THROUGH_ALL.contains(&module) {
            continue;
        }
        let own = layer(module).unwrap_or_else(|| panic!("the module {module} has no layer"));
        for import in imports(&fs::read_to_string(&file).unwrap()) {
            // What is below requests knows no feature of rings.
            let is_above = match layer(&import) {
                Some(other) => other > own,
                None => THROUGH_ALL.contains(&import.as_str()) && own < layer("request").unwrap(),
            };
            if is_above {
                upwards.insert(format!("{} {import}", name.display()));
            }
        }
    }
    assert!(upwards.is_empty(), "these files import from a layer above their own: {upwards:#?}");
}

/// The op table is the one place that tells operations apart: everything else asks the row of a request.
#[test]
fn opcodes_stand_in_rows_only() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src"), &mut files);
    let mut elsewhere = Vec::new();
    for file in files {
        let code = code(&fs::read_to_string(&file).unwrap());
        for (at, _) in ["io_uring_op::IORING_OP_", "Code::IORING_OP_", "op!(IORING_OP_"]
            .iter()
            .flat_map(|name| code.match_indices(name))
        {
            let before = &code[..at];
            let item = &before[before.rfind("\n\n").unwrap_or(0)..];
            let is_row = item.contains(": Row =") || item.contains("ROWS: &[Row] =");
            let is_bound = code[at..].split("IORING_OP_").nth(1).unwrap().starts_with("LAST");
            if !is_row && !is_bound {
                elsewhere.push(format!("{}: {}", file.display(), code[at..].lines().next().unwrap()));
            }
        }
        for compared in ["op.code ==", "op.code !=", "match request.op.code", "match op.code"] {
            if code.contains(compared) {
                elsewhere.push(format!("{}: {compared}", file.display()));
            }
        }
    }
    assert!(elsewhere.is_empty(), "opcodes outside rows: {elsewhere:#?}");
}

/// Words with which a sentence withholds its subject.
const WITHOUT_SUBJECT: [&str; 11] =
    ["What", "It", "Those", "The same", "Both", "Who", "Whose", "Another", "Somebody", "They", "These"];

/// The folders of the workspace's crates.
const CRATES: [&str; 5] = ["core", "extras", "frontends", "quality", "tools"];

/// The sources of the workspace, each with its name.
pub fn judged() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../..");
    let mut files = Vec::new();
    CRATES.iter().for_each(|folder| sources(&root.join(folder), &mut files));
    let name = |file: &Path| file.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    files.iter().map(|file| (name(file), fs::read_to_string(file).unwrap())).collect()
}

/// A doc comment begins with a noun of the code or of the field, or with a verb whose subject is the function.
#[test]
fn doc_comments_name_their_subjects() {
    let withholds = |text: &str| {
        let begins = |word: &&str| {
            text.strip_prefix(*word).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        };
        WITHOUT_SUBJECT.iter().any(begins)
    };
    let mut found = Vec::new();
    for (name, text) in judged() {
        let mut in_comment = false;
        for (line, number) in text.lines().map(str::trim_start).zip(1..) {
            let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            let first = comment.filter(|_| !in_comment).map(str::trim_start);
            if first.is_some_and(withholds) {
                found.push(format!("{name}:{number}: {line}"));
            }
            in_comment = comment.is_some();
        }
    }
    assert!(found.is_empty(), "these doc comments begin without a subject: {found:#?}");
}

/// A function with the name of a question changes nothing; one that changes something is a verb with its object.
#[test]
fn questions_change_nothing() {
    let mut found = Vec::new();
    for (name, text) in judged() {
        let code = code(&text);
        for question in ["fn is_", "fn has_", "fn are_"] {
            for (at, _) in code.match_indices(question) {
                let signature = code[at..].split(['{', ';']).next().unwrap();
                if signature.contains("&mut self") {
                    found.push(format!("{name}: {}", signature.trim_end()));
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "these functions have the names of questions, and change something: {found:#?}"
    );
}

/// `Core` composes a few parts of a ring, each with one owner; code that wants to change one goes through what it offers.
#[test]
fn core_is_few_parts_and_shows_none() {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/ring/mod.rs")).unwrap();
    let body = text.split("\npub struct Core {\n").nth(1).unwrap().split("\n}\n").next().unwrap();
    let fields: Vec<_> = body.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    assert!(fields.len() <= 15, "Core has {} fields", fields.len());
    let public: Vec<_> = fields.iter().filter(|line| line.trim_start().starts_with("pub")).collect();
    assert!(public.is_empty(), "these fields of Core can be seen from outside: {public:#?}");
}

/// The name with which a text begins.
fn name(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
}

/// An operation has an `Attempt`. The whole ring is for the steps that a row marks as such, and for what these call.
#[test]
fn only_marked_steps_have_the_whole_ring() {
    let mut unmarked = Vec::new();
    let has_rows = |file: &str| file.contains("/src/ops/") || file.ends_with("/ops.rs");
    for (file, text) in judged().into_iter().filter(|(file, _)| has_rows(file)) {
        let code = code(&text);
        let private = code.split("\nfn ").skip(1);
        let functions: Vec<_> = private.chain(code.split("\npub fn ").skip(1)).collect();
        let names = |mark| code.split(mark).skip(1).map(name);
        let mut marked: BTreeSet<_> = names(".control(").chain(names("Expiry::Control(")).collect();
        if code.contains(": Depart = ") {
            marked.insert("depart");
        }
        let mut known = 0;
        while known < marked.len() {
            known = marked.len();
            for function in &functions {
                let body = function.split("\n}").next().unwrap();
                let calls = |other: &&str| body.contains(&format!("{}(", name(other)));
                if marked.contains(name(function)) {
                    marked.extend(functions.iter().copied().filter(calls).map(name));
                }
            }
        }
        let takes_ring = |function: &&&str| {
            let signature = function.split('{').next().unwrap();
            signature.contains("&mut Core,") || signature.contains("&Core,")
        };
        let taking = functions.iter().filter(takes_ring).map(|function| name(function));
        unmarked.extend(taking.filter(|name| !marked.contains(name)).map(|name| format!("{file}: {name}")));
        let leaks = ["impl Core", ".core()", ".core_mut()"].into_iter().filter(|leak| code.contains(leak));
        unmarked.extend(leaks.map(|leak| format!("{file}: {leak}")));
    }
    assert!(unmarked.is_empty(), "these have the whole ring, and no row says so: {unmarked:#?}");
}

/// The engine reports each step that a trace knows.
#[test]
fn every_step_of_a_trace_is_reported() {
    let sources = judged();
    let text = |wanted: &str| &sources.iter().find(|(name, _)| name == wanted).unwrap().1;
    let steps =
        text("core/trace/src/event.rs").split("Step: u32 {").nth(1).unwrap().split("\n    }").next().unwrap();
    let steps = steps.lines().filter_map(|line| line.trim().split_once(" = ").map(|(step, _)| step));
    let is_engine = |name: &String| name.starts_with("core/engine/src/");
    let told = |step: &&str| {
        sources
            .iter()
            .filter(|(name, _)| is_engine(name))
            .any(|(_, text)| text.contains(&format!("Step::{step}")))
    };
    let untold: Vec<_> = steps.filter(|step| !told(step)).collect();
    assert!(untold.is_empty(), "no code tells of these steps: {untold:?}");
}

/// A file of tests that `main.rs` does not name is never compiled, and its tests never run.
#[test]
fn every_file_of_the_suite_is_in_it() {
    let suite = "core/engine/tests/suite/";
    let sources = judged();
    let files = sources.iter().filter_map(|(name, _)| name.strip_prefix(suite)?.strip_suffix(".rs"));
    let main = &sources.iter().find(|(name, _)| name.strip_prefix(suite) == Some("main.rs")).unwrap().1;
    let named = |file: &&str| ["lib", "main"].contains(file) || main.contains(&format!("\nmod {file};\n"));
    let missing: Vec<_> = files.filter(|file| !named(file)).collect();
    assert!(missing.is_empty(), "{suite}main.rs lacks `mod` lines for {missing:?}");
}
