//! Failovers and moves of hash slots in a cluster of three masters with a replica each.

use std::time::Duration;

use weir::store::redis::TAG_NAMES;

use super::fault::{Buckets, Fault, Requests, Servers, Stage};
use crate::support::cluster::RedisCluster;
use crate::support::redis::RedisConfig;

const CALM: Duration = Duration::from_millis(400);

/// The number of hash slots that move, of which each takes several processes of redis-cli.
const MOVED: usize = 6;

pub(super) struct Nodes {
    cluster: RedisCluster,
    /// The hash slots of the tags.
    hash_slots: Vec<u16>,
    /// The master that the fault is about.
    master: usize,
}

impl Nodes {
    pub(super) fn start() -> Self {
        Self::on(RedisCluster::start(3, 1))
    }

    fn on(cluster: RedisCluster) -> Self {
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

    /// Cuts off the master of a hash slot. Clients still reach it.
    fn isolate(&mut self, hash_slot: u16) {
        self.master = self.cluster.owner(hash_slot);
        self.cluster.isolate(Some(self.master));
    }

    /// The tags' hash slots on the master, and another master.
    fn to_move(&self) -> (Vec<u16>, usize) {
        let owners = self.cluster.owners(&self.hash_slots);
        let owned = self.hash_slots.iter().zip(owners).filter(|(_, owner)| *owner == self.master);
        let owned = owned.map(|(slot, _)| *slot).take(MOVED).collect();
        let to = self.cluster.masters().into_iter().find(|master| *master != self.master).expect("there are three");
        (owned, to)
    }
}

impl Servers for Nodes {
    fn store(&self) -> String {
        self.cluster.url()
    }

    fn heal(&mut self) {
        if self.cluster.is_divisible() {
            self.cluster.isolate(None);
        }
        for node in &mut self.cluster.nodes {
            if !node.is_running() {
                node.restart();
            }
        }
        self.cluster.until_whole();
        self.cluster.until_in_sync();
        // Each time the one with the most tags, so that a fault concerns some.
        let owners = self.cluster.owners(&self.hash_slots);
        let count = |master: &usize| owners.iter().filter(|owner| *owner == master).count();
        self.master = self.cluster.masters().into_iter().max_by_key(count).expect("there are three");
    }
}

pub(super) const FAULTS: [Fault<Nodes>; 6] = [
    Fault {
        name: "cluster: a master is killed",
        begin: |nodes| nodes.cluster.nodes[nodes.master].kill(),
        lasts: Duration::ZERO,
        end: Nodes::until_replaced,
        requests: Requests::Undecided,
        buckets: Buckets::Lost,
    },
    Fault {
        name: "cluster: a master is frozen, then thawed beside the new one",
        begin: |nodes| nodes.cluster.nodes[nodes.master].freeze(),
        lasts: Duration::ZERO,
        end: |nodes| {
            nodes.until_replaced();
            nodes.cluster.nodes[nodes.master].thaw();
        },
        requests: Requests::Undecided,
        buckets: Buckets::Lost,
    },
    Fault {
        name: "cluster: a master is frozen for a moment",
        begin: |nodes| nodes.cluster.nodes[nodes.master].freeze(),
        lasts: Duration::from_millis(500),
        end: |nodes| nodes.cluster.nodes[nodes.master].thaw(),
        requests: Requests::Undecided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "cluster: CLUSTER FAILOVER",
        begin: |nodes| nodes.cluster.promote(nodes.replica()),
        lasts: Duration::ZERO,
        end: |_| (),
        requests: Requests::Decided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "cluster: hash slots move one by one",
        begin: |nodes| {
            let (hash_slots, to) = nodes.to_move();
            for slot in &hash_slots {
                nodes.cluster.move_slot(*slot, to);
            }
        },
        lasts: Duration::ZERO,
        end: |_| (),
        requests: Requests::Decided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "cluster: hash slots are on their way",
        begin: |nodes| {
            let (hash_slots, to) = nodes.to_move();
            for slot in &hash_slots {
                nodes.cluster.begin_move(*slot, to);
            }
            for slot in &hash_slots {
                nodes.cluster.finish_move(*slot, to);
            }
        },
        lasts: Duration::ZERO,
        end: |_| (),
        requests: Requests::Decided,
        buckets: Buckets::Kept,
    },
];

/// The partition lasts until all is decided again: the old master answers all the time, with the map that it had.
const PARTITIONS: [Fault<Nodes>; 3] = [
    Fault {
        name: "cluster: the master of the lowest hash slots is cut off from the others",
        begin: |nodes| nodes.isolate(0),
        lasts: Duration::ZERO,
        end: Nodes::until_replaced,
        requests: Requests::Undecided,
        buckets: Buckets::Lost,
    },
    Fault {
        name: "cluster: the master of the middle hash slots is cut off from the others",
        begin: |nodes| nodes.isolate(8_191),
        lasts: Duration::ZERO,
        end: Nodes::until_replaced,
        requests: Requests::Undecided,
        buckets: Buckets::Lost,
    },
    Fault {
        name: "cluster: the master of the highest hash slots is cut off from the others",
        begin: |nodes| nodes.isolate(16_383),
        lasts: Duration::ZERO,
        end: Nodes::until_replaced,
        requests: Requests::Undecided,
        buckets: Buckets::Lost,
    },
];

#[test]
fn limits_hold_while_a_master_is_cut_off_from_its_cluster() {
    let cluster = RedisCluster::divisible(&RedisConfig::default(), 3, 1);
    Stage::new(Nodes::on(cluster), CALM).survive_all(&PARTITIONS);
}

#[test]
fn limits_hold_through_the_faults_of_a_cluster() {
    Stage::new(Nodes::start(), CALM).survive_all(&FAULTS);
}
