//! The map of a cluster: which node has which tag.

use std::sync::Arc;

use redis::Value;

use super::super::call::text;
use super::super::hash_slots::SLOTS;
use super::super::node::NodeHandle;
use super::super::url::host_and_port;
use crate::engine::algorithms::tag::TAGS;

/// A range of hash slots, both ends included, and the master that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) host: String,
    pub(super) port: u16,
}

/// Nodes that have tags. A node ends with the last map that has it and the last request that asks it.
#[derive(Clone, Default)]
pub(super) struct Map {
    /// By tag, the place in `nodes`.
    tags: Vec<Option<usize>>,
    nodes: Vec<(String, Arc<NodeHandle>)>,
}

impl Map {
    /// The map by these ranges. Nodes that this map has as well are kept; `open` opens the others, given a tag that they have.
    pub(super) fn by_ranges(
        &self,
        ranges: &[Range],
        mut open: impl FnMut(&str, u16, u8) -> Result<NodeHandle, String>,
    ) -> Result<Self, String> {
        let mut map = Self { tags: vec![None; TAGS.into()], nodes: Vec::new() };
        for (tag, slot) in (0..TAGS).zip(SLOTS) {
            let Some(range) = ranges.iter().find(|range| (range.first..=range.last).contains(&slot)) else { continue };
            let name = host_and_port(&range.host, range.port);
            let place = if let Some(place) = map.nodes.iter().position(|(known, _)| *known == name) {
                place
            } else {
                let known = self.node(&name);
                let node = known.map_or_else(|| open(&range.host, range.port, tag).map(Arc::new), Ok)?;
                map.nodes.push((name, node));
                map.nodes.len() - 1
            };
            map.tags[usize::from(tag)] = Some(place);
        }
        Ok(map)
    }

    /// The map in which a node has the tags of a hash slot.
    pub(super) fn with_slot(&self, slot: u16, name: &str, node: &Arc<NodeHandle>) -> Self {
        let mut map = self.with_node(name, node);
        let place = map.nodes.iter().position(|(known, _)| known == name);
        for (tag, _) in map.tags.iter_mut().zip(SLOTS).filter(|(_, other)| *other == slot) {
            *tag = place;
        }
        map
    }

    /// The map with a node that has no tags yet.
    pub(super) fn with_node(&self, name: &str, node: &Arc<NodeHandle>) -> Self {
        let mut map = self.clone();
        if map.node(name).is_none() {
            map.nodes.push((name.to_owned(), Arc::clone(node)));
        }
        map
    }

    /// The name of the node that has a tag.
    pub(super) fn name_of(&self, tag: u8) -> Option<&str> {
        let place = (*self.tags.get(usize::from(tag))?)?;
        Some(&self.nodes.get(place)?.0)
    }

    pub(super) fn of_tag(&self, tag: u8) -> Option<Arc<NodeHandle>> {
        let place = (*self.tags.get(usize::from(tag))?)?;
        Some(Arc::clone(&self.nodes.get(place)?.1))
    }

    pub(super) fn node(&self, name: &str) -> Option<Arc<NodeHandle>> {
        self.nodes.iter().find(|(known, _)| known == name).map(|(_, node)| Arc::clone(node))
    }

    pub(super) fn named(&self) -> impl Iterator<Item = (&str, &Arc<NodeHandle>)> {
        self.nodes.iter().map(|(name, node)| (name.as_str(), node))
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<NodeHandle>> {
        self.nodes.iter().map(|(_, node)| node)
    }

    /// True if each tag has a node.
    pub(super) fn is_complete(&self) -> bool {
        !self.tags.is_empty() && self.tags.iter().all(Option::is_some)
    }
}

/// Splits `host:port` as nodes write it: an IPv6 address has no brackets.
pub(super) fn split(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    Some((host.trim_matches(['[', ']']), port.parse().ok()?))
}

/// Reads the reply to CLUSTER SLOTS of the node at `asked`; `None` if it is something else. A node that does not know its own
/// address gives an empty one, or `?` for a host name that is not set.
pub(super) fn read(reply: &Value, asked: &str) -> Option<Vec<Range>> {
    let Value::Array(rows) = reply else { return None };
    rows.iter().map(|row| range(row, asked)).collect()
}

fn range(row: &Value, asked: &str) -> Option<Range> {
    let Value::Array(values) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = values.as_slice() else { return None };
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = text(host).filter(|host| !matches!(*host, "" | "?")).unwrap_or(asked);
    let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
    Some(Range { first, last, host: host.to_owned(), port: u16::try_from(*port).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_unknown_hosts_are_that_of_the_node_asked() {
        let reply = b"*2\r\n*3\r\n:0\r\n:5460\r\n*3\r\n$9\r\n127.0.0.2\r\n:7000\r\n$2\r\nid\r\n\
                      *4\r\n:5461\r\n:16383\r\n*2\r\n$0\r\n\r\n:7001\r\n*2\r\n$9\r\n127.0.0.3\r\n:7002\r\n";
        let reply = redis::parse_redis_value(reply).unwrap();
        let range = |first, last, host: &str, port| Range { first, last, host: host.into(), port };
        let expected = [range(0, 5460, "127.0.0.2", 7000), range(5461, 16383, "seed", 7001)];
        assert_eq!(read(&reply, "seed").as_deref(), Some(&expected[..]));
        assert_eq!(read(&Value::Okay, "seed"), None);
        assert_eq!(read(&Value::Array(vec![Value::Int(1)]), "seed"), None);
    }

    #[test]
    fn names_of_nodes_are_split_into_host_and_port() {
        assert_eq!(split("127.0.0.1:7000"), Some(("127.0.0.1", 7000)));
        assert_eq!(split("::1:7000"), Some(("::1", 7000)));
        assert_eq!(split(&host_and_port("::1", 7000)), Some(("::1", 7000)));
        assert_eq!(split(":7000"), Some(("", 7000)));
        assert_eq!(split("7000"), None);
    }
}
