//! `weir schema`: JSON schemas of the files that people write.

use std::io::Write;

use clap::{Arg, ArgAction, CommandFactory};
use serde_json::{Map, Value, json};

use super::exit::{ExitCode, Failure};
use super::{Cli, route_file};
use crate::config::{self, KnownFlag};
use crate::engine::text::site;

/// Prints the JSON schema of limits.yaml, by which editors complete and check it
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the schema of the file of flags (`weir serve --config`) instead
    #[arg(long)]
    config: bool,
}

/// Prints the schema to `out`.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let site = site::address();
    if args.config {
        writeln!(out, "{:#}", of_flags(site.as_deref()))?;
    } else {
        out.write_all(of_rules(site.as_deref()).as_bytes())?;
    }
    Ok(ExitCode::Success)
}

/// The flags of `weir serve` that a file may set, without the dashes.
pub(super) fn settable() -> Vec<Arg> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").into_iter();
    let flags = serve
        .flat_map(clap::Command::get_arguments)
        .filter(|flag| flag.get_long().is_some_and(|name| !matches!(name, "config" | "dry-run" | "help" | "version")));
    flags.cloned().collect()
}

/// Describes a flag to the reader of the file.
pub(super) fn known(flag: &Arg) -> Option<KnownFlag<'_>> {
    let is_repeatable = matches!(flag.get_action(), ArgAction::Append);
    Some(KnownFlag { name: flag.get_long()?, is_repeatable })
}

/// With its address on the site, if there is one.
fn of_rules(site: Option<&str>) -> String {
    let Some(site) = site else { return config::SCHEMA.to_owned() };
    // As text, so that the keys stay in their order.
    config::SCHEMA.replacen('{', &format!("{{\n  \"$id\": \"{site}limits.schema.json\","), 1)
}

fn of_flags(site: Option<&str>) -> Value {
    let mut properties: Map<String, Value> =
        settable().iter().filter_map(|flag| Some((flag.get_long()?.to_owned(), of_flag(flag)))).collect();
    properties.insert("routes".to_owned(), of_routes(&properties));
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Flags of weir serve",
        "description": "The file of `weir serve --config`: a key for each flag, with a list for a flag that is repeatable.",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    });
    if let Some(site) = site {
        schema["$id"] = format!("{site}weir.schema.json").into();
    }
    schema
}

/// A key of a route that has the name of a flag takes what the flag does.
fn of_routes(flags: &Map<String, Value>) -> Value {
    let texts = json!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } });
    let names = json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] });
    let of_key = |key: &str| match key {
        "upstream" => json!({ "description": "Its servers", "anyOf": names["anyOf"] }),
        "host" => json!({
            "description": "The `Host` that its servers get: `client` for the client's, `upstream` for the URL's, or a name",
            "type": "string",
        }),
        "strip-prefix" => json!({ "description": "Remove the route's prefix from the path", "type": "boolean" }),
        "add-prefix" => json!({ "description": "Begin the path with this, after `strip-prefix`", "type": "string" }),
        "request-headers" | "response-headers" => json!({
            "description": "Headers to remove, to set (replacing those of that name) and to add (keeping them), in this order",
            "type": "object",
            "additionalProperties": false,
            "properties": { "remove": names, "set": texts, "add": texts },
        }),
        flag => {
            let mut value = flags.get(flag).cloned().unwrap_or_default();
            value["description"] = format!("Takes the place of `--{flag}`").into();
            value.as_object_mut().map(|value| value.remove("default"));
            value
        }
    };
    let properties: Map<String, Value> = route_file::KEYS.iter().map(|key| ((*key).to_owned(), of_key(key))).collect();
    json!({
        "description": "The proxy's routes, each by `[HOST][/PREFIX]`. They are reloaded with the rules.",
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "required": ["upstream"],
            "additionalProperties": false,
            "properties": properties,
        },
    })
}

fn of_flag(flag: &Arg) -> Value {
    let mut value = json!({ "type": ["string", "number", "boolean"] });
    let possible: Vec<_> = flag.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if !possible.is_empty() {
        let plain = possible.iter().map(|name| name.parse().map_or_else(|_| json!(name), Value::Bool));
        value = json!({ "enum": plain.collect::<Vec<_>>() });
    }
    if matches!(flag.get_action(), ArgAction::Append) {
        value = json!({ "anyOf": [value, { "type": "array", "items": value }] });
    }
    let text = flag.get_long_help().or_else(|| flag.get_help()).map(ToString::to_string);
    value["description"] = text.into();
    if let [default] = flag.get_default_values() {
        value["default"] = default.to_string_lossy().into();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::foreign::Node;
    use crate::http::{HealthCheck, Routes};

    #[test]
    fn the_schema_and_the_reader_know_the_same_files() {
        let schema = of_flags(None);
        let validator = jsonschema::validator_for(&schema).unwrap();
        let flags = settable();
        let known: Vec<_> = flags.iter().filter_map(known).collect();
        for (text, value, is_right) in [
            ("workers: 2\nupstream: [a, b]\n", json!({ "workers": 2, "upstream": ["a", "b"] }), true),
            ("shadow: true\nstore: memory\n", json!({ "shadow": true, "store": "memory" }), true),
            ("upstream: a\n", json!({ "upstream": "a" }), true),
            ("worker: 2\n", json!({ "worker": 2 }), false),
            ("upstream: { a: b }\n", json!({ "upstream": { "a": "b" } }), false),
            ("workers: [2]\n", json!({ "workers": [2] }), false),
            ("workers:\n", json!({ "workers": null }), false),
            ("config: other.yaml\n", json!({ "config": "other.yaml" }), false),
            ("dry-run: true\n", json!({ "dry-run": true }), false),
            ("routes: { /a: { upstream: echo } }\n", json!({ "routes": { "/a": { "upstream": "echo" } } }), true),
            ("routes: { /a: echo }\n", json!({ "routes": { "/a": "echo" } }), false),
            (
                "routes: { /a: { strip-prefix: true } }\n",
                json!({ "routes": { "/a": { "strip-prefix": true } } }),
                false,
            ),
            (
                "routes: { /a: { upstream: echo, uptream: b } }\n",
                json!({ "routes": { "/a": { "upstream": "echo", "uptream": "b" } } }),
                false,
            ),
            (
                "routes: { /a: { upstream: echo, max-body-bytes: 1, health-check: /up, request-headers: { set: { x-a: 1 }, remove: [x-b] } } }\n",
                json!({ "routes": { "/a": {
                    "upstream": "echo", "max-body-bytes": 1, "health-check": "/up",
                    "request-headers": { "set": { "x-a": 1 }, "remove": ["x-b"] },
                } } }),
                true,
            ),
        ] {
            let source = config::Source { name: "weir.yaml".into(), text: text.into() };
            let routes = |node: &Node| route_file::read(node, &HealthCheck::default(), &mut Routes::default());
            assert_eq!(config::settings(&source, &known, routes).is_ok(), is_right, "{text}");
            assert_eq!(validator.is_valid(&value), is_right, "{text}");
        }
    }

    #[test]
    fn a_schema_has_the_address_that_it_has_on_the_site() {
        let rules = |site| -> Value { serde_json::from_str(&of_rules(site)).unwrap() };
        let site = Some("https://docs.example.com/");
        for (schema, bare, name) in
            [(rules(site), rules(None), "limits.schema.json"), (of_flags(site), of_flags(None), "weir.schema.json")]
        {
            assert_eq!(schema["$id"], format!("https://docs.example.com/{name}"));
            assert_eq!(bare["$id"], Value::Null);
            assert_eq!(schema["properties"], bare["properties"]);
        }
    }
}
