//! Headers that clients may send.

use std::sync::Arc;

use super::forwarding;
use crate::message::headers::Headers;
use crate::message::underscores::{REASON, Underscores};

/// Which headers are accepted from clients.
#[derive(Clone, Debug, Default)]
pub struct ClientHeaders {
    /// How names with underscores are handled.
    pub underscores: Underscores,
    /// Headers that are removed unless a trusted proxy sends them, in addition to those that Weir writes itself. In
    /// lower case, with hyphens for underscores.
    pub dropped: Arc<[String]>,
}

impl ClientHeaders {
    /// Removes headers that neither the rules nor the upstream may see. The error says why the request is malformed.
    pub(crate) fn strip(&self, headers: &mut Headers, is_trusted: bool) -> Result<(), &'static str> {
        if headers.has_underscores() {
            self.strip_underscored(headers, is_trusted)?;
        }
        if !is_trusted {
            for name in self.dropped.iter() {
                headers.remove(name);
            }
        }
        Ok(())
    }

    #[cold]
    fn strip_underscored(&self, headers: &mut Headers, is_trusted: bool) -> Result<(), &'static str> {
        let is_kept = |name: &[u8]| {
            let name = hyphened(name);
            let is_listed = || self.dropped.iter().any(|dropped| dropped.as_bytes() == name);
            // Proxies do not spell these names with underscores, so the client sent them.
            !forwarding::is_own(&name) && (is_trusted || !is_listed())
        };
        match self.underscores {
            Underscores::Reject => return Err(REASON),
            Underscores::Drop => headers.retain(|name, _| !name.contains(&b'_')),
            Underscores::Keep => headers.retain(|name, _| !name.contains(&b'_') || is_kept(name)),
        }
        Ok(())
    }
}

/// Returns a name in lower case, with hyphens for underscores.
pub(super) fn hyphened(name: &[u8]) -> Vec<u8> {
    name.iter().map(|byte| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(underscores: Underscores, is_trusted: bool, expected: &[&str]) {
        let client_headers = ClientHeaders { underscores, dropped: Arc::new(["true-client-ip".to_owned()]) };
        let names = [
            "X-Api-Key",
            "X_Api_Key",
            "X_Forwarded_For",
            "x-forwarded_for",
            "X_Real_IP",
            "X_Queue_Entry",
            "X_RateLimit_Limit",
            "Transfer_Encoding",
            "Content_Length",
            "True_Client_IP",
            "True-Client-IP",
        ];
        let mut headers: Headers = names.iter().map(|name| (name, "1")).collect();
        client_headers.strip(&mut headers, is_trusted).unwrap();
        let kept: Vec<_> = headers.iter().map(|(name, _)| String::from_utf8(name.to_vec()).unwrap()).collect();
        assert_eq!(kept, expected, "{underscores:?}, trusted: {is_trusted}");
    }

    #[test]
    fn names_with_underscores_and_listed_ones_go() {
        check(Underscores::Drop, false, &["X-Api-Key"]);
        check(Underscores::Drop, true, &["X-Api-Key", "True-Client-IP"]);
        check(Underscores::Keep, false, &["X-Api-Key", "X_Api_Key"]);
        check(Underscores::Keep, true, &["X-Api-Key", "X_Api_Key", "True_Client_IP", "True-Client-IP"]);
    }

    #[test]
    fn a_rejected_name_is_one_with_an_underscore() {
        let client_headers = ClientHeaders { underscores: Underscores::Reject, ..ClientHeaders::default() };
        let strip = |name| client_headers.strip(&mut Headers::from_iter([(name, "a_b")]), true);
        assert!(strip("x-id").is_ok() && strip("x_id") == Err(REASON));
    }
}
