//! The rules of a section: those that track a key, and those that deny by it.

use super::super::document::Document;
use super::super::gateway::{By, GatewayLimit};
use super::super::scope::{Scope, Test};
use super::super::settings::SettingState;
use super::super::text::piece;
use super::condition::{Counter, Terms};
use super::differences;
use super::fetch::key;
use super::grammar::{Line, Moment, Phase, Section};
use super::rate::Stored;
use super::{frontends, without_answered};

/// The actions that deny a request, with their default status; 0 if there is no answer.
const DENIALS: [(&str, u64); 5] = [("deny", 403), ("tarpit", 500), ("reject", 0), ("silent-drop", 0), ("return", 200)];

/// Before the rules of a section.
const FIRST: Moment = (Phase::Connection, 0);

/// After them.
const LAST: Moment = (Phase::Http, usize::MAX);

/// Weir's own status.
const TOO_MANY_REQUESTS: u64 = 429;

/// A rule that tracks a key.
pub(super) struct Track<'s> {
    pub(super) line: &'s Line,
    pub(super) moment: Moment,
    /// The moment at which it counts a request.
    counted: Moment,
    /// `sc0` or another one.
    counter: String,
    pub(super) key: &'s str,
    pub(super) by: Vec<By>,
    table: String,
    /// The requests that its own conditions name.
    own: Scope,
    pub(super) scope: Scope,
}

/// A rule that denies by a counter.
pub(super) struct Denial<'s> {
    pub(super) line: &'s Line,
    moment: Moment,
    pub(super) action: &'s str,
    status: u64,
}

/// The rules of a section that requests reach.
struct Rules<'s> {
    section: &'s Section,
    reached: &'s Scope,
    all: &'s [Section],
    /// Those that send requests to it.
    frontends: Vec<&'s Section>,
    tracks: Vec<Track<'s>>,
}

pub(super) fn import_section(section: &Section, reached: &Scope, all: &[Section], document: &mut Document) {
    let mut rules = Rules { section, reached, all, frontends: frontends(section, all).collect(), tracks: Vec::new() };
    let tell = |line: &Line, why: String, document: &mut Document| {
        line.state.set(SettingState::Told);
        document.unused(line.origin.note(format!("{} is left out: {why}.", piece(&line.text()))));
    };
    let mut lines: Vec<(Moment, &Line)> = section.rules().collect();
    lines.sort_by_key(|(moment, _)| *moment);
    for (moment, line) in &lines {
        if line.action().starts_with("track-") {
            match rules.track(line, *moment) {
                Ok(track) => rules.tracks.push(track),
                Err(why) => tell(line, why, document),
            }
        }
    }
    for (moment, line) in lines {
        if let Err(why) = rules.deny(line, moment, document) {
            tell(line, why, document);
        }
    }
}

impl<'s> Rules<'s> {
    fn track(&self, line: &'s Line, moment: Moment) -> Result<Track<'s>, String> {
        let (_, action, rest) = line.rule().ok_or("it tracks nothing")?;
        let counter = action.trim_start_matches("track-");
        let key_text = rest.first().map_or("", String::as_str);
        let by = key(key_text)?;
        let terms = self.section.terms(&line.words)?;
        let first = terms.first().cloned().unwrap_or_default();
        let all = terms.iter().skip(1).try_fold(first, |all, next| all.or(next));
        let own = all.filter(|terms| terms.counters.is_empty()).ok_or("`match` cannot join its conditions")?.scope;
        let earlier = self.frontends.iter().flat_map(|frontend| frontend.rules());
        if let Some((_, earlier)) = earlier.into_iter().find(|(_, earlier)| earlier.action() == action) {
            return Err(format!("HAProxy counts by line {}, which tracks by `{counter}` before", earlier.origin.line));
        }
        let counted = moment.max((Phase::Counted, 0));
        let scope = self.passed(moment, counted, own.clone())?;
        let scope = self.reached.and(&scope).ok_or("`match` cannot join its conditions")?;
        let table = line.after("table").unwrap_or(&self.section.name).to_owned();
        Ok(Track { line, moment, counted, counter: counter.to_owned(), key: key_text, by, table, own, scope })
    }

    /// The requests that reach a rule, and then are counted or denied: no other one answers them before, or ends the rules of this phase.
    fn passed(&self, rule: Moment, counted: Moment, mut scope: Scope) -> Result<Scope, String> {
        without_answered(self.section, self.all, counted, &mut scope);
        let ends = |(earlier, line): &(Moment, &Line)| {
            earlier.0 == rule.0 && *earlier < rule && ["allow", "accept"].contains(&line.action())
        };
        for (_, earlier) in self.section.rules().filter(ends) {
            for terms in self.section.terms(&earlier.words)? {
                if !terms.counters.is_empty() || !scope.subtract(&terms.scope) {
                    return Err(format!("`match` cannot except what line {} lets pass", earlier.origin.line));
                }
            }
        }
        Ok(scope)
    }

    /// Writes the limits of a rule, if it denies by a counter.
    fn deny(&self, line: &'s Line, moment: Moment, document: &mut Document) -> Result<(), String> {
        let Some((action, status)) = DENIALS.iter().find(|(name, _)| *name == line.action()) else { return Ok(()) };
        if !self.section.is_about_limits(line) {
            return Ok(());
        }
        let given = line.after("deny_status").or(line.after("status")).and_then(|status| status.parse().ok());
        let denial = Denial { line, moment, action, status: given.unwrap_or(*status) };
        if (1..400).contains(&denial.status) {
            return Err(format!("it answers with status {}, which denies nothing", denial.status));
        }
        let (mut is_written, mut left_out) = (false, Vec::new());
        for terms in self.section.terms(&line.words)? {
            match self.limits(&denial, &terms, document) {
                Ok(()) => is_written = true,
                Err(why) => left_out.push(why),
            }
        }
        match left_out.into_iter().next() {
            Some(why) if is_written => {
                document.unused(line.origin.note(format!("a part of {} is left out: {why}.", piece(&line.text()))));
                Ok(())
            }
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// Writes the limits of one of a rule's conditions.
    fn limits(&self, denial: &Denial<'s>, terms: &Terms, document: &mut Document) -> Result<(), String> {
        let [counter] = terms.counters.as_slice() else {
            return Err(match terms.counters.len() {
                0 => "without a counter it denies all, as a limit with `deny: true` does",
                _ => "it denies by several counters at once",
            }
            .to_owned());
        };
        let tracks: Vec<&Track<'_>> =
            self.tracks.iter().filter(|track| self.counts(track, counter, denial.moment)).collect();
        if tracks.is_empty() {
            return Err(format!("nothing in this section tracks what `{}` counts there", counter.by));
        }
        // The first rule that tracks by a counter counts a request.
        for (number, track) in tracks.iter().enumerate() {
            let before =
                tracks.get(..number).unwrap_or_default().iter().filter(|before| before.counter == track.counter);
            let before: Vec<&Track<'_>> = before.copied().collect();
            if before.iter().all(|before| before.own != Scope::default()) {
                self.limit(denial, counter, &terms.scope, track, &before, document)?;
            }
        }
        Ok(())
    }

    /// Returns whether a rule tracks what a counter of the rule at this moment counts.
    fn counts(&self, track: &Track<'_>, counter: &Counter, moment: Moment) -> bool {
        match (counter.by.as_str(), &counter.table) {
            ("src", table) => {
                track.by == [By::Address(128)] && *table.as_ref().unwrap_or(&self.section.name) == track.table
            }
            (by, table) => {
                *by == track.counter
                    && track.moment < moment
                    && table.as_ref().is_none_or(|table| *table == track.table)
            }
        }
    }

    fn limit(
        &self,
        denial: &Denial<'s>,
        counter: &Counter,
        scope: &Scope,
        track: &Track<'s>,
        before: &[&Track<'s>],
        document: &mut Document,
    ) -> Result<(), String> {
        let Denial { line, moment, action, status } = *denial;
        let stored = Stored::of(counter, &track.table, self.all)?;
        // Looked up before it is counted, the request itself is not among those that count.
        let is_of_requests = counter.name.starts_with("http_");
        let counted = if is_of_requests { track.counted } else { track.moment };
        let most = counter.most + u64::from(counted > moment);
        if most == 0 {
            return Err("it denies everything; write `deny: true`".to_owned());
        }
        let limited = track.scope.and(scope).ok_or("`match` cannot join its conditions")?;
        let mut limited = self.passed(moment, moment, limited)?;
        let deniers = if is_of_requests && action != "tarpit" { self.deniers(track, &limited) } else { Vec::new() };
        let rate = stored.rate(most, action, deniers.is_empty(), self.section, self.all)?;
        let mut notes = differences::of_rule(denial, track, &limited, &rate);
        notes.extend(Self::of_fallback(before, &mut limited));
        let (mut wider, is_wider) = differences::of_key(track, stored.line);
        if !is_wider {
            notes.append(&mut wider);
        }
        notes.extend(self.of_others(denial, scope, track, &deniers, counter.by == "src"));
        wider.extend(self.of_changes(track, &limited, moment));
        wider.extend([line, track.line, stored.line].into_iter().filter_map(|line| {
            line.branch.map(|branch| line.origin.note(format!("HAProxy reads it by the condition in line {branch}.")))
        }));
        if stored.forgets() {
            wider.push(stored.line.origin.note(
                "HAProxy forgets an id that makes no request for the time in `expire`, which is shorter than the period.",
            ));
        }
        if stored.line.after("type") == Some("ip") && track.by == [By::Address(128)] && self.has_ipv6() {
            limited.networks.exclude(&[Test::network("::/0")]);
        }
        let limit = GatewayLimit {
            name: format!("{}-{}", self.section.name, counter.name).trim_start_matches('-').to_owned(),
            identity: format!("{}\n{} ", track.table, counter.name),
            origin: line.origin.clone(),
            source: line.text(),
            notes,
            wider,
            scope: limited,
            by: track.by.clone(),
            missing: None,
            rate,
            status: Some(status).filter(|status| *status >= 400 && *status != TOO_MANY_REQUESTS),
            is_shadow: false,
        };
        if limit.write(document) {
            let lists = self.section.lists(line).chain(self.section.lists(track.line));
            lists.chain([line, track.line, stored.line]).for_each(|line| line.state.set(SettingState::Used));
        } else {
            line.state.set(SettingState::Told);
        }
        Ok(())
    }
    /// The rules before which a request is not counted, and which may deny one of these by a counter.
    fn deniers(&self, track: &Track<'s>, limited: &Scope) -> Vec<&'s Line> {
        let denies = |section: &Section, line: &Line| {
            let terms = section.terms(&line.words).unwrap_or_default();
            DENIALS.iter().any(|(name, _)| *name == line.action())
                && terms.iter().any(|terms| !terms.counters.is_empty() && !is_apart(limited, &terms.scope))
        };
        let before = self.section.rules().filter(|(moment, _)| *moment < track.counted);
        let before = before.map(|(_, line)| line).filter(|line| denies(self.section, line));
        let theirs = self
            .frontends
            .iter()
            .flat_map(|frontend| frontend.rules().map(|(_, line)| line).filter(|line| denies(frontend, line)));
        theirs.chain(before).collect()
    }

    /// Excludes what other rules count instead, and tells what they also count.
    fn of_fallback(before: &[&Track<'s>], limited: &mut Scope) -> Vec<String> {
        let mut notes = Vec::new();
        for before in before {
            if before.by.iter().any(|by| matches!(by, By::Header(_) | By::Query(_) | By::Cookie(..))) {
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
        notes
    }

    /// The differences that come from other rules.
    fn of_others(
        &self,
        denial: &Denial<'s>,
        scope: &Scope,
        track: &Track<'s>,
        deniers: &[&Line],
        is_lookup: bool,
    ) -> Vec<String> {
        let mut notes = Vec::new();
        if !deniers.is_empty() && !deniers.iter().any(|line| std::ptr::eq(*line, denial.line)) {
            notes.push(denial.line.origin.note(format!(
                "HAProxy counts what this rule denies, but not what {} denied before; here only what passes counts.",
                differences::numbers(deniers)
            )));
        }
        if is_lookup && track.own.and(scope).as_ref() != Some(scope) {
            notes.push(
                denial.line.origin.note(
                    "HAProxy also denies requests that it does not count; here only those are denied that count.",
                ),
            );
        }
        let sections = self.frontends.iter().copied().chain([self.section]);
        let unclear: Vec<&Line> = sections
            .flat_map(|section| {
                let until = if std::ptr::eq(section, self.section) { track.counted } else { LAST };
                without_answered(section, self.all, until, &mut Scope::default())
            })
            .collect();
        if !unclear.is_empty() {
            notes.push(track.line.origin.note(format!(
                "HAProxy answers requests by {} before it counts them; here they count.",
                differences::numbers(&unclear)
            )));
        }
        let is_same = |section: &Section, other: &Line| {
            other.action().starts_with("track-")
                && other.after("table").unwrap_or(&section.name) == track.table
                && !std::ptr::eq(other, track.line)
                && !(std::ptr::eq(section, self.section) && other.action() == track.line.action())
        };
        let mut others = self.all.iter().flat_map(|section| section.lines.iter().map(move |line| (section, line)));
        if let Some((_, other)) = others.find(|(section, other)| is_same(section, other)) {
            notes.push(
                other.origin.note("HAProxy counts this in the same table; here each limit has buckets of its own."),
            );
        }
        notes
    }

    /// Why rules that change a request make the limit another one.
    fn of_changes(&self, track: &Track<'s>, limited: &Scope, moment: Moment) -> Vec<String> {
        let theirs = self.frontends.iter().flat_map(|frontend| frontend.rules()).map(|(_, line)| (FIRST, line));
        let lines = differences::changes(theirs.chain(self.section.rules()), track, limited, moment);
        let why = "HAProxy changes what the limit reads of a request before; Weir reads requests as they come.";
        lines.into_iter().map(|line| line.origin.note(why)).collect()
    }

    /// Returns whether clients may have IPv6 addresses.
    fn has_ipv6(&self) -> bool {
        let sections = self.frontends.iter().copied().chain([self.section]);
        let binds = sections.flat_map(|section| &section.lines).filter(|line| line.starts_with(&["bind"]));
        binds.filter_map(|line| line.words.get(1)).any(|address| address.contains("::") || address.contains("ipv6@"))
    }
}

/// Returns true if it is known that no request is in both.
fn is_apart(own: &Scope, other: &Scope) -> bool {
    let mut left = own.clone();
    left.subtract(other) && left == *own && *other != Scope::default()
}
