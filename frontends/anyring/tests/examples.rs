//! The examples, run on both engines.

mod common;

use common::*;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Returns the command of an example, which cargo has built beside the tests.
fn example(name: &str, engine: anyring::Engine) -> Command {
    let deps = std::env::current_exe().unwrap();
    let program: PathBuf = deps.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(
        program.exists(),
        "{}: run cargo test without --test, or cargo build --examples",
        program.display()
    );
    let mut command = Command::new(program);
    command.env("ANYRING_ENGINE", engine.to_string());
    command
}

fn text(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[both]
fn a_file_is_copied(engine: Engine) {
    for name in ["copy", "copy_block_on", "copy_tokio"] {
        copies_a_file(name, engine);
    }
}

fn copies_a_file(name: &str, engine: anyring::Engine) {
    let directory = Directory::new();
    let (source, target) = (directory.path("source"), directory.path("target"));
    let content: Vec<u8> = (0..3_000_001_u32).map(|number| ((number * 7) >> 3) as u8).collect();
    std::fs::write(&source, &content).unwrap();
    let said = text(example(name, engine).arg(&source).arg(&target));
    assert_eq!(said, format!("3000001 bytes with the {engine} engine\n"));
    assert_eq!(std::fs::read(&target).unwrap(), content);
}

#[both]
fn a_directory_is_looked_through(engine: Engine) {
    let directory = Directory::new();
    for number in 0..5 {
        let path = directory.path(&format!("d{number}"));
        std::fs::create_dir(&path).unwrap();
        for file in 0..40 {
            std::fs::write(path.join(file.to_string()), vec![0; file]).unwrap();
        }
    }
    let said = text(example("scan", engine).arg(&directory.0));
    assert_eq!(said, format!("200 files, {} bytes with the {engine} engine\n", 5 * 39 * 40 / 2));
}

#[both]
fn time_is_over(engine: Engine) {
    let said = text(&mut example("timeout", engine));
    assert!(said.contains(&format!("operation READ on the {engine} engine")), "{said}");
    assert_eq!(said.matches("tick").count(), 3);
}

#[both]
fn an_echo_comes_back(engine: Engine) {
    for name in ["echo", "echo_futures", "echo_tokio"] {
        echoes(name, engine);
    }
}

fn echoes(name: &str, engine: anyring::Engine) {
    let mut server = example(name, engine);
    let mut server = server.args(["127.0.0.1:0", "4"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split(' ').next().unwrap().to_owned();
    assert!(line.contains(&engine.to_string()), "{line}");
    let client = |seed: usize| {
        let address = address.clone();
        move || {
            let mut stream = TcpStream::connect(address).unwrap();
            for round in 0..20 {
                let sent: Vec<u8> = (0..9_000).map(|byte| (byte * seed + round) as u8).collect();
                stream.write_all(&sent).unwrap();
                let mut back = vec![0; sent.len()];
                stream.read_exact(&mut back).unwrap();
                assert!(back == sent);
            }
        }
    };
    let clients: Vec<_> = (1..=4).map(|seed| std::thread::spawn(client(seed))).collect();
    for client in clients {
        client.join().unwrap();
    }
    assert!(server.wait().unwrap().success());
}
