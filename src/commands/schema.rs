//! `weir schema`: prints the JSON schema of a rules file, for editors.

use std::io::{self, Write};

use super::ExitCode;
use crate::config::SCHEMA;

/// Prints the JSON schema of limits.yaml
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Writes the schema to `out`.
pub fn run(_args: &Args, out: &mut dyn Write) -> io::Result<ExitCode> {
    out.write_all(SCHEMA.as_bytes())?;
    Ok(ExitCode::Success)
}
