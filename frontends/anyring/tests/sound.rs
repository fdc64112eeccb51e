//! What safe code does to the safe ring breaks no memory and touches no file of others, on both engines.

mod common;

use anyring::{BufferExt, BufferMut, op};
use common::{both, ring};

#[test]
fn a_read_into_a_cloned_part_stays_within_the_clone() {
    both(|engine| {
        let mut ring = ring(engine);
        let mut whole = Vec::with_capacity(4096);
        whole.extend_from_slice(b"0123456789");
        let clone = whole.spare().clone();
        let room = clone.get().capacity() - clone.get().len();
        assert_eq!(clone.capacity(), room, "checked before anything is written");
        let file = ring.run(op::open("/dev/zero")).unwrap().unwrap();
        let (count, clone) = ring.run(op::read(&file, clone)).unwrap();
        assert_eq!(count.unwrap(), room);
        assert_eq!(clone.into_inner().len(), 10 + room);
    });
}
