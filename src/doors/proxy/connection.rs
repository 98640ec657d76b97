//! One client's connection: who it is, and which protocol it speaks.

use std::net::IpAddr;
use std::rc::Rc;

use tokio_util::sync::CancellationToken;

use super::forwarding::Peer;
use super::transport::{Opened, Protocol, Stream};
use super::{Proxy, http1, http2};

impl Proxy {
    /// Serves a client's connection to its end. When `drain` is cancelled, what runs is answered, and one more request
    /// that was on its way.
    pub async fn serve_connection(self: Rc<Self>, stream: Stream, peer: IpAddr, drain: CancellationToken) {
        let Some(opened) = self.acceptor.open(stream, peer, &drain).await else { return };
        let Opened { stream, peer, tls, protocol, permit: _permit } = opened;
        let peer = Rc::new(Peer::new(peer, self.trusted_proxies.contains(peer.to_canonical()), tls));
        match protocol {
            Protocol::Http1 => http1::serve(self, stream, peer, drain).await,
            Protocol::Http2 => http2::serve(self, stream, peer, drain).await,
        }
    }
}
