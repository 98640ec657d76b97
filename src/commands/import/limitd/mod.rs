//! The buckets of limitd and limitd-redis.
//!
//! A client of limitd names a bucket's type and key itself, as clients of the check listener's `POST /json` do. The limits
//! are written for these calls; they cover no other requests until somebody changes `match`.

use self::numbers::Numbers;
use super::super::print::joined;
use super::amount::{Amount, Elevated};
use super::document::{Document, Limit, Origin, Override, Subject};
use super::files::read_each;
use super::text::{by_entries, map, piece, quoted};
use crate::config::foreign::{self, Key, Node, ReadResult, all, find};
use crate::config::{Report, Source};

mod elevated;
mod numbers;
mod until;

type Entries<'n> = &'n [(Key, Node)];

/// The keys of a bucket, an override or elevated limits.
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

/// The keys of a bucket's overrides, which have none themselves.
const OVERRIDES: [&str; 2] = ["overrides", "override"];

/// Replacements for the settings beside the buckets. Their values are not repeated: some are secrets.
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

/// A type of buckets, for its overrides.
struct Base {
    limit: usize,
    numbers: Numbers,
    is_windowed: bool,
    elevated: Option<Elevated>,
}

/// Reads one file.
struct BucketReader<'a> {
    source: &'a Source,
    document: &'a mut Document,
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
    read_each(sources, |source, root| BucketReader { source, document }.file(root))
}

impl BucketReader<'_> {
    fn origin(&self, key: &Key) -> Origin {
        Origin::of(&self.source.name, key.place)
    }

    fn file(&mut self, root: &Node) -> ReadResult<()> {
        let help = "write `buckets:` with the types below it";
        let all = root.map("limitd's configuration", help)?;
        let Some((_, buckets)) = find(all, "buckets") else {
            // The files of limitd's configurator hold the buckets alone.
            if !all.is_empty() && all.iter().all(|(_, node)| matches!(node.value, foreign::Value::Map(_))) {
                return self.buckets(all);
            }
            return Err(root.error("the file has no `buckets`", help));
        };
        self.settings(all);
        let help = "write `TYPE: { size: 10, per_second: 5 }` below it";
        let buckets = buckets.map("`buckets`", help)?;
        self.buckets(buckets)
    }

    /// Notes what replaces the settings beside the buckets.
    fn settings(&mut self, all: Entries<'_>) {
        let group = |key: &Key| SETTINGS.iter().position(|(keys, _)| keys.contains(&key.text.as_str()));
        let groups = SETTINGS.iter().enumerate().map(|(index, (_, what))| (Some(index), *what));
        for (index, what) in groups.chain([(None, "no equivalent; left out")]) {
            let keys = all.iter().map(|(key, _)| key).filter(|key| key.text != "buckets" && group(key) == index);
            let keys: Vec<&Key> = keys.collect();
            let Some(first) = keys.first() else { continue };
            let names = joined(keys.iter().map(|key| piece(&key.text)), ", ");
            self.document.unused(self.origin(first).note(format!("{names}: {what}.")));
        }
    }

    fn buckets(&mut self, buckets: Entries<'_>) -> ReadResult<()> {
        all(buckets.iter().map(|(key, node)| self.bucket(key, node))).map(drop)
    }

    fn bucket(&mut self, key: &Key, node: &Node) -> ReadResult<()> {
        let origin = self.origin(key);
        let help = "write `{ size: 10, per_second: 5 }`";
        let bucket = node.map("a bucket", help)?;
        let mut notes: Vec<_> = read(bucket, "purpose", Node::text)?.map(str::to_owned).into_iter().collect();
        let numbers = self.numbers(bucket, None, &mut notes)?;
        let is_windowed = flag(bucket, "fixed_window")? && numbers.rate.is_some() && !numbers.unlimited;
        let amount = self.amount((key, bucket), &numbers, &mut notes)?;
        self.ignored_window(bucket, &numbers, &mut notes);
        if matches!(amount, Amount::Burst(_)) {
            notes.push(origin.note(
                "it never refills. limitd drops such a bucket 7 days (`globalTTL`) after its last use; Weir keeps it \
                 until a refund or a reset.",
            ));
        }
        self.common(bucket, &KNOWN, &mut notes);
        let elevated = self.elevated(bucket, &numbers, is_windowed, None, &mut notes)?;
        let lease = self.lease(bucket, Some(elevated.is_none() && !numbers.unlimited), &mut notes)?;
        let descriptor = map(&[("type", quoted(&key.text))]);
        let conditions = map(&[("domain", "limitd".to_owned()), ("descriptor", descriptor)]);
        let mut fields = vec![("match", conditions), ("by", by_entries(["key"]))];
        if is_windowed {
            fields.push(("algorithm", "fixed_window".to_owned()));
        }
        let name = key.text.clone();
        let identity = name.clone();
        let mut amount = amount.fields();
        amount.extend(elevated.as_ref().map(|elevated| ("elevated", elevated.value())));
        amount.extend(lease.map(|lease| ("lease", lease)));
        let limit = self.document.add_limit(Limit { name, identity, origin, source: None, notes, fields, amount });
        let base = Base { limit, numbers, is_windowed, elevated };
        for name in OVERRIDES {
            let help = "write `KEY: { size: 100, per_second: 50 }` below it";
            let overrides = read(bucket, name, |node| node.map("overrides", help))?.unwrap_or_default();
            all(overrides.iter().map(|(key, node)| self.one_override(key, node, &base)))?;
        }
        Ok(())
    }

    fn one_override(&mut self, key: &Key, node: &Node, base: &Base) -> ReadResult<()> {
        let origin = self.origin(key);
        let help = "write `{ size: 100, per_second: 50 }`";
        let given = node.map("an override", help)?;
        let mut notes: Vec<_> = read(given, "purpose", Node::text)?.map(str::to_owned).into_iter().collect();
        let mut numbers = self.numbers(given, base.numbers.rate.map(|(_, interval)| interval), &mut notes)?;
        let elevated_alone = find(given, "elevated_limits").is_some()
            && numbers.size.is_none()
            && numbers.rate.is_none()
            && !numbers.unlimited;
        if elevated_alone {
            // limitd copies them too.
            numbers = base.numbers.clone();
        }
        let amount = self.amount((key, given), &numbers, &mut notes)?;
        if matches!(amount, Amount::Burst(_)) && base.numbers.rate.is_some() {
            notes.push(origin.note("it has no rate and never refills: limitd does not inherit the type's rate."));
        }
        let is_windowed =
            if find(given, "fixed_window").is_some() { flag(given, "fixed_window")? } else { base.is_windowed };
        if is_windowed && !base.is_windowed {
            notes.push(origin.note(
                "`fixed_window` is left out: an override can switch fixed windows off, not on. If that matters, make it a \
                 separate limit.",
            ));
        }
        let known: Vec<&str> =
            KNOWN.into_iter().filter(|key| !OVERRIDES.contains(key)).chain(["match", "until"]).collect();
        self.common(given, &known, &mut notes);
        let elevated = self.elevated(given, &numbers, base.is_windowed, base.elevated.as_ref(), &mut notes)?;
        self.lease(given, None, &mut notes)?;
        let (subject, comment) = match read(given, "match", Node::text)? {
            // limitd-redis sets the flag `i` for each expression.
            Some(regex) => (Subject::Regex(format!("(?i){regex}")), Some(&key.text)),
            None => (Subject::Ids(vec![(as_id(&key.text), None)]), None),
        };
        let until = find(given, "until").map(|(_, node)| until::until(node, &origin, &mut notes)).transpose()?;
        let mut fields = amount.fields();
        if base.is_windowed && !is_windowed && matches!(amount, Amount::Rate { .. }) {
            fields.push(("fixed_window", "false".to_owned()));
        }
        fields.extend(elevated.map(|elevated| ("elevated", elevated.value())));
        fields.extend(until.map(|until| ("until", quoted(&until))));
        fields.extend(comment.map(|comment| ("comment", quoted(comment))));
        self.document.add_override(Override { limit: base.limit, origin, notes, subject, fields });
        Ok(())
    }

    /// Notes a `fixed_window` that has no rate.
    fn ignored_window(&self, given: Entries<'_>, numbers: &Numbers, notes: &mut Vec<String>) {
        let key = find(given, "fixed_window").filter(|(_, node)| node.truth().unwrap_or_default());
        if let Some((key, _)) = key.filter(|_| numbers.unlimited || numbers.rate.is_none()) {
            notes.push(self.origin(key).note("`fixed_window` is left out: a bucket without a rate has no windows."));
        }
    }

    /// Returns the lease that `skip_n_calls` becomes. `can_lease`: whether the limit can have one; `None` for an override.
    fn lease(
        &self,
        given: Entries<'_>,
        can_lease: Option<bool>,
        notes: &mut Vec<String>,
    ) -> ReadResult<Option<String>> {
        let Some((key, node)) = find(given, "skip_n_calls") else { return Ok(None) };
        let calls = node.whole()?;
        if calls == 0 {
            return Ok(None);
        }
        let lease =
            (can_lease == Some(true)).then(|| map(&[("tokens", calls.to_string()), ("for", "100ms".to_owned())]));
        let what = match can_lease {
            Some(true) => "is now `lease`: a worker takes tokens ahead of use.",
            Some(false) => "is left out: a `lease` needs a limit with numbers, and without elevated ones.",
            None => "is left out: an override has the `lease` of its limit.",
        };
        let what = format!("`skip_n_calls: {}` {what}", shown(node));
        notes.push(self.origin(key).note(what));
        Ok(lease)
    }

    /// Notes the keys of a bucket or an override that cannot be expressed.
    fn common(&mut self, given: Entries<'_>, known: &[&str], notes: &mut Vec<String>) {
        for (key, _) in given.iter().filter(|(key, _)| !known.contains(&key.text.as_str())) {
            let what = match key.text.as_str() {
                "match" | "until" => "only valid in an override",
                name if OVERRIDES.contains(&name) => "only valid in a bucket",
                name if name.contains("backoff") || name.starts_with("exponential") => {
                    "growing waits have no equivalent"
                }
                _ => "no equivalent",
            };
            notes.push(self.origin(key).note(format!("{}: {what}; left out.", piece(&key.text))));
        }
    }
}

/// Reads the value of a key, if it is present.
fn read<'n, T>(given: Entries<'n>, name: &str, read: impl FnOnce(&'n Node) -> ReadResult<T>) -> ReadResult<Option<T>> {
    find(given, name).map(|(_, node)| read(node)).transpose()
}

fn flag(given: Entries<'_>, name: &str) -> ReadResult<bool> {
    Ok(read(given, name, Node::truth)?.unwrap_or_default())
}

/// A scalar as it is written.
fn shown(node: &Node) -> &str {
    if let foreign::Value::Scalar { text, .. } = &node.value { text } else { "" }
}

/// A key as the id of an override. Characters of escapes are escaped.
fn as_id(key: &str) -> String {
    /// The maximum number of unescaped colons in an id.
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
