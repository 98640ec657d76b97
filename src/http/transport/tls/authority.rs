//! Verifies servers by the authorities of a file.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::certificate::Certificate;
use super::files::{FileContent, FileError};

/// Accepts certificates that the authorities have signed, and the certificates of the file themselves.
///
/// `openssl req -x509` makes a certificate that is an authority, which the library never accepts as a server's
/// (`CaUsedAsEndEntity`). If the operator has listed that very certificate, nothing is left to be proven by a signature: the
/// handshake shows that the server has its key.
#[derive(Debug)]
pub(super) struct AuthorityVerifier {
    authorities: Arc<WebPkiServerVerifier>,
    listed: Vec<CertificateDer<'static>>,
}

impl AuthorityVerifier {
    pub(super) fn new(file: &FileContent, provider: &Arc<CryptoProvider>) -> Result<Self, FileError> {
        let authorities = WebPkiServerVerifier::builder_with_provider(file.roots()?, provider.clone()).build();
        let authorities =
            authorities.map_err(|error| file.file.error(format!("cannot verify servers by it: {error}")))?;
        Ok(Self { authorities, listed: file.certificates()? })
    }
}

/// Checks what holds for every certificate: the server's name and the time.
fn check_listed(certificate: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> Result<(), Error> {
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
    let says = Certificate::parse(certificate).ok_or(CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).map_err(|_| CertificateError::Expired)?;
    if now < says.not_before {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > says.not_after { Err(CertificateError::Expired.into()) } else { Ok(()) }
}

impl ServerCertVerifier for AuthorityVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.authorities.verify_server_cert(certificate, intermediates, name, ocsp, now);
        if verified.is_ok() || !self.listed.contains(certificate) {
            return verified;
        }
        check_listed(certificate, name, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}
