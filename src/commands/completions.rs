//! `weir completions`: what a shell needs to complete commands and flags.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;
use super::exit::{ExitCode, Failure};

/// Prints a script that lets a shell complete commands, flags and their values
#[derive(Debug, clap::Args)]
#[command(after_help = "For bash: weir completions bash > ~/.local/share/bash-completion/completions/weir\n\
    For zsh:  weir completions zsh > ~/.zfunc/_weir (with ~/.zfunc in fpath)\n\
    For fish: weir completions fish > ~/.config/fish/completions/weir.fish")]
pub struct Args {
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script to `out`.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    // The generator panics if it cannot write, as into a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "weir", &mut script);
    out.write_all(&script)?;
    Ok(ExitCode::Success)
}
