//! The gRPC door: asked as Envoy asks, with messages that are generated from Envoy's own files, and as nobody should.

mod authorization;
mod protocol;
mod rate_limit_service;
mod services;
