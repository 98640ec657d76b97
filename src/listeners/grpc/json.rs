//! The rate limit service in JSON, for callers without gRPC, as envoyproxy/ratelimit has it at `/json`: its messages in the JSON
//! of protocol buffers (`ProtoJSON`).

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message;
use serde_json::{Map, Value as Json, json};

use super::messages::rate_limit::{
    Code, DescriptorStatus, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse,
};
use super::messages::{Duration, Kind, MapEntry, Struct, UInt64Value, Value};
use super::protocol::{Status, unframed};
use super::{CallContext, Envoy, rate_limit};
use crate::engine::charging::descriptors::DescriptorMode;
use crate::engine::limit::descriptors::RateUnit;
use crate::engine::text::quote::quoted;
use crate::http::Context;
use crate::listeners::http::ActiveRequest;
use crate::listeners::json::describe;
use crate::message::credentials::encode_base64;

/// The answer to a call in JSON.
pub(crate) struct JsonAnswer {
    pub(crate) is_over_limit: bool,
    pub(crate) text: String,
}

impl Envoy {
    /// Answers `ShouldRateLimit`. The error says what is wrong with the call, or that the limits cannot be counted.
    pub(crate) async fn answer_json(
        &self,
        text: &[u8],
        context: &Context,
        active: &mut ActiveRequest,
    ) -> Result<JsonAnswer, String> {
        let json: Json = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let request = request(&json)?;
        let call = CallContext { context, start: context.activity.now(), deadline: None };
        let message = Bytes::from(request.encode_to_vec());
        let told = |status: Status| status.message.into_owned();
        let frame = self.rate_limit(DescriptorMode::Decide, message, &call, active).await.map_err(told)?;
        let response: RateLimitResponse = unframed(frame).map_err(told)?;
        let is_over_limit = response.overall_code == i32::from(Code::OverLimit);
        Ok(JsonAnswer { is_over_limit, text: written(&response).to_string() })
    }
}

/// Returns the members of an object by their names in the protocol, which may be in camel case. `null` stands for none.
fn members<'a>(json: &'a Json, known: &[&str]) -> Result<HashMap<String, &'a Json>, String> {
    let Json::Object(members) = json else { return Err(format!("expected an object, found {}", describe(json))) };
    let mut read = HashMap::new();
    for (key, value) in members {
        let mut name = String::new();
        for letter in key.chars() {
            if letter.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        if !known.contains(&name.as_str()) {
            return Err(format!("unknown field {}", quoted(key)));
        }
        if !value.is_null() {
            read.insert(name, value);
        }
    }
    Ok(read)
}

fn list<T>(json: Option<&&Json>, read: impl Fn(&Json) -> Result<T, String>) -> Result<Vec<T>, String> {
    match json {
        None => Ok(Vec::new()),
        Some(Json::Array(items)) => items.iter().map(read).collect(),
        Some(other) => Err(format!("expected a list, found {}", describe(other))),
    }
}

fn text(json: Option<&&Json>) -> Result<Bytes, String> {
    match json {
        None => Ok(Bytes::new()),
        Some(Json::String(text)) => Ok(Bytes::from(text.clone())),
        Some(other) => Err(format!("expected text, found {}", describe(other))),
    }
}

/// A number, or its digits as text.
fn number<T: TryFrom<u64>>(json: &Json) -> Result<T, String> {
    let number = json.as_u64().or_else(|| json.as_str()?.parse().ok());
    number
        .and_then(|number| number.try_into().ok())
        .ok_or_else(|| format!("expected a number, found {}", describe(json)))
}

fn request(json: &Json) -> Result<RateLimitRequest, String> {
    let members = members(json, &["domain", "descriptors", "hits_addend"])?;
    Ok(RateLimitRequest {
        domain: text(members.get("domain"))?,
        descriptors: list(members.get("descriptors"), descriptor)?,
        hits_addend: members.get("hits_addend").map_or(Ok(0), |json| number(json))?,
    })
}

fn descriptor(json: &Json) -> Result<RateLimitDescriptor, String> {
    let members = members(json, &["entries", "limit", "hits_addend", "is_negative_hits"])?;
    let hits = members.get("hits_addend").map(|json| number(json)).transpose()?;
    Ok(RateLimitDescriptor {
        entries: list(members.get("entries"), entry)?,
        limit: members.get("limit").map(|json| limit(json)).transpose()?,
        hits_addend: hits.map(|value| UInt64Value { value }),
        is_negative_hits: members.get("is_negative_hits").is_some_and(|json| **json == true),
    })
}

fn entry(json: &Json) -> Result<MapEntry, String> {
    let members = members(json, &["key", "value"])?;
    Ok(MapEntry { key: text(members.get("key"))?, value: text(members.get("value"))? })
}

fn limit(json: &Json) -> Result<RateLimitOverride, String> {
    let members = members(json, &["requests_per_unit", "unit"])?;
    let unit = match members.get("unit") {
        None => 0,
        Some(Json::String(name)) => {
            let known = RateUnit::ALL.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            let (_, unit) = known.ok_or_else(|| format!("unknown unit {}", quoted(name)))?;
            rate_limit::unit_number(Some(*unit))
        }
        Some(other) => number(other)?,
    };
    let requests_per_unit = members.get("requests_per_unit").map_or(Ok(0), |json| number(json))?;
    Ok(RateLimitOverride { requests_per_unit, unit })
}

/// Writes a message. Fields with their defaults are left out.
fn written(response: &RateLimitResponse) -> Json {
    let headers = |headers: &[super::messages::HeaderValue]| -> Json {
        headers.iter().map(|header| json!({ "key": shown(&header.key), "value": shown(&header.value) })).collect()
    };
    object([
        ("overallCode", code(response.overall_code)),
        ("statuses", response.statuses.iter().map(status).collect()),
        ("responseHeadersToAdd", headers(&response.response_headers_to_add)),
        ("requestHeadersToAdd", headers(&response.request_headers_to_add)),
        ("rawBody", base64(&response.raw_body)),
        ("dynamicMetadata", response.dynamic_metadata.as_ref().map_or(Json::Null, structure)),
    ])
}

fn status(status: &DescriptorStatus) -> Json {
    let limit = status.current_limit.as_ref().map_or(Json::Null, |limit| {
        let unit = rate_limit::unit(limit.unit).map(|unit| unit.name().to_ascii_uppercase());
        object([
            ("name", shown(&limit.name)),
            ("requestsPerUnit", limit.requests_per_unit.into()),
            ("unit", unit.into()),
        ])
    });
    let until = status.duration_until_reset.map_or(Json::Null, |Duration { seconds, nanos }| {
        let fraction = if nanos == 0 { String::new() } else { format!(".{nanos:09}") };
        format!("{seconds}{fraction}s").into()
    });
    object([
        ("code", code(status.code)),
        ("currentLimit", limit),
        ("limitRemaining", status.limit_remaining.into()),
        ("durationUntilReset", until),
    ])
}

fn code(number: i32) -> Json {
    match Code::try_from(number) {
        Ok(Code::Ok) => "OK".into(),
        Ok(Code::OverLimit) => "OVER_LIMIT".into(),
        Ok(Code::Unknown) | Err(_) => Json::Null,
    }
}

fn base64(bytes: &[u8]) -> Json {
    let mut text = encode_base64(bytes);
    text.push_str(["", "", "==", "="].get(text.len() % 4).copied().unwrap_or_default());
    text.into()
}

fn shown(text: &Bytes) -> Json {
    String::from_utf8_lossy(text).into()
}

fn structure(fields: &Struct) -> Json {
    let field = |field: &super::messages::StructField| {
        (String::from_utf8_lossy(&field.key).into_owned(), field.value.as_ref().map_or(Json::Null, value))
    };
    Json::Object(fields.fields.iter().map(field).collect())
}

fn value(value: &Value) -> Json {
    match &value.kind {
        None | Some(Kind::Null(_)) => Json::Null,
        Some(Kind::Number(number)) => json!(number),
        Some(Kind::Text(text)) => shown(text),
        Some(Kind::Bool(bool)) => (*bool).into(),
        Some(Kind::Struct(fields)) => structure(fields),
        Some(Kind::List(list)) => list.values.iter().map(self::value).collect(),
    }
}

/// An object of the members that are not empty.
fn object<const N: usize>(members: [(&str, Json); N]) -> Json {
    let is_default = |json: &Json| match json {
        Json::Null => true,
        Json::Number(number) => number.as_u64() == Some(0),
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        _ => false,
    };
    let members = members.into_iter().filter(|(_, value)| !is_default(value));
    Json::Object(members.map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_in_both_cases_and_nothing_unknown_is_skipped() {
        let both = [
            json!({ "domain": "d", "hitsAddend": "2", "descriptors": [
                { "entries": [{ "key": "k", "value": "v" }], "isNegativeHits": true, "hitsAddend": 3,
                  "limit": { "requestsPerUnit": 5, "unit": "MINUTE" } }] }),
            json!({ "domain": "d", "hits_addend": 2, "descriptors": [
                { "entries": [{ "key": "k", "value": "v" }], "is_negative_hits": true, "hits_addend": "3",
                  "limit": { "requests_per_unit": "5", "unit": 2 } }] }),
        ];
        let [camel, snake] = both.map(|json| request(&json).unwrap());
        assert_eq!(camel, snake);
        assert_eq!((camel.hits_addend, &*camel.domain), (2, &b"d"[..]));
        assert_eq!(camel.descriptors[0].limit.unwrap().unit, rate_limit::unit_number(Some(RateUnit::Minute)));
        assert_eq!(camel.descriptors[0].hits_addend, Some(UInt64Value { value: 3 }));
        for (json, expected) in [
            (json!([]), "expected an object, found a list"),
            (json!({ "domains": "d" }), "unknown field `domains`"),
            (json!({ "domain": 1 }), "expected text, found"),
            (json!({ "hitsAddend": -1 }), "expected a number, found"),
            (json!({ "descriptors": {} }), "expected a list, found an object"),
            (json!({ "descriptors": [{ "limit": { "unit": "FORTNIGHT" } }] }), "unknown unit `FORTNIGHT`"),
        ] {
            let error = request(&json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[test]
    fn an_answer_has_no_defaults() {
        assert_eq!(written(&RateLimitResponse::default()), json!({}));
        let until = Some(Duration { seconds: 3, nanos: 500_000_000 });
        let status = DescriptorStatus { code: 1, duration_until_reset: until, ..DescriptorStatus::default() };
        let metadata = Struct::from_iter([("a", Kind::Number(1.0)), ("b", Kind::Null(0))]);
        let response = RateLimitResponse {
            overall_code: 2,
            statuses: vec![status],
            raw_body: Bytes::from_static(b"no"),
            dynamic_metadata: Some(metadata),
            ..RateLimitResponse::default()
        };
        let expected = json!({ "overallCode": "OVER_LIMIT", "rawBody": "bm8=", "dynamicMetadata": { "a": 1.0, "b": null },
            "statuses": [{ "code": "OK", "durationUntilReset": "3.500000000s" }] });
        assert_eq!(written(&response), expected);
    }
}
