//! Reads `by`: the parts of a limit's ids.

use super::jwt;
use super::mapping::Mapping;
use super::node::{Key, Node, Value};
use super::pointer::pointer;
use super::problem::{ReadResult, ReportedError, quoted};
use super::scalars::one_of;
use super::suggest::{did_you_mean, nearest};
use crate::engine::request::Duplicates;
use crate::engine::request::claims::ClaimRef;
use crate::engine::request::part::{IPV6_CLIENT_PREFIX, Part, TypedPart};
use crate::engine::request::path_condition::PathCondition;
use crate::engine::request::path_pattern::PathPattern;
use crate::engine::request::value_type::ValueType;

/// Parts that are plain words.
pub(super) const WORDS: [&str; 6] = ["ip", "host", "method", "path", "credentials", "global"];

/// The keys that select a part.
const SOURCES: [&str; 9] = ["header", "query", "cookie", "path", "host", "tls", "claim", "body", "descriptor"];

pub(super) const KEYS: [&str; 12] =
    ["header", "query", "cookie", "path", "host", "tls", "claim", "jwt", "body", "descriptor", "as", "duplicates"];

pub(super) const DUPLICATES: [(&str, Duplicates); 2] = [("first", Duplicates::First), ("last", Duplicates::Last)];

pub(super) const TLS: [(&str, Part); 1] = [("subject", Part::TlsSubject)];

/// The values of `as`.
pub(super) const FORMS: [(&str, ValueType); 6] = [
    ("text", ValueType::Text),
    ("integer", ValueType::Integer),
    ("address", ValueType::Address),
    ("hostname", ValueType::Hostname),
    ("registered-domain", ValueType::RegisteredDomain),
    ("hostname-set", ValueType::HostnameSet),
];

/// The ways to split an override's id at its colons grow with the number of parts.
pub(super) const MOST_PARTS: usize = 6;

/// Reads `by`. `paths` are those of the limit's `match`, whose patterns define path parameters; `None` if they have a mistake.
pub(super) fn by(node: &Node, paths: Option<&[PathCondition]>) -> ReadResult<Vec<TypedPart>> {
    let Value::List(items) = &node.value else {
        return Ok(part(node, paths)?.into_iter().collect());
    };
    if items.is_empty() || items.len() > MOST_PARTS {
        let help = format!("use 1 to {MOST_PARTS}, or `by: global` for a single bucket");
        return Err(node.error(format!("`by` has {} components", items.len()), help));
    }
    let mut parts: Vec<TypedPart> = Vec::with_capacity(items.len());
    let mut outcome = Ok(());
    for item in items {
        match part(item, paths) {
            Ok(Some(part)) if parts.contains(&part) => {
                outcome = Err(item.error("duplicate component in `by`", "remove one of them"));
            }
            Ok(Some(part)) => parts.push(part),
            Ok(None) => {
                let help = "write `by: global` alone, or remove it from the list";
                outcome = Err(item.error("`global` cannot be combined with other components", help));
            }
            Err(reported) => outcome = Err(reported),
        }
    }
    outcome.map(|()| parts)
}

/// Reads one part; `None` for `global`.
pub(super) fn part(node: &Node, paths: Option<&[PathCondition]>) -> ReadResult<Option<TypedPart>> {
    match &node.value {
        Value::Scalar { .. } => word(node),
        Value::Map(_) => map(node, paths).map(Some),
        Value::List(_) => Err(node.error("lists in `by` cannot be nested", "write a single list")),
    }
}

fn word(node: &Node) -> ReadResult<Option<TypedPart>> {
    let word = node.text()?;
    let source = match word {
        "global" => return Ok(None),
        "ip" => Part::Ip { ipv6_prefix: IPV6_CLIENT_PREFIX },
        "host" => Part::Host,
        "method" => Part::Method,
        "path" => Part::Path,
        "credentials" => Part::Credentials,
        _ => match word.strip_prefix("ip/") {
            Some(prefix) => Part::Ip { ipv6_prefix: ipv6_prefix(prefix, node)? },
            None => return Err(unknown_word(word, node)),
        },
    };
    Ok(Some(TypedPart::new(source, ValueType::Text)))
}

fn ipv6_prefix(text: &str, node: &Node) -> ReadResult<u8> {
    let canonical = |prefix: &u8| (1..=128).contains(prefix) && prefix.to_string() == text;
    text.parse().ok().filter(canonical).ok_or_else(|| {
        let help = "use 1 to 128; `ip/64` groups IPv6 clients by their first 64 bits and leaves IPv4 addresses whole";
        node.error(format!("invalid IPv6 prefix length {}", quoted(text)), help)
    })
}

fn unknown_word(word: &str, node: &Node) -> ReportedError {
    let help = match word {
        "header" | "query" | "cookie" | "claim" | "descriptor" => format!("write `{{ {word}: NAME }}`"),
        "body" => "write `{ body: /model }`".to_owned(),
        "tls" | "subject" => "write `{ tls: subject }`".to_owned(),
        "authorization" | "bearer" | "token" => "write `credentials`".to_owned(),
        word if word.starts_with("x-") => format!("write `{{ header: {word} }}`"),
        word => nearest(word, WORDS).map_or_else(
            || "use ip, ip/64, host, method, path, credentials, global or a map such as { header: x-api-key }".into(),
            |word| format!("did you mean `{word}`?"),
        ),
    };
    node.error(format!("unknown id component {}", quoted(word)), help)
}

fn map(node: &Node, paths: Option<&[PathCondition]>) -> ReadResult<TypedPart> {
    if let Value::Map(entries) = &node.value
        && let Some((key, _)) =
            entries.iter().find(|(key, _)| matches!(key.text.as_str(), "ip" | "method" | "credentials" | "global"))
    {
        let prefixes = if key.text == "ip" { "; for IPv6 prefixes, `ip/64`" } else { "" };
        let help = format!("write the plain word `{}`{prefixes}", key.text);
        return Err(key.error(format!("`{}` is not a key of an id component", key.text), help));
    }
    let map = Mapping::of(node, "an id component", &KEYS)?;
    let form = map.read("as", one_of(&FORMS));
    let jwt = map.read(jwt::KEY, |node| node.text().map(str::to_owned));
    let duplicates = map.read("duplicates", one_of(&DUPLICATES));
    let sources = map.all(&SOURCES);
    let [(key, value)] = sources[..] else {
        let message = format!("an id component needs exactly one source, found {}", sources.len());
        let help = format!("use one of {}; write several components as a list", SOURCES.join(", "));
        return Err(map.lacks(message, help));
    };
    if let Some((other, _)) = map.get(jwt::KEY).filter(|_| key.text != "claim") {
        return Err(other.error("`jwt` needs `claim`", "write `{ claim: NAME, jwt: NAME }`"));
    }
    let part = match key.text.as_str() {
        "tls" => one_of(&TLS)(value)?,
        "host" if value.truth()? => Part::Host,
        "host" => return Err(value.error("`host` must be `true`", "write `host: true`")),
        "path" => path_parameter(value, paths)?,
        _ => named(key, value, jwt?)?,
    };
    let is_single = matches!(key.text.as_str(), "tls" | "host" | "path" | "claim" | "body");
    if let Some((key, _)) = map.get("duplicates").filter(|_| is_single) {
        let help = "remove it; only headers, query parameters, cookies and descriptor entries can be repeated";
        return Err(key.error("`duplicates` does not apply: a request has this component only once", help));
    }
    Ok(TypedPart {
        duplicates: duplicates?.unwrap_or_default(),
        ..TypedPart::new(part, form?.unwrap_or(ValueType::Text))
    })
}

/// Reads the name of a part of which a request has several. `jwt` is the issuer that is given for a claim.
pub(super) fn named(key: &Key, node: &Node, jwt: Option<String>) -> ReadResult<Part> {
    Ok(match key.text.as_str() {
        "header" => Part::Header(node.header_name()?),
        "query" => Part::Query(name(node)?),
        "cookie" => Part::Cookie(name(node)?),
        "claim" => Part::Claim(ClaimRef::new(jwt, jwt::claim(node)?)),
        "body" => Part::Body(pointer(node)?),
        _ => Part::Descriptor(name(node)?),
    })
}

fn path_parameter(node: &Node, paths: Option<&[PathCondition]>) -> ReadResult<Part> {
    let name = name(node)?;
    // The mistake in the patterns has been reported.
    let paths = paths.ok_or(ReportedError)?;
    if paths.is_empty() {
        let help = format!("add `match: {{ path: \"/.../{{{name}}}\" }}` to the limit");
        return Err(node.error(format!("{} is a path parameter, but `match` has no path pattern", quoted(&name)), help));
    }
    let Some(paths) = paths.iter().map(PathCondition::pattern).collect::<Option<Vec<_>>>() else {
        let message =
            format!("{} is a path parameter, which prefixes and regular expressions do not have", quoted(&name));
        return Err(node.error(message, "write only patterns in `path`"));
    };
    let segments: Option<Vec<_>> = paths.iter().map(|path| path.parameter(&name)).collect();
    let Some(segments) = segments else {
        let known: Vec<&str> = paths.iter().copied().flat_map(PathPattern::parameters).collect();
        let help = match known.is_empty() {
            true => "the patterns have no parameters; write a segment as `{name}`".to_owned(),
            false if paths.len() == 1 => did_you_mean(&name, known.iter().copied()),
            false => format!("every path needs this parameter; {}", did_you_mean(&name, known.iter().copied())),
        };
        return Err(node.error(format!("unknown path parameter {}", quoted(&name)), help));
    };
    if segments.iter().any(|segment| *segment != segments[0]) {
        let message = format!("{} is not the same segment in every path of `match`", quoted(&name));
        return Err(node.error(message, "write one limit per path"));
    }
    Ok(Part::PathParameter { name, segment: segments[0] })
}

fn name(node: &Node) -> ReadResult<String> {
    let name = node.text()?;
    if name.trim().is_empty() || name.trim() != name {
        return Err(node.error("a name must not be empty or have spaces around it", "remove the spaces"));
    }
    Ok(name.to_owned())
}
