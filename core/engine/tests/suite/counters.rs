//! The process's counters: they count the rings of all its threads.

use crate::common::prelude::*;

#[by(ours(4, 0))]
fn each_request_counts_once(mut ring: Ring) {
    let entries = ring.params.cq_entries as u64;
    // Twice as many as the CQ holds: the second half is kept, and moves into the CQ later.
    for number in 0..2 * entries {
        ring.submit(&[sqe(IORING_OP_NOP, number)]);
    }
    assert!(ring.overflowed());
    let mut seen = 0;
    while seen < 2 * entries {
        seen += ring.reap_all().len() as u64;
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    }

    let mut polled = Ring::new(Engine::User, 4, IORING_SETUP_SQPOLL);
    polled.push(sqe(IORING_OP_NOP, 1));
    polled.enter_with(1, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP);
    assert_eq!(polled.reap_all().len(), 1);

    let expected = frontend::Counters { rings: 2, submitted: 2 * entries + 1, completed: 2 * entries + 1 };
    // The SQ thread counts after it has posted.
    let deadline = Instant::now() + PATIENCE;
    while frontend::counters() != expected && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(frontend::counters(), expected);
}
