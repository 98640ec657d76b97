//! Flags for the store.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::value_parser;

use super::values::{parse_duration, typed_flag};
use crate::clock::Clock;
use crate::limiter::{DEFAULT_MAX_NEW_KEYS, KeyBounds};
use crate::store::StorePlan;
use crate::store::memory::{DEFAULT_MAX_KEYS, MemoryStore};
use crate::store::redis::{DEFAULT_PREFIX, DEFAULT_QUEUE, RedisOptions};

/// The value of `--store` for buckets in memory.
const MEMORY: &str = "memory";

/// The credentials and certificates for Redis.
const OF_REDIS: [&str; 5] = ["store-user", "store-password-file", "store-ca-file", "store-cert-file", "store-key-file"];

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Store")]
pub(super) struct StoreArgs {
    /// Where buckets live: `memory`, `redis://[[user]:password@]host[:port][/db]`, `redis+cluster://host:port,host:port`,
    /// `redis+sentinel://host:port,host:port/master-name[/db]`, the same with `rediss` for TLS, or `unix:///path` for a socket
    #[arg(long, value_name = "STORE", env = "WEIR_STORE", default_value = "memory", hide_env_values = true)]
    store: String,

    /// How long a decision may wait for Redis before the limits' `on_store_error` applies
    #[arg(long, value_name = "DURATION", env = "WEIR_STORE_TIMEOUT", default_value = "20ms", value_parser = parse_duration)]
    store_timeout: Duration,

    /// Requests that may wait for Redis, per worker; more are rejected with 503
    #[arg(long, value_name = "N", env = "WEIR_STORE_QUEUE", default_value_t = DEFAULT_QUEUE, value_parser = parse_at_least_one)]
    store_queue: usize,

    /// The beginning of all keys in Redis. Gateways with the same prefix share their counts
    #[arg(long, value_name = "PREFIX", env = "WEIR_STORE_PREFIX", default_value = DEFAULT_PREFIX)]
    store_prefix: String,

    /// User for Redis, if `--store` has none; needs `--store-password-file`
    #[arg(long, value_name = "USER", env = "WEIR_STORE_USER")]
    store_user: Option<String>,

    /// File with the password for Redis as it is, without percent-encoding. It is read again for each new connection, and when
    /// it changes, open connections log in again
    #[arg(long, value_name = "FILE", env = "WEIR_STORE_PASSWORD_FILE")]
    store_password_file: Option<PathBuf>,

    /// Certificate authorities (PEM) for Redis; defaults to the public ones
    #[arg(long, value_name = "FILE", env = "WEIR_STORE_CA_FILE")]
    store_ca_file: Option<PathBuf>,

    /// Client certificate (PEM) for Redis
    #[arg(long, value_name = "FILE", env = "WEIR_STORE_CERT_FILE")]
    store_cert_file: Option<PathBuf>,

    /// Private key (PEM) of `--store-cert-file`
    #[arg(long, value_name = "FILE", env = "WEIR_STORE_KEY_FILE")]
    store_key_file: Option<PathBuf>,

    /// Maximum number of buckets in memory, half of them reserved evenly for the limits; beyond it, a limit's new ids share
    /// one bucket. A million buckets take 58 MiB
    #[arg(long, value_name = "N", env = "WEIR_MAX_KEYS", default_value_t = DEFAULT_MAX_KEYS, value_parser = parse_at_least_one)]
    pub(super) max_keys: usize,

    /// New ids per second that each limit may add to Redis, per worker; beyond it, they share one bucket of the limit
    #[arg(long, value_name = "N", env = "WEIR_MAX_NEW_KEYS", default_value_t = DEFAULT_MAX_NEW_KEYS, value_parser = value_parser!(u64).range(1..))]
    max_new_keys: u64,
}

impl StoreArgs {
    /// Validates the flags without connecting. Redis decides by `clock`, memory by each batch's time.
    pub(super) fn plan(&self, clock: Clock, timeout: Option<Duration>) -> Result<StorePlan, String> {
        if self.store == MEMORY {
            return Ok(StorePlan::Memory(Arc::new(MemoryStore::new(self.max_keys))));
        }
        let options = RedisOptions {
            url: self.store.clone(),
            user: self.store_user.clone(),
            password_file: self.store_password_file.clone(),
            ca_file: self.store_ca_file.clone(),
            cert_file: self.store_cert_file.clone(),
            key_file: self.store_key_file.clone(),
            timeout: timeout.unwrap_or(self.store_timeout),
            queue: self.store_queue,
            prefix: self.store_prefix.clone(),
            clock,
        };
        StorePlan::remote(&options).map_err(|error| format!("--store: {error}"))
    }

    /// Fails for credentials or certificates without a server that they are for: `--store` was probably forgotten.
    pub(super) fn reject_flags_of_redis(&self) -> Result<(), String> {
        let given = [
            self.store_user.is_some(),
            self.store_password_file.is_some(),
            self.store_ca_file.is_some(),
            self.store_cert_file.is_some(),
            self.store_key_file.is_some(),
        ];
        let flag = OF_REDIS.iter().zip(given).find(|(_, is_given)| *is_given);
        flag.filter(|_| self.store == MEMORY).map_or(Ok(()), |(flag, _)| Err(of_redis(flag)))
    }

    /// Returns the flags for keys of their own, whose prefix ends with this.
    pub(super) fn with_prefix(&self, suffix: &str) -> Self {
        Self { store_prefix: format!("{}.{suffix}", self.store_prefix), ..self.clone() }
    }

    /// The bounds on the number of buckets.
    pub(super) fn key_bounds(&self, plan: &StorePlan) -> KeyBounds {
        KeyBounds { memory: plan.as_memory().cloned(), max_new_keys: self.max_new_keys }
    }
}

/// Fails as [`StoreArgs::reject_flags_of_redis`] does, for the flags of `weir check` and `weir test` that are typed. These commands leave
/// out the `store` of a gateway's file and variables, whose other keys then stand alone.
pub(super) fn reject_typed_flags_of_redis(typed: &[OsString]) -> Result<(), String> {
    let typed: Vec<&str> = typed.iter().filter_map(|argument| argument.to_str()).collect();
    let has_gateways_flags = matches!(typed.get(1), Some(&("check" | "test" | "replay")));
    let is_in_memory = typed_flag(&typed, "store").is_none_or(|store| store == MEMORY);
    let flag = OF_REDIS.iter().find(|flag| typed_flag(&typed, flag).is_some());
    flag.filter(|_| has_gateways_flags && is_in_memory).map_or(Ok(()), |flag| Err(of_redis(flag)))
}

fn of_redis(flag: &str) -> String {
    format!("--{flag} is for Redis: add `--store redis://host:port`, or remove it")
}

/// Parses a whole number of at least 1.
pub(super) fn parse_at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "expected a whole number of at least 1".into())
}
