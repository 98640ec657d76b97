//! The HTTP listeners of envoyproxy/ratelimit: one for probes and calls in JSON, one for its rules as text. They have these paths
//! alone, because they are open to everybody.

use std::fmt::Write as _;
use std::rc::Rc;

use http::{Method, StatusCode};

use super::admin::{Phase, Readiness};
use super::grpc::{Envoy, EnvoyOptions};
use super::http::failure::Failure;
use super::http::{ActiveRequest, Frontend, HttpService, body};
use super::http_check::is_from_page;
use super::replies::method_not_allowed;
use crate::engine::limit::matching::ValueTest;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode};
use crate::engine::request::part::Part;
use crate::http::Context;
use crate::http::message::{Request, Response};
use crate::limiter::Limiter;
use crate::message::headers::Headers;
use crate::message::reply::{Reply, problem};
use crate::message::target;
use crate::telemetry::metrics::ListenerKind;

/// The longest body of a call.
const MAX_BODY: usize = 64 * 1024;

const PLAIN: &str = "text/plain; charset=utf-8";

/// The options of one of the two listeners.
#[derive(Clone, Debug)]
pub struct EnvoyRatelimitOptions {
    pub envoy: EnvoyOptions,
    /// True for the rules, false for probes.
    pub is_debug: bool,
}

/// A worker's listener.
pub struct EnvoyRatelimit {
    pub(super) front: Frontend,
    envoy: Rc<Envoy>,
    is_debug: bool,
}

impl EnvoyRatelimit {
    pub fn new(limiter: Rc<Limiter>, options: &EnvoyRatelimitOptions) -> Rc<Self> {
        let front = Frontend::new(&options.envoy.front, ListenerKind::Check, limiter.clone());
        Rc::new(Self { front, envoy: Envoy::new(limiter, &options.envoy), is_debug: options.is_debug })
    }

    async fn answer(
        &self,
        path: &str,
        context: &Context,
        request: &mut Request,
        active: &mut ActiveRequest,
    ) -> Result<Reply, Failure> {
        let is_get = matches!(request.method, Method::GET | Method::HEAD);
        Ok(match path {
            "/json" if request.method != Method::POST => method_not_allowed(&request.method, "POST"),
            "/json" if is_from_page(&request.headers) => {
                problem(StatusCode::FORBIDDEN, "a page in a browser may not send this request")
            }
            "/json" => {
                let text = body::read(&mut request.body, &context.activity, MAX_BODY).await?;
                match self.envoy.answer_json(&text, context, active).await {
                    Ok(answer) if answer.is_over_limit => {
                        reply(StatusCode::TOO_MANY_REQUESTS, "application/json", answer.text)
                    }
                    Ok(answer) => reply(StatusCode::OK, "application/json", answer.text),
                    Err(reason) => problem(StatusCode::BAD_REQUEST, &reason),
                }
            }
            "/healthcheck" if !self.is_debug && is_get => health(self.envoy.readiness()),
            "/rlconfig" if self.is_debug && is_get => {
                reply(StatusCode::OK, PLAIN, text_of(self.front.limiter.view().rules()))
            }
            "/healthcheck" | "/rlconfig" if !is_get => method_not_allowed(&request.method, "GET"),
            _ if self.is_debug => problem(StatusCode::NOT_FOUND, "there are /rlconfig and /json"),
            _ => problem(StatusCode::NOT_FOUND, "there are /healthcheck and /json"),
        })
    }
}

impl HttpService for EnvoyRatelimit {
    fn front(&self) -> &Frontend {
        &self.front
    }

    async fn respond(&self, context: &Context, request: &mut Request, active: &mut ActiveRequest) -> Response {
        let target = std::mem::take(&mut request.target);
        match self.answer(target::split(&target).0, context, request, active).await {
            Ok(reply) => self.front.own(reply),
            Err(failure) => self.front.failed(&failure),
        }
    }
}

fn reply(status: StatusCode, content_type: &str, body: String) -> Reply {
    Reply { status, headers: Headers::from_iter([("content-type", content_type), ("cache-control", "no-store")]), body }
}

fn health(readiness: &Readiness) -> Reply {
    match readiness.phase() {
        Phase::Serving => reply(StatusCode::OK, PLAIN, "OK".to_owned()),
        Phase::Starting => reply(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "starting".to_owned()),
        Phase::Draining => reply(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "draining".to_owned()),
    }
}

/// Returns a line for each limit of a descriptor.
fn text_of(rules: &Rules) -> String {
    let mut text = String::new();
    for limit in rules.limits() {
        let Some(rule) = limit.rule.as_deref() else { continue };
        let unit = rule.per_unit.map_or("unknown", |per_unit| per_unit.unit.name()).to_ascii_uppercase();
        let requests = rule.per_unit.map_or(0, |per_unit| per_unit.requests);
        let is_shadow = limit.mode == LimitMode::Shadow;
        let _ = writeln!(text, "{}: unit={unit} requests_per_unit={requests}, shadow_mode: {is_shadow}", key_of(limit));
    }
    text
}

/// Returns the domain and the keys, each with its value, as statistics of envoyproxy/ratelimit name them.
fn key_of(limit: &Limit) -> String {
    let mut text = limit.conditions.domains.first().cloned().unwrap_or_default();
    for wanted in &limit.conditions.parts {
        if let Part::Entry { key, .. } = &wanted.part {
            text.extend([".", key]);
        }
        match &wanted.test {
            ValueTest::Value(value) => text.extend(["_", value]),
            ValueTest::Glob(glob) => text.extend(["_", &glob.to_string()]),
            _ => {}
        }
    }
    text
}
