//! Multishot requests of every kind, ended in every way: whatever ends one, it posts exactly one CQE without
//! `IORING_CQE_F_MORE`, and nothing after it.

use crate::common::prelude::*;

const SHOT: u64 = 1;
const OTHER: u64 = 2;
const TEXT: &[u8] = b"abcd";
/// The bytes before the payload of a message in its buffer.
const HEADER: usize = 16;
const ENTRIES: usize = 8;
const INCREMENTAL: u16 = io_uring_register_pbuf_ring_flags::IOU_PBUF_RING_INC as u16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shot {
    Accept,
    AcceptDirect,
    Receive(Buffers),
    Bundle,
    Message(Buffers),
    Read(Buffers),
    Poll,
    PollUpdated,
}

/// The source of a request's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Buffers {
    List,
    Ring,
    Incremental,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    CancelledByUserData,
    CancelledByDescriptor,
    CancelledWithAll,
    CancelledSynchronously,
    PollRemoved,
    CancelledAfterClose,
    BuffersExhausted,
    QueueFull,
    Error,
    PeerGone,
    ThreadGone,
}

const SHOTS: [Shot; 14] = [
    Shot::Accept,
    Shot::AcceptDirect,
    Shot::Receive(Buffers::List),
    Shot::Receive(Buffers::Ring),
    Shot::Receive(Buffers::Incremental),
    Shot::Bundle,
    Shot::Message(Buffers::List),
    Shot::Message(Buffers::Ring),
    Shot::Message(Buffers::Incremental),
    Shot::Read(Buffers::List),
    Shot::Read(Buffers::Ring),
    Shot::Read(Buffers::Incremental),
    Shot::Poll,
    Shot::PollUpdated,
];

impl Shot {
    fn accepts(self) -> bool {
        matches!(self, Shot::Accept | Shot::AcceptDirect)
    }

    fn polls(self) -> bool {
        matches!(self, Shot::Poll | Shot::PollUpdated)
    }

    fn buffers(self) -> Option<Buffers> {
        match self {
            Shot::Receive(buffers) | Shot::Message(buffers) | Shot::Read(buffers) => Some(buffers),
            Shot::Bundle => Some(Buffers::Ring),
            _ => None,
        }
    }

    /// True if the shot can end so.
    fn has(self, end: End) -> bool {
        match end {
            End::PollRemoved => self.polls(),
            End::BuffersExhausted => self.buffers().is_some(),
            End::Error => !self.polls() && !matches!(self, Shot::Read(_)),
            End::PeerGone => !self.accepts(),
            _ => true,
        }
    }
}

/// One request, what it works on, and the other side of that.
struct Scene {
    ring: Ring,
    shot: Shot,
    listener: Option<TcpListener>,
    clients: Vec<TcpStream>,
    own: Option<OwnedFd>,
    peer: Option<File>,
    memory: Vec<u8>,
    header: Box<libc::msghdr>,
}

impl Scene {
    fn new(engine: Engine, shot: Shot, end: End) -> Scene {
        let entries = if end == End::QueueFull { 1 } else { 16 };
        let (own, peer, listener) = match shot {
            Shot::Accept | Shot::AcceptDirect => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                (OwnedFd::from(listener.try_clone().unwrap()), None, Some(listener))
            }
            Shot::Read(_) => {
                let (reader, writer) = pipe();
                (reader.into(), Some(writer), None)
            }
            _ => {
                let (own, peer) = UnixStream::pair().unwrap();
                (own.into(), Some(File::from(OwnedFd::from(peer))), None)
            }
        };
        let mut scene = Scene {
            ring: Ring::new(engine, entries, 0),
            shot,
            listener,
            clients: Vec::new(),
            own: Some(own),
            peer,
            memory: vec![0; 4096 + ENTRIES * 64],
            header: Box::new(zeroed()),
        };
        scene.provide(end);
        scene
    }

    /// Gives the ring its buffers: two where they are to run out, else more than are needed.
    fn provide(&mut self, end: End) {
        if self.shot == Shot::AcceptDirect {
            let slots = io_uring_rsrc_register { nr: 8, flags: IORING_RSRC_REGISTER_SPARSE, ..zeroed() };
            let size = size_of_val(&slots) as u32;
            assert_eq!(self.ring.register(IORING_REGISTER_FILES2, (&raw const slots).cast(), size), 0);
        }
        let Some(buffers) = self.shot.buffers() else { return };
        let count = if end == End::BuffersExhausted { 2 } else { ENTRIES };
        // An incremental one is used up by one message only if that fills it.
        let fills = TEXT.len() + if matches!(self.shot, Shot::Message(_)) { HEADER } else { 0 };
        let exact = buffers == Buffers::Incremental && end == End::BuffersExhausted;
        // Whole messages fit, or what is left of one would be another's end.
        let length = if exact { fills } else { 60 };
        // Buffers behind a page for a ring of them.
        let page = self.memory.as_mut_ptr() as usize;
        let start = page.next_multiple_of(16);
        if buffers == Buffers::List {
            let (fd, addr, len) = (count as i32, start as u64, length as u32);
            let list = Sqe { fd, addr, len, ..sqe(IORING_OP_PROVIDE_BUFFERS, OTHER) };
            assert_eq!(self.ring.run(&[list])[0].res, 0);
            return;
        }
        let flags = if buffers == Buffers::Incremental { INCREMENTAL } else { 0 };
        let ring = Box::leak(Box::new(crate::common::Buffers::of(&self.ring, ENTRIES as u16, 0, flags)));
        let places = self.memory[start - page..].chunks_mut(length).take(count);
        places.enumerate().for_each(|(index, buffer)| ring.add(index as u16, buffer));
    }

    fn fd(&self) -> RawFd {
        self.own.as_ref().expect("it is open").as_raw_fd()
    }

    fn start(&mut self) {
        let base = Sqe { fd: self.fd(), ..Sqe::default() };
        let poll = |events| Sqe { len: IORING_POLL_ADD_MULTI, op_flags: events as u32, ..base };
        let (code, sqe) = match self.shot {
            Shot::Accept => (IORING_OP_ACCEPT, Sqe { ioprio: IORING_ACCEPT_MULTISHOT as u16, ..base }),
            Shot::AcceptDirect => {
                let file_index = IORING_FILE_INDEX_ALLOC as u32;
                (IORING_OP_ACCEPT, Sqe { ioprio: IORING_ACCEPT_MULTISHOT as u16, file_index, ..base })
            }
            Shot::Receive(_) => {
                (IORING_OP_RECV, Sqe { ioprio: IORING_RECV_MULTISHOT as u16, flags: SELECT, ..base })
            }
            Shot::Bundle => {
                let ioprio = (IORING_RECV_MULTISHOT | IORING_RECVSEND_BUNDLE) as u16;
                (IORING_OP_RECV, Sqe { ioprio, flags: SELECT, ..base })
            }
            Shot::Message(_) => {
                let addr = std::ptr::from_ref(&*self.header) as u64;
                let ioprio = IORING_RECV_MULTISHOT as u16;
                (IORING_OP_RECVMSG, Sqe { addr, ioprio, flags: SELECT, ..base })
            }
            Shot::Read(_) => (IORING_OP_READ_MULTISHOT, Sqe { flags: SELECT, ..base }),
            Shot::Poll => (IORING_OP_POLL_ADD, poll(libc::POLLIN)),
            Shot::PollUpdated => (IORING_OP_POLL_ADD, poll(libc::POLLPRI)),
        };
        self.ring.submit(&[Sqe { opcode: code as u8, user_data: SHOT, ..sqe }]);
        if self.shot == Shot::PollUpdated {
            let update = Sqe {
                addr: SHOT,
                len: IORING_POLL_UPDATE_EVENTS | IORING_POLL_ADD_MULTI,
                op_flags: libc::POLLIN as u32,
                ..crate::common::sqe(IORING_OP_POLL_REMOVE, OTHER)
            };
            assert_eq!(self.ring.run(&[update])[0].res, 0);
        }
    }

    /// Makes one thing happen that the request tells of.
    fn fire(&mut self) {
        if let Some(listener) = &self.listener {
            self.clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        } else if let Some(peer) = &mut self.peer {
            peer.write_all(TEXT).unwrap();
        }
    }

    /// Makes it happen, and takes what was told of it.
    fn fire_and_collect(&mut self, trace: &mut Vec<Cqe>) {
        self.fire();
        let cqes = self.collect(1);
        trace.extend(cqes);
        self.drain();
    }

    /// A poll does not take what it tells of.
    fn drain(&self) {
        if self.shot.polls()
            && let Some(own) = &self.own
        {
            let mut bytes = [0; TEXT.len()];
            // SAFETY: memory of ours.
            unsafe {
                libc::recv(own.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT)
            };
        }
    }

    fn collect(&mut self, count: usize) -> Vec<Cqe> {
        let what = format!("{:?}, {:?}: {count} completions", self.ring.engine, self.shot);
        collect(&mut self.ring, count, &what)
    }

    fn cancel(&mut self, sqe: Sqe) -> Vec<Cqe> {
        self.ring.submit(&[Sqe { user_data: OTHER, ..sqe }]);
        self.collect(2)
    }

    fn cancel_by_user_data(&mut self) -> Vec<Cqe> {
        self.cancel(Sqe { addr: SHOT, ..sqe(IORING_OP_ASYNC_CANCEL, OTHER) })
    }

    /// Ends the request, and takes what was told until then.
    fn end(&mut self, end: End) -> Vec<Cqe> {
        let by = |op_flags| Sqe { op_flags, ..sqe(IORING_OP_ASYNC_CANCEL, OTHER) };
        match end {
            End::CancelledByUserData => self.cancel_by_user_data(),
            End::CancelledByDescriptor => {
                let fd = self.fd();
                self.cancel(Sqe { fd, ..by(IORING_ASYNC_CANCEL_FD) })
            }
            End::CancelledWithAll => self.cancel(by(IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL)),
            End::CancelledSynchronously => {
                assert_eq!(self.ring.sync_cancel(SHOT), 0);
                self.collect(1)
            }
            End::PollRemoved => self.cancel(Sqe { addr: SHOT, ..sqe(IORING_OP_POLL_REMOVE, OTHER) }),
            End::CancelledAfterClose => {
                let mut cqes = self.close();
                self.fire();
                cqes.extend(self.collect(1));
                cqes.extend(self.cancel_by_user_data());
                cqes
            }
            End::BuffersExhausted => {
                self.fire();
                self.collect(1)
            }
            End::QueueFull => self.fill(),
            End::Error => {
                self.break_off();
                self.collect(1)
            }
            End::PeerGone => {
                self.peer = None;
                let mut cqes = self.collect(1);
                if cqes.iter().all(|cqe| cqe.flags & IORING_CQE_F_MORE != 0) {
                    cqes.extend(self.cancel_by_user_data());
                }
                cqes
            }
            // What waited on behalf of a thread is ended when there is something to be done for it.
            End::ThreadGone => {
                self.fire();
                self.collect(1)
            }
        }
    }

    fn close(&mut self) -> Vec<Cqe> {
        let fd = self.own.take().expect("it is open").into_raw_fd();
        self.ring.run(&[Sqe { fd, ..sqe(IORING_OP_CLOSE, OTHER) }])
    }

    /// More happens than fits into the queue.
    fn fill(&mut self) -> Vec<Cqe> {
        for room in [true, true, false] {
            let before = self.queued();
            self.fire();
            until(&format!("{:?}, {:?} is told of", self.ring.engine, self.shot), || {
                self.ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
                if room { self.queued() > before } else { self.ring.overflowed() }
            });
            self.drain();
        }
        let mut cqes = self.ring.reap_all();
        self.ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        cqes.extend(self.ring.reap_all());
        cqes
    }

    fn queued(&self) -> u32 {
        let off = self.ring.params.cq_off;
        let word = |offset| self.ring.word(offset).load(Ordering::Acquire);
        word(off.tail).wrapping_sub(word(off.head))
    }

    /// The next attempt fails.
    fn break_off(&mut self) {
        if self.shot.accepts() {
            // SAFETY: a socket of the test's.
            assert_eq!(unsafe { libc::shutdown(self.fd(), libc::SHUT_RDWR) }, 0);
            return;
        }
        // What a Unix socket leaves unread when it is closed resets its peer.
        // SAFETY: memory of ours.
        let sent = unsafe { libc::send(self.fd(), TEXT.as_ptr().cast(), TEXT.len(), 0) };
        assert_eq!(sent, TEXT.len() as isize);
        self.peer = None;
    }

    /// Whether the other side is still there.
    fn can_fire(&self, end: End) -> bool {
        let listens = self.listener.is_some() && end != End::Error;
        listens && self.clients.len() < 16 || self.peer.is_some() && self.own.is_some()
    }
}

/// The comparable part of a CQE: an accepted descriptor is closed and becomes 0, and the hint that newer kernels give for Unix
/// sockets too is left out.
fn comparable(shot: Shot, mut cqe: Cqe) -> Cqe {
    if shot == Shot::Accept && cqe.user_data == SHOT && cqe.res >= 0 {
        drop(owned(cqe.res));
        cqe.res = 0;
    }
    cqe.flags &= !IORING_CQE_F_SOCK_NONEMPTY;
    cqe
}

/// The whole life of a request, as its CQEs tell it.
fn live(engine: Engine, shot: Shot, end: End) -> Vec<Cqe> {
    let mut scene = Scene::new(engine, shot, end);
    let mut trace = Vec::new();
    let begin = |scene: &mut Scene, trace: &mut Vec<Cqe>| {
        scene.start();
        if end != End::QueueFull {
            scene.fire_and_collect(trace);
            scene.fire_and_collect(trace);
        }
    };
    if end == End::ThreadGone {
        let (sent, trace) = (Sent(&mut scene), &mut trace);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let sent = sent;
                let Sent(scene) = sent;
                begin(scene, trace);
                frontend::thread_ends();
            });
            // Its closure alone would not have to be all of it.
            thread.join().unwrap();
        });
    } else {
        begin(&mut scene, &mut trace);
    }
    // Some look for the next buffer as soon as they have used one.
    if trace.last().is_none_or(|cqe| cqe.flags & IORING_CQE_F_MORE != 0) {
        trace.extend(scene.end(end));
    }
    let ended = trace.len();
    for _ in 0..2 {
        if scene.can_fire(end) {
            scene.fire();
        }
        scene.ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        trace.extend(scene.ring.reap_all());
    }
    let name = format!("{engine:?}, {shot:?}, {end:?}: {trace:?}");
    assert_eq!(trace.len(), ended, "nothing follows: {name}");
    let own: Vec<_> = trace.iter().filter(|cqe| cqe.user_data == SHOT).collect();
    let (last, others) = own.split_last().expect("CQEs of the request");
    assert_eq!(last.flags & IORING_CQE_F_MORE, 0, "the last one is the last: {name}");
    assert!(others.iter().all(|cqe| cqe.flags & IORING_CQE_F_MORE != 0), "the others are not: {name}");
    if matches!(shot, Shot::Poll | Shot::PollUpdated) && end == End::CancelledAfterClose {
        // The engine's tells once more what its file is ready for, if somebody looks before the next edge.
        trace.dedup();
    }
    trace.into_iter().map(|cqe| comparable(shot, cqe)).collect()
}

/// A scene that another thread uses while nobody else does.
struct Sent<'a>(&'a mut Scene);
// SAFETY: its pointers are to memory of its own.
unsafe impl Send for Sent<'_> {}

fn ends_once(end: End) {
    for shot in SHOTS.into_iter().filter(|shot| shot.has(end)) {
        both(|engine| (shot, live(engine, shot, end)));
    }
}

#[test]
fn cancelled_by_user_data() {
    ends_once(End::CancelledByUserData);
}

#[test]
fn cancelled_by_descriptor() {
    ends_once(End::CancelledByDescriptor);
}

#[test]
fn cancelled_with_all_others() {
    ends_once(End::CancelledWithAll);
}

#[test]
fn cancelled_synchronously() {
    ends_once(End::CancelledSynchronously);
}

#[test]
fn polls_removed() {
    ends_once(End::PollRemoved);
}

#[test]
fn a_close_ends_none() {
    ends_once(End::CancelledAfterClose);
}

#[test]
fn buffers_exhausted() {
    ends_once(End::BuffersExhausted);
}

#[test]
fn no_room_for_a_cqe() {
    ends_once(End::QueueFull);
}

#[test]
fn an_error() {
    ends_once(End::Error);
}

#[test]
fn the_peer_gone() {
    ends_once(End::PeerGone);
}

#[test]
fn the_thread_gone() {
    ends_once(End::ThreadGone);
}

/// The end of the ring lets go of what a request held although the program had closed it.
#[test]
fn the_ring_gone() {
    for shot in SHOTS {
        both(|engine| {
            let mut scene = Scene::new(engine, shot, End::CancelledAfterClose);
            let mut trace = Vec::new();
            scene.start();
            scene.fire_and_collect(&mut trace);
            trace.extend(scene.close());
            let Scene { ring, listener, mut peer, mut clients, .. } = scene;
            drop(ring);
            let address = listener.as_ref().map(|listener| listener.local_addr().unwrap());
            drop(listener);
            // Of a pipe, a socket and a listener: nobody reads, nobody writes, nobody answers.
            let is_gone = || match (&mut peer, address) {
                (Some(peer), _) if matches!(shot, Shot::Read(_)) => peer.write(TEXT).is_err(),
                (Some(peer), _) => peer.read(&mut [0; 8]).is_ok_and(|count| count == 0),
                (None, Some(address)) => {
                    TcpStream::connect(address).map(|client| clients.push(client)).is_err()
                }
                (None, None) => true,
            };
            until(&format!("{engine:?}, {shot:?}: what it held is gone"), is_gone);
            trace.into_iter().map(|cqe| comparable(shot, cqe)).collect::<Vec<_>>()
        });
    }
}

/// Waits for so many completions. A kernel's ring that was closed interrupts the thread's next sleeps.
fn collect(ring: &mut Ring, count: usize, what: &str) -> Vec<Cqe> {
    let mut cqes = ring.reap_all();
    until(what, || {
        if cqes.len() < count {
            ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
            cqes.extend(ring.reap_all());
        }
        cqes.len() >= count
    });
    cqes
}

static SOON: [i64; 2] = [0, 1_000_000];

/// Timeouts fire by themselves, so how often is nobody's matter.
#[test]
fn timeouts() {
    let by = |op_flags| Sqe { op_flags, ..sqe(IORING_OP_ASYNC_CANCEL, OTHER) };
    let ends = [
        Sqe { addr: SHOT, ..by(0) },
        by(IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL),
        Sqe { addr: SHOT, ..sqe(IORING_OP_TIMEOUT_REMOVE, OTHER) },
    ];
    for end in ends {
        both(|engine| {
            let mut ring = Ring::new(engine, 16, 0);
            let shot = Sqe { op_flags: IORING_TIMEOUT_MULTISHOT, ..timeout(SHOT, &SOON) };
            ring.submit(&[shot]);
            let mut cqes = collect(&mut ring, 2, "two rounds");
            // One that comes while the timer goes off finds nothing, and the timeout goes on: it has to be sent again.
            let finds = if end.op_flags == 0 { 0 } else { 1 };
            let last = |cqes: &[Cqe], of| {
                cqes.iter().rfind(|cqe| cqe.user_data == of && cqe.flags & IORING_CQE_F_MORE == 0).copied()
            };
            while last(&cqes, OTHER).is_none_or(|cqe| cqe.res != finds) {
                cqes.retain(|cqe| cqe.user_data != OTHER);
                if last(&cqes, SHOT).is_some() {
                    // This thread did not run for so long that there was no room for the next round.
                    cqes.clear();
                    ring.submit(&[shot]);
                }
                ring.submit(&[end]);
                while last(&cqes, OTHER).is_none() {
                    cqes.extend(collect(&mut ring, 1, "an answer"));
                }
            }
            while last(&cqes, SHOT).is_none() {
                cqes.extend(collect(&mut ring, 1, "the end"));
            }
            // Long enough for it to have fired again.
            for user_data in [3, 4, 5] {
                ring.submit(&[timeout(user_data, &SOON)]);
                cqes.extend(collect(&mut ring, 1, "a later timeout"));
            }
            cqes.retain(|cqe| cqe.flags & IORING_CQE_F_MORE == 0);
            cqes
        });
    }
}

/// As many as it was to fire, and where there is no room for the next.
#[both]
fn timeouts_end_by_themselves(engine: Engine) -> impl Answer {
    [(16, 3), (1, 0)].map(|(entries, rounds)| {
        let mut ring = Ring::new(engine, entries, 0);
        ring.submit(&[Sqe { off: rounds, op_flags: IORING_TIMEOUT_MULTISHOT, ..timeout(SHOT, &SOON) }]);
        if rounds == 0 {
            until("there is no room for a timeout", || {
                ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
                ring.overflowed()
            });
        }
        collect(&mut ring, 3, "all rounds")
    })
}

/// One call does not fetch so much that a request which goes on finds no room.
#[both(32, DEFER)]
fn other_completions_leave_room(mut ring: Ring) -> impl Answer {
    const OTHERS: u64 = 62;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pairs: Vec<_> = (0..OTHERS).map(|_| UnixStream::pair().unwrap()).collect();
    let mut bytes = [0u8; OTHERS as usize];
    for ((own, _), byte) in pairs.iter().zip(&mut bytes) {
        let addr = std::ptr::from_mut(byte) as u64;
        ring.submit(&[Sqe { fd: own.as_raw_fd(), addr, len: 1, ..sqe(IORING_OP_RECV, OTHER) }]);
    }
    let ioprio = IORING_ACCEPT_MULTISHOT as u16;
    ring.submit(&[Sqe { fd: listener.as_raw_fd(), ioprio, ..sqe(IORING_OP_ACCEPT, SHOT) }]);
    pairs.iter().for_each(|(_, peer)| assert_eq!((&*peer).write(b"x").unwrap(), 1));
    let _clients: Vec<_> =
        (0..4).map(|_| TcpStream::connect(listener.local_addr().unwrap()).unwrap()).collect();
    let cqes = collect(&mut ring, OTHERS as usize + 4, "all that was waited for");
    by_user_data(cqes.into_iter().map(|cqe| comparable(Shot::Accept, cqe)).collect())
}
