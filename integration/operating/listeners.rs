//! One question, asked at every listener.

use envoy_types::pb::envoy::config::core::v3::address::Address as Kind;
use envoy_types::pb::envoy::config::core::v3::{Address, HeaderValue, SocketAddress};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Peer, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

use crate::support::weir::Weir;
use crate::support::wire::{Message, Wire};

/// The listeners that are asked about an HTTP request.
pub(super) const HTTP: [&str; 6] = ["proxy", "envoy", "forward", "nginx", "json", "ext_authz"];

pub(super) const ALL: [&str; 7] = ["proxy", "envoy", "forward", "nginx", "json", "ext_authz", "rate limit service"];

/// A listener's answer.
#[derive(Debug)]
pub(super) struct Told {
    /// The client's status: 429 if the rate limit service denies, 200 if a gateway would pass the request.
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: String,
    /// The statuses of the rate limit service.
    pub(super) response: Option<RateLimitResponse>,
}

impl Told {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| &value[..])
    }
}

impl From<Message> for Told {
    fn from(message: Message) -> Self {
        let status = message.header("x-ratelimit-status").map_or(message.status(), |status| status.parse().unwrap());
        Self { status, body: message.text().to_owned(), headers: message.headers, response: None }
    }
}

fn pairs(headers: impl IntoIterator<Item = HeaderValue>) -> Vec<(String, String)> {
    headers.into_iter().map(|header| (header.key, header.value)).collect()
}

/// Asks a listener about `GET /` by the address 192.0.2.7, or about the user `bob` in the domain `api`.
pub(super) async fn at_listener(weir: &Weir, listener: &str) -> Told {
    let via =
        |path: &str, headers: &[(&str, &str)]| Wire::connect(weir.listener("check")).get_with(path, headers).into();
    let grpc = || format!("http://{}", weir.listener("grpc"));
    match listener {
        "proxy" => weir.get("/", &[("x-forwarded-for", "192.0.2.7")]).into(),
        "envoy" => via("/envoy/", &[("x-forwarded-for", "192.0.2.7")]),
        "forward" => via(
            "/forward",
            &[
                ("x-forwarded-for", "192.0.2.7"),
                ("x-forwarded-uri", "/"),
                ("x-forwarded-host", "a"),
                ("x-forwarded-method", "GET"),
            ],
        ),
        "nginx" => via(
            "/nginx",
            &[
                ("x-original-uri", "/"),
                ("x-original-method", "GET"),
                ("x-original-host", "a"),
                ("x-real-ip", "192.0.2.7"),
            ],
        ),
        "json" => {
            let body = r#"{"request": {"method": "GET", "url": "http://a/", "ip": "192.0.2.7"}}"#;
            let mut wire = Wire::connect(weir.listener("check"));
            wire.send(format!(
                "POST /json HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ));
            wire.response().into()
        }
        "ext_authz" => authorize(grpc()).await,
        _ => rate_limit(grpc()).await,
    }
}

async fn authorize(url: String) -> Told {
    let socket = SocketAddress { address: "192.0.2.7".to_owned(), ..SocketAddress::default() };
    let address = Some(Address { address: Some(Kind::SocketAddress(socket)) });
    let http = HttpRequest { method: "GET".into(), path: "/".into(), host: "a".into(), ..HttpRequest::default() };
    let attributes = AttributeContext {
        source: Some(Peer { address, ..Peer::default() }),
        request: Some(Request { http: Some(http), ..Request::default() }),
        ..AttributeContext::default()
    };
    let mut client = AuthorizationClient::connect(url).await.unwrap();
    let answer = client.check(CheckRequest { attributes: Some(attributes) }).await.unwrap().into_inner();
    match answer.http_response.unwrap() {
        HttpResponse::DeniedResponse(denied) => Told {
            status: u16::try_from(denied.status.unwrap().code).unwrap(),
            headers: pairs(denied.headers.into_iter().filter_map(|option| option.header)),
            body: denied.body,
            response: None,
        },
        HttpResponse::OkResponse(allowed) => Told {
            status: 200,
            headers: pairs(allowed.response_headers_to_add.into_iter().filter_map(|option| option.header)),
            body: String::new(),
            response: None,
        },
        HttpResponse::ErrorResponse(error) => panic!("{error:?}"),
    }
}

async fn rate_limit(url: String) -> Told {
    let entry = Entry { key: "user".to_owned(), value: "bob".to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let question = RateLimitRequest { domain: "api".to_owned(), descriptors: vec![descriptor], hits_addend: 1 };
    let mut client = RateLimitServiceClient::connect(url).await.unwrap();
    let mut answer = client.should_rate_limit(question).await.unwrap().into_inner();
    Told {
        status: if answer.overall_code == i32::from(Code::OverLimit) { 429 } else { 200 },
        headers: pairs(std::mem::take(&mut answer.response_headers_to_add)),
        body: String::from_utf8(std::mem::take(&mut answer.raw_body)).unwrap(),
        response: Some(answer),
    }
}
