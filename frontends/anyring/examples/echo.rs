//! An echo server: one multishot accept, and for each connection a multishot receive and at most one send at a time.
//!
//! `echo [ADDRESS [CONNECTIONS]]` listens on 127.0.0.1:7777 by default, and ends when CONNECTIONS connections have
//! ended (by default never).

use anyring::{Buffers, Error, Fd, Id, MultiToken, Received, Ring, Token, op};
use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;

/// The step of a request, and the number of the connection.
enum Doing {
    Receive(MultiToken<op::RecvMulti>, usize),
    Send(Token<op::Send<Received>>, usize),
}

struct Connection {
    socket: Fd,
    /// Received data that is sent after the send in flight.
    waiting: VecDeque<Received>,
    sending: bool,
}

struct Server {
    ring: Ring,
    buffers: Buffers,
    connections: HashMap<usize, Connection>,
    doing: HashMap<Id, Doing>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| String::from("127.0.0.1:7777"));
    let most = arguments.next().map_or(Ok(usize::MAX), |count| count.parse())?;

    let listener = TcpListener::bind(address)?;
    let mut ring = Ring::new(256)?;
    println!("{} with the {} engine", listener.local_addr()?, ring.engine());
    let mut accept = ring.push_multi(op::accept_multi(&listener.into()))?;
    let buffers = ring.buffers(256, 4096)?;
    let mut server = Server { ring, buffers, connections: HashMap::new(), doing: HashMap::new() };

    let mut accepted = 0;
    while accepted < most || !server.connections.is_empty() {
        let completion = server.ring.wait()?;
        if completion.is(&accept) {
            let socket = completion.item(&mut accept).expect("one of it")?;
            let connection = Connection { socket, waiting: VecDeque::new(), sending: false };
            server.connections.insert(accepted, connection);
            server.receive(accepted)?;
            accepted += 1;
            continue;
        }
        match server.doing.remove(&completion.id()) {
            Some(Doing::Receive(mut receive, number)) => {
                let received = completion.item(&mut receive).expect("one of it");
                server.received(receive, number, received)?;
            }
            Some(Doing::Send(send, number)) => {
                // Taking the result returns the buffer to its group.
                let (result, _) = completion.take(send).expect("it is that one");
                server.sent(number, result)?;
            }
            None => {}
        }
    }
    Ok(())
}

impl Server {
    fn receive(&mut self, number: usize) -> Result<(), Error> {
        let Some(connection) = self.connections.get(&number) else { return Ok(()) };
        let receive = self.ring.push_multi(op::recv_multi(&connection.socket, &self.buffers))?;
        self.doing.insert(receive.id(), Doing::Receive(receive, number));
        Ok(())
    }

    fn received(
        &mut self,
        receive: MultiToken<op::RecvMulti>,
        number: usize,
        received: Result<Received, Error>,
    ) -> Result<(), Error> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        match received {
            Ok(bytes) if !bytes.is_empty() => {
                connection.waiting.push_back(bytes);
                self.doing.insert(receive.id(), Doing::Receive(receive, number));
                self.send(number)
            }
            // All buffers are in use; the sends in flight will return theirs.
            Err(error) if error.errno() == libc::ENOBUFS => self.receive(number),
            // The client has closed the connection.
            _ => {
                self.connections.remove(&number);
                Ok(())
            }
        }
    }

    /// Sends the oldest waiting data, unless a send is in flight: concurrent sends could change the order of the data.
    fn send(&mut self, number: usize) -> Result<(), Error> {
        let Some(connection) = self.connections.get_mut(&number).filter(|it| !it.sending) else {
            return Ok(());
        };
        let Some(bytes) = connection.waiting.pop_front() else { return Ok(()) };
        let send = self.ring.push(op::send(&connection.socket, bytes).all())?;
        connection.sending = true;
        self.doing.insert(send.id(), Doing::Send(send, number));
        Ok(())
    }

    fn sent(&mut self, number: usize, result: Result<usize, Error>) -> Result<(), Error> {
        if let Err(error) = result {
            eprintln!("{error}");
            self.connections.remove(&number);
        }
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.sending = false;
        }
        self.send(number)
    }
}
