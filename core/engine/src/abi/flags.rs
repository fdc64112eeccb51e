//! The operators of flags.

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

pub(crate) use flags;
