//! Flags for access logs, for the commands that simulate limits on them.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::available_parallelism;

use super::client_flags::TrustArgs;
use super::exit::Failure;
use super::print::joined;
use super::store_flags::parse_at_least_one;
use crate::clock::Clock;
use crate::engine::algorithms::micros::Micros;
use crate::logs::format::Format;
use crate::logs::input::Blocks;
use crate::simulation::Options;
use crate::simulation::suggestion::Goal;
use crate::store::memory::DEFAULT_MAX_KEYS;

/// Numbers take effect this long before the first line of a log, because requests arrive before their lines are written.
const BEFORE: Micros = Micros(24 * 3_600 * 1_000_000);

#[derive(clap::Args, Debug)]
pub(super) struct LogArgs {
    /// An access log, plain or compressed with gzip, zstd, bzip2 or xz, or a directory of them; `-` reads standard input; several are
    /// merged by time
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,

    /// The format of the logs, if it cannot be detected: a name, such as `combined`, or as nginx, Apache, Envoy or HAProxy write it
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    #[command(flatten)]
    trust: TrustArgs,

    /// Succeed even if more than 1% of the lines could not be read, lack what a limit reads or came too late, or no limit
    /// decided a request
    #[arg(long)]
    pub(super) allow_unread: bool,

    /// Maximum number of buckets in memory, as for `weir serve`, and of ids that are counted exactly
    #[arg(long, value_name = "N", env = "WEIR_MAX_KEYS", default_value_t = DEFAULT_MAX_KEYS, value_parser = parse_at_least_one)]
    max_keys: usize,

    /// Threads that parse lines [default: the number of cores less one]
    #[arg(long, value_name = "N", value_parser = parse_at_least_one)]
    threads: Option<usize>,

    /// A YAML file of flags, as for `weir serve`
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
}

impl LogArgs {
    /// The logs and directories of logs.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.logs.iter()
    }

    /// Everything that is read.
    pub(super) fn read(&self) -> impl Iterator<Item = &PathBuf> {
        self.logs.iter().chain(&self.config)
    }

    /// The names of the logs.
    pub(super) fn names(&self) -> String {
        joined(self.logs.iter().map(|path| path.display()), ", ")
    }

    pub(super) fn open(&self) -> Result<Blocks, Failure> {
        let format = self.log_format.as_deref().map(Format::named).transpose();
        let format = format.map_err(|error| Failure::usage(format!("--log-format: {error}")))?;
        Blocks::open(&self.logs, format.as_ref()).map_err(Failure::bad_input)
    }

    /// The instant at which the numbers take effect, a day before the first line.
    pub(super) fn effective_from(blocks: &Blocks) -> Micros {
        let starts = blocks.files().iter().filter_map(|file| file.first).min();
        starts.unwrap_or_else(|| Clock::machine().now()).before(BEFORE)
    }

    /// Writes how the logs are read, where that is not plain.
    pub(super) fn write_notes(blocks: &Blocks, err: &mut dyn Write) -> Result<(), Failure> {
        for file in blocks.files().iter().filter(|file| file.wrapping.names().next().is_some()) {
            writeln!(err, "note: {}: lines are read out of {}", file.name, joined(file.wrapping.names(), ", "))?;
        }
        for file in blocks.files() {
            for note in file.format.notes() {
                writeln!(err, "note: {}: {note}", file.name)?;
            }
        }
        Ok(())
    }

    /// The options of a simulation that only decides. `lines` counts the lines that were decided, `stop` ends it early.
    pub(super) fn options<'a>(&self, lines: &'a AtomicU64, stop: &'a AtomicBool) -> Options<'a> {
        Options {
            threads: self.threads.unwrap_or_else(default_threads),
            max_keys: self.max_keys,
            goal: Goal::default(),
            has_curves: false,
            top: 5,
            trusted: self.trust.trusted_proxies(),
            lists_impact: false,
            lines,
            stop,
        }
    }
}

fn default_threads() -> usize {
    available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1))
}

/// Parses a share such as `0.1%` to millionths.
pub(super) fn parse_share(text: &str) -> Result<u64, String> {
    let wrong = || "expected a share from 0% to 100% with at most 4 decimals, such as `0.1%`".to_owned();
    let number = text.strip_suffix('%').ok_or_else(wrong)?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 4 || whole.len() > 3 {
        return Err(wrong());
    }
    let millionths = format!("{whole}{decimals:0<4}").parse().map_err(|_| wrong())?;
    if millionths <= 1_000_000 { Ok(millionths) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        for (text, expected) in [("0.1%", 1_000), ("100%", 1_000_000), ("0%", 0), ("12.3456%", 123_456)] {
            assert_eq!(parse_share(text), Ok(expected), "{text}");
        }
        for text in ["0.1", "%", ".1%", "1.%", "100.1%", "-1%", "0.00001%", "1e1%"] {
            assert!(parse_share(text).is_err(), "{text}");
        }
    }
}
