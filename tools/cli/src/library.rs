//! Where the library for dynamic programs and the image for static ones lie.

use std::env;
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libanyring_preload.so";
const IMAGE: &str = "libanyring_inject.so";

/// Finds the library.
///
/// # Errors
/// The places looked at, for the user.
pub fn find() -> Result<PathBuf, String> {
    if let Some(path) = env::var_os("ANYRING_PRELOAD").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return match path.canonicalize() {
            Ok(path) => Ok(path),
            Err(error) => Err(format!("ANYRING_PRELOAD names {}: {error}", path.display())),
        };
    }
    let program = command()?;
    let beside = program.with_file_name(LIBRARY);
    let installed =
        program.parent().and_then(|bin| bin.parent()).map(|root| root.join("lib/anyring").join(LIBRARY));
    let places: Vec<PathBuf> = [Some(beside), installed].into_iter().flatten().collect();
    if let Some(place) = places.iter().find(|place| place.is_file()) {
        return Ok(place.clone());
    }
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(format!("{LIBRARY} is neither {}", looked.join(" nor ")))
}

/// The image that belongs to a library.
pub fn image(library: &Path) -> PathBuf {
    library.with_file_name(IMAGE)
}

/// This command itself.
///
/// # Errors
/// Why that cannot be told, for the user.
pub fn command() -> Result<PathBuf, String> {
    let program = env::current_exe().and_then(|path| path.canonicalize());
    program.map_err(|error| format!("cannot tell where anyring itself lies: {error}"))
}
