//! Turns resources into the text of envoyproxy/ratelimit's files, so that one reader says what is wrong with either.

use prost::Message;
use serde_json::{Map, Value, json};

use super::messages::{DiscoveryResponse, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, TYPE_URL};
use crate::config::Source;
use crate::engine::text::quote::{quoted, shown};
use crate::listeners::grpc::messages::rate_limit::Unit;
use crate::listeners::grpc::messages::{Kind, Struct, text};

/// Characters of a resource's name in messages.
const SHOWN_NAME: usize = 100;

/// Returns a file for each resource. The error says which resource cannot be read.
pub(super) fn sources(response: &DiscoveryResponse) -> Result<Vec<Source>, String> {
    let read = |(number, resource): (usize, &super::messages::Any)| {
        if resource.type_url != TYPE_URL {
            return Err(format!("resource {number} has the type {}, not {TYPE_URL}", quoted(&resource.type_url)));
        }
        let config = RateLimitConfig::decode(resource.value.clone())
            .map_err(|error| format!("resource {number} is not a RateLimitConfig: {error}"))?;
        let name = if config.name.is_empty() { &config.domain } else { &config.name };
        Ok(Source { name: format!("xds:{}", shown(name, SHOWN_NAME)), text: file(&config) })
    };
    (1..).zip(&response.resources).map(read).collect()
}

fn file(config: &RateLimitConfig) -> String {
    let mut members = Map::new();
    if !config.name.is_empty() {
        members.insert("name".into(), config.name.as_str().into());
    }
    members.insert("domain".into(), config.domain.as_str().into());
    members.insert("descriptors".into(), config.descriptors.iter().map(descriptor).collect());
    format!("{:#}", Value::Object(members))
}

fn descriptor(given: &RateLimitDescriptor) -> Value {
    let mut members = Map::from_iter([("key".to_owned(), given.key.as_str().into())]);
    if !given.value.is_empty() {
        members.insert("value".into(), given.value.as_str().into());
    }
    // Envoy Gateway sets the modes on each level above a limit, too, where they mean nothing.
    if let Some(policy) = &given.rate_limit {
        members.insert("rate_limit".into(), rate_limit(policy));
        let modes = [
            ("shadow_mode", given.shadow_mode),
            ("detailed_metric", given.detailed_metric),
            ("quota_mode", given.quota_mode),
        ];
        members.extend(modes.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| (name.to_owned(), true.into())));
        members.extend(given.metadata.as_ref().map(|metadata| ("metadata".to_owned(), object(metadata))));
    }
    if !given.descriptors.is_empty() {
        members.insert("descriptors".into(), given.descriptors.iter().map(descriptor).collect());
    }
    members.into()
}

fn rate_limit(policy: &RateLimitPolicy) -> Value {
    let mut members = Map::new();
    if policy.unlimited {
        members.insert("unlimited".into(), true.into());
    }
    // On the wire, an absent number is 0, which is a limit of its own unless there is none.
    if !policy.unlimited || policy.unit != 0 {
        let unit = Unit::try_from(policy.unit).map_or_else(|_| policy.unit.to_string(), |unit| format!("{unit:?}"));
        members.insert("unit".into(), unit.to_ascii_lowercase().into());
    }
    if !policy.unlimited || policy.requests_per_unit != 0 {
        members.insert("requests_per_unit".into(), policy.requests_per_unit.into());
    }
    if !policy.name.is_empty() {
        members.insert("name".into(), policy.name.as_str().into());
    }
    if !policy.replaces.is_empty() {
        let replaces = policy.replaces.iter().map(|replaced| json!({ "name": replaced.name }));
        members.insert("replaces".into(), replaces.collect());
    }
    members.into()
}

fn object(given: &Struct) -> Value {
    let member = |field: &crate::listeners::grpc::messages::StructField| {
        let kind = field.value.as_ref().and_then(|value| value.kind.as_ref());
        (text(&field.key).to_owned(), kind.map_or(Value::Null, value))
    };
    given.fields.iter().map(member).collect::<Map<_, _>>().into()
}

fn value(kind: &Kind) -> Value {
    match kind {
        Kind::Null(_) => Value::Null,
        Kind::Number(number) => (*number).into(),
        Kind::Text(content) => text(content).into(),
        Kind::Bool(truth) => (*truth).into(),
        Kind::Struct(members) => object(members),
        Kind::List(list) => list.values.iter().map(|item| item.kind.as_ref().map_or(Value::Null, value)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::google::protobuf as well_known;
    use envoy_types::pb::ratelimit::config::ratelimit::v3 as theirs;

    use super::super::messages::Any;
    use super::*;
    use crate::config::envoy_ratelimit::read;
    use crate::config::foreign::Findings;

    fn response(config: &theirs::RateLimitConfig) -> DiscoveryResponse {
        let resource = Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec().into() };
        DiscoveryResponse { resources: vec![resource], ..DiscoveryResponse::default() }
    }

    fn descriptor(key: &str, value: &str) -> theirs::RateLimitDescriptor {
        theirs::RateLimitDescriptor { key: key.to_owned(), value: value.to_owned(), ..Default::default() }
    }

    #[test]
    fn each_field_of_a_resource_becomes_its_key_in_a_file() {
        let policy = theirs::RateLimitPolicy {
            unit: theirs::RateLimitUnit::Week.into(),
            requests_per_unit: 7,
            name: "weekly".to_owned(),
            replaces: vec![theirs::RateLimitReplace { name: "daily".to_owned() }],
            ..Default::default()
        };
        let kinds = [
            ("text", well_known::value::Kind::StringValue("1".to_owned())),
            ("number", well_known::value::Kind::NumberValue(1.5)),
            ("truth", well_known::value::Kind::BoolValue(true)),
            ("nothing", well_known::value::Kind::NullValue(0)),
            (
                "list",
                well_known::value::Kind::ListValue(well_known::ListValue {
                    values: vec![well_known::Value::default()],
                }),
            ),
        ];
        let fields = kinds.map(|(key, kind)| (key.to_owned(), well_known::Value { kind: Some(kind) }));
        let unlimited = theirs::RateLimitPolicy { unlimited: true, ..Default::default() };
        let config = theirs::RateLimitConfig {
            name: "of-web".to_owned(),
            domain: "web".to_owned(),
            descriptors: vec![theirs::RateLimitDescriptor {
                rate_limit: Some(policy),
                shadow_mode: true,
                quota_mode: true,
                detailed_metric: true,
                metadata: Some(well_known::Struct { fields: fields.into() }),
                descriptors: vec![theirs::RateLimitDescriptor {
                    rate_limit: Some(unlimited),
                    ..descriptor("path", "")
                }],
                ..descriptor("user", "ann")
            }],
        };
        let sources = sources(&response(&config)).unwrap();
        assert_eq!(sources[0].name, "xds:of-web");
        let expected = json!({ "name": "of-web", "domain": "web", "descriptors": [{
            "key": "user", "value": "ann", "shadow_mode": true, "quota_mode": true, "detailed_metric": true,
            "rate_limit": { "unit": "week", "requests_per_unit": 7, "name": "weekly", "replaces": [{ "name": "daily" }] },
            "metadata": { "text": "1", "number": 1.5, "truth": true, "nothing": null, "list": [null] },
            "descriptors": [{ "key": "path", "rate_limit": { "unlimited": true } }],
        }] });
        assert_eq!(serde_json::from_str::<Value>(&sources[0].text).unwrap(), expected);
        let (_, report) = read(&sources, Findings::new);
        assert_eq!(report.errors, 0, "{report}");
    }

    #[test]
    fn keys_and_values_stay_as_they_are() {
        for odd in [
            "true",
            "~",
            "07",
            "a: b",
            "# no",
            "'\"\\",
            "a\tb\nc\r",
            "\u{1}\u{7f}\u{85}\u{2028}\u{feff}",
            "é🦀",
            " ",
            "${X}",
        ] {
            let config = theirs::RateLimitConfig {
                domain: "web".to_owned(),
                descriptors: vec![descriptor(odd, odd)],
                ..Default::default()
            };
            let (domains, report) = read(&sources(&response(&config)).unwrap(), Findings::new);
            assert_eq!(report.errors, 0, "{odd:?}: {report}");
            let level = &domains[0].descriptors[0].level;
            assert_eq!((level.key.as_str(), level.value.text().as_deref()), (odd, Some(odd)));
        }
    }

    #[test]
    fn a_limit_of_none_is_not_a_missing_one() {
        let deny = theirs::RateLimitPolicy { unit: theirs::RateLimitUnit::Hour.into(), ..Default::default() };
        let with = theirs::RateLimitDescriptor { rate_limit: Some(deny), ..descriptor("user", "") };
        let config =
            theirs::RateLimitConfig { domain: "web".to_owned(), descriptors: vec![with], ..Default::default() };
        let (domains, report) = read(&sources(&response(&config)).unwrap(), Findings::new);
        assert_eq!(report.errors, 0, "{report}");
        let rule = &domains[0].descriptors[0].limit.as_ref().unwrap().rule;
        assert_eq!(rule.per_unit.map(|per_unit| per_unit.requests), Some(0));
    }
}
