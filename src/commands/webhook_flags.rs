//! Flags for the webhook that reports warnings.

use std::path::PathBuf;

use crate::message::url::HttpUrl;
use crate::server::Webhook;

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Webhook")]
pub(super) struct WebhookArgs {
    /// A URL to which each warning of a limit with `warn_at` is posted
    #[arg(long, value_name = "URL", env = "WEIR_WEBHOOK", requires = "webhook_secret_file")]
    webhook: Option<HttpUrl>,

    /// A file with the secret that signs webhooks, at least 16 bytes, or `whsec_` and base64
    #[arg(long, value_name = "FILE", env = "WEIR_WEBHOOK_SECRET_FILE", requires = "webhook")]
    webhook_secret_file: Option<PathBuf>,

    /// A PEM file of certificate authorities that `--webhook https://...` trusts [default: the public ones]
    #[arg(long, value_name = "FILE", env = "WEIR_WEBHOOK_CA", requires = "webhook")]
    webhook_ca: Option<PathBuf>,
}

impl WebhookArgs {
    /// The error names the flag.
    pub(super) fn webhook(&self) -> Result<Option<Webhook>, String> {
        let Some((url, secret)) = self.webhook.clone().zip(self.webhook_secret_file.clone()) else { return Ok(None) };
        Webhook::new(url, secret, self.webhook_ca.clone()).map(Some)
    }
}
