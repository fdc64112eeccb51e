//! The record of a run: the operations of its processes on files, in order.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyring_chaos_plan::journal::{ALIGNMENT, Deed as Noted, Effect, FileId, Image, Journal, Node, marks};
use anyring_chaos_plan::{Fault, Subject, Who};

/// A part of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// The offset of the first byte.
    pub start: u64,
    /// The bytes. The file ends behind them, or they end with a sector.
    pub bytes: Vec<u8>,
}

impl Part {
    /// Returns the sector at an offset, with zeros behind the end of the part.
    pub fn sector(&self, at: u64, bytes: u64) -> Vec<u8> {
        let first = at.saturating_sub(self.start).min(self.bytes.len() as u64) as usize;
        let mut sector: Vec<u8> = self.bytes[first..].iter().take(bytes as usize).copied().collect();
        sector.resize(bytes as usize, 0);
        sector
    }
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The directory.
    pub directory: FileId,
    /// The name.
    pub name: OsString,
}

/// A name, with the files that have it before and after an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name.
    pub place: Place,
    /// The file that has the name before.
    pub before: Option<FileId>,
    /// The file that has the name after.
    pub after: Option<FileId>,
}

/// A change of names by one operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// The entries; the new name of a rename comes first.
    pub entries: Vec<Entry>,
    /// The file that got a name.
    pub node: Option<FileId>,
    /// True if the operation made the file, or gave it its first name.
    pub makes: bool,
    /// True if a rename put the file in the place of another one.
    pub replaces: bool,
    /// True if the file may have both names of a rename: it is no directory.
    pub is_plain_rename: bool,
}

/// A write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data {
    /// The file.
    pub file: FileId,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// True if the data are on the device when the write has ended.
    pub durable: bool,
    /// The sectors of the range before the write.
    pub before: Part,
    /// The size of the file before the write.
    pub size_before: u64,
    /// The sectors of the range after the write.
    pub after: Part,
}

impl Data {
    /// Returns the offset behind the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Iterates over the offsets of the sectors that are written.
    pub fn sectors(&self, bytes: u64) -> impl Iterator<Item = u64> + use<> {
        let (first, end) = (self.offset / bytes, self.end().div_ceil(bytes));
        (first..end.max(first)).map(move |sector| sector * bytes)
    }
}

/// The effect of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A write to a file.
    Data(Data),
    /// A change of the size of a file.
    Size {
        /// The file.
        file: FileId,
        /// The size before.
        from: u64,
        /// The size after.
        to: u64,
        /// The part that was cut off, with the whole of its first sector.
        before: Part,
    },
    /// A change of names.
    Names(Names),
    /// A sync of a file or directory, or of everything.
    Sync {
        /// The file; `None` for everything.
        file: Option<FileId>,
        /// True if the sync covers only data, and what is needed to find them.
        data_only: bool,
        /// The time up to which the sync covers operations: those that had ended by then.
        after: u64,
    },
    /// A change of a file that cannot be undone.
    Other(FileId),
}

/// An operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deed {
    /// The process and the ring.
    pub who: Who,
    /// The number of the request in its ring, or of the plain call in its process.
    pub serial: u64,
    /// The number of the operation among those of its ring on files, or among the plain calls of its process.
    pub number: u64,
    /// The operation of the request.
    pub opcode: u16,
    /// The process's id.
    pub pid: u32,
    /// The time at which the operation began.
    pub began: u64,
    /// The time at which the operation ended; `None` if the power was cut before.
    pub ended: Option<u64>,
    /// The effect.
    pub change: Change,
}

impl Deed {
    /// Returns the subject of the decision whether the operation meets a fault. Requests that do nothing to files, such as timers, do not
    /// change it.
    pub fn subject(&self, fault: Fault) -> Subject {
        Subject { who: self.who, serial: self.number, fault }
    }
}

/// The known facts about a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// The mode, as in `stat`.
    pub mode: u32,
    /// The owner and the group.
    pub owner: (u32, u32),
    /// The contents when its last name was removed, or the path of a symbolic link.
    pub contents: Option<Vec<u8>>,
}

/// The state of a file when the power was cut.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// The size.
    pub size: u64,
    /// The parts of the file that were written.
    pub parts: Vec<Part>,
}

/// The record of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// The operations, in the order of their beginnings.
    pub deeds: Vec<Deed>,
    /// The files that were written, in the state in which the power cut found them.
    pub now: BTreeMap<FileId, Now>,
    /// The facts about files that got or lost names.
    pub known: BTreeMap<FileId, Known>,
    /// The paths at which files and directories were.
    pub paths: BTreeMap<FileId, PathBuf>,
    /// Files that are left alone, each with the reason.
    pub left_alone: BTreeMap<FileId, &'static str>,
}

/// An observer of the files of the file system.
pub trait Look {
    /// Returns the size of the file at a path, if the file has this identity.
    fn size(&mut self, file: FileId, path: &Path) -> Option<u64>;
    /// Reads a part of the file at a path.
    fn read(&mut self, file: FileId, path: &Path, start: u64, bytes: u64) -> Vec<u8>;
    /// Returns the file that has a name in the directory at a path.
    fn find(&mut self, directory: &Path, name: &std::ffi::OsStr) -> Option<FileId>;
}

/// The reasons for which a file is left alone.
const UNREADABLE: &str = "its contents cannot be read";
const OTHER: &str = "its blocks were moved (fallocate with COLLAPSE_RANGE, INSERT_RANGE or UNSHARE_RANGE)";

impl Record {
    /// Reads the record of a journal, and looks at the files of operations that had not ended.
    pub fn read(journal: &Journal, look: &mut dyn Look) -> Record {
        let mut record = Record::default();
        for noted in journal.deeds() {
            record.add(journal, &noted, look);
        }
        record.look_at_names(look);
        record.look_at_data(look);
        record
    }

    fn add(&mut self, journal: &Journal, noted: &Noted, look: &mut dyn Look) {
        let began = &noted.began;
        let bytes = |image: Image| journal.bytes(image).to_vec();
        let ended = noted.ended.map(|(_, ended)| ended);
        let file = began.node.file;
        let part = |offset: u64, image: Image| {
            let start = offset / ALIGNMENT * ALIGNMENT;
            Part { start, bytes: bytes(image) }
        };
        let names: Vec<Vec<u8>> = match began.effect {
            Effect::Write | Effect::Resize | Effect::Allocate | Effect::Other => {
                self.note_path(file, &bytes(began.names));
                Vec::new()
            }
            _ => bytes(began.names).split(|&byte| byte == 0).map(<[u8]>::to_vec).collect(),
        };
        if began.marks & marks::UNREADABLE != 0 {
            for node in [began.node, began.replaced].into_iter().filter(|node| node.file != FileId::default())
            {
                self.left_alone.insert(node.file, UNREADABLE);
            }
        }
        let change = match began.effect {
            Effect::Write => {
                // FALLOCATE that zeros a range has the result 0.
                let length =
                    ended.map(|ended| ended.length).filter(|&length| length > 0).unwrap_or(began.length);
                Change::Data(Data {
                    file,
                    offset: began.offset,
                    length,
                    durable: began.marks & marks::DURABLE != 0,
                    before: part(began.offset, began.node.contents),
                    size_before: began.node.size,
                    after: part(began.offset, ended.map(|ended| ended.node.contents).unwrap_or_default()),
                })
            }
            Effect::Resize | Effect::Allocate => {
                let wanted = match began.effect {
                    Effect::Resize => began.offset,
                    _ => began.offset.saturating_add(began.length).max(began.node.size),
                };
                let to = ended.map_or(wanted, |ended| ended.node.size);
                let before = part(began.offset, began.node.contents);
                Change::Size { file, from: began.node.size, to, before }
            }
            Effect::Open if began.marks & marks::EMPTIES != 0 => {
                let before = part(0, began.node.contents);
                if let [directory, name, ..] = &names[..] {
                    self.note_path(file, &[directory.as_slice(), b"/", name].concat());
                }
                Change::Size { file, from: began.node.size, to: 0, before }
            }
            Effect::Sync | Effect::SyncData => {
                let data_only = began.effect == Effect::SyncData;
                Change::Sync { file: Some(file), data_only, after: began.after }
            }
            Effect::SyncAll => Change::Sync { file: None, data_only: false, after: began.after },
            Effect::Other => {
                self.left_alone.insert(file, OTHER);
                Change::Other(file)
            }
            _ => match self.names(journal, noted, &names, look) {
                Some(names) => Change::Names(names),
                None => return,
            },
        };
        let last = self.deeds.iter().rev().find(|deed| deed.who == began.who);
        let number = last.map_or(1, |deed| deed.number + 1);
        self.deeds.push(Deed {
            who: began.who,
            serial: began.serial,
            number,
            opcode: began.opcode,
            pid: began.pid,
            began: noted.began_at,
            ended: noted.ended.map(|(at, _)| at),
            change,
        });
    }

    fn note_path(&mut self, file: FileId, path: &[u8]) {
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        if file != FileId::default() && !path.is_empty() {
            self.paths.entry(file).or_insert_with(|| PathBuf::from(OsString::from_vec(path.to_vec())));
        }
    }

    fn note_node(&mut self, journal: &Journal, node: &Node) {
        if node.file == FileId::default() {
            return;
        }
        let contents =
            (node.contents.length > 0 || node.size == 0).then(|| journal.bytes(node.contents).to_vec());
        let (mode, owner) = (node.mode as u32, (node.owner as u32, (node.owner >> 32) as u32));
        let known = self.known.entry(node.file).or_default();
        (known.mode, known.owner) = (mode, owner);
        known.contents = contents.or(known.contents.take());
    }

    /// Returns the changes of names by an operation; `None` if it had not ended and has done nothing.
    fn names(
        &mut self,
        journal: &Journal,
        noted: &Noted,
        names: &[Vec<u8>],
        look: &mut dyn Look,
    ) -> Option<Names> {
        let began = &noted.began;
        let known = |node: &Node| Some(node.file).filter(|&file| file != FileId::default());
        let place = |number: usize| {
            let directory = began.directories[number];
            let [path, name, ..] = names.get(2 * number..)? else { return None };
            let (path, name) = (OsString::from_vec(path.clone()), OsString::from_vec(name.clone()));
            Some((Place { directory, name }, PathBuf::from(path)))
        };
        // A link to a file without a name involves one name only, in the second directory.
        let from = if names.len() < 4 && began.effect == Effect::Link { None } else { place(0) };
        let second = || match names.len() {
            0..4 => {
                let (first, path) = place(0)?;
                Some((Place { directory: began.directories[1], ..first }, path))
            }
            _ => place(1),
        };
        let to = match began.effect {
            Effect::Rename | Effect::Link => Some(second()?),
            _ => None,
        };
        for (place, path) in from.iter().chain(&to) {
            self.paths.insert(place.directory, path.clone());
        }
        self.note_node(journal, &began.node);
        self.note_node(journal, &began.replaced);
        let made = match noted.ended {
            Some((_, ended)) => {
                self.note_node(journal, &Node { contents: Image::default(), ..ended.node });
                known(&ended.node)
            }
            None => {
                let (place, path) = to.as_ref().or(from.as_ref())?;
                look.find(path, &place.name)
            }
        };
        let is_done = noted.ended.is_some();
        let entry = |(place, _): (Place, PathBuf), before, after| Entry { place, before, after };
        let node = known(&began.node);
        let simple = |entries, node, makes| {
            Some(Names { entries, node, makes, replaces: false, is_plain_rename: false })
        };
        match began.effect {
            Effect::Open | Effect::MakeDirectory | Effect::SymbolicLink => {
                made?;
                simple(vec![entry(from?, None, made)], made, true)
            }
            Effect::Unlink => {
                if !is_done && made.is_some() {
                    return None;
                }
                simple(vec![entry(from?, node, None)], None, false)
            }
            Effect::Link => {
                if !is_done && made != node {
                    return None;
                }
                simple(vec![entry(to?, None, node)], node, true)
            }
            Effect::Rename => {
                if !is_done && made != node {
                    return None;
                }
                let replaced = known(&began.replaced);
                let exchanges = began.marks & marks::EXCHANGES != 0;
                let back = if exchanges { replaced } else { None };
                let is_directory = began.node.mode as u32 & libc::S_IFMT == libc::S_IFDIR;
                Some(Names {
                    entries: vec![entry(to?, replaced, node), entry(from?, node, back)],
                    node,
                    makes: false,
                    replaces: replaced.is_some() && !exchanges && !is_directory,
                    is_plain_rename: !exchanges && !is_directory,
                })
            }
            _ => None,
        }
    }

    /// Finds the files that have the names of the record now.
    fn look_at_names(&mut self, look: &mut dyn Look) {
        for place in self.places() {
            let Some(directory) = self.paths.get(&place.directory).cloned() else { continue };
            if let Some(file) = look.find(&directory, &place.name) {
                self.paths.insert(file, directory.join(&place.name));
            }
        }
    }

    /// Notes the contents of files that were written.
    fn look_at_data(&mut self, look: &mut dyn Look) {
        let mut now: BTreeMap<FileId, Now> = BTreeMap::new();
        for deed in &mut self.deeds {
            let (file, range) = match &deed.change {
                Change::Data(data) => (data.file, (data.offset, data.end())),
                Change::Size { file, from, to, .. } => (*file, (*from.min(to), *from.min(to))),
                _ => continue,
            };
            let Some(path) = self.paths.get(&file) else { continue };
            let Some(size) = look.size(file, path) else { continue };
            let start = range.0 / ALIGNMENT * ALIGNMENT;
            let end = range.1.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT).min(size);
            let bytes = look.read(file, path, start, end.saturating_sub(start));
            let part = Part { start, bytes };
            if let (Change::Data(data), None) = (&mut deed.change, deed.ended) {
                data.after = part.clone();
                // The write may have been done in part.
                data.length =
                    data.length.min(size.saturating_sub(data.offset).max(data.before.bytes.len() as u64));
            }
            let entry = now.entry(file).or_default();
            entry.size = size;
            entry.parts.push(part);
        }
        self.now = now;
    }

    /// Returns the names of the record, each once.
    pub fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for deed in &self.deeds {
            if let Change::Names(names) = &deed.change {
                places.extend(names.entries.iter().map(|entry| entry.place.clone()));
            }
        }
        places.sort();
        places.dedup();
        places
    }

    /// Returns the path of a file or directory, for messages.
    pub fn path(&self, file: FileId) -> String {
        self.paths
            .get(&file)
            .map_or_else(|| format!("inode {}", file.inode), |path| path.display().to_string())
    }

    /// Returns the effect of an operation in words, for messages.
    pub fn describe(&self, deed: &Deed) -> String {
        match &deed.change {
            Change::Data(data) => {
                format!("{} bytes at {} of {}", data.length, data.offset, self.path(data.file))
            }
            Change::Size { file, from, to, .. } => format!("size {from} to {to} of {}", self.path(*file)),
            Change::Names(names) => {
                let name = |place: &Place| {
                    let directory = self.paths.get(&place.directory).cloned().unwrap_or_default();
                    directory.join(std::ffi::OsStr::from_bytes(place.name.as_bytes())).display().to_string()
                };
                match &names.entries[..] {
                    [to, from] => format!("{} to {}", name(&from.place), name(&to.place)),
                    entries => entries.iter().map(|entry| name(&entry.place)).collect::<Vec<_>>().join(", "),
                }
            }
            Change::Sync { .. } | Change::Other(_) => String::new(),
        }
    }
}
