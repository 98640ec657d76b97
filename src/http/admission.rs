//! Bounds on client connections, in total and per address, and on responses that wait for slow clients.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::message::client_address::TrustedProxies;

/// Default total. With 64 KiB of buffers in each direction, the slowest clients possible hold 2 GiB.
pub const MAX_CONNECTIONS: usize = 16_384;

/// Default per address: 170 browsers with six connections each behind one office's or mobile network's address, and a
/// sixteenth of the total.
pub const MAX_PER_ADDRESS: NonZeroU32 = NonZeroU32::new(1_024).unwrap();

/// Default number of concurrent HTTP/2 requests per address: as many as its HTTP/1.1 connections could have.
pub const MAX_STREAMS: NonZeroU32 = MAX_PER_ADDRESS;

/// The most bytes that a waiting response holds: 64 KiB to be sent, and as much on the upstream's connection. Measured:
/// 80 KiB. Responses of HTTP/2 upstreams hold more and count several times.
pub(super) const BYTES_PER_RESPONSE: u64 = 128 * 1024;

/// The rate in bytes per second at which clients must read while more than half of the memory is used.
const PRESSED_RATE: u64 = 16 * 1024;

/// The default of `--response-memory`: enough for [`MAX_CONNECTIONS`] HTTP/1.1 connections that all read slowly.
pub const RESPONSE_MEMORY: u64 = 2 * 1024 * 1024 * 1024;

/// Bounds on client connections and what they hold.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// In the whole process.
    pub total: usize,
    /// Per address, and per /64 for IPv6, which is the least that a client is assigned. `None` for no limit.
    pub per_address: Option<NonZeroU32>,
    /// Concurrent HTTP/2 requests per address. `None` for no limit.
    pub streams_per_address: Option<NonZeroU32>,
    /// Bytes for responses that wait for clients which read slowly.
    pub response_memory: u64,
    /// Trusted proxies carry many clients' connections, so they are exempt from limits per address.
    pub exempt: TrustedProxies,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            total: MAX_CONNECTIONS,
            per_address: Some(MAX_PER_ADDRESS),
            streams_per_address: Some(MAX_STREAMS),
            response_memory: RESPONSE_MEMORY,
            exempt: TrustedProxies::default(),
        }
    }
}

/// Counts the connections of all workers.
#[derive(Debug)]
pub struct Admission {
    limits: ConnectionLimits,
    open: AtomicUsize,
    /// Addresses with connections, so there are never more entries than connections.
    addresses: Mutex<HashMap<IpAddr, Address>>,
    /// Responses of all workers that wait for their clients.
    pub(super) slow_readers: SlowReaders,
}

/// The open connections and streams of an address.
#[derive(Debug, Default)]
struct Address {
    connections: u32,
    /// Concurrent HTTP/2 requests on all of its connections.
    streams: Arc<AtomicU32>,
}

impl Admission {
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self {
            slow_readers: SlowReaders::new(limits.response_memory),
            limits,
            open: AtomicUsize::new(0),
            addresses: Mutex::default(),
        })
    }

    /// Counts a new connection until the permit is dropped; `None` if there are too many.
    pub fn admit(self: &Arc<Self>) -> Option<ConnectionPermit> {
        // Relaxed is enough: no other data depends on this number.
        let more = |open: usize| (open < self.limits.total).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(ConnectionPermit(self.clone()))
    }

    /// Counts a connection for its client's address, which is known only after the PROXY protocol, until the permit is
    /// dropped; `None` if the address has too many.
    pub(super) fn admit_address(self: &Arc<Self>, address: IpAddr) -> Option<AddressPermit> {
        let address = address.to_canonical();
        let ConnectionLimits { per_address, streams_per_address, ref exempt, .. } = self.limits;
        if (per_address.is_none() && streams_per_address.is_none()) || exempt.contains(address) {
            return Some(AddressPermit(None));
        }
        let network = network(address);
        let mut addresses = self.addresses.lock();
        let open = addresses.entry(network).or_default();
        if per_address.is_some_and(|limit| open.connections >= limit.get()) {
            return None;
        }
        open.connections += 1;
        Some(AddressPermit(Some(CountedAddress { admission: self.clone(), network, streams: open.streams.clone() })))
    }
}

/// Keeps a connection counted.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<Admission>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keeps a connection counted for its client's address, unless the address is exempt.
#[derive(Debug)]
#[must_use = "the connection is counted for as long as this is held"]
pub(super) struct AddressPermit(Option<CountedAddress>);

#[derive(Debug)]
struct CountedAddress {
    admission: Arc<Admission>,
    network: IpAddr,
    streams: Arc<AtomicU32>,
}

impl AddressPermit {
    /// Returns a counter for a connection's HTTP/2 requests.
    pub(super) const fn streams(&self) -> Streams<'_> {
        Streams { permit: self, open: 0 }
    }
}

impl Drop for CountedAddress {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.admission.addresses.lock().entry(self.network) {
            open.get_mut().connections -= 1;
            if open.get().connections == 0 {
                open.remove();
            }
        }
    }
}

/// A connection's concurrent HTTP/2 requests. They count for its address until this is dropped.
#[derive(Debug)]
pub(super) struct Streams<'p> {
    permit: &'p AddressPermit,
    open: u32,
}

impl Streams<'_> {
    /// Counts another request; returns false if the address has too many.
    pub(super) fn begin(&mut self) -> bool {
        let Some(counted) = &self.permit.0 else { return true };
        let Some(limit) = counted.admission.limits.streams_per_address else { return true };
        let is_admitted = counted.streams.fetch_add(1, Ordering::Relaxed) < limit.get();
        if is_admitted {
            self.open += 1;
        } else {
            counted.streams.fetch_sub(1, Ordering::Relaxed);
        }
        is_admitted
    }

    /// Counts `count` requests as ended.
    pub(super) fn end(&mut self, count: u32) {
        let count = count.min(self.open);
        self.open -= count;
        if let (Some(counted), 1..) = (&self.permit.0, count) {
            counted.streams.fetch_sub(count, Ordering::Relaxed);
        }
    }
}

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        self.end(self.open);
    }
}

/// Returns the address or network that counts as one client.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// Responses that wait for slow clients, counted over all workers. Clones share one count.
///
/// Each holds what was read from the upstream and not sent yet. An HTTP/2 stream costs a client nothing but costs this
/// process up to [`BYTES_PER_RESPONSE`], so their total is bounded.
#[derive(Clone, Debug)]
pub struct SlowReaders {
    waiting: Arc<AtomicU64>,
    most: u64,
}

impl SlowReaders {
    /// Allows responses to hold this many bytes in total.
    pub fn new(bytes: u64) -> Self {
        Self { waiting: Arc::default(), most: (bytes / BYTES_PER_RESPONSE).max(1) }
    }

    /// A response that counts as this many starts to wait. Returns whether there is memory for it.
    pub(super) fn begin(&self, count: u64) -> bool {
        let others = self.waiting.fetch_add(count, Ordering::Relaxed);
        let has_room = others == 0 || others + count <= self.most;
        if !has_room {
            self.end(count);
        }
        has_room
    }

    /// A response that counts as this many continues or has ended.
    pub(super) fn end(&self, count: u64) {
        self.waiting.fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns the rate at which clients must read. It is `usual` while there is plenty of memory.
    pub(super) fn rate(&self, usual: u64) -> u64 {
        let is_pressed = self.waiting.load(Ordering::Relaxed) > self.most / 2;
        if is_pressed { usual.max(PRESSED_RATE) } else { usual }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(total: usize, per_address: u32) -> Arc<Admission> {
        let exempt = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
        let limits = ConnectionLimits {
            total,
            per_address: NonZeroU32::new(per_address),
            streams_per_address: NonZeroU32::new(3),
            exempt,
            ..ConnectionLimits::default()
        };
        Admission::new(limits)
    }

    #[test]
    fn no_more_than_the_total_are_in() {
        let admission = admission(2, 0);
        let (first, _second) = (admission.admit().unwrap(), admission.admit().unwrap());
        assert!(admission.admit().is_none());
        drop(first);
        let _third = admission.admit().unwrap();
        assert!(admission.admit().is_none());
    }

    /// Lets connections of these addresses in, and says which ones were.
    #[track_caller]
    fn check(per_address: u32, addresses: &[&str], expected: &[bool]) {
        let admission = admission(100, per_address);
        let permits: Vec<_> =
            addresses.iter().map(|address| admission.admit_address(address.parse().unwrap())).collect();
        let admitted: Vec<_> = permits.iter().map(Option::is_some).collect();
        assert_eq!(admitted, expected);
        drop(permits);
        assert!(admission.addresses.lock().is_empty(), "what ended is not forgotten");
    }

    #[test]
    fn an_address_has_its_share() {
        check(2, &["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"], &[true, true, false, true]);
        check(1, &["192.0.2.1", "::ffff:192.0.2.1"], &[true, false]);
    }

    #[test]
    fn the_streams_of_an_address_are_counted_over_its_connections() {
        let admission = admission(100, 0);
        let [one, two, other, proxy] = ["192.0.2.1", "192.0.2.1", "192.0.2.2", "10.0.0.1"]
            .map(|address| admission.admit_address(address.parse().unwrap()).unwrap());
        let (mut first, mut second) = (one.streams(), two.streams());
        assert_eq!([first.begin(), second.begin(), first.begin(), second.begin()], [true, true, true, false]);
        first.end(1);
        assert_eq!([second.begin(), second.begin()], [true, false]);
        drop(second);
        assert_eq!([first.begin(), first.begin(), first.begin()], [true, true, false]);
        let (mut other, mut proxy) = (other.streams(), proxy.streams());
        assert!(other.begin() && (0..10).all(|_| proxy.begin()));
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        check(1, &["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"], &[true, false, true]);
    }

    #[test]
    fn trusted_proxies_are_exempt_and_0_is_no_limit() {
        check(1, &["10.1.2.3", "10.1.2.3", "10.1.2.3"], &[true, true, true]);
        check(0, &["192.0.2.1", "192.0.2.1", "192.0.2.1"], &[true, true, true]);
    }

    #[test]
    fn there_is_memory_for_so_many_and_less_patience_with_half_of_them() {
        let readers = SlowReaders::new(4 * BYTES_PER_RESPONSE);
        let seen: Vec<_> = (0..5).map(|_| (readers.begin(1), readers.rate(240))).collect();
        let rates = [240, 240, PRESSED_RATE, PRESSED_RATE, PRESSED_RATE];
        assert_eq!(seen, [true, true, true, true, false].into_iter().zip(rates).collect::<Vec<_>>());
        readers.end(1);
        assert!(readers.begin(1) && !readers.begin(1));
        readers.end(4);
        assert!(readers.begin(3) && !readers.begin(2) && readers.begin(1));
        readers.end(4);
        assert!(readers.begin(5) && !readers.begin(1), "one alone always has room");
        readers.end(5);
        readers.waiting.store(4, Ordering::Relaxed);
        assert_eq!(readers.rate(PRESSED_RATE + 1), PRESSED_RATE + 1);
    }
}
