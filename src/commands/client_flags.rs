//! Flags for trusted proxies and for headers that clients may not set.

use ipnet::IpNet;

use super::values::parse_network;
use crate::engine::request::incoming::ReadingOptions;
use crate::message::client_address::{AddressSource, TrustedProxies};
use crate::message::client_headers::ClientHeaders;
use crate::message::headers;
use crate::message::path::EscapedSlashes;
use crate::message::underscores::Underscores;

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Trusted headers")]
pub(super) struct ClientArgs {
    #[command(flatten)]
    pub(super) trust: TrustArgs,

    /// Headers with underscores in their names, which many upstreams read as hyphens: `drop` removes them, `keep` forwards
    /// them, `reject` answers 400. For decision services, `drop` reads them as the names with hyphens
    #[arg(long, value_name = "WHAT", env = "WEIR_UNDERSCORES", default_value = "drop")]
    pub(super) underscores: Underscores,

    /// Headers to remove unless a trusted proxy sends them, such as True-Client-IP
    #[arg(long, value_name = "NAME", env = "WEIR_DROP_HEADERS", value_delimiter = ',', value_parser = parse_name)]
    drop_headers: Vec<String>,
}

#[derive(clap::Args, Debug)]
pub(super) struct TrustArgs {
    /// Networks of trusted proxies, whose `X-Forwarded-For` or `Forwarded` is believed; `unix` for peers on a unix socket
    #[arg(long, value_name = "CIDR", env = "WEIR_TRUSTED_PROXIES", value_delimiter = ',', value_parser = parse_network)]
    trusted_proxies: Vec<IpNet>,

    /// Where trusted proxies put the client's address: `xff` (X-Forwarded-For) or `forwarded` (Forwarded), each falling
    /// back to the other if missing; or `hops=N`, the Nth address from the right of X-Forwarded-For
    #[arg(long, value_name = "WHERE", env = "WEIR_CLIENT_ADDRESS", default_value = "xff")]
    client_address: AddressSource,
}

impl TrustArgs {
    pub(super) fn trusted_proxies(&self) -> TrustedProxies {
        TrustedProxies { source: self.client_address, ..TrustedProxies::new(self.trusted_proxies.clone()) }
    }
}

impl ClientArgs {
    pub(super) fn reading(&self, escaped_slashes: EscapedSlashes) -> ReadingOptions {
        let trusted_proxies = self.trust.trusted_proxies();
        ReadingOptions { trusted_proxies, client_headers: self.headers(), escaped_slashes }
    }

    pub(super) fn headers(&self) -> ClientHeaders {
        ClientHeaders { underscores: self.underscores, dropped: self.drop_headers.clone().into() }
    }
}

/// Parses a header name into lower case with hyphens: headers are dropped in either spelling.
fn parse_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    // Requests cannot be forwarded without these.
    let is_needed =
        ["host", "content-length", "transfer-encoding"].iter().any(|known| name.eq_ignore_ascii_case(known));
    if is_needed || !headers::is_name(name.as_bytes()) {
        return Err("expected a header name other than Host, Content-Length and Transfer-Encoding".to_owned());
    }
    Ok(name.to_ascii_lowercase().replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_headers() {
        assert_eq!(parse_name("True_Client-IP").as_deref(), Ok("true-client-ip"));
        for name in ["", "x y", "x:", "Host", "content-length"] {
            assert!(parse_name(name).is_err(), "{name}");
        }
    }
}
