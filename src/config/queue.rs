//! A queue of work: `capacity`, `max_age`, `kind`, `fields`, `then`.

use super::by;
use super::fields::{Fields, choice, text, whole};
use super::numbers::value_place;
use super::problem::{Findings, Reported, quoted};
use super::yaml::{Node, Value};
use crate::engine::algorithms::numbers::{Numbers, NumbersError};
use crate::engine::algorithms::queue::{MOST_FIELDS, MOST_WAITING, Queue, Storage, Then};
use crate::engine::rules::duration;
use crate::message::path::Pattern;

/// The fields of a queue beside its `capacity`, numbers first.
pub(super) const KEYS: [&str; 4] = ["max_age", "kind", "fields", "then"];

/// The words of `kind`.
pub(super) const KINDS: [(&str, Storage); 2] = [("stream", Storage::Stream), ("list", Storage::List)];

/// The words of `then`.
pub(super) const THEN: [(&str, Then); 2] = [("accept", Then::Accept), ("forward", Then::Forward)];

const LONGEST_NAME: usize = 64;

/// What goes into the queue of a limit, and what becomes of a request then. `paths` are those of its `match`, where a
/// `{ path: NAME }` is looked up.
pub(super) fn queue(limit: &Fields<'_>, paths: Option<&[Pattern]>, findings: &mut Findings) -> Result<Queue, Reported> {
    let storage = limit.read("kind", findings, |node, findings| choice(node, &KINDS, findings));
    let then = limit.read("then", findings, |node, findings| choice(node, &THEN, findings));
    let fields = limit.read("fields", findings, |node, findings| fields(node, paths, findings));
    let (storage, then, fields) = (storage?.unwrap_or_default(), then?.unwrap_or_default(), fields?);
    let Some(fields) = fields else {
        let help = "list what each entry carries: `fields: { user: { header: x-user }, path: path }`";
        return Err(findings.error(limit.place, "a queue needs `fields`", help));
    };
    Ok(Queue { storage, then, fields })
}

fn fields(
    node: &Node,
    paths: Option<&[Pattern]>,
    findings: &mut Findings,
) -> Result<Vec<(String, crate::engine::rules::by::Component)>, Reported> {
    let Value::Map(entries) = &node.value else {
        let message = format!("`fields` must be a map, found {}", node.kind());
        return Err(findings.error(node.place, message, "write `fields: { user: { header: x-user } }`"));
    };
    if entries.is_empty() || entries.len() > MOST_FIELDS {
        let message = format!("`fields` has {} entries", entries.len());
        return Err(findings.error(node.place, message, format!("use 1 to {MOST_FIELDS}")));
    }
    let (mut fields, mut outcome) = (Vec::with_capacity(entries.len()), Ok(()));
    for (key, source) in entries {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if key.text.is_empty() || key.text.len() > LONGEST_NAME || !key.text.bytes().all(plain) {
            let help = format!("use 1 to {LONGEST_NAME} letters, digits, `_`, `.` and `-`");
            outcome = Err(findings.error(key.place, format!("invalid field name {}", quoted(&key.text)), help));
            continue;
        }
        match by::component(source, paths, findings) {
            Ok(Some(component)) => fields.push((key.text.clone(), component)),
            Ok(None) => {
                let help = "use ip, host, method, path, or a map such as { header: x-user }";
                outcome = Err(findings.error(source.place, "`global` has no value to put into an entry", help));
            }
            Err(reported) => outcome = Err(reported),
        }
    }
    outcome.map(|()| fields)
}

/// How much fits; nothing if neither number is there. What is not said is as in `base`, the `max_age` of the limit.
pub(super) fn numbers(
    fields: &Fields<'_>,
    base: Option<u64>,
    findings: &mut Findings,
) -> Result<Option<Numbers>, Reported> {
    if let Some((key, _)) = ["burst", "count", "period", "rates"].iter().find_map(|name| fields.get(name)) {
        let message = format!("`{}` does not apply to `algorithm: queue`", key.text);
        return Err(findings.error(key.place, message, "use `capacity`, the number of entries that may wait"));
    }
    let capacity = fields.read("capacity", findings, whole);
    let max_age = max_age(fields, findings);
    let (capacity, max_age) = (capacity?, max_age?);
    // A `max_age` alone is one for the overrides.
    let Some(capacity) = capacity else { return Ok(None) };
    Numbers::queue(capacity, max_age.or(base)).map(Some).map_err(|error| {
        let (place, help) = match error {
            NumbersError::Capacity => ("capacity", "write `deny: true` to deny every request".to_owned()),
            NumbersError::TooManyWaiting => ("capacity", format!("use at most {MOST_WAITING}")),
            _ => ("max_age", "use a duration such as 10m".to_owned()),
        };
        findings.error(value_place(fields, place), error.to_string(), help)
    })
}

/// `max_age` in nanoseconds.
pub(super) fn max_age(fields: &Fields<'_>, findings: &mut Findings) -> Result<Option<u64>, Reported> {
    fields.read("max_age", findings, |node, findings| {
        let parsed = duration::parse(text(node, findings)?);
        parsed.map_err(|(message, help)| findings.error(node.place, message, help))
    })
}
