//! The commands of the command line.

use std::fmt::Display;
use std::io::{self, Write};

use clap::{Parser, Subcommand};

mod admin_flags;
pub mod bucket;
pub mod check;
mod client_flags;
mod config_file;
pub mod explain;
mod grpc_flags;
pub mod health;
mod http2_flags;
pub mod import;
mod listener_flags;
mod listeners;
mod logging;
mod process;
mod rules;
mod scenario;
pub mod schema;
pub mod serve;
mod store;
pub mod test;
mod tls_flags;
mod trace_flags;
mod upstream_flags;
mod values;

/// A rate limiter: a reverse proxy, and a decision service for gateways and applications
#[derive(Parser, Debug)]
#[command(name = "weir", version, args_override_self = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Runs the proxy, the decision services and the admin listener
    Serve(Box<serve::Args>),
    Bucket(bucket::Args),
    Check(check::Args),
    Explain(explain::Args),
    Health(health::Args),
    Import(import::Args),
    Schema(schema::Args),
    #[command(alias = "replay")]
    Test(test::Args),
}

/// The process's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// The command succeeded.
    Success = 0,
    /// Invalid input (a rules file, a scenario, a request), or the service is not ready.
    BadInput = 1,
    /// Invalid command line.
    Usage = 2,
    /// The service could not start, or could not be reached.
    CouldNotStart = 3,
}

/// Runs the command in `arguments`, whose first element is the program's name.
///
/// Returns errors of writing to `out` or `err`, such as a closed pipe.
pub fn run(arguments: Vec<std::ffi::OsString>, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let arguments = match config_file::expand(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            write!(err, "{error}")?;
            return Ok(ExitCode::Usage);
        }
    };
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // `--help` and `--version` are errors too, but belong on standard output.
            let failed = error.use_stderr();
            let shown: &mut dyn Write = if failed { err } else { out };
            write!(shown, "{}", error.render())?;
            return Ok(if failed { ExitCode::Usage } else { ExitCode::Success });
        }
    };
    match cli.command {
        Command::Serve(args) => serve::run(&args, err),
        Command::Bucket(args) => bucket::run(&args, out, err),
        Command::Check(args) => check::run(&args, out, err),
        Command::Explain(args) => explain::run(&args, out, err),
        Command::Health(args) => health::run(&args, out, err),
        Command::Import(args) => import::run(&args, out, err),
        Command::Schema(args) => schema::run(&args, out),
        Command::Test(args) => test::run(&args, out, err),
    }
}

fn could_not_start(err: &mut dyn Write, error: &dyn Display) -> io::Result<ExitCode> {
    writeln!(err, "error: {error}")?;
    Ok(ExitCode::CouldNotStart)
}
