//! Calls of applications: charges by name, or a request that they describe. All mistakes are found at once, each with
//! its place.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use crate::engine::algorithms::charge::{Elevated, Mode};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::queue::EntryId;
use crate::engine::algorithms::reservation::{DEFAULT_HOLD, LONGEST_HOLD, Reservation, ReservationId};
use crate::engine::charging::call_numbers::CallNumbers;
use crate::engine::charging::named::{ChargeMember, NamedCharge, NamedChargeError};
use crate::engine::deciding::InvalidSubject;
use crate::engine::limit::key::encoded;
use crate::engine::limit::named_id::GivenId;
use crate::engine::text::quote::quoted;
use crate::listeners::json::headers::headers;
use crate::listeners::json::{Mistake, Mistakes, Object, list};
use crate::message::address;
use crate::message::headers::Headers;
use crate::message::unique_json;

/// Charges of one call. In Redis, one script decides all of them and blocks all other clients meanwhile.
const MAX_CHARGES: usize = 32;

/// The longest time until a bucket with a call's own numbers is full. It is kept for that long, and no file has
/// approved the numbers.
const LONGEST_REFILL: Micros = Micros(366 * 86_400 * 1_000_000);

const OPS: [(&str, Mode); 7] = [
    ("spend", Mode::Spend),
    ("check", Mode::Check),
    ("spend_only", Mode::SpendOnly),
    ("refund", Mode::Refund),
    ("reset", Mode::Reset),
    ("reserve", Mode::Spend),
    ("commit", Mode::SpendUpTo),
];

/// The members that only some of them have.
const KEYS_OF_OPS: [(&str, &str); 2] = [("reserve", "ttl"), ("commit", "reservation")];

const CHARGE_KEYS: [&str; 10] =
    ["limit", "id", "cost", "burst", "count", "period", "fixed_window", "elevated", "fields", "entry"];
const ELEVATED_KEYS: [&str; 6] = ["burst", "count", "period", "for", "activations_per_month", "quota"];
const REQUEST_KEYS: [&str; 4] = ["method", "url", "ip", "headers"];

#[derive(Debug)]
pub(super) struct Call {
    pub(super) mode: Mode,
    pub(super) reservation: Option<Reservation>,
    /// The longest time that the application waits by itself for limits with `delay`.
    pub(super) max_delay: Option<Micros>,
    pub(super) subject: Subject,
}

/// The subject of a call.
#[derive(Debug)]
pub(super) enum Subject {
    /// Limits by name; `in_list` if they were given as `limits`.
    Named { charges: Vec<NamedCharge>, in_list: bool },
    /// A request, and its cost for every limit if that is given.
    Request { request: DescribedRequest, cost: Option<u64> },
}

/// A request that an application describes.
#[derive(Debug)]
pub(super) struct DescribedRequest {
    pub(super) method: String,
    /// Absolute, or a path; then `Host` is among the headers.
    pub(super) url: String,
    pub(super) client: Option<IpAddr>,
    pub(super) headers: Headers,
}

impl Mistake {
    pub(super) fn of_ask(error: &InvalidSubject, in_list: bool) -> Self {
        match error {
            InvalidSubject::Charge(error) => Self::of_charge(error, in_list),
            error => Self::new("", &error.to_string()),
        }
    }

    pub(super) fn of_charge(error: &NamedChargeError, in_list: bool) -> Self {
        let charge = if in_list { format!("/limits/{}", error.charge) } else { String::new() };
        let member = match error.member {
            ChargeMember::Limit => "limit",
            ChargeMember::Id(None) => "id",
            ChargeMember::Id(Some(part)) => &format!("id/{part}"),
            ChargeMember::Numbers => "count",
            ChargeMember::Fields => "fields",
            ChargeMember::Entry => "entry",
        };
        Self::new(format!("{charge}/{member}"), &error.reason)
    }
}

pub(super) fn parse(text: &[u8]) -> Result<Call, Vec<Mistake>> {
    let json = unique_json::parse(text).map_err(|error| vec![Mistake::new("", &format!("invalid JSON: {error}"))])?;
    let mistakes = Mistakes::default();
    let call = Object::root(&json, &mistakes).and_then(|body| read(&body));
    mistakes.check(call)
}

fn read(body: &Object<'_>) -> Option<Call> {
    let mut subjects = vec!["limit", "limits", "request"];
    subjects.retain(|key| body.get(key).is_some());
    let [subject] = subjects[..] else {
        match subjects[..] {
            [] => body.wrong("", "give `limit` and `id`, or `limits`, or `request`"),
            _ => body.wrong("", &format!("{} contradict each other", list(&subjects))),
        }
        return None;
    };
    let op = op(body);
    let mut known = vec!["op", "max_delay_ms"];
    known.extend(op.and_then(|(op, _)| KEYS_OF_OPS.iter().find(|(of, _)| *of == op)).map(|(_, key)| *key));
    known.extend_from_slice(match subject {
        "limit" => &CHARGE_KEYS,
        "limits" => &["limits"],
        _ => &["request", "cost"],
    });
    body.known(&known);
    let reservation = reservation(body, op.map(|(op, _)| op));
    let max_delay = body.whole("max_delay_ms", 0).map(Micros::from_millis);
    let subject = match subject {
        "limit" => Subject::Named { charges: vec![charge(body)], in_list: false },
        "limits" => Subject::Named { charges: charges(body), in_list: true },
        _ => Subject::Request { cost: body.whole("cost", 0), request: request(&body.object("request")?) },
    };
    Some(Call { mode: op?.1, reservation, max_delay, subject })
}

fn op(body: &Object<'_>) -> Option<(&'static str, Mode)> {
    let Some(op) = body.get("op") else { return Some(OPS[0]) };
    let found = OPS.iter().find(|(name, _)| matches!(op, Value::String(given) if given == name));
    if found.is_none() {
        body.expected("/op", &format!("one of {}", list(&OPS.map(|(name, _)| name))), op);
    }
    found.copied()
}

fn reservation(body: &Object<'_>, op: Option<&str>) -> Option<Reservation> {
    match op? {
        "reserve" => {
            let span = body.duration("ttl").map_or(DEFAULT_HOLD, |span| Micros(span / 1_000));
            if !(Micros(1)..=LONGEST_HOLD).contains(&span) {
                body.wrong("/ttl", "tokens are held for 1 microsecond to 1 hour");
            }
            Some(Reservation::Reserve(ReservationId(rand::random()), span))
        }
        "commit" => {
            body.get("reservation").filter(|given| !given.is_null())?;
            let given = body.text("reservation")?;
            let id = ReservationId::parse(given);
            if id.is_none() {
                body.wrong("/reservation", &format!("{} is not the id of a reservation", quoted(given)));
            }
            id.map(Reservation::Commit)
        }
        _ => None,
    }
}

fn charges(body: &Object<'_>) -> Vec<NamedCharge> {
    let items = match body.get("limits") {
        Some(Value::Array(items)) if (1..=MAX_CHARGES).contains(&items.len()) => items,
        Some(Value::Array(items)) => {
            body.wrong("/limits", &format!("expected 1 to {MAX_CHARGES} limits, found {}", items.len()));
            return Vec::new();
        }
        other => {
            body.expected("/limits", "a list", other.unwrap_or(&Value::Null));
            return Vec::new();
        }
    };
    let charge = |(index, item)| {
        let item = body.nested(&format!("/limits/{index}"), item)?;
        item.known(&CHARGE_KEYS);
        Some(charge(&item))
    };
    (0..).zip(items).filter_map(charge).collect()
}

fn charge(body: &Object<'_>) -> NamedCharge {
    body.require("limit", "name the limit to charge");
    NamedCharge {
        limit: body.text("limit").unwrap_or_default().to_owned(),
        id: id(body),
        cost: body.whole("cost", 0),
        numbers: numbers(body),
        fields: body.object("fields").map(|fields| entry_fields(&fields)).unwrap_or_default(),
        entry: entry(body),
    }
}

fn id(body: &Object<'_>) -> GivenId {
    const EXPECTED: &str = "text, or a list of texts, one for each component of the limit's `by`";
    match body.get("id") {
        None => GivenId::Absent,
        Some(Value::String(text)) => GivenId::Text(text.clone()),
        Some(Value::Array(items)) => {
            let text = |(index, item): (usize, &Value)| match item {
                Value::String(text) => Some(text.clone()),
                other => {
                    body.expected(&format!("/id/{index}"), EXPECTED, other);
                    None
                }
            };
            GivenId::Parts(items.iter().enumerate().filter_map(text).collect())
        }
        // A number is not taken for its text: 12345678901234567890123 would be charged to 1.2345678901234568e22.
        Some(other) => {
            body.expected("/id", EXPECTED, other);
            GivenId::Absent
        }
    }
}

/// Reads the numbers that a call brings.
fn numbers(body: &Object<'_>) -> Option<CallNumbers> {
    let elevated = body.object("elevated").and_then(|elevated| Some(Arc::new(read_elevated(&elevated)?)));
    let numbers =
        CallNumbers { window: window(body), elevated, is_window_off: body.truth("fixed_window") == Some(false) };
    (numbers != CallNumbers::default()).then_some(numbers)
}

/// Reads the elevated numbers that a call brings.
fn read_elevated(body: &Object<'_>) -> Option<Elevated> {
    body.known(&ELEVATED_KEYS);
    body.require("count", "elevated numbers need `count` and `period`");
    body.require("for", "say how long an activation lasts, such as \"15m\"");
    body.require("activations_per_month", "say how often it may switch on per month");
    let (numbers, span) = (window(body), body.duration("for").map(|span| Micros(span / 1_000)));
    let span = span.filter(|span| {
        let is_allowed = (Micros(1)..=LONGEST_REFILL).contains(span);
        if !is_allowed {
            body.wrong("/for", "an activation lasts from 1 microsecond to 366 days");
        }
        is_allowed
    });
    let activations_per_month = body.whole("activations_per_month", 1);
    let quota = body.text("quota");
    if quota == Some("") {
        body.wrong("/quota", "name the quota, or leave it out");
    }
    let quota = quota.map(|name| encoded(name).into());
    Some(Elevated { numbers: numbers?, span: span?.0, activations_per_month: activations_per_month?, quota })
}

/// Reads a window's numbers.
fn window(body: &Object<'_>) -> Option<Numbers> {
    let (burst, count, period) = (body.whole("burst", 1), body.whole("count", 1), body.duration("period"));
    let is_given = |key| body.get(key).is_some();
    if is_given("count") != is_given("period") || is_given("burst") && !is_given("count") {
        body.wrong("", "give `count` and `period` together; `burst` defaults to `count`");
    }
    let (count, period) = (count?, period?);
    let numbers = Numbers::new(burst.unwrap_or(count), count, period);
    let numbers = numbers.map_err(|error| body.wrong("/count", &error.to_string())).ok()?;
    if numbers.time_for(numbers.capacity()).is_none_or(|span| span > LONGEST_REFILL) {
        body.wrong("/period", "a bucket with a call's own numbers must be full again within 366 days");
    }
    Some(numbers)
}

/// Reads the content of a queue's entry.
fn entry_fields(fields: &Object<'_>) -> Vec<(String, String)> {
    fields.members.iter().filter_map(|(name, _)| Some((name.clone(), fields.text(name)?.to_owned()))).collect()
}

/// Reads the id of a queue's entry that is given back.
fn entry(body: &Object<'_>) -> Option<EntryId> {
    let given = body.text("entry")?;
    let id = EntryId::parse(given);
    if id.is_none() {
        body.wrong("/entry", &format!("expected the id of an entry such as 1795305600000-0, found {}", quoted(given)));
    }
    id
}

fn request(request: &Object<'_>) -> DescribedRequest {
    request.known(&REQUEST_KEYS);
    let method = request.text("method").unwrap_or("GET").to_owned();
    request.require("url", "for example \"https://api.example.com/v1/orders?limit=10\"");
    let url = request.text("url").unwrap_or_default().to_owned();
    let parse = |ip: &str| {
        let invalid = |_| request.wrong("/ip", &format!("invalid IP address {}", quoted(ip)));
        address::parse(ip).map_err(invalid).ok()
    };
    let client = request.text("ip").and_then(parse);
    DescribedRequest {
        method,
        url,
        client,
        headers: request.object("headers").map(|h| headers(&h)).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(text: &str) -> Call {
        parse(text.as_bytes()).unwrap_or_else(|mistakes| panic!("{text}: {mistakes:?}"))
    }

    fn named(text: &str) -> Vec<NamedCharge> {
        let Subject::Named { charges, .. } = good(text).subject else { panic!("{text}") };
        charges
    }

    #[test]
    fn charges_are_read() {
        let text = |text: &str| GivenId::Text(text.to_owned());
        let charge =
            |id, cost| NamedCharge { limit: "L".to_owned(), id, cost, numbers: None, fields: Vec::new(), entry: None };
        assert_eq!(named(r#"{"limit": "L"}"#), [charge(GivenId::Absent, None)]);
        assert_eq!(named(r#"{"limit": "L", "id": "a:b", "cost": 0}"#), [charge(text("a:b"), Some(0))]);
        let listed =
            r#"{"limits": [{"limit": "L", "id": ["a", "b"]}, {"limit": "L", "id": "c", "cost": 2}], "op": "check"}"#;
        let parts = GivenId::Parts(vec!["a".into(), "b".into()]);
        assert_eq!(named(listed), [charge(parts, None), charge(text("c"), Some(2))]);
        assert_eq!(good(listed).mode, Mode::Check);
        let numbers =
            |text: &str| named(text)[0].numbers.as_ref().and_then(|numbers| Some(numbers.window.as_ref()?.to_string()));
        let given = r#"{"limit": "L", "count": 10, "period": "1.5h"}"#;
        assert_eq!(numbers(given).as_deref(), Some("burst 10, 10 per 90m"));
        let given = r#"{"limit": "L", "burst": 20, "count": 10, "period": "366d"}"#;
        assert!(parse(given.as_bytes()).is_err(), "twice the time that it takes");
        let given = r#"{"limit": "L", "burst": 5, "count": 10, "period": "366d"}"#;
        assert_eq!(numbers(given).as_deref(), Some("burst 5, 10 per 8784h"));
    }

    #[test]
    fn requests_are_read() {
        let text = r#"{"request": {"url": "https://a.example/b?c", "ip": "::ffff:192.0.2.7", "method": "PUT",
            "headers": {"X-A": " 1 ", "x-b": ["2", "3"]}}, "cost": 4, "op": "refund"}"#;
        let call = good(text);
        let Subject::Request { request, cost } = call.subject else { panic!("{call:?}") };
        assert_eq!((call.mode, cost), (Mode::Refund, Some(4)));
        assert_eq!((request.method.as_str(), request.url.as_str()), ("PUT", "https://a.example/b?c"));
        assert_eq!(request.client, "192.0.2.7".parse().ok());
        let expected = Headers::from_iter([("X-A", "1"), ("x-b", "2"), ("x-b", "3")]);
        assert_eq!(format!("{:?}", request.headers), format!("{expected:?}"));
        let Subject::Request { request, cost } = good(r#"{"request": {"url": "/"}}"#).subject else { panic!() };
        assert_eq!((request.method.as_str(), request.client, cost), ("GET", None, None));
    }

    #[test]
    fn mistakes_say_what_and_where() {
        for (text, expected) in [
            ("{", vec![("", "invalid JSON: EOF")]),
            (r#"{"limit": "L", "limit": "M"}"#, vec![("", "duplicate key `limit`")]),
            ("[]", vec![("", "expected an object, found a list")]),
            ("{}", vec![("", "give `limit` and `id`, or")]),
            (r#"{"limit": "L", "request": {}}"#, vec![("", "`limit`, `request` contradict")]),
            (r#"{"limit": 1, "id": 7}"#, vec![("/limit", "expected text, found 1"), ("/id", "found 7")]),
            (r#"{"limit": "L", "id": null}"#, vec![("/id", "found null")]),
            (
                r#"{"limit": "L", "Cost": 1}"#,
                vec![("/Cost", "unknown member `Cost`; expected `op`, `max_delay_ms`, `limit`")],
            ),
            (r#"{"limit": "L", "cost": -1}"#, vec![("/cost", "from 0 to 9007199254740991, found -1")]),
            (r#"{"limit": "L", "cost": 1.5}"#, vec![("/cost", "found 1.5")]),
            (r#"{"limit": "L", "cost": 9007199254740992}"#, vec![("/cost", "whole number")]),
            (r#"{"limit": "L", "cost": "1"}"#, vec![("/cost", "found the text `1`")]),
            (r#"{"limit": "L", "op": "drop"}"#, vec![("/op", "expected one of `spend`, `check`")]),
            (r#"{"limit": "L", "burst": 1}"#, vec![("", "`count` and `period` together")]),
            (r#"{"limit": "L", "count": 1}"#, vec![("", "`count` and `period` together")]),
            (r#"{"limit": "L", "count": 0, "period": "1x"}"#, vec![("/count", "from 1"), ("/period", "unknown unit")]),
            (r#"{"limit": "L", "count": 1, "period": 60}"#, vec![("/period", "expected text")]),
            (r#"{"limit": "L", "count": 1, "period": "0s"}"#, vec![("/count", "period must be longer")]),
            (r#"{"limit": "L", "count": 1, "period": "367d"}"#, vec![("/period", "366 days")]),
            (r#"{"limits": {}}"#, vec![("/limits", "expected a list")]),
            (r#"{"limits": []}"#, vec![("/limits", "1 to 32")]),
            (
                r#"{"limits": [{"limit": "L"}, 1, {"id": [1, "a"], "op": "check"}]}"#,
                vec![
                    ("/limits/1", "expected an object, found 1"),
                    ("/limits/2/op", "unknown member"),
                    ("/limits/2", "`limit` is missing"),
                    ("/limits/2/id/0", "one for each component"),
                ],
            ),
            (r#"{"request": []}"#, vec![("/request", "expected an object")]),
            (
                r#"{"request": {"ip": "x", "method": 1, "headers": {"a b": "", "c/~": 1, "d": "\n-\u0000"}, "uri": ""}}"#,
                vec![
                    ("/request/uri", "unknown member `uri`"),
                    ("/request/method", "expected text"),
                    ("/request", "`url` is missing"),
                    ("/request/ip", "invalid IP address `x`"),
                    ("/request/headers/a b", "invalid header name"),
                    ("/request/headers/c~1~0", "invalid header name"),
                    ("/request/headers/d", "must not contain control characters"),
                ],
            ),
        ] {
            let mistakes = parse(text.as_bytes()).expect_err(text);
            assert_eq!(mistakes.len(), expected.len(), "{text}: {mistakes:?}");
            for (mistake, (pointer, part)) in mistakes.iter().zip(expected) {
                assert_eq!(mistake.pointer, pointer, "{mistake:?}");
                assert!(mistake.detail.contains(part), "{mistake:?}");
            }
        }
        let many: Vec<String> = (0..=MAX_CHARGES).map(|id| format!(r#"{{"limit": "L", "id": "{id}"}}"#)).collect();
        assert!(parse(format!(r#"{{"limits": [{}]}}"#, many.join(",")).as_bytes()).is_err());
    }
}
