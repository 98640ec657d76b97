//! The URLs of files that are fetched.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::PathAndQuery;

/// The longest URL, in bytes.
const MAX_BYTES: usize = 2048;

/// An `http://` or `https://` URL without a user and without a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUrl {
    text: String,
    pub(crate) is_tls: bool,
    /// A name or an address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The value of `Host`.
    pub(crate) authority: String,
    pub(crate) target: PathAndQuery,
}

impl FromStr for HttpUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            let shown: String = text.chars().take(100).collect();
            Err(format!("invalid URL `{shown}`: {why}; write one such as https://auth.example.com/keys.json"))
        };
        if text.len() > MAX_BYTES {
            return wrong(&format!("it must have at most {MAX_BYTES} bytes"));
        }
        if text.contains('#') {
            return wrong("it must not have a fragment");
        }
        let begins_with =
            |scheme: &str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
        let is_tls = begins_with("https://");
        if !is_tls && !begins_with("http://") {
            return wrong("it must begin with `https://` or `http://`");
        }
        let Ok(uri) = text.parse::<Uri>() else { return wrong("it cannot be read") };
        let Some(authority) = uri.authority().filter(|authority| !authority.host().is_empty()) else {
            return wrong("it has no host");
        };
        if authority.as_str().contains('@') {
            return wrong("it must not have a user or a password");
        }
        let port = match authority.as_str().strip_prefix(authority.host()) {
            None | Some("") => Some(if is_tls { 443 } else { 80 }),
            Some(port) => port.strip_prefix(':').and_then(|port| port.parse().ok()).filter(|port| *port > 0),
        };
        let Some(port) = port else { return wrong("its port must be 1 to 65535") };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let target = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        Ok(Self { text: text.to_owned(), is_tls, host, port, authority: authority.as_str().to_owned(), target })
    }
}

impl HttpUrl {
    /// The URL as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split() {
        for (text, expected) in [
            ("https://A.example/keys?x=1", (true, "a.example", 443, "A.example", "/keys?x=1")),
            ("http://127.0.0.1:8080", (false, "127.0.0.1", 8080, "127.0.0.1:8080", "/")),
            ("http://[::1]/k", (false, "::1", 80, "[::1]", "/k")),
        ] {
            let url: HttpUrl = text.parse().unwrap();
            let found = (url.is_tls, url.host.as_str(), url.port, url.authority.as_str(), url.target.as_str());
            assert_eq!(found, expected, "{text}");
            assert_eq!(url.to_string(), text);
        }
    }

    #[test]
    fn a_wrong_url_is_explained() {
        for (text, why) in [
            ("file:///etc/passwd", "must begin with `https://` or `http://`"),
            ("ftp://a/b", "must begin with"),
            ("keys.json", "must begin with"),
            ("/keys.json", "must begin with"),
            ("https://", "cannot be read"),
            ("https://user:secret@a.example/", "a user or a password"),
            ("https://a.example:0/", "port"),
            ("https://a.example:99999/", "port"),
            ("https://a.example/#x", "fragment"),
            ("", "must begin with"),
        ] {
            let error = text.parse::<HttpUrl>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
