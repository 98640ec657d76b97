//! `whole-ipv6-address`: IPv6 addresses, or small networks of them, as ids.

use super::super::problem::Place;
use super::Subject;
use super::bounds::bounds;
use crate::engine::request::part::{IPV6_CLIENT_PREFIX, Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::engine::telling::coverage::is_coarser;

pub(super) fn find<'s>(
    subject: &Subject<'_>,
    mut others: impl Iterator<Item = &'s Subject<'s>>,
) -> Option<(Place, String)> {
    let limit = subject.limit;
    let place = subject.places.long_prefix?;
    let networks = &limit.conditions.networks;
    let is_ipv4_only = !networks.is_empty() && networks.iter().all(|network| matches!(network, ipnet::IpNet::V4(_)));
    if is_ipv4_only || !limit.is_enforced() || limit.allowance.windows().is_none() {
        return None;
    }
    let by_network = [TypedPart::new(Part::Ip { ipv6_prefix: IPV6_CLIENT_PREFIX }, ValueType::Text)];
    let is_bound = |other: &Subject<'_>| {
        bounds(other, limit) && other.limit.is_by_client() && is_coarser(&other.limit.by, &by_network)
    };
    if others.any(is_bound) {
        return None;
    }
    Some((place, "a client with an IPv6 network has a bucket for each part of it".to_owned()))
}
