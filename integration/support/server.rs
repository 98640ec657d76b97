//! A server in this process.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use weir::clock::Clock;
use weir::config::{self, Source};
use weir::engine::algorithms::micros::Micros;
use weir::engine::answer::headers::Generations;
use weir::engine::limit::fingerprint::Fingerprinter;
use weir::engine::limit::rules::Rules;
use weir::http::{
    AcceptOptions, Admission, ConnectionLimits, HttpLimits, HttpOptions, Routes, Timeouts, UpstreamOptions,
};
use weir::limiter::{DelayBounds, KeyBounds, Shared};
use weir::listeners::ListenerOptions;
use weir::listeners::admin::Readiness;
use weir::listeners::admin::reload::ReloadOutcome;
use weir::listeners::admin::tokens::Tokens;
use weir::listeners::grpc::{AddressSources, ConnectionAge, EnvoyLimits, EnvoyOptions};
use weir::listeners::http::FrontendOptions;
use weir::listeners::proxy::{AddedHeaders, ProxyOptions};
use weir::message::client_address::{AddressSource, TrustedProxies};
use weir::message::client_headers::ClientHeaders;
use weir::server::{ListenAddress, MakeStore, RunningServer, ServerOptions, start};
use weir::store::Store;
use weir::store::memory::MemoryStore;
use weir::telemetry::access_log::AccessLog;
use weir::telemetry::metrics::{ListenerKind, Metrics};

use super::wire::{Message, Wire};

/// A limit that no test reaches.
pub(crate) const WIDE: &str = "limits: { Wide: { by: global, burst: 1000000, count: 1000000, period: 1s } }";

/// A server's options.
pub(crate) struct Setup {
    pub(crate) rules: String,
    pub(crate) workers: usize,
    pub(crate) timeouts: Timeouts,
    pub(crate) limits: HttpLimits,
    pub(crate) accept: AcceptOptions,
    pub(crate) trusted: Vec<&'static str>,
    pub(crate) client_address: AddressSource,
    pub(crate) client_headers: ClientHeaders,
    pub(crate) drain_delay: Duration,
    pub(crate) grace: Duration,
    pub(crate) connections: ConnectionLimits,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) clock: Clock,
    pub(crate) store: Option<MakeStore>,
    pub(crate) delays: DelayBounds,
    pub(crate) connection_age: ConnectionAge,
    pub(crate) envoy: EnvoyLimits,
    pub(crate) check: bool,
    pub(crate) admin_tokens: Tokens,
    pub(crate) added: AddedHeaders,
}

pub(crate) struct Weir {
    pub(crate) proxy: SocketAddr,
    pub(crate) grpc: SocketAddr,
    check: Option<SocketAddr>,
    pub(crate) admin: SocketAddr,
    pub(crate) shared: Arc<Shared>,
    pub(crate) readiness: Arc<Readiness>,
    running: Option<RunningServer>,
}

impl Setup {
    pub(crate) fn new(rules: &str) -> Self {
        Self {
            rules: rules.to_owned(),
            workers: 1,
            timeouts: Timeouts::default(),
            limits: HttpLimits::default(),
            accept: AcceptOptions::default(),
            trusted: Vec::new(),
            client_address: AddressSource::default(),
            client_headers: ClientHeaders::default(),
            drain_delay: Duration::ZERO,
            grace: Duration::from_millis(200),
            connections: ConnectionLimits::default(),
            access_log: None,
            clock: Clock::machine(),
            store: None,
            delays: DelayBounds::default(),
            connection_age: ConnectionAge::default(),
            envoy: EnvoyLimits::default(),
            check: false,
            admin_tokens: Tokens::default(),
            added: AddedHeaders::default(),
        }
    }

    pub(crate) fn start(self, upstream: &str) -> Weir {
        self.start_with(UpstreamOptions::new(Routes::parse(&[upstream]).unwrap()))
    }

    pub(crate) fn start_with(self, upstream: UpstreamOptions) -> Weir {
        let metrics = Arc::new(Metrics::new().unwrap());
        let clock = self.clock.clone();
        let memory = Arc::new(MemoryStore::new(100_000));
        let local = MemoryStore::new(100_000);
        let bounds = KeyBounds { memory: Some(memory.clone()), ..KeyBounds::default() };
        let shared =
            Arc::new(Shared::new(rules(&self.rules), metrics.clone(), local).bounded(bounds).delaying(self.delays));
        let readiness = Arc::new(Readiness::default());
        let admission = Admission::new(self.connections);
        let http = HttpOptions {
            accept: self.accept,
            trusted_proxies: TrustedProxies {
                source: self.client_address,
                ..TrustedProxies::new(self.trusted.iter().map(|net| net.parse().unwrap()).collect())
            },
            client_headers: self.client_headers,
            timeouts: self.timeouts,
            limits: self.limits,
            admission: admission.clone(),
        };
        let access_log = self.access_log.clone();
        let front = FrontendOptions {
            http,
            clock: clock.clone(),
            generations: Generations::default(),
            access_log,
            traces: None,
        };
        let envoy = EnvoyOptions {
            front: front.clone(),
            address_sources: AddressSources::default(),
            connection_age: self.connection_age,
            limits: self.envoy,
            readiness: readiness.clone(),
        };
        let check = ListenerOptions::Check(front.clone());
        let check = self.check.then(|| ("127.0.0.1:0".parse().unwrap(), check));
        let reading = front.reading();
        let proxy = ProxyOptions { front, upstream, added: self.added, redirect_port: None };
        let anywhere: ListenAddress = "127.0.0.1:0".parse().unwrap();
        let options = ServerOptions {
            listeners: [(anywhere.clone(), ListenerOptions::Proxy(proxy)), (anywhere, ListenerOptions::Grpc(envoy))]
                .into_iter()
                .chain(check)
                .collect(),
            admission,
            access_log: self.access_log,
            admin_address: Some("127.0.0.1:0".parse().unwrap()),
            metrics: None,
            admin_accept: AcceptOptions::default(),
            admin_tokens: self.admin_tokens,
            admin_hosts: Arc::default(),
            log: None,
            reading,
            clock,
            workers: NonZeroUsize::new(self.workers).unwrap(),
            drain_delay: self.drain_delay,
            override_feeds: Vec::new(),
            xds: None,
            webhook: None,
            grace: self.grace,
        };
        let make_store = self.store.unwrap_or_else(|| Arc::new(move || Ok(Store::Memory(memory.clone()))));
        let running =
            start(&options, None, &shared, &make_store, &readiness, Box::new(|_| ReloadOutcome::default())).unwrap();
        Weir {
            grpc: running.address(ListenerKind::Grpc).and_then(ListenAddress::tcp).unwrap(),
            proxy: running.address(ListenerKind::Proxy).and_then(ListenAddress::tcp).unwrap(),
            check: running.address(ListenerKind::Check).and_then(ListenAddress::tcp),
            admin: running.admin.unwrap(),
            shared,
            readiness,
            running: Some(running),
        }
    }
}

pub(crate) fn rules(text: &str) -> Rules {
    let source = Source { name: "limits.yaml".into(), text: text.to_owned() };
    let sources = config::Sources { limits: Some(source), ..config::Sources::default() };
    let loaded = config::load(&sources, Fingerprinter::new((1, 2)), Micros(0));
    loaded.rules.unwrap_or_else(|| panic!("{}", loaded.report))
}

impl Weir {
    pub(crate) fn connect(&self) -> Wire {
        Wire::connect(self.proxy)
    }

    pub(crate) fn connect_check(&self) -> Wire {
        Wire::connect(self.check.expect("a check listener"))
    }

    pub(crate) fn page(&self, path: &str) -> Message {
        Wire::connect(self.admin).page(path)
    }

    pub(crate) fn metric(&self, series: &str) -> u64 {
        let page = self.page("/metrics");
        let line = page.text().lines().find_map(|line| line.strip_prefix(series)).map(str::trim);
        line.unwrap_or_else(|| panic!("no {series} in {}", page.text())).parse().unwrap()
    }

    pub(crate) fn stop(&self) {
        self.running.as_ref().unwrap().stop();
    }

    /// Waits until the drain ends.
    pub(crate) fn join(mut self) {
        self.running.take().unwrap().join();
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
            running.join();
        }
    }
}
