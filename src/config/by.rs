//! Reads `by`: the components of a limit's ids.

use super::jwt;
use super::mapping::Mapping;
use super::node::{Node, Value};
use super::pointer::pointer;
use super::problem::{ReadResult, ReportedError, quoted};
use super::scalars::one_of;
use super::suggest::{did_you_mean, nearest};
use crate::engine::request::Duplicates;
use crate::engine::request::claims::ClaimRef;
use crate::engine::request::component::{Component, ComponentSource, IPV6_CLIENT_PREFIX};
use crate::engine::request::path_pattern::PathPattern;
use crate::engine::request::value_type::ValueType;

/// Components that are plain words.
pub(super) const WORDS: [&str; 6] = ["ip", "host", "method", "path", "credentials", "global"];

/// The keys of a component that select its source.
const SOURCES: [&str; 9] = ["header", "query", "cookie", "path", "host", "tls", "claim", "body", "descriptor"];

pub(super) const KEYS: [&str; 12] =
    ["header", "query", "cookie", "path", "host", "tls", "claim", "jwt", "body", "descriptor", "as", "duplicates"];

pub(super) const DUPLICATES: [(&str, Duplicates); 2] = [("first", Duplicates::First), ("last", Duplicates::Last)];

pub(super) const TLS: [(&str, ComponentSource); 1] = [("subject", ComponentSource::TlsSubject)];

/// The values of `as`.
pub(super) const FORMS: [(&str, ValueType); 6] = [
    ("text", ValueType::Text),
    ("integer", ValueType::Integer),
    ("address", ValueType::Address),
    ("hostname", ValueType::Hostname),
    ("registered-domain", ValueType::RegisteredDomain),
    ("hostname-set", ValueType::HostnameSet),
];

/// The ways to split an override's id at its colons grow with the number of components.
pub(super) const MOST_COMPONENTS: usize = 6;

/// Reads `by`. `paths` are the patterns of the limit's `match`, which define path parameters; `None` if they have a mistake.
pub(super) fn by(node: &Node, paths: Option<&[PathPattern]>) -> ReadResult<Vec<Component>> {
    let Value::List(items) = &node.value else {
        return Ok(component(node, paths)?.into_iter().collect());
    };
    if items.is_empty() || items.len() > MOST_COMPONENTS {
        let help = format!("use 1 to {MOST_COMPONENTS}, or `by: global` for a single bucket");
        return Err(node.error(format!("`by` has {} components", items.len()), help));
    }
    let mut components: Vec<Component> = Vec::with_capacity(items.len());
    let mut outcome = Ok(());
    for item in items {
        match component(item, paths) {
            Ok(Some(component)) if components.contains(&component) => {
                outcome = Err(item.error("duplicate component in `by`", "remove one of them"));
            }
            Ok(Some(component)) => components.push(component),
            Ok(None) => {
                let help = "write `by: global` alone, or remove it from the list";
                outcome = Err(item.error("`global` cannot be combined with other components", help));
            }
            Err(reported) => outcome = Err(reported),
        }
    }
    outcome.map(|()| components)
}

/// Reads one component; `None` for `global`.
pub(super) fn component(node: &Node, paths: Option<&[PathPattern]>) -> ReadResult<Option<Component>> {
    match &node.value {
        Value::Scalar { .. } => word(node),
        Value::Map(_) => map(node, paths).map(Some),
        Value::List(_) => Err(node.error("lists in `by` cannot be nested", "write a single list")),
    }
}

fn word(node: &Node) -> ReadResult<Option<Component>> {
    let word = node.text()?;
    let source = match word {
        "global" => return Ok(None),
        "ip" => ComponentSource::Ip { ipv6_prefix: IPV6_CLIENT_PREFIX },
        "host" => ComponentSource::Host,
        "method" => ComponentSource::Method,
        "path" => ComponentSource::Path,
        "credentials" => ComponentSource::Credentials,
        _ => match word.strip_prefix("ip/") {
            Some(prefix) => ComponentSource::Ip { ipv6_prefix: ipv6_prefix(prefix, node)? },
            None => return Err(unknown_word(word, node)),
        },
    };
    Ok(Some(Component::new(source, ValueType::Text)))
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

fn map(node: &Node, paths: Option<&[PathPattern]>) -> ReadResult<Component> {
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
        return Err(node.error(message, help));
    };
    if let Some((other, _)) = map.get(jwt::KEY).filter(|_| key.text != "claim") {
        return Err(other.error("`jwt` needs `claim`", "write `{ claim: NAME, jwt: NAME }`"));
    }
    let source = match key.text.as_str() {
        "header" => ComponentSource::Header(value.header_name()?),
        "query" => ComponentSource::Query(name(value)?),
        "cookie" => ComponentSource::Cookie(name(value)?),
        "descriptor" => ComponentSource::Descriptor(name(value)?),
        "tls" => one_of(&TLS)(value)?,
        "claim" => ComponentSource::Claim(ClaimRef::new(jwt?, jwt::claim(value)?)),
        "body" => ComponentSource::Body(pointer(value)?),
        "host" if value.truth()? => ComponentSource::Host,
        "host" => return Err(value.error("`host` must be `true`", "write `host: true`")),
        _ => path_parameter(value, paths)?,
    };
    let is_single = matches!(key.text.as_str(), "tls" | "host" | "path" | "claim" | "body");
    if let Some((key, _)) = map.get("duplicates").filter(|_| is_single) {
        let help = "remove it; only headers, query parameters, cookies and descriptor entries can be repeated";
        return Err(key.error("`duplicates` does not apply: a request has this component only once", help));
    }
    Ok(Component {
        duplicates: duplicates?.unwrap_or_default(),
        ..Component::new(source, form?.unwrap_or(ValueType::Text))
    })
}

fn path_parameter(node: &Node, paths: Option<&[PathPattern]>) -> ReadResult<ComponentSource> {
    let name = name(node)?;
    // The mistake in the patterns has been reported.
    let paths = paths.ok_or(ReportedError)?;
    if paths.is_empty() {
        let help = format!("add `match: {{ path: \"/.../{{{name}}}\" }}` to the limit");
        return Err(node.error(format!("{} is a path parameter, but `match` has no `path`", quoted(&name)), help));
    }
    let segments: Option<Vec<_>> = paths.iter().map(|path| path.parameter(&name)).collect();
    let Some(segments) = segments else {
        let known: Vec<&str> = paths.iter().flat_map(PathPattern::parameters).collect();
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
    Ok(ComponentSource::PathParameter { name, segment: segments[0] })
}

fn name(node: &Node) -> ReadResult<String> {
    let name = node.text()?;
    if name.trim().is_empty() || name.trim() != name {
        return Err(node.error("a name must not be empty or have spaces around it", "remove the spaces"));
    }
    Ok(name.to_owned())
}
