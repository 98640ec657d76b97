//! The proxy listener and the server around it, byte by byte.

mod accept;
mod access_log;
mod added_headers;
mod admin;
mod admission;
mod bodies;
mod buffering;
mod delaying;
mod draining;
mod exchanges;
mod failing;
mod forwarding;
mod http1;
mod http2;
mod identities;
mod in_flight;
mod large;
mod limiting;
mod listeners;
mod new_ids;
mod retrying;
mod routes;
mod silence;
mod slots_of_processes;
mod tls;
mod token_budgets;
mod unfinished;
mod upstream_hosts;
mod upstream_http2;
mod upstream_refusals;
mod upstream_streams;
mod upstream_tls;
mod upstreams;
mod waiting;

/// The metric of connections that failed before HTTP, by reason.
fn failed(reason: &str) -> String {
    format!("weir_http_connections_failed_total{{reason=\"{reason}\"}}")
}
