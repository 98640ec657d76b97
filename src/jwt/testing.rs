//! Keys and tokens for tests.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    RsaEncoding, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// Signs a message.
type Sign = Box<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// An issuer's key.
pub(crate) struct TestKey {
    name: &'static str,
    sign: Sign,
    /// Its entry in a key set.
    public: Value,
}

impl TestKey {
    pub(crate) fn es256(kid: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let point = pair.public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|half| URL_SAFE_NO_PAD.encode(half));
        let public = json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": kid });
        let sign = move |message: &[u8]| pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec();
        Self { name: "ES256", sign: Box::new(sign), public }
    }

    pub(crate) fn eddsa(kid: &str) -> Self {
        let pair = Ed25519KeyPair::generate().unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        let public = json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": kid, "use": "sig", "alg": "EdDSA" });
        let sign = move |message: &[u8]| pair.sign(message).as_ref().to_vec();
        Self { name: "EdDSA", sign: Box::new(sign), public }
    }

    /// RS256, or PS256.
    pub(crate) fn rsa(kid: &str, is_pss: bool) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        // RFC 8017 A.1.1: the modulus, and at the end the exponent, three bytes after a tag and a length.
        let der = pair.public_key().as_ref();
        let (rest, exponent) = der.split_at(der.len() - 3);
        let modulus = &rest[rest.len() - 2 - 256..rest.len() - 2];
        let [n, e] = [modulus, exponent].map(|part| URL_SAFE_NO_PAD.encode(part));
        let public = json!({ "kty": "RSA", "n": n, "e": e, "kid": kid });
        let scheme: &'static dyn RsaEncoding = if is_pss { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
        let sign = move |message: &[u8]| {
            let mut signature = vec![0; pair.public_modulus_len()];
            pair.sign(scheme, &SystemRandom::new(), message, &mut signature).unwrap();
            signature
        };
        Self { name: if is_pss { "PS256" } else { "RS256" }, sign: Box::new(sign), public }
    }

    /// A token with this `kid` and these claims.
    pub(crate) fn token(&self, kid: &str, claims: &Value) -> String {
        self.sign(&json!({ "alg": self.name, "kid": kid, "typ": "JWT" }), claims)
    }

    /// A token with any header, signed by this key.
    pub(crate) fn sign(&self, header: &Value, claims: &Value) -> String {
        self.sign_text(&header.to_string(), &claims.to_string())
    }

    pub(crate) fn sign_text(&self, header: &str, claims: &str) -> String {
        let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part));
        let message = format!("{header}.{claims}");
        let signature = URL_SAFE_NO_PAD.encode((self.sign)(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

/// The text of a key set.
pub(crate) fn key_set(keys: &[&TestKey]) -> String {
    json!({ "keys": keys.iter().map(|key| &key.public).collect::<Vec<_>>() }).to_string()
}
