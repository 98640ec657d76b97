//! The flags for what is believed of headers, and of whom.

use ipnet::IpNet;

use super::values::parse_network;
use crate::http::ClientHeaders;
use crate::message::client_address::{AddressSource, TrustedProxies};
use crate::message::headers;
use crate::message::underscores::Underscores;

/// Whose headers are believed, and which of a client's are taken.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "What is believed of headers")]
pub(super) struct ClientArgs {
    /// Proxies in front whose `X-Forwarded-For` or `Forwarded` is believed; `unix` for the peers of a unix socket
    #[arg(long, value_name = "CIDR", env = "WEIR_TRUSTED_PROXIES", value_delimiter = ',', value_parser = parse_network)]
    trusted_proxies: Vec<IpNet>,

    /// Where trusted proxies say who the client is: `xff` is X-Forwarded-For, `forwarded` is Forwarded, each with the other
    /// one as a fallback where it is missing; `hops=N` is the Nth address from the right of X-Forwarded-For
    #[arg(long, value_name = "WHERE", env = "WEIR_CLIENT_ADDRESS", default_value = "xff")]
    client_address: AddressSource,

    /// Headers whose names have underscores, which many upstreams take for hyphens: `drop` removes them, `keep` forwards
    /// them, `reject` answers 400. Where a gateway asks, `drop` counts them as the names with hyphens
    #[arg(long, value_name = "WHAT", env = "WEIR_UNDERSCORES", default_value = "drop")]
    underscores: Underscores,

    /// Headers that are removed from requests unless a trusted proxy sends them, such as True-Client-IP
    #[arg(long, value_name = "NAME", env = "WEIR_DROP_HEADERS", value_delimiter = ',', value_parser = parse_name)]
    drop_headers: Vec<String>,
}

impl ClientArgs {
    /// The proxies that are believed.
    pub(super) fn trusted_proxies(&self) -> TrustedProxies {
        TrustedProxies::new(self.trusted_proxies.clone()).saying_in(self.client_address)
    }

    /// The headers that are taken.
    pub(super) fn headers(&self) -> ClientHeaders {
        ClientHeaders { underscores: self.underscores, dropped: self.drop_headers.clone().into() }
    }
}

/// The name of a header, in lower case and with hyphens for underscores: a header goes in either spelling.
fn parse_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    // Without these there is no request.
    let is_needed =
        ["host", "content-length", "transfer-encoding"].iter().any(|known| name.eq_ignore_ascii_case(known));
    if is_needed || !headers::is_name(name.as_bytes()) {
        return Err("expected the name of a header that requests can do without, such as `True-Client-IP`".to_owned());
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
