//! Tables of flags: which flags the engine supports, and why not the others.

/// How far the engine supports an operation, a registration or a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Fully.
    Yes,
    /// Fully, except for these limits.
    Partly(&'static str),
    /// Not at all, for this reason. The answer is that of a kernel without it.
    No(&'static str),
}

impl Support {
    /// Returns `Yes` if `limits` is empty, and `Partly` otherwise.
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
    /// How far the engine supports the flag.
    pub support: Support,
}

/// Makes a table of flags by their names; `= SUPPORT` follows those that the engine does not support fully.
macro_rules! table {
    ($($name:ident $(= $support:expr)?),* $(,)?) => {
        [$($crate::calls::flag::Flag {
            bit: $name,
            name: stringify!($name),
            support: $crate::calls::flag::table!(@ $($support)?),
        }),*]
    };
    (@) => { $crate::calls::flag::Support::Yes };
    (@ $support:expr) => { $support };
}

pub(crate) use table;

/// Returns the bits of a table that the engine supports, fully or partly.
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
