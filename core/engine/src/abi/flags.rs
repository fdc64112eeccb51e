//! The operators of flags, and the functions that fill the columns of tables.

/// Gives a type of flags its operators.
macro_rules! flags {
    ($flags:ident) => {
        impl $flags {
            /// The flags of both together.
            pub const fn with(self, other: $flags) -> $flags {
                $flags(self.0 | other.0)
            }

            /// The flags that are in both.
            pub const fn and(self, other: $flags) -> $flags {
                $flags(self.0 & other.0)
            }

            /// True if any of `other` is set.
            pub const fn has(self, other: $flags) -> bool {
                self.0 & other.0 != 0
            }
        }
    };
}

/// Gives each column of a row a function that fills it.
macro_rules! columns {
    ($seen:vis $row:ident: $($(#[$meaning:meta])* $column:ident $(in $part:ident)?: $type:ty = $value:expr;)*) => {
        impl $row { $(
            $(#[$meaning])*
            $seen const fn $column(mut self, $column: $type) -> $row {
                self$(.$part)?.$column = $value;
                self
            }
        )* }
    };
}

pub(crate) use {columns, flags};
