//! How many connections one address may have.

use std::num::NonZeroU32;

use weir::doors::http::ConnectionLimits;
use weir::engine::client_address::TrustedProxies;

use crate::support::becomes;
use crate::support::server::{Setup, WIDE};

fn limited(trusted: &[&str]) -> Setup {
    let mut setup = Setup::new(WIDE);
    let exempt = TrustedProxies::new(trusted.iter().map(|network| network.parse().unwrap()).collect());
    setup.connections = ConnectionLimits { per_address: NonZeroU32::new(2), exempt, ..ConnectionLimits::default() };
    setup
}

#[test]
fn an_address_that_has_its_share_gets_no_more_until_it_gives_some_back() {
    let weir = limited(&[]).start("echo");
    let (mut first, mut second) = (weir.connect(), weir.connect());
    assert_eq!([first.get("/").status(), second.get("/").status()], [200, 200]);
    weir.connect().expect_end();
    assert_eq!(weir.metric("weir_http_connections_refused_total{reason=\"address\"}"), 1);
    assert_eq!(first.get("/").status(), 200, "those who are in stay");
    drop(second);
    becomes("the share is given back", 1, || weir.metric("weir_http_connections"));
    assert_eq!(weir.connect().get("/").status(), 200);
}

#[test]
fn a_trusted_proxy_is_exempt() {
    let weir = limited(&["127.0.0.0/8"]).start("echo");
    let mut connections: Vec<_> = (0..5).map(|_| weir.connect()).collect();
    for connection in &mut connections {
        assert_eq!(connection.get("/").status(), 200);
    }
}
