//! `weir serve`: the workers' listeners and the admin listener.

use std::io::Write;
use std::sync::Arc;

use super::admin_flags::AdminArgs;
use super::client_flags::ClientArgs;
use super::client_limit_flags::ClientLimitArgs;
use super::exit::{ExitCode, Failure};
use super::listener_flags::{ListenerArgs, NO_LISTENER};
use super::logging::{self, LogArgs};
use super::process_flags::ProcessArgs;
use super::rules_flags::RulesArgs;
use super::store_flags::StoreArgs;
use super::tls_flags::TlsArgs;
use super::trace_flags::TraceArgs;
use super::upstream_flags::UpstreamArgs;
use crate::clock::Clock;
use crate::config::PollMode;
use crate::engine::answer::headers::Generations;
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::http::{AcceptOptions, ConnectorReloader, HttpOptions, ServerTlsReloader, UpstreamOptions};
use crate::limiter;
use crate::listeners::admin::Readiness;
use crate::listeners::admin::reload::ReloadOutcome;
use crate::listeners::admin::tokens::Tokens;
use crate::listeners::http::FrontendOptions;
use crate::server::reload::{ReloadResult, Reloader, RulesOptions, seconds};
use crate::server::{self, MakeStore, Reload, ServerOptions};
use crate::store::StorePlan;
use crate::store::memory::MemoryStore;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// Flags of `weir serve`. Each has an environment variable and a key with the same name in the `--config` file; a flag
/// overrides the variable, which overrides the file.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    listeners: ListenerArgs,

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
    client_limits: ClientLimitArgs,

    #[command(flatten)]
    tls: TlsArgs,

    #[command(flatten)]
    process: ProcessArgs,

    #[command(flatten)]
    rules: RulesArgs,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    log: LogArgs,

    #[command(flatten)]
    traces: TraceArgs,
}

/// The flags that were checked before anything starts.
struct CheckedFlags {
    generations: Generations,
    upstream: Option<UpstreamOptions>,
    /// Reloads the certificates for upstreams.
    connector: Option<ConnectorReloader>,
    admin_tokens: Tokens,
    store: StorePlan,
}

/// Serves until a signal ends it.
pub fn run(args: &Args, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let log = logging::start(&args.log).map_err(Failure::usage)?;
    let CheckedFlags { generations, upstream, connector, admin_tokens, store } =
        args.check().map_err(Failure::usage)?;
    let clock = Clock::machine();
    let options = args.rules_options(store.as_memory().is_none(), upstream.is_some());
    let fingerprinter = Fingerprinter::new(rand::random());
    let (reloader, loaded) = Reloader::start(args.rules.files(), options, fingerprinter, clock.clone());
    let Some(rules) = loaded.rules else { return Err(loaded.report.into()) };
    write!(err, "{}", loaded.report)?;

    let (accept, certificates) = args.tls.accept().map_err(Failure::bad_input)?;
    let metrics = args.metrics(&clock, certificates.as_ref())?;
    let local = MemoryStore::new(args.store.max_keys);
    let shared = limiter::Shared::logging(rules, metrics, local, args.log.denials());
    let shared = Arc::new(shared.bounded(args.store.key_bounds(&store)));
    let access_log = args.process.access_log(shared.metrics()).map_err(Failure::could_not_start)?;
    let traces = args.traces.start(args.log.log_ids, shared.metrics()).map_err(Failure::usage)?;

    let readiness = Arc::new(Readiness::default());
    let http = args.http(accept, shared.metrics());
    let admission = http.admission.clone();
    let front = FrontendOptions { http, clock, generations, access_log: access_log.clone(), traces: traces.clone() };
    let options = ServerOptions {
        listeners: args.listeners.options(&front, upstream, &readiness),
        admission,
        access_log,
        admin_address: Some(args.admin.admin),
        admin_tokens,
        admin_hosts: args.admin.hosts(),
        log: Some(log),
        clock: front.clock,
        workers: args.process.workers(),
        drain_delay: args.process.drain_delay,
        grace: args.process.grace,
        handle_signals: true,
    };
    let make_store: MakeStore = Arc::new(move || Ok(store.open()));
    let reload = reload(reloader, connector, certificates, (shared.clone(), readiness.clone()));
    let running = server::start(&options, &shared, &make_store, &readiness, reload);
    running.map_err(Failure::could_not_start)?.join();
    traces.iter().for_each(Traces::finish);
    Ok(ExitCode::Success)
}

impl Args {
    /// Checks the flags that depend on each other, and those with their own syntax.
    fn check(&self) -> Result<CheckedFlags, String> {
        let generations = Generations::parse(self.headers.iter().map(String::as_str));
        let generations = generations.map_err(|error| format!("--headers: {error}"))?;
        let (upstream, connector) = self.upstream.options()?.unzip();
        if upstream.is_none() && !self.listeners.has_another() {
            return Err(NO_LISTENER.to_owned());
        }
        let admin_tokens = self.admin.tokens()?;
        self.tls.check()?;
        let store = self.store.plan(Clock::machine(), None)?;
        Ok(CheckedFlags { generations, upstream, connector: connector.flatten(), admin_tokens, store })
    }

    fn rules_options(&self, has_redis: bool, sees_ends: bool) -> RulesOptions {
        RulesOptions { shadow: self.rules.shadow, has_redis, sees_ends, underscores: self.client.underscores }
    }

    fn metrics(&self, clock: &Clock, certificates: Option<&ServerTlsReloader>) -> Result<Arc<Metrics>, Failure> {
        let metrics = Metrics::new().map_err(Failure::could_not_start)?;
        metrics.server.started(seconds(clock));
        metrics.store.keys_max.set(i64::try_from(self.store.max_keys).unwrap_or(i64::MAX));
        if let Some(seconds) = certificates.and_then(ServerTlsReloader::expiry) {
            metrics.server.set_tls_expiry(seconds);
        }
        Ok(Arc::new(metrics))
    }

    fn http(&self, accept: AcceptOptions, metrics: &Metrics) -> HttpOptions {
        let trusted_proxies = self.client.trust.trusted_proxies();
        HttpOptions {
            accept,
            admission: self.process.admission(&trusted_proxies, metrics),
            trusted_proxies,
            client_headers: self.client.headers(),
            timeouts: self.client_limits.timeouts(&self.upstream),
            limits: self.client_limits.limits(),
        }
    }
}

/// Reloads the files of rules and certificates.
fn reload(
    mut rules: Reloader,
    mut connector: Option<ConnectorReloader>,
    mut certificates: Option<ServerTlsReloader>,
    (shared, readiness): (Arc<limiter::Shared>, Arc<Readiness>),
) -> Reload {
    Box::new(move |asked| {
        let mut outcome = ReloadOutcome::default();
        match rules.reload(&shared, if asked { PollMode::Always } else { PollMode::IfTouched }) {
            ReloadResult::Unchanged => outcome.problems.extend(readiness.reload_error()),
            ReloadResult::Replaced => {
                outcome.is_replaced = true;
                readiness.reloaded(None);
            }
            ReloadResult::Broken(report) => {
                outcome.problems.push(report.to_string());
                readiness.reloaded(Some(report.to_string()));
            }
        }
        if let Some(connector) = &mut connector {
            connector.reload(asked);
        }
        if let Some(certificates) = &mut certificates
            && let Some(successful) = certificates.reload(asked)
        {
            shared.metrics().server.tls_reloaded(successful);
            if let Some(seconds) = certificates.expiry() {
                shared.metrics().server.set_tls_expiry(seconds);
            }
            if !successful {
                outcome.problems.push("the certificate cannot be loaded; the log says why".to_owned());
            }
        }
        outcome
    })
}
