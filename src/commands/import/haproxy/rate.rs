//! The rate of a counter, by the stick table that keeps it.

use super::super::gateway::Rate;
use super::super::text::piece;
use super::condition::Counter;
use super::grammar::{Line, Section};
use crate::engine::text::duration;

/// The entry of a table for a counter.
pub(super) struct Stored<'s> {
    /// The line of the table.
    pub(super) line: &'s Line,
    /// `http_req_rate` or another one.
    name: String,
    /// Empty for counters without a period.
    period: String,
}

impl<'s> Stored<'s> {
    pub(super) fn of(counter: &Counter, table: &str, all: &'s [Section]) -> Result<Self, String> {
        let mut tables = all.iter().filter(|section| section.name == table).flat_map(|section| &section.lines);
        let line = tables.find(|line| line.starts_with(&["stick-table"]));
        let line = line.ok_or_else(|| format!("there is no table {}", piece(table)))?;
        let mut store =
            line.words.iter().skip_while(|word| *word != "store").skip(1).flat_map(|words| words.split(','));
        let stored = store.find(|word| word.split('(').next() == Some(&counter.name));
        let stored = stored.ok_or_else(|| format!("the table {} does not store `{}`", piece(table), counter.name))?;
        let period = stored.split_once('(').map_or("", |(_, period)| period.trim_end_matches(')'));
        Ok(Self { line, name: counter.name.clone(), period: with_unit(period) })
    }

    /// Returns true if the table forgets an id before the period is over.
    pub(super) fn forgets(&self) -> bool {
        let expire = self.line.after("expire").and_then(|expire| micros(&with_unit(expire)).ok());
        expire.zip(micros(&self.period).ok()).is_some_and(|(expire, period)| expire < period)
    }

    /// The rate at which so many requests pass. If denied ones count, who goes on stays denied.
    pub(super) fn rate(
        &self,
        most: u64,
        action: &str,
        counts_denied: bool,
        section: &Section,
        all: &[Section],
    ) -> Result<Rate, String> {
        match self.name.as_str() {
            "conn_cur" => Ok(Rate::InFlight(most)),
            "http_req_rate" if action == "tarpit" => {
                let wait = section.setting(&["timeout", "tarpit"], all).and_then(|line| line.words.get(2));
                let delay = wait.map_or(Ok(0), |wait| micros(&with_unit(wait)))?;
                Ok(Rate::Bucket { burst: most, count: most, period: micros(&self.period)?, delay })
            }
            "http_req_rate" => Ok(Rate::Windows {
                algorithm: "sliding_window",
                more: if counts_denied { &[("count_denied", "true")] } else { &[] },
                windows: vec![(most, self.period.clone())],
            }),
            name @ ("http_err_rate" | "http_fail_rate") => {
                Err(format!("`{name}` counts responses; a limit with `spend_when: {{ status: 4xx }}` is near"))
            }
            "http_req_cnt" => {
                Err("`http_req_cnt` counts until an entry expires; `fixed_window` with that period is near".to_owned())
            }
            "gpc0_rate" => Err("`gpc0_rate` counts what other rules say, which no limit does".to_owned()),
            name => Err(format!("`{name}` counts connections or bytes, which no limit does")),
        }
    }
}

/// HAProxy takes a number without a unit as milliseconds.
fn with_unit(time: &str) -> String {
    if time.ends_with(|last: char| last.is_ascii_digit()) { format!("{time}ms") } else { time.to_owned() }
}

fn micros(text: &str) -> Result<u64, String> {
    duration::parse(text).map(|nanos| nanos / 1_000).map_err(|(message, _)| message)
}
