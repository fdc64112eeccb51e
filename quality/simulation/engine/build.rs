//! Marks this build of the engine's sources as the simulated one.

fn main() {
    println!("cargo::rustc-cfg=anyring_simulation");
    println!("cargo::rerun-if-changed=build.rs");
}
