//! The package of the engine's tests through its ABI: they are in `main.rs`.
