"""An echo server through uring-api, and its clients, which check every byte.

echo.py FLAGS CONNECTIONS BYTES: FLAGS are set-up flags of the ring (SINGLE_ISSUER, DEFER_TASKRUN, SQPOLL), joined
by `+`, or `plain`. The server accepts and receives multishot, into few provided buffers, which run out, and sends
back without copying. Half of the clients end their side and read on, the others close when all is back.
"""

import errno
import random
import socket
import sys
import threading

import uring_api


def data_of(seed, length):
    return random.Random(seed).randbytes(length)


def client(address, seed, length, failures):
    try:
        with socket.create_connection(address, timeout=60) as stream:
            data = data_of(seed, length)
            sender = threading.Thread(target=send, args=(stream, data, seed % 2 == 0))
            sender.start()
            back = bytearray()
            while len(back) < length:
                piece = stream.recv(1 << 16)
                if not piece:
                    break
                back += piece
            sender.join()
            if back != data:
                failures.append(f"client {seed}: {len(back)} of {length} bytes, or other ones, came back")
    except OSError as error:
        failures.append(f"client {seed}: {error}")


def send(stream, data, ends):
    generator = random.Random(len(data))
    left = memoryview(data)
    while left:
        count = generator.randrange(1, 1 << generator.randrange(1, 17))
        stream.sendall(left[:count])
        left = left[count:]
    if ends:
        stream.shutdown(socket.SHUT_WR)


class Connection:
    """What one client sent and has not got back. One send at a time."""

    def __init__(self, server, fd):
        self.server = server
        self.fd = fd
        self.waiting = bytearray()
        self.sending = None
        self.ended = False
        self.receive()

    def receive(self):
        self.server.ring.prepare_recv_multishot(self.fd, self.server.buffers, 0, ("receive", self))

    def received(self, completion):
        if completion.res > 0:
            view = memoryview(completion.result)
            self.waiting += view
            view.release()
        elif completion.res == -errno.ENOBUFS:
            self.server.starved += 1
        elif completion.res in (0, -errno.ECONNRESET):
            self.ended = True
        else:
            raise OSError(-completion.res, "receive")
        if not completion.flags & uring_api.IORING_CQE_F_MORE and not self.ended:
            self.receive()
        self.go_on()

    def go_on(self):
        if self.sending is None and self.waiting:
            self.sending, self.waiting = bytes(self.waiting), bytearray()
            self.server.ring.prepare_send_zc(self.fd, self.sending, 0, 0, ("send", self))
        elif self.sending is None and self.ended:
            self.server.ring.prepare_close(self.fd, ("close", self))

    def sent(self, completion):
        if completion.res <= 0:
            raise OSError(-completion.res, "send")
        rest, self.sending = self.sending[completion.res :], None
        self.waiting[:0] = rest
        self.go_on()


class Server:
    def __init__(self, listener, flags, connections):
        self.ring = uring_api.Ring(entries=64, flags=flags)
        self.buffers = self.ring.create_buf_group(buffer_size=4096, buffer_count=16)
        self.listener = listener
        self.open = connections
        self.accepted = 0
        self.rearmed = 0
        self.starved = 0
        self.accept()

    def accept(self):
        """Goes on until it is cancelled, or the completion queue is full."""
        self.accepting = self.ring.prepare_accept_multishot(self.listener.fileno(), 0, ("accept", None))

    def run(self):
        while self.open:
            for completion in self.ring.wait(60.0) or sys.exit("nothing completes"):
                kind, connection = completion.take_user_data()
                if kind == "accept":
                    self.check(completion.res >= 0, f"accept: {completion.res}")
                    self.accepted += 1
                    Connection(self, completion.res)
                    if not completion.flags & uring_api.IORING_CQE_F_MORE:
                        self.rearmed += 1
                        self.accept()
                elif kind == "receive":
                    connection.received(completion)
                elif kind == "send":
                    connection.sent(completion)
                else:
                    self.check(completion.res == 0, f"close: {completion.res}")
                    self.open -= 1
        self.stop()

    def stop(self):
        """Cancels the accept: its last completion says so."""
        self.ring.prepare_cancel(self.accepting, ("cancel", None))
        results = {}
        while len(results) < 2:
            for completion in self.ring.wait(60.0) or sys.exit("nothing completes"):
                results[completion.take_user_data()[0]] = completion.res, completion.flags
        self.check(results == {"cancel": (0, 0), "accept": (-errno.ECANCELED, 0)}, results)
        self.check(self.ring.pending_count() == 0, "requests are left")
        self.buffers.close()
        self.ring.close()

    @staticmethod
    def check(holds, what):
        if not holds:
            sys.exit(f"unexpected: {what}")


def main():
    names, connections, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    flags = 0
    for name in names.split("+"):
        flags |= 0 if name == "plain" else getattr(uring_api, f"IORING_SETUP_{name}")
    probe = uring_api.probe(flags=flags)
    print(probe)
    for needed in ["ACCEPT_MULTISHOT", "RECV_MULTISHOT", "BUF_RING", "OP_SEND_ZC"]:
        if not probe.get(f"IORING_{needed}"):
            sys.exit(f"no {needed}")
    failures = []
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        server = Server(listener, flags, connections)
        clients = [
            threading.Thread(target=client, args=(listener.getsockname(), seed, length, failures), daemon=True)
            for seed in range(connections)
        ]
        for thread in clients:
            thread.start()
        server.run()
        for thread in clients:
            thread.join()
    if failures:
        sys.exit("\n".join(failures))
    print(f"every byte came back; {server.accepted} accepted ({server.rearmed} times anew), {server.starved} times without buffers")


main()
