//! Header names with underscores.
//!
//! CGI, WSGI, Rack and PHP hand `X-Api-Key` and `X_Api_Key` to an application as one variable, `HTTP_X_API_KEY`. To HTTP
//! they are two names, so that what Weir counts by, removes or writes under the one comes to such an application under the
//! other.

use std::str::FromStr;

use super::headers::Headers;

/// What becomes of headers whose names have underscores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Underscores {
    /// They are removed before the rules see the request, and are not forwarded, as nginx does.
    #[default]
    Drop,
    /// They are headers like others, because no upstream folds the two names.
    Keep,
    /// The request is answered with 400.
    Reject,
}

/// Why a request is rejected that has such a header.
pub const REASON: &str = "a header's name has an underscore";

impl Underscores {
    /// As the rules see the headers of a request that a gateway asks about. Only the gateway can keep a header from its
    /// upstream, so instead of being dropped it counts as the header that an upstream may take it for.
    ///
    /// # Errors
    ///
    /// If the request is to be rejected.
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
