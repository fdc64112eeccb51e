//! `copy SOURCE TARGET`: copies a file in pieces, several of them concurrently.

use anyring::{Fd, Id, Ring, Token, op};
use std::collections::HashMap;

/// The size of a piece in bytes.
const PIECE: u64 = 128 << 10;
/// The maximum number of pieces in progress.
const MOST: u32 = 8;

/// The step of a request for a piece, of which the part from `at` to `end` is still to be copied.
enum Doing {
    Read(Token<op::Read<Vec<u8>>>),
    Write(Token<op::Write<Vec<u8>>>),
}

struct Piece {
    doing: Doing,
    at: u64,
    end: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(source), Some(target)) = (arguments.next(), arguments.next()) else {
        return Err("usage: copy SOURCE TARGET".into());
    };
    let mut ring = Ring::new(MOST)?;
    let source = ring.run(op::open(&source))??;
    let target = ring.run(op::open(&target).write().create().truncate())??;
    let length = ring.run(op::metadata_of(&source))??.len();
    println!("{length} bytes with the {} engine", ring.engine());
    copy(&mut ring, &source, &target, length)?;
    ring.run(op::fsync(&target))??;
    Ok(())
}

fn copy(ring: &mut Ring, source: &Fd, target: &Fd, length: u64) -> Result<(), anyring::Error> {
    let mut starts = (0..length).step_by(PIECE as usize);
    let mut pieces: HashMap<Id, Piece> = HashMap::new();
    for at in starts.by_ref().take(MOST as usize) {
        let read = ring.push(op::read(source, Vec::with_capacity(PIECE as usize)).at(at))?;
        pieces.insert(read.id(), Piece { doing: Doing::Read(read), at, end: length.min(at + PIECE) });
    }
    while !pieces.is_empty() {
        let completion = ring.wait()?;
        let Some(mut piece) = pieces.remove(&completion.id()) else { continue };
        match piece.doing {
            Doing::Read(read) => {
                let (count, buffer) = completion.take(read).expect("it is that one");
                if count? == 0 {
                    // The file has become shorter.
                    continue;
                }
                let write = ring.push(op::write(target, buffer).at(piece.at))?;
                pieces.insert(write.id(), Piece { doing: Doing::Write(write), ..piece });
            }
            Doing::Write(write) => {
                let (count, buffer) = completion.take(write).expect("it is that one");
                // If a read or write was short, the rest of the piece is read next, otherwise another piece.
                piece.at += count? as u64;
                if piece.at >= piece.end {
                    let Some(at) = starts.next() else { continue };
                    (piece.at, piece.end) = (at, length.min(at + PIECE));
                }
                let read = ring.push(op::read(source, buffer).at(piece.at))?;
                pieces.insert(read.id(), Piece { doing: Doing::Read(read), ..piece });
            }
        }
    }
    Ok(())
}
