//! Where traces go.

use crate::limiter::denials::ShownIds;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// Traces by OpenTelemetry's protocol, of a binary that was built with the feature `otel`.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Traces")]
pub(super) struct TraceArgs {
    /// The collector that spans are sent to, by OTLP over HTTP: `http://127.0.0.1:4318`. OpenTelemetry's own variables,
    /// such as `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_TRACES_SAMPLER`, are read too
    #[arg(long, value_name = "URL", env = "WEIR_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
}

impl TraceArgs {
    /// Starts what exports traces, if they are wanted. The error says what is wrong with a flag or a variable.
    pub(super) fn start(&self, ids: ShownIds, metrics: &Metrics) -> Result<Option<Traces>, String> {
        Traces::start(self.otlp_endpoint.as_deref(), ids, metrics)
    }
}
