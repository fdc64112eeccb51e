//! A tree with all kinds of entries, and runs of GNU find and ours on it.

#![allow(dead_code, reason = "no test program uses all of it")]

#[path = "../../../walk/tests/common/mounted.rs"]
pub mod mounted;

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// The engine of the walk's rings.
#[derive(Clone, Copy, Debug)]
pub enum Engine {
    User,
    Kernel,
    /// The default, with io_uring denied by the kernel.
    Denied,
}

/// The options of a run of our find.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub engine: Engine,
    pub sorted: bool,
    pub threads: u32,
}

/// Runs that differ in all options.
pub const WAYS: [Way; 6] = [
    Way { engine: Engine::User, sorted: false, threads: 1 },
    Way { engine: Engine::Kernel, sorted: false, threads: 3 },
    Way { engine: Engine::Denied, sorted: true, threads: 1 },
    Way { engine: Engine::User, sorted: true, threads: 3 },
    Way { engine: Engine::Kernel, sorted: true, threads: 1 },
    Way { engine: Engine::Denied, sorted: false, threads: 3 },
];

/// Returns a command in the C locale and in UTC.
fn plain(program: impl AsRef<OsStr>, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory).env("LC_ALL", "C").env("TZ", "UTC0").stdin(Stdio::null());
    for name in ["ANYRING_ENGINE", "LS_COLORS", "POSIXLY_CORRECT", "FINDOPTS"] {
        command.env_remove(name);
    }
    command
}

/// Returns a GNU find command.
pub fn gnu(directory: &Path) -> Command {
    plain("find", directory)
}

/// Returns a command of our find, with these options.
pub fn ours(directory: &Path, way: Way) -> Command {
    let mut command = plain(env!("CARGO_BIN_EXE_anyring-find"), directory);
    match way.engine {
        Engine::User => command.arg("--engine=user"),
        Engine::Kernel => command.arg("--engine=kernel"),
        // SAFETY: the hook makes two system calls and nothing else.
        Engine::Denied => unsafe { command.pre_exec(|| anyring_deny::deny_io_uring(libc::EPERM)) },
    };
    if way.sorted {
        command.arg("--sorted");
    }
    command.arg(format!("--threads={}", way.threads));
    command
}

/// True if the kernel engine works; otherwise the user engine replaces it.
pub fn kernel_works() -> bool {
    let entries = 1_u32;
    let mut parameters = [0_u8; 120];
    // SAFETY: the buffer has the size of `io_uring_params`.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, parameters.as_mut_ptr()) };
    if fd < 0 {
        anyring_tally::skipped("no kernel ring");
        return false;
    }
    // SAFETY: the descriptor is ours.
    unsafe { libc::close(fd as i32) };
    true
}

/// Returns the runs that this machine allows.
pub fn ways() -> Vec<Way> {
    let kernel = kernel_works();
    WAYS.into_iter().filter(|way| kernel || !matches!(way.engine, Engine::Kernel)).collect()
}

/// Returns the parts of the output, sorted.
pub fn parts(output: &[u8], end: u8) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = output.split_inclusive(|&byte| byte == end).map(<[u8]>::to_vec).collect();
    parts.sort();
    parts
}

pub fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Returns the compared results of a run: its sorted output, its exit status, whether it printed errors (not only warnings).
pub fn outcome(output: &Output, end: u8) -> (Vec<String>, Option<i32>, bool) {
    let parts = parts(&output.stdout, end).iter().map(|part| text(part)).collect();
    let mut said = output.stderr.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let complained = said.any(|line| !line.starts_with(b"find: warning:"));
    (parts, output.status.code(), complained)
}

/// Returns the difference of two runs.
pub fn difference(got: &Output, expected: &Output, end: u8) -> Option<String> {
    let ((ours, our_status, we_complain), (theirs, status, complain)) =
        (outcome(got, end), outcome(expected, end));
    if (&ours, our_status, we_complain) == (&theirs, status, complain) {
        return None;
    }
    let only = |these: &[String], others: &[String]| -> String {
        these.iter().filter(|one| !others.contains(one)).map(|one| format!("    {one}\n")).collect()
    };
    Some(format!(
        "  status {our_status:?}, expected {status:?}; {} parts, expected {}\n  too much:\n{}  missing:\n{}  ours says: {}\n  find says: {}",
        ours.len(),
        theirs.len(),
        only(&ours, &theirs),
        only(&theirs, &ours),
        String::from_utf8_lossy(&got.stderr),
        String::from_utf8_lossy(&expected.stderr),
    ))
}

/// Returns the difference between GNU find and ours, neither of which changes the tree. Files age meanwhile: if GNU find's output
/// differs between a run before and a run after, both are right.
pub fn difference_of_runs<S: AsRef<OsStr>>(
    directory: &Path,
    words: &[S],
    end: u8,
    way: Way,
) -> Option<String> {
    let expected = || gnu(directory).args(words).output().unwrap();
    let before = expected();
    let got = ours(directory, way).args(words).output().unwrap();
    difference(&got, &before, end).and_then(|_| difference(&got, &expected(), end))
}

/// Records a difference between GNU find and ours.
pub fn compare<S: AsRef<OsStr>>(
    directory: &Path,
    words: &[S],
    end: u8,
    way: Way,
    failures: &mut Vec<String>,
) {
    if let Some(difference) = difference_of_runs(directory, words, end, way) {
        let words: Vec<&OsStr> = words.iter().map(AsRef::as_ref).collect();
        failures.push(format!("find {words:?} ({way:?})\n{difference}"));
    }
}

/// Fails with all recorded differences.
pub fn none(failures: &[String]) {
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A directory that is removed on drop.
pub struct Tree(TempDir);

impl Tree {
    pub fn empty() -> Tree {
        let directory = TempDir::with_prefix_in("find-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        Tree(directory)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Creates a tree with all kinds of files and names.
    pub fn full() -> Tree {
        let tree = Tree::empty();
        for directory in
            ["t/a/b/c", "t/d", "t/empty", "t/.hidden/x", "t/new\nline", "t/with space", "t/-name"]
        {
            fs::create_dir_all(tree.at(directory)).unwrap();
        }
        let names = [
            &b"t/a/file"[..],
            b"t/a/b/File.RS",
            b"t/a/b/c/file.rs",
            b"t/d/one",
            b"t/d/[x]",
            b"t/d/back\\slash",
            b"t/d/star*",
            b"t/d/quote\"'",
            b"t/d/tab\there",
            b"t/d/\xff\xfe",
            b"t/d/\xc3\xa9t\xc3\xa9",
            b"t/.hidden/x/.y",
            b"t/new\nline/in\nit",
            b"t/with space/a b",
            b"t/-name/-print",
        ];
        for (number, name) in names.iter().enumerate() {
            let content = vec![b'x'; [0, 1, 511, 512, 513, 1024, 1025, 70_000][number % 8]];
            fs::write(tree.at(OsStr::from_bytes(name)), content).unwrap();
        }
        fs::write(tree.at("t/d").join("n".repeat(255)), "").unwrap();
        fs::hard_link(tree.at("t/d/one"), tree.at("t/a/b/two")).unwrap();
        for (target, link) in [
            ("../d", "t/a/to-directory"),
            ("../d/one", "t/a/to-file"),
            ("nowhere", "t/a/dangling"),
            ("itself", "t/d/itself"),
            ("one/below", "t/d/not-a-directory"),
            ("..", "t/a/b/up"),
            ("/dev/null", "t/a/null"),
        ] {
            symlink(target, tree.at(link)).unwrap();
        }
        fifo(&tree.at("t/d/fifo"));
        drop(UnixListener::bind(tree.at("t/d/socket")).unwrap());
        for (name, mode) in [
            ("t/a/file", 0o4755),
            ("t/a/b/File.RS", 0o2640),
            ("t/d", 0o1777),
            ("t/d/one", 0o000),
            ("t/d/[x]", 0o777),
            ("t/empty", 0o700),
        ] {
            fs::set_permissions(tree.at(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let now = std::time::SystemTime::now();
        let ages = [30, 70, 4900, 90_000, 130_000, 200_000, 8_000_000, 30_000_000];
        for (number, name) in names.iter().enumerate() {
            let age = ages[number % ages.len()];
            set_times(&tree.at(OsStr::from_bytes(name)), now, age, age / 2);
        }
        // The first reading changes access times.
        assert!(gnu(tree.path()).args(["t", "-lname", "x"]).status().unwrap().success());
        tree
    }

    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

/// Sets a file's times, in seconds before `now`.
pub fn set_times(path: &Path, now: std::time::SystemTime, modified: u64, accessed: u64) {
    let seconds = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let time = |age: u64| libc::timespec { tv_sec: seconds - age as i64, tv_nsec: 123_456_789 };
    let times = [time(accessed), time(modified)];
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string and two times.
    let result =
        unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    assert_eq!(result, 0);
}

pub fn fifo(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o644) }, 0);
}

pub fn is_fifo(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_fifo())
}

/// Splits a command line at blanks; there are no quotes.
pub fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}
