//! The engine with its mutants, in a separate workspace below `target`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::list::Mutant;
use crate::schema::{self, Mutated};

/// The workspace.
pub struct Tree {
    root: PathBuf,
    at: PathBuf,
}

/// The compiler's verdict on the mutants.
#[derive(Default)]
pub struct Judged {
    /// Mutants that do not compile.
    pub unviable: HashSet<usize>,
    /// Mutants that cannot be selected at run time.
    pub alone: HashSet<usize>,
}

/// Programs that were built.
pub struct Built {
    /// The engine's tests: those in its sources, its suite, and the models.
    pub tests: Vec<PathBuf>,
    /// The directory of the tools.
    pub tools: PathBuf,
}

/// The crates that are built; their dependencies in the repository are copied, too.
const BUILT: [&str; 4] = ["anyring-engine", TESTS, "anyring-conformance", "anyring-simulation"];
/// The package of the tests through the ABI, whose files are among the engine's.
const TESTS: &str = "anyring-engine-tests";

/// The sources of the crates that have mutants.
const MUTATED: [&str; 2] = ["core/engine/src", "core/wait/src"];

impl Tree {
    /// Creates the tree of a repository.
    pub fn new(root: &Path, at: &Path, mutants: &[Mutant]) -> Result<Tree> {
        let tree = Tree { root: root.to_owned(), at: at.to_owned() };
        let mut changed: HashSet<&str> = mutants.iter().map(|mutant| mutant.file.as_str()).collect();
        let libraries = MUTATED.map(|sources| format!("{sources}/lib.rs"));
        changed.extend(libraries.iter().map(String::as_str));
        let members = tree.members()?;
        for member in members.iter().filter(|member| !member.contains("/tests/")) {
            tree.copy(member, &members, &changed)?;
        }
        let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
        let start = manifest.find("members = [").context("the members in Cargo.toml")?;
        let end = start + manifest[start..].find(']').context("the end of the members")?;
        let members = members.iter().map(|member| format!("\"{member}\"")).collect::<Vec<_>>().join(", ");
        tree.write("Cargo.toml", format!("{}members = [{members}{}", &manifest[..start], &manifest[end..]))?;
        if !tree.at.join("Cargo.lock").exists() {
            fs::copy(root.join("Cargo.lock"), tree.at.join("Cargo.lock"))?;
        }
        tree.link_tests()?;
        Ok(tree)
    }

    /// Returns the folders of the built crates and of all packages of the repository on which they depend.
    fn members(&self) -> Result<Vec<String>> {
        let mut cargo = Command::new("cargo");
        cargo.args(["metadata", "--no-deps", "--format-version=1", "--offline"]).current_dir(&self.root);
        let metadata: Value = serde_json::from_slice(&cargo.output().context("cargo starts")?.stdout)?;
        let packages = metadata["packages"].as_array().context("packages in cargo's metadata")?;
        let folder = |path: &Value| {
            let path = Path::new(path.as_str()?).strip_prefix(&self.root).ok()?.to_str()?;
            Some(path.trim_end_matches("/Cargo.toml").to_owned())
        };
        let is_built = |package: &&Value| BUILT.iter().any(|name| package["name"] == *name);
        let mut members: Vec<String> = packages
            .iter()
            .filter(is_built)
            .filter_map(|package| folder(&package["manifest_path"]))
            .collect();
        let mut seen = 0;
        while let Some(member) = members.get(seen).cloned() {
            seen += 1;
            let of_member = |package: &&Value| folder(&package["manifest_path"]).as_ref() == Some(&member);
            let package = packages.iter().find(of_member).with_context(|| member.clone())?;
            let needed = package["dependencies"].as_array().into_iter().flatten();
            for path in needed.filter_map(|needed| folder(&needed["path"])) {
                if !members.contains(&path) {
                    members.push(path);
                }
            }
        }
        Ok(members)
    }

    /// Copies the sources of a package, except for changed files. Tests are not copied: they stay in their place.
    fn copy(&self, package: &str, members: &[String], changed: &HashSet<&str>) -> Result<()> {
        for entry in fs::read_dir(self.root.join(package))? {
            let name = format!("{package}/{}", entry?.file_name().to_string_lossy());
            let is_tests = name.ends_with("/tests") || name.ends_with("/work");
            if members.contains(&name) || is_tests || changed.contains(name.as_str()) {
                continue;
            }
            if self.root.join(&name).is_dir() {
                self.copy(&name, members, changed)?;
            } else {
                self.write(&name, &fs::read(self.root.join(&name))?)?;
            }
        }
        Ok(())
    }

    /// Writes a file unless it has this text already, so that cargo does not rebuild it.
    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Result<()> {
        let path = self.at.join(name);
        if fs::read(&path).is_ok_and(|old| old == text.as_ref()) {
            return Ok(());
        }
        fs::create_dir_all(path.parent().context("a file in a folder")?)?;
        fs::write(&path, text).with_context(|| format!("{} can be written", path.display()))
    }

    /// Links the engine's tests to those of the repository.
    fn link_tests(&self) -> Result<()> {
        let (tests, there) = (self.root.join("core/engine/tests"), self.at.join("core/engine/tests"));
        if !there.is_symlink() {
            std::os::unix::fs::symlink(&tests, &there)
                .with_context(|| format!("a link to {}", tests.display()))?;
        }
        Ok(())
    }

    fn source(&self, file: &str) -> Result<String> {
        Ok(fs::read_to_string(self.root.join(file))?)
    }

    /// Inserts the mutants into the engine's sources, except for excluded ones.
    fn put(&self, mutants: &[Mutant], judged: &mut Judged) -> Result<HashMap<String, Mutated>> {
        let mut files: HashMap<&str, Vec<&Mutant>> = HashMap::new();
        for mutant in mutants {
            let wanted = files.entry(&mutant.file).or_default();
            if !judged.unviable.contains(&mutant.number) && !judged.alone.contains(&mutant.number) {
                wanted.push(mutant);
            }
        }
        let mut all = HashMap::new();
        for (file, mutants) in files {
            let mutated = schema::mutate(&self.source(file)?, &mutants).with_context(|| file.to_owned())?;
            judged.alone.extend(&mutated.left);
            judged.unviable.extend(&mutated.unviable);
            self.write(file, &mutated.text)?;
            all.insert(file.to_owned(), mutated);
        }
        let length = mutants.len() + 1;
        let chooser = include_str!("mutant.rs.in");
        for sources in MUTATED {
            self.write(
                &format!("{sources}/mutant.rs"),
                format!("{chooser}\nconst LENGTH: usize = {length};\n"),
            )?;
            let library = format!("{sources}/lib.rs");
            let text = self.source(&library)?;
            self.write(&library, format!("{text}\npub mod mutant;\n"))?;
        }
        Ok(all)
    }

    /// Inserts all mutants that compile.
    pub fn settle(&self, mutants: &[Mutant]) -> Result<Judged> {
        let mut judged = Judged::default();
        loop {
            let files = self.put(mutants, &mut judged)?;
            let errors = self.check()?;
            if errors.is_empty() {
                return Ok(judged);
            }
            let known = judged.unviable.len() + judged.alone.len();
            for error in &errors {
                blame(error, &files, &mut judged)?;
            }
            let found = judged.unviable.len() + judged.alone.len() - known;
            eprintln!("mutants: the compiler refuses {found} more");
            ensure!(found > 0, "no mutant is to blame for: {}", errors[0]["rendered"]);
        }
    }

    fn cargo(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let mut cargo = Command::new("cargo");
        cargo.args(arguments).args(["--offline", "--message-format=json"]).current_dir(&self.at);
        cargo.env("CARGO_TARGET_DIR", self.at.join("target")).env("RUSTFLAGS", "--cap-lints=allow");
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "1");
        let output = cargo.stderr(Stdio::piped()).output().context("cargo starts")?;
        let lines = output.stdout.split(|&byte| byte == b'\n');
        let messages: Vec<Value> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        if !output.status.success() && !messages.iter().any(|message| message["reason"] == "compiler-message")
        {
            bail!("cargo {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(messages)
    }

    /// Returns the compiler's errors.
    fn check(&self) -> Result<Vec<Value>> {
        let messages = self.cargo(&["check", "-p", "anyring-engine"])?;
        let said = messages.into_iter().filter(|message| message["reason"] == "compiler-message");
        let said = said.map(|message| message["message"].clone());
        Ok(said
            .filter(|message| message["level"] == "error" && message["spans"] != Value::Array(Vec::new()))
            .collect())
    }

    /// Builds the tests, and the tools if `tools`.
    pub fn build(&self, tools: bool) -> Result<Built> {
        let names = ["anyring_engine", "suite", "models"];
        let mut arguments = vec!["test", "--no-run", "-p", "anyring-engine", "-p", TESTS, "--lib"];
        arguments.extend(names[1..].iter().flat_map(|name| ["--test", name]));
        let messages = self.cargo(&arguments)?;
        let program = |name: &str| {
            let of_name = messages.iter().filter(|message| message["target"]["name"] == name);
            of_name.filter_map(|message| message["executable"].as_str()).next_back().map(PathBuf::from)
        };
        let tests: Vec<PathBuf> = names.iter().filter_map(|name| program(name)).collect();
        ensure!(tests.len() == names.len(), {
            let errors = messages.iter().filter_map(|message| message["message"]["rendered"].as_str());
            format!("the tests do not build: {}", errors.take(3).collect::<String>())
        });
        if tools {
            self.cargo(&["build", "-p", "anyring-conformance", "-p", "anyring-simulation"])?;
        }
        Ok(Built { tests, tools: self.at.join("target/debug") })
    }
}

/// Excludes the mutant or the place that has a compiler error; or else one that the error mentions.
fn blame(error: &Value, files: &HashMap<String, Mutated>, judged: &mut Judged) -> Result<()> {
    let spans = error["spans"].as_array().context("the spans of an error")?;
    let stands_in = |span: &Value| {
        let mutated = files.get(span["file_name"].as_str()?)?;
        let at = span["byte_start"].as_u64()? as usize;
        innermost(&mutated.text, at).map(|(kind, number)| (kind, number, mutated))
    };
    for primary in [true, false] {
        let spans = spans.iter().filter(|span| span["is_primary"] == primary);
        let found: Vec<_> = spans.filter_map(stands_in).collect();
        for &(kind, number, mutated) in &found {
            match kind {
                'm' if primary => drop(judged.unviable.insert(number)),
                'm' => drop(judged.alone.insert(number)),
                _ => judged.alone.extend(&mutated.sites[number]),
            }
        }
        if !found.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Returns the innermost pair of markers around a byte: its kind and number.
fn innermost(text: &str, at: usize) -> Option<(char, usize)> {
    let mut open = Vec::new();
    let mut from = 0;
    while let Some(found) = text[from..at].find("/*") {
        let start = from + found + 2;
        from = start;
        let Some(end) = text[start..].find("*/") else { break };
        let marker = &text[start..start + end];
        let opens = marker.starts_with('<');
        let body = marker.trim_start_matches('<').trim_end_matches('>');
        let Some(kind) = body.chars().next().filter(|kind| "ms".contains(*kind)) else { continue };
        let Ok(number) = body[1..].parse() else { continue };
        if opens {
            open.push((kind, number));
        } else if marker.ends_with('>') {
            open.pop();
        }
    }
    open.pop()
}
