//! `limit-count`, `limit-req` and `limit-conn` of APISIX.
//!
//! One instance of a plugin runs for a route: its own, else that of its plugin config, else its service's. Global rules run
//! besides.

use std::collections::BTreeSet;

use self::plugin::{KNOWN, NEAR, limits};
use self::route::Route;
use super::document::{Document, Origin};
use super::files::documents;
use super::parts::{self, Part};
use super::scope::{Condition, Scope, Test};
use super::settings::Settings;
use super::text::piece;
use super::tree::{list, member, text};
use crate::config::foreign::{Node, Value};
use crate::config::{Report, Source};

mod plugin;
mod route;

/// The header in which APISIX sends the consumer's name.
const CONSUMER: &str = "x-consumer-username";

const KINDS: [&str; 7] =
    ["routes", "services", "global_rules", "plugin_configs", "consumers", "consumer_groups", "stream_routes"];

/// The objects that may stand in a service or a group.
const INNER: [&str; 3] = ["routes", "stream_routes", "consumers"];

/// An object that may have plugins.
struct Owner<'n> {
    kind: &'static str,
    file: String,
    node: &'n Node,
    /// The service or the group that it stands in.
    outer: Option<usize>,
}

struct Instance<'n> {
    owner: usize,
    plugin: &'n str,
    origin: Origin,
    node: &'n Node,
    /// The group of routes that it counts with.
    group: Option<&'n str>,
}

/// The objects of the files.
#[derive(Default)]
struct Gateway<'n> {
    owners: Vec<Owner<'n>>,
    routes: Vec<Route>,
    instances: Vec<Instance<'n>>,
}

pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    let (roots, report) = documents(sources);
    document.head(
        "Weir denies with `Retry-After`. APISIX's `policy: local` counts in each node, Weir in all together if they share a Redis. Paths \
         are equal here with and without a slash at their end. Plugins of APISIX count one after the other, also what a later one denies; \
         Weir counts a request in all of its limits or in none.",
    );
    let mut gateway = Gateway::default();
    for (file, root) in &roots {
        gateway.read(file, root, None, document);
    }
    gateway.index();
    if gateway.instances.is_empty() {
        document.count_settings(0, 0);
        document.unused("These files have no plugin of APISIX that limits requests.");
    }
    if gateway.instances.iter().any(|instance| gateway.is_of_consumer(instance)) {
        document.head(format!(
            "APISIX sends the consumer's name in the header `{CONSUMER}`. Weir counts by it, so put Weir behind APISIX, and let no client \
             send the header."
        ));
    }
    for place in 0..gateway.instances.len() {
        gateway.write(place, document);
    }
    report
}

impl<'n> Gateway<'n> {
    /// Reads an object, or a list or dump of them; `kind` is the kind of objects there, if it is known.
    fn read(&mut self, file: &str, node: &'n Node, kind: Option<&'static str>, document: &mut Document) {
        if let Value::List(items) = &node.value {
            for item in items {
                self.read(file, item, kind, document);
            }
            return;
        }
        let key = text(node, "key").unwrap_or_default();
        let kind = KINDS.into_iter().find(|kind| key.contains(&format!("/{kind}/"))).or(kind);
        if let Some(inner) = ["value", "node", "list"]
            .into_iter()
            .find_map(|name| member(node, name))
            .or_else(|| member(node, "nodes").filter(|_| text(node, "dir").is_some()))
        {
            return self.read(file, inner, kind, document);
        }
        let objects = KINDS.into_iter().filter_map(|kind| Some((kind, member(node, kind)?)));
        let mut objects = objects.filter(|_| kind.is_none()).peekable();
        if objects.peek().is_some() {
            return objects.for_each(|(kind, node)| self.read(file, node, Some(kind), document));
        }
        for name in ["apiVersion", "plugin_config"].into_iter().filter(|name| member(node, name).is_some()) {
            let what = if name == "apiVersion" { text(node, "kind").unwrap_or_default() } else { name };
            let why = if name == "apiVersion" {
                "objects of Kubernetes are not read; import what the Admin API says of the APISIX behind them."
            } else {
                "APISIX knows it no longer; write `plugins`."
            };
            document.unused(Origin::of(file, node.place).note(format!("{}: {why}", piece(what))));
        }
        let is_route = member(node, "uri").or_else(|| member(node, "uris")).is_some();
        // A global rule has none of these.
        let of_service = ["upstream", "upstream_id", "hosts", "name", "desc"];
        let is_service = of_service.into_iter().any(|name| member(node, name).is_some());
        let kind = kind.unwrap_or(match (is_route, text(node, "username")) {
            (true, _) => "routes",
            (false, Some(_)) => "consumers",
            (false, None) if is_service => "services",
            (false, None) => "global_rules",
        });
        let place = self.owners.len();
        self.owners.push(Owner { kind, file: file.to_owned(), node, outer: None });
        for (kind, node) in INNER.into_iter().flat_map(|kind| list(node, kind).iter().map(move |node| (kind, node))) {
            self.owners.push(Owner { kind, file: file.to_owned(), node, outer: Some(place) });
        }
    }

    /// Collects the routes and the instances of plugins about limits.
    fn index(&mut self) {
        for (place, owner) in self.owners.iter().enumerate() {
            if owner.kind == "routes" && text(owner.node, "status") != Some("0") {
                let config = self.named("plugin_configs", text(owner.node, "plugin_config_id"));
                let service = owner.outer.or_else(|| self.named("services", text(owner.node, "service_id")));
                let owners: Vec<usize> = [Some(place), config, service].into_iter().flatten().collect();
                let service = service.and_then(|service| self.owners.get(service));
                self.routes.extend(Route::read(place, &owners, owner.node, service.map(|service| service.node)));
            }
            let Some(Value::Map(plugins)) = owner.plugins().map(|plugins| &plugins.value) else { continue };
            for (key, node) in plugins.iter().filter(|(key, _)| plugin::is_limit(&key.text)) {
                let origin = Origin::of(&owner.file, key.place);
                let group = text(node, "group").filter(|_| owner.is_of_routes() && !plugin::is_disabled(node));
                self.instances.push(Instance { owner: place, plugin: &key.text, origin, node, group });
            }
        }
    }

    fn named(&self, kind: &str, id: Option<&str>) -> Option<usize> {
        self.owners.iter().position(|owner| owner.kind == kind && id.is_some() && text(owner.node, "id") == id)
    }

    /// Returns true if the instance, or one of its group, runs for a route, unless a consumer has one.
    fn runs(&self, instance: &Instance<'_>, route: &Route) -> bool {
        let of = |owner| self.instances.iter().find(|own| own.owner == owner && own.plugin == instance.plugin);
        let winner = route.owners.iter().copied().find_map(of);
        winner.is_some_and(|winner| winner.owner == instance.owner || instance.shares(winner))
    }

    /// Returns true if `real-ip` sets the address of requests that the instance counts.
    fn has_real_ip(&self, instance: &Instance<'_>) -> bool {
        let has = |owner: &Owner<'_>| {
            let real_ip = owner.plugins().and_then(|plugins| member(plugins, "real-ip"));
            real_ip.is_some_and(|node| !plugin::is_disabled(node))
        };
        let with = self.owners.iter().enumerate().filter(|(_, owner)| has(owner));
        let with: BTreeSet<usize> = with.map(|(place, _)| place).collect();
        let is_of_routes = self.owners.get(instance.owner).is_some_and(Owner::is_of_routes);
        let is_global = |place: &usize| self.owners.get(*place).is_some_and(|owner| owner.kind == "global_rules");
        let is_of = |route: &Route| route.owners.iter().any(|owner| with.contains(owner));
        with.iter().any(|place| !is_of_routes || is_global(place))
            || self.routes.iter().any(|route| is_of(route) && self.runs(instance, route))
    }

    fn is_of_consumer(&self, instance: &Instance<'_>) -> bool {
        let is_by_consumer = text(instance.node, "key").is_some_and(|key| key.contains("consumer_name"));
        is_by_consumer || self.owners.get(instance.owner).is_some_and(|owner| owner.kind.starts_with("consumer"))
    }

    fn write(&self, place: usize, document: &mut Document) {
        let Some((instance, owner)) =
            self.instances.get(place).and_then(|instance| Some((instance, self.owners.get(instance.owner)?)))
        else {
            return;
        };
        let settings = Settings::of(&instance.origin.file, instance.node);
        let more = plugin::more(&settings);
        let is_earlier = |other: &Instance<'_>| other.plugin == instance.plugin && instance.shares(other);
        let is_written = if self.instances.iter().take(place).any(is_earlier) {
            true
        } else {
            match limits(self, instance, owner, &settings) {
                Ok(limits) => {
                    let written = limits.into_iter().map(|limit| limit.write_with(&more, document));
                    written.filter(|is_written| *is_written).count() > 0
                }
                Err(why) => {
                    document
                        .unused(instance.origin.note(format!("{} is left out: {why}.", piece(&instance.name(owner)))));
                    false
                }
            }
        };
        // A comment on a limit that is left out covers these. An instance that shares its counters is written with it.
        let is_covered = !is_written || self.instances.iter().take(place).any(is_earlier);
        for name in KNOWN.iter().filter(|_| is_covered) {
            settings.get(name);
        }
        settings.finish(is_written, &NEAR, document);
    }

    /// The requests for which an instance, or one of its group, runs, with what Weir takes more, and a route that is left out.
    fn parts(&self, instance: &Instance<'_>, owner: &Owner<'_>) -> Result<(Vec<Part>, Option<String>), String> {
        match owner.kind {
            "global_rules" => return Ok((vec![(Scope::default(), Vec::new())], None)),
            "consumer_groups" if self.has_unknown_members(instance.owner) => {
                return Err("the consumers of a group are known to APISIX only".to_owned());
            }
            "consumers" | "consumer_groups" => {
                let consumers: Vec<Test> = self.consumers(instance).into_iter().map(Test::is).collect();
                let is_none = consumers.is_empty().then(|| "its consumers have limits of their own".to_owned());
                return is_none.map_or(Ok((vec![(of_consumers(Condition::of(consumers)), Vec::new())], None)), Err);
            }
            "stream_routes" => return Err("it counts connections, and Weir requests of HTTP".to_owned()),
            _ => {}
        }
        let mine: Vec<_> = self.routes.iter().filter(|route| self.runs(instance, route)).collect();
        let owners: BTreeSet<usize> = mine.iter().map(|route| route.owner).collect();
        let unknown = mine.iter().find_map(|route| route.unknown.clone());
        // The routes that count together.
        let mut parts: Vec<(usize, Vec<Part>)> = Vec::new();
        for route in mine.into_iter().filter(|route| route.unknown.is_none()) {
            let (mut scope, mut notes) = (route.scope.clone(), Vec::new());
            let is_other = |other: &Route| {
                !owners.contains(&other.owner) || instance.counts_each_route() && other.owner != route.owner
            };
            let mut left = Vec::new();
            for other in self.routes.iter().filter(|other| other.rank > route.rank && is_other(other)) {
                let mut rest = scope.clone();
                let is_apart = rest.subtract(&other.scope);
                if is_apart && (other.unknown.is_none() || rest == scope) {
                    scope = rest;
                } else {
                    left.push(other);
                }
            }
            let is_taken = |other: &Route| {
                let mut hosts = other.scope.hosts.any.iter().peekable();
                hosts.peek().is_some() && hosts.all(|host| scope.hosts.not.iter().any(|not| host.is_within(not)))
            };
            notes.extend(left.into_iter().filter(|other| !is_taken(other)).map(|other| {
                let name = self.owners.get(other.owner).map_or("", Owner::id);
                let what = format!("requests of route {} count here, too: `match` cannot say which.", piece(name));
                instance.origin.note(what)
            }));
            match parts.last_mut().filter(|(owner, _)| *owner == route.owner || !instance.counts_each_route()) {
                Some((_, parts)) => parts.push((scope, notes)),
                None => parts.push((route.owner, vec![(scope, notes)])),
            }
        }
        let parts: Vec<Part> = parts.into_iter().flat_map(|(_, parts)| parts::joined(parts)).collect();
        let told = unknown.as_ref().map(|why| instance.origin.note(format!("one of its routes is left out: {why}.")));
        if parts.is_empty() { Err(unknown.unwrap_or("it runs for no route".to_owned())) } else { Ok((parts, told)) }
    }

    /// The places of a group's consumers.
    fn members(&self, group: usize) -> impl Iterator<Item = usize> {
        let id = self.owners.get(group).filter(|owner| owner.kind == "consumer_groups").map(Owner::id);
        let is_member = move |owner: &Owner<'_>| {
            owner.kind == "consumers"
                && id.is_some_and(|id| owner.outer == Some(group) || text(owner.node, "group_id") == Some(id))
        };
        self.owners.iter().enumerate().filter(move |(_, owner)| is_member(owner)).map(|(place, _)| place)
    }

    fn has_unknown_members(&self, owner: usize) -> bool {
        let is_group = self.owners.get(owner).is_some_and(|owner| owner.kind == "consumer_groups");
        is_group && self.members(owner).next().is_none()
    }

    /// The consumers that an instance of a consumer or a group counts.
    fn consumers(&self, instance: &Instance<'_>) -> BTreeSet<&'n str> {
        let has_own =
            |consumer: &usize| self.instances.iter().any(|own| own.owner == *consumer && own.plugin == instance.plugin);
        let itself = self.owners.get(instance.owner).filter(|owner| owner.kind == "consumers").map(|_| instance.owner);
        let consumers = self.members(instance.owner).filter(|consumer| !has_own(consumer)).chain(itself);
        consumers.filter_map(|consumer| self.owners.get(consumer)).map(Owner::id).collect()
    }

    /// All but the consumers that have such a plugin of their own or of a group, and groups whose consumers no file names.
    fn people(&self, instance: &Instance<'_>, owner: &Owner<'_>) -> (Scope, Vec<String>) {
        if !owner.is_of_routes() {
            return (Scope::default(), Vec::new());
        }
        let others = self.instances.iter().filter(|other| other.plugin == instance.plugin);
        let others: Vec<_> = others.filter(|other| self.is_of_consumer(other)).collect();
        let unknown = others.iter().filter(|other| self.has_unknown_members(other.owner));
        let names = unknown.filter_map(|other| self.owners.get(other.owner)).map(|owner| piece(owner.id()));
        let told = names.map(|name| instance.origin.note(format!("consumers of group {name} count here, too.")));
        let consumers: BTreeSet<&str> = others.iter().flat_map(|other| self.consumers(other)).collect();
        (of_consumers(Condition::except(consumers.into_iter().map(Test::is))), told.collect())
    }
}

fn of_consumers(condition: Condition) -> Scope {
    let headers = (!condition.is_open()).then(|| (CONSUMER.to_owned(), condition));
    Scope { headers: headers.into_iter().collect(), ..Scope::default() }
}

impl<'n> Owner<'n> {
    fn id(&self) -> &'n str {
        ["username", "id", "name"].into_iter().find_map(|name| text(self.node, name)).unwrap_or_default()
    }

    fn is_of_routes(&self) -> bool {
        ["routes", "services", "plugin_configs"].contains(&self.kind)
    }

    /// Its plugins. ADC writes global rules as a map of these.
    fn plugins(&self) -> Option<&'n Node> {
        member(self.node, "plugins").or_else(|| (self.kind == "global_rules").then_some(self.node))
    }
}

impl Instance<'_> {
    /// Returns true if APISIX, unless it reads a file, counts each of its routes by itself.
    fn counts_each_route(&self) -> bool {
        ["limit-req", "limit-conn"].contains(&self.plugin)
    }

    /// Returns true if both count together.
    fn shares(&self, other: &Self) -> bool {
        self.group.is_some() && self.group == other.group
    }

    /// The plugin and its owner.
    fn name(&self, owner: &Owner<'_>) -> String {
        let is_plain = |each: char| each.is_ascii_alphanumeric() || "_-".contains(each);
        let id: String = owner.id().chars().map(|each| if is_plain(each) { each } else { '-' }).collect();
        [owner.kind.trim_end_matches('s'), id.as_str(), self.plugin].join(".").replace("..", ".")
    }
}
