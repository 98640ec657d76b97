//! Reads the texts with which servers describe themselves.

use super::facts::{ClusterState, Info};

/// A node of a cluster, by `CLUSTER NODES`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeLine {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_replica: bool,
    /// The first and last hash slots of each range.
    pub(super) slots: Vec<(u16, u16)>,
}

/// The value of a line `name:value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn number(text: &str, name: &str) -> u64 {
    field(text, name).and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Reads the reply to `INFO`.
pub(super) fn info(text: &str) -> Info {
    // Valkey has `redis_version`, too: that of the Redis that it is compatible with.
    let valkey = field(text, "valkey_version");
    let is_ok = |name| field(text, name).is_none_or(|status| status == "ok");
    Info {
        product: if valkey.is_some() { "Valkey" } else { "Redis" },
        version: valkey.or_else(|| field(text, "redis_version")).unwrap_or_default().to_owned(),
        is_node: field(text, "cluster_enabled") == Some("1"),
        replicas: (field(text, "role") != Some("slave")).then(|| number(text, "connected_slaves")),
        used_memory: number(text, "used_memory"),
        maxmemory: number(text, "maxmemory"),
        policy: field(text, "maxmemory_policy").unwrap_or_default().to_owned(),
        evicted_keys: number(text, "evicted_keys"),
        has_append_only_file: field(text, "aof_enabled") == Some("1"),
        persistence_works: is_ok("rdb_last_bgsave_status") && is_ok("aof_last_write_status"),
    }
}

/// Reads the reply to `CLUSTER INFO`.
pub(super) fn cluster_state(text: &str) -> Option<ClusterState> {
    let state = field(text, "cluster_state")?.to_owned();
    Some(ClusterState { state, assigned_slots: number(text, "cluster_slots_assigned") })
}

/// Reads the reply to `CLUSTER NODES`, without nodes that have no address or are being forgotten. A node that does not know its
/// own address leaves it out; `asked` is then its host.
pub(super) fn nodes(text: &str, asked: &str) -> Vec<NodeLine> {
    text.lines().filter_map(|line| node(line, asked)).collect()
}

fn node(line: &str, asked: &str) -> Option<NodeLine> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, address, flags, _, _, _, _, _, slots @ ..] = words.as_slice() else { return None };
    let flags: Vec<&str> = flags.split(',').collect();
    if flags.contains(&"noaddr") || flags.contains(&"handshake") {
        return None;
    }
    // `host:port@cluster-port,hostname`
    let (host, port) = address.split('@').next()?.rsplit_once(':')?;
    let host = if host.is_empty() { asked } else { host };
    let range = |word: &&str| {
        let (first, last) = word.split_once('-').unwrap_or((*word, *word));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    Some(NodeLine {
        host: host.to_owned(),
        port: port.parse().ok()?,
        is_replica: flags.contains(&"slave"),
        // A hash slot on its way to another node is `[...]`.
        slots: slots.iter().filter_map(range).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valkey_is_told_from_redis() {
        let text = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\nrole:slave\r\n";
        let valkey = info(text);
        assert_eq!((valkey.product, &*valkey.version, valkey.replicas), ("Valkey", "9.1.2", None));
        let text = "redis_version:6.2.14\r\nrole:master\r\nused_memory:5\r\nused_memory_rss:9\r\nmaxmemory:7\r\n\
                    maxmemory_policy:noeviction\r\nrdb_last_bgsave_status:err\r\naof_enabled:1\r\n";
        let redis = info(text);
        assert_eq!((redis.product, &*redis.version, redis.replicas), ("Redis", "6.2.14", Some(0)));
        assert_eq!((redis.used_memory, redis.maxmemory, &*redis.policy), (5, 7, "noeviction"));
        assert!(redis.has_append_only_file && !redis.persistence_works);
    }

    #[test]
    fn nodes_are_read_with_their_hash_slots() {
        let text = "a1 127.0.0.1:7000@17000,host-a myself,master - 0 0 1 connected 0-5460 5500 [93-<-b]\n\
                    b2 :7001@17001 slave a1 0 1 1 connected\n\
                    c3 :0@0 master,noaddr - 1 1 3 disconnected\n\
                    d4 ::1:7003@17003 slave,fail a1 1 1 3 disconnected\n";
        let node = |host: &str, port, is_replica, slots: &[(u16, u16)]| NodeLine {
            host: host.into(),
            port,
            is_replica,
            slots: slots.to_vec(),
        };
        let expected = [
            node("127.0.0.1", 7000, false, &[(0, 5460), (5500, 5500)]),
            node("seed", 7001, true, &[]),
            node("::1", 7003, true, &[]),
        ];
        assert_eq!(nodes(text, "seed"), expected);
    }
}
