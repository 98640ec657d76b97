//! `weir init`: a first rules file.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, Command, ValueEnum};

use super::exit::{ExitCode, Failure};
use crate::engine::text::site;

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
    #[arg(long = "for", value_name = "GATEWAY", default_value = "proxy", value_parser = GatewayParser)]
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
    #[value(aliases = ["istio", "envoy-gateway"])]
    ExtAuthz,
    /// Envoy, by the rate limit service
    EnvoyRatelimit,
}

/// Parses a gateway, and says which names there are for Envoy, which can ask in two ways.
#[derive(Clone)]
struct GatewayParser;

impl TypedValueParser for GatewayParser {
    type Value = Gateway;

    fn parse_ref(&self, command: &Command, flag: Option<&Arg>, value: &OsStr) -> Result<Gateway, clap::Error> {
        if value == "envoy" {
            let ways = "--for envoy: write `ext-authz`, which sees whole requests, or `envoy-ratelimit`, which gets descriptors";
            return Err(command.clone().error(clap::error::ErrorKind::InvalidValue, ways));
        }
        EnumValueParser::new().parse_ref(command, flag, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Gateway::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
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

    /// The page on the gateway.
    const fn page(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Nginx => "gateways/nginx",
            Self::Haproxy => "gateways/haproxy",
            Self::Traefik => "gateways/traefik",
            Self::Caddy => "gateways/caddy",
            Self::ExtAuthz => "gateways/envoy",
            Self::EnvoyRatelimit => "gateways/rate-limit-service",
        }
    }

    fn rules(self, site: Option<&str>) -> String {
        about(site) + if matches!(self, Self::EnvoyRatelimit) { DESCRIPTORS } else { REQUESTS }
    }
}

/// The first lines of the file, with the schema's address for editors.
fn about(site: Option<&str>) -> String {
    let schema = site.map(|site| format!("# yaml-language-server: $schema={site}limits.schema.json\n"));
    let hint = "# For an editor that completes it: `weir schema >limits.schema.json`, and the first line\n\
                # `# yaml-language-server: $schema=limits.schema.json`.\n";
    format!(
        "{}# The limits that Weir enforces. `weir check` validates this file and runs the tests at its end. A running Weir \
         reads it again\n# when it changes. All keys: {}\n{}",
        schema.as_deref().unwrap_or_default(),
        site::page(site, "rules"),
        if site.is_some() { "" } else { hint },
    )
}

/// Writes the file, and the next commands to `err`.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let site = site::address();
    let text = args.gateway.rules(site.as_deref());
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
        "{name} is written. Next:\n  weir check {name}\n  weir serve --limits {name} {}\nThen: {}\n",
        args.gateway.listener(),
        site::page(site.as_deref(), args.gateway.page()),
    )?;
    Ok(ExitCode::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_the_schema_on_the_site_or_how_to_print_it() {
        let published = Gateway::Nginx.rules(Some("https://docs.example.com/"));
        assert!(
            published.starts_with("# yaml-language-server: $schema=https://docs.example.com/limits.schema.json\n# The")
        );
        assert!(published.contains("All keys: https://docs.example.com/rules/\n"), "{published}");
        let bare = Gateway::Nginx.rules(None);
        assert!(bare.starts_with("# The limits") && !bare.contains("://"), "{bare}");
        assert!(
            bare.contains("All keys: docs/rules.md\n") && bare.contains("`weir schema >limits.schema.json`"),
            "{bare}"
        );
    }
}
