//! The blocks of code in the pages of the repository. Each block has a kind, the word behind its first fence, and each kind has a test:
//!
//! | kind | what is done with the block |
//! |---|---|
//! | `console` | bash runs every command, in a directory that looks like the root of the sources; each must end well, and print what the page shows. `STAND_INS` names programs that are replaced by others. `NOT_RUN` names commands that are not run: only their grammar is checked, and each subcommand, option, script, make target and variable in them. `VARIES` names output that a page shows and a run here need not print |
//! | `c` | `frontends/liburing/tests/docs.rs` compiles and links each, and runs whole programs |
//! | `rust` | the documentation tests of the crate `anyring` compile and run each: its page is included in `frontends/anyring/src/lib.rs` |
//! | `python` | python3 runs it |
//! | `dockerfile`, `yaml`, `ini` | its form is checked, and the command lines of anyring in it; `quality/places/recipes` uses some |
//! | `text` | no code; `TEXTS` says what it is, and which blocks are parts of the sources |
//!
//! A block of another kind is an error, and so is a row of the tables that no page needs. Commands of anyring in running text are checked like
//! commands that are not run.

#[path = "../support/mod.rs"]
mod support;

mod pages;

use pages::{Block, commands};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use support::{anyring, built};

/// A replacement of a program in the pages: of a placeholder for the reader's program, or of a program that is not on
/// every machine.
struct StandIn {
    name: &'static str,
    what: What,
    why: &'static str,
}

enum What {
    /// A shell script.
    Script(&'static str),
    /// `stories.c`, which reads, writes and syncs files through a ring.
    Ring,
}

/// The stand-in for `docker` and `podman`, which runs the words behind IMAGE on this machine.
const CONTAINER: &str = "\
    [ \"$1\" = run ] || exit 1\n\
    entry=''\n\
    while [ \"$1\" != IMAGE ]; do\n\
        [ \"$1\" != --entrypoint ] || entry=$2\n\
        shift || exit 1\n\
    done\n\
    shift\n\
    [ -n \"$entry\" ] || { entry=$1 && shift; }\n\
    [ \"$entry\" = /anyring ] || exit 1\n\
    exec anyring \"$@\"";

const STAND_INS: &[StandIn] = &[
    StandIn { name: "PROGRAM", what: What::Ring, why: "the reader's" },
    StandIn { name: "./program", what: What::Script("exec ./planted order"), why: "the reader's" },
    StandIn { name: "./server", what: What::Ring, why: "the reader's" },
    StandIn { name: "./test", what: What::Script("true"), why: "the reader's" },
    StandIn {
        name: "docker",
        what: What::Script(CONTAINER),
        why: "no daemon; make test-places has containers",
    },
    StandIn {
        name: "podman",
        what: What::Script(CONTAINER),
        why: "needs root; make test-places has containers",
    },
    StandIn {
        name: "make",
        what: What::Script("PATH=${PATH#*:} exec make --dry-run \"$@\""),
        why: "CI calls the targets",
    },
    StandIn {
        name: "npx",
        what: What::Script("exec \"$@\""),
        why: "would fetch; make check-packages has it",
    },
    StandIn { name: "node", what: What::Ring, why: "not everywhere; quality/programs/node.sh runs it" },
    StandIn { name: "java", what: What::Ring, why: "not everywhere; quality/programs/netty.sh runs it" },
    StandIn { name: "fio", what: What::Ring, why: "not everywhere; quality/programs/fio.sh runs it" },
    StandIn { name: "qemu-io", what: What::Ring, why: "not everywhere; quality/programs/qemu.sh runs it" },
    StandIn { name: "qemu-img", what: What::Ring, why: "not everywhere; quality/programs/qemu.sh runs it" },
    StandIn {
        name: "mariadbd",
        what: What::Ring,
        why: "not everywhere; quality/programs/mariadb.sh runs it",
    },
    StandIn { name: "postgres", what: What::Ring, why: "not everywhere; quality/places/recipes runs it" },
];

/// Commands that are checked but not run: the page, the beginning of the command, and the reason.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("docs/adding-an-operation.md", "git show ", "the sources may be there without their history"),
    ("docs/adding-an-operation.md", "cargo nextest ", "a test of the same run"),
    (
        "docs/chaos.md",
        "anyring chaos --seed 1 --runs 100 --faults ",
        "on versions of crates that make test-chaos-programs builds",
    ),
    (
        "docs/chaos.md",
        "anyring chaos --seed 1 --runs 10 --faults ",
        "on a version of Netty that make test-chaos-programs fetches",
    ),
    ("docs/chaos.md", "cd target/chaos/netty", "make test-chaos-programs makes the directory"),
    ("docs/install.md", "cp ", "installs for the whole machine"),
    ("docs/install.md", "cargo install ", "builds for minutes; make check-packages does so"),
    ("docs/install.md", "python3 -m venv ", "make check-packages does so, with the wheel"),
    ("docs/install.md", "venv/bin/", "needs the wheel; make check-packages does so"),
    ("docs/install.md", "npm install ", "needs the package; make check-packages does so"),
    ("docs/install.md", "dpkg -i ", "installs for the whole machine; make check-packages does so"),
    ("docs/install.md", "podman load ", "needs root and the image; make check-packages does so"),
    ("docs/liburing.md", "export PKG_CONFIG_PATH=", "needs an installation; scripts/check-install does so"),
    ("docs/liburing.md", "cc -o program ", "needs an installation; scripts/check-install does so"),
    ("docs/mutants.md", "cargo install cargo-mutants", "fetches and builds"),
    ("docs/tools.md", "LD_PRELOAD=", "slow where valgrind is emulated; tools/cli/tests/tools.rs runs it"),
    ("docs/top.md", "anyring top", "shows the rings of whoever runs some, or waits for keys"),
    ("docs/trace.md", "anyring trace -p ", "watches a process until it ends"),
    ("CONTRIBUTING.md", "anyring-simulation ", "a command of another package"),
    ("quality/chaos/README.md", "", "takes up to half an hour; make test-chaos-programs"),
    ("quality/programs/README.md", "", "takes minutes; make test-programs"),
    ("quality/bench/README.md", "", "takes minutes; make bench"),
];

/// Commands whose exit status may differ from 0: the page, the beginning of the command, the allowed statuses.
const ENDS: &[(&str, &str, &[i32])] = &[
    ("docs/chaos.md", "anyring chaos -- ./program", &[0, 1]), // by its seed
    ("docs/chaos.md", "anyring chaos --seed 7 --shrink", &[1]),
    ("docs/chaos.md", "anyring chaos --seed 1 --runs 100 -- ./planted order", &[1]),
    ("docs/chaos.md", "anyring chaos --seed 1 --runs 100 --shrink", &[1]),
    ("docs/chaos.md", "anyring chaos --replay few.json ", &[1]),
    ("docs/power-cut.md", "anyring chaos --seed 1 --runs 100 --power-cut --shrink", &[1]),
    ("docs/liburing.md", "LD_LIBRARY_PATH=", &[0, 99]), // what stands in is not linked with liburing: 99 where the kernel denies rings
];

/// Lines that a page shows and a run here need not print: the page, the beginning of the command, a part of the line, and
/// the reason.
const VARIES: &[(&str, &str, &str, &str)] = &[
    ("docs/trace.md", "anyring trace -s 4 -e 'slow>1ms'", "FSYNC", "whether the disk is slow"),
    ("docs/trace.md", "anyring trace -k ", "> __libc_start_call_main", "the C library's debug information"),
];

/// The kind of a block of text.
enum Text {
    /// Text for people, which no test can check; a description of it.
    Said(&'static str),
    /// A part of this file, in which `...` stands for lines that are left out.
    PartOf(&'static str),
}

/// All blocks of text: the page, the beginning of the block, and its kind.
const TEXTS: &[(&str, &str, Text)] = &[
    ("ARCHITECTURE.md", "  unmodified program", Text::Said("a drawing of the layers")),
    (
        "ARCHITECTURE.md",
        " frontend ",
        Text::Said("a list of modules; core/engine/tests/suite/layers.rs has their order"),
    ),
    ("ARCHITECTURE.md", " program ", Text::Said("a drawing of a request's way")),
    ("docs/adding-an-operation.md", "pub const WAITID", Text::PartOf("core/engine/src/ops/waitid.rs")),
    ("docs/adding-an-operation.md", "#[both(", Text::PartOf("core/engine/tests/suite/waitid.rs")),
    ("docs/containers.md", "FATAL:", Text::Said("messages of PostgreSQL")),
    ("docs/containers.md", "can't open:", Text::Said("a message of QEMU")),
    ("docs/containers.md", "#!/bin/sh", Text::Said("a script that starts a machine")),
    ("docs/containers.md", "fio: pid", Text::Said("a message of fio")),
    ("docs/containers.md", "error(io):", Text::Said("messages of TigerBeetle and Zig")),
    ("docs/containers.md", "java.lang", Text::Said("a message of Netty")),
    ("docs/tools.md", "qemu-aarch64", Text::Said("a command that needs a library for another machine")),
    ("docs/top.md", "rings: ", Text::Said("a table; tools/cli/tests/outside.rs looks at one")),
    (
        "docs/trace.md",
        "[4711]",
        Text::Said("a trace of a running process; tools/cli/tests/outside.rs makes some"),
    ),
    ("docs/trace.md", "[", Text::Said("a line of anyring trace; tools/trace/tests/text.rs has such lines")),
    ("docs/power-cut.md", "anyring chaos", Text::Said("a command for a program that is not here")),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn blocks() -> Vec<Block> {
    pages::blocks(&root())
}

fn blocks_of(kind: &str) -> impl Iterator<Item = Block> {
    blocks().into_iter().filter(move |block| block.kind == kind)
}

#[test]
fn every_block_is_of_a_kind_that_has_a_test() {
    let mut counts = BTreeMap::<String, usize>::new();
    for block in blocks() {
        let kinds = ["console", "c", "rust", "python", "dockerfile", "yaml", "ini", "text"];
        let place = block.place();
        assert!(
            kinds.contains(&block.kind.as_str()),
            "{place}: no test takes blocks of the kind {:?}",
            block.kind
        );
        *counts.entry(block.kind).or_default() += 1;
    }
    println!("{counts:?}");
}

#[test]
fn texts_are_what_they_are_said_to_be() {
    let mut used = vec![false; TEXTS.len()];
    for block in blocks_of("text") {
        let row =
            TEXTS.iter().position(|(page, start, _)| *page == block.page && block.text.starts_with(start));
        let row = row.unwrap_or_else(|| panic!("{}: TEXTS does not say what this is", block.place()));
        used[row] = true;
        match TEXTS[row].2 {
            Text::Said(what) => assert!(!what.is_empty(), "{}", block.place()),
            Text::PartOf(file) => is_part_of(&block, file),
        }
    }
    all_used("TEXTS", &used, |row| format!("{}: {}", TEXTS[row].0, TEXTS[row].1));
}

/// Checks that the lines of a block are in the file, in this order. A line `...` stands for lines that are left out.
fn is_part_of(block: &Block, file: &str) {
    let source = squeezed(&fs::read_to_string(root().join(file)).unwrap());
    let (mut rest, text) = (source.as_str(), squeezed(&block.text));
    for part in text.split(" ... ") {
        let place = block.place();
        let at = rest
            .find(part)
            .unwrap_or_else(|| panic!("{place}: {file} has no such lines, or not here:\n{part}"));
        rest = &rest[at + part.len()..];
    }
}

/// Returns the text with one blank for each piece of white space.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The picture of the demo shows the commands that the demo runs.
#[test]
fn the_picture_is_of_this_demo() {
    let demo = root().join("demo");
    let picture = fs::read_to_string(demo.join("demo.svg")).unwrap();
    let script = fs::read_to_string(demo.join("run")).unwrap();
    let commands: Vec<&str> =
        script.lines().filter_map(|line| line.strip_prefix("echo \"\\")?.strip_suffix('"')).collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    for command in commands {
        assert!(picture.contains(&format!(">{command}<")), "run demo/picture demo/demo.svg: {command}");
    }
}

/// The picture of a trace has what the page says of it.
#[test]
fn the_picture_of_a_trace_is_one() {
    let picture = fs::read_to_string(root().join("demo/timeline.svg")).unwrap();
    for part in
        ["fio ", "thread ", "ring 1", "io_uring_enter", "READ(", "WRITE(", "submit READ", "complete READ"]
    {
        assert!(picture.contains(part), "run demo/timeline demo/timeline.svg: no {part}");
    }
}

/// The figures in a row of `docs/choose.md` are those of the records that the row names.
#[test]
fn figures_of_a_choice_are_those_of_its_records() {
    let docs = root().join("docs");
    let mut count = 0;
    for row in
        fs::read_to_string(docs.join("choose.md")).unwrap().lines().filter(|line| line.starts_with('|'))
    {
        let targets = row.split("](").skip(1).map(|rest| rest.split([')', '#']).next().unwrap());
        let records: String = targets
            .filter(|target| *target == "device.md" || target.starts_with("benchmarks/"))
            .map(|target| fs::read_to_string(docs.join(target)).unwrap())
            .collect();
        for figure in figures(row) {
            assert!(figures(&records).any(|other| other == figure), "no record has {figure}: {row}");
            count += 1;
        }
    }
    assert!(count >= 40, "{count}");
}

/// Returns the numbers of a text that have two decimals.
fn figures(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.')
        .filter(|word| word.split_once('.').is_some_and(|(whole, part)| !whole.is_empty() && part.len() == 2))
}

fn all_used(table: &str, used: &[bool], row: impl Fn(usize) -> String) {
    let needless = used.iter().position(|used| !used);
    assert!(
        needless.is_none(),
        "{table} has a row that nothing needs: {}",
        row(needless.unwrap_or_default())
    );
}

#[test]
fn rust_is_tested_by_the_crate() {
    let crate_ = root().join("frontends/anyring");
    let source = fs::read_to_string(crate_.join("src/lib.rs")).unwrap();
    let included: Vec<PathBuf> = source
        .split("include_str!(\"")
        .skip(1)
        .map(|rest| crate_.join("src").join(rest.split('"').next().unwrap()).canonicalize().unwrap())
        .collect();
    for block in blocks_of("rust") {
        let is_tested = included.contains(&root().join(&block.page));
        assert!(is_tested, "{}: frontends/anyring/src/lib.rs does not include this page", block.place());
    }
}

#[test]
fn python_runs() {
    for block in blocks_of("python") {
        let mut python = Command::new("python3");
        python.args(["-c", &block.text]).env("PYTHONPATH", root().join("packaging/python"));
        let output = python.env("PYTHONDONTWRITEBYTECODE", "1").output();
        let output = output.unwrap_or_else(|error| panic!("python3 is needed to test: {error}"));
        assert!(output.status.success(), "{}: {output:?}", block.place());
    }
}

#[test]
fn dockerfiles_have_instructions() {
    for block in blocks_of("dockerfile") {
        for line in block.text.lines() {
            let (instruction, rest) = line.split_once(' ').unwrap_or((line, ""));
            let known = ["FROM", "COPY", "ENTRYPOINT", "CMD", "ENV", "RUN"].contains(&instruction);
            assert!(known && !rest.is_empty(), "{}: no instruction: {line}", block.place());
            if rest.starts_with('[') {
                serde_json::from_str::<Vec<String>>(rest).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
            if ["ENTRYPOINT", "CMD", "RUN"].contains(&instruction) {
                checked(&block.place(), &as_command(rest));
            }
        }
    }
}

/// Converts a list of strings to a command line.
fn as_command(line: &str) -> String {
    line.replace("\", \"", " ").replace(['[', ']', '"'], "")
}

#[test]
fn units_have_sections_and_settings() {
    for block in blocks_of("ini") {
        let place = block.place();
        assert!(block.text.starts_with('['), "{place}: a setting before the first section");
        for line in block.text.lines().filter(|line| !line.starts_with('[')) {
            let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("{place}: no setting: {line}"));
            assert!(name.chars().all(char::is_alphanumeric) && !value.is_empty(), "{place}: {line}");
            checked(&place, value);
        }
    }
}

/// Checks lists, keys and their indentation, in the subset of YAML that the pages use; this is no parser.
#[test]
fn yaml_is_indented_and_closed() {
    for block in blocks_of("yaml") {
        let (mut above, mut opens) = (vec![0], true);
        for line in block.text.lines() {
            let place = format!("{}: {line}", block.place());
            let item = line.trim_start_matches(' ');
            let indent = line.len() - item.len();
            assert!(!item.is_empty() && !item.contains('\t'), "{place}");
            above.retain(|level| *level <= indent);
            if above.last() != Some(&indent) {
                assert!(opens, "{place}: indented, and nothing opens above");
                above.push(indent);
            }
            // The words behind a dash are one level deeper.
            let entry = item.strip_prefix("- ").unwrap_or(item);
            if entry.len() < item.len() {
                above.push(indent + 2);
            }
            let (key, value) = entry.split_once(':').unwrap_or(("", entry));
            let value = value.trim();
            let is_key = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
            assert!(is_key || entry.len() < item.len(), "{place}: neither a key nor an item of a list");
            opens = value.is_empty();
            for (open, close) in [('[', ']'), ('{', '}')] {
                assert_eq!(entry.matches(open).count(), entry.matches(close).count(), "{place}");
            }
            if value.starts_with('[') {
                serde_json::from_str::<Vec<String>>(value).unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            checked(&place, &as_command(value));
        }
    }
}

#[test]
fn commands_in_the_text_exist() {
    let mut count = 0;
    for page in pages::pages(&root()) {
        let text = fs::read_to_string(&page).unwrap();
        let mut inside = false;
        for (number, line) in text.lines().enumerate() {
            inside ^= line.starts_with("```");
            for span in line.split('`').skip(1).step_by(2).filter(|_| !inside) {
                if span.split_whitespace().next().is_some_and(|word| word == "anyring" || word == "make") {
                    checked(&format!("{}:{}", page.display(), number + 1), span);
                    count += 1;
                }
            }
        }
    }
    assert!(count >= 100, "{count}");
}

/// Checks a command that is not run, as far as possible.
fn checked(place: &str, command: &str) {
    let output = Command::new("bash").args(["-n", "-c", command]).output().unwrap();
    assert!(output.status.success(), "{place}: {command}: {}", String::from_utf8_lossy(&output.stderr));
    let words: Vec<&str> = command.split(" #").next().unwrap_or_default().split_whitespace().collect();
    for (at, word) in words.iter().enumerate() {
        let rest = &words[at + 1..];
        match word.rsplit('/').next().unwrap() {
            "anyring" if at == 0 || !words[at - 1].starts_with(['-', '>']) => anyring_has(place, rest),
            "make" if at == 0 => make_has(place, rest),
            "cargo" if at == 0 && rest.first() == Some(&"nextest") => has_test(place, rest),
            "cargo" if at == 0 && rest.contains(&"--path") => {
                let path = rest[rest.iter().position(|word| *word == "--path").unwrap() + 1];
                assert!(root().join(path).join("Cargo.toml").exists(), "{place}: no package in {path}");
            }
            _ => {}
        }
    }
    // The command is a script of the sources, with variables before it.
    let (variables, program): (Vec<&str>, Vec<&str>) =
        words.iter().partition(|word| word.split_once('=').is_some_and(|(name, _)| is_variable(name)));
    let Some(program) = program.first().filter(|word| word.contains('/') && !word.starts_with(['/', '<']))
    else {
        return;
    };
    let path = root().join(program);
    let is_made = program.starts_with("target/") || program.starts_with("venv/");
    let script = fs::read_to_string(&path).unwrap_or_default();
    if is_made || !script.starts_with("#!") {
        return;
    }
    let directory = path.parent().unwrap();
    let sources: String = fs::read_dir(directory)
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
        .collect();
    for variable in variables {
        let name = variable.split('=').next().unwrap();
        assert!(sources.contains(name), "{place}: nothing in {} reads {name}", directory.display());
    }
    for option in words.iter().filter(|word| word.starts_with("--")) {
        assert!(script.contains(option), "{place}: {program} has no {option}");
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// Checks that the words of a command are a subcommand of anyring, and options in its help.
fn anyring_has(place: &str, words: &[&str]) {
    let own: Vec<&str> = words.iter().take_while(|word| !["--", "|", ";"].contains(word)).copied().collect();
    let mut names = own.iter().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
    let mut path: Vec<&str> = Vec::new();
    let mut help = help_of(&path).unwrap();
    if let Some(name) = names.find(|name| !name.starts_with('-')) {
        path.push(name);
        help += &help_of(&path).unwrap_or_else(|| panic!("{place}: there is no anyring {name}"));
    }
    for word in own.iter().filter(|word| word.starts_with('-')) {
        let option = word.split(['=', '[']).next().unwrap();
        let is_long = option.len() > 2 && !option.starts_with("--");
        // The options of find are long words with one dash: -name, -type.
        if is_long && path.first() == Some(&"find") {
            continue;
        }
        let known = help.split(|c: char| c.is_whitespace() || "[=<".contains(c));
        let known = known.map(|word| word.trim_matches(|c: char| ",=[.`:'".contains(c)));
        assert!(
            known.clone().any(|word| word == option),
            "{place}: anyring {} has no {option}",
            path.join(" ")
        );
    }
}

/// Returns the text of `--help` of a subcommand, if there is such a subcommand.
fn help_of(path: &[&str]) -> Option<String> {
    static HELPS: Mutex<BTreeMap<String, Option<String>>> = Mutex::new(BTreeMap::new());
    let mut helps = HELPS.lock().unwrap();
    let of = |path: &[&str]| {
        let output = Command::new(anyring()).args(path).arg("--help").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        output.status.success().then_some(text)
    };
    helps.entry(path.join(" ")).or_insert_with(|| of(path)).clone()
}

/// Checks that the words of a call of make are targets and variables of the Makefile.
fn make_has(place: &str, words: &[&str]) {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    for word in words {
        let word = word.trim_matches('\'');
        if let Some((name, _)) = word.split_once('=') {
            if is_variable(name) {
                assert!(makefile.contains(&format!("$({name}")), "{place}: the Makefile reads no {name}");
            }
        } else if !word.contains(['*', '/', '\'']) && !word.starts_with('-') {
            let is_target = makefile.lines().any(|line| line.starts_with(&format!("{word}:")));
            let is_value = words.iter().any(|other| other.contains("='"));
            assert!(is_target || is_value, "{place}: make has no target {word}");
        }
    }
}

/// Checks a command `cargo nextest run -p PACKAGE MODULE::`: the package's test `suite` must have such a module.
fn has_test(place: &str, words: &[&str]) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
    let json: serde_json::Value = serde_json::from_slice(&cargo.output().unwrap().stdout).unwrap();
    let value = |option: &str| words[words.iter().position(|word| *word == option).unwrap() + 1];
    let mut packages = json["packages"].as_array().unwrap().iter();
    let package = packages.find(|package| package["name"] == value("-p"));
    let package = package.unwrap_or_else(|| panic!("{place}: there is no package {}", value("-p")));
    let mut targets = package["targets"].as_array().unwrap().iter();
    let suite = targets.find(|target| target["name"] == "suite").expect("a suite");
    let module = words.last().unwrap().trim_end_matches("::");
    let source = Path::new(suite["src_path"].as_str().unwrap()).with_file_name(module).with_extension("rs");
    assert!(source.exists(), "{place}: there is no {}", source.display());
}

/// Returns a directory for the commands of a page, with the sources, the command where `make` builds it, and stand-ins for
/// other programs.
fn workplace(page: &str) -> PathBuf {
    let name = format!("page-{}-{}", page.replace('/', "-"), std::process::id());
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let release = place.join("target/release");
    fs::create_dir_all(release.join("one-file")).unwrap();
    fs::create_dir_all(place.join("bin")).unwrap();
    for entry in fs::read_dir(root()).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name != "target" && !name.starts_with('.') {
            symlink(entry.path(), place.join(name)).unwrap();
        }
    }
    for name in ["anyring", "libanyring_preload.so", "libanyring_inject.so"] {
        symlink(anyring().with_file_name(name), release.join(name)).unwrap();
    }
    symlink(anyring(), release.join("one-file/anyring")).unwrap();
    // The programs whose sources the pages show.
    let stories = built("stories-debug");
    symlink(&stories, place.join("stories")).unwrap();
    symlink(built("planted"), place.join("planted")).unwrap();
    symlink(built("planted-repaired"), place.join("repaired")).unwrap();
    for name in ["power", "power-repaired"] {
        symlink(built(name), place.join(name)).unwrap();
    }
    for stand_in in STAND_INS {
        let path = match stand_in.name.strip_prefix("./") {
            Some(name) => place.join(name),
            None => place.join("bin").join(stand_in.name),
        };
        match stand_in.what {
            // A copy is made, so that the process has the name of the program that it replaces.
            What::Ring => drop(fs::copy(&stories, &path).unwrap()),
            What::Script(text) => {
                fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
    }
    for file in ["app.py", "app.js", "server.mjs"] {
        fs::write(place.join(file), "print()\n").unwrap();
    }
    place
}

fn run_in(place: &Path, command: &str) -> Output {
    let built = place.join("target/release");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut bash = Command::new("bash");
    bash.args(["-c", command]).current_dir(place);
    bash.env("PATH", format!("{}:{}:{path}", place.join("bin").display(), built.display()));
    // These variables of make would affect the targets that the dry run shows.
    bash.env_remove("CARGO_TARGET_DIR").env_remove("MAKEFLAGS");
    bash.env("ANYRING_ENGINE", "user").output().unwrap()
}

#[test]
fn commands_run_and_print_what_is_shown() {
    let mut used = [vec![false; NOT_RUN.len()], vec![false; ENDS.len()], vec![false; VARIES.len()]];
    let mut workplaces = BTreeMap::new();
    let (mut run, mut checked_only, mut all, mut wrong) = (0, 0, String::new(), String::new());
    for block in blocks_of("console") {
        for command in commands(&block) {
            checked(&command.place, &command.text);
            let pick = |rows: Vec<(&str, &str)>| {
                rows.iter().position(|(page, start)| *page == block.page && command.text.starts_with(start))
            };
            if let Some(row) = pick(NOT_RUN.iter().map(|row| (row.0, row.1)).collect()) {
                used[0][row] = true;
                checked_only += 1;
                continue;
            }
            let ends = pick(ENDS.iter().map(|row| (row.0, row.1)).collect());
            ends.into_iter().for_each(|row| used[1][row] = true);
            let place = workplaces.entry(block.page.clone()).or_insert_with(|| workplace(&block.page));
            let output = run_in(place, &command.text);
            run += 1;
            let _ = writeln!(all, "{}", command.text);
            let said = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
            // A command that ends with `echo $?` prints its status itself.
            let status =
                if command.text.ends_with("echo $?") { 0 } else { output.status.code().unwrap_or(-1) };
            let is_right = ends.map_or(&[0][..], |row| ENDS[row].2).contains(&status);
            if !is_right || output.status.code().is_none() {
                let _ = writeln!(wrong, "{}: {}: {}\n{said}", command.place, command.text, output.status);
            }
            let printed: Vec<String> = said.lines().map(shape).collect();
            for line in command.output.iter().filter(|line| !line.is_empty() && *line != "...") {
                let varies = VARIES.iter().position(|row| {
                    row.0 == block.page && command.text.starts_with(row.1) && line.contains(row.2)
                });
                varies.into_iter().for_each(|row| used[2][row] = true);
                if varies.is_none() && !printed.contains(&shape(line)) {
                    let place = &command.place;
                    let _ = writeln!(wrong, "{place}: {} does not print: {line}\nbut:\n{said}", command.text);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    workplaces.values().for_each(|place| fs::remove_dir_all(place).unwrap());
    println!("{run} commands were run, {checked_only} checked");
    all_used("NOT_RUN", &used[0], |row| format!("{}: {}", NOT_RUN[row].0, NOT_RUN[row].1));
    all_used("ENDS", &used[1], |row| format!("{}: {}", ENDS[row].0, ENDS[row].1));
    all_used("VARIES", &used[2], |row| format!("{}: {}", VARIES[row].0, VARIES[row].2));
    for stand_in in STAND_INS {
        assert!(!stand_in.why.is_empty());
        let is_named = all.split(|c: char| c.is_whitespace()).any(|word| word == stand_in.name);
        assert!(is_named, "STAND_INS has a row that nothing needs: {}", stand_in.name);
    }
}

/// Returns a line without the parts that differ from run to run: numbers, times, and the thread that did a request.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        if !c.is_ascii_digit() {
            shape.push(c);
            continue;
        }
        while rest.peek().is_some_and(|c| c.is_ascii_hexdigit() || ".x".contains(*c)) {
            rest.next();
        }
        shape.push('N');
    }
    for unit in ["Nus", "Nms", "Nns", "Ns"] {
        shape = shape.replace(&format!("<{unit}>"), "<T>");
    }
    let words = shape.split_whitespace().map(|word| match word {
        "Nus" | "Nms" | "Nns" | "Ns" => "T",
        other => other,
    });
    let shape = words.collect::<Vec<_>>().join(" ");
    let ways = [" inline", " caller", " worker N", " readiness"];
    let way = ways.iter().find_map(|way| shape.strip_suffix(way));
    way.map_or(shape.clone(), |start| format!("{start} WAY"))
}
