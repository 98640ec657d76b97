//! Flags for the admin listener of a running Weir, and the exit codes for its errors.

use std::path::PathBuf;

use http::StatusCode;
use serde_json::Value;

use super::admin_flags::TokenArgs;
use super::exit::Failure;
use crate::http::KeyPairFiles;
use crate::listeners::admin::client::{AdminClient, AdminTls};

#[derive(clap::Args, Debug)]
pub(super) struct AdminClientArgs {
    /// URL of the admin listener; `https://` if it uses TLS
    #[arg(long, global = true, value_name = "URL", env = "WEIR_ADMIN", default_value = "http://127.0.0.1:9090")]
    admin: String,

    #[command(flatten)]
    tls: AdminTlsClientArgs,

    #[command(flatten)]
    token: TokenArgs,
}

/// The files of a client of an admin listener that uses TLS.
#[derive(clap::Args, Debug)]
#[expect(clippy::struct_field_names, reason = "the fields are named as the flags")]
pub(super) struct AdminTlsClientArgs {
    /// Certificate authorities (PEM) for the admin listener's certificate, with an `https://` URL; defaults to the public ones
    #[arg(long, global = true, value_name = "FILE", env = "WEIR_ADMIN_CA")]
    admin_ca: Option<PathBuf>,

    /// Name that the admin listener's certificate must match; defaults to the URL's host
    #[arg(long, global = true, value_name = "NAME", env = "WEIR_ADMIN_SERVER_NAME")]
    admin_server_name: Option<String>,

    /// Client certificate (PEM) for an admin listener with `--admin-tls-client-ca`
    #[arg(long, global = true, value_name = "FILE", env = "WEIR_ADMIN_CERT", requires = "admin_key")]
    admin_cert: Option<PathBuf>,

    /// Private key (PEM) of `--admin-cert`
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "WEIR_ADMIN_KEY",
        requires = "admin_cert",
        hide_env_values = true
    )]
    admin_key: Option<PathBuf>,
}

impl AdminTlsClientArgs {
    pub(super) fn tls(&self) -> AdminTls {
        let pair = self.admin_cert.clone().zip(self.admin_key.clone());
        AdminTls {
            ca: self.admin_ca.clone(),
            server_name: self.admin_server_name.clone(),
            certificate: pair.map(|(certificate, key)| KeyPairFiles { certificate, key }),
        }
    }
}

impl AdminClientArgs {
    /// Returns a client with the token. A wrong URL or token is a usage error.
    pub(super) fn client(&self) -> Result<AdminClient, Failure> {
        let token = self.token.token().map_err(Failure::usage)?;
        AdminClient::new(&self.admin, &self.tls.tls(), token.as_deref()).map_err(Failure::usage)
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
