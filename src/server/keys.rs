//! Fetches the keys of token issuers by URL, in the background.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::engine::request::claims::{KeySource, TokenIssuer};
use crate::http::{FetchError, Fetched, Fetcher};
use crate::jwt::{KeySet, MAX_JWKS};
use crate::limiter::Shared;
use crate::listeners::admin::Readiness;
use crate::telemetry::metrics::KeysFetch;

/// The time between two looks at the rules and at the requests for newer keys.
const TICK: Duration = Duration::from_secs(1);

/// For one fetch as a whole.
const DEADLINE: Duration = Duration::from_secs(5);

/// The bounds of what `Cache-Control` says, and the time without it.
const FRESH: [Duration; 2] = [Duration::from_mins(1), Duration::from_hours(1)];
const FRESH_UNLESS_SAID: Duration = Duration::from_mins(5);

/// The shortest time between two fetches for keys that tokens name: anybody can send tokens with unknown keys.
const UNKNOWN_KEY_PAUSE: Duration = Duration::from_secs(5);

/// The time to the next try after the first failure; it doubles up to the longest.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_mins(1)];

/// The key sets that are kept up to date, each by a task.
type Kept = HashMap<String, (TokenIssuer, AbortOnDropHandle<()>)>;

/// Keeps the keys of all issuers in the rules in force up to date, until dropped.
pub(super) async fn keep_keys(shared: Arc<Shared>, readiness: Arc<Readiness>) {
    let mut kept = Kept::new();
    let mut known: Arc<[TokenIssuer]> = Arc::default();
    loop {
        let issuers = shared.issuers();
        if !Arc::ptr_eq(&issuers, &known) {
            follow(&shared, &issuers, &mut kept);
            known = issuers;
        }
        let missing = kept.iter().filter(|(url, _)| !shared.keys.has(url));
        let mut missing: Vec<String> = missing.map(|(_, (issuer, _))| issuer.name.clone()).collect();
        missing.sort();
        shared.metrics().server.jwks_missing.set(i64::try_from(missing.len()).unwrap_or(i64::MAX));
        readiness.keys_missing(missing);
        shared.metrics().server.jwks_unusable.set(i64::try_from(shared.keys.unusable()).unwrap_or(i64::MAX));
        sleep(TICK).await;
    }
}

/// Starts tasks for new URLs and ends those of others.
fn follow(shared: &Arc<Shared>, issuers: &[TokenIssuer], kept: &mut Kept) {
    let is_same = |one: &TokenIssuer, other: &TokenIssuer| one.keys == other.keys && one.name == other.name;
    kept.retain(|_, (kept, _)| issuers.iter().any(|issuer| is_same(issuer, kept)));
    for issuer in issuers {
        let KeySource::Url { url, .. } = &issuer.keys else { continue };
        if !kept.contains_key(url.as_str()) {
            let task = tokio::task::spawn_local(keep(shared.clone(), issuer.clone()));
            kept.insert(url.as_str().to_owned(), (issuer.clone(), AbortOnDropHandle::new(task)));
        }
    }
    let urls: HashSet<String> = kept.keys().cloned().collect();
    shared.keys.retain(&urls);
}

/// Keeps one issuer's keys up to date. While fetches fail, the last good ones stay in force.
async fn keep(shared: Arc<Shared>, issuer: TokenIssuer) {
    let KeySource::Url { url, ca_file } = &issuer.keys else { return };
    let (mut etag, mut retry) = (None, RETRY[0]);
    loop {
        let begun = Instant::now();
        let fetcher = Fetcher::new(url.clone(), ca_file.clone(), DEADLINE, MAX_JWKS);
        let fetched = match fetcher {
            Ok(fetcher) => fetch(&fetcher, &issuer, &shared, etag.as_ref()).await,
            Err(reason) => Err(reason),
        };
        let pause = match fetched {
            Ok((result, validator, fresh_for)) => {
                if result == KeysFetch::New {
                    tracing::info!(jwt = issuer.name, %url, "new keys are in force");
                    etag = validator;
                }
                shared.metrics().server.jwks_fetches[result].inc();
                retry = RETRY[0];
                fresh_for.unwrap_or(FRESH_UNLESS_SAID).clamp(FRESH[0], FRESH[1])
            }
            Err(reason) => {
                let kept = if shared.keys.has(url.as_str()) {
                    "the last good ones stay in force"
                } else {
                    "none are known yet"
                };
                tracing::error!(jwt = issuer.name, %url, "cannot fetch the keys, {kept}: {reason}");
                shared.metrics().server.jwks_fetches[KeysFetch::Failure].inc();
                let pause = retry;
                retry = (retry * 2).min(RETRY[1]);
                pause
            }
        };
        let next = begun + pause;
        while Instant::now() < next {
            sleep(TICK.min(next - Instant::now())).await;
            if begun.elapsed() >= UNKNOWN_KEY_PAUSE && shared.keys.take_wanted(url.as_str()) {
                break;
            }
        }
    }
}

/// Fetches once and puts new keys in force. Returns their validator, and how long they are fresh.
async fn fetch(
    fetcher: &Fetcher,
    issuer: &TokenIssuer,
    shared: &Shared,
    etag: Option<&HeaderValue>,
) -> Result<(KeysFetch, Option<HeaderValue>, Option<Duration>), String> {
    match fetcher.fetch(etag, None).await.map_err(|error: FetchError| error.to_string())? {
        Fetched::NotModified { fresh_for } => Ok((KeysFetch::NotModified, None, fresh_for)),
        Fetched::Modified { body, etag, fresh_for } => {
            let keys = KeySet::parse(&body).map_err(|why| format!("the key set cannot be used: {why}"))?;
            if let Some(left_out) = keys.left_out() {
                tracing::warn!(jwt = issuer.name, url = %fetcher.url(), "{left_out}");
            }
            shared.keys.put(fetcher.url().as_str(), keys);
            Ok((KeysFetch::New, etag, fresh_for))
        }
    }
}
