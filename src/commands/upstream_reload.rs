//! The upstreams' options from the flags and the `--config` file, and their reloads.

use std::path::{Path, PathBuf};

use super::route_file;
use super::schema;
use super::upstream_flags::UpstreamArgs;
use crate::config::{self, Problem, Report, Source};
use crate::http::{ConnectorReloader, Routes, UpstreamOptions};
use crate::telemetry::metrics::Metrics;

/// Reloads the routes of the `--config` file, and the certificates for upstreams.
pub(super) struct UpstreamReloader {
    args: UpstreamArgs,
    connector: Option<ConnectorReloader>,
    /// The options in force. The workers follow their `reloaded`.
    options: UpstreamOptions,
    file: Option<RouteFile>,
}

/// A file with routes.
struct RouteFile {
    path: PathBuf,
    /// The content when it was last read, or the reason why it could not be read.
    content: Result<Source, String>,
    /// The reason why the content is not in force.
    error: Option<String>,
}

/// Reads the options; `None` without an upstream. The error has a line per mistake.
pub(super) fn start(
    args: &UpstreamArgs,
    file: Option<&Path>,
) -> Result<Option<(UpstreamOptions, UpstreamReloader)>, String> {
    let file = file.map(RouteFile::read);
    let (routes, _) = routes(args, file.as_ref())?;
    if routes.is_empty() {
        return Ok(None);
    }
    let (tls, connector) = if routes.use_tls() { Some(args.tls()?).unzip() } else { (None, None) };
    let reloaded = file.is_some().then(Default::default);
    let options = UpstreamOptions { tls, reloaded, ..args.with_routes(routes) };
    let reloader = UpstreamReloader { args: args.clone(), connector, options: options.clone(), file };
    Ok(Some((options, reloader)))
}

impl UpstreamReloader {
    /// Reloads the files that have changed. `is_asked` is true after a request such as SIGHUP. A broken file changes nothing.
    pub(super) fn reload(&mut self, is_asked: bool, metrics: &Metrics) {
        if let Some(connector) = &mut self.connector {
            connector.reload(is_asked);
        }
        let Some(file) = &mut self.file else { return };
        let read = RouteFile::read(&file.path);
        if read.content == file.content {
            return;
        }
        let was_broken = file.error.is_some();
        *file = read;
        let result = self.replace();
        let (is_new, error) = match result {
            Ok(is_new) => (is_new, None),
            Err(error) => {
                tracing::error!("the routes are broken, the last good ones stay in force: {error}");
                (false, Some(error))
            }
        };
        if is_new || was_broken || error.is_some() {
            metrics.server.routes_reloaded(error.is_none());
        }
        if let Some(file) = &mut self.file {
            file.error = error;
        }
    }

    /// Puts the file's routes in force. Returns whether they are others.
    fn replace(&mut self) -> Result<bool, String> {
        let (routes, has_key) = routes(&self.args, self.file.as_ref())?;
        if routes == self.options.routes {
            return Ok(false);
        }
        // Without the key, the flags' routes would be left. A file that is being written may be empty or end before the key.
        if !has_key {
            return Err("the file has no `routes` any more; write `routes: {}` to remove all".to_owned());
        }
        if routes.use_tls() && self.options.tls.is_none() {
            (self.options.tls, self.connector) = Some(self.args.tls()?).unzip();
        }
        tracing::info!(routes = routes.len(), "new routes are in force");
        self.options.routes = routes;
        announce(&self.options.routes);
        if let Some(reloaded) = &self.options.reloaded {
            // Without the way to the next reload, which the workers have.
            reloaded.store(Some(UpstreamOptions { reloaded: None, ..self.options.clone() }.into()));
        }
        Ok(true)
    }

    /// Returns why the routes on disk are not in force.
    pub(super) fn error(&self) -> Option<String> {
        self.file.as_ref()?.error.clone()
    }
}

/// Logs which upstreams get another `Host` than the client sent.
pub(super) fn announce(routes: &Routes) {
    for (upstream, host) in routes.replaced_hosts() {
        tracing::info!(
            upstream,
            host,
            "requests to this upstream get this Host; `#host=client` after its URL keeps the client's"
        );
    }
}

impl RouteFile {
    fn read(path: &Path) -> Self {
        let content = config::read(path).map_err(|problem| problem.one_line());
        Self { path: path.to_owned(), content, error: None }
    }
}

/// Returns the routes of the flags and of the file, and whether the file has the key for them.
fn routes(args: &UpstreamArgs, file: Option<&RouteFile>) -> Result<(Routes, bool), String> {
    let (mut routes, mut has_key) = (args.routes()?, false);
    let Some(file) = file else { return Ok((routes, has_key)) };
    let source = file.content.as_ref().map_err(Clone::clone)?;
    let settable = schema::settable();
    let known: Vec<_> = settable.iter().filter_map(schema::known).collect();
    let health = args.health_check(String::new());
    let read = config::settings(source, &known, |node| {
        has_key = true;
        route_file::read(node, &health, &mut routes);
    });
    read.map_err(|report| one_line_each(&report))?;
    Ok((routes, has_key))
}

fn one_line_each(report: &Report) -> String {
    report.problems.iter().map(Problem::one_line).collect::<Vec<_>>().join("\nerror: ")
}
