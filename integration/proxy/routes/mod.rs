//! The routes of the `--config` file: which requests they take, how they change them, and what they set for them.

use std::path::Path;

use crate::support::binary;
use crate::support::server::WIDE;
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;

mod changes;
mod file;
mod outside;
mod own_limits;
mod picking;
mod reloads;
mod trailers;

/// `weir serve` with these routes and no `--upstream`. `UPSTREAM` stands for the address of the upstream.
fn weir(upstream: &Upstream, routes: &str, flags: &[&str]) -> Weir {
    ruled(WIDE, upstream, routes, flags)
}

/// The same with these rules.
fn ruled(rules: &str, upstream: &Upstream, routes: &str, flags: &[&str]) -> Weir {
    Weir::launch(rules, |directory| {
        write(directory, upstream, routes);
        let defaults = ["serve", "--config", "weir.yaml", "--log-format", "json", "--proxy", ANY, "--admin", ANY];
        binary::command(&[&defaults, flags].concat())
    })
}

const ANY: &str = "127.0.0.1:0";

/// Writes the file of the routes.
fn write(directory: &Path, upstream: &Upstream, routes: &str) {
    let text = format!("routes:\n{routes}").replace("UPSTREAM", &upstream.address.to_string());
    std::fs::write(directory.join("weir.yaml"), text).unwrap();
}

/// An upstream that answers with the name of the route, `Host` and the target.
fn mirror() -> Upstream {
    Upstream::answering(|request| {
        let header = |name| request.header(name).unwrap_or("none").to_owned();
        let target = request.start.split(' ').nth(1).unwrap();
        ok(&format!("{} {} {target}", header("x-route"), header("host")))
    })
}
