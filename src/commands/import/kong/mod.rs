//! The plugins of Kong's declarative configuration that limit requests.
//!
//! Kong runs one instance of a plugin for a request: the most specific one. A limit covers the requests of the routes where that is
//! its instance.

use self::plugin::limits;
use self::route::Route;
use super::document::{Document, Origin};
use super::files::documents;
use super::scope::{Condition, Scope, Test};
use super::settings::{Settings, scalar};
use super::text::piece;
use super::tree::{list, member, text};
use crate::config::foreign::Node;
use crate::config::{Report, Source};

mod plugin;
mod route;

/// The header in which Kong sends the consumer's name.
const CONSUMER: &str = "x-consumer-username";

/// An instance of a plugin.
struct Instance<'n> {
    plugin: &'n str,
    origin: Origin,
    node: &'n Node,
    route: Option<&'n str>,
    service: Option<&'n str>,
    consumer: Option<&'n str>,
    group: Option<&'n str>,
}

/// The routes and limits of all files.
#[derive(Default)]
struct Gateway<'n> {
    routes: Vec<Route<'n>>,
    instances: Vec<Instance<'n>>,
    /// True if a plugin identifies consumers.
    has_consumers: bool,
}

/// The requests of an instance: a scope, and what Weir takes more or less.
type Part = (Scope, Vec<String>);

pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    let (roots, report) = documents(sources);
    document.head(
        "Kong counts a request after it has passed, so concurrent ones overshoot; Weir counts exactly. Weir denies with `Retry-After`. \
         Kong's `policy: local` counts in each node, Weir in all together if they share a Redis.",
    );
    let mut gateway = Gateway::default();
    for (file, root) in &roots {
        gateway.read(file, root, document);
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
    fn read(&mut self, file: &str, root: &'n Node, document: &mut Document) {
        if let Some(kind) = text(root, "kind").filter(|kind| kind.starts_with("Kong")) {
            let name = member(root, "metadata").and_then(reference).unwrap_or_default();
            document.unused(Origin::of(file, root.place).note(format!(
                "{}: objects of Kubernetes are not read; import what `deck gateway dump` writes of the Kong behind them.",
                piece(&format!("{kind} {name}"))
            )));
        }
        let are_regexes_marked = text(root, "_format_version").is_none_or(|version| version.starts_with('3'));
        let mut owners = vec![(root, [None; 4])];
        for service in list(root, "services") {
            let name = reference(service);
            owners.push((service, [None, name, None, None]));
            for route in list(service, "routes") {
                owners.push((route, [reference(route), None, None, None]));
                self.routes.push(Route::read(route, name, are_regexes_marked));
            }
        }
        for route in list(root, "routes") {
            owners.push((route, [reference(route), None, None, None]));
            self.routes.push(Route::read(route, None, are_regexes_marked));
        }
        owners.extend(list(root, "consumers").iter().map(|node| (node, [None, None, reference(node), None])));
        owners.extend(list(root, "consumer_groups").iter().map(|node| (node, [None, None, None, reference(node)])));
        for (owner, [route, service, consumer, group]) in owners {
            for node in list(owner, "plugins") {
                let plugin = text(node, "name").unwrap_or_default();
                let of = |name| member(node, name).and_then(reference);
                self.has_consumers |= plugin.ends_with("-auth")
                    || ["jwt", "oauth2", "openid-connect", "session"].contains(&plugin)
                    || consumer.is_some();
                if plugin::is_limit(plugin) {
                    self.instances.push(Instance {
                        plugin,
                        origin: Origin::of(file, node.place),
                        node,
                        route: route.or_else(|| of("route")),
                        service: service.or_else(|| of("service")),
                        consumer: consumer.or_else(|| of("consumer")),
                        group: group.or_else(|| of("consumer_group")),
                    });
                }
            }
        }
    }

    fn write(&self, place: usize, document: &mut Document) {
        let Some(instance) = self.instances.get(place) else { return };
        let settings = Settings::of(&instance.origin.file, member(instance.node, "config").unwrap_or(instance.node));
        let written = self.why_not(instance).map_or_else(|| limits(self, place, instance, &settings), Err);
        let is_written = match written {
            Ok(limits) => {
                limits.into_iter().map(|limit| limit.write(document)).filter(|is_written| *is_written).count() > 0
            }
            Err(why) => {
                document.unused(instance.origin.note(format!("{} is left out: {why}.", piece(&instance.name()))));
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
        if !instance.is_enabled() {
            Some("it is disabled in Kong".to_owned())
        } else if let Some(group) = instance.group {
            Some(format!(
                "the consumers of group {} are known to Kong only; overrides by `{CONSUMER}` are near",
                piece(group)
            ))
        } else {
            let route = self.routes.iter().find(|route| Some(route.name) == instance.route);
            route.and_then(|route| route.unknown.clone())
        }
    }

    /// The instance that runs for a consumer's requests on a route.
    fn winner(&self, plugin: &str, route: Option<&Route<'_>>, consumer: Option<&str>) -> Option<usize> {
        let is_on = |instance: &Instance<'_>| {
            instance.plugin == plugin
                && instance.is_enabled()
                && instance.group.is_none()
                && instance.route.is_none_or(|name| route.is_some_and(|route| route.name == name))
                && instance.service.is_none_or(|name| route.is_some_and(|route| route.service == Some(name)))
                && instance.consumer.is_none_or(|name| consumer == Some(name))
        };
        let instances = self.instances.iter().enumerate().filter(|(_, instance)| is_on(instance));
        instances.max_by_key(|(_, instance)| instance.weight()).map(|(place, _)| place)
    }

    /// The requests for which an instance runs, where possible as one part.
    fn parts(&self, place: usize, service: Option<&str>) -> Vec<Part> {
        let Some(instance) = self.instances.get(place) else { return Vec::new() };
        let won = |route: Option<&Route<'_>>| self.winner(instance.plugin, route, instance.consumer) == Some(place);
        let is_mine = |route: &&Route<'_>| won(Some(route)) && service.is_none_or(|name| route.service == Some(name));
        let (mine, others): (Vec<_>, Vec<_>) = self.routes.iter().partition(is_mine);
        // Requests without a route get 404 from Kong, so they may belong to any limit.
        let is_global = instance.route.is_none() && instance.service.is_none() && service.is_none();
        let joined = || {
            let mut scope = self.people(place, mine.first().copied());
            let is_same = mine.iter().all(|route| self.people(place, Some(route)) == scope);
            let (known, unknown): (Vec<&Route<'_>>, Vec<&Route<'_>>) =
                others.iter().copied().partition(|route: &&Route<'_>| route.unknown.is_none());
            let is_apart = known.iter().all(|other| {
                scope.subtract(&other.scope) && !mine.iter().any(|route| route.beats(other) && meets(route, other))
            });
            let notes = unknown.iter().map(|route| instance.also_counts(route)).collect();
            (is_same && is_apart && (!mine.is_empty() || self.routes.is_empty())).then(|| vec![(scope, notes)])
        };
        if let Some(parts) = is_global.then(joined).flatten() {
            return parts;
        }
        let parts = self.parts_by_route(place, &mine, &others);
        if parts.len() < 2 { parts } else { joined().unwrap_or(parts) }
    }

    fn parts_by_route(&self, place: usize, mine: &[&Route<'_>], others: &[&Route<'_>]) -> Vec<Part> {
        let Some(instance) = self.instances.get(place) else { return Vec::new() };
        let mut parts: Vec<Part> = Vec::new();
        for route in mine.iter().filter(|route| route.unknown.is_none()) {
            let (mut scope, mut notes) = (route.scope.clone(), Vec::new());
            for other in others.iter().filter(|other| other.beats(route)) {
                if !scope.subtract(&other.scope) {
                    notes.push(instance.also_counts(other));
                }
            }
            let Some(scope) = scope.and(&self.people(place, Some(route))) else { continue };
            match parts.iter_mut().find_map(|(known, notes)| Some((known.or(&scope)?, known, notes))) {
                Some((both, known, known_notes)) => {
                    *known = both;
                    notes.retain(|note| !known_notes.contains(note));
                    known_notes.extend(notes);
                }
                None => parts.push((scope, notes)),
            }
        }
        parts
    }

    /// The consumers of an instance, as a condition on a header.
    fn people(&self, place: usize, route: Option<&Route<'_>>) -> Scope {
        let Some(instance) = self.instances.get(place) else { return Scope::default() };
        let condition = if let Some(name) = instance.consumer {
            Condition::of([Test::is(name)])
        } else {
            let names = self.instances.iter().filter_map(|other| other.consumer);
            let others = names
                .filter(|name| self.winner(instance.plugin, route, Some(name)).is_some_and(|winner| winner != place));
            let mut none = Condition::default();
            none.exclude(&others.map(Test::is).collect::<Vec<_>>());
            none
        };
        let headers = (!condition.is_open()).then(|| (CONSUMER.to_owned(), condition));
        Scope { headers: headers.into_iter().collect(), ..Scope::default() }
    }
}

/// Returns false if it is known that no request fits both routes.
fn meets(route: &Route<'_>, other: &Route<'_>) -> bool {
    let mut left = other.scope.clone();
    !left.subtract(&route.scope) || left != other.scope
}

impl Instance<'_> {
    fn is_enabled(&self) -> bool {
        text(self.node, "enabled") != Some("false")
    }

    /// The greatest runs.
    fn weight(&self) -> usize {
        match (self.consumer.is_some(), self.route.is_some(), self.service.is_some()) {
            (true, true, is_of_service) => 6 + usize::from(is_of_service),
            (true, false, true) => 5,
            (false, true, true) => 4,
            (true, false, false) => 3,
            (false, true, false) => 2,
            (false, false, is_of_service) => usize::from(is_of_service),
        }
    }

    fn also_counts(&self, route: &Route<'_>) -> String {
        let what = format!("requests of route {} count here, too: `match` cannot say which.", piece(route.name));
        self.origin.note(what)
    }

    /// The name of the limit.
    fn name(&self) -> String {
        let owners = [self.route, self.service, self.consumer, self.group];
        owners.into_iter().flatten().chain([self.plugin]).collect::<Vec<_>>().join(".")
    }
}

/// The name of an entity, or of the one that this refers to.
fn reference(node: &Node) -> Option<&str> {
    scalar(node).or_else(|| ["name", "username", "custom_id", "id"].into_iter().find_map(|key| text(node, key)))
}
