//! Values by network, looked up by address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use ipnet::IpNet;

/// One table for each prefix length, longest first: a lookup takes as many steps as there are lengths.
#[derive(Clone, Debug)]
pub(crate) struct Networks<T>(Vec<(u8, HashMap<IpNet, T>)>);

impl<T> Default for Networks<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Networks<T> {
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = IpNet> {
        self.0.iter().flat_map(|(_, networks)| networks.keys().copied())
    }

    /// The entry of a network, whose host bits are ignored.
    pub(crate) fn entry(&mut self, network: IpNet) -> Entry<'_, IpNet, T> {
        let prefix = network.prefix_len();
        let place = self.0.partition_point(|(length, _)| *length > prefix);
        if self.0.get(place).is_none_or(|(length, _)| *length != prefix) {
            self.0.insert(place, (prefix, HashMap::new()));
        }
        self.0[place].1.entry(network.trunc())
    }

    /// All networks and their values, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&IpNet, &T)> {
        self.0.iter().flat_map(|(_, networks)| networks)
    }

    /// The values of the networks that contain an address, the most specific network first.
    pub(crate) fn containing(&self, address: IpAddr) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(move |(prefix, networks)| {
            let network = IpNet::new(address, *prefix).ok()?;
            networks.get(&network.trunc())
        })
    }
}
