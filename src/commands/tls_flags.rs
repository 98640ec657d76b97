//! Flags for TLS and the PROXY protocol on client connections.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::values::{one_of, parse_duration, parse_network};
use crate::http::{
    AcceptOptions, ClientAuth, KeyPairFiles, ServerTls, ServerTlsFlags, ServerTlsOptions, ServerTlsReloader,
};

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Client TLS and PROXY protocol")]
pub(super) struct TlsArgs {
    /// Serve TLS with this certificate chain (PEM, leaf first); repeatable. Clients get the one for the host that they name,
    /// or the first
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CERT", value_delimiter = ',')]
    tls_cert: Vec<PathBuf>,

    /// Private key (PEM) of a certificate; one per `--tls-cert`, in the same order
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_KEY", value_delimiter = ',', hide_env_values = true)]
    tls_key: Vec<PathBuf>,

    /// Certificate authorities (PEM) for client certificates, which limits can use with `by: { tls: subject }`
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CA", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,

    /// Whether to reject clients without a certificate or serve them without a subject
    #[arg(
        long,
        value_name = "HOW",
        env = "WEIR_TLS_CLIENT_AUTH",
        default_value = "require",
        requires = "tls_client_ca",
        value_parser = one_of(CLIENT_AUTH)
    )]
    tls_client_auth: ClientAuth,

    /// Timeout for a TLS handshake, on every listener
    #[arg(long, value_name = "DURATION", env = "WEIR_TLS_HANDSHAKE_TIMEOUT", default_value = "10s", value_parser = parse_duration)]
    tls_handshake_timeout: Duration,

    /// Load balancers whose connections must start with a PROXY header (version 1 or 2), which carries the client's
    /// address. It is not accepted from other peers
    #[arg(long, value_name = "CIDR", env = "WEIR_PROXY_PROTOCOL_FROM", value_delimiter = ',', value_parser = parse_network)]
    proxy_protocol_from: Vec<IpNet>,
}

const CLIENT_AUTH: &[(&str, &str, ClientAuth)] = &[
    ("require", "Reject clients without a certificate", ClientAuth::Require),
    ("request", "Serve them without a subject", ClientAuth::Request),
];

impl TlsArgs {
    /// Checks that there are as many keys as certificates. Does not read the files.
    pub(super) fn check(&self) -> Result<(), String> {
        check_pairs(ServerTlsFlags::default(), self.tls_cert.len(), self.tls_key.len())
    }

    pub(super) const fn has_certificate(&self) -> bool {
        !self.tls_cert.is_empty()
    }

    pub(super) const fn handshake_timeout(&self) -> Duration {
        self.tls_handshake_timeout
    }

    /// Reads the certificates. Returns how to accept connections, and what reloads the certificates.
    pub(super) fn accept(&self) -> Result<(AcceptOptions, Option<ServerTlsReloader>), String> {
        let loaded = (!self.tls_cert.is_empty()).then(|| ServerTls::load(&self.server())).transpose();
        let (tls, reloader) = loaded.map_err(|error| error.to_string())?.unzip();
        let options = AcceptOptions {
            proxy_protocol_from: self.proxy_protocol_from.clone(),
            tls,
            handshake_timeout: self.tls_handshake_timeout,
            from_gateways: false,
        };
        Ok((options, reloader))
    }

    fn server(&self) -> ServerTlsOptions {
        ServerTlsOptions {
            certificates: pairs(&self.tls_cert, &self.tls_key),
            client_ca: self.tls_client_ca.clone().map(|path| (path, self.tls_client_auth)),
            ..ServerTlsOptions::default()
        }
    }
}

/// Checks that there are as many keys as certificates.
pub(super) fn check_pairs(flags: ServerTlsFlags, certificates: usize, keys: usize) -> Result<(), String> {
    if certificates == keys {
        return Ok(());
    }
    let ServerTlsFlags { certificate, key, .. } = flags;
    Err(match (certificates, keys) {
        (_, 0) => format!("{certificate} needs {key}"),
        (0, _) => format!("{key} needs {certificate}"),
        _ => {
            format!("{certificates} {certificate} and {keys} {key}: every certificate needs its key, in the same order")
        }
    })
}

/// Pairs certificates with the keys in the same place.
pub(super) fn pairs(certificates: &[PathBuf], keys: &[PathBuf]) -> Vec<KeyPairFiles> {
    certificates.iter().zip(keys).map(|(certificate, key)| files(certificate, key)).collect()
}

fn files(certificate: &std::path::Path, key: &std::path::Path) -> KeyPairFiles {
    KeyPairFiles { certificate: certificate.to_owned(), key: key.to_owned() }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        tls: TlsArgs,
    }

    fn parse(flags: &str) -> Result<TlsArgs, String> {
        let parsed = Flags::try_parse_from(["weir"].into_iter().chain(flags.split_whitespace()));
        parsed.map(|flags| flags.tls).map_err(|error| error.to_string())
    }

    #[test]
    fn every_certificate_has_its_key() {
        let uneven = "2 --tls-cert and 1 --tls-key: every certificate needs its key, in the same order";
        for (flags, expected) in [
            ("", Ok(())),
            ("--tls-cert a --tls-key b", Ok(())),
            ("--tls-cert a,c --tls-key b --tls-key d", Ok(())),
            ("--tls-cert a", Err("--tls-cert needs --tls-key")),
            ("--tls-cert a --tls-cert c --tls-key b", Err(uneven)),
            ("--tls-key b", Err("--tls-key needs --tls-cert")),
        ] {
            assert_eq!(parse(flags).unwrap().check(), expected.map_err(str::to_owned), "{flags}");
        }
    }

    #[test]
    fn pairs_are_in_the_order_of_the_flags() {
        let args = parse("--tls-cert a --tls-key b --tls-cert c --tls-key d --tls-client-ca e").unwrap();
        let pairs = [("a", "b"), ("c", "d")].map(|(certificate, key)| files(certificate.as_ref(), key.as_ref()));
        let client_ca = Some(("e".into(), ClientAuth::Require));
        let expected = ServerTlsOptions { certificates: pairs.to_vec(), client_ca, ..ServerTlsOptions::default() };
        assert_eq!(args.server(), expected);
    }

    #[test]
    fn flags_that_need_others_say_so() {
        for (flags, missing) in [("--tls-client-ca e", "--tls-cert"), ("--tls-client-auth request", "--tls-client-ca")]
        {
            let error = parse(flags).unwrap_err();
            assert!(error.contains(missing), "{flags}: {error}");
        }
        assert!(parse("--tls-cert a --tls-key b --tls-client-ca c --tls-client-auth never").is_err());
    }
}
