//! `elevated_limits`: other numbers for some time after the bucket was empty.

use super::super::amount::{Amount, Elevated, milliseconds};
use super::super::text::piece;
use super::numbers::Numbers;
use super::{BucketReader, Entries, KNOWN, read};
use crate::config::foreign::{Node, ReadResult, find};

/// The default duration in limitd-redis.
const ACTIVATION_SECONDS: u64 = 900;

impl BucketReader<'_> {
    /// `elevated_limits`, which defaults to the numbers of the bucket.
    pub(super) fn elevated(
        &mut self,
        given: Entries<'_>,
        base: &Numbers,
        is_windowed: bool,
        inherited: Option<&Elevated>,
        notes: &mut Vec<String>,
    ) -> ReadResult<Option<Elevated>> {
        let Some((key, node)) = find(given, "elevated_limits") else { return Ok(None) };
        let origin = self.origin(key);
        let help = "write `{ size: 100, per_second: 50 }`";
        let fields = node.map("`elevated_limits`", help)?;
        let own = self.numbers(fields, base.rate.map(|(_, interval)| interval), notes)?;
        let seconds = read(fields, "erl_activation_period_seconds", Node::whole)?;
        let quota = read(fields, "quota_per_calendar_month", Node::whole)?;
        let known = [&KNOWN[..7], &["erl_activation_period_seconds", "quota_per_calendar_month"]].concat();
        for (key, _) in fields.iter().filter(|(key, _)| !known.contains(&key.text.as_str())) {
            let what = match key.text.as_str() {
                "erl_quota_key" => "calls give it as `quota` in `elevated`",
                "erl_is_active_key" => "an activation belongs to a bucket",
                _ => "no equivalent",
            };
            notes.push(self.origin(key).note(format!("{}: {what}; it is left out.", piece(&key.text))));
        }
        let rate = own.rate.or(base.rate);
        let size = own.size.or(own.rate.map(|(count, _)| count)).or(base.size);
        let Some((count, interval)) = rate else {
            notes.push(origin.note("`elevated_limits` is left out: neither it nor the bucket has a rate."));
            return Ok(None);
        };
        if quota == Some(0) || size == Some(0) || base.unlimited {
            notes.push(origin.note("`elevated_limits` is left out: it never takes effect."));
            return Ok(None);
        }
        if is_windowed {
            notes.push(origin.note(
                "`elevated_limits` is left out: it cannot be combined with `fixed_window`. Without \
                 `fixed_window`, use `elevated`.",
            ));
            return Ok(None);
        }
        let amount = Amount::Rate { burst: size.filter(|size| *size != count), count, period: milliseconds(interval) };
        let lasts = seconds.map(|seconds| milliseconds(seconds.max(1).saturating_mul(1_000)));
        let lasts = lasts.or(inherited.map(|base| base.lasts.clone()));
        let activations = quota.or(inherited.map(|base| base.activations_per_month));
        let callers = match (&lasts, activations) {
            (None, None) => "erl_activation_period_seconds and quota_per_calendar_month",
            (None, Some(_)) => "erl_activation_period_seconds",
            (Some(_), None) => "quota_per_calendar_month",
            (Some(_), Some(_)) => "",
        };
        if !callers.is_empty() {
            notes.push(
                origin
                    .note(format!("callers of limitd passed {callers} with each call; set the values in `elevated`.")),
            );
        }
        let lasts = lasts.unwrap_or_else(|| milliseconds(ACTIVATION_SECONDS * 1_000));
        Ok(Some(Elevated { amount, lasts, activations_per_month: activations.unwrap_or(1) }))
    }
}
