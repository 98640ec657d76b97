//! `weir init`: a first rules file.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::exit::{ExitCode, Failure};

/// Limits of whole requests.
const REQUESTS: &str = include_str!("requests.yaml");
/// Limits of the descriptors of the rate limit service.
const DESCRIPTORS: &str = include_str!("descriptors.yaml");

/// Stands for standard output.
const OUTPUT: &str = "-";

/// Writes a first limits.yaml, with comments and tests, for you to change
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file to write, or `-` for standard output
    #[arg(value_name = "FILE", default_value = "limits.yaml")]
    file: PathBuf,

    /// The gateway that will ask for decisions
    #[arg(long = "for", value_name = "GATEWAY", default_value = "proxy")]
    gateway: Gateway,

    /// Replace a file that exists
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Gateway {
    /// Clients of Weir's own reverse proxy
    Proxy,
    /// nginx, by `auth_request`
    Nginx,
    /// HAProxy, by SPOE
    Haproxy,
    /// Traefik, by ForwardAuth
    Traefik,
    /// Caddy, by `forward_auth`
    Caddy,
    /// Envoy, Istio and Envoy Gateway, by `ext_authz`
    ExtAuthz,
    /// Envoy, by the rate limit service
    EnvoyRatelimit,
}

impl Gateway {
    /// The flags of `weir serve` that open the listener.
    const fn listener(self) -> &'static str {
        match self {
            Self::Proxy => "--upstream echo",
            Self::Nginx | Self::Traefik | Self::Caddy => "--check 127.0.0.1:9002",
            Self::Haproxy => "--spoe 127.0.0.1:9003",
            Self::ExtAuthz | Self::EnvoyRatelimit => "--grpc 127.0.0.1:9001",
        }
    }

    /// The page on the gateway, without the site's address.
    const fn page(self) -> &'static str {
        match self {
            Self::Proxy => "proxy/",
            Self::Nginx => "gateways/nginx/",
            Self::Haproxy => "gateways/haproxy/",
            Self::Traefik => "gateways/traefik/",
            Self::Caddy => "gateways/caddy/",
            Self::ExtAuthz => "gateways/envoy/",
            Self::EnvoyRatelimit => "gateways/rate-limit-service/",
        }
    }

    const fn rules(self) -> &'static str {
        if matches!(self, Self::EnvoyRatelimit) { DESCRIPTORS } else { REQUESTS }
    }
}

/// Writes the file, and the next commands to `err`.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let text = args.gateway.rules();
    if args.file == Path::new(OUTPUT) {
        out.write_all(text.as_bytes())?;
        return Ok(ExitCode::Success);
    }
    let name = args.file.display();
    let mut options = OpenOptions::new();
    options.write(true);
    if args.force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let written = options.open(&args.file).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::bad_input(format!("{name} exists; --force replaces it")),
        _ => Failure::bad_input(format!("cannot write {name}: {error}")),
    })?;
    write!(
        err,
        "{name} is written. Next:\n  weir check {name}\n  weir serve --limits {name} {}\nThen: https://weir.github.io/weir/{}\n",
        args.gateway.listener(),
        args.gateway.page(),
    )?;
    Ok(ExitCode::Success)
}
