//! Flags for the log, and its start.

use std::time::Duration;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, reload};

use super::colors;
use super::values::one_of;
use crate::engine::text::duration;
use crate::engine::text::quote::quoted;
use crate::engine::text::suggest::did_you_mean;
use crate::listeners::admin::log::LogFilter;
use crate::telemetry::denials::{DenialLog, IdFormat, LineRate};

/// The maximum length of a filter, in bytes: every line is compared with all of it.
const LONGEST_FILTER: usize = 1024;

/// The maximum number of lines per limit and period. For more there is the access log.
const MOST_LINES: u32 = 1_000;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub(super) struct LogArgs {
    /// Log level (error, warn, info, debug, trace, off), or directives such as `info,weir::store=debug`
    #[arg(long, value_name = "FILTER", env = "WEIR_LOG", default_value = "info")]
    log: String,

    /// Format of the log
    #[arg(long, value_name = "FORMAT", env = "WEIR_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,

    /// How many denied requests to log per limit: `1/s`, `10/1m`, or `off`. Each line says how many were skipped before it
    #[arg(long, value_name = "LINES", env = "WEIR_LOG_DENIALS", default_value = "1/s", value_parser = parse_rate)]
    log_denials: Rate,

    /// How ids appear in logs and traces; `clear` also shows path, host and client address
    #[arg(long, value_name = "HOW", env = "WEIR_LOG_IDS", default_value = "hash", value_parser = one_of(ID_FORMATS))]
    pub(super) log_ids: IdFormat,
}

/// `--log-format`
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

const ID_FORMATS: &[(&str, &str, IdFormat)] = &[
    ("hash", "A hash that is stable per limit and id until the process ends", IdFormat::Hash),
    ("clear", "Unchanged", IdFormat::Clear),
    ("none", "Not at all", IdFormat::None),
];

/// `--log-denials`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate(Option<LineRate>);

impl LogArgs {
    pub(super) fn denials(&self) -> DenialLog {
        DenialLog::new(self.log_denials.0, self.log_ids)
    }

    pub(super) fn is_json(&self) -> bool {
        self.log_format == LogFormat::Json
    }
}

/// Checks the filter.
pub(super) fn check(args: &LogArgs) -> Result<(), String> {
    parse_filter(&args.log).map(drop).map_err(|error| format!("--log: {error}"))
}

/// Starts the log with these warnings. Fails if the filter is invalid; does nothing if a log is already running.
pub(super) fn start(args: &LogArgs, warnings: &[String]) -> Result<LogFilter, String> {
    let filter = parse_filter(&args.log).map_err(|error| format!("--log: {error}"))?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match args.log_format {
        LogFormat::Text => lines.with_ansi(colors::on_err()).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let read = move |text: &str| {
        let (filter, handle) = (parse_filter(text)?, handle.clone());
        // Fails only if the log is gone.
        let apply: Box<dyn FnOnce()> = Box::new(move || drop(handle.reload(filter)));
        Ok(apply)
    };
    Ok(LogFilter::new(&args.log, Box::new(read)))
}

/// Parses a filter. The library reads a misspelt level as a module's name, and then logs nothing.
fn parse_filter(text: &str) -> Result<EnvFilter, String> {
    if text.len() > LONGEST_FILTER {
        return Err(format!("a filter can have at most {LONGEST_FILTER} bytes, found {}", text.len()));
    }
    if text.trim().is_empty() {
        return Err("empty filter; use a level, or directives such as `info,weir::store=debug`".to_owned());
    }
    for directive in text.split(',').map(str::trim) {
        let level = match directive.rsplit_once('=') {
            // Brackets select spans and may contain commas and `=`.
            _ if text.contains('[') => break,
            Some(("", _)) => return Err(format!("{} has no module", quoted(directive))),
            Some((_, level)) => level,
            None => directive,
        };
        if !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            let help = did_you_mean(level, LEVELS);
            return Err(format!(
                "unknown level {}: {help}; a module's level follows `=`, as in `weir::store=debug`",
                quoted(level)
            ));
        }
    }
    EnvFilter::try_new(text).map_err(|error| format!("invalid filter {}: {error}", quoted(text)))
}

/// Parses `off`, or lines per time.
fn parse_rate(text: &str) -> Result<Rate, String> {
    if text == "off" {
        return Ok(Rate(None));
    }
    let wrong = |why: String| format!("{why}; write `1/s`, `10/1m` or `off`");
    let (lines, period) = text.split_once('/').ok_or_else(|| wrong("expected a rate".to_owned()))?;
    let Ok(lines @ 1..=MOST_LINES) = lines.parse() else {
        return Err(wrong(format!("{} is not a number of lines from 1 to {MOST_LINES}", quoted(lines))));
    };
    let is_unit = period.bytes().all(|byte| byte.is_ascii_alphabetic());
    let period = if is_unit { duration::parse(&format!("1{period}")) } else { duration::parse(period) };
    let period = period.map_err(|(what, right)| wrong(format!("{what}; {right}")))?;
    if period < u64::from(lines) {
        return Err(wrong("the period is too short".to_owned()));
    }
    Ok(Rate(Some(LineRate { lines, period: Duration::from_nanos(period) })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_would_log_nothing_by_mistake_is_refused() {
        for text in ["info", "OFF", "info,weir::store=debug", "weir[span{field=1}]=debug,info", "warn,h2=off"] {
            assert!(parse_filter(text).is_ok(), "{text}");
        }
        for (text, part) in [
            ("debg", "unknown level `debg`: did you mean `debug`?"),
            ("weir", "unknown level `weir`: expected one of `error`"),
            ("info,weir::store=verbose", "unknown level `verbose`"),
            ("info,", "unknown level ``"),
            ("=debug", "has no module"),
            ("weir[=debug", "invalid filter"),
            (" ", "empty filter"),
            (&"x".repeat(1_025), "at most 1024 bytes, found 1025"),
        ] {
            let error = parse_filter(text).err().unwrap_or_default();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_rate_is_lines_and_the_time_that_they_are_in() {
        let rate = |lines, seconds| Ok(Rate(Some(LineRate { lines, period: Duration::from_secs(seconds) })));
        for (text, expected) in [
            ("1/s", rate(1, 1)),
            ("10/1m", rate(10, 60)),
            ("1000/1h30m", rate(1_000, 5_400)),
            ("off", Ok(Rate(None))),
            ("1", Err("expected a rate")),
            ("0/s", Err("`0` is not a number of lines from 1 to 1000")),
            ("1001/s", Err("from 1 to 1000")),
            ("1/fortnight", Err("invalid duration")),
            ("1/0s", Err("too short")),
            ("", Err("write `1/s`")),
        ] {
            match (parse_rate(text), expected) {
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{text}"),
            }
        }
    }
}
