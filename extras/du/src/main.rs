//! `anyring du` as a program of its own.

fn main() -> std::process::ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    anyring_du::run(&words)
}
