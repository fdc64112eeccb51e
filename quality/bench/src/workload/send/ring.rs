//! Sending by a ring.

use std::time::Duration;

use linux_raw_sys::io_uring::{
    IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, IORING_NOTIF_USAGE_ZC_COPIED, IORING_RECVSEND_FIXED_BUF,
    IORING_SEND_ZC_REPORT_USAGE,
};

use super::{Args, BUFFERS, Buffers, Means, Notified};
use crate::failure::{Failure, Result};
use crate::workload::ring::{Completion, DEFER, Ring, Sqe, io_uring_op, sqe};
use crate::workload::{Report, repeat_for};

struct Sender {
    ring: Ring,
    socket: i32,
    means: Means,
    buffers: Buffers,
    /// Sends without a result yet.
    pending: usize,
    notified: Notified,
}

/// Sends `per_enter` messages per enter and waits for their results; waits for notifications only if it needs a busy buffer.
pub fn send(socket: i32, buffers: Buffers, args: &Args, window: Duration) -> Result<Report> {
    let entries = BUFFERS as u32;
    let ring = Ring::new(entries, entries * 4, DEFER)?;
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
        let (opcode, ioprio) = match self.means {
            Means::RingSend => (io_uring_op::IORING_OP_SEND, 0),
            Means::RingZcFixed => {
                (io_uring_op::IORING_OP_SEND_ZC, IORING_SEND_ZC_REPORT_USAGE | IORING_RECVSEND_FIXED_BUF)
            }
            _ => (io_uring_op::IORING_OP_SEND_ZC, IORING_SEND_ZC_REPORT_USAGE),
        };
        self.ring.push(Sqe {
            fd: self.socket,
            addr: self.buffers.address(index) as u64,
            len: self.buffers.payload as u32,
            op_flags: (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32,
            ioprio: ioprio as u16,
            ..sqe(opcode, index as u64)
        })?;
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
