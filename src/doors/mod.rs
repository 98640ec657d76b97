//! The protocols through which requests come. A door that limits them fills a
//! [`Request`](crate::engine::request::Request), asks the [`Gate`](crate::gate::Gate) and turns the verdict into its
//! protocol's answer; it knows no limit. The admin door is for the operator and limits nothing.

pub mod admin;
pub mod proxy;
