//! The commands of the command line.

use std::ffi::OsString;
use std::io::{self, Write};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use self::exit::ExitCode;
use self::exit::Failure;

mod added_header_flags;
mod admin_client_flags;
mod admin_flags;
pub mod bucket;
mod certificates;
pub mod check;
mod client_flags;
mod client_limit_flags;
pub mod colors;
pub mod completions;
mod config_file;
mod delay_flags;
pub mod diff;
mod envoy_ratelimit;
mod exit;
pub mod explain;
mod grpc_flags;
pub mod health;
pub mod import;
pub mod init;
mod listener_flags;
mod listener_tls_flags;
pub mod live_overrides;
mod log_flags;
mod logging;
pub mod man;
mod override_feed_flags;
mod print;
mod process_flags;
pub mod record;
#[cfg(test)]
mod reference;
mod reloading;
mod route_file;
mod rules_flags;
mod runtime;
pub mod schema;
pub mod serve;
pub mod simulate;
mod store_flags;
pub mod test;
mod tls_flags;
mod trace_flags;
mod upstream_flags;
mod upstream_reload;
mod values;
mod version;
mod webhook_flags;
mod workflow_command;
mod xds_flags;

/// A rate limiter: a reverse proxy, and a decision service for gateways and applications
#[derive(Parser, Debug)]
#[command(name = "weir", version, styles = colors::HELP)]
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
    Completions(completions::Args),
    Diff(diff::Args),
    Explain(explain::Args),
    Health(health::Args),
    Import(import::Args),
    Init(init::Args),
    Man(man::Args),
    Override(live_overrides::Args),
    Record(record::Args),
    Schema(schema::Args),
    Simulate(simulate::Args),
    Suggest(simulate::suggest::Args),
    #[command(alias = "replay")]
    Test(test::Args),
}

/// Runs the command in `arguments`, whose first element is the program's name. `commit` is the one that the program was built from.
///
/// Returns errors of writing to `out` or `err`, such as a closed pipe.
pub fn run(
    arguments: Vec<OsString>,
    commit: Option<&str>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<ExitCode> {
    match run_command(arguments, commit, out, err) {
        Ok(code) => Ok(code),
        Err(Failure::Message(code, message)) => err.write_all(colors::of_failure(&message).as_bytes()).map(|()| code),
        Err(Failure::Output(error)) => Err(error),
    }
}

fn run_command(
    arguments: Vec<OsString>,
    commit: Option<&str>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let typed = arguments.clone();
    let variable = |name: &str| std::env::var_os(name);
    let expanded = envoy_ratelimit::expand(arguments, variable).map_err(Failure::usage)?;
    let arguments =
        config_file::expand(expanded.arguments).map_err(|report| Failure::reported(ExitCode::Usage, &report))?;
    // Leaked once per process, because clap keeps only static text.
    let mut command = Cli::command().long_version(&*version::long(commit).leak());
    let parsed = command.try_get_matches_from_mut(arguments);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let text = error.render();
            let has_colors = if error.use_stderr() { colors::on_err() } else { colors::on_out() };
            let text = if has_colors { text.ansi().to_string() } else { text.to_string() };
            if error.use_stderr() {
                return Err(Failure::Message(ExitCode::Usage, text));
            }
            // `--help` and `--version`.
            out.write_all(text.as_bytes())?;
            return Ok(ExitCode::Success);
        }
    };
    store_flags::reject_typed_flags_of_redis(&typed).map_err(Failure::usage)?;
    match cli.command {
        Command::Serve(args) => serve::run(&args, &expanded.in_place, out, err),
        Command::Bucket(args) => bucket::run(&args, out),
        Command::Check(args) => check::run(&args, out, err),
        Command::Completions(args) => completions::run(&args, out),
        Command::Diff(args) => diff::run(&args, out, err),
        Command::Explain(args) => explain::run(&args, out, err),
        Command::Health(args) => health::run(&args, out),
        Command::Import(args) => import::run(&args, out, err),
        Command::Init(args) => init::run(&args, out, err),
        Command::Man(args) => man::run(&args, out),
        Command::Override(args) => live_overrides::run(&args, out, err),
        Command::Record(args) => record::run(&args, out, err),
        Command::Schema(args) => schema::run(&args, out),
        Command::Simulate(args) => simulate::run(&args, out, err),
        Command::Suggest(args) => simulate::suggest::run(&args, out, err),
        Command::Test(args) => test::run(&args, out, err),
    }
}
