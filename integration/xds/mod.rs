//! Limits that a management server pushes by xDS.

mod handover;
pub(crate) mod management_server;
mod pushes;
mod resources;
mod starting;

use std::fs;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor as Descriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, UInt64Value};
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};
use prost::{Message as _, Name as _};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::Value as Json;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use self::management_server::ManagementServer;
use crate::support::certificates::Authority;
use crate::support::weir::Weir;
use crate::support::{becomes, eventually};

const NODE: &str = "envoy-ratelimit";

/// A client of the rate limit service.
struct Client {
    service: RateLimitServiceClient<Channel>,
    runtime: Runtime,
}

impl Client {
    fn of(weir: &Weir) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{}", weir.listener("grpc"))).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        Self { service: RateLimitServiceClient::new(channel), runtime }
    }

    /// Asks about descriptors, `key=value,key=value`, and returns whether the request may pass.
    fn ask(&mut self, domain: &str, descriptors: &[impl AsRef<str>], hits: Option<u64>) -> bool {
        self.try_ask(domain, descriptors, hits).unwrap()
    }

    fn try_ask(
        &mut self,
        domain: &str,
        descriptors: &[impl AsRef<str>],
        hits: Option<u64>,
    ) -> Result<bool, tonic::Status> {
        let entry = |entry: &str| {
            let (key, value) = entry.split_once('=').unwrap();
            Entry { key: key.to_owned(), value: value.to_owned() }
        };
        let descriptor = |text: &str| Descriptor {
            entries: text.split(',').map(entry).collect(),
            hits_addend: hits.map(|value| UInt64Value { value }),
            ..Descriptor::default()
        };
        let descriptors = descriptors.iter().map(|text| descriptor(text.as_ref())).collect();
        let request = RateLimitRequest { domain: domain.to_owned(), descriptors, ..RateLimitRequest::default() };
        let response = self.runtime.block_on(self.service.should_rate_limit(request))?;
        Ok(response.into_inner().overall_code() == Code::Ok)
    }

    fn passes(&mut self, domain: &str, descriptor: &str) -> bool {
        self.ask(domain, &[descriptor], None)
    }

    /// The number of requests that pass, of ten.
    fn passing(&mut self, domain: &str, descriptor: &str) -> usize {
        (0..10).filter(|_| self.passes(domain, descriptor)).count()
    }
}

/// A process whose limits come from this server alone.
fn serve(server: &str, flags: &[&str]) -> Weir {
    Weir::serve("", &[&["--xds-node-id", NODE, "--xds-server", server, "--grpc", "127.0.0.1:0"], flags].concat())
}

fn policy(requests_per_unit: u32, unit: RateLimitUnit) -> RateLimitPolicy {
    RateLimitPolicy { requests_per_unit, unit: unit.into(), ..RateLimitPolicy::default() }
}

pub(crate) fn descriptor(key: &str, value: &str, requests_per_hour: u32) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        rate_limit: Some(policy(requests_per_hour, RateLimitUnit::Hour)),
        ..RateLimitDescriptor::default()
    }
}

pub(crate) fn config(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig { name: format!("of-{domain}"), domain: domain.to_owned(), descriptors }
}

fn ready(weir: &Weir) -> (u16, Json) {
    let page = weir.admin("/readyz");
    (page.status(), serde_json::from_str(page.text()).unwrap())
}

#[test]
fn pushed_limits_are_in_force_until_others_come_and_an_empty_list_removes_all() {
    let server = ManagementServer::start();
    server.set(
        NODE,
        "1",
        &[config("web", vec![descriptor("user", "", 3)]), config("api", vec![descriptor("user", "ann", 1)])],
    );
    let weir = serve(&server.url(), &["--xds-node-metadata=zone=a,rack=7", "--xds-header=x-token: s3cret"]);
    let mut client = Client::of(&weir);
    assert_eq!(client.passing("web", "user=ann"), 3);
    assert_eq!(client.passing("api", "user=ann"), 1);
    assert_eq!(client.passing("api", "user=bob"), 10);
    server.until_accepted("1");
    assert_eq!(ready(&weir), (200, serde_json::json!({ "status": "ready", "store": "up", "config": "ok" })));

    server.set(NODE, "2", &[config("api", vec![descriptor("user", "ann", 5)])]);
    server.until_accepted("2");
    // What was used stays used.
    assert_eq!((client.passing("api", "user=ann"), client.passing("web", "user=ann")), (4, 10));

    server.set(NODE, "3", &[]);
    server.until_accepted("3");
    assert_eq!(client.passing("api", "user=ann"), 10);
    assert_eq!(weir.metric("weir_xds_updates_total{result=\"accepted\"}"), 3);
    assert_eq!(weir.metric("weir_xds_connected"), 1);

    let first = server.requests().remove(0);
    let node = first.node.unwrap();
    let metadata = node.metadata.unwrap();
    let texts = ["zone", "rack"].map(|key| metadata.fields[key].kind.clone());
    assert_eq!(texts, ["a", "7"].map(|text| Some(Kind::StringValue(text.to_owned()))));
    assert_eq!((first.version_info.as_str(), first.response_nonce.as_str()), ("", ""));
    assert_eq!((node.id.as_str(), first.type_url), (NODE, RateLimitConfig::type_url()));
    assert_eq!(server.header("x-token").as_deref(), Some("s3cret"));
}

/// A resource with a mistake, and what the rejection says about it.
fn broken() -> Vec<(Vec<Any>, &'static str)> {
    let any = |config: RateLimitConfig| Any { type_url: RateLimitConfig::type_url(), value: config.encode_to_vec() };
    let one = |descriptor: RateLimitDescriptor| vec![any(config("api", vec![descriptor]))];
    let with =
        |policy: RateLimitPolicy| one(RateLimitDescriptor { rate_limit: Some(policy), ..descriptor("user", "", 1) });
    let good = || any(config("good", vec![descriptor("user", "", 1)]));
    let replace = |name: &str| vec![RateLimitReplace { name: name.to_owned() }];
    let mut deep = descriptor("user", "", 1);
    for _ in 0..60 {
        deep = RateLimitDescriptor { descriptors: vec![deep], ..descriptor("user", "", 1) };
    }
    vec![
        (
            vec![Any { type_url: "type.googleapis.com/google.protobuf.Struct".into(), value: Vec::new() }],
            "resource 1 has the type",
        ),
        (
            vec![good(), Any { type_url: RateLimitConfig::type_url(), value: vec![0xff, 0xff] }],
            "resource 2 is not a RateLimitConfig",
        ),
        (vec![any(config("", vec![descriptor("user", "", 1)]))], "domain"),
        (one(descriptor("", "", 1)), "the key is empty"),
        (with(policy(1, RateLimitUnit::Unknown)), "unknown unit `unknown`"),
        (with(RateLimitPolicy { unit: 9, ..policy(1, RateLimitUnit::Hour) }), "unknown unit `9`"),
        (
            with(RateLimitPolicy { unlimited: true, ..policy(1, RateLimitUnit::Hour) }),
            "`unlimited: true` and `unit` cannot be combined",
        ),
        (with(RateLimitPolicy { name: "a\"b".into(), ..policy(1, RateLimitUnit::Hour) }), "would break a header"),
        (
            with(RateLimitPolicy { name: "a".into(), replaces: replace("a"), ..policy(1, RateLimitUnit::Hour) }),
            "`a` replaces itself",
        ),
        (with(RateLimitPolicy { replaces: replace(""), ..policy(1, RateLimitUnit::Hour) }), "needs `name`"),
        (
            vec![any(config("api", vec![descriptor("user", "ann", 1), descriptor("user", "ann", 2)]))],
            "duplicate descriptor `user=ann`",
        ),
        (vec![any(config("api", vec![deep]))], "nested"),
    ]
}

#[test]
fn broken_resources_are_rejected_with_the_reason_and_the_last_good_ones_stay() {
    let server = ManagementServer::start();
    let good = |number: usize| {
        server.set(NODE, &format!("good-{number}"), &[config("api", vec![descriptor("user", "", 3)])]);
        format!("good-{number}")
    };
    good(0);
    let weir = serve(&server.url(), &[]);
    let mut client = Client::of(&weir);
    for (number, (resources, expected)) in broken().into_iter().enumerate() {
        // Without it, the next rejection would come later than this one.
        let last_good = good(number);
        server.until_accepted(&last_good);
        server.set_any(NODE, &format!("broken-{number}"), resources);
        assert_eq!(server.until_rejected(expected), last_good, "{expected}");
        let (status, page) = ready(&weir);
        let shown = page["xds_error"].as_str().unwrap();
        assert!(status == 200 && page["status"] == "degraded" && shown.contains(expected), "{page}");
        assert_eq!(client.passing("api", &format!("user={number}")), 3, "{expected}");
    }
    let rejected = weir.metric("weir_xds_updates_total{result=\"rejected\"}");
    server.set(NODE, "mended", &[config("api", vec![descriptor("user", "", 5)])]);
    server.until_accepted("mended");
    assert_eq!((client.passing("api", "user=zoe"), ready(&weir).1["status"].as_str()), (5, Some("ready")));
    assert_eq!(weir.metric("weir_xds_updates_total{result=\"accepted\"}"), 13);
    assert!(rejected >= 12, "{rejected}");
}

/// The server answers each rejection with the same version at once.
#[test]
fn a_version_that_stays_broken_is_not_asked_for_in_a_loop() {
    let server = ManagementServer::start();
    server.set(NODE, "broken", &[config("", Vec::new())]);
    let weir = serve(&server.url(), &["--xds-optional"]);
    // The start has waited 5 s for a good one. Before the sixth rejection, the client waits 2 s.
    let rejected = weir.metric("weir_xds_updates_total{result=\"rejected\"}");
    assert!((2..20).contains(&rejected), "{rejected}");
    // One line for all of them.
    assert_eq!(weir.log().matches("rejecting the management server's configuration").count(), 1);
}

#[test]
fn a_process_waits_for_a_server_that_does_not_know_its_node_and_tells() {
    let server = ManagementServer::start();
    server.set("another", "1", &[]);
    let weir = serve(&server.url(), &[]);
    let (status, page) = ready(&weir);
    let expected =
        format!("{} has sent no configuration for the node `{NODE}` yet; does it know this id?", server.url());
    assert_eq!(
        (status, page["status"].as_str(), page["xds_error"].as_str()),
        (503, Some("starting"), Some(&*expected))
    );
    assert_eq!((weir.metric("weir_xds_connected"), weir.metric("weir_xds_silent")), (1, 0));
    // Envoy decides whether requests pass without an answer.
    let refused = Client::of(&weir).try_ask("api", &["user=ann"], None).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("no configuration"), "{refused}");
    becomes("silent", 1, || weir.metric("weir_xds_silent"));
    server.set(NODE, "1", &[config("api", vec![descriptor("user", "", 3)])]);
    server.until_accepted("1");
    becomes("ready", 200, || ready(&weir).0);
    assert_eq!((Client::of(&weir).passing("api", "user=ann"), weir.metric("weir_xds_silent")), (3, 0));

    let flags = ["--xds-node-id", "third", "--xds-server", &server.url(), "--xds-optional", "--grpc", "127.0.0.1:0"];
    let optional = Weir::serve("", &flags);
    let (status, page) = ready(&optional);
    assert_eq!((status, page["status"].as_str()), (200, Some("degraded")));
    let refused = Client::of(&optional).try_ask("api", &["user=ann"], None).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    server.set("third", "1", &[config("api", vec![descriptor("user", "", 3)])]);
    becomes("an answer", true, || Client::of(&optional).try_ask("api", &["user=bob"], None).is_ok());
    assert_eq!(Client::of(&optional).passing("api", "user=ann"), 3);
}

/// In TLS 1.3, the handshake of the client succeeds without the certificate that the server wants. The server's alert is lost if
/// the connection is reset before the client reads it, so only the advice is certain.
#[test]
fn a_server_that_refuses_the_connection_is_told_with_what_to_check() {
    let (authority, config_of_server) = certificates();
    let server = ManagementServer::start_with(Some(config_of_server));
    let port = server.address.port();
    let ca = authority.path("ca.pem");
    let refused = |url: String, flags: &[&str], parts: &[&str]| {
        let weir = serve(&url, flags);
        eventually("the reason", || {
            let page = ready(&weir).1;
            let error = page["xds_error"].as_str().unwrap_or_default();
            parts.iter().all(|part| error.contains(part)).then_some(()).ok_or(page)
        });
    };
    let closed = "the server closed the connection before it answered";
    let url = format!("https://localhost:{port}");
    refused(url, &["--xds-ca", ca.to_str().unwrap()], &[closed, "check --xds-cert"]);
    refused(format!("http://localhost:{port}"), &[], &[closed, "https://"]);
}

#[test]
fn a_stream_that_ends_resumes_at_the_accepted_version() {
    let server = ManagementServer::start();
    server.set(NODE, "1", &[config("api", vec![descriptor("user", "", 3)])]);
    let weir = serve(&server.url(), &["--xds-backoff", "100ms"]);
    server.until_accepted("1");
    becomes("connected", 1, || weir.metric("weir_xds_connected"));
    for _ in 0..3 {
        let before = server.requests().len();
        server.cut();
        let resumed = eventually("a new stream", || server.requests().get(before).cloned().ok_or(before));
        assert_eq!((resumed.version_info.as_str(), resumed.response_nonce.as_str()), ("1", ""));
        assert_eq!(resumed.node.map(|node| node.id), Some(NODE.to_owned()));
    }
    becomes("ready", Some("ready"), || if ready(&weir).1["status"] == "ready" { Some("ready") } else { None });
    let url = server.url();
    drop(server);
    becomes("disconnected", 0, || weir.metric("weir_xds_connected"));
    let page = ready(&weir).1;
    assert!(
        page["status"] == "degraded" && page["xds_error"].as_str().unwrap().starts_with(&format!("{url}: ")),
        "{page}"
    );
    assert_eq!(Client::of(&weir).passing("api", "user=ann"), 3);
}

/// A local file that does not fit holds pushes back until it is mended, and is named.
#[test]
fn limits_of_the_server_and_of_a_rules_file_are_in_force_together() {
    let server = ManagementServer::start();
    server.set(NODE, "1", &[config("api", vec![descriptor("user", "", 3)])]);
    let limits = "limits: { Local: { match: { domain: local }, by: { descriptor: user }, count: 2, period: 1h } }";
    let flags =
        ["--limits", "limits.yaml", "--xds-node-id", NODE, "--xds-server", &server.url(), "--grpc", "127.0.0.1:0"];
    let weir = Weir::serve(limits, &flags);
    let mut client = Client::of(&weir);
    assert_eq!((client.passing("api", "user=a"), client.passing("local", "user=a")), (3, 2));
    weir.reload(&limits.replace("count: 2", "count: 4"));
    assert_eq!((client.passing("api", "user=b"), client.passing("local", "user=b")), (3, 4));

    std::fs::write(weir.limits_file(), "limits: [").unwrap();
    server.set(NODE, "2", &[config("api", vec![descriptor("user", "", 5)])]);
    assert_eq!(server.until_rejected("limits.yaml:1"), "1");
    assert_eq!((client.passing("api", "user=c"), client.passing("local", "user=c")), (3, 4));
    std::fs::write(weir.limits_file(), limits).unwrap();
    server.until_accepted("2");
    assert_eq!((client.passing("api", "user=d"), client.passing("local", "user=d")), (5, 2));
}

/// The certificates of a management server and its client, which each trusts.
pub(crate) fn certificates() -> (Authority, Arc<ServerConfig>) {
    let authority = Authority::new();
    authority.sign("server", &["localhost"]);
    authority.sign("tls", &["weir"]);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.path("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let chain = vec![CertificateDer::from_pem_file(authority.path("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(authority.path("server.key")).unwrap();
    let config =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let mut config = config.with_client_cert_verifier(clients).with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    (authority, Arc::new(config))
}

/// As in a Kubernetes volume: the files are links into a folder that is swapped as a whole.
pub(crate) fn mount(folder: &Path, authority: &Authority, number: usize) {
    let data = folder.join(number.to_string());
    fs::create_dir(&data).unwrap();
    for (name, of) in [("ca.crt", "ca.pem"), ("tls.crt", "tls.pem"), ("tls.key", "tls.key")] {
        fs::copy(authority.path(of), data.join(name)).unwrap();
        if number == 0 {
            symlink(Path::new("..data").join(name), folder.join(name)).unwrap();
        }
    }
    symlink(&data, folder.join("new")).unwrap();
    fs::rename(folder.join("new"), folder.join("..data")).unwrap();
}

#[test]
fn certificates_rotate_under_load() {
    let (authority, config_of_server) = certificates();
    let server = ManagementServer::start_with(Some(config_of_server));
    let folder = tempfile::tempdir().unwrap();
    mount(folder.path(), &authority, 0);
    server.set(NODE, "0", &[config("api", vec![descriptor("user", "", 1)])]);
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let url = format!("https://localhost:{}", server.address.port());
    let (ca, cert, key) = (file("ca.crt"), file("tls.crt"), file("tls.key"));
    let weir = serve(&url, &["--xds-ca", &ca, "--xds-cert", &cert, "--xds-key", &key, "--xds-backoff", "50ms"]);
    server.until_accepted("0");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut client = Client::of(&weir);
            let mut passed = 0;
            // Each has its own bucket of one.
            for user in 0.. {
                if is_over.load(Ordering::Acquire) {
                    return (passed, user);
                }
                passed += usize::from(client.passes("api", &format!("user={user}")));
            }
            unreachable!()
        });
        for number in 1..=3 {
            let (authority, config_of_server) = certificates();
            server.rotate(config_of_server);
            mount(folder.path(), &authority, number);
            server.cut();
            server.set(NODE, &number.to_string(), &[config("api", vec![descriptor("user", "", 1)])]);
            server.until_accepted(&number.to_string());
        }
        is_over.store(true, Ordering::Release);
        let (passed, asked) = load.join().unwrap();
        assert!(passed == asked && asked > 0, "{passed} of {asked}");
    });
}

#[test]
fn hundreds_of_pushes_of_many_limits_keep_memory_flat() {
    let server = ManagementServer::start();
    let resources = |push: usize| {
        let rules =
            (0..256).map(|rule| descriptor("route", &rule.to_string(), u32::try_from(push + rule + 1).unwrap()));
        [config("api", rules.collect())]
    };
    server.set(NODE, "0", &resources(0));
    let weir = serve(&server.url(), &[]);
    let push = |pushes: Range<usize>| {
        let mut client = Client::of(&weir);
        for number in pushes {
            server.set(NODE, &number.to_string(), &resources(number));
            // Decisions go on while it is compiled.
            while {
                assert!(client.passes("api", "route=none"));
                !server.has_accepted(&number.to_string())
            } {}
        }
    };
    push(1..50);
    let before = weir.resident();
    push(50..300);
    let after = weir.resident();
    // A configuration takes about 1 MiB.
    assert!(after < before + 16 * 1024, "{before} KiB became {after} KiB");
}
