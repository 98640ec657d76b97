//! One client's connection: who it is, and which protocol it speaks.

use std::net::IpAddr;
use std::rc::Rc;

use tokio_util::sync::CancellationToken;

use super::forwarding::Peer;
use super::transport::{self, Opened, Protocol, Stream};
use super::{Proxy, http1};

impl Proxy {
    /// Serves a client's connection to its end. When `drain` is cancelled, what runs is answered, and one more request
    /// that was on its way.
    pub async fn serve_connection(self: Rc<Self>, stream: Stream, peer: IpAddr, drain: CancellationToken) {
        let opened = transport::open(stream, peer, &self.accept, &self.admission, self.timeouts.first_byte, &drain).await;
        let Opened { stream, peer, tls, protocol, permit: _permit } = match opened {
            Ok(opened) => opened,
            Err(refused) => {
                tracing::debug!(%peer, "a connection came to no HTTP: {refused}");
                if let Some(reason) = refused.reason() {
                    self.gate.shared().metrics().connection_failed(reason);
                }
                return;
            }
        };
        let peer = Rc::new(Peer::new(peer, self.trusted_proxies.contains(peer.to_canonical()), tls));
        match protocol {
            Protocol::Http1 => http1::serve(self, stream, peer, drain).await,
            Protocol::Http2 => {}
        }
    }
}
