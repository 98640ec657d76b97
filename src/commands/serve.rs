//! `weir serve`: the workers' listeners and the admin listener.

use std::io::Write;
use std::sync::Arc;

use super::added_header_flags::AddedHeaderArgs;
use super::admin_flags::AdminArgs;
use super::certificates::Certificates;
use super::client_flags::ClientArgs;
use super::client_limit_flags::ClientLimitArgs;
use super::colors;
use super::delay_flags::DelayArgs;
use super::envoy_ratelimit::InPlace;
use super::exit::{ExitCode, Failure};
use super::listener_flags::{ListenerArgs, NO_LISTENER};
use super::listener_tls_flags::{GatewayAccept, GatewayTlsArgs};
use super::logging::{self, LogArgs};
use super::override_feed_flags::{OverrideFeedArgs, fetch_first};
use super::print::counted;
use super::process_flags::ProcessArgs;
use super::reloading;
use super::rules_flags::RulesArgs;
use super::store_flags::StoreArgs;
use super::tls_flags::TlsArgs;
use super::trace_flags::TraceArgs;
use super::upstream_flags::UpstreamArgs;
use super::upstream_reload::{self, UpstreamReloader};
use super::webhook_flags::WebhookArgs;
use super::xds_flags::{self, XdsArgs};
use crate::clock::Clock;
use crate::config::{Files, PollMode};
use crate::engine::answer::headers::Generations;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;
use crate::http::{AcceptOptions, HttpOptions, UpstreamOptions};
use crate::limiter::Shared;
use crate::listeners::admin::Readiness;
use crate::listeners::admin::tokens::Tokens;
use crate::listeners::http::FrontendOptions;
use crate::listeners::proxy::ProxyOptions;
use crate::server::compiler::{Compiler, RulesOptions};
use crate::server::reload::{self, ReloadResult, Reloader, seconds};
use crate::server::{self, MakeStore, OverrideFeed, Process, ServerOptions, XdsClient};
use crate::store::StorePlan;
use crate::store::memory::MemoryStore;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// Flags of `weir serve`. Each has an environment variable and a key with the same name in the `--config` file; a flag
/// overrides the variable, which overrides the file.
#[derive(clap::Args, Debug)]
#[command(
    mut_args = shown_by_short_help,
    after_help = "`weir serve --help` shows all flags.",
    after_long_help = "Each flag has an environment variable, and a key with its name in the file of `--config`."
)]
pub struct Args {
    #[command(flatten)]
    listeners: ListenerArgs,

    #[command(flatten)]
    admin: AdminArgs,

    /// Generations of rate limit headers to send: ietf-11, ietf-03, x-ratelimit, none
    #[arg(long, value_name = "NAME", env = "WEIR_HEADERS", value_delimiter = ',', default_value = "ietf-11", help_heading = GENERAL)]
    headers: Vec<String>,

    /// A YAML file of flags, each by its name: `store: redis://...`; also of the proxy's `routes`, which are reloaded with the rules
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG", help_heading = GENERAL)]
    config: Option<std::path::PathBuf>,

    /// Check the flags and all files as a start would, print the problems with those that `weir check` finds, and exit; opens no
    /// socket and connects to nothing
    #[arg(long, help_heading = GENERAL)]
    dry_run: bool,

    /// Take the place of envoyproxy/ratelimit: its environment variables become flags. So does the program under the name `ratelimit`
    #[arg(long, help_heading = GENERAL)]
    envoy_ratelimit: bool,

    #[command(flatten)]
    client: ClientArgs,

    #[command(flatten)]
    added_headers: AddedHeaderArgs,

    #[command(flatten)]
    upstream: UpstreamArgs,

    #[command(flatten)]
    client_limits: ClientLimitArgs,

    #[command(flatten)]
    tls: TlsArgs,

    #[command(flatten)]
    gateway_tls: GatewayTlsArgs,

    #[command(flatten)]
    process: ProcessArgs,

    #[command(flatten)]
    rules: RulesArgs,

    #[command(flatten)]
    override_feeds: OverrideFeedArgs,

    #[command(flatten)]
    xds: XdsArgs,

    #[command(flatten)]
    webhook: WebhookArgs,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    delay: DelayArgs,

    #[command(flatten)]
    log: LogArgs,

    #[command(flatten)]
    traces: TraceArgs,
}

/// The flags of `weir serve -h`, enough to try each listener; `--help` has all.
const FIRST_FLAGS: [&str; 20] = [
    "access-log",
    "admin",
    "admin-token-file",
    "check",
    "config",
    "dry-run",
    "envoy-ratelimit-config",
    "grpc",
    "headers",
    "limits",
    "log",
    "overrides",
    "proxy",
    "shadow",
    "spoe",
    "store",
    "tls-cert",
    "tls-key",
    "trusted-proxies",
    "upstream",
];

/// The heading of the flags that belong to no listener.
const GENERAL: &str = "General";

fn shown_by_short_help(flag: clap::Arg) -> clap::Arg {
    let is_hidden = !flag.get_long().is_some_and(|name| FIRST_FLAGS.contains(&name));
    flag.hide_short_help(is_hidden)
}

/// The flags that were checked before anything starts.
struct CheckedFlags {
    generations: Generations,
    upstream: Option<UpstreamOptions>,
    /// Reloads the routes and the certificates for upstreams.
    upstream_reloader: Option<UpstreamReloader>,
    admin_tokens: Tokens,
    store: StorePlan,
}

/// Serves until a signal ends it. With `--dry-run`, only prints what would keep it from starting.
pub fn run(args: &Args, in_place: &InPlace, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    if args.dry_run {
        return args.try_all(in_place, out, err);
    }
    let log = logging::start(&args.log, &in_place.notes).map_err(Failure::usage)?;
    let CheckedFlags { generations, upstream, upstream_reloader, admin_tokens, store } =
        args.check().map_err(|mistakes| Failure::usage(mistakes.join("\nerror: ")))?;
    let clock = Clock::machine();
    let options = args.rules_options(store.as_memory().is_none(), upstream.is_some());
    let compiler = Compiler::new(options, Fingerprinter::new(rand::random()), clock.clone());
    let files = args.files(in_place);
    let mut override_feeds = args.override_feeds.feeds(&args.rules, &files, &compiler).map_err(Failure::bad_input)?;
    let (mut reloader, loaded) = Reloader::start(files.clone(), compiler.clone());
    let Some(rules) = loaded.rules else { return Err(loaded.report.into()) };
    let mut xds = args.xds.client(&files, &compiler).map_err(Failure::bad_input)?;
    if args.log.is_json() {
        reload::log_warnings(&loaded.report);
    } else {
        write!(err, "{}", loaded.report.styled(colors::of_reports()))?;
    }
    args.announce(&rules, upstream.as_ref());

    let webhook = args.webhook.webhook().map_err(Failure::bad_input)?;
    let (accept, gateways, certificates) = args.accept().map_err(Failure::bad_input)?;
    let metrics = args.metrics(&clock, &certificates)?;
    metrics.server.set_files(&loaded.owners);
    let shared = Shared::logging(rules, metrics, MemoryStore::new(args.store.max_keys), args.log.denials());
    let shared = Arc::new(shared.bounded(args.store.key_bounds(&store)).delaying(args.delay.bounds()));
    if let Some(reader) = reloader.take_override_reader() {
        let kept = args.admin.kept_overrides().map_err(Failure::bad_input)?;
        shared.keep_overrides(reader, kept, args.admin.live_overrides.clone(), clock.now());
    }
    let readiness = Arc::new(Readiness::new(in_place.needs_domain));
    let fetched = fetch_rules(&mut override_feeds, xds.as_mut(), &mut reloader, (&shared, &readiness))?;
    let Some(process) = fetched else { return Ok(ExitCode::Success) };
    let access_log = args.process.access_log(shared.metrics()).map_err(Failure::could_not_start)?;
    let traces = args.traces.start(args.log.log_ids, shared.metrics()).map_err(Failure::usage)?;

    let http = args.http(accept, shared.metrics());
    let front = FrontendOptions { http, clock, generations, access_log: access_log.clone(), traces: traces.clone() };
    let added = args.added_headers.headers();
    let proxy = upstream.map(|upstream| ProxyOptions { front: front.clone(), upstream, added, redirect_port: None });
    let options = ServerOptions {
        listeners: args.listeners.options(&front, &gateways, proxy, &readiness),
        admission: front.http.admission.clone(),
        access_log,
        admin_address: Some(args.admin.admin),
        metrics: args.admin.metrics(),
        admin_accept: gateways.admin,
        admin_tokens,
        admin_hosts: args.admin.hosts(),
        log: Some(log),
        reading: front.reading(),
        clock: front.clock,
        workers: args.process.workers(),
        drain_delay: args.process.drain_delay,
        override_feeds,
        xds,
        webhook,
        grace: args.process.grace,
    };
    let make_store: MakeStore = Arc::new(move || Ok(store.open()));
    let reload = reloading::all(reloader, upstream_reloader, certificates, (shared.clone(), readiness.clone()));
    let running = server::start(&options, Some(process), &shared, &make_store, &readiness, reload);
    running.map_err(|error| args.admin.explained(&error)).map_err(Failure::could_not_start)?.join();
    traces.iter().for_each(Traces::finish);
    Ok(ExitCode::Success)
}

impl Args {
    /// Checks the flags that depend on each other, and those with their own syntax. The error has all mistakes.
    fn check(&self) -> Result<CheckedFlags, Vec<String>> {
        let mut mistakes = Vec::new();
        let generations = Generations::parse(self.headers.iter().map(String::as_str));
        let generations = kept(generations.map_err(|error| format!("--headers: {error}")), &mut mistakes);
        let upstream = kept(upstream_reload::start(&self.upstream, self.config.as_deref()), &mut mistakes);
        if matches!(upstream, Some(None)) && !self.listeners.has_another() {
            mistakes.push(NO_LISTENER.to_owned());
        }
        let admin_tokens = kept(self.admin.tokens(), &mut mistakes);
        kept(self.added_headers.check(), &mut mistakes);
        kept(self.rules.check(), &mut mistakes);
        kept(self.tls.check(), &mut mistakes);
        kept(self.listeners.check(self.tls.has_certificate()), &mut mistakes);
        kept(self.gateway_tls.check(), &mut mistakes);
        kept(self.store.reject_flags_of_redis(), &mut mistakes);
        let store = kept(self.store.plan(Clock::machine(), None), &mut mistakes);
        if self.admin.live_overrides.is_some() && store.as_ref().is_some_and(|store| store.as_memory().is_none()) {
            mistakes.push("--live-overrides: Redis keeps live overrides itself; remove the flag".to_owned());
        }
        let (Some(generations), Some(upstream), Some(admin_tokens), Some(store), []) =
            (generations, upstream, admin_tokens, store, mistakes.as_slice())
        else {
            return Err(mistakes);
        };
        let (upstream, upstream_reloader) = upstream.unzip();
        Ok(CheckedFlags { generations, upstream, upstream_reloader, admin_tokens, store })
    }

    /// Checks everything that a start checks before it opens a socket. Prints all problems to `err`, or a summary to `out`.
    fn try_all(&self, in_place: &InPlace, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
        for note in &in_place.notes {
            writeln!(err, "warning: {note}")?;
        }
        let mut mistakes = Vec::new();
        kept(logging::check(&self.log), &mut mistakes);
        kept(self.traces.check(), &mut mistakes);
        let checked = self.check().map_err(|more| mistakes.extend(more)).ok();
        // With mistakes in their flags, suppose what rejects fewer rules.
        let has_redis = checked.as_ref().is_none_or(|flags| flags.store.as_memory().is_none());
        let sees_ends = checked.as_ref().is_none_or(|flags| flags.upstream.is_some());
        let options = self.rules_options(has_redis, sees_ends);
        let files = self.files(in_place);
        let loaded = reload::check(&files, options, &Clock::machine());
        write!(err, "{}", loaded.report.styled(colors::of_reports()))?;
        let mut broken = Vec::new();
        if self.tls.check().is_ok() && self.gateway_tls.check().is_ok() {
            kept(self.accept(), &mut broken);
        }
        // Nothing is compiled: it only takes the flags.
        let compiler = Compiler::new(options, Fingerprinter::new((0, 0)), Clock::machine());
        kept(self.override_feeds.feeds(&self.rules, &files, &compiler), &mut broken);
        kept(self.xds.client(&files, &compiler), &mut broken);
        kept(self.webhook.webhook(), &mut broken);
        kept(self.process.check_access_log(), &mut broken);
        kept(self.admin.kept_overrides(), &mut broken);
        for mistake in mistakes.iter().chain(&broken) {
            writeln!(err, "error: {mistake}")?;
        }
        if !mistakes.is_empty() {
            return Ok(ExitCode::Usage);
        }
        let Some(rules) = loaded.rules.filter(|_| broken.is_empty()) else { return Ok(ExitCode::BadInput) };
        let warnings = match loaded.report.warnings {
            0 => String::new(),
            warnings => format!(", {}", counted(warnings, "warning")),
        };
        writeln!(out, "ok: the flags, the files and {}{warnings}", counted(rules.limits().len(), "limit"))?;
        Ok(ExitCode::Success)
    }

    /// Logs how many limits are in force, from which file, and which upstreams get another `Host` than the client sent.
    fn announce(&self, rules: &Rules, upstream: Option<&UpstreamOptions>) {
        let overrides: usize = rules.limits().iter().map(|limit| limit.overrides.len()).sum();
        let (limits, file, shadow) = (rules.limits().len(), self.rules.name(), self.rules.shadow.then_some(true));
        tracing::info!(limits, overrides, file, shadow, "rules are in force");
        if let Some(options) = upstream {
            upstream_reload::announce(&options.routes);
        }
    }

    fn files(&self, in_place: &InPlace) -> Files {
        let files = if self.xds.is_given() { self.rules.files_beside_others() } else { self.rules.files() };
        Files { runtime: in_place.runtime.clone(), ..files }
    }

    fn rules_options(&self, has_redis: bool, sees_ends: bool) -> RulesOptions {
        RulesOptions {
            shadow: self.rules.shadow,
            near_limit: self.listeners.near_limit(),
            has_redis,
            sees_ends,
            underscores: self.client.underscores,
        }
    }

    /// Reads the certificates. Returns how the proxy and the other listeners accept connections.
    fn accept(&self) -> Result<(AcceptOptions, GatewayAccept, Certificates), String> {
        let (proxy, reloader) = self.tls.accept()?;
        let mut reloaders: Vec<_> = reloader.into_iter().collect();
        let gateways = self.gateway_tls.accept(self.tls.handshake_timeout(), &mut reloaders)?;
        Ok((proxy, gateways, Certificates::new(reloaders)))
    }

    fn metrics(&self, clock: &Clock, certificates: &Certificates) -> Result<Arc<Metrics>, Failure> {
        let metrics = Metrics::new().map_err(Failure::could_not_start)?;
        metrics.server.started(seconds(clock));
        metrics.store.keys_max.set(i64::try_from(self.store.max_keys).unwrap_or(i64::MAX));
        if let Some(seconds) = certificates.expiry() {
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

/// Puts in force what comes from elsewhere: overrides, and a management server's configuration. Returns `None` if a signal has ended the
/// start.
fn fetch_rules(
    feeds: &mut [OverrideFeed],
    xds: Option<&mut XdsClient>,
    reloader: &mut Reloader,
    (shared, readiness): (&Shared, &Readiness),
) -> Result<Option<Process>, Failure> {
    let is_fetched = fetch_first(feeds, shared)?;
    let mut process = Process::take().map_err(Failure::could_not_start)?;
    let Some(is_pushed) = xds_flags::fetch_first(xds, &mut process, shared, readiness)? else {
        tracing::info!("stopped before the listeners opened");
        return Ok(None);
    };
    if (is_fetched || is_pushed)
        && let ReloadResult::Broken(report) = reloader.reload(shared, PollMode::Always)
    {
        return Err(report.into());
    }
    readiness.ruled(shared.has_domains());
    Ok(Some(process))
}

/// Returns the value, or adds the mistake to the others.
fn kept<T>(result: Result<T, String>, mistakes: &mut Vec<String>) -> Option<T> {
    result.map_err(|mistake| mistakes.push(mistake)).ok()
}
