//! The commands of the documentation: each option that a console block gives to `anyring` exists, and what stands behind
//! `<!-- run -->` is run, in the root of the sources.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::anyring;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The commands of a page's console blocks: where each stands, whether it is to be run, and its text.
fn commands(page: &Path) -> Vec<(String, bool, String)> {
    let text = fs::read_to_string(page).unwrap();
    let (mut all, mut before, mut block) = (Vec::new(), "", None);
    for (number, line) in text.lines().enumerate() {
        match block {
            None if line.starts_with("```") => block = Some((line == "```console", before == "<!-- run -->")),
            Some(_) if line == "```" => block = None,
            Some((true, runs)) => {
                if let Some(command) = line.strip_prefix("$ ") {
                    all.push((format!("{}:{}", page.display(), number + 1), runs, command.to_owned()));
                }
            }
            _ => {}
        }
        before = line;
    }
    all
}

fn all_commands() -> Vec<(String, bool, String)> {
    let mut pages = vec![root().join("README.md")];
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    pages.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    pages.iter().flat_map(|page| commands(page)).collect()
}

/// The subcommand of `anyring`, and the long options that it is given before the program.
fn options(command: &str) -> Option<(&str, Vec<&str>)> {
    let words: Vec<&str> = command.split(" #").next().unwrap_or_default().split_whitespace().collect();
    let at = words.iter().position(|word| *word == "anyring" || word.ends_with("/anyring"))?;
    let (name, rest) = words[at + 1..].split_first()?;
    let own = rest.iter().take_while(|word| **word != "--" && **word != "|");
    let names = own.filter(|word| word.starts_with("--")).map(|word| word.split('=').next().unwrap_or(word));
    Some((name, names.collect()))
}

#[test]
fn options_of_the_documentation_exist() {
    let mut helps = BTreeMap::new();
    let mut count = 0;
    for (place, _, command) in all_commands() {
        let Some((name, options)) = options(&command) else { continue };
        if !["run", "trace", "chaos", "doctor", "bench", "find", "du", "completions"].contains(&name) {
            continue;
        }
        let help = helps.entry(name.to_owned()).or_insert_with(|| {
            let output = Command::new(anyring()).args([name, "--help"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        });
        for option in options {
            let is_option = |word: &str| word.trim_matches(|c: char| ",=[.".contains(c)) == option;
            let known = help.split(|c: char| c.is_whitespace() || "[=<".contains(c)).any(is_option);
            assert!(known, "{place}: anyring {name} has no {option}: {command}");
            count += 1;
        }
    }
    assert!(count >= 10, "{count}");
}

#[test]
fn what_is_to_be_run_runs() {
    let directory = anyring().parent().unwrap();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    for (place, _, command) in all_commands().into_iter().filter(|(_, runs, _)| *runs) {
        let output =
            Command::new("bash").args(["-c", &command]).env("PATH", &path).current_dir(root()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{place}: {command}: {output:?}");
    }
}
