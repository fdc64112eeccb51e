//! The record of a benchmark: its results as data, in a file of its own. Pages and charts are generated from records,
//! so that they can be generated again without measuring.

use std::path::{Path, PathBuf};

use super::{Outcome, Results};
use crate::benchmarks;
use crate::failure::{Doing, Result};

/// Returns the path of the record of the benchmark `name`.
fn file(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.json"))
}

/// Writes the results into `directory`, a file per benchmark, without the individual rounds.
pub fn write(directory: &Path, results: Results) -> Result<()> {
    std::fs::create_dir_all(directory).doing(|| format!("creating {}", directory.display()))?;
    let Results { machine, command, benchmarks } = results;
    for mut outcome in benchmarks {
        let path = file(directory, outcome.about.name);
        for side in outcome.cases.iter_mut().flat_map(|case| &mut case.sides) {
            side.windows.clear();
        }
        let record =
            Results { machine: machine.clone(), command: command.clone(), benchmarks: vec![outcome] };
        std::fs::write(&path, to_text(&record)?).doing(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Formats a record with a line per side, so that a diff of two records is readable.
fn to_text(record: &Results) -> Result<String> {
    let text = serde_json::to_string(record).doing(|| "writing a record".into())?;
    Ok(text.replace("{\"side\":", "\n{\"side\":").replace("{\"name\":", "\n{\"name\":") + "\n")
}

/// Reads all records in `directory`, each of one benchmark, in the order in which benchmarks run.
pub fn read(directory: &Path) -> Result<Vec<(Results, Outcome)>> {
    let mut records = Vec::new();
    for benchmark in benchmarks::all() {
        let path = file(directory, benchmark.about().name);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            read => read.doing(|| format!("reading {}", path.display()))?,
        };
        let mut record: Results =
            serde_json::from_str(&text).doing(|| format!("understanding {}", path.display()))?;
        records.extend(record.benchmarks.pop().map(|outcome| (record, outcome)));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use crate::report::Ratio;

    /// A record must keep all figures exactly, so that a chart drawn from it equals the chart drawn from the measurement.
    #[test]
    fn figures_are_read_as_they_were_written() {
        for nanoseconds in 1..10_000 {
            let median = 3389.0 / f64::from(nanoseconds);
            let written = serde_json::to_string(&Ratio { median, lowest: None, highest: None }).unwrap();
            let read: Ratio = serde_json::from_str(&written).unwrap();
            assert_eq!(read.median.to_bits(), median.to_bits(), "{written}");
        }
    }
}
