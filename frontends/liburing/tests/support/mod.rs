//! Finds the two libraries, and programs that use them.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap().to_path_buf()
}

/// Returns the directory of the tests that cargo has built. The programs and libraries of the tests are there and in `tmp/programs` beside
/// it; they are built first, unless cargo-nextest has done so before the tests (`.config/nextest.toml`).
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let (profile, target) = (test.ancestors().nth(2).unwrap(), test.ancestors().nth(3).unwrap());
        if std::env::var_os("ANYRING_BUILT_FOR_LIBURING").is_some_and(|built| Path::new(&built) == profile) {
            return profile.to_path_buf();
        }
        let mut build = Command::new(root().join("scripts/build-for-tests"));
        let name = profile.file_name().unwrap().to_str().unwrap();
        build.arg("liburing").env("CARGO", env!("CARGO")).env("CARGO_TARGET_DIR", target);
        run(build.env("ANYRING_TEST_PROFILE", if name == "debug" { "dev" } else { name }));
        profile.to_path_buf()
    })
}

fn programs() -> PathBuf {
    built();
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs")
}

/// Returns the directory of our libraries, which `scripts/link-liburing` makes.
pub fn libraries() -> &'static Path {
    built()
}

/// Returns the source directory of liburing 2.15, with its libraries built, for comparisons.
pub fn liburing() -> PathBuf {
    built();
    root().join("quality/conformance/work/liburing-2.15")
}

/// Returns the directory of liburing's libraries under the names by which programs load them.
pub fn liburing_libraries() -> PathBuf {
    programs().join("liburing-2.15")
}

/// The `liburing.h` that a program is built with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// The system's header: 2.3 on Debian 12.
    System,
    /// The header of liburing 2.15.
    Newest,
    /// The header of the source that `LIBURING_SOURCE` names, for a version that is newer still.
    Newer,
}

/// Returns the configured source of liburing that `LIBURING_SOURCE` names.
pub fn newer_source() -> Option<PathBuf> {
    std::env::var_os("LIBURING_SOURCE").map(PathBuf::from)
}

impl Header {
    /// Returns the compiler's options that find the header.
    pub fn options(self) -> Vec<String> {
        match self {
            Header::System => vec![],
            Header::Newest => vec![format!("-I{}", liburing().join("src/include").display())],
            Header::Newer => {
                let source = newer_source().expect("LIBURING_SOURCE names a source");
                vec![format!("-I{}", source.join("src/include").display())]
            }
        }
    }
}

/// Runs a command that must succeed. Returns its output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = text(&output);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Returns the program that `tests/c/Makefile` builds with this header.
pub fn program(name: &str, header: Header) -> PathBuf {
    let program = programs().join(format!("liburing-{name}-{header:?}").to_lowercase());
    assert!(
        program.exists(),
        "there is no program {}: frontends/liburing/tests/c/Makefile has the names, and scripts/build-for-tests liburing builds them",
        program.display()
    );
    program
}

/// The library and the engine that do the program's I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// liburing 2.15 itself.
    Liburing,
    /// Our library, with the kernel engine.
    Kernel,
    /// Our library with the user engine: `io_uring` is denied.
    Denied,
}

/// Returns the command that starts a program.
pub fn command(program: &Path, arguments: &[&str], by: By) -> Command {
    match by {
        By::Denied => denied("1", program, arguments),
        By::Kernel => with(libraries(), Command::new(program), arguments),
        By::Liburing => with(&liburing_libraries(), Command::new(program), arguments),
    }
}

/// Returns the command that starts a program with our library, in the sandbox `how` of `deny.c`.
pub fn denied(how: &str, program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(programs().join("deny"));
    command.arg(how).arg(program);
    with(libraries(), command, arguments)
}

fn with(libraries: &Path, mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments).env("LD_LIBRARY_PATH", libraries);
    command.env_remove("ANYRING_ENGINE").env_remove("ANYRING_LOG");
    command
}

/// Returns the output of the program, which must succeed.
pub fn said(program: &Path, arguments: &[&str], by: By) -> String {
    run(&mut command(program, arguments, by))
}

/// True if the kernel's own `io_uring` is available; if not, the test counts as skipped.
pub fn kernel_has_io_uring() -> bool {
    let has = kernel_makes_rings();
    if !has {
        anyring_tally::skipped("no kernel ring");
    }
    has
}

fn kernel_makes_rings() -> bool {
    let mut params = [0_u32; 30];
    // SAFETY: the structure is 120 bytes long; the ring is closed again.
    unsafe {
        let fd = libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr());
        fd >= 0 && libc::close(fd as i32) == 0
    }
}

/// Returns the recorded output of the program with liburing 2.15 and the kernel's `io_uring`: `tests/record/NAME.txt`.
///
/// With `ANYRING_ORACLE`, the program is run on the kernel: `live` compares its output with the record; `record` writes the record;
/// `kernel` uses the output without a record.
pub fn recorded(name: &str, program: &Path, arguments: &[&str]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/record/{name}.txt"));
    let read = || {
        fs::read_to_string(&path).unwrap_or_else(|error| {
            let path = path.display();
            panic!("{path}: {error}: where the kernel has io_uring, ANYRING_ORACLE=record writes it")
        })
    };
    let oracle = std::env::var("ANYRING_ORACLE").unwrap_or_default();
    let asked = (!oracle.is_empty()).then(|| {
        assert!(
            kernel_makes_rings(),
            "ANYRING_ORACLE={oracle}, but the kernel gives no io_uring (a filter, or kernel.io_uring_disabled?)"
        );
        said(program, arguments, By::Liburing)
    });
    match (oracle.as_str(), asked) {
        ("kernel", Some(said)) => said,
        ("record", Some(said)) => {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &said).unwrap();
            said
        }
        ("live", Some(said)) => {
            assert_eq!(said, read(), "{name}: over liburing (left) and {}", path.display());
            said
        }
        ("", None) => read(),
        _ => panic!("ANYRING_ORACLE is '{oracle}': it can be live, record or kernel"),
    }
}
