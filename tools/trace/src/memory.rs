//! Copies of the program's memory that came with an event.

use anyring_trace::event::{Content, Event};

/// The copies, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pieces: Vec<Stored>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Stored {
    address: u64,
    length: u64,
    content: u16,
    index: u16,
    /// Start and length of the copied bytes in `Memory::bytes`; `None` if the memory could not be read.
    bytes: Option<(u32, u32)>,
}

/// One copy.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Where it was.
    pub address: u64,
    /// How long it is altogether.
    pub length: u64,
    /// The bytes that there are of it; `None` where it could not be read.
    pub bytes: Option<&'a [u8]>,
}

impl Memory {
    /// None at all.
    pub const EMPTY: Memory = Memory { pieces: Vec::new(), bytes: Vec::new() };

    /// Returns the copies that came with an event.
    pub fn of(event: &Event<'_>) -> Memory {
        let mut memory = Memory::default();
        for (attachment, bytes) in event.attachments() {
            let start = memory.bytes.len() as u32;
            memory.bytes.extend_from_slice(bytes.unwrap_or(&[]));
            memory.pieces.push(Stored {
                address: attachment.address,
                length: attachment.length,
                content: attachment.content,
                index: attachment.index,
                bytes: bytes.map(|bytes| (start, bytes.len() as u32)),
            });
        }
        memory
    }

    fn pieces(&self, content: Content) -> impl Iterator<Item = (&Stored, Piece<'_>)> {
        self.pieces.iter().filter(move |stored| stored.content == content as u16).map(|stored| {
            let bytes = stored.bytes.map(|(start, length)| &self.bytes[start as usize..][..length as usize]);
            (stored, Piece { address: stored.address, length: stored.length, bytes })
        })
    }

    /// The pieces with such content.
    pub fn all(&self, content: Content) -> impl Iterator<Item = Piece<'_>> {
        self.pieces(content).map(|(_, piece)| piece)
    }

    /// The first with such content.
    pub fn first(&self, content: Content) -> Option<Piece<'_>> {
        self.pieces(content).next().map(|(_, piece)| piece)
    }

    /// The one with such content from this address.
    pub fn at(&self, content: Content, address: u64) -> Option<Piece<'_>> {
        self.pieces(content).map(|(_, piece)| piece).find(|piece| piece.address == address)
    }

    /// The one with such content and this number.
    pub fn numbered(&self, content: Content, index: usize) -> Option<Piece<'_>> {
        self.pieces(content).find(|(stored, _)| usize::from(stored.index) == index).map(|(_, piece)| piece)
    }
}
