//! A Redis Cluster of several servers.

use super::bus::Bus;
use super::eventually;
use super::injector::Injector;
use super::redis::{RedisConfig, RedisServer};

const HASH_SLOTS: usize = 16_384;

/// A node is suspected after this long, in milliseconds. An election takes a second more.
const NODE_TIMEOUT: u32 = 1_000;

/// Masters that share the hash slots evenly, each with the same number of replicas. The servers are killed when this is dropped.
pub(crate) struct RedisCluster {
    /// The first masters, then a replica of each in the same order, then another one of each.
    pub(crate) nodes: Vec<RedisServer>,
    ids: Vec<String>,
    bus: Option<Bus>,
    isolated: Option<usize>,
    /// Those that clients pass to each node, if the cluster is divisible.
    pub(crate) injectors: Vec<Injector>,
}

/// A line of `CLUSTER NODES`.
struct NodeLine {
    node: usize,
    master: bool,
    hash_slots: Vec<(u16, u16)>,
}

impl RedisCluster {
    /// Starts the servers and waits until the cluster takes calls and the replicas are in sync.
    pub(crate) fn start(masters: usize, replicas: usize) -> Self {
        Self::start_with(&RedisConfig::default(), masters, replicas)
    }

    /// Like [`Self::start`], with a configuration for each server: a password, TLS, further lines.
    pub(crate) fn start_with(config: &RedisConfig, masters: usize, replicas: usize) -> Self {
        Self::join(RedisServer::several(&config_of(config), masters * (1 + replicas)), None, Vec::new(), masters)
    }

    /// Like [`Self::start_with`]; [`Self::isolate`] may cut off a node from the others, and an injector its clients.
    pub(crate) fn divisible(config: &RedisConfig, masters: usize, replicas: usize) -> Self {
        let count = masters * (1 + replicas);
        let bus = Bus::start(count);
        let injectors: Vec<Injector> = (0..count).map(|_| Injector::new()).collect();
        let node = |(node, injector): (usize, &Injector)| {
            let mut config = config_of(config);
            config.lines.extend(bus.lines(node));
            config.lines.push(format!("cluster-announce-port {}", injector.address.port()));
            let server = RedisServer::start(&config);
            injector.lead_to(&server.address());
            server
        };
        let nodes = injectors.iter().enumerate().map(node).collect();
        Self::join(nodes, Some(bus), injectors, masters)
    }

    fn join(nodes: Vec<RedisServer>, bus: Option<Bus>, injectors: Vec<Injector>, masters: usize) -> Self {
        let ids = nodes.iter().map(|node| node.cli(&["CLUSTER", "MYID"])).collect();
        let cluster = Self { nodes, ids, bus, isolated: None, injectors };
        cluster.meet(masters);
        cluster
    }

    /// The address that a node announces to clients.
    fn address(&self, node: usize) -> String {
        let injector = self.injectors.get(node);
        injector.map_or_else(|| self.nodes[node].address(), |injector| injector.address.to_string())
    }

    /// The port at which others find the bus of a node.
    fn bus_port(&self, node: usize) -> u16 {
        let text = self.nodes[node].cli(&["CONFIG", "GET", "cluster-port"]);
        let port = text.lines().nth(1).expect("a cluster has one").parse().unwrap();
        self.bus.as_ref().map_or(port, |bus| {
            bus.lead_to(node, port);
            bus.port(node)
        })
    }

    fn meet(&self, masters: usize) {
        let bus_ports: Vec<String> = (0..self.nodes.len()).map(|node| self.bus_port(node).to_string()).collect();
        for (index, node) in self.nodes.iter().enumerate() {
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < masters {
                let share = |index: usize| HASH_SLOTS * index / masters;
                let (first, last) = (share(index).to_string(), (share(index + 1) - 1).to_string());
                node.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
            for (other, bus_port) in bus_ports[..index].iter().enumerate() {
                let address = self.address(other);
                let (host, port) = address.rsplit_once(':').unwrap();
                node.cli(&["CLUSTER", "MEET", host, port, bus_port]);
            }
        }
        for (index, node) in self.nodes.iter().enumerate().skip(masters) {
            // The node may not have met its master yet.
            eventually("the replica knows its master", || {
                let answer = node.cli(&["CLUSTER", "REPLICATE", &self.ids[index % masters]]);
                if answer == "OK" { Ok(()) } else { Err(answer) }
            });
        }
        self.until_whole();
        self.until_in_sync();
    }

    /// Cuts a node off from all others, though not from clients, or ends that.
    pub(crate) fn isolate(&mut self, node: Option<usize>) {
        self.bus.as_ref().expect("the cluster is divisible").isolate(node);
        self.isolated = node;
    }

    /// `redis+cluster://` and the addresses of all nodes.
    pub(crate) fn url(&self) -> String {
        let own = self.nodes[0].url().replace(&self.nodes[0].address(), &self.address(0));
        let (scheme, first) = own.split_once("://").unwrap();
        let addresses: Vec<String> = (1..self.nodes.len()).map(|node| self.address(node)).collect();
        let scheme = if scheme == "rediss" { "rediss+cluster" } else { "redis+cluster" };
        format!("{scheme}://{}", [&[first.to_owned()], &*addresses].concat().join(","))
    }

    /// The hash slot of a key.
    pub(crate) fn hash_slot(&self, key: &str) -> u16 {
        self.running().cli(&["CLUSTER", "KEYSLOT", key]).parse().unwrap()
    }

    /// The masters that have hash slots, as places in `nodes`.
    pub(crate) fn masters(&self) -> Vec<usize> {
        let has_slots = |known: &NodeLine| known.master && !known.hash_slots.is_empty();
        let all = known(&self.running().cli(&["CLUSTER", "NODES"]), &self.ids);
        let mut masters: Vec<usize> = all.into_iter().filter(has_slots).map(|known| known.node).collect();
        masters.sort_unstable();
        masters
    }

    /// The master of a hash slot, as a place in `nodes`.
    pub(crate) fn owner(&self, hash_slot: u16) -> usize {
        self.owners(&[hash_slot])[0]
    }

    /// The master of each of these hash slots.
    pub(crate) fn owners(&self, hash_slots: &[u16]) -> Vec<usize> {
        let all = known(&self.running().cli(&["CLUSTER", "NODES"]), &self.ids);
        let owner = |hash_slot: &u16| {
            let has_it =
                |known: &&NodeLine| known.hash_slots.iter().any(|(first, last)| (first..=last).contains(&hash_slot));
            all.iter().find(has_it).expect("each hash slot has a master").node
        };
        hash_slots.iter().map(owner).collect()
    }

    /// Waits until the nodes that run and are not cut off agree on a master for each hash slot and take calls.
    #[track_caller]
    pub(crate) fn until_whole(&self) {
        eventually("the cluster takes calls", || {
            let state = |node: &RedisServer| {
                let info = node.cli(&["CLUSTER", "INFO"]);
                let ok = ["cluster_state:ok".to_owned(), format!("cluster_known_nodes:{}", self.nodes.len())];
                if ok.iter().all(|line| info.contains(line.as_str())) { Ok(()) } else { Err(info) }
            };
            self.well().try_for_each(state)
        });
    }

    /// Waits until each running replica has a connection to its master and its data.
    #[track_caller]
    pub(crate) fn until_in_sync(&self) {
        eventually("the replicas are in sync", || self.well().try_for_each(RedisServer::in_sync));
    }

    /// Moves a hash slot with its keys to another master.
    pub(crate) fn move_slot(&self, hash_slot: u16, to: usize) {
        self.begin_move(hash_slot, to);
        self.finish_move(hash_slot, to);
    }

    /// Marks a hash slot as on its way to another master: keys that its master does not have are answered with `ASK`.
    pub(crate) fn begin_move(&self, hash_slot: u16, to: usize) {
        let (slot, from) = (hash_slot.to_string(), self.owner(hash_slot));
        self.nodes[to].cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]]);
        self.nodes[from].cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]]);
    }

    /// Moves the keys of a hash slot that is on its way, and gives it to its new master.
    pub(crate) fn finish_move(&self, hash_slot: u16, to: usize) {
        let (slot, from) = (hash_slot.to_string(), self.owner(hash_slot));
        let target = &self.nodes[to];
        // Nothing creates keys on a master that a hash slot is leaving, so this ends.
        loop {
            let keys = self.nodes[from].cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "500"]);
            let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
            if keys.is_empty() {
                break;
            }
            let port = target.port().to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
            words.extend(target.password().into_iter().flat_map(|password| ["AUTH", password]));
            words.push("KEYS");
            words.extend(keys);
            let answer = self.nodes[from].cli(&words);
            assert!(["OK", "NOKEY"].contains(&&*answer), "{answer}");
        }
        // The new master first: the old one sends clients there as soon as it has given the hash slot up.
        let others = (0..self.nodes.len()).filter(|node| ![to, from].contains(node));
        for node in [to, from].into_iter().chain(others) {
            let node = &self.nodes[node];
            // Replicas are told by their masters.
            if node.is_running() && node.role().as_deref() == Some("master") {
                node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[to]]);
            }
        }
    }

    /// Promotes a replica, given by its place in `nodes`, with its master's consent: nothing is lost.
    pub(crate) fn promote(&self, replica: usize) {
        self.nodes[replica].cli(&["CLUSTER", "FAILOVER"]);
        self.until_master(replica);
    }

    /// Waits until a node is a master.
    #[track_caller]
    pub(crate) fn until_master(&self, node: usize) {
        eventually("the replica is a master", || match self.nodes[node].role() {
            Some(role) if role == "master" => Ok(()),
            other => Err(other),
        });
    }

    fn running(&self) -> &RedisServer {
        self.well().next().expect("a node runs")
    }

    /// The nodes that run and are not cut off from the others.
    fn well(&self) -> impl Iterator<Item = &RedisServer> {
        let is_isolated = |node: usize| self.isolated == Some(node);
        let nodes = self.nodes.iter().enumerate().filter(move |(place, _)| !is_isolated(*place));
        nodes.map(|(_, node)| node).filter(|node| node.is_running())
    }
}

fn config_of(config: &RedisConfig) -> RedisConfig {
    let mut config = RedisConfig { cluster: true, ..config.clone() };
    let own = [
        &format!("cluster-node-timeout {NODE_TIMEOUT}"),
        "cluster-replica-validity-factor 0",
        "cluster-allow-replica-migration no",
        "repl-ping-replica-period 1",
        "repl-diskless-sync-delay 0",
    ];
    config.lines.splice(0..0, own.map(str::to_owned));
    config.lines.extend(config.password.as_ref().map(|password| format!("masterauth {password}")));
    if config.tls {
        config.lines.push("tls-cluster yes".into());
    }
    config
}

fn known(text: &str, ids: &[String]) -> Vec<NodeLine> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let node = ids.iter().position(|id| id == words[0])?;
        // A hash slot on its way is written in brackets, beside the range that it is in.
        let ranges = words[8..].iter().filter(|word| !word.starts_with('['));
        let hash_slots = ranges.map(|word| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            (first.parse().unwrap(), last.parse().unwrap())
        });
        let flags: Vec<&str> = words[2].split(',').collect();
        let master = flags.contains(&"master") && !flags.contains(&"fail");
        Some(NodeLine { node, master, hash_slots: hash_slots.collect() })
    };
    text.lines().filter_map(line).collect()
}
