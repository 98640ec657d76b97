//! The end of docs/rules.md: every key of the rules with its type, default and meaning, as the schema has them.

use std::fmt::Write;

use serde_json::Value as Json;

use super::schema::SCHEMA;

/// The line above the generated part of the page.
const START: &str = "\n## Every key\n";

const ABOUT: &str = "
All keys of a rules file, made from its JSON schema. Write it with `weir schema >limits.schema.json`; with the first line
`# yaml-language-server: $schema=limits.schema.json`, editors complete and check the file. Durations are numbers
with `ns`, `us`, `ms`, `s`, `m`, `h`, `d` or `w`, such as `1h30m`.
";

/// The headings, and what they describe.
const SECTIONS: [(&str, &str); 24] = [
    ("The file", ""),
    ("A limit", "/$defs/limit"),
    ("An issuer in `jwt`", "/$defs/jwt/additionalProperties"),
    ("`match`", "/$defs/match"),
    ("Conditions on headers", "/$defs/header"),
    ("Conditions on descriptors", "/$defs/entry"),
    ("Components of `by`", "/$defs/component/anyOf/2"),
    ("`rates`", "/$defs/window"),
    ("`cost`", "/$defs/cost/anyOf/1"),
    ("`cost_from_response`", "/$defs/limit/properties/cost_from_response"),
    ("`spend_when`", "/$defs/limit/properties/spend_when"),
    ("`deny_with`", "/$defs/deny_with"),
    ("`candidate`", "/$defs/candidate"),
    ("`elevated`", "/$defs/elevated"),
    ("`lease` of tokens", "/$defs/token_lease"),
    ("An override", "/$defs/override"),
    ("`ids`", "/$defs/override/properties/ids/items/anyOf/1"),
    ("A test", "/$defs/test/anyOf/1"),
    ("A step", "/$defs/step"),
    ("`response`", "/$defs/step/properties/response"),
    ("`expect`", "/$defs/expect/anyOf/1"),
    ("`limits` in `expect`", "/$defs/limit_expect/anyOf/1"),
    ("Hosts except some", "/$defs/match/properties/host/anyOf/2"),
    ("Networks except some", "/$defs/match/properties/cidr/anyOf/2"),
];

fn keys() -> String {
    let schema: Json = serde_json::from_str(SCHEMA).unwrap();
    let mut page = format!("{START}{ABOUT}");
    for (heading, place) in SECTIONS {
        let part = schema.pointer(place).unwrap();
        let _ = write!(page, "\n### {heading}\n\n");
        let about = part["description"].as_str().filter(|_| !place.is_empty());
        page.extend(about.into_iter().flat_map(|text| [text, "\n\n"]));
        page.push_str("| key | type | default | |\n|---|---|---|---|\n");
        let required = part["required"].as_array().cloned().unwrap_or_default();
        for (key, value) in part["properties"].as_object().unwrap() {
            row(&mut page, &schema, key, value, required.contains(&Json::from(key.as_str())));
        }
    }
    page
}

fn row(page: &mut String, schema: &Json, key: &str, value: &Json, is_required: bool) {
    let target = resolved(schema, value);
    let find = |name: &str| value.get(name).or_else(|| target.get(name));
    let default = match find("default") {
        Some(default) => format!("`{}`", flow(default)),
        None if is_required => "required".to_owned(),
        None => String::new(),
    };
    let text = find("description").and_then(Json::as_str);
    let text = text.unwrap_or_else(|| panic!("schema.json: `{key}` has no description: {value}"));
    let examples = find("examples").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    let examples: Vec<_> = examples.iter().map(|example| format!("`{key}: {}`", flow(example))).collect();
    let examples = if examples.is_empty() { String::new() } else { format!(" Example: {}.", examples.join(", ")) };
    let meaning = (text.to_owned() + &examples).replace('|', "\\|");
    let _ = writeln!(page, "| `{key}` | {} | {default} | {meaning} |", type_of(schema, value));
}

fn resolved<'a>(schema: &'a Json, value: &'a Json) -> &'a Json {
    match value["$ref"].as_str() {
        Some(address) => resolved(schema, schema.pointer(address.trim_start_matches('#')).unwrap()),
        None => value,
    }
}

/// The type and the range of a value, with a link to the keys of a map.
fn type_of(schema: &Json, value: &Json) -> String {
    let value = resolved(schema, value);
    let section =
        SECTIONS.iter().find(|(_, place)| !place.is_empty() && std::ptr::eq(schema.pointer(place).unwrap(), value));
    if let Some((heading, _)) = section {
        return format!("[map](#{})", heading.replace('`', "").replace(' ', "-").to_lowercase());
    }
    if let Some(words) = value["enum"].as_array() {
        return words.iter().map(|word| format!("`{}`", flow(word))).collect::<Vec<_>>().join(", ");
    }
    if let Some(word) = value.get("const") {
        return format!("`{}`", flow(word));
    }
    if let Some(forms) = value["anyOf"].as_array() {
        let mut types: Vec<String> = Vec::new();
        for form in forms {
            let one = type_of(schema, form);
            if !one.is_empty() && !types.contains(&one) {
                types.push(one);
            }
        }
        return types.join(" or ");
    }
    if let Some(parts) = value["allOf"].as_array() {
        return type_of(schema, &parts[0]);
    }
    match value["type"].as_str() {
        Some("integer") => format!("integer{}", range(value)),
        Some("boolean") => "`true` or `false`".to_owned(),
        Some("array") => {
            let most = value["maxItems"].as_u64().map(|most| format!(" (up to {most})")).unwrap_or_default();
            format!("list of: {}{most}", type_of(schema, &value["items"]))
        }
        Some("object") => "map".to_owned(),
        Some("string") => match value["pattern"].as_str() {
            Some(pattern) if pattern.contains("ns|us") => "duration".to_owned(),
            Some(pattern) if pattern.contains("%$") => "percentage".to_owned(),
            _ => "text".to_owned(),
        },
        _ => "text".to_owned(),
    }
}

fn range(value: &Json) -> String {
    let least = value["minimum"].as_u64();
    // The largest integer that every JSON reader keeps.
    let most = value["maximum"].as_u64().filter(|most| *most < (1 << 53) - 1);
    match (least, most) {
        (Some(least), Some(most)) => format!(", {least} to {most}"),
        (Some(least), None) => format!(", {least} or more"),
        (None, Some(most)) => format!(", up to {most}"),
        (None, None) => String::new(),
    }
}

/// A value as YAML on one line.
fn flow(value: &Json) -> String {
    match value {
        Json::Object(members) => {
            let members = members.iter().map(|(key, value)| format!("{key}: {}", flow(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        Json::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Json::String(text) => {
            let is_plain = |char: char| char.is_alphanumeric() || "_-./% ".contains(char);
            let is_number = text.parse::<f64>().is_ok();
            if text.chars().all(is_plain) && !is_number { text.clone() } else { value.to_string() }
        }
        _ => value.to_string(),
    }
}

#[test]
fn the_page_on_rules_has_the_keys_of_the_schema() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/rules.md");
    let there = std::fs::read_to_string(path).unwrap();
    let written = there.split(START).next().unwrap();
    let page = format!("{written}{}", keys());
    if std::env::var_os("WEIR_WRITE_PAGES").is_some() {
        std::fs::write(path, &page).unwrap();
        return;
    }
    let help = "docs/rules.md is stale: WEIR_WRITE_PAGES=1 cargo test --lib the_page_on_rules";
    assert!(there == page, "{help}");
}

/// Every map of the schema with keys has a section, except those that only narrow another.
#[test]
fn the_page_on_rules_leaves_no_key_out() {
    fn count(value: &Json, keys: &mut std::collections::BTreeSet<String>) {
        if let Some(members) = value["properties"].as_object() {
            keys.extend(members.keys().cloned());
        }
        match value {
            Json::Object(members) => members.values().for_each(|value| count(value, keys)),
            Json::Array(items) => items.iter().for_each(|value| count(value, keys)),
            _ => {}
        }
    }
    let schema: Json = serde_json::from_str(SCHEMA).unwrap();
    let mut known = std::collections::BTreeSet::new();
    count(&schema, &mut known);
    let page = keys();
    let missing: Vec<_> = known.iter().filter(|key| !page.contains(&format!("\n| `{key}` |"))).collect();
    assert!(known.len() > 90 && missing.is_empty(), "{missing:?}");
}
