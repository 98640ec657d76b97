//! The flags of the gRPC door.

use std::sync::Arc;
use std::time::Duration;

use super::values::{parse_duration, parse_duration_or_zero};
use crate::doors::admin::Readiness;
use crate::doors::envoy::{AddressSources, ConnectionAge, EnvoyOptions};
use crate::doors::http::FrontOptions;
use crate::engine::reply::Generations;
use crate::server::ListenAddress;

/// Envoy's external authorization and rate limit service.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "The gRPC door")]
pub(super) struct GrpcArgs {
    /// The address for Envoy's `ext_authz` and rate limit service by gRPC, or `unix:PATH`
    #[arg(long, value_name = "ADDR", env = "WEIR_GRPC")]
    pub(super) grpc: Option<ListenAddress>,

    /// Where `ext_authz` looks for the client's address before `source.address`: `external` is x-envoy-external-address,
    /// which only an Envoy with `use_remote_address` keeps clients from sending; `forwarded` is what `--trusted-proxies`
    /// wrote into X-Forwarded-For or Forwarded; `source` is nothing else
    #[arg(
        long,
        value_name = "NAME",
        env = "WEIR_GRPC_CLIENT_ADDRESS",
        value_delimiter = ',',
        default_value = "external,forwarded"
    )]
    grpc_client_address: Vec<String>,

    /// After how long a gRPC connection is told to end, give or take 10 %, so that its client may find another process;
    /// 0s for never
    #[arg(long, value_name = "DURATION", env = "WEIR_GRPC_MAX_CONNECTION_AGE", default_value = "30m", value_parser = parse_duration_or_zero)]
    grpc_max_connection_age: Duration,

    /// How long the calls of such a connection may go on
    #[arg(long, value_name = "DURATION", env = "WEIR_GRPC_MAX_CONNECTION_AGE_GRACE", default_value = "10s", value_parser = parse_duration)]
    grpc_max_connection_age_grace: Duration,
}

impl GrpcArgs {
    /// Where the client's address is looked for.
    pub(super) fn address_sources(&self) -> Result<AddressSources, String> {
        let mut sources = AddressSources { external: false, forwarded: false };
        for name in &self.grpc_client_address {
            match name.as_str() {
                "external" => sources.external = true,
                "forwarded" => sources.forwarded = true,
                "source" => {}
                other => {
                    return Err(format!(
                        "--grpc-client-address: there is no `{other}`; there are external, forwarded and source"
                    ));
                }
            }
        }
        Ok(sources)
    }

    /// How the door is set up.
    pub(super) fn options(
        &self,
        front: FrontOptions,
        generations: Generations,
        address_sources: AddressSources,
        readiness: &Arc<Readiness>,
    ) -> EnvoyOptions {
        let most = Some(self.grpc_max_connection_age).filter(|age| !age.is_zero());
        let connection_age = ConnectionAge { most, grace: self.grpc_max_connection_age_grace };
        EnvoyOptions { front, generations, address_sources, connection_age, readiness: readiness.clone() }
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
        assert!(sources(&["--grpc-client-address", "xff"]).is_err_and(|error| error.contains("there are external,")));
    }
}
