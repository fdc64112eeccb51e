//! The interface: symbols and their versions, structures, and the behaviour of each function that is inline in C.

mod support;
#[path = "../src/types.rs"]
#[allow(dead_code, reason = "its layout is what is looked at")]
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{By, Header, libraries, liburing, newer_source, program, root, run, said};

/// Returns the symbols that a library exports, each with its version, as `nm` lists them.
fn symbols(library: &Path) -> BTreeSet<String> {
    let listed =
        run(Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library));
    let names = listed.lines().filter_map(|line| line.split_whitespace().nth(2));
    let nodes = ["LIBURING_", "ANYRING_"];
    let (own, names): (Vec<_>, Vec<_>) = names
        .filter(|name| !nodes.iter().any(|node| name.starts_with(node)))
        .partition(|name| name.starts_with("anyring_"));
    let header = fs::read_to_string(root().join("frontends/liburing/include/anyring.h")).unwrap();
    for symbol in &own {
        let name = symbol.strip_suffix("@@ANYRING_1").unwrap_or_else(|| panic!("{symbol}: its version"));
        assert!(header.contains(&format!("{name}(")), "{name} is not in anyring.h");
    }
    assert_eq!(own.len(), header.matches("\nextern ").count() - 1, "what anyring.h declares");
    // A program may test whether this function exists, and do without it. No other is weak, because the linker drops a
    // library of which only weak symbols are used.
    assert_eq!(header.matches("__attribute__((weak))").count(), 1, "what anyring.h declares weak");
    names.into_iter().map(String::from).collect()
}

/// Each function of `anyring.h` has a manual page, and each page lists its functions.
#[test]
fn functions_have_pages() {
    let header = fs::read_to_string(root().join("frontends/liburing/include/anyring.h")).unwrap();
    let words = header
        .split(|character: char| !character.is_ascii_alphanumeric() && character != '_' && character != '(');
    let called = words.filter_map(|word| word.split_once('(')).map(|(name, _)| name);
    let names: BTreeSet<&str> = called.filter(|name| name.starts_with("anyring_")).collect();
    assert!(names.len() > 10, "{names:?}");
    let page = |name: &str| {
        let path = root().join(format!("frontends/liburing/man/{name}.3"));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    for name in names {
        let text = page(name);
        let target = text.strip_prefix(".so man3/").and_then(|line| line.trim_end().strip_suffix(".3"));
        let text = target.map_or_else(|| text.clone(), page);
        let section = text.split(".SH LIBRARY").next().unwrap();
        assert!(section.contains(name), "{name} is not in the NAME section of its page");
    }
}

/// Returns the number after the dot of `LIBURING_2.15`.
fn node(version: &str) -> u32 {
    version.trim_start_matches("LIBURING_").trim_start_matches("2.").parse().unwrap()
}

/// Splits `name@@LIBURING_2.1` into name and version.
fn split(symbol: &str) -> (&str, u32) {
    let (name, version) = symbol.split_once("@@").unwrap_or_else(|| panic!("{symbol} has no version"));
    (name, node(version))
}

/// Returns the symbols that `frontends/liburing/symbols.tsv` lists for one of the two libraries.
fn listed(column: usize) -> BTreeSet<String> {
    let table = include_str!("../symbols.tsv");
    let rows = table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect());
    let row = |row: Vec<&str>| (row[column] != "-").then(|| format!("{}@@LIBURING_{}", row[0], row[column]));
    rows.filter_map(row).collect()
}

/// Returns the symbols of a version script.
fn mapped(script: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(script).unwrap();
    // Removes comments, which may be anywhere.
    let bare: String = text.split("*/").map(|part| part.split("/*").next().unwrap()).collect();
    let mut all = BTreeSet::new();
    for block in bare.split_inclusive('}') {
        let Some((name, body)) = block.split_once('{') else { continue };
        let version = name.split_whitespace().last().unwrap();
        for entry in body.trim_end_matches('}').replace("global:", "").replace("local:", "").split(';') {
            let entry = entry.trim();
            if !entry.is_empty() && entry != "*" {
                all.insert(format!("{entry}@@{version}"));
            }
        }
    }
    all
}

#[test]
fn symbols_and_versions_are_those_of_the_table() {
    for (name, column) in [("liburing", 1), ("liburing-ffi", 2)] {
        assert_eq!(symbols(&libraries().join(format!("{name}.so.2"))), listed(column), "{name}");
    }
}

/// The symbols up to version 2.15 are those of liburing 2.15; all are those of the newer source that `LIBURING_SOURCE` may name.
#[test]
fn symbols_and_versions_are_liburings() {
    let sources = [Some((liburing(), 15)), newer_source().map(|source| (source, u32::MAX))];
    for (source, up_to) in sources.into_iter().flatten() {
        for (name, column) in [("liburing", 1), ("liburing-ffi", 2)] {
            let theirs = mapped(&source.join(format!("src/{name}.map")));
            let ours = listed(column).into_iter().filter(|symbol| split(symbol).1 <= up_to);
            assert_eq!(ours.collect::<BTreeSet<_>>(), theirs, "{name}");
        }
    }
}

/// Programs ask the loader for version nodes by name: each must exist, including the empty ones.
#[test]
fn all_nodes_are_there() {
    for (name, first, last) in [("liburing", 0, 15), ("liburing-ffi", 4, 16)] {
        let library = libraries().join(format!("{name}.so.2"));
        let said = run(Command::new("readelf").args(["-V", "-W"]).arg(&library));
        for node in first..=last {
            assert!(
                said.contains(&format!("Name: LIBURING_2.{node}\n")),
                "{name} has no LIBURING_2.{node}\n{said}"
            );
        }
        let said = run(Command::new("readelf").args(["-d", "-W"]).arg(&library));
        assert!(said.contains(&format!("Library soname: [{name}.so.2]")), "{said}");
    }
}

/// Returns the sizes and offsets of a header's structures, which a C program prints.
fn layout_in_c(header: Header, lines: &[(String, String)]) -> BTreeMap<String, usize> {
    let mut source =
        String::from("#define _GNU_SOURCE\n#include <liburing.h>\n#include <stddef.h>\n#include <stdio.h>\n");
    source.push_str("int main(void) {\n");
    for (name, expression) in lines {
        writeln!(source, "printf(\"{name}\\t%zu\\n\", (size_t)({expression}));").unwrap();
    }
    source.push_str("return 0;\n}\n");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = format!("layout-{header:?}-{}", std::process::id());
    let (file, program) = (directory.join(format!("{name}.c")), directory.join(name));
    fs::write(&file, source).unwrap();
    run(Command::new("cc").arg(&file).arg("-o").arg(&program).args(header.options()));
    let said = run(&mut Command::new(&program));
    [file, program].iter().for_each(|path| fs::remove_file(path).unwrap());
    let pairs = said.lines().filter_map(|line| line.split_once('\t'));
    pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

macro_rules! collect {
    ($($type:ident $c_name:literal { $($field:ident),* })*) => {{
        let mut all: Vec<(&str, &str, usize)> = vec![];
        $(
            all.push(($c_name, "", size_of::<types::$type>()));
            $(all.push(($c_name, stringify!($field), std::mem::offset_of!(types::$type, $field)));)*
        )*
        all
    }};
}

#[test]
fn structures_are_laid_out_as_in_the_header() {
    let ours = layouts!(collect);
    // Structures and fields that older headers do not have.
    let there = |header: Header, of: &str, field: &str| match header {
        Header::System | Header::Newest => !of.ends_with("cqe_iter") && !matches!(field, "sqes_sz" | "pad"),
        Header::Newer => true,
    };
    for header in headers() {
        let asked: Vec<&(&str, &str, usize)> =
            ours.iter().filter(|(of, field, _)| there(header, of, field)).collect();
        let name = |of: &str, field: &str| format!("{of}.{field}");
        let lines: Vec<(String, String)> = asked
            .iter()
            .map(|(of, field, _)| {
                let expression = if field.is_empty() {
                    format!("sizeof({of})")
                } else {
                    format!("offsetof({of}, {field})")
                };
                (name(of, field), expression)
            })
            .collect();
        let theirs = layout_in_c(header, &lines);
        let ours = asked.iter().map(|(of, field, value)| (name(of, field), *value));
        assert_eq!(ours.collect::<BTreeMap<_, _>>(), theirs, "{header:?}");
    }
}

fn headers() -> impl Iterator<Item = Header> {
    [Header::System, Header::Newest].into_iter().chain(newer_source().map(|_| Header::Newer))
}

/// Returns the symbols that a C program reports as compared.
fn compared(name: &str, header: Header, by: By) -> BTreeSet<String> {
    let program = program(name, header);
    let ffi = libraries().join("liburing-ffi.so.2");
    let said = said(&program, &[ffi.to_str().unwrap()], by);
    said.lines().filter_map(|line| line.strip_prefix("symbol ")).map(String::from).collect()
}

#[test]
fn symbols_do_what_inline_functions_do() {
    let mut seen = BTreeSet::new();
    for header in headers().filter(|&header| header != Header::System) {
        seen.extend(compared("prepare", header, By::Kernel));
        for by in [By::Denied, By::Kernel] {
            if by == By::Denied || support::kernel_has_io_uring() {
                seen.extend(compared("helpers", header, by));
            }
        }
    }
    // The symbols that only the second library has; symbols newer than 2.15 need a newer header.
    let up_to = if newer_source().is_some() { u32::MAX } else { 15 };
    let only: BTreeSet<String> = listed(2).difference(&listed(1)).cloned().collect();
    let base: BTreeSet<String> = listed(1).iter().map(|symbol| split(symbol).0.to_owned()).collect();
    for symbol in only {
        let (name, node) = split(&symbol);
        assert!(base.contains(name) || seen.contains(name) || node > up_to, "{name} is not compared");
    }
}

#[test]
fn the_page_is_current() {
    let page = run(Command::new(root().join("scripts/liburing-page")).arg("--table"));
    let there = fs::read_to_string(root().join("docs/liburing.md")).unwrap();
    let table = there.split_once("<!-- table -->\n").map(|(_, table)| table);
    assert!(table == Some(page.as_str()), "write it anew: scripts/liburing-page");
}
