//! `weir explain`: which limits apply to a request, and why.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

use super::client_flags::ClientArgs;
use super::client_limit_flags::{EscapedSlashesArg, InspectionArgs};
use super::exit::{ExitCode, Failure};
use super::print::{detail, in_parentheses, joined};
use super::rules_flags::RulesArgs;
use crate::clock::Clock;
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::describe::Span;
use crate::engine::algorithms::tag::tag_of;
use crate::engine::charging::plan::Plan;
use crate::engine::limit::Limit;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::overrides::OverrideOrigin;
use crate::engine::limit::queue::InvalidInput;
use crate::engine::limit::response_cost::CostSource;
use crate::engine::limit::rules::Rules;
use crate::engine::request::claims::TokenResult;
use crate::engine::request::incoming::{Described, ReadingOptions, Received};
use crate::engine::request::part::PartError;
use crate::engine::request::{Body, DescriptorEntry, Request};
use crate::engine::telling::explanation::{CandidateUse, Explanation};
use crate::engine::text::instant::day_until;
use crate::engine::text::quote::quoted;
use crate::jwt::Checker;
use crate::listeners::rules_json;
use crate::message::headers::{self, Headers};
use crate::store::StorePlan;
use crate::store::redis::{RedisOptions, TAG_NAMES};

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

    /// A descriptor entry or `ext_authz` context extension, `key=value`; repeatable, in order. A request with one is read as
    /// `ext_authz` reads it, others as the proxy does
    #[arg(long = "descriptor", value_name = "ENTRY", value_parser = parse_entry)]
    descriptor: Vec<(String, String)>,

    /// A request header, `name: value`; repeatable
    #[arg(short = 'H', long = "header", value_name = "HEADER", value_parser = parse_header)]
    headers: Vec<(String, String)>,

    /// The address that the request comes from
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    ip: IpAddr,

    /// The subject of the client's certificate, such as `CN=client 1,O=Acme`
    #[arg(long, value_name = "TEXT")]
    tls_subject: Option<String>,

    /// The request's JSON body, for limits that read it
    #[arg(short, long, value_name = "JSON")]
    data: Option<String>,

    #[command(flatten)]
    inspection: InspectionArgs,

    #[command(flatten)]
    slashes: EscapedSlashesArg,

    /// The output: `text`, or `json`, as the admin listener's `/explain` answers
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,

    #[command(flatten)]
    rules: RulesArgs,

    /// The store of the gateway, as for `weir serve`; it is not asked, but the output has the hash tags if it is a cluster
    #[arg(long, value_name = "STORE", env = "WEIR_STORE", default_value = "memory", hide_env_values = true)]
    store: String,

    /// A YAML file of flags, as for `weir serve`
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<std::path::PathBuf>,

    #[command(flatten)]
    client: ClientArgs,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

/// Prints how each limit treats the request.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let is_cluster = is_cluster(&args.store).map_err(Failure::usage)?;
    let now = Clock::machine().now();
    let rules = args.rules.load(Fingerprinter::new((0, 0)), now, err)?;
    let mut headers: Headers = args.headers.iter().cloned().collect();
    let descriptor: Vec<_> = args.descriptor.iter().map(|(key, value)| DescriptorEntry { key, value }).collect();
    let data = args.data.as_deref().unwrap_or_default().as_bytes();
    let mut tokens = Vec::new();
    let reading = args.client.reading(args.slashes.escaped_slashes);
    let (received, claims);
    let request = if let Some(domain) = &args.domain {
        Request { domain: Some(domain), ..Request::empty(&headers) }
    } else {
        let client;
        (received, client) = args.read(&reading, &mut headers).map_err(Failure::bad_input)?;
        claims = Checker::new(Arc::default()).claims(&rules, received.headers, now, |result| tokens.push(result));
        let (tls_subject, most) = (args.tls_subject.as_deref(), args.inspection.bytes());
        let body = Body::inspected(data, received.headers, most);
        Request { client, tls_subject, claims: &claims, body, ..received.request() }
    };
    let request = Request { descriptor: &descriptor, now, ..request };
    let tags = if is_cluster { tags(&rules, &request).map_err(Failure::bad_input)? } else { Vec::new() };
    match args.format {
        Format::Json => print_json(&rules, &request, &tags, out)?,
        Format::Text => print_text(&rules, &request, &tags, &tokens, out)?,
    }
    if data.len() > args.inspection.bytes() && rules.needs_body(&request) {
        let (length, most) = (data.len(), args.inspection.bytes());
        let why = "so limits that read it find it malformed";
        writeln!(err, "the body has {length} bytes; `weir serve` reads up to {most} (`--max-inspected-body`), {why}")?;
    }
    Ok(ExitCode::Success)
}

impl Args {
    fn read<'a>(
        &'a self,
        reading: &'a ReadingOptions,
        headers: &'a mut Headers,
    ) -> Result<(Received<'a>, Option<IpAddr>), String> {
        // Both are given without a domain.
        let (method, url) = (self.method.as_deref().unwrap_or_default(), self.url.as_deref().unwrap_or_default());
        let is_of_gateway = !self.descriptor.is_empty();
        reading.read(Described { method, url, headers, peer: Some(self.ip), is_of_gateway })
    }
}

fn print_text(
    rules: &Rules,
    request: &Request<'_>,
    tags: &[(u32, u16)],
    tokens: &[TokenResult],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let Request { method, host, path, .. } = request;
    match (request.domain, request.client) {
        (Some(domain), _) => writeln!(out, "descriptor {} in domain {domain}", entries(request.descriptor))?,
        (None, Some(client)) => writeln!(out, "{method} {host}{path} from {client}")?,
        (None, None) => writeln!(out, "{method} {host}{path}")?,
    }
    for token in tokens {
        writeln!(out, "token: {}", told(*token))?;
    }
    let explanations = Explanation::of_limits(rules, request, None);
    for ((place, limit), explanation) in (0..).zip(rules.limits()).zip(explanations) {
        let mut text = describe(rules, limit, request, &explanation);
        if let Some((_, tag)) = tags.iter().find(|(limit, _)| *limit == place) {
            detail(&mut text, "tag", tag);
        }
        write!(out, "\n{text}")?;
    }
    if let Some(summary) = tag_summary(tags) {
        writeln!(out, "\n{summary}")?;
    }
    Ok(())
}

/// The result of a token's verification, for people.
fn told(token: TokenResult) -> String {
    let text = token.label().replace('_', " ");
    match token {
        TokenResult::NoKeys => {
            format!("{text}: this command fetches none; ask a gateway with `POST /explain` on its admin listener")
        }
        _ => text,
    }
}

fn print_json(rules: &Rules, request: &Request<'_>, tags: &[(u32, u16)], out: &mut dyn Write) -> Result<(), Failure> {
    let mut explained = rules_json::explanation(rules, request, None);
    for (place, tag) in tags {
        explained["limits"][*place as usize]["tag"] = (*tag).into();
    }
    writeln!(out, "{explained:#}")?;
    Ok(())
}

fn is_cluster(store: &str) -> Result<bool, String> {
    if store == "memory" {
        return Ok(false);
    }
    let plan = StorePlan::remote(&RedisOptions::new(store, Clock::machine()));
    plan.map(|plan| plan.is_cluster()).map_err(|error| format!("--store: {error}"))
}

/// The indices of the limits that the request charges, and the hash tags in the keys of the buckets.
fn tags(rules: &Rules, request: &Request<'_>) -> Result<Vec<(u32, u16)>, InvalidInput> {
    let plan = Plan::of_request(rules, request, None)?;
    let tag_of = |charge: &Charge| TAG_NAMES[usize::from(tag_of(&charge.bucket))];
    Ok(plan.charges.iter().map(|charge| (charge.origin.limit, tag_of(charge))).collect())
}

fn tag_summary(tags: &[(u32, u16)]) -> Option<String> {
    let tags: BTreeSet<u16> = tags.iter().map(|(_, tag)| *tag).collect();
    let trips = match tags.len() {
        0 => return None,
        1 => "1 hash slot: 1 round trip".to_owned(),
        slots => format!("{slots} hash slots: 2 round trips"),
    };
    Some(format!("tags: {} ({trips})", joined(tags, ", ")))
}

fn entries(descriptor: &[DescriptorEntry<'_>]) -> String {
    if descriptor.is_empty() {
        return "without entries".to_owned();
    }
    joined(descriptor.iter().map(|DescriptorEntry { key, value }| format!("{key}={value}")), ", ")
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
    let Explanation::Applies { id, allowance, candidates, given_by, cost, enforced, denied_for, .. } = explanation
    else {
        let mut text = format!("{}: does not apply\n", limit.name);
        detail(&mut text, "because", explanation.reason(limit, request).unwrap_or_default());
        return text;
    };
    let mut text = format!("{}: {}\n", limit.name, verb(allowance, *enforced));
    if let Some(owner) = &limit.owner {
        detail(&mut text, "owner", owner);
    }
    detail(&mut text, "id", shown_id(id));
    describe_numbers(limit, (allowance, given_by.is_some()), *cost, &mut text);
    let given = denied_for.map(|error| error.setting().to_owned()).or_else(|| given_by_candidate(candidates));
    detail(&mut text, "given by", given.unwrap_or_else(|| origin(rules, given_by.as_ref(), allowance)));
    describe_candidates(candidates, &mut text);
    if let Some(end) = limit.review_by {
        detail(&mut text, "review by", day_until(end));
    }
    text
}

const fn verb(allowance: &Allowance, enforced: bool) -> &'static str {
    match allowance {
        Allowance::Disabled => "does not apply",
        Allowance::Unlimited => "applies, unlimited",
        Allowance::Deny if enforced => "applies, denies",
        Allowance::Deny => "applies, would deny, in shadow mode",
        Allowance::Windows(_) | Allowance::Elevated(_) if enforced => "applies",
        Allowance::Windows(_) | Allowance::Elevated(_) => "applies, in shadow mode",
    }
}

fn shown_id(id: &[Result<String, PartError>]) -> String {
    if id.is_empty() {
        return "(one bucket for all)".to_owned();
    }
    let shown = id.iter().map(|part| match part {
        Ok(text) => text,
        Err(PartError::Missing) => "(missing)",
        Err(PartError::Malformed) => "(malformed)",
    });
    joined(shown, ":")
}

fn describe_numbers(limit: &Limit, (allowance, is_override): (&Allowance, bool), cost: u64, text: &mut String) {
    let Some(windows) = allowance.windows() else { return };
    let elevated = allowance.elevated();
    for numbers in windows.iter() {
        detail(text, "allows", numbers);
    }
    if let Some(elevated) = elevated {
        detail(text, "elevated", elevated);
    }
    detail(text, "cost", cost);
    if allowance.never_fits(cost) {
        detail(text, "never", "the cost exceeds the burst, so the request can never pass");
    }
    if let Some(delay) = limit.delay.filter(|_| elevated.is_none()) {
        let most = Span(delay.0.saturating_mul(1_000));
        detail(text, "delays", format_args!("requests by up to {most} until they fit, instead of denying them"));
    }
    // An override precedes them.
    let of_requests = limit.request_numbers.iter().filter(|_| !is_override);
    for (key, source) in of_requests.flat_map(|numbers| numbers.sources()) {
        let key = if limit.counts_in_flight() { "capacity" } else { key };
        detail(text, key, format_args!("from {source}"));
    }
    if let Some(ban) = &limit.ban {
        detail(text, "bans", ban);
    }
    if let Some(warn_at) = &limit.warn_at {
        detail(text, "warns", warn_at);
    }
    let response_cost = limit.response_cost.as_deref();
    match response_cost.and_then(|cost| cost.source.as_ref()) {
        Some(CostSource::Header(header)) => detail(text, "settled", format_args!("by the response header `{header}`")),
        Some(CostSource::Body(cost)) => detail(text, "settled", format_args!("by the response body ({cost})")),
        Some(CostSource::Bytes) => detail(text, "settled", "by the bytes of the response body"),
        Some(CostSource::RequestBytes) => detail(text, "settled", "by the bytes of the request body"),
        None => {}
    }
    if let Some(statuses) = response_cost.and_then(|cost| cost.when.as_ref()) {
        let when = format_args!("if the upstream answers {statuses}, or does not answer after it was sent the request");
        detail(text, "spent", when);
    }
    if limit.drain_over_limit {
        detail(text, "reports", "beyond what remains take what remains");
    }
}

/// The origin of the numbers of an id that has a candidate's.
fn given_by_candidate(candidates: &[CandidateUse]) -> Option<String> {
    let candidate = candidates.iter().find(|candidate| candidate.is_in_force)?;
    let name = candidate.name.as_ref().map(|name| format!(" {}", quoted(name))).unwrap_or_default();
    Some(format!("the candidate{name}, which is enforced for this id"))
}

fn describe_candidates(candidates: &[CandidateUse], text: &mut String) {
    for candidate in candidates.iter().filter(|candidate| !candidate.is_in_force) {
        let name = candidate.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        for numbers in candidate.allowance.windows().into_iter().flat_map(|windows| windows.iter()) {
            let beside = format_args!("{name}{numbers}, in a bucket of its own, counted and not enforced");
            detail(text, "candidate", beside);
        }
    }
}

/// The origin of the numbers.
fn origin(rules: &Rules, given_by: Option<&OverrideOrigin>, allowance: &Allowance) -> String {
    match (given_by, allowance) {
        (Some(origin), _) => {
            format!("the override at {}{}", rules.place_of(origin), in_parentheses(origin.comment.as_deref()))
        }
        (None, Allowance::Disabled) => "none: the limit has no numbers, and no override matches this id".into(),
        (None, _) => "the limit".into(),
    }
}
