//! Makes the two libraries, and programs that use them.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap().to_path_buf()
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_path_buf()
}

/// Runs cargo's `subcommand`. The directory comes first: what follows a `--` is the program's.
fn cargo(subcommand: &str, arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO"));
    command.arg(subcommand).arg("--target-dir").arg(target()).args(arguments).current_dir(root());
    assert!(command.status().unwrap().success(), "cargo {subcommand} {arguments:?}");
}

/// What `scripts/link-liburing` makes, newly built.
pub fn libraries() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        cargo("build", &["--quiet", "--package", "anyring-liburing"]);
        let directory = target().join("debug");
        run(Command::new(root().join("scripts/link-liburing")).arg(&directory));
        directory
    })
}

/// liburing 2.15, with its libraries built: what ours are compared with.
pub fn liburing() -> &'static Path {
    static THERE: OnceLock<PathBuf> = OnceLock::new();
    THERE.get_or_init(|| {
        let directory = root().join("quality/conformance/work/liburing-2.15");
        if !directory.join("src/liburing.so.2.15").exists() {
            cargo("run", &["--quiet", "--package", "anyring-conformance", "--", "prepare"]);
        }
        directory
    })
}

/// The libraries of [`liburing`] under the names by which programs load them.
pub fn liburing_libraries() -> &'static Path {
    static THERE: OnceLock<PathBuf> = OnceLock::new();
    THERE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("liburing-2.15");
        fs::create_dir_all(&directory).unwrap();
        for name in ["liburing", "liburing-ffi"] {
            let own = directory.join(format!("{name}.{}", std::process::id()));
            fs::copy(liburing().join(format!("src/{name}.so.2.15")), &own).unwrap();
            fs::rename(&own, directory.join(format!("{name}.so.2"))).unwrap();
        }
        directory
    })
}

/// Whose `liburing.h` a program is built with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// The one of the system: 2.3 on Debian 12.
    System,
    /// 2.15.
    Newest,
    /// That of the source which `LIBURING_SOURCE` names, for a version that is newer still.
    Source,
}

/// What `LIBURING_SOURCE` names: a configured source of liburing.
pub fn newer_source() -> Option<PathBuf> {
    std::env::var_os("LIBURING_SOURCE").map(PathBuf::from)
}

impl Header {
    /// What the compiler needs to find it.
    pub fn options(self) -> Vec<String> {
        match self {
            Header::System => {
                let there = Path::new("/usr/include/liburing.h").exists();
                assert!(there, "liburing.h is needed to test: apt-get install liburing-dev");
                vec![]
            }
            Header::Newest => vec![format!("-I{}", liburing().join("src/include").display())],
            Header::Source => {
                let source = newer_source().expect("LIBURING_SOURCE names a source");
                vec![format!("-I{}", source.join("src/include").display())]
            }
        }
    }
}

/// Runs a command that must succeed; its output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = text(&output);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Builds the C program `source`, which is linked with `library` of liburing 2.15 or of the system, or with Anyring's
/// (`anyring`).
pub fn compile(source: &str, header: Header, library: &str) -> PathBuf {
    let name = format!("{}-{header:?}-{library}", source.trim_end_matches(".c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
    // Tests run at the same time: each writes a file of its own and renames it.
    static BUILDS: AtomicU32 = AtomicU32::new(0);
    let build = BUILDS.fetch_add(1, Ordering::Relaxed);
    let own = program.with_file_name(format!("{name}.{}.{build}", std::process::id()));
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall", "-Werror", "-o"]).arg(&own).args(header.options());
    command.arg("-I").arg(root().join("frontends/liburing/include"));
    command.arg(root().join("frontends/liburing/tests/c").join(source));
    match (library, header) {
        ("", _) => {}
        ("anyring", _) => {
            command.arg("-L").arg(libraries()).arg("-l:liburing.so.2");
        }
        (library, Header::System) => {
            command.arg(format!("-l:lib{library}.so"));
        }
        (library, _) => {
            command.arg("-L").arg(liburing_libraries()).arg(format!("-l:lib{library}.so.2"));
        }
    }
    run(&mut command);
    fs::rename(&own, &program).unwrap();
    program
}

/// Builds `deny`, which refuses `io_uring` to the program that it starts.
pub fn deny() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("deny-for-liburing");
        let own = program.with_extension(std::process::id().to_string());
        run(Command::new("cc")
            .arg("-O2")
            .arg("-o")
            .arg(&own)
            .arg(root().join("tools/cli/tests/programs/deny.c")));
        fs::rename(&own, &program).unwrap();
        program
    })
}

/// By whom the program's io is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// liburing 2.15 itself.
    Liburing,
    /// Our library, and the kernel.
    Kernel,
    /// Our library alone: `io_uring` is denied.
    Denied,
}

/// What a program is started with.
pub fn command(program: &Path, arguments: &[&str], by: By) -> Command {
    let libraries = if by == By::Liburing { liburing_libraries() } else { libraries() };
    let mut command = if by == By::Denied {
        let mut command = Command::new(deny());
        command.arg("1").arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(arguments).env("LD_LIBRARY_PATH", libraries);
    command.env_remove("ANYRING_ENGINE").env_remove("ANYRING_LOG");
    command
}

/// What the program says, which must end well.
pub fn said(program: &Path, arguments: &[&str], by: By) -> String {
    run(&mut command(program, arguments, by))
}

/// Whether the kernel's own `io_uring` is there to compare with.
pub fn kernel_has_io_uring() -> bool {
    let mut params = [0_u32; 30];
    // SAFETY: the structure is 120 bytes long; the ring is closed again.
    unsafe {
        let fd = libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr());
        fd >= 0 && libc::close(fd as i32) == 0
    }
}
