//! `GET /impact.csv?limit=NAME`: the ids that each limit in shadow and each candidate would have denied since it began.
//!
//! Columns that `weir simulate --impact` has, too, have its words. The last row of a list counts the denials of no other row.

use csv::Writer;
use http::StatusCode;

use super::Admin;
use super::change::Rejection;
use crate::engine::text::csv::{ALL, CANDIDATE, SHADOW, cell};
use crate::engine::text::instant::rfc3339;
use crate::engine::text::quote::quoted;
use crate::limiter::operator::WouldBeDeniedIds;
use crate::message::headers::Headers;
use crate::message::percent::decode;
use crate::message::reply::Reply;
use crate::telemetry::most_denied::DenialKind;

const COLUMNS: [&str; 11] =
    ["limit", "denied_by", "id", "hash", "denied", "error", "first", "last", "peak_denied", "peak_denied_at", "since"];

/// The `id` of the row for denials without an id, and of ids that the list has no room for. Its `hash` is empty.
const OTHERS: &str = "(others)";

impl Admin {
    pub(super) fn impact(&self, query: Option<&str>) -> Reply {
        self.would_deny(query).unwrap_or_else(Rejection::reply)
    }

    fn would_deny(&self, query: Option<&str>) -> Result<Reply, Rejection> {
        let limit = parse(query.unwrap_or("")).map_err(Rejection::bad)?;
        let body = table(&self.operator.would_deny(limit.as_deref())?);
        let headers = [
            ("content-type", "text/csv; charset=utf-8"),
            ("content-disposition", "attachment; filename=\"impact.csv\""),
            ("cache-control", "no-store"),
        ];
        Ok(Reply { status: StatusCode::OK, headers: Headers::from_iter(headers), body })
    }
}

/// Returns the name of the limit.
fn parse(query: &str) -> Result<Option<String>, String> {
    let mut limit = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("limit", value) => limit = Some(decode(value).into_owned()),
            (name, _) => return Err(format!("unknown parameter {}; there is `limit`", quoted(name))),
        }
    }
    Ok(limit)
}

fn table(lists: &[WouldBeDeniedIds]) -> String {
    let mut rows = Writer::from_writer(Vec::new());
    // Memory takes everything.
    let mut write = |row: [&str; COLUMNS.len()]| rows.write_record(row).unwrap_or_default();
    write(COLUMNS);
    for WouldBeDeniedIds { limit, kind, candidate, list, names } in lists {
        let denied_by = match candidate {
            Some(name) => &format!("{CANDIDATE}:{name}"),
            None if *kind == DenialKind::Candidate => CANDIDATE,
            None => SHADOW,
        };
        let since = rfc3339(list.since);
        for (id, name) in list.ids.iter().zip(names) {
            write([
                limit,
                denied_by,
                &if name.is_empty() { ALL.to_owned() } else { cell(name) },
                &format!("{:016x}", id.hash),
                &id.denied.to_string(),
                &id.error.to_string(),
                &rfc3339(id.first),
                &rfc3339(id.last),
                &id.peak.to_string(),
                &rfc3339(id.peak_at),
                &since,
            ]);
        }
        let (others, error) = (list.others.to_string(), list.others_error.to_string());
        write([limit, denied_by, OTHERS, "", &others, &error, "", "", "", "", &since]);
    }
    let bytes = rows.into_inner().unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::micros::Micros;
    use crate::telemetry::would_deny::{WouldBeDenied, WouldBeDeniedList};

    #[test]
    fn a_row_has_what_a_spreadsheet_needs_and_nothing_that_it_would_calculate() {
        let at = |seconds: u64| Micros((1_795_000_000 + seconds) * 1_000_000);
        let id = WouldBeDenied {
            hash: 0xab,
            key: "L:x".into(),
            denied: 7,
            error: 2,
            first: at(1),
            last: at(90),
            peak: 4,
            peak_at: at(20),
        };
        let list = WouldBeDeniedList { since: at(0), ids: vec![id], others: 9, others_error: 2 };
        let ids = |limit: &str, kind, list, names: &[&str]| WouldBeDeniedIds {
            limit: limit.to_owned(),
            kind,
            candidate: (limit == "N").then(|| "low".into()),
            list,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let empty = WouldBeDeniedList { since: at(5), ids: Vec::new(), others: 0, others_error: 0 };
        let lists = [
            ids("L", DenialKind::Shadow, list, &["=1+\"2\",3"]),
            ids("M", DenialKind::Candidate, empty.clone(), &[]),
            ids("N", DenialKind::Candidate, empty, &[]),
        ];
        let expected = "\
limit,denied_by,id,hash,denied,error,first,last,peak_denied,peak_denied_at,since
L,shadow,\"'=1+\"\"2\"\",3\",00000000000000ab,7,2,2026-11-18T11:06:41Z,2026-11-18T11:08:10Z,4,2026-11-18T11:07:00Z,2026-11-18T11:06:40Z
L,shadow,(others),,9,2,,,,,2026-11-18T11:06:40Z
M,candidate,(others),,0,0,,,,,2026-11-18T11:06:45Z
N,candidate:low,(others),,0,0,,,,,2026-11-18T11:06:45Z
";
        assert_eq!(table(&lists), expected);
    }

    #[test]
    fn the_limit_is_optional_and_other_parameters_are_mistakes() {
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("limit=a%2Fb&"), Ok(Some("a/b".to_owned())));
        assert_eq!(parse("n=1"), Err("unknown parameter `n`; there is `limit`".to_owned()));
    }
}
