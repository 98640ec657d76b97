//! Numbers, shares and times as people read them.

use crate::engine::algorithms::describe::Span;
use crate::engine::algorithms::micros::Micros;
use crate::simulation::report::{CandidateReport, Delays, LimitReport, Load};

pub(super) fn load_text(load: &Load) -> String {
    let per = load.period.map_or_else(|| "in the whole log".to_owned(), |period| format!("in {}", span(period)));
    let [p50, p99, p999, most] = [load.p50, load.p99, load.p999, load.most].map(|n| number_text(n.into()));
    format!("requests of an id {per}: p50 {p50}, p99 {p99}, p99.9 {p999}, max {most}")
}

/// `3 of 1,200 requests (0.25%): p50 20ms, p99 1s, max 1s`
pub(super) fn delays_text(delays: &Delays, requests: u64) -> String {
    let delayed = of(delays.requests, requests, "request");
    if delays.requests == 0 {
        return delayed;
    }
    let [p50, p99, most] = [delays.p50, delays.p99, delays.most].map(span);
    format!("{delayed}: p50 {p50}, p99 {p99}, max {most}")
}

/// The limit's own numbers, and which ids have others.
pub(super) fn numbers_text(limit: &LimitReport) -> String {
    let is_partly_replaced = limit.candidates.iter().any(|candidate| candidate.enforce_for > 0);
    let but = if is_partly_replaced { ", but for ids in the share of the candidate" } else { "" };
    format!("{}{but}", limit.numbers)
}

/// `slow: burst 5, 5 per 1h, for 10% of ids; would deny 3 of 1,200 requests (0.25%) of the others`
pub(super) fn candidate_text(candidate: &CandidateReport) -> String {
    let CandidateReport { name, numbers, enforce_for, requests, denied } = candidate;
    let name = name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    let (share, others) = match enforce_for {
        0 => (String::new(), ""),
        share => (format!(", for {} of ids", share_text(u64::from(*share))), " of the others"),
    };
    if *requests == 0 {
        return format!("{name}{numbers}{share}");
    }
    format!("{name}{numbers}{share}; would deny {}{others}", of(*denied, *requests, "request"))
}

/// `1,200 requests`
pub(super) fn count(number: u64, what: &str) -> String {
    format!("{} {what}{}", number_text(number), if number == 1 { "" } else { "s" })
}

/// `3 of 1,200 requests (0.25%)`
pub(super) fn of(part: u64, all: u64, what: &str) -> String {
    let share = if all == 0 { String::new() } else { format!(" ({})", percent(part, all)) };
    format!("{} of {}{share}", number_text(part), count(all, what))
}

#[expect(clippy::cast_precision_loss, reason = "it is rounded to two digits")]
pub(super) fn percent(part: u64, all: u64) -> String {
    let percent = part as f64 * 100.0 / all as f64;
    match percent {
        0.0 => "0%".to_owned(),
        percent if percent < 0.001 => "<0.001%".to_owned(),
        percent if percent < 0.1 => format!("{percent:.3}%"),
        percent if part < all && percent >= 99.95 => ">99.9%".to_owned(),
        percent if percent < 10.0 => format!("{percent:.2}%"),
        percent => format!("{percent:.1}%"),
    }
}

/// A share in millionths as a percentage.
pub(super) fn share_text(millionths: u64) -> String {
    let text = format!("{}.{:04}", millionths / 10_000, millionths % 10_000);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// `1,234,567`
pub(super) fn number_text(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn instant(at: Micros) -> String {
    let micros = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros)
        .map_or_else(|_| at.0.to_string(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

pub(super) fn span(span: Micros) -> String {
    Span(span.0.saturating_mul(1_000)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_shares_are_short() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(number_text), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(of(3, 1_200, "request"), "3 of 1,200 requests (0.25%)");
        assert_eq!(of(0, 1, "id"), "0 of 1 id (0%)");
        assert_eq!([1_000, 1_000_000, 123_456, 0].map(share_text), ["0.1%", "100%", "12.3456%", "0%"]);
    }
}
