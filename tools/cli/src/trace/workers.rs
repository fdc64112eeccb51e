//! Which requests the kernel gives to its workers: the tracepoint `io_uring_queue_async_work`, read as perf reads it.
//!
//! The kernel writes a record of each such request on any processor, in any process, into memory that is shared with this process: one
//! buffer for each processor. That needs root or CAP_PERFMON, and `/sys/kernel/tracing`.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use anyring_tracer::{Queued, Workers};

const PAGE: usize = 4096;
/// The size of a processor's records in bytes: a power of two, and a multiple of the size of any page.
const RECORDS: usize = 1 << 17;
/// Offsets of the positions in a buffer's first page (`struct perf_event_mmap_page`).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
const DATA_OFFSET: usize = 1040;

/// `struct perf_event_attr`, up to the clock.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    user_registers: u64,
    user_stack: u32,
    clock: i32,
}

/// The records of one processor.
struct Buffer {
    memory: NonNull<u8>,
    length: usize,
    _event: OwnedFd,
}

/// Where the tracepoint's record has the user data and the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format {
    user_data: usize,
    opcode: usize,
}

/// The tracepoint on all processors.
pub struct Tracepoint {
    format: Format,
    buffers: Vec<Buffer>,
    record: Vec<u8>,
}

impl Tracepoint {
    /// Begins to read the tracepoint.
    ///
    /// # Errors
    /// The error of reading its description, or of `perf_event_open`.
    pub fn open() -> io::Result<Tracepoint> {
        let directory = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
            .map(|root| format!("{root}/events/io_uring/io_uring_queue_async_work"));
        let read = |name: &str| {
            let [first, second] = &directory;
            fs::read_to_string(format!("{first}/{name}"))
                .or_else(|error| fs::read_to_string(format!("{second}/{name}")).map_err(|_| error))
        };
        let number = read("id")?.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let format = Format::parse(&read("format")?).ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: asks only.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        let mut buffers = Vec::new();
        for processor in 0..processors as libc::c_int {
            match Buffer::open(number, processor) {
                Ok(buffer) => buffers.push(buffer),
                // The processor is off.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Tracepoint { format, buffers, record: Vec::new() })
    }
}

impl Workers for Tracepoint {
    fn take(&mut self) -> Vec<Queued> {
        let mut taken = Vec::new();
        for buffer in &self.buffers {
            buffer.take(&mut self.record, |record| taken.extend(self.format.queued(record)));
        }
        taken
    }
}

impl Format {
    /// Parses the tracepoint's description, whose lines are like `field:u64 user_data; offset:24; size:8; signed:0;`.
    fn parse(text: &str) -> Option<Format> {
        let offset = |name: &str, size: &str| {
            let line = text.lines().find(|line| line.contains(&format!(" {name};")))?;
            let value = |key: &str| line.split([';', '\t']).find_map(|part| part.trim().strip_prefix(key));
            value("offset:").filter(|_| value("size:") == Some(size))?.parse().ok()
        };
        Some(Format { user_data: offset("user_data", "8")?, opcode: offset("opcode", "1")? })
    }

    /// Reads a record: its process and thread, its time, and the tracepoint's own part with its length.
    fn queued(self, record: &[u8]) -> Option<Queued> {
        const SAMPLE: u32 = 9;
        let word = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
        const OWN: usize = 8 + 8 + 8 + 4;
        (word(0)? == SAMPLE).then_some(())?;
        Some(Queued {
            process: word(8)?,
            time_ns: long(16)?,
            user_data: long(OWN + self.user_data)?,
            opcode: *record.get(OWN + self.opcode)?,
        })
    }
}

impl Buffer {
    fn open(number: u64, processor: libc::c_int) -> io::Result<Buffer> {
        const TRACEPOINT: u32 = 2;
        const THREAD: u64 = 1 << 1;
        const TIME: u64 = 1 << 2;
        const RAW: u64 = 1 << 10;
        const USES_CLOCK: u64 = 1 << 25;
        const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
        const EACH_PROCESS: libc::pid_t = -1;
        const NO_GROUP: libc::c_int = -1;
        let attributes = Attributes {
            kind: TRACEPOINT,
            size: size_of::<Attributes>() as u32,
            config: number,
            sample_period: 1,
            sample_type: THREAD | TIME | RAW,
            flags: USES_CLOCK,
            clock: libc::CLOCK_MONOTONIC,
            ..Attributes::default()
        };
        // SAFETY: the attributes live through the call and have the size that they name.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                EACH_PROCESS,
                processor,
                NO_GROUP,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor, which nobody else has.
        let event = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        // SAFETY: asks only.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(PAGE as libc::c_long) as usize;
        let length = page + RECORDS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room.
        let memory = unsafe {
            libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, event.as_raw_fd(), 0)
        };
        match NonNull::new(memory.cast::<u8>()) {
            Some(memory) if !std::ptr::eq(memory.as_ptr().cast(), libc::MAP_FAILED) => {
                Ok(Buffer { memory, length, _event: event })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the first page, and aligned.
        unsafe { self.memory.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// Passes on all records.
    fn take(&self, record: &mut Vec<u8>, mut pass: impl FnMut(&[u8])) {
        const HEADER: usize = 8;
        // Acquire pairs with the kernel's barrier between its records and the head.
        let head = self.word(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.word(DATA_TAIL).load(Ordering::Relaxed);
        let data = self.word(DATA_OFFSET).load(Ordering::Relaxed) as usize;
        while tail != head {
            self.copy(data, tail, HEADER, record);
            let size = u16::from_ne_bytes([record[6], record[7]]) as usize;
            if size < HEADER {
                break;
            }
            self.copy(data, tail, size, record);
            pass(record);
            tail += size as u64;
        }
        // Release: the records are read before the kernel may write there again.
        self.word(DATA_TAIL).store(head, Ordering::Release);
    }

    /// Copies bytes at a position, which may continue at the buffer's beginning.
    fn copy(&self, data: usize, position: u64, length: usize, to: &mut Vec<u8>) {
        let at = |offset: usize| data + (position as usize + offset) % RECORDS;
        to.clear();
        // SAFETY: within the mapping, of which the kernel writes no part that is not read yet.
        to.extend((0..length).map(|offset| unsafe { self.memory.add(at(offset)).read_volatile() }));
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped when this value was made, and used only through it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_says_where_things_are() {
        let text = "name: io_uring_queue_async_work\nID: 2146\nformat:\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:u64 user_data;\toffset:24;\tsize:8;\tsigned:0;\n\
            \tfield:u8 opcode;\toffset:32;\tsize:1;\tsigned:0;\n";
        assert_eq!(Format::parse(text), Some(Format { user_data: 24, opcode: 32 }));
        assert_eq!(Format::parse(&text.replace("size:8", "size:4")), None);
        assert_eq!(Format::parse("name: another\n"), None);
    }
}
