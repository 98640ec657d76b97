//! The flags of `weir serve` and the values that set them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::cases::everything;
use super::pod::{Given, Pod};
use super::rendering::{Chart, file, merged, render};
use super::values::{sample, schema};
use crate::support::binary;
use crate::support::process::{Finished, finish};

/// Flags that no value sets.
const NOT_BY_VALUES: &[&str] = &[
    // A token does not belong in a ConfigMap; `admin.tokens` names the Secret of `--admin-token-file`.
    "admin-token",
    // The file with all other flags.
    "config",
    // Serves nothing.
    "dry-run",
    // Its variables are another program's; a gateway starts it, and no release.
    "envoy-ratelimit",
    // A pod has no volume that survives it; live overrides of several pods need Redis, which keeps them.
    "live-overrides",
];

/// Each flag's name with its part of `weir serve --help`.
fn flags() -> BTreeMap<String, String> {
    let help = binary::run(&["serve", "--help"]).out;
    let parts = help.split("\n      --").skip(1);
    let flags: BTreeMap<String, String> = parts
        .map(|part| {
            (part.split([' ', '[', '\n']).next().unwrap().to_owned(), part.split("\n\n\n").next().unwrap().to_owned())
        })
        .collect();
    assert!(flags.len() > 70, "{flags:?}");
    flags
}

/// The flags that a release sets in its file and its variables, without those of `flags`.
fn said(values: &Value) -> BTreeSet<String> {
    // A null removes Helm's default.
    let no_flags: Map<_, _> =
        ["workers", "log-format"].map(|flag| (flag.to_owned(), Value::Null)).into_iter().collect();
    let mut values = merged(values, &json!({ "flags": {} }));
    values["flags"] = Value::Object(no_flags);
    // It changes the default of a flag.
    values["istio"] = json!({ "enabled": false });
    let release = render(&values);
    let config = &release.config_map("weir-config")["weir.yaml"];
    let keys = config.lines().filter(|line| !line.starts_with([' ', '-', '#'])).filter_map(|line| line.split_once(':'));
    let variables = release.container()["env"].as_array().unwrap().iter();
    let variables = variables.filter_map(|variable| variable["name"].as_str().unwrap().strip_prefix("WEIR_"));
    let variables = variables.filter(|name| *name != "CONFIG");
    // Those of `weir health` and `weir bucket`.
    let of_clients = ["ADMIN_CA", "ADMIN_SERVER_NAME", "ADMIN_CERT", "ADMIN_KEY"];
    let variables = variables.filter(|name| !of_clients.contains(name));
    keys.map(|(key, _)| key.to_owned()).chain(variables.map(|name| name.to_lowercase().replace('_', "-"))).collect()
}

#[test]
fn each_flag_is_said_by_one_value() {
    let schema = schema();
    let known: BTreeSet<String> = flags().into_keys().collect();
    let redis = json!({ "store": { "type": "redis", "redis": { "url": "redis://redis" } } });
    let by_values: BTreeSet<String> = [everything(), redis].iter().flat_map(said).collect();
    let by_flags: BTreeSet<String> =
        schema["properties"]["flags"]["properties"].as_object().unwrap().keys().cloned().collect();
    let by_nothing: BTreeSet<String> = NOT_BY_VALUES.iter().map(|name| (*name).to_owned()).collect();
    let all: BTreeSet<String> = [&by_values, &by_flags, &by_nothing].into_iter().flatten().cloned().collect();
    let new: Vec<_> = known.difference(&all).collect();
    assert!(
        new.is_empty(),
        "`weir serve` has the flags {new:?}; add each to `flags` in helm/weir/values.schema.json and to the list above \
         `flags:` in helm/weir/values.yaml, or give it a value of its own"
    );
    let gone: Vec<_> = all.difference(&known).collect();
    assert!(gone.is_empty(), "`weir serve` has no flags {gone:?}, and the chart says them");
    let twice: Vec<_> = by_flags.intersection(&by_values).chain(by_nothing.intersection(&by_values)).collect();
    assert!(twice.is_empty(), "{twice:?} are said by two values");
}

/// values.yaml lists each flag once, with the binary's default.
#[test]
fn the_flags_in_the_values_have_their_defaults() {
    let schema = schema();
    let by_flags = schema["properties"]["flags"]["properties"].as_object().unwrap();
    let text = file("values.yaml");
    let listed: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("#   ")?.split_once(": ")).collect();
    let names: BTreeSet<&str> = listed.iter().map(|(name, _)| *name).collect();
    assert!(names.len() == listed.len() && names.iter().eq(by_flags.keys().collect::<BTreeSet<_>>()), "{names:?}");
    let help = flags();
    for (name, shown) in listed {
        let described = &help[name];
        let default = described.lines().find_map(|line| line.trim().strip_prefix("[default: ")?.strip_suffix(']'));
        let placeholder = shown.starts_with('<') || shown == "[]" || shown == "false";
        match default {
            Some(default) => assert_eq!(shown.trim_matches(['[', ']']).replace(", ", ","), default, "{name}"),
            None => assert!(placeholder, "{name} has no default, and is {shown} in values.yaml"),
        }
    }
}

/// The binary accepts what the schema accepts: with all flags it gets as far as the rules file.
#[test]
fn weir_takes_what_the_schema_takes() {
    let schema = schema();
    let by_flags = schema["properties"]["flags"]["properties"].as_object().unwrap();
    let all: Map<_, _> = by_flags.iter().map(|(name, leaf)| (name.clone(), sample(&schema, leaf, None))).collect();
    let values = json!({
        "flags": all,
        "proxy": { "enabled": true, "upstreams": ["echo"] },
        "rules": { "limits": "limits: { A: { burst: none } }" },
    });
    let pod = Pod::new(render(&values), Given::new());
    let Finished { code, err, .. } = finish(&mut pod.command("weir"));
    assert!(code == Some(1) && err.contains("limits.yaml:1:"), "{code:?}: {err}");
}

/// Helm reads numbers as floats and writes large ones as 1e+07.
#[test]
fn large_numbers_stay_whole() {
    let release = render(&json!({ "flags": { "max-keys": 10_000_000, "max-body-bytes": 10_000_000_000_u64 } }));
    let config = &release.config_map("weir-config")["weir.yaml"];
    assert!(
        config.contains("max-keys: \"10000000\"") && config.contains("max-body-bytes: \"10000000000\""),
        "{config}"
    );
}

/// Changed flags start new pods; changed rules do not.
#[test]
fn only_flags_start_new_pods() {
    let cases = [
        json!({}),
        json!({ "rules": { "limits": "limits: { A: { burst: 1 } }", "overrides": "A:10.0.0.1: { burst: 2 }" } }),
        json!({ "flags": { "workers": 3 } }),
    ];
    let chart = Chart::render(&cases);
    let template = |case: usize| &chart.cases[case].as_ref().unwrap().workload()["spec"]["template"];
    assert_eq!(template(0), template(1));
    assert_ne!(template(0), template(2));
}
