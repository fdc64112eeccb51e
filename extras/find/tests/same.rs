//! Compares paths, output and exit status with GNU find, expression by expression.

mod common;

use std::fs;
use std::process::Command;

use common::mounted::mounted;
use common::{Tree, compare, difference, gnu, none, ours, text, words};

/// Expressions without an action, judged by the output of `-print0`.
const TESTS: &[&str] = &[
    "",
    "-name *file*",
    "-name f[i]*.[!a-q]?",
    "-name [[:upper:]]*",
    "-name \\[x\\]",
    "-name star\\*",
    "-name back\\\\slash",
    "-name *\\",
    "-name [",
    "-name .",
    "-name t",
    "-name .*",
    "-name *\n*",
    "-name ?????",
    "-iname FILE*",
    "-iname *.rs",
    "-path t/a/*",
    "-wholename *b*c*",
    "-ipath T/A*",
    "-iwholename *B*C*",
    "-path t/.h*y",
    "-lname no*",
    "-lname *",
    "-ilname NO*",
    "-regex .*file.*",
    "-regex t/[a-c]/\\(b\\|file\\)+",
    "-iregex T/A/.*",
    "-regex .*(x).*",
    "-regex .*line.*",
    "-regextype posix-basic -regex .*l\\{1,2\\}e.*",
    "-regextype posix-extended -regex .*(file|one)(\\.[a-z]{2})?",
    "-regextype posix-extended -iregex .*[[:space:]].*",
    "-regextype posix-egrep -regex t/(a|d)/[^/]+",
    "-regextype egrep -regex .*\\bone",
    "-regextype grep -regex .*\\(e\\|o\\)",
    "-regextype ed -regex .*l\\+.*",
    "-regextype sed -regex t.d.*[^a-z]",
    "-regextype findutils-default -regex .*line.*",
    "-regextype emacs -regex t/a.*$",
    "-type f",
    "-type d",
    "-type l",
    "-type p",
    "-type s",
    "-type f,l",
    "-type b,c",
    "-xtype f",
    "-xtype d",
    "-xtype l",
    "-xtype c,d",
    "-size 0",
    "-size 1",
    "-size +1",
    "-size -2",
    "-size 1c",
    "-size +511c",
    "-size -513c",
    "-size 256w",
    "-size 1k",
    "-size +1k",
    "-size 2b",
    "-size -1M",
    "-size 1M",
    "-size +0G",
    "-empty",
    "-mtime 0",
    "-mtime 1",
    "-mtime +1",
    "-mtime -2",
    "-mtime -1",
    "-mtime 0.5",
    "-mtime +0.01",
    "-mtime +100",
    "-mmin 2",
    "-mmin -2",
    "-mmin +1",
    "-mmin +83.5",
    "-atime 0",
    "-atime +0",
    "-amin -100",
    "-amin 1",
    "-cmin -60",
    "-ctime 0",
    "-ctime +0",
    "-daystart -mtime 0",
    "-daystart -mtime 1",
    "-daystart -mtime +1",
    "-daystart -mtime -2",
    "-daystart -mmin -60",
    "-mtime 1 -daystart -mtime 1",
    "-newer t/a/file",
    "-newer t/d/tab\there",
    "-anewer t/a/b/File.RS",
    "-cnewer t/d/one",
    "-newermm t/a/b/File.RS",
    "-neweram t/a/b/File.RS",
    "-newermt 2020-01-01",
    "-newermt @1000000000",
    "-newermt 2030-01-01",
    "-newerct 1970-01-01",
    "! -newermt yesterday",
    "-perm 755",
    "-perm 4755",
    "-perm -4000",
    "-perm /7000",
    "-perm /000",
    "-perm -000",
    "-perm 0",
    "-perm +x",
    "-perm -u+x",
    "-perm /u+x,g+w",
    "-perm u=rwx,go=rx",
    "-perm -a=r",
    "-perm /a+X",
    "-perm -+t",
    "-perm -g+s",
    "-perm u=rw,g=u",
    "-user root",
    "-user 0",
    "-user 12345",
    "-group root",
    "-uid 0",
    "-uid +0",
    "-uid -1",
    "-gid 0",
    "-gid -5",
    "-nouser",
    "-nogroup",
    "-links 2",
    "-links +1",
    "-links -2",
    "-links 1",
    "-inum +0",
    "-inum 1",
    "-samefile t/d/one",
    "-samefile t/a/to-file",
    "-readable",
    "-writable",
    "-executable",
    "-maxdepth 0",
    "-maxdepth 1",
    "-mindepth 2",
    "-mindepth 1 -maxdepth 2",
    "-mindepth 3 -maxdepth 2",
    "-name a -prune -o -true",
    "-name a -prune",
    "-mindepth 2 -name b -prune",
    "-depth",
    "-depth -name a -prune",
    "-depth -mindepth 1 -maxdepth 2",
    "-d",
    "-xdev",
    "-mount",
    "-true",
    "-false",
    "-false -o -name c",
    "-name c -o -name d -type f",
    "( -name c -o -name d ) -type d",
    "! -type d",
    "-not -type d ! -name *e*",
    "! ! -type d",
    "! ( -type d -o -type f )",
    "-type d -a -name d",
    "-type d -and -not -name d -or -name one",
    "-name one , -name two",
    "-name one , -name two -o -name c",
    "( -false , -name two )",
    "-type f -size +1 -name *s*",
    "-noleaf -warn -nowarn -ignore_readdir_race -name *.rs",
    "-follow -type d",
    "-empty -o -size +1k",
    "-name *e* -empty -type d",
    "-type f -links 1 -perm /222 ! -newer t/a/file",
];

#[test]
fn every_test() {
    let tree = Tree::full();
    let mut failures = Vec::new();
    let ways = common::ways();
    for (number, test) in TESTS.iter().enumerate() {
        // Split at blanks only: a pattern may contain a tab or a newline.
        let mut line: Vec<String> = vec!["t".into()];
        line.extend(test.split(' ').filter(|word| !word.is_empty()).map(String::from));
        compare(tree.path(), &line, b'\n', ways[number % ways.len()], &mut failures);
        if test.contains(',') && !test.contains("-type") {
            continue;
        }
        // In parentheses, unless it is an option of the walk anyway.
        let mut line: Vec<String> = vec!["t".into(), "(".into()];
        line.extend(test.split(' ').filter(|word| !word.is_empty()).map(String::from));
        line.extend(if test.is_empty() { vec!["-true".into()] } else { Vec::new() });
        line.extend([")".into(), "-print0".into()]);
        compare(tree.path(), &line, b'\0', ways[(number + 1) % ways.len()], &mut failures);
    }
    none(&failures);
}

#[test]
fn links_followed() {
    let tree = Tree::full();
    let mut failures = Vec::new();
    for (number, test) in [
        "-H t/a/to-directory",
        "-H t/a/to-directory -type d",
        "-H t/a/dangling -type l",
        "-P t/a/to-directory",
        "-L t",
        "-L t/d",
        "-L t/a -type l",
        "-L t/a -xtype l",
        "-L t/a -type f",
        "-L t/a -lname *",
        "-L t/a -empty",
        "-L t/a -samefile t/d/one",
        "-L t/a -newer t/a/to-file",
        "-L t/d -printf %p:%y:%Y:%l\\n",
        "-H t/a/to-directory -printf %p:%y:%Y:%l:%f:%h\\n",
        "-P -L -H t/a/to-directory -type d",
        "-L t/a/b -depth",
        "-L t/a/b -inum +0",
        "-L t/a -maxdepth 1",
    ]
    .iter()
    .enumerate()
    {
        let ways = common::ways();
        compare(tree.path(), &words(test), b'\n', ways[number % ways.len()], &mut failures);
    }
    none(&failures);
}

#[test]
fn roots() {
    let tree = Tree::full();
    let mut failures = Vec::new();
    let ways = common::ways();
    for (number, test) in [
        "t/",
        "t// -name t",
        "./t",
        "t/a t/d",
        "t/a t/a",
        "t/nowhere",
        "t/nowhere t/d",
        "t/a/file",
        "t/a/file -type f",
        "t/a/to-directory",
        "t/a/to-directory/",
        "-- t",
        ". -name t",
        "t/. -maxdepth 1",
        "t/a/.. -maxdepth 1 -printf %f:%h:%H:%P:%p\\n",
        "t/ t/a t/a/ ./t/a/b/.. -printf %f:%h:%H:%P:%p:%d\\n",
        "/ -maxdepth 0 -printf %f:%h:%H:%P:%p\\n",
        "/ -maxdepth 1 -name etc -printf %f:%h:%H:%P:%p\\n",
        "/ -maxdepth 0 -name /",
        "t/d/fifo -printf %p:%y\\n",
        "-name one",
        "-O3 t -name one",
    ]
    .iter()
    .enumerate()
    {
        compare(tree.path(), &words(test), b'\n', ways[number % ways.len()], &mut failures);
    }
    none(&failures);
}

#[test]
fn what_is_wrong() {
    let tree = Tree::full();
    let mut failures = Vec::new();
    for line in [
        "t -name",
        "t -nosuch",
        "t --nosuch",
        "t ( -name x",
        "t -name x )",
        "t ( )",
        "t -o",
        "t -name x -o",
        "t -a -name x",
        "t !",
        "t -name x , ",
        "t -name x y",
        "t -type",
        "t -type q",
        "t -type f,",
        "t -type fd",
        "t -size x",
        "t -size 5x",
        "t -size",
        "t -perm 9",
        "t -perm u+z",
        "t -perm 17777",
        "t -user no-such-user",
        "t -group no-such-group",
        "t -links x",
        "t -mtime x",
        "t -mmin -x",
        "t -newer t/nowhere",
        "t -newermt nonsense",
        "t -newerqm t",
        "t -samefile t/nowhere",
        "t -maxdepth -1",
        "t -maxdepth",
        "t -regex \\(",
        "t -regextype nonsense -regex x",
        "t -exec",
        "t -exec echo",
        "t -exec echo {}",
        "t -exec ;",
        "t -exec echo {} {} +",
        "t -ok echo {} +",
        "t -printf",
        "t -fprint",
        "t -fprint /nonexistent/file",
        "t -name a -prune -o -delete",
        "-files0-from t/nowhere",
    ] {
        let run = |mut command: std::process::Command| command.args(words(line)).output().unwrap();
        let expected = run(common::gnu(tree.path()));
        let got = run(common::ours(tree.path(), common::WAYS[0]));
        let message = text(&got.stderr);
        let says = message.starts_with("anyring find: ") && message.len() > 20;
        if (expected.status.code(), got.status.code()) != (Some(1), Some(1))
            || !got.stdout.is_empty()
            || !says
        {
            failures
                .push(format!("find {line}: find {:?}, ours {:?}: {message}", expected.status, got.status));
        }
    }
    none(&failures);
    assert!(tree.at("t/d/one").exists());
}

/// Directories that are mounted below themselves are loops, though no link is followed.
#[test]
fn mounted_below_itself() {
    const MOUNTS: &[(&str, &str)] = &[("t/a", "t/a/again"), (".", "t/b/whole")];
    let tree = Tree::empty();
    for directory in ["t/a/again", "t/a/deep", "t/b/whole", "t/beside"] {
        fs::create_dir_all(tree.at(directory)).unwrap();
    }
    for file in ["t/a/file", "t/a/deep/file", "t/b/file"] {
        fs::write(tree.at(file), "x").unwrap();
    }
    let run = |mut command: Command, words: &[&str]| {
        mounted(&mut command, MOUNTS);
        command.args(words).output()
    };
    if let Err(error) = run(gnu(tree.path()), &["t"]) {
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        anyring_tally::skipped("nothing can be mounted");
        return;
    }
    let mut failures = Vec::new();
    for line in [
        "t",
        "t -xdev",
        "t -depth",
        "t -mount -type d",
        "t/a",
        // The loop is not at the mount point, but below it.
        "t/b",
        "t/beside",
        "t -maxdepth 1",
        "t -maxdepth 2 -name again",
        "t -mindepth 3",
        "t -name again -prune -o -print",
        "t/a/again",
        "-L t",
        "-H t/b t/a",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let expected = run(gnu(tree.path()), &words).unwrap();
        for way in common::ways() {
            let got = run(ours(tree.path(), way), &words).unwrap();
            if let Some(difference) = difference(&got, &expected, b'\n') {
                failures.push(format!("find {line} ({way:?})\n{difference}"));
            }
        }
    }
    none(&failures);
    // The entries behind the loop are not deleted twice, and the loop is a failure.
    for way in common::ways() {
        fs::write(tree.at("t/a/file"), "x").unwrap();
        let output = run(ours(tree.path(), way), &["t/a", "-type", "f", "-delete", "-print"]).unwrap();
        assert_eq!(output.status.code(), Some(1), "{way:?}");
        assert!(!tree.at("t/a/file").exists());
    }
}
