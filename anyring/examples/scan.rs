//! `scan DIRECTORY`: what the files below a directory hold together, asked for by many requests at a time.

use anyring::{Id, Ring, Token, op};
use std::collections::HashMap;
use std::path::PathBuf;

/// Requests under way.
const MOST: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(root) = std::env::args().nth(1) else { return Err("usage: scan DIRECTORY".into()) };
    let mut ring = Ring::new(MOST as u32)?;
    let mut directories = vec![PathBuf::from(root)];
    let mut names: Vec<PathBuf> = Vec::new();
    let mut asked: HashMap<Id, (Token<op::Statx>, PathBuf)> = HashMap::new();
    let (mut files, mut bytes) = (0, 0);

    loop {
        while asked.len() < MOST {
            if let Some(path) = names.pop() {
                let question = op::metadata(&path).flags(libc::AT_SYMLINK_NOFOLLOW);
                let token = ring.push(question)?;
                asked.insert(token.id(), (token, path));
            } else if let Some(directory) = directories.pop() {
                names.extend(std::fs::read_dir(directory)?.flatten().map(|entry| entry.path()));
            } else {
                break;
            }
        }
        if asked.is_empty() {
            break;
        }
        let completion = ring.wait()?;
        let Some((token, path)) = asked.remove(&completion.id()) else { continue };
        match completion.take(token).expect("it is that one") {
            Ok(metadata) if metadata.is_dir() => directories.push(path),
            Ok(metadata) => {
                files += 1;
                bytes += metadata.len();
            }
            Err(error) => eprintln!("{}: {error}", path.display()),
        }
    }
    println!("{files} files, {bytes} bytes with the {} engine", ring.engine());
    Ok(())
}
