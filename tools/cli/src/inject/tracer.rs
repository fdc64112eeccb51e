//! The process that maps the image into another, at its first instruction.
//!
//! It makes system calls in the other process, by an instruction written over the program's first and
//! taken back again. All signals of that process are blocked meanwhile: none that was meant for the
//! program is lost or comes early.

use super::arch::{Registers, SYSCALL};
use super::channel::Channel;
use super::image::Image;
use super::program::Program;
use super::sites;
use std::ffi::CStr;
use std::io;

/// The exit status of a process whose program could not be given the engine.
const OWN_FAILURE: u64 = crate::status::OWN_FAILURE as u64;
/// A system call's entry or exit, told apart from signals by `PTRACE_O_TRACESYSGOOD`.
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
const SIGNAL_SET_BYTES: usize = 8;
/// The general registers, `NT_PRSTATUS`.
const GENERAL: usize = libc::NT_PRSTATUS as usize;

/// Traces `process` until it executes a program, which gets the image. Does not return.
pub fn run(process: libc::pid_t, image: &Image, program: &CStr, channel: &Channel) -> ! {
    // A signal for the whole process group is the program's affair.
    // SAFETY: sets a mask of this process, which has one thread.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
    let tracee = Tracee(process);
    if channel.is_asked(|| is_child_of(process)) {
        let seized = tracee.seize();
        channel.give(seized.as_ref().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0));
        // If the program is not executed, this process's own failure says why.
        if seized.is_ok() && matches!(tracee.wait_for_program(), Ok(true)) {
            bring(&tracee, image, program);
        }
    }
    // SAFETY: ends this process; its parent's buffers are the parent's to flush.
    unsafe { libc::_exit(0) }
}

/// True if the parent `process` lives. If a sandbox refuses `getppid`: true if a process has that number.
fn is_child_of(process: libc::pid_t) -> bool {
    // SAFETY: asks only.
    let parent = unsafe { libc::getppid() };
    // SAFETY: as above.
    parent == process || parent < 0 && unsafe { libc::syscall(libc::SYS_tgkill, process, process, 0) } == 0
}

/// Maps the image and lets it begin; where that fails, the process ends.
fn bring(tracee: &Tracee, image: &Image, program: &CStr) {
    if let Err(error) = map(tracee, image, program) {
        eprintln!("anyring: cannot bring the engine into {}: {error}", program.to_string_lossy());
        // SAFETY: touches no memory.
        unsafe { libc::kill(tracee.0, libc::SIGKILL) };
    }
}

fn map(tracee: &Tracee, image: &Image, program: &CStr) -> io::Result<()> {
    let mask = tracee.signal_mask()?;
    tracee.set_signal_mask(u64::MAX)?;
    // Out of `execve`, where registers can be set for good.
    tracee.resume_to_syscall()?;
    let start = tracee.registers()?;
    let at = start.instruction();
    let first = tracee.peek(at)?;
    let mut patched = first.to_le_bytes();
    patched[..SYSCALL.len()].copy_from_slice(&SYSCALL);
    tracee.poke(at, u64::from_le_bytes(patched))?;
    let registers = match place(tracee, image, &start) {
        Ok(base) => {
            let block = Program::of(tracee.0, program, at)
                .map_or(0, |program| sites::patch(&Calls { tracee, start: &start }, &program));
            tracee.poke(at, first)?;
            // SAFETY: asks only.
            let tracer = unsafe { libc::getpid() } as u64;
            start.with_function(base + image.entry as u64, [tracer, at, block])
        }
        Err(error) => {
            eprintln!("anyring: cannot map the engine: {error}");
            start.with_call(libc::SYS_exit_group, [OWN_FAILURE, 0, 0, 0, 0, 0])
        }
    };
    tracee.set_registers(&registers)?;
    tracee.set_signal_mask(mask)?;
    tracee.detach()
}

/// Maps the image by calls that the process itself makes; its address.
fn place(tracee: &Tracee, image: &Image, start: &Registers) -> io::Result<u64> {
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let length = image.length() as u64;
    let base = tracee.call(start, libc::SYS_mmap, [0, length, writable as u64, flags as u64, u64::MAX, 0])?;
    tracee.write(base, &image.at(base as usize))?;
    for segment in image.segments.iter().filter(|segment| segment.protection != writable) {
        let (address, length) = (base + segment.start as u64, segment.length as u64);
        let protection = segment.protection as u64;
        let arguments = [address, length, protection, 0, 0, 0];
        match (tracee.call(start, libc::SYS_mprotect, arguments), image.descriptor()) {
            (Ok(_), _) => {}
            // No memory becomes executable here (`PR_SET_MDWE`, SELinux's `execmem`), but a file may be. Nothing in code is
            // to be adapted to where it lies: `Image::parse` has seen to that.
            (Err(_), Some(file)) if segment.protection & libc::PROT_EXEC != 0 => {
                let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
                let arguments = [address, length, protection, flags, file as u64, segment.offset as u64];
                tracee.call(start, libc::SYS_mmap, arguments)?;
            }
            (Err(error), _) => return Err(error),
        }
    }
    if let Some(file) = image.descriptor() {
        tracee.call(start, libc::SYS_close, [file as u64, 0, 0, 0, 0, 0])?;
    }
    Ok(base)
}

/// A process at its first instruction, which has been replaced by one that makes a system call.
pub struct Calls<'a> {
    tracee: &'a Tracee,
    start: &'a Registers,
}

impl Calls<'_> {
    /// Lets the process make a call.
    ///
    /// # Errors
    /// The call's, or those of `ptrace`.
    pub fn make(&self, number: i64, a: [u64; 6]) -> io::Result<u64> {
        self.tracee.call(self.start, number, a)
    }

    /// Writes to memory that the process may write to.
    ///
    /// # Errors
    /// The errors of `process_vm_writev`.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.tracee.write(address, bytes)
    }

    /// Replaces the beginning of some of the program's code, if that is `before`, and not where the process stands.
    ///
    /// # Errors
    /// The errors of `ptrace`, or an error that says that the code is not `before`. After an error nothing has changed.
    pub fn replace(&self, address: u64, before: &[u8], bytes: &[u8]) -> io::Result<()> {
        const WORD: u64 = size_of::<u64>() as u64;
        let first = address & !(WORD - 1);
        let mut there = vec![0; (address - first) as usize + before.len().next_multiple_of(8) + 8];
        self.tracee.read(first, &mut there)?;
        let at = self.start.instruction();
        let place = &mut there[(address - first) as usize..][..before.len()];
        if place != before || at + WORD > first && at < address + before.len() as u64 + WORD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let was = there.clone();
        there[(address - first) as usize..][..bytes.len()].copy_from_slice(bytes);
        let word = |bytes: &[u8], index: usize| {
            bytes[index * 8..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
        };
        let count = (address + bytes.len() as u64 - first).div_ceil(WORD);
        for index in 0..count {
            let place = |index: u64| first + index * WORD;
            if let Err(error) = self.tracee.poke(place(index), word(&there, index as usize)) {
                // The whole jump or none of it.
                (0..index)
                    .try_for_each(|index| self.tracee.poke(place(index), word(&was, index as usize)))?;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Returns the memory in which the kernel reads or writes registers.
fn vector(registers: &mut Registers) -> libc::iovec {
    libc::iovec { iov_base: (&raw mut registers.0).cast(), iov_len: size_of_val(&registers.0) }
}

/// A process that is traced.
struct Tracee(libc::pid_t);

impl Tracee {
    fn request(&self, request: libc::c_uint, address: usize, data: usize) -> io::Result<()> {
        // SAFETY: callers name memory that fits the request.
        let result = unsafe { libc::ptrace(request, self.0, address, data) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn seize(&self) -> io::Result<()> {
        let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD;
        self.request(libc::PTRACE_SEIZE, 0, options as usize)
    }

    fn detach(&self) -> io::Result<()> {
        self.request(libc::PTRACE_DETACH, 0, 0)
    }

    /// The next stop's status; `None` if the process ended instead.
    fn wait(&self) -> io::Result<Option<i32>> {
        let mut status = 0;
        loop {
            // SAFETY: writes the status.
            let result = unsafe { libc::waitpid(self.0, &mut status, libc::__WALL) };
            if result == self.0 {
                return Ok(libc::WIFSTOPPED(status).then_some(status));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Waits until the process has executed a program; false if it ends instead.
    fn wait_for_program(&self) -> io::Result<bool> {
        while let Some(status) = self.wait()? {
            match status >> 16 {
                libc::PTRACE_EVENT_EXEC => return Ok(true),
                // A signal of its own.
                0 => self.request(libc::PTRACE_CONT, 0, libc::WSTOPSIG(status) as usize)?,
                _ => self.request(libc::PTRACE_CONT, 0, 0)?,
            }
        }
        Ok(false)
    }

    /// Lets the process run to the next entry to or exit from a system call.
    fn resume_to_syscall(&self) -> io::Result<()> {
        loop {
            self.request(libc::PTRACE_SYSCALL, 0, 0)?;
            match self.wait()? {
                Some(status) if libc::WSTOPSIG(status) == SYSCALL_STOP => return Ok(()),
                Some(_) => {}
                None => return Err(io::Error::other("it ended")),
            }
        }
    }

    /// Makes a system call in the process, whose first instruction has been replaced by one for that.
    fn call(&self, start: &Registers, number: i64, a: [u64; 6]) -> io::Result<u64> {
        self.set_registers(&start.with_call(number, a))?;
        self.resume_to_syscall()?;
        self.resume_to_syscall()?;
        let result = self.registers()?.result();
        if (-4095..0).contains(&result) {
            return Err(io::Error::from_raw_os_error(-result as i32));
        }
        Ok(result as u64)
    }

    fn registers(&self) -> io::Result<Registers> {
        // SAFETY: integers only.
        let mut registers = Registers(unsafe { std::mem::zeroed() });
        let place = vector(&mut registers);
        self.request(libc::PTRACE_GETREGSET, GENERAL, (&raw const place).addr())?;
        Ok(registers)
    }

    fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        let mut registers = *registers;
        let place = vector(&mut registers);
        self.request(libc::PTRACE_SETREGSET, GENERAL, (&raw const place).addr())
    }

    fn signal_mask(&self) -> io::Result<u64> {
        let mut mask = 0_u64;
        self.request(libc::PTRACE_GETSIGMASK, SIGNAL_SET_BYTES, (&raw mut mask).addr())?;
        Ok(mask)
    }

    fn set_signal_mask(&self, mask: u64) -> io::Result<()> {
        self.request(libc::PTRACE_SETSIGMASK, SIGNAL_SET_BYTES, (&raw const mask).addr())
    }

    fn peek(&self, address: u64) -> io::Result<u64> {
        // Any word may be the answer: the error is told by `errno` alone.
        // SAFETY: reads a word of the other process, and `errno` of this one.
        unsafe {
            *libc::__errno_location() = 0;
            let word = libc::ptrace(libc::PTRACE_PEEKDATA, self.0, address, 0);
            match *libc::__errno_location() {
                0 => Ok(word as u64),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    fn poke(&self, address: u64, word: u64) -> io::Result<()> {
        self.request(libc::PTRACE_POKEDATA, address as usize, word as usize)
    }

    /// Reads memory that the process may read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
        // SAFETY: writes to `bytes` only.
        let read = unsafe { libc::process_vm_readv(self.0, &local, 1, &remote, 1, 0) };
        match usize::try_from(read) {
            Ok(read) if read == bytes.len() => Ok(()),
            Ok(_) => Err(io::Error::other("not all of it could be read")),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Writes `bytes` to memory that the process may write to.
    fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
        // SAFETY: reads `bytes` only.
        let written = unsafe { libc::process_vm_writev(self.0, &local, 1, &remote, 1, 0) };
        match usize::try_from(written) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(io::Error::other("not all of it could be written")),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refuse;
    use super::*;

    #[test]
    fn who_asks_is_known_to_live_where_getppid_is_refused() {
        // SAFETY: asks only.
        let parent = unsafe { libc::getppid() };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let ended = child.id() as libc::pid_t;
        assert!(is_child_of(parent) && !is_child_of(ended));
        refuse(libc::SYS_getppid);
        assert!(is_child_of(parent) && !is_child_of(ended));
    }
}
