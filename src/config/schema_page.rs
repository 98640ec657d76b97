//! The pages on the keys of the rules: every key with its type, default and meaning, as the schema has them. The end of
//! docs/rules.md lists them, and docs/rules/ has them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value as Json;

use super::schema::SCHEMA;

/// The line above the generated part of docs/rules.md.
const START: &str = "\n## Every key\n";

const ABOUT: &str = "
All keys of a rules file, made from its JSON schema. Write it with `weir schema >limits.schema.json`; with the first line
`# yaml-language-server: $schema=limits.schema.json`, editors complete and check the file. Durations are numbers
with `ns`, `us`, `ms`, `s`, `m`, `h`, `d` or `w`, such as `1h30m`.

<!-- published:
The schema of the newest release is [limits.schema.json]({site}limits.schema.json). The file of `weir serve --config` has
[one, too]({site}weir.schema.json).
-->
";

/// The headings of a page, and what of the schema they describe.
type Sections = &'static [(&'static str, &'static str)];

/// The pages: their file, their title, and their headings. A heading that is the title is that of the page.
const PAGES: [(&str, &str, Sections); 6] = [
    ("rules", "Rules", &[("The file", "")]),
    ("rules/limit", "Keys of a limit", &[("Keys of a limit", "/$defs/limit")]),
    (
        "rules/match-and-by",
        "`match` and `by`",
        &[
            ("`match`", "/$defs/match"),
            ("Hosts except some", "/$defs/other_hosts"),
            ("Conditions on paths", "/$defs/path_condition"),
            ("Excluded paths", "/$defs/other_path"),
            ("Networks except some", "/$defs/other_networks"),
            ("An exemption in `exempt`", "/$defs/exemption"),
            ("Conditions on headers", "/$defs/header"),
            ("Conditions on descriptors", "/$defs/entry"),
            ("Components of `by`", "/$defs/component/anyOf/2"),
            ("An issuer in `jwt`", "/$defs/jwt/additionalProperties"),
        ],
    ),
    (
        "rules/rates-and-costs",
        "Rates, costs and denials",
        &[
            ("`rates`", "/$defs/window"),
            ("`cost`", "/$defs/cost/anyOf/1"),
            ("`cost_from_response`", "/$defs/limit/properties/cost_from_response"),
            ("`weights` of tokens", "/$defs/limit/properties/cost_from_response/properties/weights"),
            ("`spend_when`", "/$defs/limit/properties/spend_when"),
            ("`deny_with`", "/$defs/deny_with"),
            ("`candidate`", "/$defs/candidate"),
            ("`elevated`", "/$defs/elevated"),
            ("`ban`", "/$defs/limit/properties/ban"),
            ("A number of the request", "/$defs/request_number"),
            ("`lease` of tokens", "/$defs/token_lease"),
        ],
    ),
    (
        "rules/overrides",
        "Keys of an override",
        &[("Keys of an override", "/$defs/override"), ("`ids`", "/$defs/override/properties/ids/items/anyOf/1")],
    ),
    (
        "rules/tests",
        "Keys of a test",
        &[
            ("Keys of a test", "/$defs/test/anyOf/1"),
            ("A step", "/$defs/step"),
            ("`response`", "/$defs/step/properties/response"),
            ("`expect`", "/$defs/expect/anyOf/1"),
            ("`limits` in `expect`", "/$defs/limit_expect/anyOf/1"),
        ],
    ),
];

/// The texts of the pages by their files in docs/; of docs/rules.md what follows its written part.
fn pages() -> BTreeMap<String, String> {
    let schema: Json = serde_json::from_str(SCHEMA).unwrap();
    let page = |(file, title, sections): &(&str, &str, Sections)| {
        let mut page = if *file == "rules" { index() } else { format!("# {title}\n") };
        for (heading, place) in *sections {
            let depth = if *file == "rules" { "###" } else { "##" };
            if heading != title {
                let _ = write!(page, "\n{depth} {heading}\n");
            }
            keys(&mut page, &schema, file, place);
        }
        (format!("{file}.md"), page)
    };
    PAGES.iter().map(page).collect()
}

/// The list of the pages.
fn index() -> String {
    let mut index = format!("{START}{ABOUT}\n");
    for (file, title, sections) in &PAGES[1..] {
        let more = sections.iter().filter(|(heading, _)| heading != title);
        let more: Vec<_> = more.map(|(heading, _)| format!("[{heading}]({file}.md#{})", anchor(heading))).collect();
        let more = if more.is_empty() { String::new() } else { format!(": {}", more.join(", ")) };
        let _ = writeln!(index, "- [{title}]({file}.md){more}");
    }
    index
}

fn anchor(heading: &str) -> String {
    heading.replace('`', "").replace(' ', "-").to_lowercase()
}

/// A table of the keys of one part of the schema.
fn keys(page: &mut String, schema: &Json, file: &str, place: &str) {
    let part = schema.pointer(place).unwrap();
    page.push('\n');
    let about = part["description"].as_str().filter(|_| !place.is_empty());
    page.extend(about.into_iter().flat_map(|text| [text, "\n\n"]));
    page.push_str("| key | type | default | |\n|---|---|---|---|\n");
    let required = part["required"].as_array().cloned().unwrap_or_default();
    for (key, value) in part["properties"].as_object().unwrap() {
        row(page, schema, file, (key, value), required.contains(&Json::from(key.as_str())));
    }
}

fn row(page: &mut String, schema: &Json, file: &str, (key, value): (&str, &Json), is_required: bool) {
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
    let _ = writeln!(page, "| `{key}` | {} | {default} | {meaning} |", type_of(schema, file, value));
}

fn resolved<'a>(schema: &'a Json, value: &'a Json) -> &'a Json {
    match value["$ref"].as_str() {
        Some(address) => resolved(schema, schema.pointer(address.trim_start_matches('#')).unwrap()),
        None => value,
    }
}

/// The type and the range of a value, with a link to the keys of a map.
fn type_of(schema: &Json, file: &str, value: &Json) -> String {
    let value = resolved(schema, value);
    let sections = PAGES.iter().flat_map(|(page, _, sections)| sections.iter().map(move |section| (page, section)));
    let mut sections = sections.filter(|(_, (_, place))| !place.is_empty());
    if let Some((page, (heading, _))) =
        sections.find(|(_, (_, place))| std::ptr::eq(schema.pointer(place).unwrap(), value))
    {
        // From docs/rules.md, or from one of docs/rules/ to another.
        let page = match page.strip_prefix("rules/") {
            _ if *page == file => String::new(),
            Some(name) if file != "rules" => format!("{name}.md"),
            _ => format!("{page}.md"),
        };
        return format!("[map]({page}#{})", anchor(heading));
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
            let one = type_of(schema, file, form);
            if !one.is_empty() && !types.contains(&one) {
                types.push(one);
            }
        }
        return types.join(" or ");
    }
    if let Some(parts) = value["allOf"].as_array() {
        return type_of(schema, file, &parts[0]);
    }
    match value["type"].as_str() {
        Some(number @ ("integer" | "number")) => format!("{number}{}", range(value)),
        Some("boolean") => "`true` or `false`".to_owned(),
        Some("array") => {
            let most = value["maxItems"].as_u64().map(|most| format!(" (up to {most})")).unwrap_or_default();
            format!("list of: {}{most}", type_of(schema, file, &value["items"]))
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

/// Compares a generated page with the file in docs/, or writes it with `WEIR_WRITE_PAGES`. The page follows what the file has before
/// `start`. `test` is the name of the test for messages.
#[track_caller]
pub(crate) fn compare_or_write(file: &str, start: Option<&str>, page: &str, test: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(file);
    let there = fs::read_to_string(&path).unwrap_or_default();
    let before = start.and_then(|start| there.split(start).next()).unwrap_or_default();
    let page = format!("{before}{page}");
    if std::env::var_os("WEIR_WRITE_PAGES").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, page).unwrap();
    } else {
        assert!(there == page, "docs/{file} is stale: WEIR_WRITE_PAGES=1 cargo test --lib {test}");
    }
}

#[test]
fn the_pages_on_rules_have_the_keys_of_the_schema() {
    for (file, page) in pages() {
        let start = (file == "rules.md").then_some(START);
        compare_or_write(&file, start, &page, "the_pages_on_rules");
    }
}

/// Every map of the schema with keys has a section, except those that only narrow another.
#[test]
fn the_pages_on_rules_leave_no_key_out() {
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
    let page: String = pages().into_values().collect();
    let missing: Vec<_> = known.iter().filter(|key| !page.contains(&format!("\n| `{key}` |"))).collect();
    assert!(known.len() > 90 && missing.is_empty(), "{missing:?}");
}
