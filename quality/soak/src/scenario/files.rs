//! Files: what is written in pieces and in any order is read again; chains of open, write, read, close.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use io_uring::squeue::Flags;
use io_uring::{opcode, types};

use super::{Setting, bytes};
use crate::ring::Ring;

/// Writes random pieces, plain, fixed or with IOSQE_ASYNC, reads them in another way, and compares.
pub fn written_is_read(rng: &mut fastrand::Rng, setting: &Setting) -> Result<()> {
    let path = unique(rng, &setting.directory);
    let file = File::options().create_new(true).read(true).write(true).open(&path)?;
    fs::remove_file(&path)?;
    let mut ring = Ring::random(rng)?;
    let size = rng.usize(1..64) * rng.usize(1..8192);
    let expected = bytes(rng, size);
    let mut pieces = split(rng, size);
    rng.shuffle(&mut pieces);
    let mut written = 0;
    for &(offset, length) in &pieces {
        let write =
            opcode::Write::new(fd(&file), expected[offset..].as_ptr(), length as u32).offset(offset as u64);
        // SAFETY: `expected` outlives the ring's requests: all are finished below.
        unsafe { ring.push("write", write.build().flags(maybe_async(rng)))? };
        written += reap(&mut ring, 64)?;
    }
    written += reap(&mut ring, 0)?;
    ensure!(written == size, "{written} bytes written of {size}: a regular file takes all");
    read_back(rng, &mut ring, &file, &expected)
}

/// Reads a file in pieces that may be short, and compares.
fn read_back(rng: &mut fastrand::Rng, ring: &mut Ring, file: &File, expected: &[u8]) -> Result<()> {
    let mut found = vec![0u8; expected.len()];
    for (offset, length) in split(rng, expected.len()) {
        let read =
            opcode::Read::new(fd(file), found[offset..].as_mut_ptr(), length as u32).offset(offset as u64);
        // SAFETY: `found` outlives the ring's requests: all are finished below.
        unsafe { ring.push("read", read.build().flags(maybe_async(rng)))? };
        reap(ring, 64)?;
    }
    reap(ring, 0)?;
    ensure!(found == expected, "what was read differs from what was written");
    Ok(())
}

/// Open, write, fsync, read, close, unlink as one chain on a direct descriptor.
pub fn chains(rng: &mut fastrand::Rng, setting: &Setting) -> Result<()> {
    let mut ring = Ring::random(rng)?;
    if ring.entries() < 8 {
        return Ok(());
    }
    ring.submitter().register_files(&[-1; 4]).context("register_files")?;
    for _ in 0..rng.u32(1..8) {
        let path = CString::new(unique(rng, &setting.directory).as_os_str().as_bytes())?;
        let length = rng.usize(1..20_000);
        let written = bytes(rng, length);
        let mut read = vec![0u8; written.len()];
        let at = types::Fd(libc::AT_FDCWD);
        let (slot, index) =
            (types::Fixed(2), types::DestinationSlot::try_from_slot_target(2).expect("a slot"));
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
        let length = length as u32;
        let link = Flags::IO_LINK;
        let chain = [
            opcode::OpenAt::new(at, path.as_ptr())
                .flags(flags)
                .mode(0o600)
                .file_index(Some(index))
                .build()
                .flags(link),
            opcode::Write::new(slot, written.as_ptr(), length).offset(0).build().flags(link),
            opcode::Fsync::new(slot).build().flags(link),
            opcode::Read::new(slot, read.as_mut_ptr(), length).offset(0).build().flags(link),
            opcode::Close::new(slot).build().flags(link),
            opcode::UnlinkAt::new(at, path.as_ptr()).build(),
        ];
        // SAFETY: path and buffers live to the end of this round, which waits for the chain.
        unsafe { ring.push_chain("link", chain)? };
        ring.finish(|completion| completion.count("a link of the chain").map(drop))?;
        ensure!(read == written, "the chain read something else than it wrote");
    }
    Ok(())
}

fn unique(rng: &mut fastrand::Rng, directory: &Path) -> PathBuf {
    directory.join(format!("soak-{}-{:016x}", std::process::id(), rng.u64(..)))
}

fn fd(file: &File) -> types::Fd {
    types::Fd(file.as_raw_fd())
}

fn maybe_async(rng: &mut fastrand::Rng) -> Flags {
    if rng.u32(0..4) == 0 { Flags::ASYNC } else { Flags::empty() }
}

/// Reaps transfers until at most `left` are pending; returns the bytes transferred.
fn reap(ring: &mut Ring, left: usize) -> Result<usize> {
    let mut bytes = 0;
    while ring.pending() > left {
        bytes += ring.wait()?.count("a transfer")?;
    }
    Ok(bytes)
}

/// `size` bytes as adjacent pieces of random length.
fn split(rng: &mut fastrand::Rng, size: usize) -> Vec<(usize, usize)> {
    let mut pieces = Vec::new();
    let mut offset = 0;
    while offset < size {
        let length = rng.usize(1..=(size - offset).min(1 + size / 3));
        pieces.push((offset, length));
        offset += length;
    }
    pieces
}
