//! `weir health`: whether a Weir that runs is well, for the probes of containers and for scripts.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::ExitCode;
use super::values::parse_duration;
use crate::listeners::admin::client::{AdminClient, Page};

/// Asks a Weir that runs whether it is ready: 0 if it is, 1 if it is not or does not answer
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The admin door; of an address that stands for all of a machine's, such as 0.0.0.0, this machine's loopback
    #[arg(long, value_name = "URL", env = "WEIR_ADMIN", default_value = "http://127.0.0.1:9090")]
    admin: String,

    /// Asks only whether the process answers, so that one that starts or drains is well too
    #[arg(long)]
    live: bool,

    /// How long the answer may take
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    timeout: Duration,

    /// The file of flags that `weir serve` was given, for its `admin`
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
}

/// Asks, and prints one line: what the process says of itself, or why it is not well.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let client = match AdminClient::new(&args.admin, None) {
        Ok(client) => client,
        Err(error) => {
            writeln!(err, "error: --admin: {error}")?;
            return Ok(ExitCode::Usage);
        }
    };
    match ask(&client, args) {
        Ok(state) => {
            writeln!(out, "{state}")?;
            Ok(ExitCode::Success)
        }
        Err(reason) => {
            writeln!(err, "error: {reason}")?;
            Ok(ExitCode::BadInput)
        }
    }
}

fn ask(client: &AdminClient, args: &Args) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let (path, state): (_, fn(&Page) -> _) = if args.live { ("/healthz", live) } else { ("/readyz", ready) };
    let page = runtime.block_on(client.read(path, args.timeout));
    // A name that is being resolved is not waited for.
    runtime.shutdown_background();
    state(&page.map_err(|error| error.to_string())?)
}

/// What `/healthz` says.
fn live(page: &Page) -> Result<String, String> {
    if page.status == StatusCode::OK && page.body == "ok\n" { Ok("alive".to_owned()) } else { Err(stranger(page)) }
}

/// What `/readyz` says: `ready`, or in what it is less than that. The error is why it takes no requests.
fn ready(page: &Page) -> Result<String, String> {
    let body: Value = serde_json::from_slice(&page.body).unwrap_or_default();
    match (page.status, body["status"].as_str()) {
        (StatusCode::OK, Some(status)) => Ok(described(status, &body)),
        (StatusCode::SERVICE_UNAVAILABLE, Some(status)) => Err(format!("not ready: {}", described(status, &body))),
        _ => Err(stranger(page)),
    }
}

/// Something else listens there, such as the proxy.
fn stranger(page: &Page) -> String {
    format!("not an admin door: it answers {}, and not as one does", page.status)
}

/// `degraded; the store is down: no connection; the rules on disk are not in force: error: ...`, on one line.
fn described(status: &str, body: &Value) -> String {
    let mut parts = vec![status.to_owned()];
    let why = |key: &str| {
        // What is wrong with rules takes many lines; the first says what and where.
        let line = body[key].as_str().and_then(|text| text.lines().next()).unwrap_or_default();
        if line.is_empty() { String::new() } else { format!(": {line}") }
    };
    match body["store"].as_str() {
        None | Some("up") => {}
        Some(store) => parts.push(format!("the store is {store}{}", why("store_error"))),
    }
    if body["config"] == "error" {
        parts.push(format!("the files on disk are not in force{}", why("config_error")));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(read: fn(&Page) -> Result<String, String>, status: u16, body: &str, expected: Result<&str, &str>) {
        let page = Page { status: StatusCode::from_u16(status).unwrap(), body: body.to_owned().into() };
        assert_eq!(read(&page).as_deref().map_err(String::as_str), expected, "{status} {body}");
    }

    #[test]
    fn an_admin_door_says_whether_it_is_ready() {
        for (status, body, expected) in [
            (200, r#"{"status":"ready","store":"up","config":"ok"}"#, Ok("ready")),
            (
                200,
                r#"{"status":"degraded","store":"down","store_error":"no connection to redis","config":"ok"}"#,
                Ok("degraded; the store is down: no connection to redis"),
            ),
            (
                200,
                r#"{"status":"degraded","store":"partly up","config":"error","config_error":"error: a\n --> b\n"}"#,
                Ok("degraded; the store is partly up; the files on disk are not in force: error: a"),
            ),
            (503, r#"{"status":"draining","store":"up","config":"ok"}"#, Err("not ready: draining")),
            (503, r#"{"status":"starting"}"#, Err("not ready: starting")),
            (200, "{}", Err("not an admin door: it answers 200 OK, and not as one does")),
            (503, "upstream", Err("not an admin door: it answers 503 Service Unavailable, and not as one does")),
        ] {
            check(ready, status, body, expected);
        }
    }

    #[test]
    fn an_admin_door_says_that_it_lives() {
        check(live, 200, "ok\n", Ok("alive"));
        check(live, 200, "<html>", Err("not an admin door: it answers 200 OK, and not as one does"));
        check(live, 404, "ok\n", Err("not an admin door: it answers 404 Not Found, and not as one does"));
    }
}
