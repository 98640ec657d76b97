//! Stick tables of HAProxy: rules that track a key, and rules that deny by what is counted of it.

use self::condition::{Counter, Terms, is_about_limits, key};
use self::grammar::{Line, Section, sections};
use super::document::Document;
use super::gateway::{By, GatewayLimit, Rate};
use super::scope::Scope;
use super::settings::SettingState;
use super::text::piece;
use crate::config::{Report, Source};
use crate::engine::text::duration;

mod condition;
mod grammar;

/// The actions that deny a request, with their default status; 0 if there is no answer.
const DENIALS: [(&str, u64); 5] = [("deny", 403), ("tarpit", 500), ("reject", 0), ("silent-drop", 0), ("return", 200)];

/// Weir's own status.
const TOO_MANY_REQUESTS: u64 = 429;

/// A rule that tracks a key.
struct Track<'s> {
    line: &'s Line,
    /// `sc0` or another one.
    counter: String,
    by: Vec<By>,
    table: String,
    scope: Scope,
    place: usize,
}

/// Adds the limits of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    let all: Vec<Section> = sources.iter().flat_map(sections).collect();
    document.head(
        "HAProxy answers denied requests with 403, unless the rule has a status. It counts in each process, Weir in all together if they \
         share a Redis. HAProxy compares paths as they are sent; here they are normalised, and equal with and without a slash at their end.",
    );
    for section in all.iter().filter(|section| ["frontend", "backend", "listen"].contains(&section.kind.as_str())) {
        match reached(section, &all) {
            Ok(scope) => import_section(section, &scope, &all, document),
            Err(why) => {
                let first =
                    section.lines.iter().find(|line| is_about_limits(line) && !line.starts_with(&["stick-table"]));
                if let Some(line) = first {
                    document.unused(
                        line.origin.note(format!("the limits of {} are left out: {why}.", piece(&section.name))),
                    );
                }
            }
        }
    }
    for line in all.iter().flat_map(|section| &section.lines).filter(|line| is_about_limits(line)) {
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
        "acl" => "no rule that Weir can express uses it.",
        _ => "no rule that Weir can express denies by it.",
    }
}

/// The requests that reach a section.
fn reached(section: &Section, all: &[Section]) -> Result<Scope, String> {
    if section.kind != "backend" {
        return Ok(Scope::default());
    }
    let mut found: Option<Scope> = None;
    for frontend in all.iter().filter(|other| ["frontend", "listen"].contains(&other.kind.as_str())) {
        let mut taken: Vec<Scope> = Vec::new();
        let uses = frontend.lines.iter().filter(|line| line.starts_with(&["use_backend"]));
        let defaults = frontend.lines.iter().filter(|line| line.starts_with(&["default_backend"]));
        for line in uses.chain(defaults) {
            let terms = frontend.terms(&line.words)?;
            for mut scope in terms.into_iter().map(|terms| terms.scope) {
                let own = scope.clone();
                if line.words.get(1) == Some(&section.name) {
                    if !scope.subtract_all(&taken) {
                        return Err(format!(
                            "`match` cannot say which requests reach it from line {}",
                            line.origin.line
                        ));
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
    found.ok_or_else(|| "no `use_backend` or `default_backend` names it".to_owned())
}

/// A rule that denies by a counter.
struct Denial<'s> {
    line: &'s Line,
    place: usize,
    action: &'s str,
    status: u64,
    lists: &'s [&'s Line],
}

/// Returns whether a rule tracks what a counter of the rule at this place counts.
fn counts(track: &Track<'_>, counter: &Counter, place: usize) -> bool {
    match counter.by.as_str() {
        "src" => track.by == [By::Address(128)] && counter.table.as_ref().is_none_or(|table| *table == track.table),
        by => *by == track.counter && track.place < place,
    }
}

/// The rules of a section that requests reach.
struct Rules<'s> {
    section: &'s Section,
    reached: &'s Scope,
    all: &'s [Section],
    tracks: Vec<Track<'s>>,
}

fn import_section(section: &Section, reached: &Scope, all: &[Section], document: &mut Document) {
    let mut rules = Rules { section, reached, all, tracks: Vec::new() };
    let tell = |line: &Line, why: String, document: &mut Document| {
        line.state.set(SettingState::Told);
        document.unused(line.origin.note(format!("{} is left out: {why}.", piece(&line.text()))));
    };
    for (place, line) in section.lines.iter().enumerate() {
        if let Some(counter) = line.words.iter().find_map(|word| word.strip_prefix("track-")) {
            match rules.track(line, place, counter) {
                Ok(track) => rules.tracks.push(track),
                Err(why) => tell(line, why, document),
            }
        }
    }
    for (place, line) in section.lines.iter().enumerate() {
        if let Err(why) = rules.deny(line, place, document) {
            tell(line, why, document);
        }
    }
}

impl<'s> Rules<'s> {
    fn track(&self, line: &'s Line, place: usize, counter: &str) -> Result<Track<'s>, String> {
        let by = key(line.after(&format!("track-{counter}")).unwrap_or_default())?;
        let terms = self.section.terms(&line.words)?;
        let first = terms.first().cloned().unwrap_or_default();
        let all = terms.iter().skip(1).try_fold(first, |all, next| all.or(next));
        let all = all.filter(|terms| terms.counters.is_empty()).ok_or("`match` cannot join its conditions")?;
        let scope =
            self.reached.and(&self.passed(line, place, all.scope)?).ok_or("`match` cannot join its conditions")?;
        let table = line.after("table").unwrap_or(&self.section.name).to_owned();
        Ok(Track { line, counter: counter.to_owned(), by, table, scope, place })
    }

    /// The requests that no rule before this one, of the same kind, lets pass at once.
    fn passed(&self, line: &Line, place: usize, mut scope: Scope) -> Result<Scope, String> {
        let earlier = self.section.lines.iter().take(place);
        for earlier in earlier.filter(|earlier| earlier.words.first() == line.words.first()) {
            let has = |names: &[&str]| earlier.words.iter().take(4).any(|word| names.contains(&word.as_str()));
            if has(&["deny", "reject", "tarpit", "return", "redirect", "silent-drop"]) {
                // What is denied before it counts, where `match` can say which.
                for terms in self.section.terms(&earlier.words).unwrap_or_default() {
                    if terms.counters.is_empty() {
                        let _ = scope.subtract(&terms.scope);
                    }
                }
                continue;
            }
            if !has(&["allow", "accept"]) {
                continue;
            }
            for terms in self.section.terms(&earlier.words)? {
                if !terms.counters.is_empty() || !scope.subtract(&terms.scope) {
                    return Err(format!("`match` cannot except what line {} lets pass", earlier.origin.line));
                }
            }
        }
        Ok(scope)
    }

    /// Writes the limits of a rule, if it denies by a counter.
    fn deny(&self, line: &Line, place: usize, document: &mut Document) -> Result<(), String> {
        let action = line.words.iter().take(4).find_map(|word| DENIALS.iter().find(|(name, _)| name == word));
        let is_rule = line.words.first().is_some_and(|first| first.ends_with("-request"));
        let Some((action, status)) = action.filter(|_| is_rule) else { return Ok(()) };
        let lists: Vec<&Line> = self.section.lists(line).collect();
        if !is_about_limits(line) && !lists.iter().any(|list| is_about_limits(list)) {
            return Ok(());
        }
        let given = line.after("deny_status").or(line.after("status")).and_then(|status| status.parse().ok());
        let status = given.unwrap_or(*status);
        for Terms { counters, scope } in self.section.terms(&line.words)? {
            let [counter] = counters.as_slice() else {
                return Err("it denies by none or by several counters at once".to_owned());
            };
            let tracks: Vec<&Track<'_>> = self.tracks.iter().filter(|track| counts(track, counter, place)).collect();
            if tracks.is_empty() {
                return Err(format!("nothing in this section tracks what `{}` counts", counter.by));
            }
            // The first rule that tracks by a counter counts a request.
            for (number, track) in tracks.iter().enumerate() {
                let before = tracks.get(..number).unwrap_or_default();
                if before.iter().all(|before| before.scope != Scope::default()) {
                    self.limit(
                        &Denial { line, place, action, status, lists: &lists },
                        counter,
                        &scope,
                        track,
                        before,
                        document,
                    )?;
                }
            }
        }
        Ok(())
    }

    fn limit(
        &self,
        denial: &Denial<'_>,
        counter: &Counter,
        scope: &Scope,
        track: &Track<'_>,
        before: &[&Track<'_>],
        document: &mut Document,
    ) -> Result<(), String> {
        let Denial { line, place, action, status, lists } = *denial;
        let (rate, table) = self.rate(counter, track, place, action)?;
        let limited = track.scope.and(scope).ok_or("`match` cannot join its conditions")?;
        let mut limited = self.passed(line, place, limited)?;
        let mut notes = notes(line, track, &limited, &rate, action);
        for before in before {
            if before.by.iter().any(|by| matches!(by, By::Header(_) | By::Query(_) | By::Cookie(_))) {
                notes.push(
                    before
                        .line
                        .origin
                        .note("HAProxy counts requests without this key by the next one; here they do not count."),
                );
            }
            if !limited.subtract(&before.scope) {
                notes.push(
                    before.line.origin.note(
                        "HAProxy counts some of these requests by this key instead, which `match` cannot except.",
                    ),
                );
            }
        }
        let named = |section: &'s Section| section.lines.iter().map(move |line| (section, line));
        let is_same = |section: &Section, other: &Line| {
            other.words.iter().any(|word| word.starts_with("track-"))
                && other.after("table").unwrap_or(&section.name) == track.table
                && !std::ptr::eq(other, track.line)
        };
        if let Some((_, other)) = self
            .all
            .iter()
            .flat_map(named)
            .find(|(section, other)| is_same(section, other) && section.name != self.section.name)
        {
            notes.push(
                other.origin.note("HAProxy counts this in the same table; here each limit has buckets of its own."),
            );
        }
        let limit = GatewayLimit {
            name: format!("{}-{}", self.section.name, counter.name).trim_start_matches('-').to_owned(),
            identity: format!("{}\n{} {:?}", track.table, counter.name, track.by),
            origin: line.origin.clone(),
            source: line.text(),
            notes,
            wider: Vec::new(),
            scope: limited,
            by: track.by.clone(),
            missing: None,
            rate,
            status: Some(status).filter(|status| *status >= 400 && *status != TOO_MANY_REQUESTS),
            is_shadow: false,
        };
        if limit.write(document) {
            let with_lists = lists.iter().copied().chain(self.section.lists(track.line));
            with_lists.chain([line, track.line, table]).for_each(|line| line.state.set(SettingState::Used));
        } else {
            line.state.set(SettingState::Told);
        }
        Ok(())
    }

    /// The rate of a counter, and the table that defines it.
    fn rate(&self, counter: &Counter, track: &Track<'_>, place: usize, action: &str) -> Result<(Rate, &Line), String> {
        let lines = |section: &'s Section| section.lines.iter();
        let tables = self.all.iter().filter(|section| section.name == track.table).flat_map(lines);
        let table = tables.into_iter().find(|line| line.starts_with(&["stick-table"]));
        let table = table.ok_or_else(|| format!("there is no table {}", piece(&track.table)))?;
        let store = table.words.iter().skip_while(|word| *word != "store").skip(1).flat_map(|words| words.split(','));
        let stored = store.into_iter().find(|word| word.split('(').next() == Some(&counter.name));
        let stored =
            stored.ok_or_else(|| format!("the table {} does not store `{}`", piece(&track.table), counter.name))?;
        // Looked up before it is counted, the request itself is not among those that count.
        let most = counter.most + u64::from(track.place > place);
        if most == 0 {
            return Err("it denies everything; write `deny: true`".to_owned());
        }
        let period = stored.split_once('(').map_or("", |(_, period)| period.trim_end_matches(')'));
        let is_bare = period.ends_with(|last: char| last.is_ascii_digit());
        let period = if is_bare { format!("{period}ms") } else { period.to_owned() };
        let rate = match counter.name.as_str() {
            "conn_cur" => Rate::InFlight(most),
            "http_req_rate" if action == "tarpit" => {
                let defaults = self.all.iter().filter(|section| section.kind == "defaults").flat_map(lines);
                let mut settings = self.section.lines.iter().chain(defaults);
                let wait =
                    settings.find(|line| line.starts_with(&["timeout", "tarpit"])).and_then(|line| line.words.get(2));
                let micros =
                    |text: &str| duration::parse(text).map(|nanos| nanos / 1_000).map_err(|(message, _)| message);
                Rate::Bucket {
                    burst: most,
                    count: most,
                    period: micros(&period)?,
                    delay: wait.map_or(Ok(0), |wait| micros(wait))?,
                }
            }
            "http_req_rate" => Rate::Windows {
                algorithm: "sliding_window",
                more: &[("count_denied", "true")],
                windows: vec![(most, period)],
            },
            "http_err_rate" | "http_fail_rate" => {
                return Err(format!(
                    "`{}` counts responses; a limit with `spend_when: {{ status: 4xx }}` is near",
                    counter.name
                ));
            }
            "http_req_cnt" => {
                return Err(
                    "`http_req_cnt` counts until an entry expires; `fixed_window` with that period is near".to_owned()
                );
            }
            name => return Err(format!("`{name}` counts connections or bytes, which no limit does")),
        };
        Ok((rate, table))
    }
}

/// The differences between a limit and its rule.
fn notes(line: &Line, track: &Track<'_>, limited: &Scope, rate: &Rate, action: &str) -> Vec<String> {
    let is_in_flight = matches!(rate, Rate::InFlight(_));
    let counts_connections = is_in_flight && !track.line.starts_with(&["http-request"]);
    let of_action = match action {
        "tarpit" if is_in_flight => Some("HAProxy holds what it denies before it answers; Weir answers at once."),
        "tarpit" => {
            Some("HAProxy holds what it denies and then answers; here requests wait until they fit, at most as long.")
        }
        "reject" | "silent-drop" => Some("HAProxy closes the connection without an answer."),
        _ => None,
    };
    let notes = [
        (track.scope != *limited).then_some(
            "HAProxy also counts requests that this rule does not deny; here only those count that it can deny.",
        ),
        counts_connections.then_some("HAProxy counts connections, also idle ones; here requests in flight count."),
        of_action,
    ];
    notes.into_iter().flatten().map(|note| line.origin.note(note)).collect()
}
