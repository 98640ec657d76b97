//! Changes of `jwt`: which tokens are valid for a limit that uses claims.

use super::effect::Effect;
use super::limits::Change;
use super::source::Rulebook;
use crate::engine::rules::claims::{KeySource, TokenIssuer};
use crate::engine::rules::limit::Limit;

/// Compares the issuers of a limit's claims. The claims themselves are compared with `by`, `match` and `cost`.
pub(super) fn of_issuers(
    (old_rules, old): (&Rulebook, &Limit),
    (new_rules, new): (&Rulebook, &Limit),
) -> Option<Change> {
    let [from, to] = [issuers(old_rules, old), issuers(new_rules, new)];
    if from == to || from.is_empty() || to.is_empty() {
        return None;
    }
    let shown = |issuers: &[&TokenIssuer]| issuers.iter().map(|issuer| describe(issuer)).collect::<Vec<_>>().join("; ");
    let (mut from_text, mut to_text) = (shown(&from), shown(&to));
    if from_text == to_text {
        (from_text, to_text) = ("other keys or times".to_owned(), to_text);
    }
    let note = "other tokens are valid; a request without a valid one has no claims".to_owned();
    Some(Change { what: "jwt", from: from_text, to: to_text, effect: Effect::BOTH, note })
}

fn issuers<'r>(rules: &'r Rulebook, limit: &Limit) -> Vec<&'r TokenIssuer> {
    let mut places: Vec<u16> = limit.claims().map(|claim| claim.issuer).collect();
    places.sort_unstable();
    places.dedup();
    places.into_iter().filter_map(|place| rules.rules.issuers().get(usize::from(place))).collect()
}

/// The entry in a line, without its keys.
fn describe(entry: &TokenIssuer) -> String {
    let TokenIssuer { name, issuer, audiences, header, keys, .. } = entry;
    let audiences =
        if audiences.is_empty() { "any audience".to_owned() } else { format!("for {}", audiences.join(" or ")) };
    let header = header.as_ref().map(|header| format!(", in {header}")).unwrap_or_default();
    let keys = match keys {
        KeySource::File(_) => "a file".to_owned(),
        KeySource::Url { url, .. } => url.to_string(),
    };
    format!("{name}: {issuer}, {audiences}{header}, keys of {keys}")
}
