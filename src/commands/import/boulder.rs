//! The defaults and overrides of Boulder, Let's Encrypt's certificate authority. Its files have had three shapes: `Name:id`
//! with its numbers; a list of `Name: { ..., ids: [id] }`; and the same with `{ id, comment }`.

use std::collections::HashMap;

use super::amount::Amount;
use super::document::{Document, Ids, Limit, Origin, Override, Subject};
use super::files::read_each;
use super::text::{map, one_or_list, quoted as in_flow};
use crate::config::foreign::{self, Key, Mapping, Node, ReadResult, all, quoted};
use crate::config::{Report, Source};
use crate::engine::text::duration;

const HELP: &str = "write `Name: { burst: 20, count: 20, period: 1s }`";

const DEFAULT_KEYS: [&str; 3] = ["burst", "count", "period"];
const OVERRIDE_KEYS: [&str; 4] = ["burst", "count", "period", "ids"];
const ID_KEYS: [&str; 2] = ["id", "comment"];
const IDS_HELP: &str = "write `ids: [{ id: ..., comment: ... }]`";

// The components of Boulder's ids, for `by`.
// Boulder has one limit for whole IPv6 addresses and another for their /48.
const ADDRESS: &str = "ip/128";
const RANGE: &str = "ip/48";
const ACCOUNT: &str = "{ header: x-account-id, as: integer }";
const DOMAIN: &str = "{ query: domain, as: hostname }";
const REGISTERED_DOMAIN: &str = "{ query: domain, as: registered-domain }";
const NAMES: &str = "{ query: names, as: hostname-set }";

/// A limit of Boulder.
struct BoulderLimit {
    name: &'static str,
    by: &'static [&'static str],
    /// The path of the web front end whose requests it charges; `None` if something later charges it.
    path: Option<&'static str>,
}

const fn known(name: &'static str, by: &'static [&'static str], path: Option<&'static str>) -> BoulderLimit {
    BoulderLimit { name, by, path }
}

/// The limits of all versions (`ratelimits/names.go`), with the paths of the web front end (`wfe2/wfe.go`).
const KNOWN: [BoulderLimit; 11] = [
    known("NewRegistrationsPerIPAddress", &[ADDRESS], Some("/acme/new-acct")),
    known("NewRegistrationsPerIPv6Range", &[RANGE], Some("/acme/new-acct")),
    known("NewOrdersPerAccount", &[ACCOUNT], Some("/acme/new-order")),
    known("FailedAuthorizationsPerAccount", &[ACCOUNT], None),
    known("FailedAuthorizationsPerDomainPerAccount", &[ACCOUNT, DOMAIN], None),
    known("FailedAuthorizationsForPausingPerDomainPerAccount", &[ACCOUNT, DOMAIN], None),
    known("CertificatesPerDomain", &[REGISTERED_DOMAIN], None),
    known("CertificatesPerDomainPerAccount", &[ACCOUNT, REGISTERED_DOMAIN], None),
    known("CertificatesPerFQDNSet", &[NAMES], None),
    known("CertificatesPerFQDNSetPerAccount", &[ACCOUNT, NAMES], None),
    known("LimitOverrideRequestsPerIPAddress", &[ADDRESS], None),
];

/// The limits and overrides of all files, in their order.
#[derive(Default)]
struct Entries {
    defaults: Vec<(String, Origin, Amount)>,
    overrides: Vec<(String, Origin, Ids, Amount)>,
}

/// Adds the limits and overrides of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    let mut entries = Entries::default();
    let report = read_each(sources, |source, root| file(source, root, &mut entries));
    head(document);
    let mut indices: HashMap<String, usize> = HashMap::new();
    for (name, origin, amount) in entries.defaults {
        indices.insert(name.clone(), add_limit(name, origin, &amount, Vec::new(), document));
    }
    for (name, origin, ids, amount) in entries.overrides {
        let limit = *indices.entry(name.clone()).or_insert_with(|| {
            let note = origin.note("the limit has no default and applies only to its overrides.");
            add_limit(name, origin.clone(), &Amount::Unsaid, vec![note], document)
        });
        let (notes, subject) = (Vec::new(), Subject::Ids(ids));
        document.add_override(Override { limit, origin, notes, subject, fields: amount.fields() });
    }
    report
}

fn head(document: &mut Document) {
    document.head(
        "Boulder takes the account and the names from signed bodies. Weir takes them from calls of the application to \
         the HTTP check listener (`weir serve --check 127.0.0.1:9002`), POST /json {\"limit\": \"NewOrdersPerAccount\", \
         \"id\": \"12345678\"}, or from the header `x-account-id` and the query parameters `domain` and `names`, which your \
         gateway must set. Change `by` if yours uses other names.",
    );
    document.head(
        "To check early and spend later, use \"op\": \"check\" and \"op\": \"spend_only\". A limit whose `match` is a \
         descriptor is charged only by such calls, and by requests whose Envoy route names it in `context_extensions`. \
         Boulder's buckets in Redis (`3:12345678`) are not migrated: buckets start full.",
    );
}

fn file(source: &Source, root: &Node, entries: &mut Entries) -> ReadResult<()> {
    match &root.value {
        foreign::Value::Map(pairs) => {
            all(pairs.iter().map(|(key, node)| entry(source, key, node, false, entries))).map(drop)
        }
        foreign::Value::List(items) => {
            let read = items.iter().map(|item| {
                let pairs = item.map("an override", HELP)?;
                all(pairs.iter().map(|(key, node)| entry(source, key, node, true, entries))).map(drop)
            });
            all(read).map(drop)
        }
        foreign::Value::Scalar { .. } => {
            let message = format!("the file must be a map or a list, found {}", root.kind());
            Err(root.error(message, HELP))
        }
    }
}

fn entry(source: &Source, key: &Key, node: &Node, in_list: bool, entries: &mut Entries) -> ReadResult<()> {
    let origin = Origin::of(&source.name, key.place);
    let has_ids = matches!(&node.value, foreign::Value::Map(fields) if fields.iter().any(|(key, _)| key.text == "ids"));
    if let Some((name, id)) = key.text.split_once(':') {
        let fields = Mapping::of(node, "an override", &DEFAULT_KEYS)?;
        let amount = amount(&fields)?;
        if name.is_empty() || id.trim().is_empty() {
            let message = format!("{} needs a limit and an id", quoted(&key.text));
            return Err(key.error(message, "write `Name:id`"));
        }
        entries.overrides.push((name.to_owned(), origin, vec![(id.to_owned(), None)], amount));
    } else if in_list || has_ids {
        let fields = Mapping::of(node, "an override", &OVERRIDE_KEYS)?;
        let amount = amount(&fields);
        let Some((_, node)) = fields.get("ids") else {
            return Err(key.error(format!("{} needs `ids`", quoted(&key.text)), IDS_HELP));
        };
        let items = node.list("`ids`", IDS_HELP)?;
        if items.is_empty() {
            return Err(node.error("the list is empty", "add an id or remove the override"));
        }
        let ids = all(items.iter().map(id))?;
        entries.overrides.push((key.text.clone(), origin, ids, amount?));
    } else {
        let fields = Mapping::of(node, "a limit", &DEFAULT_KEYS)?;
        let amount = amount(&fields)?;
        if let Some((_, first, _)) = entries.defaults.iter().find(|(name, ..)| *name == key.text) {
            let message = format!("duplicate default for {}", quoted(&key.text));
            let help = format!("the first one is at {}:{}; keep one of them", first.file, first.line);
            return Err(key.error(message, help));
        }
        entries.defaults.push((key.text.clone(), origin, amount));
    }
    Ok(())
}

fn id(item: &Node) -> ReadResult<(String, Option<String>)> {
    if !matches!(item.value, foreign::Value::Map(_)) {
        return Ok((item.text()?.to_owned(), None));
    }
    let fields = Mapping::sparse(item, "an item of `ids`", &ID_KEYS)?;
    let comment = fields.read("comment", Node::text)?.filter(|comment| !comment.is_empty());
    let Some((_, id)) = fields.get("id") else {
        return Err(item.error("an item of `ids` needs `id`", "write `{ id: ..., comment: ... }`"));
    };
    Ok((id.text()?.to_owned(), comment.map(str::to_owned)))
}

/// Reads the three numbers, which have no defaults.
fn amount(fields: &Mapping<'_>) -> ReadResult<Amount> {
    let needed = |name: &str| {
        let value = fields.get(name).map(|(_, node)| node);
        value.ok_or_else(|| fields.node.error(format!("`{name}` is missing"), HELP))
    };
    let number = |name: &str| needed(name)?.positive(format!("`{name}` must be at least 1"), HELP);
    let (burst, count) = (number("burst"), number("count"));
    let node = needed("period")?;
    let period = node.text()?;
    match duration::parse(period) {
        Ok(0) => Err(node.error("period must be longer than 0", "use a duration such as 1s")),
        Ok(_) => Ok(Amount::Rate { burst: Some(burst?), count: count?, period: period.to_owned() }),
        Err((message, help)) => Err(node.error(message, help)),
    }
}

fn add_limit(name: String, origin: Origin, amount: &Amount, mut notes: Vec<String>, document: &mut Document) -> usize {
    let known = KNOWN.iter().find(|known| known.name == name);
    let by = if let Some(known) = known {
        one_or_list(&known.by.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>())
    } else {
        notes.push(origin.note("Boulder has no limit with this name; its ids may be any text."));
        "{ header: x-id }".to_owned()
    };
    let mut conditions = match known.and_then(|known| known.path) {
        Some(path) => vec![("methods", "[POST]".to_owned()), ("path", path.to_owned())],
        None => vec![("descriptor", map(&[("limit", in_flow(&name))]))],
    };
    if known.is_some_and(|known| known.by == [RANGE]) {
        // `ip/48` takes IPv4 addresses whole, and this limit is for IPv6 alone.
        conditions.push(("cidr", in_flow("::/0")));
    }
    let fields = vec![("match", map(&conditions)), ("by", by)];
    let (identity, amount) = (name.clone(), amount.fields());
    document.add_limit(Limit { name, identity, origin, source: None, notes, fields, amount })
}
