//! Overrides that come by URL: fetched again and again, checked, and kept as a copy on disk, which is reloaded like a file.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::time::sleep;

use super::compiler::Compiler;
use crate::config::{Files, OverridesCopy, Report};
use crate::http::{FetchError, Fetched, Fetcher};
use crate::limiter::Shared;
use crate::listeners::admin::reload::ReloadSender;
use crate::message::url::HttpUrl;
use crate::telemetry::metrics::OverridesFetch;

/// The largest list of overrides, in bytes. A million take 70 MB.
const MAX_BYTES: usize = 128 * 1024 * 1024;

/// For a whole fetch. A start waits for the first one of each URL.
const DEADLINE: Duration = Duration::from_secs(10);

/// The overrides of one URL.
#[derive(Clone)]
pub struct OverrideFeed {
    fetcher: Fetcher,
    copy: OverridesCopy,
    /// Read before each fetch, so that a rotated token is used.
    token_file: Option<PathBuf>,
    /// The time between two fetches.
    interval: Duration,
    check: Check,
    /// The validator of the last good overrides that were fetched.
    etag: Option<HeaderValue>,
    /// The problem of the last fetch, which is logged once.
    problem: Option<String>,
}

/// Checks a list of overrides with the other files. The error has the mistakes.
type Check = Arc<dyn Fn(String) -> Result<(), Report> + Send + Sync>;

#[derive(Debug, thiserror::Error)]
enum FeedError {
    #[error("cannot fetch: {0}")]
    Fetch(#[from] FetchError),
    #[error("{0}")]
    Token(String),
    #[error("the overrides are broken:\n{0}")]
    Broken(Report),
    #[error("the overrides are not valid UTF-8")]
    Encoding,
    #[error("cannot write {path}: {error}")]
    Write {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
}

impl OverrideFeed {
    /// `ca` is a PEM file of authorities for the server's certificate; defaults to the public ones. `token_file` has what
    /// is sent as `Authorization: Bearer`. `files` and `compiler` are those of the rules.
    pub fn new(
        (url, copy): (HttpUrl, OverridesCopy),
        (ca, token_file): (Option<&Path>, Option<&Path>),
        interval: Duration,
        files: &Files,
        compiler: Compiler,
    ) -> Result<Self, String> {
        let fetcher = Fetcher::new(url, ca.map(Path::to_owned), DEADLINE, MAX_BYTES)?;
        let (files, name) = (files.clone(), copy.url.clone());
        let check = move |text| compiler.check_overrides(&files, &name, text);
        let token_file = token_file.map(Path::to_owned);
        Ok(Self { fetcher, copy, token_file, interval, check: Arc::new(check), etag: None, problem: None })
    }

    /// Fetches again and again. Asks for a reload when the copy is new.
    pub async fn run(mut self, shared: Arc<Shared>, ask_reload: ReloadSender) {
        loop {
            sleep(self.interval).await;
            if self.fetch(&shared).await == OverridesFetch::Changed {
                // Fails only when the process ends.
                let _ = ask_reload.send(None);
            }
        }
    }

    /// Fetches once, and counts the result. A problem is logged if it is not the last one, and changes nothing.
    pub async fn fetch(&mut self, shared: &Shared) -> OverridesFetch {
        let (fetched, url) = (self.try_fetch().await, &self.copy.url);
        let metrics = &shared.metrics().server;
        let (result, problem) = match fetched {
            Ok(result) => (result, None),
            Err(error @ (FeedError::Broken(_) | FeedError::Encoding)) => (OverridesFetch::Broken, Some(error)),
            Err(error) => (OverridesFetch::Failure, Some(error)),
        };
        metrics.overrides_fetched(result);
        let problem = problem.map(|error| error.to_string());
        match (&self.problem, &problem) {
            (Some(_), None) => {
                metrics.overrides_failing.dec();
                tracing::info!(url, "the overrides can be fetched again");
            }
            (known, Some(problem)) if known.as_ref() != Some(problem) => {
                if known.is_none() {
                    metrics.overrides_failing.inc();
                }
                tracing::error!(url, "the last good overrides stay in force: {problem}");
            }
            _ => {}
        }
        self.problem = problem;
        result
    }

    async fn try_fetch(&mut self) -> Result<OverridesFetch, FeedError> {
        let token = self.token_file.as_deref().map(read_token).transpose().map_err(FeedError::Token)?;
        let fetched = self.fetcher.fetch(self.etag.as_ref(), token).await?;
        let Fetched::Modified { body, etag, .. } = fetched else { return Ok(OverridesFetch::Unchanged) };
        // Bad overrides are fetched again: the validator is that of good ones.
        self.etag = None;
        let text = String::from_utf8(body.into()).map_err(|_| FeedError::Encoding)?;
        let (copy, check) = (self.copy.clone(), self.check.clone());
        // A million overrides take seconds.
        let kept = tokio::task::spawn_blocking(move || keep(&copy, &check, text)).await;
        let result = kept.map_err(|error| FeedError::Write { path: self.copy.path.clone(), error: error.into() })??;
        self.etag = etag;
        Ok(result)
    }
}

/// Reads a token as the value of `Authorization`.
fn read_token(path: &Path) -> Result<HeaderValue, String> {
    let wrong = |reason: String| format!("--overrides-token-file {}: {reason}", path.display());
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(wrong("the file is empty".to_owned()));
    }
    let value = HeaderValue::try_from(format!("Bearer {token}"));
    value.map_err(|_| wrong("the token has characters that a header cannot have".to_owned()))
}

/// Replaces the copy if the overrides have changed and have no mistakes.
fn keep(copy: &OverridesCopy, check: &Check, text: String) -> Result<OverridesFetch, FeedError> {
    if fs::read(&copy.path).is_ok_and(|known| known == text.as_bytes()) {
        return Ok(OverridesFetch::Unchanged);
    }
    // Written first: the check takes the text.
    let new = copy.path.with_extension("new");
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    let failed = |error| FeedError::Write { path: new.clone(), error };
    write().map_err(failed)?;
    if let Err(report) = check(text) {
        let _ = fs::remove_file(&new);
        return Err(FeedError::Broken(report));
    }
    fs::rename(&new, &copy.path).map_err(failed)?;
    Ok(OverridesFetch::Changed)
}

impl fmt::Debug for OverrideFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverrideFeed").field("copy", &self.copy).finish_non_exhaustive()
    }
}
