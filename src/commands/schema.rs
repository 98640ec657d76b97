//! `weir schema`: prints the JSON schema of a rules file, for editors.

use std::io::Write;

use super::{ExitCode, Outcome};
use crate::config::SCHEMA;

/// Prints the JSON schema of limits.yaml
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: &Args, out: &mut dyn Write) -> Outcome {
    out.write_all(SCHEMA.as_bytes())?;
    Ok(ExitCode::Success)
}
