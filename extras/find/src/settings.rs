//! Settings of the whole walk.

use anyring_walk::{Engine, Follow};

/// Whether names are coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colour {
    /// Only on a terminal.
    #[default]
    Auto,
    Always,
    Never,
}

/// Options, which are neither tests nor actions.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub follow: Follow,
    pub same_device: bool,
    pub min_depth: u32,
    pub max_depth: Option<u32>,
    /// True to visit a directory after its entries.
    pub depth: bool,
    /// True if an entry that vanishes before it is visited is not an error.
    pub ignore_races: bool,
    pub sorted: bool,
    /// 0 means one thread per processor.
    pub threads: usize,
    pub engine: Option<Engine>,
    pub colour: Colour,
    /// True to exclude names that begin with a dot, and everything below them.
    pub no_hidden: bool,
    /// True to exclude what `.gitignore` files name.
    pub gitignore: bool,
}
