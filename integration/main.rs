//! Tests that need the outside: sockets, files, other programs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod chart;
mod check;
mod clients;
mod commands;
mod diff;
mod documentation;
mod envoy;
mod envoy_ratelimit;
mod faults;
mod gateways;
mod handover;
mod image;
mod import;
mod init;
mod linting;
mod listener_tls;
mod monitoring;
mod operating;
mod page;
mod proxy;
mod reading;
mod redis;
mod release;
mod serve;
mod server_only;
mod settling;
mod simulate;
mod spoe;
mod standard;
mod support;
mod systemd;
mod teams;
mod telemetry;
mod testing;
mod tokens;
mod ways_in;
mod xds;
