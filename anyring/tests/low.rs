//! The layer below, on both engines.

mod common;

use anyring::Builder;
use anyring::low::{Cqe32, Ring, Sqe128, op};
use common::both;

#[test]
fn nops_come_back_in_order() {
    both(|engine| {
        let mut ring: Ring = Builder::new(4).engine(engine).build_low().unwrap();
        assert_eq!(ring.engine(), engine);
        for round in 0..3 {
            for number in 0..4 {
                // SAFETY: names no memory.
                unsafe { ring.push(op::Nop::new().build().user_data(round * 4 + number)) }.unwrap();
            }
            // SAFETY: names no memory.
            unsafe { ring.push(op::Nop::new().build()) }.unwrap_err();
            assert_eq!(ring.submit_and_wait(4).unwrap(), 4);
            let seen: Vec<_> = ring.completion().map(|cqe| (cqe.user_data(), cqe.result())).collect();
            assert_eq!(seen, (0..4).map(|number| (round * 4 + number, 0)).collect::<Vec<_>>());
        }
    });
}

#[test]
fn entries_may_be_large() {
    both(|engine| {
        let mut ring: Ring<Sqe128, Cqe32> = Builder::new(2).engine(engine).build_low().unwrap();
        for number in 0..5 {
            // SAFETY: names no memory.
            unsafe { ring.push(op::Nop::new().build().user_data(number)) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            assert_eq!(ring.completion().next().unwrap().entry.user_data(), number);
        }
    });
}
