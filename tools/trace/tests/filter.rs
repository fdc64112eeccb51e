//! Events that `-e` lets through.

mod common;

use anyring_tracer::filter::Filter;
use common::*;

/// Requests 1 to 6: a slow read of a database, a write to it that fails, an open of it, a chain of a read and a write of
/// another file, and on another ring a read that never ends.
fn stream() -> Stream {
    let mut stream = Stream::default();
    stream.started("/bin/server", &["server"], 0);
    stream.ring();
    stream.named(4, "/var/data.db");
    stream.named(5, "/etc/hosts");
    let sqe = |opcode, fd| Sqe { opcode, fd, ..Sqe::EMPTY };
    let slow = stream.submitted(sqe(READ, 4), &[]);
    stream.time_ns += 2_000_000;
    stream.completed(slow, 1);
    let failed = stream.submitted(sqe(WRITE, 4), &[]);
    stream.completed(failed, -28);
    let open = Sqe { addr: 0x1000, ..sqe(OPENAT, -100) };
    let open = stream.submitted(open, &[attached(Content::Path, 0x1000, b"/var/data.db")]);
    stream.completed(open, 4);
    let first = stream.submitted(Sqe { flags: 4, ..sqe(READ, 5) }, &[]);
    let second = stream.linked(first, sqe(WRITE, 5), &[]);
    stream.completed(first, 3);
    stream.completed(second, 3);
    stream.put(Kind::Registered, &Registered { opcode: 9, result: -1, ..Registered::default() }, &[]);
    stream.entered(Entered { result: 5, ..Entered::default() });
    stream.ring = 9;
    stream.submitted(sqe(READ, -1), &[]);
    stream
}

/// Returns the numbers of the requests that are shown, and letters for calls.
fn shown(expressions: &[&str]) -> String {
    let filter = Filter::parse(expressions).unwrap_or_else(|error| panic!("{error}"));
    let text = stream().shown(Settings { filter, enters: true, ..Settings::default() }, Session::text);
    let one = |line: &str| {
        let serial = line.split_once('#').and_then(|(_, rest)| rest.chars().next());
        let calls = [("started", 'p'), ("gone", 'g'), ("setup", 's'), ("register", 'r'), ("enter", 'e')];
        let call = calls.iter().find(|(word, _)| line.contains(word)).map(|(_, letter)| *letter);
        serial.or(call).unwrap_or_else(|| panic!("{line}"))
    };
    text.lines().map(one).collect()
}

#[test]
fn nothing_is_left_out_without_one() {
    assert_eq!(shown(&[]), "ps12345re6g");
}

#[test]
fn operations() {
    assert_eq!(shown(&["read"]), "146");
    assert_eq!(shown(&["op=read"]), "146");
    assert_eq!(shown(&["READ,openat"]), "1346");
    assert_eq!(shown(&["write"]), "25");
    assert_eq!(shown(&["setup,register,enter,process"]), "psreg");
}

#[test]
fn the_other_way_around() {
    assert_eq!(shown(&["!read"]), "ps235reg");
    assert_eq!(shown(&["op=!read"]), "ps235reg");
    assert_eq!(shown(&["!op=!read"]), "146");
    assert_eq!(shown(&["!errors"]), "ps1345e6g");
}

#[test]
fn files_by_descriptor_and_by_path() {
    assert_eq!(shown(&["file=*.db"]), "123");
    assert_eq!(shown(&["file=/etc/*"]), "45");
    assert_eq!(shown(&["file=/etc/*,*.db"]), "12345");
    assert_eq!(shown(&["file=!*.db", "read"]), "46");
}

#[test]
fn results_times_and_rings() {
    assert_eq!(shown(&["errors"]), "2r");
    // A request that never ends is slow.
    assert_eq!(shown(&["slow>1ms"]), "16");
    assert_eq!(shown(&["slow>3ms"]), "6");
    assert_eq!(shown(&["slow<1ms", "read"]), "4");
    assert_eq!(shown(&["ring=9"]), "6");
    assert_eq!(shown(&["!ring=9", "read"]), "14");
    assert_eq!(shown(&["ring=3,9", "read"]), "146");
}

#[test]
fn all_must_hold() {
    assert_eq!(shown(&["write", "errors"]), "2");
    assert_eq!(shown(&["read", "errors"]), "");
}

#[test]
fn a_chain_stays_a_tree() {
    let filter = Filter::parse(&["file=/etc/*", "write"]).unwrap();
    let text = stream().shown(Settings { filter, ..Settings::default() }, Session::text);
    assert!(text.contains("└─ WRITE(5</etc/hosts>"), "{text}");
}

#[test]
fn what_is_unknown_is_said_with_what_is_known() {
    for (expression, word) in [
        ("reed", "\"reed\""),
        ("op=", "\"\""),
        ("fail=x", "\"fail\""),
        ("slow>1", "slow>1ms"),
        ("slow=1ms", "\"slow\""),
        ("ring=x", "ring=x"),
        ("file=[", "file=["),
    ] {
        let error = Filter::parse(&[expression]).expect_err(expression).to_string();
        assert!(error.contains(word), "{expression}: {error}");
    }
    let error = Filter::parse(&["reed"]).unwrap_err().to_string();
    assert!(error.contains("readv") && error.contains("slow>TIME") && error.contains("setup"), "{error}");
}
