//! `algorithm: queue`: requests become entries of a work queue. Keys: `capacity`, `max_age`, `kind`, `fields`, `then`.

use super::super::by;
use super::super::mapping::{Mapping, all, map};
use super::super::problem::{Findings, Reported, quoted};
use super::super::scalars::{one_of, text, whole};
use super::super::yaml::{Key, Node};
use super::{Entry, Settings, check_redis_only, reject_token_keys};
use crate::engine::algorithms::numbers::{Numbers, NumbersError};
use crate::engine::algorithms::queue::{MOST_FIELDS, MOST_WAITING, Storage};
use crate::engine::rules::component::Component;
use crate::engine::rules::duration;
use crate::engine::rules::limit::{Limit, LimitMode, StoreErrorPolicy};
use crate::engine::rules::path_pattern::PathPattern;
use crate::engine::rules::queue::{FollowUp, Queue};

pub(super) const ENTRY: Entry = Entry {
    words: &["queue"],
    settings: Settings::Queue { max_age: None },
    keys: &["capacity", "max_age", "kind", "fields", "then"],
    override_keys: &["capacity", "max_age"],
};

pub(in super::super) const KINDS: [(&str, Storage); 2] = [("stream", Storage::Stream), ("list", Storage::List)];

pub(in super::super) const THEN: [(&str, FollowUp); 2] = [("accept", FollowUp::Accept), ("forward", FollowUp::Forward)];

const LONGEST_NAME: usize = 64;

/// Reads what an entry contains, and what happens to its request. `paths` are the patterns of the limit's `match`.
pub(in super::super) fn queue(
    limit: &Mapping<'_>,
    paths: Option<&[PathPattern]>,
    findings: &mut Findings,
) -> Result<Queue, Reported> {
    let storage = limit.read("kind", findings, one_of(&KINDS));
    let then = limit.read("then", findings, one_of(&THEN));
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
    paths: Option<&[PathPattern]>,
    findings: &mut Findings,
) -> Result<Vec<(String, Component)>, Reported> {
    let entries = map(node, "`fields`", "write `fields: { user: { header: x-user } }`", findings)?;
    if entries.is_empty() || entries.len() > MOST_FIELDS {
        let message = format!("`fields` has {} entries", entries.len());
        return Err(findings.error(node.place, message, format!("use 1 to {MOST_FIELDS}")));
    }
    all(entries.iter().map(|(key, source)| field(key, source, paths, findings)))
}

fn field(
    key: &Key,
    source: &Node,
    paths: Option<&[PathPattern]>,
    findings: &mut Findings,
) -> Result<(String, Component), Reported> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if key.text.is_empty() || key.text.len() > LONGEST_NAME || !key.text.bytes().all(plain) {
        let help = format!("use 1 to {LONGEST_NAME} letters, digits, `_`, `.` and `-`");
        return Err(findings.error(key.place, format!("invalid field name {}", quoted(&key.text)), help));
    }
    by::component(source, paths, findings)?.map(|component| (key.text.clone(), component)).ok_or_else(|| {
        let help = "use ip, host, method, path, or a map such as { header: x-user }";
        findings.error(source.place, "`global` has no value to put into an entry", help)
    })
}

/// Reads how many entries may wait; `None` if that is not set. `inherited` is the limit's `max_age`.
pub(super) fn numbers(
    map: &Mapping<'_>,
    inherited: Option<u64>,
    findings: &mut Findings,
) -> Result<Option<Numbers>, Reported> {
    let help = "use `capacity`, the number of entries that may wait";
    map.reject(&["burst", "count", "period", "rates"], "queue", help, findings)?;
    let capacity = map.read("capacity", findings, whole);
    let max_age = max_age(map, findings);
    let (capacity, max_age) = (capacity?, max_age?);
    // Without a capacity, `max_age` is for the overrides.
    let Some(capacity) = capacity else { return Ok(None) };
    Numbers::queue(capacity, max_age.or(inherited)).map(Some).map_err(|error| {
        let (key, help) = match error {
            NumbersError::Capacity => ("capacity", "write `deny: true` to deny every request".to_owned()),
            NumbersError::TooManyWaiting(_) => ("capacity", format!("use at most {MOST_WAITING}")),
            _ => ("max_age", "use a duration such as 10m".to_owned()),
        };
        findings.error(map.value_place(key), error.to_string(), help)
    })
}

/// Reads `max_age`, in nanoseconds.
pub(super) fn max_age(map: &Mapping<'_>, findings: &mut Findings) -> Result<Option<u64>, Reported> {
    map.read("max_age", findings, |node, findings| {
        let parsed = duration::parse(text(node, findings)?);
        parsed.map_err(|(message, help)| findings.error(node.place, message, help))
    })
}

pub(super) fn check(map: &Mapping<'_>, limit: &mut Limit, findings: &mut Findings) {
    reject_token_keys(map, limit, "queue", (true, "each request adds one entry; remove `cost`"), findings);
    check_redis_only(map, limit, "queue", findings);
    let Some(queue) = &limit.queue else { return };
    if let Some((key, _)) = map.get("mode").filter(|_| limit.mode == LimitMode::Shadow) {
        let help = "workers would process the entries, so none are added";
        findings.warning(key.place, "`mode: shadow` adds nothing to this queue", help);
    }
    // Without the queue, only its workers could answer such a request.
    if queue.then == FollowUp::Accept && map.get("on_store_error").is_none() {
        limit.on_store_error = StoreErrorPolicy::Deny;
    }
}
