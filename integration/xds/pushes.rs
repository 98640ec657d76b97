//! A server that sends one response after the other, whatever the client answers.

use envoy_types::pb::google::protobuf::Any;
use envoy_types::pb::ratelimit::config::ratelimit::v3::RateLimitConfig;
use prost::{Message as _, Name as _};

use super::management_server::ManagementServer;
use super::{Client, NODE, broken, config, descriptor, ready, serve};
use crate::support::becomes;
use crate::support::weir::Weir;

fn response(version: &str, resources: Vec<Any>) -> (String, String, Vec<Any>) {
    (RateLimitConfig::type_url(), version.to_owned(), resources)
}

fn bad(version: &str) -> (String, String, Vec<Any>) {
    response(version, broken().remove(0).0)
}

fn good(version: &str, requests_per_hour: u32) -> (String, String, Vec<Any>) {
    let value = config("api", vec![descriptor("user", "", requests_per_hour)]).encode_to_vec();
    response(version, vec![Any { type_url: RateLimitConfig::type_url(), value }])
}

fn start() -> (ManagementServer, Weir) {
    let server = ManagementServer::start();
    server.set(NODE, "1", &[config("api", vec![descriptor("user", "", 3)])]);
    let weir = serve(&server.url(), &[]);
    server.until_accepted("1");
    becomes("connected", 1, || weir.metric("weir_xds_connected"));
    (server, weir)
}

fn updates(weir: &Weir, result: &str) -> u64 {
    weir.metric(&format!("weir_xds_updates_total{{result=\"{result}\"}}"))
}

#[test]
fn a_good_version_behind_bad_ones_is_taken_at_once() {
    let (server, weir) = start();
    server.push((0..12).map(|_| bad("bad")).chain([good("2", 5)]));
    server.until_accepted("2");
    // The others would have taken a minute.
    let told = server.requests().iter().filter(|request| request.error_detail.is_some()).count();
    assert!(told <= 3, "{told}");
    assert_eq!((Client::of(&weir).passing("api", "user=ann"), updates(&weir, "rejected")), (5, 12));
    assert_eq!(ready(&weir).1["status"], "ready");
}

#[test]
fn bad_versions_in_turn_are_rejected_ever_later() {
    let (server, weir) = start();
    server.push((0..299).map(|number| bad(["a", "b"][number % 2])).chain([bad("last")]));
    becomes("all are rejected", 300, || updates(&weir, "rejected"));
    let told = |server: &ManagementServer| {
        server.requests().into_iter().filter(|request| request.error_detail.is_some()).collect::<Vec<_>>()
    };
    // Ten seconds after the first, the server hears of the last.
    becomes("the last one is rejected", true, || {
        told(&server).last().is_some_and(|request| request.response_nonce == "pushed-299")
    });
    let rejections = || {
        weir.log()
            .lines()
            .filter(|line| line.contains("rejecting the management"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    becomes("the last one is logged", true, || rejections().last().is_some_and(|line| line.contains("last")));
    // How many of the others are told depends on when they come, and the same one in a row is logged once.
    let (told, logged) = (told(&server).len(), rejections().len());
    assert!(told <= 3 && logged <= told, "{told} were told, {logged} logged");
}

#[test]
fn what_comes_again_is_acknowledged_and_neither_logged_nor_counted() {
    let (server, weir) = start();
    let other = || ("type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned(), "7".to_owned(), Vec::new());
    server.push((0..100).map(|number| if number % 2 == 0 { good("2", 5) } else { other() }).chain([bad("x")]));
    let (_, reason) = broken().remove(0);
    assert_eq!(server.until_rejected(reason), "2");
    let log = weir.log();
    assert_eq!(log.matches("configuration is in force").count(), 2, "{log}");
    assert_eq!(log.matches("ignoring responses of other types").count(), 1, "{log}");
    assert_eq!((updates(&weir, "accepted"), updates(&weir, "rejected")), (2, 1));
    // The version in force ends the complaint about the bad one.
    server.push([good("2", 5)]);
    becomes("ready", true, || ready(&weir).1["status"] == "ready");
    // The same version with other resources is another one.
    server.push([good("2", 6)]);
    becomes("accepted", 3, || updates(&weir, "accepted"));
    assert_eq!(Client::of(&weir).passing("api", "user=ann"), 6);
}
