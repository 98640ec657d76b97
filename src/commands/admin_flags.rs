//! Flags of the admin door, and of those who ask it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::listeners::admin::tokens::{self, Tokens};

/// The admin door of `weir serve`.
#[derive(clap::Args, Debug)]
pub(super) struct AdminArgs {
    /// The address of /metrics, /healthz, /readyz, /buckets and /blocks
    #[arg(long, value_name = "ADDR", env = "WEIR_ADMIN", default_value = "127.0.0.1:9090")]
    pub(super) admin: SocketAddr,

    #[command(flatten)]
    tokens: TokenArgs,
}

/// A token, or the file of it. Global, so that `weir bucket` takes them behind the name of a bucket too.
#[derive(clap::Args, Debug)]
pub(super) struct TokenArgs {
    /// The token of operators, without which buckets are only looked at; better by its variable or in a file, as any
    /// user of the machine sees flags
    #[arg(long, global = true, value_name = "TOKEN", env = "WEIR_ADMIN_TOKEN", hide_env_values = true)]
    admin_token: Option<String>,

    /// A file of tokens, one a line, behind a name for the log if it has one: `alice TOKEN`
    #[arg(long, global = true, value_name = "FILE", env = "WEIR_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
}

impl AdminArgs {
    /// Who may change buckets.
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
    /// The token to send, of a file the first one.
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

const BOTH: &str = "--admin-token and --admin-token-file say the same thing twice; give one of them";

fn read(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| wrong(file, &error.to_string()))
}

fn wrong(file: &Path, reason: &str) -> String {
    format!("--admin-token-file `{}`: {reason}", file.display())
}
