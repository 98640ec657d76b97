//! Reads `jwt`, the issuers of tokens, and connects the claims that limits use with them.

use std::path::Path;
use std::sync::Arc;

use super::lints::{Lint, Places};
use super::mapping::Mapping;
use super::named_files::{self, NamedFile};
use super::node::{Key, Node, Value};
use super::pointer::pointer;
use super::problem::{Findings, ReadResult, quoted};
use super::scalars::is_name;
use super::suggest::did_you_mean;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::{Cost, Limit};
use crate::engine::request::claims::{ClaimPath, ClaimRef, KeySource, TokenIssuer};
use crate::engine::request::part::Part;
use crate::jwt::KeySet;
use crate::message::url::HttpUrl;

pub(super) const KEY: &str = "jwt";

/// The keys of an issuer.
pub(super) const KEYS: [&str; 7] = ["issuer", "audiences", "jwks_file", "jwks_url", "jwks_ca_file", "header", "leeway"];

/// The most issuers: each may cost a request the verification of a token.
pub(super) const MOST_ISSUERS: u16 = 16;

const LONGEST_NAME: usize = 64;

/// The tolerance without `leeway`, and the largest one, in nanoseconds.
const LEEWAY: u64 = 30_000_000_000;
const MOST_LEEWAY: u64 = 3_600_000_000_000;

/// The issuers in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Issuers {
    /// The names of all, also of those with mistakes.
    names: Vec<String>,
    pub(super) sound: Vec<TokenIssuer>,
}

impl Issuers {
    /// Sets the index of a claim's issuer. The error is a message and a help text.
    pub(super) fn resolve(&self, claim: &mut ClaimRef) -> Result<(), (String, String)> {
        claim.issuer = place(claim, &self.names)?;
        Ok(())
    }
}

/// Reads the value of `jwt`.
pub(super) fn read(node: &Node, files: &[NamedFile]) -> Issuers {
    let rules = node.findings.file();
    let mut issuers = Issuers::default();
    let help = "write `jwt: { main: { issuer: https://auth.example.com, audiences: [api], jwks_url: URL } }`";
    let Ok(entries) = node.map("`jwt`", help) else { return issuers };
    if entries.len() > usize::from(MOST_ISSUERS) {
        node.error(format!("`jwt` has {} issuers", entries.len()), format!("at most {MOST_ISSUERS} are supported"));
    }
    for (key, node) in entries {
        if !is_name(&key.text, LONGEST_NAME) {
            let help = format!("use 1 to {LONGEST_NAME} letters, digits, `_`, `.` and `-`");
            key.error(format!("invalid name of an issuer {}", quoted(&key.text)), help);
        }
        if issuers.names.contains(&key.text) {
            key.error(format!("duplicate name {}", quoted(&key.text)), "keep one of them");
        }
        issuers.names.push(key.text.clone());
        let Ok(issuer) = issuer(key, node, files, rules) else { continue };
        if let Some(other) = issuers.sound.iter().find(|other| other.issuer == issuer.issuer) {
            let message = format!("{} and {} have the same `issuer`", quoted(&other.name), quoted(&issuer.name));
            key.error(message, "a token belongs to the entry with its `iss`; write one entry with all audiences");
        }
        issuers.sound.push(issuer);
    }
    issuers
}

fn issuer(key: &Key, node: &Node, files: &[NamedFile], rules: &str) -> ReadResult<TokenIssuer> {
    let map = Mapping::of(node, "an entry of `jwt`", &KEYS)?;
    let name = map.need("issuer", "write the `iss` of its tokens, such as `issuer: https://auth.example.com`");
    let name = name.and_then(filled);
    let help = "write `audiences: [api.example.com]`, or `audiences: []` to accept tokens for anybody";
    let audiences = map.need("audiences", help).and_then(|node| match &node.value {
        Value::List(items) => items.iter().map(filled).collect(),
        _ => filled(node).map(|one| vec![one]),
    });
    let header = map.read("header", Node::header_name);
    let leeway = map.read("leeway", |node| match node.duration()? {
        leeway @ ..=MOST_LEEWAY => Ok(leeway),
        _ => Err(node.error("the leeway is too long", "tolerate at most 1h; clocks differ by seconds")),
    });
    let keys = keys(key, &map, files, rules);
    Ok(TokenIssuer {
        name: key.text.clone(),
        issuer: name?,
        audiences: audiences?,
        header: header?.filter(|name| name != http::header::AUTHORIZATION),
        leeway: Micros(leeway?.unwrap_or(LEEWAY) / 1000),
        keys: keys?,
    })
}

fn filled(node: &Node) -> ReadResult<String> {
    match node.text()? {
        "" => Err(node.error("the text is empty", "add a value")),
        text => Ok(text.to_owned()),
    }
}

fn keys(key: &Key, map: &Mapping<'_>, files: &[NamedFile], rules: &str) -> ReadResult<KeySource> {
    let ca_file = map.get("jwks_ca_file");
    match (map.get("jwks_file"), map.get("jwks_url")) {
        (Some((_, node)), None) => {
            if let Some((key, _)) = ca_file {
                return Err(key.error("`jwks_ca_file` needs `jwks_url`", "remove it"));
            }
            let (_, text) = named_files::text(node, files)?;
            let fault =
                |why| node.error(format!("the key set {why}"), "use a JWKS: `{\"keys\": [...]}` of public keys");
            let set = KeySet::parse(text.as_bytes()).map_err(|why| fault(format!("cannot be used: {why}")))?;
            if let Some(left_out) = set.left_out() {
                node.warning(Lint::UnusableKey, left_out, "publish only public keys that sign tokens");
            }
            Ok(KeySource::File(Arc::from(text)))
        }
        (None, Some((_, node))) => {
            let url: HttpUrl = node.text()?.parse().map_err(|why: String| node.error(why, ""))?;
            let folder = Path::new(rules).parent().unwrap_or(Path::new(""));
            let ca_file = ca_file.map(|(_, node)| node.text().map(|name| folder.join(name))).transpose()?;
            Ok(KeySource::Url { url, ca_file })
        }
        (None, None) => {
            let help = "add `jwks_url: https://...` or `jwks_file: FILE`";
            Err(key.error(format!("{} has no keys", quoted(&key.text)), help))
        }
        (Some(_), Some((key, _))) => {
            Err(key.error("`jwks_file` and `jwks_url` cannot be combined", "remove one of them"))
        }
    }
}

/// Reads the name of a claim, or a JSON pointer.
pub(super) fn claim(node: &Node) -> ReadResult<ClaimPath> {
    let path = filled(node)?;
    if path.starts_with('/') { pointer(node).map(ClaimPath::Pointer) } else { Ok(ClaimPath::Name(path)) }
}

/// Sets the index of the issuer in every claim of a limit.
pub(super) fn resolve(limit: &mut Limit, places: &Places, issuers: &Issuers, findings: &Findings) {
    let set = |claim: &mut ClaimRef, key: &str| {
        if let Err((message, help)) = issuers.resolve(claim) {
            findings.error(places.of(key), message, help);
        }
    };
    let ids = limit.by.iter_mut().map(|by| (&mut by.part, "by"));
    let fields =
        limit.queue.iter_mut().flat_map(|queue| &mut queue.fields).map(|(_, field)| (&mut field.part, "fields"));
    let conditions = limit.conditions.parts.iter_mut().map(|wanted| (&mut wanted.part, "match"));
    let cost = if let Cost::Part(part) = &mut limit.cost { Some((part, "cost")) } else { None };
    let numbers = limit.request_numbers.iter_mut().flat_map(|numbers| numbers.sources_mut());
    let numbers = numbers.map(|source| (&mut source.part, "count"));
    for (part, key) in ids.chain(fields).chain(conditions).chain(cost).chain(numbers) {
        if let Part::Claim(claim) = part {
            set(claim, key);
        }
    }
}

/// The index of a claim's issuer. The error is a message and a help text.
fn place(claim: &ClaimRef, names: &[String]) -> Result<u16, (String, String)> {
    let known = names.iter().map(String::as_str);
    let found = match (&claim.jwt, names) {
        (Some(wanted), _) if names.contains(wanted) => names.iter().position(|name| name == wanted),
        (Some(wanted), [_, ..]) => {
            return Err((format!("unknown issuer {} in `jwt`", quoted(wanted)), did_you_mean(wanted, known)));
        }
        (None, [_]) => Some(0),
        (_, []) => {
            let help = "add `jwt: { main: { issuer: ..., audiences: [...], jwks_url: ... } }` at the top of the file";
            return Err((
                format!("the claim {} needs an issuer of tokens", quoted(claim.path.as_str())),
                help.to_owned(),
            ));
        }
        (None, _) => {
            let help = format!("add `jwt: NAME`, one of {}", known.collect::<Vec<_>>().join(", "));
            return Err((format!("the claim {} could be of several issuers", quoted(claim.path.as_str())), help));
        }
    };
    Ok(found.and_then(|place| u16::try_from(place).ok()).unwrap_or_default())
}
