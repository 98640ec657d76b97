//! Flags for TLS on the listeners for gateways and operators.

use std::path::PathBuf;
use std::time::Duration;

use super::tls_flags::{check_pairs, pairs};
use crate::http::{AcceptOptions, Alpn, ClientAuth, ServerTls, ServerTlsFlags, ServerTlsOptions, ServerTlsReloader};

/// Declares the flags of a listener. A flag needs its listener's, `$needs`.
macro_rules! listener_tls_args {
    ($name:ident, $listener:literal, $variable:literal, $alpn:expr, $about:literal, $peers:literal $(, $needs:literal)?) => {
        #[derive(clap::Args, Debug)]
        #[command(next_help_heading = "TLS of the other listeners")]
        pub(super) struct $name {
            #[arg(
                id = concat!($listener, "_tls_cert"),
                long = concat!($listener, "-tls-cert"),
                value_name = "FILE",
                env = concat!("WEIR_", $variable, "_TLS_CERT"),
                value_delimiter = ',',
                $(requires = $needs,)?
                help = concat!("Serve ", $about, " over TLS with this certificate chain (PEM, leaf first); repeatable"),
            )]
            certificates: Vec<PathBuf>,

            #[arg(
                id = concat!($listener, "_tls_key"),
                long = concat!($listener, "-tls-key"),
                value_name = "FILE",
                env = concat!("WEIR_", $variable, "_TLS_KEY"),
                value_delimiter = ',',
                hide_env_values = true,
                help = concat!(
                    "Private key (PEM) of a certificate; one per `--", $listener, "-tls-cert`, in the same order"
                ),
            )]
            keys: Vec<PathBuf>,

            #[arg(
                id = concat!($listener, "_tls_client_ca"),
                long = concat!($listener, "-tls-client-ca"),
                value_name = "FILE",
                env = concat!("WEIR_", $variable, "_TLS_CLIENT_CA"),
                requires = concat!($listener, "_tls_cert"),
                help = concat!("Certificate authorities (PEM) for ", $peers, ", which then need a certificate"),
            )]
            client_ca: Option<PathBuf>,
        }

        impl $name {
            pub(super) fn files(&self) -> ListenerTls<'_> {
                ListenerTls {
                    flags: ServerTlsFlags {
                        certificate: concat!("--", $listener, "-tls-cert"),
                        key: concat!("--", $listener, "-tls-key"),
                        client_ca: concat!("--", $listener, "-tls-client-ca"),
                    },
                    alpn: $alpn,
                    certificates: &self.certificates,
                    keys: &self.keys,
                    client_ca: self.client_ca.as_ref(),
                }
            }
        }
    };
}

listener_tls_args!(GrpcTlsArgs, "grpc", "GRPC", Alpn::Http2, "the gRPC listener", "Envoy's certificate", "grpc");
listener_tls_args!(
    CheckTlsArgs,
    "check",
    "CHECK",
    Alpn::Http,
    "the check listener",
    "the gateway's certificate",
    "check"
);
listener_tls_args!(SpoeTlsArgs, "spoe", "SPOE", Alpn::None, "the SPOE listener", "HAProxy's certificate", "spoe");
listener_tls_args!(
    AdminTlsArgs,
    "admin",
    "ADMIN",
    Alpn::Http1,
    "the admin listener",
    "operators' and scrapers' certificates"
);

/// TLS on the listeners for gateways.
#[derive(clap::Args, Debug)]
pub(super) struct GatewayTlsArgs {
    #[command(flatten)]
    pub(super) grpc: GrpcTlsArgs,

    #[command(flatten)]
    pub(super) check: CheckTlsArgs,

    #[command(flatten)]
    pub(super) spoe: SpoeTlsArgs,

    #[command(flatten)]
    pub(super) admin: AdminTlsArgs,
}

/// The start of connections at each listener.
#[derive(Clone, Debug)]
pub(super) struct GatewayAccept {
    pub(super) grpc: AcceptOptions,
    pub(super) check: AcceptOptions,
    pub(super) spoe: AcceptOptions,
    pub(super) admin: AcceptOptions,
}

impl GatewayTlsArgs {
    /// Checks that there are as many keys as certificates. Does not read the files. The error has a line per mistake.
    pub(super) fn check(&self) -> Result<(), String> {
        let all = [self.grpc.files(), self.check.files(), self.spoe.files(), self.admin.files()];
        let mistakes: Vec<_> = all.iter().filter_map(|files| files.check().err()).collect();
        if mistakes.is_empty() { Ok(()) } else { Err(mistakes.join("\nerror: ")) }
    }

    /// Reads the certificates, and adds what reloads them to `reloaders`.
    pub(super) fn accept(
        &self,
        handshake_timeout: Duration,
        reloaders: &mut Vec<ServerTlsReloader>,
    ) -> Result<GatewayAccept, String> {
        let mut accept = |files: ListenerTls<'_>| -> Result<_, String> {
            let (tls, reloader) = files.load()?.unzip();
            reloaders.extend(reloader);
            Ok(AcceptOptions { tls, handshake_timeout, from_gateways: true, ..AcceptOptions::default() })
        };
        Ok(GatewayAccept {
            grpc: accept(self.grpc.files())?,
            check: accept(self.check.files())?,
            spoe: accept(self.spoe.files())?,
            admin: accept(self.admin.files())?,
        })
    }
}

/// The files of a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerTls<'a> {
    flags: ServerTlsFlags,
    alpn: Alpn,
    certificates: &'a [PathBuf],
    keys: &'a [PathBuf],
    client_ca: Option<&'a PathBuf>,
}

impl ListenerTls<'_> {
    fn check(&self) -> Result<(), String> {
        check_pairs(self.flags, self.certificates.len(), self.keys.len())
    }

    /// Reads the files, if there are any.
    fn load(&self) -> Result<Option<(std::sync::Arc<ServerTls>, ServerTlsReloader)>, String> {
        if self.certificates.is_empty() {
            return Ok(None);
        }
        let options = ServerTlsOptions {
            flags: self.flags,
            alpn: self.alpn,
            certificates: pairs(self.certificates, self.keys),
            client_ca: self.client_ca.map(|path| (path.clone(), ClientAuth::Require)),
        };
        ServerTls::load(&options).map(Some).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[arg(long)]
        grpc: Option<String>,
        #[arg(long)]
        check: Option<String>,
        #[arg(long)]
        spoe: Option<String>,
        #[command(flatten)]
        tls: GatewayTlsArgs,
    }

    fn parse(flags: &str) -> Result<Flags, String> {
        let parsed = Flags::try_parse_from(["weir"].into_iter().chain(flags.split_whitespace()));
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn every_listener_has_its_own_files() {
        let flags = parse("--grpc a --grpc-tls-cert a --grpc-tls-key b --admin-tls-cert c --admin-tls-key d").unwrap();
        assert_eq!(flags.tls.check(), Ok(()));
        assert_eq!(flags.tls.grpc.certificates, [PathBuf::from("a")]);
        assert_eq!(flags.tls.admin.files().keys, [PathBuf::from("d")]);
        assert!(flags.tls.check.certificates.is_empty() && flags.tls.spoe.keys.is_empty());
        assert!(flags.grpc.is_some() && flags.check.is_none() && flags.spoe.is_none());
    }

    #[test]
    fn flags_that_need_others_say_so() {
        for (flags, missing) in [
            ("--grpc-tls-cert a --grpc-tls-key b", "--grpc"),
            ("--check-tls-cert a --check-tls-key b", "--check"),
            ("--spoe-tls-cert a --spoe-tls-key b", "--spoe"),
            ("--admin-tls-client-ca a", "--admin-tls-cert"),
        ] {
            let error = parse(flags).err().unwrap();
            assert!(error.contains(missing), "{flags}: {error}");
        }
        let error = parse("--admin-tls-cert a --grpc a --grpc-tls-key b").unwrap().tls.check().unwrap_err();
        assert!(error.contains("--admin-tls-cert needs --admin-tls-key"), "{error}");
        assert!(error.contains("\nerror: ") || error.contains("--grpc-tls-key needs --grpc-tls-cert"), "{error}");
    }
}
