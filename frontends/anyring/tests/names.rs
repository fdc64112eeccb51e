//! `op::names` on buffers with any content.

use anyring::op::names;
use proptest::prelude::*;

/// Makes a record as `getdents64(2)` writes it.
fn record(inode: u64, next: u64, kind: u8, name: &[u8]) -> Vec<u8> {
    let length = (19 + name.len() + 1).next_multiple_of(8);
    let mut record = Vec::new();
    record.extend(inode.to_ne_bytes());
    record.extend(next.to_ne_bytes());
    record.extend((length as u16).to_ne_bytes());
    record.push(kind);
    record.extend(name);
    record.resize(length, 0);
    record
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1_u8.., 1..256)
}

proptest! {
    /// Nothing outside the buffer is returned, and the iteration ends.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut count = 0;
        for one in names(&bytes) {
            let (whole, name) = (bytes.as_ptr_range(), one.name.as_encoded_bytes().as_ptr_range());
            prop_assert!(whole.start <= name.start && name.end <= whole.end);
            prop_assert!(!one.name.as_encoded_bytes().contains(&0));
            count += 1;
        }
        prop_assert!(count <= bytes.len() / 19);
    }

    /// Valid records are returned unchanged; truncated or broken records after them do not affect them.
    #[test]
    fn records(
        all in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u8>(), name()), 0..8),
        behind in prop::collection::vec(any::<u8>(), 0..19),
        (at, value) in (any::<prop::sample::Index>(), any::<u8>()),
    ) {
        let mut bytes: Vec<u8> = all.iter().flat_map(|(inode, next, kind, name)| record(*inode, *next, *kind, name)).collect();
        bytes.extend(behind);
        let shown: Vec<_> =
            names(&bytes).map(|one| (one.inode, one.next, one.kind, one.name.as_encoded_bytes().to_vec())).collect();
        prop_assert_eq!(shown, all);
        if !bytes.is_empty() {
            let place = at.index(bytes.len());
            bytes[place] = value;
            prop_assert!(names(&bytes).count() <= bytes.len() / 19);
        }
    }
}
