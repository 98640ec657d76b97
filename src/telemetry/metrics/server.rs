//! Metrics of the server: workers, connections, certificates, and reloads of files.

use prometheus::{IntCounter, IntGauge, IntGaugeVec};

use super::families::{PerLabel, metrics};
use crate::engine::request::claims::TokenResult;

label! {
    /// The label `result` of `weir_overrides_fetches_total`.
    pub enum OverridesFetch {
        /// New overrides are in force.
        Changed = "changed",
        Unchanged = "unchanged",
        /// They have mistakes.
        Broken = "broken",
        /// There was no answer, or it could not be kept.
        Failure = "failure",
    }
}

label! {
    /// The label `result` of `weir_xds_updates_total`.
    pub enum XdsUpdate {
        /// It is in force.
        Accepted = "accepted",
        /// It has mistakes; the last good one stays in force.
        Rejected = "rejected",
    }
}

label! {
    /// The label `result` of `weir_config_reloads_total`, `weir_tls_reloads_total` and `weir_routes_reloads_total`.
    pub enum Reload {
        Failure = "failure",
        Success = "success",
    }
}

label! {
    /// The connections that are too many: the label `reason` of `weir_http_connections_rejected_total`.
    pub enum TooMany {
        /// Those of the process.
        Total = "total",
        /// Those from one address.
        Address = "address",
    }
}

label! {
    /// The label `result` of `weir_jwks_fetches_total`.
    pub enum KeysFetch {
        New = "new",
        NotModified = "not_modified",
        /// The last good keys stay in force.
        Failure = "failure",
    }
}

metrics! {
    pub struct ServerMetrics {
        workers: IntGauge = gauge("weir_workers", "Worker threads");
        start_timestamp: IntGauge = gauge(
            "process_start_time_seconds",
            "Start time of the process, in seconds since the Unix epoch",
        );
        panics: IntCounter = counter("weir_panics_total", "Panics; each ended one connection");
        connections: IntGauge = gauge("weir_http_connections", "Open client connections");
        connections_max: IntGauge = gauge("weir_http_connections_max", "Maximum number of open client connections");
        connections_rejected: PerLabel<TooMany, IntCounter> = counter_by(
            "weir_http_connections_rejected_total",
            "Connections closed because too many were open, in total or from one address", "reason",
        );
        accept_errors: IntCounter = counter(
            "weir_http_accept_errors_total",
            "Connections that could not be accepted, for example for lack of file descriptors",
        );
        access_log_dropped: IntCounter = counter("weir_access_log_dropped_total", "Lines missing from the access log");
        reloads: PerLabel<Reload, IntCounter> = counter_by(
            "weir_config_reloads_total", "Reloads of the rules, by result", "result",
        );
        reload_successful: IntGauge = gauge(
            "weir_config_last_reload_successful",
            "1 if the last reload of the rules succeeded, else 0",
        );
        reload_timestamp: IntGauge = gauge(
            "weir_config_last_reload_success_timestamp_seconds",
            "Time of the last successful load of the rules, in seconds since the Unix epoch",
        );
        /// A family whose labels are the names of files, which are bounded.
        files_broken: IntGaugeVec = gauges(
            "weir_config_file_broken",
            "1 if a rules file of a directory has mistakes, so that its last good version is in force, if any, else 0",
            &["owner"],
        );
        overrides_fetches: PerLabel<OverridesFetch, IntCounter> = counter_by(
            "weir_overrides_fetches_total", "Fetches of overrides by URL, by result", "result",
        );
        overrides_failing: IntGauge = gauge(
            "weir_overrides_failing",
            "URLs of overrides whose last fetch failed or brought broken ones; the last good ones are in force",
        );
        xds_updates: PerLabel<XdsUpdate, IntCounter> = counter_by(
            "weir_xds_updates_total", "Configurations that the management server has sent, by result", "result",
        );
        /// This family and the next have no labels, so that they are absent without a management server.
        xds_connected: IntGaugeVec = gauges(
            "weir_xds_connected", "1 while the stream to the management server is open, else 0", &[],
        );
        xds_silent: IntGaugeVec = gauges(
            "weir_xds_silent",
            "1 while the management server has not sent a configuration within 10 s of a stream, and none is in force, else 0",
            &[],
        );
        tls_reloads: PerLabel<Reload, IntCounter> = counter_by(
            "weir_tls_reloads_total", "Reloads of the certificates, by result", "result",
        );
        routes_reloads: PerLabel<Reload, IntCounter> = counter_by(
            "weir_routes_reloads_total", "Reloads of the proxy's routes, by result", "result",
        );
        jwt_tokens: PerLabel<TokenResult, IntCounter> = counter_by(
            "weir_jwt_tokens_total",
            "Tokens that limits by claims have looked for, by the result of their verification", "result",
        );
        jwks_fetches: PerLabel<KeysFetch, IntCounter> = counter_by(
            "weir_jwks_fetches_total", "Fetches of issuers' keys, by result", "result",
        );
        jwks_unusable: IntGauge = gauge(
            "weir_jwks_unusable_keys", "Fetched keys of issuers that cannot verify tokens",
        );
        jwks_missing: IntGauge = gauge(
            "weir_jwks_missing", "Issuers whose keys have not been fetched since they came into the rules",
        );
        /// A family without labels, so that it is absent without TLS: a date of 0 would fire every alert.
        tls_expiry: IntGaugeVec = gauges(
            "weir_tls_certificate_expiry_timestamp_seconds",
            "Time at which the first certificate expires, in seconds since the Unix epoch",
            &[],
        );
    }
}

impl Reload {
    const fn of(is_success: bool) -> Self {
        if is_success { Self::Success } else { Self::Failure }
    }
}

impl ServerMetrics {
    /// Records that the process started and loaded its rules, at a time in seconds since the Unix epoch.
    pub fn started(&self, seconds: i64) {
        self.start_timestamp.set(seconds);
        self.reload_successful.set(1);
        self.reload_timestamp.set(seconds);
    }

    /// Counts a reload of the rules.
    pub fn reloaded(&self, is_success: bool) {
        self.reloads[Reload::of(is_success)].inc();
        self.reload_successful.set(is_success.into());
    }

    /// Sets the owners of the files of a directory, and whether the file of each is broken.
    pub fn set_files(&self, files: &[(String, bool)]) {
        self.files_broken.reset();
        for (owner, is_broken) in files {
            self.files_broken.with_label_values(&[owner]).set((*is_broken).into());
        }
    }

    /// Counts a fetch of overrides.
    pub fn overrides_fetched(&self, result: OverridesFetch) {
        self.overrides_fetches[result].inc();
    }

    /// Sets whether the stream to the management server is open.
    pub fn xds_connected(&self, is_connected: bool) {
        self.xds_connected.with_label_values::<&str>(&[]).set(is_connected.into());
    }

    /// Sets whether the management server has sent nothing although it should have.
    pub fn xds_silent(&self, is_silent: bool) {
        self.xds_silent.with_label_values::<&str>(&[]).set(is_silent.into());
    }

    /// Counts a reload of the certificates.
    pub fn tls_reloaded(&self, is_success: bool) {
        self.tls_reloads[Reload::of(is_success)].inc();
    }

    /// Counts a reload of the proxy's routes.
    pub fn routes_reloaded(&self, is_success: bool) {
        self.routes_reloads[Reload::of(is_success)].inc();
    }

    /// Sets the time at which the first certificate expires, in seconds since the Unix epoch.
    pub fn set_tls_expiry(&self, seconds: i64) {
        self.tls_expiry.with_label_values::<&str>(&[]).set(seconds);
    }
}
