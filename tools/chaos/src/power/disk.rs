//! The files of a run: they are read when the power was cut, and then changed to what the power cut leaves.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyring_chaos_plan::journal::FileId;

use super::crash::{Left, State};
use super::record::{Known, Look, Place, Record};

/// The assumed sector size of devices that do not report one, in bytes.
const SECTOR: u64 = 512;

/// A reader of the files of the file system.
pub struct Disk;

fn id_of(status: &fs::Metadata) -> FileId {
    FileId { device: status.dev(), inode: status.ino() }
}

/// Opens the file at a path for reading, if it has this identity.
fn open(file: FileId, path: &Path) -> Option<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    (id_of(&opened.metadata().ok()?) == file).then_some(opened)
}

impl Look for Disk {
    fn size(&mut self, file: FileId, path: &Path) -> Option<u64> {
        fs::symlink_metadata(path).ok().filter(|status| id_of(status) == file).map(|status| status.size())
    }

    fn read(&mut self, file: FileId, path: &Path, start: u64, bytes: u64) -> Vec<u8> {
        let mut part = vec![0; bytes as usize];
        let mut done = 0;
        if let Some(file) = open(file, path) {
            while let Ok(read @ 1..) = file.read_at(&mut part[done..], start + done as u64) {
                done += read;
            }
        }
        part.truncate(done);
        part
    }

    fn find(&mut self, directory: &Path, name: &OsStr) -> Option<FileId> {
        fs::symlink_metadata(directory.join(name)).ok().map(|status| id_of(&status))
    }
}

/// Returns the size of the sectors that the devices of these files write as a whole: the smallest size of all devices.
pub fn sector_bytes(record: &Record) -> u64 {
    let devices = record.now.keys().map(|file| file.device);
    devices.filter_map(sector_of_device).min().unwrap_or(SECTOR)
}

fn sector_of_device(device: u64) -> Option<u64> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let folder = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition has no queue of its own.
    let queues = [folder.join("queue"), folder.join("../queue")];
    let size = queues.iter().find_map(|queue| fs::read_to_string(queue.join("logical_block_size")).ok())?;
    size.trim().parse().ok().filter(|size: &u64| size.is_power_of_two() && *size >= SECTOR)
}

/// Changes the files to what a power cut leaves.
///
/// # Errors
/// Returns what could not be changed, and why.
pub fn apply(record: &Record, left: &Left, left_alone: &BTreeMap<FileId, &str>) -> Result<(), String> {
    let is_followed = |file: &FileId| !left_alone.contains_key(file);
    for (file, state) in left.files.iter().filter(|(file, _)| is_followed(file)) {
        let Some(path) = record.paths.get(file) else { continue };
        match fs::symlink_metadata(path) {
            Ok(status) if id_of(&status) == *file => {
                put(path, state).map_err(|error| cannot("write", path, &error))?;
            }
            // The file has no name any more; its contents are written once it has one.
            _ => {}
        }
    }
    let mut moves = Moves { record, left, aside: Vec::new() };
    for (place, wanted) in &left.names {
        let is_known = wanted.is_none_or(|file| is_followed(&file));
        if is_known {
            moves.put_aside(place, *wanted)?;
        }
    }
    for (place, wanted) in &left.names {
        if let Some(file) = wanted.filter(is_followed) {
            moves.put_in_place(place, file)?;
        }
    }
    moves.remove_rest()
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

/// Writes the sectors of a file, and sets its size.
fn put(path: &Path, state: &State) -> io::Result<()> {
    let before = fs::metadata(path)?;
    let file = match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_permissions(before.permissions())?;
            file
        }
        file => file?,
    };
    for (&at, bytes) in &state.sectors {
        let length = state.size.saturating_sub(at).min(bytes.len() as u64) as usize;
        file.write_all_at(&bytes[..length], at)?;
    }
    file.set_len(state.size)
}

/// The moves that give files their names.
struct Moves<'a> {
    record: &'a Record,
    left: &'a Left,
    /// The files whose names belong to other files, and the paths at which they are kept meanwhile.
    aside: Vec<(FileId, PathBuf)>,
}

impl Moves<'_> {
    fn path(&self, place: &Place) -> Option<PathBuf> {
        let directory = self.record.paths.get(&place.directory)?;
        let is_it = fs::metadata(directory).is_ok_and(|status| id_of(&status) == place.directory);
        is_it.then(|| directory.join(&place.name))
    }

    /// Moves a file that does not keep its name aside.
    fn put_aside(&mut self, place: &Place, wanted: Option<FileId>) -> Result<(), String> {
        let Some(path) = self.path(place) else { return Ok(()) };
        let Some(now) = Disk.find(Path::new(""), path.as_os_str()).filter(|&now| Some(now) != wanted) else {
            return Ok(());
        };
        let aside = path.with_file_name(format!(".anyring-power-cut-{}", self.aside.len()));
        fs::rename(&path, &aside).map_err(|error| cannot("move", &path, &error))?;
        self.aside.push((now, aside));
        Ok(())
    }

    /// Gives a file its name, if it does not have it yet.
    fn put_in_place(&mut self, place: &Place, file: FileId) -> Result<(), String> {
        let Some(path) = self.path(place) else { return Ok(()) };
        if Disk.find(Path::new(""), path.as_os_str()).is_some() {
            return Ok(());
        }
        if let Some(number) = self.aside.iter().position(|(aside, _)| *aside == file) {
            let (_, aside) = self.aside.swap_remove(number);
            return fs::rename(&aside, &path).map_err(|error| cannot("move", &path, &error));
        }
        let elsewhere = self.left.names.iter().filter(|(_, other)| **other == Some(file));
        let existing = elsewhere
            .filter_map(|(other, _)| self.path(other))
            .find(|other| fs::symlink_metadata(other).is_ok_and(|status| id_of(&status) == file));
        if let Some(existing) = existing {
            return fs::hard_link(existing, &path).map_err(|error| cannot("link", &path, &error));
        }
        let Some(known) = self.record.known.get(&file) else { return Ok(()) };
        make(&path, known, self.left.files.get(&file)).map_err(|error| cannot("make", &path, &error))
    }

    /// Removes the files that have no name any more.
    fn remove_rest(self) -> Result<(), String> {
        for (_, path) in self.aside {
            let is_directory = fs::symlink_metadata(&path).is_ok_and(|status| status.is_dir());
            let removed = if is_directory { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|error| cannot("remove", &path, &error))?;
        }
        Ok(())
    }
}

/// Makes a removed file again.
fn make(path: &Path, known: &Known, state: Option<&State>) -> io::Result<()> {
    let contents = known.contents.as_deref().unwrap_or_default();
    match known.mode & libc::S_IFMT {
        libc::S_IFDIR => fs::create_dir(path)?,
        libc::S_IFLNK => return symlink(OsStr::from_bytes(contents), path),
        libc::S_IFREG => {
            fs::write(path, contents)?;
            if let Some(state) = state {
                put(path, state)?;
            }
        }
        // Sockets and FIFOs have no meaning after a restart.
        _ => return Ok(()),
    }
    fs::set_permissions(path, fs::Permissions::from_mode(known.mode & 0o7777))?;
    // Only a privileged user may give files away.
    let _ = std::os::unix::fs::chown(path, Some(known.owner.0), Some(known.owner.1));
    Ok(())
}
