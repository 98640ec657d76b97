//! `Reserve` and `Commit` of Kuadrant's rate limit service, in memory and in Redis.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::Message;
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use weir::clock::Clock;
use weir::listeners::grpc::messages::rate_limit::{
    CommitRequest, CommitResponse, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, ReserveRequest,
    ReserveResponse,
};
use weir::listeners::grpc::messages::{self, MapEntry};
use weir::server::MakeStore;
use weir::store::Store;
use weir::store::redis::{RedisOptions, RedisStore};

use crate::support::becomes;
use crate::support::redis::{RedisServer, STORE_TIMEOUT};
use crate::support::server::{self, Setup};
use crate::support::weir::Weir;

const RULES: &str = "
limits:
  Fixed: { match: { domain: fixed }, by: { descriptor: user }, burst: 1000 }
  Even: { match: { domain: even }, by: { descriptor: user }, burst: 1000, count: 10, period: 1s }
  Window: { match: { domain: window }, by: { descriptor: user }, count: 1000, period: 1m, algorithm: fixed_window }
  Two: { match: { domain: two }, by: { descriptor: user }, rates: [{ count: 1000, period: 1m }, { count: 500, period: 1h }] }
  Local: { match: { domain: local }, by: { descriptor: user }, burst: 1000, on_store_error: local }
  Log: { match: { domain: log }, by: { descriptor: user }, count: 5, period: 1m, algorithm: sliding_log }
";

const OVER_LIMIT: i32 = 2;

/// A caller of the service, in one domain.
#[derive(Clone)]
struct Caller {
    channel: Channel,
    domain: &'static str,
}

impl Caller {
    async fn to(address: SocketAddr, domain: &'static str) -> Self {
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self { channel, domain }
    }

    async fn call<M, R>(&self, method: &str, message: M) -> Result<R, Status>
    where
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + 'static,
    {
        let path = format!("/kuadrant.service.ratelimit.v1.RateLimitService/{method}").parse().unwrap();
        let mut client = Grpc::new(self.channel.clone());
        client.ready().await.unwrap();
        let codec: ProstCodec<M, R> = ProstCodec::default();
        client.unary(Request::new(message), path, codec).await.map(Response::into_inner)
    }

    fn of(user: &str) -> Vec<RateLimitDescriptor> {
        let entry = MapEntry { key: "user".into(), value: user.to_owned().into() };
        vec![RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }]
    }

    async fn try_reserve(&self, user: &str, amount: u64, ttl: u64) -> Result<ReserveResponse, Status> {
        let ttl = Some(messages::Duration { seconds: ttl.try_into().unwrap(), nanos: 0 });
        let (domain, descriptors) = (self.domain.into(), Self::of(user));
        self.call("Reserve", ReserveRequest { domain, descriptors, amount, ttl }).await
    }

    /// The id of a reservation, or `None` if it is over the limit.
    async fn reserve(&self, amount: u64, ttl: u64) -> Option<String> {
        let response = self.try_reserve("a", amount, ttl).await.unwrap();
        assert_eq!(response.code == OVER_LIMIT, response.reservation_id.is_empty(), "{response:?}");
        (response.code != OVER_LIMIT).then_some(response.reservation_id)
    }

    async fn commit_for(&self, user: &str, id: &str, actual_amount: u64) -> bool {
        let (domain, descriptors) = (self.domain.into(), Self::of(user));
        let request = CommitRequest { domain, descriptors, reservation_id: id.to_owned(), actual_amount };
        let response: CommitResponse = self.call("Commit", request).await.unwrap();
        response.reservation_released
    }

    async fn commit(&self, id: &str, actual_amount: u64) -> bool {
        self.commit_for("a", id, actual_amount).await
    }

    /// The tokens that are left.
    async fn left(&self) -> u32 {
        let request = RateLimitRequest { domain: self.domain.into(), descriptors: Self::of("a"), hits_addend: 0 };
        let response: RateLimitResponse = self.call("CheckRateLimit", request).await.unwrap();
        response.statuses[0].limit_remaining
    }
}

/// A gateway, and its clock.
struct Gateway {
    weir: server::Weir,
    clock: Arc<AtomicU64>,
}

impl Gateway {
    fn new(redis: Option<&RedisServer>) -> Self {
        let clock = Arc::new(AtomicU64::new(1_700_000_000_000_000));
        let set = Clock::Set(clock.clone());
        let store = redis.map(|redis| -> MakeStore {
            let options = RedisOptions { timeout: STORE_TIMEOUT, ..RedisOptions::new(redis.url(), set.clone()) };
            let target = options.target().unwrap();
            Arc::new(move || Ok(Store::Redis(RedisStore::connect(&target))))
        });
        let weir = Setup { clock: set, store, ..Setup::new(RULES) }.start("echo");
        if redis.is_some() {
            becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
        }
        Self { weir, clock }
    }

    async fn caller(&self, domain: &'static str) -> Caller {
        Caller::to(self.weir.grpc, domain).await
    }

    fn wait(&self, seconds: u64) {
        self.clock.fetch_add(seconds * 1_000_000, Ordering::Relaxed);
    }
}

/// Plays the ways of reservations of a bucket of 1000, of which `refill` come back in 10 seconds.
async fn check_settlements(gateway: &Gateway, domain: &'static str, refill: u32) {
    let caller = gateway.caller(domain).await;
    assert_eq!(caller.left().await, 1000, "{domain}");
    // What is held is missing at once, and what was really used replaces it, once.
    let (first, second) = (caller.reserve(400, 60).await.unwrap(), caller.reserve(500, 60).await.unwrap());
    assert_eq!(caller.left().await, 100, "{domain}");
    assert_eq!(caller.reserve(101, 60).await, None, "{domain}");
    assert_eq!(caller.reserve(1001, 60).await, None, "{domain}");
    assert!(caller.commit(&first, 450).await, "more than held");
    assert_eq!(caller.left().await, 50, "{domain}");
    assert!(!caller.commit(&first, 450).await, "a second time");
    assert!(!caller.commit_for("b", &second, 1).await, "for another id");
    assert_eq!(caller.left().await, 50, "{domain}");
    assert!(caller.commit(&second, 100).await, "less than held");
    assert_eq!(caller.left().await, 450, "{domain}");
    let third = caller.reserve(450, 60).await.unwrap();
    assert_eq!((caller.left().await, caller.commit(&third, 0).await, caller.left().await), (0, true, 450), "{domain}");
    // A commit without an id is a report.
    assert!(!caller.commit("", 50).await);
    assert_eq!(caller.left().await, 400, "{domain}");
    // A hold ends by itself. Until then nothing of it comes back. Who commits later is charged, once.
    let late = caller.reserve(300, 10).await.unwrap();
    gateway.wait(9);
    assert_eq!(caller.left().await, 100 + refill * 9 / 10, "{domain}");
    gateway.wait(1);
    assert_eq!(caller.left().await, 400 + refill, "{domain}");
    assert_eq!((caller.commit(&late, 30).await, caller.commit(&late, 30).await), (true, false), "{domain}");
    assert_eq!(caller.left().await, 370 + refill, "{domain}");
    // An hour is the longest.
    let lost = caller.reserve(100, 100_000).await.unwrap();
    gateway.wait(3_600);
    let left = caller.left().await;
    assert!(left == 370 + refill && refill == 0 || left == 1000, "{domain}: {left}");
    gateway.wait(600);
    assert!(!caller.commit(&lost, 30).await, "it is forgotten");
    // Nothing to hold.
    let nothing = caller.try_reserve("a", 0, 1).await.unwrap();
    assert_eq!((nothing.code, nothing.reservation_id.as_str()), (1, ""));
}

async fn check_all(gateway: &Gateway) {
    for (domain, refill) in [("fixed", 0), ("even", 100)] {
        check_settlements(gateway, domain, refill).await;
    }
    // A window ends, and the hold does not end with it.
    gateway.clock.store(1_700_000_040_000_000, Ordering::Relaxed);
    let caller = gateway.caller("window").await;
    assert!(!caller.commit("", 600).await);
    let held = caller.reserve(300, 90).await.unwrap();
    assert_eq!(caller.left().await, 100);
    gateway.wait(61);
    assert_eq!(caller.left().await, 700);
    assert!(caller.commit(&held, 200).await);
    assert_eq!(caller.left().await, 800);
    // Both windows of a limit, or none.
    let caller = gateway.caller("two").await;
    let held = caller.reserve(500, 60).await.unwrap();
    assert_eq!((caller.reserve(1, 60).await, caller.left().await), (None, 0));
    assert_eq!((caller.commit(&held, 200).await, caller.left().await), (true, 300));
    // What cannot be reserved.
    let caller = gateway.caller("log").await;
    let refused = caller.try_reserve("a", 1, 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("Log cannot be reserved: only limits with `algorithm: gcra`"), "{refused}");
    let (domain, descriptors) = ("log".into(), Caller::of("a"));
    let malformed = CommitRequest { domain, descriptors, reservation_id: "x".into(), actual_amount: 1 };
    let refused = caller.call::<_, CommitResponse>("Commit", malformed).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "the reservation id is malformed"));
}

#[tokio::test]
async fn reservations_are_held_and_settled_in_memory() {
    check_all(&Gateway::new(None)).await;
}

#[tokio::test]
async fn reservations_are_held_and_settled_in_redis() {
    let redis = RedisServer::plain();
    check_all(&Gateway::new(Some(&redis))).await;
}

/// Reserves 100 of 1000 this many times at once, in turn at these gateways. Returns the ids.
async fn reserve_at_once(callers: &[Caller], times: usize, ttl: u64) -> Vec<String> {
    let mut calls = JoinSet::new();
    for caller in callers.iter().cycle().take(times) {
        let caller = caller.clone();
        calls.spawn(async move { caller.reserve(100, ttl).await });
    }
    calls.join_all().await.into_iter().flatten().collect()
}

#[tokio::test]
async fn of_many_at_once_as_many_pass_as_fit() {
    let gateway = Gateway::new(None);
    for domain in ["fixed", "even", "window"] {
        let caller = gateway.caller(domain).await;
        assert_eq!(reserve_at_once(&[caller], 64, 60).await.len(), 10, "{domain}");
    }
}

/// Two processes at one Redis. One dies; its reservations can be settled at the other, and end by themselves.
#[tokio::test]
async fn gateways_share_reservations_and_survive_each_other() {
    let redis = RedisServer::plain();
    let flags = ["--grpc", "127.0.0.1:0", "--store", &redis.url()];
    let gateways = [0; 2].map(|_| Weir::serve(RULES, &flags));
    gateways.iter().for_each(Weir::until_connected);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for domain in ["fixed", "even", "window"] {
        first.push(Caller::to(gateways[0].listener("grpc"), domain).await);
        second.push(Caller::to(gateways[1].listener("grpc"), domain).await);
    }
    for place in 0..2 {
        let both = [first[place].clone(), second[place].clone()];
        let held = reserve_at_once(&both, 64, 3).await;
        assert_eq!(held.len(), 10, "{}", both[0].domain);
        assert!(second[place].commit(&held[0], 20).await, "wherever it was reserved");
    }
    let dying = &first[2];
    assert_eq!(reserve_at_once(std::slice::from_ref(dying), 64, 3).await.len(), 10);
    gateways[0].signal("KILL");
    let caller = &second[2];
    assert_eq!(caller.reserve(100, 3).await, None, "they are still held");
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    assert!(caller.reserve(1000, 3).await.is_some(), "they have ended");
}

#[tokio::test]
async fn without_a_store_nothing_is_held_and_nothing_is_settled() {
    let mut redis = RedisServer::plain();
    let flags = ["--grpc", "127.0.0.1:0", "--store", &redis.url(), "--store-timeout", "100ms"];
    let weir = Weir::serve(RULES, &flags);
    weir.until_connected();
    let caller = Caller::to(weir.listener("grpc"), "fixed").await;
    let held = caller.reserve(100, 60).await.unwrap();
    redis.kill();
    let passed = caller.try_reserve("a", 100, 60).await.unwrap();
    assert_eq!((passed.code, passed.reservation_id.as_str()), (1, ""), "on_store_error: allow");
    let (domain, descriptors) = ("fixed".into(), Caller::of("a"));
    let request = CommitRequest { domain, descriptors, reservation_id: held, actual_amount: 1 };
    let status = caller.call::<_, CommitResponse>("Commit", request).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "the caller may try again");
    // Without an id nobody could end a hold, so reports are all that counts.
    let caller = Caller::to(weir.listener("grpc"), "local").await;
    let passed = caller.try_reserve("a", 700, 60).await.unwrap();
    assert_eq!((passed.code, passed.reservation_id.as_str()), (1, ""), "on_store_error: local");
    assert_eq!((caller.commit("", 600).await, caller.left().await), (false, 400));
    assert_eq!(caller.reserve(401, 60).await, None);
}
