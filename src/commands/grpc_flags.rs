//! Flags for the gRPC listener.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::values::{parse_duration, parse_duration_or_zero};
use crate::engine::answer::headers::Generations;
use crate::listeners::admin::Readiness;
use crate::listeners::grpc::{AddressSources, ConnectionAge, EnvoyLimits, EnvoyOptions};
use crate::listeners::http::FrontendOptions;
use crate::server::ListenAddress;

/// Envoy's external authorization and rate limit service.
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
    grpc_client_address: Vec<String>,

    /// Age at which a gRPC connection is asked to close (within 10 %), so that its client can balance load; 0s for never
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
    #[arg(long, value_name = "N", env = "WEIR_GRPC_STREAMS", default_value = "1024")]
    grpc_streams: NonZeroU32,

    /// Calls that a gateway may cancel within a second of sending them, per 10 s; more close the connection. Also applies to
    /// the HTTP check listener
    #[arg(long, value_name = "N", env = "WEIR_GRPC_RESETS", default_value = "100000")]
    grpc_resets: NonZeroU32,
}

impl GrpcArgs {
    pub(super) fn address_sources(&self) -> Result<AddressSources, String> {
        let mut sources = AddressSources { external: false, forwarded: false };
        for name in &self.grpc_client_address {
            match name.as_str() {
                "external" => sources.external = true,
                "forwarded" => sources.forwarded = true,
                "source" => {}
                other => {
                    return Err(format!(
                        "--grpc-client-address: unknown source `{other}`; expected external, forwarded or source"
                    ));
                }
            }
        }
        Ok(sources)
    }

    /// How many calls a gateway may cancel.
    pub(super) const fn resets(&self) -> u32 {
        self.grpc_resets.get()
    }

    pub(super) fn options(
        &self,
        front: FrontendOptions,
        generations: Generations,
        address_sources: AddressSources,
        readiness: &Arc<Readiness>,
    ) -> EnvoyOptions {
        let most = Some(self.grpc_max_connection_age).filter(|age| !age.is_zero());
        let connection_age = ConnectionAge { most, grace: self.grpc_max_connection_age_grace };
        let limits = EnvoyLimits {
            streams: self.grpc_streams.get(),
            resets: self.grpc_resets.get(),
            message: usize::try_from(self.grpc_max_message).unwrap_or(usize::MAX),
        };
        EnvoyOptions { front, generations, address_sources, connection_age, limits, readiness: readiness.clone() }
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

    fn sources(flags: &[&str]) -> Result<AddressSources, String> {
        Line::parse_from([&["weir"], flags].concat()).grpc.address_sources()
    }

    #[test]
    fn sources_of_the_address_are_named() {
        assert_eq!(sources(&[]), Ok(AddressSources::default()));
        let forwarded = Ok(AddressSources { external: false, forwarded: true });
        assert_eq!(sources(&["--grpc-client-address", "forwarded"]), forwarded);
        let neither = Ok(AddressSources { external: false, forwarded: false });
        assert_eq!(sources(&["--grpc-client-address", "source"]), neither);
        assert!(sources(&["--grpc-client-address", "xff"]).is_err_and(|error| error.contains("expected external,")));
    }
}
