//! A connection for a few questions that no request waits for.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, Value};
use tokio_util::task::AbortOnDropHandle;

use super::call::describe;
use super::credentials::Credentials;
use super::diagnosis::{Diagnosis, PERHAPS_TLS, WANTS_CERTIFICATE};
use super::stream::Address;
use crate::store::Fault;

/// A connection that is closed when this is dropped. The caller bounds every wait.
pub(super) struct Session {
    client: MultiplexedConnection,
    _driver: AbortOnDropHandle<()>,
}

impl Session {
    /// Connects and logs in.
    pub(super) async fn open(address: &Address, login: &RedisConnectionInfo) -> Result<Self, Diagnosis> {
        let stream = address.open().await?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let opened = MultiplexedConnection::new_with_config(login, stream, config).await;
        let (client, driver) = opened.map_err(|error| on_opening(address, &error))?;
        Ok(Self { client, _driver: AbortOnDropHandle::new(tokio::spawn(driver)) })
    }

    /// Connects and logs in with these credentials.
    pub(super) async fn log_in(address: &Address, credentials: &Credentials) -> Result<Self, Diagnosis> {
        let (session, _) = credentials.log_in(|login| async move { Self::open(address, &login).await }).await?;
        Ok(session)
    }

    /// Sends a command and returns its reply; an error if the server replied with one.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.client.clone().send_packed_command(command).await.and_then(Value::extract_error)
    }
}

/// Diagnoses an error before the first reply.
pub(super) fn on_opening(address: &Address, error: &RedisError) -> Diagnosis {
    let text = describe(error);
    if error.kind() == ErrorKind::AuthenticationFailed {
        return Diagnosis::new(Fault::Authentication, text);
    }
    if error.code() == Some("NOPERM") {
        return Diagnosis::new(Fault::Permission, format!("{text}: give the user `+select`, or use database 0"));
    }
    if let Some(diagnosis) = error.code().and_then(|_| Diagnosis::of_reply(&text)) {
        return diagnosis;
    }
    if text.contains("CertificateRequired") {
        return Diagnosis::new(Fault::Tls, format!("{text}: {WANTS_CERTIFICATE}"));
    }
    if error.is_io_error() && address.is_plain_tcp() {
        return Diagnosis::new(Fault::Unreachable, format!("{text}: {PERHAPS_TLS}"));
    }
    Diagnosis::new(Fault::Unreachable, text)
}
