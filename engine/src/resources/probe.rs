//! `IORING_REGISTER_PROBE`: which operations there are, read off the op table.

use linux_raw_sys::io_uring::IO_URING_OP_SUPPORTED;

use crate::errno::Errno;
use crate::ops::{self, Caps};
use crate::user;

const HEADER: usize = 16;
const ROW: usize = 8;

/// Fills the program's `struct io_uring_probe` with up to `rows` rows.
///
/// The private operations stand far behind the kernel's. They are shown, and `last_op` is the last of
/// them, only to a program that has zeroed room for every row up to theirs: one that goes through the
/// rows up to `last_op` never leaves its memory.
///
/// # Errors
/// `EINVAL` where it is not zeroed, as the kernel demands.
pub fn probe(address: u64, rows: u32) -> Result<usize, Errno> {
    let known = (rows as usize).min(ops::COUNT);
    let mut reply = user::read_many::<u8>(address, HEADER + known * ROW)?;
    if reply.iter().any(|&byte| byte != 0) {
        return Err(Errno::EINVAL);
    }
    let last = &ops::TABLE[ops::TOTAL - 1];
    let all = usize::from(last.code) + 1;
    let behind = address + reply.len() as u64;
    let shown = if rows as usize >= all
        && let Ok(more) = user::read_many::<u8>(behind, (all - known) * ROW)
        && more.iter().all(|&byte| byte == 0)
    {
        reply.extend_from_slice(&more);
        all
    } else {
        known
    };
    reply[0] = if shown > known { last.code } else { ops::COUNT as u8 - 1 };
    reply[1] = shown as u8;
    for code in 0..shown as u8 {
        let row = &mut reply[HEADER + usize::from(code) * ROW..][..ROW];
        row[0] = code;
        let op = ops::lookup(code);
        let present = op.caps.has(Caps::PRESENT) && (op.available)();
        let supported = if present { IO_URING_OP_SUPPORTED } else { 0 };
        row[2..4].copy_from_slice(&(supported as u16).to_ne_bytes());
    }
    user::write_bytes(address, &reply)?;
    Ok(0)
}
