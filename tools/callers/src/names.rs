//! Names for the addresses of a file: functions and lines by its debug information, else symbols.
//!
//! All needed data is copied: another program may change or truncate the file at any time.

use std::path::Path;
use std::rc::Rc;

use addr2line::Context;
use gimli::{self, EndianRcSlice, RunTimeEndian};
use object::{Object, ObjectSection, ObjectSymbol};

use crate::file::content;

pub struct Names {
    context: Option<Context<EndianRcSlice<RunTimeEndian>>>,
    /// Symbols, sorted by address.
    symbols: Vec<Symbol>,
}

struct Symbol {
    address: u64,
    size: u64,
    name: String,
}

impl Names {
    /// Reads the names of a file; returns `None` if it is not a file with code.
    pub fn of(path: &Path) -> Option<Names> {
        let content = content(path)?;
        let object = object::File::parse(&content).ok()?;
        let mut symbols = symbols(object.symbols());
        if symbols.is_empty() {
            symbols = self::symbols(object.dynamic_symbols());
        }
        Some(Names { context: context(&object), symbols })
    }

    /// Returns the names at an address of the file, which is shown as `name`: the innermost function first.
    pub fn at(&self, address: u64, name: &str) -> Vec<String> {
        let names = self.functions(address, name);
        if !names.is_empty() {
            return names;
        }
        vec![match self.symbol(address) {
            Some(symbol) => {
                let function = addr2line::demangle_auto(symbol.name.as_str().into(), None);
                format!("{function}+{:#x} ({name})", address - symbol.address)
            }
            None => unnamed(address, name),
        }]
    }

    fn functions(&self, address: u64, name: &str) -> Vec<String> {
        let mut names = Vec::new();
        let Some(context) = &self.context else { return names };
        // Debug information in separate files, which this one names, is not read.
        let Ok(mut frames) = context.find_frames(address).skip_all_loads() else { return names };
        while let Ok(Some(frame)) = frames.next() {
            let Some(function) = &frame.function else { continue };
            let Ok(function) = function.demangle() else { continue };
            let location = frame.location.as_ref().and_then(|at| Some((at.file?, at.line?)));
            names.push(match location {
                Some((file, line)) => format!("{function} ({}:{line})", last(file)),
                None => format!("{function} ({name})"),
            });
        }
        names
    }

    fn symbol(&self, address: u64) -> Option<&Symbol> {
        let behind = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = &self.symbols[behind.checked_sub(1)?];
        (symbol.size == 0 || address - symbol.address < symbol.size).then_some(symbol)
    }
}

/// Returns the text for an address without a name.
pub fn unnamed(address: u64, name: &str) -> String {
    format!("{address:#x} ({name})")
}

fn symbols<'o>(all: impl Iterator<Item = impl ObjectSymbol<'o>>) -> Vec<Symbol> {
    let named = all.filter(|symbol| symbol.is_definition() && symbol.address() != 0).filter_map(|symbol| {
        let name = symbol.name().ok().filter(|name| !name.is_empty())?.to_owned();
        Some(Symbol { address: symbol.address(), size: symbol.size(), name })
    });
    let mut symbols: Vec<Symbol> = named.collect();
    symbols.sort_by_key(|symbol| symbol.address);
    symbols
}

fn context<'o>(object: &impl Object<'o>) -> Option<Context<EndianRcSlice<RunTimeEndian>>> {
    let endian = if object.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let load = |id: gimli::SectionId| {
        let section = object.section_by_name(id.name());
        let data = section.and_then(|section| section.uncompressed_data().ok()).unwrap_or_default();
        Ok::<_, gimli::Error>(EndianRcSlice::new(Rc::from(&*data), endian))
    };
    Context::from_dwarf(gimli::Dwarf::load(load).ok()?).ok()
}

/// Returns a path without its directories.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
