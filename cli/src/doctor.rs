//! `anyring doctor`.
use crate::cli::Doctor;
use std::process::ExitCode;
/// To come.
pub fn doctor(_arguments: &Doctor) -> ExitCode {
    ExitCode::SUCCESS
}
