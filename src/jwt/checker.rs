//! A worker's verification of the tokens of requests.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use serde_json::Value;

use super::cache::{TokenCache, Verified};
use super::ring::FetchedKeys;
use super::token::{MAX_TOKEN, Token};
use super::{KeyRing, KeySet};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::rules::Rules;
use crate::engine::request::claims::{KeySource, TokenClaims, TokenIssuer, TokenResult};
use crate::message::credentials::{Credentials, MalformedCredentials, begins_as_bearer, may_have_token};
use crate::message::headers::Headers;

const AUTHORIZATION: &str = "authorization";

/// Verifies tokens by the rules in force and the keys that were fetched last.
pub struct Checker {
    ring: Arc<KeyRing>,
    fetched: Cache<Arc<ArcSwap<FetchedKeys>>, Arc<FetchedKeys>>,
    /// The keys that the tokens in the cache were verified with.
    verified_with: Arc<FetchedKeys>,
    known: TokenCache,
    issuers: Arc<[TokenIssuer]>,
    /// The key sets of files, by issuer.
    of_files: Vec<Option<KeySet>>,
    /// The names of the claims that limits use. The cache has no others.
    used: Vec<String>,
}

impl Checker {
    pub fn new(ring: Arc<KeyRing>) -> Self {
        let mut fetched = Cache::new(ring.fetched.clone());
        let verified_with = fetched.load().clone();
        Self {
            ring,
            fetched,
            verified_with,
            known: TokenCache::default(),
            issuers: Arc::default(),
            of_files: Vec::new(),
            used: Vec::new(),
        }
    }

    /// Returns the claims of a request's tokens, at most one for each issuer. A token that is not valid counts for all
    /// issuers of its header. `count` is called for each token, and once for each header that has none.
    pub fn claims(
        &mut self,
        rules: &Rules,
        headers: &Headers,
        now: Micros,
        mut count: impl FnMut(TokenResult),
    ) -> Vec<TokenClaims> {
        self.follow(rules);
        let mut claims: Vec<TokenClaims> = Vec::new();
        let issuers = self.issuers.clone();
        for (place, issuer) in issuers.iter().enumerate() {
            // Issuers that share a header share its token.
            if issuers[..place].iter().any(|other| other.header == issuer.header) {
                continue;
            }
            let header = issuer.header.as_ref().map_or(AUTHORIZATION, |name| name.as_str());
            let verified =
                token(headers, header, issuer.header.is_none()).and_then(|token| self.verified(token, header, now));
            count(verified.as_ref().err().copied().unwrap_or(TokenResult::Valid));
            match verified {
                Ok(verified) => claims.push(verified),
                // The issuer's keys are the operator's to provide, and a client cannot take them away.
                Err(TokenResult::Absent | TokenResult::NoKeys) => {}
                Err(_) => {
                    let of_header = (0_u16..).zip(&*issuers).filter(|(_, other)| other.header == issuer.header);
                    claims.extend(of_header.map(|(issuer, _)| TokenClaims { issuer, values: None }));
                }
            }
        }
        claims
    }

    /// Takes over new rules and new keys. Tokens must be verified with them again.
    fn follow(&mut self, rules: &Rules) {
        if !Arc::ptr_eq(&self.issuers, rules.issuers()) {
            self.issuers = rules.issuers().clone();
            let keys = |issuer: &TokenIssuer| match &issuer.keys {
                KeySource::File(text) => KeySet::parse(text.as_bytes()).ok(),
                KeySource::Url { .. } => None,
            };
            self.of_files = self.issuers.iter().map(keys).collect();
            self.used = rules.claims().map(|claim| claim.top().to_owned()).collect();
            self.used.sort();
            self.used.dedup();
            self.known.clear();
        }
        let fetched = self.fetched.load();
        if !Arc::ptr_eq(fetched, &self.verified_with) {
            self.verified_with = fetched.clone();
            self.known.clear();
        }
    }

    fn verified(&mut self, text: &str, header: &str, now: Micros) -> Result<TokenClaims, TokenResult> {
        if text.len() > MAX_TOKEN {
            return Err(TokenResult::TooLarge);
        }
        let is_of_header =
            |issuer: &TokenIssuer| issuer.header.as_ref().map_or(AUTHORIZATION, |name| name.as_str()) == header;
        if let Some(claims) = self.known.get(text, now)
            && self.issuers.get(usize::from(claims.issuer)).is_some_and(is_of_header)
        {
            return Ok(claims);
        }
        let mut token = Token::read(text)?;
        let name = token.claims.get("iss").and_then(Value::as_str).ok_or(TokenResult::UnknownIssuer)?;
        let mut issuers = (0_u16..).zip(self.issuers.iter());
        let of_token = issuers.find(|(_, issuer)| issuer.issuer == name && is_of_header(issuer));
        let (place, issuer) = of_token.ok_or(TokenResult::UnknownIssuer)?;
        let (from, until) = token.check(issuer, now)?;
        let keys = match &issuer.keys {
            KeySource::File(_) => self.of_files.get(usize::from(place)).and_then(Option::as_ref),
            KeySource::Url { url, .. } => self.verified_with.get(url.as_str()).map(|keys| &**keys),
        };
        let result = token.verify(keys.ok_or(TokenResult::NoKeys)?);
        if let (Err(TokenResult::UnknownKey), KeySource::Url { url, .. }) = (result, &issuer.keys) {
            self.ring.want(url.as_str());
        }
        let is_canonical = result?;
        token.claims.retain(|name, _| self.used.binary_search(name).is_ok());
        let claims = TokenClaims { issuer: place, values: Some(Arc::new(Value::Object(token.claims))) };
        // Of all spellings of a token only one, so that nobody fills the cache with a single token.
        if is_canonical {
            self.known.insert(text.into(), Verified { claims: claims.clone(), from, until });
        }
        Ok(claims)
    }
}

/// The token in a header. `Authorization` may have other credentials; another header has only tokens.
fn token<'h>(headers: &'h Headers, header: &str, is_authorization: bool) -> Result<&'h str, TokenResult> {
    match Credentials::read(headers.all(header)) {
        Ok(None) => Err(TokenResult::Absent),
        Ok(Some(found)) => {
            let is_bearer = found.scheme.is_some() && found.is_bearer();
            let is_token = !is_authorization || is_bearer || may_have_token(found.token.as_bytes());
            is_token.then_some(found.token).ok_or(TokenResult::Absent)
        }
        Err(MalformedCredentials) => {
            let is_token = |line: &[u8]| begins_as_bearer(line) || may_have_token(line);
            let is_present = !is_authorization || headers.all(header).any(is_token);
            Err(if is_present { TokenResult::Malformed } else { TokenResult::Absent })
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    use super::*;
    use crate::config::{Source, Sources, load};
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::jwt::testing::{TestKey, key_set};

    /// In seconds.
    const NOW: u64 = 1_800_000_000;

    /// Rules with two issuers: `main` with a file, and `other` with a URL and a header of its own.
    fn rules(keys: &str) -> Rules {
        let text = "
            jwt:
              main: { issuer: 'https://a.example', audiences: [api, web], jwks_file: keys.json }
              other: { issuer: 'b', audiences: [], jwks_url: 'http://127.0.0.1:1/k', header: x-token, leeway: 0s }
            limits:
              One: { by: { claim: sub, jwt: main }, match: { jwt: other, claims: { /a/b: x } }, burst: 1 }";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.yaml");
        std::fs::write(&path, text).unwrap();
        std::fs::write(folder.path().join("keys.json"), keys).unwrap();
        let files = crate::config::Files { limits: Some(path), ..crate::config::Files::default() };
        let sources: Sources = files.read().unwrap();
        assert!(sources.limits.as_ref().is_some_and(|source: &Source| !source.text.is_empty()));
        let loaded = load(&sources, Fingerprinter::new((1, 2)), Micros(0));
        loaded.rules.unwrap_or_else(|| panic!("{}", loaded.report))
    }

    struct Subject {
        checker: Checker,
        rules: Rules,
    }

    impl Subject {
        fn new(keys: &str) -> Self {
            Self { checker: Checker::new(Arc::default()), rules: rules(keys) }
        }

        /// The results for `Authorization` and `x-token`, and the claims.
        fn check(&mut self, lines: &[(&'static str, &str)], seconds: u64) -> ([TokenResult; 2], Vec<TokenClaims>) {
            let headers: Headers = lines.iter().map(|(name, value)| (*name, *value)).collect();
            let mut results = Vec::new();
            let now = Micros(seconds * 1_000_000);
            let claims = self.checker.claims(&self.rules, &headers, now, |result| results.push(result));
            (results.try_into().unwrap(), claims)
        }

        fn main(&mut self, token: &str) -> TokenResult {
            self.check(&[("authorization", &format!("Bearer {token}"))], NOW).0[0]
        }
    }

    fn claims() -> Value {
        json!({ "iss": "https://a.example", "aud": "api", "exp": NOW + 60, "sub": "user-1", "plan": "free" })
    }

    /// The claims with one changed; null removes it.
    fn with(name: &str, value: Value) -> Value {
        let mut claims = claims();
        claims[name] = value;
        if claims[name].is_null() {
            claims.as_object_mut().unwrap().remove(name);
        }
        claims
    }

    #[test]
    fn a_valid_token_gives_the_claims_that_limits_use() {
        for key in [TestKey::es256("k1"), TestKey::eddsa("k1"), TestKey::rsa("k1", false), TestKey::rsa("k1", true)] {
            let mut subject = Subject::new(&key_set(&[&TestKey::es256("k0"), &key]));
            let token = key.token("k1", &claims());
            for line in [format!("Bearer {token}"), format!("bearer  {token}")] {
                let (results, found) = subject.check(&[("authorization", &line)], NOW);
                assert_eq!(results, [TokenResult::Valid, TokenResult::Absent]);
                assert_eq!(found.len(), 1);
                let values = found[0].values.as_ref().unwrap();
                assert_eq!((found[0].issuer, &values["sub"]), (0, &json!("user-1")));
                assert_eq!(values.get("plan"), None, "no limit uses it");
            }
            // The cache ends with the token.
            for (seconds, expected) in [(NOW + 89, TokenResult::Valid), (NOW + 90, TokenResult::Expired)] {
                let (results, _) = subject.check(&[("authorization", &format!("Bearer {token}"))], seconds);
                assert_eq!(results[0], expected);
            }
            let line = format!("Bearer {token}");
            for (lines, expected) in [
                (&[][..], TokenResult::Absent),
                (&[("authorization", "")], TokenResult::Absent),
                (&[("authorization", "Basic YTpi")], TokenResult::Absent),
                (&[("authorization", "Bearer")], TokenResult::Absent),
                (&[("authorization", "key-1")], TokenResult::Absent),
                (&[("authorization", "Digest username=\"a\", realm=\"a.b.c\"")], TokenResult::Absent),
                (&[("authorization", "Bearer key-1")], TokenResult::Malformed),
                (&[("authorization", &token)], TokenResult::Valid),
                (&[("authorization", &line), ("authorization", &line)], TokenResult::Valid),
                (&[("authorization", &line), ("authorization", "Bearer x")], TokenResult::Malformed),
                (&[("authorization", "Basic YTpi"), ("authorization", &line)], TokenResult::Malformed),
                (&[("authorization", &line), ("authorization", "")], TokenResult::Malformed),
            ] {
                let (results, found) = subject.check(lines, NOW);
                assert_eq!(results[0], expected, "{lines:?}");
                let readable: Vec<bool> = found.iter().map(|token| token.values.is_some()).collect();
                let wanted = match expected {
                    TokenResult::Absent => &[][..],
                    TokenResult::Valid => &[true],
                    _ => &[false],
                };
                assert_eq!(readable, wanted, "{lines:?}");
            }
            let other = subject.check(&[("x-token", "key-1")], NOW);
            assert_eq!(other.0, [TokenResult::Absent, TokenResult::Malformed]);
            assert_eq!((other.1[0].issuer, other.1[0].values.is_none()), (1, true));
        }
    }

    #[test]
    fn tokens_that_do_not_hold_are_told_apart() {
        use TokenResult::{
            Expired, InvalidSignature, Malformed, NotYetValid, TooLarge, UnknownIssuer, UnknownKey, Valid,
            WrongAudience,
        };
        let key = TestKey::es256("k1");
        let mut subject = Subject::new(&key_set(&[&key]));
        for (claims, expected) in [
            (with("aud", json!(["x", "web"])), Valid),
            (with("nbf", json!(NOW + 30)), Valid),
            (with("exp", json!(1_799_999_970.5)), Valid),
            (with("exp", json!(u64::MAX)), Valid),
            (with("exp", json!(NOW - 30)), Expired),
            (with("exp", json!(-5)), Expired),
            (with("exp", json!(0)), Expired),
            (with("exp", Value::Null), Malformed),
            (with("exp", json!("2099")), Malformed),
            (with("nbf", json!(NOW + 31)), NotYetValid),
            (with("nbf", json!("soon")), Malformed),
            (with("aud", json!("other")), WrongAudience),
            (with("aud", json!(["other", 1])), WrongAudience),
            (with("aud", Value::Null), WrongAudience),
            (with("iss", json!("https://a.example/")), UnknownIssuer),
            (with("iss", json!("b")), UnknownIssuer),
            (with("iss", json!(["https://a.example"])), UnknownIssuer),
            (with("iss", Value::Null), UnknownIssuer),
            (with("plan", json!("x".repeat(MAX_TOKEN))), TooLarge),
            (json!([1]), Malformed),
        ] {
            assert_eq!(subject.main(&key.token("k1", &claims)), expected, "{claims}");
        }
        let stranger = TestKey::es256("k1");
        assert_eq!(subject.main(&stranger.token("k1", &claims())), InvalidSignature);
        assert_eq!(subject.main(&key.token("k2", &claims())), UnknownKey);
    }

    #[test]
    fn forged_headers_get_nothing() {
        use TokenResult::{InvalidSignature, Malformed, UnknownKey, UnsupportedAlgorithm, Valid};
        let key = TestKey::es256("k1");
        let mut subject = Subject::new(&key_set(&[&key, &TestKey::eddsa("k3")]));
        let deep = format!("{{\"sub\":{}1{}}}", "[".repeat(2000), "]".repeat(2000));
        for (header, expected) in [
            (json!({ "alg": "ES256" }), Valid),
            (
                json!({ "alg": "ES256", "jku": "http://127.0.0.1:1/", "jwk": { "kty": "oct" }, "x5u": "file:///x" }),
                Valid,
            ),
            (json!({ "alg": "none" }), UnsupportedAlgorithm),
            (json!({ "alg": "None" }), UnsupportedAlgorithm),
            (json!({ "alg": "" }), UnsupportedAlgorithm),
            (json!({ "alg": "es256" }), UnsupportedAlgorithm),
            (json!({ "alg": "HS256", "kid": "k1" }), UnsupportedAlgorithm),
            (json!({ "alg": "HS512" }), UnsupportedAlgorithm),
            (json!({ "alg": "RS256", "kid": "k1" }), UnknownKey),
            (json!({ "alg": "ES384", "kid": "k1" }), UnknownKey),
            (json!({ "alg": "EdDSA" }), InvalidSignature),
            (json!({ "alg": "ES256", "kid": "../../../../etc/passwd" }), UnknownKey),
            (json!({ "alg": "ES256", "kid": "k1\0" }), UnknownKey),
            (json!({ "alg": "ES256", "kid": "http://127.0.0.1:1/k1" }), UnknownKey),
            (json!({ "alg": "ES256", "kid": 1 }), Malformed),
            (json!({ "alg": "ES256", "crit": ["exp"], "exp": 1 }), Malformed),
            (json!({ "alg": "ES256", "b64": false, "crit": ["b64"] }), Malformed),
            (json!({ "alg": ["ES256"] }), Malformed),
            (json!({}), Malformed),
            (json!("x"), Malformed),
        ] {
            assert_eq!(subject.main(&key.sign(&header, &claims())), expected, "{header}");
        }
        let good = key.token("k1", &claims());
        let (signed, signature) = good.rsplit_once('.').unwrap();
        let (header, _) = signed.split_once('.').unwrap();
        let none = "eyJhbGciOiJub25lIn0";
        for (token, expected) in [
            (format!("{none}.{}.", signed.split_once('.').unwrap().1), UnsupportedAlgorithm),
            (format!("{signed}."), InvalidSignature),
            (format!("{signed}.{signature}="), Valid),
            (format!("{signed}.{signature}!"), Valid),
            (format!("{signed}.{}", &signature[4..]), InvalidSignature),
            (format!("{good}.x"), Malformed),
            (format!("{header}..{signature}"), Malformed),
            (signed.to_owned(), Malformed),
            ("..".to_owned(), Malformed),
            (key.sign_text("{\"alg\":\"ES256\"}", &deep), Malformed),
            (key.sign_text("{\"alg\":\"ES256\"}", "{\"exp\":1"), Malformed),
        ] {
            assert_eq!(subject.main(&token), expected, "{token}");
        }
        // A public key as the secret of an HMAC.
        let mac = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, key_set(&[&key]).as_bytes());
        let claims = signed.split_once('.').unwrap().1;
        let message = format!("{}.{claims}", URL_SAFE_NO_PAD.encode("{\"alg\":\"HS256\",\"kid\":\"k1\"}"));
        let signature = URL_SAFE_NO_PAD.encode(aws_lc_rs::hmac::sign(&mac, message.as_bytes()));
        assert_eq!(subject.main(&format!("{message}.{signature}")), UnsupportedAlgorithm);
        // The same signature under the name of an algorithm of the key.
        let (_, message) = message.split_once('.').unwrap();
        let message = format!("{}.{message}", URL_SAFE_NO_PAD.encode("{\"alg\":\"ES256\",\"kid\":\"k1\"}"));
        assert_eq!(subject.main(&format!("{message}.{signature}")), InvalidSignature);
    }

    #[test]
    fn each_issuer_has_its_header_and_keys_follow_rotation() {
        let (key, next) = (TestKey::es256("k1"), TestKey::es256("k2"));
        let mut subject = Subject::new(&key_set(&[&TestKey::es256("k0")]));
        let claims = json!({ "iss": "b", "exp": NOW + 60, "a": { "b": "x" } });
        let (old, new) = (key.token("k1", &claims), next.token("k2", &claims));
        let result = |subject: &mut Subject, token: &str| subject.check(&[("x-token", token)], NOW).0[1];
        assert_eq!(result(&mut subject, &old), TokenResult::NoKeys);
        let ring = subject.checker.ring.clone();
        let url = "http://127.0.0.1:1/k";
        assert!(!ring.take_wanted(url));
        let put = |keys: &[&TestKey]| ring.put(url, KeySet::parse(key_set(keys).as_bytes()).unwrap());
        put(&[&key]);
        assert_eq!(result(&mut subject, &old), TokenResult::Valid);
        // The header of another issuer does not count.
        assert_eq!(subject.main(&old), TokenResult::UnknownIssuer);
        assert!(!ring.take_wanted(url));
        for _ in 0..3 {
            assert_eq!(result(&mut subject, &new), TokenResult::UnknownKey);
        }
        assert!(ring.take_wanted(url) && !ring.take_wanted(url));
        put(&[&next]);
        assert_eq!(
            [&old, &new].map(|token| result(&mut subject, token)),
            [TokenResult::UnknownKey, TokenResult::Valid]
        );
        subject.rules = rules(&key_set(&[&key]));
        let main = with("iss", json!("https://a.example"));
        assert_eq!(subject.main(&key.token("k1", &main)), TokenResult::Valid, "new rules have new keys");
    }
}
