//! Statistics of a process's use of io_uring, written when the process ends (`ANYRING_STATS`).

use crate::config::{self, Stats};
use crate::{calls, log, process};
use alloc::string::String;
use anyring_engine::frontend::{self, Counters, Counts};
use anyring_engine::{ops, support};
use core::fmt::Write;
use core::sync::atomic::Ordering;

/// The advice for a program that could have made rings, but made none.
const ADVICE: &str = "no ring was made: either the program does not use io_uring, or it asks for it only when told to \
    (Node: UV_USE_IO_URING=1; fio: --ioengine=io_uring; PostgreSQL: io_method=io_uring)";

/// Writes the statistics of this process, which has made rings or is the one that `anyring run` became.
pub fn write(format: Stats) {
    let counters = frontend::counters();
    let counts = frontend::operation_counts();
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = match format {
        Stats::Text => write_text(&mut text, &counters, counts),
        Stats::Json => write_json(&mut text, &counters, counts),
    };
    log::write_text(&text);
}

fn write_text(text: &mut String, counters: &Counters, counts: Option<&Counts>) -> core::fmt::Result {
    let (id, program) = (process::own_id(), log::program());
    if !process::active() {
        return writeln!(
            text,
            "anyring[{id}]: {program}: engine=kernel, which counts nothing (--engine user does, and anyring trace)"
        );
    }
    writeln!(
        text,
        "anyring[{id}]: {program}: engine={} rings={} submitted={} completed={} enters={} traps={} patched_sites={}",
        process::engine_name(),
        counters.rings,
        counters.submitted,
        counters.completed,
        counts.map_or(0, Counts::enters),
        calls::TRAPS.load(Ordering::Relaxed),
        calls::PATCHED_SITES.load(Ordering::Relaxed),
    )?;
    for counted in counts.iter().flat_map(|counts| counts.operations()) {
        let name = ops::lookup(counted.code).name;
        write!(text, "anyring[{id}]:   {name} {}", counted.requests)?;
        if counted.errors > 0 {
            write!(text, ", {} failed", counted.errors)?;
        }
        if counted.refused > 0 {
            write!(text, ", {} of them as invalid or not supported", counted.refused)?;
        }
        text.push('\n');
    }
    for name in counts.into_iter().flat_map(refused) {
        writeln!(
            text,
            "anyring[{id}]:   {name} was asked for in a call that was refused as invalid or not supported"
        )?;
    }
    if counters.rings == 0 {
        writeln!(text, "anyring[{id}]:   {ADVICE}")?;
    }
    Ok(())
}

fn write_json(text: &mut String, counters: &Counters, counts: Option<&Counts>) -> core::fmt::Result {
    let engine = process::engine_name();
    write!(text, "{{\"process\":{},\"program\":", process::own_id())?;
    log::write_string(text, log::program())?;
    write!(
        text,
        ",\"engine\":\"{engine}\",\"rings\":{},\"submitted\":{},\"completed\":{},\"enters\":{},\"traps\":{},\"patched_sites\":{}",
        counters.rings,
        counters.submitted,
        counters.completed,
        counts.map_or(0, Counts::enters),
        calls::TRAPS.load(Ordering::Relaxed),
        calls::PATCHED_SITES.load(Ordering::Relaxed),
    )?;
    text.push_str(",\"operations\":[");
    for (place, counted) in counts.iter().flat_map(|counts| counts.operations()).enumerate() {
        let name = ops::lookup(counted.code).name;
        let comma = if place > 0 { "," } else { "" };
        write!(
            text,
            "{comma}{{\"name\":\"{name}\",\"requests\":{},\"errors\":{},\"refused\":{}}}",
            counted.requests, counted.errors, counted.refused
        )?;
    }
    text.push_str("],\"refused\":[");
    for (place, name) in counts.into_iter().flat_map(refused).enumerate() {
        write!(text, "{}\"{name}\"", if place > 0 { "," } else { "" })?;
    }
    text.push_str("]}\n");
    Ok(())
}

/// Returns the names of setup flags and registrations in calls that were refused as invalid or not supported.
fn refused(counts: &Counts) -> impl Iterator<Item = &'static str> + use<'_> {
    let asked = counts.refused_setup();
    let flags = support::SETUP_FLAGS.names.iter().filter(move |named| asked & named.0 != 0);
    let registrations = counts.refused_registrations();
    let registrations =
        registrations.map(|opcode| support::REGISTRATIONS.of(opcode).unwrap_or("an unknown registration"));
    flags.map(|named| named.1).chain(registrations)
}

/// Returns the format of the statistics if they are to be written when the process ends.
pub fn wanted() -> Option<Stats> {
    config::stats().filter(|_| calls::rings_exist() || process::is_first())
}
