//! Compares the outcome of a request with the expectation of its step.

use std::fmt::Write;

use super::super::colors::Palette;
use super::super::print::joined;
use super::asking::{Asked, charges, id_of};
use super::output::TestFailure;
use crate::config::rule_tests::{Expectation, LimitExpectation, LimitVerdict, Step, Subject, Wait};
use crate::engine::algorithms::describe::Span;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::deciding::verdict::{LimitDecision, Verdict};
use crate::engine::limit::rules::Rules;
use crate::message::lossless;

/// A request that differs from what is expected.
pub(super) struct Difference {
    /// Counted from 1.
    step: usize,
    line: u32,
    /// The request, with its number if the step has several.
    subject: String,
    lines: Vec<Line>,
    /// The limits' decisions.
    decisions: Vec<String>,
}

/// One expected value that is not there.
pub(super) struct Line {
    what: String,
    expected: String,
    found: String,
}

/// The numbers of a step's requests that were allowed and denied.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    allowed: u64,
    denied: u64,
}

/// The request of a step that is compared.
pub(super) struct ComparedRequest<'a> {
    pub(super) rules: &'a Rules,
    pub(super) step: &'a Step,
    /// The number of the step, counted from 1.
    pub(super) position: usize,
    /// The number of the request in the step, counted from 0.
    pub(super) number: u64,
    /// Since the test's start.
    pub(super) at: Micros,
    /// The wall clock.
    pub(super) now: Micros,
}

impl Counts {
    pub(super) fn add(&mut self, asked: &Asked) {
        match asked.decided.as_ref().map(|decided| decided.verdict.is_allowed()) {
            Ok(true) => self.allowed += 1,
            Ok(false) => self.denied += 1,
            Err(_) => {}
        }
    }
}

impl ComparedRequest<'_> {
    /// Compares what a request has got. `counts` are those of the step, with its last request. `needs_redis`: the rules have
    /// limits that the store cannot count.
    pub(super) fn compare(&self, asked: &Asked, counts: Counts, needs_redis: bool) -> Result<(), Box<Difference>> {
        let mut found = Found(Vec::new());
        match &asked.decided {
            Err(reason) => self.rejected(reason, asked.status, &mut found),
            Ok(_) if asked.is_undecided() => {
                let why = if needs_redis { "; queues and scripts need `--store redis://...`" } else { "" };
                found.differs("verdict", "a decision", format!("the store did not answer{why}"));
            }
            Ok(decided) => {
                if let Some(expected) = &self.step.expectation {
                    self.each(expected, &decided.verdict, asked.status, &mut found);
                    if self.number + 1 == self.step.repeat {
                        self.last(expected, asked, &decided.verdict, counts, &mut found);
                    }
                }
            }
        }
        if found.0.is_empty() { Ok(()) } else { Err(Box::new(self.difference(found.0, asked))) }
    }

    fn rejected(&self, reason: &str, status: u16, found: &mut Found) {
        match &self.step.expectation {
            Some(Expectation { allowed: None, limit: None, status: Some(expected), .. }) => {
                found.number("status", Some((*expected).into()), Some(status.into()));
            }
            expected => {
                let expected = expected.as_ref().and_then(|expected| expected.allowed);
                found.differs("verdict", expected.map_or("a decision", word), format!("rejected: {reason}"));
            }
        }
    }

    /// Compares the fields that hold for each request of the step.
    fn each(&self, expected: &Expectation, verdict: &Verdict, status: u16, found: &mut Found) {
        let is_allowed = verdict.is_allowed();
        if let Some(expected) = expected.allowed.filter(|expected| *expected != is_allowed) {
            found.differs("verdict", word(expected), word(is_allowed));
        }
        let binding = verdict.binding().map_or("none", |answer| self.rules.name(answer.limit));
        if let Some(expected) = expected.limit.as_deref().filter(|expected| *expected != binding) {
            found.differs("limit", expected, binding);
        }
        found.number("status", expected.status.map(u64::from), Some(status.into()));
    }

    /// Compares the fields that hold for the last request of the step.
    fn last(&self, expected: &Expectation, asked: &Asked, verdict: &Verdict, counts: Counts, found: &mut Found) {
        found.number("allowed", expected.counts.0, Some(counts.allowed));
        found.number("denied", expected.counts.1, Some(counts.denied));
        let binding = verdict.binding();
        found.number("remaining", expected.remaining, binding.map(|answer| answer.decision.remaining));
        found.wait("retry_after", expected.retry_after, binding.map(|answer| wait(verdict.wait_by(answer))));
        found.wait("reset_after", expected.reset_after, binding.map(|answer| wait(answer.decision.reset_after)));
        found.delay("delay", expected.delay, Some(verdict.delay()));
        for (name, expected) in &expected.headers {
            let values: Vec<_> = asked.headers.all(name).map(|value| lossless::text(value).into_owned()).collect();
            let value = (!values.is_empty()).then(|| values.join(", "));
            if value != *expected {
                let shown =
                    |value: &Option<String>| value.as_ref().map_or("absent".into(), |value| format!("`{value}`"));
                found.differs(name, shown(expected), shown(&value));
            }
        }
        expected.limits.iter().for_each(|limit| self.limit(limit, verdict, found));
    }

    fn limit(&self, expected: &LimitExpectation, verdict: &Verdict, found: &mut Found) {
        let Some(place) = self.rules.limits().iter().position(|limit| limit.name == expected.name) else { return };
        let Ok(place) = u32::try_from(place) else { return };
        let name = &expected.name;
        let answers: Vec<&LimitDecision> = verdict.answers.iter().filter(|answer| answer.limit == place).collect();
        let part = || {
            if answers.iter().any(|answer| answer.is_short()) {
                let is_enforced = answers.iter().any(|answer| answer.is_enforced());
                return if is_enforced { LimitVerdict::Deny } else { LimitVerdict::WouldDeny };
            }
            let is_unlimited = || {
                let plan = charges(self.rules, &self.step.subject, self.now);
                plan.is_some_and(|plan| plan.unlimited.contains(&place))
            };
            match answers.is_empty() {
                false => LimitVerdict::Allow,
                true if is_unlimited() => LimitVerdict::Unlimited,
                true => LimitVerdict::None,
            }
        };
        if let Some(expected) = expected.verdict {
            let part = part();
            if part != expected {
                found.differs(name, expected.word(), part.word());
            }
        }
        if let Some(expected) = &expected.id {
            let id = id_of(self.rules, place, &self.step.subject, self.now).unwrap_or_else(|| "none".to_owned());
            if id != *expected {
                found.differs(&format!("{name} id"), expected, id);
            }
        }
        for (candidate, expected) in &expected.candidates {
            let mut decisions = verdict.candidate_decisions();
            let decision = decisions.find(|decision| (decision.limit, decision.candidate) == (place, *candidate));
            let part = match decision.map(|decision| decision.is_denied) {
                Some(true) => LimitVerdict::WouldDeny,
                Some(false) => LimitVerdict::Allow,
                None => LimitVerdict::None,
            };
            if part != *expected {
                let candidate = self.rules.candidate(place, *candidate).and_then(|candidate| candidate.name.as_deref());
                let what = candidate.map_or(format!("{name} candidate"), |named| format!("{name} candidate {named}"));
                found.differs(&what, expected.word(), part.word());
            }
        }
        // Of several windows, the strictest.
        let strictest = answers.iter().max_by(|a, b| a.decision.strictness(&b.decision));
        let burst = strictest.and_then(|answer| answer.counted_numbers()).map(Numbers::burst);
        found.number(&format!("{name} burst"), expected.burst, burst);
        let decision = strictest.map(|answer| answer.decision);
        found.number(&format!("{name} remaining"), expected.remaining, decision.map(|decision| decision.remaining));
        let of = |what: &str| format!("{name} {what}");
        let retry_after = strictest.map(|answer| wait(verdict.wait_by(answer)));
        found.wait(&of("retry_after"), expected.retry_after, retry_after);
        found.wait(&of("reset_after"), expected.reset_after, decision.map(|decision| wait(decision.reset_after)));
        let delay = answers.iter().map(|answer| answer.decision.delay()).max();
        found.delay(&of("delay"), expected.delay, delay);
    }

    fn difference(&self, lines: Vec<Line>, asked: &Asked) -> Difference {
        let mut subject = subject(&self.step.subject);
        if self.step.repeat > 1 {
            let _ = write!(subject, ", {} of {}", self.number + 1, self.step.repeat);
        }
        let _ = write!(subject, ", at {}", shown_span(self.at));
        let of =
            |verdict: &Verdict| verdict.answers.iter().map(|answer| decision(self.rules, verdict, answer)).collect();
        let decisions = asked.decided.as_ref().map(|decided| of(&decided.verdict)).unwrap_or_default();
        Difference { step: self.position, line: self.step.line, subject, lines, decisions }
    }
}

/// The differences so far.
struct Found(Vec<Line>);

impl Found {
    fn differs(&mut self, what: &str, expected: impl Into<String>, found: impl Into<String>) {
        self.0.push(Line { what: what.to_owned(), expected: expected.into(), found: found.into() });
    }

    fn number(&mut self, what: &str, expected: Option<u64>, found: Option<u64>) {
        if let Some(number) = expected.filter(|_| found != expected) {
            self.differs(what, number.to_string(), found.map_or("none".to_owned(), |found| found.to_string()));
        }
    }

    /// Compares a delay; `None` without a decision.
    fn delay(&mut self, what: &str, expected: Option<Micros>, found: Option<Micros>) {
        self.wait(what, expected.map(Wait::For), found.map(Wait::For));
    }

    /// Compares a wait; `None` without a decision.
    fn wait(&mut self, what: &str, expected: Option<Wait>, found: Option<Wait>) {
        if let Some(wait) = expected.filter(|_| found != expected) {
            self.differs(what, shown_wait(wait), found.map_or("none".to_owned(), shown_wait));
        }
    }
}

impl Difference {
    /// The step and each value that differs.
    pub(super) fn failure(&self, palette: Palette) -> TestFailure {
        let Palette { bad, good, .. } = palette;
        let mut details = format!("  step {}: {}\n", self.step, self.subject);
        let width = self.lines.iter().map(|line| line.what.len()).chain(["limits".len()]).max().unwrap_or_default();
        for Line { what, expected, found } in &self.lines {
            let _ = writeln!(details, "  {what:width$}  expected {good}{expected}{good:#}, got {bad}{found}{bad:#}");
        }
        for (place, decision) in self.decisions.iter().enumerate() {
            let what = if place == 0 { "limits" } else { "" };
            let _ = writeln!(details, "  {what:width$}  {decision}");
        }
        TestFailure { line: self.line, details }
    }
}

const fn word(is_allowed: bool) -> &'static str {
    if is_allowed { "allow" } else { "deny" }
}

fn wait(span: Option<Micros>) -> Wait {
    span.map_or(Wait::Never, Wait::For)
}

fn shown_wait(wait: Wait) -> String {
    match wait {
        Wait::For(span) => shown_span(span),
        Wait::Never => "never".to_owned(),
    }
}

fn shown_span(span: Micros) -> String {
    if span.0 == 0 { "0s".to_owned() } else { Span(span.0.saturating_mul(1_000)).to_string() }
}

fn subject(subject: &Subject) -> String {
    match subject {
        Subject::Request(request) => {
            let query = request.query.as_ref().map_or_else(String::new, |query| format!("?{query}"));
            format!("{} {}{query} from {}", request.method, request.path, request.client)
        }
        Subject::Charge(charge) => format!("a charge to {}", charge.limit),
        Subject::Descriptors(call) => {
            let entries = call.descriptors.iter().flatten().map(|(key, value)| format!("{key}={value}"));
            format!("{} in domain {}", joined(entries, ", "), call.domain)
        }
    }
}

/// A limit's decision, for people.
fn decision(rules: &Rules, verdict: &Verdict, answer: &LimitDecision) -> String {
    let decision = &answer.decision;
    let verb = match (answer.is_short(), answer.is_enforced()) {
        (false, _) => "allows",
        (true, true) => "denies",
        (true, false) => "would deny, in shadow",
    };
    let mut text = format!("{} {verb}", rules.name(answer.limit));
    if let Some(numbers) = answer.counted_numbers() {
        let _ = write!(text, ": {numbers}, {} left", decision.remaining);
    }
    if decision.delay > 0 {
        let _ = write!(text, ", delayed by {}", shown_span(decision.delay()));
    }
    match verdict.wait_by(answer) {
        Some(Micros(0)) => {}
        Some(wait) => {
            let _ = write!(text, ", retry after {}", shown_span(wait));
        }
        None => text.push_str(", retry never"),
    }
    text
}
