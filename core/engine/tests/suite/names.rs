//! The names of flags and values: each value has one, and everything that the engine knows is named.

use std::collections::BTreeSet;

use anyring_engine::abi::names::{self, Names, TABLES};
use anyring_engine::abi::{self, KNOWN_SQE_FLAGS};
use anyring_engine::support;

fn tables() -> impl Iterator<Item = &'static Names> {
    let judging = [support::SETUP_FLAGS, support::ENTER_FLAGS, support::FEATURES, support::REGISTRATIONS];
    TABLES.iter().copied().chain(judging)
}

#[test]
fn no_value_stands_twice() {
    for table in tables() {
        let values: BTreeSet<u32> = table.names.iter().map(|named| named.0).collect();
        let called: BTreeSet<&str> = table.names.iter().map(|named| named.1).collect();
        assert_eq!(values.len(), table.names.len(), "a value twice in {table:?}");
        assert_eq!(called.len(), table.names.len(), "a name twice in {table:?}");
        assert!(!table.names.is_empty() && !called.contains(""), "a name is missing in {table:?}");
        assert!(called.iter().any(|name| name.starts_with(table.prefix)), "no name begins so in {table:?}");
    }
}

/// Among flags, one of several bits would never be seen behind those of its bits.
#[test]
fn several_bits_stand_before_one() {
    let flags: [&Names; 7] = [
        names::OPEN_FLAGS,
        names::STATX_MASK,
        names::SYNC_FILE_RANGE_FLAGS,
        names::MSG_FLAGS,
        names::POLL_EVENTS,
        names::WAIT_OPTIONS,
        names::TIMEOUT_FLAGS,
    ];
    for table in flags {
        for (index, (bits, name)) in table.names.iter().enumerate() {
            for (part, earlier) in &table.names[..index] {
                assert!(bits & part != *part, "{name} stands behind {earlier}, which is a part of it");
            }
        }
    }
}

/// The bits that a table names.
fn named(table: &Names) -> u32 {
    table.names.iter().fold(0, |all, named| all | named.0)
}

/// All that Linux 7.2 has: from the first bit to the last.
#[test]
fn every_flag_has_a_name() {
    assert_eq!(named(names::SQE_FLAGS), KNOWN_SQE_FLAGS.into());
    assert_eq!(named(names::CQE_FLAGS), 0x803f);
    assert_eq!(named(support::SETUP_FLAGS), 2 * abi::IORING_SETUP_SQ_REWIND - 1);
    assert_eq!(named(support::ENTER_FLAGS), 0xff);
    assert_eq!(named(support::FEATURES), 0x3_ffff);
    for (code, (value, name)) in support::REGISTRATIONS.names.iter().enumerate() {
        assert_eq!(*value, code as u32, "{name}");
    }
}

#[test]
fn names_are_those_of_the_headers() {
    assert_eq!(names::MSG_FLAGS.of(libc::MSG_DONTWAIT as u32), Some("MSG_DONTWAIT"));
    assert_eq!(names::CQE_FLAGS.of(1 << 1), Some("IORING_CQE_F_MORE"));
    assert_eq!(support::SETUP_FLAGS.of(1 << 13), Some("IORING_SETUP_DEFER_TASKRUN"));
    assert_eq!(support::FEATURES.of(1 << 16), Some("IORING_FEAT_RW_ATTR"));
    assert_eq!(support::REGISTRATIONS.of(22), Some("IORING_REGISTER_PBUF_RING"));
    assert_eq!(support::REGISTRATIONS.of(99), None);
}
