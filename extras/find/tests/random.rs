//! Random expressions on random trees: the same paths, in any order, and the same exit status as GNU find.

mod common;

use common::{Tree, Way, difference, difference_of_runs, fifo, gnu, ours, set_times};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::string::string_regex;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

/// A file to be created.
#[derive(Clone, Debug)]
struct File {
    /// The number of the earlier directory that has the file.
    parent: usize,
    name: Vec<u8>,
    kind: Kind,
    mode: u32,
    age: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    Directory,
    Regular(usize),
    Fifo,
    Socket,
    /// A link to the earlier file with this number, or to nothing.
    Link(usize),
    HardLink(usize),
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let odd = select(&b"aab.*?[]\\-!\n \t\xff\xc3\xa9'\"~"[..]);
    let any = proptest::collection::vec(odd, 1..6).prop_filter("dots", |name| name != b"." && name != b"..");
    prop_oneof![
        4 => select(vec![&b"a"[..], b"b", b"ab", b"a.rs", b".a", b"A", b"b.b"]).prop_map(<[u8]>::to_vec),
        3 => any,
    ]
}

fn file() -> impl Strategy<Value = File> {
    let kind = prop_oneof![
        4 => Just(Kind::Directory),
        5 => select(vec![0, 1, 512, 513, 1024, 5000]).prop_map(Kind::Regular),
        1 => Just(Kind::Fifo),
        1 => Just(Kind::Socket),
        3 => (0..40_usize).prop_map(Kind::Link),
        1 => (0..40_usize).prop_map(Kind::HardLink),
    ];
    let mode = select(vec![0o755, 0o644, 0o600, 0o4755, 0o1777, 0o2750, 0o111, 0o000]);
    let age = select(vec![10, 70, 4000, 50_000, 100_000, 250_000, 40_000_000]);
    (0..40_usize, name(), kind, mode, age).prop_map(|(parent, name, kind, mode, age)| File {
        parent,
        name,
        kind,
        mode,
        age,
    })
}

/// Creates the files below `t`, as far as possible.
fn grow(files: &[File]) -> Tree {
    let tree = Tree::empty();
    let now = std::time::SystemTime::now();
    fs::create_dir(tree.at("t")).unwrap();
    let (mut directories, mut all) = (vec![PathBuf::from("t")], vec![PathBuf::from("t")]);
    for file in files {
        let path = directories[file.parent % directories.len()].join(OsStr::from_bytes(&file.name));
        let place = tree.at(&path);
        if fs::symlink_metadata(&place).is_ok() {
            continue;
        }
        let other = |number: usize| tree.at(&all[number % all.len()]);
        let made = match file.kind {
            Kind::Directory => fs::create_dir(&place),
            Kind::Regular(size) => fs::write(&place, vec![b'x'; size]),
            Kind::Fifo => {
                fifo(&place);
                Ok(())
            }
            // The path of a socket must be short.
            Kind::Socket => UnixListener::bind(&place).map(drop),
            Kind::Link(number) if number % 5 == 0 => symlink("nowhere", &place),
            Kind::Link(number) => symlink(other(number), &place),
            Kind::HardLink(number) => fs::hard_link(other(number), &place),
        };
        if made.is_err() {
            continue;
        }
        if matches!(file.kind, Kind::Directory) {
            directories.push(path.clone());
        }
        all.push(path);
        if !matches!(file.kind, Kind::Link(_) | Kind::HardLink(_)) {
            fs::set_permissions(&place, fs::Permissions::from_mode(file.mode)).unwrap();
        }
        set_times(&place, now, file.age, file.age * 2);
    }
    // The other files are older or newer, however fast they were created.
    set_times(&tree.at("t"), now, 1000, 1000);
    // The first reading changes access times.
    gnu(tree.path()).args(["t", "-lname", "x"]).output().unwrap();
    tree
}

fn test() -> impl Strategy<Value = Vec<String>> {
    let one = |words: &'static [&'static str]| select(words).prop_map(|word| vec![word.to_string()]);
    let two = |name: &'static [&'static str], value: &'static [&'static str]| {
        (select(name), select(value)).prop_map(|(name, value)| vec![name.to_string(), value.to_string()])
    };
    prop_oneof![
        one(&["-true", "-false", "-empty", "-readable", "-executable", "-nouser", "-prune"]),
        two(
            &["-name", "-iname"],
            &["a*", "*.rs", "[ab]", "[!a]*", "*", "?", "\\**", "*[[:space:]]*", ".*", "*\\\\*"]
        ),
        two(&["-path", "-ipath"], &["t/a*", "*/b/*", "*.*", "t/?/?", "*[\n]*"]),
        two(&["-lname"], &["*", "nowhere", "*/a"]),
        two(&["-regex", "-iregex"], &["t/[ab]*", ".*a", ".*/\\(a\\|b\\)", "t.*b+", ".*[^a-z]"]),
        two(&["-type", "-xtype"], &["f", "d", "l", "p,s", "f,l"]),
        two(&["-size"], &["0", "1", "+0", "-2", "+512c", "1k", "-3k", "2"]),
        two(&["-mtime", "-atime"], &["0", "1", "+0", "-1", "+1", "-3", "2"]),
        two(&["-mmin", "-amin"], &["1", "-2", "+2", "+60", "-1000"]),
        two(&["-perm"], &["755", "-100", "/222", "-u+r", "/g+x,o+w", "-4000", "0"]),
        two(&["-links"], &["1", "2", "+1", "-3"]),
        two(&["-user", "-uid", "-gid"], &["0"]),
        two(&["-newer", "-anewer", "-samefile"], &["t"]),
    ]
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(String::from).collect()
}

/// Returns words of an expression, in parentheses where other words could split it.
fn expression() -> impl Strategy<Value = Vec<String>> {
    let brackets = |inner: Vec<String>| [vec!["(".into()], inner, vec![")".into()]].concat();
    test().prop_recursive(4, 12, 2, move |inner| {
        let join = |word: &'static [&'static str]| {
            (inner.clone(), select(word), inner.clone())
                .prop_map(|(left, word, right)| [left, words(word), right].concat())
        };
        prop_oneof![
            join(&["-a", "", "-and"]),
            join(&["-o", "-or"]),
            join(&["-a !", "-o !"]),
            // GNU find 4.9 moves tests of names to the left of a comma, which changes the value: here they are on the left already.
            (select(vec!["a*", "*b*"]), select(vec!["-uid 0", "-size +0", "-true", "-links 1"]))
                .prop_map(move |(name, test)| brackets(words(&format!("-name {name} , {test}")))),
            inner.clone().prop_map(brackets),
            inner.clone().prop_map(move |inner| [vec!["!".into()], brackets(inner)].concat()),
        ]
    })
}

fn options() -> impl Strategy<Value = (Vec<String>, Vec<String>)> {
    let before = select(&["", "", "", "-H", "-L", "-P"][..]);
    let behind = select(
        &["", "", "", "-depth", "-mindepth 1", "-maxdepth 2", "-xdev", "-mindepth 2 -maxdepth 3 -depth"][..],
    );
    (before, behind).prop_map(|(before, behind)| (words(before), words(behind)))
}

fn way() -> impl Strategy<Value = Way> {
    select(common::ways())
}

/// Returns a runner of `few` cases, always the same ones; or of as many random ones as ANYRING_FIND_CASES says.
fn runner(few: u32) -> TestRunner {
    let config = Config { cases: few, failure_persistence: None, max_shrink_iters: 60, ..Config::default() };
    match std::env::var("ANYRING_FIND_CASES").ok().and_then(|cases| cases.parse().ok()) {
        Some(cases) => TestRunner::new(Config { cases, ..config }),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    }
}

/// Reports the difference, and the tree on which it was found.
fn explain<T: std::fmt::Debug>(failure: TestError<T>) {
    match failure {
        TestError::Fail(reason, input) => panic!("{reason}\nwith {input:?}"),
        TestError::Abort(reason) => panic!("{reason}"),
    }
}

/// Tests several expressions on each tree, because trees take the most time.
#[test]
fn random_expressions_on_random_trees() {
    let files = proptest::collection::vec(file(), 0..40);
    let lines = proptest::collection::vec((way(), options(), expression()), 12);
    runner(20)
        .run(&(files, lines), |(files, lines)| {
            let tree = grow(&files);
            for (way, (before, behind), expression) in lines {
                let root = vec![String::from("t")];
                let expression = [vec!["(".into()], expression, vec![")".into(), "-print0".into()]].concat();
                let line = [before, root, behind, expression].concat();
                says_the_same(&tree, &line, way)?;
            }
            Ok(())
        })
        .unwrap_or_else(explain);
}

/// Compares GNU find and ours, whose results must be equal for this line.
fn says_the_same<S: AsRef<OsStr> + Debug>(tree: &Tree, line: &[S], way: Way) -> Result<(), TestCaseError> {
    let difference = difference_of_runs(tree.path(), line, 0, way);
    prop_assert!(difference.is_none(), "find {:?} ({:?})\n{}", line, way, difference.unwrap_or_default());
    Ok(())
}

/// Returns the argument of a test, valid or not.
fn argument() -> impl Strategy<Value = Vec<String>> {
    let sign = select(&["", "", "+", "-", "++", "--", "+-", "-+", " ", "- +"][..]);
    let digits = select(
        &[
            "0",
            "1",
            "2",
            "007",
            "08",
            "1e3",
            "1e0",
            "1e400",
            "0x10",
            "1.5",
            ".5",
            "5.",
            "",
            ".",
            "inf",
            "1 ",
            "1,5",
            "2147483648",
            "18446744073709551615",
            "18446744073709551616",
        ][..],
    );
    let number = (sign, digits).prop_map(|(sign, digits)| format!("{sign}{digits}"));
    let unit = select(&["", "c", "w", "b", "k", "M", "G", "K", "T", "cc"][..]);
    let size = (number.clone(), unit).prop_map(|(number, unit)| number + unit);
    let clause = "[ugoa]{0,2}([-+=]([rwxXst]{0,3}|[ugo]|[0-7]{1,2}|644|4755|10000|8)){0,2}";
    let clauses = string_regex(&format!("[-/]?{clause}(,{clause})?")).unwrap();
    let mode = prop_oneof![string_regex("[-/+]{0,2}0{0,3}[0-8]{0,5}").unwrap(), clauses];
    let kinds = "[fdlpsbcDx],{0,2}[fd]?(,[fdl])?";
    let owner = select(
        &[
            "root",
            "0",
            "65534",
            "nosuch",
            "",
            "+0",
            "-1",
            "00",
            " 0",
            "2147483648",
            "4294967295",
            "4294967296",
        ][..],
    );
    let date = select(
        &[
            "@0",
            "@+1",
            "@ 5",
            "@1.",
            "@-1",
            "@",
            "2026-11-22",
            "",
            "yesterday",
            "2026-02-30",
            "2026-13-01",
            "10:30:61",
        ][..],
    );
    let dialect = select(&["emacs", "egrep", "", "x", "EMACS"][..]);
    let file = select(&["t", "nosuch", ""][..]);
    let with = |names: &'static [&'static str], value: BoxedStrategy<String>| {
        (select(names), value).prop_map(|(name, value)| vec![name.to_owned(), value])
    };
    let text = |value: proptest::sample::Select<&'static str>| value.prop_map(String::from).boxed();
    prop_oneof![
        4 => with(
            &[
                "-amin", "-mmin", "-atime", "-mtime", "-uid", "-gid", "-links", "-inum", "-maxdepth", "-mindepth",
            ],
            number.boxed(),
        ),
        2 => with(&["-size"], size.boxed()),
        3 => with(&["-perm"], mode.boxed()),
        1 => with(&["-type", "-xtype"], kinds.boxed()),
        1 => with(&["-user", "-group"], text(owner)),
        1 => with(&["-newermt"], text(date)),
        1 => with(&["-regextype"], text(dialect)),
        1 => with(&["-newer", "-anewer", "-neweraa", "-samefile", "-newermx"], text(file)),
        1 => select(&["-daystart", "-xdev", "-depth", "-noleaf", "-true", "-ignore_readdir_race", "-newermq"][..])
            .prop_map(|word| vec![word.to_owned()]),
    ]
}

/// Returns roots in all forms, and options before them.
fn root() -> impl Strategy<Value = Vec<String>> {
    let roots = [
        "t", "t", "t", "t/", "t//", "./t", "t/.", "t t", "nosuch", "t -", "-H t", "-O3 t", "-O t", "-- t",
        "t )", "t ,",
    ];
    prop_oneof![select(roots.to_vec()).prop_map(words), Just(vec![String::new()])]
}

/// Random arguments are valid for both programs or for neither, and mean the same.
#[test]
fn random_arguments() {
    let files = proptest::collection::vec(file(), 10..30);
    let join = select(&["", "", "-a", "-o", "!", "! !", "-o !"][..]).prop_map(words);
    let line = (root(), select(&["", "", "!"][..]).prop_map(words), argument(), join, argument())
        .prop_map(|(root, not, first, join, second)| [root, not, first, join, second].concat());
    runner(4)
        .run(&(files, proptest::collection::vec((way(), line), 50)), |(files, lines)| {
            let tree = grow(&files);
            for (way, line) in lines {
                for end in [&["-print0"][..], &["-printf", "%f|%h|%P|%p\\0"]] {
                    let line: Vec<&str> =
                        line.iter().map(String::as_str).chain(end.iter().copied()).collect();
                    says_the_same(&tree, &line, way)?;
                }
            }
            Ok(())
        })
        .unwrap_or_else(explain);
}

/// Compares deletions: the deleted paths, and the paths that are left.
#[test]
fn random_deletions() {
    let files = proptest::collection::vec(file(), 0..30);
    runner(20)
        .run(&(files, way(), expression()), |(files, way, expression)| {
            // These tests depend on the order of deletions, or on the minutes between the two runs.
            let changed = ["-xtype", "-links", "-readable", "-executable", "-mmin", "-amin"];
            prop_assume!(!expression.iter().any(|word| changed.contains(&word.as_str())));
            let (theirs, own) = (grow(&files), grow(&files));
            let expression = [vec!["(".into()], expression, vec![")".into()]].concat();
            let line =
                [vec!["t".into(), "-depth".into()], expression, vec!["-delete".into(), "-print0".into()]]
                    .concat();
            let expected = gnu(theirs.path()).args(&line).output().unwrap();
            let got = ours(own.path(), way).args(&line).output().unwrap();
            let said = difference(&got, &expected, 0);
            prop_assert!(said.is_none(), "find {:?} ({:?})\n{}", line, way, said.unwrap_or_default());
            let left = |tree: &Tree| gnu(tree.path()).args([".", "-printf", "%P %y\\0"]).output().unwrap();
            let left = difference(&left(&own), &left(&theirs), 0);
            prop_assert!(left.is_none(), "find {:?} ({:?}) leaves\n{}", line, way, left.unwrap_or_default());
            Ok(())
        })
        .unwrap_or_else(explain);
}

/// Compares fields and listings, byte by byte.
#[test]
fn random_formats() {
    let files = proptest::collection::vec(file(), 0..30);
    let field = select(
        &[
            "%p", "%P", "%f", "%h", "%d", "%s", "%k", "%b", "%m", "%M", "%n", "%i", "%l", "%y", "%Y", "%T@",
            "%A+", "%Ta", "%-7m", "%07d", "%.3p", "%20f", "%u", "%G", "%S", "%H", "%D", "%t",
        ][..],
    );
    let format =
        proptest::collection::vec(field, 1..6).prop_map(|fields| format!("%p:{}\\0", fields.join("|")));
    runner(15)
        .run(&(files, way(), proptest::collection::vec(format, 6)), |(files, way, formats)| {
            let tree = grow(&files);
            for format in formats.iter().map(String::as_str).chain([""]) {
                let (action, end) =
                    if format.is_empty() { (vec!["-ls"], b'\n') } else { (vec!["-printf", format], 0) };
                let expected = gnu(tree.path()).arg("t").args(&action).output().unwrap();
                let got = ours(tree.path(), way).arg("t").args(&action).output().unwrap();
                let difference = difference(&got, &expected, end);
                prop_assert!(
                    difference.is_none(),
                    "{:?} ({:?})\n{}",
                    action,
                    way,
                    difference.unwrap_or_default()
                );
            }
            Ok(())
        })
        .unwrap_or_else(explain);
}
