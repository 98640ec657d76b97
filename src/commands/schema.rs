//! `weir schema`: print the JSON schema of a rules file, for editors.

use std::io::{self, Write};

use crate::config::SCHEMA;

/// Print the JSON schema of limits.yaml
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command: the schema goes to `out`. Returns the exit code, 0.
pub fn run(_args: &Args, out: &mut dyn Write) -> io::Result<u8> {
    out.write_all(SCHEMA.as_bytes())?;
    Ok(0)
}
