//! The record of the faults of a run, in a file.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use anyring_chaos_plan::journal::LAST_MOMENT;
use anyring_chaos_plan::{Fault, Faults, MILLION, Settings};
use serde::{Deserialize, Serialize};

use crate::describe::subject;
use crate::power::{Model, Power};
use crate::{Dose, Injected, describe};

const VERSION: u32 = 1;

/// The contents of the file, as JSON. They suffice to repeat a run: the seed, the rate and the faults determine the
/// decisions, and the ids select the decisions that are carried out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The version of this format.
    pub version: u32,
    /// The number from which the faults are drawn.
    pub seed: u64,
    /// The probability of each fault.
    pub rate: f64,
    /// The faults that are on, by name.
    pub faults: Vec<String>,
    /// The duration of pauses and of delays of completions, unless each decision sets its own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub delay_ns: Option<u64>,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// The way in which the power is cut, if the run has a power cut.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub power_cut: Option<RecordedPower>,
    /// The failure in words, if the run failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<String>,
    /// The faults that were injected.
    pub injected: Vec<RecordedFault>,
}

/// The way in which the power is cut, in a [`Record`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedPower {
    /// The name of the crash model.
    pub model: String,
    /// The command that prepares each run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub setup: Option<String>,
    /// The command that decides whether the remaining files are right.
    pub check: String,
}

/// A fault in a [`Record`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedFault {
    /// The number that identifies the decision, or the moment of the power cut: 16 hexadecimal digits. Only this field is used for a replay.
    pub id: String,
    /// The name of the fault.
    pub fault: String,
    /// The operation or call that met the fault.
    pub subject: String,
    /// The number of the request or call in its ring.
    pub serial: u64,
    /// The number of the ring in its process.
    pub ring: u32,
    /// The whole fault in words.
    pub description: String,
}

impl Record {
    /// Creates the record of a run.
    ///
    /// # Errors
    /// Fails if an argument of the program is not UTF-8, which JSON requires.
    pub fn new(
        settings: Settings,
        program: &[OsString],
        failure: Option<String>,
        injected: &[Injected],
    ) -> Result<Record, String> {
        let text = |word: &OsString| {
            word.to_str().map(str::to_owned).ok_or_else(|| format!("{} is no UTF-8", word.display()))
        };
        let mut seen = std::collections::HashSet::new();
        Ok(Record {
            version: VERSION,
            seed: settings.seed,
            rate: f64::from(settings.rate) / f64::from(MILLION),
            faults: settings.faults.iter().map(|fault| fault.name().to_owned()).collect(),
            delay_ns: Some(settings.delay_ns).filter(|&delay_ns| delay_ns > 0),
            program: program.iter().map(text).collect::<Result<_, _>>()?,
            power_cut: None,
            failure,
            injected: injected.iter().filter(|one| seen.insert(one.id)).map(RecordedFault::of).collect(),
        })
    }

    /// Adds the way in which the power was cut.
    pub fn with_power(self, power: Option<&Power>) -> Record {
        let power_cut = power.map(|power| RecordedPower {
            model: power.model.name.to_owned(),
            setup: power.setup.clone(),
            check: power.check.clone(),
        });
        Record { power_cut, ..self }
    }

    /// Returns the way in which the power is cut, if the run has a power cut.
    ///
    /// # Errors Returns the part of the record that is unknown.
    pub fn power(&self) -> Result<Option<Power>, String> {
        let Some(RecordedPower { model, setup, check }) = self.power_cut.clone() else { return Ok(None) };
        let model = Model::named(&model).ok_or_else(|| format!("there is no crash model \"{model}\""))?;
        Ok(Some(Power { model, setup, check, moment: None, whole: OnceLock::new() }))
    }

    /// Reads a record from a file.
    ///
    /// # Errors Returns the reason why the file cannot be used.
    pub fn read(path: &Path) -> Result<Record, String> {
        let text = fs::read(path).map_err(|error| error.to_string())?;
        let record: Record = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        if record.version != VERSION {
            return Err(format!("it is of version {}, and this command knows {VERSION}", record.version));
        }
        record.dose()?;
        Ok(record)
    }

    /// Writes the record to a file.
    ///
    /// # Errors
    /// Returns errors of the file system.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut text = serde_json::to_string_pretty(self).map_err(std::io::Error::other)?;
        text.push('\n');
        fs::write(path, text)
    }

    /// Returns the dose for a run that repeats this one.
    ///
    /// # Errors Returns the part of the record that is unknown.
    pub fn dose(&self) -> Result<Dose, String> {
        let mut faults = Faults::NONE;
        for name in &self.faults {
            faults = faults.with(Fault::named(name).ok_or_else(|| format!("there is no fault \"{name}\""))?);
        }
        let rate = rate(self.rate)?;
        let cuts = [Fault::CutBefore, Fault::CutAfter].map(Fault::name);
        let id = |one: &RecordedFault| {
            let id = u64::from_str_radix(&one.id, 16).ok();
            let is_one = |id: &u64| !cuts.contains(&&*one.fault) || (1..=LAST_MOMENT).contains(id);
            id.filter(is_one).ok_or_else(|| format!("\"{}\" is no id of the fault {}", one.id, one.fault))
        };
        let mut ids = self.injected.iter().map(id).collect::<Result<Vec<u64>, _>>()?;
        ids.sort_unstable();
        ids.dedup();
        let settings = Settings { seed: self.seed, rate, faults, delay_ns: self.delay_ns.unwrap_or(0) };
        Ok(Dose { settings, only: Some(ids) })
    }
}

/// Converts a probability to faults per million.
///
/// # Errors
/// Fails if the number is not a probability.
pub fn rate(probability: f64) -> Result<u32, String> {
    if !(0.0..=1.0).contains(&probability) {
        return Err(format!("a rate is a probability, from 0 to 1, and {probability} is none"));
    }
    Ok((probability * f64::from(MILLION)).round() as u32)
}

impl RecordedFault {
    fn of(injected: &Injected) -> RecordedFault {
        RecordedFault {
            id: format!("{:016x}", injected.id),
            fault: injected.fault.name().to_owned(),
            subject: subject(injected),
            serial: injected.serial,
            ring: injected.ring,
            description: describe(injected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::injected;

    fn record() -> Record {
        let settings = Settings { seed: u64::MAX, rate: 20_001, faults: Faults::ORDINARY, delay_ns: 7 };
        let all = [injected(Fault::Short, 12), injected(Fault::Late, 3), injected(Fault::Short, 12)];
        Record::new(settings, &["./program".into(), "-v".into()], Some("a hang".into()), &all).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let path = std::env::temp_dir().join(format!("anyring-record-{}", std::process::id()));
        record().write(&path).unwrap();
        let read = Record::read(&path);
        fs::write(&path, "{}").unwrap();
        let none = Record::read(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(read.as_ref(), Ok(&record()));
        assert!(none.is_err());
        let dose = read.unwrap().dose().unwrap();
        let expected = Settings { seed: u64::MAX, rate: 20_001, faults: Faults::ORDINARY, delay_ns: 7 };
        assert_eq!(dose.settings, expected);
        assert_eq!(dose.only, Some(vec![3007, 12001]), "sorted, and each once");
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let refused = |change: fn(&mut Record)| {
            let mut record = record();
            change(&mut record);
            record.dose().unwrap_err()
        };
        assert!(refused(|record| record.faults.push("wind".into())).contains("wind"));
        assert!(refused(|record| record.rate = 2.0).contains('2'));
        assert!(refused(|record| record.injected[0].id = "x".into()).contains("\"x\""));
        let is_no_moment = |record: &mut Record| {
            (record.injected[0].fault, record.injected[0].id) = ("cut-after".into(), "10001".into());
        };
        assert!(refused(is_no_moment).contains("10001"));
    }
}
