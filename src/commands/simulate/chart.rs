//! Charts over time: what is admitted, and on top of it what is denied.

use std::fmt::Write;

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
    let (width, height) = (size.width, size.height);
    let mut svg = format!(
        "<figure><svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}: {admitted} requests admitted and {denied} \
         denied over time\">",
        Text(name)
    );
    for tick in [0, top / 2, top] {
        let y = size.up(tick, top);
        let _ = write!(svg, "<path d=\"M{LEFT} {y:.1}H{width}\" class=\"grid\"/>");
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            number_text(tick)
        );
    }
    let area = |heights: &dyn Fn(&Slice) -> (u64, u64)| area(slices, count, top, size, heights);
    let _ = write!(svg, "<path d=\"{}\" class=\"admitted\"/>", area(&|slice| (0, slice.admitted)));
    let _ = write!(svg, "<path d=\"{}\" class=\"denied\"/>", area(&|slice| (slice.admitted, total(slice))));
    for (place, class, x) in [(0, "start", LEFT), (count, "end", width)] {
        let label = instant(series.start(place));
        let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{:.1}\" class=\"{class}\">{label}</text>", height - 4.0);
    }
    let _ = write!(
        svg,
        "</svg><figcaption><span class=\"key-admitted\"></span>{admitted} admitted <span class=\"key-denied\"></span>{denied} \
         denied, requests in {}</figcaption></figure>",
        span(series.width())
    );
    svg
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
        LEFT + (self.width - LEFT) * place as f64 / count as f64
    }

    #[expect(clippy::cast_precision_loss, reason = "it is rounded to a tenth of a unit")]
    fn up(self, number: u64, top: u64) -> f64 {
        self.height - BOTTOM - (self.height - BOTTOM - TOP) * number as f64 / top as f64
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
