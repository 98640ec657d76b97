//! Sends spans to the collector by the SDK's batch processor, which has a bounded queue and a thread of its own.
//!
//! No request waits for either: a span that finds the queue full is dropped and counted, and so are those of a batch that the
//! collector does not take in time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry_http::HttpClient;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter as Export, SpanProcessor,
};
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::settings::Settings;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::throttle::Throttle;

/// How long [`Exporter::finish`] waits for a collector that takes nothing.
const FINISH: Duration = Duration::from_secs(2);

/// Takes spans that have ended.
#[derive(Debug)]
pub(super) struct Exporter {
    processor: BatchSpanProcessor,
    queued: Arc<AtomicUsize>,
    max_queued: usize,
    dropped: IntCounter,
}

impl Exporter {
    /// Starts the thread, which ends with [`Self::finish`]. The error says what is wrong with the settings.
    pub(super) fn start(
        settings: &Settings,
        metrics: &Metrics,
        client: impl HttpClient + 'static,
    ) -> Result<Self, String> {
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(settings.endpoint.to_string())
            .with_timeout(settings.timeout)
            .build()
            .map_err(|error| format!("traces cannot be exported: {error}"))?;
        exporter.set_resource(&settings.resource());
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        let runtime = runtime.map_err(|error: io::Error| format!("traces cannot be exported: {error}"))?;
        let [exported, dropped, failed] = metrics.spans.clone();
        let queued = Arc::new(AtomicUsize::new(0));
        let sender = Sender {
            exporter,
            runtime: Some(runtime),
            timeout: settings.timeout,
            queued: queued.clone(),
            exported,
            failed,
            complaints: Mutex::default(),
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(settings.batches.queued)
            .with_max_export_batch_size(settings.batches.largest)
            .with_scheduled_delay(settings.batches.delay)
            .build();
        let processor = BatchSpanProcessor::new(sender, batches);
        Ok(Self { processor, queued, max_queued: settings.batches.queued, dropped })
    }

    /// Takes a span, or drops it if there is no room. The processor has the same bound, but does not tell what it drops.
    pub(super) fn push(&self, span: SpanData) {
        if self.queued.fetch_add(1, Ordering::Relaxed) >= self.max_queued {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return self.dropped.inc();
        }
        self.processor.on_end(span);
    }

    /// Sends what is left and ends the thread; waits for it, but no longer than a moment if the collector takes nothing.
    pub(super) fn finish(&self) {
        if let Err(OTelSdkError::Timeout(_)) = self.processor.shutdown_with_timeout(FINISH) {
            tracing::warn!("the collector takes no traces: the process ends");
        }
    }
}

/// Sends batches on the processor's thread.
#[derive(Debug)]
struct Sender {
    exporter: SpanExporter,
    /// Present until it is dropped.
    runtime: Option<Runtime>,
    timeout: Duration,
    queued: Arc<AtomicUsize>,
    exported: IntCounter,
    failed: IntCounter,
    complaints: Mutex<Throttle>,
}

impl Export for Sender {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let Some(runtime) = &self.runtime else { return Err(OTelSdkError::AlreadyShutdown) };
        let count = batch.len();
        self.queued.fetch_sub(count, Ordering::Relaxed);
        // The processor's thread does nothing else, and has no runtime.
        let sent = runtime.block_on(async { timeout(self.timeout, self.exporter.export(batch)).await });
        let sent = sent.unwrap_or(Err(OTelSdkError::Timeout(self.timeout)));
        match &sent {
            Ok(()) => self.exported.inc_by(count as u64),
            Err(error) => {
                self.failed.inc_by(count as u64);
                if let Some(suppressed) = self.complaints.lock().pass() {
                    tracing::warn!(spans = count, suppressed, "the collector takes no traces: {error}");
                }
            }
        }
        sent
    }
}

impl Drop for Sender {
    /// A name that is being resolved is not waited for: that can take the resolver half a minute.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
