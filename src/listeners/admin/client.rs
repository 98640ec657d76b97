//! A client of the admin listener: what `weir bucket` and `weir health` ask with.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http::simple::exchange;

/// How long a connection may take, name lookup included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long an answer may take: the listener waits for a store, for a second at most.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer: a list of all blocks that there may be, with a reason each.
const MOST_BYTES: usize = 16 * 1024 * 1024;

const PORT: u16 = 9090;

/// An admin listener somewhere.
#[derive(Debug)]
pub struct AdminClient {
    /// `host:port`.
    authority: String,
    token: Option<HeaderValue>,
}

/// What it says.
#[derive(Debug)]
pub struct Told {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Value,
}

/// One of its pages for machines that watch.
#[derive(Debug)]
pub struct Page {
    /// The status.
    pub status: StatusCode,
    /// The body, whatever it is.
    pub body: Bytes,
}

/// Why it cannot be asked.
#[derive(Debug, thiserror::Error)]
#[error("cannot ask the admin listener at {authority}: {reason}")]
pub struct Unreachable {
    authority: String,
    reason: String,
}

impl AdminClient {
    /// A client of the listener at `address`, `http://host:port` or `host:port`, with a token for changes. The error says what
    /// would be right.
    pub fn new(address: &str, token: Option<&str>) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("`{address}` is no admin listener: {why}; write `http://127.0.0.1:9090`"));
        let rest = match address.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return wrong("it speaks http:// and nothing else"),
            None => address,
        };
        let authority = match rest.trim_end_matches('/').parse::<http::uri::Authority>() {
            Ok(authority) if authority.as_str().contains('@') => return wrong("it takes a token and no user"),
            Ok(authority) => {
                let port = match authority.port_u16() {
                    Some(port) => port,
                    None if authority.as_str() == authority.host() => PORT,
                    None => return wrong("a port is a number up to 65535"),
                };
                // A listener that listens on all addresses of a machine is asked on one that nobody else answers at.
                let host = match authority.host() {
                    "0.0.0.0" => "127.0.0.1",
                    "[::]" => "[::1]",
                    host => host,
                };
                format!("{host}:{port}")
            }
            Err(error) => return wrong(&error.to_string()),
        };
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose();
        let mut token = token.map_err(|_| "the token cannot be sent: it has control characters".to_owned())?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        Ok(Self { authority, token })
    }

    /// Reads a page. An answer of any status is one; the error says why there is none within `deadline`.
    pub async fn read(&self, path: &str, deadline: Duration) -> Result<Page, Unreachable> {
        let unreachable = |reason: String| Unreachable { authority: self.authority.clone(), reason };
        let request = self.request(Method::GET, path, None).map_err(|error| unreachable(error.to_string()))?;
        let reading = async {
            let stream = TcpStream::connect(&self.authority).await.map_err(|error| error.to_string())?;
            page(stream, request).await
        };
        match timeout(deadline, reading).await {
            Ok(page) => page.map_err(unreachable),
            Err(_) => Err(unreachable(format!("no answer within {deadline:?}"))),
        }
    }

    /// Asks for a path. An answer of any status is one; the error says why there is none.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Told, Unreachable> {
        let unreachable = |reason: String| Unreachable { authority: self.authority.clone(), reason };
        let request = self.request(method, path, body).map_err(|error| unreachable(error.to_string()))?;
        let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.authority)).await;
        let stream = connecting.map_err(|_| unreachable(format!("no connection within {CONNECT_TIMEOUT:?}")))?;
        let stream = stream.map_err(|error| unreachable(error.to_string()))?;
        match timeout(ANSWER_TIMEOUT, page(stream, request)).await {
            Ok(page) => page.and_then(told).map_err(unreachable),
            Err(_) => {
                Err(unreachable(format!("no answer within {ANSWER_TIMEOUT:?}; it may have been done all the same")))
            }
        }
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Request<Bytes>, http::Error> {
        let uri = Uri::try_from(path)?;
        let agent = concat!("weir/", env!("CARGO_PKG_VERSION"));
        let mut request =
            Request::builder().method(method).uri(uri).header(HOST, &self.authority).header(USER_AGENT, agent);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request.body(body.map(Value::to_string).unwrap_or_default().into())
    }
}

async fn page(stream: TcpStream, request: Request<Bytes>) -> Result<Page, String> {
    let (head, body) = exchange(stream, request, MOST_BYTES).await.map_err(|error| error.to_string())?.into_parts();
    Ok(Page { status: head.status, body })
}

/// What it says about buckets.
fn told(Page { status, body }: Page) -> Result<Told, String> {
    match serde_json::from_slice::<Value>(&body) {
        Ok(body) if ["bucket", "blocks", "detail"].iter().any(|member| body.get(member).is_some()) => {
            Ok(Told { status, body })
        }
        // Something else listens there, such as the proxy.
        _ => Err(format!("it answers {status}, and not as an admin listener does")),
    }
}

/// The path of a bucket: its name as one segment.
pub fn bucket_path(name: &str, below: &str) -> String {
    let mut path = String::from("/buckets/");
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:@,".contains(&byte) {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
    path.push_str(below);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_an_address_with_or_without_a_scheme() {
        for (address, expected) in [
            ("http://127.0.0.1:9090", Ok("127.0.0.1:9090")),
            ("http://weir.internal/", Ok("weir.internal:9090")),
            ("[::1]:9091", Ok("[::1]:9091")),
            ("0.0.0.0:9091", Ok("127.0.0.1:9091")),
            ("[::]:9090", Ok("[::1]:9090")),
            ("http://a:b", Err("is no admin listener")),
            ("a:65536", Err("is no admin listener")),
            ("a:", Err("is no admin listener")),
            ("https://127.0.0.1:9090", Err("http:// and nothing else")),
            ("http://u:p@127.0.0.1:9090", Err("no user")),
            ("http://127.0.0.1:9090/admin", Err("is no admin listener")),
            ("", Err("is no admin listener")),
        ] {
            match (AdminClient::new(address, None), expected) {
                (Ok(client), Ok(expected)) => assert_eq!(client.authority, expected),
                (Err(error), Err(part)) => assert!(error.contains(part), "{address}: {error}"),
                (found, _) => panic!("{address}: {found:?}"),
            }
        }
        assert!(AdminClient::new("a", Some("x\n")).is_err());
    }

    #[test]
    fn the_name_of_a_bucket_is_one_segment() {
        assert_eq!(bucket_path("L:2001:db8::/64", ""), "/buckets/L:2001:db8::%2F64");
        assert_eq!(bucket_path("L:a%3Ab ?#", "/block"), "/buckets/L:a%253Ab%20%3F%23/block");
    }
}
