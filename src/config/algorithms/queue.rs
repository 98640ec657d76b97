//! `algorithm: queue`: requests become entries of a work queue. Keys: `capacity`, `max_age`, `kind`, `fields`, `then`.

use super::super::by;
use super::super::lints::Lint;
use super::super::mapping::all;
use super::super::node::Key;
use super::super::scalars::{is_name, one_of};
use super::{
    Algorithm, AlgorithmEntry, Context, Limit, Mapping, Node, Numbers, PathCondition, ReadResult, Settings,
    StoreErrorPolicy, check_redis_only, quoted, reject_token_keys,
};
use crate::engine::algorithms::numbers::NumbersError;
use crate::engine::algorithms::queue::{MOST_FIELDS, MOST_WAITING, Storage};
use crate::engine::limit::LimitMode;
use crate::engine::limit::queue::{FollowUp, Queue};
use crate::engine::request::part::TypedPart;

pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    words: &["queue"],
    settings: || Box::new(QueueSettings { max_age: None }),
    keys: &["capacity", "max_age", "kind", "fields", "then"],
    override_keys: &["capacity", "max_age"],
};

pub(in super::super) const KINDS: [(&str, Storage); 2] = [("stream", Storage::Stream), ("list", Storage::List)];

pub(in super::super) const THEN: [(&str, FollowUp); 2] = [("accept", FollowUp::Accept), ("forward", FollowUp::Forward)];

const LONGEST_NAME: usize = 64;

struct QueueSettings {
    /// In nanoseconds; `None` if entries do not expire.
    max_age: Option<u64>,
}

impl Settings for QueueSettings {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Queue
    }

    fn read(&self, map: &Mapping<'_>) -> ReadResult<Box<dyn Settings>> {
        Ok(Box::new(Self { max_age: map.read("max_age", Node::duration)?.or(self.max_age) }))
    }

    fn numbers(&self, map: &Mapping<'_>) -> ReadResult<Vec<Numbers>> {
        let help = "use `capacity`, the number of entries that may wait";
        map.reject(&["burst", "count", "period", "rates"], "queue", help)?;
        // Without a capacity, `max_age` is for the overrides.
        let Some(capacity) = map.read("capacity", Node::whole)? else { return Ok(Vec::new()) };
        Numbers::queue(capacity, self.max_age).map(|numbers| vec![numbers]).map_err(|error| {
            let (key, help) = match error {
                NumbersError::Capacity => ("capacity", "write `deny: true` to deny every request".to_owned()),
                NumbersError::TooManyWaiting(_) => ("capacity", format!("use at most {MOST_WAITING}")),
                _ => ("max_age", "use a duration such as 10m".to_owned()),
            };
            map.value(key).error(error.to_string(), help)
        })
    }

    fn number_keys(&self) -> &'static str {
        "`capacity`"
    }

    fn read_limit(&mut self, map: &Mapping<'_>, context: Context<'_>, limit: &mut Limit) {
        limit.queue = queue(map, context.paths).map(Box::new).ok();
    }

    fn check(&self, map: &Mapping<'_>, limit: &mut Limit) {
        reject_token_keys(map, limit, (true, "each request adds one entry; remove `cost`"));
        check_redis_only(map, limit);
        let Some(queue) = &limit.queue else { return };
        if let Some((key, _)) = map.get("mode").filter(|_| limit.mode == LimitMode::Shadow) {
            let help = "workers would process the entries, so none are added";
            key.warning(Lint::NoEffect, "`mode: shadow` adds nothing to this queue", help);
        }
        // Without the queue, only its workers could answer such a request.
        if queue.then == FollowUp::Accept && map.get("on_store_error").is_none() {
            limit.on_store_error = StoreErrorPolicy::Deny;
        }
    }

    fn needs_redis(&self) -> bool {
        true
    }
}

fn queue(map: &Mapping<'_>, paths: Option<&[PathCondition]>) -> ReadResult<Queue> {
    let storage = map.read("kind", one_of(&KINDS));
    let then = map.read("then", one_of(&THEN));
    let fields = map.read("fields", |node| fields(node, paths));
    let (storage, then) = (storage?.unwrap_or_default(), then?.unwrap_or_default());
    let fields = fields?.ok_or_else(|| {
        let help = "list what each entry carries: `fields: { user: { header: x-user }, path: path }`";
        map.lacks("a queue needs `fields`", help)
    })?;
    Ok(Queue { storage, then, fields })
}

fn fields(node: &Node, paths: Option<&[PathCondition]>) -> ReadResult<Vec<(String, TypedPart)>> {
    let entries = node.map("`fields`", "write `fields: { user: { header: x-user } }`")?;
    node.check_count("`fields`", entries.len(), "entries", MOST_FIELDS)?;
    all(entries.iter().map(|(key, source)| field(key, source, paths)))
}

fn field(key: &Key, source: &Node, paths: Option<&[PathCondition]>) -> ReadResult<(String, TypedPart)> {
    if !is_name(&key.text, LONGEST_NAME) {
        let help = format!("use 1 to {LONGEST_NAME} letters, digits, `_`, `.` and `-`");
        return Err(key.error(format!("invalid field name {}", quoted(&key.text)), help));
    }
    by::part(source, paths)?.map(|part| (key.text.clone(), part)).ok_or_else(|| {
        let help = "use ip, host, method, path, or a map such as { header: x-user }";
        source.error("`global` has no value to put into an entry", help)
    })
}
