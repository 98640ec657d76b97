//! Weir decides, for every request, whether it may pass, and tells the client where it stands.
//!
//! # The one way through
//!
//! ```text
//! listener -> Request (borrowed view: method, host, path, headers, client address, certificate's subject)
//!      -> rules.charges(&Request)          pure: match, build ids, look up overrides
//!      -> store.decide(&Batch)             the only await: one call for all charges, all or nothing
//!      -> Verdict -> reply                 pure: status, headers, body; then metrics
//!      -> listener
//! ```
//!
//! No listener knows a limit, and no store knows HTTP. What passes goes on to an upstream; [`listeners::proxy`] says how.
//!
//! # The modules, from the top
//!
//! Imports run downwards only. The guard in `integration/layers` parses `src/` and fails on one that runs up, on a cycle between
//! folders, and on a crate that is named outside its place.
//!
//! | module | what it is for |
//! |---|---|
//! | [`commands`] | what each command does and prints |
//! | [`server`] | workers, listeners, reload, drain, hand-over to a new process |
//! | [`listeners`] | the protocols through which requests and questions come: the proxy, Envoy's gRPC services, checks over HTTP, `HAProxy`'s SPOE, and the admin listener; [`http`] is what those that speak HTTP share |
//! | [`limiter`] | from a request to its verdict: charges, store, failure policy, metrics of decisions; slots and leases of requests in flight, settlement by responses, blocks, and what operators do with buckets |
//! | [`store`] | where buckets live: memory, or Redis (the only place that names the Redis crate) |
//! | [`config`] | `limits.yaml` to compiled rules, every mistake at once (the only place that names the YAML crate) |
//! | [`engine`] | pure: the algorithms, matching, ids, overrides, the client's address, the headers of a reply |
//! | [`telemetry`] | every metric, label and bucket of the product; for `limiter`, `listeners`, `server` and `commands` |
//!
//! # Threads
//!
//! A worker is a thread with a runtime of one thread, and has its own listeners, connections to upstreams and connection
//! to Redis. A connection stays with the worker that accepted it, so the proxy counts references without atomics and
//! locks nothing. Workers share the rules (swapped whole), the memory store's shards, the metrics, and the count of
//! connections. One more thread has the admin listener, the signals and the watch over what is blocked, one reads changed
//! files, one writes the access log, and one sends traces if there are any.
//!
//! # Invariants
//!
//! - The engine does no input or output, reads no clock and cannot wait: time is an argument.
//! - A request is charged once, before its body is read, by one call to the store. If any enforced limit denies it, no
//!   bucket of the request changes, in memory as in Redis.
//! - Counting is exact: integers only, below 2^53 where Redis' Lua counts too. Both stores give the same answers.
//! - Where months and years begin is computed when rules load, from time zones that are in the binary: no decision asks
//!   a time zone, and all gateways know the same ones.
//! - A request in flight gives its slots back when it ends, however it ends; what a process leaves behind that dies ends
//!   with its lease.
//! - What a response tells of a cost is settled at most once, and a response that tells nothing leaves what was reserved.
//! - Scripts of users run in the call that decides the request, last, and only if nothing else refuses it; what one of
//!   them gets wrong is an error of the store, not a denial.
//! - A message is read as the server behind the proxy reads it or refused: HTTP/1 is read by our own code, on doubt the
//!   answer is 400 and the end of the connection, and an upstream's connection is used again only after a clean exchange.
//! - Rules and routes see a normalised path, and the upstream sees what the client sent.
//! - Bodies are pulled by whoever sends them on, piece by piece: a slow receiver slows its sender down, and a body of any
//!   length takes the same memory.
//! - Nothing that grows is without a named bound, nothing that waits without a deadline, nothing that is spawned
//!   without an owner.
//! - A request never waits for a store that is known to be away: its limits' `on_store_error` answers at once. Only while a broken
//!   connection is being replaced for the first time do requests wait, within the store's timeout.
//! - Overload is not a store failure: a request that does not get its turn in time is rejected, whatever `on_store_error` says.
//!   Only silence and errors of the server are failures.
//! - What an operator blocks is denied before any store is asked, by every worker at once; a process that nobody is blocked
//!   in looks at one pointer for it. Limits beside a block that count denied requests are told afterwards.
//! - Who clients are is in no line of the log unless somebody asks for it (`--log-ids clear`, `--access-log`); what operators
//!   change is there with the bucket that they name.
//! - Neither a reload, of rules or of certificates, nor a hand-over costs a request or a connection.
//! - Only a full bucket leaves the memory store before its time, because a full bucket says nothing.

pub mod clock;
pub mod commands;
pub mod config;
pub mod engine;
pub mod http;
pub mod limiter;
pub mod listeners;
pub mod message;
pub mod server;
pub mod store;
pub mod telemetry;
