//! The interposer and the trap.
