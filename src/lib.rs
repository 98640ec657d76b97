//! Weir decides, for every request, whether it may pass, and tells the client where it stands.
//!
//! # The one way through
//!
//! ```text
//! listener -> Request (borrowed view: method, host, path, headers, client address, certificate subject)
//!          -> limiter              one entry for every listener; inside it:
//!               plan.charge_request(rules)     pure: match, build ids, terms of each id, charges
//!               deciding.round()             pure: what the store is to decide
//!               store.decide(&Batch)         the only await: one call for all charges, by one rule of taking
//!               deciding.conclude()          pure: verdict, and denied requests that are still to be counted
//!          -> Verdict -> answer    pure: status, headers, body; then metrics
//!          -> listener
//! ```
//!
//! No listener knows a limit, and no store knows HTTP. Allowed requests go on to an upstream; see [`listeners::proxy`].
//!
//! # The modules, from the top
//!
//! Imports run downwards only. `integration/layers` parses the sources and fails on an import that runs up, on a crate
//! that is named outside its place, and on a new cycle between folders.
//!
//! | module | what it is for |
//! |---|---|
//! | [`commands`] | what each command does and prints |
//! | [`server`] | the process: workers, sockets, reload, drain, hand-over to a new process |
//! | [`listeners`] | the protocols: the proxy, Envoy's gRPC services, checks over HTTP, `HAProxy`'s SPOE, the admin listener |
//! | [`simulation`] | what rules would have done to the requests of a log |
//! | [`limiter`] | from a request to its verdict: charges, store, failure policy; slots, settlement, what operators do with buckets, and the noticeboard: blocks, live overrides, resets |
//! | [`store`] | where buckets live: memory, or Redis (the only place that names the Redis crate) |
//! | [`config`] | `limits.yaml` to compiled rules, every mistake at once (the only place that names the YAML crate) |
//! | [`logs`] | access logs, read: formats, compression, what each tells of a request |
//! | [`telemetry`] | metrics, the access log and traces (the only place that names the Prometheus crate) |
//! | [`clock`] | the machine's clock, or one that a scenario sets |
//! | [`engine`] | pure, in rooms: [`algorithms`](engine::algorithms), [`request`](engine::request), [`limit`](engine::limit), [`charging`](engine::charging), [`deciding`](engine::deciding), [`telling`](engine::telling) and [`answer`](engine::answer) |
//! | [`jwt`] | verification of tokens, for limits by claims |
//! | [`http`] | HTTP without limits: transport, TLS, HTTP/1, HTTP/2, upstreams (the only place that names h2, rustls and httparse) |
//! | [`message`] | pure vocabulary of HTTP: headers, target, path, host, client address, trace context |
//! | [`label`] | a macro that declares closed sets of labels |
//!
//! # Threads
//!
//! A worker is a thread with a single-threaded runtime. It has its own sockets, connections to upstreams and connection to
//! Redis. A connection stays with the worker that accepted it, so the proxy counts references without atomics and takes
//! no locks. Workers share the rules (swapped whole), the memory store's shards, the metrics, and the count of
//! connections. One more thread runs the admin listener, the signals and the sync of the noticeboard; one reloads files, one
//! writes the access log, and one exports traces, if enabled.
//!
//! # Invariants
//!
//! - The engine does no I/O, reads no clock and cannot wait: time is an argument.
//! - A request is charged once, before its body is read, by one call to the store. If any enforced limit denies it, no
//!   bucket of the request changes, in memory as in Redis. What Redis has denied a moment ago may be denied without a call.
//! - Counting is exact: integers only, below 2^53, where Redis' Lua is exact, too. Both stores give the same answers.
//! - The starts of months and years are computed when rules load, from time zones that are compiled in. No decision
//!   looks up a time zone, and all gateways know the same ones.
//! - A request in flight gives its slots back when it ends, however it ends. The slots of a process that dies end with
//!   their lease.
//! - A response settles its request's cost at most once. A response that reports no cost leaves the reservation.
//! - Users' scripts run in the call that decides the request, last, and only if no other limit denies it. A script's
//!   error is an error of the store, not a denial.
//! - A message is read exactly as the upstream reads it, or rejected. HTTP/1 is read by our own code: in doubt the answer
//!   is 400 and the connection ends. An upstream's connection is reused only after a clean exchange.
//! - Rules and routes see a normalised path; the upstream sees what the client sent, or what its route makes of it.
//! - Bodies are pulled by their receiver, piece by piece: a slow receiver slows its sender down, and a body of any length
//!   takes the same memory.
//! - Whatever grows has a named bound, whatever waits has a deadline, and whatever is spawned has an owner.
//! - A request never waits for a store that is known to be down: `on_store_error` answers at once. Only while a broken
//!   connection is replaced for the first time do requests wait, within the store's timeout.
//! - Overload is not a store failure: a request that does not get its turn in time is rejected, whatever `on_store_error`
//!   says. Only silence and server errors are failures.
//! - A block is enforced before any store is asked, by every worker at once. A process without blocks pays for it with
//!   one pointer read. Limits that count denied requests still count the blocked ones.
//! - Clients' ids appear in the log only on request (`--log-ids clear`, `--access-log`). Operators' changes are logged
//!   with the bucket that they name.
//! - Neither a reload, of rules, routes or certificates, nor a hand-over costs a request or a connection.
//! - Only full buckets leave the memory store before their time, because a full bucket holds no information.

// First, because the modules after it use its macro.
#[macro_use]
pub mod label;

pub mod clock;
pub mod commands;
pub mod config;
pub mod engine;
pub mod http;
pub mod jwt;
pub mod limiter;
pub mod listeners;
pub mod logs;
pub mod message;
pub mod server;
pub mod simulation;
pub mod store;
pub mod telemetry;
