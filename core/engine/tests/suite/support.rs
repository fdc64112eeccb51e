//! The page that says what is supported is that of the tables.

#[test]
fn the_page_is_current() {
    let page = include_str!("../../../../docs/support.md");
    assert!(page == anyring_engine::support::page(), "write it anew: anyring support > docs/support.md");
}

/// C programs find the number of a private operation in the header, and its description on the page.
#[test]
fn private_operations_are_described() {
    let header = include_str!("../../../../frontends/liburing/include/anyring.h");
    let page = include_str!("../../../../docs/private-operations.md");
    for op in anyring_engine::ops::ROWS.iter().filter(|op| op.is_private()) {
        let (number, heading) =
            (format!("ANYRING_OP_{} = {}", op.name, op.code), format!("\n## {} ({})\n", op.name, op.code));
        assert!(header.contains(&number), "frontends/liburing/include/anyring.h lacks `{number}`");
        assert!(page.contains(&heading), "docs/private-operations.md lacks the section {heading:?}");
    }
}

/// Requests that look for others, or count completions, are for no ring but the one that they are submitted to.
#[test]
fn some_operations_need_their_ring() {
    use anyring_engine::abi::Sqe;
    use linux_raw_sys::io_uring::io_uring_op::*;
    let needs = |opcode: linux_raw_sys::io_uring::io_uring_op, off| {
        let sqe = Sqe { opcode: opcode as u8, off, ..Sqe::default() };
        anyring_engine::ops::lookup(sqe.opcode).needs_its_ring(&sqe)
    };
    for opcode in [IORING_OP_ASYNC_CANCEL, IORING_OP_POLL_REMOVE, IORING_OP_TIMEOUT_REMOVE] {
        assert!(needs(opcode, 0) && needs(opcode, 1), "{opcode:?}");
    }
    // A time is the same everywhere.
    assert!(!needs(IORING_OP_TIMEOUT, 0) && needs(IORING_OP_TIMEOUT, 1));
    for opcode in [IORING_OP_NOP, IORING_OP_READ, IORING_OP_STATX] {
        assert!(!needs(opcode, 0) && !needs(opcode, 1), "{opcode:?}");
    }
}
