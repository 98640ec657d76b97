//! Verified tokens of one worker, so that a client's next request costs a lookup instead of a signature.

use std::collections::HashMap;

use crate::engine::algorithms::micros::Micros;
use crate::engine::request::claims::TokenClaims;

/// Tokens in each of the two halves.
const MAX_TOKENS: usize = 2048;

/// Bytes of the tokens in each of the two halves. Their claims take about as much again.
const MAX_BYTES: usize = 2 * 1024 * 1024;

/// A token that was valid when it was verified.
#[derive(Clone, Debug)]
pub(super) struct Verified {
    pub(super) claims: TokenClaims,
    /// From when and until when it is valid, with the tolerance.
    pub(super) from: Micros,
    pub(super) until: Micros,
}

/// Verified tokens by their whole text, compared in full, so that no token is taken for another one. The hash has a random
/// key, so that nobody can make many of them collide. Only valid tokens get in.
///
/// Once one half is full, the other is dropped and the two change places, so that tokens in use stay.
#[derive(Debug, Default)]
pub(super) struct TokenCache {
    recent: HashMap<Box<str>, Verified>,
    /// Bytes of the tokens in `recent`.
    bytes: usize,
    older: HashMap<Box<str>, Verified>,
}

impl TokenCache {
    pub(super) fn get(&mut self, token: &str, now: Micros) -> Option<TokenClaims> {
        let is_valid = |found: &Verified| found.from <= now && now < found.until;
        if let Some(found) = self.recent.get(token) {
            return is_valid(found).then(|| found.claims.clone());
        }
        let (text, found) = self.older.remove_entry(token)?;
        let claims = is_valid(&found).then(|| found.claims.clone());
        if claims.is_some() {
            self.insert(text, found);
        }
        claims
    }

    pub(super) fn insert(&mut self, token: Box<str>, verified: Verified) {
        if self.recent.len() >= MAX_TOKENS || self.bytes + token.len() > MAX_BYTES {
            self.older = std::mem::take(&mut self.recent);
            self.bytes = 0;
        }
        self.bytes += token.len();
        self.recent.insert(token, verified);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verified(until: u64) -> Verified {
        let claims = TokenClaims { issuer: 0, values: Some(std::sync::Arc::default()) };
        Verified { claims, from: Micros(5), until: Micros(until) }
    }

    #[test]
    fn a_token_is_known_while_it_is_valid() {
        let mut cache = TokenCache::default();
        cache.insert("a".into(), verified(10));
        for (token, now, expected) in
            [("a", 4, false), ("a", 5, true), ("a", 9, true), ("a", 10, false), ("b", 6, false)]
        {
            assert_eq!(cache.get(token, Micros(now)).is_some(), expected, "{token} at {now}");
        }
        cache.clear();
        assert!(cache.get("a", Micros(6)).is_none());
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let mut cache = TokenCache::default();
        cache.insert("used".into(), verified(u64::MAX));
        for number in 0..5 * MAX_TOKENS {
            cache.insert(format!("{number}").into(), verified(u64::MAX));
            assert!(cache.get("used", Micros(6)).is_some(), "{number}");
            assert!(cache.recent.len() + cache.older.len() <= 2 * MAX_TOKENS);
        }
        for number in 0..100 {
            cache.insert(format!("{number}{}", "x".repeat(MAX_BYTES / 10)).into(), verified(u64::MAX));
            let held: usize = cache.recent.keys().chain(cache.older.keys()).map(|token| token.len()).sum();
            assert!(held <= 2 * MAX_BYTES, "{held}");
        }
    }
}
