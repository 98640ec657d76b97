//! The verified claims of a request's tokens, and the issuers of tokens as the rules name them.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use http::header::HeaderName;
use serde_json::Value;

use crate::engine::algorithms::micros::Micros;
use crate::engine::request::part::PartError;
use crate::message::json_pointer::JsonPointer;
use crate::message::url::HttpUrl;

/// One entry of `jwt:`: an issuer whose tokens are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIssuer {
    /// Its name in the rules.
    pub name: String,
    /// The `iss` of its tokens. No two entries have the same one.
    pub issuer: String,
    /// A token must be for one of these; empty if any will do.
    pub audiences: Vec<String>,
    /// The header that has the token; `None` for `Authorization` with the scheme `Bearer`.
    pub header: Option<HeaderName>,
    /// The tolerance for `exp` and `nbf`.
    pub leeway: Micros,
    pub keys: KeySource,
}

/// The source of an issuer's public keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The text of a JWKS file, which is read with the rules.
    File(Arc<str>),
    Url {
        url: HttpUrl,
        /// Authorities for the server's certificate in PEM; defaults to the public ones.
        ca_file: Option<PathBuf>,
    },
}

/// The claims of a token.
#[derive(Clone, Debug)]
pub struct TokenClaims {
    /// The index of its issuer in the rules.
    pub issuer: u16,
    /// An object; `None` if the token is not valid, or could be read in several ways.
    pub values: Option<Arc<Value>>,
}

label! {
    /// The result of the verification of a token: the label `result` of `weir_jwt_tokens_total`.
    pub enum TokenResult {
        Valid = "valid",
        /// The request has no token.
        Absent = "absent",
        /// Not a signed token, or it lacks `exp`.
        Malformed = "malformed",
        TooLarge = "too_large",
        /// `none`, a shared secret, or an algorithm that is not known.
        UnsupportedAlgorithm = "unsupported_algorithm",
        UnknownIssuer = "unknown_issuer",
        WrongAudience = "wrong_audience",
        Expired = "expired",
        NotYetValid = "not_yet_valid",
        /// The keys of the issuer have not been fetched yet.
        NoKeys = "no_keys",
        /// No key of the issuer fits the token's `kid` and algorithm.
        UnknownKey = "unknown_key",
        InvalidSignature = "invalid_signature",
    }
}

/// A claim that a limit uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    /// The name of the entry of `jwt:`, if the limit gives one.
    pub jwt: Option<String>,
    /// The index of that entry, once the whole file is read.
    pub issuer: u16,
    pub path: ClaimPath,
}

/// The place of a claim in a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimPath {
    Name(String),
    Pointer(JsonPointer),
}

impl ClaimPath {
    /// The text in a rules file.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::Pointer(pointer) => pointer.as_str(),
        }
    }
}

impl ClaimRef {
    pub const fn new(jwt: Option<String>, path: ClaimPath) -> Self {
        Self { jwt, issuer: 0, path }
    }

    /// The claim at the top of the token that has the value.
    pub fn top(&self) -> &str {
        match &self.path {
            ClaimPath::Name(name) => name,
            ClaimPath::Pointer(pointer) => pointer.first_name(),
        }
    }

    /// Returns the value in the token of the issuer, if the request has such a token and it is valid.
    fn find<'a>(&self, claims: &'a [TokenClaims]) -> Option<&'a Value> {
        let values = claims.iter().find(|token| token.issuer == self.issuer)?.values.as_deref()?;
        match &self.path {
            ClaimPath::Name(name) => values.get(name),
            ClaimPath::Pointer(pointer) => values.pointer(pointer.as_str()),
        }
    }

    /// Returns true if the request has a token for the issuer that is not valid: the claim may have any value.
    pub fn is_unreadable(&self, claims: &[TokenClaims]) -> bool {
        claims.iter().any(|token| token.issuer == self.issuer && token.values.is_none())
    }

    /// The value as text: a string, a whole number, or `true` and `false`.
    pub fn text<'a>(&self, claims: &'a [TokenClaims]) -> Result<Option<Cow<'a, str>>, PartError> {
        match self.find(claims) {
            None if self.is_unreadable(claims) => Err(PartError::Malformed),
            None | Some(Value::Null) => Ok(None),
            Some(value) => scalar(value).map(Some).ok_or(PartError::Malformed),
        }
    }

    /// All values as text: those of a list, or the only one. Others are left out.
    pub fn texts<'a>(&self, claims: &'a [TokenClaims]) -> impl Iterator<Item = Cow<'a, str>> + use<'a> {
        let values = match self.find(claims) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        values.iter().filter_map(scalar)
    }
}

impl fmt::Display for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path.as_str())
    }
}

fn scalar(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(Cow::Owned(number.to_string())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_found_by_name_or_pointer() {
        let values = serde_json::json!({
            "sub": "u1", "https://a.example/plan": "free", "org": { "id": 7, "big": 18_446_744_073_709_551_615_u64 },
            "ok": true, "no": null, "half": 1.5, "empty": "", "roles": ["a", 2, {}], "a/b": { "~": "x" },
        });
        let claims = [TokenClaims { issuer: 3, values: Some(Arc::new(values)) }];
        let claim = |path: &str| {
            let pointer = JsonPointer::parse(path).map(ClaimPath::Pointer);
            ClaimRef { issuer: 3, ..ClaimRef::new(None, pointer.unwrap_or_else(|_| ClaimPath::Name(path.to_owned()))) }
        };
        let text = |path: &str| claim(path).text(&claims).map(|text| text.map(Cow::into_owned));
        for (path, expected) in [
            ("sub", Ok(Some("u1"))),
            ("https://a.example/plan", Ok(Some("free"))),
            ("/https:~1~1a.example~1plan", Ok(Some("free"))),
            ("/org/id", Ok(Some("7"))),
            ("/org/big", Ok(Some("18446744073709551615"))),
            ("/a~1b/~0", Ok(Some("x"))),
            ("/roles/0", Ok(Some("a"))),
            ("ok", Ok(Some("true"))),
            ("empty", Ok(Some(""))),
            ("no", Ok(None)),
            ("/no/x", Ok(None)),
            ("other", Ok(None)),
            ("/sub/x", Ok(None)),
            ("half", Err(PartError::Malformed)),
            ("org", Err(PartError::Malformed)),
            ("roles", Err(PartError::Malformed)),
        ] {
            assert_eq!(text(path), expected.map(|text| text.map(str::to_owned)), "{path}");
        }
        let all = |path: &str| claim(path).texts(&claims).map(Cow::into_owned).collect::<Vec<_>>();
        assert_eq!([all("roles"), all("sub"), all("org"), all("x")], [vec!["a", "2"], vec!["u1"], vec![], vec![]]);
        let of_another = ClaimRef { issuer: 2, ..claim("sub") };
        assert_eq!(of_another.text(&claims), Ok(None));
        let invalid = [TokenClaims { issuer: 2, values: None }];
        assert_eq!(of_another.text(&invalid), Err(PartError::Malformed));
        assert_eq!(claim("sub").text(&invalid), Ok(None));
    }
}
