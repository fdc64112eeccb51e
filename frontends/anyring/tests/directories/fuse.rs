//! A FUSE file system of the test: one directory, whose places are opaque numbers, and a server that answers
//! when the test wants it to.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

const GETATTR: u32 = 3;
const FORGET: u32 = 2;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// The length of a request's header in bytes.
const HEAD: usize = 40;

struct Shared {
    device: File,
    entries: u64,
    /// The bits that places may have.
    places: u64,
    /// Requests that wait for [`Server::release`], while the server holds requests back.
    held: Mutex<Option<Vec<Vec<u8>>>>,
}

/// The server of a mounted file system.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

impl Server {
    /// Mounts a directory with `entries` entries, whose places have the bits `places` only.
    pub fn mount(at: &Path, entries: u64, places: u64) -> std::io::Result<Server> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let (target, options) = (super::mounts::text(at), CString::new(options).unwrap());
        // SAFETY: the strings live as long as the call.
        let result = unsafe {
            libc::mount(c"anyring".as_ptr(), target.as_ptr(), c"fuse".as_ptr(), 0, options.as_ptr().cast())
        };
        if result != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let shared = Arc::new(Shared { device, entries, places, held: Mutex::new(None) });
        let server = Arc::clone(&shared);
        std::thread::spawn(move || server.serve());
        Ok(Server(shared))
    }

    /// Holds all requests back from now on.
    pub fn hold(&self) {
        *self.0.held.lock().unwrap() = Some(Vec::new());
    }

    /// Answers the requests that are held back, and all further ones.
    pub fn release(&self) {
        for request in self.0.held.lock().unwrap().take().unwrap_or_default() {
            self.0.answer(&request);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Shared {
    /// Answers requests until the file system is unmounted.
    fn serve(&self) {
        let mut buffer = vec![0; 1 << 17];
        loop {
            match (&self.device).read(&mut buffer) {
                Ok(count) => self.take(&buffer[..count]),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
                Err(_) => {}
            }
        }
    }

    fn take(&self, request: &[u8]) {
        if !matches!(half(request, 4), INIT | FORGET | BATCH_FORGET | INTERRUPT)
            && let Some(held) = &mut *self.held.lock().unwrap()
        {
            return held.push(request.to_vec());
        }
        self.answer(request);
    }

    fn answer(&self, request: &[u8]) {
        let arguments = &request[HEAD..];
        let result = match half(request, 4) {
            FORGET | BATCH_FORGET | INTERRUPT => return,
            INIT => {
                let mut reply = [0; 64];
                for (place, value) in [(0, 7_u32), (4, 31), (20, 1 << 16), (24, 1)] {
                    reply[place..place + 4].copy_from_slice(&value.to_ne_bytes());
                }
                Ok(reply.to_vec())
            }
            GETATTR => {
                let mut reply = [0; 104];
                // The inode; below, mode and links.
                reply[16] = 1;
                reply[76..80].copy_from_slice(&(libc::S_IFDIR | 0o755).to_ne_bytes());
                reply[80] = 2;
                Ok(reply.to_vec())
            }
            OPENDIR => Ok(vec![0; 16]),
            READDIR => self.entries(word(arguments, 8), half(arguments, 16) as usize),
            RELEASEDIR => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        };
        let (error, payload) = match result {
            Ok(payload) => (0, payload),
            Err(errno) => (-errno, Vec::new()),
        };
        let mut reply = Vec::new();
        reply.extend((16 + payload.len() as u32).to_ne_bytes());
        reply.extend(error.to_ne_bytes());
        reply.extend(&request[8..16]);
        reply.extend(payload);
        // The write fails if the request was interrupted.
        let _ = (&self.device).write(&reply);
    }

    /// Returns the place after an entry, which has a meaning for the server only.
    fn place(&self, index: u64) -> u64 {
        (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) & self.places
    }

    fn entries(&self, from: u64, size: usize) -> Result<Vec<u8>, i32> {
        let first = match from {
            0 => 0,
            _ => (0..self.entries).find(|&index| self.place(index) == from).ok_or(libc::EINVAL)? + 1,
        };
        let mut reply = Vec::new();
        for index in first..self.entries {
            let name = format!("entry-{index}");
            let length = (24 + name.len()).next_multiple_of(8);
            if reply.len() + length > size {
                break;
            }
            let end = reply.len() + length;
            reply.extend((index + 2).to_ne_bytes());
            reply.extend(self.place(index).to_ne_bytes());
            reply.extend((name.len() as u32).to_ne_bytes());
            reply.extend(u32::from(libc::DT_REG).to_ne_bytes());
            reply.extend(name.as_bytes());
            reply.resize(end, 0);
        }
        Ok(reply)
    }
}
