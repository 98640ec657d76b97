//! The thread that sends spans to the collector, and the queue before it.
//!
//! No request waits for either: a span that finds the queue full is dropped and counted, and so are those of a batch that the
//! collector does not take in time.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use parking_lot::{Condvar, Mutex};
use prometheus::IntCounter;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::settings::{Batches, Settings};
use crate::http::log::Throttle;
use crate::http::transport::{Connector, ConnectorOptions};
use crate::telemetry::metrics::{Metrics, SpanResult};

/// How long [`Exporter::finish`] waits for a collector that takes nothing.
const FINISH: Duration = Duration::from_secs(2);

/// What becomes of spans that have ended.
#[derive(Debug)]
pub(super) struct Exporter {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Spans between the workers and the thread.
#[derive(Debug)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    batches: Batches,
    dropped: IntCounter,
    finishing: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    spans: VecDeque<SpanData>,
    /// Until when what is left may be sent, once there will be no more.
    finish: Option<Instant>,
    /// The thread sleeps until there is a span.
    is_idle: bool,
}

impl Exporter {
    /// Starts the thread, which ends with [`Self::finish`]. The error says what is wrong with the settings.
    pub(super) fn start(settings: &Settings, metrics: &Metrics) -> Result<Self, String> {
        let ca = settings.certificate.clone();
        let (connector, _) =
            Connector::load(&ConnectorOptions { ca, ..ConnectorOptions::default() }).map_err(|error| {
                format!("OTEL_EXPORTER_OTLP_CERTIFICATE: {}", error.to_string().replace("--upstream-ca ", ""))
            })?;
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client { connector })
            .with_endpoint(settings.endpoint.to_string())
            .with_timeout(settings.timeout)
            .build()
            .map_err(|error| format!("traces cannot be exported: {error}"))?;
        exporter.set_resource(&settings.resource());
        let (batches, finishing) = (settings.batches, CancellationToken::new());
        let [exported, dropped, failed] =
            [SpanResult::Exported, SpanResult::QueueFull, SpanResult::ExportFailed].map(|result| metrics.spans(result));
        let (state, changed) = (Mutex::default(), Condvar::new());
        let queue = Arc::new(Queue { state, changed, batches, dropped, finishing });
        let thread = Thread {
            queue: queue.clone(),
            exporter,
            timeout: settings.timeout,
            exported,
            failed,
            complaints: Throttle::default(),
        };
        let started = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .and_then(|runtime| thread::Builder::new().name("traces".into()).spawn(move || thread.run(runtime)));
        let thread = started.map_err(|error: io::Error| format!("no thread for traces: {error}"))?;
        Ok(Self { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Takes a span, or drops it if there is no room. The lock is held to move it.
    pub(super) fn push(&self, span: SpanData) {
        let Queue { state, changed, batches, dropped, .. } = &*self.queue;
        let mut state = state.lock();
        if state.finish.is_some() || state.spans.len() >= batches.queued {
            drop(state);
            return dropped.inc();
        }
        state.spans.push_back(span);
        if std::mem::take(&mut state.is_idle) || state.spans.len() == batches.largest {
            changed.notify_all();
        }
    }

    /// Sends what is left and ends the thread; waits for it, but no longer than a moment if the collector takes nothing.
    pub(super) fn finish(&self) {
        self.queue.state.lock().finish.get_or_insert_with(|| Instant::now() + FINISH);
        self.queue.finishing.cancel();
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of traces panicked");
        }
    }
}

impl Queue {
    /// Waits for a span, then a moment for more, and takes as many as are sent at once; whether they are the last.
    fn take(&self) -> (Vec<SpanData>, bool) {
        let mut state = self.state.lock();
        while state.spans.is_empty() && state.finish.is_none() {
            state.is_idle = true;
            self.changed.wait(&mut state);
        }
        state.is_idle = false;
        let end = Instant::now() + self.batches.delay;
        while state.spans.len() < self.batches.largest && state.finish.is_none() {
            if self.changed.wait_until(&mut state, end).timed_out() {
                break;
            }
        }
        let count = state.spans.len().min(self.batches.largest);
        let batch = state.spans.drain(..count).collect();
        (batch, state.finish.is_some() && state.spans.is_empty())
    }

    /// Comes back when nothing may be sent any more.
    async fn is_over(&self) {
        self.finishing.cancelled().await;
        let end = self.state.lock().finish.unwrap_or_else(Instant::now);
        sleep_until(end.into()).await;
    }
}

struct Thread {
    queue: Arc<Queue>,
    exporter: SpanExporter,
    timeout: Duration,
    exported: IntCounter,
    failed: IntCounter,
    complaints: Throttle,
}

impl Thread {
    fn run(self, runtime: Runtime) {
        loop {
            let (batch, is_last) = self.queue.take();
            let count = batch.len() as u64;
            let sent = if batch.is_empty() { Ok(()) } else { runtime.block_on(self.send(batch)) };
            match sent {
                Ok(()) => self.exported.inc_by(count),
                Err(error) => {
                    self.failed.inc_by(count);
                    if let Some(suppressed) = self.complaints.pass() {
                        tracing::warn!(spans = count, suppressed, "the collector takes no traces: {error}");
                    }
                }
            }
            if is_last {
                break;
            }
        }
        // A name that is being resolved is not waited for: that can take the resolver half a minute.
        runtime.shutdown_background();
    }

    async fn send(&self, batch: Vec<SpanData>) -> Result<(), String> {
        tokio::select! {
            sent = self.exporter.export(batch) => sent.map_err(|error| error.to_string()),
            () = sleep(self.timeout) => Err(format!("no answer within {:?}", self.timeout)),
            () = self.queue.is_over() => Err("the process ends".to_owned()),
        }
    }
}
