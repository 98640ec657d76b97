//! The plugins of Kong's declarative configuration that limit requests.
//!
//! Kong runs one instance of a plugin for a request: the most specific one. A limit covers the requests of the routes where that is
//! its instance.

use std::collections::{BTreeSet, HashMap};

use self::nodes::{complete, objects};
use self::plugin::{RoutesOf, limits};
use self::route::Route;
use super::document::{Document, Origin};
use super::files::documents;
use super::parts::{self, Part};
use super::settings::{Settings, scalar};
use super::text::piece;
use super::tree::{items, list, member, text};
use crate::config::foreign::{Node, Value};
use crate::config::{Report, Source};

mod nodes;
mod people;
mod plugin;
mod route;

/// The headers in which Kong sends the consumer's name, or its `custom_id`.
const CONSUMER: &str = "x-consumer-username";
const CUSTOM_ID: &str = "x-consumer-custom-id";

/// Kong's order of instances, by what each names: a consumer, a group, a route, a service.
const ORDER: [[bool; 4]; 12] = [
    [true, false, true, true],
    [false, true, true, true],
    [true, false, true, false],
    [true, false, false, true],
    [false, true, true, false],
    [false, true, false, true],
    [false, false, true, true],
    [true, false, false, false],
    [false, true, false, false],
    [false, false, true, false],
    [false, false, false, true],
    [false; 4],
];

/// A service, a route, a consumer or a group. Others refer to it by its place.
struct Entity {
    name: String,
    /// True for a consumer without a name.
    has_custom_id: bool,
    is_enabled: bool,
}

/// The consumer, the group, the route and the service that an instance names.
type Owners = [Option<usize>; 4];

/// An instance of a plugin.
struct Instance<'n> {
    plugin: &'n str,
    origin: Origin,
    node: &'n Node,
    owners: Owners,
}

/// The routes and limits of all files.
#[derive(Default)]
struct Gateway<'n> {
    entities: Vec<Entity>,
    /// The entities by their kinds, names and ids.
    named: HashMap<(&'static str, &'n str), usize>,
    routes: Vec<Route>,
    instances: Vec<Instance<'n>>,
    /// The instances that are enabled.
    enabled: HashMap<(&'n str, Owners), usize>,
    /// The groups of consumers.
    groups: HashMap<usize, Vec<usize>>,
    /// The enabled plugins that find out who the consumer is.
    identifying: Vec<&'n Node>,
    /// True if there is such a plugin, or a limit of a consumer.
    has_consumers: bool,
}

pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    let (mut roots, report) = documents(sources);
    document.head(
        "Kong counts a request after it has passed, so concurrent ones overshoot; Weir counts exactly. Weir denies with `Retry-After`. \
         Kong's `policy: local` counts in each node, Weir in all together if they share a Redis. Paths are equal here with and without a \
         slash at their end.",
    );
    for (_, root) in &mut roots {
        if let Some(Value::Map(configs)) = member(root, "_plugin_configs").map(|configs| configs.value.clone()) {
            complete(root, &configs);
        }
    }
    let mut gateway = Gateway::default();
    let mut owners = Vec::new();
    for (file, root) in roots.iter().flat_map(|(file, root)| items(root).into_iter().map(move |item| (file, item))) {
        gateway.read(file, root, document, &mut owners);
    }
    for (file, owner, of) in owners {
        gateway.read_plugins(file, owner, of, document);
    }
    gateway.routes.retain(|route| {
        let service = route.service.and_then(|service| gateway.entities.get(service));
        service.is_none_or(|service| service.is_enabled)
    });
    if gateway.instances.is_empty() {
        document.count_settings(0, 0);
        document.unused("These files have no plugin of Kong that limits requests.");
    }
    if gateway.has_consumers {
        document.head(format!(
            "Kong sends the consumer's name in the header `{CONSUMER}`. Weir counts by it, so put Weir behind Kong, and let no client send \
             the header."
        ));
    }
    for place in 0..gateway.instances.len() {
        gateway.write(place, document);
    }
    report
}

impl<'n> Gateway<'n> {
    /// The entity of a node, or the one that it refers to.
    fn entity(&mut self, kind: &'static str, node: &'n Node) -> usize {
        let named = ["name", "username", "custom_id", "id"].into_iter().filter_map(|key| text(node, key));
        let names: Vec<&str> = scalar(node).into_iter().chain(named).collect();
        let known = names.iter().find_map(|name| self.named.get(&(kind, *name))).copied();
        let entity = known.unwrap_or(self.entities.len());
        if known.is_none() {
            let name =
                names.first().map_or_else(|| format!("{kind}-of-line-{}", node.place.line), |name| (*name).to_owned());
            let has_custom_id = text(node, "username").is_none() && text(node, "custom_id").is_some();
            self.entities.push(Entity { name, has_custom_id, is_enabled: text(node, "enabled") != Some("false") });
        }
        for name in names {
            self.named.entry((kind, name)).or_insert(entity);
        }
        entity
    }

    fn name(&self, entity: usize) -> &str {
        self.entities.get(entity).map_or("", |entity| &entity.name)
    }

    /// Reads the entities of a document, and says which may have plugins.
    fn read<'f>(
        &mut self,
        file: &'f str,
        root: &'n Node,
        document: &mut Document,
        owners: &mut Vec<(&'f str, &'n Node, Owners)>,
    ) {
        if let Some(kind) = text(root, "kind").filter(|kind| kind.starts_with("Kong")) {
            let name = member(root, "metadata").and_then(|metadata| text(metadata, "name")).unwrap_or_default();
            document.unused(Origin::of(file, root.place).note(format!(
                "{}: objects of Kubernetes are not read; import what `deck gateway dump` writes of the Kong behind them.",
                piece(&format!("{kind} {name}"))
            )));
        }
        let are_regexes_marked = text(root, "_format_version").is_none_or(|version| version.starts_with('3'));
        owners.push((file, root, [None; 4]));
        for node in objects(file, root, "services", document) {
            let service = self.entity("service", node);
            owners.push((file, node, [None, None, None, Some(service)]));
            for node in objects(file, node, "routes", document) {
                let route = self.entity("route", node);
                owners.push((file, node, [None, None, Some(route), None]));
                self.routes.extend(Route::read(node, route, Some(service), are_regexes_marked));
            }
        }
        for node in objects(file, root, "routes", document) {
            let route = self.entity("route", node);
            let service = member(node, "service").map(|service| self.entity("service", service));
            owners.push((file, node, [None, None, Some(route), None]));
            self.routes.extend(Route::read(node, route, service, are_regexes_marked));
        }
        for node in objects(file, root, "consumers", document) {
            let consumer = self.entity("consumer", node);
            owners.push((file, node, [Some(consumer), None, None, None]));
            for group in list(node, "groups") {
                let group = self.entity("consumer_group", group);
                self.groups.entry(consumer).or_default().push(group);
            }
        }
        for node in objects(file, root, "consumer_groups", document) {
            let group = self.entity("consumer_group", node);
            owners.push((file, node, [None, Some(group), None, None]));
            for consumer in list(node, "consumers") {
                let consumer = self.entity("consumer", consumer);
                self.groups.entry(consumer).or_default().push(group);
            }
        }
    }

    fn read_plugins(&mut self, file: &str, owner: &'n Node, of: Owners, document: &mut Document) {
        for node in objects(file, owner, "plugins", document) {
            let plugin = text(node, "name").unwrap_or_default();
            let kinds = ["consumer", "consumer_group", "route", "service"];
            let mut owners = of;
            for (kind, owner) in kinds.into_iter().zip(&mut owners) {
                *owner = owner.or_else(|| member(node, kind).map(|named| self.entity(kind, named)));
            }
            let is_identifying =
                plugin.contains("auth") || ["jwt", "jwt-signer", "openid-connect", "saml", "session"].contains(&plugin);
            self.identifying.extend((is_identifying && text(node, "enabled") != Some("false")).then_some(node));
            self.has_consumers |= is_identifying || of[0].is_some();
            if plugin::is_limit(plugin) {
                if text(node, "enabled") != Some("false") {
                    self.enabled.insert((plugin, owners), self.instances.len());
                }
                self.instances.push(Instance { plugin, origin: Origin::of(file, node.place), node, owners });
            }
        }
    }

    fn write(&self, place: usize, document: &mut Document) {
        let Some(instance) = self.instances.get(place) else { return };
        let settings = Settings::of(&instance.origin.file, member(instance.node, "config").unwrap_or(instance.node));
        let more = plugin::more(instance, &settings);
        let written = self.why_not(instance).map_or_else(|| limits(self, place, instance, &settings), Err);
        let is_written = match written {
            Ok(limits) => {
                let written = limits.into_iter().map(|limit| limit.write_with(&more, document));
                written.filter(|is_written| *is_written).count() > 0
            }
            Err(why) => {
                document.unused(instance.origin.note(format!("{} is left out: {why}.", piece(&instance.name(self)))));
                false
            }
        };
        // The comment on a limit that is left out covers these.
        for name in plugin::KNOWN.iter().filter(|_| !is_written) {
            settings.get(name);
        }
        settings.finish(is_written, &plugin::NEAR, document);
    }

    /// Why an instance does not limit.
    fn why_not(&self, instance: &Instance<'_>) -> Option<String> {
        let [_, group, route, _] = instance.owners;
        if text(instance.node, "enabled") == Some("false") {
            Some("it is disabled in Kong".to_owned())
        } else if let Some(group) = group.filter(|group| self.members(*group).is_empty()) {
            let group = piece(self.name(group));
            Some(format!("the consumers of group {group} are known to Kong only; overrides by `{CONSUMER}` are near"))
        } else {
            let route = self.routes.iter().find(|own| Some(own.entity) == route);
            route.and_then(|route| route.unknown.clone())
        }
    }

    /// The instance that runs for a consumer's requests on a route.
    fn winner(&self, plugin: &str, route: Option<&Route>, consumer: Option<usize>) -> Option<usize> {
        let groups = consumer.and_then(|consumer| self.groups.get(&consumer)).map_or(&[][..], Vec::as_slice);
        let (service, route) = (route.and_then(|route| route.service), route.map(|route| route.entity));
        ORDER.iter().find_map(|named| {
            let wanted = |place: usize, entity: Option<usize>| {
                if named.get(place) == Some(&true) { entity.map(Some) } else { Some(None) }
            };
            let (consumer, route, service) = (wanted(0, consumer)?, wanted(2, route)?, wanted(3, service)?);
            let groups: Vec<_> = if named[1] { groups.iter().copied().map(Some).collect() } else { vec![None] };
            groups.into_iter().find_map(|group| self.enabled.get(&(plugin, [consumer, group, route, service])).copied())
        })
    }

    /// Returns true if the instance runs for somebody on a route.
    fn runs(&self, place: usize, route: &Route) -> bool {
        self.instances.get(place).is_some_and(|instance| {
            let [_, _, own, service] = instance.owners;
            own.is_none_or(|own| own == route.entity)
                && (service.is_none() || service == route.service)
                && self.named_consumers(place, Some(route)).map_or_else(
                    || self.winner(instance.plugin, Some(route), None) == Some(place),
                    |consumers| !consumers.is_empty(),
                )
        })
    }

    /// The requests for which an instance runs, where possible as one part.
    fn parts(&self, place: usize, service: RoutesOf) -> Vec<Part> {
        let Some(instance) = self.instances.get(place) else { return Vec::new() };
        let is_mine = |route: &&Route| {
            [RoutesOf::All, RoutesOf::Service(route.service)].contains(&service) && self.runs(place, route)
        };
        let (mine, others): (Vec<_>, Vec<_>) = self.routes.iter().partition(is_mine);
        // Requests without a route get 404 from Kong, so they may belong to any limit.
        let is_global = matches!(instance.owners, [_, _, None, None]) && service == RoutesOf::All;
        let joined = || {
            let mut people = self.people(place, mine.first().copied());
            let is_same = mine.iter().all(|route| self.people(place, Some(route)) == people);
            let (known, unknown): (Vec<&Route>, Vec<&Route>) =
                others.iter().copied().partition(|route: &&Route| route.unknown.is_none());
            let is_apart = known.iter().all(|other| {
                people.iter_mut().all(|scope| scope.subtract(&other.scope))
                    && !mine.iter().any(|route| route.beats(other) && route.meets(other))
            });
            let notes: Vec<_> = unknown.iter().map(|route| self.also_counts(instance, route)).collect();
            let has_routes = !mine.is_empty() || self.routes.is_empty();
            let parts = || people.into_iter().map(|scope| (scope, notes.clone())).collect::<Vec<Part>>();
            (is_same && is_apart && has_routes).then(parts)
        };
        if let Some(parts) = is_global.then(joined).flatten() {
            return parts;
        }
        let parts = self.parts_by_route(place, &mine, &others);
        if parts.len() < 2 { parts } else { joined().unwrap_or(parts) }
    }

    fn parts_by_route(&self, place: usize, mine: &[&Route], others: &[&Route]) -> Vec<Part> {
        let Some(instance) = self.instances.get(place) else { return Vec::new() };
        let mut parts: Vec<Part> = Vec::new();
        for route in mine.iter().filter(|route| route.unknown.is_none()) {
            let (mut scope, mut notes) = (route.scope.clone(), Vec::new());
            let people = self.people(place, Some(route));
            // Its own routes count together, unless for others there.
            let own = mine.iter().filter(|other| other.beats(route) && self.people(place, Some(other)) != people);
            for other in others.iter().filter(|other| other.beats(route)).chain(own) {
                let is_taken = if other.unknown.is_some() { !route.meets(other) } else { scope.subtract(&other.scope) };
                if !is_taken {
                    notes.push(self.also_counts(instance, other));
                }
            }
            parts.extend(people.iter().filter_map(|people| Some((scope.and(people)?, notes.clone()))));
        }
        parts::joined(parts)
    }

    /// The routes that Kong may ask before or after those of an instance.
    fn ties(&self, place: usize) -> BTreeSet<&str> {
        let (mine, others): (Vec<_>, Vec<_>) = self.routes.iter().partition(|route| self.runs(place, route));
        let tied = others.into_iter().filter(|other| mine.iter().any(|route| route.ties(other)));
        tied.map(|route| self.name(route.entity)).collect()
    }

    fn also_counts(&self, instance: &Instance<'_>, route: &Route) -> String {
        let name = piece(self.name(route.entity));
        instance.origin.note(format!("requests of route {name} count here, too: `match` cannot say which."))
    }
}

impl Instance<'_> {
    /// The name of the limit.
    fn name(&self, gateway: &Gateway<'_>) -> String {
        let [consumer, group, route, service] = self.owners;
        let owners = [route, service, consumer, group].into_iter().flatten().map(|owner| gateway.name(owner));
        owners.chain([self.plugin]).collect::<Vec<_>>().join(".")
    }
}
