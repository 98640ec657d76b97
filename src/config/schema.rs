//! The JSON schema of the rules file. It is written by hand for the sake of its descriptions; tests compare it with the reader.

/// The JSON schema of a rules file, for editors. `#/$defs/overrides` describes a file of overrides.
pub const SCHEMA: &str = include_str!("schema.json");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Map, Value as Json};

    use super::super::algorithms::{WORDS, elevated, fixed_window, queue};
    use super::super::lints::Lint;
    use super::super::node::{Node, Value};
    use super::super::problem::Findings;
    use super::super::tests::cases;
    use super::super::yaml::tree;
    use super::super::{
        ban, by, candidate, cost, deny_with, exempt, jwt, lease, limit, load, matching, numbers, overrides, paths,
        request_numbers, response_cost,
    };
    use super::*;
    use crate::engine::algorithms::queue::{MOST_FIELDS, MOST_WAITING};
    use crate::engine::algorithms::script::{MOST_ARGUMENTS, MOST_HEADERS};
    use crate::engine::limit::candidate::MOST_CANDIDATES;
    use crate::engine::limit::warning::MOST_SHARES;
    use crate::engine::request::path_condition::LONGEST_PREFIX;
    use crate::engine::request::token_usage::{TokenKind, TokenWeights};

    /// The value that an editor sees: scalars by the YAML 1.2 core schema.
    fn json(node: &Node) -> Json {
        match &node.value {
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|(key, node)| (key.text.clone(), json(node))).collect::<Map<_, _>>())
            }
            Value::List(items) => Json::Array(items.iter().map(json).collect()),
            Value::Scalar { plain: true, .. } if node.is_null() => Json::Null,
            Value::Scalar { text, plain: true } => match text.as_str() {
                "true" => Json::Bool(true),
                "false" => Json::Bool(false),
                number => number
                    .parse::<i128>()
                    .map(|_| number.trim_start_matches('0').to_owned())
                    .or_else(|_| number.parse::<f64>().map(|_| number.to_owned()))
                    .ok()
                    .and_then(|number| serde_json::from_str(&number).ok())
                    .unwrap_or_else(|| Json::String(number.to_owned())),
            },
            Value::Scalar { text, .. } => Json::String(text.clone()),
        }
    }

    fn schema() -> Json {
        serde_json::from_str(SCHEMA).unwrap()
    }

    fn validators() -> (jsonschema::Validator, jsonschema::Validator) {
        let rules = schema();
        let mut overrides = rules.clone();
        for key in ["type", "required", "additionalProperties", "properties"] {
            overrides.as_object_mut().unwrap().remove(key);
        }
        overrides["$ref"] = "#/$defs/overrides".into();
        (jsonschema::validator_for(&rules).unwrap(), jsonschema::validator_for(&overrides).unwrap())
    }

    /// Why a text does not fit a schema; `None` if it does.
    fn misfit(validator: &jsonschema::Validator, text: &str) -> Option<String> {
        let findings = Findings::new("f");
        let Ok(node) = tree(text, &findings) else { return Some("no YAML".into()) };
        validator.validate(&json(&node)).err().map(|error| format!("{error} at {}", error.instance_path()))
    }

    #[test]
    fn the_sample_and_every_good_case_fit() {
        let (rules, overrides) = validators();
        assert_eq!(misfit(&rules, include_str!("../../limits.yaml")), None);
        for case in cases().iter().filter(|case| case["expect"] == "ok") {
            assert_eq!(misfit(&rules, case["limits"].as_str().unwrap()), None, "{}", case["case"]);
            if let Some(text) = case["overrides"].as_str() {
                assert_eq!(misfit(&overrides, text), None, "{}", case["case"]);
            }
        }
    }

    /// Mistakes that only the parser can know: names of other places, ids, arithmetic, and the spelling of numbers.
    const SEMANTIC: &[&str] = &[
        "burst octal-looking 010",
        "burst x interval overflows",
        "more tokens than nanoseconds",
        "duplicate limit name",
        "an exemption from an unknown limit",
        "a ban from everything by a path parameter",
        "shares that do not ascend",
        "a ban from everything by a value of the body",
        "an exemption by a claim of nobody's tokens",
        "period 0",
        "second YAML document in the file",
        "tab indentation",
        "override unknown name",
        "map format, second entry unknown name",
        "map format, third entry bad id",
        "the same id twice with different values",
        "override with a blank id",
        "new format, IPv6 not the lowest of its /64",
        "fqdn set with a bad member",
        "fqdn set with a trailing comma",
        "a month without windows",
        "a time zone that does not exist",
        "a time zone for a plain span",
        "a month from the first charge on",
        "a window of no time",
        "a window finer than the clock",
        "a sliding log of too many entries",
        "a sliding log with a burst",
        "a sliding log of months",
        "a sliding log without a period",
        "a sliding window with a burst",
        "a sliding window of months",
        "a sliding window without a period",
        "a sliding window of too many tokens",
        "a sliding window of too long a period",
        "a sliding window finer than the clock",
        "a lease too short",
        "a lease of tokens that is too long",
        "a delay that is too long",
        "a delay that is too short",
        "requests in flight of a domain",
        "requests in flight by an entry of a descriptor",
        "a queue of entries that are stale at once",
        "a queue counted from memory",
        "duplicates of what comes once",
        "a path with parameters that are stripped",
        "a path parameter of a prefix",
        "a queue of the rate limit service",
        "a queue whose callers bring numbers",
        "a script that does not exist",
        "a script that frames the answer",
        "a reserve given twice",
        "a cost of 0 before the response",
        "what responses tell of a limit for descriptors",
        "what responses tell of a limit of a domain",
        "what responses tell of a limit by descriptors",
        "a reserve for some answers only",
        "elevated numbers of months",
        "elevated numbers for no time",
        "an override with elevated numbers and no end",
        "an override with elevated numbers where the limit has none",
        "an override with elevated numbers where the limit has windows",
        "a longest ban that is shorter than the first",
        "a ban for no time",
        "a ban that never ends",
        "a ban of a limit with leased tokens",
        "a number of the request above what is allowed at most",
        "a number of the request that the limit cannot have",
        "a number of the request of a limit with elevated numbers",
        "a number of the request of a limit with leased tokens",
        "a number of a claim without an issuer",
    ];

    #[test]
    fn structural_mistakes_do_not_fit() {
        let (rules, overrides) = validators();
        for case in cases().iter().filter(|case| case["expect"] == "error") {
            let name = case["case"].as_str().unwrap();
            if SEMANTIC.contains(&name) || name.starts_with("id: ") {
                continue;
            }
            let fits = misfit(&rules, case["limits"].as_str().unwrap()).is_none()
                && case["overrides"].as_str().is_none_or(|text| misfit(&overrides, text).is_none());
            assert!(!fits, "{name}");
        }
        for text in [
            "limit: {}",
            "limits: { A: { count: 1 } }",
            "limits: { A: { rates: [{ count: 1, period: 1s }], burst: 1 } }",
            "limits: { A: { rates: [] } }",
            "limits: { A: { unlimited: true, burst: 1 } }",
            "limits: { A: { unlimited: true, deny: true } }",
            "limits: { A: { count: \"1\", period: 1s } }",
            "limits: { A: { count: 1, period: 60 } }",
            "limits: { A: { by: [ip, global] } }",
            "limits: { A: { by: ip/129 } }",
            "limits: { A: { by: { header: x, query: y } } }",
            "limits: { A: { match: { path: v1 } } }",
            "limits: { A: { match: { domain: \"\" } } }",
            "limits: { A: { match: { descriptor: { a: true } } } }",
            "limits: { A: { match: { descriptor: { a: { glob: x } } } } }",
            "limits: { A: { by: { descriptor: \"\" } } }",
            "limits: { A: { enforce_for: 101% } }",
            "limits: { A: { cost: -1 } }",
            "limits: { A: { cost: { default: 5 } } }",
            "limits: { A: { cost: { header: x, default: -1 } } }",
            "limits: { A: { cost: { body: /n, missing: skip } } }",
            "limits: { A: { cost: { bytes: request, malformed: deny } } }",
            "limits: { A: { algorithm: bucket } }",
            "limits: { A: { algorithm: queue, capacity: 1 } }",
            "limits: { A: { cost_from_response: x-tokens-used } }",
            "limits: { A: { cost_from_response: { reserve: 5 } } }",
            "limits: { A: { cost_from_response: { header: x, reserve: 0 } } }",
            "limits: { A: { reserve: 5 } }",
            "limits: { A: { spend_when: { status: [] } } }",
            "limits: { A: { spend_when: { status: 199 } } }",
            "limits: { A: { spend_when: { status: [4x] } } }",
            "limits: { A: { aligned: clock, count: 1, period: 1s } }",
            "limits: { A: { algorithm: fixed_window, aligned: clocks, count: 1, period: 1s } }",
            "limits: { A: { algorithm: fixed_window, count: 1, period: months } }",
            "limits: { A: { algorithm: fixed_window, count: 1, period: month, resets_on: 32 } }",
            "limits: { A: { count: 1, period: 1s, elevated: { count: 2, period: 1s, for: 1m } } }",
            "limits: { A: { count: 1, period: 1s, elevated: { count: 2, for: 1m, activations_per_month: 1 } } }",
            "limits: { A: { count: 1, period: 1s, elevated: { for: 1m, activations_per_month: 1 } } }",
            "limits: {}\noverrides: { A:1: { deny: true, elevated: { burst: 1 } } }",
            "limits: { A:b: {} }",
            "limits: {}\noverrides: { A: { burst: 1 } }",
            "limits: {}\noverrides: { A:1: { ids: [2], burst: 1 } }",
            "limits: {}\noverrides: { A:1: { comment: x } }",
            "limits: {}\noverrides: [A]",
        ] {
            assert!(misfit(&rules, text).is_some(), "{text}");
        }
    }

    /// Compares the keys below a place of the schema with those that the parser knows.
    #[track_caller]
    fn same(schema: &Json, place: &str, known: &[&str]) {
        let found: BTreeSet<&str> = match schema.pointer(place).unwrap() {
            Json::Object(properties) => properties.keys().map(String::as_str).collect(),
            Json::Array(words) => words.iter().filter_map(Json::as_str).collect(),
            _ => panic!("{place}"),
        };
        assert_eq!(found, known.iter().copied().collect(), "{place}");
    }

    #[track_caller]
    fn check_tests(schema: &Json) {
        use super::super::rule_tests::{self, expectation, step, subject};
        same(schema, "/$defs/test/anyOf/1/properties", &rule_tests::TEST_KEYS);
        let keys: Vec<&str> = step::TIME_KEYS.into_iter().chain(subject::keys()).collect();
        same(schema, "/$defs/step/properties", &keys);
        same(schema, "/$defs/step/properties/mode/enum", &subject::CHARGE_MODES.map(|(word, _)| word));
        same(schema, "/$defs/step/properties/response/properties", &subject::RESPONSE_KEYS);
        same(schema, "/$defs/expect/anyOf/0/enum", &expectation::VERDICTS.map(|(word, _)| word));
        same(schema, "/$defs/expect/anyOf/1/properties", &expectation::KEYS);
        same(schema, "/$defs/limit_expect/anyOf/0/enum", &expectation::LIMIT_VERDICTS.map(|(word, _)| word));
        same(schema, "/$defs/limit_expect/anyOf/1/properties", &expectation::LIMIT_KEYS);
        same(schema, "/$defs/candidate_expect/enum", &expectation::CANDIDATE_VERDICTS.map(|(word, _)| word));
        assert_eq!(schema["$defs"]["step"]["properties"]["repeat"]["maximum"], step::MOST_REPEATED);
        assert_eq!(schema["$defs"]["step"]["properties"]["descriptors"]["maxItems"], subject::MOST_ENTRIES);
    }

    #[test]
    fn the_schema_and_the_parser_know_the_same_words() {
        let schema = schema();
        let component = "/$defs/component/anyOf/2/properties";
        same(&schema, "/properties", &load::KEYS);
        let lints: Vec<_> = Lint::ALL.iter().map(|lint| lint.name()).collect();
        same(&schema, "/$defs/ignore_lints/items/enum", &lints);
        same(&schema, "/$defs/limit/properties", &limit::KEYS);
        same(&schema, "/$defs/limit/properties/mode/enum", &limit::MODES.map(|(word, _)| word));
        for key in ["missing", "malformed"] {
            let place = format!("/$defs/limit/properties/{key}/enum");
            same(&schema, &place, &limit::FALLBACKS.map(|(word, _)| word));
        }
        same(&schema, "/$defs/limit/properties/on_store_error/enum", &limit::STORE_ERROR.map(|(word, _)| word));
        same(&schema, "/$defs/limit/properties/algorithm/enum", &WORDS);
        same(&schema, "/$defs/limit/properties/kind/enum", &queue::KINDS.map(|(word, _)| word));
        same(&schema, "/$defs/limit/properties/then/enum", &queue::THEN.map(|(word, _)| word));
        assert_eq!(schema["$defs"]["capacity"]["maximum"], MOST_WAITING);
        assert_eq!(schema["$defs"]["limit"]["properties"]["fields"]["maxProperties"], MOST_FIELDS);
        assert_eq!(schema["$defs"]["limit"]["properties"]["headers"]["anyOf"][1]["maxItems"], MOST_HEADERS);
        let with = &schema["$defs"]["deny_with"]["properties"];
        assert_eq!(with["headers"]["maxProperties"], deny_with::MOST_HEADERS);
        assert_eq!(with["headers"]["additionalProperties"]["maxLength"], deny_with::LONGEST_VALUE);
        assert_eq!(with["body"]["anyOf"][0]["maxLength"], deny_with::LONGEST_BODY);
        assert_eq!(schema["$defs"]["args"]["maxItems"], MOST_ARGUMENTS);
        same(&schema, "/$defs/aligned/enum", &fixed_window::ALIGNED.map(|(word, _)| word));
        same(&schema, "/$defs/window/properties", &numbers::WINDOW_KEYS);
        same(&schema, "/$defs/candidate/properties", &candidate::KEYS);
        assert_eq!(schema["$defs"]["limit"]["properties"]["candidates"]["maxProperties"], MOST_CANDIDATES);
        same(&schema, "/$defs/elevated/properties", &elevated::KEYS);
        same(&schema, "/$defs/limit/properties/ban/properties", &ban::KEYS);
        assert_eq!(schema["$defs"]["limit"]["properties"]["warn_at"]["anyOf"][1]["maxItems"], MOST_SHARES);
        same(&schema, "/$defs/request_number/properties", &request_numbers::KEYS);
        same(&schema, "/$defs/token_lease/properties", &lease::KEYS);
        same(&schema, "/$defs/cost/anyOf/1/properties", &cost::COST_KEYS);
        for key in ["missing", "malformed"] {
            same(
                &schema,
                &format!("/$defs/cost/anyOf/1/properties/{key}/enum"),
                &cost::FALLBACKS.map(|(word, _)| word),
            );
        }
        same(&schema, "/$defs/cost/anyOf/1/properties/bytes/enum", &cost::BYTES.map(|(word, _)| word));
        let [from_response, when] =
            ["cost_from_response", "spend_when"].map(|name| format!("/$defs/limit/properties/{name}/properties"));
        same(&schema, &from_response, &response_cost::COST_KEYS);
        same(&schema, &when, &response_cost::WHEN_KEYS);
        same(&schema, "/$defs/deny_with/properties", &deny_with::KEYS);
        same(&schema, "/$defs/jwt/additionalProperties/properties", &jwt::KEYS);
        assert_eq!(schema["$defs"]["jwt"]["maxProperties"], jwt::MOST_ISSUERS);
        same(&schema, &format!("{from_response}/usage/enum"), &response_cost::USAGES.map(|(word, _)| word));
        same(&schema, &format!("{from_response}/weights/properties"), &TokenKind::LABELS);
        let largest = schema["$defs"]["token_weight"]["maximum"].as_u64();
        assert_eq!(largest.map(|weight| weight * u64::from(TokenWeights::ONE)), Some(TokenWeights::LARGEST.into()));
        same(&schema, &format!("{from_response}/bytes/enum"), &response_cost::BYTES.map(|(word, _)| word));
        same(&schema, component, &by::KEYS);
        same(&schema, &format!("{component}/as/enum"), &by::FORMS.map(|(word, _)| word));
        same(&schema, &format!("{component}/duplicates/enum"), &by::DUPLICATES.map(|(word, _)| word));
        same(&schema, &format!("{component}/tls/enum"), &by::TLS.map(|(word, _)| word));
        same(&schema, "/$defs/component/anyOf/0/enum", &["ip", "host", "method", "path", "credentials"]);
        same(&schema, "/$defs/match/properties", &matching::KEYS);
        same(&schema, "/$defs/match/properties/path_case/enum", &matching::PATH_CASE.map(|(word, _)| word));
        same(&schema, "/$defs/match/properties/path_params/enum", &matching::PATH_PARAMS.map(|(word, _)| word));
        for name in ["other_hosts", "other_networks"] {
            same(&schema, &format!("/$defs/{name}/properties"), &matching::NOT_KEYS);
        }
        same(&schema, "/$defs/path_condition/properties", &paths::KEYS);
        same(&schema, "/$defs/other_path/properties", &paths::EXCLUDED_KEYS);
        assert_eq!(schema["$defs"]["path_condition"]["properties"]["prefix"]["maxLength"], LONGEST_PREFIX);
        same(&schema, "/$defs/exemption/properties", &exempt::KEYS);
        assert_eq!(schema["$defs"]["exempt"]["maxItems"], exempt::MOST);
        same(&schema, "/$defs/header/properties", &matching::HEADER_KEYS);
        same(&schema, "/$defs/entry/properties", &matching::ENTRY_KEYS);
        same(&schema, "/$defs/override/properties", &overrides::KEYS);
        same(&schema, "/$defs/override/properties/ids/items/anyOf/1/properties", &overrides::ID_KEYS);
        check_tests(&schema);
        assert_eq!(schema["$defs"]["rates"]["maxItems"], numbers::MOST_WINDOWS);
        assert_eq!(schema["$defs"]["by"]["anyOf"][2]["maxItems"], by::MOST_PARTS);
        let (rules, _) = validators();
        for word in by::WORDS {
            assert_eq!(misfit(&rules, &format!("limits: {{ A: {{ by: {word} }} }}")), None);
        }
    }
}
