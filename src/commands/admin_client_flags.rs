//! Flags for the admin listener of a running Weir, and the exit codes for its errors.

use http::StatusCode;
use serde_json::Value;

use super::admin_flags::TokenArgs;
use super::exit::Failure;
use crate::listeners::admin::client::AdminClient;

#[derive(clap::Args, Debug)]
pub(super) struct AdminClientArgs {
    /// URL of the admin listener
    #[arg(long, global = true, value_name = "URL", env = "WEIR_ADMIN", default_value = "http://127.0.0.1:9090")]
    admin: String,

    #[command(flatten)]
    token: TokenArgs,
}

impl AdminClientArgs {
    /// Returns a client with the token. A wrong URL or token is a usage error.
    pub(super) fn client(&self) -> Result<AdminClient, Failure> {
        let token = self.token.token().map_err(Failure::usage)?;
        AdminClient::new(&self.admin, token.as_deref()).map_err(|error| Failure::usage(format!("--admin: {error}")))
    }
}

/// Returns the failure for an answer other than 200, whose body is a problem (RFC 9457).
pub(super) fn failure(status: StatusCode, problem: &Value) -> Failure {
    let mut detail = problem["detail"].as_str().unwrap_or(status.as_str()).to_owned();
    if status == StatusCode::UNAUTHORIZED {
        detail.push_str(" (--admin-token, --admin-token-file)");
    }
    if status.is_server_error() { Failure::could_not_start(detail) } else { Failure::bad_input(detail) }
}
