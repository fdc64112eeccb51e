//! A ring that keeps account: every request completes exactly once.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use io_uring::squeue::Entry;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue};

/// Longer than any request of the soak takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One completion.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// What `submit` returned for the request.
    pub token: u64,
    /// Its result, a negative errno for an error.
    pub result: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
}

impl Completion {
    /// Whether the request goes on.
    pub fn more(&self) -> bool {
        cqueue::more(self.flags)
    }

    /// The result as a count, or an error that names `what`.
    pub fn count(&self, what: &str) -> Result<usize> {
        usize::try_from(self.result).map_err(|_| anyhow::anyhow!("{what}: {}", errno(self.result)))
    }
}

/// The text of a negative errno.
pub fn errno(result: i32) -> String {
    std::io::Error::from_raw_os_error(-result).to_string()
}

/// A ring, and the requests of it that have not had their last completion.
pub struct Ring {
    ring: IoUring,
    pending: HashMap<u64, &'static str>,
    next: u64,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on a ring of {:?}", self.pending, self.ring.params())
    }
}

impl Ring {
    /// A ring of a random kind that programs use.
    pub fn random(rng: &mut fastrand::Rng) -> Result<Ring> {
        let entries = 1 << rng.u32(3..8);
        Ring::of_random_kind(rng, entries)
    }

    /// The same, for many requests at a time.
    pub fn large(rng: &mut fastrand::Rng) -> Result<Ring> {
        let entries = 1 << rng.u32(6..12);
        Ring::of_random_kind(rng, entries)
    }

    fn of_random_kind(rng: &mut fastrand::Rng, entries: u32) -> Result<Ring> {
        let mut builder = IoUring::builder();
        match rng.u32(0..6) {
            0 => drop(builder.setup_coop_taskrun()),
            1 => drop(builder.setup_single_issuer().setup_defer_taskrun()),
            2 => drop(builder.setup_sqpoll(20)),
            3 => drop(builder.setup_cqsize(entries.max(256)).setup_submit_all()),
            _ => {}
        }
        Ring::build(&builder, entries)
    }

    /// A small ring without flags.
    pub fn plain() -> Result<Ring> {
        Ring::build(&IoUring::builder(), 4)
    }

    fn build(builder: &io_uring::Builder, entries: u32) -> Result<Ring> {
        let ring = builder.build(entries).context("io_uring_setup")?;
        Ok(Ring { ring, pending: HashMap::new(), next: 1 })
    }

    /// The ring itself, for registrations.
    pub fn submitter(&self) -> io_uring::Submitter<'_> {
        self.ring.submitter()
    }

    /// Does a thread of its own take its submissions?
    pub fn is_polled(&self) -> bool {
        self.ring.params().is_setup_sqpoll()
    }

    /// How many requests may be prepared before they are submitted.
    pub fn entries(&self) -> usize {
        self.ring.params().sq_entries() as usize
    }

    /// How many requests have not had their last completion.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Prepares a request; returns its token.
    ///
    /// # Safety
    /// What the request names must live until its last completion, or until the ring is dropped.
    pub unsafe fn push(&mut self, what: &'static str, entry: Entry) -> Result<u64> {
        // SAFETY: passed on to the caller.
        unsafe { self.push_chain(what, [entry]) }
    }

    /// Prepares requests that an SQ thread must not see apart; returns the first's token, the rest count on.
    ///
    /// # Safety
    /// As for `push`.
    pub unsafe fn push_chain<const N: usize>(
        &mut self,
        what: &'static str,
        chain: [Entry; N],
    ) -> Result<u64> {
        let first = self.next;
        let chain = chain.map(|entry| {
            self.pending.insert(self.next, what);
            self.next += 1;
            entry.user_data(self.next - 1)
        });
        // SAFETY: passed on to the caller.
        while unsafe { self.ring.submission().push_multiple(&chain) }.is_err() {
            self.submit()?;
            std::thread::yield_now();
        }
        Ok(first)
    }

    /// Submits what is prepared.
    pub fn submit(&mut self) -> Result<()> {
        match self.ring.submit() {
            Ok(_) => Ok(()),
            // The CQ has overflown, or a signal came: reap, then go on.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EINTR | libc::EAGAIN)) => {
                Ok(())
            }
            Err(error) => Err(error).context("io_uring_enter"),
        }
    }

    /// Submits until nothing is prepared any more.
    pub fn submit_all(&mut self) -> Result<()> {
        while !self.ring.submission().is_empty() {
            self.submit()?;
        }
        Ok(())
    }

    /// Submits, and waits for a completion.
    pub fn wait(&mut self) -> Result<Completion> {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.reap()? {
                return Ok(completion);
            }
            let slice = Timespec::new().sec(5);
            let arguments = SubmitArgs::new().timespec(&slice);
            match self.ring.submitter().submit_with_args(1, &arguments) {
                Ok(_) => {}
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => {}
                Err(error) => return Err(error).context("io_uring_enter"),
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "lost: nothing completes of {:?}; {:?}",
                self.pending,
                self.ring.params()
            );
        }
    }

    /// Waits until nothing is pending, handing each completion to `each`.
    pub fn finish(&mut self, mut each: impl FnMut(Completion) -> Result<()>) -> Result<()> {
        while self.pending() > 0 {
            each(self.wait()?)?;
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<Option<Completion>> {
        let Some(entry) = self.ring.completion().next() else { return Ok(None) };
        let completion =
            Completion { token: entry.user_data(), result: entry.result(), flags: entry.flags() };
        let known = if completion.more() {
            self.pending.contains_key(&completion.token)
        } else {
            self.pending.remove(&completion.token).is_some()
        };
        if !known {
            bail!("completed twice or unasked: {completion:?}");
        }
        Ok(Some(completion))
    }
}
