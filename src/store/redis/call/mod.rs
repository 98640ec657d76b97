//! Calls of the script: the command for the requests of a call, and the reply to it.

use redis::{ErrorKind, RedisError, Value};

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
        (Some(code), Some(detail)) => without_place(format!("{code} {detail}")),
        (Some(code), None) => code.to_owned(),
        (None, _) if error.kind() == ErrorKind::AuthenticationFailed => {
            "the server rejects the user or password".into()
        }
        (None, _) => error.to_string(),
    }
}

/// The text of a bulk string, if it is UTF-8.
pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// Redis 7 passes on an error of a command in a script as it is. 6.2 puts the place in the script before it:
/// `@user_script: 225: -OOM command not allowed when used memory > 'maxmemory'.`
fn without_place(text: String) -> String {
    let inner = text.strip_prefix("@user_script").and_then(|rest| rest.split_once(": -"));
    inner.map(|(_, error)| error.to_owned()).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_no_place_in_the_script() {
        let of = |text: &str| without_place(text.to_owned());
        assert_eq!(of("@user_script: 225: -READONLY You can't write"), "READONLY You can't write");
        assert_eq!(of("@user_script: 1: Unknown"), "@user_script: 1: Unknown");
        assert_eq!(of("ERR usage: - KEY"), "ERR usage: - KEY");
    }
}
