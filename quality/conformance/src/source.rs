//! Fetches liburing with its tests, and builds the tests unmodified.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

/// The version of liburing whose tests are run.
pub const VERSION: &str = "2.15";

/// The built suite.
pub struct Suite {
    /// The version of liburing.
    pub version: String,
    /// The directory of the test programs.
    pub programs: PathBuf,
    /// The tests that were built, sorted.
    pub built: Vec<String>,
    /// The tests that could not be built here, sorted.
    pub not_built: Vec<String>,
}

/// Finds the suite under `work`, or fetches and builds it there. If `given` names a directory with the sources of any
/// version, builds that in place instead.
pub fn prepare(work: &Path, given: Option<&Path>) -> Result<Suite> {
    let tree = match given {
        Some(given) => given.canonicalize().with_context(|| format!("no sources at {}", given.display()))?,
        None => work.join(format!("liburing-{VERSION}")),
    };
    let stamp = tree.join(".built-by-anyring");
    if !stamp.exists() {
        need_tools()?;
        if given.is_none() {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/liburing-source");
            run(
                Command::new(script).arg(work),
                "it says why; sources of some version may be named with --liburing",
            )?;
        }
        verify(&tree)?;
        build(work, &tree, given.is_some())?;
        File::create(&stamp).with_context(|| format!("cannot create {}", stamp.display()))?;
    }
    let version = version(&tree)?;
    ensure!(given.is_some() || version == VERSION, "the sources are not those of liburing {VERSION}");
    let version = if given.is_some() { format!("{version}-given") } else { version };
    let programs = tree.join("test");
    let (built, not_built) =
        test_names(&programs)?.into_iter().partition(|name| programs.join(format!("{name}.t")).exists());
    Ok(Suite { version, programs, built, not_built })
}

/// The C library of static tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Libc {
    Glibc,
    Musl,
}

impl Libc {
    /// The name of the library, as in `--statically`.
    pub fn name(self) -> &'static str {
        match self {
            Libc::Glibc => "glibc",
            Libc::Musl => "musl",
        }
    }
}

/// Prepares the tests linked statically with liburing and a C library.
pub fn prepare_static(work: &Path, given: Option<&Path>, libc: Libc) -> Result<Suite> {
    let suite = prepare(work, given)?;
    let name = libc.name();
    let log = work.join(format!("build-{name}.log"));
    let tree = rebuilt(work, &suite, name, |tree, out| {
        eprintln!("linking liburing's tests statically with {name}");
        let mut tests = make(tree, out, "test")?;
        tests.args(["-k", "LDFLAGS=-static"]).arg(format!("root={}", tree.display()));
        if libc == Libc::Musl {
            ensure!(can_run("musl-gcc"), "no musl-gcc here. On Debian: apt-get install musl-tools");
            // musl has no headers of the kernel, and Debian no C++ library for it.
            let machine = std::env::consts::ARCH;
            let compiler =
                format!("--cc=musl-gcc -idirafter /usr/include -idirafter /usr/include/{machine}-linux-gnu");
            let hint = format!("see {}", log.display());
            for directory in ["src", "test"] {
                run(make(tree, out, directory)?.arg("clean"), &hint)?;
            }
            run(in_tree(tree, out, "sh")?.args(["./configure", &compiler]), &hint)?;
            run(make(tree, out, "src")?.arg("liburing.a"), &hint)?;
            tests.arg("CONFIG_HAVE_CXX=");
        }
        tests.status().context("cannot run make")?;
        Ok(())
    })?;
    let programs = tree.join("test");
    let is_static = |name: &str| {
        let program = fs::read(programs.join(format!("{name}.t"))).unwrap_or_default();
        !program.is_empty() && !has(&program, b"/ld-linux") && !has(&program, b"/ld-musl")
    };
    let (built, not_built): (Vec<String>, Vec<String>) =
        suite.built.into_iter().chain(suite.not_built).partition(|name| is_static(name));
    ensure!(!built.is_empty(), "no test could be linked with {name}: {} says why", log.display());
    Ok(Suite { version: suite.version, programs, built, not_built })
}

/// Prepares the tests linked with the shared library `library`, if they use only its interface: some make system
/// calls by their own instructions, some use symbols of the static library only.
pub fn prepare_linked(work: &Path, given: Option<&Path>, library: &Path) -> Result<Suite> {
    let suite = prepare(work, given)?;
    let directory = work.join("library");
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    // The linker uses the first name; a test that is started without an environment uses the second.
    for name in ["liburing.so", "liburing.so.2"] {
        let link = directory.join(name);
        if fs::read_link(&link).ok().as_deref() != Some(library) {
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(library, &link)
                .with_context(|| format!("cannot create {}", link.display()))?;
        }
    }
    let tree = rebuilt(work, &suite, "linked", |tree, out| {
        eprintln!("linking liburing's tests with {}", library.display());
        let place = directory.display();
        let mut tests = make(tree, out, "test")?;
        tests.arg("-k").arg(format!("LDFLAGS=-L{place} -Wl,-rpath,{place}"));
        // `configure` has recorded the path of the other tree, whose tests are up to date.
        tests.arg(format!("root={}", tree.display()));
        tests.status().context("cannot run make")?;
        Ok(())
    })?;
    let programs = tree.join("test");
    let (built, not_built): (Vec<String>, Vec<String>) = suite.built.into_iter().partition(|name| {
        let read = |suffix: &str| fs::read(programs.join(format!("{name}.{suffix}"))).unwrap_or_default();
        let source = [read("c"), read("cc")].concat();
        has(&read("t"), b"liburing.so.2") && !has(&source, b"syscall.h") && !has(&source, b"syscall(")
    });
    ensure!(
        !built.is_empty(),
        "no test could be linked with {}: {} says why",
        library.display(),
        work.join("build-linked.log").display()
    );
    Ok(Suite { version: suite.version, programs, built, not_built })
}

/// Makes a copy of the suite's sources without its tests, and has `build` build them in another way, once. Returns the copy.
fn rebuilt(
    work: &Path,
    suite: &Suite,
    way: &str,
    build: impl FnOnce(&Path, &File) -> Result<()>,
) -> Result<PathBuf> {
    let sources = suite.programs.parent().context("the tests lie nowhere")?;
    let tree = work.join(format!("liburing-{}-{way}", suite.version));
    let stamp = tree.join(".built-by-anyring");
    if !stamp.exists() {
        remove(&tree)?;
        run(Command::new("cp").args(["-a"]).arg(sources).arg(&tree), "is there room?")?;
        let _ = fs::remove_file(&stamp);
        for name in &suite.built {
            let _ = fs::remove_file(tree.join(format!("test/{name}.t")));
        }
        let log = work.join(format!("build-{way}.log"));
        let out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        build(&tree, &out)?;
        File::create(&stamp).with_context(|| format!("cannot create {}", stamp.display()))?;
    }
    Ok(tree)
}

fn has(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

fn need_tools() -> Result<()> {
    let absent: Vec<&str> = ["curl", "gcc", "make"].into_iter().filter(|tool| !can_run(tool)).collect();
    ensure!(
        absent.is_empty(),
        "building liburing's tests needs {}, not found here. On Debian: apt-get install curl gcc make libc6-dev \
         (and g++ for one test in C++)",
        absent.join(" and ")
    );
    Ok(())
}

fn can_run(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

fn remove(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Returns the version that the sources name.
fn version(tree: &Path) -> Result<String> {
    let spec = fs::read_to_string(tree.join("liburing.spec")).context("the sources hold no liburing.spec")?;
    let version = spec
        .lines()
        .find_map(|line| line.strip_prefix("Version:"))
        .context("liburing.spec has no version")?;
    Ok(version.trim().to_owned())
}

/// Checks that the source of every test exists.
fn verify(tree: &Path) -> Result<()> {
    let tests = tree.join("test");
    for name in test_names(&tests)? {
        let there = ["c", "cc"].iter().any(|suffix| tests.join(format!("{name}.{suffix}")).exists());
        ensure!(there, "the sources are incomplete: test/{name}.c is missing");
    }
    Ok(())
}

/// Returns the tests that liburing's own Makefile names.
fn test_names(tests: &Path) -> Result<Vec<String>> {
    let makefile = fs::read_to_string(tests.join("Makefile")).context("the sources hold no test/Makefile")?;
    let mut names: Vec<String> = makefile
        .split_whitespace()
        .filter_map(|word| word.strip_suffix(".c").or_else(|| word.strip_suffix(".cc")))
        // Without patterns, the common helpers, and two tests that are meaningful only under a sanitizer.
        .filter(|name| !name.contains('%') && *name != "helpers" && !name.starts_with("xfail_"))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    if names.is_empty() {
        bail!("{} names no tests", tests.join("Makefile").display());
    }
    Ok(names)
}

/// Builds the tests, and before them the library if the tree is `given`.
fn build(work: &Path, tree: &Path, given: bool) -> Result<()> {
    eprintln!("building liburing's tests in {}", tree.display());
    let log = work.join("build.log");
    let out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let hint = format!("see {}", log.display());
    if given {
        run(in_tree(tree, &out, "sh")?.arg("./configure"), &hint)?;
        run(&mut make(tree, &out, "src")?, &hint)?;
    }
    // A test that cannot be built here is left out; the report says so.
    make(tree, &out, "test")?.arg("-k").status().context("cannot run make")?;
    Ok(())
}

/// Returns a command to run in a tree of sources.
fn in_tree(tree: &Path, out: &File, program: &str) -> Result<Command> {
    let mut command = Command::new(program);
    command.current_dir(tree).stdin(Stdio::null());
    // A surrounding make must not pass on its job slots or flags.
    command.env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("MAKELEVEL");
    command.stdout(out.try_clone()?).stderr(out.try_clone()?);
    Ok(command)
}

/// Returns the command that builds one of the tree's directories.
fn make(tree: &Path, out: &File, directory: &str) -> Result<Command> {
    let mut command = in_tree(tree, out, "make")?;
    command.args(["-C", directory, "-j2"]);
    Ok(command)
}

fn run(command: &mut Command, hint: &str) -> Result<()> {
    let what = format!(
        "{} {}",
        command.get_program().to_string_lossy(),
        command.get_args().map(|a| a.to_string_lossy()).collect::<Vec<_>>().join(" ")
    );
    let status = command.status().with_context(|| format!("cannot run {what}"))?;
    ensure!(status.success(), "{what} failed ({status}): {hint}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_makefile() {
        let dir = tempfile::tempdir().unwrap();
        let text = "test_srcs := \\\n\taccept.c \\\n\t7ad0.c \\\n\nasan := xfail_x.c\ntest_srcs += sq-full-cpp.cc\n\
                    helpers.o: helpers.c\n%.t: %.c $(helpers)\n";
        fs::write(dir.path().join("Makefile"), text).unwrap();
        assert_eq!(test_names(dir.path()).unwrap(), ["7ad0", "accept", "sq-full-cpp"]);
    }
}
