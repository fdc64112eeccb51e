//! Settings that hold for the whole walk.

use anyring_walk::{Engine, Follow};

/// Whether names are coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colour {
    /// On a terminal.
    #[default]
    Auto,
    Always,
    Never,
}

/// Options, as opposed to tests and actions.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub follow: Follow,
    pub same_device: bool,
    pub min_depth: u32,
    pub max_depth: Option<u32>,
    /// A directory comes after what is in it.
    pub depth: bool,
    /// An entry that vanishes before it is looked at is no error.
    pub ignore_races: bool,
    pub sorted: bool,
    /// 0: as many as there are processors.
    pub threads: usize,
    pub engine: Option<Engine>,
    pub colour: Colour,
    /// Leave out names that begin with a dot, and what is below them.
    pub no_hidden: bool,
    /// Leave out what `.gitignore` files name.
    pub gitignore: bool,
}
