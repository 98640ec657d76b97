//! The groups of servers that the faults happen to.

use crate::support::cluster::RedisCluster;
use crate::support::sentinel::SentinelGroup;

#[test]
fn a_cluster_moves_hash_slots_and_replaces_a_master() {
    let mut cluster = RedisCluster::start(3, 1);
    assert_eq!(cluster.masters(), [0, 1, 2]);
    let hash_slot = cluster.hash_slot("weir:{5}:A:1");
    let (from, to) = (cluster.owner(hash_slot), 2);
    assert_ne!(from, to);
    cluster.nodes[from].cli(&["SET", "weir:{5}:A:1", "x"]);
    cluster.begin_move(hash_slot, to);
    assert!(cluster.nodes[from].cli(&["GET", "weir:{5}:B:1"]).starts_with("ASK "));
    cluster.finish_move(hash_slot, to);
    assert_eq!((cluster.owner(hash_slot), &*cluster.nodes[to].cli(&["GET", "weir:{5}:A:1"])), (to, "x"));
    cluster.promote(4);
    cluster.nodes[0].kill();
    cluster.until_master(3);
    cluster.until_whole();
    cluster.nodes[0].restart();
    cluster.until_in_sync();
    cluster.move_slot(hash_slot, 4);
    assert_eq!(cluster.nodes[4].cli(&["GET", "weir:{5}:A:1"]), "x");
}

#[test]
fn sentinels_replace_a_master_that_is_gone() {
    let mut group = SentinelGroup::plain();
    assert_eq!(group.master(), 0);
    group.servers[0].kill();
    assert_eq!(group.until_replaced(0), 1);
    group.servers[0].restart();
    group.until_whole();
    assert_eq!(group.fail_over(), 0);
}
