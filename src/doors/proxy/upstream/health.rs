//! Asking servers whether they are well.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use super::cluster::Cluster;
use super::connect::Connector;

/// How servers are asked whether they are well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked for with GET.
    pub path: String,
    /// From one check to the next.
    pub interval: Duration,
    /// For a connection and the response's fields.
    pub timeout: Duration,
    /// Checks in a row that fail until an endpoint is left out.
    pub unhealthy: NonZeroU32,
    /// Checks in a row that succeed until it is used again.
    pub healthy: NonZeroU32,
}

pub(super) async fn keep(_check: HealthCheck, _cluster: Rc<Cluster>, _connector: Rc<Connector>) {}
