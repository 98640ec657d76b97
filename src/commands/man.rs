//! `weir man`: manual pages.

use std::io::Write;
use std::path::PathBuf;

use clap::CommandFactory;

use super::Cli;
use super::exit::{ExitCode, Failure};

/// Prints the manual page weir(1), or writes the pages of all commands
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write weir.1, weir-serve.1 and the others into this directory, which must exist
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
}

/// Prints the page to `out`, or writes all pages.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let command = Cli::command().disable_help_subcommand(true);
    if let Some(directory) = &args.dir {
        clap_mangen::generate_to(command, directory)
            .map_err(|error| Failure::bad_input(format!("cannot write to {}: {error}", directory.display())))?;
    } else {
        clap_mangen::Man::new(command).render(out)?;
    }
    Ok(ExitCode::Success)
}
