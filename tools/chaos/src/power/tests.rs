//! Random records, and the properties that hold for all of them.

use std::collections::BTreeMap;

use anyring_chaos_plan::journal::FileId;
use anyring_chaos_plan::{Fault, Who, child};

use super::crash::State;
use super::*;

const SECTOR: u64 = 512;
const DIRECTORY: u64 = 1;
const RECORDS: u64 = 3000;

/// A sequence of numbers.
struct Random {
    seed: u64,
    count: u64,
}

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.count += 1;
        child(self.seed, self.count) % limit
    }
}

fn file(inode: u64) -> FileId {
    FileId { device: 7, inode }
}

fn place(name: u64) -> Place {
    Place { directory: file(DIRECTORY), name: format!("{name}").into() }
}

/// A file system of a few files, whose operations are recorded.
struct World {
    random: Random,
    record: PowerRecord,
    contents: BTreeMap<u64, Vec<u8>>,
    names: BTreeMap<u64, u64>,
    clock: u64,
    next: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            random: Random { seed, count: 0 },
            record: PowerRecord::default(),
            contents: BTreeMap::new(),
            names: BTreeMap::new(),
            clock: 0,
            next: 10,
        };
        for name in 0..2 {
            let length = world.random.below(3000);
            world.contents.insert(name + 2, vec![b'-'; length as usize]);
            world.names.insert(name, name + 2);
        }
        world
    }

    fn part(&self, inode: u64, offset: u64, end: u64) -> Part {
        let start = offset / 4096 * 4096;
        let contents = &self.contents[&inode];
        let end = (end.div_ceil(4096) * 4096).min(contents.len() as u64);
        let bytes = contents.get(start as usize..end as usize).unwrap_or_default().to_vec();
        Part { start, bytes }
    }

    fn add(&mut self, began: u64, change: Change) {
        self.clock += 1;
        let is_last_running = self.random.below(40) == 0;
        let serial = self.record.deeds.len() as u64 + 1;
        let ended = (!is_last_running || matches!(change, Change::Sync { .. })).then_some(self.clock);
        let who = Who { process: 0, ring: 1 };
        self.record.deeds.push(Deed {
            who,
            serial,
            number: serial,
            opcode: 23,
            pid: 1,
            began,
            ended,
            change,
        });
    }

    fn some_file(&mut self) -> Option<(u64, u64)> {
        let number = self.random.below(self.names.len().max(1) as u64) as usize;
        self.names.iter().nth(number).map(|(&name, &inode)| (name, inode))
    }

    fn step(&mut self) {
        self.clock += 1;
        let began = self.clock;
        let kind = self.random.below(12);
        let chosen = self.some_file();
        match (kind, chosen) {
            (0..5, Some((_, inode))) => self.write(began, inode),
            (5, Some((_, inode))) => self.resize(began, inode),
            (6, Some((_, inode))) => {
                let data_only = self.random.below(2) == 0;
                self.add(began, Change::Sync { file: Some(file(inode)), data_only, after: began - 1 });
            }
            (7, _) => {
                let sync = Change::Sync { file: Some(file(DIRECTORY)), data_only: false, after: began - 1 };
                self.add(began, sync);
            }
            (8, Some((from, inode))) => self.rename(began, from, inode),
            (9, Some((name, inode))) if self.names.len() > 1 => {
                self.names.remove(&name);
                self.names(began, vec![(name, Some(inode), None)], None, false, false);
            }
            _ => {
                let name = self.random.below(4);
                if !self.names.contains_key(&name) {
                    self.next += 1;
                    let inode = self.next;
                    self.names.insert(name, inode);
                    self.contents.insert(inode, Vec::new());
                    self.names(began, vec![(name, None, Some(inode))], Some(inode), true, false);
                }
            }
        }
    }

    fn write(&mut self, began: u64, inode: u64) {
        let (offset, length) = (self.random.below(4000), 1 + self.random.below(3000));
        let end = offset + length;
        let size_before = self.contents[&inode].len() as u64;
        let before = self.part(inode, offset, end);
        let byte = b'a' + (self.random.below(26)) as u8;
        let contents = self.contents.get_mut(&inode).unwrap();
        contents.resize(contents.len().max(end as usize), 0);
        contents[offset as usize..end as usize].fill(byte);
        let after = self.part(inode, offset, end);
        let durable = self.random.below(8) == 0;
        let data = Data { file: file(inode), offset, length, durable, before, size_before, after };
        self.add(began, Change::Data(data));
    }

    fn resize(&mut self, began: u64, inode: u64) {
        let (from, to) = (self.contents[&inode].len() as u64, self.random.below(5000));
        let before = self.part(inode, to, from);
        self.contents.get_mut(&inode).unwrap().resize(to as usize, 0);
        self.add(began, Change::Size { file: file(inode), from, to, before });
    }

    fn rename(&mut self, began: u64, from: u64, inode: u64) {
        let to = self.random.below(4);
        if to == from {
            return;
        }
        let replaced = self.names.insert(to, inode);
        self.names.remove(&from);
        let entries = vec![(to, replaced, Some(inode)), (from, Some(inode), None)];
        self.names(began, entries, Some(inode), false, replaced.is_some());
    }

    fn names(
        &mut self,
        began: u64,
        entries: Vec<(u64, Option<u64>, Option<u64>)>,
        node: Option<u64>,
        makes: bool,
        replaces: bool,
    ) {
        let is_plain_rename = entries.len() == 2;
        let entry = |(name, before, after): (u64, Option<u64>, Option<u64>)| Entry {
            place: place(name),
            before: before.map(file),
            after: after.map(file),
        };
        let entries = entries.into_iter().map(entry).collect();
        let names = Names { entries, node: node.map(file), makes, replaces, is_plain_rename };
        self.add(began, Change::Names(names));
    }
}

fn world(seed: u64) -> World {
    let mut world = World::new(seed);
    let steps = 3 + world.random.below(25);
    (0..steps).for_each(|_| world.step());
    world
}

/// Calls `check` with random records and power cuts of each model.
fn for_all(mut check: impl FnMut(&World, &Model, &Crash, &str)) {
    for seed in 0..RECORDS {
        let world = world(seed);
        for model in &Model::ALL {
            let draw = Draw { seed: seed ^ 0x55, only: None };
            let crash = crash(&world.record, model, SECTOR, &draw);
            check(&world, model, &crash, &format!("record {seed}, {}", model.name));
        }
    }
}

fn order(deed: &Deed) -> (u64, u64) {
    (deed.ended.unwrap_or(u64::MAX), deed.began)
}

/// True if one of the syncs of this file, of everything, or of only data was submitted after the operation had ended.
fn is_synced(record: &PowerRecord, deed: &Deed, of: FileId) -> bool {
    record.deeds.iter().any(|sync| match &sync.change {
        Change::Sync { file, after, .. } => {
            *file == Some(of) && deed.ended.is_some_and(|ended| ended <= *after) && sync.ended.is_some()
        }
        _ => false,
    })
}

#[test]
fn nothing_that_a_sync_covers_is_lost() {
    let mut covered = 0;
    for_all(|world, _, crash, what| {
        for (number, _) in &crash.losses {
            let deed = &world.record.deeds[*number];
            match &deed.change {
                Change::Data(data) => {
                    assert!(!data.durable || deed.ended.is_none(), "{what}: {deed:?}");
                    assert!(!is_synced(&world.record, deed, data.file), "{what}: {deed:?}");
                }
                Change::Size { file, .. } => {
                    assert!(!is_synced(&world.record, deed, *file), "{what}: {deed:?}")
                }
                Change::Names(_) => {
                    assert!(!is_synced(&world.record, deed, file(DIRECTORY)), "{what}: {deed:?}");
                }
                _ => panic!("{what}: {deed:?} is no change"),
            }
        }
        // Each sector is that of the last covered write or of a write that ended later, unless a change of size cut it
        // off.
        for deed in &world.record.deeds {
            let Change::Data(data) = &deed.change else { continue };
            let is_durable =
                data.durable && deed.ended.is_some() || is_synced(&world.record, deed, data.file);
            let is_cut = world.record.deeds.iter().any(|other| {
                matches!(&other.change, Change::Size { file, .. } if *file == data.file)
                    && order(other) > order(deed)
            });
            if !is_durable || is_cut {
                continue;
            }
            let state = &crash.left.files[&data.file];
            for at in (data.offset / SECTOR..data.end().div_ceil(SECTOR)).map(|sector| sector * SECTOR) {
                let is_of = |other: &&Deed| {
                    matches!(&other.change, Change::Data(later) if later.file == data.file
                        && later.after.sector(at, SECTOR) == state.sectors[&at]
                        && later.offset < at + SECTOR && at < later.end())
                        && order(other) >= order(deed)
                };
                assert!(world.record.deeds.iter().any(|other| is_of(&other)), "{what}: {deed:?} at {at}");
                covered += 1;
            }
            assert!(state.size >= data.end(), "{what}: {deed:?}: size {}", state.size);
        }
    });
    assert!(covered > 10_000, "only {covered} sectors were covered");
}

/// The names after the first `count` changes of names and sizes in their order.
fn names_after(record: &PowerRecord, ordered: &[&Deed], count: usize) -> BTreeMap<Place, Option<FileId>> {
    let mut names = BTreeMap::new();
    for deed in &record.deeds {
        if let Change::Names(changed) = &deed.change {
            for entry in &changed.entries {
                names.entry(entry.place.clone()).or_insert(entry.before);
            }
        }
    }
    for deed in &ordered[..count] {
        if let Change::Names(changed) = &deed.change {
            for entry in &changed.entries {
                names.insert(entry.place.clone(), entry.after);
            }
        }
    }
    names
}

#[test]
fn a_journal_keeps_names_in_order() {
    let mut shorter = 0;
    for_all(|world, model, crash, what| {
        if !model.orders_names || world.record.deeds.iter().any(|deed| deed.ended.is_none()) {
            return;
        }
        let is_metadata = |deed: &&Deed| matches!(deed.change, Change::Names(_) | Change::Size { .. });
        let mut ordered: Vec<&Deed> = world.record.deeds.iter().filter(is_metadata).collect();
        ordered.sort_by_key(|deed| order(deed));
        let found = (0..=ordered.len())
            .find(|&count| names_after(&world.record, &ordered, count) == crash.left.names);
        assert!(found.is_some(), "{what}: {:?} is no state of the names", crash.left.names);
        shorter += usize::from(found < Some(ordered.len()));
        for state in crash.left.files.values() {
            // The sector is not rubbish: the file had these contents at some time.
            assert!(
                state
                    .sectors
                    .values()
                    .flatten()
                    .all(|byte| *byte == 0 || byte.is_ascii_lowercase() || *byte == b'-')
            );
        }
    });
    assert!(shorter > 1000, "only {shorter} lost names");
}

#[test]
fn a_sector_is_written_as_a_whole() {
    for_all(|world, model, crash, what| {
        if model.grows_before_data
            || world.record.deeds.iter().any(|deed| matches!(deed.change, Change::Size { .. }))
        {
            return;
        }
        for (file, state) in &crash.left.files {
            for (&at, sector) in &state.sectors {
                let was = world.record.deeds.iter().any(|deed| match &deed.change {
                    Change::Data(data) if data.file == *file => {
                        data.after.sector(at, SECTOR) == *sector || data.before.sector(at, SECTOR) == *sector
                    }
                    _ => false,
                });
                assert!(was, "{what}: {file:?} at {at} never had these contents");
            }
        }
    });
}

#[test]
fn what_is_lost_can_be_chosen() {
    let (mut some, mut torn) = (0, 0);
    for_all(|world, model, crash, what| {
        let seed = world.random.seed ^ 0x55;
        let id = |&(number, fault): &(usize, Fault)| {
            let deed = &world.record.deeds[number];
            deed.subject(fault).id()
        };
        let mut all: Vec<u64> = crash.losses.iter().map(id).collect();
        all.sort_unstable();
        let again = super::crash(&world.record, model, SECTOR, &Draw { seed, only: Some(&all) });
        assert_eq!(again, *crash, "{what}");
        let none = super::crash(&world.record, model, SECTOR, &Draw { seed, only: Some(&[]) });
        assert!(none.losses.is_empty() && none.consequences.is_empty(), "{what}");
        some += usize::from(!all.is_empty());
        torn += crash.losses.iter().filter(|(_, fault)| *fault == Fault::Torn).count();
        if world.record.deeds.iter().all(|deed| deed.ended.is_some()) {
            for (file, state) in &none.left.files {
                let contents = &world.contents[&file.inode];
                assert_eq!(state.size, contents.len() as u64, "{what}");
                for (&at, sector) in &state.sectors {
                    let part = Part { start: 0, bytes: contents.clone() };
                    assert_eq!(*sector, part.sector(at, SECTOR), "{what}: {file:?} at {at}");
                }
            }
            for (place, node) in &none.left.names {
                let name: u64 = place.name.to_str().unwrap().parse().unwrap();
                assert_eq!(*node, world.names.get(&name).copied().map(super::tests::file), "{what}");
            }
        }
    });
    assert!(some > 3000 && torn > 1000, "{some} lose something, {torn} are torn");
}

fn data(inode: u64, offset: u64, byte: u8, size_before: u64) -> Change {
    let part = |bytes: Vec<u8>| Part { start: 0, bytes };
    let end = offset + SECTOR;
    let mut after = vec![b'-'; size_before as usize];
    let before = after.clone();
    after.resize(after.len().max(end as usize), 0);
    after[offset as usize..end as usize].fill(byte);
    let (length, durable) = (SECTOR, false);
    Change::Data(Data {
        file: file(inode),
        offset,
        length,
        durable,
        before: part(before),
        size_before,
        after: part(after),
    })
}

fn record(changes: Vec<Change>) -> PowerRecord {
    let deed = |(number, change): (usize, Change)| Deed {
        who: Who { process: 0, ring: 1 },
        serial: number as u64 + 1,
        number: number as u64 + 1,
        opcode: 23,
        pid: 1,
        began: 2 * number as u64 + 1,
        ended: Some(2 * number as u64 + 2),
        change,
    };
    PowerRecord { deeds: changes.into_iter().enumerate().map(deed).collect(), ..PowerRecord::default() }
}

fn renamed(replaced: Option<u64>) -> Change {
    let entry = |name, before: Option<u64>, after: Option<u64>| Entry {
        place: place(name),
        before: before.map(file),
        after: after.map(file),
    };
    Change::Names(Names {
        entries: vec![entry(1, replaced, Some(5)), entry(0, Some(5), None)],
        node: Some(file(5)),
        makes: false,
        replaces: replaced.is_some(),
        is_plain_rename: true,
    })
}

fn sync(inode: u64, after: u64) -> Change {
    Change::Sync { file: Some(file(inode)), data_only: false, after }
}

/// Returns the models in which the first operation may be lost while the last one is kept, by any seed.
fn may_lose_first_only(record: &PowerRecord) -> Vec<&'static str> {
    let last = record.deeds.len() - 1;
    let loses = |model: &&Model| {
        (0..500).any(|seed| {
            let crash = crash(record, model, SECTOR, &Draw { seed, only: None });
            let lost: Vec<usize> =
                crash.losses.iter().map(|(number, _)| *number).chain(crash.consequences).collect();
            lost.contains(&0) && !lost.contains(&last)
        })
    };
    Model::ALL.iter().filter(loses).map(|model| model.name).collect()
}

/// The rows of the table in docs/power-cut.md.
#[test]
fn models_differ_as_the_table_says() {
    // Two writes to one file, and to two files.
    assert_eq!(
        may_lose_first_only(&record(vec![data(5, 0, b'a', 512), data(5, 512, b'b', 512)])),
        ["ext4", "xfs", "posix"]
    );
    assert_eq!(
        may_lose_first_only(&record(vec![data(5, 0, b'a', 512), data(6, 0, b'b', 512)])),
        ["ext4", "xfs", "posix"]
    );
    // A write, and a sync that was submitted before the write had ended; then a sync that covers the write.
    assert_eq!(
        may_lose_first_only(&record(vec![data(5, 0, b'a', 512), sync(5, 1)])),
        ["ext4", "xfs", "posix"]
    );
    assert!(may_lose_first_only(&record(vec![data(5, 0, b'a', 512), sync(5, 2)])).is_empty());
    // A rename to a new name, and over another file, without a sync of the data.
    assert_eq!(
        may_lose_first_only(&record(vec![data(5, 0, b'a', 512), renamed(None)])),
        ["ext4", "xfs", "posix"]
    );
    assert_eq!(may_lose_first_only(&record(vec![data(5, 0, b'a', 512), renamed(Some(6))])), ["xfs", "posix"]);
    // A new file, and a sync of only the file; then a sync of its directory.
    let made = |before, after| {
        let place = place(0);
        let entries = vec![Entry { place, before, after }];
        Change::Names(Names {
            entries,
            node: Some(file(5)),
            makes: true,
            replaces: false,
            is_plain_rename: false,
        })
    };
    assert_eq!(may_lose_first_only(&record(vec![made(None, Some(file(5))), sync(5, 2)])), ["posix"]);
    assert!(may_lose_first_only(&record(vec![made(None, Some(file(5))), sync(DIRECTORY, 2)])).is_empty());
    // Two new files, and a sync of the second one only.
    let Change::Names(mut second) = made(None, Some(file(6))) else { unreachable!() };
    (second.node, second.entries[0].place) = (Some(file(6)), place(1));
    let both = vec![made(None, Some(file(5))), Change::Names(second), sync(6, 4)];
    assert_eq!(may_lose_first_only(&record(both)), ["posix"]);
    // Two changes of names.
    assert_eq!(may_lose_first_only(&record(vec![made(None, Some(file(5))), renamed(None)])), ["posix"]);
    // A smaller size, and a write behind it.
    let size =
        Change::Size { file: file(5), from: 512, to: 0, before: Part { start: 0, bytes: vec![b'-'; 512] } };
    assert_eq!(may_lose_first_only(&record(vec![size, data(5, 0, b'a', 0)])), ["posix"]);
}

#[test]
fn a_longer_file_without_its_data_is_for_posix_only() {
    let longer = record(vec![data(5, 512, b'a', 512), data(5, 1024, b'b', 1024)]);
    for model in &Model::ALL {
        let has_rubbish = (0..500).any(|seed| {
            let left = crash(&longer, model, SECTOR, &Draw { seed, only: None }).left;
            let State { size, sectors } = &left.files[&file(5)];
            sectors.iter().any(|(at, bytes)| {
                at < size && *at >= 512 && bytes.iter().any(|byte| !b"ab-\0".contains(byte))
            })
        });
        assert_eq!(has_rubbish, model.grows_before_data, "{}", model.name);
    }
}

#[test]
fn what_was_not_seen_is_noticed() {
    let part = |bytes: &[u8]| Part { start: 0, bytes: bytes.to_vec() };
    let mut seen = record(vec![data(5, 0, b'a', 512), data(5, 0, b'b', 512)]);
    let Change::Data(second) = &mut seen.deeds[1].change else { unreachable!() };
    second.before = part(&[b'a'; 512]);
    seen.now.insert(file(5), Now { size: 512, parts: vec![part(&[b'b'; 512])] });
    assert!(strangers(&seen, SECTOR).is_empty());
    let mut other = seen.clone();
    other.now.insert(file(5), Now { size: 512, parts: vec![part(&[b'c'; 512])] });
    assert!(strangers(&other, SECTOR).contains_key(&file(5)), "written at the end");
    let mut other = seen.clone();
    other.now.insert(file(5), Now { size: 600, parts: vec![part(&[b'b'; 512])] });
    assert!(strangers(&other, SECTOR).contains_key(&file(5)), "longer at the end");
    let mut other = seen.clone();
    let Change::Data(second) = &mut other.deeds[1].change else { unreachable!() };
    second.before = part(&[b'c'; 512]);
    assert!(strangers(&other, SECTOR).contains_key(&file(5)), "written in between");
    // While another operation runs, the contents are not known.
    other.deeds[0].ended = Some(100);
    assert!(strangers(&other, SECTOR).is_empty());
    // Beside an operation that writes other sectors, the written sector is known at the end.
    let mut other = seen.clone();
    other.deeds[0].ended = Some(100);
    let Change::Data(first) = &mut other.deeds[0].change else { unreachable!() };
    first.offset = 4096;
    first.before.start = 4096;
    first.after.start = 4096;
    assert!(strangers(&other, SECTOR).is_empty());
    other.now.insert(file(5), Now { size: 512, parts: vec![part(&[b'c'; 512])] });
    assert!(strangers(&other, SECTOR).contains_key(&file(5)), "written beside");
}
