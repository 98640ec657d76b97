//! External authorization: Envoy's description of a request becomes a [`Request`](request::Request), and the verdict
//! becomes Envoy's instructions. Comments on Envoy's behaviour were measured on Envoy 1.40.

use bytes::Bytes;
use http::StatusCode;
use smallvec::{SmallVec, smallvec};

use super::messages::authorization::{
    AppendAction, AttributeContext, CheckRequest, CheckResponse, DeniedHttpResponse, HeaderValueOption, HttpRequest,
    HttpResponse, HttpStatus, OkHttpResponse, Peer,
};
use super::messages::{BoolValue, HeaderValue, Kind, MapEntry, Memory, Status as RpcStatus, Struct, make_text, text};
use super::protocol::{Code, Status};
use super::{Answers, CallContext, Envoy};
use crate::engine::answer::accepted;
use crate::engine::answer::headers::{Generations, add_headers, is_list};
use crate::engine::answer::problem::denial;
use crate::engine::deciding::DecisionSubject;
use crate::engine::deciding::verdict::{Verdict, VerdictKind};
use crate::engine::limit::rules::Rules;
use crate::engine::request::incoming::{Incoming, Preparation};
use crate::engine::request::{self, DescriptorEntry};
use crate::http::subject_of_pem;
use crate::limiter::DecisionRequest;
use crate::listeners::client_address::client_address;
use crate::listeners::http::ActiveRequest;
use crate::message::address;
use crate::message::client_address::{ClientAddress, TrustedProxies};
use crate::message::headers::{self, Headers, QUEUE_ENTRY};
use crate::message::lossless;
use crate::message::path::EscapedSlashes;
use crate::message::percent::decode;
use crate::message::reply::{Reply, problem};
use crate::message::underscores::Underscores;
use crate::telemetry::denials::hash;
use crate::telemetry::metrics::DecisionListener;

/// The sources of the client's address before Envoy's own `source.address`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSources {
    /// `x-envoy-external-address`, which an Envoy with `use_remote_address` sets or replaces. One without passes on the
    /// client's.
    pub external: bool,
    /// `X-Forwarded-For` and `Forwarded`, as far as trusted proxies wrote them.
    pub forwarded: bool,
}

impl Default for AddressSources {
    fn default() -> Self {
        Self { external: true, forwarded: true }
    }
}

/// The largest list of headers whose memory is kept, in bytes.
const LARGEST_KEPT: usize = 16 * 1024;

const EXTERNAL_ADDRESS: &str = "x-envoy-external-address";

impl Envoy {
    /// `Check`.
    pub(super) async fn check(
        &self,
        request: CheckRequest,
        call: &CallContext<'_>,
        active: &mut ActiveRequest,
    ) -> Result<CheckResponse, Status> {
        let server = &self.front.server;
        let attributes = request.attributes.unwrap_or_default();
        let read = CheckedRequest::read(attributes, self.address_sources, &server.trusted_proxies, self.spare.take());
        let mut request = match read {
            Ok(request) => request,
            Err(InvalidCheck::Call(status)) => return Err(status),
            Err(InvalidCheck::Request(reason)) => return Ok(invalid(reason, &mut self.answers.borrow_mut())),
        };
        let mut headers = std::mem::take(&mut request.headers);
        let (underscores, slashes) = (server.client_headers.underscores, server.limits.escaped_slashes);
        let received = match request.incoming(&mut headers, underscores, slashes).read() {
            Ok(received) => received,
            Err(reason) => return Ok(invalid(reason, &mut self.answers.borrow_mut())),
        };
        let view = request::Request {
            client: client_address(&self.front.limiter, DecisionListener::ExtAuthz, request.client),
            tls_subject: request.subject.as_deref(),
            descriptor: &request.descriptor(),
            now: self.front.clock.now(),
            ..received.request()
        };
        let asked = DecisionRequest::new(DecisionSubject::Request(&view), DecisionListener::ExtAuthz, call.start);
        let asked =
            DecisionRequest { deadline: call.deadline, patience: self.front.limiter.patience(call.deadline), ..asked };
        let decided = active.decide(&self.front.limiter, asked, call.context).await;
        let is_grpc = received.headers.is_grpc();
        let mut answers = self.answers.borrow_mut();
        answers.clear();
        let answer = match decided {
            Ok(decided) => {
                answer(decided.view.rules(), &decided.verdict, self.front.generations, is_grpc, &mut answers)
            }
            Err(error) => invalid(&error.to_string(), &mut answers),
        };
        if headers.memory() <= LARGEST_KEPT {
            headers.clear();
            self.spare.set(headers);
        }
        Ok(answer)
    }
}

/// A request at Envoy.
#[derive(Debug)]
struct CheckedRequest {
    // Texts.
    method: Bytes,
    host: Bytes,
    target: Bytes,
    headers: Headers,
    client: Option<ClientAddress>,
    subject: Option<String>,
    extensions: Vec<MapEntry>,
}

/// Why a check cannot be decided.
#[derive(Debug)]
enum InvalidCheck {
    /// Envoy's configuration is wrong: the call fails.
    Call(Status),
    /// The client's request is invalid, for this reason.
    Request(&'static str),
}

impl CheckedRequest {
    fn read(
        attributes: AttributeContext,
        sources: AddressSources,
        trusted: &TrustedProxies,
        spare: Headers,
    ) -> Result<Self, InvalidCheck> {
        let AttributeContext { source, request, context_extensions: mut extensions } = attributes;
        for entry in &mut extensions {
            make_text(&mut entry.key);
            make_text(&mut entry.value);
        }
        let Some(http) = request.and_then(|request| request.http) else {
            let message = "the check has no attributes.request.http: use envoy.filters.http.ext_authz";
            return Err(InvalidCheck::Call(Status::new(Code::InvalidArgument, message)));
        };
        let source = source.unwrap_or_default();
        let headers = headers_of(&http, spare);
        let headers = headers.ok_or(InvalidCheck::Request("a header value must not contain control characters"))?;
        let client = client(&source, &headers, sources, trusted);
        let HttpRequest { mut method, path: mut target, mut host, .. } = http;
        [&mut method, &mut target, &mut host].into_iter().for_each(make_text);
        // CONNECT has no path.
        if target.is_empty() && method == "CONNECT" {
            target = "/".into();
        }
        Ok(Self { method, host, target, headers, client, subject: subject(&source), extensions })
    }

    /// `headers` are its own.
    fn incoming<'a>(
        &'a self,
        headers: &'a mut Headers,
        underscores: Underscores,
        slashes: EscapedSlashes,
    ) -> Incoming<'a> {
        let (method, target, authority) = (Some(text(&self.method)), text(&self.target), Some(text(&self.host)));
        let preparation = Preparation::Asked(underscores);
        Incoming { method, target, query: None, authority, headers, preparation, slashes }
    }

    /// Returns the route's context extensions.
    fn descriptor(&self) -> Vec<DescriptorEntry<'_>> {
        self.extensions
            .iter()
            .map(|entry| DescriptorEntry { key: text(&entry.key), value: text(&entry.value) })
            .collect()
    }
}

/// Returns the headers of a valid check.
#[cfg(any(test, fuzzing))]
pub(super) fn checked_headers(request: CheckRequest) -> Option<Headers> {
    let trusted = TrustedProxies::new(vec!["10.0.0.0/8".parse().ok()?]);
    let attributes = request.attributes?;
    let mut request = CheckedRequest::read(attributes, AddressSources::default(), &trusted, Headers::new()).ok()?;
    request.descriptor();
    let mut headers = std::mem::take(&mut request.headers);
    request.incoming(&mut headers, Underscores::Drop, EscapedSlashes::Keep).read().ok()?;
    Some(headers)
}

/// Returns the headers of the client's request, with `:authority` as `Host`. Envoy adds the pseudo-headers of HTTP/2 even to
/// HTTP/1 requests. They take the memory of `spare`. `None` if a value is invalid: without it, the values that proxies have added would be lost, too.
fn headers_of(http: &HttpRequest, spare: Headers) -> Option<Headers> {
    let raw = http.header_map.as_ref().map_or(&[][..], |map| &map.headers);
    let raw = raw.iter().map(|line| (&line.key, if line.raw_value.is_empty() { &line.value } else { &line.raw_value }));
    let lines = http.headers.iter().map(|entry| (&entry.key, &entry.value)).chain(raw);
    let bytes: usize = lines.clone().map(|(name, value)| name.len() + value.len()).sum();
    let mut headers = spare;
    headers.reserve(lines.clone().count() + 1, bytes + http.host.len() + 64);
    if headers::is_value(&http.host) {
        headers.append("host", &http.host);
    }
    for (name, value) in lines {
        // A name with a colon is invalid, so the pseudo-headers are left out.
        if headers::is_name(name) && !name.eq_ignore_ascii_case(b"host") {
            if !headers::is_value(value) {
                return None;
            }
            headers.append(name, value.trim_ascii());
        }
    }
    Some(headers)
}

/// Returns the client's address. The call's metadata has an `x-forwarded-for` too, but that is Envoy's own address.
///
/// A source that is not an IP address is a unix socket or another listener of the same Envoy.
fn client(
    source: &Peer,
    headers: &Headers,
    sources: AddressSources,
    trusted: &TrustedProxies,
) -> Option<ClientAddress> {
    if sources.external
        && let Some(external) = headers.text(EXTERNAL_ADDRESS)
        && let Ok(client) = address::parse(external.trim())
    {
        return Some(client.into());
    }
    let source = source.address.as_ref().and_then(|address| address.socket_address.as_ref());
    let source = address::parse(text(&source?.address)).ok()?;
    Some(if sources.forwarded { trusted.client(source, headers) } else { source.into() })
}

/// Returns the subject of the client's certificate if Envoy sends the certificate, else the name that Envoy chose from it.
fn subject(source: &Peer) -> Option<String> {
    if !source.certificate.is_empty()
        && let Some(subject) = subject_of_pem(&decode(text(&source.certificate)))
    {
        return Some(subject);
    }
    Some(lossless::text(&source.principal).into_owned()).filter(|principal| !principal.is_empty())
}

/// `answers` are empty.
fn answer(
    rules: &Rules,
    verdict: &Verdict,
    generations: Generations,
    is_grpc: bool,
    answers: &mut Answers,
) -> CheckResponse {
    let denial = |memory| denied(envoy_denial(rules, verdict, generations, is_grpc), memory);
    let (code, response) = match verdict.kind {
        VerdictKind::Allowed => match accepted::accepted(rules, verdict, generations) {
            // Envoy sends the status and body of a denial to the client.
            Some(accepted) => (Code::Cancelled, HttpResponse::Denied(denied(accepted, &mut answers.memory))),
            None => (Code::Ok, HttpResponse::Ok(allowed(rules, verdict, generations, answers))),
        },
        VerdictKind::Denied => (Code::ResourceExhausted, HttpResponse::Denied(denial(&mut answers.memory))),
        // Not an error, which Envoy may let pass: a flood must not switch limits off.
        VerdictKind::Overloaded => (Code::Unavailable, HttpResponse::Denied(denial(&mut answers.memory))),
        // Envoy's `failure_mode_allow` decides, as without an answer. Envoy before 1.37 does not know this response and
        // denies with 403.
        VerdictKind::Unavailable => (Code::Unavailable, HttpResponse::Error(denial(&mut answers.memory))),
    };
    check_response(code, response, metadata(rules, verdict, &mut answers.memory))
}

/// The answer to a request that no rule can be applied to.
fn invalid(reason: &str, answers: &mut Answers) -> CheckResponse {
    let reply = problem(StatusCode::BAD_REQUEST, reason);
    check_response(Code::InvalidArgument, HttpResponse::Denied(denied(reply, &mut answers.memory)), None)
}

fn check_response(code: Code, response: HttpResponse, dynamic_metadata: Option<Struct>) -> CheckResponse {
    let status = RpcStatus { code: i32::from(code.number()), message: String::new() };
    CheckResponse { status: Some(status), http_response: Some(response), dynamic_metadata }
}

/// The denial that the proxy would send. For gRPC clients, Envoy converts it: the body becomes the message and the
/// `grpc-status` header the code, which would be 14 without it.
fn envoy_denial(rules: &Rules, verdict: &Verdict, generations: Generations, is_grpc: bool) -> Reply {
    let mut reply = denial(rules, verdict, generations, false);
    if is_grpc {
        let grpc = denial(rules, verdict, generations, true);
        grpc.headers.text("grpc-message").unwrap_or_default().clone_into(&mut reply.body);
        reply.headers.append("grpc-status", grpc.headers.text("grpc-status").unwrap_or_default());
        reply.headers.remove("content-type");
    }
    reply
}

fn allowed(rules: &Rules, verdict: &Verdict, generations: Generations, answers: &mut Answers) -> OkHttpResponse {
    let Answers { headers, memory, .. } = answers;
    add_headers(rules, verdict, generations, headers);
    let options = headers.iter().map(|(name, _)| is_list(name)).zip(HeaderValue::list(headers, memory));
    let response_headers_to_add = options.map(|(is_list, header)| option(header, is_list)).collect();
    let mut entries = Headers::new();
    accepted::add_entries(rules, verdict, &mut entries);
    // A client's header of that name is replaced or removed.
    let may_be_forged = rules.has_queues && entries.is_empty();
    let headers_to_remove = if may_be_forged { vec![QUEUE_ENTRY.to_owned()] } else { Vec::new() };
    let headers = HeaderValue::list(&entries, memory);
    let headers = headers.enumerate().map(|(index, header)| option(header, index > 0)).collect();
    OkHttpResponse { headers, headers_to_remove, response_headers_to_add }
}

fn denied(reply: Reply, memory: &mut Memory) -> DeniedHttpResponse {
    DeniedHttpResponse {
        status: Some(HttpStatus { code: reply.status.as_u16().into() }),
        headers: HeaderValue::list(&reply.headers, memory).map(|header| option(header, false)).collect(),
        body: Bytes::from(reply.body),
    }
}

/// A header that replaces one of its name or, if `is_appended`, continues its list (RFC 9110 section 5.3). Which of the two
/// ways to say so counts depends on Envoy's version and on the list, so both are given.
fn option(header: HeaderValue, is_appended: bool) -> HeaderValueOption {
    let action = if is_appended { AppendAction::AppendIfExistsOrAdd } else { AppendAction::OverwriteIfExistsOrAdd };
    let append = Some(BoolValue { value: is_appended });
    HeaderValueOption { header: Some(header), append, append_action: action.into() }
}

/// The binding limit, for Envoy's access log and the next filters: its name, a hash of the id, and what is left.
fn metadata(rules: &Rules, verdict: &Verdict, memory: &mut Memory) -> Option<Struct> {
    let binding = verdict.binding()?;
    let name = memory.text(&rules.limit(binding.limit)?.name);
    let mut members: SmallVec<[(&str, Kind); 5]> = smallvec![("limit", Kind::Text(name))];
    if let Some(fingerprint) = binding.fingerprint {
        members.push(("id", Kind::Text(memory.text(&hash(fingerprint)))));
    }
    if !binding.is_script() {
        #[expect(clippy::cast_precision_loss, reason = "counts are below 2^53, which is what a double has")]
        members.push(("remaining", Kind::Number(binding.decision.remaining as f64)));
    }
    if let Some(elevation) = verdict.elevation(binding.limit) {
        members.push(("elevated", Kind::Bool(elevation.active)));
        members.push(("elevated_now", Kind::Bool(elevation.triggered)));
    }
    Some(members.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::messages::authorization::{Address, AttributeRequest, HeaderMap, SocketAddress};
    use super::*;
    use crate::engine::algorithms::decision::{Decision, Decisions, Detail, Elevation, Outcome};
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::algorithms::queue::{EntryId, Storage};
    use crate::engine::charging::plan::Plan;
    use crate::engine::deciding::verdict::Unanswered;
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::queue::{FollowUp, Queue};
    use crate::engine::limit::{Limit, StoreErrorPolicy};
    use crate::engine::request::part::{Part, TypedPart};
    use crate::engine::request::value_type::ValueType;
    use crate::store::Batch;
    use crate::store::memory::MemoryStore;

    fn peer(address: &str) -> Peer {
        let socket_address = Some(SocketAddress { address: address.to_owned().into() });
        Peer { address: Some(Address { socket_address }), ..Peer::default() }
    }

    fn attributes(source: Peer, http: HttpRequest) -> AttributeContext {
        let request = Some(AttributeRequest { http: Some(http) });
        AttributeContext { source: Some(source), request, context_extensions: Vec::new() }
    }

    fn entries(lines: &[(&'static str, &'static str)]) -> Vec<MapEntry> {
        lines.iter().map(|(key, value)| MapEntry { key: (*key).into(), value: (*value).into() }).collect()
    }

    fn http(method: &str, path: &str, lines: &[(&'static str, &'static str)]) -> HttpRequest {
        HttpRequest {
            method: method.to_owned().into(),
            path: path.to_owned().into(),
            host: "A.example:80".into(),
            headers: entries(lines),
            header_map: None,
        }
    }

    fn read(attributes: AttributeContext, sources: AddressSources) -> Result<CheckedRequest, InvalidCheck> {
        let trusted = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
        CheckedRequest::read(attributes, sources, &trusted, Headers::new())
    }

    #[track_caller]
    fn check_client(sources: AddressSources, source: Peer, lines: &[(&'static str, &'static str)], expected: &str) {
        let asked = read(attributes(source, http("GET", "/", lines)), sources).unwrap();
        assert_eq!(asked.client.map(|client| client.address), expected.parse().ok());
    }

    #[test]
    fn the_client_is_whom_envoy_says_it_is() {
        let both = AddressSources::default();
        let forwarded = AddressSources { external: false, forwarded: true };
        let source = AddressSources { external: false, forwarded: false };
        let lines =
            [("x-forwarded-for", "9.9.9.9, 203.0.113.7, 10.0.0.2"), ("x-envoy-external-address", "203.0.113.8")];
        check_client(both, peer("10.0.0.1"), &lines, "203.0.113.8");
        check_client(forwarded, peer("10.0.0.1"), &lines, "203.0.113.7");
        check_client(source, peer("10.0.0.1"), &lines, "10.0.0.1");
        check_client(both, peer("192.0.2.1"), &lines[..1], "192.0.2.1");
        check_client(both, peer("10.0.0.1"), &[("x-forwarded-for", "\u{e9}, 203.0.113.7, 10.0.0.2")], "203.0.113.7");
        check_client(both, peer("::ffff:192.0.2.1"), &[], "192.0.2.1");
        check_client(both, peer("192.0.2.1"), &[("x-envoy-external-address", "nobody")], "192.0.2.1");
        check_client(both, Peer::default(), &lines[..1], "none");
        check_client(both, peer("@internal"), &lines, "203.0.113.8");
    }

    #[test]
    fn headers_are_those_of_the_client() {
        let mut given = http("GET", "/", &[(":method", "GET"), (":authority", "b"), ("x-id", " 7 "), ("x y", "1")]);
        given.headers.extend(entries(&[("host", "b\n")]));
        let raw = |key: &'static str, value: &'static str, raw_value: &'static [u8]| HeaderValue {
            key: key.into(),
            value: value.into(),
            raw_value: raw_value.into(),
        };
        given.header_map = Some(HeaderMap { headers: vec![raw("x-raw", "", b"\xff"), raw("x-raw", "2", b"")] });
        let found = headers_of(&given, Headers::new()).unwrap();
        let lines: Vec<_> = found.iter().collect();
        let expected: [(&[u8], &[u8]); 4] =
            [(b"host", b"A.example:80"), (b"x-id", b"7"), (b"x-raw", b"\xff"), (b"x-raw", b"2")];
        assert_eq!(lines, expected);
        given.headers.extend(entries(&[("x-forwarded-for", "\u{1}, 203.0.113.7")]));
        assert!(headers_of(&given, Headers::new()).is_none());
    }

    #[test]
    fn names_with_underscores_are_folded_or_rejected() {
        let lines = [("x_api_key", "1"), ("x_forwarded_for", "203.0.113.7")];
        let asked = || read(attributes(peer("10.0.0.1"), http("GET", "/", &lines)), AddressSources::default()).unwrap();
        assert_eq!(asked().client, Some(IpAddr::from([10, 0, 0, 1]).into()));
        let key = |underscores| {
            let mut request = asked();
            let mut headers = std::mem::take(&mut request.headers);
            let received = request.incoming(&mut headers, underscores, EscapedSlashes::Keep).read();
            received.map(|received| received.headers.text("x-api-key").map(str::to_owned))
        };
        assert_eq!(key(Underscores::Drop), Ok(Some("1".to_owned())));
        assert_eq!(key(Underscores::Keep), Ok(None));
        assert!(key(Underscores::Reject).is_err());
    }

    #[test]
    fn what_no_rule_can_be_applied_to_is_the_clients_mistake() {
        for (method, path, host, part) in [
            ("get", "/", "a", "upper case"),
            ("GET", "/a\\b", "a", "backslash"),
            ("GET", "/%zz", "a", "escape"),
            ("GET", "/?a#b", "a", "fragment"),
            ("GET", "*", "a", "OPTIONS"),
            ("GET", "ftp://a/", "a", "a target must be a path"),
            ("GET", "x://", "a", "a target must be a path"),
            ("GET", "", "a", "a target must be a path"),
            ("G T", "/", "a", "token"),
            ("", "/", "a", "token"),
            ("GET", "/", "a b", "not a valid host"),
        ] {
            let given = HttpRequest { host: host.to_owned().into(), ..http(method, path, &[]) };
            let mut request = read(attributes(peer("192.0.2.1"), given), AddressSources::default()).unwrap();
            let mut headers = std::mem::take(&mut request.headers);
            let reason = request.incoming(&mut headers, Underscores::Drop, EscapedSlashes::Keep).read().unwrap_err();
            assert!(reason.contains(part), "{method} {path}: {reason}");
            let Some(HttpResponse::Denied(denied)) = invalid(reason, &mut Answers::default()).http_response else {
                panic!("no denial")
            };
            assert_eq!(denied.status, Some(HttpStatus { code: 400 }));
        }
        let connect = read(attributes(peer("192.0.2.1"), http("CONNECT", "", &[])), AddressSources::default()).unwrap();
        assert_eq!((text(&connect.target), text(&connect.host)), ("/", "A.example:80"));
    }

    #[test]
    fn a_check_without_a_request_of_http_is_envoys_mistake() {
        let Err(InvalidCheck::Call(status)) = read(AttributeContext::default(), AddressSources::default()) else {
            panic!("it passes")
        };
        assert_eq!(status.code, Code::InvalidArgument);
    }

    #[test]
    fn the_subject_is_that_of_the_certificate_or_what_envoy_calls_it() {
        let mut parameters = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "client 1");
        let pem = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
        let escaped = pem.replace(' ', "%20").replace('\n', "%0A").replace('+', "%2B");
        let source = |principal: &str, certificate: &str| Peer {
            principal: principal.to_owned().into(),
            certificate: certificate.to_owned().into(),
            ..Peer::default()
        };
        assert_eq!(subject(&source("spiffe://a/b", &escaped)).as_deref(), Some("CN=client 1"));
        assert_eq!(subject(&source("spiffe://a/b", "")).as_deref(), Some("spiffe://a/b"));
        assert_eq!(subject(&source("spiffe://a/b", "no%20certificate")).as_deref(), Some("spiffe://a/b"));
        assert_eq!(subject(&source("", "")), None);
    }

    /// The verdicts of so many requests to a limit `L` by address, which allows one request.
    fn verdicts(count: usize) -> (Rules, Vec<Verdict>) {
        let by = vec![TypedPart::new(Part::Ip { ipv6_prefix: 64 }, ValueType::Text)];
        let windows = [Numbers::new(1, 1, 60_000_000_000).unwrap()].into();
        let limit = Limit { by, allowance: Allowance::Windows(windows), ..Limit::new("L") };
        assert_eq!(limit.on_store_error, StoreErrorPolicy::Allow);
        let rules = Rules::new(vec![limit], Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let headers = Headers::new();
        let client = "192.0.2.7".parse().ok();
        let request = request::Request { client, ..request::sample(&headers) };
        let store = MemoryStore::new(100);
        let decide = |_| {
            let plan = Plan::of_request(&rules, &request, None).unwrap();
            let batch = Batch { charges: &plan.charges, effective_from: Micros(0), now: Micros(1_000_000) };
            Verdict::decided(&plan, &store.decide(&batch).unwrap())
        };
        let verdicts = (0..count).map(decide).collect();
        (rules, verdicts)
    }

    /// The headers of an answer: name, value, and whether one of its name is kept.
    fn told(options: &[HeaderValueOption]) -> Vec<String> {
        let line = |option: &HeaderValueOption| {
            let header = option.header.as_ref().unwrap();
            let is_appended = option.append.unwrap().value;
            let action =
                if is_appended { AppendAction::AppendIfExistsOrAdd } else { AppendAction::OverwriteIfExistsOrAdd };
            assert_eq!(option.append_action(), action);
            let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
            format!("{}{}: {}", if is_appended { "+" } else { "" }, text(&header.key), text(&header.value))
        };
        options.iter().map(line).collect()
    }

    const ALL: Generations = Generations { ietf_11: true, ietf_03: false, x_ratelimit: true };

    #[test]
    fn an_allowance_adds_to_the_lists_of_the_response_and_replaces_the_rest() {
        let (rules, verdicts) = verdicts(1);
        let answer = answer(&rules, &verdicts[0], ALL, false, &mut Answers::default());
        assert_eq!(answer.status.unwrap().code, 0);
        let Some(HttpResponse::Ok(ok)) = answer.http_response else { panic!("it is denied") };
        assert_eq!(
            told(&ok.response_headers_to_add),
            [
                "+ratelimit-policy: \"L\";q=1;w=60",
                "+ratelimit: \"L\";r=0;t=60",
                "x-ratelimit-limit: 1, 1;w=60",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 60",
            ]
        );
    }

    #[test]
    fn a_denial_is_the_proxys() {
        let (rules, verdicts) = verdicts(2);
        let answered = answer(&rules, &verdicts[1], Generations::default(), false, &mut Answers::default());
        assert_eq!(answered.status.unwrap().code, 8);
        let Some(HttpResponse::Denied(denied)) = answered.http_response else { panic!("it passes") };
        let expected = denial(&rules, &verdicts[1], Generations::default(), false);
        assert_eq!((denied.status, &denied.body[..]), (Some(HttpStatus { code: 429 }), expected.body.as_bytes()));
        let headers = expected
            .headers
            .iter()
            .map(|(name, value)| format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
        assert_eq!(told(&denied.headers), headers.collect::<Vec<_>>());
        let answered = answer(&rules, &verdicts[1], ALL, true, &mut Answers::default());
        let Some(HttpResponse::Denied(denied)) = answered.http_response else { panic!("it passes") };
        assert!(told(&denied.headers).contains(&"grpc-status: 8".to_owned()));
        assert_eq!(denied.body, "L allows burst 1, 1 per 1m; retry after 60 s");
    }

    /// The answer to a request that a queue with this `then` has accepted.
    fn queued(then: FollowUp) -> CheckResponse {
        let allowance = Allowance::Windows([Numbers::queue(3, None).unwrap()].into());
        let queue = Queue { storage: Storage::Stream, then, fields: Vec::new() };
        let limit = Limit { allowance, by: Vec::new(), queue: Some(Box::new(queue)), ..Limit::new("Q") };
        let rules = Rules::new(vec![limit], Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let headers = Headers::new();
        let plan = Plan::of_request(&rules, &request::sample(&headers), None).unwrap();
        let decision = Decision {
            delay: 0,
            outcome: Outcome::Allowed,
            limit: 3,
            remaining: 2,
            retry_after: Some(Micros(0)),
            reset_after: None,
        };
        let mut decisions: Decisions = std::iter::once(decision).collect();
        decisions.details.push((0, Detail::Entry(EntryId::parse("17-0").unwrap())));
        answer(&rules, &Verdict::decided(&plan, &decisions), Generations::default(), false, &mut Answers::default())
    }

    #[test]
    fn a_request_in_a_queue_is_answered_with_202_or_tells_the_upstream_its_entry() {
        let accepted = queued(FollowUp::Accept);
        assert_ne!(accepted.status.unwrap().code, 0);
        let Some(HttpResponse::Denied(denied)) = accepted.http_response else { panic!("it passes") };
        assert_eq!((denied.status, &denied.body[..]), (Some(HttpStatus { code: 202 }), &b"{\"id\":\"17-0\"}\n"[..]));
        let Some(HttpResponse::Ok(ok)) = queued(FollowUp::Forward).http_response else { panic!("it is denied") };
        assert_eq!((told(&ok.headers), ok.headers_to_remove), (vec!["x-queue-entry: 17-0".to_owned()], Vec::new()));
        let (rules, verdicts) = verdicts(1);
        let answered = answer(&rules, &verdicts[0], ALL, false, &mut Answers::default());
        let Some(HttpResponse::Ok(ok)) = answered.http_response else { panic!("it is denied") };
        assert!(ok.headers.is_empty() && ok.headers_to_remove.is_empty(), "there are no queues");
    }

    #[test]
    fn metadata_names_the_limit_and_hides_the_id() {
        let (rules, verdicts) = verdicts(2);
        let [first, second] = [0, 1].map(|place| metadata(&rules, &verdicts[place], &mut Memory::default()).unwrap());
        let member = |of: &Struct, name: &str| {
            of.fields.iter().find(|header| header.key == name).and_then(|header| header.value.clone()?.kind)
        };
        assert_eq!(member(&first, "limit"), Some(Kind::Text("L".into())));
        assert_eq!(member(&first, "remaining"), Some(Kind::Number(0.0)));
        let Some(Kind::Text(id)) = member(&first, "id") else { panic!("no id") };
        assert!(id.len() == 16 && !text(&id).contains("192"), "{id:?}");
        assert_eq!(member(&second, "id"), Some(Kind::Text(id)));
        assert_eq!(member(&second, "elevated"), None);
        let elevation = Elevation { triggered: false, active: true, activations_left: None };
        let raised = Verdict { details: vec![(0, Detail::Elevated(elevation))], ..verdicts[0].clone() };
        let raised = metadata(&rules, &raised, &mut Memory::default()).unwrap();
        let elevated = ["elevated", "elevated_now"].map(|name| member(&raised, name));
        assert_eq!(elevated, [true, false].map(|truth| Some(Kind::Bool(truth))));
    }

    #[test]
    fn a_store_without_an_answer_is_an_error_that_envoy_decides_over() {
        let (rules, mut verdicts) = verdicts(1);
        let verdict = verdicts.remove(0).unanswered(vec![Unanswered { limit: 0, denies: true }]);
        let answer = answer(&rules, &verdict, Generations::default(), false, &mut Answers::default());
        assert_eq!(answer.status.unwrap().code, 14);
        let Some(HttpResponse::Error(error)) = answer.http_response else { panic!("not an error") };
        assert_eq!(error.status, Some(HttpStatus { code: 503 }));
        assert!(told(&error.headers).contains(&"retry-after: 1".to_owned()));
    }
}
