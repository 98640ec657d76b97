//! `weir explain`: what each limit makes of one request, and why.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::IpAddr;

use http::Uri;

use super::ExitCode;
use super::rules::RulesArgs;
use crate::engine::client_address::TrustedProxies;
use crate::engine::fields::{self, Fields};
use crate::engine::fingerprint::Fingerprinter;
use crate::engine::identity::{Component, Source};
use crate::engine::limit::{Limit, Missing};
use crate::engine::matching::{HeaderTest, Match, Mismatch};
use crate::engine::numbers::Allowance;
use crate::engine::path::normalise;
use crate::engine::request::{Request, host_of};
use crate::engine::rules::{Explanation, Rules};
use crate::store::Clock;

/// Which limits apply to one request, with which id and override, and why the others do not
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The method
    method: String,

    /// The URL, absolute (`http://host/path?query`) or from the path on
    url: String,

    /// A field of the request, `name: value`; repeatable
    #[arg(short = 'H', long = "header", value_name = "FIELD", value_parser = parse_header)]
    headers: Vec<(String, String)>,

    /// The address that the request comes from
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    ip: IpAddr,

    /// Proxies whose word on the client's address is taken
    #[arg(long, value_name = "CIDR", env = "WEIR_TRUSTED_PROXIES", value_delimiter = ',', value_parser = super::values::parse_network)]
    trusted_proxies: Vec<ipnet::IpNet>,

    /// The subject of the client's certificate, such as `CN=client 1,O=Acme`
    #[arg(long, value_name = "TEXT")]
    tls_subject: Option<String>,

    #[command(flatten)]
    rules: RulesArgs,

    /// A YAML file of these flags, the one that `weir serve` has
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<std::path::PathBuf>,
}

/// Prints what each limit makes of the request.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let now = Clock::own().now();
    let Some(rules) = args.rules.load(Fingerprinter::new((0, 0)), now, err)? else { return Ok(ExitCode::BadInput) };
    let uri: Uri = match args.url.parse() {
        Ok(uri) => uri,
        Err(error) => {
            writeln!(err, "error: `{}` is no URL: {error}", args.url)?;
            return Ok(ExitCode::BadInput);
        }
    };
    let headers: Fields = args.headers.iter().cloned().collect();
    let host = uri.authority().map(|authority| authority.as_str().to_owned());
    let host = host.or_else(|| headers.text("host").map(str::to_owned)).unwrap_or_default();
    let Some(host) = host_of(&host) else {
        writeln!(err, "error: `{host}` is no host")?;
        return Ok(ExitCode::BadInput);
    };
    let path = normalise(uri.path());
    let client = TrustedProxies::new(args.trusted_proxies.clone()).client(args.ip, &headers);
    let (method, query, tls_subject) = (args.method.as_str(), uri.query(), args.tls_subject.as_deref());
    let request = Request { method, host: &host, path: &path, query, headers: &headers, client, tls_subject, now };
    writeln!(out, "{} {host}{path} from {client}", args.method)?;
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

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a field is written `name: value`")?;
    let (name, value) = (name.trim(), value.trim());
    if !fields::is_name(name.as_bytes()) {
        return Err(format!("`{name}` is no name of a field"));
    }
    if !fields::is_value(value.as_bytes()) {
        return Err("a value has no control characters".into());
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
        Explanation::Lacking(component) => {
            let lacking = limit.by.get(*component).map_or_else(String::new, source);
            format!("{name}: does not apply\n  because   the request has no usable {lacking}\n")
        }
        Explanation::Applies { id, allowance, given_by, cost, enforced } => {
            let verb = match allowance {
                Allowance::Disabled => "does not apply",
                Allowance::Unlimited => "applies, unlimited",
                Allowance::Deny => "applies, refuses",
                Allowance::Windows(_) if *enforced => "applies",
                Allowance::Windows(_) => "applies, in shadow",
            };
            let mut text = format!("{name}: {verb}\n");
            let id: Vec<&str> = id.iter().map(|component| component.as_deref().unwrap_or("(missing)")).collect();
            let _ = writeln!(text, "  id        {}", if id.is_empty() { "(one for all)".into() } else { id.join(":") });
            if let Allowance::Windows(windows) = allowance {
                for numbers in windows.iter() {
                    let _ = writeln!(text, "  allows    {numbers}");
                }
                let _ = writeln!(text, "  cost      {cost}");
                if windows.iter().any(|numbers| *cost > numbers.burst()) {
                    let _ = writeln!(text, "  never     the cost is above the burst, no waiting helps");
                }
            }
            let _ = writeln!(text, "  given by  {}", given(rules, limit, *given_by, allowance));
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
        (None, Allowance::Disabled) => "nobody: the limit has no numbers, and no override has this id".into(),
        (None, Allowance::Deny) if limit.missing == Missing::Deny && limit.allowance != Allowance::Deny => {
            "`missing: deny`".into()
        }
        (None, _) => "the limit".into(),
    }
}

fn unmatched(conditions: &Match, request: &Request<'_>, mismatch: Mismatch) -> String {
    match mismatch {
        Mismatch::Method => {
            format!("the method is {}, the limit covers {}", request.method, conditions.methods.join(", "))
        }
        Mismatch::Host => {
            let hosts: Vec<String> = conditions.hosts.iter().map(ToString::to_string).collect();
            format!("the host is `{}`, the limit covers {}", request.host, hosts.join(", "))
        }
        Mismatch::Path => {
            let paths: Vec<String> = conditions.paths.iter().map(ToString::to_string).collect();
            format!("the path is {}, the limit covers {}", request.path, paths.join(", "))
        }
        Mismatch::Header(place) => conditions.headers.get(place).map_or_else(String::new, |header| {
            let wanted = match &header.test {
                HeaderTest::Present(true) => "to be there".to_owned(),
                HeaderTest::Present(false) => "to be absent".to_owned(),
                HeaderTest::Value(value) => format!("to be `{value}`"),
                HeaderTest::Prefix(prefix) => format!("to begin with `{prefix}`"),
                HeaderTest::Regex(regex) => format!("to match `{regex}`"),
            };
            let found =
                request.header(header.name.as_str()).map_or_else(|| "absent".into(), |value| format!("`{value}`"));
            format!("the header `{}` is {found}, the limit wants it {wanted}", header.name)
        }),
        Mismatch::Network => {
            let networks: Vec<String> = conditions.networks.iter().map(ToString::to_string).collect();
            format!("the client is {}, the limit covers {}", request.client, networks.join(", "))
        }
    }
}

fn source(component: &Component) -> String {
    match &component.source {
        Source::Ip { .. } => "address".into(),
        Source::Host => "host".into(),
        Source::Method => "method".into(),
        Source::Path => "path".into(),
        Source::Header(name) => format!("header `{name}`"),
        Source::Query(name) => format!("query parameter `{name}`"),
        Source::Cookie(name) => format!("cookie `{name}`"),
        Source::TlsSubject => "subject of a client's certificate".into(),
        Source::PathParameter { name, .. } => format!("path parameter `{name}`"),
    }
}
