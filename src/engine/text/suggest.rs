//! Suggestions for unknown words.

/// Longer words get no suggestion: the comparison is quadratic.
const LONGEST: usize = 64;

/// The known word closest to `given`, if at most a third of the letters differ. Case is ignored.
pub fn nearest<'k>(given: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if given.len() > LONGEST {
        return None;
    }
    let given = given.to_lowercase();
    let allowed = (given.chars().count() / 3).max(1);
    known
        .into_iter()
        .filter(|word| word.len() <= LONGEST && word.len().abs_diff(given.len()) <= allowed)
        .map(|word| (distance(&given, &word.to_lowercase()), word))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// A help text with the nearest word, or all words.
pub fn did_you_mean<'k>(given: &str, known: impl IntoIterator<Item = &'k str> + Clone) -> String {
    nearest(given, known.clone()).map_or_else(
        || {
            format!(
                "expected one of {}",
                known.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
            )
        },
        |word| format!("did you mean `{word}`?"),
    )
}

/// The number of insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    for (row, left) in a.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, right) in b.iter().enumerate() {
            let replaced = previous[column] + usize::from(left != right);
            let mut best = replaced.min(previous[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && *left == b[column - 1] && a[row - 1] == *right {
                best = best.min(before[column - 1] + 1);
            }
            current.push(best);
        }
        before = std::mem::replace(&mut previous, current);
    }
    previous.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_find_their_word() {
        let known = ["burst", "count", "period", "match"];
        for (given, expected) in [
            ("counts", Some("count")),
            ("cuont", Some("count")),
            ("Burst", Some("burst")),
            ("perido", Some("period")),
            ("limit", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, known), expected, "{given}");
        }
        assert_eq!(nearest(&"x".repeat(10_000), known), None);
        assert_eq!(did_you_mean("zzz", ["a", "b"]), "expected one of `a`, `b`");
    }
}
