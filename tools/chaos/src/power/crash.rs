//! The files that a power cut leaves: pure functions of the record of a run.

use std::collections::{BTreeMap, BTreeSet};

use anyring_chaos_plan::{Fault, MILLION, Subject, child};

use super::model::Model;
use super::record::{Change, Data, Deed, Part, Place, Record};
use anyring_chaos_plan::journal::FileId;

/// The fate of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The effect is left.
    Kept,
    /// The effect is lost.
    Lost,
    /// A part of the effect is lost, as the number decides.
    Torn(u64),
}

/// A file after the power cut.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// The size.
    pub size: u64,
    /// The sectors that were written during the run, by their offsets.
    pub sectors: BTreeMap<u64, Vec<u8>>,
}

/// The files and names after the power cut, as far as the run changed them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Left {
    /// The files that were written or resized.
    pub files: BTreeMap<FileId, State>,
    /// The names that were changed, and the files that have them.
    pub names: BTreeMap<Place, Option<FileId>>,
}

/// A power cut: what is lost, and what is left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Crash {
    /// The operations of which something is lost by decision, by their places in the record.
    pub losses: Vec<(usize, Fault)>,
    /// The operations that are lost because an earlier operation is, by their places in the record.
    pub consequences: Vec<usize>,
    /// The files and names that are left.
    pub left: Left,
}

/// The random choices of a power cut: each depends on the seed and on the operation only.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// The seed.
    pub seed: u64,
    /// The ids of the decisions that are carried out, sorted; `None` for all.
    pub only: Option<&'a [u64]>,
}

/// The extent of the loss, which differs from seed to seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mood {
    /// Everything that may be lost is lost.
    All,
    /// The number of operations, per million, that are lost, and that are torn.
    Some { lost: u32, torn: u32 },
}

impl Draw<'_> {
    fn number(&self, purpose: u64) -> u64 {
        child(self.seed ^ 0x706f_7765_7221, purpose)
    }

    fn mood(&self) -> Mood {
        match self.number(1) % 8 {
            0 | 1 => Mood::All,
            2 | 3 => Mood::Some { lost: MILLION / 2, torn: 0 },
            4 => Mood::Some { lost: MILLION / 10, torn: MILLION / 10 },
            _ => Mood::Some { lost: MILLION / 4, torn: MILLION / 2 },
        }
    }

    fn is_carried_out(&self, subject: &Subject) -> bool {
        self.only.is_none_or(|only| only.binary_search(&subject.id()).is_ok())
    }

    /// Returns what becomes of an operation that may be lost.
    fn fate(&self, deed: &Deed) -> Fate {
        let drawn = |fault, rate| {
            let subject = deed.subject(fault);
            let injection = subject.decide(self.seed, rate)?;
            self.is_carried_out(&subject).then_some(injection.value)
        };
        let (lost, torn) = match self.mood() {
            Mood::All => (MILLION, 0),
            Mood::Some { lost, torn } => (lost, torn),
        };
        match (drawn(Fault::Torn, torn), drawn(Fault::Lost, lost)) {
            (Some(value), _) => Fate::Torn(value),
            (None, Some(_)) => Fate::Lost,
            (None, None) => Fate::Kept,
        }
    }

    /// Returns how many of `count` operations, whose order is kept, are not lost.
    fn kept_of(&self, count: usize) -> usize {
        match self.mood() {
            Mood::All => 0,
            Mood::Some { .. } => (self.number(2) % (count as u64 + 1)) as usize,
        }
    }
}

/// Cuts the power: decides what is lost of what a run did, and computes what is left.
pub fn crash(record: &Record, model: &Model, sector: u64, draw: &Draw<'_>) -> Crash {
    let (fates, losses, consequences) = decide(record, model, draw);
    Crash { losses, consequences, left: leave(record, model, sector, &fates) }
}

/// Decides the fate of each operation. Also returns the operations that are lost by decision, and those that are lost in consequence.
fn decide(record: &Record, model: &Model, draw: &Draw<'_>) -> (Vec<Fate>, Vec<(usize, Fault)>, Vec<usize>) {
    let durable = durable(record, model);
    let mut fates = vec![Fate::Kept; record.deeds.len()];
    let (mut losses, mut consequences) = (Vec::new(), Vec::new());
    let may_be_lost = |&number: &usize| !durable[number] && !is_sync(&record.deeds[number].change);
    let all: Vec<usize> = (0..record.deeds.len()).filter(may_be_lost).collect();
    let (ordered, free): (Vec<usize>, Vec<usize>) =
        all.into_iter().partition(|&number| model.orders_names && is_metadata(&record.deeds[number].change));
    let ordered = in_order(record, ordered);
    let kept = draw.kept_of(ordered.len());
    let first_lost = ordered
        .get(kept)
        .copied()
        .filter(|&number| draw.is_carried_out(&record.deeds[number].subject(Fault::Lost)));
    if let Some(first) = first_lost {
        losses.push((first, Fault::Lost));
        consequences.extend(&ordered[kept + 1..]);
        ordered[kept..].iter().for_each(|&number| fates[number] = Fate::Lost);
    }
    for number in free {
        let deed = &record.deeds[number];
        fates[number] = match (draw.fate(deed), &deed.change) {
            (Fate::Torn(_), Change::Names(names)) if !(model.may_keep_old_name && names.is_plain_rename) => {
                Fate::Kept
            }
            (Fate::Torn(_), Change::Size { .. }) => Fate::Kept,
            (fate, _) => fate,
        };
    }
    keep_data_of_replacing(record, model, &mut fates);
    lose_data_behind_lost_ends(record, model, &mut fates, &mut consequences);
    let behind: BTreeSet<usize> = consequences.iter().copied().collect();
    for (number, deed) in record.deeds.iter().enumerate() {
        let is_free = !(model.orders_names && is_metadata(&deed.change));
        let fault = match fates[number] {
            Fate::Lost => Fault::Lost,
            Fate::Torn(_) => Fault::Torn,
            Fate::Kept => continue,
        };
        if is_free && !behind.contains(&number) {
            losses.push((number, fault));
        }
    }
    losses.sort_unstable();
    (fates, losses, consequences)
}

/// Keeps the data of a file that a kept rename has put in the place of another one, if the model guarantees that.
fn keep_data_of_replacing(record: &Record, model: &Model, fates: &mut [Fate]) {
    if !model.replaces_with_data {
        return;
    }
    for (number, deed) in record.deeds.iter().enumerate() {
        let Change::Names(names) = &deed.change else { continue };
        if !names.replaces || fates[number] != Fate::Kept {
            continue;
        }
        for (other, written) in record.deeds.iter().enumerate() {
            if matches!(&written.change, Change::Data(data) if Some(data.file) == names.node)
                && written.ended.is_some_and(|ended| ended < deed.began)
            {
                fates[other] = Fate::Kept;
            }
        }
    }
}

/// Loses writes behind the end of a file if an earlier change of its size is lost: the file system's journal keeps sizes in order.
fn lose_data_behind_lost_ends(
    record: &Record,
    model: &Model,
    fates: &mut [Fate],
    consequences: &mut Vec<usize>,
) {
    if !model.orders_names {
        return;
    }
    for (number, deed) in record.deeds.iter().enumerate() {
        let Change::Size { file, from, to, .. } = &deed.change else { continue };
        if fates[number] != Fate::Lost {
            continue;
        }
        for (other, written) in record.deeds.iter().enumerate() {
            let Change::Data(data) = &written.change else { continue };
            let is_behind = data.file == *file && data.end() > *from.min(to) && is_before(deed, written);
            if is_behind && !data.durable && fates[other] != Fate::Lost {
                fates[other] = Fate::Lost;
                consequences.push(other);
            }
        }
    }
}

fn is_sync(change: &Change) -> bool {
    matches!(change, Change::Sync { .. } | Change::Other(_))
}

/// True for a change that the journal of a file system keeps in order.
fn is_metadata(change: &Change) -> bool {
    matches!(change, Change::Names(_) | Change::Size { .. })
}

/// The key by which operations are ordered: those that had not ended come last.
fn order(deed: &Deed) -> (u64, u64) {
    (deed.ended.unwrap_or(u64::MAX), deed.began)
}

fn is_before(one: &Deed, other: &Deed) -> bool {
    order(one) < order(other)
}

fn in_order(record: &Record, mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_by_key(|&number| order(&record.deeds[number]));
    numbers
}

/// The times by which syncs that have ended covered a file: operations that had ended by then are on the device.
#[derive(Clone, Copy, Default)]
struct Times {
    /// The time of syncs of the whole file.
    whole: u64,
    /// The time of syncs of the file's data, and of what is needed to find them.
    data: u64,
    /// The time of durable writes that made the file longer. They cover the file's size and its first name, but no
    /// other writes.
    written: u64,
}

/// The syncs of a record.
#[derive(Default)]
struct Syncs {
    /// The time of syncs of everything.
    all: u64,
    by_file: BTreeMap<FileId, Times>,
}

impl Syncs {
    fn of(record: &Record) -> Syncs {
        let mut syncs = Syncs::default();
        for deed in record.deeds.iter().filter(|deed| deed.ended.is_some()) {
            match &deed.change {
                Change::Sync { file: None, after, .. } => syncs.all = syncs.all.max(*after),
                Change::Sync { file: Some(file), data_only, after } => {
                    let times = syncs.by_file.entry(*file).or_default();
                    let time = if *data_only { &mut times.data } else { &mut times.whole };
                    *time = (*time).max(*after);
                }
                Change::Data(data) if data.durable && data.end() > data.size_before => {
                    let times = syncs.by_file.entry(data.file).or_default();
                    times.written = times.written.max(deed.began);
                }
                _ => {}
            }
        }
        syncs
    }

    fn times(&self, file: FileId) -> Times {
        let mut times = self.by_file.get(&file).copied().unwrap_or_default();
        times.whole = times.whole.max(self.all);
        times.data = times.data.max(times.whole);
        times.written = times.written.max(times.data);
        times
    }
}

/// Returns for each operation whether its effect is certainly on the device.
pub fn durable(record: &Record, model: &Model) -> Vec<bool> {
    let syncs = Syncs::of(record);
    let is_durable = |deed: &Deed| {
        let Some(ended) = deed.ended else { return false };
        match &deed.change {
            Change::Data(data) => data.durable || ended <= syncs.times(data.file).data,
            Change::Size { file, .. } => ended <= syncs.times(*file).written,
            Change::Names(names) => {
                let is_synced = |directory: FileId| ended <= syncs.times(directory).data;
                let mut directories = names.entries.iter().map(|entry| entry.place.directory);
                let by_directories =
                    if model.orders_names { directories.any(is_synced) } else { directories.all(is_synced) };
                let by_file = model.syncs_names_of_file
                    && names
                        .node
                        .map(|node| syncs.times(node))
                        .is_some_and(|times| ended <= if names.makes { times.written } else { times.whole });
                by_directories || by_file
            }
            Change::Sync { .. } | Change::Other(_) => true,
        }
    };
    let mut durable: Vec<bool> = record.deeds.iter().map(is_durable).collect();
    if model.orders_names {
        let all =
            (0..record.deeds.len()).filter(|&number| is_metadata(&record.deeds[number].change)).collect();
        let ordered = in_order(record, all);
        if let Some(last) = ordered.iter().rposition(|&number| durable[number]) {
            ordered[..last].iter().for_each(|&number| durable[number] = true);
        }
    }
    durable
}

/// Returns the files and names that are left if operations have these fates.
pub fn leave(record: &Record, model: &Model, sector: u64, fates: &[Fate]) -> Left {
    let mut left = begin(record, sector);
    let (grown, sizes) = (model.grows_before_data, left.files.clone());
    for number in in_order(record, (0..record.deeds.len()).collect()) {
        let fate = fates[number];
        match &record.deeds[number].change {
            Change::Data(data) => {
                if let Some(state) = left.files.get_mut(&data.file) {
                    let size_first = sizes.get(&data.file).map_or(0, |state| state.size);
                    write(state, data, sector, fate, grown.then_some(size_first));
                }
            }
            Change::Size { file, to, .. } if fate == Fate::Kept => {
                if let Some(state) = left.files.get_mut(file) {
                    resize(state, *to, sector);
                }
            }
            Change::Names(names) if fate != Fate::Lost => {
                let count = if matches!(fate, Fate::Torn(_)) { 1 } else { names.entries.len() };
                for entry in &names.entries[..count] {
                    let now = left.names.get(&entry.place).copied().flatten();
                    // A name is removed only from the file that the operation removed it from.
                    if entry.after.is_some() || now == entry.before {
                        left.names.insert(entry.place.clone(), entry.after);
                    }
                }
            }
            _ => {}
        }
    }
    left
}

/// Returns the files and names as they were before the run.
fn begin(record: &Record, sector: u64) -> Left {
    let mut left = Left::default();
    for deed in &record.deeds {
        match &deed.change {
            Change::Data(data) => {
                let state = left
                    .files
                    .entry(data.file)
                    .or_insert_with(|| State { size: data.size_before, ..State::default() });
                for at in data.sectors(sector) {
                    state.sectors.entry(at).or_insert_with(|| data.before.sector(at, sector));
                }
            }
            Change::Size { file, from, to, before } => {
                let state =
                    left.files.entry(*file).or_insert_with(|| State { size: *from, ..State::default() });
                for at in (to / sector..from.div_ceil(sector).max(to / sector)).map(|place| place * sector) {
                    state.sectors.entry(at).or_insert_with(|| before.sector(at, sector));
                }
            }
            Change::Names(names) => {
                for entry in &names.entries {
                    left.names.entry(entry.place.clone()).or_insert(entry.before);
                }
            }
            Change::Sync { .. } | Change::Other(_) => {}
        }
    }
    left
}

/// Writes the part of the data that the fate leaves. `grown` is the size before the run of a file that may grow without its
/// data.
fn write(state: &mut State, data: &Data, sector: u64, fate: Fate, grown: Option<u64>) {
    let is_kept = |at: u64| match fate {
        Fate::Kept => true,
        Fate::Lost => false,
        Fate::Torn(value) => child(value, at).is_multiple_of(2),
    };
    let is_torn = matches!(fate, Fate::Torn(_));
    let mut size = state.size;
    for at in data.sectors(sector) {
        if is_kept(at) {
            state.sectors.insert(at, data.after.sector(at, sector));
            size = size.max(data.end().min(at + sector));
        } else if let (Some(first), Fate::Torn(value)) = (grown, fate)
            && at >= state.size
            && at >= first
        {
            // A new block has never been written, so its contents are arbitrary.
            let rubbish = if child(value, !at).is_multiple_of(2) { 0 } else { (value >> 8) as u8 | 1 };
            state.sectors.insert(at, vec![rubbish; sector as usize]);
        }
    }
    state.size = if is_torn && grown.is_some() { state.size.max(data.end()) } else { size };
}

/// Sets the size of a file. If it becomes smaller, the bytes behind its end are lost.
fn resize(state: &mut State, size: u64, sector: u64) {
    if size < state.size {
        for (&at, bytes) in &mut state.sectors {
            if at + sector > size {
                let kept = size.saturating_sub(at).min(sector) as usize;
                bytes[kept..].fill(0);
            }
        }
    }
    state.size = size;
}

/// Returns the files that something else has written, too: the record does not explain their contents or sizes.
pub fn strangers(record: &Record, sector: u64) -> BTreeMap<FileId, &'static str> {
    const STRANGE: &str = "something that was not seen writes to it, too (a plain call or a mapping)";
    let mut by_file: BTreeMap<FileId, Vec<&Deed>> = BTreeMap::new();
    for deed in &record.deeds {
        if let Change::Data(Data { file, .. }) | Change::Size { file, .. } = &deed.change {
            by_file.entry(*file).or_default().push(deed);
        }
    }
    let is_strange = |(file, deeds): &(FileId, Vec<&Deed>)| {
        is_strange(record, *file, deeds, sector) || is_overwritten(record, *file, deeds, sector)
    };
    by_file.into_iter().filter(is_strange).map(|(file, _)| (file, STRANGE)).collect()
}

/// True if the operations on a file, in the order of their beginnings, do not explain its contents.
fn is_strange(record: &Record, file: FileId, deeds: &[&Deed], sector: u64) -> bool {
    let (mut known, mut earlier): (Option<State>, Option<State>) = (None, None);
    let mut last_end = 0;
    for (number, deed) in deeds.iter().enumerate() {
        let end = deed.ended.unwrap_or(u64::MAX);
        // While another operation runs, the contents are not known.
        let is_alone = last_end < deed.began && deeds.get(number + 1).is_none_or(|next| next.began > end);
        last_end = last_end.max(end);
        if !is_alone {
            (known, earlier) = (None, None);
            continue;
        }
        let (size, before) = match &deed.change {
            Change::Data(data) => (data.size_before, &data.before),
            Change::Size { from, before, .. } => (*from, before),
            _ => continue,
        };
        let is_as = |state: &State| state.size == size && holds(state, before, size, sector);
        let mut state = known.take().unwrap_or(State { size, ..State::default() });
        if !is_as(&state) {
            // The bytes that an operation overwrites are read just before its beginning is noted: another operation may have
            // ended in between.
            if !earlier.take().is_some_and(|earlier| is_as(&earlier)) {
                return true;
            }
            continue;
        }
        if let Change::Data(data) = &deed.change {
            for at in data.sectors(sector) {
                state.sectors.entry(at).or_insert_with(|| before.sector(at, sector));
            }
        }
        earlier = Some(state.clone());
        match &deed.change {
            Change::Data(data) => write(&mut state, data, sector, Fate::Kept, None),
            Change::Size { to, .. } => resize(&mut state, *to, sector),
            _ => {}
        }
        known = deed.ended.map(|_| state);
    }
    let (Some(known), Some(now)) = (known, record.now.get(&file)) else { return false };
    now.size != known.size || now.parts.iter().any(|part| !holds(&known, part, now.size, sector))
}

/// True if a sector differs from its last write by an operation during which no other operation changed it.
fn is_overwritten(record: &Record, file: FileId, deeds: &[&Deed], sector: u64) -> bool {
    let Some(now) = record.now.get(&file) else { return false };
    let mut last: BTreeMap<u64, (u64, Option<Vec<u8>>)> = BTreeMap::new();
    let mut resized = 0;
    for deed in deeds {
        let end = deed.ended.unwrap_or(u64::MAX);
        let Change::Data(data) = &deed.change else {
            last.clear();
            resized = resized.max(end);
            continue;
        };
        for at in data.sectors(sector) {
            let earlier = last.get(&at).map_or(resized, |(end, _)| resized.max(*end));
            let is_sure = deed.ended.is_some() && deed.began > earlier;
            last.insert(at, (earlier.max(end), is_sure.then(|| data.after.sector(at, sector))));
        }
    }
    let known = last.into_iter().filter_map(|(at, (_, bytes))| Some((at, bytes?)));
    let known = State { size: now.size, sectors: known.collect() };
    now.parts.iter().any(|part| !holds(&known, part, now.size, sector))
}

/// True if the part of a file, which has this size, has the known contents.
fn holds(state: &State, part: &Part, size: u64, sector: u64) -> bool {
    let end = part.start + part.bytes.len() as u64;
    state.sectors.range(part.start..end).all(|(&at, known)| {
        let length = (size.min(end).saturating_sub(at)).min(sector) as usize;
        part.sector(at, sector)[..length] == known[..length]
    })
}
