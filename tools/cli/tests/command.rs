//! The output and exit status of `anyring` itself.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use support::{anyring, built};

fn run(arguments: &[&str]) -> Output {
    Command::new(anyring()).arg("run").args(arguments).output().unwrap()
}

fn says(output: &Output, what: &str) -> bool {
    String::from_utf8_lossy(&output.stderr).contains(what)
}

#[test]
fn the_programs_status_is_its_own() {
    for engine in ["auto", "kernel", "user"] {
        for code in [0, 1, 42, 127, 255] {
            let output = run(&["--engine", engine, "--", "sh", "-c", &format!("exit {code}")]);
            assert_eq!(output.status.code(), Some(code), "{output:?}");
        }
        for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSYS] {
            let output = run(&["--engine", engine, "--", "sh", "-c", &format!("kill -{signal} $$")]);
            assert_eq!(output.status.signal(), Some(signal), "{output:?}");
        }
    }
}

#[test]
fn arguments_pass_unchanged() {
    let output = run(&["printf", "%s|", "--log", "a b", "", "--"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--log|a b||--|");
}

#[test]
fn failures_are_told_apart() {
    let output = run(&["no-such-program-anywhere"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(says(&output, "not found"));
    let output = run(&["/"]);
    assert_eq!(output.status.code(), Some(126));
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(125));
    let output =
        Command::new(anyring()).args(["run", "true"]).env("ANYRING_PRELOAD", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(says(&output, "ANYRING_PRELOAD"));
}

#[test]
fn scripts_run_by_their_interpreter() {
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("script-{}", std::process::id()));
    std::fs::write(&script, "#!/bin/sh\necho $1; exit 9\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(&["--engine", "user", script.to_str().unwrap(), "hello"]);
    std::fs::remove_file(&script).unwrap();
    assert_eq!((output.stdout.as_slice(), output.status.code()), (b"hello\n".as_slice(), Some(9)));
}

#[test]
fn the_log_goes_where_it_is_told() {
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("log-{}", std::process::id()));
    let output = run(&["--engine", "user", "--log", log.to_str().unwrap(), "true"]);
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.starts_with("anyring[") && text.contains("]: engine=user rings=0 submitted=0"), "{text}");
    std::fs::remove_file(&log).unwrap();
    let output = run(&["--engine", "user", "--log", "info,fd=1", "true"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("engine=user"), "{output:?}");
}

#[test]
fn the_doctor_explains_denials() {
    for (errno, name) in [(libc::EPERM, "EPERM"), (libc::ENOSYS, "ENOSYS")] {
        let deny = built("deny");
        let doctor = |json: &[&str]| {
            Command::new(&deny)
                .arg(errno.to_string())
                .arg(anyring())
                .arg("doctor")
                .args(json)
                .output()
                .unwrap()
        };
        let output = doctor(&[]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&format!("denied ({name})")) && text.contains("seccomp filter"), "{text}");
        let report: serde_json::Value = serde_json::from_slice(&doctor(&["--json"]).stdout).unwrap();
        assert_eq!(report["verdict"], "user");
        assert_eq!(report["kernel"]["error"], name);
        assert_eq!(report["trap"]["works"], true);
        assert_eq!(report["static_programs"]["works"], true, "{report}");
    }
    let output = Command::new(anyring()).arg("doctor").env("ANYRING_PRELOAD", "/nowhere").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("does not work"), "{output:?}");
}

#[test]
fn help_fits_narrow_terminals() {
    for name in ["run", "trace", "top", "chaos", "doctor", "find", "du", "unpack"] {
        let mut command = Command::new(anyring());
        let output = command.args([name, "--help"]).env("COLUMNS", "60").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.lines().count() > 5, "{name}: {text}");
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 60).collect();
        assert!(wide.is_empty(), "{name}: {wide:#?}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let wide = Command::new(anyring()).args([name, "--help"]).env("COLUMNS", "100").output().unwrap();
        assert_eq!(words(&text), words(&String::from_utf8(wide.stdout).unwrap()), "{name}");
    }
}

#[test]
fn manuals_are_written() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("man-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    assert!(Command::new(anyring()).arg("man").arg(&directory).status().unwrap().success());
    let page = std::fs::read_to_string(directory.join("anyring-run.1")).unwrap();
    for part in [
        "\nauto: The kernel",
        "\nkernel: Always",
        "\n.SH EXAMPLES\n.nf\n",
        "  ANYRING_ENGINE ",
        "\n.SH EXIT STATUS\n",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// The arguments of `find` are parsed by `find`, even those that the command has, too.
#[test]
fn find_is_found() {
    let find = |words: &[&str]| Command::new(anyring()).arg("find").args(words).output().unwrap();
    let output = find(&["src", "--sorted", "-name", "cli.rs", "-printf", "%p %d"]);
    assert_eq!((output.stdout.as_slice(), output.status.code()), (b"src/cli.rs 1".as_slice(), Some(0)));
    assert_eq!(find(&["--", "src", "-maxdepth", "0"]).stdout, b"src\n");
    assert!(String::from_utf8_lossy(&find(&["--help"]).stdout).contains("anyring find . -name"));
    let output = find(&["src", "-nonsense"]);
    assert!(output.status.code() == Some(1) && says(&output, "-nonsense"), "{output:?}");
}

/// If a reader such as `head` closes the pipe early, the command dies silently, as other tools do.
#[test]
fn readers_may_go() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for words in [
        ["doctor"].as_slice(),
        &["doctor", "--json"],
        &["doctor", "--", "true"],
        &["support"],
        &["completions", "bash"],
        &["chaos", "--list-faults"],
        &["find", "src"],
        &["find", "--help"],
        &["du", "-a", "src"],
        &["du", "--help"],
        &["--help"],
        &["run", "--help"],
    ] {
        let mut command = Command::new(anyring());
        let output = command.args(words).stdout(writer.try_clone().unwrap()).output().unwrap();
        assert!(output.stderr.is_empty(), "{words:?}: {output:?}");
        let died = output.status.signal() == Some(libc::SIGPIPE);
        assert!(died || words.ends_with(&["--help"]), "{words:?}: {output:?}");
    }
    // If standard error is broken, the command still returns the program's status.
    for words in [["trace", "--"].as_slice(), &["chaos", "--"], &["chaos", "--runs", "2", "--"]] {
        let mut command = Command::new(anyring());
        let output = command.args(words).arg("true").stderr(writer.try_clone().unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
    }
    let output = Command::new(anyring()).args(["run", "--", "/"]).stderr(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(anyring()).arg("doctor").stdout(full).output().unwrap();
    assert!(
        output.status.code() == Some(1) && says(&output, "cannot write to standard output"),
        "{output:?}"
    );
}

/// An unknown option is not taken for a program.
#[test]
fn misspelt_options_are_refused() {
    for words in [
        ["run", "--egine", "user", "true"],
        ["trace", "--egine", "user", "true"],
        ["chaos", "--sed", "1", "true"],
    ] {
        let output = Command::new(anyring()).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{words:?}: {output:?}");
        assert!(says(&output, "a similar argument exists"), "{words:?}: {output:?}");
    }
    assert!(says(&run(&["--egine", "user", "true"]), "'--engine'"));
    // Words after the program, or after two dashes, belong to the program.
    let output = run(&["printf", "%s|", "--egine", "-x"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--egine|-x|");
    let output = run(&["--", "--egine"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
}

#[test]
fn shells_complete_it() {
    let completions = |shell: &str| {
        let output = Command::new(anyring()).args(["completions", shell]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(completions("fish").contains("complete -c anyring"));
    assert!(completions("zsh").starts_with("#compdef anyring"));
    let script = format!(
        "{}\nCOMP_WORDS=(anyring run --eng) COMP_CWORD=2; _anyring anyring --eng run; echo \"${{COMPREPLY[@]}}\"",
        completions("bash")
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--engine\n", "{output:?}");
}

/// The directory `images`, from which `cargo install` builds, contains all crates that the libraries of `anyring run` need.
#[test]
fn the_sources_of_the_images_are_complete() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let images = package.join("images");
    let workspace = std::fs::read_to_string(images.join("workspace.toml")).unwrap();
    let path_of = |name: &str| {
        let (_, rest) = workspace.split_once(&format!("\n{name} = {{ path = \"")).expect(name);
        rest.split('"').next().unwrap().to_owned()
    };
    let folders = |path: &Path| -> Vec<_> {
        let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect()
    };
    let mut missing = Vec::new();
    for crate_ in folders(&images).iter().flat_map(|group| folders(group)) {
        let manifest = std::fs::read_to_string(crate_.join("manifest.toml")).unwrap();
        let tables = manifest.split("\n[").filter(|table| !table.starts_with("dev-"));
        let names = tables.flat_map(str::lines).filter(|line| line.starts_with("anyring"));
        let names = names.filter_map(|line| line.split(['.', ' ', '=']).next());
        missing.extend(names.map(path_of).filter(|path| !images.join(path).exists()));
    }
    assert!(missing.is_empty(), "tools/cli/images lacks {missing:?}: see its README.md");
}
