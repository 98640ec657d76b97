//! What the process says about itself, on standard error.

use tracing_subscriber::EnvFilter;

/// How the log looks.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub(super) struct LogArgs {
    /// What is logged: a level (error, warn, info, debug, trace), or directives such as `info,weir::store=debug`
    #[arg(long, value_name = "FILTER", env = "WEIR_LOG", default_value = "info")]
    log: String,

    /// How a line of the log looks
    #[arg(long, value_name = "FORMAT", env = "WEIR_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

/// `--log-format`
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts the log. A filter that cannot be read is the error; a log that was started before stays as it is.
pub(super) fn start(args: &LogArgs) -> Result<(), String> {
    let filter = EnvFilter::try_new(&args.log).map_err(|error| format!("--log: {error}"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = match args.log_format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    Ok(())
}
