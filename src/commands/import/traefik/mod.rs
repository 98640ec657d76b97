//! Traefik's middlewares that limit requests, at the routers that name them: in dynamic files, resources of Kubernetes and labels.
//!
//! In memory, each router has counters of its own for each of its middlewares. In Redis, all routers share those of a middleware.

use self::objects::{Object, Objects, Provider, read};
use super::document::Document;
use super::gateway::{By, GatewayLimit, Rate, whole};
use super::scope::Scope;
use super::settings::SettingState;
use super::text::piece;
use crate::config::foreign::{Findings, ReportedError};
use crate::config::{Report, Source};
use crate::engine::text::duration;

mod objects;
mod rule;

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
    priority: u64,
}

/// A middleware that limits, at the routers where it does.
struct Draft<'o> {
    middleware: &'o Object,
    kind: &'static str,
    router: String,
    scope: Scope,
    notes: Vec<String>,
    wider: Vec<String>,
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
        let rule = object.get("rule").map_or("", |rule| rule.value.as_str());
        self.expanded(object.get("middlewares").map_or("", |named| &named.value), object.provider, 0)?;
        let (scopes, unreadable) = match rule::scopes(rule) {
            Ok(scopes) => (scopes, None),
            Err(why) => (rule::at_most(rule)?, Some(why)),
        };
        let priority =
            object.get("priority").and_then(|priority| priority.value.parse().ok()).filter(|priority| *priority > 0);
        Ok(Route { object, scopes, unreadable, priority: priority.unwrap_or(rule.len() as u64) })
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
        if let Some(rule) = object.get("rule").filter(|_| is_limited) {
            document.unused(
                rule.origin.note(format!("the limits of the router {} are left out: {why}.", piece(&object.name))),
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
            let mut scope = scope.clone();
            let before = routes.iter().filter(|other| other.priority > route.priority);
            // Routers at other entry points, and those with TLS and without, take nothing from each other.
            let (apart, before): (Vec<&Route<'_>>, Vec<_>) = before.partition(|other| other.is_apart(route));
            let (unreadable, before): (Vec<&Route<'_>>, Vec<_>) =
                before.into_iter().partition(|other| other.unreadable.is_some());
            let can_except = scope.subtract_all(before.iter().flat_map(|other| &other.scopes));
            let told = |others: &[&Route<'_>], what: &str| -> Vec<String> {
                let note = |other: &&Route<'_>| {
                    let rule = other.object.get("rule")?;
                    Some(rule.origin.note(format!("the router {} {what}", piece(&other.object.name))))
                };
                others.iter().filter(|other| other.meets(&scope)).filter_map(note).collect()
            };
            let notes = told(
                &apart,
                "takes some of these requests at another entry point, which `match` cannot say; here they count.",
            );
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

impl Draft<'_> {
    /// A setting of the limit, which counts as used.
    fn value(&self, name: &str) -> Option<&str> {
        let setting = self.middleware.get(&format!("{}.{name}", self.kind))?;
        setting.state.set(SettingState::Used);
        Some(&setting.value)
    }

    fn write(&self, is_split: bool, document: &mut Document) {
        let settings =
            || self.middleware.settings.iter().filter(|setting| setting.path.split('.').next() == Some(self.kind));
        let origin = settings().next().map(|setting| setting.origin.clone()).unwrap_or_default();
        let tell = |why: String, document: &mut Document| {
            settings().for_each(|setting| setting.state.set(SettingState::Told));
            document.unused(origin.note(format!(
                "{} of {} at the router {}: {why}.",
                self.kind,
                piece(&self.middleware.name),
                piece(&self.router)
            )));
        };
        let rate = match self.rate() {
            Ok(rate) => rate,
            Err(why) => return tell(why, document),
        };
        let (by, missing) = self.by();
        let mut notes = self.notes.clone();
        if self.value("sourcecriterion.ipstrategy.depth").is_some()
            || self.value("sourcecriterion.ipstrategy.excludedips").is_some()
        {
            notes.push(
                origin.note("the address is from `X-Forwarded-For`: give Weir the proxies in `--trusted-proxies`."),
            );
        }
        if is_split {
            notes.push(origin.note(
                "Traefik counts this limit together with others of the same name; here each has buckets of its own.",
            ));
        }
        let limit = GatewayLimit {
            name: format!("{}-{}", self.router, self.middleware.name),
            identity: format!("{}\n{} {} ", self.middleware.name, self.kind, self.router),
            origin: origin.clone(),
            source: format!("{} of {} at {}", self.kind, self.middleware.name, self.router),
            notes,
            wider: self.wider.clone(),
            scope: self.scope.clone(),
            by,
            missing,
            rate,
            status: None,
            is_shadow: false,
        };
        if !limit.write(document) {
            settings().for_each(|setting| setting.state.set(SettingState::Told));
        }
    }

    fn rate(&self) -> Result<Rate, String> {
        if self.kind == "inflightreq" {
            let amount = self.value("amount").unwrap_or("0");
            let amount = amount.parse().map_err(|_| format!("invalid amount {}", piece(amount)))?;
            return if amount == 0 {
                Err("without `amount` it denies every request; write `deny: true`".to_owned())
            } else {
                Ok(Rate::InFlight(amount))
            };
        }
        let average = self.value("average").unwrap_or("0");
        if self.middleware.settings.iter().any(|setting| setting.path.contains("rateset")) || average == "0" {
            return Err("without `average` it limits nothing".to_owned());
        }
        let period = self.value("period").unwrap_or("1s");
        let period =
            if period.bytes().all(|byte| byte.is_ascii_digit()) { format!("{period}s") } else { period.to_owned() };
        let period = duration::parse(&period).map_err(|(message, _)| message)? / 1_000;
        let (count, period) =
            whole(average, period.max(1)).ok_or_else(|| format!("invalid average {}", piece(average)))?;
        let burst = self.value("burst").and_then(|burst| burst.parse::<u64>().ok()).unwrap_or(1).max(1);
        // A request waits for half an interval at most, by a rate that is rounded down, or for half a second.
        let per_second = u128::from(count) * 1_000_000 / u128::from(period);
        let delay =
            500_000_u128.checked_div(per_second).map_or(500_000, |delay| u64::try_from(delay).unwrap_or_default());
        Ok(Rate::Bucket { burst, count, period, delay })
    }

    /// The key, and what happens to requests without it.
    fn by(&self) -> (Vec<By>, Option<&'static str>) {
        if let Some(name) = self.value("sourcecriterion.requestheadername") {
            // Go keeps `Host` apart from the headers, so it is missing from all requests.
            let by = Some(By::Header(name.to_ascii_lowercase())).filter(|_| !name.eq_ignore_ascii_case("host"));
            let missing = by.as_ref().map(|_| "shared");
            return (by.into_iter().collect(), missing);
        }
        if self.value("sourcecriterion.requesthost") == Some("true") {
            return (vec![By::Word("host")], None);
        }
        let bits = self.value("sourcecriterion.ipstrategy.ipv6subnet").and_then(|bits| bits.parse().ok());
        let has_strategy = self
            .middleware
            .settings
            .iter()
            .any(|setting| setting.path.starts_with(&format!("{}.sourcecriterion.ipstrategy", self.kind)));
        let _ = self.value("sourcecriterion.ipstrategy");
        match self.kind {
            "inflightreq" if !has_strategy => (vec![By::Word("host")], None),
            _ => (vec![By::Address(bits.unwrap_or(128))], None),
        }
    }
}
