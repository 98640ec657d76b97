//! `weir explain`: which limits apply to a request, and why.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::IpAddr;

use super::ExitCode;
use super::rules::RulesArgs;
use crate::clock::Clock;
use crate::engine::rules::allowance::Allowance;
use crate::engine::rules::component::{Component, ComponentError, ComponentSource};
use crate::engine::rules::explanation::Explanation;
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::engine::rules::identity::Fallback;
use crate::engine::rules::limit::Limit;
use crate::engine::rules::matching::{DescriptorMatch, Match, Mismatch, ValueTest};
use crate::engine::rules::request::{DescriptorEntry, Request};
use crate::engine::rules::rule_set::Rules;
use crate::message::client_address::{AddressSource, TrustedProxies};
use crate::message::headers::{self, Headers};
use crate::message::host::host_of;
use crate::message::lossless::shown;
use crate::message::path::{EscapedSlashes, normalise};
use crate::message::target::{self, UrlError};

/// Shows which limits apply to a request, with which id and override, and why the others do not
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The request's method
    #[arg(required_unless_present = "domain")]
    method: Option<String>,

    /// The request's URL, absolute (`http://host/path?query`) or starting at the path
    #[arg(required_unless_present = "domain")]
    url: Option<String>,

    /// Explain a call of the rate limit service for this domain, instead of a method and a URL
    #[arg(long, value_name = "NAME", conflicts_with_all = ["method", "headers", "ip", "tls_subject"])]
    domain: Option<String>,

    /// A descriptor entry or `ext_authz` context extension, `key=value`; repeatable, in order
    #[arg(long = "descriptor", value_name = "ENTRY", value_parser = parse_entry)]
    descriptor: Vec<(String, String)>,

    /// A request header, `name: value`; repeatable
    #[arg(short = 'H', long = "header", value_name = "HEADER", value_parser = parse_header)]
    headers: Vec<(String, String)>,

    /// The address that the request comes from
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    ip: IpAddr,

    /// Networks of trusted proxies, whose forwarding headers are believed
    #[arg(long, value_name = "CIDR", env = "WEIR_TRUSTED_PROXIES", value_delimiter = ',', value_parser = super::values::parse_network)]
    trusted_proxies: Vec<ipnet::IpNet>,

    /// Where trusted proxies put the client's address: `xff`, `forwarded` or `hops=N`
    #[arg(long, value_name = "WHERE", env = "WEIR_CLIENT_ADDRESS", default_value = "xff")]
    client_address: AddressSource,

    /// The subject of the client's certificate, such as `CN=client 1,O=Acme`
    #[arg(long, value_name = "TEXT")]
    tls_subject: Option<String>,

    #[command(flatten)]
    rules: RulesArgs,

    /// A YAML file of flags, as for `weir serve`
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<std::path::PathBuf>,
}

/// Prints how each limit treats the request.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let now = Clock::machine().now();
    let Some(rules) = args.rules.load(Fingerprinter::new((0, 0)), now, err)? else { return Ok(ExitCode::BadInput) };
    // Neither is given with a domain.
    let (method, url) = (args.method.as_deref().unwrap_or("GET"), args.url.as_deref().unwrap_or("/"));
    let (authority, target) = match split(method, url) {
        Ok(split) => split,
        Err(reason) => {
            writeln!(err, "error: `{method} {url}`: {reason}")?;
            return Ok(ExitCode::BadInput);
        }
    };
    let headers: Headers = args.headers.iter().cloned().collect();
    let host = authority.map(str::to_owned);
    let host = host.or_else(|| headers.text("host").map(str::to_owned)).unwrap_or_default();
    let Some(host) = host_of(&host) else {
        writeln!(err, "error: invalid host `{host}`")?;
        return Ok(ExitCode::BadInput);
    };
    let (path, query) = target::split(&target);
    let path = normalise(path);
    let trusted = TrustedProxies::new(args.trusted_proxies.clone()).saying_in(args.client_address);
    let client = trusted.client(args.ip, &headers).address;
    let descriptor: Vec<DescriptorEntry<'_>> =
        args.descriptor.iter().map(|(key, value)| DescriptorEntry { key, value }).collect();
    let request = Request {
        method: args.method.as_deref().unwrap_or_default(),
        host: &host,
        path: &path,
        query,
        headers: &headers,
        client: Some(client),
        tls_subject: args.tls_subject.as_deref(),
        domain: None,
        descriptor: &descriptor,
        now,
    };
    let request = match args.domain.as_deref() {
        None => {
            writeln!(out, "{} {host}{path} from {client}", request.method)?;
            request
        }
        Some(domain) => {
            writeln!(out, "descriptor {} in domain {domain}", entries(&descriptor))?;
            Request { domain: Some(domain), path: "", client: None, ..request }
        }
    };
    match rules.explain(&request) {
        Ok(explanations) => {
            for (limit, explanation) in rules.limits().iter().zip(explanations) {
                write!(out, "\n{}", describe(&rules, limit, &request, &explanation))?;
            }
            Ok(ExitCode::Success)
        }
        Err(error) => {
            writeln!(err, "error: {error}")?;
            Ok(ExitCode::BadInput)
        }
    }
}

/// The authority of a URL, if it is absolute, and its target.
fn split<'a>(method: &str, url: &'a str) -> Result<(Option<&'a str>, Cow<'a, str>), &'static str> {
    let (authority, target) = if url.starts_with('/') || url == "*" {
        (None, Cow::Borrowed(url))
    } else {
        let (authority, target) = target::split_url(method, url).map_err(UrlError::reason)?;
        (Some(authority), target)
    };
    target::check(method, &target, EscapedSlashes::Keep)?;
    Ok((authority, target))
}

fn entries(descriptor: &[DescriptorEntry<'_>]) -> String {
    match descriptor {
        [] => "without entries".to_owned(),
        entries => {
            entries.iter().map(|DescriptorEntry { key, value }| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
        }
    }
}

fn parse_entry(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected `key=value`")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected `name: value`")?;
    let (name, value) = (name.trim(), value.trim());
    if !headers::is_name(name.as_bytes()) {
        return Err(format!("invalid header name `{name}`"));
    }
    if !headers::is_value(value.as_bytes()) {
        return Err("a header value must not contain control characters".into());
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn describe(rules: &Rules, limit: &Limit, request: &Request<'_>, explanation: &Explanation) -> String {
    let name = &limit.name;
    match explanation {
        Explanation::Off => format!("{name}: does not apply\n  because   mode is off\n"),
        Explanation::Unmatched(mismatch) => {
            format!("{name}: does not apply\n  because   {}\n", unmatched(&limit.conditions, request, *mismatch))
        }
        Explanation::Outranked => {
            format!(
                "{name}: does not apply\n  because   a rule for this value or an earlier pattern takes precedence\n"
            )
        }
        Explanation::Undescribed => {
            format!("{name}: does not apply\n  because   the limit matches neither a domain nor a descriptor\n")
        }
        Explanation::NoId(lacking) => {
            let component = limit.by.get(lacking.component).map_or_else(String::new, source);
            let why = match lacking.reason {
                ComponentError::Missing => format!("the request has no {component}"),
                ComponentError::Malformed => {
                    format!("the {component} is malformed, and the limit has `malformed: skip`")
                }
            };
            format!("{name}: does not apply\n  because   {why}\n")
        }
        Explanation::Applies { id, allowance, given_by, cost, enforced } => {
            let verb = match allowance {
                Allowance::Disabled => "does not apply",
                Allowance::Unlimited => "applies, unlimited",
                Allowance::Deny if *enforced => "applies, denies",
                Allowance::Deny => "applies, would deny, in shadow mode",
                Allowance::Windows(_) | Allowance::Elevated(_) if *enforced => "applies",
                Allowance::Windows(_) | Allowance::Elevated(_) => "applies, in shadow mode",
            };
            let mut text = format!("{name}: {verb}\n");
            let lacking = |reason: &ComponentError| match reason {
                ComponentError::Missing => "(missing)",
                ComponentError::Malformed => "(malformed)",
            };
            let is_denied_for = |reason, fallback| fallback == Fallback::Deny && id.contains(&Err(reason));
            let fallback = if is_denied_for(ComponentError::Missing, limit.missing) {
                Some("`missing: deny`")
            } else if is_denied_for(ComponentError::Malformed, limit.malformed) {
                Some("`malformed: deny`")
            } else {
                None
            };
            let id: Vec<&str> =
                id.iter().map(|component| component.as_ref().map_or_else(lacking, String::as_str)).collect();
            let _ = writeln!(
                text,
                "  id        {}",
                if id.is_empty() { "(one bucket for all)".into() } else { id.join(":") }
            );
            if let Some(windows) = allowance.windows() {
                for numbers in windows.iter() {
                    let _ = writeln!(text, "  allows    {numbers}");
                }
                if let Some(elevated) = allowance.elevated() {
                    let _ = writeln!(text, "  elevated  {elevated}");
                }
                let _ = writeln!(text, "  cost      {cost}");
                let most = allowance.elevated().map_or(0, |elevated| elevated.numbers.burst());
                if windows.iter().any(|numbers| *cost > numbers.burst().max(most)) {
                    let _ = writeln!(text, "  never     the cost exceeds the burst, so the request can never pass");
                }
                let response_cost = limit.response_cost.as_deref();
                if let Some(field) = response_cost.and_then(|cost| cost.header.as_ref()) {
                    let _ = writeln!(text, "  settled   by the response header `{field}`");
                }
                if let Some(statuses) = response_cost.and_then(|cost| cost.when.as_ref()) {
                    let _ = writeln!(
                        text,
                        "  spent     if the upstream answers {statuses}, or does not answer after it was sent the request"
                    );
                }
                if limit.drain_over_limit {
                    let _ = writeln!(text, "  reports   beyond what remains take what remains");
                }
            }
            let given = fallback.map_or_else(|| given(rules, limit, *given_by, allowance), str::to_owned);
            let _ = writeln!(text, "  given by  {given}");
            text
        }
    }
}

fn given(rules: &Rules, limit: &Limit, given_by: Option<usize>, allowance: &Allowance) -> String {
    match (given_by.and_then(|place| limit.overrides.get(place)), allowance) {
        (Some(found), _) => {
            let comment = found.origin.comment.as_deref().map_or_else(String::new, |comment| format!(" ({comment})"));
            format!("the override at {}:{}{comment}", rules.file(found.origin.file), found.origin.line)
        }
        (None, Allowance::Disabled) => "none: the limit has no numbers, and no override matches this id".into(),
        (None, _) => "the limit".into(),
    }
}

fn unmatched(conditions: &Match, request: &Request<'_>, mismatch: Mismatch) -> String {
    match mismatch {
        Mismatch::Method => {
            format!("the method is {}, the limit covers {}", request.method, conditions.methods.join(", "))
        }
        Mismatch::Host => {
            format!("the host is `{}`, {}", request.host, covered(&conditions.hosts, &conditions.other_hosts))
        }
        Mismatch::Path => {
            let paths: Vec<String> = conditions.paths.iter().map(ToString::to_string).collect();
            let path = conditions.path_reading.of(request.path);
            format!("the path is {path}, the limit covers {}", paths.join(", "))
        }
        Mismatch::Header(place) => conditions.headers.get(place).map_or_else(String::new, |header| {
            let found = list(request.lines(header.name.as_str()).map(|line| format!("`{}`", shown(&line))));
            format!("the header `{}` is {found}, the limit requires it {}", header.name, wanted_value(&header.test))
        }),
        Mismatch::Domain => {
            let domain = request.domain.map_or_else(|| "none".to_owned(), |domain| format!("`{domain}`"));
            format!("the domain is {domain}, the limit covers {}", conditions.domains.join(", "))
        }
        Mismatch::Entry(place) => entry_unmatched(&conditions.descriptor, request, place),
        Mismatch::Network => {
            let client = request.client.map_or_else(|| "unknown".to_owned(), |client| client.to_string());
            format!("the client is {client}, {}", covered(&conditions.networks, &conditions.other_networks))
        }
    }
}

/// The hosts or networks that a limit covers, or those that it excludes.
fn covered<T: ToString>(named: &[T], excluded: &[T]) -> String {
    let join = |all: &[T]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match excluded {
        [] => format!("the limit covers {}", join(named)),
        excluded => format!("the limit does not cover {}", join(excluded)),
    }
}

/// All values under one name.
fn list(found: impl Iterator<Item = String>) -> String {
    let found: Vec<String> = found.collect();
    if found.is_empty() { "absent".to_owned() } else { found.join(" and ") }
}

fn wanted_value(test: &ValueTest) -> String {
    match test {
        ValueTest::Present(true) => "to be present".to_owned(),
        ValueTest::Present(false) => "to be absent".to_owned(),
        ValueTest::Value(value) => format!("to be `{value}`"),
        ValueTest::Prefix(prefix) => format!("to start with `{prefix}`"),
        ValueTest::Regex(regex) => format!("to match `{regex}`"),
        ValueTest::Glob(glob) => format!("to match `{glob}`"),
        ValueTest::Not(excluded) => {
            let presence = if excluded.is_needed { "to be present and " } else { "" };
            let tests: Vec<_> = excluded.tests.iter().map(|test| format!("not {}", wanted_value(test))).collect();
            format!("{presence}{}", tests.join(" and "))
        }
    }
}

fn entry_unmatched(conditions: &DescriptorMatch, request: &Request<'_>, place: usize) -> String {
    let wanted = conditions.entries().get(place);
    let found: Vec<&str> = match conditions {
        DescriptorMatch::Each(_) => wanted.map_or_else(Vec::new, |wanted| request.entries(&wanted.key).collect()),
        DescriptorMatch::Whole(path) => {
            let given = request.descriptor.get(place);
            match (wanted, given) {
                (None, Some(entry)) => {
                    return format!("the descriptor continues with `{}` after entry {place}", entry.key);
                }
                (Some(wanted), Some(entry)) if wanted.key != entry.key => {
                    return format!("entry {} is `{}`, the limit requires `{}`", place + 1, entry.key, wanted.key);
                }
                (Some(_), Some(entry)) => vec![entry.value],
                (_, None) => {
                    return format!(
                        "the descriptor has {} entries, the limit requires {}",
                        request.descriptor.len(),
                        path.len()
                    );
                }
            }
        }
    };
    let Some(wanted) = wanted else { return String::new() };
    let found = list(found.into_iter().map(|value| format!("`{}`", shown(value))));
    format!("the entry `{}` is {found}, the limit requires it {}", wanted.key, wanted_value(&wanted.test))
}

fn source(component: &Component) -> String {
    match &component.source {
        ComponentSource::Ip { .. } => "address".into(),
        ComponentSource::Host => "host".into(),
        ComponentSource::Method => "method".into(),
        ComponentSource::Path => "path".into(),
        ComponentSource::Header(name) => format!("header `{name}`"),
        ComponentSource::Query(name) => format!("query parameter `{name}`"),
        ComponentSource::Cookie(name) => format!("cookie `{name}`"),
        ComponentSource::TlsSubject => "client certificate subject".into(),
        ComponentSource::PathParameter { name, .. } => format!("path parameter `{name}`"),
        ComponentSource::Descriptor(key) | ComponentSource::Entry { key, .. } => format!("descriptor entry `{key}`"),
    }
}
