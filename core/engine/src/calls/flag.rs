//! Flags by tables: which the engine has, and why not the others.

/// How much of something the engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// All of it.
    Yes,
    /// All of it, but for this.
    Partly(&'static str),
    /// Nothing, for this reason: the answer is that of a kernel without it.
    No(&'static str),
}

impl Support {
    /// All of it but for these limits, if there are any.
    pub const fn but(limits: &'static str) -> Support {
        if limits.is_empty() { Support::Yes } else { Support::Partly(limits) }
    }
}

/// One bit of a word of flags.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The bit.
    pub bit: u32,
    /// Its name.
    pub name: &'static str,
    /// Whether the engine has it.
    pub support: Support,
}

impl Flag {
    /// A flag that the engine has.
    pub const fn yes(bit: u32, name: &'static str) -> Flag {
        Flag { bit, name, support: Support::Yes }
    }

    /// A flag that the engine has with limits.
    pub const fn partly(bit: u32, name: &'static str, limits: &'static str) -> Flag {
        Flag { bit, name, support: Support::Partly(limits) }
    }

    /// A flag that the engine has not.
    pub const fn no(bit: u32, name: &'static str, reason: &'static str) -> Flag {
        Flag { bit, name, support: Support::No(reason) }
    }
}

/// The bits of a table that the engine has.
pub const fn mask(table: &[Flag]) -> u32 {
    let (mut mask, mut index) = (0, 0);
    while index < table.len() {
        if !matches!(table[index].support, Support::No(_)) {
            mask |= table[index].bit;
        }
        index += 1;
    }
    mask
}
