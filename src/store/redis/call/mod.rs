//! Calls of the script: the command for the requests of a call, and the reply to it.

use redis::{ErrorKind, RedisError};

mod detail;
mod reply;
mod requests;
mod source;
mod user_scripts;
mod words;

pub(super) use reply::BadReply;
pub(super) use requests::{Requests, ScriptRef};
pub(super) use source::assembled;
pub(super) use user_scripts::probe;
pub(super) use words::lacks_input;

/// The error as the server worded it, or the client.
pub(super) fn describe(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) if error.kind() == ErrorKind::AuthenticationFailed => {
            "the server rejects the user or password".into()
        }
        (None, _) => error.to_string(),
    }
}
