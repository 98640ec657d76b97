//! The proxy door and the server around it, byte by byte.

mod admin;
mod draining;
mod failing;
mod forwarding;
mod large;
mod limiting;
mod waiting;
