//! `fails-open`: limits on paths where clients authenticate, that pass everything while the store is down.

use super::super::problem::{Place, quoted};
use super::Subject;
use crate::engine::limit::StoreErrorPolicy;
use crate::engine::request::path_pattern::{PathPattern, Segment};

/// Words of paths where clients prove who they are, in lower case and without punctuation.
const WORDS: &str = "2fa auth authenticate authentication authn authorize login logon mfa oauth oauth2 otp passcode passwd \
                     password passwords pin recover recovery register reset session sessions signin signon signup sso token \
                     tokens totp webauthn";

/// Methods that authenticate nobody.
const SAFE_METHODS: [&str; 3] = ["GET", "HEAD", "OPTIONS"];

pub(super) fn find(subject: &Subject<'_>) -> Option<(Place, String)> {
    let limit = subject.limit;
    let methods = &limit.conditions.methods;
    let is_read_only = !methods.is_empty() && methods.iter().all(|method| SAFE_METHODS.contains(&method.as_str()));
    if is_read_only
        || !limit.is_enforced()
        || limit.on_store_error != StoreErrorPolicy::Allow
        || limit.allowance.windows().is_none()
        || !limit.algorithm.bounds_rate()
    {
        return None;
    }
    let path = limit.conditions.paths.iter().find(|path| authenticates(path))?;
    let default = if subject.places.values.iter().any(|(key, _)| key == "on_store_error") { "" } else { " by default" };
    let message = format!("{} passes every request{default} while Redis is down", quoted(&path.to_string()));
    Some((subject.places.of("on_store_error"), message))
}

/// Returns whether one of the literal segments, or one of its words, is among [`WORDS`].
fn authenticates(path: &PathPattern) -> bool {
    let is_word = |text: &str| WORDS.split(' ').any(|word| word == text);
    path.segments.iter().any(|segment| {
        let Segment::Literal(literal) = segment else { return false };
        let lower = literal.to_ascii_lowercase();
        let words = || lower.split(|character: char| !character.is_ascii_alphanumeric());
        is_word(&words().collect::<String>()) || words().any(is_word)
    })
}
