//! Flags for the gRPC listener.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::values::{parse_duration, parse_duration_or_zero, parse_percent, parse_positive};
use crate::listeners::admin::Readiness;
use crate::listeners::grpc::{AddressSources, ConnectionAge, EnvoyLimits, EnvoyOptions};
use crate::listeners::http::FrontendOptions;
use crate::server::ListenAddress;

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "gRPC listener")]
pub(super) struct GrpcArgs {
    /// The address for Envoy's `ext_authz` and rate limit service over gRPC, or `unix:PATH`
    #[arg(long, value_name = "ADDR", env = "WEIR_GRPC")]
    pub(super) grpc: Option<ListenAddress>,

    /// Where `ext_authz` looks for the client's address before `source.address`: `external` is x-envoy-external-address,
    /// trust it only if Envoy sets `use_remote_address`; `forwarded` is X-Forwarded-For or Forwarded from
    /// `--trusted-proxies`; `source` is `source.address` alone
    #[arg(
        long,
        value_name = "NAME",
        env = "WEIR_GRPC_CLIENT_ADDRESS",
        value_delimiter = ',',
        default_value = "external,forwarded"
    )]
    grpc_client_address: Vec<ClientAddress>,

    /// Age at which a gRPC connection is asked to close (within 10%), so that its client can balance load; 0s for never
    #[arg(long, value_name = "DURATION", env = "WEIR_GRPC_MAX_CONNECTION_AGE", default_value = "30m", value_parser = parse_duration_or_zero)]
    grpc_max_connection_age: Duration,

    /// How long calls may continue on a connection that was asked to close
    #[arg(long, value_name = "DURATION", env = "WEIR_GRPC_MAX_CONNECTION_AGE_GRACE", default_value = "10s", value_parser = parse_duration)]
    grpc_max_connection_age_grace: Duration,

    /// Maximum size of a message; a longer one ends the call with code 8 (resource exhausted), and a gateway that fails open
    /// lets that request pass
    #[arg(long, value_name = "BYTES", env = "WEIR_GRPC_MAX_MESSAGE", default_value_t = 4 * 1024 * 1024, value_parser = clap::value_parser!(u32).range(1_024..))]
    grpc_max_message: u32,

    /// Concurrent calls per gRPC connection
    #[arg(long, value_name = "N", env = "WEIR_GRPC_STREAMS", default_value = "1024", value_parser = parse_positive::<NonZeroU32>)]
    grpc_streams: NonZeroU32,

    /// The percentage of a descriptor's limit from which `weir_near_limit_total` counts its requests, such as `80%`
    #[arg(long, value_name = "SHARE", env = "WEIR_NEAR_LIMIT", value_parser = parse_percent)]
    pub(super) near_limit: Option<u8>,

    /// Calls that a gateway may cancel within a second of sending them, per 10 s; more close the connection. Also applies to
    /// the HTTP check listener
    #[arg(long, value_name = "N", env = "WEIR_GRPC_RESETS", default_value = "100000", value_parser = parse_positive::<NonZeroU32>)]
    pub(super) grpc_resets: NonZeroU32,
}

/// `--grpc-client-address`
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum ClientAddress {
    External,
    Forwarded,
    Source,
}

impl GrpcArgs {
    fn address_sources(&self) -> AddressSources {
        AddressSources {
            external: self.grpc_client_address.contains(&ClientAddress::External),
            forwarded: self.grpc_client_address.contains(&ClientAddress::Forwarded),
        }
    }

    pub(super) fn options(&self, front: FrontendOptions, readiness: &Arc<Readiness>) -> EnvoyOptions {
        let address_sources = self.address_sources();
        let most = Some(self.grpc_max_connection_age).filter(|age| !age.is_zero());
        let connection_age = ConnectionAge { most, grace: self.grpc_max_connection_age_grace };
        let limits = EnvoyLimits {
            streams: self.grpc_streams.get(),
            resets: self.grpc_resets.get(),
            message: usize::try_from(self.grpc_max_message).unwrap_or(usize::MAX),
        };
        EnvoyOptions { front, address_sources, connection_age, limits, readiness: readiness.clone() }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        grpc: GrpcArgs,
    }

    #[test]
    fn sources_of_the_address_are_named() {
        let check = |flags: &[&str], external, forwarded| {
            let sources = Line::parse_from([&["weir"], flags].concat()).grpc.address_sources();
            assert_eq!(sources, AddressSources { external, forwarded }, "{flags:?}");
        };
        check(&[], true, true);
        check(&["--grpc-client-address", "forwarded"], false, true);
        check(&["--grpc-client-address", "source"], false, false);
        assert!(Line::try_parse_from(["weir", "--grpc-client-address", "xff"]).is_err());
    }
}
