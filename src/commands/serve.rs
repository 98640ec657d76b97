//! `weir serve`: the workers' listeners and the admin listener.

use std::io::Write;
use std::sync::Arc;

use super::admin_flags::AdminArgs;
use super::client_flags::ClientArgs;
use super::listener_flags::ListenerArgs;
use super::listeners::{ListenersArgs, NO_LISTENER};
use super::process::ProcessArgs;
use super::rules::RulesArgs;
use super::store::StoreArgs;
use super::tls_flags::TlsArgs;
use super::trace_flags::TraceArgs;
use super::upstream_flags::UpstreamArgs;
use super::{ExitCode, Failure, Outcome, logging};
use crate::clock::Clock;
use crate::config::Look;
use crate::engine::answer::reply::Generations;
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::http::{AcceptOptions, ConnectorReloader, FrontOptions, ServerTlsReloader, UpstreamOptions};
use crate::limiter;
use crate::listeners::admin::Readiness;
use crate::listeners::admin::log::LogFilter;
use crate::listeners::admin::tokens::Tokens;
use crate::listeners::grpc::AddressSources;
use crate::server::reload::{How, Reloaded, Reloader, seconds};
use crate::server::{self, MakeStore, Reload, ServerOptions};
use crate::store::StorePlan;
use crate::store::memory::MemoryStore;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// Flags of `weir serve`. Each has an environment variable and a key with the same name in the `--config` file; a flag
/// overrides the variable, which overrides the file.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
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
    /// The circumstances that the rules must fit.
    fn how(&self, has_redis: bool, sees_ends: bool) -> How {
        How { shadow: self.rules.shadow, has_redis, sees_ends, underscores: self.client.headers().underscores }
    }
}

/// Serves until a signal ends it.
pub(super) fn run(args: &Args, err: &mut dyn Write) -> Outcome {
    let Checked { log, generations, upstream, address_sources, admin_tokens, plan } = args.check()?;
    let (upstream, upstream_tls) = upstream.map_or((None, None), |(upstream, tls)| (Some(upstream), tls));
    let clock = Clock::machine();
    let how = args.how(plan.is_remote(), upstream.is_some());
    let (reloader, loaded) =
        Reloader::start(args.rules.files(), how, Fingerprinter::new(rand::random()), clock.clone());
    write!(err, "{}", loaded.report)?;
    let Some(rules) = loaded.rules else { return Ok(ExitCode::BadInput) };
    let metrics = Arc::new(Metrics::new().map_err(Failure::could_not_start)?);
    metrics.started(seconds(&clock));
    metrics.keys_max.set(i64::try_from(args.store.max_keys()).unwrap_or(i64::MAX));
    let (accept, tls_reloader) = args.tls.accept(&metrics).map_err(Failure::bad_input)?;
    let local = MemoryStore::new(args.store.max_keys());
    let shared = limiter::Shared::logging(rules, metrics, local, args.log.refusals());
    let shared = Arc::new(shared.bounded(args.store.key_bounds(&plan)));
    let readiness = Arc::new(Readiness::default());
    let reload = reload(reloader, upstream_tls, tls_reloader, (shared.clone(), readiness.clone()));
    let make_store: MakeStore = Arc::new(move || Ok(plan.open()));
    let front = args.front(accept, clock, shared.metrics())?;
    let (admission, access_log, traces) = (front.admission.clone(), front.access_log.clone(), front.traces.clone());
    let metrics = shared.metrics();
    let options = ServerOptions {
        listeners: args.listeners.options(&front, upstream, generations, address_sources, &readiness, metrics),
        admission,
        access_log,
        admin_address: Some(args.admin.admin),
        admin_tokens,
        log: Some(log),
        clock: front.clock,
        workers: args.process.workers(),
        drain_delay: args.process.drain_delay,
        grace: args.process.grace,
        handle_signals: true,
    };
    let running = server::start(&options, &shared, &make_store, &readiness, reload);
    running.map_err(Failure::could_not_start)?.join();
    traces.iter().for_each(Traces::finish);
    Ok(ExitCode::Success)
}

/// Validated flags.
struct Checked {
    log: LogFilter,
    generations: Generations,
    upstream: Option<(UpstreamOptions, Option<ConnectorReloader>)>,
    address_sources: AddressSources,
    admin_tokens: Tokens,
    plan: StorePlan,
}

impl Args {
    /// Validates the flags. Starts the log first.
    fn check(&self) -> Result<Checked, Failure> {
        let log = logging::start(&self.log).map_err(Failure::usage)?;
        let generations = Generations::parse(self.headers.iter().map(String::as_str));
        let generations = generations.map_err(|error| Failure::usage(format_args!("--headers: {error}")))?;
        let upstream = self.upstream.options().map_err(Failure::usage)?;
        if upstream.is_none() && !self.listeners.has_another() {
            return Err(Failure::usage(NO_LISTENER));
        }
        let address_sources = self.listeners.address_sources().map_err(Failure::usage)?;
        let admin_tokens = self.admin.tokens().map_err(Failure::usage)?;
        self.tls.check().map_err(Failure::usage)?;
        let plan = self.store.plan(Clock::machine(), None)?;
        Ok(Checked { log, generations, upstream, address_sources, admin_tokens, plan })
    }

    /// The proxy's options for client connections.
    fn front(&self, accept: AcceptOptions, clock: Clock, metrics: &Metrics) -> Result<FrontOptions, Failure> {
        let access_log = self.process.access_log(metrics).map_err(Failure::could_not_start)?;
        let traces = self.traces.start(self.log.ids(), metrics).map_err(Failure::usage)?;
        let trusted_proxies = self.client.trusted_proxies();
        let admission = self.process.admission(&trusted_proxies, metrics);
        let upstream = &self.upstream;
        Ok(FrontOptions {
            accept,
            trusted_proxies,
            client_headers: self.client.headers(),
            clock,
            timeouts: self.listener.timeouts(
                upstream.connect_timeout,
                upstream.response_timeout,
                upstream.upstream_idle_timeout,
            ),
            limits: self.listener.limits(),
            admission,
            access_log,
            traces,
        })
    }
}

/// Reloads rules and certificates whose files changed.
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
        if let Some(certificates) = &mut of_listeners {
            certificates.reload(asked);
        }
    })
}
