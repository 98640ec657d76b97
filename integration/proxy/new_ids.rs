//! A client that invents ids: the limit's bound, and the other limits' buckets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir::clock::Clock;
use weir::store::Store;
use weir::store::redis::{RedisOptions, RedisStore};

use crate::support::becomes;
use crate::support::redis::{RedisServer, STORE_TIMEOUT};
use crate::support::server::Setup;

const RULES: &str = "limits:
  Free: { by: { header: x-id }, count: 2, period: 1h, max_keys: 20, max_new_keys: 20 }
  Users: { by: { header: x-user }, rates: [{ count: 2, period: 1h }, { count: 3, period: 1d }] }";

#[test]
fn made_up_ids_share_one_bucket_of_their_limit_beyond_its_bound() {
    for is_redis in [false, true] {
        let redis = is_redis.then(RedisServer::plain);
        let now = Arc::new(AtomicU64::new(1_760_000_000_000_000));
        let mut setup = Setup::new(RULES);
        setup.clock = Clock::Set(now.clone());
        if let Some(redis) = &redis {
            let options = RedisOptions::new(redis.url(), setup.clock.clone());
            let target = RedisOptions { timeout: STORE_TIMEOUT, ..options }.target().unwrap();
            setup.store = Some(Arc::new(move || Ok(Store::Redis(RedisStore::connect(&target)))));
        }
        let weir = setup.start("echo");
        becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
        let mut client = weir.connect();
        let mut ask = |header: &str, id: u32| client.get_with("/", &[(header, &format!("{id}"))]).status();

        // The last three are beyond the bound.
        let statuses: Vec<u16> = (1..=23).map(|id| ask("x-id", id)).collect();
        assert_eq!(statuses, [vec![200; 22], vec![429]].concat(), "Redis: {is_redis}");
        assert_eq!([ask("x-id", 1), ask("x-id", 1)], [200, 429], "an id that was there keeps its bucket");
        for id in 100..140 {
            assert_eq!(ask("x-id", id), 429, "Redis: {is_redis}");
            assert_eq!([(); 3].map(|()| ask("x-user", id)), [200, 200, 429], "Redis: {is_redis}");
        }
        assert_eq!(weir.metric("weir_keys_limited_total{limit=\"Free\"}"), 43);
        assert_eq!(weir.metric("weir_keys_limited_total{limit=\"Users\"}"), 0);
        if let Some(redis) = &redis {
            assert_eq!(redis.cli(&["--raw", "keys", "*~new*"]).trim(), "weir:{0}:Free:~new");
        }

        now.fetch_add(7_200_000_000, Ordering::Relaxed);
        assert_eq!([(); 3].map(|()| ask("x-id", 200)), [200, 200, 429], "there is room again");
    }
}
