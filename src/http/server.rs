//! The state that all connections of a worker's listener share.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::admission::{Admission, SlowReaders};
use super::failure::HeadError;
use super::limits::{HttpLimits, Timeouts};
use super::message::Response;
use super::observer::Observer;
use super::transport::{AcceptOptions, Acceptor};
use crate::message::client_address::TrustedProxies;
use crate::message::client_headers::ClientHeaders;
use crate::message::connection::HttpLimit;

/// Options for a listener's connections and requests.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    pub accept: AcceptOptions,
    /// Peers that may report the client's address.
    pub trusted_proxies: TrustedProxies,
    pub client_headers: ClientHeaders,
    pub timeouts: Timeouts,
    pub limits: HttpLimits,
    /// The connections of all workers and listeners.
    pub admission: Arc<Admission>,
}

/// A worker's HTTP side of a listener.
pub(crate) struct Server {
    pub(super) acceptor: Acceptor,
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) client_headers: ClientHeaders,
    pub(super) timeouts: Timeouts,
    pub(crate) limits: HttpLimits,
    observer: Rc<dyn Observer>,
    date: RefCell<Date>,
    /// Behind an `Rc` of this worker, because each request takes a reference.
    pub(super) slow_readers: Rc<SlowReaders>,
}

/// The text of a `Date` header, which stays the same for a second.
#[derive(Debug, Default)]
struct Date {
    text: String,
    until: Option<Instant>,
}

impl Server {
    /// `logs_peers` allows clients' addresses in the log.
    pub(crate) fn new(options: &HttpOptions, observer: Rc<dyn Observer>, logs_peers: bool) -> Self {
        Self {
            acceptor: Acceptor {
                options: options.accept.clone(),
                patience: options.timeouts.first_byte,
                admission: options.admission.clone(),
                observer: observer.clone(),
                logs_peers,
            },
            trusted_proxies: options.trusted_proxies.clone(),
            client_headers: options.client_headers.clone(),
            timeouts: options.timeouts,
            limits: options.limits,
            observer,
            date: RefCell::default(),
            slow_readers: Rc::new(options.admission.slow_readers.clone()),
        }
    }

    pub(crate) fn limit_reached(&self, limit: HttpLimit) {
        self.observer.limit_reached(limit);
    }

    /// The response to a request whose head cannot be read.
    pub(super) fn reject(&self, error: HeadError) -> Response {
        if let Some(limit) = error.limit() {
            self.limit_reached(limit);
        }
        error.reply().into()
    }

    /// Counts a connection as a tunnel until the value is dropped.
    pub(super) fn tunnel(&self) -> impl Drop {
        self.observer.tunnel(true);
        OpenTunnel(self.observer.clone())
    }

    /// Writes a `Date` header's value (RFC 9110 section 6.6.1 has a proxy add it where it is missing). Returns until when it
    /// holds.
    pub(super) fn date(&self, now: Instant, write: impl FnOnce(&str)) -> Instant {
        let mut date = self.date.borrow_mut();
        let until = date.until.filter(|until| now < *until).unwrap_or_else(|| {
            date.text = httpdate::fmt_http_date(SystemTime::now());
            now + Duration::from_secs(1)
        });
        date.until = Some(until);
        write(&date.text);
        until
    }
}

struct OpenTunnel(Rc<dyn Observer>);

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.0.tunnel(false);
    }
}
