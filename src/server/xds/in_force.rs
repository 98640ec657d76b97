//! The configuration in force, which a process that takes over inherits.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prost::Message;
use tokio::sync::watch;

use super::messages::DiscoveryResponse;

/// The last configuration that was accepted. Clones share it.
#[derive(Clone, Default)]
pub(in crate::server) struct PushedConfiguration {
    last: Arc<Mutex<Option<DiscoveryResponse>>>,
    /// True while another process takes over: this one neither takes nor acknowledges a newer configuration, so that the server
    /// sends it to the other one.
    hands_over: Arc<watch::Sender<bool>>,
}

impl PushedConfiguration {
    /// The version; `None` before the first configuration, and empty if the server gives none.
    pub(super) fn version(&self) -> Option<String> {
        self.last.lock().as_ref().map(|response| response.version_info.clone())
    }

    pub(super) fn is_there(&self) -> bool {
        self.last.lock().is_some()
    }

    /// Returns whether this response has the same version and resources.
    pub(super) fn is(&self, response: &DiscoveryResponse) -> bool {
        let is_same = |known: &DiscoveryResponse| {
            known.version_info == response.version_info && known.resources == response.resources
        };
        self.last.lock().as_ref().is_some_and(is_same)
    }

    pub(super) fn set(&self, response: DiscoveryResponse) {
        *self.last.lock() = Some(response);
    }

    /// Returns it for the new process, and keeps it until [`Self::resume`]. Its length comes first: half a configuration may be a valid
    /// one.
    pub(in crate::server) fn hand_over(&self) -> Option<Vec<u8>> {
        self.hands_over.send_replace(true);
        self.last.lock().as_ref().map(Message::encode_length_delimited_to_vec)
    }

    /// Goes on after a hand-over that failed.
    pub(in crate::server) fn resume(&self) {
        self.hands_over.send_replace(false);
    }

    /// Waits while another process takes over.
    pub(super) async fn may_change(&self) {
        // The sender lives as long as this does.
        let _ = self.hands_over.subscribe().wait_for(|hands_over| !hands_over).await;
    }

    pub(super) fn decode(encoded: &[u8]) -> Result<DiscoveryResponse, String> {
        DiscoveryResponse::decode_length_delimited(encoded).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for PushedConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PushedConfiguration").field(&self.version()).finish()
    }
}
