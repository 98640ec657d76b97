//! Suggestions for unknown words.

use super::quote::joined;

/// Longer words get no suggestion: the comparison is quadratic.
const LONGEST: usize = 64;

/// The known word closest to `given`, if at most a third of the letters differ. Case is ignored.
pub fn nearest<'k>(given: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    all_nearest(given, known).first().copied()
}

/// All known words that are as close as the closest.
fn all_nearest<'k>(given: &str, known: impl IntoIterator<Item = &'k str>) -> Vec<&'k str> {
    if given.len() > LONGEST {
        return Vec::new();
    }
    let given = given.to_lowercase();
    let mut allowed = (given.chars().count() / 3).max(1);
    let mut found = Vec::new();
    for word in known {
        if word.len() > LONGEST || word.len().abs_diff(given.len()) > allowed {
            continue;
        }
        let distance = distance(&given, &word.to_lowercase());
        if distance < allowed {
            (allowed, found) = (distance, Vec::new());
        }
        if distance == allowed {
            found.push(word);
        }
    }
    found
}

/// A help text with the nearest words, or all words.
pub fn did_you_mean<'k>(given: &str, known: impl IntoIterator<Item = &'k str> + Clone) -> String {
    let quoted = |words: Vec<&str>, separator| joined(words.iter().map(|word| format!("`{word}`")), separator);
    match all_nearest(given, known.clone()) {
        none if none.is_empty() => format!("expected one of {}", quoted(known.into_iter().collect(), ", ")),
        nearest => format!("did you mean {}?", quoted(nearest, " or ")),
    }
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
        assert_eq!(did_you_mean("cout", ["burst", "cost", "count"]), "did you mean `cost` or `count`?");
        assert_eq!(did_you_mean("perido", known), "did you mean `period`?");
    }
}
