//! Fetches of HAProxy: what they read of a request, or count.

use super::super::gateway::By;
use super::super::text::piece;
use super::grammar::{Line, Section};

/// A fetch such as `req.hdr(x-key,-1),lower`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch<'t> {
    pub(super) name: &'t str,
    pub(super) arguments: &'t str,
    /// With commas between them.
    pub(super) converters: &'t str,
}

const COUNTERS: [&str; 12] = [
    "http_req_rate",
    "conn_cur",
    "conn_rate",
    "conn_cnt",
    "sess_rate",
    "sess_cnt",
    "http_req_cnt",
    "http_err_rate",
    "http_fail_rate",
    "bytes_in_rate",
    "bytes_out_rate",
    "gpc0_rate",
];

/// Fetches that count nothing, by how they begin.
const UNCOUNTED: [&str; 29] = [
    "always_",
    "base",
    "bc_",
    "bool",
    "capture.",
    "cook",
    "date",
    "dst",
    "env",
    "fc_",
    "fe_id",
    "fe_name",
    "fhdr",
    "hdr",
    "hostname",
    "http_auth",
    "http_first_req",
    "int",
    "method",
    "nbsrv",
    "path",
    "query",
    "rand",
    "req",
    "src_is_local",
    "src_port",
    "ssl_",
    "str",
    "url",
];

/// Converters that count nothing.
const CONVERTERS: [&str; 13] = [
    "bytes", "concat", "field", "hex", "ipmask", "length", "lower", "reg", "regsub", "strcmp", "upper", "url_dec",
    "word",
];

/// Actions that change or log a request and deny none, by how they begin.
const QUIET: [&str; 19] = [
    "add-",
    "auth",
    "cache-use",
    "capture",
    "del-",
    "disable-l7-retry",
    "do-resolve",
    "early-hint",
    "expect-proxy",
    "normalize-uri",
    "redirect",
    "replace-",
    "set-",
    "strict-mode",
    "switch-mode",
    "unset-var",
    "use-service",
    "wait-for-",
    "send-",
];

/// Actions whose conditions say which requests pass.
const VERDICTS: [&str; 7] = ["deny", "tarpit", "reject", "silent-drop", "return", "allow", "accept"];

impl<'t> Fetch<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        let (name, rest) = text.split_at(text.find(['(', ',']).unwrap_or(text.len()));
        let (arguments, rest) =
            rest.strip_prefix('(').map_or(("", rest), |rest| rest.split_once(')').unwrap_or((rest, "")));
        let name = name.strip_prefix("req.").unwrap_or(name);
        Self { name, arguments, converters: rest.trim_start_matches(',') }
    }

    fn converter(&self) -> Option<Self> {
        (!self.converters.is_empty()).then(|| Fetch::of(self.converters))
    }

    pub(super) fn argument(&self) -> &'t str {
        self.arguments.split(',').next().unwrap_or_default()
    }

    /// A counter's name, and what it is of, in a fetch such as `sc_http_req_rate(0,table)`.
    pub(super) fn counter(&self) -> Option<(String, String, Option<String>)> {
        let mut arguments = self.arguments.split(',').filter(|argument| !argument.is_empty());
        let (by, name) = self.name.split_once('_')?;
        let known = COUNTERS.iter().find(|known| **known == name)?;
        let by = if by == "sc" { format!("sc{}", arguments.next()?) } else { by.to_owned() };
        Some(((*known).to_owned(), by, arguments.next().map(str::to_owned)))
    }

    /// Returns true if it may count something, as all do that are not known.
    fn may_count(&self) -> bool {
        let is_known = self.name == "src" || UNCOUNTED.iter().any(|known| self.name.starts_with(known));
        let mut converters = std::iter::successors(self.converter(), Self::converter);
        !is_known || converters.any(|converter| !CONVERTERS.contains(&converter.name))
    }
}

impl Section {
    /// Returns true if a line of the section is about limits, or may be.
    pub(super) fn is_about_limits(&self, line: &Line) -> bool {
        let first = line.words.first().map_or("", String::as_str);
        let is_list = first == "acl" && line.may_count();
        let mut uses = self.lines.iter().filter(|rule| rule.is_verdict());
        line.counts()
            || ["stick-table", "rate-limit"].contains(&first)
            || self.is_frontend() && first == "maxconn"
            || is_list && uses.any(|rule| self.lists(rule).any(|list| std::ptr::eq(list, line)))
            || first != "acl" && line.may_count()
            || line.is_verdict() && self.lists(line).any(|list| list.counts() || list.may_count())
    }
}

impl Line {
    /// Returns true if the conditions of a line say which requests pass, or where.
    fn is_verdict(&self) -> bool {
        VERDICTS.contains(&self.action()) || self.action().starts_with("track-") || self.starts_with(&["use_backend"])
    }

    /// Returns true if a line has a known counter, or tracks a key for one.
    fn counts(&self) -> bool {
        let counts = |word: &String| {
            Fetch::of(word).counter().is_some() || word.contains("_http_req_rate(") || word.contains("track-sc")
        };
        self.words.iter().any(counts)
    }

    /// Returns true if a rule has an unknown action, or decides or keeps something by an unknown fetch.
    fn may_count(&self) -> bool {
        let (is_verdict, is_kept) = (self.is_verdict(), self.action().starts_with("set-var("));
        let is_unknown =
            self.rule().is_some() && !is_verdict && !QUIET.iter().any(|known| self.action().starts_with(known));
        let begins = |(place, before): (usize, &String)| {
            is_verdict && ["{", "!{"].contains(&before.as_str())
                || is_kept && before.starts_with("set-var(")
                || place == 1 && self.starts_with(&["acl"])
        };
        let mut pairs = self.words.iter().enumerate().zip(self.words.iter().skip(1));
        is_unknown || pairs.any(|(before, word)| begins(before) && Fetch::of(word).may_count())
    }
}

/// The components of a tracked key. The error names what has no equivalent.
pub(super) fn key(text: &str) -> Result<Vec<By>, String> {
    let fetch = Fetch::of(text);
    let argument = fetch.argument();
    let is_forwarded = argument.eq_ignore_ascii_case("x-forwarded-for");
    let by = match fetch.name {
        "src" => vec![By::Address(128)],
        "hdr" | "fhdr" | "hdr_ip" if is_forwarded => vec![By::Address(128)],
        "hdr" | "fhdr" if argument.eq_ignore_ascii_case("host") => vec![By::Word("host")],
        "hdr" | "fhdr" | "hdr_ip" => vec![By::Header(argument.to_ascii_lowercase())],
        "url_param" | "urlp" => vec![By::Query(argument.to_owned())],
        "cook" => vec![By::Cookie(argument.to_owned(), "last")],
        "path" => vec![By::Word("path")],
        "method" => vec![By::Word("method")],
        "base" | "base32" => vec![By::Word("host"), By::Word("path")],
        "base32+src" => vec![By::Word("host"), By::Word("path"), By::Address(128)],
        "str" | "int" | "always_true" => Vec::new(),
        _ => return Err(format!("{} has no equivalent in `by`", piece(text))),
    };
    let mask = fetch.converters.strip_prefix("ipmask(").and_then(|mask| mask.strip_suffix(')'));
    match (fetch.converters, mask.and_then(|mask| mask.split_once(','))) {
        ("" | "lower", _) => Ok(by),
        (_, Some(("32", bits))) if by == [By::Address(128)] => {
            Ok(vec![By::Address(bits.parse().map_err(|_| format!("invalid mask {}", piece(fetch.converters)))?)])
        }
        (mask, _) if mask.starts_with("ipmask(") => {
            Err(format!("{} has no equivalent in `by`: IPv4 addresses count whole", piece(mask)))
        }
        (other, _) => Err(format!("{} has no equivalent in `by`", piece(other))),
    }
}
