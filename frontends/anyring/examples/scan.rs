//! `scan DIRECTORY`: prints the number and the total size of the files below a directory, which are queried by many
//! concurrent requests.

use anyring::{Error, Fd, Id, Ring, Token, op};
use std::collections::HashMap;
use std::path::PathBuf;

/// The maximum number of requests in flight.
const MOST: usize = 64;

/// The step of a request.
enum Doing {
    Open(Token<op::Open>),
    Read(Token<op::ReadNames<Vec<u8>>>, Fd),
    Ask(Token<op::Statx>),
}

struct Scan {
    ring: Ring,
    doing: HashMap<Id, (Doing, PathBuf)>,
    /// Paths whose metadata has not been requested yet.
    waiting: Vec<PathBuf>,
    files: u64,
    bytes: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(root) = std::env::args().nth(1) else { return Err("usage: scan DIRECTORY".into()) };
    let ring = Ring::new(MOST as u32)?;
    let mut scan = Scan { ring, doing: HashMap::new(), waiting: vec![root.into()], files: 0, bytes: 0 };
    while !(scan.waiting.is_empty() && scan.doing.is_empty()) {
        scan.ask()?;
        scan.step()?;
    }
    println!("{} files, {} bytes with the {} engine", scan.files, scan.bytes, scan.ring.engine());
    Ok(())
}

impl Scan {
    /// Requests the metadata of waiting paths, up to the maximum number of requests in flight.
    fn ask(&mut self) -> Result<(), Error> {
        while self.doing.len() < MOST {
            let Some(path) = self.waiting.pop() else { break };
            let token = self.ring.push(op::metadata(&path).flags(libc::AT_SYMLINK_NOFOLLOW))?;
            self.doing.insert(token.id(), (Doing::Ask(token), path));
        }
        Ok(())
    }

    /// Waits for a completion, and pushes the next request for its path.
    fn step(&mut self) -> Result<(), Error> {
        let completion = self.ring.wait()?;
        let Some((doing, path)) = self.doing.remove(&completion.id()) else { return Ok(()) };
        let result = match doing {
            Doing::Ask(token) => match completion.take(token).expect("it is that one") {
                Ok(metadata) if metadata.is_dir() => {
                    let open = self.ring.push(op::open(&path).flags(libc::O_DIRECTORY))?;
                    self.doing.insert(open.id(), (Doing::Open(open), path.clone()));
                    Ok(())
                }
                Ok(metadata) => {
                    self.files += 1;
                    self.bytes += metadata.len();
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Doing::Open(token) => match completion.take(token).expect("it is that one") {
                Ok(directory) => self.read(directory, Vec::with_capacity(32 << 10), &path),
                Err(error) => Err(error),
            },
            Doing::Read(token, directory) => {
                let (result, bytes) = completion.take(token).expect("it is that one");
                for name in op::names(&bytes).filter(|it| it.name != "." && it.name != "..") {
                    self.waiting.push(path.join(name.name));
                }
                match result {
                    // The end of the directory.
                    Ok(0) => Ok(()),
                    Ok(_) => self.read(directory, bytes, &path),
                    Err(error) => Err(error),
                }
            }
        };
        if let Err(error) = result {
            eprintln!("{}: {error}", path.display());
        }
        Ok(())
    }

    fn read(&mut self, directory: Fd, buffer: Vec<u8>, path: &std::path::Path) -> Result<(), Error> {
        let read = self.ring.push(op::read_names(&directory, buffer))?;
        self.doing.insert(read.id(), (Doing::Read(read, directory), path.to_owned()));
        Ok(())
    }
}
