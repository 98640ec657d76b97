//! `weir serve`: the workers' listeners and the admin listener.

use std::io::{self, Write};
use std::sync::Arc;

use super::admin_flags::AdminArgs;
use super::client_flags::ClientArgs;
use super::listener_flags::ListenerArgs;
use super::listeners::{ListenersArgs, NO_DOOR};
use super::process::ProcessArgs;
use super::rules::RulesArgs;
use super::store::StoreArgs;
use super::tls_flags::TlsArgs;
use super::trace_flags::TraceArgs;
use super::upstream_flags::UpstreamArgs;
use super::{ExitCode, could_not_start, logging};
use crate::clock::Clock;
use crate::config::Look;
use crate::engine::answer::headers::Generations;
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::http::{ConnectorReloader, HttpOptions, ServerTlsReloader};
use crate::limiter;
use crate::listeners::admin::Readiness;
use crate::listeners::http::FrontendOptions;
use crate::server::reload::{How, Reloaded, Reloader, seconds};
use crate::server::{self, MakeStore, Reload, ServerOptions};
use crate::store::memory::MemoryStore;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// Flags of `weir serve`. Each has an environment variable and a key with the same name in the `--config` file; a flag
/// overrides the variable, which overrides the file.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    listeners: ListenersArgs,

    #[command(flatten)]
    admin: AdminArgs,

    /// Generations of rate limit headers to send: ietf-11, ietf-03, x-ratelimit, none
    #[arg(long, value_name = "NAME", env = "WEIR_HEADERS", value_delimiter = ',', default_value = "ietf-11")]
    headers: Vec<String>,

    /// A YAML file of flags, each by its name: `store: redis://...`
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<std::path::PathBuf>,

    #[command(flatten)]
    client: ClientArgs,

    #[command(flatten)]
    upstream: UpstreamArgs,

    #[command(flatten)]
    listener: ListenerArgs,

    #[command(flatten)]
    tls: TlsArgs,

    #[command(flatten)]
    process: ProcessArgs,

    #[command(flatten)]
    rules: RulesArgs,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    log: logging::LogArgs,

    #[command(flatten)]
    traces: TraceArgs,
}

impl Args {
    /// What the rules are for.
    fn how(&self, has_redis: bool, sees_ends: bool) -> How {
        How { shadow: self.rules.shadow, has_redis, sees_ends, underscores: self.client.headers().underscores }
    }
}

/// Serves until a signal ends it.
pub fn run(args: &Args, err: &mut dyn Write) -> io::Result<ExitCode> {
    let checked = logging::start(&args.log).and_then(|log| {
        let generations = Generations::parse(args.headers.iter().map(String::as_str));
        let generations = generations.map_err(|error| format!("--headers: {error}"))?;
        let upstream = args.upstream.options()?;
        if upstream.is_none() && !args.listeners.has_another() {
            return Err(NO_DOOR.to_owned());
        }
        let address_sources = args.listeners.address_sources()?;
        let tokens = args.admin.tokens()?;
        args.tls.check()?;
        let plan = args.store.plan(Clock::machine(), None).map_err(|error| format!("--store: {error}"))?;
        Ok((log, generations, upstream, address_sources, tokens, plan))
    });
    let (log, generations, upstream, address_sources, admin_tokens, plan) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            writeln!(err, "error: {error}")?;
            return Ok(ExitCode::Usage);
        }
    };
    let (upstream, upstream_tls) = upstream.map_or((None, None), |(upstream, tls)| (Some(upstream), tls));
    let clock = Clock::machine();
    let how = args.how(plan.as_memory().is_none(), upstream.is_some());
    let (reloader, loaded) =
        Reloader::start(args.rules.files(), how, Fingerprinter::new(rand::random()), clock.clone());
    write!(err, "{}", loaded.report)?;
    let Some(rules) = loaded.rules else { return Ok(ExitCode::BadInput) };
    let metrics = match Metrics::new() {
        Ok(metrics) => Arc::new(metrics),
        Err(error) => return could_not_start(err, &error),
    };
    metrics.server.started(seconds(&clock));
    metrics.store.keys_max.set(i64::try_from(args.store.max_keys()).unwrap_or(i64::MAX));
    let (accept, tls_reloader) = match args.tls.accept() {
        Ok(accept) => accept,
        Err(error) => {
            writeln!(err, "error: {error}")?;
            return Ok(ExitCode::BadInput);
        }
    };
    let expiry = tls_reloader.as_ref().and_then(ServerTlsReloader::expiry);
    expiry.into_iter().for_each(|seconds| metrics.server.set_tls_expiry(seconds));
    let local = MemoryStore::new(args.store.max_keys());
    let shared = limiter::Shared::logging(rules, metrics, local, args.log.denials());
    let shared = Arc::new(shared.bounded(args.store.key_bounds(&plan)));
    let readiness = Arc::new(Readiness::default());
    let reload = reload(reloader, upstream_tls, tls_reloader, (shared.clone(), readiness.clone()));
    let make_store: MakeStore = Arc::new(move || Ok(plan.open()));
    let access_log = match args.process.access_log(shared.metrics()) {
        Ok(access_log) => access_log,
        Err(error) => return could_not_start(err, &error),
    };
    let traces = match args.traces.start(args.log.ids(), shared.metrics()) {
        Ok(traces) => traces,
        Err(error) => {
            writeln!(err, "error: {error}")?;
            return Ok(ExitCode::Usage);
        }
    };
    let trusted_proxies = args.client.trusted_proxies();
    let admission = args.process.admission(&trusted_proxies, shared.metrics());
    let http = HttpOptions {
        accept,
        trusted_proxies,
        client_headers: args.client.headers(),
        timeouts: args.listener.timeouts(
            args.upstream.connect_timeout,
            args.upstream.response_timeout,
            args.upstream.upstream_idle_timeout,
        ),
        limits: args.listener.limits(),
        admission: admission.clone(),
    };
    let front = FrontendOptions { http, clock, access_log: access_log.clone(), traces: traces.clone() };
    let listeners = args.listeners.options(&front, upstream, generations, address_sources, &readiness);
    let options = ServerOptions {
        listeners,
        admission,
        access_log,
        admin_address: Some(args.admin.admin),
        admin_tokens,
        log: Some(log),
        clock: front.clock.clone(),
        workers: args.process.workers(),
        drain_delay: args.process.drain_delay,
        grace: args.process.grace,
        handle_signals: true,
    };
    match server::start(&options, &shared, &make_store, &readiness, reload) {
        Ok(running) => {
            running.join();
            traces.iter().for_each(Traces::finish);
            Ok(ExitCode::Success)
        }
        Err(error) => could_not_start(err, &error),
    }
}

/// What looks at the files of rules and certificates.
fn reload(
    mut rules: Reloader,
    mut of_upstreams: Option<ConnectorReloader>,
    mut of_listeners: Option<ServerTlsReloader>,
    (shared, readiness): (Arc<limiter::Shared>, Arc<Readiness>),
) -> Reload {
    Box::new(move |asked| {
        match rules.reload(&shared, if asked { Look::Always } else { Look::IfTouched }) {
            Reloaded::Unchanged => {}
            Reloaded::Replaced => readiness.reloaded(None),
            Reloaded::Broken(report) => readiness.reloaded(Some(report.to_string())),
        }
        if let Some(certificates) = &mut of_upstreams {
            certificates.reload(asked);
        }
        if let Some(certificates) = &mut of_listeners
            && let Some(successful) = certificates.reload(asked)
        {
            shared.metrics().server.tls_reloaded(successful);
            certificates.expiry().into_iter().for_each(|seconds| shared.metrics().server.set_tls_expiry(seconds));
        }
    })
}
