//! How traces are exported: what the flag and OpenTelemetry's environment variables say.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler as Root, SamplingDecision, ShouldSample};

use crate::engine::rules::quote::quoted;
use crate::engine::rules::suggest::did_you_mean;
use crate::message::trace_context::TraceContext;

/// Spans that may wait at most, whatever is asked: of 1 KiB each.
const MOST_QUEUED: usize = 1_000_000;

const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

/// How traces are exported.
#[derive(Debug)]
pub(super) struct Settings {
    /// The whole URL.
    pub(super) endpoint: Uri,
    /// The authorities of the collector's certificate in PEM; the public ones unless given.
    pub(super) certificate: Option<PathBuf>,
    /// How long an export may take, with all that is tried again.
    pub(super) timeout: Duration,
    pub(super) sampler: Sampler,
    pub(super) batches: Batches,
    /// Whether somebody has said what the service is called.
    is_named: bool,
    /// Whether spans are wanted compressed, which the specification lets us pass over.
    pub(super) wants_compression: bool,
}

/// How spans are gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batches {
    /// Spans that wait; those beyond are dropped.
    pub(super) queued: usize,
    /// Spans that are sent at once.
    pub(super) largest: usize,
    /// How long the first of them waits for others.
    pub(super) delay: Duration,
}

/// Which requests are traced.
#[derive(Debug)]
pub(super) struct Sampler {
    /// Decides on those that belong to no trace yet.
    root: Root,
    /// Whether those of a trace go by what it says.
    by_parent: bool,
}

impl Sampler {
    /// Whether a request of this trace is traced.
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
                Err(format!("OTEL_TRACES_SAMPLER_ARG: {argument} is no share; write a number from 0 to 1, as in 0.01"))
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
                return Err(format!("OTEL_TRACES_SAMPLER: {} is no sampler: {help}", quoted(other)));
            }
        };
        Ok(Self { root, by_parent })
    }
}

impl Settings {
    /// Reads them; `None` if nothing says where spans should go, or that they should not.
    pub(super) fn read(flag: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let is_disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        match variable("OTEL_TRACES_EXPORTER").as_deref() {
            _ if is_disabled => return Ok(None),
            Some("none") => return Ok(None),
            None | Some("otlp") => {}
            Some(other) => {
                return Err(format!("OTEL_TRACES_EXPORTER: {} is not known; write `otlp` or `none`", quoted(other)));
            }
        }
        // Each may be given for traces alone, which beats what is given for all.
        let of_traces = |name: &str| {
            let own = format!("OTEL_EXPORTER_OTLP_TRACES_{name}");
            let common = format!("OTEL_EXPORTER_OTLP_{name}");
            variable(&own).map(|value| (own, value)).or_else(|| variable(&common).map(|value| (common, value)))
        };
        let (origin, endpoint) = match (flag, of_traces("ENDPOINT")) {
            (Some(flag), _) => ("--otlp-endpoint".to_owned(), below(flag)),
            (None, Some((origin, value))) if origin.contains("TRACES") => (origin, value),
            (None, Some((origin, value))) => (origin, below(&value)),
            (None, None) => return Ok(None),
        };
        let endpoint =
            url(&endpoint).map_err(|reason| format!("{origin}: {} is no collector: {reason}", quoted(&endpoint)))?;
        if let Some((origin, value)) = of_traces("PROTOCOL")
            && value != "http/protobuf"
        {
            return Err(format!(
                "{origin}: {} is not spoken; write `http/protobuf`, as a rule on port 4318",
                quoted(&value)
            ));
        }
        let sampler = variable("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_always_on".to_owned());
        let (timeout_origin, timeout) =
            of_traces("TIMEOUT").unwrap_or(("OTEL_EXPORTER_OTLP_TIMEOUT".into(), "10000".into()));
        let queued = number("OTEL_BSP_MAX_QUEUE_SIZE", variable("OTEL_BSP_MAX_QUEUE_SIZE"), 2_048)?.min(MOST_QUEUED);
        let largest = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", variable("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"), 512)?;
        let delay = number("OTEL_BSP_SCHEDULE_DELAY", variable("OTEL_BSP_SCHEDULE_DELAY"), 5_000)?;
        let names =
            |attributes: String| attributes.split(',').any(|pair| pair.trim_start().starts_with("service.name="));
        Ok(Some(Self {
            endpoint,
            certificate: of_traces("CERTIFICATE").map(|(_, file)| file.into()),
            wants_compression: of_traces("COMPRESSION").is_some_and(|(_, value)| value != "none"),
            timeout: Duration::from_millis(number(&timeout_origin, Some(timeout), 10_000)?),
            sampler: Sampler::parse(&sampler, variable("OTEL_TRACES_SAMPLER_ARG").as_deref())?,
            batches: Batches { queued, largest: largest.min(queued), delay: Duration::from_millis(delay) },
            is_named: variable("OTEL_SERVICE_NAME").is_some()
                || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(names),
        }))
    }

    /// What all spans are of.
    pub(super) fn resource(&self) -> Resource {
        let resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if self.is_named { resource.build() } else { resource.with_service_name("weir").build() }
    }
}

/// Where a collector takes traces (OTLP specification 1.9, "OTLP/HTTP Request").
fn below(endpoint: &str) -> String {
    format!("{}/v1/traces", endpoint.trim_end_matches('/'))
}

fn url(endpoint: &str) -> Result<Uri, String> {
    let right = "write `http://127.0.0.1:4318`";
    let url: Uri = endpoint.parse().map_err(|error| format!("{error}; {right}"))?;
    match (url.scheme_str(), url.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(url),
        _ => Err(right.to_owned()),
    }
}

/// A number above 0.
fn number<N: FromStr + PartialOrd + From<u8>>(name: &str, value: Option<String>, usual: N) -> Result<N, String> {
    let Some(value) = value else { return Ok(usual) };
    match value.parse() {
        Ok(number) if number > N::from(0) => Ok(number),
        _ => Err(format!("{name}: {} is no whole number above 0", quoted(&value))),
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
            (Some("a:4318"), ("", ""), "--otlp-endpoint: `a:4318/v1/traces` is no collector"),
            (Some("ftp://a"), ("", ""), "write `http://127.0.0.1:4318`"),
            (None, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "x y"), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: `x y`"),
            (Some("http://a"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), "`grpc` is not spoken; write `http/protobuf`"),
            (Some("http://a"), ("OTEL_TRACES_EXPORTER", "zipkin"), "write `otlp` or `none`"),
            (Some("http://a"), ("OTEL_TRACES_SAMPLER", "alway_on"), "did you mean `always_on`?"),
            (Some("http://a"), ("OTEL_BSP_MAX_QUEUE_SIZE", "0"), "OTEL_BSP_MAX_QUEUE_SIZE: `0` is no whole number"),
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
