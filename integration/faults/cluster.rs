//! Failovers, partitions and moves of hash slots in a cluster of three masters with a replica each.

use std::time::Duration;

use weir::engine::algorithms::tag::TAGS;
use weir::store::redis::TAG_NAMES;

use super::any_master::{self, LINES, USER};
use super::fault::{Buckets, Fault, Servers, Stage};
use crate::support::cluster::RedisCluster;
use crate::support::injector::Injector;
use crate::support::redis::{RedisConfig, RedisServer};

/// The number of tags that a fault is about. Moving a hash slot takes several processes of redis-cli.
const AIMED: usize = 6;

struct Nodes {
    cluster: RedisCluster,
    /// The hash slots of the tags.
    hash_slots: Vec<u16>,
    /// The master that the fault is about.
    master: usize,
}

impl Nodes {
    fn start() -> Self {
        let config = RedisConfig { lines: LINES.map(str::to_owned).to_vec(), ..RedisConfig::default() };
        let cluster = RedisCluster::divisible(&config, 3, 1);
        let hash_slots = TAG_NAMES.iter().map(|tag| cluster.hash_slot(&format!("weir:{{{tag}}}:A:1"))).collect();
        Self { cluster, hash_slots, master: 0 }
    }

    /// The replica of the master.
    fn replica(&self) -> usize {
        (self.master + 3) % 6
    }

    fn until_replaced(&mut self) {
        self.cluster.until_master(self.replica());
        self.cluster.until_whole();
    }

    /// The hash slots that a fault is about, and another master.
    fn to_move(&self) -> (Vec<u16>, usize) {
        let [aimed, _] = self.tags();
        let to = self.cluster.masters().into_iter().find(|master| *master != self.master).expect("there are three");
        (aimed.iter().map(|tag| self.hash_slots[usize::from(*tag)]).collect(), to)
    }
}

impl Servers for Nodes {
    fn store(&self) -> String {
        self.cluster.url().replacen("://", &format!("://{USER}"), 1)
    }

    fn heal(&mut self, hash_slot: Option<u16>) {
        self.cluster.isolate(None);
        for node in &mut self.cluster.nodes {
            if !node.is_running() {
                node.restart();
            }
        }
        self.cluster.until_whole();
        self.cluster.until_in_sync();
        let owners = self.cluster.owners(&self.hash_slots);
        let count = |master: &usize| owners.iter().filter(|owner| *owner == master).count();
        let most = || self.cluster.masters().into_iter().max_by_key(count).expect("there are three");
        self.master = hash_slot.map_or_else(most, |hash_slot| self.cluster.owner(hash_slot));
    }

    fn replaced(&self) -> Buckets {
        let is_replica = self.cluster.nodes[self.master].role().as_deref() == Some("slave");
        if is_replica { Buckets::Lost } else { Buckets::Kept }
    }

    fn master(&mut self) -> &mut RedisServer {
        &mut self.cluster.nodes[self.master]
    }

    fn injector(&self) -> &Injector {
        &self.cluster.injectors[self.master]
    }

    fn tags(&self) -> [Vec<u8>; 2] {
        let owners = self.cluster.owners(&self.hash_slots);
        let (mut aimed, others): (Vec<u8>, Vec<u8>) =
            (0..TAGS).partition(|tag| owners[usize::from(*tag)] == self.master);
        aimed.truncate(AIMED);
        [aimed, others]
    }
}

const FAULTS: [Fault<Nodes>; 8] = [
    Fault {
        lasts: Duration::ZERO,
        buckets: Buckets::Lost,
        ..Fault::new("the master is killed", |nodes| nodes.master().kill(), Nodes::until_replaced)
    },
    Fault {
        lasts: Duration::ZERO,
        buckets: Buckets::Lost,
        ..Fault::new(
            "the master is frozen, then thawed beside the new one",
            |nodes| nodes.master().freeze(),
            |nodes| {
                nodes.until_replaced();
                nodes.master().thaw();
            },
        )
    },
    Fault::unnoticed("`CLUSTER FAILOVER`", |nodes| {
        nodes.cluster.promote(nodes.replica());
        nodes.master = nodes.replica();
    }),
    Fault::unnoticed("hash slots move one by one", |nodes| {
        let (hash_slots, to) = nodes.to_move();
        for slot in &hash_slots {
            nodes.cluster.move_slot(*slot, to);
        }
    }),
    Fault::unnoticed("hash slots are on their way", |nodes| {
        let (hash_slots, to) = nodes.to_move();
        for slot in &hash_slots {
            nodes.cluster.begin_move(*slot, to);
        }
        let key = format!("weir:{{{}}}:A:1", TAG_NAMES[usize::from(nodes.tags()[0][0])]);
        assert!(nodes.master().cli(&["GET", &key]).starts_with("ASK "));
        for slot in &hash_slots {
            nodes.cluster.finish_move(*slot, to);
        }
    }),
    partition("the master of the lowest hash slots is cut off from the others", 0),
    partition("the master of the middle hash slots is cut off from the others", 8_191),
    partition("the master of the highest hash slots is cut off from the others", 16_383),
];

/// Lasts until all is decided again: the old master answers gateways all the time, with the map that it had.
const fn partition(name: &'static str, hash_slot: u16) -> Fault<Nodes> {
    let isolate = |nodes: &mut Nodes| nodes.cluster.isolate(Some(nodes.master));
    let (hash_slot, lasts) = (Some(hash_slot), Duration::ZERO);
    Fault { hash_slot, lasts, buckets: Buckets::Lost, ..Fault::new(name, isolate, Nodes::until_replaced) }
}

#[test]
fn limits_hold_in_a_cluster() {
    let faults: Vec<_> = any_master::faults().into_iter().chain(FAULTS).collect();
    Stage::survive("cluster", Nodes::start(), &faults);
}
