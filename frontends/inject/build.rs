//! Links the image so that it can be mapped by hand: no libraries, nothing undefined, one entry.

fn main() {
    for argument in ["-nostdlib", "-nostartfiles", "-Wl,--no-undefined", "-Wl,--entry=anyring_inject_entry"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
