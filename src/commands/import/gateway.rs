//! A limit as a gateway enforces it. It is written with a test of its behavior there.

use std::collections::BTreeSet;

use super::amount::{Amount, milliseconds};
use super::document::{Document, Limit, Origin};
use super::scope::{Sample, Scope};
use super::text::{map, one_or_list, quoted};

/// The most requests of a step in a test.
const MOST_REPEATED: u64 = 100_000;

/// The longest wait of a request.
const LONGEST_DELAY: u64 = 600_000_000;

/// The shortest one.
const SHORTEST_DELAY: u64 = 1_000;

/// A test denies a request that comes this early, in microseconds. Waits are rounded by less.
const EARLY: u64 = 2;

/// The most requests in flight.
const MOST_IN_FLIGHT: u64 = 10_000;

/// The duration of the requests in flight in a test, in microseconds: less than the default `lease`, which nothing renews in tests.
const SPREAD: u64 = 50_000_000;

/// A component of the key that a limit counts by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// IPv6 addresses by their first bits.
    Address(u8),
    Header(String),
    /// The first value of a header, and its whole text.
    FirstHeader(String),
    /// The first value of a query parameter.
    Query(String),
    /// A cookie, and which of several values counts: `first` or `last`.
    Cookie(String, &'static str),
    /// `host`, `method`, `path`, or another word of `by`.
    Word(&'static str),
    TlsSubject,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rate {
    /// A bucket that holds `burst` requests, and gets `count` back in a period. Times are in microseconds.
    Bucket { burst: u64, count: u64, period: u64, delay: u64 },
    /// Counts in periods, by the algorithm and what else it needs.
    Windows { algorithm: &'static str, more: &'static [(&'static str, &'static str)], windows: Vec<(u64, String)> },
    /// Requests in flight.
    InFlight(u64),
}

/// A limit of a gateway.
#[derive(Clone, Debug)]
pub(super) struct GatewayLimit {
    pub(super) name: String,
    /// The gateway's key of counters. What the limit covers and counts by is added to one with a line break.
    pub(super) identity: String,
    pub(super) origin: Origin,
    /// The gateway's setting, in short.
    pub(super) source: String,
    pub(super) notes: Vec<String>,
    /// Why the limit covers more requests than before. It is in shadow mode then, so that nobody is denied who was not.
    pub(super) wider: Vec<String>,
    pub(super) scope: Scope,
    /// Empty for all requests together.
    pub(super) by: Vec<By>,
    /// `missing:`, if it is not the default.
    pub(super) missing: Option<&'static str>,
    pub(super) rate: Rate,
    /// The status of denials, if the gateway's configuration has one.
    pub(super) status: Option<u64>,
    pub(super) is_shadow: bool,
}

impl By {
    fn text(&self) -> String {
        match self {
            Self::Address(64) => "ip".to_owned(),
            Self::Address(bits) => format!("ip/{bits}"),
            Self::Header(name) if name == "authorization" => "credentials".to_owned(),
            Self::Header(name) => map(&[("header", quoted(name))]),
            Self::FirstHeader(name) => map(&[("header", quoted(name)), ("duplicates", "first".to_owned())]),
            Self::Query(name) => map(&[("query", quoted(name)), ("duplicates", "first".to_owned())]),
            Self::Cookie(name, duplicates) => {
                map(&[("cookie", quoted(name)), ("duplicates", (*duplicates).to_owned())])
            }
            Self::Word(word) => (*word).to_owned(),
            Self::TlsSubject => "{ tls: subject }".to_owned(),
        }
    }

    /// An id of a client.
    fn id(&self) -> &'static str {
        match self {
            Self::Address(_) => "192.0.2.2",
            Self::Word("method") => "PUT",
            Self::Word("path") => "/other",
            Self::Word("host") => "other.example",
            _ => "other",
        }
    }
}

impl GatewayLimit {
    /// Adds the limit and its test. Returns false if the limit is left out, with the reason.
    pub(super) fn write(self, document: &mut Document) -> bool {
        self.write_with(&[], document)
    }

    /// Adds the limit with more of its keys.
    pub(super) fn write_with(mut self, more: &[(&'static str, String)], document: &mut Document) -> bool {
        self.keep_within_bounds();
        self.notes.extend(self.forwarded().into_iter().map(|name| {
            self.origin.note(format!("Weir believes `{name}` only from the proxies in `--trusted-proxies`."))
        }));
        let except: Vec<String> = self.scope.except.iter().filter_map(Scope::text).collect();
        if except.len() < self.scope.except.len() || !except.iter().all(|conditions| document.can_exempt(conditions)) {
            self.scope.except.clear();
            self.wider.push(self.origin.note("`exempt` cannot say which of these requests are counted elsewhere."));
        }
        let is_wider = !self.wider.is_empty();
        if is_wider {
            self.notes.append(&mut self.wider);
            self.notes.push(self.origin.note("it covers more requests than before, so it is in shadow mode."));
            self.is_shadow = true;
        }
        let mut fields = Vec::new();
        fields.extend(self.scope.text().map(|conditions| ("match", conditions)));
        let by: Vec<String> = self.by.iter().map(By::text).collect();
        fields.push(("by", if by.is_empty() { "global".to_owned() } else { one_or_list(&by) }));
        fields.extend(self.missing.map(|missing| ("missing", missing.to_owned())));
        if self.identity.contains('\n') {
            let parts: Vec<&str> = fields.iter().map(|(_, value)| value).chain(&except).map(String::as_str).collect();
            self.identity.push_str(&parts.join(" "));
        }
        if self.is_shadow {
            fields.push(("mode", "shadow".to_owned()));
        }
        fields.extend(more.iter().cloned());
        fields.extend(self.status.map(|status| ("deny_with", map(&[("status", status.to_string())]))));
        let amount = match &self.rate {
            Rate::Bucket { burst, count, period, delay } => {
                let mut amount = Amount::Rate { burst: Some(*burst), count: *count, period: span(*period) }.fields();
                amount.extend((*delay > 0).then(|| ("delay", span(*delay))));
                amount
            }
            Rate::Windows { algorithm, more, windows } => {
                fields.push(("algorithm", (*algorithm).to_owned()));
                fields.extend(more.iter().map(|(key, value)| (*key, (*value).to_owned())));
                match windows.as_slice() {
                    [(count, period)] => Amount::Rate { burst: None, count: *count, period: period.clone() },
                    _ => Amount::Rates(windows.clone()),
                }
                .fields()
            }
            Rate::InFlight(capacity) => {
                vec![("algorithm", "concurrency".to_owned()), ("capacity", capacity.to_string())]
            }
        };
        let tests = self.tests();
        let Self { name, identity, origin, source, notes, .. } = self;
        let title = origin.note(&source);
        let source = Some(title.clone());
        let limit = document.add_limit(Limit { name, identity, origin, source, notes, fields, amount });
        document.add_test(limit, title, tests);
        let is_written = document.is_written(limit);
        if is_written && !is_wider {
            for conditions in except {
                document.exempt(limit, conditions);
            }
        }
        is_written
    }

    /// The headers that it reads and that Weir removes, unless a trusted proxy has sent them.
    fn forwarded(&self) -> BTreeSet<String> {
        let of_keys = self.by.iter().filter_map(|by| match by {
            By::Header(name) | By::FirstHeader(name) => Some(name),
            _ => None,
        });
        let all = of_keys.chain(self.scope.headers.iter().map(|(name, _)| name));
        let is_it =
            |name: &&String| ["forwarded", "x-real-ip"].contains(&name.as_str()) || name.starts_with("x-forwarded-");
        all.filter(is_it).cloned().collect()
    }

    /// Tells what the rules file cannot say, and takes the nearest that it can.
    fn keep_within_bounds(&mut self) {
        let told = match &mut self.rate {
            Rate::Bucket { burst, delay, count, period } if *delay > LONGEST_DELAY => {
                let longest = parts(LONGEST_DELAY, *count, *period);
                *delay = LONGEST_DELAY;
                Some(format!(
                    "requests wait for up to 10m here, not for longer: {} fit at once or wait.",
                    burst.saturating_add(longest)
                ))
            }
            Rate::Bucket { burst, count, period, delay } if (1..SHORTEST_DELAY).contains(delay) => {
                *burst = burst.saturating_add(parts(*delay, *count, *period));
                *delay = 0;
                None
            }
            Rate::InFlight(capacity) if *capacity > MOST_IN_FLIGHT => {
                let told = format!("at most {MOST_IN_FLIGHT} requests can be in flight here, not {capacity}.");
                *capacity = MOST_IN_FLIGHT;
                Some(told)
            }
            _ => None,
        };
        self.notes.extend(told.map(|told| self.origin.note(told)));
    }

    /// The steps of a test: a request that the limit counts, and more charges than it allows. `\0` stands for the limit's name.
    fn tests(&self) -> Vec<String> {
        let sample = self.scope.sample();
        let mut steps = Vec::new();
        let short = if self.is_shadow { "would_deny" } else { "deny" };
        let request = sample.map(|sample| self.request(sample));
        let decision = |what: &str| ("expect", map(&[("limits", format!("{{ \0: {what} }}"))]));
        if let Rate::InFlight(capacity) = self.rate {
            if let Some(request) = request {
                // They come one after the other, so that other limits of these requests deny none.
                let every = span((SPREAD / capacity.saturating_add(2)).min(1_000_000));
                let repeated = [("repeat", capacity.to_string()), ("every", every.clone()), ("lasts", span(SPREAD))];
                let open = [request.clone(), repeated.to_vec(), vec![decision("allow")]].concat();
                let more = [vec![("after", every)], request, vec![decision(short)]].concat();
                steps.extend([map(&open), map(&more)]);
            }
            return steps;
        }
        steps.extend(request.clone().map(|request| map(&[request, vec![decision("allow")]].concat())));
        let ids: Vec<String> = self.by.iter().map(|by| quoted(by.id())).collect();
        let charge = vec![("limit", "\0".to_owned()), ("id", one_or_list(&ids))];
        // A limit of all requests together has no ids to charge.
        let charge = if self.by.is_empty() { request.unwrap_or_default() } else { charge };
        if charge.is_empty() {
            return steps;
        }
        let (at_once, next) = self.at_once();
        // Where all requests count together, the first one does, too.
        let more = at_once - u64::from(self.by.is_empty() && !steps.is_empty());
        if at_once < MOST_REPEATED {
            let fits = map(&[charge.clone(), vec![("repeat", more.to_string()), decision("allow")]].concat());
            let denied = map(&[charge.clone(), vec![decision(short)]].concat());
            steps.extend((more > 0).then_some(fits));
            steps.push(denied);
            if let Rate::Bucket { count, period, delay: 0, .. } = self.rate
                && let Some(early) = period.div_ceil(count.max(1)).checked_sub(EARLY).filter(|early| *early > EARLY)
            {
                let after = |wait: u64| vec![("after", span(wait))];
                steps.push(map(&[after(early), charge.clone(), vec![decision(short)]].concat()));
                steps.push(map(&[after(EARLY), charge, vec![decision("allow")]].concat()));
            } else {
                steps.extend(next.map(|next| map(&[vec![("after", next)], charge, vec![decision("allow")]].concat())));
            }
        }
        steps
    }

    /// The number of requests that fit at once, and the time after which another one does.
    fn at_once(&self) -> (u64, Option<String>) {
        match &self.rate {
            Rate::Bucket { burst, count, period, delay } => {
                (burst.saturating_add(parts(*delay, *count, *period)), Some(span(period.div_ceil((*count).max(1)))))
            }
            Rate::Windows { windows, algorithm, .. } => {
                let least = windows.iter().map(|(count, _)| *count).min().unwrap_or_default();
                let next = windows.first().filter(|_| windows.len() == 1 && *algorithm == "fixed_window");
                (
                    least,
                    next.map(|(_, period)| if period == "month" { "31d" } else { period }.to_owned())
                        .filter(|period| period != "year"),
                )
            }
            Rate::InFlight(capacity) => (*capacity, None),
        }
    }

    fn request(&self, sample: Sample) -> Vec<(&'static str, String)> {
        let mut headers = sample.headers;
        let mut path = sample.path;
        for by in &self.by {
            match by {
                By::Header(name) | By::FirstHeader(name) if !headers.iter().any(|(own, _)| own == name) => {
                    headers.push((name.clone(), "Bearer weir".to_owned()));
                }
                By::Cookie(name, _) => headers.push(("cookie".to_owned(), format!("{name}=weir"))),
                By::Query(name) => path = format!("{path}?{name}=weir"),
                _ => {}
            }
        }
        let headers: Vec<_> = headers.into_iter().map(|(name, value)| (name, quoted(&value))).collect();
        let line = match sample.method.as_str() {
            "GET" => ("get", quoted(&path)),
            method => ("request", quoted(&format!("{method} {path}"))),
        };
        let mut request = vec![line];
        request.extend(sample.host.map(|host| ("host", quoted(&host))));
        let is_plain = !sample.address.contains(':');
        request.push(("ip", if is_plain { sample.address } else { quoted(&sample.address) }));
        if !headers.is_empty() {
            request.push(("headers", map(&headers)));
        }
        if self.by.contains(&By::TlsSubject) {
            request.push(("tls_subject", "CN=weir".to_owned()));
        }
        request
    }
}

/// The part of a count that comes back in a part of its period.
fn parts(time: u64, count: u64, period: u64) -> u64 {
    u64::try_from(u128::from(time) * u128::from(count) / u128::from(period.max(1))).unwrap_or(u64::MAX)
}

/// Microseconds as a duration.
pub(super) fn span(micros: u64) -> String {
    if micros.is_multiple_of(1_000) { milliseconds(micros / 1_000) } else { format!("{micros}us") }
}

/// Turns a fractional count into a whole one, with its period: `2.5` in a second are 5 in two.
pub(super) fn whole(count: &str, period: u64) -> Option<(u64, u64)> {
    let (whole, decimals) = count.split_once('.').unwrap_or((count, ""));
    let scale = 10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let count = format!("{whole}{decimals}").parse::<u64>().ok().filter(|count| *count > 0)?;
    let shared = greatest_common_divisor(count, scale);
    Some((count / shared, period.checked_mul(scale / shared)?))
}

fn greatest_common_divisor(first: u64, second: u64) -> u64 {
    if second == 0 { first } else { greatest_common_divisor(second, first % second) }
}
