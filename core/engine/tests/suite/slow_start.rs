//! A thread that takes long to start takes no time away from what was submitted.

use crate::common::prelude::*;
use anyring_engine::Host;

/// Provides threads, each after a while.
struct Slow;

impl Host for Slow {
    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32> {
        std::thread::sleep(Duration::from_millis(900));
        SEEING.spawn(name, entry, argument)
    }

    as_seeing!(but spawn);
}

#[by(ours(4, 0))]
fn a_timeout_can_be_changed_after_its_submission(mut ring: Ring) {
    static SLOW: &dyn Host = &Slow;
    anyring_engine::install(&SLOW);
    let time = [0i64, 800_000_000];
    let (address, len) = (time.as_ptr() as u64, 1);
    ring.submit(&[Sqe { addr: address, len, ..sqe(IORING_OP_TIMEOUT, 1) }]);
    // The time that the thread took is not the timeout's.
    let update = IORING_TIMEOUT_UPDATE;
    ring.submit_and_wait(
        &[Sqe { addr: 1, off: address, op_flags: update, ..sqe(IORING_OP_TIMEOUT_REMOVE, 2) }],
        1,
    );
    let cqes = ring.collect(2);
    let results: Vec<_> = cqes.iter().map(|cqe| (cqe.user_data, cqe.res)).collect();
    assert_eq!(results, [(2, 0), (1, -libc::ETIME)]);
}
