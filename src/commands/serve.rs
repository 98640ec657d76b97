//! `weir serve`: the proxy and the admin door.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::door_flags::DoorArgs;
use super::rules::RulesArgs;
use super::store::StoreArgs;
use super::tls_flags::TlsArgs;
use super::upstream_flags::UpstreamArgs;
use super::values::{parse_duration, parse_network};
use super::{ExitCode, could_not_start, logging};
use crate::config::Look;
use crate::doors::admin::Readiness;
use crate::doors::proxy::{AcceptOptions, ProxyOptions, UpstreamOptions};
use crate::engine::client_address::TrustedProxies;
use crate::engine::fingerprint::Fingerprinter;
use crate::engine::reply::Generations;
use crate::gate;
use crate::metrics::Metrics;
use crate::server::reload::{Reloaded, Reloader, seconds};
use crate::server::{self, ListenAddress, MakeStore, ServerOptions};
use crate::store::Clock;
use crate::store::memory::MemoryStore;

/// Flags of `weir serve`. Each has an environment variable and a key of the same name in the `--config` file; a flag
/// beats a variable, and a variable beats the file.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    upstream: UpstreamArgs,

    /// The address of the proxy, or `unix:PATH` for a unix socket, whose peers count as 127.0.0.1
    #[arg(long, value_name = "ADDR", env = "WEIR_PROXY", default_value = "127.0.0.1:8080")]
    proxy: ListenAddress,

    /// The address of /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDR", env = "WEIR_ADMIN", default_value = "127.0.0.1:9090")]
    admin: SocketAddr,

    /// Worker threads; one a core unless given
    #[arg(long, value_name = "N", env = "WEIR_WORKERS")]
    workers: Option<NonZeroUsize>,

    /// Proxies in front whose `X-Forwarded-For` or `Forwarded` is believed; `unix` for the peers of a unix socket
    #[arg(long, value_name = "CIDR", env = "WEIR_TRUSTED_PROXIES", value_delimiter = ',', value_parser = parse_network)]
    trusted_proxies: Vec<IpNet>,

    /// Generations of rate limit fields: ietf-11, ietf-03, x-ratelimit, none
    #[arg(long, value_name = "NAME", env = "WEIR_HEADERS", value_delimiter = ',', default_value = "ietf-11")]
    headers: Vec<String>,

    /// How long requests may go on after SIGTERM
    #[arg(long, value_name = "DURATION", env = "WEIR_GRACE", default_value = "30s", value_parser = parse_duration)]
    grace: Duration,

    #[command(flatten)]
    door: DoorArgs,

    #[command(flatten)]
    tls: TlsArgs,

    #[command(flatten)]
    rules: RulesArgs,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    log: logging::LogArgs,

    /// A YAML file of these flags: `store: redis://...`
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<std::path::PathBuf>,
}

/// Serves until a signal ends it.
pub fn run(args: &Args, err: &mut dyn Write) -> io::Result<ExitCode> {
    let checked = logging::start(&args.log).and_then(|()| {
        let generations = Generations::parse(args.headers.iter().map(String::as_str));
        let generations = generations.map_err(|error| format!("--headers: {error}"))?;
        let upstream = args.upstream.options()?;
        args.tls.check()?;
        let plan = args.store.plan(Clock::own(), None).map_err(|error| format!("--store: {error}"))?;
        Ok((generations, upstream, plan))
    });
    let (generations, (upstream, mut upstream_tls), plan) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            writeln!(err, "error: {error}")?;
            return Ok(ExitCode::Usage);
        }
    };
    let clock = Clock::own();
    let (mut reloader, loaded) =
        Reloader::start(args.rules.limits.clone(), args.rules.overrides.clone(), random_fingerprinter(), clock.clone());
    write!(err, "{}", loaded.report)?;
    let Some(rules) = loaded.rules else { return Ok(ExitCode::BadInput) };
    let metrics = match Metrics::new() {
        Ok(metrics) => Arc::new(metrics),
        Err(error) => return could_not_start(err, &error),
    };
    metrics.reload_successful.set(1);
    metrics.reload_timestamp.set(seconds(&clock));
    let (accept, mut tls_reloader) = match args.tls.accept(&metrics) {
        Ok(accept) => accept,
        Err(error) => {
            writeln!(err, "error: {error}")?;
            return Ok(ExitCode::BadInput);
        }
    };
    let local = MemoryStore::new(args.store.max_keys());
    let shared = Arc::new(gate::Shared::new(rules, metrics, local));
    let readiness = Arc::new(Readiness::default());
    let reload = {
        let (shared, readiness) = (Arc::clone(&shared), Arc::clone(&readiness));
        move |asked| {
            match reloader.reload(&shared, if asked { Look::Always } else { Look::IfTouched }) {
                Reloaded::Unchanged => {}
                Reloaded::Replaced => readiness.reloaded(None),
                Reloaded::Refused(report) => readiness.reloaded(Some(report.to_string())),
            }
            if let Some(certificates) = &mut upstream_tls {
                certificates.reload(asked);
            }
            if let Some(certificates) = &mut tls_reloader {
                certificates.reload(asked);
            }
        }
    };
    let make_store: MakeStore = Arc::new(move || Ok(plan.open()));
    let options = args.server_options(generations, upstream, accept, clock);
    match server::start(&options, &shared, &make_store, &readiness, Box::new(reload)) {
        Ok(running) => {
            running.join();
            Ok(ExitCode::Success)
        }
        Err(error) => could_not_start(err, &error),
    }
}

impl Args {
    fn server_options(
        &self,
        generations: Generations,
        upstream: UpstreamOptions,
        accept: AcceptOptions,
        clock: Clock,
    ) -> ServerOptions {
        let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        ServerOptions {
            proxy_address: self.proxy.clone(),
            proxy: ProxyOptions {
                upstream,
                accept,
                trusted_proxies: TrustedProxies::new(self.trusted_proxies.clone()),
                generations,
                clock,
                timeouts: self.door.timeouts(
                    self.upstream.connect_timeout,
                    self.upstream.response_timeout,
                    self.upstream.upstream_idle_timeout,
                ),
                limits: self.door.limits(),
            },
            admin_address: Some(self.admin),
            workers: self.workers.unwrap_or(cores),
            grace: self.grace,
            handle_signals: true,
        }
    }
}

/// A secret of this process: see [`Fingerprinter`].
fn random_fingerprinter() -> Fingerprinter {
    // Each `RandomState` has keys of the system's randomness, so the hash of nothing is a random number.
    let random = || RandomState::new().hash_one(());
    Fingerprinter::new((random(), random()))
}
