//! Builds the C programs and runs them: natively, and under `anyring run` with `io_uring` denied.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod arch;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Where the headers of the kernel lie, for musl, which brings none along.
pub const KERNEL_HEADERS: [&str; 4] = ["-idirafter", "/usr/include", "-idirafter", arch::HEADERS];

/// Where the programs are built.
fn directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Compiles `source` into `name` unless that is newer than all sources; its path.
pub fn compile(name: &str, source: &str, options: &[&str]) -> PathBuf {
    compile_by("cc", name, source, options)
}

/// [`compile`] by a compiler other than `cc`.
pub fn compile_by(compiler: &str, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    // Tests of one process run at the same time, and must not replace what another has started.
    static LOCK: Mutex<()> = Mutex::new(());
    let _lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let target = directory().join(name);
    let folders = [sources.clone(), sources.join("arch")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let newest = files.map(|entry| modified(&entry.unwrap().path())).max();
    if target.exists() && newest < Some(modified(&target)) {
        return target;
    }
    // Test binaries may run at the same time: each writes a file of its own and renames it.
    let own = directory().join(format!("{name}.{}", std::process::id()));
    let status = Command::new(compiler)
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&own)
        .arg(sources.join(source))
        .args(options)
        .status()
        .unwrap_or_else(|error| panic!("a C compiler, {compiler}, is needed to test: {error}"));
    assert!(status.success(), "cannot compile {source}");
    fs::rename(&own, &target).unwrap();
    target
}

fn modified(path: &Path) -> std::time::SystemTime {
    path.metadata().unwrap().modified().unwrap()
}

/// The `anyring` command, with the library and the image built beside it.
pub fn anyring() -> &'static Path {
    static ANYRING: OnceLock<()> = OnceLock::new();
    let anyring = Path::new(env!("CARGO_BIN_EXE_anyring"));
    ANYRING.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "anyring-preload", "--package", "anyring-inject"]);
        build.arg("--manifest-path").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"));
        build.arg("--target-dir").arg(anyring.parent().unwrap().parent().unwrap());
        if anyring.parent().unwrap().ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "cannot build the library and the image");
    });
    anyring
}

/// What a program did.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub stdout: String,
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl From<&Output> for Outcome {
    fn from(output: &Output) -> Self {
        Self {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            code: output.status.code(),
            signal: output.status.signal(),
        }
    }
}

/// The counters of a line that `ANYRING_LOG=info` wrote.
#[derive(Debug, Default)]
pub struct Counters {
    pub rings: u64,
    pub traps: u64,
    pub sites: u64,
}

/// Reads the last line of a process's log.
pub fn counters(log: &str) -> Counters {
    let line = log.lines().rfind(|line| line.contains("engine=user")).unwrap_or_default();
    let field = |name: &str| -> u64 {
        let start = line.find(name).map(|at| at + name.len());
        let digits = start.map(|start| &line[start..]).unwrap_or_default();
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().unwrap_or(0)
    };
    Counters { rings: field("rings="), traps: field("traps="), sites: field("sites=") }
}

/// A command that starts `program` under anyring's engine, with `io_uring` denied by `errno`.
pub fn denied(errno: i32) -> Command {
    denied_by(&errno.to_string())
}

/// [`denied`], with what `deny.c` takes.
pub fn denied_by(what: &str) -> Command {
    denied_to(what, &["run", "--engine", "user", "--log", "info", "--"])
}

/// The command with these words, in the sandbox that `deny.c` makes.
pub fn denied_to(what: &str, words: &[&str]) -> Command {
    let mut command = Command::new(compile("deny", "deny.c", &[]));
    command.arg(what).arg(anyring()).args(words);
    command
}

/// Whether the kernel's own `io_uring` is there to compare with.
pub fn kernel_has_io_uring() -> bool {
    let output = Command::new(anyring()).args(["doctor", "--json"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("\"io_uring\": true")
}

/// Runs `program` under anyring's engine and compares with the native run where there is one; the
/// outcome and the counters.
pub fn compare<A: AsRef<OsStr>>(program: &Path, arguments: &[A], patch: bool) -> (Outcome, Counters) {
    let output = denied(libc_eperm())
        .arg(program)
        .args(arguments)
        .env("ANYRING_PATCH", if patch { "1" } else { "0" })
        .output()
        .unwrap();
    let outcome = Outcome::from(&output);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    if kernel_has_io_uring() {
        let native = Command::new(program).args(arguments).output().unwrap();
        assert_eq!(outcome, Outcome::from(&native), "against the kernel (left: anyring)\n{log}");
    }
    (outcome, counters(&log))
}

/// What container engines answer.
fn libc_eperm() -> i32 {
    libc::EPERM
}
