//! Why the server cannot be used, and what to do about it.

use std::io;

use rustls::{CertificateError, Error as TlsError, OtherError};

use super::keys::KeyStarts;
use crate::store::Fault;

/// A fault and its description: the error of the server or the system, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Diagnosis {
    pub(super) fault: Fault,
    pub(super) text: String,
}

impl Diagnosis {
    pub(super) fn new(fault: Fault, text: impl Into<String>) -> Self {
        Self { fault, text: text.into() }
    }

    /// Diagnoses an error reply to a whole call; `None` unless it means that this server cannot serve us now.
    ///
    /// The right server may reply with OOM, MISCONF, WRONGTYPE and others, which a new connection would not change.
    pub(super) fn of_call(reply: &str, keys: &KeyStarts) -> Option<Self> {
        if reply.starts_with("NOPERM ") {
            let text = format!("{reply}: give the user the permissions `{}`", keys.permissions());
            return Some(Self::new(Fault::Permission, text));
        }
        Self::of_reply(reply)
    }

    /// As [`Self::of_call`], for any command: what is wrong with the user's permissions is not known.
    pub(super) fn of_reply(reply: &str) -> Option<Self> {
        let (fault, right) = match reply.split(' ').next().unwrap_or_default() {
            "NOAUTH" => (
                Fault::Authentication,
                "put the password into the URL, `redis://:password@host` or `redis://user:password@host`, or use \
                 --store-password-file"
                    .into(),
            ),
            "MOVED" | "ASK" => {
                let other = reply.rsplit(' ').next().unwrap_or_default();
                let right =
                    format!("another node of this cluster has the key: write the store as `redis+cluster://{other}`");
                (Fault::Cluster, right)
            }
            "ERR" if reply.contains("unknown command") && reply.to_ascii_lowercase().contains("eval") => {
                (Fault::Permission, NO_SCRIPTS.into())
            }
            "ERR" if reply.contains("max number of clients") => (Fault::Unreachable, TOO_MANY_CLIENTS.into()),
            _ => return Self::of_request(reply),
        };
        Some(Self::new(fault, format!("{reply}: {right}")))
    }

    /// As [`Self::of_call`], for an error in place of one request's answer.
    pub(super) fn of_request(reply: &str) -> Option<Self> {
        // Redis 7 passes on an error inside a script unchanged. 6.2 wraps it: `ERR Error running script (call to f_...):
        // @user_script:1: -READONLY You can't write against a read only replica.`
        let inner =
            if reply.starts_with("ERR ") { reply.rsplit_once(": -").map_or(reply, |(_, inner)| inner) } else { reply };
        let (fault, right) = match inner.split(' ').next().unwrap_or_default() {
            "READONLY" | "MASTERDOWN" => (Fault::Replica, REPLICA),
            "CLUSTERDOWN" => (Fault::Cluster, "the cluster is down"),
            "LOADING" => (Fault::Loading, "the server is starting"),
            _ => return None,
        };
        Some(Self::new(fault, format!("{inner}: {right}")))
    }

    /// Diagnoses a server that answers with errors only, this one among them.
    pub(super) fn of_failure(reply: &str, keys: &KeyStarts) -> Self {
        if lacks_right(reply) {
            let text = format!(
                "{reply}: give the user the permissions `{}`, and those of your algorithms",
                keys.permissions()
            );
            return Self::new(Fault::Permission, text);
        }
        Self::new(Fault::Failing, reply)
    }

    /// Diagnoses a server by its mode and role, as `HELLO` reports them.
    pub(super) fn of_kind(mode: &str, role: &str) -> Option<Self> {
        match (mode, role) {
            ("sentinel", _) => Some(Self::new(Fault::Sentinel, SENTINEL)),
            (_, "replica" | "slave") => Some(Self::new(Fault::Replica, REPLICA)),
            _ => None,
        }
    }

    /// Diagnoses a failed TLS handshake.
    pub(super) fn of_handshake(error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
        let hint = match inner {
            Some(TlsError::InvalidCertificate(reason)) => of_certificate(reason),
            Some(TlsError::InvalidMessage(_)) | None => Some(NOT_TLS),
            Some(_) => None,
        };
        let text = hint.map_or_else(|| error.to_string(), |hint| format!("{error}: {hint}"));
        Self::new(Fault::Tls, text)
    }
}

/// True for the error of a command that the user may not call, in a script or by itself. Redis 7.0 and older say that the user `can't
/// run this command`, later ones and Valkey speak of an `ACL failure in script`.
pub(super) fn lacks_right(reply: &str) -> bool {
    ["NOPERM ", "can't run this command", "ACL failure in script"].iter().any(|words| reply.contains(words))
}

const SENTINEL: &str = "this is a Sentinel: write `redis+sentinel://host:port/master-name` to follow the master that it watches, \
                        `redis-cli -p 26379 sentinel masters` prints the names";

const NO_SCRIPTS: &str = "the server has no scripts, or other names for the commands: Weir needs EVAL and EVALSHA, so undo \
                          `rename-command`";

const TOO_MANY_CLIENTS: &str =
    "raise `maxclients`, or start fewer workers: each has a connection, and each process has one more";

const REPLICA: &str = "this server is a read-only replica: use its master";

const NOT_TLS: &str = "the server does not speak TLS on this port: use `redis://` for plain text";

/// The hint when a plain connection ends before the first reply. The reset takes Redis' own words along if it has `maxclients`
/// connections.
pub(super) const PERHAPS_TLS: &str = "the server closed the connection before its first reply: use `rediss://` if it expects TLS, \
                                      raise `maxclients` if it has as many connections";

/// The hint when the server asks for a client certificate and gets none.
pub(super) const WANTS_CERTIFICATE: &str =
    "the server requires a client certificate: set --store-cert-file and --store-key-file";

fn of_certificate(error: &CertificateError) -> Option<&'static str> {
    match error {
        CertificateError::UnknownIssuer => Some("set --store-ca-file to the authority that signed it"),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Some("use a host name or address that the server's certificate contains")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Some("the certificate has expired"),
        CertificateError::Other(OtherError(other)) if format!("{other:?}").contains("CaUsedAsEndEntity") => Some(
            "the server's certificate is marked as a certificate authority's, which is the default of `openssl req -x509`: \
             sign a server certificate with it, or create it with `-addext basicConstraints=critical,CA:FALSE`",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_wrong_server_cost_the_connection() {
        let of_call = |text| Diagnosis::of_call(text, &KeyStarts::single("weir"));
        for (text, fault) in [
            ("READONLY You can't write against a read only replica. script: 7e1, on @user_script:150.", Fault::Replica),
            ("LOADING Redis is loading the dataset in memory", Fault::Loading),
            ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Fault::Replica),
            ("CLUSTERDOWN Hash slot not served", Fault::Cluster),
            ("MOVED 13907 127.0.0.1:7002", Fault::Cluster),
            ("NOPERM this user has no permissions to run the 'evalsha' command", Fault::Permission),
            ("NOAUTH Authentication required.", Fault::Authentication),
            ("ERR unknown command 'EVALSHA', with args beginning with: ", Fault::Permission),
            ("ERR max number of clients reached", Fault::Unreachable),
            (
                "ERR Error running script (call to f_7e1): @user_script:1: -READONLY You can't write against a replica.",
                Fault::Replica,
            ),
            (
                "ERR user script: -READONLY You can't write against a read only replica. script: 7e1, on @user_script:9.",
                Fault::Replica,
            ),
        ] {
            assert_eq!(of_call(text).map(|diagnosis| diagnosis.fault), Some(fault), "{text}");
        }
        for text in [
            "OOM command not allowed when used memory > 'maxmemory'. script: 7e1, on @user_script:150.",
            "ERR Error running script (call to f_7e1): @user_script:1: -OOM command not allowed",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR unknown mode READONLY",
        ] {
            assert_eq!(of_call(text), None, "{text}");
        }
        // One limit may need rights that the others do not.
        assert_eq!(Diagnosis::of_request("NOPERM this user has no permissions to run the 'zadd' command"), None);
    }
}
