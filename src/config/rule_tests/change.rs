//! The changes between the requests of a test: what operators do, other rules, and a store that fails.

use std::path::PathBuf;

use super::super::mapping::Mapping;
use super::super::node::Node;
use super::super::problem::{ReadResult, quoted};
use super::super::scalars::one_of;
use super::subject::json;
use super::{check_limit_name, span};
use crate::engine::algorithms::micros::Micros;

/// The keys that say what changes.
pub(in super::super) const VERBS: [&str; 6] =
    ["block", "unblock", "set_override", "delete_override", "reload", "store"];

/// All keys of changes, except those of time.
pub(in super::super) const KEYS: [&str; 8] =
    ["block", "unblock", "set_override", "delete_override", "reload", "store", "for", "numbers"];

/// `store:`
pub(in super::super) const STORE_STATES: [(&str, StoreState); 2] = [("up", StoreState::Up), ("down", StoreState::Down)];

/// A change between requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Block {
        /// `Name:id`
        bucket: String,
        span: Micros,
    },
    Unblock {
        bucket: String,
    },
    SetOverride {
        bucket: String,
        /// A JSON object.
        numbers: String,
        span: Option<Micros>,
    },
    DeleteOverride {
        bucket: String,
    },
    /// The rules of another file, relative to that of the test.
    Reload(PathBuf),
    Store(StoreState),
}

/// The state of the store for a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreState {
    #[default]
    Up,
    /// `on_store_error` decides.
    Down,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Block { bucket, .. } => write!(f, "block {bucket}"),
            Self::Unblock { bucket } => write!(f, "unblock {bucket}"),
            Self::SetOverride { bucket, .. } => write!(f, "set_override {bucket}"),
            Self::DeleteOverride { bucket } => write!(f, "delete_override {bucket}"),
            Self::Reload(path) => write!(f, "reload {}", path.display()),
            Self::Store(StoreState::Up) => f.write_str("store up"),
            Self::Store(StoreState::Down) => f.write_str("store down"),
        }
    }
}

/// Reads a step with one of the [`VERBS`].
pub(super) fn read(map: &Mapping<'_>, names: &[&str]) -> ReadResult<Change> {
    let all = map.all(&VERBS);
    if let [(first, _), (other, _), ..] = all[..] {
        let message = format!("a step changes one thing, not both `{}` and {}", first.text, quoted(&other.text));
        return Err(other.error(message, "write two steps"));
    }
    let [(verb, node)] = all[..] else { return Err(map.node.error("the step changes nothing", "")) };
    let own: &[&str] = match verb.text.as_str() {
        "block" => &["for"],
        "set_override" => &["numbers", "for"],
        _ => &[],
    };
    let allowed = |key: &str| key == verb.text || own.contains(&key) || matches!(key, "at" | "after");
    if let Some(key) = map.keys().find(|key| !allowed(&key.text)) {
        let help = "a change has no `expect`: write a request after it";
        return Err(key.error(format!("{} does not apply to `{}`", quoted(&key.text), verb.text), help));
    }
    let bucket = || bucket(node, names);
    Ok(match verb.text.as_str() {
        "block" => {
            let (bucket, span) = (bucket(), map.need("for", "write `for: 10m`").and_then(span));
            Change::Block { bucket: bucket?, span: span? }
        }
        "unblock" => Change::Unblock { bucket: bucket()? },
        "set_override" => {
            let numbers = map.need("numbers", "write `numbers: { count: 10, period: 1s }`");
            let (bucket, span) = (bucket(), map.read("for", span));
            Change::SetOverride { bucket: bucket?, numbers: json(numbers?).to_string(), span: span? }
        }
        "delete_override" => Change::DeleteOverride { bucket: bucket()? },
        "reload" => Change::Reload(PathBuf::from(node.text()?)),
        _ => Change::Store(one_of(&STORE_STATES)(node)?),
    })
}

/// Reads `Name:id`; `Name` alone is the bucket of a limit that is `by: global`.
fn bucket(node: &Node, names: &[&str]) -> ReadResult<String> {
    let bucket = node.text()?;
    let name = bucket.split_once(':').map_or(bucket, |(name, _)| name);
    check_limit_name(name, names).map_err(|(message, help)| node.error(message, help))?;
    Ok(bucket.to_owned())
}
