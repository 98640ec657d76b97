//! A process that takes over has the limits of the one before it, whatever the management server does at that time.

use super::management_server::ManagementServer;
use super::{Client, NODE, broken, config, descriptor, ready, serve};
use crate::support::weir::Weir;

#[test]
fn pushed_limits_outlive_a_hand_over_without_the_server() {
    let server = ManagementServer::start();
    let address = server.address;
    // More than a socket's buffer has room for.
    let others = (0..10_000).map(|number| descriptor("route", &number.to_string(), 1));
    server.set(NODE, "1", &[config("api", others.chain([descriptor("user", "", 3)]).collect())]);
    let mut weir = serve(&server.url(), &["--xds-backoff", "50ms", "--xds-max-backoff", "50ms"]);
    server.until_accepted("1");
    drop(server);
    weir.hand_over();
    weir.wait();
    assert_eq!((Client::of(&weir).passing("api", "user=ann"), ready(&weir).0), (3, 200));

    // The server is back, first with a bad version.
    let server = ManagementServer::start_at(address, None);
    let (resources, reason) = broken().remove(0);
    server.set_any(NODE, "bad", resources);
    assert_eq!(server.until_rejected(reason), "1");
    assert_eq!(server.requests()[0].version_info, "1");
    assert_eq!(Client::of(&weir).passing("api", "user=bob"), 3);
    server.set(NODE, "2", &[config("api", vec![descriptor("user", "", 5)])]);
    server.until_accepted("2");
    assert_eq!(Client::of(&weir).passing("api", "user=eve"), 5);
}

#[test]
fn pushed_limits_outlive_a_hand_over_while_the_server_sends_a_bad_version() {
    let server = ManagementServer::start();
    server.set(NODE, "1", &[config("api", vec![descriptor("user", "", 3)])]);
    let mut weir = serve(&server.url(), &[]);
    server.until_accepted("1");
    let (resources, reason) = broken().remove(0);
    server.set_any(NODE, "bad", resources);
    assert_eq!(server.until_rejected(reason), "1");
    weir.hand_over();
    weir.wait();
    assert_eq!((Client::of(&weir).passing("api", "user=ann"), ready(&weir).0), (3, 200));
}

/// The old process goes on with its limits if the new one cannot take them over.
#[test]
fn a_configuration_that_cannot_be_taken_over_ends_the_hand_over() {
    let server = ManagementServer::start();
    server.set(NODE, "1", &[config("api", vec![descriptor("user", "", 3)])]);
    let file = |domain: &str| {
        format!(
            "domain: {domain}\ndescriptors: [{{ key: user, rate_limit: {{ unit: hour, requests_per_unit: 1 }} }}]\n"
        )
    };
    let flags = ["--envoy-ratelimit-config", "limits.yaml", "--xds-node-id", NODE, "--xds-server", &server.url()];
    let weir = Weir::serve(&file("local"), &[&flags[..], &["--grpc", "127.0.0.1:0"]].concat());
    server.until_accepted("1");
    // Good by itself, but not beside what was pushed.
    std::fs::write(weir.limits_file(), file("api")).unwrap();
    weir.signal("USR2");
    weir.until_logged("cannot take over the management server's configuration");
    weir.until_logged("this process goes on");
    assert_eq!(Client::of(&weir).passing("api", "user=ann"), 3);
}
