//! `limit-count`, `limit-req` and `limit-conn` of APISIX.
//!
//! One instance of a plugin runs for a route: its own, else that of its plugin config, else its service's. Global rules run
//! besides.

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

const KINDS: [&str; 6] = ["routes", "services", "global_rules", "plugin_configs", "consumers", "consumer_groups"];

/// An object that may have plugins.
struct Owner<'n> {
    kind: &'static str,
    file: String,
    node: &'n Node,
    /// The service that the route stands in.
    service: Option<usize>,
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
        let lists = KINDS.into_iter().filter(|kind| !list(node, kind).is_empty());
        let mut lists = lists.filter(|_| kind.is_none()).peekable();
        if lists.peek().is_some() {
            lists.for_each(|kind| list(node, kind).iter().for_each(|item| self.read(file, item, Some(kind), document)));
            return;
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
        self.owners.push(Owner { kind, file: file.to_owned(), node, service: None });
        for node in list(node, "routes") {
            self.owners.push(Owner { kind: "routes", file: file.to_owned(), node, service: Some(place) });
        }
    }

    /// Collects the routes and the instances of plugins about limits.
    fn index(&mut self) {
        for (place, owner) in self.owners.iter().enumerate() {
            let service = owner.service.or_else(|| self.named("services", text(owner.node, "service_id")));
            if owner.kind == "routes" && text(owner.node, "status") != Some("0") {
                let service = service.and_then(|service| self.owners.get(service));
                self.routes.extend(Route::read(place, owner.node, service.map(|service| service.node)));
            }
            let Some(Value::Map(plugins)) = member(owner.node, "plugins").map(|plugins| &plugins.value) else {
                continue;
            };
            for (key, node) in plugins.iter().filter(|(key, _)| plugin::is_limit(&key.text)) {
                let origin = Origin::of(&owner.file, key.place);
                let is_of_routes = ["routes", "services", "plugin_configs"].contains(&owner.kind);
                let group = text(node, "group").filter(|_| is_of_routes && !plugin::is_disabled(node));
                self.instances.push(Instance { owner: place, plugin: &key.text, origin, node, group });
            }
        }
    }

    fn named(&self, kind: &str, id: Option<&str>) -> Option<usize> {
        self.owners.iter().position(|owner| owner.kind == kind && id.is_some() && text(owner.node, "id") == id)
    }

    /// The instance that runs for a route, unless it is a consumer's.
    fn winner(&self, plugin: &str, route: &Route) -> Option<&Instance<'n>> {
        let owner = self.owners.get(route.owner)?;
        let config = self.named("plugin_configs", text(owner.node, "plugin_config_id"));
        let service = owner.service.or_else(|| self.named("services", text(owner.node, "service_id")));
        let owners = [Some(route.owner), config, service].into_iter().flatten();
        let of = |owner| self.instances.iter().find(|instance| instance.owner == owner && instance.plugin == plugin);
        owners.into_iter().find_map(of)
    }

    fn is_of_consumer(&self, instance: &Instance<'_>) -> bool {
        let is_by_consumer = text(instance.node, "key").is_some_and(|key| key.contains("consumer_name"));
        is_by_consumer || self.owners.get(instance.owner).is_some_and(|owner| owner.kind == "consumers")
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
            "consumers" => return Ok((vec![(of_consumers(Condition::of([Test::is(owner.id())])), Vec::new())], None)),
            "consumer_groups" => return Err("the consumers of a group are known to APISIX only".to_owned()),
            _ => {}
        }
        let runs = |route: &&Route| {
            self.winner(instance.plugin, route)
                .is_some_and(|winner| winner.owner == instance.owner || instance.shares(winner))
        };
        let (mine, others): (Vec<_>, Vec<_>) = self.routes.iter().partition(runs);
        let unknown = mine.iter().find_map(|route| route.unknown.clone());
        let mut parts: Vec<Part> = Vec::new();
        for route in mine.into_iter().filter(|route| route.unknown.is_none()) {
            let (mut scope, mut notes) = (route.scope.clone(), Vec::new());
            let before: Vec<&&Route> = others.iter().filter(|other| other.rank > route.rank).collect();
            let mut left = Vec::new();
            for other in before {
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
            parts.push((scope, notes));
        }
        let parts = parts::joined(parts);
        let told = unknown.as_ref().map(|why| instance.origin.note(format!("one of its routes is left out: {why}.")));
        if parts.is_empty() { Err(unknown.unwrap_or("it runs for no route".to_owned())) } else { Ok((parts, told)) }
    }

    /// All but the consumers that have such a plugin of their own.
    fn people(&self, instance: &Instance<'_>, owner: &Owner<'_>) -> Scope {
        let others = self.instances.iter().filter(|other| other.plugin == instance.plugin);
        let others = others.filter_map(|other| self.owners.get(other.owner)).filter(|owner| owner.kind == "consumers");
        let own = ["consumers", "global_rules"].contains(&owner.kind);
        of_consumers(Condition::except(others.filter(|_| !own).map(|owner| Test::is(owner.id()))))
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
}

impl Instance<'_> {
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
