//! Marks this build of the sources of anyring-os as the simulated one.

fn main() {
    println!("cargo::rustc-cfg=anyring_simulation");
    println!("cargo::rerun-if-changed=build.rs");
}
