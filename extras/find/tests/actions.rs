//! Effects of actions: output byte by byte, removed files, commands that ran.

mod common;

use common::{Tree, Way, compare, difference, none, ours, parts, text, words};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

/// Tests each field of `-printf`, plain and with flags.
#[test]
fn printf() {
    let tree = Tree::full();
    let ways = common::ways();
    let mut failures = Vec::new();
    let mut formats: Vec<String> =
        "abcdDfgGhHiklmMnpPsStuUyY".chars().map(|field| format!("%p|%{field}\\0")).collect();
    for field in "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ+@".chars() {
        formats.push(format!("%p|%T{field}|%A{field}|%C{field}\\0"));
    }
    formats.extend(
        [
            r"%5d|%-5d|%05d|%+d|% d|%.3d|%-+5.2d|\0",
            r"%10p|%-100p|%.3p|%100.5p|%010p|\0",
            r"%m|%#m|%06m|%-6m|%8.5m|%p\0",
            r"%5s|%-5s|%05s|%.1s|%5k|%3b|%12i|%3n|%5U|%-8u|%8G|%p\0",
            r"%12f|%-12f|%.2f|%12h|%.1P|%20l|%2y|%2Y|%15M|%p\0",
            r"%30t|%-40T+|%.10T@|%5TH|%p\0",
            r"%S|%10S|%.2S|%p\0",
            r"\a\b\f\n\r\t\v\\\101\60x\0",
            r"100%% of %p\0",
            r"%p\0\c and no more",
            r"no newline",
        ]
        .map(String::from),
    );
    for (number, format) in formats.iter().enumerate() {
        compare(tree.path(), &["t", "-printf", format], 0, ways[number % ways.len()], &mut failures);
    }
    let line = ["/dev", "-maxdepth", "1", "-printf", "%p %y %M %m %s\\n"];
    compare(tree.path(), &line, b'\n', ways[0], &mut failures);
    let line = ["/proc/self/fd/0", "/dev/null", "-printf", "%p %y %l\\n"];
    compare(tree.path(), &line, b'\n', ways[0], &mut failures);
    none(&failures);
}

/// Tests years that no calendar has, on a file system that can store them.
#[test]
fn times_without_a_date() {
    let Ok(place) = tempfile::tempdir_in("/dev/shm") else {
        anyring_tally::skipped("no /dev/shm");
        return;
    };
    for (name, time) in [("far", "@9000000000000000000.5"), ("old", "1600-01-01"), ("late", "10000-01-01")] {
        let touch = Command::new("touch").args(["-d", time, name]).current_dir(place.path()).status();
        assert!(touch.unwrap().success());
    }
    let mut failures = Vec::new();
    let format = "%t|%T@|%T+|%TS|%TT|%TX|%TY|%Tc|%Ts\\n";
    compare(place.path(), &["far", "old", "late", "-printf", format], b'\n', common::WAYS[2], &mut failures);
    none(&failures);
}

#[test]
fn listings() {
    let tree = Tree::full();
    let mut failures = Vec::new();
    for (number, way) in common::ways().into_iter().enumerate() {
        let line = [&["t", "-ls"][..], &["-L", "t/a", "-ls"], &["t", "-type", "l", "-ls"]][number % 3];
        compare(tree.path(), line, b'\n', way, &mut failures);
        compare(tree.path(), &["/dev/null", "/dev/zero", "-ls"], b'\n', way, &mut failures);
    }
    none(&failures);
}

#[test]
fn several_outputs() {
    let tree = Tree::full();
    let mut failures = Vec::new();
    let names = ["one", "two", "three", "four"];
    let line = words(
        "t -fprint one -type f -fprint0 two -o -type l -fprintf three %p:%l\\n -o -fls four -print -name d -fprint one",
    );
    for way in common::ways() {
        compare(tree.path(), &line, b'\n', way, &mut failures);
        let got = names.map(|name| fs::read(tree.at(name)).unwrap());
        common::gnu(tree.path()).args(&line).output().unwrap();
        for (name, got) in names.iter().zip(got) {
            let expected = fs::read(tree.at(name)).unwrap();
            let end = if *name == "two" { 0 } else { b'\n' };
            assert!(!expected.is_empty());
            assert_eq!(parts(&got, end), parts(&expected, end), "{name} {way:?}");
        }
    }
    let line = ["t/a", "-maxdepth", "0", "-fprint", "/dev/stdout", "-fprint", "/dev/stderr", "-print"];
    let got = ours(tree.path(), common::WAYS[0]).args(line).output().unwrap();
    assert_eq!((text(&got.stdout), text(&got.stderr)), ("t/a\\nt/a\\n".into(), "t/a\\n".into()));
    none(&failures);
}

/// Returns all paths that are left in a directory.
fn left(directory: &Path) -> BTreeSet<String> {
    let output = Command::new("find").arg(".").arg("-print0").current_dir(directory).output().unwrap();
    output.stdout.split(|&byte| byte == 0).map(text).collect()
}

/// Runs GNU find and ours on separate trees, and compares their output and the paths that are left.
fn effects(lines: &[&str], failures: &mut Vec<String>) {
    for (number, line) in lines.iter().enumerate() {
        let ways = common::ways();
        let way = ways[number % ways.len()];
        let (theirs, own) = (Tree::full(), Tree::full());
        let expected = common::gnu(theirs.path()).args(words(line)).output().unwrap();
        let got = ours(own.path(), way).args(words(line)).output().unwrap();
        if let Some(difference) = difference(&got, &expected, b'\n') {
            failures.push(format!("find {line} ({way:?})\n{difference}"));
        }
        let (got, expected) = (left(own.path()), left(theirs.path()));
        if got != expected {
            let (more, less) = (&got - &expected, &expected - &got);
            failures.push(format!("find {line} ({way:?}) leaves {more:?}, removes {less:?}"));
        }
    }
}

#[test]
fn deletion() {
    let mut failures = Vec::new();
    effects(
        &[
            "t -delete",
            "t -delete -print",
            "t -name *.rs -delete",
            "t -type l -delete",
            "t -type d -empty -delete",
            "t -type d -delete",
            "t/d t/a -delete",
            "t/a/ -delete",
            "t/nowhere -delete",
            "t/a -maxdepth 1 -delete",
            "t/a -mindepth 1 -delete -print",
            "t ! -name one -delete",
            "t -depth -name b -prune -o -type f -delete",
            "t -name one -print -delete -name two",
            "-H t/a/to-directory -mindepth 1 -delete",
            "-H t/a/to-directory -delete",
            "t/a/to-directory -delete",
            "t/d/socket t/d/fifo -delete",
            "t -size +1 -delete",
            "t -empty -delete",
        ],
        &mut failures,
    );
    none(&failures);
    // The working directory itself is not deleted.
    let tree = Tree::full();
    let status = ours(&tree.at("t"), common::WAYS[0]).args([".", "-delete"]).status().unwrap();
    assert!(status.success());
    assert_eq!(left(tree.path()), BTreeSet::from(["", ".", "./t"].map(String::from)));
}

#[test]
fn deletion_stays_in_the_tree() {
    let tree = Tree::full();
    fs::create_dir_all(tree.at("outside/below")).unwrap();
    fs::write(tree.at("outside/below/file"), "").unwrap();
    symlink("../outside", tree.at("t/a/out")).unwrap();
    let output = ours(tree.path(), common::WAYS[0]).args(["-L", "t", "-delete"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("-L"), "{output:?}");
    let output = ours(tree.path(), common::WAYS[0]).args(["t", "-delete"]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(tree.at("outside/below/file").exists() && !tree.at("t").exists());
}

/// Exchanges a directory of the tree repeatedly for a link out of the tree while the tree is deleted.
#[test]
fn deletion_against_exchanges() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let tree = Tree::empty();
    fs::create_dir_all(tree.at("outside")).unwrap();
    for number in 0..20 {
        fs::write(tree.at(format!("outside/file{number}")), "").unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (directory, aside) = (tree.at("t/x"), tree.at("aside"));
                if fs::rename(&directory, &aside).is_ok() {
                    let _ = symlink("../outside", &directory);
                    let _ = fs::remove_file(&directory);
                    let _ = fs::rename(&aside, &directory);
                    let _ = fs::remove_dir_all(&aside);
                }
            }
        });
        for (number, way) in common::ways().into_iter().cycle().take(12).enumerate() {
            fs::create_dir_all(tree.at("t/x/y")).unwrap_or(());
            for file in 0..20 {
                let _ = fs::write(tree.at(format!("t/x/y/file{file}")), "");
                let _ = fs::write(tree.at(format!("t/x/file{file}")), "");
            }
            let line = if number % 2 == 0 { "t -delete" } else { "t -name file* -delete" };
            ours(tree.path(), way).args(words(line)).output().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    for number in 0..20 {
        assert!(tree.at(format!("outside/file{number}")).exists());
    }
}

#[test]
fn commands() {
    let mut failures = Vec::new();
    effects(
        &[
            "t -exec echo {} ;",
            "t -type f -exec echo a{}b{}c ;",
            "t -type f -exec false ; -print",
            "t -type f -exec true ; -print",
            "t -type f ! -exec grep -q x {} ; -print",
            "t -name one -exec no-such-command {} ;",
            "t -name one -exec no-such-command {} +",
            "t -name one -exec false {} +",
            "t -name one -exec true {} + -print",
            "t -type f -exec rm {} +",
            "t -type f -exec rm {} ;",
            "t -type d -name a -exec rm -r {} ; -prune",
            "t -type f -execdir echo {} ;",
            "t -execdir ls -A ;",
            "t/a/b/c/file.rs t/d . -maxdepth 0 -execdir ls -d {} ;",
            "t -type f -execdir rm {} ;",
            "t -name one -execdir false {} ; -o -name two -execdir true {} ; -print",
            "t -type f -execdir rm {} +",
            "t -name one -ok echo {} ;",
            "t -name one -exec echo + ;",
            "t -name nothing -exec echo {} +",
            "t -name one -quit",
            "t -name t -print -quit",
            "t/d t/a -maxdepth 0 -print -exec echo did {} ; -quit",
            "t -maxdepth 0 -exec echo {} + -quit",
            "t -maxdepth 0 -print ( -quit , -print )",
            "t -maxdepth 0 -print ! -quit -print",
            "t -maxdepth 0 ( -quit -o -print )",
        ],
        &mut failures,
    );
    none(&failures);
}

fn run(tree: &Tree, way: Way, line: &[&str]) -> Output {
    ours(tree.path(), way).args(line).output().unwrap()
}

#[test]
fn many_at_once() {
    let tree = Tree::empty();
    fs::create_dir(tree.at("t")).unwrap();
    for number in 0..3000 {
        fs::write(tree.at(format!("t/{number:0100}")), "").unwrap();
    }
    for way in common::ways() {
        let output = run(&tree, way, &["t", "-type", "f", "-exec", "sh", "-c", "echo $#", "x", "{}", "+"]);
        let counts: Vec<usize> =
            String::from_utf8_lossy(&output.stdout).lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(counts.iter().sum::<usize>(), 3000, "{way:?}");
        assert!((2..10).contains(&counts.len()), "{counts:?}");
        let output =
            run(&tree, way, &["t", "-type", "f", "-execdir", "sh", "-c", "ls -d -- \"$@\"", "x", "{}", "+"]);
        assert_eq!(parts(&output.stdout, b'\n').len(), 3000, "{way:?}");
    }
}

/// Output before a command precedes the command's output.
#[test]
fn order_of_output() {
    let tree = Tree::full();
    for way in common::ways() {
        let output = run(&tree, way, &["t", "-print", "-exec", "echo", "did", "{}", ";"]);
        let output = String::from_utf8_lossy(&output.stdout)
            .replace("new\nline", "new-line")
            .replace("in\nit", "in-it");
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines.len() > 40);
        for pair in lines.chunks(2) {
            assert_eq!(pair[1], format!("did {}", pair[0]), "{way:?}");
        }
        let output = run(&tree, way, &["t", "-type", "f", "-print0", "-quit"]);
        assert_eq!(parts(&output.stdout, 0).len(), 1, "{way:?}");
    }
}

#[test]
fn questions() {
    use std::io::Write;
    let tree = Tree::full();
    let mut child = ours(tree.path(), Way { sorted: true, ..common::WAYS[0] })
        .args(["t/a", "t/d", "-maxdepth", "0", "-ok", "sh", "-c", "cat; echo $0", "{}", ";", "-print"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"n\nyes\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "t/d\\nt/d\\n");
    assert_eq!(text(&output.stderr), "< sh ... t/a > ? < sh ... t/d > ? ");
}

#[test]
fn a_reader_that_goes() {
    let tree = Tree::full();
    let script = format!("{} --sorted / -xdev | head -n 1", env!("CARGO_BIN_EXE_anyring-find"));
    let output = Command::new("sh").arg("-c").arg(script).current_dir(tree.path()).output().unwrap();
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("/\\n".into(), String::new()));
    let script = format!("{} t > /dev/full", env!("CARGO_BIN_EXE_anyring-find"));
    let output = Command::new("sh").arg("-c").arg(script).current_dir(tree.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "anyring find: cannot write to \\'/dev/stdout\\': No space left on device\\n"
    );
}
