#!/usr/bin/env python3
"""What saturates first: gateways, nodes or round trips, for 1, 10 and 100 gateways on 1 to 16 nodes and Zipf ids.

A model without a random choice. Its costs are microseconds of a core, measured by `cargo bench --bench redis` and
`python3 integration/bench/proxies.py`; each is an option. A node of Redis decides on one core.

- The nth of the ids is asked for as often as 1 / n^EXPONENT says, by all workers alike. Ids spread over TAGS hash tags, and
  tags over the nodes by Redis Cluster's CRC16, each node with a contiguous range of hash slots.
- A call has the keys of one tag. A worker has at most OUTSTANDING calls under way to a single server, where all keys have one, and
  OUTSTANDING_IN_CLUSTER to a node of a cluster. What it is asked meanwhile collects in a call for each tag, at most 128
  charges. So calls fill as a node gets busy and answers later, up to WAIT_MS, which is half of the store's timeout.
- With leases a worker takes up to TOKENS of an id for SPAN, if it is asked for the id four times in SPAN or more. It asks Redis when
  they are used, or gives the rest back after three quarters of SPAN and asks again.

Each cell is the most decisions per second of all gateways together, and what is then busy: `gateways` (their cores), `node`
(the busiest one), `hot id` (the same, if its most popular id is more than half of its work) or `round trips` (the calls of a
worker to a node are all under way and full).
"""

import argparse
from binascii import crc_hqx

HASH_SLOTS = 16384
MOST_CHARGES = 128
LEAST_REQUESTS = 4

# Ids that are looked at one by one; the others are as many groups as needed, each of about one popularity.
SINGLE = 1000
GROWTH = 1.1


def mixed(number):
    """A hash of an id's number; splitmix64."""
    number = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return number ^ number >> 31


def tags_of_nodes(tags, nodes):
    """The node of each tag: the tag's name is the smallest number in its share of the hash slots."""
    slots = [None] * tags
    name = 0
    while None in slots:
        slot = crc_hqx(str(name).encode(), 0) % HASH_SLOTS
        tag = slot * tags // HASH_SLOTS
        slots[tag] = slot if slots[tag] is None else slots[tag]
        name += 1
    return [slot * nodes // HASH_SLOTS for slot in slots]


def popularity(ids, exponent):
    """The first ids' shares of all requests, and groups (ids, share of each) of the others."""
    def share(rank):
        return rank**-exponent

    groups, first = [], SINGLE + 1
    while first <= ids:
        last = min(ids, int(first * GROWTH))
        groups.append((last - first + 1, share((first + last) / 2)))
        first = last + 1
    single = [share(rank) for rank in range(1, min(SINGLE, ids) + 1)]
    whole = sum(single) + sum(count * each for count, each in groups)
    return [each / whole for each in single], [(count, each / whole) for count, each in groups]


class Model:
    def __init__(self, options, gateways, nodes, exponent, leases):
        self.options, self.nodes, self.leases = options, nodes, leases
        self.outstanding = options.outstanding if nodes == 1 else options.outstanding_in_cluster
        self.workers = gateways * options.cores
        tags = options.tags if nodes > 1 else 1
        of_tags = tags_of_nodes(tags, nodes)
        self.tags = [of_tags.count(node) for node in range(nodes)]
        self.shares = [count / tags for count in self.tags]
        single, self.groups = popularity(options.ids, exponent)
        self.single = [(each, of_tags[mixed(rank) % tags]) for rank, each in enumerate(single)]

    def asked(self, rate):
        """How often a worker asks Redis for an id, per second, if it is asked for it at `rate`."""
        if not self.leases:
            return rate
        tokens, span = self.options.lease_tokens, self.options.lease_ms / 1000
        if rate * span < LEAST_REQUESTS:
            return rate
        return max(rate / tokens, 2 / (0.75 * span) if rate * 0.75 * span < tokens else 0)

    def calls(self, asked, milliseconds):
        """A worker's calls per second to each node, if the nodes answer in this time."""
        charges = [
            each * milliseconds / 1000 / max(self.outstanding, tags) for each, tags in zip(asked, self.tags)
        ]
        return [each / min(max(own, 1), MOST_CHARGES) for each, own in zip(asked, charges)]

    def load(self, rate):
        """What is used of each resource at `rate` decisions a second, 1 being all of it, and its name."""
        options, per_worker = self.options, rate / self.workers
        asked, hottest = [0.0] * self.nodes, [0.0] * self.nodes
        for share, node in self.single:
            one = self.asked(per_worker * share)
            asked[node] += one
            hottest[node] = max(hottest[node], one)
        others = sum(count * self.asked(per_worker * share) for count, share in self.groups)
        asked = [own + others * share for own, share in zip(asked, self.shares)]
        busy = [
            self.workers * (calls * options.call_us + each * options.decision_us) / 1e6
            for each, calls in zip(asked, self.calls(asked, options.wait_ms))
        ]
        busiest = max(range(self.nodes), key=lambda node: busy[node])
        name = "hot id" if hottest[busiest] > asked[busiest] / 2 else "node"
        calls = sum(self.calls(asked, options.round_trip_ms))
        own = per_worker * options.request_us + sum(asked) * options.store_us + calls * options.gateway_call_us
        crowded = max(asked) * options.round_trip_ms / 1000 / self.outstanding / MOST_CHARGES
        return max((busy[busiest], name), (own / 1e6, "gateways"), (crowded, "round trips"))

    def most(self):
        """The most decisions per second, and what is busy then."""
        low, high = 1.0, 1e10
        while high / low > 1.001:
            middle = (low * high) ** 0.5
            if self.load(middle)[0] > 1:
                high = middle
            else:
                low = middle
        return low, self.load(high)[1]


def in_words(rate):
    return f"{rate / 1e6:.1f} M" if rate >= 1e6 else f"{rate / 1e3:.0f} k"


def parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--call-us", type=float, default=14.0, help="Redis, a call (default: %(default)s)")
    add("--decision-us", type=float, default=4.0, help="Redis, each decision in it (default: %(default)s)")
    add("--request-us", type=float, default=11.0, help="gateway, a request without a store (default: %(default)s)")
    add("--store-us", type=float, default=2.0, help="gateway, each decision asked of Redis (default: %(default)s)")
    add("--gateway-call-us", type=float, default=8.0, help="gateway, a call (default: %(default)s)")
    add("--cores", type=int, default=4, help="of a gateway, with a worker each (default: %(default)s)")
    add("--round-trip-ms", type=float, default=0.3, help="between gateway and node (default: %(default)s)")
    add("--outstanding", type=int, default=2, help="calls of a worker to a single server (default: %(default)s)")
    add("--outstanding-in-cluster", type=int, default=16, help="to a node of a cluster (default: %(default)s)")
    add("--tags", type=int, default=64, help="of a cluster (default: %(default)s)")
    add("--wait-ms", type=float, default=10.0, help="for a busy node's answer, at most (default: %(default)s)")
    add("--ids", type=int, default=1_000_000, help="(default: %(default)s)")
    add("--exponents", default="0,1,1.1", help="of Zipf's law, 0 for uniform ids (default: %(default)s)")
    add("--lease-tokens", type=int, default=50, help="(default: %(default)s)")
    add("--lease-ms", type=float, default=100.0, help="(default: %(default)s)")
    add("--gateways", default="1,10,100", help="(default: %(default)s)")
    add("--nodes", default="1,2,4,8,16", help="(default: %(default)s)")
    return parser


def main():
    options = parser().parse_args()
    nodes = [int(count) for count in options.nodes.split(",")]
    print("| gateways | ids | leases |", " | ".join(f"{count} node{'s' if count > 1 else ''}" for count in nodes), "|")
    print("|" + "---|" * (3 + len(nodes)))
    for gateways in [int(count) for count in options.gateways.split(",")]:
        for exponent in [float(text) for text in options.exponents.split(",")]:
            for leases in [False, True] if exponent else [False]:
                most = [Model(options, gateways, count, exponent, leases).most() for count in nodes]
                cells = " | ".join(f"{in_words(rate)}, {name}" for rate, name in most)
                ids = f"Zipf {exponent:g}" if exponent else "uniform"
                print(f"| {gateways} | {ids} | {'on' if leases else 'off'} | {cells} |")


if __name__ == "__main__":
    main()
