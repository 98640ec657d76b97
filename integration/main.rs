//! What needs a socket, a Redis or another program.

mod redis;
mod support;
