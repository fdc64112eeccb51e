//! Provides the images that the command contains: the libraries that `anyring run` brings into programs.
//!
//! `ANYRING_IMAGES` names a directory with the images (`scripts/make-one-file`), or is `none` for a command that finds them in
//! files beside itself (`make build`). Without the variable, this script builds the images from the sources in `images/`, as
//! `cargo install` requires. Debug builds of a checkout contain no images, because developers build the libraries beside the
//! command.

use std::env;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// The packages that this script builds, each with the file that cargo makes of it.
const BUILT: [(&str, &str); 2] =
    [("anyring-preload", "libanyring_preload.so"), ("anyring-inject", "libanyring_inject.so")];
/// Additional files in a directory that `ANYRING_IMAGES` names.
const LIBURING: [&str; 2] = ["liburing.so.2", "liburing-ffi.so.2"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=images");
    println!("cargo::rerun-if-env-changed=ANYRING_IMAGES");
    let out = PathBuf::from(variable("OUT_DIR"));
    let sources = Path::new(&variable("CARGO_MANIFEST_DIR")).join("images");
    let is_checkout = sources.join("workspace.toml").is_symlink();
    let is_debug = env::var("PROFILE").as_deref() == Ok("debug");
    let images = match env::var_os("ANYRING_IMAGES") {
        Some(none) if none == "none" => Vec::new(),
        Some(directory) => given(Path::new(&directory)),
        // docs.rs runs nothing.
        None if is_checkout && is_debug || env::var_os("DOCS_RS").is_some() => Vec::new(),
        None => build(&sources, &out),
    };
    write(&out.join("carried.rs"), &table(&images));
}

/// Returns the constant that `src/library.rs` includes: the names and contents of the files.
fn table(images: &[PathBuf]) -> String {
    let mut table = String::from("&[\n");
    for image in images {
        let name = image.file_name().unwrap_or_default();
        let _ = writeln!(table, "    ({name:?}, include_bytes!({image:?})),");
    }
    table + "]\n"
}

/// Returns the images in a directory, which may be compressed.
fn given(directory: &Path) -> Vec<PathBuf> {
    println!("cargo::rerun-if-changed={}", directory.display());
    let names = BUILT.into_iter().map(|(_, file)| file).chain(LIBURING);
    let find = |name: &str| {
        let files = [directory.join(format!("{name}.gz")), directory.join(name)];
        files.into_iter().find(|file| file.is_file()).unwrap_or_else(|| {
            fail(&format!(
                "ANYRING_IMAGES names {}, which has no {name}: make one-file prepares such a directory; without ANYRING_IMAGES \
                 the images are built of their sources",
                directory.display()
            ))
        })
    };
    names.map(find).collect()
}

/// Builds the images by a separate cargo: they need other settings than the command, above all `panic = "abort"`.
fn build(sources: &Path, out: &Path) -> Vec<PathBuf> {
    let (target, arch) = (variable("TARGET"), variable("CARGO_CFG_TARGET_ARCH"));
    if !["x86_64", "aarch64"].contains(&arch.as_str()) || variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        fail(&format!(
            "the libraries that anyring brings into programs are built for x86_64-unknown-linux-gnu and aarch64-unknown-linux-gnu, \
             not for {target}: programs of musl take the same ones. ANYRING_IMAGES=DIRECTORY names those of another build; ANYRING_IMAGES=none builds the command \
             without them"
        ));
    }
    let workspace = out.join("images");
    lay_out(sources, &workspace).unwrap_or_else(|error| {
        fail(&format!("cannot lay out the sources of the images in {}: {error}", workspace.display()))
    });
    let built = out.join("images-target");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--release", "--offline", "--target", &target]);
    cargo.arg("--manifest-path").arg(workspace.join("Cargo.toml")).arg("--target-dir").arg(&built);
    for (package, _) in BUILT {
        cargo.args(["--package", package]);
    }
    // Settings for the command do not apply to the images: wider vector registers, other ways to panic, a linter.
    let is_setting = |name: &OsString| name.to_str().is_some_and(|name| name.starts_with("CARGO_PROFILE_"));
    for (name, _) in env::vars_os().filter(|(name, _)| is_setting(name)) {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "").env_remove("RUSTC_WORKSPACE_WRAPPER");
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "false").env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!(
            "the libraries that anyring brings into programs could not be built ({status}): see cargo's messages above"
        )),
        Err(error) => fail(&format!("cannot start {}: {error}", variable("CARGO"))),
    }
    BUILT.into_iter().map(|(_, file)| built.join(&target).join("release").join(file)).collect()
}

/// Creates a workspace from the sources: the part of the repository that the images need.
fn lay_out(sources: &Path, workspace: &Path) -> io::Result<()> {
    let mut members = String::new();
    for group in folders(sources)? {
        for package in folders(&group)? {
            let member = package.strip_prefix(sources).unwrap_or(&package);
            let _ = write!(members, "{member:?}, ");
            let to = workspace.join(member);
            fs::create_dir_all(&to)?;
            // Dependencies of tests are left out, because the workspace does not contain them.
            let manifest = fs::read_to_string(package.join("manifest.toml"))?;
            write(&to.join("Cargo.toml"), &without(&manifest, "dev-dependencies", ""));
            for name in ["src", "build.rs"] {
                let _ = fs::remove_file(to.join(name));
                if package.join(name).exists() {
                    symlink(package.join(name), to.join(name))?;
                }
            }
        }
    }
    let manifest = fs::read_to_string(sources.join("workspace.toml"))?;
    let members = format!("[workspace]\nresolver = \"3\"\nmembers = [{members}]\n\n");
    write(&workspace.join("Cargo.toml"), &without(&manifest, "workspace", &members));
    // Cargo removes the packages that the images do not need from the copy.
    fs::copy(sources.join("workspace.lock"), workspace.join("Cargo.lock"))?;
    Ok(())
}

fn folders(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
    let mut folders: Vec<PathBuf> = entries.collect::<io::Result<_>>()?;
    folders.retain(|path| path.is_dir());
    folders.sort();
    Ok(folders)
}

/// Replaces one table of a manifest.
fn without(manifest: &str, table: &str, instead: &str) -> String {
    let mut kept = String::from(instead);
    let mut skips = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            skips = line == format!("[{table}]");
        }
        if !skips {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Writes a file, unless it already has this text: cargo rebuilds everything that depends on a newer file.
fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return;
    }
    fs::write(path, text).unwrap_or_else(|error| fail(&format!("cannot write {}: {error}", path.display())));
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| fail(&format!("{name}, which cargo sets: {error}")))
}

/// Ends the build with an error.
fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    exit(1)
}
