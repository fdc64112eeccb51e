//! `anyring find` as a program of its own, for its tests and for `anyring-bench`.

fn main() -> std::process::ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    anyring_find::run(&words)
}
