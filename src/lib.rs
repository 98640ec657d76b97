//! Weir.
pub mod commands;
pub mod config;
pub mod doors;
pub mod engine;
pub mod gate;
pub mod metrics;
pub mod server;
pub mod store;
