//! Each setting of envoyproxy/ratelimit becomes a flag, is logged as without effect, or is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStringExt;

use super::settings::Group;
use super::*;
use crate::config::schema_page::compare_or_write;

/// Returns the flags and the notes for an environment of `NAME=value`, and those that are always there.
#[track_caller]
fn expanded(environment: &[&str]) -> Result<Expanded, String> {
    let pairs: BTreeMap<&str, &str> = environment.iter().map(|pair| pair.split_once('=').unwrap()).collect();
    expand(vec!["/bin/ratelimit".into()], |name| pairs.get(name).map(OsString::from))
}

#[track_caller]
fn added(environment: &[&str]) -> BTreeSet<String> {
    let Expanded { arguments, in_place: InPlace { notes, .. } } = expanded(environment).unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    let arguments: Vec<_> = arguments.into_iter().map(|argument| argument.into_string().unwrap()).collect();
    assert_eq!(arguments[..2], ["/bin/ratelimit", "serve"]);
    assert_eq!(arguments.last().unwrap(), "--envoy-ratelimit");
    arguments[2..arguments.len() - 1].iter().cloned().collect()
}

/// Settings that become flags: an environment, and the flags that it adds to those of an empty one.
const BECOME: &[(&[&str], &[&str])] = &[
    (&["HOST=127.0.0.1", "PORT=18080"], &["--envoy-ratelimit-http=127.0.0.1:18080"]),
    (&["DEBUG_HOST=::1", "DEBUG_PORT=16070"], &["--envoy-ratelimit-debug=[::1]:16070"]),
    (&["GRPC_HOST=localhost", "GRPC_PORT=18081"], &["--grpc=127.0.0.1:18081"]),
    (&["GRPC_UDS=/tmp/ratelimit.sock"], &["--grpc=unix:/tmp/ratelimit.sock"]),
    (&["GRPC_MAX_CONNECTION_AGE=1h"], &["--grpc-max-connection-age=1h"]),
    (&["GRPC_MAX_CONNECTION_AGE_GRACE=5s"], &["--grpc-max-connection-age-grace=5s"]),
    (&["GRPC_MAX_CONCURRENT_STREAMS=16"], &["--grpc-streams=16"]),
    (&["GRPC_MAX_CONCURRENT_STREAMS=0"], &[]),
    (
        &["GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=/c", "GRPC_SERVER_TLS_KEY=/k", "GRPC_CLIENT_TLS_CACERT=/a"],
        &["--grpc-tls-cert=/c", "--grpc-tls-key=/k", "--grpc-tls-client-ca=/a"],
    ),
    (&["GRPC_SERVER_USE_TLS=0", "GRPC_SERVER_TLS_CERT=/c"], &[]),
    (&["LOG_LEVEL=warning"], &["--log=warn"]),
    (&["LOG_LEVEL=INFO", "LOG_FORMAT=JSON"], &["--log=info", "--log-format=json"]),
    (&["LOG_LEVEL=Fatal", "LOG_FORMAT=other"], &["--log=error", "--log-format=text"]),
    (&["CONFIG_TYPE=FILE"], &[]),
    (
        &["RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_APPDIRECTORY=rules"],
        &["--envoy-ratelimit-config=/data/ratelimit/rules"],
    ),
    (&["CONFIG_TYPE=GRPC_XDS_SOTW"], &["--xds-server=http://localhost:18000", "--xds-node-id=default"]),
    (
        &[
            "CONFIG_TYPE=GRPC_XDS_SOTW",
            "CONFIG_GRPC_XDS_SERVER_URL=eg:18001",
            "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
            "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/c",
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/k",
            "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/a",
            "CONFIG_GRPC_XDS_SERVER_TLS_SAN=envoy-gateway",
            "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
        ],
        &[
            "--xds-server=https://eg:18001",
            "--xds-node-id=envoy-ratelimit",
            "--xds-cert=/c",
            "--xds-key=/k",
            "--xds-ca=/a",
            "--xds-server-name=envoy-gateway",
            "--xds-optional",
        ],
    ),
    (
        &[
            "CONFIG_TYPE=GRPC_XDS_SOTW",
            "CONFIG_GRPC_XDS_NODE_METADATA=a=b,,c=d,e,=f,",
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=x-a:1,x-b:2",
            "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=1s",
            "XDS_CLIENT_BACKOFF_MAX_INTERVAL=5s",
            "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=1000",
            "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
            "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true",
        ],
        &[
            "--xds-server=http://localhost:18000",
            "--xds-node-id=default",
            "--xds-node-metadata=a=b",
            "--xds-node-metadata=c=d",
            "--xds-header=x-a: 1",
            "--xds-header=x-b: 2",
            "--xds-backoff=1s",
            "--xds-max-backoff=5s",
            "--xds-max-message=1000",
        ],
    ),
    (&["USE_PROMETHEUS=true", "PROMETHEUS_ADDR=:19001"], &["--metrics=[::]:19001"]),
    (
        &["USE_PROMETHEUS=true", "PROMETHEUS_PATH=/stats"],
        &["--metrics=[::]:9090", "--metrics-path=/stats", "--admin=127.0.0.1:9091"],
    ),
    (&["PORT=9090"], &["--envoy-ratelimit-http=0.0.0.0:9090", "--admin=127.0.0.1:9091"]),
    (
        &["USE_PROMETHEUS=true", "DEBUG_PORT=9091", "GRPC_HOST=::", "GRPC_PORT=9092"],
        &["--metrics=[::]:9090", "--envoy-ratelimit-debug=0.0.0.0:9091", "--grpc=[::]:9092", "--admin=127.0.0.1:9093"],
    ),
    (&["PROMETHEUS_ADDR=:19001"], &[]),
    (&["NEAR_LIMIT_RATIO=0.9"], &["--near-limit=90%"]),
    (&["CACHE_KEY_PREFIX=team-a"], &["--store-prefix=team-a"]),
    (&["LIMIT_RESPONSE_HEADERS_ENABLED=true"], &["--headers=ietf-03"]),
    (
        &[
            "LIMIT_RESPONSE_HEADERS_ENABLED=t",
            "LIMIT_LIMIT_HEADER=X-RateLimit-Limit",
            "LIMIT_REMAINING_HEADER=X-RateLimit-Remaining",
            "LIMIT_RESET_HEADER=X-RateLimit-Reset",
        ],
        &["--headers=x-ratelimit"],
    ),
    (&["REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis:6379"], &["--store=redis://redis:6379"]),
    (&["REDIS_SOCKET_TYPE=tls", "REDIS_URL=redis:6379"], &["--store=rediss://redis:6379"]),
    (&["REDIS_URL=/r.sock", "REDIS_AUTH=a b"], &["--store=unix:///r.sock?pass=a%20b"]),
    (&["REDIS_URL=redis://redis:6379/2", "REDIS_AUTH=user:a@b"], &["--store=redis://user:a%40b@redis:6379/2"]),
    (&["REDIS_URL=redis://:own@redis:6379", "REDIS_AUTH=x"], &["--store=redis://:own@redis:6379"]),
    (
        &[
            "REDIS_SOCKET_TYPE=tcp",
            "REDIS_URL=redis:6379",
            "REDIS_TLS=true",
            "REDIS_TLS_CLIENT_CERT=/c",
            "REDIS_TLS_CLIENT_KEY=/k",
            "REDIS_TLS_CACERT=/a",
        ],
        &["--store=rediss://redis:6379", "--store-cert-file=/c", "--store-key-file=/k", "--store-ca-file=/a"],
    ),
    (&["REDIS_TYPE=cluster", "REDIS_URL=a:1,b:2"], &["--store=redis+cluster://a:1,b:2"]),
    (
        &["REDIS_TYPE=SENTINEL", "REDIS_URL=main,a:1,b:2", "REDIS_AUTH=x", "REDIS_SENTINEL_AUTH=u:y"],
        &["--store=redis+sentinel://:x@a:1,b:2/main?sentinel_user=u&sentinel_password=y"],
    ),
    (
        &["REDIS_TYPE=SENTINEL", "REDIS_URL=main,redis://u:p+q@a:1,redis://u:p+q@b:2/0", "REDIS_AUTH=x"],
        &["--store=redis+sentinel://:x@a:1,b:2/main?sentinel_user=u&sentinel_password=p%2Bq"],
    ),
    (
        &["REDIS_TYPE=SENTINEL", "REDIS_URL=main,redis://u:p@a:1/", "REDIS_SENTINEL_AUTH=y"],
        &["--store=redis+sentinel://a:1/main?sentinel_password=y"],
    ),
    (
        &["REDIS_TYPE=CLUSTER", "REDIS_URL=rediss://u:p@a:1,rediss://u:p@b:2", "REDIS_AUTH=x"],
        &["--store=rediss+cluster://u:p@a:1,b:2"],
    ),
    (&["REDIS_TYPE=CLUSTER", "REDIS_URL=redis://a:1,b:2", "REDIS_AUTH=x"], &["--store=redis+cluster://:x@a:1,b:2"]),
    (&["REDIS_TIMEOUT=1s"], &["--store-timeout=1s"]),
    (&["SHADOW_MODE=true"], &["--shadow=true"]),
    (&["TRACING_ENABLED=true"], &["--otlp-endpoint=http://localhost:4318"]),
    (&["TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318"], &[]),
];

#[test]
fn each_setting_that_is_a_flag_becomes_it() {
    let usual = added(&[]);
    let name_of = |argument: &str| argument.split('=').next().unwrap().to_owned();
    for (environment, expected) in BECOME {
        let replaced: BTreeSet<_> = expected.iter().map(|argument| name_of(argument)).collect();
        // Rules come from files or from a management server.
        let has_server = replaced.contains("--xds-server");
        let left = usual.iter().filter(|argument| {
            let name = name_of(argument);
            !(replaced.contains(&name) || has_server && name == "--envoy-ratelimit-config")
        });
        let all: BTreeSet<_> = left.cloned().chain(expected.iter().map(|argument| (*argument).to_owned())).collect();
        assert_eq!(added(environment), all, "{environment:?}");
    }
    let set: BTreeSet<_> = BECOME.iter().flat_map(|(environment, _)| *environment).map(|pair| name_of(pair)).collect();
    let given: BTreeSet<_> = BECOME.iter().flat_map(|(_, flags)| *flags).map(|flag| name_of(flag)).collect();
    for group in GROUPS {
        let Effect::Flags(flags) = group.effect else { continue };
        for (name, _) in group.settings {
            assert!(set.contains(*name), "{name} has no case");
        }
        for flag in flags.split([' ', ',']).filter(|word| word.starts_with("--")) {
            assert!(given.contains(flag), "{flag} has no case");
        }
    }
}

#[test]
fn without_settings_it_serves_as_that_service_does() {
    let expected = [
        "--admin=127.0.0.1:9090",
        "--envoy-ratelimit-config=/srv/runtime_data/current/config",
        "--envoy-ratelimit-debug=0.0.0.0:6070",
        "--envoy-ratelimit-http=0.0.0.0:8080",
        "--grpc-max-connection-age-grace=1h",
        "--grpc-max-connection-age=24h",
        "--grpc=0.0.0.0:8081",
        "--headers=none",
        "--log=warn",
        "--near-limit=80%",
        "--store-timeout=10s",
        "--store=unix:///var/run/nutcracker/ratelimit.sock",
    ];
    assert!(added(&[]).iter().eq(expected), "{:?}", added(&[]));
}

/// Another value than the default, for each setting without flags.
#[test]
fn each_other_setting_is_told_or_refused() {
    for group in GROUPS {
        for (name, default) in group.settings {
            let other = match *default {
                "true" => "false",
                "false" => "true",
                _ => "other",
            };
            let set = |value: &str| expanded(&[&format!("{name}={value}")]);
            match group.effect {
                Effect::Flags(_) => continue,
                Effect::Always(_) => assert!(set(other).unwrap().in_place.notes.is_empty(), "{name}"),
                Effect::Ignored(why) => {
                    assert_eq!(set(other).unwrap().in_place.notes, [format!("{name} has no effect: {why}")]);
                }
                Effect::Refused(why) => assert_eq!(set(other).unwrap_err(), format!("{name}: {why}")),
            }
            assert!(set(default).unwrap().in_place.notes.is_empty(), "{name}={default} is the default");
        }
    }
    for (pair, is_default) in [
        ("USE_DOG_STATSD=F", true),
        ("REDIS_PIPELINE_WINDOW=0", true),
        ("STATS_FLUSH_INTERVAL=10000ms", true),
        ("TRACING_SAMPLING_RATE=1.0", true),
        ("TRACING_SAMPLING_RATE=0.5", false),
        ("USE_DOG_STATSD=1", false),
        ("ANOTHER_PROGRAMS=1", true),
    ] {
        assert_eq!(expanded(&[pair]).unwrap().in_place.notes.is_empty(), is_default, "{pair}");
    }
}

#[test]
fn mistakes_name_the_setting_and_no_secret() {
    for (environment, expected) in [
        (&["PORT=http"][..], "PORT: expected a port, found `http`"),
        (&["HOST=ratelimit"], "HOST: expected an IP address, found `ratelimit`"),
        (&["REDIS_TLS=maybe"], "REDIS_TLS: expected true or false, found `maybe`"),
        (
            &["GRPC_MAX_CONNECTION_AGE=1 hour"],
            "GRPC_MAX_CONNECTION_AGE: expected a duration such as `10s`, found `1 hour`",
        ),
        (
            &["GRPC_MAX_CONNECTION_AGE_GRACE=0"],
            "GRPC_MAX_CONNECTION_AGE_GRACE: expected a duration longer than 0, found `0`",
        ),
        (&["REDIS_TIMEOUT=0s"], "REDIS_TIMEOUT: expected a duration longer than 0, found `0s`"),
        (
            &["GRPC_SERVER_USE_TLS=true"],
            "GRPC_SERVER_TLS_CERT: it is needed for GRPC_SERVER_USE_TLS\nerror: GRPC_SERVER_TLS_KEY: it is needed for \
             GRPC_SERVER_USE_TLS",
        ),
        (&["LOG_LEVEL=loud"], "LOG_LEVEL: expected panic, fatal, error, warn, info, debug or trace, found `loud`"),
        (&["REDIS_SOCKET_TYPE=udp"], "REDIS_SOCKET_TYPE: expected tcp, tls or unix, found `udp`"),
        (
            &["REDIS_URL=:secret@redis:6379"],
            "REDIS_URL: expected the path of a socket, as REDIS_SOCKET_TYPE is unix; a server needs tcp",
        ),
        (&["CONFIG_TYPE=file"], "CONFIG_TYPE: expected FILE or GRPC_XDS_SOTW, found `file`"),
        (&["REDIS_TYPE=PROXY"], "REDIS_TYPE: expected SINGLE, SENTINEL or CLUSTER, found `PROXY`"),
        (
            &["REDIS_TYPE=SENTINEL", "REDIS_URL=redis://:secret@a"],
            "REDIS_URL: expected `master-name,host:port,host:port` for Sentinels",
        ),
        (
            &["REDIS_TYPE=SENTINEL", "REDIS_URL=redis://:secret@a,redis://:secret@b"],
            "REDIS_URL: expected `master-name,host:port,host:port` for Sentinels",
        ),
        (
            &["REDIS_TYPE=CLUSTER", "REDIS_URL=redis://:secret@a,redis://b"],
            "REDIS_URL: expected the same user and password in each URL of the list",
        ),
        (
            &["REDIS_TYPE=CLUSTER", "REDIS_URL=redis://:secret@a/2"],
            "REDIS_URL: expected no database in the URLs of a list",
        ),
        (&["RUNTIME_WATCH_ROOT=yes"], "RUNTIME_WATCH_ROOT: expected true or false, found `yes`"),
        (&["REDIS_PERSECOND=yes"], "REDIS_PERSECOND: expected true or false, found `yes`"),
        (
            &["REDIS_SOCKET_TYPE=tls", "REDIS_TLS_CLIENT_KEY=/k"],
            "REDIS_TLS_CLIENT_CERT: it is needed for REDIS_TLS_CLIENT_KEY",
        ),
        (
            &["CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/c"],
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY: it is needed for CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
        ),
        (
            &["USE_PROMETHEUS=true", "PROMETHEUS_ADDR=9090"],
            "PROMETHEUS_ADDR: expected `:port` or `address:port`, found `9090`",
        ),
        (&["NEAR_LIMIT_RATIO=80"], "NEAR_LIMIT_RATIO: expected a number from 0.01 to 1, found `80`"),
        (
            &["CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization=Bearer secret"],
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: expected `name:value,name:value`",
        ),
        (
            &["LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_LIMIT_HEADER=Left"],
            "LIMIT_LIMIT_HEADER: expected the names RateLimit-Limit, -Remaining and -Reset, or X-RateLimit-*, for all three \
             headers, found `Left`",
        ),
        (
            &["LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_RESET_HEADER=X-Reset"],
            "LIMIT_RESET_HEADER: expected the names RateLimit-Limit, -Remaining and -Reset, or X-RateLimit-*, for all three \
             headers, found `X-Reset`",
        ),
        (
            &["LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_REMAINING_HEADER=X-RateLimit-Remaining"],
            "LIMIT_REMAINING_HEADER: expected the names RateLimit-Limit, -Remaining and -Reset, or X-RateLimit-*, for all \
             three headers, found `X-RateLimit-Remaining`",
        ),
    ] {
        assert_eq!(expanded(environment).unwrap_err(), expected);
    }
    let not_text = |name: &str| (name == "PORT").then(|| OsString::from_vec(vec![0xff, 0xfe]));
    assert_eq!(expand(vec!["ratelimit".into()], not_text).unwrap_err(), "PORT: expected UTF-8");
    let both = expanded(&["BACKEND_TYPE=memcache", "PORT=x"]).unwrap_err();
    assert!(both.contains("PORT: ") && both.contains("\nerror: BACKEND_TYPE: "), "{both}");
}

#[test]
fn the_directory_of_the_limits_is_its_own_unless_a_flag_names_others() {
    let runtime = |environment: &[&str]| expanded(environment).unwrap().in_place.runtime;
    let of = |path: &str, has_more_beside| Some(RuntimeDirectory { path: path.into(), has_more_beside });
    assert_eq!(runtime(&[]), of("/srv/runtime_data/current/config", true));
    let folder = ["RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=a", "RUNTIME_APPDIRECTORY=b", "RUNTIME_WATCH_ROOT=false"];
    assert_eq!(runtime(&folder), of("/data/a/b", false));
    assert_eq!(runtime(&["RUNTIME_ROOT=/data", "WEIR_ENVOY_RATELIMIT_CONFIG=/other"]), None);
    assert_eq!(runtime(&["CONFIG_TYPE=GRPC_XDS_SOTW"]), None);
    for other in ["WEIR_LIMITS=limits.yaml", "WEIR_XDS_SERVER=http://a:1"] {
        assert_eq!(runtime(&[other]), None, "{other}");
        assert_eq!(runtime(&[other, "RUNTIME_ROOT=/data"]), of("/data/config", true), "{other}");
    }
}

#[test]
fn flags_and_their_variables_come_first() {
    let expanded = |arguments: &[&str], environment: &[(&str, &str)]| {
        let arguments = arguments.iter().map(OsString::from).collect();
        let variable =
            |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        let expanded = expand(arguments, variable).unwrap().arguments;
        expanded.into_iter().map(|argument| argument.into_string().unwrap()).collect::<Vec<_>>()
    };
    let tls =
        [("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "/a"), ("WEIR_STORE", "memory"), ("WEIR_HEADERS", "ietf-11")];
    let arguments = expanded(&["ratelimit", "--grpc", "127.0.0.1:1"], &tls);
    assert!(!arguments.iter().any(|argument| argument.starts_with("--store") || argument.starts_with("--headers")));
    assert_eq!(arguments[arguments.len() - 3..], ["--envoy-ratelimit", "--grpc", "127.0.0.1:1"]);
    let served = expanded(&["weir", "serve", "--envoy-ratelimit"], &[]);
    assert_eq!(served[2..], expanded(&["/a/b/ratelimit", "serve"], &[])[2..]);
    for other in [&["weir", "serve", "--upstream", "echo"][..], &["weir", "check"], &["weir"], &["ratelimits"]] {
        assert_eq!(expanded(other, &[("PORT", "x")]), other);
    }
}

#[test]
fn the_pages_have_each_setting() {
    let mut page = "# Settings of envoyproxy/ratelimit

What [Weir in its place](envoyproxy-ratelimit-in-place.md) does with each of its environment variables. Made from the program's own
table, which has those of mid-2026. Weir passes over a newer one, as it cannot tell it from another program's variable: compare yours with
the table. One that is not set has the default of envoyproxy/ratelimit, unless the table says otherwise.

| setting | in Weir |
|---|---|
"
    .to_owned();
    for Group { effect, settings } in GROUPS {
        let names: Vec<_> = settings.iter().map(|(name, _)| format!("`{name}`")).collect();
        let effect = match effect {
            Effect::Flags(flags) => flags
                .split(' ')
                .map(|word| match (word.strip_suffix(','), word.starts_with("--")) {
                    (Some(flag), true) => format!("`{flag}`,"),
                    (None, true) => format!("`{word}`"),
                    _ => word.to_owned(),
                })
                .collect::<Vec<_>>()
                .join(" "),
            Effect::Always(what) => format!("nothing to set: {what}"),
            Effect::Ignored(why) => format!("no effect, and a line in the log: {why}"),
            Effect::Refused(why) => format!("**the start fails** unless it has its default: {why}"),
        };
        let _ = writeln!(page, "| {} | {effect} |", names.join(", "));
    }
    compare_or_write("migration/envoyproxy-ratelimit-settings.md", None, &page, "the_pages_have_each_setting");
}
