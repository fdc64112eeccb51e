//! The line of `--log info`: the process that writes it, its destination and its contents.

mod support;

use anyring_both::by;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::{anyring, built, over_the_kernel};

fn logged(words: &[&str]) -> Output {
    Command::new(anyring())
        .args(["run", "--engine", "user", "--log", "info", "--"])
        .args(words)
        .output()
        .unwrap()
}

/// Returns the lines of the log, each as the text before the keys, and pairs of keys and values.
fn lines(output: &Output) -> Vec<(String, Vec<(String, String)>)> {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    let ours = text.lines().filter(|line| line.starts_with("anyring["));
    ours.map(|line| {
        let (who, mut rest) = line.split_once(": ").unwrap();
        let mut pairs = Vec::new();
        while !rest.is_empty() {
            let (key, value) = rest.split_once('=').unwrap_or_else(|| panic!("no key: {line}"));
            let end = match value.strip_prefix('"') {
                Some(quoted) => quoted.find('"').map(|end| end + 2).unwrap(),
                None => value.find(' ').unwrap_or(value.len()),
            };
            assert!(!key.contains(' '), "{line}");
            pairs.push((key.to_owned(), value[..end].to_owned()));
            rest = value[end..].trim_start();
        }
        (who.to_owned(), pairs)
    })
    .collect()
}

fn value<'a>(line: &'a (String, Vec<(String, String)>), key: &str) -> &'a str {
    line.1.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str()).unwrap_or_default()
}

fn nop() -> String {
    built("nop").to_str().unwrap().to_owned()
}

/// Returns a unique name in the directory for temporary files of tests.
fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()))
}

#[test]
fn programs_that_close_standard_error_have_a_line() {
    for (name, words) in [
        ("ls", ["ls", "/"].as_slice()),
        ("cat", &["cat", "/dev/null"]),
        ("true", &["sh", "-c", "exec 2>/dev/null; exec true"]),
    ] {
        let output = logged(words);
        assert!(output.status.success(), "{output:?}");
        let lines = lines(&output);
        if name == "true" {
            // The shell has redirected its standard error, and the program's with it.
            assert!(lines.is_empty(), "{output:?}");
            continue;
        }
        assert_eq!(lines.len(), 1, "{output:?}");
        assert_eq!((value(&lines[0], "program"), value(&lines[0], "rings")), (name, "0"), "{output:?}");
    }
    let script = format!("{}; exec 2>/dev/null", nop());
    assert_eq!(lines(&logged(&["sh", "-c", &script])).len(), 2);
}

#[test]
fn the_line_is_keys_and_values() {
    let output = logged(&[&nop()]);
    let lines = lines(&output);
    assert_eq!(lines.len(), 1, "{output:?}");
    let keys: Vec<_> = lines[0].1.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(
        keys,
        ["engine", "rings", "submitted", "completed", "traps", "patched_sites", "closes", "program"]
    );
    assert_eq!((value(&lines[0], "program"), value(&lines[0], "rings")), ("nop", "2"));
    let spaced = temporary("two words=\"1\"");
    std::fs::copy(nop(), &spaced).unwrap();
    std::fs::set_permissions(&spaced, PermissionsExt::from_mode(0o755)).unwrap();
    let output = logged(&[spaced.to_str().unwrap()]);
    let expected = format!("program=\"two words=\\\"1\\\"-{}\"\n", std::process::id());
    assert!(String::from_utf8_lossy(&output.stderr).ends_with(&expected), "{output:?}");
    std::fs::remove_file(spaced).unwrap();
}

#[test]
fn children_without_a_ring_are_silent() {
    let script = format!("true; (true); env true; {}; exit 3", nop());
    let output = logged(&["sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let programs: Vec<_> = lines(&output).iter().map(|line| value(line, "program").to_owned()).collect();
    assert!(programs.len() == 2 && programs[0] == "nop", "{programs:?}");
    // The program that the process executes last counts as started by the user, however it was executed.
    for words in [["sh", "-c", "exec env true"].as_slice(), &["env", "A=1", "true"], &["true"]] {
        let output = logged(words);
        let lines = lines(&output);
        assert_eq!(lines.len(), 1, "{output:?}");
        assert_eq!(value(&lines[0], "program"), "true", "{output:?}");
    }
    // Of the kernel's rings, anyring knows only that they are the kernel's.
    let mut command = Command::new(anyring());
    command.args(["run", "--engine", "kernel", "--log", "info", "--", "sh", "-c", "true; env true; exit 0"]);
    let output = command.output().unwrap();
    assert_eq!(lines(&output).len(), 1, "{output:?}");
}

/// The newest setup flags: `IORING_SETUP_SQ_REWIND` with the flag that it needs, and both kinds of mixed sizes.
const NEWEST: u32 = 1 << 16 | 1 << 18 | 1 << 19 | 1 << 20;

/// A child of `vfork` that executes nothing does not take its parent's line, and a child of `fork` does not print it.
#[by(over_the_kernel)]
fn children_do_not_take_their_parents_line() {
    let library = anyring().with_file_name("libanyring_preload.so");
    // Without `anyring run`, a process has a line after it has asked for a ring.
    let program = built("vfork-with-ring");
    let mut command = Command::new(&program);
    command.env("LD_PRELOAD", library).env("ANYRING_LOG", "info");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let who = format!("anyring[{}]", child.id());
    let output = child.wait_with_output().unwrap();
    let lines: Vec<_> = lines(&output).into_iter().map(|line| line.0).collect();
    // If the kernel can create all rings, the request for a ring is not noticed.
    let expected = if support::kernel_makes(NEWEST) { vec![] } else { vec![who] };
    assert_eq!(lines, expected, "{output:?}");
    let mut command = Command::new(anyring());
    command.args(["run", "--engine", "kernel", "--log", "info", "--", "sh", "-c", "(exit 0); exit 0"]);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{output:?}");
}

#[test]
fn programs_that_reuse_the_memory_of_their_environment_have_a_line() {
    for program in [built("clobber"), built("clobber-static")] {
        let log = temporary("clobbered");
        let mut command = Command::new(anyring());
        command.args(["run", "--engine", "user", "--log", log.to_str().unwrap(), "--"]).arg(&program);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        assert!(text.contains("engine=user rings=1 submitted=1"), "{}: {text}", program.display());
        std::fs::remove_file(log).unwrap();
    }
}

/// If the program opens a file at the number of the log's descriptor, the log does not write to it.
#[test]
fn no_line_goes_into_a_file_of_the_program() {
    let file = temporary("swept");
    let program = built("sweep");
    let output = logged(&[program.to_str().unwrap(), file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
    std::fs::remove_file(file).unwrap();
    // The same without a standard error at the start.
    let file = temporary("unopened");
    let command = format!(
        "exec '{}' run --engine user --log info -- sh -c \"exec 2>'{}'; exit 0\" 2>&-",
        anyring().display(),
        file.display()
    );
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
    std::fs::remove_file(file).unwrap();
}

/// The log's descriptor has a number that the program would not get, and children do not inherit it.
#[test]
fn the_descriptor_of_the_log_lies_aside() {
    let script = "ulimit -Sn 256; exec ls -1 /proc/self/fd";
    let numbers = |text: &[u8]| -> Vec<u32> {
        String::from_utf8_lossy(text).lines().map(|line| line.parse().unwrap()).collect()
    };
    let native = numbers(&Command::new("sh").args(["-c", script]).output().unwrap().stdout);
    let ours = numbers(&logged(&["sh", "-c", script]).stdout);
    let (aside, rest): (Vec<u32>, Vec<u32>) = ours.iter().partition(|&&number| number >= 256);
    assert_eq!(rest, native);
    assert_eq!(aside.len(), 1, "{ours:?}");
}

/// If standard error has no reader, the program ends as without anyring's line, and gets no SIGPIPE for that line.
#[test]
fn a_log_without_a_reader_is_nobodys_signal() {
    let look = "use POSIX; $SIG{PIPE} = sub { exit 9 }; my $s = POSIX::SigSet->new(SIGPIPE); \
                sigprocmask(SIG_BLOCK, $s); kill PIPE => $$ if @ARGV; exec 'sh', '-c', 'exit 5'";
    let nop_static = built("nop-static");
    for (words, code) in [
        (["sh", "-c", "exit 7"].as_slice(), Some(7)),
        (&["sh", "-c", "true; (exit 3)"], Some(3)),
        (&[&nop()], Some(0)),
        (&[nop_static.to_str().unwrap()], Some(0)),
        (&["perl", "-e", look], Some(5)),
        (&["perl", "-e", look, "pending"], Some(5)),
        // A broken pipe of the program itself still ends it.
        (&["sh", "-c", "exec cat /dev/zero >&2"], None),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(anyring());
        command.args(["run", "--engine", "user", "--log", "info", "--"]).args(words);
        let status = command.stdout(Stdio::null()).stderr(writer).status().unwrap();
        assert_eq!(status.code(), code, "{words:?}: {status:?}");
        if code.is_none() {
            assert_eq!(status.signal(), Some(libc::SIGPIPE), "{words:?}");
        }
    }
}

/// If files must be small, the errno of the failed ring does not show the cause, so the message names the limit.
#[test]
fn limits_on_the_size_of_files_are_named() {
    for program in [built("few"), built("few-static")] {
        let output = support::denied_by("1,small").arg(&program).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(log.contains("io_uring_setup fails with EFBIG") && log.contains("RLIMIT_FSIZE"), "{log}");
    }
}
