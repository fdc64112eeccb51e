//! `IORING_REGISTER_PROBE`: which operations there are, read off the op table.

use linux_raw_sys::io_uring::IO_URING_OP_SUPPORTED;

use crate::errno::Errno;
use crate::ops::{self, Caps};
use crate::user;

const HEADER: usize = 16;
const ROW: usize = 8;

/// Fills the program's `struct io_uring_probe` with up to `rows` rows.
///
/// # Errors
/// `EINVAL` where it is not zeroed, as the kernel demands.
pub fn probe(address: u64, rows: u32) -> Result<usize, Errno> {
    let rows = (rows as usize).min(ops::COUNT);
    let given = user::read_many::<u8>(address, HEADER + rows * ROW)?;
    if given.iter().any(|&byte| byte != 0) {
        return Err(Errno::EINVAL);
    }
    let mut reply = given;
    reply[0] = ops::COUNT as u8 - 1;
    reply[1] = rows as u8;
    for (code, op) in ops::TABLE.iter().enumerate().take(rows) {
        let row = &mut reply[HEADER + code * ROW..][..ROW];
        row[0] = code as u8;
        let present = op.caps.has(Caps::PRESENT) && (op.available)();
        let supported = if present { IO_URING_OP_SUPPORTED } else { 0 };
        row[2..4].copy_from_slice(&(supported as u16).to_ne_bytes());
    }
    user::write_bytes(address, &reply)?;
    Ok(0)
}
