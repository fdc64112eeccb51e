//! Sending by a ring.

use std::time::Duration;

use linux_raw_sys::io_uring::{
    IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, IORING_NOTIF_USAGE_ZC_COPIED, IORING_RECVSEND_FIXED_BUF,
    IORING_SEND_ZC_REPORT_USAGE, IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_SINGLE_ISSUER, io_uring_op,
};

use super::{Args, BUFFERS, Buffers, Means, Notified};
use crate::failure::{Failure, Result};
use crate::workload::ring::{Completion, Ring};
use crate::workload::{Report, repeat_for};

struct Sender {
    ring: Ring,
    socket: i32,
    means: Means,
    buffers: Buffers,
    /// Sends whose result has not come.
    pending: usize,
    notified: Notified,
}

/// Sends so many per enter, each time waiting for their results; for notifications only where a buffer is wanted again.
pub fn send(socket: i32, buffers: Buffers, args: &Args, window: Duration) -> Result<Report> {
    let entries = BUFFERS as u32;
    let ring = Ring::new(entries, entries * 4, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN)?;
    if args.means == Means::RingZcFixed {
        ring.register_buffer(buffers.memory, buffers.stride * BUFFERS)?;
    }
    let engine = Some(ring.engine());
    let mut sender =
        Sender { ring, socket, means: args.means, buffers, pending: 0, notified: Notified::default() };
    let batch = (super::plain::BATCH / args.per_enter).max(1);
    let (measured, total_ops) = repeat_for(window, || {
        for _ in 0..batch {
            sender.batch(args.per_enter)?;
        }
        Ok((batch * args.per_enter) as u64)
    })?;
    Ok(Report { engine, total_ops, copied: sender.notified.share(), windows: vec![measured] })
}

impl Sender {
    fn batch(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            let index = loop {
                match self.buffers.take() {
                    Some(index) => break index,
                    None => self.wait(1)?,
                }
            };
            self.request(index)?;
        }
        while self.pending > 0 {
            self.wait(self.pending as u32)?;
        }
        Ok(())
    }

    fn request(&mut self, index: usize) -> Result<()> {
        let request = self.ring.request_or_submit()?;
        let zero_copy = self.means != Means::RingSend;
        request.opcode =
            if zero_copy { io_uring_op::IORING_OP_SEND_ZC } else { io_uring_op::IORING_OP_SEND } as u8;
        request.fd = self.socket;
        request.__bindgen_anon_2.addr = self.buffers.address(index) as u64;
        request.len = self.buffers.payload as u32;
        request.__bindgen_anon_3.msg_flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        if zero_copy {
            request.ioprio = IORING_SEND_ZC_REPORT_USAGE as u16;
        }
        if self.means == Means::RingZcFixed {
            request.ioprio |= IORING_RECVSEND_FIXED_BUF as u16;
        }
        request.user_data = index as u64;
        self.buffers.busy[index] = true;
        self.pending += 1;
        Ok(())
    }

    fn wait(&mut self, count: u32) -> Result<()> {
        self.ring.submit_and_wait(count)?;
        while let Some(completion) = self.ring.completion() {
            self.completed(completion)?;
        }
        Ok(())
    }

    fn completed(&mut self, completion: Completion) -> Result<()> {
        let index = completion.user_data as usize;
        if completion.flags & IORING_CQE_F_NOTIF != 0 {
            self.buffers.busy[index] = false;
            self.notified.all += 1;
            self.notified.copied += u64::from(completion.result as u32 & IORING_NOTIF_USAGE_ZC_COPIED != 0);
            return Ok(());
        }
        self.pending -= 1;
        if completion.flags & IORING_CQE_F_MORE == 0 {
            self.buffers.busy[index] = false;
        }
        match usize::try_from(completion.result) {
            Ok(bytes) if bytes == self.buffers.payload => Ok(()),
            Ok(bytes) => Err(Failure::new(format!("a send took {bytes} bytes of {}", self.buffers.payload))),
            Err(_) => Err(Failure::negative_errno("a send on the ring", completion.result.into())),
        }
    }
}
