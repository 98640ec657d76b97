//! What the process says about itself, on standard error.

use std::time::Duration;

use tracing_subscriber::EnvFilter;

use crate::engine::rules::duration;
use crate::engine::rules::quote::quoted;
use crate::engine::rules::suggest::did_you_mean;
use crate::limiter::denials::{LineRate, RefusalLog, ShownIds};
use crate::listeners::admin::log::LogFilter;

/// What a filter may have, in bytes: each line is compared with all of it.
const LONGEST_FILTER: usize = 1024;

/// Lines of refusals by one limit in a period. More would be an access log, which there is.
const MOST_LINES: u32 = 1_000;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// How the log looks.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub(super) struct LogArgs {
    /// What is logged: a level (error, warn, info, debug, trace, off), or directives such as `info,weir::store=debug`
    #[arg(long, value_name = "FILTER", env = "WEIR_LOG", default_value = "info")]
    log: String,

    /// How a line of the log looks
    #[arg(long, value_name = "FORMAT", env = "WEIR_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,

    /// How many refused requests are logged, of each limit: `1/s`, `10/1m`; `off` for none. Each line says how many before
    /// it have none
    #[arg(long, value_name = "LINES", env = "WEIR_LOG_REFUSALS", default_value = "1/s", value_parser = parse_rate)]
    log_refusals: Rate,

    /// How ids are told where requests are logged or traced; `clear` tells their path, host and address as well
    #[arg(long, value_name = "HOW", env = "WEIR_LOG_IDS", default_value = "hash")]
    log_ids: LogIds,
}

/// `--log-format`
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `--log-ids`
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum LogIds {
    /// A hash that is the same for an id of a limit until the process ends
    Hash,
    /// As they are
    Clear,
    /// Not at all
    None,
}

/// `--log-refusals`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate(Option<LineRate>);

impl LogArgs {
    /// How ids are told.
    pub(super) const fn ids(&self) -> ShownIds {
        match self.log_ids {
            LogIds::Hash => ShownIds::Hash,
            LogIds::Clear => ShownIds::Clear,
            LogIds::None => ShownIds::None,
        }
    }

    /// How refused requests are logged.
    pub(super) fn refusals(&self) -> RefusalLog {
        RefusalLog::new(self.log_refusals.0, self.ids())
    }
}

/// Starts the log. A filter that cannot be read is the error; a log that was started before stays as it is.
pub(super) fn start(args: &LogArgs) -> Result<LogFilter, String> {
    let filter = parse_filter(&args.log).map_err(|error| format!("--log: {error}"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    Ok(match args.log_format {
        LogFormat::Text => {
            let log = log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).with_filter_reloading();
            let handle = log.reload_handle();
            let _ = log.try_init();
            changeable(args, move |filter| handle.reload(filter))
        }
        LogFormat::Json => {
            let log = log.json().with_filter_reloading();
            let handle = log.reload_handle();
            let _ = log.try_init();
            changeable(args, move |filter| handle.reload(filter))
        }
    })
}

/// The filter of a log, which `reload` gives another one.
fn changeable<E>(
    args: &LogArgs,
    reload: impl Fn(EnvFilter) -> Result<(), E> + Clone + Send + Sync + 'static,
) -> LogFilter {
    let read = move |text: &str| {
        let (filter, reload) = (parse_filter(text)?, reload.clone());
        // It fails when the log is gone, and nobody is left to be told.
        let apply: Box<dyn FnOnce()> = Box::new(move || drop(reload(filter)));
        Ok(apply)
    };
    LogFilter::new(&args.log, Box::new(read))
}

/// Reads a filter. The library takes a misspelt level for the name of a module, and then nothing is logged.
fn parse_filter(text: &str) -> Result<EnvFilter, String> {
    if text.len() > LONGEST_FILTER {
        return Err(format!("a filter has at most {LONGEST_FILTER} bytes, this has {}", text.len()));
    }
    if text.trim().is_empty() {
        return Err("it is empty; a filter is a level, or directives such as `info,weir::store=debug`".to_owned());
    }
    for directive in text.split(',').map(str::trim) {
        let level = match directive.rsplit_once('=') {
            // What stands in brackets is of spans, and has commas and signs of its own.
            _ if text.contains('[') => break,
            Some(("", _)) => return Err(format!("{} names no module", quoted(directive))),
            Some((_, level)) => level,
            None => directive,
        };
        if !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            let help = did_you_mean(level, LEVELS);
            return Err(format!(
                "{} is no level: {help}; a module has one behind `=`, as in `weir::store=debug`",
                quoted(level)
            ));
        }
    }
    EnvFilter::try_new(text).map_err(|error| format!("{} is no filter: {error}", quoted(text)))
}

/// Reads `--log-refusals`: `off`, or lines and the time that they are in.
fn parse_rate(text: &str) -> Result<Rate, String> {
    if text == "off" {
        return Ok(Rate(None));
    }
    let wrong = |why: String| format!("{why}; write `1/s`, `10/1m` or `off`");
    let (lines, period) = text.split_once('/').ok_or_else(|| wrong("it is no rate".to_owned()))?;
    let Ok(lines @ 1..=MOST_LINES) = lines.parse() else {
        return Err(wrong(format!("{} is no number of lines between 1 and {MOST_LINES}", quoted(lines))));
    };
    let is_unit = period.bytes().all(|byte| byte.is_ascii_alphabetic());
    let period = if is_unit { duration::parse(&format!("1{period}")) } else { duration::parse(period) };
    let period = period.map_err(|(what, right)| wrong(format!("{what}; {right}")))?;
    if period < u64::from(lines) {
        return Err(wrong("the time is too short".to_owned()));
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
            ("debg", "`debg` is no level: did you mean `debug`?"),
            ("weir", "`weir` is no level: known are `error`"),
            ("info,weir::store=verbose", "`verbose` is no level"),
            ("info,", "`` is no level"),
            ("=debug", "names no module"),
            ("weir[=debug", "is no filter"),
            (" ", "it is empty"),
            (&"x".repeat(1_025), "at most 1024 bytes, this has 1025"),
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
            ("1", Err("is no rate")),
            ("0/s", Err("`0` is no number of lines between 1 and 1000")),
            ("1001/s", Err("between 1 and 1000")),
            ("1/fortnight", Err("no duration")),
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
