//! The buckets of limitd and limitd-redis.
//!
//! A caller of limitd names a bucket's type and key itself. That is what the check listener's `POST /json` does, and what the
//! limits are written for: no request is charged by itself until somebody says which ones are meant.

use self::numbers::Numbers;
use super::amount::{Amount, Elevated};
use super::document::{Document, Limit, Origin, Override, Subject};
use super::text::{Value, piece};
use crate::config::foreign::{self, Findings, Key, Node, Reported, find};
use crate::config::{Place, Report, Source};

mod elevated;
mod numbers;
mod until;

type Entries<'n> = &'n [(Key, Node)];

/// The fields that are read of a bucket, an override or elevated limits.
const KNOWN: [&str; 14] = [
    "size",
    "per_interval",
    "interval",
    "per_second",
    "per_minute",
    "per_hour",
    "per_day",
    "unlimited",
    "fixed_window",
    "skip_n_calls",
    "elevated_limits",
    "overrides",
    "override",
    "purpose",
];

/// What becomes of the settings that stand beside the buckets. Their values are not repeated: some are secrets.
const SETTINGS: [(&[&str], &str); 5] = [
    (
        &["uri", "nodes", "host", "hosts", "username", "password", "tls"],
        "set Redis' address with `weir serve --store redis://USER:PASSWORD@HOST:PORT`",
    ),
    (&["prefix"], "keys in Redis start with `weir:`; buckets are not migrated and start full"),
    (&["globalTTL"], "Weir drops buckets when they are full; a bucket that never refills stays until it is reset"),
    (
        &["ping", "keepAlive", "retry", "commandTimeout", "circuitbreaker"],
        "Weir monitors the connection itself; `--store-timeout` bounds a call, and `on_store_error` decides if it fails",
    ),
    (
        &["port", "hostname", "db", "log_level", "configurator", "protocol"],
        "listeners, store and log are flags of `weir serve`: `--check`, `--store`, `--log`",
    ),
];

/// What is known of a type when its overrides are read.
struct Base {
    limit: usize,
    numbers: Numbers,
    is_windowed: bool,
    elevated: Option<Elevated>,
}

/// Reads one file.
struct Reading<'s, 'd> {
    source: &'s Source,
    findings: Findings,
    document: &'d mut Document,
}

/// Adds the buckets of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    document.head(
        "Clients of limitd call the HTTP check listener instead (`weir serve --check 127.0.0.1:9002`): take(TYPE, KEY, \
         {count}) becomes POST /json {\"limit\": TYPE, \"id\": KEY, \"cost\": COUNT}; put becomes \"op\": \"refund\", and a \
         bucket's reset \"op\": \"reset\". Calls with `configOverride` need `per_call: true` in the limit.",
    );
    document.head(
        "No other requests are charged. To charge requests from a gateway, replace a limit's `match` and `by`, for \
         example: by: ip, by: { header: x-user }, match: { path: /login }.",
    );
    let mut report = Report::default();
    for source in sources {
        let mut reading = Reading { source, findings: Findings::new(&source.name), document };
        // What is wrong is among the findings.
        let (Ok(()) | Err(Reported)) = reading.file();
        report.add(reading.findings, &source.text);
    }
    report
}

impl Reading<'_, '_> {
    fn origin(&self, place: Place) -> Origin {
        Origin::of(self.source, place)
    }

    fn file(&mut self) -> Result<(), Reported> {
        let root = foreign::read(&self.source.text, &mut self.findings)?;
        let help = "write `buckets:` with the types below it";
        let all = root.map("limitd's configuration", help)?;
        let Some((_, buckets)) = find(all, "buckets") else {
            // The files of limitd's configurator hold the buckets alone.
            if !all.is_empty() && all.iter().all(|(_, node)| matches!(node.value, foreign::Value::Map(_))) {
                return self.buckets(all);
            }
            return Err(self.findings.error(root.place, "the file has no `buckets`", help));
        };
        self.settings(all);
        let help = "write `TYPE: { size: 10, per_second: 5 }` below it";
        let buckets = buckets.map("`buckets`", help)?;
        self.buckets(buckets)
    }

    /// Says what becomes of all that stands beside the buckets.
    fn settings(&mut self, all: Entries<'_>) {
        let is_of = |keys: &[&str], key: &Key| keys.contains(&key.text.as_str());
        let known = |key: &Key| key.text == "buckets" || SETTINGS.iter().any(|(keys, _)| is_of(keys, key));
        let of = |keys: &[&str]| all.iter().map(|(key, _)| key).filter(|key| is_of(keys, key)).collect();
        let unknown = all.iter().map(|(key, _)| key).filter(|key| !known(key)).collect();
        let groups = SETTINGS.iter().map(|(keys, what)| (of(keys), *what));
        let groups: Vec<(Vec<&Key>, &str)> = groups.chain([(unknown, "no equivalent; left out")]).collect();
        for (keys, what) in groups {
            let Some(first) = keys.first() else { continue };
            let names: Vec<String> = keys.iter().map(|key| piece(&key.text)).collect();
            let note = self.origin(first.place).note(format!("{}: {what}.", names.join(", ")));
            self.document.head(note);
        }
    }

    fn buckets(&mut self, buckets: Entries<'_>) -> Result<(), Reported> {
        let mut outcome = Ok(());
        for (key, node) in buckets {
            // All are read, so that all mistakes are found.
            outcome = self.bucket(key, node).and(outcome);
        }
        outcome
    }

    fn bucket(&mut self, key: &Key, node: &Node) -> Result<(), Reported> {
        let origin = self.origin(key.place);
        let help = "write `{ size: 10, per_second: 5 }`";
        let bucket = node.map("a bucket", help)?;
        let mut notes = Vec::new();
        if let Some((_, purpose)) = find(bucket, "purpose") {
            notes.push(purpose.text()?.to_owned());
        }
        let numbers = self.numbers(bucket, None, &mut notes)?;
        let is_windowed = self.flag(bucket, "fixed_window")? && numbers.rate.is_some() && !numbers.unlimited;
        let amount = self.amount(key, &numbers, &mut notes)?;
        if matches!(amount, Amount::Burst(_)) {
            notes.push(origin.note(
                "it never refills. limitd drops such a bucket 7 days (`globalTTL`) after its last use; Weir keeps it \
                 until a refund or a reset.",
            ));
        }
        self.common(bucket, &KNOWN, &mut notes)?;
        let elevated = self.elevated(bucket, &numbers, is_windowed, None, &mut notes)?;
        let descriptor = Value::map([("type", Value::Text(key.text.clone()))]);
        let mut fields = vec![
            ("match", Value::map([("domain", Value::word("limitd")), ("descriptor", descriptor)])),
            ("by", Value::map([("descriptor", Value::word("key"))])),
        ];
        if is_windowed {
            fields.push(("algorithm", Value::word("fixed_window")));
        }
        let name = key.text.clone();
        let identity = name.clone();
        let limit = Limit { name, identity, origin, notes, fields, amount, elevated: elevated.clone() };
        let limit = self.document.add_limit(limit);
        let base = Base { limit, numbers, is_windowed, elevated };
        let mut outcome = Ok(());
        for name in ["overrides", "override"] {
            let Some((_, overrides)) = find(bucket, name) else { continue };
            let help = "write `KEY: { size: 100, per_second: 50 }` below it";
            for (key, node) in overrides.map("overrides", help)? {
                outcome = self.one_override(key, node, &base).and(outcome);
            }
        }
        outcome
    }

    fn one_override(&mut self, key: &Key, node: &Node, base: &Base) -> Result<(), Reported> {
        let origin = self.origin(key.place);
        let help = "write `{ size: 100, per_second: 50 }`";
        let given = node.map("an override", help)?;
        let mut notes = Vec::new();
        let mut numbers = self.numbers(given, base.numbers.rate.map(|(_, interval)| interval), &mut notes)?;
        let elevated_alone = find(given, "elevated_limits").is_some()
            && numbers.size.is_none()
            && numbers.rate.is_none()
            && !numbers.unlimited;
        if elevated_alone {
            // limitd copies them too.
            numbers = base.numbers.clone();
        }
        let amount = self.amount(key, &numbers, &mut notes)?;
        if matches!(amount, Amount::Burst(_)) && base.numbers.rate.is_some() {
            notes.push(origin.note("it has no rate and never refills: limitd does not inherit the type's rate."));
        }
        if find(given, "fixed_window").is_some() && self.flag(given, "fixed_window")? != base.is_windowed {
            notes.push(origin.note(
                "`fixed_window` differs from the type's; in Weir an override refills the way its limit does. If that \
                 matters, make it a separate limit.",
            ));
        }
        self.common(given, &[&KNOWN[..], &["match", "until"]].concat(), &mut notes)?;
        let elevated = self.elevated(given, &numbers, base.is_windowed, base.elevated.as_ref(), &mut notes)?;
        let (subject, comment) = match find(given, "match") {
            // limitd-redis makes each expression with the flag `i`.
            Some((_, regex)) => {
                let source = regex.text()?;
                (Subject::Regex(format!("(?i){source}")), Some(key.text.clone()))
            }
            None => (Subject::Ids(vec![(as_id(&key.text), None)]), None),
        };
        let until = match find(given, "until") {
            Some((_, until)) => Some(self.until(until, &origin, &mut notes)?),
            None => None,
        };
        let limit = base.limit;
        self.document.add_override(Override { limit, origin, notes, subject, amount, elevated, until, comment });
        Ok(())
    }

    /// Says what has no equal in a bucket or an override.
    fn common(&mut self, given: Entries<'_>, known: &[&str], notes: &mut Vec<String>) -> Result<(), Reported> {
        if let Some((key, node)) = find(given, "skip_n_calls")
            && node.whole()? > 0
        {
            let what = format!("`skip_n_calls: {}` has no equivalent: every call is counted once.", shown(node));
            notes.push(self.origin(key.place).note(what));
        }
        for (key, _) in given.iter().filter(|(key, _)| !known.contains(&key.text.as_str())) {
            let what = match key.text.as_str() {
                "match" | "until" => "only valid in an override",
                name if name.contains("backoff") || name.starts_with("exponential") => {
                    "growing waits have no equivalent"
                }
                _ => "no equivalent",
            };
            notes.push(self.origin(key.place).note(format!("{}: {what}; left out.", piece(&key.text))));
        }
        Ok(())
    }

    fn flag(&mut self, given: Entries<'_>, name: &str) -> Result<bool, Reported> {
        find(given, name).map_or(Ok(false), |(_, node)| node.truth())
    }
}

/// A scalar as it is written.
fn shown(node: &Node) -> &str {
    if let foreign::Value::Scalar { text, .. } = &node.value { text } else { "" }
}

/// A key as the id of an override has it: what the id's own escapes are made of is escaped.
fn as_id(key: &str) -> String {
    /// An id has no more colons than this, unless they are escaped.
    const MOST_COLONS: usize = 20;
    let many_colons = key.matches(':').count() > MOST_COLONS;
    let has_escapes = ["%3A", "%3a", "%25"].iter().any(|escape| key.contains(escape));
    let id = if many_colons || has_escapes { key.replace('%', "%25") } else { key.to_owned() };
    if many_colons { id.replace(':', "%3A") } else { id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_the_same_as_ids() {
        assert_eq!(as_id("a:b%20c"), "a:b%20c");
        assert_eq!(as_id("a%3Ab%20"), "a%253Ab%2520");
        assert_eq!(as_id(&":".repeat(21)), "%3A".repeat(21));
    }
}
