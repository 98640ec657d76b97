//! Flags for traces.

use crate::server::collector::CollectorClient;
use crate::telemetry::denials::IdFormat;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Traces")]
pub(super) struct TraceArgs {
    /// Collector to send spans to, by OTLP over HTTP: `http://127.0.0.1:4318`. The standard `OTEL_*` variables, such as
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_TRACES_SAMPLER`, are also read
    #[arg(long, value_name = "URL", env = "WEIR_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
}

impl TraceArgs {
    /// Checks the flag and the variables, without starting the exporter.
    pub(super) fn check(&self) -> Result<(), String> {
        Traces::check(self.otlp_endpoint.as_deref())
    }

    /// Starts the exporter, if traces are configured. The error names the flag or variable at fault.
    pub(super) fn start(&self, ids: IdFormat, metrics: &Metrics) -> Result<Option<Traces>, String> {
        Traces::start(self.otlp_endpoint.as_deref(), ids, metrics, CollectorClient::new)
    }
}
