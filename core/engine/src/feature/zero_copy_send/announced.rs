//! Notifications without a request.

use linux_raw_sys::io_uring::{IORING_NOTIF_USAGE_ZC_COPIED, IORING_SEND_ZC_REPORT_USAGE};

use crate::abi::Sqe;
use crate::assets::table::NodeIndex;

/// The notification of a send without a request.
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    /// The send's user data.
    pub user_data: u64,
    /// The result of the notification.
    pub result: i32,
    /// The registered buffer that is held until the notification.
    pub buffer: Option<NodeIndex>,
}

impl Announced {
    /// Makes the notification of this send, which reports a copy until the pages' notice says otherwise.
    #[inline(always)]
    pub fn of(sqe: &Sqe, buffer: Option<NodeIndex>) -> Announced {
        Announced { user_data: sqe.user_data, result: usage(sqe.ioprio), buffer }
    }
}

/// Returns the user data of a send's notification.
pub fn user_data(sqe: &Sqe) -> u64 {
    if sqe.addr3 != 0 { sqe.addr3 } else { sqe.user_data }
}

/// Returns the result of the notification of a send whose data was copied.
pub fn usage(ioprio: u16) -> i32 {
    let reports = u32::from(ioprio) & IORING_SEND_ZC_REPORT_USAGE != 0;
    if reports { IORING_NOTIF_USAGE_ZC_COPIED as i32 } else { 0 }
}
