//! epoll compared with the ring of uepoll: a small HTTP server and its clients, ready files alone, and events that
//! threads raise.

mod client;
mod poller;
mod ready;
mod server;

pub use client::{Args as ClientArgs, run as drive};
pub use ready::{Args as ReadyArgs, run as ready};
pub use server::{Args as ServerArgs, serve};

/// The request of every client.
const REQUEST: &[u8] = b"GET /ref HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n";

/// The answer: 80 bytes of text.
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 80\r\n\r\n\
    This is the page that everybody asks for, twenty thousand times, eighty bytes...";
