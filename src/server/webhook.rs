//! Webhooks: a POST for each warning, signed as Standard Webhooks 1.0 says.
//!
//! A receiver that is slow gets a few at a time, and those that wait are bounded.

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue};
use serde_json::json;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::http::{FetchError, Fetcher};
use crate::limiter::Shared;
use crate::limiter::warnings::{Warner, Warning};
use crate::message::url::HttpUrl;
use crate::telemetry::metrics::{Metrics, WebhookResult};

/// The most webhooks that wait for the receiver.
const MOST_QUEUED: usize = 8_192;

/// The most webhooks that are on their way at a time.
const MOST_AT_ONCE: usize = 8;

/// For one try, from the lookup of the name to the last byte.
const DEADLINE: Duration = Duration::from_secs(5);

/// The waits before the second try and the further ones.
const WAITS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(25)];

/// How long the end of the process waits for the receiver.
const FINISH: Duration = Duration::from_secs(5);

/// The largest response that is read. Its body is not used.
const MAX_RESPONSE: usize = 64 * 1024;

/// The fewest bytes of a secret: 128 bits.
const SHORTEST_SECRET: usize = 16;

/// The receiver of webhooks.
#[derive(Clone, Debug)]
pub struct Webhook {
    fetcher: Fetcher,
    /// Read before each try, so that a rotated secret is used.
    secret_file: PathBuf,
    /// Before the second try and the further ones.
    waits: [Duration; 3],
}

/// A webhook on its way.
struct Queued {
    limit: String,
    /// The same however often it is sent.
    id: String,
    body: Bytes,
}

impl Webhook {
    /// `ca` is a PEM file of authorities for the server's certificate; defaults to the public ones.
    pub fn new(url: HttpUrl, secret_file: PathBuf, ca: Option<PathBuf>) -> Result<Self, String> {
        read_secret(&secret_file)?;
        Ok(Self { fetcher: Fetcher::new(url, ca, DEADLINE, MAX_RESPONSE)?, secret_file, waits: WAITS })
    }

    /// Posts a body once. `id` names it, however often it is sent.
    async fn post(&self, id: &str, body: &Bytes) -> Result<(), String> {
        let secret = read_secret(&self.secret_file)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let seconds = now.to_string();
        let signature = signature(&secret, id, &seconds, body);
        let value = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (HeaderName::from_static("webhook-id"), value(id)?),
            (HeaderName::from_static("webhook-timestamp"), value(&seconds)?),
            (HeaderName::from_static("webhook-signature"), value(&signature)?),
        ];
        self.fetcher.post(headers, body.clone()).await.map_err(|error: FetchError| error.to_string())
    }

    /// Posts a body until the receiver accepts it, some times at most.
    async fn deliver(&self, webhook: &Queued, metrics: &Metrics) {
        let Queued { limit, id, body } = webhook;
        let mut waits = self.waits.iter();
        let (result, error) = loop {
            let Err(error) = self.post(id, body).await else { break (WebhookResult::Delivered, None) };
            let Some(wait) = waits.next() else { break (WebhookResult::Failed, Some(error)) };
            tracing::debug!(id, "cannot deliver a webhook, trying again in {wait:?}: {error}");
            sleep(*wait).await;
        };
        metrics.count_webhook(limit, result);
        if let Some(error) = error {
            let (url, tries) = (self.fetcher.url(), self.waits.len() + 1);
            tracing::error!(limit, id, %url, "a webhook is lost after {tries} tries: {error}");
        }
    }

    /// Delivers what comes, until `quit`.
    async fn run(self, mut queue: Receiver<Queued>, metrics: Arc<Metrics>, quit: impl Future<Output = ()>) {
        let (mut quit, this) = (pin!(quit), Rc::new(self));
        let mut posting = JoinSet::new();
        let is_over = loop {
            tokio::select! {
                next = queue.recv(), if posting.len() < MOST_AT_ONCE => {
                    let Some(webhook) = next else { break false };
                    let (this, metrics) = (this.clone(), metrics.clone());
                    posting.spawn_local(async move { this.deliver(&webhook, &metrics).await });
                }
                Some(_) = posting.join_next() => {}
                () = &mut quit => break true,
            }
        };
        if !is_over {
            let rest = async { while posting.join_next().await.is_some() {} };
            tokio::select! {
                () = rest => {}
                () = quit => {}
            }
        }
        let lost = queue.len() + posting.len();
        while let Ok(webhook) = queue.try_recv() {
            metrics.count_webhook(&webhook.limit, WebhookResult::Dropped);
        }
        if lost > 0 {
            tracing::error!(lost, "webhooks are lost, as the receiver did not accept them within {FINISH:?}");
        }
    }
}

/// `v1,` and the HMAC of the id, the time and the body.
fn signature(secret: &[u8], id: &str, seconds: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let mut context = hmac::Context::with_key(&key);
    for part in [id.as_bytes(), b".", seconds.as_bytes(), b".", body] {
        context.update(part);
    }
    format!("v1,{}", BASE64_STANDARD.encode(context.sign()))
}

/// Reads a secret: `whsec_` and base64, or the bytes of the text as they are.
fn read_secret(path: &Path) -> Result<Vec<u8>, String> {
    let wrong = |reason: &str| Err(format!("--webhook-secret-file {}: {reason}", path.display()));
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return wrong(&error.to_string()),
    };
    let secret = match text.trim().strip_prefix("whsec_").map(|encoded| BASE64_STANDARD.decode(encoded)) {
        Some(Ok(secret)) => secret,
        Some(Err(_)) => return wrong("what follows `whsec_` is not base64"),
        None => text.trim().into(),
    };
    if secret.len() < SHORTEST_SECRET {
        return wrong(&format!(
            "the secret has fewer than {SHORTEST_SECRET} bytes; make one with `openssl rand -base64 32`"
        ));
    }
    Ok(secret)
}

/// Reports the process' warnings until `closing` is cancelled and none is left.
pub(super) async fn tell_warnings(
    mut warner: Warner,
    shared: Arc<Shared>,
    webhook: Option<Webhook>,
    closing: CancellationToken,
) {
    let metrics = shared.metrics().clone();
    let (sender, queue) = mpsc::channel(MOST_QUEUED);
    let quit = async {
        closing.cancelled().await;
        sleep(FINISH).await;
    };
    let is_told = webhook.is_some();
    let telling = async {
        while let Some(warning) = warner.next(&closing).await {
            if is_told {
                queue_webhook(warning, &sender, &metrics);
            }
        }
        drop(sender);
    };
    let delivering = async {
        if let Some(webhook) = webhook {
            webhook.run(queue, metrics.clone(), quit).await;
        }
    };
    tokio::join!(telling, delivering);
}

fn queue_webhook(warning: Warning, sender: &Sender<Queued>, metrics: &Metrics) {
    let id = format!("msg_{:032x}", rand::random::<u128>());
    let body = json!({ "type": "limit.warning", "timestamp": warning.at(), "data": warning.data() });
    let webhook = Queued { limit: warning.limit, id, body: body.to_string().into() };
    if let Err(TrySendError::Full(webhook) | TrySendError::Closed(webhook)) = sender.try_send(webhook) {
        metrics.count_webhook(&webhook.limit, WebhookResult::Dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification, whose signature other libraries make, too.
    #[test]
    fn signatures_are_those_of_standard_webhooks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let secret = read_secret(&path).unwrap();
        let signature = signature(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[tokio::test]
    async fn a_webhook_that_nobody_accepts_is_counted_and_given_up() {
        let secret = tempfile::NamedTempFile::new().unwrap();
        fs::write(secret.path(), "0123456789abcdef").unwrap();
        // The system gives this port to nobody.
        let url = "http://127.0.0.1:1/".parse().unwrap();
        let webhook = Webhook::new(url, secret.path().to_owned(), None).unwrap();
        let webhook = Webhook { waits: [Duration::ZERO; 3], ..webhook };
        let metrics = Metrics::new().unwrap();
        let queued = Queued { limit: "L".to_owned(), id: "msg_1".to_owned(), body: Bytes::from("{}") };
        webhook.deliver(&queued, &metrics).await;
        let page = String::from_utf8(metrics.render().unwrap()).unwrap();
        assert!(page.contains("weir_webhooks_total{limit=\"L\",result=\"failed\"} 1\n"), "{page}");
    }

    #[test]
    fn a_secret_that_cannot_be_used_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        for (text, why) in [("short", "fewer than 16 bytes"), ("", "fewer than"), ("whsec_??", "not base64")] {
            fs::write(&path, text).unwrap();
            let error = read_secret(&path).unwrap_err();
            assert!(error.contains(why) && error.contains("--webhook-secret-file"), "{text}: {error}");
        }
        assert!(read_secret(Path::new("/nonexistent")).unwrap_err().contains("No such file"));
    }
}
