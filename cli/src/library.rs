//! Where the preload library lies.

use std::env;
use std::path::PathBuf;

const NAME: &str = "libanyring_preload.so";

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
    let program = env::current_exe().and_then(|path| path.canonicalize());
    let program = program.map_err(|error| format!("cannot tell where anyring itself lies: {error}"))?;
    let beside = program.with_file_name(NAME);
    let installed =
        program.parent().and_then(|bin| bin.parent()).map(|root| root.join("lib/anyring").join(NAME));
    let places: Vec<PathBuf> = [Some(beside), installed].into_iter().flatten().collect();
    if let Some(place) = places.iter().find(|place| place.is_file()) {
        return Ok(place.clone());
    }
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(format!("{NAME} is neither {}", looked.join(" nor ")))
}
