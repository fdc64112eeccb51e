//! What can be told of a program before it runs: whether the preload library will be loaded into it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a program would not load the library.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No dynamic linker runs in it.
    Static,
    /// It gains privileges, and the dynamic linker ignores `LD_PRELOAD` then.
    Privileged(&'static str),
    /// It is for another kind of machine.
    Machine(u16),
    /// Neither an executable nor a script.
    Unknown,
}

/// Most interpreters that the kernel follows.
const DEPTH: usize = 5;
const PT_INTERP: u32 = 3;
const PT_DYNAMIC: u32 = 2;
const ET_DYN: u16 = 3;
const X86_64: u16 = 62;
const AARCH64: u16 = 183;

/// Looks at `program`, or at the interpreter that will run it.
///
/// # Errors
/// As from reading it.
pub fn obstacle(program: &Path) -> io::Result<Option<Obstacle>> {
    let mut path = program.to_path_buf();
    for _ in 0..DEPTH {
        let file = File::open(&path)?;
        let mut head = Vec::new();
        Read::by_ref(&mut &file).take(256).read_to_end(&mut head)?;
        if let Some(interpreter) = interpreter(&head) {
            path = interpreter;
            continue;
        }
        if !head.starts_with(b"\x7fELF") {
            return Ok(Some(Obstacle::Unknown));
        }
        if let Some(privilege) = privilege(&file)? {
            return Ok(Some(Obstacle::Privileged(privilege)));
        }
        return executable(&path, &file, &head);
    }
    Ok(None)
}

/// The interpreter that a script names.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let word = line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty())?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(word)))
}

/// The privilege that executing the file gives, if any.
fn privilege(file: &File) -> io::Result<Option<&'static str>> {
    let metadata = file.metadata()?;
    // SAFETY: these only ask.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let mode = metadata.permissions().mode();
    if mode & 0o4000 != 0 && metadata.uid() != user {
        return Ok(Some("set-user-ID"));
    }
    if mode & 0o2010 == 0o2010 && metadata.gid() != group {
        return Ok(Some("set-group-ID"));
    }
    use std::os::fd::AsRawFd;
    let name = c"security.capability";
    // SAFETY: asks for the length only.
    let length = unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), std::ptr::null_mut(), 0) };
    // root has the capabilities anyway, and gains nothing that the linker would mind.
    Ok((length > 0 && user != 0).then_some("given file capabilities"))
}

/// Looks at the ELF header and the program headers.
fn executable(path: &Path, file: &File, head: &[u8]) -> io::Result<Option<Obstacle>> {
    let half = |at: usize| head.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
    let machine = half(18);
    let own = if cfg!(target_arch = "x86_64") { X86_64 } else { AARCH64 };
    let is_64_bit = head.get(4) == Some(&2);
    if machine != own || !is_64_bit {
        return Ok(Some(Obstacle::Machine(machine)));
    }
    let Some(table) = head.get(32..40).and_then(|bytes| bytes.try_into().ok()) else {
        return Ok(Some(Obstacle::Unknown));
    };
    let (start, size, count) = (u64::from_le_bytes(table), u64::from(half(54)), u64::from(half(56)));
    let mut dynamic = false;
    for index in 0..count {
        let mut kind = [0; 4];
        file.read_exact_at(&mut kind, start + index * size)?;
        match u32::from_le_bytes(kind) {
            PT_INTERP => return Ok(None),
            PT_DYNAMIC => dynamic = true,
            _ => {}
        }
    }
    // The dynamic linker itself, given a program to run, has no interpreter but loads the library.
    let linker = dynamic && half(16) == ET_DYN && is_linker(path);
    Ok((!linker).then_some(Obstacle::Static))
}

/// Whether the program is a dynamic linker, by the name that all of them have.
fn is_linker(program: &Path) -> bool {
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.starts_with("ld-") || name.starts_with("ld.so")
}
