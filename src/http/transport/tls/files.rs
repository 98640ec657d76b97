//! Reads PEM files and notices changes.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::KeyPairFiles;
use super::certificate::Certificate;

/// The longest file that is read: four times the public authorities' certificates with their comments.
const MAX_FILE: u64 = 1024 * 1024;

/// An error in a file that a flag names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {}: {reason}", .path.display())]
pub struct FileError {
    flag: &'static str,
    path: PathBuf,
    /// The error and how to fix it.
    reason: String,
}

/// A file that a flag names.
#[derive(Clone, Debug)]
pub(super) struct NamedFile {
    pub(super) flag: &'static str,
    pub(super) path: PathBuf,
}

/// The content of a file that a flag names.
#[derive(Clone)]
pub(super) struct FileContent {
    pub(super) file: NamedFile,
    bytes: Vec<u8>,
}

/// Files that are read together, and their last known contents.
///
/// They are read in full each time. They are few and small, and timestamps would miss changes within a tick of the file
/// system's clock.
#[derive(Debug)]
pub(super) struct WatchedFiles {
    files: Vec<NamedFile>,
    /// The contents that [`Self::poll`] last reported on.
    known: Option<ContentsHash>,
    /// Broken contents that may have been in the middle of a change at the last look.
    suspect: Option<ContentsHash>,
}

/// A hash of the files' contents, or why they could not be read.
type ContentsHash = Result<u64, FileError>;

impl WatchedFiles {
    /// Reads files for the first time and calls `make` with their contents.
    pub(super) fn load<T>(
        files: Vec<NamedFile>,
        make: impl FnOnce(&[FileContent]) -> Result<T, FileError>,
    ) -> Result<(Self, T), FileError> {
        let contents = files.iter().map(NamedFile::read).collect::<Result<Vec<_>, _>>()?;
        Ok((Self { files, known: Some(Ok(hash(&contents))), suspect: None }, make(&contents)?))
    }

    /// Calls `make` with the contents, in the order of [`Self::load`], if they have changed.
    ///
    /// A certificate and its key are two files, which may be replaced one after the other. So an error is reported only
    /// if the next look still finds it or if `is_asked`, and then once.
    pub(super) fn poll<T>(
        &mut self,
        is_asked: bool,
        make: impl FnOnce(&[FileContent]) -> Result<T, FileError>,
    ) -> Option<Result<T, FileError>> {
        let contents: Result<Vec<_>, _> = self.files.iter().map(NamedFile::read).collect();
        let hash = Some(contents.as_deref().map(hash).map_err(FileError::clone));
        let suspect = self.suspect.take();
        if hash == self.known {
            return None;
        }
        let made = contents.and_then(|contents| make(&contents));
        if made.is_err() && !is_asked && hash != suspect {
            self.suspect = hash;
            return None;
        }
        self.known = hash;
        Some(made)
    }
}

/// 64 bits without a secret are enough: nobody gains from a collision, and a restart forgets the value.
fn hash(contents: &[FileContent]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for content in contents {
        content.bytes.hash(&mut hasher);
    }
    hasher.finish()
}

impl NamedFile {
    pub(super) fn error(&self, reason: impl Into<String>) -> FileError {
        FileError { flag: self.flag, path: self.path.clone(), reason: reason.into() }
    }

    fn read(&self) -> Result<FileContent, FileError> {
        let mut bytes = Vec::new();
        let file = File::open(&self.path);
        let read = file.and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
        read.map_err(|error| self.error(error.to_string()))?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_FILE) {
            return Err(self.error("the file is longer than 1 MiB; expected PEM"));
        }
        Ok(FileContent { file: self.clone(), bytes })
    }
}

/// Returns an error in all files together, for the first of them, or for `flag` without any.
pub(super) fn error_in_all(contents: &[FileContent], flag: &'static str, reason: String) -> FileError {
    let path = PathBuf::new();
    contents.first().map_or(&NamedFile { flag, path }, |content| &content.file).error(reason)
}

impl FileContent {
    /// Returns the certificates, at least one.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, FileError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        let certificates = certificates.map_err(|error| self.broken(&error))?;
        if certificates.is_empty() {
            return Err(self.lacks("certificate", "-----BEGIN CERTIFICATE-----"));
        }
        Ok(certificates)
    }

    /// Returns the first private key, as OpenSSL does.
    fn private_key(&self) -> Result<PrivateKeyDer<'static>, FileError> {
        if find(&self.bytes, b"-----BEGIN ENCRYPTED PRIVATE KEY-----") {
            let help = "the key is encrypted, and nobody could type its password here; decrypt it with `openssl pkey`";
            return Err(self.file.error(help));
        }
        match PrivateKeyDer::from_pem_slice(&self.bytes) {
            Ok(key) => Ok(key),
            Err(pem::Error::NoItemsFound) => Err(self.lacks("private key", "-----BEGIN PRIVATE KEY-----")),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Returns the authorities' certificates.
    pub(super) fn roots(&self) -> Result<Arc<RootCertStore>, FileError> {
        let mut roots = RootCertStore::empty();
        for (number, certificate) in (1..).zip(self.certificates()?) {
            let wrong = |error| self.file.error(format!("certificate {number} is not a valid authority: {error}"));
            roots.add(certificate).map_err(wrong)?;
        }
        Ok(Arc::new(roots))
    }

    fn lacks(&self, what: &str, begin: &str) -> FileError {
        let other = [("certificate", "-----BEGIN CERTIFICATE-----"), ("private key", "PRIVATE KEY-----")]
            .into_iter()
            .find(|(kind, mark)| *kind != what && find(&self.bytes, mark.as_bytes()));
        let help = match other {
            Some((kind, _)) => format!("it contains a {kind}; are the two files swapped?"),
            None => format!("expected PEM with a line `{begin}`"),
        };
        self.file.error(format!("no {what} in the file; {help}"))
    }

    fn broken(&self, error: &pem::Error) -> FileError {
        let reason = match error {
            pem::Error::MissingSectionEnd { end_marker } => {
                format!("incomplete file: `-----END {}-----` is missing", String::from_utf8_lossy(end_marker))
            }
            pem::Error::IllegalSectionStart { line } => {
                format!("invalid line `{}`", String::from_utf8_lossy(line).trim())
            }
            pem::Error::Base64Decode(_) => "invalid base64 between the BEGIN and END lines".to_owned(),
            other => other.to_string(),
        };
        self.file.error(reason)
    }
}

fn find(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A certificate that can be presented.
#[derive(Debug)]
pub(super) struct LoadedCertificate {
    pub(super) certified: Arc<CertifiedKey>,
    pub(super) says: Certificate,
    /// The file that it is from.
    pub(super) file: NamedFile,
}

/// Builds a certificate and its key from their files.
pub(super) fn load(
    certificate: &FileContent,
    key: &FileContent,
    provider: &CryptoProvider,
) -> Result<LoadedCertificate, FileError> {
    let chain = certificate.certificates()?;
    let private = key.private_key()?;
    let no_certificate = || certificate.file.error("the first certificate in the file is invalid");
    let says = chain.first().and_then(|first| Certificate::parse(first)).ok_or_else(no_certificate)?;
    let unusable = |error| key.file.error(format!("the private key cannot be used: {error}"));
    let private = provider.key_provider.load_private_key(private).map_err(unusable)?;
    let certified = CertifiedKey::new(chain, private);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
        Err(rustls::Error::InconsistentKeys(_)) => return Err(mismatch(certificate, key, certified)),
        Err(error) => return Err(certificate.file.error(format!("the certificate cannot be used: {error}"))),
    }
    Ok(LoadedCertificate { certified: Arc::new(certified), says, file: certificate.file.clone() })
}

/// Explains why a key does not match the first certificate of a file: often another certificate comes before its own.
fn mismatch(certificate: &FileContent, key: &FileContent, certified: CertifiedKey) -> FileError {
    let CertifiedKey { cert: chain, key: private, .. } = certified;
    for (number, own) in (1..).zip(&chain).skip(1) {
        if CertifiedKey::new(vec![own.clone()], Arc::clone(&private)).keys_match().is_ok() {
            return certificate.file.error(format!(
                "the key in {} belongs to certificate {number}; put that certificate first, followed by its chain",
                key.file.path.display()
            ));
        }
    }
    key.file.error(format!(
        "the key does not match the certificate in {}; give the keys in the order of the certificates",
        certificate.file.path.display()
    ))
}

impl LoadedCertificate {
    /// Returns a warning if clients will reject it. It is used all the same: our clock may be wrong, and some
    /// clients do not check.
    pub(super) fn warning(&self, now: SystemTime) -> Option<FileError> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
        let now = i64::try_from(now).ok()?;
        let what = match &self.says {
            says if says.not_after < now => "the certificate has expired",
            says if says.not_before > now => "the certificate is not valid yet",
            says if says.names().is_empty() => "the certificate names no host: it has no subjectAltName",
            _ => return None,
        };
        Some(self.file.error(format!("{what}; clients will reject it")))
    }
}

/// Returns the files of a pair in the order of [`load`]'s arguments.
pub(super) fn pair(files: &KeyPairFiles, flags: [&'static str; 2]) -> [NamedFile; 2] {
    let [certificate, key] = flags;
    [NamedFile { flag: certificate, path: files.certificate.clone() }, NamedFile { flag: key, path: files.key.clone() }]
}
