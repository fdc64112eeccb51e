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

/// A copy of memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The address of the memory in the program.
    pub address: u64,
    /// The length of the memory, of which the copy may be only a part.
    pub length: u64,
    /// The copied bytes; `None` if the memory could not be read.
    pub bytes: Option<&'a [u8]>,
}

impl Memory {
    /// No copies.
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

    /// Returns all copies with this content.
    pub fn all(&self, content: Content) -> impl Iterator<Item = Piece<'_>> {
        self.pieces(content).map(|(_, piece)| piece)
    }

    /// Returns the first copy with this content.
    pub fn first(&self, content: Content) -> Option<Piece<'_>> {
        self.pieces(content).next().map(|(_, piece)| piece)
    }

    /// Returns the copy with this content from this address.
    pub fn at(&self, content: Content, address: u64) -> Option<Piece<'_>> {
        self.pieces(content).map(|(_, piece)| piece).find(|piece| piece.address == address)
    }

    /// Returns the copy with this content and this number.
    pub fn numbered(&self, content: Content, index: usize) -> Option<Piece<'_>> {
        self.pieces(content).find(|(stored, _)| usize::from(stored.index) == index).map(|(_, piece)| piece)
    }
}
