//! Compares lines and totals with GNU du, on random trees with random options, on both engines and without io_uring.

#[path = "../../walk/tests/common/mounted.rs"]
mod mounted;

use mounted::mounted;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use anyring_deny::deny_io_uring;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tempfile::TempDir;

/// Creates a tree on a file system where sizes of files do not change after they are written.
fn tree() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

/// The engine of the command's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    User,
    Kernel,
    Denied,
}

fn arguments(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn run(mut command: Command, at: &Path, words: &[OsString], environment: &[(&str, &str)]) -> Output {
    for name in
        ["DU_BLOCK_SIZE", "BLOCK_SIZE", "BLOCKSIZE", "POSIXLY_CORRECT", "TIME_STYLE", "ANYRING_ENGINE"]
    {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied()).env("LC_ALL", "C.UTF-8");
    command.current_dir(at).args(words).output().unwrap()
}

fn theirs(at: &Path, words: &[OsString], environment: &[(&str, &str)]) -> Output {
    run(Command::new("du"), at, words, environment)
}

fn ours(way: Way, at: &Path, words: &[OsString], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anyring-du"));
    match way {
        Way::User => command.arg("--engine=user"),
        Way::Kernel => command.arg("--engine=auto"),
        Way::Denied => {
            // SAFETY: system calls only.
            unsafe { command.pre_exec(|| deny_io_uring(libc::EPERM)) };
            command.arg("--engine=auto")
        }
    };
    run(command, at, words, environment)
}

/// Counts how often each line occurs.
fn lines(output: &Output) -> BTreeMap<String, u32> {
    let end = if output.stdout.contains(&0) { 0 } else { b'\n' };
    let mut lines = BTreeMap::new();
    for line in output.stdout.split(|&byte| byte == end) {
        *lines.entry(line.escape_ascii().to_string()).or_insert(0) += 1;
    }
    lines
}

#[track_caller]
fn same(way: Way, at: &Path, words: &[OsString], environment: &[(&str, &str)]) {
    let (ours, theirs) = (ours(way, at, words, environment), theirs(at, words, environment));
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (ours.status.code(), lines(&ours)),
        (theirs.status.code(), lines(&theirs)),
        "{way:?} {words:?} {environment:?}\n{}{}",
        said(&ours),
        said(&theirs)
    );
    let complaints = |output: &Output| said(output).lines().filter(|line| line.contains("du: ")).count();
    assert_eq!(complaints(&ours), complaints(&theirs), "{}{}", said(&ours), said(&theirs));
}

/// A kind of entry in a random tree.
#[derive(Clone, Debug)]
enum What {
    Directory,
    /// A file of the first size that is a hole except for its last bytes.
    File(u64, u16),
    /// A second name of a file in the same directory.
    Name,
    Link(u8),
}

#[derive(Clone, Debug)]
struct Thing {
    /// Selects one of the existing directories.
    place: prop::sample::Index,
    name: Vec<u8>,
    what: What,
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => "[abf][a-c0-3.]{0,3}".prop_map(String::into_bytes).prop_filter("a name", |name| name != b"." && name != b".."),
        1 => prop::collection::vec(1_u8..=255, 1..20)
            .prop_map(|name| name.into_iter().map(|byte| if byte == b'/' { b'_' } else { byte }).collect()),
        1 => Just(vec![b'n'; 255]),
        1 => Just(b"new\nline".to_vec()),
    ]
}

fn thing() -> impl Strategy<Value = Thing> {
    let what = prop_oneof![
        3 => Just(What::Directory),
        4 => (0_u64..100_000, 0_u16..20_000).prop_map(|(length, written)| What::File(length, written)),
        1 => (0_u64..1 << 40, 0_u16..20).prop_map(|(length, written)| What::File(length, written)),
        2 => Just(What::Name),
        1 => any::<u8>().prop_map(What::Link),
    ];
    (any::<prop::sample::Index>(), name(), what).prop_map(|(place, name, what)| Thing { place, name, what })
}

/// Creates the entries, except those whose name exists already.
fn build(at: &Path, things: &[Thing]) {
    std::fs::create_dir(at).unwrap();
    let mut directories = vec![at.to_owned()];
    let mut files = BTreeMap::new();
    for thing in things {
        let directory = thing.place.get(&directories).clone();
        let path = directory.join(OsStr::from_bytes(&thing.name));
        if thing.name == b"." || thing.name == b".." || path.symlink_metadata().is_ok() {
            continue;
        }
        match thing.what {
            What::Directory => {
                std::fs::create_dir(&path).unwrap();
                directories.push(path);
            }
            What::File(length, written) => {
                let file = File::create(&path).unwrap();
                let written = u64::from(written).min(length);
                std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; written as usize], length - written)
                    .unwrap();
                file.set_len(length).unwrap();
                files.insert(directory, path);
            }
            What::Name => {
                if let Some(file) = files.get(&directory) {
                    std::fs::hard_link(file, &path).unwrap();
                }
            }
            What::Link(to) => {
                let to = ["..", ".", "nowhere", "a", "../b", "f", "/dev/null", "b1"][usize::from(to % 8)];
                symlink(to, &path).unwrap();
            }
        }
    }
}

fn chosen(words: &'static [&'static str]) -> impl Strategy<Value = Vec<OsString>> {
    prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::sample::select(words).prop_map(|word| arguments(&word.split(' ').collect::<Vec<_>>())),
    ]
}

fn options() -> impl Strategy<Value = Vec<OsString>> {
    let groups = (
        chosen(&[
            "-h",
            "--si",
            "-k",
            "-m",
            "-b",
            "-B1",
            "-B K",
            "-BMB",
            "--block-size=KiB",
            "-h -k",
            "-k --si",
            "-B 3000",
        ]),
        chosen(&["-a", "-s", "-d0", "-d 1", "--max-depth=2", "-s -s", "-d0 -d2", "-a -d1", "--max=1"]),
        chosen(&["-x", "--one-file-system"]),
        chosen(&["--apparent-size", "--inodes", "--inodes -h"]),
        chosen(&[
            "--exclude=a*",
            "--exclude=*.* --exclude=f?",
            "--exclude=[a-b]*/[!a]*",
            "--exclude=b",
            "--exclude=t/*",
        ]),
        chosen(&["-c", "--total"]),
        chosen(&["-S", "--separate-dirs"]),
        chosen(&["-t 1", "-t 4K", "-t -4K", "--threshold=10kB", "-t -1"]),
        chosen(&["--time --time-style=full-iso", "--time=ctime --time-style=+%s", "--time=status"]),
        chosen(&["-D", "-H", "-P", "-l", "-L -l", "-l -D -P"]),
        chosen(&["-0", "--null"]),
    );
    groups.prop_map(|(a, b, c, d, e, f, g, h, i, j, k)| [a, b, c, d, e, f, g, h, i, j, k].concat())
}

fn roots() -> impl Strategy<Value = Vec<OsString>> {
    prop::sample::select(
        &[
            "t",
            "t/",
            "./t//",
            "t t",
            "t/a t",
            "t t/a t/b",
            "t/f t",
            "t t/f t/f",
            "t/nothing t",
            "t/link",
            "t/link/ t",
        ][..],
    )
    .prop_map(|roots| arguments(&roots.split(' ').collect::<Vec<_>>()))
}

/// True if GNU du counts the length of directories, which newer versions do not.
fn counts_directories() -> bool {
    let empty = tree();
    let output = theirs(empty.path(), &arguments(&["-sb"]), &[]);
    let counts = !output.stdout.starts_with(b"0\t");
    if !counts {
        anyring_tally::skipped("this du counts no contents of directories");
    }
    counts
}

const ENVIRONMENTS: &[&[(&str, &str)]] = &[
    &[],
    &[("DU_BLOCK_SIZE", "human-readable")],
    &[("BLOCKSIZE", "2K")],
    &[("BLOCK_SIZE", "M"), ("BLOCKSIZE", "1")],
    &[("POSIXLY_CORRECT", "1")],
    &[("DU_BLOCK_SIZE", "nonsense")],
];

/// Returns the cases: always the same, or as many random ones as ANYRING_DU_CASES says.
fn config() -> ProptestConfig {
    let cases = std::env::var("ANYRING_DU_CASES").ok().map(|cases| cases.parse().expect("a number of cases"));
    let rng_seed = if cases.is_some() { RngSeed::Random } else { RngSeed::Fixed(0) };
    let config =
        ProptestConfig { max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::default() };
    ProptestConfig { cases: cases.unwrap_or(200), rng_seed, ..config }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_trees_with_random_options(
        things in prop::collection::vec(thing(), 0..40),
        mut words in options(),
        roots in roots(),
        sorted in any::<bool>(),
        way in prop::sample::select(&[Way::User, Way::Kernel, Way::Denied][..]),
        environment in prop::sample::select(ENVIRONMENTS),
    ) {
        let place = tree();
        // The name under which a file gets its line depends on the order of the walk.
        let lines_of_files = words.iter().any(|word| word == "-a") && !words.iter().any(|word| word == "-l");
        let mut things = things;
        things.retain(|thing| !lines_of_files || !matches!(thing.what, What::Name));
        build(&place.path().join("t"), &things);
        let _ = symlink("a", place.path().join("t/link"));
        // Both programs refuse options that contradict each other.
        words.extend(roots);
        // With POSIXLY_CORRECT GNU du takes no options after operands.
        let (ours, theirs) = (ours(way, place.path(), &order(&words, sorted), environment), theirs(place.path(), &words, environment));
        let bytes = words.iter().any(|word| word == "-b" || word == "--apparent-size");
        prop_assume!(!bytes || counts_directories());
        prop_assert_eq!(
            (ours.status.code(), lines(&ours)),
            (theirs.status.code(), lines(&theirs)),
            "{:?} {:?}\n{}{}",
            words,
            environment,
            String::from_utf8_lossy(&ours.stderr),
            String::from_utf8_lossy(&theirs.stderr)
        );
    }
}

fn order(words: &[OsString], sorted: bool) -> Vec<OsString> {
    let first = sorted.then(|| OsString::from("--sorted"));
    first.into_iter().chain(words.iter().cloned()).collect()
}

const WAYS: [Way; 3] = [Way::User, Way::Kernel, Way::Denied];

/// A file with names in several directories counts for one of them, which depends on the order; the total does not.
#[test]
fn names_in_several_directories() {
    let place = tree();
    for directory in ["t", "t/one", "t/two", "t/two/three"] {
        std::fs::create_dir(place.path().join(directory)).unwrap();
    }
    for number in 0..50 {
        let file = place.path().join(format!("t/one/{number}"));
        std::fs::write(&file, vec![1; number * 500]).unwrap();
        for directory in ["two", "two/three"] {
            std::fs::hard_link(&file, place.path().join(format!("t/{directory}/{number}"))).unwrap();
        }
    }
    for way in WAYS {
        for words in [
            &["-s", "t"][..],
            &["-sl", "t"],
            &["-s", "t/two", "t/one", "t"],
            &["-sc", "t/one/4", "t/two"],
            &["-s", "t/two", "t/one/4", "t"],
            &["-c", "t/one/4", "t/two/4"],
        ] {
            same(way, place.path(), &arguments(words), &[]);
        }
    }
}

/// With -L a file counts once, however many links lead to it; the directory for which it counts depends on the order.
#[test]
fn links_are_followed() {
    let place = tree();
    std::fs::create_dir_all(place.path().join("t/one/deep")).unwrap();
    std::fs::create_dir_all(place.path().join("u")).unwrap();
    std::fs::write(place.path().join("t/one/file"), [1; 9000]).unwrap();
    std::fs::write(place.path().join("u/file"), [1; 90_000]).unwrap();
    for (to, name) in
        [("one", "t/a"), ("one/file", "t/b"), ("..", "t/one/deep/up"), ("../u", "t/u"), (".", "t/self")]
    {
        symlink(to, place.path().join(name)).unwrap();
    }
    for way in WAYS {
        for words in
            [&["-Ls", "t"][..], &["-Lsc", "t", "u"], &["-Lla", "t"], &["-D", "t/u"], &["-DL", "-s", "t/u"]]
        {
            same(way, place.path(), &arguments(words), &[]);
        }
    }
    // An argument without entries loses its slash.
    std::fs::create_dir(place.path().join("empty")).unwrap();
    for words in [&["-L", "empty/"][..], &["-D", "empty/"], &["-L", "u/"], &["-L", "--exclude=file", "u/"]] {
        same(Way::User, place.path(), &arguments(words), &[]);
    }
    // A dangling link counts, and is not a failure if it is excluded.
    for (name, to) in [("loop", "loop"), ("gone", "nowhere"), ("self", ".")] {
        let directory = place.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        symlink(to, directory.join(name)).unwrap();
        let argument = format!("{name}/");
        for words in
            [&["-L", &argument][..], &["-L", "--exclude=*/*", &argument], &["-L", "--exclude", name, name]]
        {
            for way in WAYS {
                same(way, place.path(), &arguments(words), &[]);
            }
        }
    }
    symlink("nowhere", place.path().join("t/gone")).unwrap();
    for words in [&["-Ls", "t"][..], &["-D", "t/gone"], &["t/gone"]] {
        same(Way::User, place.path(), &arguments(words), &[]);
    }
}

/// The largest sizes and times.
#[test]
fn beyond_all_numbers() {
    let place = tree();
    for name in ["a/f", "a/g", "b/f", "c/f", "far/f", "last/f"] {
        std::fs::create_dir_all(place.path().join(name).parent().unwrap()).unwrap();
        let file = File::create(place.path().join(name)).unwrap();
        if !name.starts_with("last") && file.set_len(i64::MAX.cast_unsigned()).is_err() {
            anyring_tally::skipped("no file can be so long");
            return;
        }
    }
    let touch = |path: &str, seconds: i64| {
        let path = CString::new(place.path().join(path).into_os_string().into_encoded_bytes()).unwrap();
        let time = libc::timespec { tv_sec: seconds, tv_nsec: 7 };
        // SAFETY: a string, and two times.
        let result = unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), [time; 2].as_ptr(), 0) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    };
    // 2300, 1600, 10000, and years that no calendar has; each directory's last time is that of its file.
    for (name, seconds) in
        [("b", 10_413_792_000), ("c", -11_676_096_000), ("far", 253_402_300_800), ("last", 1 << 62)]
    {
        touch(&format!("{name}/f"), seconds);
        touch(name, seconds - 1);
    }
    for way in WAYS {
        for line in [
            "a b",
            "-c a/f a/g b/f",
            "-b b a",
            "-h a",
            "--si -a a",
            "-BE a",
            "-BkB a",
            "-t8E a b",
            "a/f b/f c/f",
            "last",
        ] {
            let words = format!("--apparent-size -s {line}").replace("-s --si -a", "--si -a");
            same(way, place.path(), &arguments(&words.split(' ').collect::<Vec<_>>()), &[("TZ", "UTC0")]);
        }
        for line in
            ["b", "-a far", "--time-style=full-iso far", "--time-style=+%s b", "--time-style=iso last"]
        {
            let words = format!("--time -a {line}").replace("-a -a", "-a");
            same(way, place.path(), &arguments(&words.split(' ').collect::<Vec<_>>()), &[("TZ", "UTC0")]);
        }
        // GNU du prints 1970 for the first of directories that are all older.
        same(way, place.path(), &arguments(&["--time", "c/f"]), &[("TZ", "UTC0")]);
        let old = ours(way, place.path(), &arguments(&["--time", "c"]), &[("TZ", "UTC0")]);
        assert_eq!(String::from_utf8_lossy(&old.stdout), "0\t1600-01-01 00:00\tc\n");
    }
}

/// File systems in the tree: -x excludes them, unless they are arguments.
#[test]
fn other_file_systems() {
    let place = tree();
    let inside = place.path().join("t/in/mounted");
    std::fs::create_dir_all(&inside).unwrap();
    std::fs::write(place.path().join("t/file"), [1; 5000]).unwrap();
    let target = CString::new(inside.as_os_str().as_bytes()).unwrap();
    // SAFETY: strings of ours.
    let mount = || unsafe {
        libc::mount(c"t".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null()) == 0
    };
    if !mount() {
        anyring_tally::skipped("nothing can be mounted");
        return;
    }
    let result = std::panic::catch_unwind(|| {
        std::fs::write(inside.join("file"), [1; 70_000]).unwrap();
        for way in WAYS {
            for words in
                [&["-a", "t"][..], &["-xa", "t"], &["-xa", "t/in/mounted"], &["-xac", "t", "t/in/mounted"]]
            {
                same(way, place.path(), &arguments(words), &[]);
            }
        }
    });
    // SAFETY: as above.
    unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    result.unwrap();
}

/// Directories that are mounted below themselves count once.
#[test]
fn mounted_below_itself() {
    const MOUNTS: &[(&str, &str)] = &[("t/a", "t/a/again"), (".", "t/b/whole"), ("t/a/deep", "t/beside")];
    let place = tree();
    for directory in ["t/a/again", "t/a/deep", "t/b/whole", "t/beside"] {
        std::fs::create_dir_all(place.path().join(directory)).unwrap();
    }
    for (file, length) in [("t/a/file", 50_000), ("t/a/deep/file", 9000), ("t/b/file", 20_000)] {
        std::fs::write(place.path().join(file), vec![1; length]).unwrap();
    }
    let measure = |mut command: Command, words: &[&str]| {
        mounted(&mut command, MOUNTS);
        command.current_dir(place.path()).args(words).env("LC_ALL", "C").output()
    };
    if let Err(error) = measure(Command::new("du"), &["t"]) {
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        anyring_tally::skipped("nothing can be mounted");
        return;
    }
    for line in [
        "t",
        "-a t",
        "-x t",
        "-s t/a",
        "-l t",
        "-al --inodes t",
        "t/b",
        "t/beside",
        "-L t/a",
        "-a t/a t/a/again",
        "-a t/a/again t/a",
        "-ld1 t t/b",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let theirs = measure(Command::new("du"), &words).unwrap();
        for engine in [&[][..], &["--engine=user"], &["--sorted"]] {
            let command = Command::new(env!("CARGO_BIN_EXE_anyring-du"));
            let ours = measure(command, &[engine, &words].concat()).unwrap();
            let said = String::from_utf8_lossy(&ours.stderr);
            assert_eq!(lines(&ours), lines(&theirs), "{line} {engine:?}: {said}");
            assert_eq!((ours.status.code(), &*said), (theirs.status.code(), ""), "{line} {engine:?}");
        }
    }
}

#[test]
fn what_cannot_be_read() {
    let place = tree();
    std::fs::create_dir_all(place.path().join("t/shut/in")).unwrap();
    std::fs::create_dir_all(place.path().join("t/open")).unwrap();
    std::fs::write(place.path().join("t/open/file"), [1; 9000]).unwrap();
    let mode = |mode| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(place.path().join("t/shut"), permissions).unwrap();
    };
    mode(0);
    std::fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Runs as a user without privileges, who must be able to reach the program.
    let program = place.path().join("du");
    // A separate process copies: a descriptor of ours, open for writing and inherited by another test's child, would cause ETXTBSY.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_anyring-du")).arg(&program).status().unwrap();
    assert!(copied.success());
    let as_nobody = |program: &OsStr| {
        let mut command = Command::new(program);
        // SAFETY: a check.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(65534).gid(65534);
        }
        run(command, place.path(), &arguments(&["-a", "t", "nothing"]), &[])
    };
    let (ours, theirs) = (as_nobody(program.as_os_str()), as_nobody(OsStr::new("du")));
    mode(0o755);
    assert_eq!((ours.status.code(), lines(&ours)), (Some(1), lines(&theirs)));
    let said = String::from_utf8_lossy(&ours.stderr);
    assert!(said.contains("anyring du: cannot read directory 't/shut': Permission denied"), "{said}");
    assert!(said.contains("anyring du: cannot access 'nothing': No such file or directory"), "{said}");
}

/// A path longer than PATH_MAX.
#[test]
fn a_deep_chain() {
    let place = tree();
    let name = CString::new(vec![b'd'; 200]).unwrap();
    let mut directory = OwnedFd::from(File::open(place.path()).unwrap());
    for _ in 0..60 {
        // SAFETY: a string of ours, and a descriptor that is used nowhere else.
        directory = unsafe {
            assert_eq!(libc::mkdirat(directory.as_raw_fd(), name.as_ptr(), 0o755), 0);
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
            OwnedFd::from_raw_fd(libc::openat(directory.as_raw_fd(), name.as_ptr(), flags))
        };
    }
    for way in WAYS {
        same(way, place.path(), &arguments(&["-a"]), &[]);
        same(way, place.path(), &arguments(&["-s", "--inodes"]), &[]);
    }
    Command::new("rm")
        .arg("-rf")
        .arg(place.path().join(OsStr::from_bytes(name.to_bytes())))
        .status()
        .unwrap();
}

#[test]
fn arguments_from_a_file() {
    let place = tree();
    for name in ["a", "b", "c\nd"] {
        std::fs::write(place.path().join(name), [1; 3000]).unwrap();
    }
    for list in ["a\0b", "a\0c\nd\0", "", "a\0\0b\0", "a\0nothing\0"] {
        std::fs::write(place.path().join("list"), list).unwrap();
        same(Way::User, place.path(), &arguments(&["--files0-from=list", "-c"]), &[]);
    }
    std::fs::write(place.path().join("patterns"), "b*  \n\nlist\npatterns\n").unwrap();
    same(Way::User, place.path(), &arguments(&["-a", "-X", "patterns"]), &[]);
    same(Way::User, place.path(), &arguments(&["--files0-from=nothing"]), &[]);
    same(Way::User, place.path(), &arguments(&["--files0-from=list", "a"]), &[]);
}

/// The trees of this repository.
#[test]
fn real_trees() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap();
    for way in WAYS {
        for words in [&["-a", "engine", "walk", "docs"][..], &["-sh", "engine", "docs"], &["-S", "engine"]] {
            same(way, repository, &arguments(words), &[]);
        }
    }
}

/// A directory's line follows those of its entries, and the argument's is last; with --sorted the whole order is fixed.
#[test]
fn order_of_lines() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap();
    let paths = |words: &[&str]| -> Vec<String> {
        let output = ours(Way::User, repository, &arguments(words), &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| line.split_once('\t').unwrap().1.to_owned()).collect()
    };
    let all = paths(&["-a", "--threads=4", "core"]);
    let place = |path: &str| all.iter().position(|other| other == path).unwrap();
    for path in &all {
        if let Some((above, _)) = path.rsplit_once('/') {
            assert!(place(path) < place(above), "{path}");
        }
    }
    let siblings = paths(&["-d1", "--sorted", "core"]);
    let (last, before) = siblings.split_last().unwrap();
    assert_eq!(last, "core");
    assert!(before.is_sorted(), "{before:?}");
}

#[test]
fn what_is_refused() {
    let place = tree();
    for words in [
        &["-as"][..],
        &["-s", "-d1"],
        &["-d", "x"],
        &["-d-1"],
        &["-B", "0"],
        &["-B", "x"],
        &["-B", "4x"],
        &["-t", "-0"],
        &["-t", "x"],
        &["--nonsense"],
        &["--time=noon"],
        &["--time", "--time-style=nice"],
    ] {
        let (ours, theirs) = (
            ours(Way::User, place.path(), &arguments(words), &[]),
            theirs(place.path(), &arguments(words), &[]),
        );
        assert_eq!((ours.status.code(), theirs.status.code()), (Some(1), Some(1)), "{words:?}");
        assert!(ours.stdout.is_empty() && !ours.stderr.is_empty());
    }
    let help = ours(Way::User, place.path(), &arguments(&["--help"]), &[]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("Examples:"));
}

#[test]
fn versions_and_threads() {
    let ours = |words: &[&str]| Command::new(env!("CARGO_BIN_EXE_anyring-du")).args(words).output().unwrap();
    let output = ours(&["--version"]);
    assert!(output.status.success() && output.stdout.starts_with(b"anyring du "), "{output:?}");
    for wrong in ["0", "1025", "x", "-1"] {
        let output = ours(&["--threads", wrong, "."]);
        assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{wrong}: {output:?}");
    }
    assert!(ours(&["--threads", "2", "-s", "src"]).status.success());
}
