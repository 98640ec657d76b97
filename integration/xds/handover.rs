//! A process that takes over has the limits of the one before it, whatever the management server does at that time.

use envoy_types::pb::ratelimit::config::ratelimit::v3::RateLimitDescriptor;

use super::management_server::ManagementServer;
use super::{Client, NODE, broken, config, descriptor, ready, serve};
use crate::support::weir::Weir;

#[test]
fn pushed_limits_outlive_a_hand_over_without_the_server() {
    let server = ManagementServer::start();
    let address = server.address;
    // More than a socket's buffer has room for.
    server.set(NODE, "1", &[config("api", many())]);
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

/// A large configuration, which a new process takes a while to check.
fn many() -> Vec<RateLimitDescriptor> {
    let others = (0..10_000).map(|number| descriptor("route", &number.to_string(), 1));
    others.chain([descriptor("user", "", 3)]).collect()
}

/// The old process would acknowledge it, and the server would not send it again.
#[test]
fn a_version_that_comes_during_a_hand_over_is_left_to_the_new_process() {
    let server = ManagementServer::start();
    server.set(NODE, "1", &[config("api", many())]);
    let mut weir = serve(&server.url(), &[]);
    server.until_accepted("1");
    weir.signal("USR2");
    weir.until_logged("handing over to a new process");
    server.set(NODE, "2", &[config("api", vec![descriptor("user", "", 5)])]);
    weir.wait();
    server.until_accepted("2");
    let requests = server.requests();
    let second = requests.iter().rposition(|request| request.response_nonce.is_empty()).unwrap();
    let accepted = requests.iter().position(|request| request.version_info == "2").unwrap();
    assert!(second > 0 && accepted > second, "{second} and {accepted}");
    assert_eq!(Client::of(&weir).passing("api", "user=ann"), 5);
}

#[test]
fn a_new_process_that_is_stopped_before_it_serves_leaves_the_old_one() {
    let server = ManagementServer::start();
    server.set(NODE, "1", &[config("api", many())]);
    let weir = serve(&server.url(), &[]);
    server.until_accepted("1");
    weir.signal("USR2");
    weir.until_logged("taking over the management server's configuration from the old process");
    let children = format!("/proc/{0}/task", weir.id());
    let children = std::fs::read_dir(children).unwrap().map(|task| task.unwrap().path().join("children"));
    let children: String = children.map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect();
    let new = children.trim().to_owned();
    assert!(std::process::Command::new("kill").args(["-TERM", &new]).status().unwrap().success(), "{new:?}");
    weir.until_logged("this process goes on");
    assert_eq!((Client::of(&weir).passing("api", "user=ann"), weir.successors()), (3, Vec::new()));
    // It takes what comes then.
    server.set(NODE, "2", &[config("api", vec![descriptor("user", "", 5)])]);
    server.until_accepted("2");
}
