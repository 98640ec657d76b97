//! The settings of traces: a flag, and OpenTelemetry's environment variables.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler as Root, SamplingDecision, ShouldSample};

use crate::engine::text::quote::quoted;
use crate::engine::text::suggest::did_you_mean;
use crate::message::trace_context::TraceContext;

/// The maximum of `OTEL_BSP_MAX_QUEUE_SIZE`. A span takes 1 KiB.
const MAX_QUEUED: usize = 1_000_000;

const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

#[derive(Debug)]
pub(super) struct Settings {
    pub(super) endpoint: Uri,
    /// Authorities for the collector's certificate in PEM; defaults to the public ones.
    pub(super) certificate: Option<PathBuf>,
    /// For an export with all its retries.
    pub(super) timeout: Duration,
    pub(super) sampler: Sampler,
    /// Spans beyond these are dropped.
    pub(super) max_queued: usize,
    pub(super) max_batch: usize,
    /// The maximum wait of a span for others.
    pub(super) batch_delay: Duration,
    /// True if a variable names the service.
    is_named: bool,
    /// Compression was asked for, which the specification makes optional.
    pub(super) wants_compression: bool,
}

/// Which requests are traced.
#[derive(Debug)]
pub(super) struct Sampler {
    /// For requests without a trace.
    root: Root,
    /// True if a request's trace context decides, if it has one.
    by_parent: bool,
}

impl Sampler {
    pub(super) fn samples(&self, parent: Option<&TraceContext>, trace: TraceId) -> bool {
        match parent {
            Some(parent) if self.by_parent => parent.is_sampled(),
            _ => {
                let result = self.root.should_sample(None, trace, "", &SpanKind::Server, &[], &[]);
                result.decision == SamplingDecision::RecordAndSample
            }
        }
    }

    fn parse(name: &str, argument: Option<&str>) -> Result<Self, String> {
        let ratio = || match argument.unwrap_or("1").parse() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Root::TraceIdRatioBased(ratio)),
            _ => {
                let argument = quoted(argument.unwrap_or_default());
                Err(format!("OTEL_TRACES_SAMPLER_ARG: {argument} is not a number from 0 to 1, such as 0.01"))
            }
        };
        let (root, by_parent) = match name {
            "always_on" => (Root::AlwaysOn, false),
            "always_off" => (Root::AlwaysOff, false),
            "traceidratio" => (ratio()?, false),
            "parentbased_always_on" => (Root::AlwaysOn, true),
            "parentbased_always_off" => (Root::AlwaysOff, true),
            "parentbased_traceidratio" => (ratio()?, true),
            other => {
                let help = did_you_mean(other, SAMPLERS);
                return Err(format!("OTEL_TRACES_SAMPLER: unknown sampler {}: {help}", quoted(other)));
            }
        };
        Ok(Self { root, by_parent })
    }
}

impl Settings {
    /// Returns `None` if there is no endpoint, or if a variable disables traces.
    pub(super) fn read(flag: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let is_disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        match variable("OTEL_TRACES_EXPORTER").as_deref() {
            Some("none") => return Ok(None),
            _ if is_disabled => return Ok(None),
            None | Some("otlp") => {}
            Some(other) => {
                return Err(format!(
                    "OTEL_TRACES_EXPORTER: unknown exporter {}; write `otlp` or `none`",
                    quoted(other)
                ));
            }
        }
        // The variable for traces takes precedence over the one for all signals.
        let of_traces = |name: &str| {
            let own = format!("OTEL_EXPORTER_OTLP_TRACES_{name}");
            let common = format!("OTEL_EXPORTER_OTLP_{name}");
            variable(&own).map(|value| (own, value)).or_else(|| variable(&common).map(|value| (common, value)))
        };
        let (origin, endpoint) = match (flag, of_traces("ENDPOINT")) {
            (Some(flag), _) => ("--otlp-endpoint".to_owned(), traces_url(flag)),
            (None, Some((origin, value))) if origin.contains("TRACES") => (origin, value),
            (None, Some((origin, value))) => (origin, traces_url(&value)),
            (None, None) => return Ok(None),
        };
        let endpoint =
            url(&endpoint).map_err(|reason| format!("{origin}: invalid URL {}: {reason}", quoted(&endpoint)))?;
        if let Some((origin, value)) = of_traces("PROTOCOL")
            && value != "http/protobuf"
        {
            let value = quoted(&value);
            return Err(format!("{origin}: unsupported protocol {value}; write `http/protobuf`, usually on port 4318"));
        }
        let sampler = variable("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_always_on".to_owned());
        let (timeout_origin, timeout) =
            of_traces("TIMEOUT").unwrap_or(("OTEL_EXPORTER_OTLP_TIMEOUT".into(), "10000".into()));
        let max_queued = number("OTEL_BSP_MAX_QUEUE_SIZE", variable("OTEL_BSP_MAX_QUEUE_SIZE"), 2_048)?.min(MAX_QUEUED);
        let max_batch = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", variable("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"), 512)?;
        let delay = number("OTEL_BSP_SCHEDULE_DELAY", variable("OTEL_BSP_SCHEDULE_DELAY"), 5_000)?;
        let names =
            |attributes: String| attributes.split(',').any(|pair| pair.trim_start().starts_with("service.name="));
        Ok(Some(Self {
            endpoint,
            certificate: of_traces("CERTIFICATE").map(|(_, file)| file.into()),
            wants_compression: of_traces("COMPRESSION").is_some_and(|(_, value)| value != "none"),
            timeout: Duration::from_millis(number(&timeout_origin, Some(timeout), 10_000)?),
            sampler: Sampler::parse(&sampler, variable("OTEL_TRACES_SAMPLER_ARG").as_deref())?,
            max_queued,
            max_batch: max_batch.min(max_queued),
            batch_delay: Duration::from_millis(delay),
            is_named: variable("OTEL_SERVICE_NAME").is_some()
                || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(names),
        }))
    }

    /// Returns the attributes of all spans.
    pub(super) fn resource(&self) -> Resource {
        let resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if self.is_named { resource.build() } else { resource.with_service_name("weir").build() }
    }
}

/// Returns the URL for traces (OTLP specification 1.9, "OTLP/HTTP Request").
fn traces_url(endpoint: &str) -> String {
    format!("{}/v1/traces", endpoint.trim_end_matches('/'))
}

fn url(endpoint: &str) -> Result<Uri, String> {
    let example = "write `http://127.0.0.1:4318`";
    let url: Uri = endpoint.parse().map_err(|error| format!("{error}; {example}"))?;
    match (url.scheme_str(), url.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(url),
        _ => Err(example.to_owned()),
    }
}

/// Parses a number above 0.
fn number<N: FromStr + PartialOrd + From<u8>>(name: &str, value: Option<String>, default: N) -> Result<N, String> {
    let Some(value) = value else { return Ok(default) };
    match value.parse() {
        Ok(number) if number > N::from(0) => Ok(number),
        _ => Err(format!("{name}: {} must be a positive integer", quoted(&value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flag: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        Settings::read(flag, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn an_endpoint_is_what_the_flag_or_a_variable_says() {
        for (flag, variables, expected) in [
            (None, &[][..], None),
            (Some("http://a:4318"), &[], Some("http://a:4318/v1/traces")),
            (Some("https://a/otlp/"), &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b")], Some("https://a/otlp/v1/traces")),
            (None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:1")], Some("http://b:1/v1/traces")),
            (
                None,
                &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b"), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/x")],
                Some("http://c/x"),
            ),
            (Some("http://a"), &[("OTEL_SDK_DISABLED", "true")], None),
            (Some("http://a"), &[("OTEL_TRACES_EXPORTER", "none")], None),
        ] {
            let found = read(flag, variables).unwrap().map(|settings| settings.endpoint.to_string());
            assert_eq!(found.as_deref(), expected, "{flag:?} {variables:?}");
        }
    }

    #[test]
    fn what_is_wrong_says_where_and_what_would_be_right() {
        for (flag, variable, part) in [
            (Some("a:4318"), ("", ""), "--otlp-endpoint: invalid URL `a:4318/v1/traces`"),
            (Some("ftp://a"), ("", ""), "write `http://127.0.0.1:4318`"),
            (
                None,
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "x y"),
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: invalid URL `x y`",
            ),
            (
                Some("http://a"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                "unsupported protocol `grpc`; write `http/protobuf`",
            ),
            (Some("http://a"), ("OTEL_TRACES_EXPORTER", "zipkin"), "write `otlp` or `none`"),
            (Some("http://a"), ("OTEL_TRACES_SAMPLER", "alway_on"), "did you mean `always_on`?"),
            (
                Some("http://a"),
                ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
                "OTEL_BSP_MAX_QUEUE_SIZE: `0` must be a positive integer",
            ),
            (Some("http://a"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"), "OTEL_EXPORTER_OTLP_TIMEOUT: `10s`"),
        ] {
            let error = read(flag, &[variable]).err().unwrap_or_default();
            assert!(error.contains(part), "{variable:?}: {error}");
        }
        let ratio = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "1.5")];
        assert!(read(Some("http://a"), &ratio).unwrap_err().contains("a number from 0 to 1"));
    }

    #[test]
    fn a_sampler_goes_by_the_parent_or_by_its_share() {
        let parent = |flags| TraceContext { trace_id: 1, span_id: 1, flags };
        for (name, argument, expected) in [
            ("always_on", None, [true, true, true]),
            ("always_off", None, [false, false, false]),
            ("parentbased_always_on", None, [true, false, true]),
            ("parentbased_always_off", None, [false, false, true]),
            ("traceidratio", Some("0"), [false, false, false]),
            ("parentbased_traceidratio", Some("0"), [false, false, true]),
            ("parentbased_traceidratio", None, [true, false, true]),
        ] {
            let sampler = Sampler::parse(name, argument).unwrap();
            let found = [None, Some(parent(0)), Some(parent(TraceContext::SAMPLED))]
                .map(|parent| sampler.samples(parent.as_ref(), TraceId::from(1)));
            assert_eq!(found, expected, "{name}: without a parent, and with one that is not sampled and one that is");
        }
    }
}
