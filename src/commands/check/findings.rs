//! Judges the facts about a store: what keeps Weir from working there, what costs limits their exactness, and what to change.

use std::time::Duration;

use crate::commands::print::{counted, joined};
use crate::config::Severity;
use crate::store::redis::inspection::facts::{Info, Inspection, Purpose, Sentinel, Server, ServerFacts, Watch};

/// Clocks may differ by this much, in microseconds: buckets may be dated this far ahead (`lua/prelude.lua`).
const MOST_OFFSET: u64 = 1_000_000;

/// A server may use this share of its memory, in percent.
const MOST_MEMORY: u64 = 80;

const HASH_SLOTS: u64 = 16_384;

/// The oldest version that the tests run.
const OLDEST_REDIS: (u64, u64) = (6, 2);

/// A problem, and what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// An error if Weir cannot work with it.
    pub(super) severity: Severity,
    pub(super) text: String,
}

/// The needs of the rules, and the flags that decisions are compared with.
#[derive(Debug)]
pub(super) struct Expected {
    /// The algorithms of the limits; `None` if there are no rules.
    pub(super) algorithms: Option<Vec<&'static str>>,
    /// `--store-timeout`.
    pub(super) timeout: Duration,
}

/// A row of the tables below: a finding if its condition holds. What is not known has no finding.
type Row = Option<Finding>;

fn error(holds: bool, text: impl Into<String>) -> Row {
    holds.then(|| Finding { severity: Severity::Error, text: text.into() })
}

fn warning(holds: bool, text: impl Into<String>) -> Row {
    holds.then(|| Finding { severity: Severity::Warning, text: text.into() })
}

/// All problems, in the order of the facts.
pub(super) fn findings(found: &Inspection, expected: &Expected) -> Vec<Finding> {
    let mut rows = of_decisions(found, expected);
    rows.extend(of_sentinels(&found.sentinels));
    for server in &found.servers {
        let of_server = match &server.facts {
            // The store met the same server with the same result.
            Err(reason) if found.fault.as_ref() == Some(reason) => Vec::new(),
            Err(reason) => vec![warning(server.is_spare, reason), error(!server.is_spare, reason)],
            Ok(facts) => {
                let mut rows = of_rights(facts, expected);
                rows.extend(of_settings(facts));
                rows.extend(of_cluster(found, server, facts));
                rows.push(of_clock(facts));
                rows
            }
        };
        let named = |finding: Finding| Finding { text: format!("{}: {}", server.address, finding.text), ..finding };
        rows.extend(of_server.into_iter().map(|row| row.map(named)));
    }
    rows.push(of_clocks(&found.servers));
    rows.into_iter().flatten().collect()
}

fn of_decisions(found: &Inspection, expected: &Expected) -> Vec<Row> {
    let fault = found.fault.as_deref().unwrap_or_default();
    let is_error = |finding: &Finding| finding.severity == Severity::Error;
    let lacks_rights = |server: &Server| {
        server.facts.as_ref().is_ok_and(|facts| of_rights(facts, expected).iter().flatten().any(is_error))
    };
    // The rights that are missing say more than the server's error.
    let is_explained = fault.starts_with("NOPERM") && found.servers.iter().any(lacks_rights);
    let timeout = expected.timeout;
    let (p50, p99) = found.decisions.map_or_else(Default::default, |taken| (taken.p50, taken.p99));
    let change = "raise --store-timeout, or use a server that is nearer or less busy";
    vec![
        error(found.fault.is_some() && !is_explained, fault),
        error(
            p50 > timeout,
            format!("half of the decisions take longer than the store timeout of {timeout:?}: {change}"),
        ),
        warning(
            p50 <= timeout && p99 > timeout / 2,
            format!("1% of the decisions take longer than half of the store timeout of {timeout:?}: {change}"),
        ),
    ]
}

fn of_sentinels(sentinels: &[Sentinel]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut masters: Vec<&str> = Vec::new();
    for Sentinel { address, answer } in sentinels {
        match answer {
            Err(reason) => rows.push(warning(true, format!("Sentinel {address}: {reason}"))),
            Ok(Watch { master, no_failover }) => {
                let reason = no_failover.as_deref().unwrap_or_default();
                let text = format!("Sentinel {address}: the master cannot be replaced: {reason}");
                rows.push(warning(no_failover.is_some(), text));
                if !masters.contains(&master.as_str()) {
                    masters.push(master);
                }
            }
        }
    }
    let names = joined(&masters, ", ");
    let text = format!("the Sentinels name different masters, {names}: check them after a failover");
    rows.push(warning(masters.len() > 1, text));
    rows
}

/// The rights that the limits need and the user lacks.
fn of_rights(facts: &ServerFacts, expected: &Expected) -> Vec<Row> {
    let Some(missing) = &facts.rights else { return Vec::new() };
    let user = &facts.user;
    let keys = missing.keys.as_deref().unwrap_or_default();
    let text = format!("user `{user}` has no access to the keys: `ACL SETUSER {user} ~{keys}`");
    let mut rows = vec![error(missing.keys.is_some(), text)];
    for (purpose, commands) in &missing.by_purpose {
        let names = joined(commands, ", ");
        let grants = joined(commands.iter().map(|command| format!("+{}", command.to_ascii_lowercase())), " ");
        let text =
            |what: &str| format!("user `{user}` may not call {names}, which {what}: `ACL SETUSER {user} {grants}`");
        rows.push(match (purpose, &expected.algorithms) {
            (Purpose::Limits, _) => error(true, text("every limit needs")),
            (Purpose::Blocks, _) => warning(true, text("`weir bucket block` needs")),
            (Purpose::Notifications, _) => warning(true, text("lets idle gateways poll less often")),
            (Purpose::Algorithm(name), None) => warning(true, text(&format!("limits with `algorithm: {name}` need"))),
            (Purpose::Algorithm(name), Some(used)) => {
                error(used.contains(name), text(&format!("limits with `algorithm: {name}` need")))
            }
        });
    }
    rows
}

fn of_settings(facts: &ServerFacts) -> Vec<Row> {
    let Some(info) = &facts.info else { return Vec::new() };
    let Info { policy, maxmemory, used_memory, .. } = info;
    let (major, minor) = OLDEST_REDIS;
    let share = used_memory.saturating_mul(100).checked_div(*maxmemory).unwrap_or(0);
    let fails = !info.persistence_works;
    let takes_writes = facts.stops_writes == Some(false);
    vec![
        warning(
            info.product == "Redis" && version(&info.version) < OLDEST_REDIS,
            format!("Redis {} is older than {major}.{minor}, the oldest that Weir is tested with", info.version),
        ),
        warning(
            *maxmemory > 0 && !matches!(policy.as_str(), "noeviction" | "volatile-ttl" | ""),
            format!(
                "maxmemory-policy is `{policy}`: a full server drops buckets, which resets their limits: \
                 `CONFIG SET maxmemory-policy volatile-ttl` drops those that are full soonest, `noeviction` none"
            ),
        ),
        warning(
            info.evicted_keys > 0,
            format!(
                "the server has dropped {} for lack of memory: raise maxmemory",
                counted(usize::try_from(info.evicted_keys).unwrap_or(usize::MAX), "key")
            ),
        ),
        warning(
            used_memory.saturating_mul(100) > maxmemory.saturating_mul(MOST_MEMORY) && *maxmemory > 0,
            format!("{share}% of maxmemory are used: raise it before decisions fail or limits reset"),
        ),
        warning(fails && takes_writes, "the last write to disk failed: read the server's log"),
        error(
            fails && !takes_writes,
            "the last write to disk failed, and the server rejects charges until one works: free disk space, read the \
             server's log, or `CONFIG SET stop-writes-on-bgsave-error no`",
        ),
    ]
}

/// The state of a cluster, and a node that was taken for a single server.
fn of_cluster(found: &Inspection, server: &Server, facts: &ServerFacts) -> Vec<Row> {
    let (is_node, replicas) = facts.info.as_ref().map_or((false, None), |info| (info.is_node, info.replicas));
    let address = &server.address;
    if !found.is_cluster {
        let text = format!(
            "this is a node of a cluster: use `redis+cluster://{address}`, so that all nodes share the buckets"
        );
        return vec![warning(is_node, text)];
    }
    let (state, assigned) =
        facts.cluster.as_ref().map_or(("ok", HASH_SLOTS), |cluster| (&*cluster.state, cluster.assigned_slots));
    let missing = HASH_SLOTS.saturating_sub(assigned);
    vec![
        error(
            missing > 0,
            format!(
                "{assigned} of {HASH_SLOTS} hash slots have a node: assign the other {missing}, as by `redis-cli --cluster fix`"
            ),
        ),
        error(
            missing == 0 && state != "ok",
            format!("cluster_state is `{state}`: `redis-cli --cluster check` says why"),
        ),
        warning(
            facts.cluster.is_none(),
            "the user may not call CLUSTER INFO, which shows whether a node is cut off from its cluster: `ACL SETUSER USER +cluster|info`",
        ),
        warning(
            !server.is_spare && replicas == Some(0),
            "no replica: while this node is down, its share of the buckets has no decisions",
        ),
    ]
}

/// A clock that differs from this machine's.
fn of_clock(facts: &ServerFacts) -> Row {
    let (micros, within) = facts.clock.map_or((0, 0), |clock| (clock.micros, clock.within));
    let offset = Duration::from_micros(micros.unsigned_abs());
    let direction = if micros < 0 { "behind" } else { "ahead of" };
    warning(
        micros.unsigned_abs().saturating_sub(within) > MOST_OFFSET,
        format!("the clock is {offset:.1?} {direction} this machine's: synchronize both, as by NTP"),
    )
}

/// Clocks of servers that differ from each other: one may take over from another.
fn of_clocks(servers: &[Server]) -> Row {
    let clocks = || servers.iter().filter_map(|server| server.facts.as_ref().ok()?.clock);
    let least = clocks().map(|clock| clock.micros + within(clock.within)).min().unwrap_or(0);
    let most = clocks().map(|clock| clock.micros - within(clock.within)).max().unwrap_or(0);
    let spread = u64::try_from(most.saturating_sub(least)).unwrap_or(0);
    let shown = Duration::from_micros(spread);
    warning(
        spread > MOST_OFFSET,
        format!(
            "the servers' clocks differ by {shown:.1?}, and a failover makes limits jump by as much: synchronize them"
        ),
    )
}

fn within(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

/// The first two numbers of a version.
fn version(text: &str) -> (u64, u64) {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::inspection::facts::{ClockOffset, ClusterState, MissingRights, RoundTrips};

    /// A server with nothing to complain about.
    fn good() -> ServerFacts {
        ServerFacts {
            info: Some(Info {
                product: "Redis",
                version: "7.0.15".into(),
                policy: "noeviction".into(),
                used_memory: 1 << 20,
                maxmemory: 100 << 20,
                replicas: Some(1),
                persistence_works: true,
                ..Info::default()
            }),
            user: "weir".into(),
            rights: Some(MissingRights::default()),
            clock: Some(ClockOffset { micros: 300, within: 50 }),
            ..ServerFacts::default()
        }
    }

    fn of(facts: Vec<ServerFacts>) -> Inspection {
        let server = |(port, facts)| Server { address: format!("h:{port}"), is_spare: false, facts: Ok(facts) };
        Inspection { servers: (1..).zip(facts).map(server).collect(), ..Inspection::default() }
    }

    fn judged(found: &Inspection, algorithms: Option<&[&'static str]>) -> Vec<(bool, String)> {
        let expected = Expected { algorithms: algorithms.map(<[_]>::to_vec), timeout: Duration::from_millis(20) };
        findings(found, &expected)
            .into_iter()
            .map(|finding| (finding.severity == Severity::Error, finding.text))
            .collect()
    }

    /// One change to a good server has one finding, which contains `part`.
    #[track_caller]
    fn case(change: impl FnOnce(&mut Inspection), is_error: bool, part: &str) {
        let mut found = of(vec![good()]);
        change(&mut found);
        let judged = judged(&found, Some(&["gcra", "concurrency"]));
        assert!(judged.len() == 1 && judged[0].0 == is_error && judged[0].1.contains(part), "{part}: {judged:?}");
    }

    fn server(found: &mut Inspection) -> &mut ServerFacts {
        found.servers[0].facts.as_mut().unwrap()
    }

    fn info(found: &mut Inspection) -> &mut Info {
        server(found).info.as_mut().unwrap()
    }

    fn lacks(found: &mut Inspection, purpose: Purpose, commands: Vec<&'static str>) {
        server(found).rights.as_mut().unwrap().by_purpose.push((purpose, commands));
    }

    #[test]
    fn a_good_server_has_no_findings_and_neither_has_one_that_tells_nothing() {
        assert_eq!(judged(&of(vec![good()]), Some(&["gcra"])), []);
        assert_eq!(judged(&of(vec![ServerFacts::default()]), None), []);
    }

    #[test]
    fn each_problem_says_what_to_change() {
        case(|found| info(found).policy = "allkeys-lru".into(), false, "h:1: maxmemory-policy is `allkeys-lru`");
        case(|found| info(found).policy = "volatile-lru".into(), false, "`CONFIG SET maxmemory-policy volatile-ttl`");
        case(|found| info(found).evicted_keys = 1, false, "dropped 1 key for lack of memory");
        case(|found| info(found).used_memory = 95 << 20, false, "95% of maxmemory");
        case(|found| info(found).version = "5.0.14".into(), false, "older than 6.2");
        case(|found| info(found).is_node = true, false, "use `redis+cluster://h:1`");
        case(|found| info(found).persistence_works = false, true, "rejects charges");
        case(
            |found| server(found).clock = Some(ClockOffset { micros: -2_000_000, within: 9 }),
            false,
            "2.0s behind this",
        );
        let slow = |millis| Some(RoundTrips { p50: Duration::from_millis(millis), p99: Duration::from_millis(15) });
        case(|found| found.decisions = slow(1), false, "raise --store-timeout");
        case(|found| found.decisions = slow(21), true, "raise --store-timeout");
        case(|found| lacks(found, Purpose::Limits, vec!["PTTL"]), true, "`ACL SETUSER weir +pttl`");
        let cannot_call = |found: &mut Inspection| {
            found.fault = Some("NOPERM this user has no permissions to run the 'evalsha' command".into());
            lacks(found, Purpose::Limits, vec!["EVALSHA"]);
        };
        case(cannot_call, true, "may not call EVALSHA, which every limit needs: `ACL SETUSER weir +evalsha`");
        case(|found| lacks(found, Purpose::Blocks, vec!["ZADD", "HSET"]), false, "`ACL SETUSER weir +zadd +hset`");
        case(
            |found| lacks(found, Purpose::Notifications, vec!["CLIENT|TRACKING"]),
            false,
            "`ACL SETUSER weir +client|tracking`",
        );
        case(
            |found| lacks(found, Purpose::Algorithm("concurrency"), vec!["ZADD"]),
            true,
            "`algorithm: concurrency` need",
        );
        case(
            |found| server(found).rights.as_mut().unwrap().keys = Some("weir:{0}:*".into()),
            true,
            "`ACL SETUSER weir ~weir:{0}:*`",
        );
    }

    #[test]
    fn rights_are_expected_for_the_algorithms_of_the_rules() {
        let mut found = of(vec![good()]);
        lacks(&mut found, Purpose::Algorithm("queue"), vec!["XADD"]);
        found.fault = Some("NOPERM this user has no permissions to run the 'eval' command".into());
        assert_eq!(judged(&found, Some(&["gcra"])).len(), 1, "another right is missing");
        found.fault = None;
        assert_eq!(judged(&found, Some(&["gcra"])), []);
        let text =
            "h:1: user `weir` may not call XADD, which limits with `algorithm: queue` need: `ACL SETUSER weir +xadd`";
        assert_eq!(judged(&found, None), [(false, text.to_owned())]);
        assert!(judged(&found, Some(&["queue"]))[0].0);
    }

    #[test]
    fn clocks_are_compared_with_each_other() {
        let with = |micros| ServerFacts { clock: Some(ClockOffset { micros, within: 100_000 }), ..good() };
        assert_eq!(judged(&of(vec![with(-600_000), with(500_000)]), None), []);
        let judged = judged(&of(vec![with(-900_000), with(900_000)]), None);
        assert!(judged.len() == 1 && judged[0].1.starts_with("the servers' clocks differ by 1.6s"), "{judged:?}");
    }

    #[test]
    fn a_fault_is_told_once() {
        let reason = "Connection refused (os error 111)".to_owned();
        let mut found = of(vec![]);
        found.fault = Some(reason.clone());
        found.servers.push(Server { address: "h:1".into(), is_spare: false, facts: Err(reason.clone()) });
        assert_eq!(judged(&found, None), [(true, reason.clone())]);
        found.servers.push(Server { address: "h:2".into(), is_spare: true, facts: Err("no route".into()) });
        assert_eq!(judged(&found, None), [(true, reason), (false, "h:2: no route".to_owned())]);
    }

    #[test]
    fn a_cluster_needs_all_hash_slots_and_should_have_replicas() {
        let node = |state: &str, assigned_slots| ServerFacts {
            cluster: Some(ClusterState { state: state.into(), assigned_slots }),
            ..good()
        };
        let cluster = |facts| Inspection { is_cluster: true, ..of(facts) };
        assert_eq!(judged(&cluster(vec![node("ok", 16_384)]), None), []);
        let text = "15000 of 16384 hash slots have a node: assign the other 1384";
        let part = &judged(&cluster(vec![node("fail", 15_000)]), None)[0];
        assert!(part.0 && part.1.contains(text), "{part:?}");
        assert!(judged(&cluster(vec![node("fail", 16_384)]), None)[0].1.contains("cluster_state is `fail`"));
        let mut alone = cluster(vec![node("ok", 16_384)]);
        info(&mut alone).replicas = Some(0);
        assert!(judged(&alone, None)[0].1.contains("no replica"));
        alone.servers[0].is_spare = true;
        assert_eq!(judged(&alone, None), []);
    }

    #[test]
    fn sentinels_are_compared() {
        let watch = |master: &str, no_failover: Option<&str>| {
            Ok(Watch { master: master.into(), no_failover: no_failover.map(str::to_owned) })
        };
        let mut found = of(vec![good()]);
        let sentinel = |port, answer| Sentinel { address: format!("s:{port}"), answer };
        found.sentinels = vec![sentinel(1, watch("h:1", None)), sentinel(2, watch("h:1", None))];
        assert_eq!(judged(&found, None), []);
        found.sentinels = vec![
            sentinel(1, watch("h:1", None)),
            sentinel(2, watch("h:2", Some("NOQUORUM 1 usable Sentinels"))),
            sentinel(3, Err("Connection refused".into())),
        ];
        let texts: Vec<String> = judged(&found, None).into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert!(texts[0].contains("s:2: the master cannot be replaced: NOQUORUM"), "{texts:?}");
        assert!(texts[1].contains("s:3: Connection refused") && texts[2].contains("h:1, h:2"), "{texts:?}");
    }
}
