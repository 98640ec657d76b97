//! One token: a JSON Web Signature in its compact form (RFC 7515).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::KeySet;
use super::keys::Algorithm;
use crate::engine::algorithms::micros::Micros;
use crate::engine::request::claims::{TokenIssuer, TokenResult};
use crate::message::credentials::{decode_base64, encode_base64};

/// The longest token, in bytes.
pub(super) const MAX_TOKEN: usize = 8 * 1024;

/// The most keys that a token without a `kid` is tried with.
const MAX_TRIES: usize = 4;

/// A token that has been read and not verified.
pub(super) struct Token<'t> {
    /// Header and payload, which are signed.
    signed: &'t str,
    signature: &'t str,
    algorithm: &'static Algorithm,
    kid: Option<String>,
    pub(super) claims: Map<String, Value>,
}

impl<'t> Token<'t> {
    pub(super) fn read(text: &'t str) -> Result<Self, TokenResult> {
        const MALFORMED: TokenResult = TokenResult::Malformed;
        let (signed, signature) = text.rsplit_once('.').ok_or(MALFORMED)?;
        let (header, payload) =
            signed.split_once('.').filter(|(_, payload)| !payload.contains('.')).ok_or(MALFORMED)?;
        let header = object(header).ok_or(MALFORMED)?;
        // A verifier must reject extensions that it does not know (RFC 7515 section 4.1.11). This one knows none.
        if header.contains_key("crit") {
            return Err(MALFORMED);
        }
        let name = header.get("alg").and_then(Value::as_str).ok_or(MALFORMED)?;
        let algorithm = Algorithm::named(name).ok_or(TokenResult::UnsupportedAlgorithm)?;
        let kid = match header.get("kid") {
            None => None,
            Some(Value::String(kid)) => Some(kid.clone()),
            Some(_) => return Err(MALFORMED),
        };
        Ok(Self { signed, signature, algorithm, kid, claims: object(payload).ok_or(MALFORMED)? })
    }

    /// Checks the times and the audience. Returns from when and until when the token is valid. This needs no signature, and
    /// costs less than one.
    pub(super) fn check(&self, issuer: &TokenIssuer, now: Micros) -> Result<(Micros, Micros), TokenResult> {
        let expiry = self.time("exp")?.ok_or(TokenResult::Malformed)?;
        let until = Micros(expiry.0.saturating_add(issuer.leeway.0));
        if until <= now {
            return Err(TokenResult::Expired);
        }
        let from = self.time("nbf")?.unwrap_or_default();
        let from = Micros(from.0.saturating_sub(issuer.leeway.0));
        if from > now {
            return Err(TokenResult::NotYetValid);
        }
        let is_wanted = |audience: &Value| issuer.audiences.iter().any(|wanted| audience == wanted);
        let is_for_us = issuer.audiences.is_empty()
            || match self.claims.get("aud") {
                Some(Value::Array(audiences)) => audiences.iter().any(is_wanted),
                Some(audience) => is_wanted(audience),
                None => false,
            };
        if is_for_us { Ok((from, until)) } else { Err(TokenResult::WrongAudience) }
    }

    /// A time in seconds since the epoch, possibly with a fraction (RFC 7519 section 2).
    fn time(&self, name: &str) -> Result<Option<Micros>, TokenResult> {
        let Some(value) = self.claims.get(name) else { return Ok(None) };
        let whole = value.as_u64().map(|seconds| seconds.saturating_mul(1_000_000));
        let micros = whole.or_else(|| value.as_f64().map(micros)).ok_or(TokenResult::Malformed)?;
        Ok(Some(Micros(micros)))
    }

    /// Checks the signature, in whatever spelling. Returns whether it is the canonical one.
    pub(super) fn verify(&self, keys: &KeySet) -> Result<bool, TokenResult> {
        let signature = decode_base64(self.signature).ok_or(TokenResult::InvalidSignature)?;
        let mut result = Err(TokenResult::UnknownKey);
        for key in keys.fitting(self.algorithm, self.kid.as_deref()).take(MAX_TRIES) {
            if key.verify(self.algorithm, self.signed.as_bytes(), &signature) {
                return Ok(encode_base64(&signature) == self.signature);
            }
            result = Err(TokenResult::InvalidSignature);
        }
        result
    }
}

/// Negative times become 0, and those too far away the last one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

/// Decodes a JSON object. The parser bounds its depth to 128.
fn object(part: &str) -> Option<Map<String, Value>> {
    let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    }
}
