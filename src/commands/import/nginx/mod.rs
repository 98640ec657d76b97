//! `limit_req` and `limit_conn` of nginx.
//!
//! A limit holds in the block that has it, and in the blocks inside that have none of their kind. A zone is one set of
//! counters, wherever it is named.

use self::draft::{Draft, TOO_MANY_REQUESTS, value};
use self::grammar::{Directive, Tree};
use self::key::Variables;
use self::location::Block;
use self::server::Taken;
use super::super::print::joined;
use super::document::Document;
use super::scope::Scope;
use super::settings::SettingState;
use super::text::piece;
use crate::config::{Report, Source};

mod draft;
mod geo;
mod grammar;
pub(super) mod key;
mod location;
mod server;

/// A kind of limits, by its directives.
struct Kind {
    limit: &'static str,
    zone: &'static str,
    status: &'static str,
    dry_run: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind { limit: "limit_req", zone: "limit_req_zone", status: "limit_req_status", dry_run: "limit_req_dry_run" },
    Kind { limit: "limit_conn", zone: "limit_conn_zone", status: "limit_conn_status", dry_run: "limit_conn_dry_run" },
];

/// Other settings about limits, with the nearest equivalent.
const OTHERS: [(&str, &str); 7] = [
    (
        "limit_rate",
        "the speed of a response has no equivalent; `--body-timeout` and `cost_from_response: { bytes: response }` are near.",
    ),
    ("limit_rate_after", "the speed of a response has no equivalent."),
    ("limit_except", "it is access control, not a limit; `match: { methods: ... }` with `deny: true` is near."),
    ("limit_zone", "nginx knows it no longer; write `limit_conn_zone`."),
    ("limit_req_log_level", "Weir logs denials by `--log-denials`, at one level."),
    ("limit_conn_log_level", "Weir logs denials by `--log-denials`, at one level."),
    ("set_real_ip_from", "give Weir these networks in `--trusted-proxies`."),
];

/// The directives in force in a block: those of the block, or of one around it.
#[derive(Clone, Default)]
struct Inherited<'d> {
    status: Option<&'d Directive>,
    dry_run: Option<&'d Directive>,
    is_limited: bool,
    /// The limits of a block around for those blocks that have none.
    handed: Vec<&'d Directive>,
    /// The limits in force.
    limits: Vec<&'d Directive>,
    /// The name of the server.
    server: Option<&'d str>,
    /// A limit of requests in flight.
    in_flight: Option<&'d Directive>,
}

/// Adds the limits of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    let tree = Tree::read(sources);
    if tree.report.errors > 0 {
        return tree.report;
    }
    document.head(
        "nginx answers denied requests with 503, unless `limit_req_status` is set; Weir answers 429 with `Retry-After`. nginx \
         counts in each instance, Weir in all together if they share a Redis. Paths are equal here with and without a slash at \
         their end.",
    );
    tree.unread.into_iter().for_each(|note| document.unused(note));
    let http: Vec<&[Directive]> =
        tree.directives.iter().filter(|directive| directive.name == "http").map(|http| http.block.as_slice()).collect();
    // A file of conf.d stands within `http`.
    for directives in if http.is_empty() { vec![tree.directives.as_slice()] } else { http } {
        import_http(directives, document);
    }
    sweep(&tree.directives, document);
    tree.report
}

fn import_http(directives: &[Directive], document: &mut Document) {
    let named = |name: &str| directives.iter().filter(move |directive| directive.name == name).collect::<Vec<_>>();
    let variables = ["map", "geo"].into_iter().flat_map(named);
    let maps = variables
        .filter_map(|directive| Some((directive.arguments.last()?.strip_prefix('$')?.to_owned(), directive)))
        .collect();
    let variables = Variables { maps, server: None };
    let root = Block::http(directives);
    for kind in &KINDS {
        let zones = named(kind.zone);
        let mut import = Collecting { kind, zones: &zones, variables: &variables, drafts: Vec::new() };
        import.collect(&root, Inherited::default(), document);
        let drafts = import.drafts;
        for (place, draft) in drafts.iter().enumerate() {
            let others = drafts.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, other)| other);
            let others = others.filter(|other| other.zone() == draft.zone() && other.server == draft.server);
            draft.write(&zones, &variables, &others.collect::<Vec<_>>(), document);
        }
    }
}

/// The limits of a kind.
struct Collecting<'i, 'd> {
    kind: &'static Kind,
    zones: &'i [&'d Directive],
    variables: &'i Variables<'d>,
    drafts: Vec<Draft<'d>>,
}

impl<'d> Collecting<'_, 'd> {
    /// Collects the limits in a block and in those inside.
    fn collect(&mut self, block: &Block<'d>, mut inherited: Inherited<'d>, document: &mut Document) {
        let kind = self.kind;
        inherited.status = block.own(kind.status).last().or(inherited.status);
        inherited.dry_run = block.own(kind.dry_run).last().or(inherited.dry_run);
        inherited.in_flight = block.own("limit_conn").last().or(inherited.in_flight);
        if block.answers_inside() {
            return leave_out(block.own(kind.limit), &block.taken.notes, document);
        }
        let is_server = block.directive.is_some_and(|directive| directive.name == "server");
        if is_server {
            inherited.server =
                Some(block.own("server_name").next().map_or("", |names| names.argument(0).trim_start_matches('.')));
        }
        let mut own: Vec<&Directive> = block.own(kind.limit).collect();
        if own.is_empty() {
            own = std::mem::take(&mut inherited.handed);
            // A block with other settings has the same limits by these.
            if own.is_empty() && block.directive.is_some() && block.has_settings(kind) {
                own.clone_from(&inherited.limits);
            }
        }
        if !own.is_empty() {
            inherited.limits.clone_from(&own);
            inherited.is_limited = true;
        }
        inherited.handed.clear();
        let is_by_server = block.directive.is_none() && own.iter().any(|limit| self.counts_servers(limit));
        if block.answers() || is_by_server || self.is_filled(block) {
            inherited.handed = std::mem::take(&mut own);
        }
        if !block.taken.is_reached {
            leave_out(own.drain(..), &block.taken.notes, document);
        }
        let mut taken = block.taken.clone();
        if !own.is_empty() {
            extend(&mut taken.notes, block.leaves());
            self.subtract(&mut taken, block);
        }
        self.add(&own, &taken, &inherited);
        self.collect_inside(block, &inherited, document);
    }

    fn collect_inside(&mut self, block: &Block<'d>, inherited: &Inherited<'d>, document: &mut Document) {
        let first = self.drafts.len();
        for inner in &block.inner {
            self.collect(inner, inherited.clone(), document);
            // Requests that a block without limits sends on are counted where they arrive.
            let is_counted = inherited.is_limited || inner.own(self.kind.limit).next().is_none();
            let sent = (!is_counted).then(|| inner.sent_here(block.directives));
            for sent in sent.into_iter().flatten() {
                for draft in self.drafts.iter_mut().skip(first).filter(|draft| draft.taken.scope == inner.taken.scope) {
                    draft.taken.notes.push(sent.origin.note(format!(
                        "nginx also counts what {} sends here; Weir sees the path of the client.",
                        piece(&sent.text())
                    )));
                }
            }
        }
    }

    /// Returns true if a limit counts each server by itself.
    fn counts_servers(&self, limit: &Directive) -> bool {
        let name = value(limit, "zone").unwrap_or_else(|| limit.argument(0));
        let zone = self.zones.iter().find(|zone| is_zone(zone, name));
        zone.is_some_and(|zone| self.variables.read(zone.argument(0)).contains(&"server_name"))
    }

    /// Returns true if blocks inside take all requests of a block, and some of them have limits of their own: the others have those of
    /// the block.
    fn is_filled(&self, block: &Block<'_>) -> bool {
        let is_http = block.directive.is_none();
        block
            .inner
            .iter()
            .filter(|inner| is_http || block.is_filled_by(inner))
            .any(|inner| self.is_own(inner) || inner.answers() || self.is_filled(inner))
    }

    fn is_own(&self, block: &Block<'_>) -> bool {
        block.own(self.kind.limit).next().is_some() || block.has_settings(self.kind)
    }

    /// Adds the limits of a block, each to one with the same numbers if there is one.
    fn add(&mut self, own: &[&'d Directive], taken: &Taken, inherited: &Inherited<'d>) {
        for directive in own {
            let status = inherited.status.map(|status| status.use_it().argument(0).parse());
            let draft = Draft {
                directive: directive.use_it(),
                kind: self.kind,
                taken: taken.clone(),
                status: status.and_then(Result::ok).filter(|status| *status != TOO_MANY_REQUESTS),
                is_shadow: inherited.dry_run.is_some_and(|dry_run| dry_run.use_it().argument(0) == "on"),
                in_flight: inherited.in_flight.filter(|_| self.kind.limit == "limit_req"),
                server: inherited.server.filter(|_| self.counts_servers(directive)),
            };
            match self.drafts.iter_mut().find_map(|known| Some((known.joined(&draft)?, known))) {
                Some((scope, known)) => {
                    known.taken.scope = scope;
                    extend(&mut known.taken.notes, draft.taken.notes);
                    extend(&mut known.taken.wider, draft.taken.wider);
                }
                None => self.drafts.push(draft),
            }
        }
    }

    /// Takes away what blocks inside count by their own limits, or answer before nginx counts.
    fn subtract(&self, taken: &mut Taken, block: &Block<'_>) {
        let mut others = Vec::new();
        self.apart(block, &mut others, &mut taken.notes);
        let (reached, mut unknown): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(other, _)| other.taken.is_reached || other.answers());
        if !taken.scope.subtract_all(reached.iter().map(|(_, scope)| scope)) {
            unknown.extend(reached);
        }
        taken.wider.extend(unknown.into_iter().filter_map(|(other, _)| other.directive).map(|directive| {
            let what = "has its own limits in nginx, and its requests count here, too: `match` cannot say which";
            directive.origin.note(format!("{} {what}.", piece(&directive.text())))
        }));
    }

    /// The blocks inside that have limits of this kind of their own, or none, with the requests that these take away. Notes tell of
    /// the others.
    fn apart<'b>(&self, block: &'b Block<'d>, found: &mut Vec<(&'b Block<'d>, Scope)>, notes: &mut Vec<String>) {
        for inner in block.inner.iter().filter(|inner| !inner.is_named()) {
            if self.is_own(inner) || inner.answers_inside() {
                found.push((inner, inner.taken.scope.clone()));
                continue;
            }
            if inner.answers() {
                let mut scope = inner.taken.scope.clone();
                // Locations inside do not inherit the answer.
                scope.subtract_all(inner.inner.iter().map(|inner| &inner.taken.scope));
                found.push((inner, scope));
            } else {
                extend(notes, inner.leaves());
            }
            self.apart(inner, found, notes);
        }
    }
}

/// Tells of limits that hold for no requests that Weir knows.
fn leave_out<'d>(limits: impl IntoIterator<Item = &'d Directive>, notes: &[String], document: &mut Document) {
    for directive in limits {
        if directive.state.get() == SettingState::Unread {
            directive.state.set(SettingState::Told);
        }
        let why = if notes.is_empty() { "nginx answers here before it counts.".to_owned() } else { joined(notes, " ") };
        document.unused(directive.origin.note(format!("{} is left out here: {why}", piece(&directive.text()))));
    }
}

fn extend(notes: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    for note in more {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
}

fn is_zone(zone: &Directive, name: &str) -> bool {
    value(zone, "zone").is_some_and(|zone| zone.split(':').next() == Some(name))
}

/// Counts the directives about limits, and tells of those that are not used.
fn sweep(directives: &[Directive], document: &mut Document) {
    for directive in directives {
        if directive.name.starts_with("limit_") || directive.name == "set_real_ip_from" {
            let is_used = directive.state.get() == SettingState::Used;
            document.count_settings(1, usize::from(is_used));
            if directive.state.get() == SettingState::Unread {
                let near = OTHERS.iter().find(|(name, _)| *name == directive.name).map(|(_, near)| *near);
                let near = near.unwrap_or("nothing in these files uses it where nginx counts.");
                document.unused(directive.origin.note(format!("{}: {near}", piece(&directive.text()))));
            }
        }
        let changes_status =
            directive.name == "error_page" && directive.arguments.iter().any(|argument| argument.starts_with('='));
        let is_denial = |argument: &String| ["503", "429"].contains(&argument.as_str());
        if changes_status && directive.arguments.iter().any(is_denial) {
            document.unused(directive.origin.note(format!(
                "{}: nginx answers denied requests by it; Weir with the status in `deny_with`.",
                piece(&directive.text())
            )));
        }
        if directive.name == "merge_slashes" && directive.argument(0) == "off" {
            let what = "Weir joins slashes before it looks for limits.";
            document.unused(directive.origin.note(format!("{}: {what}", piece(&directive.text()))));
        }
        sweep(&directive.block, document);
    }
}
