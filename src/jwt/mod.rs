//! Verifies JSON Web Tokens (RFC 7519) of issuers that the rules name, for limits that go by claims.
//!
//! Only signatures by a public key are accepted: `none` and HMAC are not, so that nobody can sign with a public key as the
//! secret. The algorithm must fit the type of the issuer's key. `kid` is only compared with those of the issuer's keys, and
//! nothing that a token names is ever fetched.
//!
//! A token without a usable result leaves a request without claims. That is all: to reject it is the upstream's task.

mod cache;
mod checker;
mod keys;
mod ring;
mod token;

#[cfg(test)]
pub(crate) mod testing;

pub use checker::Checker;
pub use keys::{KeySet, MAX_JWKS};
pub use ring::KeyRing;
