//! `weir health`: checks a running Weir, for container probes and scripts.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::admin_client_flags::AdminTlsClientArgs;
use super::exit::{ExitCode, Failure};
use super::runtime::block_on;
use super::values::parse_duration;
use crate::listeners::admin::client::{AdminClient, Page};

/// Checks that a running Weir is ready; exits with 1 if it is not or does not answer
#[derive(clap::Args, Debug)]
pub struct Args {
    /// URL of the admin listener, `https://` if it uses TLS; for a wildcard address such as 0.0.0.0, loopback is used
    #[arg(long, value_name = "URL", env = "WEIR_ADMIN", default_value = "http://127.0.0.1:9090")]
    admin: String,

    #[command(flatten)]
    tls: AdminTlsClientArgs,

    /// Check only that the process answers, even if it is starting or draining
    #[arg(long)]
    live: bool,

    /// Timeout for the response
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    timeout: Duration,

    /// The YAML file of flags of `weir serve`, for its `admin`
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
}

/// Prints one line: the state of the process, or why it is not ready.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let client = AdminClient::new(&args.admin, &args.tls.tls(), None).map_err(Failure::usage)?;
    let (path, state): (_, fn(&Page) -> _) = if args.live { ("/healthz", live) } else { ("/readyz", ready) };
    let page = block_on(client.read(path, args.timeout)).map_err(Failure::bad_input)?;
    let page = page.map_err(Failure::bad_input)?;
    writeln!(out, "{}", state(&page).map_err(Failure::bad_input)?)?;
    Ok(ExitCode::Success)
}

/// Reads a response of `/healthz`.
fn live(page: &Page) -> Result<String, String> {
    if page.status == StatusCode::OK && page.body == "ok\n" { Ok("alive".to_owned()) } else { Err(stranger(page)) }
}

/// Reads a response of `/readyz`: `ready`, or what is degraded. The error is why it takes no requests.
fn ready(page: &Page) -> Result<String, String> {
    let body: Value = serde_json::from_slice(&page.body).unwrap_or_default();
    match (page.status, body["status"].as_str()) {
        (StatusCode::OK, Some(status)) => Ok(described(status, &body)),
        (StatusCode::SERVICE_UNAVAILABLE, Some(status)) => Err(format!("not ready: {}", described(status, &body))),
        _ => Err(stranger(page)),
    }
}

/// The error if something else listens there, such as the proxy.
fn stranger(page: &Page) -> String {
    if page.requires_tls() {
        return "the admin listener requires TLS; write `--admin https://...`".to_owned();
    }
    format!("not an admin listener: unexpected response with {}", page.status)
}

/// `degraded; the store is down: no connection; the rules on disk are broken; running the previous ones: error: ...`, on one line.
fn described(status: &str, body: &Value) -> String {
    let mut parts = vec![status.to_owned()];
    let why = |key: &str| {
        // A report has many lines; the first is enough to find the problem.
        let line = body[key].as_str().and_then(|text| text.lines().next()).unwrap_or_default();
        if line.is_empty() { String::new() } else { format!(": {line}") }
    };
    match body["store"].as_str() {
        None | Some("up") => {}
        Some(store) => parts.push(format!("the store is {store}{}", why("store_error"))),
    }
    if body["config"] == "error" {
        parts.push(format!("the rules on disk are broken; running the previous ones{}", why("config_error")));
    }
    if body["certificate_error"].is_string() {
        parts.push(format!("a certificate on disk is broken; using the previous one{}", why("certificate_error")));
    }
    if body["routes_error"].is_string() {
        parts.push(format!("the routes on disk are broken; using the previous ones{}", why("routes_error")));
    }
    if let Some(error) = body["keys_error"].as_str() {
        parts.push(error.to_owned());
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
    fn an_admin_listener_says_whether_it_is_ready() {
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
                Ok(
                    "degraded; the store is partly up; the rules on disk are broken; running the previous ones: error: a",
                ),
            ),
            (503, r#"{"status":"draining","store":"up","config":"ok"}"#, Err("not ready: draining")),
            (503, r#"{"status":"starting"}"#, Err("not ready: starting")),
            (200, "{}", Err("not an admin listener: unexpected response with 200 OK")),
            (503, "upstream", Err("not an admin listener: unexpected response with 503 Service Unavailable")),
        ] {
            check(ready, status, body, expected);
        }
    }

    #[test]
    fn an_admin_listener_says_that_it_lives() {
        check(live, 200, "ok\n", Ok("alive"));
        check(live, 200, "<html>", Err("not an admin listener: unexpected response with 200 OK"));
        check(live, 404, "ok\n", Err("not an admin listener: unexpected response with 404 Not Found"));
    }
}
