//! Shows in the reports how much limits would deny with other numbers.

use std::fmt::Write;

use serde_json::{Value, json};

use super::chart::{Drawn, Ticks, WIDE, figure};
use super::figures::{number_text, of};
use super::html::Text;
use crate::commands::print::joined;
use crate::simulation::curve::{Curve, Curves, Point};
use crate::simulation::record::Axis;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The curves of one limit in one rules file.
pub(super) struct Named<'r> {
    pub(super) file: &'r str,
    pub(super) curves: &'r Curves,
}

/// The number that is replaced, in words and in JSON.
const fn words(axis: Axis) -> (&'static str, &'static str) {
    match axis {
        Axis::Burst => ("burst", "burst"),
        Axis::Count => ("count", "count"),
        Axis::Both => ("burst and count", "both"),
    }
}

/// `burst and count 39: denies 763 of 11,396 requests (6.70%) of 1 of 27 ids (3.70%)`
fn point_text(axis: Axis, point: &Point, curves: &Curves) -> String {
    let requests = of(point.denied, curves.requests, "request");
    let ids = of(point.ids_denied, curves.ids, "id");
    format!("{} {}: denies {requests} of {ids}", words(axis).0, number_text(point.number))
}

/// `; Mon 76, Tue 310, ..`, or nothing if there is nothing to compare.
fn days_text(point: &Point, curves: &Curves) -> String {
    let days = DAYS.iter().zip(point.by_day).map(|(day, denied)| format!("{day} {}", number_text(denied)));
    if curves.spans_weeks && point.denied > 0 { format!("; {}", joined(days, ", ")) } else { String::new() }
}

/// For people: how much would be denied if the ids' peaks were the limit's numbers.
pub(super) fn text(curves: &Curves) -> Vec<String> {
    let Some(curve) = curves.curves.last() else { return Vec::new() };
    let mut told: Vec<(u64, String)> = Vec::new();
    for (name, number) in curves.peaks.named() {
        match told.last_mut().filter(|(last, _)| *last == number) {
            Some((_, names)) => *names = format!("{names}, {name}"),
            None => told.push((number, name.to_owned())),
        }
    }
    let line = |(number, names): (u64, String)| {
        let point = curve.points.iter().find(|point| point.number == number)?;
        let what = words(curve.axis).0;
        let denied = of(point.denied, curves.requests, "request");
        Some(format!("{} as {what} ({names} of the ids' peaks) denies {denied}", number_text(number)))
    };
    told.into_iter().filter_map(line).collect()
}

pub(super) fn json(curves: &Curves) -> Value {
    let point = |point: &Point| {
        let by_day = curves.spans_weeks.then_some(point.by_day);
        json!({ "number": point.number, "denied": point.denied, "ids_denied": point.ids_denied, "denied_by_day": by_day })
    };
    let curve = |curve: &Curve| (words(curve.axis).1.to_owned(), curve.points.iter().map(point).collect());
    let peaks = curves.peaks;
    json!({
        "requests": curves.requests,
        "ids": curves.ids,
        "peaks": { "p50": peaks.p50, "p90": peaks.p90, "p99": peaks.p99, "p999": peaks.p999, "max": peaks.most },
        "curves": Value::Object(curves.curves.iter().map(curve).collect()),
    })
}

/// Draws each curve of a limit; with those of another rules file, if there are two.
pub(super) fn html(page: &mut String, limit: &str, here: &Named<'_>, there: Option<&Named<'_>>) {
    for curve in &here.curves.curves {
        let (what, _) = words(curve.axis);
        let own = Shown { curve, curves: here.curves };
        let other = there.and_then(|there| {
            let curve = there.curves.curves.iter().find(|other| other.axis == curve.axis)?;
            Some((there, Shown { curve, curves: there.curves }))
        });
        let _ = write!(page, "<h4>By {what}</h4>");
        let others = other.as_ref().map(|(there, drawn)| (there.file, drawn));
        page.push_str(&draw(limit, &own, here.file, others));
    }
}

struct Shown<'r> {
    curve: &'r Curve,
    curves: &'r Curves,
}

/// The scale of shares: logarithmic from a tenth of a thousandth, so that few denials can be seen.
const SHARES: [(f64, &str); 5] = [(0.0, "0.01%"), (0.25, "0.1%"), (0.5, "1%"), (0.75, "10%"), (1.0, "100%")];

fn draw(limit: &str, own: &Shown<'_>, file: &str, other: Option<(&str, &Shown<'_>)>) -> String {
    let both = [Some(own), other.map(|(_, drawn)| drawn)].into_iter().flatten();
    let highest = both.filter_map(|drawn| drawn.curve.points.last()).map(|point| point.number).max().unwrap_or(1);
    let across = |number: u64| WIDE.at(logarithm(number) / logarithm(highest).max(1e-9));
    let what = words(own.curve.axis).0;
    let name = format!("{limit}: the share of requests and ids denied, by {what}");
    let ticks = powers(highest).map(|number| (across(number), number_text(number)));
    let mut drawing = String::new();
    for (name, number) in marks(own) {
        let x = across(number);
        let _ = write!(drawing, "<path d=\"M{x:.1} 8V{:.1}\" class=\"mark-line\"/>", WIDE.bottom());
        let _ = write!(
            drawing,
            "<text x=\"{x:.1}\" y=\"{:.1}\" class=\"turned\" transform=\"rotate(-90 {x:.1} 12)\">{name}</text>",
            9.0
        );
    }
    for (drawn, dashed) in [(Some(own), ""), (other.map(|(_, drawn)| drawn), " dashed")] {
        let Some(Shown { curve, curves }) = drawn else { continue };
        for (class, part, all) in [
            ("requests", (|point| point.denied) as fn(&Point) -> u64, curves.requests),
            ("ids", |point| point.ids_denied, curves.ids),
        ] {
            let places = curve
                .points
                .iter()
                .map(|point| format!("{:.1} {:.1}", across(point.number), WIDE.height_of(scaled(part(point), all))));
            let _ = write!(drawing, "<path d=\"M{}\" class=\"line {class}{dashed}\"/>", joined(places, "L"));
        }
    }
    let points = own.curve.points.iter().map(|point| {
        let mut text = point_text(own.curve.axis, point, own.curves) + &days_text(point, own.curves);
        if let Some((file, Shown { curve, curves })) = other {
            let same = curve.points.iter().find(|other| other.number >= point.number);
            if let Some(same) = same {
                let _ = write!(text, " ({file}: {})", point_text(curve.axis, same, curves));
            }
        }
        (across(point.number), text)
    });
    let present = if own.curve.axis == Axis::Count { own.curves.count } else { own.curves.burst };
    let at = own.curve.points.iter().position(|point| point.number >= present).unwrap_or_default();
    let other = other.map(|(file, _)| format!(", dashed by {}", Text(file))).unwrap_or_default();
    let by = if other.is_empty() { String::new() } else { format!(", by {}", Text(file)) };
    let caption = format!(
        "<span class=\"key-line requests\"></span>requests <span class=\"key-line ids\"></span>ids{by}{other}; marks: quantiles of the ids' peaks"
    );
    let ticks = Ticks {
        across: ticks.collect(),
        up: SHARES.map(|(share, text)| (WIDE.height_of(share), text.to_owned())).to_vec(),
    };
    figure(&Drawn { name, size: WIDE, ticks, drawing, caption, points: points.collect(), at })
}

/// The quantiles of the peaks, those with the same number together, and the present number.
fn marks(own: &Shown<'_>) -> Vec<(String, u64)> {
    let present = if own.curve.axis == Axis::Count { own.curves.count } else { own.curves.burst };
    let named = own.curves.peaks.named();
    let mut marks: Vec<(String, u64)> = Vec::new();
    for (name, number) in named.into_iter().chain([("now", present)]).filter(|(_, number)| *number > 0) {
        match marks.iter_mut().find(|(_, known)| *known == number) {
            Some((names, _)) => *names = format!("{names}, {name}"),
            None => marks.push((name.to_owned(), number)),
        }
    }
    marks
}

/// The powers of ten up to a number.
fn powers(highest: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(1_u64), |power| power.checked_mul(10)).take_while(move |power| *power <= highest)
}

#[expect(clippy::cast_precision_loss, reason = "it is rounded to a tenth of a unit")]
fn logarithm(number: u64) -> f64 {
    (number.max(1) as f64).log10()
}

#[expect(clippy::cast_precision_loss, reason = "it is rounded to a tenth of a unit")]
fn scaled(part: u64, all: u64) -> f64 {
    if part == 0 || all == 0 {
        return 0.0;
    }
    ((part as f64 / all as f64).log10() / 4.0 + 1.0).clamp(0.0, 1.0)
}
