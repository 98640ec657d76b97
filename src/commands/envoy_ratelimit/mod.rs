//! `weir serve` in the place of envoyproxy/ratelimit: its environment becomes flags.
//!
//! A typed flag or a `WEIR_*` variable overrides them, as it overrides the file of `--config`.

use std::ffi::OsString;
use std::path::Path;

use self::environment::Environment;
use self::settings::{Effect, GROUPS};
use super::values::typed_flag;
use crate::config::RuntimeDirectory;

mod environment;
mod redis;
mod settings;
#[cfg(test)]
mod tests;

/// The name of envoyproxy/ratelimit's program.
const PROGRAM: &str = "ratelimit";

/// A command line, and what of the environment it leaves out.
#[derive(Debug)]
pub(super) struct Expanded {
    pub(super) arguments: Vec<OsString>,
    pub(super) in_place: InPlace,
}

/// The settings in the environment for which there are no flags.
#[derive(Debug, Default)]
pub struct InPlace {
    /// A line for each setting that has no effect.
    pub(super) notes: Vec<String>,
    /// The directory of the limits, if they come from files.
    pub(super) runtime: Option<RuntimeDirectory>,
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`
    pub(super) needs_domain: bool,
}

/// Adds the flags that the environment of envoyproxy/ratelimit stands for, if the program was started under that name or with
/// `--envoy-ratelimit`. The error has a line per mistake.
pub(super) fn expand(
    mut arguments: Vec<OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Expanded, String> {
    let program = arguments.first().and_then(|program| Path::new(program).file_name());
    if program.is_some_and(|name| name == PROGRAM) {
        if arguments.get(1).is_none_or(|command| command != "serve") {
            arguments.insert(1, "serve".into());
        }
        arguments.insert(2, "--envoy-ratelimit".into());
    }
    let given: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    if given.get(1) != Some(&"serve") || !given.contains(&"--envoy-ratelimit") {
        return Ok(Expanded { arguments, in_place: InPlace::default() });
    }
    let mut environment = Environment::new(&variable);
    let flags = flags(&mut environment);
    let notes = remaining(&mut environment);
    let is_set = |flag: &str| {
        let name = format!("WEIR_{}", flag.to_ascii_uppercase().replace('-', "_"));
        variable(&name).is_some()
    };
    let is_given = |flag: &str| typed_flag(&given, flag).is_some() || is_set(flag);
    // Certificates for a Redis of REDIS_URL are of no use to another store.
    let keeps_store = !is_given("store");
    // Weir's own rules alone, unless the environment says where there are more.
    let names_files =
        ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"].map(|name| environment.given(name));
    let keeps_files =
        names_files.iter().any(Option::is_some) || !["limits", "xds-server"].iter().any(|flag| is_given(flag));
    let is_kept = |flag: &str| {
        !is_given(flag)
            && (keeps_store || !flag.starts_with("store-"))
            && (keeps_files || flag != "envoy-ratelimit-config")
    };
    let kept: Vec<_> = flags.into_iter().filter(|(flag, _)| is_kept(flag)).collect();
    let has_more_beside = environment.is_true("RUNTIME_WATCH_ROOT");
    let runtime = kept.iter().find(|(flag, _)| *flag == "envoy-ratelimit-config");
    let runtime = runtime.map(|(_, path)| RuntimeDirectory { path: path.into(), has_more_beside });
    let needs_domain = environment.is_true("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED");
    if !environment.mistakes.is_empty() {
        return Err(environment.mistakes.join("\nerror: "));
    }
    let added: Vec<OsString> = kept.iter().map(|(flag, value)| argument(flag, value)).collect();
    arguments.splice(2..2, added);
    Ok(Expanded { arguments, in_place: InPlace { notes, runtime, needs_domain } })
}

fn argument(flag: &str, value: &str) -> OsString {
    let is_switch = flag == "xds-optional";
    OsString::from(if is_switch { format!("--{flag}") } else { format!("--{flag}={value}") })
}

/// Returns the flags and their values.
fn flags(environment: &mut Environment<'_>) -> Vec<(&'static str, String)> {
    let mut flags = Vec::new();
    let mut set = |flag, value: Option<String>| flags.extend(value.map(|value| (flag, value)));
    set("envoy-ratelimit-http", environment.address("HOST", "PORT"));
    set("envoy-ratelimit-debug", environment.address("DEBUG_HOST", "DEBUG_PORT"));
    match environment.given("GRPC_UDS") {
        Some(path) => set("grpc", Some(format!("unix:{path}"))),
        None => set("grpc", environment.address("GRPC_HOST", "GRPC_PORT")),
    }
    set("grpc-max-connection-age", Some(environment.duration("GRPC_MAX_CONNECTION_AGE")));
    set("grpc-max-connection-age-grace", Some(environment.timeout("GRPC_MAX_CONNECTION_AGE_GRACE")));
    set("grpc-streams", environment.given("GRPC_MAX_CONCURRENT_STREAMS").filter(|streams| streams != "0"));
    if environment.is_true("GRPC_SERVER_USE_TLS") {
        set("grpc-tls-cert", environment.needed("GRPC_SERVER_TLS_CERT", "GRPC_SERVER_USE_TLS"));
        set("grpc-tls-key", environment.needed("GRPC_SERVER_TLS_KEY", "GRPC_SERVER_USE_TLS"));
        set("grpc-tls-client-ca", environment.given("GRPC_CLIENT_TLS_CACERT"));
    }
    set("log", log_level(environment));
    let format = |format: String| if format.eq_ignore_ascii_case("json") { "json" } else { "text" };
    set("log-format", environment.given("LOG_FORMAT").map(|given| format(given).to_owned()));
    set("store-prefix", environment.given("CACHE_KEY_PREFIX"));
    set("store-timeout", Some(environment.timeout("REDIS_TIMEOUT")));
    set("near-limit", near_limit(environment));
    set("headers", Some(headers(environment).to_owned()));
    set("shadow", environment.is_true("SHADOW_MODE").then(|| "true".to_owned()));
    if environment.is_true("USE_PROMETHEUS") {
        set("metrics", environment.listen("PROMETHEUS_ADDR"));
        set("metrics-path", environment.given("PROMETHEUS_PATH"));
    }
    let has_endpoint = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
        .iter()
        .any(|name| environment.given(name).is_some());
    if environment.is_true("TRACING_ENABLED") && !has_endpoint {
        set("otlp-endpoint", Some("http://localhost:4318".to_owned()));
    }
    // Not on the address of a mounted configuration: this process' other ports are open to everybody.
    let is_free = |port: &u16| !flags.iter().any(|(_, value)| value.ends_with(&format!(":{port}")));
    flags.extend((9090..=9094).find(is_free).map(|port| ("admin", format!("127.0.0.1:{port}"))));
    rules(environment, &mut flags);
    redis::flags(environment, &mut flags);
    flags
}

/// Adds the flags of where the limits come from.
fn rules(environment: &mut Environment<'_>, flags: &mut Vec<(&'static str, String)>) {
    let mut set = |flag, value: Option<String>| flags.extend(value.map(|value| (flag, value)));
    match environment.text("CONFIG_TYPE").as_str() {
        "FILE" => {
            let parts = ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"];
            let parts = parts.map(|name| environment.text(name));
            let folder: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
            return set("envoy-ratelimit-config", Some(folder.join("/")));
        }
        "GRPC_XDS_SOTW" => {}
        _ => return environment.wrong("CONFIG_TYPE", "expected FILE or GRPC_XDS_SOTW"),
    }
    let has_tls = environment.is_true("CONFIG_GRPC_XDS_SERVER_USE_TLS");
    let scheme = if has_tls { "https" } else { "http" };
    set("xds-server", Some(format!("{scheme}://{}", environment.text("CONFIG_GRPC_XDS_SERVER_URL"))));
    set("xds-node-id", Some(environment.text("CONFIG_GRPC_XDS_NODE_ID")));
    let metadata = environment.given("CONFIG_GRPC_XDS_NODE_METADATA").unwrap_or_default();
    // As there, what is no pair is left out.
    for pair in metadata.split(',').filter(|pair| pair.find('=').is_some_and(|place| place > 0)) {
        set("xds-node-metadata", Some(pair.to_owned()));
    }
    let headers = environment.given("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS").unwrap_or_default();
    for header in headers.split(',').filter(|header| !header.is_empty()) {
        if let Some((name, value)) = header.split_once(':') {
            set("xds-header", Some(format!("{name}: {value}")));
        } else {
            // It may be a secret, so it is not shown.
            let why = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: expected `name:value,name:value`";
            environment.mistakes.push(why.to_owned());
        }
    }
    if has_tls {
        let [cert, key] = environment.both(["CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"]);
        set("xds-cert", cert);
        set("xds-key", key);
        set("xds-ca", environment.given("CONFIG_GRPC_XDS_SERVER_TLS_CACERT"));
        set("xds-server-name", environment.given("CONFIG_GRPC_XDS_SERVER_TLS_SAN"));
    }
    for (flag, name) in
        [("xds-backoff", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"), ("xds-max-backoff", "XDS_CLIENT_BACKOFF_MAX_INTERVAL")]
    {
        set(flag, environment.given(name).map(|_| environment.timeout(name)));
    }
    set("xds-max-message", environment.given("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"));
    let waits = environment.is_true("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED");
    if environment.is_true("FORCE_START_WITHOUT_INITIAL_CONFIG") && !waits {
        set("xds-optional", Some(String::new()));
    }
}

fn log_level(environment: &mut Environment<'_>) -> Option<String> {
    let level = environment.text("LOG_LEVEL").to_ascii_lowercase();
    match level.as_str() {
        "panic" | "fatal" => Some("error".to_owned()),
        "warning" => Some("warn".to_owned()),
        "error" | "warn" | "info" | "debug" | "trace" => Some(level),
        _ => {
            environment.wrong("LOG_LEVEL", "expected panic, fatal, error, warn, info, debug or trace");
            None
        }
    }
}

/// The generation of rate limit headers.
fn headers(environment: &mut Environment<'_>) -> &'static str {
    if !environment.is_true("LIMIT_RESPONSE_HEADERS_ENABLED") {
        return "none";
    }
    let names = ["LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"];
    let given = names.map(|name| environment.text(name).to_ascii_lowercase());
    let is_of = |prefix: &str| {
        given.iter().zip(["limit", "remaining", "reset"]).all(|(name, part)| *name == format!("{prefix}-{part}"))
    };
    if is_of("x-ratelimit") {
        return "x-ratelimit";
    }
    if !is_of("ratelimit") {
        let why = "expected the names RateLimit-Limit, -Remaining and -Reset, or X-RateLimit-*, for all three headers";
        let is_odd =
            |name: &str| !["ratelimit", "x-ratelimit"].iter().any(|prefix| name.starts_with(&format!("{prefix}-")));
        let odd = names.iter().zip(&given).find(|(_, given)| is_odd(given)).map(|(name, _)| *name);
        let changed = names.into_iter().find(|name| environment.differs(name));
        environment.wrong(odd.or(changed).unwrap_or(names[0]), why);
    }
    "ietf-03"
}

/// The share of `weir_near_limit_total`.
fn near_limit(environment: &mut Environment<'_>) -> Option<String> {
    let ratio = environment.text("NEAR_LIMIT_RATIO");
    match ratio.parse::<f64>() {
        Ok(ratio) if (0.01..=1.0).contains(&ratio) => Some(format!("{:.0}%", ratio * 100.0)),
        _ => {
            environment.wrong("NEAR_LIMIT_RATIO", "expected a number from 0.01 to 1");
            None
        }
    }
}

/// Returns a line for each setting that has no effect. Adds those that Weir cannot serve with to the mistakes.
fn remaining(environment: &mut Environment<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    for group in GROUPS {
        for (name, _) in group.settings {
            match group.effect {
                _ if !environment.is_valid(name) || !environment.differs(name) => {}
                Effect::Ignored(why) => notes.push(format!("{name} has no effect: {why}")),
                Effect::Refused(why) => environment.mistakes.push(format!("{name}: {why}")),
                Effect::Flags(_) | Effect::Always(_) => {}
            }
        }
    }
    notes
}
