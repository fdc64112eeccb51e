//! Power cuts: a run is stopped at a moment that the seed chooses, and its files are changed to what a file system may
//! leave after a power cut.
//!
//! # Design
//!
//! - **The record.** The engine notes each operation on files in a journal ([`anyring_chaos_plan::journal`]): when its first attempt begins,
//!   with the sectors that it will overwrite, and when it has ended, before its CQE is posted, with the sectors as they are then. The op
//!   table says which operations are noted, and what they do (`Op::stores`). The hooks are those of faults (`observe/chaos`): before
//!   the first attempt, and before the CQE. The journal is a memory file of this command, so it outlives the killed processes. The journal
//!   has one owner, the [`Runner`](crate::Runner)'s run; processes only append. When it is full, the power is cut, and the report says so.
//! - **The moment.** Each operation has a moment before it and one after it. Moments are numbered in the order in which the operations begin:
//!   by the operation's place in the journal, not by the request's number in its ring, which timers and other requests shift. A run without
//!   faults gives the range; the seed chooses a share of it. A run that ends before its moment is repeated with the same share of its own
//!   range. The process that comes to the moment kills itself; each other process kills itself instead of noting its next operation.
//! - **What a sync covers.** The journal's clock counts beginnings and ends. A sync covers the operations that had ended when the call of
//!   `enter` that submitted it began; if it waits for earlier requests (a link or a drain), those that had ended when it began.
//! - **What is left** is a pure function: [`crash`]`(record, model, sector, draw) -> `[`Crash`]. It decides for each operation whether it is
//!   kept, lost or torn ([`Fate`]), as far as the [`Model`] permits, and [`leave`] replays the operations by their ends with these fates: the
//!   sectors and the size of each file, and the file of each name. A write that ended later overwrites what an earlier one left, so that a
//!   lost write beside a kept one is a reordering. Neither function does any I/O; the tests check them with random records.
//! - **A loss is a fault** (`lost`, `torn`), and so is the moment (`cut-before`, `cut-after`). The id of a loss depends on the operation's
//!   number among those of its ring only, and the id of a cut is its moment. So losses and cuts are listed, recorded, replayed and shrunk as
//!   other faults are; an operation that is left out of the list is kept.
//! - **The disk.** [`record::Record::read`] looks at the files once all processes are gone; [`apply`] writes the sectors, sizes and names. A
//!   file whose contents the record does not explain was written by something else, too ([`strangers`]): it is named and left alone.
//! - **The verdict** is the exit status of `--check COMMAND`, which restarts or verifies. It is compared with that of the run without
//!   faults, after which nothing is lost. The command's input is the program's output: what the program has reported must still be true.

mod crash;
mod disk;
mod model;
mod record;
mod run;
#[cfg(test)]
mod tests;

pub use crash::{Crash, Draw, Fate, Left, State, crash, durable, leave, strangers};
pub use disk::{Disk, apply, sector_bytes};
pub use model::Model;
pub use record::{Change, Data, Deed, Entry, Known, Look, Names, Now, Part, Place, Record as PowerRecord};
pub use run::{Power, PowerReport};
