//! Changes of `jwt`, for the limits that use claims of its tokens.

use super::limits::Change;
use super::source::Rulebook;
use crate::engine::limit::Limit;
use crate::engine::request::claims::{KeySource, TokenIssuer};
use crate::engine::telling::order::Effect;

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
    let [mut from, to] = [shown(&from), shown(&to)];
    if from == to {
        // A line does not show the keys of a file, the authorities of a URL, and `leeway`.
        from = "other keys or times".into();
    }
    let note = "other tokens are valid; a request without a valid one has no claims".to_owned();
    Some(Change { what: "jwt".into(), from, to, effect: Effect::BOTH, note })
}

fn issuers<'r>(rules: &'r Rulebook, limit: &Limit) -> Vec<&'r TokenIssuer> {
    let mut places: Vec<u16> = limit.claims().map(|claim| claim.issuer).collect();
    places.sort_unstable();
    places.dedup();
    places.into_iter().filter_map(|place| rules.rules.issuers().get(usize::from(place))).collect()
}

/// Returns an entry of `jwt` in a line, with the place of its keys.
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
