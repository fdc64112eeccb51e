//! `IORING_REGISTER_PROBE`: reports the operations of the op table.

use linux_raw_sys::io_uring::IO_URING_OP_SUPPORTED;

use crate::abi::Errno;
use crate::ops::{self};
use crate::os::user;
use crate::request::op::Caps;
use crate::request::version;

const HEADER: usize = 16;
const ROW: usize = 8;

/// The number of rows for which programs ask that know the kernel's operations only. They get only these operations: Netty reads `last_op`
/// as a signed byte, in which 192 is negative.
const ALL: u32 = 256;

/// Fills the program's `struct io_uring_probe` with up to `rows` rows.
///
/// The numbers of the private operations are far above the kernel's. A program gets them, with the last of them as `last_op`, only if it
/// does not ask for all 256 rows, and has zeroed room for every row up to theirs: a program that reads the rows up to `last_op` never
/// leaves its memory.
///
/// # Errors
/// `EINVAL` if the program's memory is not zeroed, as with the kernel.
pub fn probe(address: u64, rows: u32) -> Result<usize, Errno> {
    let has = usize::from(version::current().abi().operations);
    let known = (rows as usize).min(has);
    let mut reply = user::read_many::<u8>(address, HEADER + known * ROW)?;
    if reply.iter().any(|&byte| byte != 0) {
        return Err(Errno::EINVAL);
    }
    reply[0] = has as u8 - 1;
    reply[1] = known as u8;
    fill(&mut reply[HEADER..], 0);
    user::write_bytes(address, &reply)?;
    add_private(address, rows);
    Ok(0)
}

/// Adds the private operations to the answer of a probe that asked for `rows` rows.
pub fn add_private(address: u64, rows: u32) {
    let Ok(head) = user::read_many::<u8>(address, HEADER) else { return };
    let last = ops::ROWS[ops::TOTAL - 1].code;
    let first = usize::from(head[1]);
    let behind = address + (HEADER + first * ROW) as u64;
    if rows <= last.into() || rows == ALL || first > last.into() {
        return;
    }
    let Ok(mut more) = user::read_many::<u8>(behind, (usize::from(last) + 1 - first) * ROW) else { return };
    if more.iter().all(|&byte| byte == 0) {
        fill(&mut more, first as u8);
        // The rows first, then `last_op`. As a rule, memory that can be read can be written.
        if user::write_bytes(behind, &more).is_ok() {
            let _ = user::write_bytes(address, &[last, last + 1]);
        }
    }
}

/// Fills the rows of the operations from `code` on.
fn fill(rows: &mut [u8], code: u8) {
    for (row, code) in rows.chunks_exact_mut(ROW).zip(code..) {
        row[0] = code;
        let op = ops::lookup(code);
        let present = op.caps.has(Caps::PRESENT) && (op.available)();
        let supported = if present { IO_URING_OP_SUPPORTED } else { 0 };
        row[2..4].copy_from_slice(&(supported as u16).to_ne_bytes());
    }
}
