//! Objects for the requests that are tried: separate files, pipes and sockets.

use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Files and memory for one request.
pub struct World {
    /// A file of one page.
    pub file: File,
    /// The address of the file's path, in separate memory.
    pub path: u64,
    /// The address of a path without a file.
    pub nothing: u64,
    /// The address of the name of an attribute that no file has.
    pub attribute: u64,
    _names: Pages,
    /// A pipe with data.
    pub pipe: [OwnedFd; 2],
    /// Connected sockets, with data to receive at the first.
    pub sockets: [UnixStream; 2],
    /// A listener with a pending connection.
    pub listener: TcpListener,
    /// An epoll instance.
    pub epoll: OwnedFd,
    /// A socket that is not connected.
    pub socket: OwnedFd,
    _connects: TcpStream,
    /// Memory of zeroes.
    pub memory: Pages,
}

impl World {
    /// Creates the objects in a directory, which is emptied before.
    pub fn new(directory: &Path) -> World {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).expect("a directory");
        let path = directory.join("file");
        fs::write(&path, [7; 4096]).expect("a file");
        let mut pipe = [0; 2];
        // SAFETY: two new descriptors, owned here.
        let pipe = unsafe {
            assert_eq!(libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC), 0);
            pipe.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        // SAFETY: the bytes are there.
        unsafe { libc::write(pipe[1].as_raw_fd(), b"pipe".as_ptr().cast(), 4) };
        let (first, second) = UnixStream::pair().expect("sockets");
        (&second).write_all(b"socket").expect("room");
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
        let connects = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        // SAFETY: new descriptors.
        let (epoll, socket) = unsafe {
            let socket = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            (OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)), OwnedFd::from_raw_fd(socket))
        };
        let names = Pages::new();
        names.write(0, path.as_os_str().as_bytes());
        names.write(1, directory.join("nothing").as_os_str().as_bytes());
        names.write(2, b"trusted.nothing");
        World {
            file: File::options().read(true).write(true).open(&path).expect("the file"),
            path: names.at(0),
            nothing: names.at(1),
            attribute: names.at(2),
            _names: names,
            pipe,
            sockets: [first, second],
            listener,
            epoll,
            socket,
            _connects: connects,
            memory: Pages::new(),
        }
    }
}

/// Memory of 32 pages.
pub struct Pages(*mut u8);

impl Pages {
    const LENGTH: usize = 32 * 4096;

    /// Maps zeroed pages.
    pub fn new() -> Pages {
        // SAFETY: new memory.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Pages::LENGTH,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        Pages(address.cast())
    }

    /// Writes bytes to the beginning of a page.
    fn write(&self, page: u64, bytes: &[u8]) {
        assert!(bytes.len() < 4096, "less than a page");
        // SAFETY: within one page, which nothing else accesses.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(page) as *mut u8, bytes.len()) };
    }

    /// Returns the address of a page.
    pub fn at(&self, page: u64) -> u64 {
        self.0 as u64 + page * 4096
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped here, and no ring uses it any more.
        unsafe { libc::munmap(self.0.cast(), Pages::LENGTH) };
    }
}
