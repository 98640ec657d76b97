//! The check listener: gateways and applications ask over HTTP whether a request is allowed.
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

use std::rc::Rc;

use http::{Method, StatusCode};

use self::call::{Call, Subject};
use self::original::{GatewayReader, InvalidRequest, Original};
use crate::engine::algorithms::charge::Mode;
use crate::engine::algorithms::reservation::Reservation;
use crate::engine::charging::terms::Intent;
use crate::engine::deciding::{DecisionSubject, InvalidSubject};
use crate::engine::request;
use crate::http::Context;
use crate::http::Server;
use crate::http::message::{Request, Response};
use crate::limiter::{DecisionRequest, Limiter, LimiterVerdict, Patience};
use crate::listeners::client_address::client_address;
use crate::listeners::http::failure::Failure;
use crate::listeners::http::{ActiveRequest, Frontend, FrontendOptions, HttpService, body};
use crate::listeners::json::Mistake;
use crate::listeners::replies::method_not_allowed;
use crate::message::client_headers::strip_named;
use crate::message::headers::Headers;
use crate::message::reply::{Reply, problem};
use crate::message::target;
use crate::telemetry::denials::IdFormat;
use crate::telemetry::metrics::{CheckResult, Convention, DecisionListener, ListenerKind};
use crate::telemetry::throttle::Throttle;

mod answer;
mod call;
mod original;
#[cfg(any(test, fuzzing))]
pub mod properties;

/// The `OpenAPI` 3.1 description of `/json`.
const OPENAPI: &str = include_str!("openapi.json");

/// The longest body of a call: 32 charges whose ids are URLs of 2 KB.
const MAX_BODY: usize = 64 * 1024;

/// A worker's check listener.
pub struct Check {
    pub(super) front: Frontend,
    log: Throttle,
}

/// The charge for a request.
#[derive(Clone, Copy)]
struct Charge {
    mode: Mode,
    reservation: Option<Reservation>,
    /// `None` for the limits' own.
    cost: Option<u64>,
    can_accept: bool,
    patience: Patience,
}

/// A reply with the result that it counts as.
type CheckAnswer = (Reply, CheckResult);

impl Check {
    pub fn new(limiter: Rc<Limiter>, options: &FrontendOptions) -> Rc<Self> {
        let front = Frontend::new(options, ListenerKind::Check, limiter);
        Rc::new(Self { front, log: Throttle::default() })
    }

    /// Answers a gateway about a client's request. `rest` is the part of the target after `/envoy`.
    async fn answer_gateway(
        &self,
        convention: Convention,
        rest: &str,
        context: &Context,
        request: &mut Request,
        active: &mut ActiveRequest,
    ) -> CheckAnswer {
        strip_named(&mut request.headers);
        let is_grpc = request.headers.is_grpc();
        let reader = GatewayReader { headers: &request.headers, trusted: &self.front.server.trusted_proxies };
        let original = match convention {
            Convention::Envoy => reader.envoy(request.method.as_str(), rest),
            Convention::Nginx => reader.nginx(),
            _ => reader.forward(),
        };
        let decided = match original {
            Ok(original) => {
                // The other gateways would forward a request that a queue has accepted, and it would be done twice.
                let can_accept = matches!(convention, Convention::Envoy | Convention::Nginx);
                let patience = self.front.limiter.patience(None);
                let charge = Charge { mode: Mode::Spend, reservation: None, cost: None, can_accept, patience };
                self.decide(&original, &mut request.headers, charge, context, active).await
            }
            Err(error) => Err(error),
        };
        let (reply, result) = match decided {
            Ok(decided) => answer::to_gateway(&decided, self.front.generations),
            Err(InvalidRequest::Client(reason)) => (problem(StatusCode::BAD_REQUEST, &reason), CheckResult::Malformed),
            Err(error) => {
                self.log_misconfiguration(convention, &error);
                let detail = format!("the gateway's configuration is wrong: {error}");
                return (problem(StatusCode::BAD_REQUEST, &detail), CheckResult::Misconfigured);
            }
        };
        let reply = match convention {
            Convention::Nginx => answer::for_nginx(reply),
            Convention::Envoy if result == CheckResult::Denied => answer::for_envoy(reply, is_grpc),
            Convention::Haproxy if result == CheckResult::Denied => answer::for_haproxy(reply, is_grpc),
            _ => reply,
        };
        (reply, result)
    }

    /// Decides a request. `headers` become those of the original.
    async fn decide(
        &self,
        original: &Original,
        headers: &mut Headers,
        Charge { mode, reservation, cost, can_accept, patience }: Charge,
        context: &Context,
        active: &mut ActiveRequest,
    ) -> Result<LimiterVerdict, InvalidRequest> {
        let Server { client_headers, limits, .. } = &self.front.server;
        let incoming = original.incoming(headers, client_headers.underscores, limits.escaped_slashes);
        let received = incoming.read().map_err(|reason| InvalidRequest::Client(reason.into()))?;
        if original.client.is_none()
            && let Some(limit) = self.front.limiter.view().rules().needs_client()
        {
            let reason = format!("the client's address is missing, and {} needs it", limit.name);
            return Err(InvalidRequest::Gateway(reason));
        }
        let client = client_address(&self.front.limiter, DecisionListener::Check, original.client);
        let view = request::Request { client, now: self.front.clock.now(), ..received.request() };
        let asked =
            DecisionRequest::new(DecisionSubject::Request(&view), DecisionListener::Check, context.activity.now());
        let intent = Intent { mode, cost, can_probe: true };
        let asked = DecisionRequest { intent, reservation, can_accept, patience, ..asked };
        active.decide(&self.front.limiter, asked, context).await.map_err(|error| match error {
            InvalidSubject::Accept(_) => InvalidRequest::Gateway(error.to_string()),
            _ => InvalidRequest::Client(error.to_string().into()),
        })
    }

    /// Answers an application.
    async fn answer_application(
        &self,
        context: &Context,
        request: &mut Request,
        active: &mut ActiveRequest,
    ) -> Result<CheckAnswer, Failure> {
        if !answer::is_json(&request.headers) {
            let detail = "a call must be JSON: send `Content-Type: application/json`";
            return Ok((problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail), CheckResult::Malformed));
        }
        let text = body::read(&mut request.body, &context.activity, MAX_BODY).await?;
        let decided = match call::parse(&text) {
            Ok(call) => {
                let (waits, reservation) = (call.max_delay.is_some(), call.reservation);
                self.decide_call(call, context, active).await.map(|decided| (decided, waits, reservation))
            }
            Err(mistakes) => Err(mistakes),
        };
        Ok(match decided {
            Ok((decided, waits, reservation)) => {
                answer::to_application(&decided, waits, reservation, self.front.generations)
            }
            Err(mistakes) => (answer::mistaken(&mistakes), CheckResult::Malformed),
        })
    }

    async fn decide_call(
        &self,
        call: Call,
        context: &Context,
        active: &mut ActiveRequest,
    ) -> Result<LimiterVerdict, Vec<Mistake>> {
        let patience = call.max_delay.map_or_else(|| self.front.limiter.patience(None), Patience::Caller);
        match call.subject {
            Subject::Named { charges, in_list } => {
                let subject = DecisionSubject::Named { charges: &charges, now: self.front.clock.now() };
                let asked = DecisionRequest::new(subject, DecisionListener::Check, context.activity.now());
                let (intent, reservation) = (Intent { mode: call.mode, ..Intent::SPEND }, call.reservation);
                let asked = DecisionRequest { intent, reservation, patience, ..asked };
                let decided = active.decide(&self.front.limiter, asked, context).await;
                decided.map_err(|error| vec![Mistake::of_ask(&error, in_list)])
            }
            Subject::Request { request, cost } => {
                let invalid = |error: InvalidRequest| vec![Mistake::new("/request", &error.to_string())];
                let (original, mut headers) = Original::described(request).map_err(invalid)?;
                let charge =
                    Charge { mode: call.mode, reservation: call.reservation, cost, can_accept: true, patience };
                self.decide(&original, &mut headers, charge, context, active).await.map_err(invalid)
            }
        }
    }

    fn log_misconfiguration(&self, convention: Convention, error: &InvalidRequest) {
        if let Some(suppressed) = self.log.pass() {
            let reason = match self.front.limiter.shared().denial_log.ids {
                IdFormat::Clear => error.to_string(),
                IdFormat::Hash | IdFormat::None => error.without_value(),
            };
            tracing::warn!(convention = convention.label(), suppressed, "a gateway's configuration is wrong: {reason}");
        }
    }
}

impl HttpService for Check {
    fn front(&self) -> &Frontend {
        &self.front
    }

    async fn respond(&self, context: &Context, request: &mut Request, active: &mut ActiveRequest) -> Response {
        let target = std::mem::take(&mut request.target);
        let Some((convention, rest)) = convention(&target) else {
            return self.front.own(answer::page(&target, &request.method));
        };
        let answered = match convention {
            Convention::Json if request.method != Method::POST => {
                return self.front.own(method_not_allowed(&request.method, "POST"));
            }
            Convention::Json if is_from_page(&request.headers) => {
                let detail = "a page in a browser may not send this request";
                Ok((problem(StatusCode::FORBIDDEN, detail), CheckResult::Malformed))
            }
            Convention::Json => self.answer_application(context, request, active).await,
            _ => Ok(self.answer_gateway(convention, rest, context, request, active).await),
        };
        let result = answered.as_ref().map_or(CheckResult::Malformed, |(_, result)| *result);
        let requests = &self.front.limiter.shared().metrics().listeners.check_requests;
        requests[convention][result].inc();
        match answered {
            Ok((reply, _)) => self.front.own(reply),
            Err(failure) => self.front.failed(&failure),
        }
    }
}

/// Returns whether a page sent a call. A page may have its own name resolve to this listener's address (DNS rebinding), which
/// makes it the listener's own site. Names in `Host` cannot tell, because applications choose theirs. Browsers name the page
/// with every POST (RFC 6454 section 7.3, Fetch), and applications do not.
pub(super) fn is_from_page(headers: &Headers) -> bool {
    headers.all("origin").any(|origin| origin == b"null" || origin.starts_with(b"http"))
}

/// Returns the convention of a target and, for Envoy, the part after `/envoy`. Caddy adds the original query to our path,
/// where it means nothing.
fn convention(target: &str) -> Option<(Convention, &str)> {
    if let Some(rest) = target.strip_prefix("/envoy")
        && (rest.is_empty() || rest.starts_with(['/', '?', '*']))
    {
        return Some((Convention::Envoy, rest));
    }
    let convention = match target::split(target).0 {
        "/nginx" => Convention::Nginx,
        "/forward" => Convention::Forward,
        "/haproxy" => Convention::Haproxy,
        "/json" => Convention::Json,
        _ => return None,
    };
    Some((convention, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_convention_has_its_path() {
        for (target, expected) in [
            ("/envoy/x%2f?q=1", Some((Convention::Envoy, "/x%2f?q=1"))),
            ("/envoy//", Some((Convention::Envoy, "//"))),
            ("/envoy", Some((Convention::Envoy, ""))),
            ("/envoy?q", Some((Convention::Envoy, "?q"))),
            ("/envoy*", Some((Convention::Envoy, "*"))),
            ("/envoyx", None),
            ("/nginx", Some((Convention::Nginx, ""))),
            ("/nginx/", None),
            ("/forward?q=1&/json", Some((Convention::Forward, ""))),
            ("/haproxy", Some((Convention::Haproxy, ""))),
            ("/json", Some((Convention::Json, ""))),
            ("/openapi.json", None),
            ("/Nginx", None),
            ("/%6eginx", None),
            ("/", None),
            ("*", None),
            ("", None),
        ] {
            assert_eq!(convention(target), expected, "{target}");
        }
    }
}
