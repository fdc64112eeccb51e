//! File systems for tests, in temporary files and directories.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::Directory;

/// A file system that is mounted while this value lives.
pub struct Mount {
    /// The mount point.
    pub at: PathBuf,
    _home: Directory,
}

pub fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Counts a file system as not tested, and says why.
pub fn skipped(kind: &str, why: &dyn std::fmt::Display) {
    eprintln!("{kind}: {why}");
    anyring_tally::skipped(&format!("{kind} cannot be mounted"));
}

/// True if the kernel supports the file system.
fn known(kind: &str) -> bool {
    let all = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    all.lines().any(|line| line.split_whitespace().last() == Some(kind))
}

impl Mount {
    /// Mounts a file system on a device: ext4, XFS or btrfs, in an image that `mkfs` makes.
    pub fn image(kind: &str, mib: u64, options: &[&str]) -> Option<Mount> {
        if !known(kind) {
            skipped(kind, &"this kernel does not have it");
            return None;
        }
        let home = Directory::new();
        let (image, at) = (home.path("image"), home.path("mounted"));
        std::fs::create_dir(&at).unwrap();
        std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        let mkfs = run(command(&format!("mkfs.{kind}")).args(options).arg(&image));
        let mounted =
            mkfs.and_then(|()| run(command("mount").args(["-o", "loop", "-t", kind]).arg(&image).arg(&at)));
        match mounted {
            Ok(()) => Some(Mount { at, _home: home }),
            Err(why) => {
                skipped(kind, &why.trim());
                None
            }
        }
    }

    /// Mounts a file system without a device.
    pub fn plain(kind: &str, options: impl Fn(&Path) -> String) -> Option<Mount> {
        let home = Directory::new();
        let at = home.path("mounted");
        std::fs::create_dir(&at).unwrap();
        let (target, name, options) = (text(&at), CString::new(kind).unwrap(), options(&home.0));
        let options = CString::new(options).unwrap();
        // SAFETY: the strings live as long as the call.
        let result =
            unsafe { libc::mount(name.as_ptr(), target.as_ptr(), name.as_ptr(), 0, options.as_ptr().cast()) };
        if result != 0 {
            skipped(kind, &std::io::Error::last_os_error());
            return None;
        }
        Some(Mount { at, _home: home })
    }

    /// Mounts a file system by `mount`.
    pub fn by<T>(mount: impl FnOnce(&Path) -> std::io::Result<T>) -> std::io::Result<(Mount, T)> {
        let home = Directory::new();
        let at = home.path("mounted");
        std::fs::create_dir(&at).unwrap();
        let server = mount(&at)?;
        Ok((Mount { at, _home: home }, server))
    }

    /// True if the file system can be unmounted soon after the program is done with it.
    pub fn unmounts(&self) -> bool {
        let (target, deadline) = (text(&self.at), Instant::now() + Duration::from_secs(120));
        // SAFETY: the string lives as long as the call.
        while unsafe { libc::umount2(target.as_ptr(), 0) } != 0 {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // SAFETY: the string lives as long as the call.
        unsafe { libc::umount2(text(&self.at).as_ptr(), libc::MNT_DETACH) };
    }
}

/// Returns a command that may be in the administrator's directories.
fn command(name: &str) -> Command {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(name);
    command.env("PATH", path);
    command
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(format!("{}: {error}", command.get_program().display())),
    }
}
