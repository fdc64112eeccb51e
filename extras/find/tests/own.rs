//! Extensions of anyring: options, order, colours; and failures during a walk.

mod common;

use common::{Engine, Tree, Way, compare, difference, gnu, none, ours, parts, text};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

fn lines(tree: &Tree, way: Way, words: &[&str]) -> Vec<String> {
    let output = ours(tree.path(), way).args(words).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let end = if words.contains(&"-print0") { 0 } else { b'\n' };
    output.stdout.split(|&byte| byte == end).filter(|line| !line.is_empty()).map(text).collect()
}

fn make(tree: &Tree, files: &[&str]) {
    for file in files {
        let path = tree.at(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
}

#[test]
fn a_stable_order() {
    let tree = Tree::empty();
    make(&tree, &["t/b/z", "t/b/a", "t/a/x", "t/a-b", "t/a.c", "t/B", "t/\u{e9}"]);
    let expected = ["t", "t/B", "t/a", "t/a/x", "t/a-b", "t/a.c", "t/b", "t/b/a", "t/b/z", "t/\\xc3\\xa9"];
    // Siblings by the bytes of their names: a, with its entries, before a-b.
    for way in common::ways().into_iter().filter(|way| way.sorted) {
        assert_eq!(lines(&tree, way, &["t"]), expected, "{way:?}");
        assert_eq!(lines(&tree, way, &["t", "-size", "-1000"]), expected, "{way:?}");
        let deep = lines(&tree, way, &["t", "-depth"]);
        assert_eq!(
            deep,
            ["t/B", "t/a/x", "t/a", "t/a-b", "t/a.c", "t/b/a", "t/b/z", "t/b", "t/\\xc3\\xa9", "t"]
        );
        assert_eq!(lines(&tree, way, &["t/b", "t/a", "-print0"]), ["t/b", "t/b/a", "t/b/z", "t/a", "t/a/x"]);
    }
}

#[test]
fn hidden_and_ignored() {
    let tree = Tree::empty();
    make(
        &tree,
        &[
            "r/.git/info/exclude",
            "r/.hidden/x",
            "r/src/a.rs",
            "r/src/a.o",
            "r/src/keep.o",
            "r/src/deep/b.o",
            "r/src/deep/only-here",
            "r/target/x",
            "r/src/target/x",
            "r/excluded",
            "r/src/not\nthis",
        ],
    );
    fs::write(tree.at("r/.gitignore"), "*.o\n/target\n# comment\n").unwrap();
    fs::write(tree.at("r/src/.gitignore"), "!keep.o\nonly-here\n").unwrap();
    fs::write(tree.at("r/.git/info/exclude"), "excluded\n").unwrap();
    let files = |words: &[&str], way| {
        let mut lines =
            lines(&tree, way, &[words, &["-type", "f", "-not", "-path", "*/.git/*", "-print0"]].concat());
        lines.sort();
        lines
    };
    for way in common::ways() {
        let shown = ["r/.gitignore", "r/.hidden/x", "r/src/.gitignore", "r/src/a.rs", "r/src/keep.o"];
        let rest = ["r/src/not\\nthis", "r/src/target/x"];
        let expected = [&shown[..], &rest].concat();
        assert_eq!(files(&["r", "--gitignore"], way), expected, "{way:?}");
        assert_eq!(files(&["--gitignore", "r/src"], way), expected[2..], "{way:?}");
        let slashes: Vec<String> =
            expected[2..].iter().map(|path| path.replace("r/src/", "r/src//")).collect();
        assert_eq!(files(&["r/src//", "--gitignore"], way), slashes, "{way:?}");
        assert_eq!(files(&["r", "--gitignore", "--no-hidden"], way), expected[3..], "{way:?}");
        assert!(lines(&tree, way, &["r/.hidden", "--no-hidden"]).contains(&"r/.hidden/x".into()));
        // Excluded entries are not deleted.
        assert!(!lines(&tree, way, &["r", "--no-hidden", "-depth"]).iter().any(|path| path.contains("/.")));
    }
    let way = common::WAYS[0];
    lines(&tree, way, &["r", "--gitignore", "--no-hidden", "-type", "f", "-delete"]);
    assert!(
        tree.at("r/src/a.o").exists() && tree.at("r/.hidden/x").exists() && !tree.at("r/src/a.rs").exists()
    );
}

#[test]
fn colours() {
    let tree = Tree::empty();
    make(&tree, &["t/d/f.rs", "t/x"]);
    fs::set_permissions(tree.at("t/x"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("nowhere", tree.at("t/l")).unwrap();
    let run = |when: &str| {
        let mut command = ours(tree.path(), Way { sorted: true, ..common::WAYS[0] });
        command.env("LS_COLORS", "di=34:ex=32:or=31:*.rs=35").args(["t", when]);
        text(&command.output().unwrap().stdout)
    };
    let blue = |name: &str| format!("\\x1b[34m{name}\\x1b[0m");
    let expected = format!(
        "{}\\n{}{}\\n{}\\x1b[35mf.rs\\x1b[0m\\n{}\\x1b[31ml\\x1b[0m\\n{}\\x1b[32mx\\x1b[0m\\n",
        blue("t"),
        blue("t/"),
        blue("d"),
        blue("t/d/"),
        blue("t/"),
        blue("t/"),
    );
    assert_eq!(run("--color=always"), expected);
    let plain = "t\\nt/d\\nt/d/f.rs\\nt/l\\nt/x\\n";
    assert_eq!((run("--color=auto").as_str(), run("--colour=never").as_str()), (plain, plain));
}

#[test]
fn options_anywhere() {
    let tree = Tree::empty();
    make(&tree, &["t/a"]);
    for line in [
        &["--sorted", "t", "-name", "a"][..],
        &["t", "--sorted", "--threads", "2", "-name", "a"],
        &["t", "-name", "a", "--threads=2"],
        &["t", "(", "--sorted", "-name", "a", ")"],
        &["-P", "--color", "never", "t", "-name", "a", "-o", "--engine=auto", "-false"],
    ] {
        assert_eq!(lines(&tree, common::WAYS[0], line), ["t/a"], "{line:?}");
    }
    assert_eq!(lines(&tree, common::WAYS[2], &["t", "--no-hidden"]), ["t", "t/a"]);
    for line in
        [&["--threads=0"][..], &["--threads"], &["--engine=x"], &["--color=x"], &["--sorted=x"], &["--x"]]
    {
        let output = ours(tree.path(), common::WAYS[0]).args(line).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line:?}");
        assert!(output.stdout.is_empty() && output.stderr.starts_with(b"anyring find: "), "{line:?}");
    }
    let limit = format!("exec {} t --engine kernel", env!("CARGO_BIN_EXE_anyring-find"));
    let output =
        Command::new("sh").args(["-c", &format!("ulimit -n 4; {limit}")]).current_dir(tree.path()).output();
    let said = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
    assert!(
        said.contains("a ring of the kernel's io_uring cannot be had") && !said.contains("Engine::"),
        "{said}"
    );
    let help = lines(&tree, common::WAYS[0], &["t", "--help"]).join("\n");
    assert!(
        help.contains("-exec") && help.contains("--sorted") && help.lines().all(|line| line.len() <= 110)
    );
    assert!(lines(&tree, common::WAYS[0], &["-version"])[0].starts_with("anyring find "));
}

#[test]
fn roots_from_a_file() {
    let tree = Tree::full();
    let mut failures = Vec::new();
    fs::write(tree.at("roots"), b"t/a\0t/new\nline\0").unwrap();
    fs::write(tree.at("none"), b"").unwrap();
    for way in common::ways() {
        compare(tree.path(), &["-files0-from", "roots", "-print0"], 0, way, &mut failures);
        compare(tree.path(), &["-files0-from", "none"], 0, way, &mut failures);
        compare(tree.path(), &["t", "-files0-from", "roots"], 0, way, &mut failures);
    }
    none(&failures);
}

/// Runs as a user who may not read everything.
#[test]
fn what_cannot_be_read() {
    // SAFETY: takes no argument.
    if unsafe { libc::geteuid() } != 0 {
        anyring_tally::skipped("not root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("find");
    // A separate process copies: a descriptor of ours, open for writing and inherited by another test's child, would cause ETXTBSY.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_anyring-find")).arg(&program).status().unwrap();
    assert!(copied.success());
    let tree = directory.path().join("t");
    for name in ["t/open/below", "t/closed/below", "t/blind/below", "t/list/below"] {
        fs::create_dir_all(directory.path().join(name)).unwrap();
    }
    fs::write(tree.join("open/file"), "").unwrap();
    for (name, mode) in [("closed", 0o700), ("blind", 0o711), ("list", 0o744), ("open/file", 0o600)] {
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let run = |program: &Path, engine: &str, line: &[&str]| {
        let mut command = Command::new(program);
        command
            .current_dir(directory.path())
            .env("LC_ALL", "C")
            .env("ANYRING_ENGINE", engine)
            .uid(65534)
            .gid(65534);
        command.args(line).output().unwrap()
    };
    for engine in ["user", "auto"] {
        for line in [
            &["t"][..],
            &["t", "-empty"],
            &["t", "-readable"],
            &["t", "-writable"],
            &["t", "-executable"],
            &["t", "-size", "+0"],
            &["t", "-size", "+0", "-name", "closed"],
            &["t", "(", "-empty", "-o", "-links", "7", ")", "!", "-name", "*e*"],
            &["t", "-depth"],
            &["t", "-depth", "-delete"],
            &["t", "-name", "closed", "-prune", "-o", "-print"],
            &["t/blind/below", "t/closed/below"],
        ] {
            let (got, expected) = (run(&program, engine, line), run(Path::new("find"), engine, line));
            let difference = difference(&got, &expected, b'\n');
            assert!(difference.is_none(), "{line:?} {engine}\n{}", difference.unwrap());
        }
        // GNU find does not report that it could not query these entries, whose kinds the directory has.
        let output = run(&program, engine, &["t/list", "-mindepth", "1", "-type", "d"]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), "t/list/below\\n".into()));
        let output = run(&program, engine, &["t"]);
        let message = "anyring find: cannot open the directory 't/closed': Permission denied\n";
        assert!(String::from_utf8_lossy(&output.stderr).contains(message), "{output:?}");
        assert_eq!(output.status.code(), Some(1));
    }
}

/// Paths longer than PATH_MAX.
#[test]
fn paths_beyond_the_longest() {
    let tree = Tree::empty();
    let name = "d".repeat(200);
    let script = format!(
        "for i in $(seq 30); do mkdir {name}; cd {name}; done; echo x > file; ln -s file link; mkfifo fifo"
    );
    assert!(Command::new("bash").arg("-c").arg(&script).current_dir(tree.path()).status().unwrap().success());
    let mut failures = Vec::new();
    for way in common::ways() {
        for line in [
            &["."][..],
            &[".", "-type", "f", "-size", "-2", "-print0"],
            &[".", "-name", "link", "-printf", "%l %d %y %s\n"],
            &[".", "-empty"],
            &[".", "-depth", "-name", "f*", "-printf", "%d %f %P\n"],
            &[".", "-name", "file", "-execdir", "cat", "{}", ";"],
            &[".", "-lname", "file", "-xtype", "f"],
        ] {
            compare(tree.path(), line, b'\n', way, &mut failures);
        }
    }
    none(&failures);
    let output =
        ours(tree.path(), common::ways()[1]).args([".", "-mindepth", "1", "-delete"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 0);
    // A root is not longer than PATH_MAX.
    let root = "x".repeat(30_000);
    let output = ours(tree.path(), common::WAYS[0]).args([".", &root]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ".\\n".into()));
}

#[test]
fn characters_of_a_utf8_locale() {
    let tree = Tree::empty();
    make(&tree, &["t/\u{e9}", "t/\u{c9}x", "t/ab", "t/\u{20ac}\u{20ac}"]);
    let mut failures = Vec::new();
    for line in [
        &["t", "-name", "?"][..],
        &["t", "-iname", "\u{e9}*"],
        &["t", "-name", "[!a-z]*"],
        &["t", "-name", "*[[:alpha:]]"],
        &["t", "-regex", "t/."],
        &["t", "-regextype", "posix-extended", "-regex", "t/[^a]{2}"],
        &["t", "-iregex", "t/\u{c9}"],
    ] {
        let run = |mut command: Command| command.env("LC_ALL", "C.UTF-8").args(line).output().unwrap();
        let (got, expected) = (run(ours(tree.path(), common::WAYS[0])), run(gnu(tree.path())));
        failures
            .extend(difference(&got, &expected, b'\n').map(|difference| format!("{line:?}\n{difference}")));
    }
    none(&failures);
}

/// Entries stay whole when several threads print a lot.
#[test]
fn entries_are_not_mixed() {
    let tree = Tree::empty();
    for directory in 0..40 {
        fs::create_dir_all(tree.at(format!("t/{directory}"))).unwrap();
        for file in 0..100 {
            fs::write(tree.at(format!("t/{directory}/{file:0150}")), "").unwrap();
        }
    }
    let expected = gnu(tree.path()).args(["t", "-print0"]).output().unwrap();
    for engine in [Engine::User, Engine::Kernel, Engine::Denied] {
        if matches!(engine, Engine::Kernel) && !common::kernel_works() {
            continue;
        }
        let way = Way { engine, sorted: false, threads: 8 };
        let output = ours(tree.path(), way).args(["t", "-print0"]).output().unwrap();
        assert_eq!(parts(&output.stdout, 0), parts(&expected.stdout, 0), "{way:?}");
    }
}
