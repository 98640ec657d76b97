//! Stick tables of HAProxy: rules that track a key, and rules that deny by what is counted of it.

use self::grammar::{Line, Moment, Phase, Section, sections};
use self::rules::import_section;
use super::document::Document;
use super::scope::{Condition, Scope, Test};
use super::settings::SettingState;
use super::text::piece;
use crate::config::{Report, Source};

mod condition;
mod differences;
mod fetch;
mod grammar;
mod rate;
mod rules;

/// The actions by which HAProxy answers a request itself, or ends its connection.
const ANSWERS: [&str; 8] = ["deny", "reject", "tarpit", "return", "redirect", "silent-drop", "auth", "use-service"];

/// Adds the limits of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    let all: Vec<Section> = sources.iter().flat_map(sections).collect();
    document.head(
        "HAProxy answers denied requests with 403, unless the rule has a status. It counts in each process, Weir in all together if they \
         share a Redis, and forgets what no longer fits into a table. HAProxy compares paths, hosts and queries as they are sent, hosts with \
         their port; here they are normalised, paths are equal with and without a slash at their end, and hosts and names of \
         parameters have no case.",
    );
    for section in all.iter().filter(|section| section.is_frontend() || section.kind == "backend") {
        match reached(section, &all) {
            Ok(scope) => import_section(section, &scope, &all, document),
            Err(why) => {
                let is_rule = |line: &&Line| section.is_about_limits(line) && !line.starts_with(&["stick-table"]);
                if let Some(line) = section.lines.iter().find(is_rule) {
                    document.unused(
                        line.origin.note(format!("the limits of {} are left out: {why}.", piece(&section.name))),
                    );
                }
            }
        }
    }
    let forwards = |section: &&Section| {
        let is_tcp = section.setting(&["mode"], &all).is_some_and(|line| line.starts_with(&["mode", "tcp"]));
        let ways = ["use_backend", "default_backend", "server"];
        !is_tcp && section.is_frontend() && ways.iter().any(|way| section.setting(&[way], &all).is_some())
    };
    if let Some(second) = all.iter().filter(forwards).nth(1).filter(|_| document.counts().limits > 0) {
        document.unused(second.origin.note(
            "HAProxy limits requests by the frontend to which they come, which `match` cannot name: here the limits of each hold for \
             all requests. Give each frontend a Weir with its own limits, or say in `match` what its requests have in common.",
        ));
    }
    let lines = all.iter().flat_map(|section| section.lines.iter().map(move |line| (section, line)));
    for (_, line) in lines.filter(|(section, line)| section.is_about_limits(line)) {
        document.count_settings(1, usize::from(line.state.get() == SettingState::Used));
        if line.state.get() == SettingState::Unread {
            document.unused(line.origin.note(format!("{}: {}", piece(&line.text()), near(line))));
        }
    }
    Report::default()
}

fn near(line: &Line) -> &'static str {
    match line.words.first().map_or("", String::as_str) {
        "stick-table" => "no rule that Weir can express denies by this table.",
        "rate-limit" => {
            "it slows down new connections; `--max-connections` bounds them, and a limit with `by: global` and `delay` is near."
        }
        "maxconn" => "it bounds connections, which `--max-connections` does.",
        "acl" => "no rule that Weir can express uses it.",
        _ => "no rule that Weir can express denies by it.",
    }
}

/// The rules by which a frontend sends requests to backends, in their order.
fn ways<'s>(frontend: &'s Section, all: &'s [Section]) -> impl Iterator<Item = &'s Line> {
    let uses = frontend.lines.iter().filter(|line| line.starts_with(&["use_backend"]));
    uses.chain(frontend.setting(&["default_backend"], all))
}

/// The frontends that send requests to a section.
fn frontends<'s>(section: &'s Section, all: &'s [Section]) -> impl Iterator<Item = &'s Section> {
    let leads = move |line: &Line| section.kind == "backend" && line.words.get(1) == Some(&section.name);
    all.iter().filter(move |other| other.is_frontend() && ways(other, all).any(leads))
}

/// The requests that reach a section.
fn reached(section: &Section, all: &[Section]) -> Result<Scope, String> {
    if section.kind != "backend" {
        return Ok(Scope::default());
    }
    let mut found: Option<Scope> = None;
    for frontend in all.iter().filter(|other| other.is_frontend()) {
        let mut taken: Vec<Scope> = Vec::new();
        for line in ways(frontend, all) {
            let unclear = || format!("`match` cannot say which requests reach it from line {}", line.origin.line);
            let terms = frontend.terms(&line.words)?;
            if terms.iter().any(|terms| !terms.counters.is_empty()) {
                return Err(unclear());
            }
            for mut scope in terms.into_iter().map(|terms| terms.scope) {
                let own = scope.clone();
                if line.words.get(1) == Some(&section.name) {
                    if !scope.subtract_all(&taken) {
                        return Err(unclear());
                    }
                    found = Some(match found {
                        None => scope,
                        Some(known) => {
                            known.or(&scope).ok_or("`match` cannot join the conditions of its `use_backend` rules")?
                        }
                    });
                }
                taken.push(own);
            }
        }
    }
    let mut scope = found.ok_or("no `use_backend` or `default_backend` names it")?;
    let mut frontends = frontends(section, all);
    if let (Some(only), None) = (frontends.next(), frontends.next()) {
        without_answered(only, all, (Phase::Http, usize::MAX), &mut scope);
    }
    Ok(scope)
}

/// Takes away the requests that a section answers before this moment. Returns the lines that answer others, which `match` cannot name.
fn without_answered<'s>(section: &'s Section, all: &[Section], moment: Moment, scope: &mut Scope) -> Vec<&'s Line> {
    let mut answered = Vec::new();
    if let Some(path) = section.setting(&["monitor-uri"], all).and_then(|line| line.words.get(1))
        && section.is_frontend()
        && moment > (Phase::Counted, 0)
    {
        answered.push(Scope { paths: Condition::of([Test::is(path)]), ..Scope::default() });
    }
    let mut unclear = Vec::new();
    for (_, line) in section.rules().filter(|(earlier, line)| *earlier < moment && ANSWERS.contains(&line.action())) {
        match section.terms(&line.words) {
            Ok(terms) => {
                answered.extend(terms.into_iter().filter(|terms| terms.counters.is_empty()).map(|terms| terms.scope));
            }
            Err(_) => unclear.push(line),
        }
    }
    if !scope.subtract_all(&answered) {
        unclear.extend(section.lines.iter().filter(|line| ANSWERS.contains(&line.action())));
    }
    unclear
}
