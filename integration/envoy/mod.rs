//! The gRPC listener, with messages generated from Envoy's own files, valid and invalid.

pub(crate) mod authorization;
mod protocol;
mod quota;
mod rate_limit_service;
mod reservations;
mod services;
