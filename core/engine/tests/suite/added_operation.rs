//! The parts of an added operation: a file of its own, a row in the table, and tests. Here the operation is one that
//! nobody needs, and the table is the engine's with one row more.

use crate::common::prelude::*;
use anyring_engine::ops;

use anyring_engine::ring::row::{Row, Steps, Table};

/// The file of the operation. In the engine it would be `src/ops/sum.rs`.
mod sum {
    use anyring_engine::abi::Errno;
    use anyring_engine::ops;
    use anyring_engine::os::user;
    use anyring_engine::request::field::Unused;
    use anyring_engine::request::field::{FIRST_PRIVATE, Field};
    use anyring_engine::request::op::Caps;
    use anyring_engine::request::shown::{Kind, arg};
    use anyring_engine::ring::row::{Row, issue_blocks, prep_nothing};
    use anyring_engine::work::Work;

    /// The number behind that of the last private operation.
    pub const CODE: u8 = FIRST_PRIVATE + (ops::TOTAL - ops::COUNT) as u8;

    pub const SUM: Row = Row::numbered(CODE, "SUM", Caps::NONE, prep_nothing, issue_blocks)
        .block(sum)
        .arguments(&[
            arg(Field::Address, "buf", Kind::Data(Field::Length)),
            arg(Field::Length, "len", Kind::Number),
        ])
        .unused(Unused::FD.with(Unused::OFF).with(Unused::OP_FLAGS).with(Unused::FILE_INDEX))
        .errors(&[Errno::EINVAL, Errno::EFAULT]);

    /// The sum of `len` bytes at `addr`.
    fn sum(work: &mut Work) -> Result<usize, Errno> {
        let bytes = user::read_many::<u8>(work.sqe.addr, work.sqe.len as usize)?;
        Ok(bytes.into_iter().map(usize::from).sum())
    }
}

static ROWS: [Row; ops::TOTAL + 1] = {
    let mut rows = [sum::SUM; ops::TOTAL + 1];
    let mut row = 0;
    while row < ops::TOTAL {
        rows[row] = ops::ROWS[row];
        row += 1;
    }
    rows
};

static STEPS: Steps = Steps::of(&ROWS);
static TABLE: Table = Table::new(&STEPS);

fn ring() -> Ring {
    // Which installs the front end of the tests.
    drop(Ring::new(Engine::User, 1, 0));
    let mut params: io_uring_params = zeroed();
    // SAFETY: passes a structure of ours.
    let fd =
        unsafe { anyring_engine::setup_with(&TABLE, 8, &mut params, &anyring_engine::Caller::default()) };
    assert!(fd >= 0, "a ring: {fd}");
    Ring::of(Engine::User, fd as i32, params)
}

fn sum_of(bytes: &[u8]) -> Sqe {
    Sqe { opcode: sum::CODE, addr: bytes.as_ptr() as u64, len: bytes.len() as u32, ..Sqe::default() }
}

fn result(ring: &mut Ring, sqe: Sqe) -> i32 {
    let [cqe] = ring.run(&[sqe])[..] else { panic!("one completion") };
    assert_eq!(cqe.user_data, sqe.user_data);
    cqe.res
}

#[test]
fn is_done() {
    let mut ring = ring();
    assert_eq!(result(&mut ring, sum_of(&[1, 2, 3])), 6);
    assert_eq!(result(&mut ring, Sqe { user_data: 7, ..sum_of(&[255; 300]) }), 255 * 300);
}

#[test]
fn is_refused_by_its_row_and_by_itself() {
    let mut ring = ring();
    for sqe in [
        Sqe { fd: 1, ..sum_of(&[1]) },
        Sqe { off: 1 << 63, ..sum_of(&[1]) },
        Sqe { op_flags: 1, ..sum_of(&[1]) },
        Sqe { file_index: 1, ..sum_of(&[1]) },
        Sqe { ioprio: 1, ..sum_of(&[1]) },
    ] {
        assert_eq!(result(&mut ring, sqe), -libc::EINVAL, "{sqe:?}");
    }
    // What the row does not name is ignored.
    assert_eq!(result(&mut ring, Sqe { addr3: 1, buf_index: 1, ..sum_of(&[1]) }), 1);
    assert_eq!(result(&mut ring, Sqe { addr: 8, ..sum_of(&[1]) }), -libc::EFAULT);
}

#[test]
fn goes_with_the_engines_own() {
    const LINK: u8 = 1 << 2;
    let mut ring = ring();
    let bytes = [4, 5];
    let nop = Sqe { opcode: IORING_OP_NOP as u8, ..Sqe::default() };
    let results = ring.run(&[
        Sqe { flags: LINK, user_data: 1, ..sum_of(&bytes) },
        Sqe { flags: LINK, user_data: 2, ..nop },
        Sqe { flags: LINK, user_data: 3, addr: 8, ..sum_of(&bytes) },
        Sqe { user_data: 4, ..sum_of(&bytes) },
    ]);
    let results: Vec<_> = results.iter().map(|cqe| (cqe.user_data, cqe.res)).collect();
    assert_eq!(results, [(1, 9), (2, 0), (3, -libc::EFAULT), (4, -libc::ECANCELED)]);
}

#[by(ours(8, 0))]
fn is_unknown_to_other_rings(mut ring: Ring) {
    assert_eq!(result(&mut ring, sum_of(&[1])), -libc::EINVAL);
}
