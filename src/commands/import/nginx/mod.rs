//! `limit_req` and `limit_conn` of nginx.
//!
//! A limit holds in the block that has it, and in the blocks inside that have none of their kind. A zone is one set of
//! counters, wherever it is named.

use self::grammar::{Directive, Tree};
use self::key::Variables;
use self::location::Block;
use super::super::print::joined;
use super::document::Document;
use super::gateway::{By, GatewayLimit, Rate};
use super::scope::Scope;
use super::settings::SettingState;
use super::text::piece;
use crate::config::{Report, Source};

mod grammar;
pub(super) mod key;
mod location;

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

/// The most lines that a comment names.
const MOST_LINES: usize = 5;

/// Weir's own status.
const TOO_MANY_REQUESTS: u64 = 429;

/// A limit in the making: the same zone with the same numbers may stand in many blocks.
struct Draft<'d> {
    directive: &'d Directive,
    kind: &'static Kind,
    scope: Scope,
    notes: Vec<String>,
    wider: Vec<String>,
    status: Option<u64>,
    is_shadow: bool,
}

/// The directives in force in a block: those of the block, or of one around it.
#[derive(Clone, Default)]
struct Inherited<'d> {
    status: Option<&'d Directive>,
    dry_run: Option<&'d Directive>,
    is_limited: bool,
    /// The limits of `http` for servers that have none.
    handed: Vec<&'d Directive>,
    /// The limits in force.
    limits: Vec<&'d Directive>,
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
    let variables = Variables(
        variables
            .filter_map(|directive| Some((directive.arguments.last()?.strip_prefix('$')?.to_owned(), directive)))
            .collect(),
    );
    let root = Block::http(directives);
    for kind in &KINDS {
        let mut drafts = Vec::new();
        collect(&root, kind, Inherited::default(), &mut drafts, document);
        let zones = named(kind.zone);
        for (place, draft) in drafts.iter().enumerate() {
            let others = drafts.iter().enumerate().filter(|(other, _)| *other != place);
            let others: Vec<&Draft<'_>> =
                others.map(|(_, other)| other).filter(|other| zone_of(other) == zone_of(draft)).collect();
            draft.write(&zones, &variables, &others, document);
        }
    }
}

/// Collects the limits of a kind in a block and in those inside.
fn collect<'d>(
    block: &Block<'d>,
    kind: &'static Kind,
    mut inherited: Inherited<'d>,
    drafts: &mut Vec<Draft<'d>>,
    document: &mut Document,
) {
    inherited.status = block.own(kind.status).last().or(inherited.status);
    inherited.dry_run = block.own(kind.dry_run).last().or(inherited.dry_run);
    let mut own: Vec<&Directive> = block.own(kind.limit).collect();
    if block.answers() {
        return;
    }
    // What all servers would inherit, those without limits of their own do.
    let is_own = |inner: &Block<'d>| inner.answers() || inner.own(kind.limit).next().is_some();
    // A block with other settings has the same limits by these.
    if own.is_empty()
        && inherited.handed.is_empty()
        && block.directive.is_some()
        && block.has_settings(kind.status, kind.dry_run)
    {
        own.clone_from(&inherited.limits);
    }
    if own.is_empty() {
        own = std::mem::take(&mut inherited.handed);
    } else if block.directive.is_none() && block.inner.iter().any(is_own) {
        inherited.handed = std::mem::take(&mut own);
        inherited.is_limited = true;
    }
    if !block.is_reached {
        for directive in own.drain(..) {
            directive.state.set(SettingState::Told);
            let why = joined(&block.notes, " ");
            document.unused(directive.origin.note(format!("{} is left out here: {why}", piece(&directive.text()))));
        }
    }
    if !own.is_empty() {
        inherited.limits.clone_from(&own);
    }
    let mut scope = block.scope.clone();
    let mut notes = block.notes.clone();
    notes.extend(block.leave_before().map(|directive| {
        directive.origin.note(format!(
            "nginx does not count what {} answers or sends elsewhere; here it counts.",
            piece(&directive.text())
        ))
    }));
    let mut wider = Vec::new();
    if !own.is_empty() {
        subtract(&mut scope, block, kind, &mut wider);
    }
    add(&own, kind, (&scope, &notes, &wider), &inherited, drafts);
    let first = drafts.len();
    inherited.is_limited |= !own.is_empty();
    for inner in &block.inner {
        collect(inner, kind, inherited.clone(), drafts, document);
        // Requests that a block without limits sends on are counted where they arrive.
        let is_counted = inherited.is_limited || inner.own(kind.limit).next().is_none();
        let sent = (!is_counted).then(|| inner.sent_here(block.directives));
        for sent in sent.into_iter().flatten() {
            for draft in drafts.iter_mut().skip(first).filter(|draft| draft.scope == inner.scope) {
                draft.notes.push(sent.origin.note(format!(
                    "nginx also counts what {} sends here; Weir sees the path of the client.",
                    piece(&sent.text())
                )));
            }
        }
    }
}

/// Adds the limits of a block, each to one with the same numbers if there is one.
fn add<'d>(
    own: &[&'d Directive],
    kind: &'static Kind,
    (scope, notes, wider): (&Scope, &[String], &[String]),
    inherited: &Inherited<'d>,
    drafts: &mut Vec<Draft<'d>>,
) {
    for directive in own {
        let status = inherited.status.map(|status| status.use_it().argument(0).parse());
        let draft = Draft {
            directive: directive.use_it(),
            kind,
            scope: scope.clone(),
            notes: notes.to_vec(),
            wider: wider.to_vec(),
            status: status.and_then(Result::ok).filter(|status| *status != TOO_MANY_REQUESTS),
            is_shadow: inherited.dry_run.is_some_and(|dry_run| dry_run.use_it().argument(0) == "on"),
        };
        match drafts.iter_mut().find_map(|known| Some((known.joined(&draft)?, known))) {
            Some((scope, known)) => {
                known.scope = scope;
                known.notes.extend(draft.notes);
                known.wider.extend(draft.wider);
            }
            None => drafts.push(draft),
        }
    }
}

/// Takes away what blocks inside count by their own limits, or answer before nginx counts.
fn subtract(scope: &mut Scope, block: &Block<'_>, kind: &Kind, wider: &mut Vec<String>) {
    let mut others = Vec::new();
    apart(block, kind, &mut others);
    let (reached, mut unknown): (Vec<_>, Vec<_>) = others.into_iter().partition(|other| other.is_reached);
    if !scope.subtract_all(reached.iter().map(|other| &other.scope)) {
        unknown.extend(reached);
    }
    wider.extend(unknown.into_iter().filter_map(|other| other.directive).map(|directive| {
        let what = "has its own limits in nginx, and its requests count here, too: `match` cannot say which";
        directive.origin.note(format!("{} {what}.", piece(&directive.text())))
    }));
}

/// The blocks inside that have limits of this kind of their own, or none.
fn apart<'b, 'd>(block: &'b Block<'d>, kind: &Kind, found: &mut Vec<&'b Block<'d>>) {
    for inner in &block.inner {
        let is_own = inner.own(kind.limit).next().is_some() || inner.has_settings(kind.status, kind.dry_run);
        if !inner.is_named() && (inner.answers() || is_own) {
            found.push(inner);
        } else {
            apart(inner, kind, found);
        }
    }
}

fn zone_of<'d>(draft: &Draft<'d>) -> &'d str {
    if draft.kind.limit == "limit_conn" {
        draft.directive.argument(0)
    } else {
        value(draft.directive, "zone").unwrap_or_default()
    }
}

/// The value of an argument `name=value`.
fn value<'d>(directive: &'d Directive, name: &str) -> Option<&'d str> {
    directive.arguments.iter().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='))
}

impl Draft<'_> {
    /// The scope of both, if they share counters and numbers.
    fn joined(&self, other: &Self) -> Option<Scope> {
        let is_same = self.directive.arguments == other.directive.arguments
            && self.status == other.status
            && self.is_shadow == other.is_shadow;
        is_same.then(|| self.scope.or(&other.scope)).flatten()
    }

    fn write(&self, zones: &[&Directive], variables: &Variables<'_>, others: &[&Self], document: &mut Document) {
        let (name, origin) = (zone_of(self), &self.directive.origin);
        let leave_out = |document: &mut Document, why: String| {
            self.directive.state.set(SettingState::Told);
            document.unused(origin.note(format!("{}: {why}, so it is left out.", piece(&self.directive.text()))));
        };
        let zone_name =
            |zone: &&&Directive| value(zone, "zone").is_some_and(|zone| zone.split(':').next() == Some(name));
        let Some(zone) = zones.iter().find(zone_name) else {
            return leave_out(document, format!("there is no {} {}", self.kind.zone, piece(name)));
        };
        let rate = match self.rate(zone) {
            Ok(rate) => rate,
            Err(why) => return leave_out(document, why),
        };
        let cases = match variables.cases(zone.argument(0)) {
            Ok(cases) => cases,
            Err(why) => return leave_out(document, why),
        };
        let mut notes = self.notes.clone();
        if !others.is_empty() {
            let lines = joined(others.iter().map(|other| other.directive.origin.line).take(MOST_LINES), ", ");
            let more = if others.len() > MOST_LINES { " and others" } else { "" };
            notes.push(origin.note(format!(
                "nginx counts zone {} together with line {lines}{more}; here each has buckets of its own.",
                piece(name)
            )));
        }
        if zone.argument(0).contains("$server_name") && self.scope.hosts.any.len() > 1 {
            notes.push(origin.note("if these hosts are of several servers, nginx counts each server by itself."));
        }
        let is_split = |by: &[By]| cases.iter().filter(|case| case.by == by).count() > 1;
        if cases.iter().any(|case| is_split(&case.by)) {
            notes.push(origin.note(format!(
                "nginx counts the cases of {} together; here each has buckets of its own.",
                piece(zone.argument(0))
            )));
        }
        let is_first = others.iter().all(|other| other.directive.origin.line > origin.line);
        for (place, case) in cases.into_iter().enumerate() {
            let Some(scope) = case.scope.and_then(|scope| self.scope.and(&scope)) else {
                leave_out(document, "`match` cannot join the conditions of its key and of its block".to_owned());
                continue;
            };
            let limit = GatewayLimit {
                name: name.to_owned(),
                identity: if is_first && place == 0 {
                    name.to_owned()
                } else {
                    format!("{name}\n{scope:?} {:?}", case.by)
                },
                origin: origin.clone(),
                source: self.directive.text(),
                notes: notes.clone(),
                wider: self.wider.clone(),
                scope,
                by: case.by,
                missing: None,
                rate: rate.clone(),
                status: self.status,
                is_shadow: self.is_shadow,
            };
            if limit.write(document) {
                zone.use_it();
            } else {
                self.directive.state.set(SettingState::Told);
            }
        }
    }

    fn rate(&self, zone: &Directive) -> Result<Rate, String> {
        if self.kind.limit == "limit_conn" {
            let capacity = self.directive.argument(1);
            return capacity.parse().map(Rate::InFlight).map_err(|_| format!("invalid number {}", piece(capacity)));
        }
        let rate = value(zone, "rate").unwrap_or("1r/s");
        let (count, unit) = rate.split_once("r/").unwrap_or((rate, ""));
        let period = match unit {
            "s" => 1_000_000,
            "m" => 60_000_000,
            _ => return Err(format!("invalid rate {}", piece(rate))),
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("invalid number {}", piece(text)));
        let count =
            number(count).ok().filter(|count| *count > 0).ok_or_else(|| format!("invalid rate {}", piece(rate)))?;
        let burst = value(self.directive, "burst").map_or(Ok(0), number)?;
        let at_once = match value(self.directive, "delay") {
            _ if self.directive.arguments.iter().any(|argument| argument == "nodelay") => burst,
            Some(at_once) => number(at_once)?.min(burst),
            None => 0,
        };
        let delay = (burst - at_once).saturating_mul(period).div_ceil(count.max(1));
        Ok(Rate::Bucket { burst: at_once.saturating_add(1), count, period, delay })
    }
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
        sweep(&directive.block, document);
    }
}
