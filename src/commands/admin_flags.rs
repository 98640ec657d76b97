//! Flags of the admin listener, and of the commands that call it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::listeners::admin::tokens::{self, Tokens};

/// The admin listener of `weir serve`.
#[derive(clap::Args, Debug)]
pub(super) struct AdminArgs {
    /// The admin listener's address (/metrics, /healthz, /readyz, /buckets, /blocks)
    #[arg(long, value_name = "ADDR", env = "WEIR_ADMIN", default_value = "127.0.0.1:9090")]
    pub(super) admin: SocketAddr,

    #[command(flatten)]
    tokens: TokenArgs,
}

/// A token or a file of tokens. Global, so that `weir bucket` also accepts the flags after a bucket's name.
#[derive(clap::Args, Debug)]
pub(super) struct TokenArgs {
    /// The operators' token; without one, buckets are read-only. Prefer the environment variable or a file: flags are
    /// visible to every user of the machine
    #[arg(long, global = true, value_name = "TOKEN", env = "WEIR_ADMIN_TOKEN", hide_env_values = true)]
    admin_token: Option<String>,

    /// A file with one token per line, optionally after a name for the log: `alice TOKEN`
    #[arg(long, global = true, value_name = "FILE", env = "WEIR_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
}

impl AdminArgs {
    /// The tokens that may change buckets.
    pub(super) fn tokens(&self) -> Result<Tokens, String> {
        let TokenArgs { admin_token, admin_token_file } = &self.tokens;
        match (admin_token, admin_token_file) {
            (None, None) => Ok(Tokens::default()),
            (Some(token), None) => Tokens::one(token).map_err(|reason| format!("--admin-token: {reason}")),
            (None, Some(file)) => Tokens::parse(&read(file)?).map_err(|reason| wrong(file, &reason)),
            (Some(_), Some(_)) => Err(BOTH.to_owned()),
        }
    }
}

impl TokenArgs {
    /// The token to send; from a file, the first one.
    pub(super) fn token(&self) -> Result<Option<String>, String> {
        match (&self.admin_token, &self.admin_token_file) {
            (None, None) => Ok(None),
            (Some(token), None) => Ok(Some(token.trim().to_owned())),
            (None, Some(file)) => {
                let text = read(file)?;
                tokens::first(&text).map(|token| Some(token.to_owned())).map_err(|reason| wrong(file, &reason))
            }
            (Some(_), Some(_)) => Err(BOTH.to_owned()),
        }
    }
}

const BOTH: &str = "--admin-token and --admin-token-file cannot be combined";

fn read(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| wrong(file, &error.to_string()))
}

fn wrong(file: &Path, reason: &str) -> String {
    format!("--admin-token-file `{}`: {reason}", file.display())
}
