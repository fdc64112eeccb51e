//! Finds the C programs and runs them: natively, and under `anyring run` with `io_uring` denied.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Builds the files that tests start and load, unless cargo-nextest has done so before the tests (`.config/nextest.toml`).
fn build() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let beside = Path::new(env!("CARGO_BIN_EXE_anyring")).parent().unwrap();
        if std::env::var_os("ANYRING_BUILT_FOR_COMMAND").is_some_and(|built| Path::new(&built) == beside) {
            return;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/build-for-tests");
        let profile = beside.file_name().unwrap().to_str().unwrap();
        let status = Command::new(script)
            .arg("command")
            .env("CARGO", env!("CARGO"))
            .env("CARGO_TARGET_DIR", beside.parent().unwrap())
            .env("ANYRING_TEST_PROFILE", if profile == "debug" { "dev" } else { profile })
            .status();
        assert!(status.unwrap().success(), "scripts/build-for-tests command");
    });
}

fn path_of(name: &str) -> PathBuf {
    build();
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs").join(name)
}

/// Returns the path of a program of `tests/programs/Makefile`.
pub fn built(name: &str) -> PathBuf {
    let program = path_of(name);
    assert!(
        program.exists(),
        "there is no program {name}: tools/cli/tests/programs/Makefile has the names, and scripts/build-for-tests command builds them"
    );
    program
}

/// Returns the path of a program, if there was a compiler for musl.
pub fn built_by_musl(name: &str) -> Option<PathBuf> {
    let program = path_of(name);
    if !program.exists() {
        anyring_tally::skipped("no musl-gcc (Debian: musl-tools)");
        return None;
    }
    Some(program)
}

/// Returns the path of the `anyring` command, with the library and the image built beside it.
pub fn anyring() -> &'static Path {
    build();
    Path::new(env!("CARGO_BIN_EXE_anyring"))
}

/// The outcome of a program.
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

/// The form in a record: the output, and the end of the program below it.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.stdout)?;
        match (self.code, self.signal) {
            (Some(code), _) => writeln!(f, "exit status {code}"),
            (None, signal) => writeln!(f, "signal {}", signal.unwrap_or(0)),
        }
    }
}

/// The counters in a line of `ANYRING_LOG=info`.
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

/// Returns a command that starts `program` on the user engine, with `io_uring` denied by `errno`.
pub fn denied(errno: i32) -> Command {
    denied_by(&errno.to_string())
}

/// Works as [`denied`], with an argument of `deny.c` in place of the errno.
pub fn denied_by(what: &str) -> Command {
    denied_to(what, &["run", "--engine", "user", "--log", "info", "--"])
}

/// Returns the command with these words, in a sandbox that `deny.c` creates.
pub fn denied_to(what: &str, words: &[&str]) -> Command {
    let mut command = Command::new(built("deny"));
    command.arg(what).arg(anyring()).args(words);
    command
}

/// True if the kernel's own `io_uring` works; otherwise the test is counted as skipped.
pub fn kernel_has_io_uring() -> bool {
    let has = kernel_makes(0);
    if !has {
        anyring_tally::skipped("no kernel ring");
    }
    has
}

/// Runs a test body that needs the kernel's rings, if they work.
pub fn over_the_kernel(body: impl FnOnce()) {
    if kernel_has_io_uring() {
        body();
    }
}

/// True if the kernel creates a ring with these setup flags.
pub fn kernel_makes(flags: u32) -> bool {
    let mut params = [0_u32; 30];
    params[2] = flags;
    // SAFETY: the structure is 120 bytes long; the ring is closed again.
    unsafe {
        let fd = libc::syscall(libc::SYS_io_uring_setup, 8, params.as_mut_ptr());
        fd >= 0 && libc::close(fd as i32) == 0
    }
}

/// Runs `program` on the user engine, and compares its outcome with that on the kernel's `io_uring`; returns the outcome and the
/// counters.
pub fn compare<A: AsRef<OsStr>>(program: &Path, arguments: &[A], patch: bool) -> (Outcome, Counters) {
    let output = denied(libc::EPERM)
        .arg(program)
        .args(arguments)
        .env("ANYRING_PATCH", if patch { "1" } else { "0" })
        .output()
        .unwrap();
    let outcome = Outcome::from(&output);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let native = || Outcome::from(&Command::new(program).args(arguments).output().unwrap());
    is_as_recorded(&name(program, arguments), &outcome, native, &log);
    (outcome, counters(&log))
}

/// Programs that omit parts that musl does not support.
const SHORTER_WITH_MUSL: [&str; 3] = ["actions", "masks", "signals"];

/// Returns the name of a program's record, from its source and its arguments: all builds of it behave alike.
fn name<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> String {
    let file = program.file_name().unwrap().to_str().unwrap();
    let words = arguments.iter().map(|word| word.as_ref().to_str().unwrap());
    let words = words.filter(|word| !word.contains('/'));
    let source = file.split('-').next().unwrap();
    let library = (file.ends_with("-musl") && SHORTER_WITH_MUSL.contains(&source)).then_some("musl");
    std::iter::once(source).chain(words).chain(library).collect::<Vec<_>>().join(" ")
}

/// Compares an outcome with the recorded one on the kernel's `io_uring`: `tests/record/NAME.txt`.
///
/// `ANYRING_ORACLE` makes the program run on the kernel, by `native`: `live` compares that outcome with the record; `record`
/// writes it as the record; `kernel` compares `outcome` with that of the kernel alone.
pub fn is_as_recorded(name: &str, outcome: &Outcome, native: impl FnOnce() -> Outcome, log: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/record/{name}.txt"));
    let oracle = std::env::var("ANYRING_ORACLE").unwrap_or_default();
    let native = (!oracle.is_empty()).then(|| {
        assert!(
            kernel_makes(0),
            "ANYRING_ORACLE={oracle}, but the kernel gives no io_uring (a filter, or kernel.io_uring_disabled?)"
        );
        native().to_string()
    });
    let expected = match (oracle.as_str(), native) {
        ("kernel", Some(native)) => native,
        ("record", Some(native)) => {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &native).unwrap();
            native
        }
        ("live", Some(native)) => {
            assert_eq!(native, recorded(&path), "{name}: the kernel (left) and {}", path.display());
            native
        }
        ("", None) => recorded(&path),
        _ => panic!("ANYRING_ORACLE is '{oracle}': it can be live, record or kernel"),
    };
    assert_eq!(outcome.to_string(), expected, "{name}: anyring (left) and the kernel\n{log}");
    anyring_tally::compared();
}

fn recorded(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| {
        panic!("{}: {error}: where the kernel has io_uring, ANYRING_ORACLE=record writes it", path.display())
    })
}
