//! `until`: the end of an override.

use jiff::SignedDuration;
use jiff::civil::DateTime;

use super::super::document::Origin;
use crate::config::foreign::{Node, ReadResult};

/// The instant of an `until`, as JavaScript reads it: a date alone is the start of its day in UTC.
pub(super) fn until(node: &Node, origin: &Origin, notes: &mut Vec<String>) -> ReadResult<String> {
    let given = node.text()?;
    if let Some(millis) = given.parse::<u64>().ok().filter(|_| given.bytes().all(|byte| byte.is_ascii_digit())) {
        let help = "use milliseconds since 1970, before the year 10000";
        return instant(millis).ok_or_else(|| node.error("invalid time", help));
    }
    // A `!!timestamp` may have a space there (YAML 1.1).
    let given = &given.replacen(' ', "T", 1);
    let is_date = given.len() == 10;
    let has_zone = given.ends_with(['Z', 'z']) || given.get(19..).is_some_and(|rest| rest.contains(['+', '-']));
    let instant = match (is_date, has_zone) {
        (true, _) => format!("{given}T00:00:00Z"),
        (false, true) => given.to_owned(),
        (false, false) => {
            notes.push(origin.note("`until` has no time zone; UTC is assumed."));
            format!("{given}Z")
        }
    };
    Ok(instant)
}

/// Milliseconds since 1970 as RFC 3339 writes them; `None` from the year 10000 on.
fn instant(millis: u64) -> Option<String> {
    let since_epoch = SignedDuration::from_millis(i64::try_from(millis).ok()?);
    let instant = DateTime::constant(1970, 1, 1, 0, 0, 0, 0).checked_add(since_epoch).ok()?;
    Some(format!("{instant:.3}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_instants() {
        assert_eq!(instant(1_462_060_800_001).as_deref(), Some("2016-05-01T00:00:00.001Z"));
        assert_eq!(instant(0).as_deref(), Some("1970-01-01T00:00:00.000Z"));
        assert_eq!(instant(253_402_300_799_999).as_deref(), Some("9999-12-31T23:59:59.999Z"));
        assert_eq!(instant(253_402_300_800_000), None);
        assert_eq!(instant(u64::MAX), None);
    }
}
