//! Faults of the store while three gateways share it under a steady load.
//!
//! A [`Fault`](fault::Fault) is begun and ended by functions; [`Stage::survive`](fault::Stage::survive) does the rest: it keeps
//! the load up until every gateway decides every id again, then checks that no limit was exceeded, every request was answered,
//! and the metrics agree with the answers. Most [faults](any_master) happen to a master, be it alone, under Sentinels or in a cluster.
//! With `--no-capture` each fault prints its row of the table in `docs/redis-faults.md`, and with `WEIR_SOAK_SECONDS` they happen again and
//! again for that long.

#![expect(clippy::print_stdout, reason = "the rows of a table, and memory")]

mod any_master;
mod checks;
mod cluster;
mod fault;
mod gateways;
mod limits;
mod load;
mod sentinel;
mod single;
