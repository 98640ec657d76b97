//! The differences as text, JSON and Markdown.

use std::fmt::Write;

use anstyle::Style;
use serde_json::{Map, Value, json};

use super::super::colors::Palette;
use super::super::print::{counted, joined};
use super::limits::{Change, LimitDiff, Presence};
use super::overrides::OverrideChange;
use crate::engine::telling::order::Effect;

/// The overrides of one limit that text and Markdown show.
const MOST_OVERRIDES: usize = 20;

/// The differences for a terminal.
pub(super) fn text(found: &[LimitDiff]) -> String {
    let palette = Palette::out();
    let name = palette.name;
    let mut text = String::new();
    for limit in found.iter().filter(|limit| limit.is_changed()) {
        let tone = tone(palette, limit.effect);
        let _ = writeln!(text, "{name}{}{name:#}: {tone}{}{tone:#}", title(limit), limit.verdict());
        for change in &limit.changes {
            let _ = writeln!(text, "  {:<15} {}", change.what, shown(change));
        }
        for (place, change) in limit.overrides.iter().take(MOST_OVERRIDES).enumerate() {
            let what = if place == 0 { "overrides" } else { "" };
            let _ = writeln!(text, "  {what:<15} {}", shown_override(change));
        }
        if limit.overrides.len() > MOST_OVERRIDES {
            let _ = writeln!(text, "  {:<15} and {} more", "", limit.overrides.len() - MOST_OVERRIDES);
        }
        let _ = writeln!(text, "  {:<15} {}\n", "buckets", limit.buckets);
    }
    text.push_str(&summary(found));
    text.push('\n');
    text
}

const fn tone(palette: Palette, effect: Effect) -> Style {
    match effect {
        Effect { stricter: true, .. } => palette.bad,
        Effect { looser: true, .. } => palette.good,
        Effect { .. } => palette.name,
    }
}

/// The differences as one JSON object.
pub(super) fn json(found: &[LimitDiff]) -> String {
    let limits: Map<String, Value> = found
        .iter()
        .filter(|limit| limit.is_changed())
        .map(|limit| {
            let changes = limit.changes.iter().map(|change| {
                json!({ "what": change.what, "from": change.from, "to": change.to, "note": change.note,
                    "stricter": change.effect.stricter, "looser": change.effect.looser })
            });
            let overrides = limit.overrides.iter().map(|change| {
                json!({ "override": change.label, "from": change.from, "to": change.to,
                    "stricter": change.effect.stricter, "looser": change.effect.looser })
            });
            let presence = match limit.presence {
                Presence::New => "new",
                Presence::Gone => "gone",
                Presence::Both => "changed",
            };
            let value = json!({
                "change": presence,
                "renamed_from": limit.renamed_from,
                "stricter": limit.effect.stricter,
                "looser": limit.effect.looser,
                "changes": changes.collect::<Vec<_>>(),
                "overrides": overrides.collect::<Vec<_>>(),
                "buckets": limit.buckets,
            });
            (limit.name.clone(), value)
        })
        .collect();
    let unchanged: Vec<_> = found.iter().filter(|limit| !limit.is_changed()).map(|limit| &limit.name).collect();
    let stricter = found.iter().any(|limit| limit.effect.stricter);
    let looser = found.iter().any(|limit| limit.effect.looser);
    let whole = json!({ "stricter": stricter, "looser": looser, "limits": limits, "unchanged": unchanged });
    format!("{whole:#}\n")
}

/// The differences as a table, for a comment on a change.
pub(super) fn markdown(found: &[LimitDiff]) -> String {
    let mut text = format!("**Limits: {}**\n", summary(found));
    if found.iter().any(LimitDiff::is_changed) {
        text.push_str("\n| limit | change | what | buckets |\n|---|---|---|---|\n");
    }
    for limit in found.iter().filter(|limit| limit.is_changed()) {
        let overrides =
            limit.overrides.iter().take(MOST_OVERRIDES).map(|change| format!("override {}", shown_override(change)));
        let more = limit.overrides.len().saturating_sub(MOST_OVERRIDES);
        let more = (more > 0).then(|| format!("and {} more", counted(more, "override")));
        let changes = limit.changes.iter().map(|change| format!("`{}` {}", change.what, shown(change)));
        let what = changes.chain(overrides).chain(more).map(|line| escaped(&line)).collect::<Vec<_>>().join("<br>");
        let verdict = limit.verdict();
        let verdict = if limit.effect.stricter { format!("**{verdict}**") } else { verdict.to_owned() };
        let _ = writeln!(text, "| {} | {verdict} | {what} | {} |", title(limit), escaped(&limit.buckets));
    }
    text
}

/// Text in a cell of a table.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;").replace(['\n', '\r'], " ")
}

fn title(limit: &LimitDiff) -> String {
    let was = limit.renamed_from.as_ref().map_or_else(String::new, |name| format!(" (was {name})"));
    format!("{}{was}", limit.name)
}

fn shown(change: &Change) -> String {
    let mut text = format!("{} -> {}", change.from, change.to);
    if !change.note.is_empty() {
        let _ = write!(text, ": {}", change.note);
    }
    with_effect(text, change.effect)
}

fn shown_override(change: &OverrideChange) -> String {
    let text = match (&change.from, &change.to) {
        (None, Some(to)) => format!("{}: new, {to}", change.label),
        (Some(from), None) => format!("{}: gone, was {from}", change.label),
        (from, to) => {
            let [from, to] = [from, to].map(|side| side.as_deref().unwrap_or("none"));
            format!("{}: {from} -> {to}", change.label)
        }
    };
    with_effect(text, change.effect)
}

fn with_effect(text: String, effect: Effect) -> String {
    if effect == Effect::NONE { text } else { format!("{text} ({})", effect.word()) }
}

type Test = fn(&LimitDiff) -> bool;

/// The number of limits by kind of change, such as `1 stricter, 2 unchanged`.
fn summary(found: &[LimitDiff]) -> String {
    let kinds: [(&str, Test); 7] = [
        ("new", |limit| limit.presence == Presence::New),
        ("gone", |limit| limit.presence == Presence::Gone),
        ("stricter", |limit| limit.presence == Presence::Both && limit.effect == Effect::STRICTER),
        ("looser", |limit| limit.presence == Presence::Both && limit.effect == Effect::LOOSER),
        ("stricter and looser", |limit| limit.presence == Presence::Both && limit.effect == Effect::BOTH),
        ("changed without effect on denials", |limit| {
            limit.presence == Presence::Both && limit.effect == Effect::NONE && limit.is_changed()
        }),
        ("unchanged", |limit| !limit.is_changed()),
    ];
    let counts = kinds.map(|(word, is)| (found.iter().filter(|limit| is(limit)).count(), word));
    let parts: Vec<_> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    if parts.is_empty() { "none".to_owned() } else { joined(parts, ", ") }
}
