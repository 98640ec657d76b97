//! The settings of all Ingresses.

use super::super::document::Document;
use super::super::settings::Settings;
use super::super::text::piece;
use super::super::tree::{at, text_at};
use super::{NEAR, is_about_limits};
use crate::config::Source;
use crate::config::foreign::Node;

pub(super) const PROXIES: &str = "give Weir the networks of the proxies in front in `--trusted-proxies`.";

/// The `ConfigMap` of the controller.
#[derive(Default)]
pub(super) struct Controller {
    pub(super) request_status: Option<u64>,
    pub(super) connection_status: Option<u64>,
    pub(super) global_status: Option<u64>,
    /// `None` without a `ConfigMap` among the files.
    pub(super) has_memcached: Option<bool>,
}

impl Controller {
    /// Reads them from the `ConfigMap`s among the objects.
    pub(super) fn read(objects: &[(&Source, &Node)], document: &mut Document) -> Self {
        let mut controller = Self::default();
        for (source, node) in objects.iter().filter(|(_, node)| text_at(node, &["kind"]) == Some("ConfigMap")) {
            if let Some(data) = at(node, &["data"]) {
                let name = text_at(node, &["metadata", "name"]).unwrap_or_default();
                let data = Settings::about(&source.name, data, |key, value| {
                    is_about_clients(key, value) || is_about_limits(key, value)
                });
                if !is_of_controller(name) {
                    let why = format!("{} is not taken for the ConfigMap of ingress-nginx, by its name.", piece(name));
                    let near: Vec<(String, &str)> = data.names().map(|name| (name, why.as_str())).collect();
                    let near: Vec<(&str, &str)> = near.iter().map(|(name, why)| (name.as_str(), *why)).collect();
                    data.finish(false, &near, document);
                    continue;
                }
                controller.request_status = data.number("limit-req-status-code").or(controller.request_status);
                controller.connection_status = data.number("limit-conn-status-code").or(controller.connection_status);
                controller.global_status = data.number("global-rate-limit-status-code").or(controller.global_status);
                let has_memcached = data.text("global-rate-limit-memcached-host").is_some_and(|host| !host.is_empty());
                controller.has_memcached = Some(has_memcached || controller.has_memcached == Some(true));
                data.finish(true, &NEAR, document);
            }
        }
        controller
    }
}

/// The usual names of the controller's `ConfigMap`: `ingress-nginx-controller`, `nginx-configuration`, with a release's name before.
fn is_of_controller(name: &str) -> bool {
    name.contains("nginx") && (name.contains("controller") || name.contains("config"))
}

/// Settings of the `ConfigMap` by which the addresses that limits count come from proxies.
fn is_about_clients(key: &str, value: &str) -> bool {
    key == "proxy-real-ip-cidr"
        || ["use-forwarded-headers", "enable-real-ip", "use-proxy-protocol"].contains(&key) && value == "true"
}
