//! `fails-open`: limits on paths where clients authenticate, that pass everything while the store is down.

use super::super::problem::{Place, quoted};
use super::Subject;
use crate::engine::limit::StoreErrorPolicy;
use crate::engine::request::path_condition::PathCondition;
use crate::engine::request::path_pattern::{Segment, segments};

/// Words of paths where clients prove who they are, in lower case and without punctuation.
const WORDS: &str = "2fa auth authenticate authentication authn authorize login logon mfa oauth oauth2 otp passcode passwd \
                     password passwords register signin signon signup sso totp webauthn";

/// Words that are also of other things: they tell of authentication where only such words or [`FOLLOWING`] come after them.
const AMBIGUOUS: &str = "pin recover recovery reset session sessions token tokens";

/// Words that stand behind the others.
const FOLLOWING: &str = "check create exchange form html jsp new page php refresh";

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

/// Returns whether one of the literal segments tells of authentication, by all of its text or its last words: `/forgot-password`, but
/// not `/login-tips`.
fn authenticates(path: &PathCondition) -> bool {
    let is_among = |list: &str, text: &str| list.split(' ').any(|word| word == text);
    let tells = |list: &str, segment: &str| {
        let words = segment.split(|character: char| !character.is_ascii_alphanumeric());
        let last = words.clone().rev().find(|word| !is_among(FOLLOWING, word));
        is_among(list, &words.collect::<String>()) || last.is_some_and(|word| is_among(list, word))
    };
    let literals: Vec<String> = match path {
        PathCondition::Pattern(pattern) => pattern.segments.iter().filter_map(literal).collect(),
        PathCondition::Prefix(prefix) => segments(prefix).map(str::to_ascii_lowercase).collect(),
        PathCondition::Regex(_) => return false,
    };
    literals.iter().enumerate().any(|(place, literal)| {
        let follows = |text: &String| is_among(FOLLOWING, text) || tells(WORDS, text) || tells(AMBIGUOUS, text);
        tells(WORDS, literal) || tells(AMBIGUOUS, literal) && literals[place + 1..].iter().all(follows)
    })
}

fn literal(segment: &Segment) -> Option<String> {
    match segment {
        Segment::Literal(literal) => Some(literal.to_ascii_lowercase()),
        Segment::Parameter(_) => None,
    }
}
