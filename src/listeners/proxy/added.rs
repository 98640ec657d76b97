//! Headers that are added where the operator asks for them: `X-Request-Id`, `X-Real-IP`, and those of CORS on replies of our own.

use std::sync::Arc;

use http::{Method, StatusCode};

use crate::http::message::Request;
use crate::message::client_headers::is_rate_limit;
use crate::message::headers::Headers;
use crate::message::reply::Reply;

pub(super) const REQUEST_ID: &str = "x-request-id";
pub(super) const REAL_IP: &str = "x-real-ip";

/// The longest id that is taken over from a trusted proxy, in bytes.
const LONGEST_ID: usize = 128;

/// The headers to add.
#[derive(Clone, Debug, Default)]
pub struct AddedHeaders {
    /// `X-Request-Id`, to requests and to replies of our own.
    pub request_id: bool,
    /// `X-Real-IP`, to requests.
    pub real_ip: bool,
    /// To replies of our own.
    pub cors: Option<Cors>,
}

/// The pages that may read replies of our own (CORS, <https://fetch.spec.whatwg.org/#http-cors-protocol>).
#[derive(Clone, Debug)]
pub struct Cors {
    pub origins: Origins,
    /// They may read replies to requests with cookies. Not with [`Origins::Any`].
    pub credentials: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    Any,
    /// Each as browsers send it, such as `https://app.example.com`.
    Listed(Arc<[String]>),
}

/// The parts of a request that replies to it need. Forwarding uses the request up.
#[derive(Debug, Default)]
pub(super) struct ReplyContext {
    request_id: Option<Box<str>>,
    /// The value of `Access-Control-Allow-Origin`.
    origin: Option<Box<str>>,
    preflight: Option<Preflight>,
}

/// A question of a browser before it sends a request of a listed origin.
#[derive(Debug)]
struct Preflight {
    method: Box<[u8]>,
    headers: Option<Box<[u8]>>,
}

impl AddedHeaders {
    /// Gives a request its id, before the rules see it, and returns what replies need. Only a trusted proxy may have chosen the id.
    pub(super) fn prepare(&self, request: &mut Request, is_trusted: bool) -> Option<Box<ReplyContext>> {
        if !self.request_id && self.cors.is_none() {
            return None;
        }
        let mut reply =
            ReplyContext { request_id: self.request_id.then(|| named(request, is_trusted)), ..ReplyContext::default() };
        if let Some(cors) = &self.cors {
            let (origin, is_listed) = cors.allowed(&request.headers);
            reply.origin = origin;
            let asked =
                request.headers.get("access-control-request-method").filter(|_| request.method == Method::OPTIONS);
            reply.preflight = asked.filter(|_| is_listed).map(|method| Preflight {
                method: method.into(),
                headers: request.headers.get("access-control-request-headers").map(Box::from),
            });
        }
        Some(Box::new(reply))
    }

    /// Adds to a reply of our own what the client's page needs. Called last, because it names the other headers.
    pub(super) fn finish(&self, reply: &ReplyContext, headers: &mut Headers) {
        if let Some(id) = &reply.request_id {
            headers.set(REQUEST_ID, id.as_bytes());
        }
        let Some(cors) = &self.cors else { return };
        if cors.origins != Origins::Any {
            headers.append("vary", "origin");
        }
        let Some(origin) = &reply.origin else { return };
        let mut names: Vec<&[u8]> = headers.iter().map(|(name, _)| name).filter(|name| is_exposed(name)).collect();
        names.dedup();
        let names = names.join(&b", "[..]);
        headers.append("access-control-allow-origin", origin.as_bytes());
        if cors.credentials {
            headers.append("access-control-allow-credentials", "true");
        }
        if !names.is_empty() && reply.preflight.is_none() {
            headers.append("access-control-expose-headers", names);
        }
    }
}

impl ReplyContext {
    pub(super) fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// Returns the reply to a denied preflight. A browser shows a page no reply to a preflight, so the request that follows gets
    /// to hear of the denial: it is decided by itself. Only origins that the operator has listed get this.
    pub(super) fn preflight(&self) -> Option<Reply> {
        let preflight = self.preflight.as_ref()?;
        let mut headers = Headers::new();
        headers.append("access-control-allow-methods", &preflight.method);
        if let Some(names) = &preflight.headers {
            headers.append("access-control-allow-headers", names);
        }
        // Only for the request that follows at once.
        headers.append("access-control-max-age", "0");
        Some(Reply { status: StatusCode::NO_CONTENT, headers, body: String::new() })
    }
}

impl Cors {
    /// Returns the value of `Access-Control-Allow-Origin`, and whether the origin is a listed one.
    fn allowed(&self, headers: &Headers) -> (Option<Box<str>>, bool) {
        let Some(origin) = headers.text("origin") else { return (None, false) };
        match &self.origins {
            Origins::Any => (Some("*".into()), false),
            Origins::Listed(listed) => {
                let known = listed.iter().find(|known| *known == origin);
                (known.map(|known| known.as_str().into()), known.is_some())
            }
        }
    }
}

/// Returns a request's id. It gets one unless a trusted proxy has given it one.
fn named(request: &mut Request, is_trusted: bool) -> Box<str> {
    let headers = &mut request.headers;
    headers.retain(|name, _| !is_request_id(name) || (is_trusted && !name.contains(&b'_')));
    let is_valid = |id: &&str| (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    if headers.all(REQUEST_ID).count() == 1
        && let Some(id) = headers.text(REQUEST_ID).filter(is_valid)
    {
        return id.into();
    }
    let id = format!("{:032x}", rand::random::<u128>());
    headers.set(REQUEST_ID, &id);
    id.into()
}

/// Returns whether an upstream may take a name for that of the id.
fn is_request_id(name: &[u8]) -> bool {
    let is_same = |(given, known): (&u8, u8)| given.eq_ignore_ascii_case(&known) || (*given == b'_' && known == b'-');
    name.len() == REQUEST_ID.len() && name.iter().zip(REQUEST_ID.bytes()).all(is_same)
}

/// Returns whether a page may read a header only if the reply says so.
fn is_exposed(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"retry-after") || name.eq_ignore_ascii_case(REQUEST_ID.as_bytes()) || is_rate_limit(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_id(is_trusted: bool, given: &[(&'static str, &str)], expected: Option<&str>) {
        let mut request = Request { headers: given.iter().copied().collect(), ..Request::default() };
        let added = AddedHeaders { request_id: true, ..AddedHeaders::default() };
        let reply = added.prepare(&mut request, is_trusted).unwrap();
        let id = reply.request_id().unwrap();
        assert_eq!(request.headers.all(REQUEST_ID).collect::<Vec<_>>(), [id.as_bytes()]);
        assert!(!request.headers.has_underscores(), "{given:?}");
        match expected {
            Some(expected) => assert_eq!(id, expected),
            None => assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}"),
        }
    }

    #[test]
    fn a_request_has_one_id_and_only_a_trusted_proxy_may_choose_it() {
        let long = "a".repeat(LONGEST_ID + 1);
        check_id(true, &[("X-Request-ID", "abc/1"), ("X_Request-Id", "evil")], Some("abc/1"));
        check_id(true, &[("x-request-id", &long[1..])], Some(&long[1..]));
        for given in [&[("x-request-id", "abc")][..], &[("x_request_id", "abc"), ("X-REQUEST-ID", "def")], &[]] {
            check_id(false, given, None);
        }
        for given in [
            &[("x-request-id", "a"), ("X-Request-Id", "b")][..],
            &[("x-request-id", "a b")],
            &[("x-request-id", "")],
            &[("x-request-id", &long)],
            &[("x_request_id", "a")],
        ] {
            check_id(true, given, None);
        }
    }

    #[test]
    fn nothing_is_kept_of_a_request_unless_it_is_asked_for() {
        let mut request = Request {
            headers: [("origin", "https://a.example"), ("x-request-id", "1")].into_iter().collect(),
            ..Request::default()
        };
        assert!(AddedHeaders { real_ip: true, ..AddedHeaders::default() }.prepare(&mut request, false).is_none());
        assert_eq!(request.headers.text("x-request-id"), Some("1"));
    }
}
