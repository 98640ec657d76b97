//! What an application asks for: charges by name, or a judgement of a request that it describes. Every mistake in it is
//! found at once, and each says where it is.

use std::net::IpAddr;

use super::json::Json;
use crate::engine::algorithms::charge::Mode;
use crate::engine::algorithms::micros::{EXACT, Micros};
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::queue::EntryId;
use crate::engine::rules::duration;
use crate::engine::rules::named::{ChargeMember, NamedCharge, NamedChargeError};
use crate::engine::rules::named_id::GivenId;
use crate::engine::rules::quote::{quoted, shown};
use crate::limiter::AskError;
use crate::message::address;
use crate::message::headers::{Headers, is_name, is_value};

/// Charges of one call. They are decided together, in Redis by one script, which nobody else's call can interrupt.
pub(super) const MOST_CHARGES: usize = 32;

/// How long a bucket of numbers that a caller gives may take to be full again: it cannot be forgotten before, and nobody
/// has approved of these numbers in a file.
const LONGEST_REFILL: Micros = Micros(366 * 86_400 * 1_000_000);

/// More mistakes than anybody reads.
const MOST_MISTAKES: usize = 20;

/// Of what a mistake says; ids may be long.
const LONGEST_DETAIL: usize = 300;

const OPS: [(&str, Mode); 5] = [
    ("spend", Mode::Spend),
    ("check", Mode::Check),
    ("spend_only", Mode::SpendOnly),
    ("refund", Mode::Refund),
    ("reset", Mode::Reset),
];

const CHARGE_KEYS: [&str; 8] = ["limit", "id", "cost", "burst", "count", "period", "fields", "entry"];
const REQUEST_KEYS: [&str; 4] = ["method", "url", "ip", "headers"];

/// A call.
#[derive(Debug)]
pub(super) struct Call {
    /// What becomes of the buckets.
    pub(super) mode: Mode,
    /// What is charged.
    pub(super) subject: Subject,
}

/// What a call is about.
#[derive(Debug)]
pub(super) enum Subject {
    /// Limits by name; `in_list` if they stand in `limits`.
    Named { charges: Vec<NamedCharge>, in_list: bool },
    /// A request, and what it costs every limit if that is not what the limits say.
    Request { request: Described, cost: Option<u64> },
}

/// A request as an application describes it.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) method: String,
    /// Absolute, or a path; then `Host` is among the headers.
    pub(super) url: String,
    pub(super) client: Option<IpAddr>,
    pub(super) headers: Headers,
}

/// Something wrong in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    /// Where, as a JSON Pointer (RFC 6901); empty for the whole.
    pub(super) pointer: String,
    /// What, and what would be right.
    pub(super) detail: String,
}

impl Mistake {
    pub(super) fn new(pointer: impl Into<String>, detail: &str) -> Self {
        Self { pointer: pointer.into(), detail: shown(detail, LONGEST_DETAIL) }
    }

    pub(super) fn of_ask(error: &AskError, in_list: bool) -> Self {
        match error {
            AskError::Charge(error) => Self::of_charge(error, in_list),
            error => Self::new("", &error.to_string()),
        }
    }

    pub(super) fn of_charge(error: &NamedChargeError, in_list: bool) -> Self {
        let place = if in_list { format!("/limits/{}", error.charge) } else { String::new() };
        let member = match error.member {
            ChargeMember::Limit => "/limit".to_owned(),
            ChargeMember::Id(None) => "/id".to_owned(),
            ChargeMember::Id(Some(component)) => format!("/id/{component}"),
            ChargeMember::Numbers => "/count".to_owned(),
            ChargeMember::Fields => "/fields".to_owned(),
            ChargeMember::Entry => "/entry".to_owned(),
        };
        Self::new(place + &member, &error.reason)
    }
}

/// Reads a call.
pub(super) fn parse(text: &[u8]) -> Result<Call, Vec<Mistake>> {
    let json = Json::parse(text).map_err(|error| vec![Mistake::new("", &format!("this is no JSON: {error}"))])?;
    let mut mistakes = Mistakes::default();
    let call = call(&json, &mut mistakes);
    match call {
        Some(call) if mistakes.0.is_empty() => Ok(call),
        _ => Err(mistakes.0),
    }
}

fn call(json: &Json, mistakes: &mut Mistakes) -> Option<Call> {
    let what = "give `limit` and `id`, or `limits`, or `request`";
    let Json::Map(members) = json else {
        mistakes.add("", &format!("a call is an object, this is {}; {what}", json.describe()));
        return None;
    };
    let is = |key: &str| members.iter().any(|(given, _)| given == key);
    let chosen: Vec<&str> = ["limit", "limits", "request"].into_iter().filter(|key| is(key)).collect();
    let [chosen] = chosen[..] else {
        let detail =
            if chosen.is_empty() { what.to_owned() } else { format!("{} contradict each other", list(&chosen)) };
        mistakes.add("", &detail);
        return None;
    };
    let known: &[&[&str]] = match chosen {
        "limit" => &[&["op"], &CHARGE_KEYS],
        "limits" => &[&["op", "limits"]],
        _ => &[&["op", "request", "cost"]],
    };
    mistakes.unknown("", json, &known.concat());
    let mode = match json.get("op") {
        None => Some(Mode::Spend),
        Some(op) => mode(op, mistakes),
    };
    let subject = match chosen {
        "limit" => charge("", json, mistakes).map(|charge| Subject::Named { charges: vec![charge], in_list: false }),
        "limits" => charges(json.get("limits")?, mistakes).map(|charges| Subject::Named { charges, in_list: true }),
        _ => {
            let cost = mistakes.whole("", json, "cost", 0);
            described(json.get("request")?, mistakes).map(|request| Subject::Request { request, cost })
        }
    };
    Some(Call { mode: mode?, subject: subject? })
}

fn mode(op: &Json, mistakes: &mut Mistakes) -> Option<Mode> {
    let found = OPS.iter().find(|(name, _)| matches!(op, Json::Text(given) if given == name)).map(|(_, mode)| *mode);
    if found.is_none() {
        let names: Vec<&str> = OPS.iter().map(|(name, _)| *name).collect();
        mistakes.add("/op", &format!("write one of {}, this is {}", list(&names), op.describe()));
    }
    found
}

fn charges(json: &Json, mistakes: &mut Mistakes) -> Option<Vec<NamedCharge>> {
    let Json::List(items) = json else {
        mistakes.add("/limits", &format!("`limits` is a list, this is {}", json.describe()));
        return None;
    };
    if items.is_empty() || items.len() > MOST_CHARGES {
        mistakes.add("/limits", &format!("give 1 to {MOST_CHARGES} limits, these are {}", items.len()));
        return None;
    }
    // All are looked at, so that all mistakes are found.
    let charges: Vec<_> = (0..).zip(items).map(|(place, item)| listed(place, item, mistakes)).collect();
    charges.into_iter().collect()
}

fn listed(place: usize, item: &Json, mistakes: &mut Mistakes) -> Option<NamedCharge> {
    let place = format!("/limits/{place}");
    if !matches!(item, Json::Map(_)) {
        mistakes.add(&place, &format!("each of the `limits` is an object, this is {}", item.describe()));
        return None;
    }
    mistakes.unknown(&place, item, &CHARGE_KEYS);
    charge(&place, item, mistakes)
}

fn charge(place: &str, json: &Json, mistakes: &mut Mistakes) -> Option<NamedCharge> {
    let limit = match json.get("limit") {
        Some(Json::Text(limit)) => Some(limit.clone()),
        Some(other) => {
            let detail = format!("the name of a limit is text, this is {}", other.describe());
            mistakes.add(&format!("{place}/limit"), &detail);
            None
        }
        None => {
            mistakes.add(place, "`limit` is missing: which one is charged?");
            None
        }
    };
    let id = id(place, json.get("id"), mistakes);
    let cost = mistakes.whole(place, json, "cost", 0);
    let numbers = numbers(place, json, mistakes);
    let fields = work(place, json.get("fields"), mistakes);
    let entry = entry(place, json.get("entry"), mistakes);
    Some(NamedCharge { limit: limit?, id: id?, cost, numbers, fields: fields?, entry })
}

/// What an entry of a queue says.
fn work(place: &str, json: Option<&Json>, mistakes: &mut Mistakes) -> Option<Vec<(String, String)>> {
    let members = match json {
        None => return Some(Vec::new()),
        Some(Json::Map(members)) => members,
        Some(other) => {
            let detail = format!("the fields of an entry are an object, this is {}", other.describe());
            mistakes.add(&format!("{place}/fields"), &detail);
            return None;
        }
    };
    let text = |(name, value): &(String, Json)| match value {
        Json::Text(text) => Some((name.clone(), text.clone())),
        other => {
            let detail = format!("a field of an entry is text, this is {}", other.describe());
            mistakes.add(&format!("{place}/fields/{}", escaped(name)), &detail);
            None
        }
    };
    let fields: Vec<_> = members.iter().map(text).collect();
    fields.into_iter().collect()
}

/// The entry of a queue that is given back, if one is.
fn entry(place: &str, json: Option<&Json>, mistakes: &mut Mistakes) -> Option<EntryId> {
    let given = json?;
    let id = if let Json::Text(text) = given { EntryId::parse(text) } else { None };
    if id.is_none() {
        let detail = format!("the id of an entry is text such as \"1795305600000-0\", this is {}", given.describe());
        mistakes.add(&format!("{place}/entry"), &detail);
    }
    id
}

fn id(place: &str, json: Option<&Json>, mistakes: &mut Mistakes) -> Option<GivenId> {
    let wrong = "an id is text, or a list of texts, one for each component of the limit's `by`";
    match json {
        None => Some(GivenId::Absent),
        Some(Json::Text(text)) => Some(GivenId::Text(text.clone())),
        Some(Json::List(items)) => {
            let text = |(place_of_item, item): (usize, &Json)| match item {
                Json::Text(text) => Some(text.clone()),
                other => {
                    mistakes
                        .add(&format!("{place}/id/{place_of_item}"), &format!("{wrong}; this is {}", other.describe()));
                    None
                }
            };
            let texts: Vec<_> = items.iter().enumerate().map(text).collect();
            texts.into_iter().collect::<Option<Vec<_>>>().map(GivenId::Components)
        }
        // A number is not taken for its text: 12345678901234567890123 would be charged to 1.2345678901234568e22.
        Some(other) => {
            mistakes.add(&format!("{place}/id"), &format!("{wrong}; this is {}", other.describe()));
            None
        }
    }
}

/// The numbers of a call, if it gives any.
fn numbers(place: &str, json: &Json, mistakes: &mut Mistakes) -> Option<Numbers> {
    let before = mistakes.0.len();
    let burst = mistakes.whole(place, json, "burst", 1);
    let count = mistakes.whole(place, json, "count", 1);
    let period = match json.get("period") {
        None => None,
        Some(Json::Text(text)) => match duration::parse(text) {
            Ok(nanoseconds) => Some(nanoseconds),
            Err((wrong, right)) => {
                mistakes.add(&format!("{place}/period"), &format!("{wrong}; {right}"));
                None
            }
        },
        Some(other) => {
            let detail = format!("a period is text such as \"60s\", this is {}", other.describe());
            mistakes.add(&format!("{place}/period"), &detail);
            None
        }
    };
    if mistakes.0.len() > before {
        return None;
    }
    let (count, period) = match (count, period) {
        (Some(count), Some(period)) => (count, period),
        (None, None) if burst.is_none() => return None,
        _ => {
            mistakes.add(place, "the numbers of a call are `count` and `period` together, and `burst` if it differs");
            return None;
        }
    };
    let numbers = match Numbers::new(burst.unwrap_or(count), count, period) {
        Ok(numbers) => numbers,
        Err(error) => {
            mistakes.add(&format!("{place}/count"), &error.to_string());
            return None;
        }
    };
    if numbers.time_for(numbers.capacity()).is_none_or(|span| span > LONGEST_REFILL) {
        mistakes.add(&format!("{place}/period"), "a bucket of a call's own numbers is full again within 366 days");
        return None;
    }
    Some(numbers)
}

fn described(json: &Json, mistakes: &mut Mistakes) -> Option<Described> {
    if !matches!(json, Json::Map(_)) {
        mistakes.add("/request", &format!("`request` is an object, this is {}", json.describe()));
        return None;
    }
    mistakes.unknown("/request", json, &REQUEST_KEYS);
    let mut text = |key: &str| match json.get(key) {
        None => Some(None),
        Some(Json::Text(text)) => Some(Some(text.clone())),
        Some(other) => {
            mistakes.add(&format!("/request/{key}"), &format!("`{key}` is text, this is {}", other.describe()));
            None
        }
    };
    let (method, url, ip) = (text("method"), text("url"), text("ip"));
    if url == Some(None) {
        mistakes.add("/request", "`url` is missing: \"https://api.example.com/v1/orders?limit=10\"");
    }
    let client = match ip {
        Some(Some(ip)) => {
            let address = address::parse(&ip).ok();
            if address.is_none() {
                mistakes.add("/request/ip", &format!("{} is no IP address", quoted(&ip)));
            }
            address.map(Some)
        }
        Some(None) => Some(None),
        None => None,
    };
    let headers = json.get("headers").map_or(Some(Headers::new()), |value| headers(value, mistakes));
    let method = method?.unwrap_or_else(|| "GET".to_owned());
    Some(Described { method, url: url??, client: client?, headers: headers? })
}

fn headers(json: &Json, mistakes: &mut Mistakes) -> Option<Headers> {
    let Json::Map(members) = json else {
        mistakes.add("/request/headers", &format!("`headers` is an object, this is {}", json.describe()));
        return None;
    };
    let mut headers = Headers::new();
    let before = mistakes.0.len();
    for (name, value) in members {
        let place = format!("/request/headers/{}", escaped(name));
        if !is_name(name.as_bytes()) || name.len() > usize::from(u16::MAX) {
            mistakes.add(&place, &format!("{} is no name of a header", quoted(name)));
            continue;
        }
        let values = if let Json::List(values) = value { values.as_slice() } else { std::slice::from_ref(value) };
        for value in values {
            match value {
                Json::Text(text) if is_value(text.trim().as_bytes()) => headers.append(name, text.trim()),
                Json::Text(_) => mistakes.add(&place, "the value of a header has no control characters"),
                other => {
                    let detail =
                        format!("the value of a header is text or a list of texts, this is {}", other.describe());
                    mistakes.add(&place, &detail);
                }
            }
        }
    }
    (mistakes.0.len() == before).then_some(headers)
}

/// A key as a part of a JSON Pointer (RFC 6901 section 3).
fn escaped(key: &str) -> String {
    shown(key, LONGEST_DETAIL).replace('~', "~0").replace('/', "~1")
}

fn list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

#[derive(Default)]
struct Mistakes(Vec<Mistake>);

impl Mistakes {
    fn add(&mut self, pointer: &str, detail: &str) {
        if self.0.len() < MOST_MISTAKES {
            self.0.push(Mistake::new(pointer, detail));
        }
    }

    /// Complains of members that nobody knows.
    fn unknown(&mut self, place: &str, json: &Json, known: &[&str]) {
        let Json::Map(members) = json else { return };
        for (key, _) in members.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
            let detail = format!("there is no member {}; there are {}", quoted(key), list(known));
            self.add(&format!("{place}/{}", escaped(key)), &detail);
        }
    }

    /// A member that is a whole number, if it is there.
    fn whole(&mut self, place: &str, json: &Json, key: &str, least: u64) -> Option<u64> {
        let value = json.get(key)?;
        let number = if let Json::Number(number) = value { number.as_u64() } else { None };
        let fits = number.filter(|number| (least..EXACT).contains(number));
        if fits.is_none() {
            let detail =
                format!("`{key}` is a whole number from {least} to {}, this is {}", EXACT - 1, value.describe());
            self.add(&format!("{place}/{key}"), &detail);
        }
        fits
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
        let components = GivenId::Components(vec!["a".into(), "b".into()]);
        assert_eq!(named(listed), [charge(components, None), charge(text("c"), Some(2))]);
        assert_eq!(good(listed).mode, Mode::Check);
        let numbers = |text: &str| named(text)[0].numbers.as_ref().map(Numbers::to_string);
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
            ("{", vec![("", "no JSON: EOF")]),
            (r#"{"limit": "L", "limit": "M"}"#, vec![("", "the key `limit` comes twice")]),
            ("[]", vec![("", "a call is an object, this is a list")]),
            ("{}", vec![("", "give `limit` and `id`, or")]),
            (r#"{"limit": "L", "request": {}}"#, vec![("", "`limit`, `request` contradict")]),
            (r#"{"limit": 1, "id": 7}"#, vec![("/limit", "is text, this is 1"), ("/id", "this is 7")]),
            (r#"{"limit": "L", "id": null}"#, vec![("/id", "this is null")]),
            (r#"{"limit": "L", "Cost": 1}"#, vec![("/Cost", "there is no member `Cost`; there are `op`, `limit`")]),
            (r#"{"limit": "L", "cost": -1}"#, vec![("/cost", "from 0 to 9007199254740991, this is -1")]),
            (r#"{"limit": "L", "cost": 1.5}"#, vec![("/cost", "this is 1.5")]),
            (r#"{"limit": "L", "cost": 9007199254740992}"#, vec![("/cost", "whole number")]),
            (r#"{"limit": "L", "cost": "1"}"#, vec![("/cost", "this is the text `1`")]),
            (r#"{"limit": "L", "op": "drop"}"#, vec![("/op", "write one of `spend`, `check`")]),
            (r#"{"limit": "L", "burst": 1}"#, vec![("", "`count` and `period` together")]),
            (r#"{"limit": "L", "count": 1}"#, vec![("", "`count` and `period` together")]),
            (r#"{"limit": "L", "count": 0, "period": "1x"}"#, vec![("/count", "from 1"), ("/period", "unknown unit")]),
            (r#"{"limit": "L", "count": 1, "period": 60}"#, vec![("/period", "text such as")]),
            (r#"{"limit": "L", "count": 1, "period": "0s"}"#, vec![("/count", "period must be longer")]),
            (r#"{"limit": "L", "count": 1, "period": "367d"}"#, vec![("/period", "366 days")]),
            (r#"{"limits": {}}"#, vec![("/limits", "is a list")]),
            (r#"{"limits": []}"#, vec![("/limits", "1 to 32")]),
            (
                r#"{"limits": [{"limit": "L"}, 1, {"id": [1, "a"], "op": "check"}]}"#,
                vec![
                    ("/limits/1", "is an object, this is 1"),
                    ("/limits/2/op", "no member"),
                    ("/limits/2", "`limit` is missing"),
                    ("/limits/2/id/0", "one for each component"),
                ],
            ),
            (r#"{"request": []}"#, vec![("/request", "is an object")]),
            (
                r#"{"request": {"ip": "x", "method": 1, "headers": {"a b": "", "c/~": 1, "d": "\n-\u0000"}, "uri": ""}}"#,
                vec![
                    ("/request/uri", "no member `uri`"),
                    ("/request/method", "is text"),
                    ("/request", "`url` is missing"),
                    ("/request/ip", "`x` is no IP address"),
                    ("/request/headers/a b", "no name of a header"),
                    ("/request/headers/c~1~0", "no name of a header"),
                    ("/request/headers/d", "no control characters"),
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
        let many: Vec<String> = (0..=MOST_CHARGES).map(|id| format!(r#"{{"limit": "L", "id": "{id}"}}"#)).collect();
        assert!(parse(format!(r#"{{"limits": [{}]}}"#, many.join(",")).as_bytes()).is_err());
    }
}
