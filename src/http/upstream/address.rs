//! Servers as the operator names them in `--upstream`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use http::Uri;
use http::uri::Authority;

/// The longest path of a unix socket, in bytes: `sun_path` has 108 on Linux, including a final 0 (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// A server's address and protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(super) scheme: Scheme,
    pub(super) address: ServerAddress,
    /// The `Host` of requests to it; `None` for the client's.
    pub(super) host: Option<String>,
}

/// Starts the setting of a server's `Host`, after its URL.
const HOST_SETTING: &str = "#host=";

/// The protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scheme {
    /// HTTP/1.1.
    Http,
    /// TLS with HTTP/2 or HTTP/1.1, as negotiated by ALPN (RFC 7301).
    Https,
    /// HTTP/2 without TLS by prior knowledge (RFC 9113 section 3.3).
    H2c,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ServerAddress {
    /// A name or address, IPv6 without brackets, and a port.
    Network { host: String, port: u16 },
    /// The path of a unix socket.
    Unix(PathBuf),
}

const EXPECTED: &str =
    "an upstream is `http://HOST:PORT`, `https://HOST:PORT`, `h2c://HOST:PORT`, `unix:/PATH` or `echo`";

impl Server {
    /// Parses a server's URL, with `#host=client`, `#host=upstream` or `#host=NAME` after it for the `Host` of requests. The
    /// error says what to write instead.
    ///
    /// By default, a server with a name and TLS gets its own name: sites that share addresses, such as those behind a CDN, are
    /// told apart by it. Other servers are usually the operator's own and build links from the client's.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (url, setting) = match text.rsplit_once(HOST_SETTING) {
            Some((url, setting)) => (url, Some(setting)),
            None => (text, None),
        };
        if let Some((url, other)) = url.split_once('#').filter(|_| !url.starts_with("unix:")) {
            return Err(format!(
                "`{text}`: `#{other}` is not a setting; write `{url}#host=client`, `{url}#host=upstream` or `{url}#host=NAME`"
            ));
        }
        let mut server = Self::parse_url(url)?;
        server.host = match setting {
            Some("client") => None,
            Some("upstream") => Some(server.own_host()),
            Some(name) => Some(parse_host(text, name)?),
            None => (server.scheme == Scheme::Https && server.has_name()).then(|| server.own_host()),
        };
        Ok(server)
    }

    /// Parses `http://HOST[:PORT]`, `https://HOST[:PORT]`, `h2c://HOST[:PORT]` or `unix:/PATH`.
    fn parse_url(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Self::unix(text, path);
        }
        if text.contains(char::is_whitespace) {
            return Err(format!("`{text}` contains a space; {EXPECTED}"));
        }
        // `Uri` allows brackets only at the start of a host, and its error is unclear when they are missing.
        if text.rsplit("://").next().is_some_and(|host| host.parse::<Ipv6Addr>().is_ok()) {
            return Err(format!("`{text}`: an IPv6 address needs brackets, `http://[::1]:3000`"));
        }
        let uri: Uri = text.parse().map_err(|error| format!("`{text}` is not a valid URL ({error}); {EXPECTED}"))?;
        let scheme = match uri.scheme_str() {
            Some("http") => Scheme::Http,
            Some("https") => Scheme::Https,
            Some("h2c") => Scheme::H2c,
            Some("h2" | "http2" | "grpc") => {
                return Err(format!(
                    "`{text}`: write `h2c://` for HTTP/2 without TLS (prior knowledge), or `https://` to \
                     negotiate it by ALPN"
                ));
            }
            Some("ws" | "wss") => {
                return Err(format!("`{text}`: WebSockets start as HTTP; write `http://` or `https://`"));
            }
            Some(scheme) => {
                return Err(format!(
                    "`{text}`: expected `http://`, `https://`, `h2c://` (HTTP/2 by prior knowledge) or \
                     `unix:/PATH`, not `{scheme}://`"
                ));
            }
            None if text.starts_with(['/', '.']) => {
                return Err(format!("`{text}` has no scheme; write `unix:/PATH` for a unix socket"));
            }
            None => return Err(format!("`{text}` has no scheme; write `http://{text}`")),
        };
        let authority = uri.authority().ok_or_else(|| format!("`{text}` names no host; {EXPECTED}"))?;
        if authority.as_str().contains('@') {
            return Err(format!("`{text}`: user names and passwords are not supported"));
        }
        if let Some(path) = uri.path_and_query().filter(|path| *path != "/") {
            return Err(format!("`{text}`: paths are forwarded unchanged; leave out `{path}`"));
        }
        let host = authority.host();
        let port = match &authority.as_str()[host.len()..] {
            "" => scheme.default_port(),
            port => port[1..].parse().ok().filter(|port| *port != 0).ok_or_else(|| {
                format!("`{text}`: `{}` is not a port; expected a number from 1 to 65535", &port[1..])
            })?,
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_name = bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if bare.parse::<IpAddr>().is_err() && !is_name {
            return Err(format!("`{text}`: `{host}` is not a valid host name or address"));
        }
        Ok(Self { scheme, address: ServerAddress::Network { host: bare.to_ascii_lowercase(), port }, host: None })
    }

    fn unix(text: &str, path: &str) -> Result<Self, String> {
        let Some(rest) = path.strip_prefix('/') else {
            return Err(format!("`{text}`: the path of a unix socket must start with `/`; write `unix:/{path}`"));
        };
        if rest.starts_with('/') {
            return Err(format!("`{text}`: write `unix:/{}`", rest.trim_start_matches('/')));
        }
        if rest.is_empty() {
            return Err(format!("`{text}` names no socket; write `unix:/run/app.sock`"));
        }
        if path.len() > MAX_SOCKET_PATH {
            let length = path.len();
            return Err(format!(
                "`{text}`: the path of a unix socket has at most {MAX_SOCKET_PATH} bytes, this has {length}"
            ));
        }
        Ok(Self { scheme: Scheme::Http, address: ServerAddress::Unix(PathBuf::from(path)), host: None })
    }

    /// Returns the `Host` for requests that have none: health checks, and those in HTTP/1.0.
    pub(super) fn default_host(&self) -> String {
        self.host.clone().unwrap_or_else(|| self.own_host())
    }

    /// Returns the `Host` that the URL names. Clients leave out the port if it is the scheme's (RFC 9110 section 4.2.1).
    fn own_host(&self) -> String {
        match &self.address {
            ServerAddress::Network { host, port } if *port == self.scheme.default_port() => {
                if host.contains(':') {
                    format!("[{host}]")
                } else {
                    host.clone()
                }
            }
            _ => self.authority(),
        }
    }

    fn authority(&self) -> String {
        match &self.address {
            ServerAddress::Network { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            ServerAddress::Network { host, port } => format!("{host}:{port}"),
            ServerAddress::Unix(_) => "localhost".to_owned(),
        }
    }

    /// Returns whether its addresses come from DNS.
    pub(super) fn has_name(&self) -> bool {
        matches!(&self.address, ServerAddress::Network { host, .. } if host.parse::<IpAddr>().is_err())
    }

    /// Returns the name that its certificate must have.
    pub(super) fn host(&self) -> &str {
        match &self.address {
            ServerAddress::Network { host, .. } => host,
            ServerAddress::Unix(_) => "localhost",
        }
    }
}

/// Parses the value of [`HOST_SETTING`] that names a host.
fn parse_host(text: &str, host: &str) -> Result<String, String> {
    let authority = host.parse::<Authority>().ok().filter(|authority| !authority.as_str().contains('@'));
    let is_host = |authority: &Authority| authority.host().len() == host.len() || authority.port_u16().is_some();
    authority.filter(is_host).map(|authority| authority.to_string()).ok_or_else(|| {
        format!(
            "`{text}`: `{host}` is not a valid host; write `client`, `upstream` or a name such as `api.example.com`"
        )
    })
}

impl Scheme {
    const fn default_port(self) -> u16 {
        match self {
            Self::Http | Self::H2c => 80,
            Self::Https => 443,
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::H2c => "h2c",
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            ServerAddress::Network { .. } => write!(f, "{}://{}", self.scheme.text(), self.authority()),
            ServerAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_parsed() {
        for (text, expected) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://api.internal", "http://api.internal:80"),
            ("http://API.internal/", "http://api.internal:80"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("https://api_1.internal", "https://api_1.internal:443"),
            ("h2c://10.0.0.1:50051", "h2c://10.0.0.1:50051"),
            ("unix:/run/app=1.sock", "unix:/run/app=1.sock"),
        ] {
            assert_eq!(Server::parse(text).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn a_name_with_tls_gets_its_own_host_and_a_setting_overrides_that() {
        for (text, expected) in [
            ("https://API.example.com", Some("api.example.com")),
            ("https://api.example.com:443", Some("api.example.com")),
            ("https://api.example.com:8443", Some("api.example.com:8443")),
            ("https://api.example.com#host=client", None),
            ("https://10.0.0.1", None),
            ("https://[::1]", None),
            ("https://[::1]#host=upstream", Some("[::1]")),
            ("https://10.0.0.1:8443#host=upstream", Some("10.0.0.1:8443")),
            ("https://10.0.0.1#host=b.example.com:8443", Some("b.example.com:8443")),
            ("http://api.internal", None),
            ("http://api.internal:3000#host=upstream", Some("api.internal:3000")),
            ("h2c://api.internal", None),
            ("unix:/run/a#b.sock", None),
            ("unix:/run/a#b.sock#host=app.example.com", Some("app.example.com")),
            ("unix:/run/app.sock#host=upstream", Some("localhost")),
        ] {
            assert_eq!(Server::parse(text).unwrap().host.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn mistaken_servers_say_what_is_right() {
        let long = format!("unix:/{}", "x".repeat(MAX_SOCKET_PATH));
        for (text, part) in [
            ("127.0.0.1:3000", "write `http://127.0.0.1:3000`"),
            ("api.internal", "write `http://api.internal`"),
            ("ftp://a", "not `ftp://`"),
            ("grpc://a", "write `h2c://` for HTTP/2 without TLS"),
            ("wss://a", "`http://` or `https://`"),
            ("http://u:p@a", "user names and passwords"),
            ("http://a/v1", "leave out `/v1`"),
            ("http://a/?x=1", "leave out `/?x=1`"),
            ("http://a:0", "from 1 to 65535"),
            ("http://a:99999", "65535"),
            ("http://::1", "needs brackets"),
            ("http://$a", "not a valid host name"),
            ("https://a#top", "write `https://a#host=client`"),
            ("https://a#host=", "write `client`, `upstream` or a name"),
            ("https://a#host=u@b", "`u@b` is not a valid host"),
            ("https://a#host=b:", "`b:` is not a valid host"),
            ("https://a#host=b:99999", "is not a valid host"),
            ("https://a#host=b/c", "is not a valid host"),
            ("http:// a", "contains a space"),
            ("", "not a valid URL"),
            ("/run/app.sock", "`unix:/PATH`"),
            ("unix:run/app.sock", "write `unix:/run/app.sock`"),
            ("unix:///run/app.sock", "write `unix:/run/app.sock`"),
            ("unix:/", "names no socket"),
            (&long, "at most 107 bytes"),
        ] {
            let error = Server::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
