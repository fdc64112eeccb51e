//! The operators of flags, and the functions that fill the columns of tables.

/// Implements the operators of a flag type.
#[macro_export]
macro_rules! flags {
    ($flags:ident) => {
        impl $flags {
            /// Returns the union of both sets of flags.
            pub const fn with(self, other: $flags) -> $flags {
                $flags(self.0 | other.0)
            }

            /// Returns the flags that are set in both.
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

/// Defines, for each column of a table row, the function that sets it.
#[macro_export]
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
