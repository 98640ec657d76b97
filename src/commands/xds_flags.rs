//! Flags for rules that a management server pushes.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD};
use http::{HeaderName, HeaderValue};

use super::exit::Failure;
use super::runtime::block_on;
use super::values::parse_duration;
use crate::config::Files;
use crate::engine::text::quote::quoted;
use crate::http::{Connector, ConnectorFlags, ConnectorOptions, KeyPairFiles};
use crate::limiter::Shared;
use crate::listeners::admin::Readiness;
use crate::listeners::grpc::DEFAULT_MAX_MESSAGE;
use crate::message::url::HttpUrl;
use crate::server::compiler::Compiler;
use crate::server::{Process, XdsClient, XdsOptions};

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Management server")]
#[expect(clippy::struct_field_names, reason = "a field's name is that of its flag")]
pub(super) struct XdsArgs {
    /// The URL of a management server that pushes the configuration of envoyproxy/ratelimit by xDS, such as Envoy Gateway's:
    /// `http://HOST:PORT` or `https://HOST:PORT`
    #[arg(long, value_name = "URL", env = "WEIR_XDS_SERVER")]
    xds_server: Option<String>,

    /// The node id by which the management server knows which configuration to send
    #[arg(long, value_name = "ID", env = "WEIR_XDS_NODE_ID", default_value = "weir")]
    xds_node_id: String,

    /// Metadata of the node, text by key
    #[arg(long, value_name = "KEY=VALUE", env = "WEIR_XDS_NODE_METADATA", value_delimiter = ',', value_parser = parse_pair)]
    xds_node_metadata: Vec<(String, String)>,

    /// A header of the calls to the management server, `name: value`; repeatable
    #[arg(long, value_name = "HEADER", env = "WEIR_XDS_HEADER", value_delimiter = ',')]
    xds_header: Vec<String>,

    /// A PEM file of certificate authorities for a management server with `https://` [default: the public ones]
    #[arg(long, value_name = "FILE", env = "WEIR_XDS_CA")]
    xds_ca: Option<PathBuf>,

    /// The client certificate (PEM) for the management server; it, its key and the authorities are read again for each connection
    #[arg(long, value_name = "FILE", env = "WEIR_XDS_CERT", requires = "xds_key")]
    xds_cert: Option<PathBuf>,

    /// Private key (PEM) of `--xds-cert`
    #[arg(long, value_name = "FILE", env = "WEIR_XDS_KEY", requires = "xds_cert")]
    xds_key: Option<PathBuf>,

    /// Name that the management server's certificate must match; defaults to the URL's host
    #[arg(long, value_name = "NAME", env = "WEIR_XDS_SERVER_NAME")]
    xds_server_name: Option<String>,

    /// The wait before the first try to connect again, which doubles with each failure; up to half of it is left out at random
    #[arg(long, value_name = "DURATION", env = "WEIR_XDS_BACKOFF", default_value = "1s", value_parser = parse_duration)]
    xds_backoff: Duration,

    /// The longest wait before a try to connect again
    #[arg(long, value_name = "DURATION", env = "WEIR_XDS_MAX_BACKOFF", default_value = "30s", value_parser = parse_duration)]
    xds_max_backoff: Duration,

    /// Maximum size of a configuration
    #[arg(long, value_name = "BYTES", env = "WEIR_XDS_MAX_MESSAGE", default_value_t = DEFAULT_MAX_MESSAGE as u32, value_parser = clap::value_parser!(u32).range(1_024..))]
    xds_max_message: u32,

    /// Be ready before the management server has sent its first configuration; until then, the rate limit service answers `UNAVAILABLE`
    #[arg(long, value_name = "BOOL", env = "WEIR_XDS_OPTIONAL", value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1,
        require_equals = true, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    xds_optional: bool,
}

/// Parses a value of `--xds-header`. The error does not show it, as it may be a secret.
fn call_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let help = "--xds-header: write `name: value`";
    let (name, value) = text.split_once(':').ok_or(help)?;
    let (name, value): (HeaderName, _) = (name.trim().to_ascii_lowercase().parse().map_err(|_| help)?, value.trim());
    let shown = name.as_str();
    if shown.starts_with("grpc-") || matches!(shown, "content-type" | "te" | "host" | "connection") {
        return Err(format!("--xds-header: {} belongs to the protocol", quoted(shown)));
    }
    if shown.ends_with("-bin")
        && BASE64_STANDARD.decode(value).or_else(|_| BASE64_STANDARD_NO_PAD.decode(value)).is_err()
    {
        return Err(format!("--xds-header: the value of {} is not base64", quoted(shown)));
    }
    let wrong = |_| format!("--xds-header: the value of {} has characters that a header cannot have", quoted(shown));
    let mut value = HeaderValue::from_str(value).map_err(wrong)?;
    value.set_sensitive(true);
    Ok((name, value))
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write `KEY=VALUE`".to_owned()),
    }
}

impl XdsArgs {
    pub(super) const fn is_given(&self) -> bool {
        self.xds_server.is_some()
    }

    /// Returns the client, if there is a server. The error names the flag.
    pub(super) fn client(&self, files: &Files, compiler: &Compiler) -> Result<Option<XdsClient>, String> {
        let Some(url) = &self.xds_server else { return Ok(None) };
        // The URL is not shown: it may have a password.
        let help = "--xds-server: write `http://HOST:PORT` or `https://HOST:PORT`, without a user";
        let url: HttpUrl = url.parse().map_err(|_| help)?;
        if !matches!(url.target.as_str(), "/" | "") {
            return Err(format!("--xds-server {url}: remove the path, the method has its own"));
        }
        let tls = self.tls();
        if url.is_tls {
            Connector::load(&tls).map_err(|error| error.to_string())?;
        } else if tls.ca.is_some() || tls.certificate.is_some() {
            return Err(format!("--xds-server {url}: --xds-ca and --xds-cert need `https://`"));
        }
        let options = XdsOptions {
            url,
            node_id: self.xds_node_id.clone(),
            metadata: self.xds_node_metadata.clone(),
            headers: self.xds_header.iter().map(|text| call_header(text)).collect::<Result<_, _>>()?,
            tls,
            backoff: [self.xds_backoff, self.xds_max_backoff.max(self.xds_backoff)],
            max_message: usize::try_from(self.xds_max_message).unwrap_or(usize::MAX),
            is_optional: self.xds_optional,
        };
        Ok(Some(XdsClient::new(options, files.clone(), compiler.clone())))
    }

    fn tls(&self) -> ConnectorOptions {
        let pair = self.xds_cert.clone().zip(self.xds_key.clone());
        ConnectorOptions {
            flags: ConnectorFlags {
                ca: "--xds-ca",
                certificate: "--xds-cert",
                key: "--xds-key",
                server_name: "--xds-server-name",
            },
            ca: self.xds_ca.clone(),
            server_name: self.xds_server_name.clone(),
            certificate: pair.map(|(certificate, key)| KeyPairFiles { certificate, key }),
        }
    }
}

/// Takes over the configuration of the process that hands over, or waits a while for the first one. Returns true if there is one; without
/// it the process is not ready, unless it is optional. `None` means that a signal has ended the start.
pub(super) fn fetch_first(
    xds: Option<&mut XdsClient>,
    process: &mut Process,
    shared: &Shared,
    readiness: &Readiness,
) -> Result<Option<bool>, Failure> {
    let Some(xds) = xds else { return Ok(Some(false)) };
    if let Some(inherited) = process.inherited_configuration() {
        let taken = inherited.map_err(|error| error.to_string()).and_then(|encoded| xds.inherit(&encoded));
        let failed = |reason| format!("cannot take over the management server's configuration: {reason}");
        return taken.map(|()| Some(true)).map_err(failed).map_err(Failure::could_not_start);
    }
    let fetching = async {
        tokio::select! {
            has_come = xds.fetch_first(shared, readiness) => Some(has_come),
            () = process.stopped() => None,
        }
    };
    let has_come = block_on(fetching).map_err(Failure::could_not_start)?;
    if xds.is_awaited() {
        readiness.await_configuration(xds.is_optional());
    }
    Ok(has_come)
}
