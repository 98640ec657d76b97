//! The program in its container: every listener, every way out, its health, its end.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Output;

use super::container::Container;
use crate::spoe;
use crate::support::programs::client;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;
use crate::support::wire::Wire;
use crate::support::{becomes, eventually};

/// What the clients of the gRPC listener count on.
const LIMITS: &str = "limits: { Three: { by: ip, burst: 3, count: 3, period: 60s } }";

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A line of `/proc/PROCESS/status`.
fn status_line(weir: &Weir, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", weir.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap_or_else(|| panic!("{name} is not in {status}")).trim().to_owned()
}

#[test]
fn every_listener_is_served_with_counts_in_a_redis_of_its_own_authority() {
    let redis = RedisServer::start(&RedisConfig { tls: true, ..RedisConfig::default() });
    let application = Upstream::saying("hello");
    let container = Container::build();
    container.mount("etc/weir/limits.yaml", LIMITS);
    container.mount("etc/hosts", "127.0.0.1 application.internal\n");
    for (name, file) in
        [("ca.pem", redis.ca_file()), ("client.pem", redis.client_cert_file()), ("client.key", redis.client_key_file())]
    {
        container.mount(&format!("etc/weir/redis/{name}"), std::fs::read(file).unwrap());
    }
    let upstream = format!("http://application.internal:{}", application.address.port());
    let listeners = ["--proxy", "--grpc", "--check", "--spoe", "--admin"].map(|listener| [listener, "127.0.0.1:0"]);
    let store = ["--store", &redis.url(), "--store-timeout", "2s", "--store-ca-file", "redis/ca.pem"];
    let identity = ["--store-cert-file", "redis/client.pem", "--store-key-file", "redis/client.key"];
    let own = ["serve", "--upstream", &upstream, "--workers", "1", "--log-format", "json"];
    let mut weir = Weir::launch("", |_| container.start(&[&own, listeners.as_flattened(), &store, &identity].concat()));
    becomes("Redis is there", 1, || weir.metric("weir_store_connections"));

    let proxied = weir.get("/", &[]);
    assert_eq!((proxied.status(), proxied.text()), (200, "hello"));
    assert!(proxied.field("ratelimit").is_some_and(|left| left.starts_with("\"Three\";r=2")), "{proxied:?}");
    let checks = client("envoy_client.py", &[&weir.listener("grpc").to_string()]);
    assert!(checks["passed"].as_array().is_some_and(|passed| passed.len() >= 9), "{checks}");
    let gateway =
        [("x-original-method", "GET"), ("x-original-uri", "/"), ("x-original-host", "a"), ("x-real-ip", "192.0.2.9")];
    let checked = Wire::connect(weir.listener("check")).get_with("/nginx", &gateway);
    assert_eq!(checked.status(), 200, "{checked:?}");
    let mut haproxy = spoe::Peer::connect(weir.listener("spoe"));
    haproxy.greet();
    haproxy.send(&spoe::ask(1, 77));
    assert_eq!(haproxy.answer(), (1, false));
    assert_ne!(redis.cli(&["DBSIZE"]), "0", "the counts are in Redis");

    let (user, groups) = (status_line(&weir, "Uid"), status_line(&weir, "Groups"));
    assert_eq!(status_line(&weir, "CapEff"), "0000000000000000");
    assert_eq!(status_line(&weir, "NoNewPrivs"), "1");
    if rustix::process::geteuid().is_root() {
        assert_eq!((user.as_str(), groups.as_str()), ("65532\t65532\t65532\t65532", ""));
    }
    let admin = format!("0.0.0.0:{}", weir.admin.port());
    eventually("it is well", || {
        let health = container.check_health(&admin);
        if (health.status.code(), text(&health).as_str()) == (Some(0), "ready\n") { Ok(()) } else { Err(health) }
    });
    weir.signal("TERM");
    assert_eq!(weir.wait().code(), Some(0));
    let health = container.check_health(&admin);
    assert_eq!(health.status.code(), Some(1), "{}", text(&health));
    assert!(text(&health).starts_with("error: cannot ask the admin listener at 127.0.0.1:"), "{}", text(&health));
}

#[test]
fn the_image_as_it_is_serves_its_sample_rules_and_cannot_write() {
    let container = Container::build();
    let usage = container.start(&["serve"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
    assert!(text(&usage).contains("--upstream is missing"), "{}", text(&usage));
    let checked = container.start(&["check", "limits.yaml"]).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked));
    let log = container.start(&["serve", "--upstream", "echo", "--access-log", "access.log"]).output().unwrap();
    assert_eq!(log.status.code(), Some(3));
    assert!(text(&log).contains("Read-only file system"), "{}", text(&log));
    let weir = Weir::launch("", |_| container.start(&Weir::arguments(&[])));
    let answer = weir.get("/", &[]);
    assert!(answer.field("ratelimit").is_some_and(|left| left.starts_with("\"RequestsPerIPAddress\"")), "{answer:?}");
}

#[test]
fn listeners_are_open_to_other_containers_unless_a_file_of_somebodys_own_says_otherwise() {
    let container = Container::build();
    let own = ["serve", "--upstream", "echo", "--log-format", "json"];
    let weir = Weir::launch("", |_| container.start_alone(&own));
    assert_eq!((weir.proxy.to_string(), weir.admin.to_string()), ("0.0.0.0:8080".into(), "0.0.0.0:9090".into()));
    drop(weir);
    let health = container.check_health_alone();
    assert_eq!(health.status.code(), Some(1));
    assert!(text(&health).starts_with("error: cannot ask the admin listener at 127.0.0.1:9090: "), "{}", text(&health));

    let file = "proxy: 0.0.0.0:8000\nadmin: 0.0.0.0:9000\nupstream: echo\nlog-format: json\n";
    container.mount("etc/weir/config/weir.yaml", file);
    let weir = Weir::launch("", |_| {
        let mut command = container.start_alone(&["serve"]);
        command.env("WEIR_CONFIG", "/etc/weir/config/weir.yaml");
        command
    });
    assert_eq!((weir.proxy.to_string(), weir.admin.to_string()), ("0.0.0.0:8000".into(), "0.0.0.0:9000".into()));
}

/// Names that `/etc/hosts` has not are asked of the name server of `/etc/resolv.conf`, which is always at port 53: only
/// root can be one.
#[test]
fn names_are_resolved_by_dns() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let server = (1..=254).find_map(|host| UdpSocket::bind((Ipv4Addr::new(127, 53, 53, host), 53)).ok());
    let server = server.expect("an address of this machine at whose port 53 nobody listens");
    let container = Container::build();
    container.mount("etc/resolv.conf", format!("nameserver {}\n", server.local_addr().unwrap().ip()));
    std::thread::spawn(move || answer_names(&server));
    let application = Upstream::saying("hello");
    let upstream = format!("http://application.example:{}", application.address.port());
    let weir = Weir::launch("", |_| container.start(&Weir::arguments(&["--upstream", &upstream])));
    let answer = weir.get("/", &[]);
    assert_eq!((answer.status(), answer.text()), (200, "hello"));
}

/// Answers that every name is 127.0.0.1's, and has no address of IPv6.
fn answer_names(server: &UdpSocket) {
    const ADDRESS: &[u8] = &[0, 1];
    let mut question = [0; 512];
    while let Ok((length, client)) = server.recv_from(&mut question) {
        // A head of 12 bytes, labels up to an empty one, type and class; what follows are options.
        let end = 12 + question[12..length].iter().position(|byte| *byte == 0).unwrap() + 5;
        let is_address = &question[end - 4..end - 2] == ADDRESS;
        let mut answer =
            [&question[..2], &[0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0], &question[12..end]].concat();
        if is_address {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
        }
        server.send_to(&answer, client).unwrap();
    }
}
