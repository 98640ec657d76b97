//! Properties of rules and durations that hold for any text. The proptests below and `integration/fuzz.sh` search for
//! counterexamples.

use super::{Source, Sources, load};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::text::duration;

/// Rules load, or the report says why not.
///
/// # Panics
///
/// If the property does not hold.
pub fn rules(text: &str) {
    let source = Source { name: "limits.yaml".into(), text: text.to_owned() };
    let sources = Sources { limits: Some(source), ..Sources::default() };
    let loaded = load(&sources, Fingerprinter::new((1, 2)), Micros(0));
    assert!(loaded.rules.is_some() || !loaded.report.to_string().is_empty(), "the report is empty");
}

/// A duration is exact.
///
/// # Panics
///
/// If the property does not hold.
pub fn duration(text: &str) {
    if let Ok(nanoseconds) = duration::parse(text) {
        assert_eq!(duration::parse(&format!("{nanoseconds}ns")), Ok(nanoseconds), "{text}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn of_rules(text in "(limits:|overrides:|A|by: |ip|\\{|\\}|\\[|\\]|, |burst: 1|count: 1|period: |1h|\\n|  |- |'|\"|#|&a|\\*a|!!x|\\PC){0,24}") {
            rules(&text);
            rules(&format!("limits: {{ A: {{ {text} }} }}"));
        }

        #[test]
        fn of_durations(text in "([0-9]{1,20}(\\.[0-9]{0,9})?(ns|us|ms|s|m|h|d|w|\\PC)){0,3}") {
            duration(&text);
        }
    }
}
