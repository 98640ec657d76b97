//! Annotations of ingress-nginx that limit requests. The requests of an Ingress have one set of counters, over all its hosts and paths.

use self::controller::{Controller, PROXIES};
use self::servers::{Servers, is_before, rules};
use super::document::{Document, Origin};
use super::gateway::{By, GatewayLimit, Rate};
use super::nginx::key::Variables;
use super::path_regex::path_regex;
use super::scope::{Condition, Scope, Test};
use super::settings::Settings;
use super::text::piece;
use super::tree::{at, items, list_at, text_at};
use crate::config::foreign::{self, Findings, Node, ReadResult};
use crate::config::{Place, Report, Source};

mod controller;
mod servers;

const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// The default of `limit-burst-multiplier`.
const MULTIPLIER: u64 = 5;

/// Other settings about limits, with the nearest equivalent.
const NEAR: [(&str, &str); 13] = [
    ("use-forwarded-headers", PROXIES),
    ("enable-real-ip", PROXIES),
    ("proxy-real-ip-cidr", PROXIES),
    (
        "use-proxy-protocol",
        "give Weir the networks of the load balancers in `--proxy-protocol-from`, or if it stands behind ingress-nginx, those of its pods in `--trusted-proxies`.",
    ),
    ("global-rate-limit-memcached-port", "Weir counts in memory or in Redis, by `--store`."),
    ("limit-whitelist", "`limit-allowlist` comes first."),
    ("limit-rate", "the speed of a response has no equivalent."),
    ("limit-rate-after", "the speed of a response has no equivalent."),
    (
        "configuration-snippet",
        "`weir import nginx` reads `limit_req` and `limit_conn` from the configuration of nginx.",
    ),
    ("server-snippet", "`weir import nginx` reads `limit_req` and `limit_conn` from the configuration of nginx."),
    ("http-snippet", "`weir import nginx` reads `limit_req` and `limit_conn` from the configuration of nginx."),
    ("limit-req-status-code", "only the ConfigMap of the controller has it."),
    ("limit-conn-status-code", "only the ConfigMap of the controller has it."),
];

/// The annotations of the limit that all pods count together.
const GLOBAL: [&str; 4] =
    ["global-rate-limit", "global-rate-limit-window", "global-rate-limit-key", "global-rate-limit-ignored-cidrs"];

/// An object of the files.
struct Ingress<'n> {
    file: String,
    name: String,
    node: &'n Node,
    annotations: Option<&'n Node>,
    routes: Vec<Scope>,
    is_canary: bool,
}

/// Adds the limits of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    let mut report = Report::default();
    let mut nodes = Vec::new();
    for source in sources {
        let findings = Findings::new(&source.name);
        let read = documents(source, &findings).map(|all| nodes.extend(all.into_iter().map(|node| (source, node))));
        let (Ok(()) | Err(foreign::ReportedError)) = read;
        report.add(&findings, &source.text);
    }
    document.head(
        "ingress-nginx answers denied requests with 503, unless its ConfigMap has a status; Weir answers 429 with `Retry-After`. ingress-nginx counts \
         in each pod of the controller, Weir in all gateways together if they share a Redis. Paths are equal here with and without a slash at their end.",
    );
    let objects: Vec<(&Source, &Node)> =
        nodes.iter().flat_map(|(source, node)| items(node).into_iter().map(|node| (*source, node))).collect();
    let controller = Controller::read(&objects, document);
    let ingresses: Vec<Ingress<'_>> = objects.iter().filter_map(|(source, node)| Ingress::new(source, node)).collect();
    let servers = Servers::of(&ingresses, document);
    let mut ingresses = ingresses;
    for ingress in &mut ingresses {
        ingress.routes = ingress.routes(&servers);
    }
    for ingress in &ingresses {
        ingress.write(&ingresses, &controller, document);
    }
    report
}

/// The documents of a file, unless it is a template.
fn documents(source: &Source, findings: &Findings) -> ReadResult<Vec<Node>> {
    if let Some((line, _)) =
        (1..).zip(source.text.lines()).find(|(_, line)| line.contains("{{") && !line.trim_start().starts_with('#'))
    {
        let help = "render the chart first: `helm template CHART > ingress.yaml`";
        return Err(findings.error(Place { line, ..Place::default() }, "the file is a template", help));
    }
    foreign::documents(&source.text, findings)
}

fn is_about_limits(key: &str, value: &str) -> bool {
    let name = key.rsplit('/').next().unwrap_or_default();
    name.contains("limit-r")
        || name.starts_with("limit-")
        || name.contains("rate-limit")
        || name.ends_with("-snippet") && value.contains("limit_")
}

impl<'n> Ingress<'n> {
    fn new(source: &Source, node: &'n Node) -> Option<Self> {
        let annotations = at(node, &["metadata", "annotations"]);
        (text_at(node, &["kind"])? == "Ingress").then_some(())?;
        let name = text_at(node, &["metadata", "name"]).unwrap_or("ingress").to_owned();
        let ingress = Self { file: source.name.clone(), name, node, annotations, routes: Vec::new(), is_canary: false };
        let is_canary = ingress.annotation("canary") == Some("true");
        Some(Self { is_canary, ..ingress })
    }

    fn annotation(&self, name: &str) -> Option<&'n str> {
        text_at(self.annotations?, &[&format!("{PREFIX}{name}")])
    }

    /// The class, if it is not the one of ingress-nginx.
    fn other_class(&self) -> Option<&'n str> {
        let class = text_at(self.node, &["spec", "ingressClassName"])
            .or(self.annotations.and_then(|all| text_at(all, &["kubernetes.io/ingress.class"])));
        class.filter(|class| !class.contains("nginx") || class.contains("nginx.org") || class.contains("plus"))
    }

    /// Returns whether its requests end in servers of ingress-nginx by its own annotations.
    fn is_served(&self) -> bool {
        !self.is_canary && self.other_class().is_none()
    }

    /// The time of its creation, which sorts as text; empty if the file does not say it.
    fn created(&self) -> &'n str {
        text_at(self.node, &["metadata", "creationTimestamp"]).unwrap_or_default()
    }

    /// Returns whether nginx needs regular expressions for this rule. A target that is the path itself needs none.
    fn has_regexes(&self, rule: &Node) -> bool {
        let target = self.annotation("rewrite-target").filter(|target| !target.is_empty());
        let other_path = |target: &str| {
            let paths = list_at(rule, &["http", "paths"]);
            paths.is_empty() && target != "/"
                || paths.iter().any(|path| text_at(path, &["path"]).unwrap_or("/") != target)
        };
        self.annotation("use-regex") == Some("true") || target.is_some_and(other_path)
    }

    fn aliases(&self) -> impl Iterator<Item = &'n str> + use<'n> {
        let aliases = self.annotation("server-alias").unwrap_or_default();
        aliases.split([',', ' ']).filter(|alias| !alias.is_empty())
    }

    /// Hosts and paths, each as nginx gets them. One object with regular expressions makes those of all paths of a host.
    fn routes(&self, servers: &Servers) -> Vec<Scope> {
        let mut routes = Vec::new();
        let has_default = at(self.node, &["spec", "defaultBackend"]).is_some();
        for (host, rule) in rules(self) {
            let hosts = servers.names(host);
            let paths = list_at(rule, &["http", "paths"]);
            // The other paths of the host, which go to the default backend, have the annotations too.
            let is_root = |path: &Node| text_at(path, &["path"]).is_none_or(|path| path == "/");
            if paths.is_empty() || has_default && !paths.iter().any(is_root) {
                routes.push(Scope { hosts: hosts.clone(), ..Scope::default() });
            }
            for path in paths {
                let text_of = text_at(path, &["path"]).unwrap_or("/");
                let test = match text_at(path, &["pathType"]) {
                    _ if servers.has_regexes(host) => Some(path_regex(&format!("^{text_of}"), "(?i)")),
                    Some("Exact") => Some(Test::is(text_of)),
                    _ if text_of == "/" => None,
                    Some("Prefix") => Some(Test::Is(format!("{}/**", text_of.trim_end_matches('/')))),
                    _ => Some(Test::below(text_of)),
                };
                routes.push(Scope { hosts: hosts.clone(), paths: Condition::of(test), ..Scope::default() });
            }
        }
        if rules(self).next().is_none() && has_default {
            routes.push(Scope::default());
        }
        routes
    }

    /// The requests of the Ingress, less those that longer paths of others take; joined as far as `match` can. With them, why they are
    /// more than those of ingress-nginx.
    fn scopes(&self, all: &[Self]) -> (Vec<Scope>, Vec<String>) {
        let others = || all.iter().filter(|other| !std::ptr::eq(*other, self) && other.is_served());
        let routes: Vec<&Scope> = others().flat_map(|other| &other.routes).collect();
        let named: Vec<Test> = routes.iter().flat_map(|other| &other.hosts.any).cloned().collect();
        let mut scopes: Vec<Scope> = Vec::new();
        let mut wider: Vec<String> = Vec::new();
        for route in &self.routes {
            // The older one has the path.
            if let Some(other) = others().find(|other| other.routes.contains(route)) {
                let (own_time, time) = (self.created(), other.created());
                if own_time.is_empty() || time.is_empty() || time <= own_time {
                    let what = "has the same host and path, and ingress-nginx takes the older one's annotations.";
                    wider.push(format!("the Ingress {} {what}", piece(&other.name)));
                }
            }
            let is_deeper = |name: &Test| matches!(name, Test::Is(name) if name.starts_with("*."));
            if route.hosts.any.iter().any(is_deeper) && routes.iter().any(|other| other.hosts.is_open()) {
                wider.push("ingress-nginx sends hosts with more labels to an Ingress without a host.".to_owned());
            }
            let mut scope = route.clone();
            // nginx looks for an exact name first, then for the longest with a wildcard, then for any host.
            let is_longer = |name: &&Test| route.hosts.any.iter().all(|own| own != *name && name.is_within(own));
            scope.hosts.exclude(&named.iter().filter(is_longer).cloned().collect::<Vec<_>>());
            let before =
                routes.iter().filter(|other| other.hosts == route.hosts && is_before(&other.paths, &route.paths));
            if !scope.subtract_all(before.copied()) {
                wider.push(
                    "paths of other Ingresses take some of these requests, which `match` cannot except.".to_owned(),
                );
            }
            match scopes.iter_mut().find_map(|known| Some((known.or(&scope)?, known))) {
                Some((joined, known)) => *known = joined,
                None => scopes.push(scope),
            }
        }
        wider.sort();
        wider.dedup();
        (scopes, wider)
    }

    /// Why its annotations limit nothing.
    fn no_limits(&self) -> Option<String> {
        let other = self.other_class().map(|class| format!("the class {} is that of another controller", piece(class)));
        let canary = self.is_canary.then(|| "the limits of the main Ingress hold for a canary".to_owned());
        let is_empty = self.routes.is_empty();
        other.or(canary).or(is_empty.then(|| "the Ingress has no rules and no `defaultBackend`".to_owned()))
    }

    fn write(&self, all: &[Self], controller: &Controller, document: &mut Document) {
        let Some(annotations) = self.annotations else { return };
        let settings = Settings::about(&self.file, annotations, is_about_limits);
        if let Some(reason) = self.no_limits() {
            let near: Vec<(String, String)> = settings.names().map(|name| (name, format!("{reason}."))).collect();
            let near: Vec<(&str, &str)> = near.iter().map(|(name, why)| (name.as_str(), why.as_str())).collect();
            return settings.finish(false, &near, document);
        }
        let others: Vec<(String, &str)> = settings
            .names()
            .map(|name| {
                let why = if name.starts_with(PREFIX) {
                    "ingress-nginx has no such annotation, or not with this value."
                } else {
                    "another controller reads it."
                };
                (name, why)
            })
            .collect();
        let off = "it is off: the ConfigMap has no `global-rate-limit-memcached-host`.";
        let is_off = controller.has_memcached == Some(false);
        let off = GLOBAL.into_iter().filter(|_| is_off).map(|name| (name, off));
        let near: Vec<(&str, &str)> =
            off.chain(NEAR).chain(others.iter().map(|(name, why)| (name.as_str(), *why))).collect();
        let (scopes, wider) = self.scopes(all);
        let allowed = ["nginx.ingress.kubernetes.io/limit-allowlist", "nginx.ingress.kubernetes.io/limit-whitelist"];
        let allowed = allowed.into_iter().find_map(|name| settings.text(name)).unwrap_or_default();
        let multiplier = settings.number("nginx.ingress.kubernetes.io/limit-burst-multiplier").unwrap_or(MULTIPLIER);
        let rates = [
            ("nginx.ingress.kubernetes.io/limit-rps", "rps", 1_000_000, controller.request_status),
            ("nginx.ingress.kubernetes.io/limit-rpm", "rpm", 60_000_000, controller.request_status),
            ("nginx.ingress.kubernetes.io/limit-connections", "connections", 0, controller.connection_status),
        ];
        let mut is_written = true;
        for (key, name, period, status) in rates {
            let Some(count) = settings.number(key).filter(|count| *count > 0) else {
                settings.forget(key);
                continue;
            };
            let rate = if period == 0 {
                Rate::InFlight(count)
            } else {
                Rate::Bucket { burst: count.saturating_mul(multiplier).saturating_add(1), count, period, delay: 0 }
            };
            let source = format!("{} {}: {count}", self.name, key.trim_start_matches(PREFIX));
            let origin = settings.get(key).map(|node| Origin::of(&self.file, node.place)).unwrap_or_default();
            for scope in &scopes {
                is_written &= self
                    .limit(
                        name,
                        &origin,
                        &source,
                        scope,
                        vec![By::Address(128)],
                        rate.clone(),
                        status,
                        allowed,
                        scopes.len() > 1,
                        &wider,
                    )
                    .write(document);
            }
        }
        self.global(&settings, (&scopes, &wider), controller, document);
        settings.finish(is_written, &near, document);
    }

    #[expect(clippy::too_many_arguments, reason = "each is a part of the limit")]
    fn limit(
        &self,
        name: &str,
        origin: &Origin,
        source: &str,
        scope: &Scope,
        by: Vec<By>,
        rate: Rate,
        status: Option<u64>,
        spared: &str,
        is_split: bool,
        wider: &[String],
    ) -> GatewayLimit {
        let mut notes = Vec::new();
        if is_split {
            notes.push(origin.note("ingress-nginx counts all hosts and paths of the Ingress together; here each of these limits has buckets of its own."));
        }
        let mut scope = scope.clone();
        let networks = spared.split(',').map(str::trim).filter(|network| !network.is_empty());
        scope.networks.exclude(&networks.map(Test::network).collect::<Vec<_>>());
        GatewayLimit {
            name: format!("{}-{name}", self.name),
            identity: format!("{}-{name}\n", self.name),
            origin: origin.clone(),
            source: source.to_owned(),
            notes,
            wider: wider.iter().map(|what| origin.note(what)).collect(),
            scope,
            by,
            missing: None,
            rate,
            status: status.filter(|status| *status != 429),
            is_shadow: false,
        }
    }

    /// The limit that all pods count in memcached.
    fn global(
        &self,
        settings: &Settings<'_>,
        (scopes, wider): (&[Scope], &[String]),
        controller: &Controller,
        document: &mut Document,
    ) {
        let count = settings.number("nginx.ingress.kubernetes.io/global-rate-limit").filter(|count| *count > 0);
        let window = settings.text("nginx.ingress.kubernetes.io/global-rate-limit-window");
        let key = settings.text("nginx.ingress.kubernetes.io/global-rate-limit-key").unwrap_or("$remote_addr");
        let spared = settings.text("nginx.ingress.kubernetes.io/global-rate-limit-ignored-cidrs").unwrap_or_default();
        let Some((count, window)) = count.zip(window).filter(|_| controller.has_memcached != Some(false)) else {
            return GLOBAL.iter().for_each(|name| settings.forget(&format!("{PREFIX}{name}")));
        };
        let origin = settings
            .get("nginx.ingress.kubernetes.io/global-rate-limit")
            .map(|node| Origin::of(&self.file, node.place))
            .unwrap_or_default();
        let cases = match Variables::default().cases(key) {
            Ok(cases) => cases,
            Err(why) => return document.unused(origin.note(format!("`global-rate-limit` is left out: {why}."))),
        };
        for (scope, case) in scopes.iter().flat_map(|scope| cases.iter().map(move |case| (scope, case))) {
            let Some(scope) = case.scope.as_ref().and_then(|own| scope.and(own)) else { continue };
            let rate =
                Rate::Windows { algorithm: "sliding_window", more: &[], windows: vec![(count, window.to_owned())] };
            let source = format!("{} global-rate-limit: {count}, global-rate-limit-window: {window}", self.name);
            let mut limit = self.limit(
                "global",
                &origin,
                &source,
                &scope,
                case.by.clone(),
                rate,
                controller.global_status,
                spared,
                scopes.len() > 1,
                wider,
            );
            limit.missing = case.is_shared.then_some("shared");
            limit.write(document);
        }
    }
}
