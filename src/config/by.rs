//! Whose bucket: `by`.

use http::header::HeaderName;

use super::mapping::Mapping;
use super::problem::{Findings, Place, Reported, quoted};
use super::scalars::{one_of, text, truth};
use super::suggest::{did_you_mean, nearest};
use super::yaml::{Node, Value};
use crate::engine::rules::component::{Component, ComponentSource};
use crate::engine::rules::path_pattern::PathPattern;
use crate::engine::rules::request::Duplicates;
use crate::engine::rules::value_type::ValueType;

/// The words that stand alone.
pub(super) const WORDS: [&str; 5] = ["ip", "host", "method", "path", "global"];

/// The fields of a component that is a map.
pub(super) const KEYS: [&str; 9] =
    ["header", "query", "cookie", "path", "host", "tls", "descriptor", "as", "duplicates"];

/// The words of `duplicates`.
pub(super) const DUPLICATES: [(&str, Duplicates); 2] = [("first", Duplicates::First), ("last", Duplicates::Last)];

/// What `tls` can be: of a client's certificate only its subject makes an id.
pub(super) const TLS: [(&str, ()); 1] = [("subject", ())];

/// The forms of `as`.
pub(super) const FORMS: [(&str, ValueType); 6] = [
    ("text", ValueType::Text),
    ("integer", ValueType::Integer),
    ("address", ValueType::Address),
    ("hostname", ValueType::Hostname),
    ("registered-domain", ValueType::RegisteredDomain),
    ("hostname-set", ValueType::HostnameSet),
];

/// An id is read back from an override by trying its colons, whose number of ways grows with this.
pub(super) const MOST_COMPONENTS: usize = 6;

/// Parses `by`. `paths` are the patterns of the limit's `match`, where `{ path: NAME }` is looked up; `None` if they
/// could not be read.
pub(super) fn parse(
    node: &Node,
    paths: Option<&[PathPattern]>,
    findings: &mut Findings,
) -> Result<Vec<Component>, Reported> {
    let Value::List(items) = &node.value else {
        return Ok(component(node, paths, findings)?.into_iter().collect());
    };
    if items.is_empty() || items.len() > MOST_COMPONENTS {
        let message = format!("`by` has {} components", items.len());
        let help = format!("use 1 to {MOST_COMPONENTS}, or `by: global` for a single bucket");
        return Err(findings.error(node.place, message, help));
    }
    let mut components: Vec<Component> = Vec::with_capacity(items.len());
    let mut outcome = Ok(());
    for item in items {
        match component(item, paths, findings) {
            Ok(Some(component)) if components.contains(&component) => {
                outcome = Err(findings.error(item.place, "duplicate component in `by`", "remove one of them"));
            }
            Ok(Some(component)) => components.push(component),
            Ok(None) => {
                let help = "write `by: global` alone, or remove it from the list";
                outcome = Err(findings.error(item.place, "`global` cannot be combined with other components", help));
            }
            Err(reported) => outcome = Err(reported),
        }
    }
    outcome.map(|()| components)
}

/// One component; `None` for `global`, which has none.
pub(super) fn component(
    node: &Node,
    paths: Option<&[PathPattern]>,
    findings: &mut Findings,
) -> Result<Option<Component>, Reported> {
    match &node.value {
        Value::Scalar { .. } => word(node, findings),
        Value::Map(_) => map(node, paths, findings).map(Some),
        Value::List(_) => Err(findings.error(node.place, "lists in `by` cannot be nested", "write a single list")),
    }
}

fn word(node: &Node, findings: &mut Findings) -> Result<Option<Component>, Reported> {
    let word = text(node, findings)?;
    let source = match word {
        "global" => return Ok(None),
        "ip" => ComponentSource::Ip { ipv6_prefix: 128 },
        "host" => ComponentSource::Host,
        "method" => ComponentSource::Method,
        "path" => ComponentSource::Path,
        _ => match word.strip_prefix("ip/") {
            Some(prefix) => ComponentSource::Ip { ipv6_prefix: ipv6_prefix(prefix, node.place, findings)? },
            None => return Err(unknown_word(word, node.place, findings)),
        },
    };
    Ok(Some(Component::new(source, ValueType::Text)))
}

fn ipv6_prefix(text: &str, place: Place, findings: &mut Findings) -> Result<u8, Reported> {
    let canonical = |prefix: &u8| (1..=128).contains(prefix) && prefix.to_string() == text;
    text.parse().ok().filter(canonical).ok_or_else(|| {
        let help = "use 1 to 128; `ip/64` groups IPv6 clients by their first 64 bits and leaves IPv4 addresses whole";
        findings.error(place, format!("invalid IPv6 prefix length {}", quoted(text)), help)
    })
}

fn unknown_word(word: &str, place: Place, findings: &mut Findings) -> Reported {
    let help = match word {
        "header" | "query" | "cookie" | "descriptor" => format!("write `{{ {word}: NAME }}`"),
        "tls" | "subject" => "write `{ tls: subject }`".to_owned(),
        word if word.starts_with("x-") || word == "authorization" => format!("write `{{ header: {word} }}`"),
        word => nearest(word, WORDS).map_or_else(
            || "use ip, ip/64, host, method, path, global or a map such as { header: x-api-key }".into(),
            |word| format!("did you mean `{word}`?"),
        ),
    };
    findings.error(place, format!("unknown id component {}", quoted(word)), help)
}

fn map(node: &Node, paths: Option<&[PathPattern]>, findings: &mut Findings) -> Result<Component, Reported> {
    if let Value::Map(entries) = &node.value
        && let Some((key, _)) = entries.iter().find(|(key, _)| matches!(key.text.as_str(), "ip" | "method" | "global"))
    {
        let help = format!("write the plain word `{}`; for IPv6 prefixes, `ip/64`", key.text);
        return Err(findings.error(key.place, format!("`{}` is not a key of an id component", key.text), help));
    }
    let fields = Mapping::of(node, "an id component", &KEYS, findings)?;
    let form = fields.read("as", findings, one_of(&FORMS));
    let duplicates = fields.read("duplicates", findings, one_of(&DUPLICATES));
    let is_source = |name: &&&str| !matches!(**name, "as" | "duplicates");
    let given: Vec<_> = KEYS.iter().filter(is_source).filter_map(|name| fields.get(name)).collect();
    let [(key, value)] = given[..] else {
        let message = format!("an id component needs exactly one source, found {}", given.len());
        let help = "use one of header, query, cookie, path, host, tls, descriptor; write several components as a list";
        return Err(findings.error(node.place, message, help));
    };
    let source = match key.text.as_str() {
        "header" => ComponentSource::Header(header_name(value, findings)?),
        "query" => ComponentSource::Query(name(value, findings)?),
        "cookie" => ComponentSource::Cookie(name(value, findings)?),
        "descriptor" => ComponentSource::Descriptor(name(value, findings)?),
        "tls" => one_of(&TLS)(value, findings).map(|()| ComponentSource::TlsSubject)?,
        "host" => {
            if !truth(value, findings)? {
                return Err(findings.error(value.place, "`host` must be `true`", "write `host: true`"));
            }
            ComponentSource::Host
        }
        _ => path_parameter(value, paths, findings)?,
    };
    let duplicates = duplicates?.unwrap_or_default();
    if let Some((key, _)) = fields.get("duplicates")
        && !matches!(
            source,
            ComponentSource::Header(_)
                | ComponentSource::Query(_)
                | ComponentSource::Cookie(_)
                | ComponentSource::Descriptor(_)
        )
    {
        let help = "remove it; only headers, query parameters, cookies and descriptor entries can be repeated";
        return Err(findings.error(
            key.place,
            "`duplicates` does not apply: a request has this component only once",
            help,
        ));
    }
    Ok(Component { duplicates, ..Component::new(source, form?.unwrap_or(ValueType::Text)) })
}

fn path_parameter(
    node: &Node,
    paths: Option<&[PathPattern]>,
    findings: &mut Findings,
) -> Result<ComponentSource, Reported> {
    let name = name(node, findings)?;
    // The patterns have their own complaint already.
    let paths = paths.ok_or(Reported)?;
    let Some(first) = paths.first() else {
        let help = format!("add `match: {{ path: \"/.../{{{name}}}\" }}` to the limit");
        return Err(findings.error(
            node.place,
            format!("{} is a path parameter, but `match` has no `path`", quoted(&name)),
            help,
        ));
    };
    let segments: Vec<_> = paths.iter().map(|path| path.parameter(&name)).collect();
    if segments.contains(&None) {
        let known: Vec<&str> = paths.iter().flat_map(PathPattern::parameters).collect();
        let help = match known.is_empty() {
            true => "the patterns have no parameters; write a segment as `{name}`".to_owned(),
            false if paths.len() == 1 => did_you_mean(&name, known.iter().copied()),
            false => format!("every path needs this parameter; {}", did_you_mean(&name, known.iter().copied())),
        };
        return Err(findings.error(node.place, format!("unknown path parameter {}", quoted(&name)), help));
    }
    if segments.iter().any(|segment| *segment != segments[0]) {
        let message = format!("{} is not the same segment in every path of `match`", quoted(&name));
        return Err(findings.error(node.place, message, "write one limit per path"));
    }
    let segment = first.parameter(&name).ok_or(Reported)?;
    Ok(ComponentSource::PathParameter { name, segment })
}

fn name(node: &Node, findings: &mut Findings) -> Result<String, Reported> {
    let name = text(node, findings)?;
    if name.trim().is_empty() || name.trim() != name {
        return Err(findings.error(
            node.place,
            "a name must not be empty or have spaces around it",
            "remove the spaces",
        ));
    }
    Ok(name.to_owned())
}

/// The name of a field, which RFC 9110 section 5.1 makes case-insensitive: kept in lower case.
pub(super) fn header_name(node: &Node, findings: &mut Findings) -> Result<HeaderName, Reported> {
    let name = text(node, findings)?;
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
        findings.error(node.place, format!("invalid header name {}", quoted(name)), "use a name such as x-api-key")
    })
}
