//! A recording: a sample of what the rules see of requests, for simulations.
//!
//! Ids are replaced by stand-ins under a secret of the recording, which nobody keeps. Workers never wait for it: they put
//! lines in a bounded queue, and count those that do not fit. Without a recording, a request costs one pointer read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use self::parts::Parts;
use self::pseudonyms::Pseudonyms;
use crate::engine::deciding::verdict::{Verdict, VerdictKind};
use crate::engine::limit::WHOLE_SHARE;
use crate::engine::limit::rules::Rules;

mod line;
mod parts;
mod pseudonyms;

/// Lines that wait for the control thread. At 100,000 requests per second, it may pause for 80 ms.
const QUEUE: usize = 8_192;

/// A recording that runs.
#[derive(Debug)]
pub struct Recording {
    parts: Parts,
    pseudonyms: Pseudonyms,
    /// The share of clients, in parts of [`WHOLE_SHARE`].
    share: u32,
    lines: Sender<String>,
    counts: [AtomicU64; 4],
}

/// The fate of a request in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Kept,
    /// The queue was full.
    Dropped,
    /// Outside the share.
    LeftOut,
    /// Calls that name their limits or give the cost: the rules do not decide them alone.
    Named,
}

impl Recording {
    /// A recording for these rules, and its lines.
    pub(super) fn new(rules: &Rules, secret: (u64, u64), share: u32) -> (Arc<Self>, Receiver<String>) {
        let mut parts = Parts::of(rules);
        let pseudonyms = Pseudonyms::new(secret, std::mem::take(&mut parts.networks));
        let (lines, received) = channel(QUEUE);
        (Arc::new(Self { parts, pseudonyms, share, lines, counts: Default::default() }), received)
    }

    /// The first line, which says what the others tell.
    pub fn head(&self, started: Option<&str>) -> Value {
        let names = |word| self.parts.named(word).map(|(name, _)| name).collect::<Vec<_>>();
        json!({
            "weir_recording": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "started": started,
            "share_percent": f64::from(self.share) * 100.0 / f64::from(WHOLE_SHARE),
            "headers": names("header"),
            "query": names("query"),
            "cookies": names("cookie"),
            "descriptors": names("descriptor"),
            "tls_subject": self.parts.has_tls_subject,
            "stand_ins": self.parts.stand_ins(),
            "uncertain": self.parts.uncertain(),
        })
    }

    /// The counts so far.
    pub fn counts(&self) -> Value {
        let of = |fate: Fate| self.counts[fate as usize].load(Ordering::Relaxed);
        json!({
            "kept": of(Fate::Kept),
            "dropped": of(Fate::Dropped),
            "outside_the_share": of(Fate::LeftOut),
            "without_a_request": of(Fate::Named),
        })
    }

    pub(super) fn count(&self, fate: Fate) {
        self.counts[fate as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if all requests of this client are kept.
    pub(super) fn is_kept(&self, client: &str) -> bool {
        let place = self.pseudonyms.hash("share", client.as_bytes()) % u128::from(WHOLE_SHARE);
        place < u128::from(self.share)
    }

    pub(super) fn push(&self, rules: &Rules, mut line: Value, verdict: &Verdict) {
        let kind = match verdict.kind {
            VerdictKind::Allowed => "allowed",
            VerdictKind::Denied => "denied",
            VerdictKind::Unavailable => "unavailable",
            VerdictKind::Overloaded => "overloaded",
        };
        line["verdict"] = kind.into();
        let binding = verdict.binding.and_then(|place| verdict.answers.get(place));
        if let Some(binding) = binding.filter(|_| verdict.kind == VerdictKind::Denied) {
            line["by"] = rules.name(binding.limit).into();
        }
        let sent = self.lines.try_send(format!("{line}\n"));
        self.count(if sent.is_ok() { Fate::Kept } else { Fate::Dropped });
    }
}
