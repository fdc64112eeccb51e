//! Lines of text: chains, multishots, zero-copy sends, errors, what never completed.

mod common;

use anyring_chaos_plan::Fault;
use anyring_tracer::Callers;
use common::*;

fn linked(opcode: u8) -> Sqe {
    Sqe { flags: LINK, ..sqe(opcode) }
}

#[test]
fn a_process_with_a_ring_and_a_read() {
    let mut stream = Stream::default();
    stream.started("/bin/cat", &["cat", "/etc/hosts"], 0);
    stream.ring();
    stream.named(4, "/etc/hosts");
    let read = stream.submitted(Sqe { addr: 0x1000, len: 4096, user_data: 7, ..sqe(READ) }, &[]);
    let data = attached(Content::Data, 0x1000, b"127.0.0.1\tlocalhost\n::1 localhost ip6-localhost");
    stream.posted(
        Completed { serial: read, user_data: 7, res: 220, marks: LAST, ..Completed::default() },
        &[data.length(220)],
    );
    stream.entered(Entered { to_submit: 1, min_complete: 1, flags: 1, result: 1, ..Entered::default() });
    stream.ended();
    assert_snapshot!(stream.shown(Settings { enters: true, ..Settings::default() }, Session::text));
}

#[test]
fn how_a_request_was_done() {
    let mut stream = Stream::default();
    let steps = [
        (Step::Waits, 1),
        (Step::Woken, 1),
        (Step::ByCaller, 0),
        (Step::ByWorker, 1234),
        (Step::ByWorker, 0),
        (Step::ByAio, 0),
        (Step::InTrain, 5),
        (Step::Armed, 0),
        (Step::Deferred, 0),
    ];
    for (step, value) in steps {
        let serial = stream.submitted(sqe(NOP), &[]);
        stream.stepped(serial, step, value);
        stream.completed(serial, 0);
    }
    assert_snapshot!(stream.text());
}

/// Test names of frames: the offset in the code of the process, and the size of the stack.
#[derive(Default)]
struct Names(std::collections::BTreeMap<u32, u64>);

impl Callers for Names {
    fn mapped(&mut self, process: u32, mapped: &Mapped, _: &std::path::Path) {
        self.0.insert(process, mapped.start);
    }
    fn started(&mut self, process: u32, parent: u32) {
        self.0.insert(process, self.0.get(&parent).copied().unwrap_or(0));
    }
    fn ended(&mut self, process: u32) {
        self.0.remove(&process);
    }
    fn frames(&mut self, process: u32, called: &Called, stack: &[u8]) -> Vec<String> {
        let start = self.0.get(&process).copied().unwrap_or(0);
        vec![format!("function+{:#x}", called.ip - start), format!("main, {} bytes up", stack.len())]
    }
}

#[test]
fn a_request_is_its_threads_newest_calls() {
    let mut stream = Stream::default();
    stream.started("/bin/server", &["server"], 0);
    stream.put(
        Kind::Mapped,
        &Mapped { start: 0x1000, end: 0x2000, offset: 0 },
        &[attached(Content::Path, 0, b"/a")],
    );
    let call = |stream: &mut Stream, ip| {
        let stack = attached(Content::Stack, 0x9000, &[0; 40]);
        stream.put(Kind::Called, &Called { ip, sp: 0x9000, bp: 0, lr: 0 }, &[stack]);
    };
    call(&mut stream, 0x1001);
    let first = stream.submitted(sqe(NOP), &[]);
    let second = stream.submitted(sqe(NOP), &[]);
    stream.entered(Entered::default());
    // No call submitted this request, as with an SQ thread.
    let third = stream.submitted(sqe(NOP), &[]);
    stream.process = 101;
    stream.started("/bin/server", &["server"], 100);
    call(&mut stream, 0x1002);
    let of_child = stream.submitted(sqe(NOP), &[]);
    stream.completed(of_child, 0);
    stream.process = 100;
    [first, second, third].into_iter().for_each(|serial| stream.completed(serial, 0));
    let text = stream.shown(Settings::default(), |session, to| session.callers(Names::default()).text(to));
    assert_snapshot!(text);
    let json = stream.shown(Settings::default(), |session, to| session.callers(Names::default()).json(to));
    assert!(json.contains(r#""caller":["function+0x1","main, 40 bytes up"]"#), "{json}");
    assert_eq!(json.matches("caller").count(), 3, "{json}");
}

#[test]
fn faults_that_were_injected_are_named() {
    let mut stream = Stream::default();
    let serial = stream.submitted(sqe(NOP), &[]);
    stream.stepped(serial, Step::Injected, Fault::Short as u32);
    stream.stepped(serial, Step::Injected, Fault::Late as u32);
    stream.completed(serial, 0);
    let shown = stream.text();
    assert!(shown.contains(" (injected: short, late)"), "{shown}");
}

#[test]
fn faults_that_calls_met_are_told() {
    let mut stream = Stream::default();
    for fault in [Fault::EnterInterrupted, Fault::RegisterBusy, Fault::SetupNoMemory] {
        stream.put(Kind::Injected, &Injected { call: 3, fault: fault as u32, reserved: 0 }, &[]);
    }
    stream.put(Kind::Injected, &Injected { call: 3, fault: 9999, reserved: 0 }, &[]);
    let shown = stream.text();
    assert!(shown.contains("io_uring_enter, call #3: injected enter-eintr ("), "{shown}");
    assert!(shown.contains("io_uring_register, call #3: injected register-ebusy ("), "{shown}");
    assert!(shown.contains("io_uring_setup, call #3: injected setup-enomem ("), "{shown}");
    assert_eq!(shown.lines().count(), 3, "{shown}");
}

#[test]
fn errors_have_names_and_reasons() {
    let mut stream = Stream::default();
    for res in [-11, -125, -2, -512, -4095] {
        let serial = stream.submitted(sqe(NOP), &[]);
        stream.completed(serial, res);
    }
    assert_snapshot!(stream.text());
}

#[test]
fn a_chain_is_a_tree_and_names_who_broke_it() {
    let mut stream = Stream::default();
    let first = stream.submitted(linked(NOP), &[]);
    let second = stream.linked(first, linked(READ), &[]);
    let third = stream.linked(second, linked(WRITE), &[]);
    let fourth = stream.linked(third, sqe(NOP), &[]);
    stream.completed(first, 0);
    stream.completed(second, -9);
    stream.completed(third, -125);
    // Nothing of the chain is shown before its last member is done.
    let other = stream.submitted(sqe(NOP), &[]);
    stream.completed(other, 0);
    stream.completed(fourth, -125);
    assert_snapshot!(stream.text());
}

#[test]
fn who_broke_a_chain_is_known_without_steps() {
    let mut stream = Stream::default();
    // Another thread cancels the head.
    let first = stream.submitted(linked(READ), &[]);
    let second = stream.linked(first, linked(NOP), &[]);
    let third = stream.linked(second, sqe(NOP), &[]);
    for serial in [first, second, third] {
        stream.completed(serial, -125);
    }
    // A member in the middle times out.
    let first = stream.submitted(linked(NOP), &[]);
    let second = stream.linked(first, linked(READ), &[]);
    let watch = stream.linked(second, linked(LINK_TIMEOUT), &[]);
    let fourth = stream.linked(watch, sqe(NOP), &[]);
    for (serial, res) in [(first, 0), (second, -125), (watch, -62), (fourth, -125)] {
        stream.completed(serial, res);
    }
    assert_snapshot!(stream.text());
}

#[test]
fn a_member_that_is_cancelled_itself_blames_nobody() {
    let mut stream = Stream::default();
    let first = stream.submitted(linked(NOP), &[]);
    let second = stream.linked(first, sqe(READ), &[]);
    stream.completed(first, 0);
    stream.stepped(second, Step::Canceled, 0);
    stream.completed(second, -125);
    assert!(!stream.text().contains("broken"), "{}", stream.text());
}

#[test]
fn control_messages_of_any_length() {
    const SENDMSG: u8 = 9;
    let mut stream = Stream::default();
    for (length, data) in [(20, 5), (24, 5), (15, 5), (0, 5), (u64::MAX, 5), (u64::MAX - 7, 5)] {
        let header = attached(Content::Message, 0x1000, &words(&[0, 0, 0, 0, 0xb000, 48, 0]));
        let control = words(&[length, 1 << 32 | 1, data, 17, 2 << 32, 0x41]);
        let control = attached(Content::Control, 0xb000, &control);
        let serial = stream.submitted(Sqe { addr: 0x1000, ..sqe(SENDMSG) }, &[header, control]);
        stream.completed(serial, 0);
    }
    assert_snapshot!(stream.text());
}

#[test]
fn bytes_are_quoted_as_strace_does() {
    let bytes = b"\0\x007\x008\x01a\x7f\xff\"\\\n\r\t\x0b\x0c~ ";
    let mut stream = Stream::default();
    let data = attached(Content::Data, 0x1000, bytes);
    let serial = stream.submitted(Sqe { addr: 0x1000, len: bytes.len() as u32, ..sqe(WRITE) }, &[data]);
    stream.completed(serial, 0);
    let quoted = r#""\0\0007\08\1a\177\377\"\\\n\r\t\v\f~ ""#;
    assert!(stream.text().contains(quoted), "{}", stream.text());
}

#[test]
fn a_cancelled_member_breaks_its_chain() {
    let mut stream = Stream::default();
    let first = stream.submitted(linked(READ), &[]);
    let second = stream.linked(first, sqe(NOP), &[]);
    stream.stepped(first, Step::Canceled, 0);
    stream.completed(first, -125);
    stream.completed(second, -125);
    assert_snapshot!(stream.text());
}

#[test]
fn link_timeouts_name_what_they_watch() {
    let mut stream = Stream::default();
    let time = attached(Content::Structure, 0x2000, &words(&[1, 500]));
    let timeout = || Sqe { addr: 0x2000, len: 1, ..linked(LINK_TIMEOUT) };
    // The read completes in time.
    let read = stream.submitted(linked(READ), &[]);
    let watch = stream.linked(read, Sqe { flags: 0, ..timeout() }, std::slice::from_ref(&time));
    stream.completed(read, 10);
    stream.completed(watch, -125);
    // The timeout expires; the request behind it is cancelled because the read was.
    let read = stream.submitted(linked(READ), &[]);
    let watch = stream.linked(read, timeout(), &[time]);
    let behind = stream.linked(watch, sqe(NOP), &[]);
    stream.stepped(read, Step::Waits, 1);
    stream.stepped(read, Step::Canceled, 0);
    stream.completed(read, -125);
    stream.completed(watch, -62);
    stream.completed(behind, -125);
    assert_snapshot!(stream.text());
}

#[test]
fn a_chain_that_its_batch_ends() {
    let mut stream = Stream::default();
    let first = stream.submitted(linked(NOP), &[]);
    stream.completed(first, 0);
    let second = stream.submitted(sqe(NOP), &[]);
    stream.completed(second, 0);
    let third = stream.submitted(linked(NOP), &[]);
    stream.completed(third, 0);
    stream.entered(Entered::default());
    let fourth = stream.submitted(sqe(NOP), &[]);
    stream.completed(fourth, 0);
    let settings = Settings { enters: true, ..Settings::default() };
    assert_snapshot!(stream.shown(settings, Session::text));
}

#[test]
fn a_multishot_is_a_life_line() {
    let mut stream = Stream::default();
    let accept = stream.submitted(Sqe { ioprio: 1, ..sqe(ACCEPT) }, &[]);
    stream.stepped(accept, Step::Waits, 1);
    for fd in 5..12 {
        stream.named(fd, "TCP 127.0.0.1:80");
        stream.posted(Completed { serial: accept, res: fd, flags: F_MORE, ..Completed::default() }, &[]);
    }
    stream.completed(accept, -125);
    let other = stream.submitted(Sqe { ioprio: 1, ..sqe(ACCEPT) }, &[]);
    stream.posted(Completed { serial: other, res: 5, flags: F_MORE, ..Completed::default() }, &[]);
    assert_snapshot!(stream.text());
}

/// Completions of a zero-copy receive say where the data is.
#[test]
fn a_zero_copy_receive_says_where() {
    let mut stream = Stream::default();
    let receive = stream.submitted(Sqe { ioprio: 2, ..sqe(RECV_ZC) }, &[]);
    for (res, offset) in [(4096, 0), (20, 0x3000)] {
        let big = [offset, 0];
        stream.posted(Completed { serial: receive, res, flags: F_MORE, big, ..Completed::default() }, &[]);
    }
    stream.completed(receive, 0);
    assert_snapshot!(stream.text());
}

#[test]
fn a_zero_copy_send_has_both_completions_on_its_line() {
    let mut stream = Stream::default();
    let data = || attached(Content::Data, 0x3000, b"hello");
    let send =
        |stream: &mut Stream| stream.submitted(Sqe { addr: 0x3000, len: 5, ..sqe(SEND_ZC) }, &[data()]);
    let posted = |serial, res, flags, marks| Completed { serial, res, flags, marks, ..Completed::default() };
    let serial = send(&mut stream);
    stream.posted(posted(serial, 5, F_MORE, LAST), &[]);
    stream.time_ns += 50_000;
    stream.posted(posted(serial, 0, F_NOTIF, 0), &[]);
    // The kernel copied the data.
    let serial = send(&mut stream);
    stream.posted(posted(serial, 5, F_MORE, LAST), &[]);
    stream.posted(posted(serial, i32::MIN, F_NOTIF, LAST), &[]);
    // A failed send has no notification.
    let serial = send(&mut stream);
    stream.posted(posted(serial, -32, 0, LAST), &[]);
    // The notification never comes.
    let serial = send(&mut stream);
    stream.posted(posted(serial, 5, F_MORE, LAST), &[]);
    assert_snapshot!(stream.text());
}

#[test]
fn completions_say_what_is_out_of_the_ordinary() {
    let mut stream = Stream::default();
    let mut each = |completed: Completed| {
        let serial = stream.submitted(Sqe { user_data: 7, ..sqe(NOP) }, &[]);
        stream.posted(Completed { serial, marks: completed.marks | LAST, ..completed }, &[]);
    };
    let ordinary = Completed { user_data: 7, ..Completed::default() };
    each(Completed { flags: F_BUFFER | 3 << 16, ..ordinary });
    each(Completed { marks: SKIPPED, ..ordinary });
    each(Completed { marks: OVERFLOWED, ..ordinary });
    each(Completed { marks: FOUND, ..ordinary });
    each(Completed { flags: 4 | 1 << 12, ..ordinary });
    each(Completed { big: [1, 2], ..ordinary });
    each(Completed { user_data: 8, ..ordinary });
    stream.posted(Completed { res: 9, user_data: 1, ..ordinary }, &[]);
    stream.posted(Completed { serial: 99, res: 9, user_data: 1, ..ordinary }, &[]);
    assert_snapshot!(stream.text());
}

#[test]
fn what_never_completes_is_told_where_its_process_or_ring_ends_or_the_trace() {
    let mut stream = Stream::default();
    let waits = stream.submitted(sqe(READ), &[]);
    stream.stepped(waits, Step::Waits, 1);
    stream.put(Kind::RingEnded, &RingEnded { in_flight: 1, cq_ready: 2, reserved: 0 }, &[]);
    let first = stream.submitted(linked(READ), &[]);
    stream.linked(first, sqe(NOP), &[]);
    stream.completed(first, 3);
    stream.ended();
    stream.submitted(sqe(READ), &[]);
    // The process executes another program.
    stream.started("/bin/true", &["true"], 0);
    stream.submitted(sqe(READ), &[]);
    assert_snapshot!(stream.text());
}

#[test]
fn an_end_may_be_among_what_was_dropped() {
    let mut stream = Stream::default();
    stream.started("/bin/true", &["true"], 0);
    stream.ring();
    for (dropped, said) in [
        (0, "killed, perhaps\n"),
        (3, "killed, perhaps, or its end is among the 3 events that were dropped\n"),
    ] {
        let text = stream.shown(Settings::default(), |session, to| {
            let mut session = session.text(to);
            session.miss(dropped);
            session
        });
        assert!(text.ends_with(said), "{text}");
    }
}

#[test]
fn a_success_without_a_cqe_is_unseen_on_the_kernels_rings() {
    const SKIP: u8 = 1 << 6;
    for (engine, shown) in
        [(ENGINE_KERNEL, ") = ? [no CQE asked for]\n"), (ENGINE_USER, ") <unfinished ...>\n")]
    {
        let mut stream = Stream::default();
        stream.put(Kind::Started, &Started { parent: 0, engine }, &[]);
        stream.submitted(Sqe { flags: SKIP, ..sqe(NOP) }, &[]);
        let text = stream.text();
        assert!(text.contains(shown), "{text}");
        let summary = stream.shown(Settings::default(), Session::summary);
        assert_eq!(summary.contains("never completed"), engine == ENGINE_USER, "{summary}");
        let table = stream.shown(Settings::default(), Session::counts);
        let unfinished = u32::from(engine == ENGINE_USER);
        assert!(table.contains(&format!(" 1        0        0          {unfinished} ")), "{table}");
        let json = stream.shown(Settings::default(), Session::json);
        assert_eq!(json.contains(r#""state":"unseen""#), engine == ENGINE_KERNEL, "{json}");
    }
}

#[test]
fn how_the_kernel_did_a_request_is_not_known() {
    for (engine, is_known) in [(ENGINE_KERNEL, false), (ENGINE_USER, true)] {
        let mut stream = Stream::default();
        stream.put(Kind::Started, &Started { parent: 0, engine }, &[]);
        let serial = stream.submitted(sqe(NOP), &[]);
        stream.completed(serial, 0);
        assert_eq!(stream.text().contains("inline"), is_known, "{}", stream.text());
        let json = stream.shown(Settings::default(), Session::json);
        assert_eq!(json.contains(r#""way":"inline""#), is_known, "{json}");
        assert_eq!(json.contains(r#""way""#), is_known, "{json}");
    }
}

/// A process may have rings of both engines, if the kernel is too old for some of them.
#[test]
fn the_engine_is_that_of_the_ring() {
    for (of_process, of_ring) in [(ENGINE_USER, ENGINE_KERNEL), (ENGINE_KERNEL, ENGINE_USER)] {
        let mut stream = Stream::default();
        stream.put(Kind::Started, &Started { parent: 0, engine: of_process }, &[]);
        stream.put(Kind::RingMade, &RingMade { result: 3, engine: of_ring, ..RingMade::default() }, &[]);
        let serial = stream.submitted(sqe(NOP), &[]);
        stream.completed(serial, 0);
        assert_eq!(stream.text().contains("inline"), of_ring == ENGINE_USER, "{}", stream.text());
    }
}

#[test]
fn a_process_that_is_forked_knows_its_parents_files() {
    let mut stream = Stream::default();
    stream.started("/bin/server", &["server"], 0);
    stream.named(4, "/etc/hosts");
    stream.process = 101;
    stream.started("/bin/server", &["server"], 100);
    let serial = stream.submitted(sqe(READ), &[]);
    stream.completed(serial, 0);
    stream.named(4, "");
    let serial = stream.submitted(sqe(READ), &[]);
    stream.completed(serial, 0);
    assert_snapshot!(stream.text());
}

#[test]
fn calls_are_decoded() {
    let mut stream = Stream::default();
    let made = RingMade {
        result: 3,
        entries: 5,
        flags: 1 << 1 | 1 << 13 | 1 << 30,
        features: 3,
        sq_entries: 8,
        cq_entries: 16,
        engine: ENGINE_KERNEL,
        sq_thread_cpu: 0,
        sq_thread_idle_ms: 200,
        workers_fd: 0,
    };
    stream.put(Kind::RingMade, &made, &[]);
    stream.put(Kind::RingMade, &RingMade { result: -22, ..made }, &[]);
    let mut register = |opcode, count, result, memory: &[Attached]| {
        let argument = if memory.is_empty() { 0 } else { 0x4000 };
        let registered =
            Registered { opcode, count, argument, result, duration_ns: 1500, ..Registered::default() };
        stream.put(Kind::Registered, &registered, memory);
    };
    let structure = |bytes: &[u8]| [attached(Content::Structure, 0x4000, bytes)];
    register(0, 2, 0, &[attached(Content::Vectors, 0x4000, &words(&[0x5000, 4096, 0x6000, 10]))]);
    register(2, 3, 0, &structure(&[5, 0, 0, 0, 255, 255, 255, 255, 7, 0, 0, 0]));
    register(2, 3, -14, &[attached(Content::Structure, 0x4000, &[]).unreadable()]);
    register(20, 1, 1, &structure(&words(&[u64::from(u32::MAX), 3])));
    register(22, 1, 0, &structure(&words(&[0x7000, 1 << 32 | 16, 0, 0, 0])));
    register(3 | 1 << 31, 0, 0, &[]);
    register(9, 0, 1, &[]);
    register(99, 0, -22, &[]);
    stream.put(Kind::Unseen, &Unseen { count: 3, why: UNSEEN_REAPED }, &[]);
    assert_snapshot!(stream.text());
}

#[test]
fn registered_files_and_other_descriptors_have_names() {
    let mut stream = Stream::default();
    stream.named(17, "/etc/hosts");
    stream.named(4, "pipe:[4]");
    stream.named(2, "/dev/tty");
    let put = |stream: &mut Stream, sqe: Sqe, file, res| {
        let submitted = Submitted { serial: 1, sqe: *sqe.words(), behind: 0, file, reserved: 0 };
        stream.put(Kind::Submitted, &submitted, &[]);
        stream.completed(1, res);
    };
    // The registered file 2 is not the descriptor 2.
    put(&mut stream, Sqe { flags: 1, fd: 2, ..sqe(READ) }, 17, 0);
    put(&mut stream, Sqe { flags: 1, fd: 2, ..sqe(READ) }, -1, -9);
    const SPLICE: u8 = 30;
    const FD_IN_FIXED: u32 = 1 << 31;
    put(&mut stream, Sqe { file_index: 2, ..sqe(SPLICE) }, 4, 0);
    put(&mut stream, Sqe { file_index: 2, op_flags: FD_IN_FIXED, ..sqe(SPLICE) }, 4, 0);
    const OPENAT: u8 = 18;
    stream.named(5, "/etc/passwd");
    put(&mut stream, Sqe { fd: -100, ..sqe(OPENAT) }, -1, 5);
    put(&mut stream, Sqe { fd: -100, file_index: 6, ..sqe(OPENAT) }, -1, 0);
    put(&mut stream, Sqe { fd: -100, file_index: u32::MAX, ..sqe(OPENAT) }, -1, 5);
    const PIPE: u8 = 62;
    stream.named(0, "/dev/null");
    put(&mut stream, sqe(PIPE), -1, 0);
    const POLL_ADD: u8 = 6;
    put(&mut stream, Sqe { op_flags: 1, ..sqe(POLL_ADD) }, 4, 0x11);
    assert_snapshot!(stream.text());
}

#[test]
fn socket_addresses_of_every_family() {
    const CONNECT: u8 = 16;
    let mut stream = Stream::default();
    let mut connect = |address: &[u8]| {
        let sqe = Sqe { addr: 0x1000, off: address.len() as u64, ..sqe(CONNECT) };
        let serial = stream.submitted(sqe, &[attached(Content::SocketAddress, 0x1000, address)]);
        stream.completed(serial, 0);
    };
    connect(&[2, 0, 0, 80, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut ipv6 = vec![10, 0, 0x1f, 0x90, 0, 0, 0, 7];
    ipv6.extend([0; 15]);
    ipv6.extend([1, 3, 0, 0, 0]);
    connect(&ipv6);
    connect(b"\x01\0/run/socket\0rest");
    connect(b"\x01\0\0abstract\0name");
    connect(b"\x01\0");
    connect(&[16, 0, 0, 0, 1, 2, 3, 4]);
    connect(&[2, 0, 0]);
    connect(&[]);
    assert_snapshot!(stream.text());
}

#[test]
fn data_is_shown_up_to_the_sample() {
    let mut stream = Stream::default();
    let data = attached(Content::Data, 0x1000, b"0123456789");
    let write = |length| Sqe { addr: 0x1000, len: length, ..sqe(WRITE) };
    let serial = stream.submitted(write(10), &[data]);
    stream.completed(serial, 10);
    let shown = |sample| stream.shown(Settings { sample, ..Settings::default() }, Session::text);
    assert!(shown(4).contains(r#"WRITE(4, "0123"..., 10, "#), "{}", shown(4));
    assert!(shown(10).contains(r#"WRITE(4, "0123456789", 10, "#), "{}", shown(10));
    assert!(shown(0).contains(r#"WRITE(4, ""..., 10, "#), "{}", shown(0));
}

#[test]
fn colours_are_there_if_asked_for() {
    let mut stream = Stream::default();
    let serial = stream.submitted(sqe(NOP), &[]);
    stream.completed(serial, -11);
    let coloured = stream.shown(Settings { colours: true, ..Settings::default() }, Session::text);
    assert!(coloured.contains("\x1b[1mNOP\x1b[0m("), "{coloured:?}");
    assert!(coloured.contains("\x1b[31m-1 EAGAIN"), "{coloured:?}");
    assert!(!stream.text().contains('\x1b'));
    let mut plain = String::new();
    let mut rest = coloured.as_str();
    while let Some((text, behind)) = rest.split_once('\x1b') {
        plain.push_str(text);
        rest = behind.split_once('m').unwrap().1;
    }
    assert_eq!(plain + rest, stream.text());
}

/// Returns the events of a ring of the user engine, watched from outside: a request that was seen to its end, and one
/// that was lost sight of.
fn watched() -> Stream {
    let mut stream = Stream::default();
    let found =
        RingFound { fd: 7, engine: ENGINE_USER, sq_entries: 8, cq_entries: 16, submitted: 41, posted: 40 };
    stream.put(Kind::RingFound, &found, &[]);
    let seen = stream.submitted(sqe(READ), &[]);
    let lost = stream.submitted(sqe(WRITE), &[]);
    let earlier = stream.submitted(sqe(ACCEPT), &[]);
    let marks = LAST | SAMPLED | EARLIER;
    stream.posted(Completed { serial: earlier, res: 9, marks, ..Completed::default() }, &[]);
    stream.posted(Completed { serial: seen, res: 3, marks: LAST | SAMPLED, ..Completed::default() }, &[]);
    stream.posted(Completed { user_data: 9, marks: LAST | SAMPLED, ..Completed::default() }, &[]);
    stream.put(Kind::LostSight, &LostSight { serial: lost }, &[]);
    for why in [UNSEEN_BETWEEN_LOOKS, UNSEEN_POSTED_BETWEEN_LOOKS, UNSEEN_REQUESTS_OF_COMPLETIONS] {
        stream.put(Kind::Unseen, &Unseen { count: 5, why }, &[]);
    }
    stream
}

#[test]
fn a_ring_that_is_watched_from_outside() {
    let text = watched().text();
    let parts = [
        " found: descriptor 7, user engine, 8 SQ entries, 16 CQ entries; before: 41 submitted, 40 completed\n",
        " = 9 <at least 1.000us>\n",
        " = 3 <up to 4.000us>\n",
        " CQE user_data=0x9 = 0 (its submission was not seen)\n",
        " = ? [completion not seen]\n",
        " 5 requests not seen: they passed between two looks\n",
        " 5 completions not seen: they passed between two looks\n",
        " 5 completions seen whose requests were not\n",
    ];
    for part in parts {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(!text.contains("inline") && !text.contains("unfinished"), "{text}");
    let json = watched().shown(Settings::default(), Session::json);
    let parts = [
        r#""type":"ring_found""#,
        r#""sampled":true"#,
        r#""state":"unseen""#,
        r#""why":"between_looks""#,
        r#""why":"posted_between_looks""#,
    ];
    for part in parts {
        assert!(json.contains(part), "{part} is missing in:\n{json}");
    }
}

#[test]
fn lines_begin_with_the_time_that_is_asked_for() {
    let begun = |time| {
        let text = two_requests().shown(Settings { time, ..Settings::default() }, Session::text);
        let time = |line: &str| line.split(' ').nth(4).unwrap().to_owned();
        text.lines().filter(|line| line.contains('#')).map(time).collect::<Vec<_>>()
    };
    assert_eq!(begun(Time::SinceStart), ["0.000001", "0.000000"]);
    assert_eq!(begun(Time::SinceLine), ["0.000000", "-0.000001"]);
    // The monotonic clock began at a quarter to one in the morning; the events are five milliseconds later.
    let begun_ns = 45 * 60 * 1_000_000_000;
    assert_eq!(begun(Time::OfDay { begun_ns, microseconds: false }), ["00:45:00"; 2]);
    let microseconds = ["00:45:00.005002", "00:45:00.005001"];
    assert_eq!(begun(Time::OfDay { begun_ns, microseconds: true }), microseconds);
}

/// Returns two requests, of which the second one completes first.
fn two_requests() -> Stream {
    let mut stream = Stream::default();
    let first = stream.submitted(sqe(NOP), &[]);
    let second = stream.submitted(sqe(NOP), &[]);
    stream.completed(second, 0);
    stream.completed(first, 0);
    stream
}

#[test]
fn no_more_results_than_asked_for() {
    for (most, shown) in [(1, 1), (2, 2), (3, 2)] {
        let settings = || Settings { most_results: Some(most), ..Settings::default() };
        let text = two_requests().shown(settings(), Session::text);
        assert_eq!(text.matches(" NOP(").count(), shown, "{text}");
    }
}
