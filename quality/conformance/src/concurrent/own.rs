//! Work on a ring that no other thread knows: without cancellations by others, its results are known exactly, while the engine's
//! threads serve other rings, too.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsRawFd;

use anyring_engine::abi::Sqe;
use anyring_engine::io_uring_params;
use linux_raw_sys::io_uring::{io_uring_op as Op, *};

use super::plan::Own;
use super::world::{PERIOD, World, abort_at_close};
use crate::harness::sqe_flags::{ASYNC, BUFFER_SELECT, FIXED_FILE, LINK};
use crate::ring::{Cqe, Engine, Ring};
use crate::rng::Rng;

const FILES: u32 = io_uring_register_op::IORING_REGISTER_FILES as u32;

/// The longest wait on a busy machine; the parent detects hangs.
const SLICE_US: u32 = 100_000;

/// Buffers for received data: their number and their length.
const BUFFERS: usize = 16;
const BUFFER: usize = 512;
const GROUP: u16 = 3;

/// A ring, and its requests without a last completion.
struct OwnRing<'a> {
    world: &'a World<'a>,
    rng: &'a mut Rng,
    ring: Ring,
    /// By user data: true if the last completion has come.
    over: Vec<bool>,
    /// Completions that were reaped for later.
    taken: Vec<Cqe>,
}

/// Does some work on a new ring.
pub fn work(world: &World, rng: &mut Rng, what: Own) {
    // SAFETY: integers only.
    let mut params: io_uring_params = unsafe { std::mem::zeroed() };
    params.flags = IORING_SETUP_CQSIZE
        | rng.pick(&[
            0,
            0,
            IORING_SETUP_COOP_TASKRUN,
            IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
        ]);
    params.cq_entries = 1024;
    let ring = match Ring::new(world.engine, 64, params) {
        Ok(ring) => ring,
        Err(errno) => return world.fail(format!("another ring cannot be made: {errno}")),
    };
    let mut own = OwnRing { world, rng, ring, over: vec![], taken: vec![] };
    let done = match what {
        Own::Nops => own.nops(),
        Own::Leaves => own.leaves(),
        Own::Files => own.files(),
        Own::Chain => own.chain(),
        Own::Connections(count) => own.connections(count),
        Own::Unread => return super::unread::work(world, own.rng),
    };
    if let Err(what) = done {
        world.fail(format!("a ring of its own: {what}"));
    }
}

/// The result of a step; the error describes the failure.
pub(super) type Outcome<T = ()> = Result<T, String>;

pub(super) fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}

pub(super) fn sqe(op: Op, fd: i32) -> Sqe {
    Sqe { opcode: op as u8, fd, ..Sqe::default() }
}

impl OwnRing<'_> {
    /// Pushes a request; returns its user data.
    fn push(&mut self, mut sqe: Sqe) -> u64 {
        sqe.user_data = self.over.len() as u64;
        self.over.push(false);
        if !self.ring.has_room(&[sqe]) {
            self.ring.enter(64, 0, 0);
        }
        self.ring.push(sqe);
        sqe.user_data
    }

    /// Returns the next completion, which must belong to a request without a last one.
    fn next(&mut self) -> Outcome<Cqe> {
        loop {
            if let Some(cqe) = self.ring.reap() {
                self.world.shared.step();
                let over = self.over.get_mut(cqe.user_data as usize);
                expect(over.as_ref().is_some_and(|over| !**over), || {
                    format!("completed twice or unasked: {cqe:?}")
                })?;
                *over.expect("just looked at") = cqe.flags & IORING_CQE_F_MORE == 0;
                return Ok(cqe);
            }
            let result = self.ring.enter_for(self.ring.pending(), 1, IORING_ENTER_GETEVENTS, Some(SLICE_US));
            let passing = [libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN];
            expect(result >= 0 || passing.contains(&-result), || format!("enter gives {result}"))?;
        }
    }

    /// Returns the next completion of a request.
    fn wait(&mut self, id: u64) -> Outcome<Cqe> {
        loop {
            if let Some(at) = self.taken.iter().position(|cqe| cqe.user_data == id) {
                return Ok(self.taken.remove(at));
            }
            let cqe = self.next()?;
            self.taken.push(cqe);
        }
    }

    /// Returns the result of a request that completes once.
    fn result(&mut self, id: u64) -> Outcome<i32> {
        let cqe = self.wait(id)?;
        expect(cqe.flags & IORING_CQE_F_MORE == 0, || format!("more of what completes once: {cqe:?}"))?;
        Ok(cqe.res)
    }

    /// Pushes a request; returns its result.
    fn run(&mut self, sqe: Sqe) -> Outcome<i32> {
        let id = self.push(sqe);
        self.result(id)
    }

    fn is(&mut self, what: &str, id: u64, wanted: i32) -> Outcome {
        let result = self.result(id)?;
        expect(result == wanted, || format!("{what} gives {result}, not {wanted}"))
    }

    fn nops(&mut self) -> Outcome {
        for _ in 0..1 + self.rng.below(3) {
            let id = self.push(sqe(Op::IORING_OP_NOP, -1));
            self.is("a NOP", id, 0)?;
        }
        Ok(())
    }

    /// Leaves a request in the ring, which is then closed.
    fn leaves(&mut self) -> Outcome {
        self.push(Sqe { op_flags: libc::POLLIN as u32, ..sqe(Op::IORING_OP_POLL_ADD, self.world.idle[0]) });
        self.ring.enter(1, 0, 0);
        Ok(())
    }

    fn maybe_async(&mut self) -> u8 {
        if self.rng.percent(25) { ASYNC } else { 0 }
    }

    /// Returns memory with the pattern of a stream.
    fn pattern(&mut self, most: usize) -> Vec<u8> {
        let (offset, length) = (self.rng.below(PERIOD) as u64, 1 + self.rng.below(most));
        self.world.pattern(0, offset, length).to_vec()
    }

    /// Writes data in pieces, in any order, and reads it again in other pieces.
    fn files(&mut self) -> Outcome {
        let path = self.world.new_path();
        let flags = (libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC) as u32;
        let open = Sqe {
            addr: path.as_ptr() as u64,
            len: 0o600,
            op_flags: flags,
            ..sqe(Op::IORING_OP_OPENAT, libc::AT_FDCWD)
        };
        let fd = self.run(open)?;
        expect(fd >= 0, || format!("OPENAT gives {fd}"))?;
        let written = self.pattern(40_000);
        let mut read = vec![0u8; written.len()];
        for (op, memory) in
            [(Op::IORING_OP_WRITE, written.as_ptr() as u64), (Op::IORING_OP_READ, read.as_mut_ptr() as u64)]
        {
            let mut pieces = self.pieces(written.len());
            let ids: Vec<_> = std::iter::from_fn(|| {
                let (at, length) = pieces.pop()?;
                let flags = self.maybe_async();
                let (off, len) = (at as u64, length as u32);
                Some((self.push(Sqe { off, addr: memory + off, len, flags, ..sqe(op, fd) }), length as i32))
            })
            .collect();
            for (id, length) in ids {
                self.is("a transfer of a piece", id, length)?;
            }
        }
        let unlink = Sqe { addr: path.as_ptr() as u64, ..sqe(Op::IORING_OP_UNLINKAT, libc::AT_FDCWD) };
        for last in [sqe(Op::IORING_OP_CLOSE, fd), unlink] {
            let result = self.run(last)?;
            expect(result == 0, || format!("operation {} gives {result}", last.opcode))?;
        }
        expect(read == written, || "what was read differs from what was written".into())
    }

    /// Returns adjacent pieces of `length` bytes, shuffled.
    fn pieces(&mut self, length: usize) -> Vec<(usize, usize)> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < length {
            let piece = 1 + self.rng.below((length - at).min(1 + length / 3));
            pieces.insert(self.rng.below(pieces.len() + 1), (at, piece));
            at += piece;
        }
        pieces
    }

    /// Opens, writes, syncs, reads, closes and unlinks by one chain on a registered file.
    fn chain(&mut self) -> Outcome {
        let files = [-1i32; 4];
        let result = self.ring.register(FILES, files.as_ptr() as usize, 4);
        expect(result == 0, || format!("empty slots cannot be registered: {result}"))?;
        let (slot, path) = (self.rng.below(4) as i32, self.world.new_path());
        let written = self.pattern(20_000);
        let mut read = vec![0u8; written.len()];
        let (path, len) = (path.as_ptr() as u64, written.len() as u32);
        let open = (libc::O_CREAT | libc::O_EXCL | libc::O_RDWR) as u32;
        let file_index = slot as u32 + 1;
        let chain = [
            Sqe {
                addr: path,
                len: 0o600,
                op_flags: open,
                file_index,
                ..sqe(Op::IORING_OP_OPENAT, libc::AT_FDCWD)
            },
            Sqe { addr: written.as_ptr() as u64, len, flags: FIXED_FILE, ..sqe(Op::IORING_OP_WRITE, slot) },
            Sqe { flags: FIXED_FILE, ..sqe(Op::IORING_OP_FSYNC, slot) },
            Sqe { addr: read.as_mut_ptr() as u64, len, flags: FIXED_FILE, ..sqe(Op::IORING_OP_READ, slot) },
            Sqe { file_index, ..sqe(Op::IORING_OP_CLOSE, 0) },
            Sqe { addr: path, ..sqe(Op::IORING_OP_UNLINKAT, libc::AT_FDCWD) },
        ];
        let results = [0, len as i32, 0, len as i32, 0, 0];
        let last = chain.len() - 1;
        let ids: Vec<u64> = chain
            .into_iter()
            .enumerate()
            .map(|(place, sqe)| {
                let flags = sqe.flags | self.maybe_async() | if place < last { LINK } else { 0 };
                self.push(Sqe { flags, ..sqe })
            })
            .collect();
        for (id, wanted) in ids.into_iter().zip(results) {
            self.is("a link of a chain", id, wanted)?;
        }
        expect(read == written, || "a chain has read something else than it wrote".into())
    }

    /// Runs concurrent connections: some send and end their side, some are reset, and for some no data comes until the receive
    /// is cancelled or times out.
    fn connections(&mut self, count: usize) -> Outcome {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
        // SAFETY: the socket listens already; the call raises its backlog.
        unsafe { libc::listen(listener.as_raw_fd(), 4096) };
        let direct = self.rng.percent(30);
        let clients = self.connect(&listener, count)?;
        let servers = self.accept(&listener, count, direct)?;
        let mut talk = Talk::new(self, clients, servers, direct);
        let done = talk.talk(self);
        // No request may be in flight on memory that is freed here.
        let ended = self.cancel_all();
        talk.clients.iter().filter(|&&fd| fd >= 0).for_each(|&fd| self.world.close(fd));
        for &server in &talk.servers {
            let closed = if direct {
                self.run(Sqe { file_index: server as u32 + 1, ..sqe(Op::IORING_OP_CLOSE, 0) })?
            } else {
                self.run(sqe(Op::IORING_OP_CLOSE, server))?
            };
            expect(closed == 0, || format!("CLOSE of a connection gives {closed}"))?;
        }
        done.and(ended)
    }

    fn connect(&mut self, listener: &TcpListener, count: usize) -> Outcome<Vec<i32>> {
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
            sin_zero: [0; 8],
        };
        let (addr, off) = (&raw const address as u64, size_of_val(&address) as u64);
        let mut connecting = Vec::new();
        for _ in 0..count {
            // SAFETY: a new socket.
            let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
            abort_at_close(fd);
            let flags = self.maybe_async();
            connecting.push((fd, self.push(Sqe { addr, off, flags, ..sqe(Op::IORING_OP_CONNECT, fd) })));
        }
        for &(_, id) in &connecting {
            self.is("CONNECT", id, 0)?;
        }
        Ok(connecting.into_iter().map(|(fd, _)| fd).collect())
    }

    /// Accepts connections; returns their descriptors or slots.
    fn accept(&mut self, listener: &TcpListener, count: usize, direct: bool) -> Outcome<Vec<i32>> {
        if direct {
            let files = vec![-1i32; count];
            let result = self.ring.register(FILES, files.as_ptr() as usize, count as u32);
            expect(result == 0, || format!("empty slots cannot be registered: {result}"))?;
        }
        let many = self.rng.percent(60);
        let accept = Sqe {
            ioprio: if many { IORING_ACCEPT_MULTISHOT as u16 } else { 0 },
            op_flags: if direct { 0 } else { libc::SOCK_CLOEXEC as u32 },
            file_index: if direct { u32::MAX } else { 0 },
            ..sqe(Op::IORING_OP_ACCEPT, listener.as_raw_fd())
        };
        let mut accepted = Vec::new();
        let mut id = self.push(accept);
        while accepted.len() < count {
            let cqe = self.wait(id)?;
            expect(cqe.res >= 0, || format!("ACCEPT gives {}", cqe.res))?;
            accepted.push(cqe.res);
            if cqe.flags & IORING_CQE_F_MORE == 0 && accepted.len() < count {
                id = self.push(accept);
            }
        }
        Ok(accepted)
    }

    /// Returns the next completion of any request.
    fn any(&mut self) -> Outcome<Cqe> {
        if self.taken.is_empty() { self.next() } else { Ok(self.taken.remove(0)) }
    }

    /// Cancels a waiting request, which must end by that. A request whose file was closed `unseen` may have ended before, when the
    /// engine detected the close, or tried the file that has the number now.
    fn cancel(&mut self, id: u64, unseen: bool) -> Outcome {
        let found = self.run(Sqe { addr: id, ..sqe(Op::IORING_OP_ASYNC_CANCEL, -1) })?;
        if unseen && found == -libc::ENOENT {
            let result = self.result(id)?;
            return expect(result < 0, || format!("a receive whose file is gone gives {result}"));
        }
        expect([0, -libc::EALREADY].contains(&found), || format!("a cancellation gives {found}"))?;
        self.is("a cancelled receive", id, -libc::ECANCELED)
    }

    fn cancel_all(&mut self) -> Outcome {
        while self.over.iter().any(|over| !over) {
            let op_flags = IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL;
            self.run(Sqe { op_flags, ..sqe(Op::IORING_OP_ASYNC_CANCEL, -1) })?;
        }
        Ok(())
    }
}

/// How a client treats its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The client sends, and ends its side.
    Sends,
    /// The client resets the connection.
    Resets,
    /// The client closes the connection during a receive, which is cancelled.
    ClosesEarly,
    /// The client receives without data, until it is cancelled or times out.
    Waits,
}

/// Connections, and the memory of their requests.
struct Talk {
    /// The clients' descriptors, -1 after the close.
    clients: Vec<i32>,
    /// The servers' descriptors, or slots of registered files.
    servers: Vec<i32>,
    direct: bool,
    ways: Vec<Way>,
    /// The data that each client sends: its number, then a pattern.
    data: Vec<Vec<u8>>,
    /// The data that each server has received.
    got: Vec<Vec<u8>>,
    /// Buffers into which the servers receive.
    places: Vec<[u8; 700]>,
    provided: Vec<u8>,
    /// Receives of servers, by user data.
    receives: HashMap<u64, usize>,
}

impl Talk {
    fn new(own: &mut OwnRing<'_>, clients: Vec<i32>, servers: Vec<i32>, direct: bool) -> Talk {
        let ways = [Way::Sends, Way::Sends, Way::Sends, Way::Resets, Way::ClosesEarly, Way::Waits];
        let data = |client: usize, own: &mut OwnRing<'_>| {
            let most = if own.rng.percent(5) { 60_000 } else { 3000 };
            [&(client as u16).to_ne_bytes(), &own.pattern(most)[..]].concat()
        };
        let count = clients.len();
        Talk {
            ways: (0..count).map(|_| own.rng.pick(&ways)).collect(),
            data: (0..count).map(|client| data(client, own)).collect(),
            got: vec![vec![]; count],
            places: vec![[0; 700]; count],
            provided: vec![0; BUFFERS * BUFFER],
            receives: HashMap::new(),
            clients,
            servers,
            direct,
        }
    }

    fn talk(&mut self, own: &mut OwnRing<'_>) -> Outcome {
        self.give(own, 0, BUFFERS)?;
        (0..self.servers.len()).for_each(|server| self.receive(own, server));
        let mut sends = HashMap::new();
        for client in 0..self.clients.len() {
            match self.ways[client] {
                Way::Sends => self.send(own, client, &mut sends),
                Way::Resets => own.world.close(std::mem::replace(&mut self.clients[client], -1)),
                Way::ClosesEarly => self.close_early(own, client)?,
                Way::Waits => self.wait_in_vain(own, client)?,
            }
        }
        let waits = self.ways.iter().filter(|&&way| way == Way::Waits).count();
        let (mut ended, mut reset) = (0, 0);
        while self.receives.len() > waits || sends.keys().any(|&id| !own.over[id as usize]) {
            let cqe = own.any()?;
            if let Some(&wanted) = sends.get(&cqe.user_data) {
                let right = cqe.res == wanted || cqe.flags & IORING_CQE_F_NOTIF != 0;
                expect(right, || format!("a send or shutdown gives {cqe:?}, not {wanted}"))?;
            } else if let Some(&server) = self.receives.get(&cqe.user_data) {
                self.received(own, server, &cqe)?;
                let goes_on = cqe.flags & IORING_CQE_F_MORE != 0;
                if !goes_on {
                    self.receives.remove(&cqe.user_data);
                }
                match cqe.res {
                    0 => ended += 1,
                    error if error == -libc::ECONNRESET => reset += 1,
                    _ if goes_on => {}
                    _ => self.receive(own, server),
                }
            }
        }
        let sent = self.ways.iter().filter(|&&way| way == Way::Sends).count();
        expect((ended, reset) == (sent, self.clients.len() - sent - waits), || {
            format!("{ended} connections ended and {reset} were reset, of {sent} and {waits} that wait")
        })?;
        for (id, _) in std::mem::take(&mut self.receives) {
            own.cancel(id, false)?;
        }
        self.got.iter().filter(|got| !got.is_empty()).try_for_each(|got| {
            let client = u16::from_ne_bytes([got[0], *got.get(1).unwrap_or(&0)]) as usize;
            expect(self.data.get(client) == Some(got), || {
                format!("{} bytes that no client has sent so", got.len())
            })
        })
    }

    /// Sends and shuts down, by one chain; records the expected results.
    fn send(&mut self, own: &mut OwnRing<'_>, client: usize, sends: &mut HashMap<u64, i32>) {
        let (fd, data) = (self.clients[client], &self.data[client]);
        let op = own.rng.pick(&[Op::IORING_OP_SEND, Op::IORING_OP_SEND_ZC]);
        let op_flags = (libc::MSG_WAITALL | libc::MSG_NOSIGNAL) as u32;
        let (addr, len) = (data.as_ptr() as u64, data.len() as u32);
        if own.ring.params.sq_entries - own.ring.pending() < 2 {
            own.ring.enter(64, 0, 0);
        }
        sends.insert(own.push(Sqe { addr, len, op_flags, flags: LINK, ..sqe(op, fd) }), len as i32);
        sends.insert(own.push(Sqe { len: libc::SHUT_WR as u32, ..sqe(Op::IORING_OP_SHUTDOWN, fd) }), 0);
    }

    /// Closes a descriptor early: the request keeps the connection, whatever happens to the number.
    fn close_early(&mut self, own: &mut OwnRing<'_>, client: usize) -> Outcome {
        let id = own.push(self.receive_of_client(client, 0));
        while own.ring.pending() > 0 {
            own.ring.enter(own.ring.pending(), 0, 0);
        }
        own.world.close(std::mem::replace(&mut self.clients[client], -1));
        own.cancel(id, own.world.engine == Engine::User && !own.world.program.announces)
    }

    fn wait_in_vain(&mut self, own: &mut OwnRing<'_>, client: usize) -> Outcome {
        if own.rng.percent(50) {
            let id = own.push(self.receive_of_client(client, 0));
            return own.cancel(id, false);
        }
        let time = [0u64, 500_000];
        if own.ring.params.sq_entries - own.ring.pending() < 2 {
            own.ring.enter(64, 0, 0);
        }
        let id = own.push(self.receive_of_client(client, LINK));
        let timeout = Sqe { addr: time.as_ptr() as u64, len: 1, ..sqe(Op::IORING_OP_LINK_TIMEOUT, -1) };
        let timeout = own.push(timeout);
        own.is("a receive with a timeout", id, -libc::ECANCELED)?;
        own.is("the timeout of a receive", timeout, -libc::ETIME)
    }

    fn receive_of_client(&mut self, client: usize, flags: u8) -> Sqe {
        // No data ever comes, so the buffer of the server can be used.
        let addr = self.places[client].as_mut_ptr() as u64;
        Sqe { addr, len: 1, flags, ..sqe(Op::IORING_OP_RECV, self.clients[client]) }
    }

    /// Receives from a client in one of three ways.
    fn receive(&mut self, own: &mut OwnRing<'_>, server: usize) {
        let fixed = if self.direct { FIXED_FILE } else { 0 };
        let mut receive = Sqe { flags: fixed, ..sqe(Op::IORING_OP_RECV, self.servers[server]) };
        if own.rng.percent(40) {
            receive.addr = self.places[server].as_mut_ptr() as u64;
            receive.len = self.places[server].len() as u32;
        } else {
            (receive.flags, receive.buf_index) = (fixed | BUFFER_SELECT, GROUP);
            receive.ioprio = own.rng.pick(&[0, IORING_RECV_MULTISHOT as u16]);
        }
        self.receives.insert(own.push(receive), server);
    }

    /// Processes received data.
    fn received(&mut self, own: &mut OwnRing<'_>, server: usize, cqe: &Cqe) -> Outcome {
        let passing = [-libc::ENOBUFS, -libc::ECONNRESET];
        expect(cqe.res >= 0 || passing.contains(&cqe.res), || format!("RECV gives {cqe:?}"))?;
        let count = cqe.res.max(0) as usize;
        if cqe.flags & IORING_CQE_F_BUFFER == 0 {
            expect(count <= self.places[server].len(), || format!("more than there is room for: {cqe:?}"))?;
            self.got[server].extend(&self.places[server][..count]);
            return Ok(());
        }
        let buffer = (cqe.flags >> IORING_CQE_BUFFER_SHIFT) as usize;
        expect(buffer < BUFFERS && count <= BUFFER, || format!("no buffer of the group: {cqe:?}"))?;
        self.got[server].extend(&self.provided[buffer * BUFFER..][..count]);
        self.give(own, buffer, 1)
    }

    /// Provides buffers to the ring by a request.
    fn give(&mut self, own: &mut OwnRing<'_>, first: usize, count: usize) -> Outcome {
        let result = own.run(Sqe {
            addr: self.provided[first * BUFFER..].as_mut_ptr() as u64,
            len: BUFFER as u32,
            off: first as u64,
            buf_index: GROUP,
            ..sqe(Op::IORING_OP_PROVIDE_BUFFERS, count as i32)
        })?;
        expect(result >= 0, || format!("PROVIDE_BUFFERS gives {result}"))
    }
}
