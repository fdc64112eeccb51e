//! The list of mutants: cargo-mutants finds them, as configured in `.cargo/mutants.toml`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A mutant as cargo-mutants names it.
#[derive(Debug)]
pub struct Mutant {
    /// The mutant's number in the built sources, from 1.
    pub number: usize,
    /// The file, line, column and change.
    pub name: String,
    /// The path from the repository's root.
    pub file: String,
    /// The function with the mutant.
    pub function: String,
    /// `BinaryOperator`, `FnValue`...
    pub genre: String,
    /// The text that replaces the original.
    pub replacement: String,
    /// The line where the changed text begins, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl Mutant {
    /// Returns the folder of the engine's sources that has the mutant, or the folder of another crate below `core`.
    pub fn folder(&self) -> &str {
        let inside = self.file.strip_prefix("core/").unwrap_or(&self.file);
        let inside = inside.strip_prefix("engine/src/").unwrap_or(inside);
        inside.split('/').next().unwrap_or(inside)
    }

    /// Returns the mutant's part of `parts`. Its position does not matter: a part stays the same when other lines change.
    pub fn part(&self, parts: usize) -> usize {
        let place = format!(":{}:{}", self.line, self.column);
        let name = self.name.replacen(&place, "", 1);
        let mixed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |mixed: u64, byte| {
            (mixed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        // The low bits of the hash depend on the last bytes only.
        (mixed >> 32) as usize % parts
    }

    fn of(number: usize, value: &Value) -> Option<Mutant> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let at = |place: &Value| Some((place["line"].as_u64()? as usize, place["column"].as_u64()? as usize));
        let (line, column) = at(&value["span"]["start"])?;
        Some(Mutant {
            number,
            name: text(&value["name"])?,
            file: text(&value["file"])?,
            function: text(&value["function"]["function_name"]).unwrap_or_default(),
            genre: text(&value["genre"])?,
            replacement: text(&value["replacement"])?,
            line,
            column,
        })
    }
}

/// Returns the mutants of the repository: of the given files only, if there are any, and of a diff's lines only, if there is one.
pub fn mutants(root: &Path, files: &[String], diff: Option<&Path>) -> Result<Vec<Mutant>> {
    let mut list = Command::new("cargo");
    list.args(["mutants", "--list", "--json", "--package", "anyring-engine"]).current_dir(root);
    for file in files {
        list.args(["--file", file]);
    }
    if let Some(diff) = diff {
        list.arg("--in-diff").arg(std::path::absolute(diff)?);
    }
    let output = list.output().context("cargo mutants starts")?;
    ensure!(
        output.status.success(),
        "cargo mutants --list: {}\n(install it with: cargo install cargo-mutants --locked)",
        String::from_utf8_lossy(&output.stderr)
    );
    let list: Value = serde_json::from_slice(&output.stdout).context("what cargo mutants lists")?;
    let list = list.as_array().context("a list")?;
    let mutants = list.iter().enumerate().map(|(index, value)| Mutant::of(index + 1, value));
    mutants.collect::<Option<_>>().context("a mutant has a field that is not known here")
}
