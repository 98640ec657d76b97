//! Traefik's middlewares that limit requests, at the routers that name them: in dynamic files, resources of Kubernetes and labels.
//!
//! In memory, each router has counters of its own for each of its middlewares. In Redis, all routers share those of a middleware.

use self::draft::Draft;
use self::objects::{Object, Objects, Provider, read};
use super::super::print::joined;
use super::document::Document;
use super::scope::Scope;
use super::settings::SettingState;
use super::text::piece;
use crate::config::foreign::{Findings, ReportedError};
use crate::config::{Report, Source};

mod draft;
mod objects;
mod rule;

/// The most routers that a comment names.
const MOST_NAMES: usize = 5;

/// The longest chain of chains.
const DEEPEST: usize = 8;

/// The most tests of `sourceCriterion`.
const CRITERIA: [&str; 3] =
    ["sourcecriterion.ipstrategy", "sourcecriterion.requestheadername", "sourcecriterion.requesthost"];

/// A router that Traefik builds.
struct Route<'o> {
    object: &'o Object,
    /// If its rule cannot be read, all requests that it may take.
    scopes: Vec<Scope>,
    unreadable: Option<String>,
    /// Notes on requests that the scopes cover and the rule does not.
    broader: Vec<String>,
    priority: u64,
}

/// Adds the limits of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    document.head(
        "Traefik counts in each process, unless the middleware has `redis`; Weir counts in all gateways together if they share a Redis. A request \
         whose token is due within half an interval waits for it, in both. Paths are equal here with and without a slash at their end.",
    );
    let mut report = Report::default();
    let mut objects = Objects::default();
    for source in sources {
        let findings = Findings::new(&source.name);
        let (Ok(()) | Err(ReportedError)) = read(source, &findings, &mut objects, document);
        report.add(&findings, &source.text);
    }
    let mut routes: Vec<Route<'_>> = Vec::new();
    for object in &objects.routers {
        match objects.route(object) {
            Ok(route) => {
                if let Some(why) = &route.unreadable {
                    objects.leave_out(object, why, document);
                }
                routes.push(route);
            }
            Err(why) => objects.leave_out(object, &why, document),
        }
    }
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    for route in &routes {
        for draft in objects.drafts(route, &routes) {
            let is_shared = |known: &Draft<'_>| {
                std::ptr::eq(known.middleware, draft.middleware)
                    && known.kind == draft.kind
                    && (known.router == draft.router || draft.middleware.has_redis(draft.kind))
            };
            match drafts
                .iter_mut()
                .filter(|known| is_shared(known))
                .find_map(|known| Some((known.scope.or(&draft.scope)?, known)))
            {
                Some((scope, known)) => {
                    known.scope = scope;
                    known.notes.extend(draft.notes);
                    known.wider.extend(draft.wider);
                }
                None => drafts.push(draft),
            }
        }
    }
    for draft in &drafts {
        let is_split = drafts
            .iter()
            .filter(|other| {
                std::ptr::eq(other.middleware, draft.middleware)
                    && other.kind == draft.kind
                    && (other.router == draft.router || draft.middleware.has_redis(draft.kind))
            })
            .count()
            > 1;
        draft.write(is_split, document);
    }
    for setting in
        objects.middlewares.iter().flat_map(|object| &object.settings).filter(|setting| is_about_limits(&setting.path))
    {
        document.count_settings(1, usize::from(setting.state.get() == SettingState::Used));
        if setting.state.get() == SettingState::Unread {
            let what = piece(&format!("{}: {}", setting.path, setting.value));
            document.unused(setting.origin.note(format!("{what}: {}", near(&setting.path))));
        }
    }
    report
}

fn is_about_limits(path: &str) -> bool {
    ["ratelimit", "inflightreq", "inflightconn"].iter().any(|kind| path.split('.').next() == Some(kind))
}

fn near(path: &str) -> &'static str {
    match path {
        _ if path.contains(".redis") => "`weir serve --store redis://...` has the address.",
        _ if path.contains("excludedips") || path.contains("depth") => {
            "`--trusted-proxies` says whose `X-Forwarded-For` counts."
        }
        _ if path.contains("frontend.") || path.contains("backend.") => {
            "a label of Traefik 1, which later versions ignore."
        }
        _ if path.rsplit('.').next() == Some("scope") => {
            "in Redis, the limits of a middleware count together, if one `match` can cover them."
        }
        _ if path.starts_with("inflightconn") => "connections without HTTP have no equivalent.",
        _ => "no router in these files uses it, or it has no equivalent.",
    }
}

impl Objects {
    /// The middleware that a router of a provider names. Files may lack the provider that is named.
    fn middleware(&self, name: &str, provider: Provider) -> Option<&Object> {
        let (name, named) = name.split_once('@').map_or((name, provider), |(name, named)| (name, Provider::of(named)));
        let mut all = self.middlewares.iter().filter(|object| object.name == name);
        all.clone().find(|object| object.provider == named).or_else(|| all.next())
    }

    /// The middlewares of a router in their order, chains expanded. The error says why Traefik does not build the router.
    fn expanded(&self, names: &str, provider: Provider, depth: usize) -> Result<Vec<&Object>, String> {
        let mut all = Vec::new();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let object = self
                .middleware(name, provider)
                .ok_or_else(|| format!("there is no middleware {} in these files", piece(name)))?;
            let criteria = |kind: &str| {
                CRITERIA
                    .iter()
                    .filter(|criterion| {
                        object.settings.iter().any(|setting| {
                            setting.path.starts_with(&format!("{kind}.{criterion}")) && setting.value != "false"
                        })
                    })
                    .count()
            };
            if criteria("ratelimit") > 1 || criteria("inflightreq") > 1 {
                return Err(format!("{} has several criteria, which Traefik rejects", piece(name)));
            }
            match object.get("chain.middlewares") {
                Some(chain) if depth < DEEPEST => {
                    all.extend(self.expanded(&chain.value, object.provider, depth + 1)?);
                }
                _ => all.push(object),
            }
        }
        Ok(all)
    }

    fn route<'o>(&'o self, object: &'o Object) -> Result<Route<'o>, String> {
        let rule = object.get("rule").map(|rule| rule.value.as_str()).ok_or("its rule is not in these files")?;
        self.expanded(object.get("middlewares").map_or("", |named| &named.value), object.provider, 0)?;
        let (scopes, broader, unreadable) = match rule::scopes(rule) {
            Ok((scopes, broader)) => (scopes, broader, None),
            Err(why) => (rule::at_most(rule)?, Vec::new(), Some(why)),
        };
        let priority =
            object.get("priority").and_then(|priority| priority.value.parse().ok()).filter(|priority| *priority > 0);
        Ok(Route { object, scopes, unreadable, broader, priority: priority.unwrap_or(rule.len() as u64) })
    }

    /// Tells of a router without an equivalent, if it has limits.
    fn leave_out(&self, object: &Object, why: &str, document: &mut Document) {
        let named = object.get("middlewares").map_or("", |named| named.value.as_str());
        let is_limited =
            named.split(',').filter_map(|name| self.middleware(name.trim(), object.provider)).any(|object| {
                object
                    .settings
                    .iter()
                    .any(|setting| is_about_limits(&setting.path) || setting.path.starts_with("chain"))
            });
        if let Some(setting) = object.get("rule").or(object.settings.first()).filter(|_| is_limited) {
            document.unused(
                setting.origin.note(format!("the limits of the router {} are left out: {why}.", piece(&object.name))),
            );
        }
    }

    /// The limits of a router, for what no router with precedence takes.
    fn drafts<'o>(&'o self, route: &Route<'o>, routes: &[Route<'o>]) -> Vec<Draft<'o>> {
        let named = route.object.get("middlewares").map_or("", |named| named.value.as_str());
        let limits: Vec<(&Object, &'static str)> = self
            .expanded(named, route.object.provider, 0)
            .unwrap_or_default()
            .into_iter()
            .flat_map(|object| {
                ["ratelimit", "inflightreq"]
                    .into_iter()
                    .filter(|kind| object.settings.iter().any(|setting| setting.path.split('.').next() == Some(*kind)))
                    .map(move |kind| (object, kind))
            })
            .collect();
        let mut drafts = Vec::new();
        for scope in route.scopes.iter().filter(|_| !limits.is_empty() && route.unreadable.is_none()) {
            let own = scope;
            let mut scope = own.clone();
            // Routers at other entry points, and those with TLS and without, take nothing from each other.
            let (apart, before): (Vec<&Route<'_>>, Vec<_>) =
                routes.iter().filter(|other| !std::ptr::eq(*other, route)).partition(|other| other.is_apart(route));
            let before = before.into_iter().filter(|other| other.priority > route.priority);
            let (unreadable, before): (Vec<&Route<'_>>, Vec<_>) = before.partition(|other| other.unreadable.is_some());
            let can_except = scope.subtract_all(before.iter().flat_map(|other| &other.scopes));
            let told = |others: &[&Route<'_>], what: &str| -> Vec<String> {
                let note = |other: &&Route<'_>| {
                    let rule = other.object.get("rule")?;
                    Some(rule.origin.note(format!("the router {} {what}", piece(&other.object.name))))
                };
                others.iter().filter(|other| other.meets(&scope)).filter_map(note).collect()
            };
            let mut notes: Vec<String> = route.broader.iter().map(|what| Self::broader(route, what)).collect();
            let broader = before.iter().filter(|other| other.meets(own));
            notes.extend(broader.flat_map(|other| other.broader.iter().map(|what| Self::broader(other, what))));
            notes.extend(Self::elsewhere(route, apart.iter().filter(|other| other.meets(&scope))));
            let mut wider = told(&unreadable, "takes some of these requests, by a rule that `match` cannot say.");
            if !can_except {
                wider.extend(told(&before, "takes some of these requests, which `match` cannot except."));
            }
            drafts.extend(limits.iter().map(|(middleware, kind)| Draft {
                middleware,
                kind,
                router: route.object.name.clone(),
                scope: scope.clone(),
                notes: notes.clone(),
                wider: wider.clone(),
            }));
        }
        drafts
    }

    fn broader(route: &Route<'_>, what: &str) -> String {
        let origin = route.object.get("rule").map(|rule| rule.origin.clone()).unwrap_or_default();
        origin.note(format!("the router {} is for {what}.", piece(&route.object.name)))
    }

    /// Tells of requests that reach a limit here, and other routers there.
    fn elsewhere<'r>(route: &Route<'_>, others: impl Iterator<Item = &'r &'r Route<'r>>) -> Option<String> {
        let names: Vec<&str> = others.map(|other| other.object.name.as_str()).collect();
        let rule = route.object.get("rule").filter(|_| !names.is_empty())?;
        let more = if names.len() > MOST_NAMES { " and others" } else { "" };
        Some(rule.origin.note(format!(
            "at other entry points, {}{more} take some of these requests. `match` cannot say that; here all of them count.",
            joined(names.into_iter().take(MOST_NAMES).map(piece), ", ")
        )))
    }
}

impl Route<'_> {
    /// Returns true if no request reaches both: they are at different entry points, or one of them is for TLS.
    fn is_apart(&self, other: &Self) -> bool {
        let points = |route: &Self| -> Vec<String> {
            let points = route.object.get("entrypoints").map_or("", |points| points.value.as_str());
            points.split(',').map(|point| point.trim().to_owned()).filter(|point| !point.is_empty()).collect()
        };
        let has_tls = |route: &Self| {
            let settings = route.object.settings.iter();
            settings.filter(|setting| setting.path.split('.').next() == Some("tls")).any(|tls| tls.value != "false")
        };
        let (own, others) = (points(self), points(other));
        let is_elsewhere = !own.is_empty() && !others.is_empty() && !own.iter().any(|point| others.contains(point));
        // At one entry point, TLS may be a setting of the entry point, for all of its routers.
        let may_share = !own.is_empty() && !others.is_empty();
        is_elsewhere || !may_share && has_tls(self) != has_tls(other)
    }

    /// Returns true if it may take some of these requests.
    fn meets(&self, scope: &Scope) -> bool {
        self.scopes.iter().any(|own| {
            let mut left = scope.clone();
            !left.subtract(own) || left != *scope
        })
    }
}
