//! The library for dynamic programs and the image for static ones. Either this command contains them (with `cargo install`, and in the
//! one file), and programs get copies in memory or in a directory of the user; or they are files beside the command.

use anyring_runtime::sys;
use anyring_trap::library::Copy;
use std::borrow::Cow;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const LIBRARY: &str = "libanyring_preload.so";
const IMAGE: &str = "libanyring_inject.so";

/// The files that this command contains, with their names, plain or compressed by `gzip -n`. `build.rs` selects them.
const CARRIED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/carried.rs"));

/// The suppressions with which valgrind reports no errors of the libraries.
const SUPPRESSIONS: (&str, &[u8]) = ("helgrind.supp", include_bytes!("helgrind.supp"));

/// Returns the contents of a file that this command contains.
fn carried(name: &str) -> Option<Cow<'static, [u8]>> {
    CARRIED.iter().find_map(|&(carried, bytes)| match carried.strip_prefix(name)? {
        "" => Some(Cow::Borrowed(bytes)),
        ".gz" => inflate(bytes).map(Cow::Owned),
        _ => None,
    })
}

/// Finds the library.
///
/// # Errors
/// Returns the paths that were tried, for the user.
pub fn find() -> Result<PathBuf, String> {
    if let Some(path) = env::var_os("ANYRING_PRELOAD").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return match path.canonicalize() {
            Ok(path) => Ok(path),
            Err(error) => Err(format!("ANYRING_PRELOAD names {}: {error}", path.display())),
        };
    }
    if let Some(library) = carried(LIBRARY) {
        return copy(&library);
    }
    let program = command()?;
    let beside = program.with_file_name(LIBRARY);
    let installed =
        program.parent().and_then(|bin| bin.parent()).map(|root| root.join("lib/anyring").join(LIBRARY));
    let places: Vec<PathBuf> = [Some(beside), installed].into_iter().flatten().collect();
    if let Some(place) = places.iter().find(|place| place.is_file()) {
        return Ok(place.clone());
    }
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(format!("{LIBRARY} is neither {}", looked.join(" nor ")))
}

/// The limit of descriptors up to which a copy in memory is avoided, because it takes a descriptor.
const FEW_DESCRIPTORS: u32 = 100;

/// Returns the path of the copy of the contained library, which is made once: in memory, where the executed program
/// finds it, too; without `/proc`, by which memory has a path, in a directory.
fn copy(library: &[u8]) -> Result<PathBuf, String> {
    static COPY: OnceLock<Result<(Option<Copy>, PathBuf), String>> = OnceLock::new();
    let made = COPY.get_or_init(|| {
        let in_memory = || {
            let copy = Copy::of(library)?;
            let path = PathBuf::from(OsStr::from_bytes(&copy.path()?));
            Some((Some(copy), path))
        };
        let in_a_directory = || Ok((None, cache()?));
        // With a low limit, the program needs the descriptor itself.
        if sys::descriptor_limit() <= FEW_DESCRIPTORS {
            return in_a_directory().or_else(|why| in_memory().ok_or(why));
        }
        in_memory().map_or_else(in_a_directory, Ok)
    });
    made.as_ref().map(|(_, path)| path.clone()).map_err(|why| {
        format!(
            "a copy of {LIBRARY} cannot be made in memory, or has no path there (is /proc mounted?), and cannot be made in a \
             directory ({why}). Set TMPDIR to a writable directory, or write the library to a file with anyring unpack \
             DIRECTORY, and set ANYRING_PRELOAD to the path"
        )
    })
}

/// Returns the library's path in a directory that only this user can write, below `TMPDIR` or `/tmp`, with the image beside it.
fn cache() -> Result<PathBuf, String> {
    let base = env::var_os("TMPDIR").filter(|base| !base.is_empty()).unwrap_or_else(|| "/tmp".into());
    // SAFETY: takes nothing.
    let user = unsafe { libc::geteuid() };
    let directory = Path::new(&base).join(format!("anyring-{user}"));
    let told = |error: io::Error| format!("{}: {error}", directory.display());
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(told(error)),
        _ => {}
    }
    // Other users can write to `/tmp`, too, and may have created the directory before.
    let there = fs::symlink_metadata(&directory).map_err(told)?;
    if !there.is_dir() || there.uid() != user || there.mode() & 0o077 != 0 {
        return Err(format!("{} is not a directory that only this user can use", directory.display()));
    }
    for name in [LIBRARY, IMAGE] {
        let bytes = carried(name).ok_or_else(|| damaged(name))?;
        if fs::read(directory.join(name)).ok().as_deref() != Some(&*bytes) {
            write(&directory, name, &bytes)?;
        }
    }
    Ok(directory.join(LIBRARY))
}

/// True if `library`, which [`find`] returned, is a copy of the contained library.
pub fn is_copy(library: &Path) -> bool {
    !CARRIED.is_empty() && library.starts_with("/proc")
}

/// The image for static programs: the open file, and its path or name.
pub type Image = (File, PathBuf);

/// Returns the image that belongs to a library.
///
/// # Errors
/// Returns what is wrong with the image, for the user.
pub fn image(library: &Path) -> Result<Image, String> {
    if is_copy(library) {
        let image = carried(IMAGE).ok_or_else(|| damaged(IMAGE))?;
        let copy = Copy::of(&image).ok_or_else(|| format!("a copy of {IMAGE} in memory cannot be made"))?;
        // SAFETY: the descriptor is owned by nothing else.
        return Ok((unsafe { File::from_raw_fd(copy.into_descriptor()) }, PathBuf::from(IMAGE)));
    }
    let path = library.with_file_name(IMAGE);
    let told = |error: io::Error| format!("{}: {error}", path.display());
    let file = File::open(&path).map_err(told)?;
    // The executed program inherits the descriptor until the image is mapped.
    // SAFETY: sets a flag of our own descriptor.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) } {
        0 => Ok((file, path)),
        _ => Err(told(io::Error::last_os_error())),
    }
}

/// Writes the contained files and the suppressions into a directory.
///
/// # Errors Returns the reason of the failure, for the user.
pub fn unpack(directory: &Path) -> Result<(), String> {
    if CARRIED.is_empty() {
        return Err(String::from(
            "this executable contains no libraries: they were installed as separate files",
        ));
    }
    for (name, _) in CARRIED {
        let name = name.strip_suffix(".gz").unwrap_or(name);
        write(directory, name, &carried(name).ok_or_else(|| damaged(name))?)?;
    }
    write(directory, SUPPRESSIONS.0, SUPPRESSIONS.1)
}

fn damaged(name: &str) -> String {
    format!("{name} is not what was built in")
}

/// Replaces a file by renaming: a program may have the old one mapped.
fn write(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), String> {
    let path = directory.join(name);
    let told = |error: io::Error| format!("{}: {error}", path.display());
    let new = directory.join(format!(".{name}.{}", std::process::id()));
    fs::write(&new, bytes).map_err(told)?;
    fs::rename(&new, &path).map_err(told)
}

/// Decompresses a file of `gzip -n`: a header of 10 bytes, then the data, its checksum and its length.
fn inflate(file: &[u8]) -> Option<Vec<u8>> {
    let data = file.get(10..file.len().checked_sub(8)?)?;
    miniz_oxide::inflate::decompress_to_vec(data).ok()
}

/// Returns the path of this command.
///
/// # Errors
/// Returns why the path is not known, for the user.
pub fn command() -> Result<PathBuf, String> {
    let program = env::current_exe().and_then(|path| path.canonicalize());
    program.map_err(|error| format!("cannot tell where anyring itself lies: {error}"))
}
