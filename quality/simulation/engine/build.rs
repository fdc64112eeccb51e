//! Says that this build of the engine's sources is the simulated one.

fn main() {
    println!("cargo::rustc-cfg=anyring_simulation");
    println!("cargo::rerun-if-changed=build.rs");
}
