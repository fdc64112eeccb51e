//! Children: one that uses a ring of its own beside its parent's, one that execs.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use io_uring::{opcode, types};

use super::Setting;
use crate::ring::Ring;

/// A forked child makes a ring and works; the parent's ring goes on.
pub fn child_works(rng: &mut fastrand::Rng, _: &Setting) -> Result<()> {
    let mut parent = Ring::random(rng)?;
    let (mut here, there) = (0u64, 1u64);
    let event = event_fd()?;
    // SAFETY: `here` lives until the request has completed.
    let read = opcode::Read::new(types::Fd(event), (&raw mut here).cast(), 8).build();
    // SAFETY: as above.
    unsafe { parent.push("read", read)? };
    parent.submit()?;
    // SAFETY: the child calls only what is sound after a fork of a program with threads: rings and raw calls.
    let child = unsafe { libc::fork() };
    ensure!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let status = if write_in_child(event, &there).is_ok() { 0 } else { 1 };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status) };
    }
    let completion = parent.wait()?;
    let mut status = 0;
    // SAFETY: waits for our own child.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    // SAFETY: our own descriptor, not used again.
    unsafe { libc::close(event) };
    ensure!(waited == child && status == 0, "the child ended with status {status:#x}");
    ensure!(completion.result == 8 && here == 1, "the parent's read ended with {}", completion.result);
    Ok(())
}

/// A child's ring writes to the event that the parent's waits for.
fn write_in_child(event: i32, value: &u64) -> Result<()> {
    let mut ring = Ring::plain()?;
    let write = opcode::Write::new(types::Fd(event), std::ptr::from_ref(value).cast(), 8).build();
    // SAFETY: the value outlives the request, which is waited for.
    unsafe { ring.push("write", write)? };
    ensure!(ring.wait()?.count("write")? == 8);
    Ok(())
}

fn event_fd() -> Result<i32> {
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    ensure!(fd >= 0, "eventfd: {}", std::io::Error::last_os_error());
    Ok(fd)
}

/// A program is started while a ring is in use.
pub fn child_execs(rng: &mut fastrand::Rng, _: &Setting) -> Result<()> {
    let mut ring = Ring::random(rng)?;
    let spec = types::Timespec::new().nsec(1_000_000);
    // SAFETY: the time outlives the request, which is waited for.
    unsafe { ring.push("timeout", opcode::Timeout::new(&spec).build())? };
    ring.submit()?;
    let status = Command::new("true").status().context("true")?;
    ensure!(status.success(), "true: {status}");
    ring.finish(|_| Ok(()))
}
