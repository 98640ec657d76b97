//! The check listener: gateways ask over HTTP whether a request may pass, each in its own way, and so do applications.
//!
//! | path | caller | source of the original request | allowed | denied |
//! |---|---|---|---|---|
//! | `/envoy` + path | Envoy's `ext_authz` with `http_service` | the request itself | 200 | 429 |
//! | `/nginx` | nginx' `auth_request` | `X-Original-*`, `X-Real-IP` | 200 | 403 and `X-RateLimit-Status: 429` |
//! | `/forward` | Traefik's `ForwardAuth`, Caddy's `forward_auth` | `X-Forwarded-*` | 200 | 429 |
//! | `/haproxy` | HAProxy with `haproxy-auth-request` | `X-Forwarded-*` | 200 | 429 |
//! | `/json` | applications | the body | 200 | 429 |
//!
//! Allowed is always 200, the one status that every gateway lets pass: Envoy denies at 204, while nginx, Traefik, Caddy and
//! HAProxy pass requests at any 2xx. So every error is a 4xx or 5xx, and gRPC calls are denied with 429, because gRPC's
//! own denial has status 200. A request that a queue has accepted for good (`then: accept`) gets 202 at `/envoy`, and 403 at
//! `/nginx`. The other gateways would forward it, so there it is a configuration error and nothing is queued.
//!
//! Envoy passes a 4xx on to the client and treats a 5xx as a failed check, which `failure_mode_allow` lets pass. nginx
//! knows 2xx, 401 and 403, and turns anything else into a 500. So a reply for the client goes as 403 with the true status in
//! a header, and an error in nginx' configuration as 400, which nginx logs. Traefik, Caddy and HAProxy pass on anything
//! but 2xx.
//!
//! Every caller is trusted as a gateway: its description of the original request and of the client's address is believed.
//! `--trusted-proxies` are the proxies in front of the gateway, whose entries in `X-Forwarded-For` are skipped.

use std::net::IpAddr;
use std::rc::Rc;

use http::{Method, StatusCode, Version};
use tokio_util::sync::CancellationToken;

use self::call::{Call, Mistake, Subject};
use self::original::{Original, Unusable};
use crate::engine::algorithms::charge::Mode;
use crate::engine::answer::headers::Generations;
use crate::engine::rules::request;
use crate::http::Context;
use crate::http::failure::HeadError;
use crate::http::forwarding;
use crate::http::message::{Request, Response};
use crate::http::{self as connections, Server, Service, Stream};
use crate::limiter::{Ask, AskError, AskSubject, Limiter, Ruling};
use crate::listeners::http::failure::Failure;
use crate::listeners::http::{Frontend, FrontendOptions, Passage};
use crate::message::headers::Headers;
use crate::message::reply::{Reply, problem};
use crate::message::{path, target};
use crate::telemetry::denials::IdFormat;
use crate::telemetry::metrics::{CheckResult, Convention, DecisionListener, HttpListener};
use crate::telemetry::throttle::Throttle;

mod answer;
mod body;
mod call;
pub(super) mod json;
mod original;
#[cfg(any(test, fuzzing))]
pub mod properties;

/// The description of `/json`, for machines (`OpenAPI` 3.1).
const OPENAPI: &str = include_str!("openapi.json");

/// How the check listener is set up.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// How it takes connections and requests.
    pub front: FrontendOptions,
    /// Which rate limit headers are sent.
    pub generations: Generations,
}

/// A worker's check listener.
pub struct Check {
    front: Frontend,
    limiter: Rc<Limiter>,
    generations: Generations,
    complaints: Throttle,
}

/// How a request is charged.
#[derive(Clone, Copy)]
struct Charging {
    mode: Mode,
    /// `None` for the limits' own.
    cost: Option<u64>,
    can_accept: bool,
}

/// What a target of this listener asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked<'a> {
    /// By Envoy: what follows `/envoy`.
    Envoy(&'a str),
    Nginx,
    Forward,
    Haproxy,
    Json,
    Openapi,
}

/// An answer, and as what it is counted.
type Answer = (Reply, CheckResult);

impl Check {
    /// A check listener.
    pub fn new(limiter: Rc<Limiter>, options: &CheckOptions) -> Rc<Self> {
        let front = Frontend::new(&options.front, HttpListener::Check, limiter.shared());
        Rc::new(Self { front, limiter, generations: options.generations, complaints: Throttle::default() })
    }

    /// Serves a gateway's connection to its end. When `drain` is cancelled, what runs is answered, and one more request
    /// that was on its way.
    pub async fn serve_connection(self: Rc<Self>, stream: Stream, peer: IpAddr, drain: CancellationToken) {
        connections::serve(self, stream, peer, drain).await;
    }

    /// Tells the metrics what was timed. To be called about once a second.
    pub fn reap(&self) {
        self.front.flush();
    }

    /// Answers a gateway that asks about a request of its client.
    async fn answer_gateway(
        &self,
        convention: Convention,
        rest: &str,
        context: &Context,
        request: &mut Request,
        passage: &mut Passage,
    ) -> Reply {
        forwarding::strip_named(&mut request.headers);
        let is_grpc = request.headers.is_grpc();
        let server = &self.front.server;
        let (trusted, slashes) = (&server.trusted_proxies, server.limits.escaped_slashes);
        let original = match convention {
            Convention::Envoy => Original::envoy(request, rest, trusted, slashes),
            Convention::Nginx => Original::nginx(&request.headers, trusted, slashes),
            _ => Original::forward(&request.headers, trusted, slashes),
        };
        let ruling = match original {
            Ok(original) => {
                // Where any 2xx lets pass, one that says "accepted" would be a request that is done twice.
                let can_accept = matches!(convention, Convention::Envoy | Convention::Nginx);
                let charging = Charging { mode: Mode::Spend, cost: None, can_accept };
                self.decide(&original, &mut request.headers, charging, context, passage).await
            }
            Err(unusable) => Err(unusable),
        };
        let (reply, result) = match ruling {
            Ok(ruling) => answer::to_gateway(&ruling, self.generations),
            Err(Unusable::Client(reason)) => (problem(StatusCode::BAD_REQUEST, &reason), CheckResult::Malformed),
            Err(unusable) => {
                self.complain(convention, &unusable);
                self.count(convention, CheckResult::Misconfigured);
                return problem(StatusCode::BAD_REQUEST, &format!("the gateway's configuration is wrong: {unusable}"));
            }
        };
        self.count(convention, result);
        match convention {
            Convention::Nginx => answer::for_nginx(reply),
            Convention::Envoy if is_grpc => answer::for_envoy_and_grpc(reply),
            _ => reply,
        }
    }

    /// Decides a request, whose headers become those of the original. The error is the client's or the gateway's.
    async fn decide(
        &self,
        original: &Original,
        headers: &mut Headers,
        Charging { mode, cost, can_accept }: Charging,
        context: &Context,
        passage: &mut Passage,
    ) -> Result<Ruling, Unusable> {
        if headers.text("host") != Some(&original.authority) {
            headers.set("host", &original.authority);
        }
        let underscores = self.front.server.client_headers.underscores;
        underscores.fold(headers).map_err(|reason| Unusable::Client(reason.into()))?;
        let (path, query) = target::split(&original.target);
        let path = path::normalise(path);
        if original.client.is_none()
            && let Some(limit) = self.limiter.view().rules().needs_client()
        {
            let reason = format!("nothing says the client's address, and {} goes by it", limit.name);
            return Err(Unusable::Gateway(reason));
        }
        if original.client.is_some_and(|client| client.is_disputed) {
            self.limiter.shared().metrics().listeners.client_conflicts.inc(DecisionListener::Check.label());
        }
        let view = request::Request {
            method: &original.method,
            host: &original.host,
            path: &path,
            query,
            headers,
            client: original.client.map(|client| client.address),
            tls_subject: None,
            domain: None,
            descriptor: &[],
            now: self.front.clock.now(),
        };
        let start = context.activity.now();
        let ask = Ask::new(AskSubject::Request(&view), DecisionListener::Check, start);
        let ruling = self.limiter.decide(Ask { mode, cost, can_accept, can_probe: true, ..ask }).await;
        let ruling = ruling.map_err(|error| match error {
            AskError::Accept(_) => Unusable::Gateway(error.to_string()),
            _ => Unusable::Client(error.to_string().into()),
        })?;
        passage.decided(&ruling, start, Some(&view));
        context.ready_to_answer().await;
        Ok(ruling)
    }

    /// Answers an application. The error is an answer that no call was made by.
    async fn answer_application(
        &self,
        context: &Context,
        request: &mut Request,
        passage: &mut Passage,
    ) -> Result<Answer, Failure> {
        if !answer::is_json(&request.headers) {
            let detail = "the body of a call is JSON: send `Content-Type: application/json`";
            return Ok((problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail), CheckResult::Malformed));
        }
        let text = body::read(&mut request.body, &context.activity).await?;
        let ruling = match call::parse(&text) {
            Ok(call) => self.decide_call(call, context, passage).await,
            Err(mistakes) => Err(mistakes),
        };
        Ok(match ruling {
            Ok(ruling) => answer::to_application(&ruling, self.generations),
            Err(mistakes) => (answer::mistaken(&mistakes), CheckResult::Malformed),
        })
    }

    async fn decide_call(&self, call: Call, context: &Context, passage: &mut Passage) -> Result<Ruling, Vec<Mistake>> {
        match call.subject {
            Subject::Named { charges, in_list } => {
                let (now, start) = (self.front.clock.now(), context.activity.now());
                let ask = Ask::new(AskSubject::Named { charges: &charges, now }, DecisionListener::Check, start);
                let ruling = self.limiter.decide(Ask { mode: call.mode, ..ask }).await;
                let ruling = ruling.map_err(|error| vec![Mistake::of_ask(&error, in_list)])?;
                passage.decided(&ruling, start, None);
                context.ready_to_answer().await;
                Ok(ruling)
            }
            Subject::Request { mut request, cost } => {
                let wrong = |unusable: Unusable| vec![Mistake::new("/request", &unusable.to_string())];
                let original =
                    Original::described(&request, self.front.server.limits.escaped_slashes).map_err(wrong)?;
                let charging = Charging { mode: call.mode, cost, can_accept: true };
                self.decide(&original, &mut request.headers, charging, context, passage).await.map_err(wrong)
            }
        }
    }

    fn count(&self, convention: Convention, result: CheckResult) {
        self.limiter.shared().metrics().listeners.check_requests[convention as usize][result as usize].inc();
    }

    /// Tells the operator what the gateway's operator has to mend.
    fn complain(&self, convention: Convention, unusable: &Unusable) {
        if let Some(suppressed) = self.complaints.pass() {
            let reason = match self.limiter.shared().denial_log.ids {
                IdFormat::Clear => unusable.to_string(),
                IdFormat::Hash | IdFormat::None => unusable.hidden(),
            };
            tracing::warn!(convention = convention.label(), suppressed, "a gateway asks wrongly: {reason}");
        }
    }
}

impl Service for Check {
    type Exchange = Passage;

    fn server(&self) -> &Server {
        &self.front.server
    }

    fn begin(&self, context: &Context, request: &Request) -> Passage {
        self.front.begin(context, request)
    }

    async fn answer(&self, context: &Context, mut request: Request, passage: &mut Passage) -> Response {
        let asked_for = std::mem::take(&mut request.target);
        let (convention, rest) = match asked(&asked_for) {
            Some(Asked::Envoy(rest)) => (Convention::Envoy, rest),
            Some(Asked::Nginx) => (Convention::Nginx, ""),
            Some(Asked::Forward) => (Convention::Forward, ""),
            Some(Asked::Haproxy) => (Convention::Haproxy, ""),
            Some(Asked::Json) if request.method == Method::POST => {
                return match self.answer_application(context, &mut request, passage).await {
                    Ok((reply, result)) => {
                        self.count(Convention::Json, result);
                        self.front.own(reply)
                    }
                    Err(failure) => {
                        self.count(Convention::Json, CheckResult::Malformed);
                        self.front.failed(&failure)
                    }
                };
            }
            other => return self.front.own(answer::elsewhere(other.as_ref(), &request.method)),
        };
        let reply = self.answer_gateway(convention, rest, context, &mut request, passage).await;
        self.front.own(reply)
    }

    fn rejected(&self, context: &Context, version: Version, error: HeadError, response: &Response) {
        self.front.rejected(context, version, error, response);
    }
}

/// What is asked for; Caddy puts the original query behind our path, and it means nothing there.
fn asked(target: &str) -> Option<Asked<'_>> {
    if let Some(rest) = target.strip_prefix("/envoy")
        && (rest.is_empty() || rest.starts_with(['/', '?', '*']))
    {
        return Some(Asked::Envoy(rest));
    }
    match target::split(target).0 {
        "/nginx" => Some(Asked::Nginx),
        "/forward" => Some(Asked::Forward),
        "/haproxy" => Some(Asked::Haproxy),
        "/json" => Some(Asked::Json),
        "/openapi.json" => Some(Asked::Openapi),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_convention_has_its_path() {
        for (target, expected) in [
            ("/envoy/x%2f?q=1", Some(Asked::Envoy("/x%2f?q=1"))),
            ("/envoy//", Some(Asked::Envoy("//"))),
            ("/envoy", Some(Asked::Envoy(""))),
            ("/envoy?q", Some(Asked::Envoy("?q"))),
            ("/envoy*", Some(Asked::Envoy("*"))),
            ("/envoyx", None),
            ("/nginx", Some(Asked::Nginx)),
            ("/nginx/", None),
            ("/forward?q=1&/json", Some(Asked::Forward)),
            ("/haproxy", Some(Asked::Haproxy)),
            ("/json", Some(Asked::Json)),
            ("/openapi.json", Some(Asked::Openapi)),
            ("/Nginx", None),
            ("/%6eginx", None),
            ("/", None),
            ("*", None),
            ("", None),
        ] {
            assert_eq!(asked(target), expected, "{target}");
        }
    }
}
