//! The process that maps the image into another process, at the program's first instruction.
//!
//! The tracer makes system calls in the other process, by an instruction that temporarily replaces the program's first
//! one. All signals of that process are blocked meanwhile, so that no signal for the program is lost or comes early.

use super::arch::sites;
use super::arch::{PAGE, Registers, SYSCALL, WRITES_ARE_FETCHED};
use super::channel::Channel;
use super::image::Image;
use super::program::Program;
use super::sites::patch;
use std::ffi::CStr;
use std::io;

/// The exit status of a process whose program could not be given the engine.
const OWN_FAILURE: u64 = crate::status::OWN_FAILURE as u64;
/// The status of a stop at the entry or exit of a system call, which `PTRACE_O_TRACESYSGOOD` distinguishes from
/// signals.
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
const SIGNAL_SET_BYTES: usize = 8;
/// The set of general registers, `NT_PRSTATUS`.
const GENERAL: usize = libc::NT_PRSTATUS as usize;

/// Traces `process` until it executes a program, which gets the image. Does not return.
pub fn run(process: libc::pid_t, image: &Image, program: &CStr, channel: &Channel) -> ! {
    // A signal for the whole process group is meant for the program.
    // SAFETY: sets a mask of this process, which has one thread.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
    let tracee = Tracee(process);
    if channel.is_started(|| is_child_of(process)) {
        let seized = tracee.seize();
        channel.send_answer(
            seized.as_ref().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0),
        );
        // If the program is not executed, the other process reports the reason itself.
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

/// Maps the image and makes the process begin there. On failure, the process ends.
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
    // The process leaves `execve` first, which would overwrite registers at its end.
    tracee.resume_to_syscall()?;
    let start = tracee.registers()?;
    let at = start.instruction();
    let first = tracee.peek(at)?;
    let mut patched = first.to_le_bytes();
    patched[..SYSCALL.len()].copy_from_slice(&SYSCALL);
    tracee.poke(at, u64::from_le_bytes(patched))?;
    let registers = match place(tracee, image, &start) {
        Ok(base) => {
            let calls = Calls { tracee, start: &start };
            let block =
                Program::of(tracee.0, program, at).map_or(Ok(0), |program| patch(&calls, &program))?;
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

/// Maps the image by calls that the process makes. Returns the image's address.
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
            // Memory cannot be made executable here (`PR_SET_MDWE`, SELinux's `execmem`), but a file can be mapped so. The
            // code contains no words to relocate: `Image::parse` has checked that.
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

/// A process that stands at its first instruction, which was replaced by one that makes a system call.
pub struct Calls<'a> {
    tracee: &'a Tracee,
    start: &'a Registers,
}

impl Calls<'_> {
    /// Makes the process make a call.
    ///
    /// # Errors The errors of the call, and of `ptrace`.
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

    /// Replaces the beginnings of places in one segment of the program's code. A place is left alone if its code differs from the expected code, or
    /// if the process stands in it. Returns the number of places that were replaced; 0 if the code cannot be read. The places must be in the order of
    /// their addresses.
    ///
    /// # Errors The errors of `mprotect` and `ptrace`, after which the program cannot continue.
    pub fn replace(&self, places: &[Replacement<'_>]) -> io::Result<usize> {
        let mut code = spans_of(places);
        if self.tracee.read_all(&mut code).is_err() {
            return Ok(0);
        }
        let (mut spans, mut replaced) = (code.iter_mut(), 0);
        let mut span = spans.next();
        for place in places {
            while span.as_ref().is_some_and(|span| span.end() <= place.address) {
                span = spans.next();
            }
            let Some(span) = &mut span else { break };
            let offset = (place.address - span.address) as usize;
            if span.is[offset..].starts_with(place.before) && !self.stands_in(place) {
                span.is[offset..][..place.after.len()].copy_from_slice(&place.after);
                replaced += 1;
            }
        }
        self.change(&code)?;
        Ok(replaced)
    }

    /// True if the instruction by which the process makes its calls is within the place.
    fn stands_in(&self, place: &Replacement<'_>) -> bool {
        let at = self.start.instruction();
        at + WORD > place.address && at < place.end()
    }

    /// Writes spans of code. Their pages are made writable for that, if it is allowed, and if instruction fetches see what is written so.
    fn change(&self, code: &[Span]) -> io::Result<()> {
        if !WRITES_ARE_FETCHED {
            return code.iter().try_for_each(|span| self.tracee.poke_all(span));
        }
        let (Some(first), Some(last)) = (code.first(), code.last()) else { return Ok(()) };
        let start = first.address & !(PAGE as u64 - 1);
        let protect = |access| {
            let arguments = [start, last.end() - start, access as u64, 0, 0, 0];
            self.make(libc::SYS_mprotect, arguments)
        };
        let access = libc::PROT_READ | libc::PROT_EXEC;
        if protect(access | libc::PROT_WRITE).is_ok() {
            let written = self.tracee.write_all(code);
            protect(access)?;
            if written.is_ok() {
                return Ok(());
            }
        }
        code.iter().try_for_each(|span| self.tracee.poke_all(span))
    }
}

const WORD: u64 = size_of::<u64>() as u64;

/// A place in a program's code, the code that is expected there, and the replacement of its beginning.
#[derive(Clone, Copy)]
pub struct Replacement<'a> {
    pub address: u64,
    pub before: &'a [u8],
    pub after: [u8; sites::JUMP],
}

impl Replacement<'_> {
    fn end(&self) -> u64 {
        self.address + self.before.len() as u64
    }
}

/// Some words of code: the present ones and the new ones.
struct Span {
    address: u64,
    was: Vec<u8>,
    is: Vec<u8>,
}

impl Span {
    fn end(&self) -> u64 {
        self.address + self.was.len() as u64
    }
}

/// Returns spans of the words that contain these places, which are in the order of their addresses. No word is in two
/// spans.
fn spans_of(places: &[Replacement<'_>]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for place in places {
        let first = place.address & !(WORD - 1);
        let end = place.end().next_multiple_of(WORD);
        match spans.last_mut().filter(|last| first <= last.end()) {
            Some(last) => last.was.resize(last.was.len().max((end - last.address) as usize), 0),
            None => spans.push(Span { address: first, was: vec![0; (end - first) as usize], is: Vec::new() }),
        }
    }
    spans
}

/// Returns the memory in which the kernel reads or writes registers.
fn vector(registers: &mut Registers) -> libc::iovec {
    libc::iovec { iov_base: (&raw mut registers.0).cast(), iov_len: size_of_val(&registers.0) }
}

/// A traced process.
struct Tracee(libc::pid_t);

impl Tracee {
    fn request(&self, request: libc::c_uint, address: usize, data: usize) -> io::Result<()> {
        #[cfg(test)]
        tests::REQUESTS.set(tests::REQUESTS.get() + 1);
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

    /// Returns the status of the next stop; `None` if the process ended instead.
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
                // The process has got a signal, which is passed on.
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

    /// Makes a system call in the process, whose first instruction was replaced by one for system calls.
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
        // Any word may be the result, so only `errno` shows an error.
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

    /// Writes the words of a span that have changed, one by one.
    fn poke_all(&self, span: &Span) -> io::Result<()> {
        let words = span.was.chunks_exact(WORD as usize).zip(span.is.chunks_exact(WORD as usize));
        for ((was, is), address) in words.zip((span.address..).step_by(WORD as usize)) {
            if was != is {
                self.poke(address, is.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)))?;
            }
        }
        Ok(())
    }

    /// Reads spans of code.
    fn read_all(&self, code: &mut [Span]) -> io::Result<()> {
        for some in code.chunks_mut(libc::UIO_MAXIOV as usize) {
            let local: Vec<_> =
                some.iter_mut().map(|span| part(span.was.as_mut_ptr(), span.was.len())).collect();
            let remote: Vec<_> =
                some.iter().map(|span| part(span.address as *mut u8, span.was.len())).collect();
            let count = local.len() as libc::c_ulong;
            // SAFETY: writes to the spans only.
            let read =
                unsafe { libc::process_vm_readv(self.0, local.as_ptr(), count, remote.as_ptr(), count, 0) };
            is_whole(read, &remote)?;
            some.iter_mut().for_each(|span| span.is.clone_from(&span.was));
        }
        Ok(())
    }

    /// Writes spans of code that the process may write to.
    fn write_all(&self, code: &[Span]) -> io::Result<()> {
        for some in code.chunks(libc::UIO_MAXIOV as usize) {
            let local: Vec<_> =
                some.iter().map(|span| part(span.is.as_ptr().cast_mut(), span.is.len())).collect();
            let remote: Vec<_> =
                some.iter().map(|span| part(span.address as *mut u8, span.is.len())).collect();
            let count = local.len() as libc::c_ulong;
            // SAFETY: reads the spans only.
            let written =
                unsafe { libc::process_vm_writev(self.0, local.as_ptr(), count, remote.as_ptr(), count, 0) };
            is_whole(written, &remote)?;
        }
        Ok(())
    }

    /// Writes `bytes` to memory that the process may write to.
    fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
        // SAFETY: reads `bytes` only.
        let written = unsafe { libc::process_vm_writev(self.0, &local, 1, &remote, 1, 0) };
        is_whole(written, &[remote])
    }
}

/// Returns a part of memory, of this process or of the other one.
fn part(start: *mut u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast(), iov_len: length }
}

/// Checks that all bytes of these parts were read or written.
fn is_whole(moved: isize, parts: &[libc::iovec]) -> io::Result<()> {
    match usize::try_from(moved) {
        Ok(moved) if moved == parts.iter().map(|part| part.iov_len).sum::<usize>() => Ok(()),
        Ok(_) => Err(io::Error::other("not all of it could be moved")),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refuse;
    use super::*;
    use std::cell::Cell;
    use std::{ptr, slice};

    thread_local! {
        /// The number of `ptrace` requests that this thread has made.
        pub static REQUESTS: Cell<usize> = const { Cell::new(0) };
    }

    const SITES: usize = 100;
    const STEP: usize = 300;
    const NOPS: [u8; 9] = [0x90; 9];

    /// Returns a process that stands at the first instruction of some code, which makes a call. `may_write`: its code can be
    /// made writable.
    fn standing(code: *mut u8, may_write: bool) -> (Tracee, Registers) {
        // SAFETY: the child makes system calls only, and is traced at its first instruction.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            if !may_write {
                refuse(libc::SYS_mprotect);
            }
            // SAFETY: as above.
            unsafe {
                libc::ptrace(libc::PTRACE_TRACEME);
                libc::raise(libc::SIGSTOP);
                libc::getppid();
                libc::_exit(1);
            }
        }
        let tracee = Tracee(child);
        assert!(tracee.wait().unwrap().is_some());
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        tracee.request(libc::PTRACE_SETOPTIONS, 0, options as usize).unwrap();
        // The process enters a call and leaves it, so that its registers can be set.
        tracee.resume_to_syscall().unwrap();
        tracee.resume_to_syscall().unwrap();
        let start = tracee.registers().unwrap().with_function(code.addr() as u64, [0; 3]);
        (tracee, start)
    }

    /// All places are replaced by few calls. Places with unexpected code, and the place where the process stands, are left alone.
    #[test]
    fn code_is_replaced_all_at_once() {
        let length = SITES * STEP + PAGE;
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory.
        let code = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) }.cast::<u8>();
        // SAFETY: just mapped, and it stays.
        let bytes = unsafe { slice::from_raw_parts_mut(code, length) };
        bytes.fill(NOPS[0]);
        bytes[..SYSCALL.len()].copy_from_slice(&SYSCALL);
        bytes[STEP * 7 + 3] = 0xc3;
        // SAFETY: the memory is not written to any more.
        assert_eq!(unsafe { libc::mprotect(code.cast(), length, libc::PROT_READ | libc::PROT_EXEC) }, 0);
        let place = |offset: usize| Replacement {
            address: (code.addr() + offset) as u64,
            before: &NOPS,
            after: [0xe9; sites::JUMP],
        };
        // The process stands in the first place. The second place begins in the word in which the first one ends.
        let mut places: Vec<_> = (0..SITES).map(|index| place(index * STEP)).collect();
        places.insert(1, place(NOPS.len()));
        let mut expected = bytes.to_vec();
        for (_, place) in places.iter().enumerate().filter(|(index, _)| ![0, 8].contains(index)) {
            expected[place.address as usize - code.addr()..][..sites::JUMP].fill(0xe9);
        }
        for may_write in [true, false] {
            let (tracee, start) = standing(code, may_write);
            let calls = Calls { tracee: &tracee, start: &start };
            let before = REQUESTS.get();
            assert_eq!(calls.replace(&places).unwrap(), SITES - 1);
            let requests = REQUESTS.get() - before;
            assert!(!(may_write && WRITES_ARE_FETCHED) || requests <= 8, "{requests}");
            let mut span = [Span { address: code.addr() as u64, was: vec![0; length], is: Vec::new() }];
            tracee.read_all(&mut span).unwrap();
            assert!(span[0].is == expected);
            // SAFETY: a child of ours.
            unsafe { libc::kill(tracee.0, libc::SIGKILL) };
            while tracee.wait().is_ok_and(|status| status.is_some()) {}
        }
    }

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
