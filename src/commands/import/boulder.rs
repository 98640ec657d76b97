//! The defaults and overrides of Boulder, Let's Encrypt's certificate authority, in the three shapes that its files have
//! had: `Name:id` with its numbers; a list of `Name: { ..., ids: [id] }`; and the same with `{ id, comment }`.

use std::collections::HashMap;

use super::amount::Amount;
use super::document::{Document, Limit, Origin, Override, Subject};
use super::text::Value;
use crate::config::foreign::{self, Findings, Key, Mapping, Node, Reported, all, quoted};
use crate::config::{Report, Source};
use crate::engine::rules::duration;

/// What stands where an entry is wrong.
const HELP: &str = "write `Name: { burst: 20, count: 20, period: 1s }`";

const DEFAULT_KEYS: [&str; 3] = ["burst", "count", "period"];
const OVERRIDE_KEYS: [&str; 4] = ["burst", "count", "period", "ids"];
const ID_KEYS: [&str; 2] = ["id", "comment"];

/// A component of an id as Boulder has it.
#[derive(Clone, Copy)]
enum Part {
    Address,
    Range,
    Account,
    Domain,
    RegisteredDomain,
    Names,
}

/// What a limit is for.
struct Known {
    name: &'static str,
    by: &'static [Part],
    /// The path of Boulder's front end whose requests it charges; `None` if it is charged for what happens later.
    path: Option<&'static str>,
}

const fn known(name: &'static str, by: &'static [Part], path: Option<&'static str>) -> Known {
    Known { name, by, path }
}

/// The limits of all versions (`ratelimits/names.go`), with the paths of its web front end (`wfe2/wfe.go`).
const KNOWN: [Known; 11] = [
    known("NewRegistrationsPerIPAddress", &[Part::Address], Some("/acme/new-acct")),
    known("NewRegistrationsPerIPv6Range", &[Part::Range], Some("/acme/new-acct")),
    known("NewOrdersPerAccount", &[Part::Account], Some("/acme/new-order")),
    known("FailedAuthorizationsPerAccount", &[Part::Account], None),
    known("FailedAuthorizationsPerDomainPerAccount", &[Part::Account, Part::Domain], None),
    known("FailedAuthorizationsForPausingPerDomainPerAccount", &[Part::Account, Part::Domain], None),
    known("CertificatesPerDomain", &[Part::RegisteredDomain], None),
    known("CertificatesPerDomainPerAccount", &[Part::Account, Part::RegisteredDomain], None),
    known("CertificatesPerFQDNSet", &[Part::Names], None),
    known("CertificatesPerFQDNSetPerAccount", &[Part::Account, Part::Names], None),
    known("LimitOverrideRequestsPerIPAddress", &[Part::Address], None),
];

/// What is read of all files, in their order.
#[derive(Default)]
struct Entries {
    defaults: Vec<(String, Origin, Amount)>,
    overrides: Vec<(String, Origin, Ids, Amount)>,
}

type Ids = Vec<(String, Option<String>)>;

/// Adds the limits and overrides of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    let mut report = Report::default();
    let mut entries = Entries::default();
    let mut places: HashMap<String, String> = HashMap::new();
    for source in sources {
        let mut findings = Findings::new(&source.name);
        // What is wrong is among the findings.
        let (Ok(()) | Err(Reported)) = file(source, &mut findings, &mut places, &mut entries);
        report.add(findings, &source.text);
    }
    head(document);
    let mut numbers: HashMap<String, usize> = HashMap::new();
    for (name, origin, amount) in entries.defaults {
        numbers.insert(name.clone(), add_limit(name, origin, amount, Vec::new(), document));
    }
    for (name, origin, ids, amount) in entries.overrides {
        let limit = *numbers.entry(name.clone()).or_insert_with(|| {
            let note = origin.note("the limit has no default and applies only to its overrides.");
            add_limit(name, origin.clone(), Amount::Unsaid, vec![note], document)
        });
        document.add_override(Override {
            limit,
            origin,
            notes: Vec::new(),
            subject: Subject::Ids(ids),
            amount,
            elevated: None,
            until: None,
            comment: None,
        });
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

fn file(
    source: &Source,
    findings: &mut Findings,
    places: &mut HashMap<String, String>,
    entries: &mut Entries,
) -> Result<(), Reported> {
    let root = foreign::read(&source.text, findings)?;
    let mut outcome = Ok(());
    let pairs: Vec<&(Key, Node)> = match &root.value {
        foreign::Value::Map(pairs) => pairs.iter().collect(),
        foreign::Value::List(items) => {
            let mut pairs = Vec::new();
            for item in items {
                match item.map("an override", HELP) {
                    Ok(inner) => pairs.extend(inner),
                    Err(reported) => outcome = Err(reported),
                }
            }
            pairs
        }
        foreign::Value::Scalar { .. } => {
            return Err(findings.error(
                root.place,
                format!("the file must be a map or a list, found {}", root.kind()),
                HELP,
            ));
        }
    };
    let is_list = matches!(root.value, foreign::Value::List(_));
    for (key, node) in pairs {
        // All are read, so that all mistakes are found.
        outcome = entry(source, key, node, is_list, findings, places, entries).and(outcome);
    }
    outcome
}

fn entry(
    source: &Source,
    key: &Key,
    node: &Node,
    is_list: bool,
    findings: &mut Findings,
    places: &mut HashMap<String, String>,
    entries: &mut Entries,
) -> Result<(), Reported> {
    let origin = Origin::of(source, key.place);
    let has_ids = matches!(&node.value, foreign::Value::Map(fields) if fields.iter().any(|(key, _)| key.text == "ids"));
    if let Some((name, id)) = key.text.split_once(':') {
        let fields = Mapping::of(node, "an override", &DEFAULT_KEYS)?;
        let amount = amount(&fields, findings)?;
        if name.is_empty() || id.trim().is_empty() {
            let message = format!("{} needs a limit and an id", quoted(&key.text));
            return Err(findings.error(key.place, message, "write `Name:id`"));
        }
        entries.overrides.push((name.to_owned(), origin, vec![(id.to_owned(), None)], amount));
    } else if is_list || has_ids {
        let fields = Mapping::of(node, "an override", &OVERRIDE_KEYS)?;
        let amount = amount(&fields, findings);
        let Some((_, node)) = fields.get("ids") else {
            let message = format!("{} needs `ids`", quoted(&key.text));
            return Err(findings.error(key.place, message, "write `ids: [{ id: ..., comment: ... }]`"));
        };
        let items = node.list("`ids`", "write `ids: [{ id: ..., comment: ... }]`")?;
        if items.is_empty() {
            return Err(findings.error(node.place, "the list is empty", "add an id or remove the override"));
        }
        let ids = all(items.iter().map(|item| id(item, findings)))?;
        entries.overrides.push((key.text.clone(), origin, ids, amount?));
    } else {
        let fields = Mapping::of(node, "a limit", &DEFAULT_KEYS)?;
        let amount = amount(&fields, findings)?;
        let place = format!("{}:{}", origin.file, origin.line);
        if let Some(first) = places.insert(key.text.clone(), place) {
            let message = format!("duplicate default for {}", quoted(&key.text));
            return Err(findings.error(key.place, message, format!("the first one is at {first}; keep one of them")));
        }
        entries.defaults.push((key.text.clone(), origin, amount));
    }
    Ok(())
}

fn id(item: &Node, findings: &mut Findings) -> Result<(String, Option<String>), Reported> {
    if !matches!(item.value, foreign::Value::Map(_)) {
        return Ok((item.text()?.to_owned(), None));
    }
    let fields = Mapping::sparse(item, "an item of `ids`", &ID_KEYS)?;
    let comment = fields.read("comment", Node::text)?.filter(|comment| !comment.is_empty());
    let Some((_, id)) = fields.get("id") else {
        return Err(findings.error(item.place, "an item of `ids` needs `id`", "write `{ id: ..., comment: ... }`"));
    };
    Ok((id.text()?.to_owned(), comment.map(str::to_owned)))
}

/// All three numbers, which Boulder has no defaults for.
fn amount(fields: &Mapping<'_>, findings: &mut Findings) -> Result<Amount, Reported> {
    let number = |name: &str| {
        let Some((_, node)) = fields.get(name) else {
            return Err(findings.error(fields.node.place, format!("`{name}` is missing"), HELP));
        };
        node.positive(format!("`{name}` must be at least 1"), HELP)
    };
    let (burst, count) = (number("burst"), number("count"));
    let Some((_, node)) = fields.get("period") else {
        return Err(findings.error(fields.node.place, "`period` is missing", HELP));
    };
    let period = node.text()?;
    match duration::parse(period) {
        Ok(0) => Err(findings.error(node.place, "period must be longer than 0", "use a duration such as 1s")),
        Ok(_) => Ok(Amount::Rate { burst: Some(burst?), count: count?, period: period.to_owned() }),
        Err((message, help)) => Err(findings.error(node.place, message, help)),
    }
}

fn add_limit(name: String, origin: Origin, amount: Amount, mut notes: Vec<String>, document: &mut Document) -> usize {
    let known = KNOWN.iter().find(|known| known.name == name);
    let (by, path) = if let Some(known) = known {
        let parts: Vec<Value> = known.by.iter().map(|part| part.value()).collect();
        (if let [only] = parts.as_slice() { only.clone() } else { Value::List(parts) }, known.path)
    } else {
        notes.push(origin.note("Boulder has no limit with this name; its ids may be any text."));
        (Value::map([("header", Value::word("x-id"))]), None)
    };
    let mut of_request = match path {
        Some(path) => vec![("methods", Value::List(vec![Value::word("POST")])), ("path", Value::word(path))],
        None => vec![("descriptor", Value::map([("limit", Value::Text(name.clone()))]))],
    };
    if known.is_some_and(|known| matches!(known.by, [Part::Range])) {
        // `ip/48` takes IPv4 addresses whole, and Boulder has this limit for IPv6 alone.
        of_request.push(("cidr", Value::Text("::/0".to_owned())));
    }
    let of_request = of_request.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let fields = vec![("match", Value::Map(of_request)), ("by", by)];
    document.add_limit(Limit { identity: name.clone(), name, origin, notes, fields, amount, elevated: None })
}

impl Part {
    /// As `by` has it.
    fn value(self) -> Value {
        let of =
            |source: &str, name: &str, form: &str| Value::map([(source, Value::word(name)), ("as", Value::word(form))]);
        match self {
            Self::Address => Value::word("ip"),
            Self::Range => Value::word("ip/48"),
            Self::Account => of("header", "x-account-id", "integer"),
            Self::Domain => of("query", "domain", "hostname"),
            Self::RegisteredDomain => of("query", "domain", "registered-domain"),
            Self::Names => of("query", "names", "hostname-set"),
        }
    }
}
