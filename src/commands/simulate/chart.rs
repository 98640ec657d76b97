//! Charts: what is admitted over time and on top of it what is denied, and the axes that all drawings have.

use std::cmp::Reverse;
use std::fmt::Write;

use serde_json::{Value, json};

use super::figures::{instant, number_text, span};
use super::html::Text;
use crate::simulation::series::{Series, Slice};

/// Hatches what is denied, so that it can be told apart without colours. In the page once, for all charts.
pub(super) const HATCH: &str = "<svg width=\"0\" height=\"0\" class=\"hidden\" aria-hidden=\"true\"><defs>\
    <pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
    <path d=\"M0 0V6\" class=\"hatch\"/></pattern></defs></svg>\n";

/// The size of a drawing in its units.
#[derive(Clone, Copy)]
pub(super) struct Size {
    width: f64,
    height: f64,
}

/// A chart as wide as the page.
pub(super) const WIDE: Size = Size { width: 760.0, height: 170.0 };

/// One of two beside each other.
pub(super) const HALF: Size = Size { width: 420.0, height: 140.0 };

/// The margins for the labels.
const LEFT: f64 = 56.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 22.0;

/// The labels of a drawing's axes, with their places.
pub(super) struct Ticks {
    pub(super) across: Vec<(f64, String)>,
    pub(super) up: Vec<(f64, String)>,
}

/// Draws a column of a series.
pub(super) fn chart(series: &Series, column: usize, name: &str, size: Size) -> String {
    let slices = series.column(column);
    // All charts of a page show the same time.
    let count = series.column(0).len().max(slices.len());
    let Some(highest) = slices.iter().map(total).max().filter(|highest| *highest > 0) else {
        return "<p class=\"muted\">No requests</p>".to_owned();
    };
    let top = round_up(highest);
    let [admitted, denied] = [sum(slices, |slice| slice.admitted), sum(slices, |slice| slice.denied)].map(number_text);
    let name = format!("{name}: {admitted} requests admitted and {denied} denied over time");
    let area = |heights: &dyn Fn(&Slice) -> (u64, u64)| area(slices, count, top, size, heights);
    let drawing = format!(
        "<path d=\"{}\" class=\"admitted\"/><path d=\"{}\" class=\"denied\"/>",
        area(&|slice| (0, slice.admitted)),
        area(&|slice| (slice.admitted, total(slice)))
    );
    let width = span(series.width());
    let caption = format!(
        "<span class=\"key-admitted\"></span>{admitted} admitted <span class=\"key-denied\"></span>{denied} denied, requests \
         in {width}"
    );
    let text = |place: usize| {
        let Slice { admitted, denied } = slices.get(place).copied().unwrap_or_default();
        let [admitted, denied] = [admitted, denied].map(number_text);
        format!("{}: {admitted} admitted, {denied} denied", instant(series.start(place)))
    };
    let points = (0..count).map(|place| (size.middle_of(place, count), text(place))).collect();
    let worst = (0..).zip(slices).max_by_key(|(place, slice)| (slice.denied, Reverse(*place)));
    figure(&Drawn {
        name,
        size,
        ticks: time_ticks(series, count, top, size),
        drawing,
        caption,
        points,
        at: worst.map_or(0, |(at, _)| at),
    })
}

/// Draws what is denied in a column of each of two series, one line each. `files` are their names.
pub(super) fn denied_over_time(both: [&Series; 2], columns: [usize; 2], name: &str, files: [&str; 2]) -> String {
    let slices = [0, 1].map(|side| both[side].column(columns[side]));
    let count = both.map(|series| series.column(0).len()).into_iter().max().unwrap_or_default();
    let denied = |side: usize, place: usize| slices[side].get(place).map_or(0, |slice| slice.denied);
    let highest = (0..count).flat_map(|place| [denied(0, place), denied(1, place)]).max().unwrap_or_default();
    if highest == 0 {
        return String::new();
    }
    let top = round_up(highest);
    let line = |side: usize| {
        let steps = (0..count).map(|place| {
            let (from, to, up) =
                (WIDE.across(place, count), WIDE.across(place + 1, count), WIDE.up(denied(side, place), top));
            format!("{}{from:.1} {up:.1}H{to:.1}", if place == 0 { "M" } else { "L" })
        });
        steps.collect::<String>()
    };
    let drawing = format!(
        "<path d=\"{}\" class=\"line requests\"/><path d=\"{}\" class=\"line requests dashed\"/>",
        line(0),
        line(1)
    );
    let [here, there] = files;
    let text = |place: usize| {
        let [ours, theirs] = [denied(0, place), denied(1, place)].map(number_text);
        format!("{}: {ours} denied by {here}, {theirs} by {there}", instant(both[0].start(place)))
    };
    let points = (0..count).map(|place| (WIDE.middle_of(place, count), text(place))).collect();
    let caption = format!(
        "<span class=\"key-line requests\"></span>denied by {}, dashed by {}, requests in {}",
        Text(here),
        Text(there),
        span(both[0].width())
    );
    let name = format!("{name}: requests denied over time by {here} and by {there}");
    figure(&Drawn { name, size: WIDE, ticks: time_ticks(both[0], count, top, WIDE), drawing, caption, points, at: 0 })
}

fn time_ticks(series: &Series, count: usize, top: u64, size: Size) -> Ticks {
    let up = [0, top / 2, top].map(|tick| (size.up(tick, top), number_text(tick))).to_vec();
    let across = [(0, LEFT), (count, size.width)].map(|(place, x)| (x, instant(series.start(place)))).to_vec();
    Ticks { across, up }
}

/// A drawing, and what it says at each of its points.
pub(super) struct Drawn {
    /// For screen readers.
    pub(super) name: String,
    pub(super) size: Size,
    pub(super) ticks: Ticks,
    pub(super) drawing: String,
    /// HTML.
    pub(super) caption: String,
    /// The places across the drawing, with what is there.
    pub(super) points: Vec<(f64, String)>,
    /// The point that is shown first.
    pub(super) at: usize,
}

/// Draws the axes around a drawing, with a slider over its points. `report.js` moves it.
pub(super) fn figure(drawn: &Drawn) -> String {
    let Size { width, height } = drawn.size;
    let name = Text(&drawn.name);
    let points: Vec<_> =
        drawn.points.iter().map(|(across, text)| json!([(across * 10.0).round() / 10.0, text])).collect();
    let points = Value::from(points).to_string();
    let mut html = format!(
        "<figure data-points=\"{}\" data-at=\"{}\"><svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{name}\">",
        Text(&points),
        drawn.at
    );
    for (y, label) in &drawn.ticks.up {
        let _ = write!(html, "<path d=\"M{LEFT} {y:.1}H{width}\" class=\"grid\"/>");
        let _ = write!(html, "<text x=\"{:.1}\" y=\"{:.1}\" class=\"end\">{label}</text>", LEFT - 6.0, y + 4.0);
    }
    html.push_str(&drawn.drawing);
    for (x, label) in &drawn.ticks.across {
        let class = if *x <= LEFT {
            "start"
        } else if *x >= width {
            "end"
        } else {
            "middle"
        };
        let _ = write!(html, "<text x=\"{x:.1}\" y=\"{:.1}\" class=\"{class}\">{label}</text>", height - 4.0);
    }
    let _ = write!(
        html,
        "</svg><input type=\"range\" min=\"0\" hidden aria-label=\"{name}\"><output></output><figcaption>{}</figcaption></figure>",
        drawn.caption
    );
    html
}

/// Groups the columns with the same requests in each slice. Columns that are alone are left out.
pub(super) fn same_load(series: &Series, columns: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let load = |column: usize| series.column(column).iter().map(total);
    for column in columns.filter(|column| load(*column).any(|total| total > 0)) {
        let same = groups.iter_mut().find(|group| group.first().is_some_and(|first| load(*first).eq(load(column))));
        match same {
            Some(group) => group.push(column),
            None => groups.push(vec![column]),
        }
    }
    groups.retain(|group| group.len() > 1);
    groups
}

fn total(slice: &Slice) -> u64 {
    slice.admitted + slice.denied
}

fn sum(slices: &[Slice], of: impl Fn(&Slice) -> u64) -> u64 {
    slices.iter().map(of).sum()
}

/// The path of the steps between the two heights of each slice. Slices without height are left out.
fn area(slices: &[Slice], count: usize, top: u64, size: Size, heights: impl Fn(&Slice) -> (u64, u64)) -> String {
    let mut path = String::new();
    for (place, slice) in slices.iter().enumerate() {
        let (low, high) = heights(slice);
        if low < high {
            let (left, right) = (size.across(place, count), size.across(place + 1, count));
            let (low, high) = (size.up(low, top), size.up(high, top));
            let _ = write!(path, "M{left:.1} {low:.1}V{high:.1}H{right:.1}V{low:.1}Z");
        }
    }
    path
}

impl Size {
    #[expect(clippy::cast_precision_loss, reason = "there are a few hundred slices")]
    fn across(self, place: usize, count: usize) -> f64 {
        self.at(place as f64 / count as f64)
    }

    #[expect(clippy::cast_precision_loss, reason = "there are a few hundred slices")]
    fn middle_of(self, place: usize, count: usize) -> f64 {
        self.at((place as f64 + 0.5) / count as f64)
    }

    /// The place of a share of the width.
    pub(super) fn at(self, share: f64) -> f64 {
        LEFT + (self.width - LEFT) * share
    }

    /// The place of a share of the height.
    pub(super) fn height_of(self, share: f64) -> f64 {
        self.bottom() - (self.bottom() - TOP) * share
    }

    pub(super) const fn bottom(self) -> f64 {
        self.height - BOTTOM
    }

    #[expect(clippy::cast_precision_loss, reason = "it is rounded to a tenth of a unit")]
    fn up(self, number: u64, top: u64) -> f64 {
        self.height_of(number as f64 / top as f64)
    }
}

/// Returns a round number that is at least `number`, and even.
fn round_up(number: u64) -> u64 {
    let mut unit = 1_u64;
    while let Some(more) = unit.checked_mul(10).filter(|more| *more <= number) {
        unit = more;
    }
    let round = [2, 4, 6, 10].map(|step| unit.saturating_mul(step)).into_iter().find(|round| *round >= number);
    round.unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!([1, 2, 3, 5, 9, 11, 60, 61, 1_999].map(round_up), [2, 2, 4, 6, 10, 20, 60, 100, 2_000]);
        assert!(round_up(u64::MAX) == u64::MAX);
    }

    #[test]
    fn denied_requests_stand_on_the_admitted_ones() {
        let slices = [Slice { admitted: 1, denied: 1 }, Slice::default()];
        let denied = area(&slices, 2, 2, WIDE, |slice| (slice.admitted, total(slice)));
        assert_eq!(denied, "M56.0 78.0V8.0H408.0V78.0Z");
    }
}
