//! Sends spans to the collector with the SDK's batch processor, which has a bounded queue and its own thread.
//!
//! No request waits for either. Spans are dropped and counted if the queue is full, or if the collector does not accept their
//! batch in time.

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
use crate::telemetry::metrics::{Metrics, SpanResult};
use crate::telemetry::throttle::Throttle;

/// The maximum wait of [`Exporter::finish`] for a collector that does not respond.
const FINISH: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Exporter {
    processor: BatchSpanProcessor,
    queued: Arc<AtomicUsize>,
    max_queued: usize,
    dropped: IntCounter,
}

impl Exporter {
    /// Starts the thread, which [`Self::finish`] ends.
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
            .map_err(|error| format!("cannot export traces: {error}"))?;
        exporter.set_resource(&settings.resource());
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        let runtime = runtime.map_err(|error| format!("cannot export traces: {error}"))?;
        let [exported, dropped, failed] = SpanResult::ALL.map(|result| metrics.spans[result].clone());
        let queued = Arc::new(AtomicUsize::new(0));
        let sender = Sender {
            exporter,
            runtime: Some(runtime),
            timeout: settings.timeout,
            queued: queued.clone(),
            exported,
            failed,
            log: Mutex::default(),
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(settings.max_queued)
            .with_max_export_batch_size(settings.max_batch)
            .with_scheduled_delay(settings.batch_delay)
            .build();
        let processor = BatchSpanProcessor::new(sender, batches);
        Ok(Self { processor, queued, max_queued: settings.max_queued, dropped })
    }

    /// Queues a span, or drops it if the queue is full. The processor has the same bound, but does not count what it drops.
    pub(super) fn push(&self, span: SpanData) {
        if self.queued.fetch_add(1, Ordering::Relaxed) >= self.max_queued {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return self.dropped.inc();
        }
        self.processor.on_end(span);
    }

    /// Sends the remaining spans and ends the thread. Waits at most 2 s.
    pub(super) fn finish(&self) {
        if let Err(OTelSdkError::Timeout(_)) = self.processor.shutdown_with_timeout(FINISH) {
            tracing::warn!("the collector does not respond; the last traces are lost");
        }
    }
}

/// Sends batches on the processor's thread.
#[derive(Debug)]
struct Sender {
    exporter: SpanExporter,
    /// `None` once it is dropped.
    runtime: Option<Runtime>,
    timeout: Duration,
    queued: Arc<AtomicUsize>,
    exported: IntCounter,
    failed: IntCounter,
    log: Mutex<Throttle>,
}

impl Export for Sender {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let Some(runtime) = &self.runtime else { return Err(OTelSdkError::AlreadyShutdown) };
        let count = batch.len();
        self.queued.fetch_sub(count, Ordering::Relaxed);
        // The processor's thread has no runtime and does nothing else.
        let sent = runtime.block_on(async { timeout(self.timeout, self.exporter.export(batch)).await });
        let sent = sent.unwrap_or(Err(OTelSdkError::Timeout(self.timeout)));
        match &sent {
            Ok(()) => self.exported.inc_by(count as u64),
            Err(error) => {
                self.failed.inc_by(count as u64);
                if let Some(suppressed) = self.log.lock().pass() {
                    tracing::warn!(spans = count, suppressed, "cannot export traces: {error}");
                }
            }
        }
        sent
    }
}

impl Drop for Sender {
    /// Does not wait for a DNS lookup, which can take half a minute.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
