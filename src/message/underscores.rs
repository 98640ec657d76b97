//! Header names with underscores.
//!
//! CGI, WSGI, Rack and PHP pass `X-Api-Key` and `X_Api_Key` to an application as the same variable, `HTTP_X_API_KEY`. In
//! HTTP these are two names, so a client can send one to evade what Weir counts by, removes or writes under the other.

use std::str::FromStr;

use super::headers::Headers;

/// The treatment of headers whose names contain underscores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Underscores {
    /// They are removed before the rules see the request and not forwarded, as in nginx.
    #[default]
    Drop,
    /// They are ordinary headers, because no upstream folds the two names.
    Keep,
    /// The request is answered with 400.
    Reject,
}

pub const REASON: &str = "a header's name has an underscore";

impl Underscores {
    /// Prepares the headers of a request that a gateway asks about for the rules. Only the gateway can remove a header, so
    /// instead of being dropped it counts as the header that an upstream may take it for. The error rejects the request.
    pub fn fold(self, headers: &mut Headers) -> Result<(), &'static str> {
        if self == Self::Keep || !headers.has_underscores() {
            return Ok(());
        }
        if self == Self::Reject {
            return Err(REASON);
        }
        headers.fold_underscores();
        Ok(())
    }
}

impl FromStr for Underscores {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "drop" => Ok(Self::Drop),
            "keep" => Ok(Self::Keep),
            "reject" => Ok(Self::Reject),
            _ => Err("expected `drop`, `keep` or `reject`".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateways_headers_are_counted_by_the_name_that_an_upstream_may_see() {
        let given = Headers::from_iter([("X_Api_Key", "a"), ("x-api-key", "b"), ("x-other", "c_d")]);
        let fold = |underscores: &str| {
            let mut headers = given.clone();
            underscores.parse::<Underscores>().unwrap().fold(&mut headers)?;
            Ok::<_, &str>(headers.all("x-api-key").map(<[u8]>::to_vec).collect::<Vec<_>>())
        };
        assert_eq!(fold("drop").unwrap(), [b"a", b"b"]);
        assert_eq!(fold("keep").unwrap(), [b"b"]);
        assert_eq!(fold("reject"), Err(REASON));
        let mut plain = Headers::from_iter([("x-other", "c_d")]);
        assert_eq!((Underscores::Reject.fold(&mut plain), plain.get("x-other")), (Ok(()), Some(&b"c_d"[..])));
        assert!("".parse::<Underscores>().is_err());
    }
}
