//! A master with replicas, and Sentinels that watch them.

use super::eventually;
use super::injector::{Injector, PEERS};
use super::redis::{RedisConfig, RedisServer};

#[derive(Clone, Debug)]
pub(crate) struct SentinelConfig {
    /// For the master and its replicas.
    pub(crate) servers: RedisConfig,
    pub(crate) replicas: usize,
    /// Seconds that the replicas' clocks are ahead.
    pub(crate) replica_clock_offset: Option<i64>,
    /// For the Sentinels: a password, TLS. With TLS, give them the servers' certificates or the other way around.
    pub(crate) sentinels: RedisConfig,
    /// A master that is silent for this long, in milliseconds, is down.
    pub(crate) down_after: u32,
    /// Gateways reach the servers through injectors.
    pub(crate) injected: bool,
    /// The interval of the Sentinels' messages to each other and of their `INFO`, in milliseconds.
    pub(crate) period: u32,
}

impl Default for SentinelConfig {
    fn default() -> Self {
        let (servers, sentinels) = (RedisConfig::default(), RedisConfig::default());
        let (replica_clock_offset, injected) = (None, false);
        Self { servers, replicas: 1, replica_clock_offset, sentinels, down_after: 1500, injected, period: 200 }
    }
}

/// Three Sentinels and the servers that they watch as `main`. All are killed when this is dropped.
pub(crate) struct SentinelGroup {
    /// The first master, then its replicas.
    pub(crate) servers: Vec<RedisServer>,
    pub(crate) sentinels: Vec<RedisServer>,
    /// Those that gateways pass to each server, if the group has them.
    pub(crate) injectors: Vec<Injector>,
}

impl SentinelGroup {
    /// The name of the master.
    pub(crate) const NAME: &str = "main";

    const SENTINELS: usize = 3;

    pub(crate) fn plain() -> Self {
        Self::start(&SentinelConfig::default())
    }

    /// Starts the servers and waits until the Sentinels could fail over.
    pub(crate) fn start(config: &SentinelConfig) -> Self {
        let mut own = config.servers.clone();
        own.lines.extend(["repl-diskless-sync-delay 0", "repl-ping-replica-period 1"].map(String::from));
        own.lines.extend(own.password.as_ref().map(|password| format!("masterauth {password}")));
        let injectors: Vec<Injector> =
            (0..=config.replicas).filter(|_| config.injected).map(|_| Injector::new()).collect();
        let mut servers = vec![start_behind(&own, injectors.first())];
        if own.tls && own.certificates.is_none() {
            own.certificates = Some(servers[0].directory().to_owned());
        }
        own.clock_offset = config.replica_clock_offset;
        servers.extend((1..=config.replicas).map(|place| start_behind(&own, injectors.get(place))));
        let port = injectors.first().map_or(servers[0].port(), |injector| injector.address.port()).to_string();
        for replica in &servers[1..] {
            replica.cli(&["REPLICAOF", "127.0.0.1", &port]);
        }
        let name = Self::NAME;
        let mut watching = RedisConfig { sentinel: true, ..config.sentinels.clone() };
        if watching.tls && watching.certificates.is_none() {
            watching.certificates = Some(servers[0].directory().to_owned());
        }
        watching.lines.push(format!("sentinel monitor {name} 127.0.0.1 {port} 2"));
        watching.lines.push(format!("sentinel down-after-milliseconds {name} {}", config.down_after));
        watching.lines.push(format!("sentinel failover-timeout {name} 3000"));
        watching.lines.extend(own.password.iter().map(|password| format!("sentinel auth-pass {name} {password}")));
        if config.injected {
            watching.lines.extend(PEERS.map(String::from));
            watching.lines.push("sentinel announce-ip 127.0.0.1".into());
        }
        let sentinels = RedisServer::several(&watching, Self::SENTINELS);
        let group = Self { servers, sentinels, injectors };
        group.prepare(config.period);
        group
    }

    fn prepare(&self, period: u32) {
        let period = period.to_string();
        for sentinel in &self.sentinels {
            for parameter in ["INFO-PERIOD", "PUBLISH-PERIOD", "PING-PERIOD", "ASK-PERIOD"] {
                sentinel.cli(&["SENTINEL", "DEBUG", parameter, &period]);
            }
        }
        self.until_whole();
    }

    /// Waits until one server is the master, the others are in sync, and the running Sentinels know each other and them.
    #[track_caller]
    pub(crate) fn until_whole(&self) {
        let (others, replicas) = (Self::SENTINELS - 1, self.servers.len() - 1);
        eventually("the replicas are in sync", || {
            let roles: Vec<_> = self.servers.iter().map(RedisServer::role).collect();
            let masters = roles.iter().filter(|role| role.as_deref() == Some("master")).count();
            self.servers.iter().try_for_each(RedisServer::in_sync)?;
            if masters == 1 { Ok(()) } else { Err(format!("{roles:?}")) }
        });
        eventually("the Sentinels know each other and the replicas", || {
            for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_running()) {
                let known = sentinel.cli(&["SENTINEL", "MASTER", Self::NAME]);
                let lines: Vec<&str> = known.lines().collect();
                let value = |name: &str| Some(lines[lines.iter().position(|line| *line == name)? + 1].to_owned());
                let is = |name, count: usize| value(name) == Some(count.to_string());
                if !is("num-other-sentinels", others) || !is("num-slaves", replicas) {
                    return Err(known);
                }
                let replicas = sentinel.cli(&["SENTINEL", "REPLICAS", Self::NAME]);
                if ["s_down", "o_down", "disconnected"].iter().any(|flag| replicas.contains(flag)) {
                    return Err(replicas);
                }
            }
            Ok(())
        });
    }

    /// `redis+sentinel://`, the addresses of the Sentinels, and the name of the master.
    pub(crate) fn url(&self) -> String {
        let addresses: Vec<String> = self.sentinels.iter().map(RedisServer::address).collect();
        format!("redis+sentinel://{}/{}", addresses.join(","), Self::NAME)
    }

    /// The master that a running Sentinel names, as a place in `servers`.
    pub(crate) fn master(&self) -> usize {
        let sentinel = self.sentinels.iter().find(|sentinel| sentinel.is_running()).expect("a Sentinel runs");
        let address = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME]);
        let port: u16 = address.lines().nth(1).unwrap().parse().unwrap();
        let injected = self.injectors.iter().position(|injector| injector.address.port() == port);
        injected.or_else(|| self.servers.iter().position(|server| server.port() == port)).unwrap()
    }

    /// Waits until the Sentinels name another master than this one and it has the role; returns its place in `servers`.
    #[track_caller]
    pub(crate) fn until_replaced(&self, master: usize) -> usize {
        eventually("another server is the master", || {
            let new = self.master();
            let role = self.servers[new].role();
            if new != master && role.as_deref() == Some("master") { Ok(new) } else { Err((new, role)) }
        })
    }

    /// Makes the Sentinels promote a replica while the master runs; returns the new master's place in `servers`.
    #[track_caller]
    pub(crate) fn fail_over(&self) -> usize {
        let master = self.master();
        // A busy machine may keep the replica silent for so long that a failover is given up.
        eventually("a failover succeeds", || match self.master() {
            new if new != master => Ok(()),
            _ => Err(self.sentinels[0].cli(&["SENTINEL", "FAILOVER", Self::NAME])),
        });
        self.until_replaced(master)
    }
}

/// Starts a server that announces the address of an injector, if there is one.
fn start_behind(config: &RedisConfig, injector: Option<&Injector>) -> RedisServer {
    let Some(injector) = injector else { return RedisServer::start(config) };
    let mut config = config.clone();
    config.lines.extend(PEERS.map(String::from));
    let port = injector.address.port();
    config.lines.push(format!("replica-announce-ip 127.0.0.1\nreplica-announce-port {port}"));
    let server = RedisServer::start(&config);
    injector.lead_to(&server.address());
    server
}
