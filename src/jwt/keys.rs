//! Public keys of an issuer: a JSON Web Key Set (RFC 7517).

use std::fmt;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use crate::message::unique_json;

/// The largest key set, in bytes.
pub const MAX_JWKS: usize = 64 * 1024;

/// The most keys of one issuer.
const MAX_KEYS: usize = 64;

/// The bytes of an RSA modulus: 2048 to 8192 bits, as the verification requires.
const MODULUS: std::ops::RangeInclusive<usize> = 256..=1024;

/// A signature algorithm (RFC 7518 section 3.1).
pub(super) struct Algorithm {
    /// Its `alg` in tokens, case-sensitive.
    name: &'static str,
    scheme: Scheme,
}

/// The verification of a signature.
enum Scheme {
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

/// The accepted algorithms.
static ALGORITHMS: [Algorithm; 9] = [
    Algorithm { name: "RS256", scheme: Scheme::Rsa(&RSA_PKCS1_2048_8192_SHA256) },
    Algorithm { name: "RS384", scheme: Scheme::Rsa(&RSA_PKCS1_2048_8192_SHA384) },
    Algorithm { name: "RS512", scheme: Scheme::Rsa(&RSA_PKCS1_2048_8192_SHA512) },
    Algorithm { name: "PS256", scheme: Scheme::Rsa(&RSA_PSS_2048_8192_SHA256) },
    Algorithm { name: "PS384", scheme: Scheme::Rsa(&RSA_PSS_2048_8192_SHA384) },
    Algorithm { name: "PS512", scheme: Scheme::Rsa(&RSA_PSS_2048_8192_SHA512) },
    Algorithm { name: "ES256", scheme: Scheme::Curve(&ECDSA_P256_SHA256_FIXED) },
    Algorithm { name: "ES384", scheme: Scheme::Curve(&ECDSA_P384_SHA384_FIXED) },
    Algorithm { name: "EdDSA", scheme: Scheme::Curve(&ED25519) },
];

impl Algorithm {
    /// Returns the accepted algorithm with this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        ALGORITHMS.iter().find(|known| known.name == name)
    }
}

/// An issuer's keys.
#[derive(Clone, Debug)]
pub struct KeySet {
    usable: Vec<Key>,
    /// Why the other keys of the set cannot be used: `key 2 is for `enc`, not for signatures`.
    unusable: Vec<String>,
}

#[derive(Clone, Debug)]
struct Key {
    kid: Option<String>,
    /// The names of the algorithms that it may be used with.
    algorithms: Vec<&'static str>,
    public: PublicKey,
}

/// A key of one of the types.
#[derive(Clone)]
pub(super) enum PublicKey {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// A point in the form that its algorithms take.
    Point(Vec<u8>),
}

impl KeySet {
    /// Reads a key set. The error says why no key can be used.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_JWKS {
            return Err(format!("it has {} bytes, at most {MAX_JWKS} are supported", text.len()));
        }
        let parsed = unique_json::parse(text).map_err(|error| format!("invalid JSON: {error}"))?;
        let Some(keys) = parsed.get("keys").and_then(Value::as_array) else {
            return Err("it is not a key set: expected `{\"keys\": [...]}`".to_owned());
        };
        if keys.len() > MAX_KEYS {
            return Err(format!("it has {} keys, at most {MAX_KEYS} are supported", keys.len()));
        }
        let (mut usable, mut unusable) = (Vec::new(), Vec::new());
        for (place, key) in keys.iter().enumerate() {
            match key.as_object().ok_or_else(|| "is not an object".to_owned()).and_then(Key::read) {
                Ok(key) => usable.push(key),
                Err(why) => unusable.push(format!("key {} {why}", place + 1)),
            }
        }
        if keys.iter().any(|key| key.get("d").is_some()) {
            return Err("it has a private key (`d`); publish only public keys, and replace this one".to_owned());
        }
        if usable.is_empty() {
            let reason = if unusable.is_empty() { "it is empty".to_owned() } else { unusable.join(", ") };
            return Err(format!("no key can be used: {reason}"));
        }
        Ok(Self { usable, unusable })
    }

    /// `2 of 3 keys cannot be used: key 1 is ..., key 3 is ...`; `None` if all can be used.
    pub fn left_out(&self) -> Option<String> {
        let (unusable, all) = (self.unusable.len(), self.usable.len() + self.unusable.len());
        (unusable > 0).then(|| format!("{unusable} of {all} keys cannot be used: {}", self.unusable.join(", ")))
    }

    /// The number of keys that cannot be used.
    pub const fn unusable(&self) -> usize {
        self.unusable.len()
    }

    /// The keys that may have signed a token with this algorithm and `kid`.
    pub(super) fn fitting<'k>(
        &'k self,
        wanted: &'static Algorithm,
        kid: Option<&'k str>,
    ) -> impl Iterator<Item = &'k PublicKey> {
        let fits = move |key: &&Key| {
            let is_named = kid.is_none() || key.kid.is_none() || key.kid.as_deref() == kid;
            is_named && key.algorithms.contains(&wanted.name)
        };
        self.usable.iter().filter(fits).map(|key| &key.public)
    }
}

impl Key {
    fn read(jwk: &Map<String, Value>) -> Result<Self, String> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        if let Some(purpose) = text("use").filter(|purpose| *purpose != "sig") {
            return Err(format!("is for `{purpose}`, not for signatures"));
        }
        if let Some(Value::Array(operations)) = jwk.get("key_ops")
            && !operations.iter().any(|operation| operation == "verify")
        {
            return Err("is not for verification (`key_ops`)".to_owned());
        }
        let kty = text("kty").unwrap_or_default();
        let (prefix, key) = match (kty, text("crv")) {
            ("RSA", _) => (&["RS", "PS"][..], rsa(text("n"), text("e"))),
            ("EC", Some("P-256")) => (&["ES256"][..], curve(text("x"), text("y"), 32)),
            ("EC", Some("P-384")) => (&["ES384"][..], curve(text("x"), text("y"), 48)),
            ("OKP", Some("Ed25519")) => (&["EdDSA"][..], edwards(text("x"))),
            ("EC" | "OKP", curve) => {
                return Err(format!("is on the unsupported curve `{}`", curve.unwrap_or_default()));
            }
            ("oct", _) => return Err("is a shared secret (`oct`), which is not supported".to_owned()),
            (other, _) => return Err(format!("has the unsupported type `{other}`")),
        };
        let fits = |name: &&str| prefix.iter().any(|prefix| name.starts_with(prefix));
        let fitting = ALGORITHMS.iter().map(|algorithm| algorithm.name).filter(fits);
        let algorithms: Vec<_> = fitting.filter(|name| text("alg").is_none_or(|wanted| wanted == *name)).collect();
        if algorithms.is_empty() {
            return Err(format!("is for `{}`, which does not fit its type", text("alg").unwrap_or_default()));
        }
        Ok(Self { kid: text("kid").map(str::to_owned), algorithms, public: key.ok_or("has invalid parameters")? })
    }
}

fn bytes(text: Option<&str>) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text?.trim_end_matches('=')).ok()
}

fn rsa(modulus: Option<&str>, exponent: Option<&str>) -> Option<PublicKey> {
    let (mut modulus, exponent) = (bytes(modulus)?, bytes(exponent)?);
    modulus.drain(..modulus.iter().position(|byte| *byte != 0)?);
    let fits = MODULUS.contains(&modulus.len()) && !exponent.is_empty() && exponent.len() <= 8;
    fits.then_some(PublicKey::Rsa { modulus, exponent })
}

/// A point in the uncompressed form of SEC 1.
fn curve(x: Option<&str>, y: Option<&str>, len: usize) -> Option<PublicKey> {
    let (x, y) = (bytes(x)?, bytes(y)?);
    (x.len() == len && y.len() == len).then(|| PublicKey::Point([&[4], &x[..], &y[..]].concat()))
}

fn edwards(x: Option<&str>) -> Option<PublicKey> {
    bytes(x).filter(|x| x.len() == 32).map(PublicKey::Point)
}

impl PublicKey {
    /// Returns whether a signature is this key's. False if the algorithm is one of another type of key.
    pub(super) fn verify(&self, algorithm: &'static Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match (self, &algorithm.scheme) {
            (Self::Rsa { modulus, exponent }, Scheme::Rsa(parameters)) => {
                RsaPublicKeyComponents { n: modulus, e: exponent }.verify(parameters, message, signature).is_ok()
            }
            (Self::Point(point), Scheme::Curve(algorithm)) => {
                UnparsedPublicKey::new(*algorithm, point).verify(message, signature).is_ok()
            }
            _ => false,
        }
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rsa { .. } => "Rsa",
            Self::Point(_) => "Point",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jwt::testing::{TestKey, key_set};

    #[test]
    fn a_set_without_a_usable_key_says_why() {
        let point = URL_SAFE_NO_PAD.encode([7; 32]);
        let ec = format!(r#""kty":"EC","crv":"P-256","x":"{point}","y":"{point}""#);
        for (key, expected) in [
            (ec.clone(), None),
            (format!("{ec},\"use\":\"sig\",\"alg\":\"ES256\",\"key_ops\":[\"verify\"]"), None),
            (format!("{ec},\"use\":\"enc\""), Some("for `enc`")),
            (format!("{ec},\"key_ops\":[\"sign\"]"), Some("key_ops")),
            (format!("{ec},\"alg\":\"RS256\""), Some("does not fit its type")),
            (format!("{ec},\"alg\":\"HS256\""), Some("does not fit its type")),
            (format!("{ec},\"d\":\"x\""), Some("private key")),
            (ec.replace("P-256", "P-521"), Some("curve `P-521`")),
            (ec.replace("P-256", "P-384"), Some("invalid parameters")),
            (r#""kty":"oct","k":"c2VjcmV0""#.to_owned(), Some("shared secret")),
            (r#""kty":"RSA","n":"AQAB","e":"AQAB""#.to_owned(), Some("invalid parameters")),
            (r#""kty":"dsa""#.to_owned(), Some("type `dsa`")),
        ] {
            let text = format!("{{\"keys\":[{{{key}}}]}}");
            let error = KeySet::parse(text.as_bytes()).err();
            assert_eq!(error.is_some(), expected.is_some(), "{key}: {error:?}");
            assert!(error.unwrap_or_default().contains(expected.unwrap_or_default()), "{key}");
        }
    }

    #[test]
    fn keys_that_cannot_be_used_are_told() {
        let good: serde_json::Value = serde_json::from_str(&key_set(&[&TestKey::es256("k1")])).unwrap();
        let mut keys = vec![serde_json::json!({ "kty": "oct", "k": "c2VjcmV0" }), good["keys"][0].clone()];
        keys.push(serde_json::json!({ "kty": "RSA", "use": "enc" }));
        let set = KeySet::parse(serde_json::json!({ "keys": keys }).to_string().as_bytes()).unwrap();
        let told = set.left_out().unwrap();
        for part in ["2 of 3 keys cannot be used: key 1 is a shared secret", "key 3 is for `enc`"] {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!((set.unusable(), KeySet::parse(good.to_string().as_bytes()).unwrap().left_out()), (2, None));
    }

    #[test]
    fn what_is_no_set_is_an_error() {
        let many = format!("{{\"keys\":[{}]}}", vec!["{}"; MAX_KEYS + 1].join(","));
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        for (text, expected) in [
            ("", "invalid JSON"),
            ("<html>", "invalid JSON"),
            ("[]", "not a key set"),
            ("{\"keys\":{}}", "not a key set"),
            ("{\"keys\":[]}", "it is empty"),
            ("{\"keys\":[1]}", "key 1 is not an object"),
            ("{\"keys\":[],\"keys\":[]}", "invalid JSON: duplicate key `keys` at line 1"),
            ("{\"keys\":[{\"kid\":\"a\",\"kid\":\"b\"}]}", "invalid JSON: duplicate key `kid`"),
            (&many, "65 keys"),
            (&deep, "recursion limit"),
            (&" ".repeat(MAX_JWKS + 1), "bytes"),
        ] {
            let error = KeySet::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
