//! Logs an open connection in again when the password changes.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;

use super::Node;
use super::connection::Connection;
use super::patience::within;
use super::probing::PROBE_TIMEOUT;
use crate::store::redis::credentials::Password;
use crate::store::redis::target::StoreTarget;

/// The text in `/readyz` and in the log while the server does not know the password.
pub(super) const REJECTED: &str = "the server rejects the password in --store-password-file, or its user: connections keep the \
                                   last password that worked; set the new one on the server";

impl Node {
    /// Sends AUTH if the file has another password than `used`, the one that the server knows for this connection. A server that
    /// rejects it is asked again at the next look: it goes on to serve the connection by the last one.
    pub(super) async fn renew(&self, live: &Arc<Connection>, target: &StoreTarget, used: &mut Option<Password>) {
        let Some(current) = target.credentials.current().await else { return };
        if used.as_ref() == Some(&current) {
            self.is_rejected.store(false, Ordering::Relaxed);
            return;
        }
        let (commands, patience) = ([target.credentials.auth(&current)], PROBE_TIMEOUT.max(self.timeout));
        // A connection that is silent or broken is the probe's matter.
        let Some(Ok(replies)) = within(patience, pin!(self.numbered_replies(live, &commands))).await else { return };
        let is_taken = matches!(replies.first(), Some(Value::Okay));
        self.is_rejected.store(!is_taken, Ordering::Relaxed);
        if is_taken {
            if target.credentials.worked(Some(&current)) {
                tracing::info!(store = %target.shown, "logged in to the store with the new password");
            }
            *used = Some(current);
        } else if target.credentials.rejected(&current) {
            tracing::warn!(store = %target.shown, "{REJECTED}");
        }
    }
}
