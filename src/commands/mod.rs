//! The commands of the command line.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};

use clap::{Parser, Subcommand};

use crate::config::{Problem, Report};

mod admin_flags;
mod bucket;
mod check;
mod client_flags;
mod config_file;
mod explain;
mod grpc_flags;
mod health;
mod http2_flags;
mod import;
mod listener_flags;
mod listeners;
mod logging;
mod process;
mod rules;
mod scenario;
mod schema;
mod serve;
mod store;
mod test;
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
pub fn run(arguments: Vec<OsString>, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let result = dispatch(arguments, out, err);
    exit_code(result, err)
}

fn dispatch(arguments: Vec<OsString>, out: &mut dyn Write, err: &mut dyn Write) -> Outcome {
    let cli = match Cli::try_parse_from(config_file::expand(arguments)?) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            return Err(Failure::Exit { code: ExitCode::Usage, text: error.render().to_string() });
        }
        // `--help` and `--version` are errors too.
        Err(error) => {
            write!(out, "{}", error.render())?;
            return Ok(ExitCode::Success);
        }
    };
    match cli.command {
        Command::Serve(args) => serve::run(&args, err),
        Command::Bucket(args) => bucket::run(&args, out),
        Command::Check(args) => check::run(&args, out, err),
        Command::Explain(args) => explain::run(&args, out, err),
        Command::Health(args) => health::run(&args, out),
        Command::Import(args) => import::run(&args, out, err),
        Command::Schema(args) => schema::run(&args, out),
        Command::Test(args) => test::run(&args, out),
    }
}

type Outcome = Result<ExitCode, Failure>;

/// Why a command stops early.
#[derive(Debug)]
enum Failure {
    /// The text is printed to standard error.
    Exit { code: ExitCode, text: String },
    /// Standard output or error cannot be written to.
    Io(io::Error),
}

impl Failure {
    fn new(code: ExitCode, error: impl Display) -> Self {
        Self::Exit { code, text: format!("error: {error}\n") }
    }

    fn usage(error: impl Display) -> Self {
        Self::new(ExitCode::Usage, error)
    }

    fn bad_input(error: impl Display) -> Self {
        Self::new(ExitCode::BadInput, error)
    }

    fn could_not_start(error: impl Display) -> Self {
        Self::new(ExitCode::CouldNotStart, error)
    }

    fn report(code: ExitCode, report: &Report) -> Self {
        Self::Exit { code, text: report.to_string() }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::report(ExitCode::BadInput, &Report::of(problem))
    }
}

/// Prints why a command stopped, and returns its exit code.
fn exit_code(outcome: Outcome, err: &mut dyn Write) -> io::Result<ExitCode> {
    match outcome {
        Ok(code) => Ok(code),
        Err(Failure::Exit { code, text }) => err.write_all(text.as_bytes()).map(|()| code),
        Err(Failure::Io(error)) => Err(error),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::could_not_start)
}

/// `1 limit`, `2 limits`.
fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
